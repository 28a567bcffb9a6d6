"""Reports and pages of results."""
