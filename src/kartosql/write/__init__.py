"""Writing: rows to partitions to files to one commit; nothing shows before the last put."""

from kartosql.write.build import build_cube, write_dataset

__all__ = ["build_cube", "write_dataset"]
