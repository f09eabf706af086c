"""The sorter of a connection, under the name it was first asked for."""

from __future__ import annotations

from kartosql.write.spill import SpillingSorter


class DuckDBSorter(SpillingSorter):
    """A SpillingSorter; DuckDB's own sort runs out of memory on inputs of many times its limit."""

    def __init__(self, temp_directory: str | None = None, threads: int | None = None) -> None:
        super().__init__(temp_directory)
