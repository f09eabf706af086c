"""How much a table holds: files, partitions, rows and bytes, from the footers of its files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from kartosql.parquet.metadata import file_metadata
from kartosql.store import Files
from kartosql.tables.table import FileTable


@dataclass(frozen=True)
class Stats:
    """What the files of a table hold; rows that were overwritten are counted, as they still stand there."""

    partitions: int
    files: int
    rows: int
    bytes: int

    def to_dict(self) -> dict[str, int]:
        """Return the numbers by the names that the original gives them."""
        return {"blobsize": self.bytes, "files": self.files, "partitions": self.partitions, "rows": self.rows}


def collect_stats(store: Files, table: FileTable) -> Stats:
    """Return how much a table holds; raises ``missing-file`` and ``corrupt-file``."""
    found = list(store.map(partial(footer, store), table.files))
    partitions = len(set(table.partitions.part_of_file))
    return Stats(partitions, len(found), sum(rows for rows, _ in found), sum(size for _, size in found))


def footer(store: Files, key: str) -> tuple[int, int]:
    """Return rows and bytes of a data file, as ``file_metadata`` reads them."""
    found, size = file_metadata(store, key)
    return found.num_rows, size
