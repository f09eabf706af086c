"""What the store holds, as completion needs it: tables, columns, and the values of those that have them at hand."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from itertools import groupby, islice, takewhile

import pyarrow as pa

from kartosql.connection import Connection
from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.dataset import InvertedIndex
from kartosql.memo import memoized
from kartosql.statements import catalog
from kartosql.store import Store
from kartosql.tables.names import quote_if_needed
from kartosql.tables.table import FileTable, Table
from kartosql.text.constants import literal
from kartosql.text.escape import is_unsafe
from kartosql.text.types import type_name


@dataclass(frozen=True)
class KnownColumn:
    """A column: its name, its type, its role in the table, and where its values are known without opening a file."""

    name: str
    type: str
    role: str
    source: Table = field(repr=False)

    @property
    def about(self) -> str:
        """What it is, as it is shown beside its name."""
        return f"{self.type}, {self.role}" if self.type else self.role

    @property
    def has_values(self) -> bool:
        """Whether a partition key or an inverted index holds its values."""
        return self.role in ("partition", "index", "dimension") and any(
            self.name in part.table.partition_keys or self.name in part.table.indices for part in self.source.parts
        )


@dataclass(frozen=True, eq=False)
class KnownTable:
    """A table as it is written in SQL; ``kind`` is cube, dataset of a cube, dataset or registered."""

    name: str
    kind: str
    source: Table = field(repr=False)

    @property
    def about(self) -> str:
        """What it is, as it is shown beside its name."""
        return f"{self.kind}, {len(self.source.columns):,} columns"

    @memoized
    def columns(self) -> tuple[KnownColumn, ...]:
        """Its columns in the order of ``SELECT *``."""
        return tuple(
            KnownColumn(name, type_name(type_), catalog._role(self.source, name), self.source)
            for name, type_ in self.source.columns.items()
        )

    @memoized
    def by_name(self) -> dict[str, KnownColumn]:
        """Its columns by their names in lower case."""
        return {column.name.lower(): column for column in self.columns}

    @memoized
    def keys(self) -> frozenset[str]:
        """The dimension columns of a cube, and partition keys."""
        dimensions = self.source.cube.dimension_columns if self.source.cube else ()
        return frozenset((*dimensions, *(key for part in self.source.parts for key in part.table.partition_keys)))


EMPTY = Table("", {})


@dataclass(frozen=True, eq=False)
class Subquery(KnownTable):
    """A subquery, whose columns are its outputs."""

    outputs: tuple[KnownColumn, ...] = ()

    @memoized
    def columns(self) -> tuple[KnownColumn, ...]:
        """Its outputs."""
        return self.outputs


class _Names:
    """_Names in order, to find those that begin with a text."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted({(name.lower(), name) for name in names})

    def beginning(self, text: str, most: int) -> Iterator[str]:
        lower = text.lower()
        at = bisect_left(self._names, (lower, ""))
        return (name for _, name in takewhile(lambda pair: pair[0].startswith(lower), self._names[at : at + most]))

    def holding(self, text: str, most: int) -> Iterator[str]:
        """Yield names that have a text somewhere, but not at their beginning."""
        lower = text.lower()
        return islice((name for low, name in self._names if low.find(lower) > 0), most)


@dataclass(frozen=True, eq=False)
class Known:
    """The tables of a store at one moment, in order, cubes first."""

    tables: tuple[KnownTable, ...] = ()

    @memoized
    def by_name(self) -> dict[str, KnownTable]:
        """The tables by their names in lower case, as they are written."""
        return {table.name.lower(): table for table in self.tables}

    @memoized
    def table_names(self) -> _Names:
        """Their names."""
        return _Names(table.name for table in self.tables)

    @memoized
    def column_tables(self) -> dict[str, list[KnownTable]]:
        """The tables that have a column, by the name of the column."""
        found: dict[str, list[KnownTable]] = {}
        for table in self.tables:
            for column in table.columns:
                found.setdefault(column.name, []).append(table)
        return found

    @memoized
    def column_names(self) -> _Names:
        """The names of all columns of all tables."""
        return _Names(self.column_tables)

    def table(self, name: str) -> KnownTable | None:
        """Return the table that a name as it is written means."""
        return self.by_name.get(name.lower().replace('"', "")) or self.by_name.get(name.lower())


NOTHING = Known()


def load(connection: Connection) -> Known:
    """Return what the store of a connection holds; what is damaged is left out."""
    tables = connection.tables()
    found = []
    for name, kind in connection._session.names(tables):
        with suppress(KartosqlError):
            found.append(KnownTable(".".join(map(quote_if_needed, name)), kind, tables.find(name)))
    return Known(tuple(found))


# -- values of partition and index columns, as partitions and indices tell them ----------------------

MAX_VALUES = 5_000_000
KEPT_LISTS = 16


@dataclass(frozen=True, eq=False)
class ValueList:
    """The values of a column as text, in their own order, with the number of files of each.

    ``order`` are their positions in the order of the texts; ``total`` is the number of files.
    """

    texts: pa.StringArray
    files: pa.Array
    order: pa.Array
    total: int
    literal: Callable[[str], str]

    def beginning(self, text: str, most: int) -> list[tuple[str, int]]:
        """Return at most so many values that begin with a text, or else those that have it anywhere."""
        if not text:
            return [self._at(i) for i in range(min(most, len(self.texts)))]
        at = bisect_left(range(len(self.order)), text, key=lambda i: self._text(self.order[i].as_py()))
        ordered = (self._at(i.as_py()) for i in self.order[at : at + most])
        if found := list(takewhile(lambda pair: pair[0].startswith(text), ordered)):
            return found
        import pyarrow.compute as pc

        matching = pc.match_substring(self.texts, text, ignore_case=True)
        return [self._at(i.as_py()) for i in pc.indices_nonzero(matching)[:most]]

    def _text(self, at: int) -> str:
        return str(self.texts[at].as_py())

    def _at(self, at: int) -> tuple[str, int]:
        return self._text(at), int(self.files[at].as_py())


def read(store: Store, column: KnownColumn) -> ValueList | None:
    """Return the values of a column, or None if unknown."""
    tables = [part.table for part in column.source.parts]
    for table in tables:
        if column.name in table.partition_keys:
            return _of_partitions(table, column.name)
    for table in tables:
        if (index := table.indices.get(column.name)) is not None and index.segments is None:
            return _of_index(store, table, index)
    return None


def _of_partitions(table: FileTable, column: str) -> ValueList | None:
    at, partitions = table.partition_keys.index(column), table.partitions
    counts = Counter(map(partitions.columns[at].__getitem__, partitions.part_of_file))
    values = pa.array(list(counts), partitions.types[at])
    return _listed(values, pa.array(list(counts.values()), pa.int64()), len(table.files))


def _of_index(store: Store, table: FileTable, index: InvertedIndex) -> ValueList | None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if index.key is None:
        embedded = index.embedded or {}
        values = pa.array([str(value) for value in embedded], pa.string())
        counts = pa.array([len(labels) for labels in embedded.values()], pa.int64())
        return _listed(values.cast(index.type), counts, len(table.files))
    found = pq.read_table(BytesIO(store.read_metadata(index.key)))
    if not {index.column, "partition"} <= set(found.column_names) or found.num_rows > MAX_VALUES:
        return None
    counts = pc.list_value_length(found["partition"])
    pairs = pa.table({"v": found[index.column], "n": counts})
    pairs = pairs.group_by("v", use_threads=False).aggregate([("n", "sum")])
    return _listed(pairs["v"].combine_chunks(), pairs["n_sum"].combine_chunks(), len(table.files))


def _listed(values: pa.Array, counts: pa.Array, total: int) -> ValueList | None:
    import pyarrow.compute as pc

    from kartosql.render import columnar

    literal = _literal(values.type)
    if literal is None:
        return None
    found = pa.table({"v": values, "n": counts}).filter(pc.is_valid(values)).sort_by("v").combine_chunks()
    shown = columnar.column_text(pa.concat_arrays(found["v"].chunks) if len(found) else pa.nulls(0, values.type))
    return ValueList(shown, pa.concat_arrays(found["n"].chunks), pc.sort_indices(shown), total, literal)


def _literal(type_: pa.DataType) -> Callable[[str], str] | None:
    """Return what makes SQL of the text of a value, None for types that are not completed."""
    t = pa.types
    if t.is_integer(type_) or t.is_boolean(type_) or t.is_floating(type_) or t.is_decimal(type_):
        return str
    if t.is_date(type_):
        return lambda text: f"DATE '{text}'"
    if t.is_timestamp(type_):
        return lambda text: f"TIMESTAMP '{text}'"
    if t.is_string(type_) or t.is_large_string(type_):
        return _quoted
    return None


def _quoted(text: str) -> str:
    """Return a text as SQL; characters that a terminal must not see are written by their numbers."""
    pieces: list[str] = []
    for unsafe, chars in groupby(text, is_unsafe):
        run = "".join(chars)
        pieces += [f"chr({ord(char)})" for char in run] if unsafe else [literal(run)]
    return " || ".join(pieces) or "''"


class ColumnValues:
    """The value lists of a session, read in a thread each when they are asked for first."""

    def __init__(self) -> None:
        self._lists: dict[tuple[int, str], tuple[object, ValueList | None]] = {}
        self.coming: set[tuple[int, str]] = set()  # which are being read
        self._lock = threading.Lock()
        self.on_news: Callable[[], None] = lambda: None

    def of(self, store: Store, column: KnownColumn) -> ValueList | None:
        """Return the values of a column if they are there, and begin to read them if not."""
        key = (id(column.source), column.name)
        with self._lock:
            if key in self._lists:
                return self._lists[key][1]
            if key in self.coming:
                return None
            self.coming.add(key)
        threading.Thread(target=self._read, args=(store, column, key), daemon=True).start()
        return None

    def _read(self, store: Store, column: KnownColumn, key: tuple[int, str]) -> None:
        try:
            found = read(store, column)
        except (KartosqlError, KeyError, pa.ArrowException, OSError, ValueError):
            found = None  # a statement will say what is wrong
        with self._lock:
            self.coming.discard(key)
            # The source is kept, too, so that its id stays its own.
            self._lists[key] = (column.source, found)
            while len(self._lists) > KEPT_LISTS:
                self._lists.pop(next(iter(self._lists)))
        self.on_news()
