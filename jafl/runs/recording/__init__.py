"""What a run records while it trains and when it ends."""
