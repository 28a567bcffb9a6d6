"""The matrix form: one product of matrices makes all versions that follow from a wave."""
