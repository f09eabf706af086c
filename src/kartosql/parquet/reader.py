"""Reading footers: the ends of Parquet files, in as few requests as there can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError
from kartosql.failures import reraise
from kartosql.parquet.footer import MAGIC, Footer, column_sizes, footer_of, length_of
from kartosql.store import Files, Store
from kartosql.store.local import LocalFiles

if TYPE_CHECKING:
    import pyarrow.parquet as pq

TAIL = 32_768  # bytes at the end of a file that are read for its footer, at first
MAX_FOOTER = 64 << 20  # of files about which nothing has to be known
_LOCAL = LocalFiles()


def read_footer(files: Files, key: str, size: int, tail: int = TAIL, most: int | None = None) -> bytes | None:
    """Return the footer of a file; None if it has none, or it has more than ``most`` bytes, or is encrypted.

    At first ``tail`` bytes are read, and all of a longer footer then. Raises OSError where a local file cannot be
    read, and otherwise what the store raises, which is a KeyError for a file that is not there.
    """
    end = _end(files, key, size, tail)
    length = length_of(end)
    if length is not None and len(end) < length <= min(size, most or size):
        end = _end(files, key, size, length)
    return footer_of(end)


def _end(files: Files, key: str, size: int, length: int) -> bytes:
    if files.is_on_disk(key):
        return _LOCAL.tail(files.local_path(key), size, length)
    return files.read(key, start=max(0, size - length), end=size)


def open_footer(store: Store, key: str) -> Footer | None:
    """Return the footer of a file for what it tells of columns, None where it cannot be read."""
    try:
        found = read_footer(store, key, store.size(key) or 0, 2 * TAIL, MAX_FOOTER)
        return Footer(found) if found is not None else None
    except (KartosqlError, OSError, KeyError, ValueError):
        return None


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
            raise FormatError(f"{files.shown(key)}: it is no Parquet file", code="corrupt-file")
        found = arrow_metadata(footer)
        if with_columns and column_sizes(footer, found.schema) is None:
            raise FormatError(f"{files.shown(key)}: columns of it are encrypted or damaged", code="corrupt-file")
        return found, size
    except KeyError:
        raise FormatError(f"The file {files.shown(key)!r} is missing.", code="missing-file") from None
    except (pa.ArrowException, OSError) as e:
        reraise(e, f"Cannot read {files.shown(key)!r}")
        raise FormatError(f"{files.shown(key)}: {e}", code="corrupt-file") from None
