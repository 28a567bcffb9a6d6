"""Measurements of speed and memory: the commands behind the figures in README.md."""
