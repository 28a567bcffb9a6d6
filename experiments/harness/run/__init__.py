"""Runs an experiment: its search, its results, its control."""
