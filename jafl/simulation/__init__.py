"""Whole runs: the loop of chunks, evaluations and checkpoints, for one run or several in one program."""
