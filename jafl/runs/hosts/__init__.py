"""One run in several processes, on several hosts."""
