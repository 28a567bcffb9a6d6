"""What compilers say of programs on chips that are not here: their memory, and whether a run fits."""
