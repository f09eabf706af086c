"""What Arrow makes of footers. It may be asked about columns of row groups only after a check."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import FormatError, missing_file, reraise
from kartosql.parquet.footer import MAGIC, column_sizes, footer_of
from kartosql.parquet.reader import read_footer
from kartosql.store import Files

if TYPE_CHECKING:
    import pyarrow.parquet as pq


def arrow_metadata(footer: bytes) -> pq.FileMetaData:
    """Return what Arrow makes of a footer; only about its schema and its rows it may be asked without further checks.

    Raises pyarrow.ArrowException, OSError and ValueError.
    """
    import pyarrow.parquet as pq

    return pq.read_metadata(pa.BufferReader(MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC))


def file_metadata(files: Files, key: str, *, with_columns: bool = False) -> tuple[pq.FileMetaData, int]:
    """Return the metadata of a data file by Arrow, and the size of the file in bytes.

    Only ``with_columns`` may they be asked about the columns of row groups. Raises ``missing-file`` and
    ``corrupt-file``.
    """
    try:
        size = files.size(key) or 0
        try:
            footer = read_footer(files, key, size)
        except OSError:
            footer = footer_of(files.read(key))  # which raises an error of our own
        if footer is None:
            raise FormatError(f"{files.display_name(key)}: it is no Parquet file", code="corrupt-file")
        found = arrow_metadata(footer)
        if with_columns and column_sizes(footer, found.schema) is None:
            raise FormatError(f"{files.display_name(key)}: columns of it are encrypted or damaged", code="corrupt-file")
        return found, size
    except KeyError:
        raise missing_file(files.display_name(key)) from None
    except (pa.ArrowException, OSError) as e:
        reraise(e, f"Cannot read {files.display_name(key)!r}")
        raise FormatError(f"{files.display_name(key)}: {e}", code="corrupt-file") from None


def column_bytes(footer: pq.FileMetaData, columns: Iterable[str] | None = None) -> int:
    """Return the compressed bytes of top-level columns of a file, by default of all."""
    wanted = None if columns is None else set(columns)
    return sum(group_bytes(footer.row_group(at), wanted) for at in range(footer.num_row_groups))


def group_bytes(group: Any, columns: Container[str] | None = None) -> int:
    """Return the compressed bytes of top-level columns of a row group, by default of all."""
    chunks = [group.column(at) for at in range(group.num_columns)]
    return sum(c.total_compressed_size for c in chunks if columns is None or c.path_in_schema.split(".")[0] in columns)


def may_hold_null(footer: pq.FileMetaData, column: str) -> bool:
    """Return whether a top-level column of a file holds NULL, as far as its footer ``with_columns`` tells."""
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
    counts = [
        c.statistics.null_count if c.statistics is not None and c.statistics.has_null_count else None
        for c in chunks
        if c.path_in_schema == column
    ]
    return any(count is None or count > 0 for count in counts)


def extremes(group: Any, column: str) -> tuple[Any, Any] | None:
    """Return the least and greatest value that a row group tells of a column, None where it does not."""
    for at in range(group.num_columns):
        chunk = group.column(at)
        if chunk.path_in_schema == column:
            stats = chunk.statistics
            return (stats.min, stats.max) if stats is not None and stats.has_min_max else None
    return None
