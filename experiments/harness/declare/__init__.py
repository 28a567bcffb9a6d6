"""What an experiment's file declares, and what docs/protocol.md demands of it."""
