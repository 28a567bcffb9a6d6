"""How a schedule is computed: which plan suits, whether it fits into memory, and what the engine is given."""
