"""The files of a run: written, found again, read, and checked."""
