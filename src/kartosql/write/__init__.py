"""Writing: rows to partitions to files to one commit; nothing shows before the last put."""
