"""Sweeps: runs over grids of settings, their means over seeds, their figures and reports."""
