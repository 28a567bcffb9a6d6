"""FedStaleWeight (2024)."""
