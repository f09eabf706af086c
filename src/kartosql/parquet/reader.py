"""Footers of Parquet files: read with one request, two for a long one, and what they tell remembered."""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kartosql.errors import FormatError, KartosqlError
from kartosql.parquet.footer import GEO, Footer, column_sizes, footer_of, length_of, notes_of, schema_bytes
from kartosql.parquet.thrift import DAMAGE
from kartosql.store import Files, Store

TAIL = 32_768  # bytes at the end of a file that are read for its footer, at first
MAX_FOOTER = 64 << 20  # of files about which nothing has to be known
AT_ONCE = 256  # footers that are read before their sizes are looked at


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

    def read(length: int) -> bytes:
        number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            start = max(0, size - length)
            os.lseek(number, start, os.SEEK_SET)
            return os.read(number, size - start)
        finally:
            os.close(number)

    return _footer(read, size, tail, most)


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


MAX_FILES = 200_000
MAX_PREFIXES = 16  # beginnings of footers with which others are compared before they are read


@dataclass
class Facts:
    """What the footers of one table's files tell.

    ``schemas`` are the numbers of the schemas of files, by their keys and what tells their contents apart, such as
    their size; ``rows`` are row counts by key; ``statistics`` is what an engine keeps of columns.
    """

    table: weakref.ref[Any]
    schemas: dict[tuple[str, Any], int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    statistics: Any = None

    def __len__(self) -> int:
        return max(len(self.schemas), len(self.rows), len(self.statistics or ()))


class FooterCache:
    """Keeps facts with the table object whose metadata name the files, and forgets them with it.

    Other programs may write a dataset anew under its old labels, but a data file does not change before the metadata
    that name it. Schemas that are the same have the same number, of all tables.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._facts: dict[int, Facts] = {}
        self._numbers: dict[Hashable, int] = {}
        self._recent: dict[bytes, int] = {}  # beginning of a footer -> number of its schema

    def facts(self, table: object) -> Facts:
        """Return what is known of the files of a table."""
        found = self._facts.get(id(table))
        if found is None or found.table() is not table:
            self._facts = {n: f for n, f in self._facts.items() if f.table() is not None}
            found = self._facts[id(table)] = Facts(weakref.ref(table))
        return found

    def make_room(self, coming: int) -> None:
        """Forget everything if so many more files are too many."""
        if sum(map(len, self._facts.values())) + coming > MAX_FILES:
            for facts in self._facts.values():
                facts.schemas.clear()
                facts.rows.clear()
                facts.statistics = None

    def number(self, schema: Hashable) -> int:
        """Return the number of a schema, the same for the same one."""
        return self._numbers.setdefault(schema, len(self._numbers))

    def recognise(self, footer: bytes) -> int:
        """Return the number of the schema of a footer."""
        with self.lock:
            number = next((n for prefix, n in self._recent.items() if footer.startswith(prefix)), None)
            if number is None:
                prefix = schema_bytes(footer)
                number = self.number(prefix or hashlib.sha256(footer).digest())
                if prefix is not None:
                    while len(self._recent) >= MAX_PREFIXES:
                        del self._recent[next(iter(self._recent))]
                    self._recent[prefix] = number
            # What GeoParquet notes behind the schema gives columns another type.
            notes = _geo_notes(footer) if GEO in footer else ()
            return self.number((number, notes)) if notes else number


def _geo_notes(footer: bytes) -> tuple[bytes, ...]:
    """Return digests of GeoParquet's notes in a footer; that of the whole footer, where it cannot be read."""
    try:
        notes = notes_of(footer, GEO)
    except DAMAGE:
        notes = [footer]
    return tuple(hashlib.sha256(note).digest() for note in notes)
