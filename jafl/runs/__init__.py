"""Runs with a directory: what `run.py` does with one experiment or a comparison."""
