"""FedBuff (2022)."""
