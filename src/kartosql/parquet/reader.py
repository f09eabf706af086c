"""Reading footers: the ends of Parquet files, in as few requests as there can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kartosql.errors import FormatError, KartosqlError
from kartosql.parquet.footer import Footer, column_sizes, footer_of, length_of
from kartosql.store import Files, Store
from kartosql.store.local import LocalFiles

TAIL = 32_768  # bytes at the end of a file that are read for its footer, at first
MAX_FOOTER = 64 << 20  # of files about which nothing has to be known
AT_ONCE = 256  # footers that are read before their sizes are looked at
_LOCAL = LocalFiles()


def read_footer(files: Files, key: str, size: int, tail: int = TAIL, most: int | None = None) -> bytes | None:
    """Return the footer of a file; None if it has none, or it has more than ``most`` bytes, or is encrypted.

    At first ``tail`` bytes are read, and all of a longer footer then. Raises OSError where a local file cannot be
    read, and otherwise what the store raises, which is a KeyError for a file that is not there.
    """
    if files.is_on_disk(key):
        return local_footer(files.local_path(key), size, tail, most)
    return _footer(lambda length: files.read(key, start=max(0, size - length), end=size), size, tail, most)


def local_footer(path: str, size: int, tail: int = TAIL, most: int | None = None) -> bytes | None:
    """Return what ``read_footer`` returns for a local file, given its path."""
    return _footer(lambda length: _LOCAL.tail(path, size, length), size, tail, most)


def _footer(read: Callable[[int], bytes], size: int, tail: int, most: int | None) -> bytes | None:
    end = read(tail)
    found = footer_of(end)
    if found is None and (length := length_of(end)) is not None and length <= min(size, most or size):
        found = footer_of(read(length))
    return found


def open_footer(store: Store, key: str) -> Footer | None:
    """Return the footer of a file for what it tells of columns, None where it cannot be read."""
    try:
        found = read_footer(store, key, store.size(key) or 0, 2 * TAIL, MAX_FOOTER)
        return Footer(found) if found is not None else None
    except (KartosqlError, OSError, KeyError, ValueError):
        return None


def bytes_of_columns(
    files: Files, sized: Sequence[tuple[str, int]], columns: frozenset[str] | None, enough: int
) -> int:
    """Return how many bytes top-level columns take in files, given keys and sizes; all columns if it is None.

    Once it is more than ``enough``, the other files are not looked at. Raises ``corrupt-file``.
    """
    if columns is None:
        return sum(size for _, size in sized)
    total = 0
    for first in range(0, len(sized), AT_ONCE):
        some = sized[first : first + AT_ONCE]
        if files.is_local:
            total += sum(_bytes_of(files, file, columns) for file in some)
        else:
            total += sum(files.map(lambda file: _bytes_of(files, file, columns), some))
        if total > enough:
            break
    return total


def _bytes_of(files: Files, file: tuple[str, int], columns: frozenset[str]) -> int:
    try:
        footer = read_footer(files, *file)
    except (KeyError, OSError):
        footer = None
    groups = None if footer is None else column_sizes(footer)
    if groups is None:
        raise FormatError(f"{file[0]}: its columns cannot be read, or are encrypted", code="corrupt-file")
    return sum(size for group in groups for path, size in group if path.split(".")[0] in columns)
