"""What compilers say of programs on chips that are not here: memory, estimated time, and whether a run fits."""
