"""Many runs with a directory: grids of settings, their means over seeds, figures and the report."""
