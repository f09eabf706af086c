"""How much a table holds: files, partitions, rows and bytes, from the footers of its files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import FormatError
from kartosql.failures import reraise
from kartosql.formats.footer import column_sizes
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.store import Files


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


def collect_stats(store: Files, table: DatasetTable) -> Stats:
    """Return how much a table holds; raises ``missing-file`` and ``corrupt-file``."""
    found = list(store.map(partial(footer, store), table.files))
    partitions = len(set(table.partitions.part_of_file))
    return Stats(partitions, len(found), sum(rows for rows, _ in found), sum(size for _, size in found))


def footer(store: Files, key: str) -> tuple[int, int]:
    """Return rows and bytes of a data file, as ``read_footer`` reads them."""
    found, size = read_footer(store, key)
    return found.num_rows, size


def may_hold_null(found: pq.FileMetaData, column: str) -> bool:
    """Return whether a top-level column of a file holds NULL, as far as its footer ``with_columns`` tells."""
    groups = [found.row_group(at) for at in range(found.num_row_groups)]
    chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
    counts = [
        c.statistics.null_count if c.statistics is not None and c.statistics.has_null_count else None
        for c in chunks
        if c.path_in_schema == column
    ]
    return any(count is None or count > 0 for count in counts)


def read_footer(store: Files, key: str, *, with_columns: bool = False) -> tuple[pq.FileMetaData, int]:
    """Return the footer and the size in bytes of a data file, reading no more than its end.

    Only ``with_columns`` may it be asked about the columns of row groups. Raises ``missing-file`` and
    ``corrupt-file``.
    """
    try:
        size = store.size(key) or 0
        tail = store.read(key, start=max(0, size - 8), end=size)
        length = int.from_bytes(tail[:4], "little") + 8
        if tail[4:] != b"PAR1" or length > size:
            raise FormatError(f"{store.shown(key)}: it is no Parquet file", code="corrupt-file")
        data = store.read(key, start=size - length, end=size)
        found = pq.read_metadata(pa.BufferReader(data))
        if with_columns and column_sizes(data[:-8], found.schema) is None:
            raise FormatError(f"{store.shown(key)}: columns of it are encrypted or damaged", code="corrupt-file")
        return found, size
    except KeyError:
        raise FormatError(f"The file {store.shown(key)!r} is missing.", code="missing-file") from None
    except (pa.ArrowException, OSError) as e:
        reraise(e, f"Cannot read {store.shown(key)!r}")
        raise FormatError(f"{store.shown(key)}: {e}", code="corrupt-file") from None
