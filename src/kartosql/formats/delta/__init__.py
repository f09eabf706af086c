"""Tables of Delta Lake: the log, its checkpoints, and their entries of files."""
