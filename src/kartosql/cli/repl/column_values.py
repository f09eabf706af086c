"""Values of partition and index columns with the number of their files, as partitions and indices tell them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa

from kartosql.cli.repl.known import KnownColumn
from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.dataset import InvertedIndex
from kartosql.render.values import texts
from kartosql.store import Store
from kartosql.tables.table import FileTable
from kartosql.text.escape import is_unsafe

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
        """Return at most so many values that begin with a text, and if there are none, those that have it anywhere."""
        if not text:
            return [self._at(i) for i in range(min(most, len(self.texts)))]
        at = bisect_left(range(len(self.order)), text, key=lambda i: self._text(self.order[i].as_py()))
        found: list[tuple[str, int]] = []
        while at < len(self.order) and len(found) < most:
            value, count = self._at(self.order[at].as_py())
            if not value.startswith(text):
                break
            found.append((value, count))
            at += 1
        return found or self._holding(text, most)

    def _holding(self, text: str, most: int) -> list[tuple[str, int]]:
        import pyarrow.compute as pc

        matching = pc.match_substring(self.texts, text, ignore_case=True)
        return [self._at(i.as_py()) for i in pc.indices_nonzero(matching)[:most]]

    def _text(self, at: int) -> str:
        return str(self.texts[at].as_py())

    def _at(self, at: int) -> tuple[str, int]:
        return self._text(at), int(self.files[at].as_py())


def read(store: Store, column: KnownColumn) -> ValueList | None:
    """Return the values of a column, None if nothing tells them."""
    for part in column.source.parts:
        table = part.table
        if column.name in table.partition_keys:
            return _of_partitions(table, column.name)
    for part in column.source.parts:
        index = part.table.indices.get(column.name)
        if index is not None:
            return _of_index(store, part.table, index)
    return None


def _of_partitions(table: FileTable, column: str) -> ValueList | None:
    at = table.partition_keys.index(column)
    partitions = table.partitions
    files_of_part = Counter(partitions.part_of_file)
    counts: Counter[Any] = Counter()
    for part, value in enumerate(partitions.columns[at]):
        counts[value] += files_of_part[part]
    type_ = partitions.types[at]
    return _listed(pa.array(list(counts), type_), pa.array(list(counts.values()), pa.int64()), len(table.files))


def _of_index(store: Store, table: FileTable, index: InvertedIndex) -> ValueList | None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if index.key is None:
        embedded = index.embedded or {}
        values = pa.array([str(value) for value in embedded], pa.string())
        counts = pa.array([len(labels) for labels in embedded.values()], pa.int64())
        return _listed(values.cast(index.type), counts, len(table.files))
    found = pq.read_table(BytesIO(store.read_metadata(index.key)))
    if index.column not in found.column_names or "partition" not in found.column_names:
        return None
    if found.num_rows > MAX_VALUES:
        return None
    counts = pc.list_value_length(found["partition"])
    pairs = pa.table({"v": found[index.column], "n": counts})
    pairs = pairs.group_by("v", use_threads=False).aggregate([("n", "sum")])
    return _listed(pairs["v"].combine_chunks(), pairs["n_sum"].combine_chunks(), len(table.files))


def _listed(values: pa.Array, counts: pa.Array, total: int) -> ValueList | None:
    import pyarrow.compute as pc

    literal = _literal(values.type)
    if literal is None:
        return None
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    there = pc.is_valid(values)
    values, counts = values.filter(there), counts.filter(there)
    natural = pc.sort_indices(values)
    values, counts = values.take(natural), counts.take(natural)
    shown = _shown(values)
    return ValueList(shown, counts, pc.sort_indices(shown), total, literal)


def _shown(values: pa.Array) -> pa.StringArray:
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type) or pa.types.is_integer(values.type):
        return values.cast(pa.string())
    return pa.array(texts(values), pa.string())


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
        return quoted
    return None


def quoted(text: str) -> str:
    """Return a text as SQL; characters that a terminal must not see are written by their numbers."""
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    pieces: list[str] = []
    plain = ""
    for char in text:
        if is_unsafe(char):
            pieces += ["'" + plain.replace("'", "''") + "'", f"chr({ord(char)})"]
            plain = ""
        else:
            plain += char
    pieces.append("'" + plain.replace("'", "''") + "'")
    return " || ".join(p for p in pieces if p != "''") or "''"


class ColumnValues:
    """The value lists of a session, read in a thread each when they are asked for first."""

    def __init__(self) -> None:
        self._lists: dict[tuple[int, str], tuple[object, ValueList | None]] = {}
        self._coming: set[tuple[int, str]] = set()
        self._lock = threading.Lock()
        self.on_news: Callable[[], None] = lambda: None

    def of(self, store: Store, column: KnownColumn) -> ValueList | None:
        """Return the values of a column if they are there, and begin to read them if not."""
        key = (id(column.source), column.name)
        with self._lock:
            if key in self._lists:
                return self._lists[key][1]
            if key in self._coming:
                return None
            self._coming.add(key)
        threading.Thread(target=self._read, args=(store, column, key), daemon=True).start()
        return None

    @property
    def is_reading(self) -> bool:
        """Whether values of some column are being read."""
        return bool(self._coming)

    def _read(self, store: Store, column: KnownColumn, key: tuple[int, str]) -> None:
        try:
            found = read(store, column)
        except (KartosqlError, KeyError, pa.ArrowException, OSError, ValueError):
            found = None  # a statement will say what is wrong
        with self._lock:
            self._coming.discard(key)
            # The source is kept, too, so that its id stays its own.
            self._lists[key] = (column.source, found)
            while len(self._lists) > KEPT_LISTS:
                self._lists.pop(next(iter(self._lists)))
        self.on_news()
