"""How a schedule is computed: its waves and slots, whether it fits into memory, and what the loops are given."""
