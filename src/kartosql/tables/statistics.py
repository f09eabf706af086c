"""Statistics in the footers of a table's files: row counts, NULLs and bounds of columns, kept by column.

They are read once for each state of a table, and only those columns that somebody asked for. Bounds are those of row
groups, so a file may occur several times.
"""

from __future__ import annotations

import contextlib
import weakref
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any

import pyarrow as pa

from kartosql.formats.arrays import array_of
from kartosql.memo import memoized
from kartosql.parquet import DAMAGE, FooterLayout, GroupBounds, decoder
from kartosql.tables.table import FileTable

MAX_GROUPS = 4_000_000  # that are told about, of all columns of all tables
ReadFooter = tuple[int, bytes, FooterLayout]  # the file, its footer, and how that tells of columns


def has_ordered_bounds(type_: pa.DataType) -> bool:
    """Return whether footers may have bounds of columns of a type in the order of engines."""
    t = pa.types
    tests = (t.is_integer, t.is_date32, t.is_timestamp, t.is_time, t.is_string, t.is_large_string, t.is_boolean)
    return any(test(type_) for test in tests) or pa.types.is_decimal128(type_) or type_ in (pa.float32(), pa.float64())


def _empty(type_: pa.DataType) -> Any:
    """Return what holds bounds of columns of a type: integers stand for dates, times and decimals."""
    t = pa.types
    if t.is_floating(type_):
        return array("d")
    if t.is_string(type_) or t.is_large_string(type_) or (t.is_decimal128(type_) and type_.precision > 18):
        return []
    return array("Q" if type_ == pa.uint64() else "q")


def nothing_of(type_: pa.DataType) -> Any:
    """Return the placeholder for the bounds of a row group without bounds."""
    return "" if pa.types.is_string(type_) or pa.types.is_large_string(type_) else 0


@dataclass(eq=False)
class ColumnBounds:
    """Bounds of a column in row groups, as columns of their own: ``files`` has the position of the file of each.

    Where ``nulls`` are as many as ``rows`` the bounds mean nothing; -1 stands for a number that is not known. The
    footers of the files in ``seen`` were read, those of ``complete`` have bounds of all row groups. NaN is beyond all
    bounds. Only bounds that are ``exact`` are values of the column.
    """

    type: pa.DataType
    files: Any = field(default_factory=lambda: array("i"))
    nulls: Any = field(default_factory=lambda: array("q"))
    rows: Any = field(default_factory=lambda: array("q"))
    exact: Any = field(default_factory=lambda: array("b"))
    low: Any = None
    high: Any = None
    seen: frozenset[int] = frozenset()
    complete: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.low = _empty(self.type) if self.low is None else self.low
        self.high = _empty(self.type) if self.high is None else self.high

    def __len__(self) -> int:
        return len(self.files)

    def with_files(self, found: Mapping[int, Sequence[GroupBounds] | None]) -> ColumnBounds:
        """Return these and the bounds of more files, None for files without bounds."""
        new = {file: groups for file, groups in found.items() if groups is not None and file not in self.seen}
        nothing = nothing_of(self.type)
        groups = [(file, group) for file, told in new.items() for group in told]
        return self.joined(
            ColumnBounds(
                self.type,
                array("i", [file for file, _ in groups]),
                array("q", [group.nulls for _, group in groups]),
                array("q", [group.rows for _, group in groups]),
                array("b", [group.exact for _, group in groups]),
                _filled(self.low, [nothing if g.low is None else g.low for _, g in groups]),
                _filled(self.high, [nothing if g.high is None else g.high for _, g in groups]),
                frozenset(found),
                frozenset(new),
            )
        )

    def joined(self, other: ColumnBounds) -> ColumnBounds:
        """Return these and the bounds of other files."""
        pairs = zip(self.columns, other.columns, strict=True)
        found = ColumnBounds(self.type, *(one + more for one, more in pairs))
        found.seen, found.complete = self.seen | other.seen, self.complete | other.complete
        return found

    def renumbered(self, numbers: Mapping[int, int]) -> ColumnBounds:
        """Return the bounds of some files, which have other numbers."""
        files, *others = self.columns
        if not numbers.keys() >= {*files}:
            at = [n for n, file in enumerate(files) if file in numbers]
            files, *others = ([values[n] for n in at] for values in self.columns)
            others = [_filled(held, values) for held, values in zip(self.columns[1:], others, strict=True)]
        found = ColumnBounds(self.type, array("i", map(numbers.__getitem__, files)), *others)
        both = (frozenset(map(numbers.__getitem__, numbers.keys() & some)) for some in (self.seen, self.complete))
        found.seen, found.complete = both
        return found

    @property
    def columns(self) -> tuple[Any, ...]:
        """The bounds of the row groups, column by column."""
        return self.files, self.nulls, self.rows, self.exact, self.low, self.high

    @memoized
    def has_values(self) -> Sequence[bool]:
        """Whether each row group holds more than NULL."""
        return [nulls != rows for nulls, rows in zip(self.nulls, self.rows, strict=True)]

    @memoized
    def are_exact(self) -> bool:
        """Whether all bounds are values of the column."""
        return 0 not in self.exact

    def extremes(self, files: Collection[int], numbers: Sequence[int] | None) -> dict[int, tuple[Any, Any]] | None:
        """Return the least and greatest value in some files, by the numbers of their positions, or all by 0.

        Numbers without a value are left out. None, unless they are exact in all files.
        """
        if not self.complete.issuperset(files):
            return None
        whole = len(files) == len(self.complete)
        wanted: Collection[int] = files if whole else frozenset(files)
        mask = (
            self.has_values if whole else [h and f in wanted for h, f in zip(self.has_values, self.files, strict=True)]
        )
        if not self.are_exact and not all(compress(self.exact, mask)):
            return None
        if numbers is None:
            low = min(compress(self.low, mask), default=None)
            return {} if low is None else {0: (low, max(compress(self.high, mask)))}
        found: dict[int, tuple[Any, Any]] = {}
        for file, low, high in compress(zip(self.files, self.low, self.high, strict=True), mask):
            number = numbers[file]
            least, most = found.get(number, (low, high))
            found[number] = min(least, low), max(most, high)
        return found

    def ranges(self, files: Collection[int]) -> dict[int, tuple[Any, Any]]:
        """Return the bounds of those files that hold no NULL, by position."""
        found: dict[int, tuple[Any, Any]] = {}
        holding = {f for f, nulls, rows in zip(self.files, self.nulls, self.rows, strict=True) if nulls and rows}
        wanted = self.complete.intersection(files) - holding
        for file, low, high in compress(zip(self.files, self.low, self.high, strict=True), self.has_values):
            if file in wanted:
                least, most = found.get(file, (low, high))
                found[file] = min(least, low), max(most, high)
        return found

    @memoized
    def arrow(self) -> pa.Table:
        """The row groups with the columns file, low, high, has_values and nulls."""
        return pa.table(
            {
                "file": array_of(self.files, pa.int32()),
                "low": stored(self.low, self.type, self.has_values),
                "high": stored(self.high, self.type, self.has_values),
                "has_values": array_of(self.has_values, pa.bool_()),
                "nulls": array_of(self.nulls, pa.int64()),
            }
        )


def _filled(column: Any, values: list[Any]) -> Any:
    """Return values in what a column is held in."""
    return values if isinstance(column, list) else array(column.typecode, values)


def stored(values: Sequence[Any], type_: pa.DataType, present: Sequence[bool]) -> pa.Array:
    """Return bounds as an Arrow array, with NULL for those that are not present."""
    t, size = pa.types, len(values)
    if t.is_decimal128(type_):
        data = b"".join(v.to_bytes(16, "little", signed=True) for v in values)
        found = pa.Array.from_buffers(type_, size, [None, pa.py_buffer(data)])
    elif t.is_string(type_) or t.is_large_string(type_):
        found = array_of(values, pa.string())
    elif t.is_temporal(type_):
        found = array_of(values, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    else:
        found = array_of(values, type_)
    if all(present):
        return found
    validity = array_of(present, pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(found.type, size, [validity, *found.buffers()[1:]])


class TableStatistics:
    """What is known of the files of one table; what several threads find at the same time may be found again."""

    def __init__(self, table: FileTable) -> None:
        self._rows = array("q", [-1]) * len(table.files)
        self._columns: dict[str, ColumnBounds] = {}
        self.recalled: dict[str | None, Any] = {}  # entries of a cache of which more may be asked for

    def __len__(self) -> int:
        return sum(map(len, self._columns.values()))

    def rows(self, files: Sequence[int]) -> list[int] | None:
        """Return how many rows files have, None if it is not known of all of them."""
        known = self._rows
        found = known.tolist() if len(files) == len(known) else [known[f] for f in files]
        return None if -1 in found else found

    def column(self, name: str) -> ColumnBounds | None:
        """Return what is known of a column, None if nothing was read."""
        return self._columns.get(name)

    def unread(self, files: Iterable[int], columns: Sequence[str]) -> list[int]:
        """Return those of some files whose row counts, or bounds of columns, were not read."""
        if not columns:
            return [f for f in files if self._rows[f] < 0]
        seen = [c.seen if (c := self._columns.get(name)) is not None else frozenset[int]() for name in columns]
        known = frozenset.intersection(*seen)
        return [] if len(known) == len(self._rows) else [f for f in files if f not in known]

    def counted(self) -> ColumnBounds:
        """Return the row counts as those of row groups that hold nothing but NULL."""
        groups = {f: [GroupBounds(None, None, True, n, n)] for f, n in enumerate(self._rows) if n >= 0}
        return ColumnBounds(pa.int64()).with_files(groups)

    def add_bounds(self, name: str | None, bounds: ColumnBounds) -> None:
        """Note bounds of a column in files of which they were not known, or row counts in the form of ``counted``."""
        if name is None:
            for file, count in zip(bounds.files, bounds.rows, strict=True):
                self._rows[file] = count
        else:
            known = self._columns.get(name) or ColumnBounds(bounds.type)
            if not known.seen.isdisjoint(bounds.seen):
                bounds = bounds.renumbered({f: f for f in bounds.seen - known.seen})
            self._columns[name] = known.joined(bounds)

    def forget(self) -> None:
        """Forget the bounds."""
        self._columns = {}

    def add(self, table: FileTable, read: Iterable[ReadFooter | int], columns: Sequence[str]) -> None:
        """Note what footers contain; a number alone is a file with an unreadable footer."""
        rows = self._rows[:]
        found: dict[str, dict[int, list[GroupBounds] | None]] = {name: {} for name in columns}
        readers: dict[tuple[FooterLayout, str], tuple[Any, bool]] = {}
        for one in read:
            if isinstance(one, int):
                for told in found.values():
                    told[one] = None
                continue
            file, footer, layout = one
            with contextlib.suppress(*DAMAGE):
                rows[file] = layout.rows(footer)
            for name, told in found.items():
                key = layout, name
                if key not in readers:
                    readers[key] = _reader(table, file, layout, name)
                read_bounds, is_null = readers[key]
                told[file] = read_bounds(footer) if read_bounds is not None else None
                if is_null and rows[file] >= 0:
                    told[file] = [GroupBounds(None, None, True, rows[file], rows[file])]
        self._rows = rows
        for name, told in found.items():
            known = self._columns.get(name) or ColumnBounds(table.types[name])
            self._columns[name] = known.with_files(told)


def lacking(table: FileTable, columns: Sequence[str]) -> dict[str, set[int]]:
    """Return the files that are read as if they held NULL in columns, if they do not have these."""
    everything = range(len(table.files))
    found = {name: set(everything if name in table.may_lack else ()) for name in columns}
    for variant in table.variants(everything):
        for name in columns:
            if variant.types is not None and name not in variant.types:
                found[name].update(variant.files)
    return found


def _reader(table: FileTable, file: int, layout: FooterLayout, name: str) -> tuple[Any, bool]:
    """Return what reads the bounds of a column in footers like that of a file, or None if they have none."""
    # Such files may have to be read as if they held NULL there.
    (variant,) = table.variants((file,))
    in_file = variant.names.get(name, name)
    if variant.types is not None and name not in variant.types:  # whatever else the file calls so
        return None, not table.renames
    found = layout.column(in_file)
    decode = decoder(found[1], table.types[name]) if found is not None else None
    if found is None or decode is None:
        return None, name in table.may_lack and in_file.lower() not in layout.names
    return partial(layout.groups, name=found[0], leaf=found[1], decode=decode), False


_known: weakref.WeakKeyDictionary[FileTable, TableStatistics] = weakref.WeakKeyDictionary()


def statistics_of(table: FileTable, coming: int = 0) -> TableStatistics:
    """Return what is known of a table, of all connections; others are forgotten if so much more is too much."""
    found = _known.get(table)
    if found is None:
        found = _known.setdefault(table, TableStatistics(table))
    if coming and sum(map(len, list(_known.values()))) + coming > MAX_GROUPS:
        for other in list(_known.values()):
            other.forget()
    return found
