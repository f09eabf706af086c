"""Statistics of local files that outlive their process: bounds of footers, proven by the stamps of the files.

Each column of a table has an entry in the cache of the user: a record for each file, found by its stamp alone, and the
bounds of its row groups. Row counts are a column of their own, of which all is NULL. A file that was written since has
another stamp, so it is read again, and nothing is believed of files that were written just before their footers were.
"""

from __future__ import annotations

import struct
import time
import zlib
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, compress, pairwise
from operator import le
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.formats.kartothek.snapshot import SETTLED_NS
from kartosql.tables.statistics import ColumnBounds, TableStatistics, lacking, stored

if TYPE_CHECKING:
    from kartosql.store.keys import Stamp
    from kartosql.tables.table import FileTable
    from kartosql.user_cache import UserCache

_KIND = "file-statistics-2"  # the former ones took bounds of infinities for exact
_STAMP = struct.Struct("<QQqqq")
_UNSOUND = (ValueError, TypeError, OverflowError, struct.error, pa.ArrowException)


class KeptStatistics:
    """What the cache holds of those files of a table of which the ``stamps`` are given, by position.

    ``place`` and the names of the table distinguish its entries from those of others.
    """

    def __init__(self, cache: UserCache, place: str, table: FileTable, stamps: Mapping[int, Stamp]) -> None:
        self._cache = cache
        self._table = table
        self._identity = (place, table.uuid, table.table)
        self._records: tuple[bytes, dict[bytes, int]] = (b"", {})  # of the entry that was read last
        self._names = {file: _STAMP.pack(*stamp) for file, stamp in stamps.items()}
        latest = time.time_ns() - SETTLED_NS
        self._settled = {f for f, stamp in stamps.items() if max(stamp.mtime_ns, stamp.ctime_ns) < latest}

    def recall(self, known: TableStatistics, columns: Sequence[str]) -> None:
        """Add to what is known of the files what the cache holds of row counts and columns."""
        absent = lacking(self._table, columns)
        for name in (*columns, None):
            if known.unread(self._names, [name] if name is not None else []):
                records, found = known.recalled.pop(name, None) or self._entry(name)
                if len(self._names) < len(records):
                    known.recalled[name] = records, found
                files = {n: f for f, stamp in self._names.items() if (n := records.get(stamp)) is not None}
                if name is not None:
                    files = {n: f for n, f in files.items() if f not in absent[name]}
                known.add_bounds(name, found.renumbered(files))

    def keep(self, known: TableStatistics, columns: Sequence[str]) -> None:
        """Put what is known of the files beside what the cache holds of others."""
        absent = lacking(self._table, columns)
        counts = known.counted()
        for name in (*columns, None):
            bounds = known.column(name) if name is not None else counts
            if bounds is None:
                continue
            # Nothing is kept of a footer that could not be read, which may have other reasons than its content.
            chosen = self._settled & bounds.seen & counts.seen - (absent[name] if name is not None else set())
            numbers = {f: n for n, f in enumerate(chosen)}
            names = [self._names[f] for f in numbers]
            records, found = self._entry(name)
            others = [*records.keys() - {*names}][: len(self._table.files)]
            moved = {records[stamp]: n for n, stamp in enumerate(others, len(names))}
            whole = bounds.renumbered(numbers).joined(found.renumbered(moved))
            self._cache.put(_KIND, self._of(name), _buffers([*names, *others], whole))

    def _of(self, name: str | None) -> tuple[str, ...]:
        return self._identity if name is None else (*self._identity, name, str(self._table.types[name]))

    def _entry(self, name: str | None) -> tuple[dict[bytes, int], ColumnBounds]:
        """Return the records of a column by the stamps of their files, and the bounds by the numbers of the records."""
        type_ = self._table.types[name] if name is not None else pa.int64()
        buffers = self._cache.get(_KIND, self._of(name))
        try:
            stamps, found = _read(buffers, type_) if buffers is not None else (b"", ColumnBounds(type_))
        except _UNSOUND:
            stamps, found = b"", ColumnBounds(type_)
        if stamps != self._records[0]:  # those of the columns of a table are alike as a rule
            names = struct.iter_unpack(f"{_STAMP.size}s", stamps)
            self._records = stamps, {name: number for number, (name,) in enumerate(names)}
        return self._records[1], found


def _buffers(stamps: Sequence[bytes], bounds: ColumnBounds) -> list[bytes]:
    found = [b"".join(stamps), bytes(n in bounds.complete for n in range(len(stamps)))]
    for values in bounds.columns:
        if isinstance(values, list):
            texts = [str(value).encode() for value in values]
            found += [array("q", accumulate(map(len, texts), initial=0)).tobytes(), b"".join(texts)]
        else:
            found += [values.tobytes(), b""]
    return [_checksum(found), *found]


def _checksum(buffers: Sequence[Any]) -> bytes:
    checksum = 0
    for buffer in buffers:
        checksum = zlib.crc32(buffer, checksum)
    return checksum.to_bytes(4, "little")


def _read(buffers: Sequence[memoryview], type_: pa.DataType) -> tuple[bytes, ColumnBounds]:
    """Return what ``_buffers`` was given; raises what is in ``_UNSOUND`` where they hold something else."""
    _, stamps, complete, *pairs = buffers
    empty = ColumnBounds(type_)
    found = ColumnBounds(type_, *map(partial(_column, type_), empty.columns, pairs[::2], pairs[1::2]))
    found.seen = frozenset(range(len(complete)))
    found.complete = frozenset(compress(found.seen, complete))
    is_sound = (
        bytes(buffers[0]) == _checksum(buffers[1:])
        and len(stamps) == len(complete) * _STAMP.size
        and len({*map(len, found.columns)}) == 1
        and found.complete.issuperset(found.files)
        and min(found.nulls, default=0) >= -1
        and all(map(le, found.nulls, found.rows))
        and all(map(le, found.low, found.high))
        # None of them is beyond its type.
        and all(len(stored(values, type_, ())) == len(found) for values in (found.low, found.high))
    )
    if not is_sound:
        raise ValueError("no statistics")
    return bytes(stamps), found


def _column(type_: pa.DataType, empty: Any, buffer: memoryview, texts: memoryview) -> Any:
    if isinstance(empty, list):
        found = [bytes(texts[start:end]).decode() for start, end in pairwise(buffer.cast("q"))]
        return [*map(int, found)] if pa.types.is_decimal(type_) else found
    empty.frombytes(buffer)
    return empty
