"""Experiments of no paper."""
