"""Where examples come from: one file for each data set, and the readers that they share."""
