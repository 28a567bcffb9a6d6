"""What jafl is measured with: one file per benchmark, search, paper figure or table."""
