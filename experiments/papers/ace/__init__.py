"""ACE and ACED (2025)."""
