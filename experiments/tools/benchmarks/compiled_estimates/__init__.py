"""What compilers for chips that are not here note of time, read off the programs that they have compiled."""
