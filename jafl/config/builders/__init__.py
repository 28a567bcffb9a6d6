"""Builders: each makes one ingredient of an experiment from settings."""
