"""Tables of Delta Lake: the log, its checkpoints, and what they tell of files."""
