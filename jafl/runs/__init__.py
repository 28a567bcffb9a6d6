"""Trains experiments and keeps each in a run directory: single runs and comparisons."""
