"""What the planner's DuckDB instance holds of datasets: partition values, labels, indices, statistics."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from kartosql.engines.duckdb.footers import ColumnStatistics
from kartosql.engines.duckdb.index_cost import (
    HOLD_PAIR,
    HOLD_SECONDS,
    HOLD_VALUE,
    READ_PAIR,
    READ_VALUE,
    SCAN_PAIR,
    SCAN_VALUE,
    TOUCH,
    VALUE_PAIRS,
)
from kartosql.engines.duckdb.types import fits, literal, quote, sql_type
from kartosql.errors import FormatError, reraise
from kartosql.formats.arrays import array_of
from kartosql.formats.kartothek.dataset import InvertedIndex, value_parser
from kartosql.tables.table import FileTable

if TYPE_CHECKING:
    from kartosql.engines.duckdb.evaluator import Planner
    from kartosql.engines.duckdb.sorted_index import Ascending, Portions

MAX_TABLES = 64
MAX_PAIRS = 60_000_000  # of value and file in all indices that are held; one takes about 5 bytes
MAX_TWICE = 20_000_000  # of them that are held in ascending order as well
MAX_INDEX_BYTES = 80_000_000
FREE_RANGES = 2  # lookups of a range, before the extremes of each file are noted, which takes about as long
SMALL_INDEX_BYTES = 50_000  # about as many pairs; they are not counted
SLOW = 4  # times that, if DuckDB has to make a text of each label

FREE_USES = 2  # of an index file, before a table is made of it
HOLD_SHARE = 0.5  # of what the last use saved is spent on that
BRIEF_SECONDS = 0.01
PORTION_SECONDS = 0.02  # less is not worth beginning
FACTOR = 2  # where nothing is saved, a table is made once this multiple of its time was spent on reading
# Types of which values mean the same to Arrow and to DuckDB.
_PLAIN = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32, pa.types.is_string)


@dataclass
class IndexTables:
    """The relations of one inverted index.

    ``name`` is the view (v, file, part), ``values`` the view (v, labels) over the index file and
    ``held`` the table (v, files) that replaces it, once it is made. ``rows`` are the values,
    ``pairs`` those of value and file, in ``groups`` row groups; ``saved`` are the seconds that
    the files take that the last use left out.
    """

    name: str
    column: str
    index: InvertedIndex
    size: int
    held: str | None = None
    rows: int = 0
    pairs: int = 0
    groups: int = 1
    uses: int = 0
    seconds: float = 0.0
    saved: float = 0.0
    may_be_held: bool = True
    sampled: str | None = None
    ranges: int = 0  # lookups that the extremes of each file answer
    extremes: str | None = None
    repeats: bool | None = None  # whether a value stands in several rows, once that is known
    plain: bool = False  # read by Arrow, which takes a fraction of the time
    ascending: Ascending | None = None  # a held index once more, where there is room for it
    coming: Portions | None = None  # what the table that is being made does not have yet

    @property
    def values(self) -> str:
        """The view over the index as it is stored."""
        return f"{self.name}_values"

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Note the time spent on reading the index where it lies."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started

    @property
    def hold_seconds(self) -> float:
        """What it takes to make a table of the index."""
        return (HOLD_SECONDS + HOLD_VALUE * self.rows + HOLD_PAIR * self.pairs) * (1 if self.plain else SLOW)

    @property
    def read_seconds(self) -> float:
        """What it takes to read the files of all values."""
        if self.held is not None:
            return SCAN_VALUE * self.rows + SCAN_PAIR * self.pairs
        return READ_VALUE * self.rows + READ_PAIR * self.pairs

    @property
    def touch_seconds(self) -> float:
        """What it takes at least to look up a value."""
        return SCAN_VALUE * self.rows if self.held is not None else TOUCH * self.read_seconds / self.groups

    @property
    def count_seconds(self) -> float:
        """What it takes to count the values that match in an index file."""
        return READ_VALUE * self.rows

    @property
    def group_seconds(self) -> float:
        """What it takes to read a row group of an index file."""
        return self.read_seconds / self.groups

    @property
    def weight(self) -> int:
        """What a held index takes of MAX_PAIRS."""
        return self.pairs + VALUE_PAIRS * self.rows

    @property
    def allowance(self) -> float:
        """Seconds that may be spent now on making a table of the index."""
        if self.held is not None or not self.may_be_held or self.uses < FREE_USES:
            return 0.0
        cost = self.hold_seconds
        if self.seconds > (cost if cost < BRIEF_SECONDS else FACTOR * cost):
            return cost
        share = HOLD_SHARE * self.saved
        return share if share >= min(cost, PORTION_SECONDS) else 0.0


@dataclass
class _Known:
    """The relations of one table, by its number."""

    table: weakref.ref[FileTable]
    number: int
    partitions: bool = False
    files: bool = False
    indices: dict[str, IndexTables] = field(default_factory=dict)
    statistics: dict[str, tuple[str, int]] = field(default_factory=dict)


class PlannerTables:
    """Makes relations once per table, and drops those of tables that are gone or were not used for long."""

    def __init__(self, session: Planner) -> None:
        self._session = session
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self._count = 0

    def _of(self, table: FileTable) -> _Known:
        known = self._known.get(id(table))
        if known is not None and known.table() is table:
            self._known.move_to_end(id(table))
            return known
        if known is not None:
            self._drop(self._known.pop(id(table)))
        for at in [at for at, k in self._known.items() if k.table() is None]:
            self._drop(self._known.pop(at))
        while len(self._known) >= MAX_TABLES:
            self._drop(self._known.popitem(last=False)[1])
        self._count += 1
        known = self._known[id(table)] = _Known(weakref.ref(table), self._count)
        return known

    def _drop(self, known: _Known) -> None:
        for index in known.indices.values():
            self._drop_index(index)
        made = [f"partitions_{known.number}"] * known.partitions + [f"files_{known.number}"] * known.files
        for name in [*(f"kartosql_{n}" for n in made), *(name for name, _ in known.statistics.values())]:
            self._session.run(f"DROP TABLE IF EXISTS {name}")

    def _drop_index(self, index: IndexTables) -> None:
        for view in (index.name, index.values, f"{index.values}_all"):
            self._session.run(f"DROP VIEW IF EXISTS {view}")
        for table in (f"{index.name}_held", f"{index.name}_sample", f"{index.name}_extremes", f"{index.name}_embedded"):
            self._session.run(f"DROP TABLE IF EXISTS {table}")

    def _table(self, name: str, data: pa.Table, select: str = "*") -> None:
        self._session.register("kartosql_new", data)
        try:
            self._session.run(f"CREATE TABLE {name} AS SELECT {select} FROM kartosql_new")
        finally:
            self._session.unregister("kartosql_new")

    # -- partitions and files --------------------------------------------------------------------

    def partitions(self, table: FileTable) -> str:
        """Return the table of the partition values: k0, k1, ... and part."""
        known = self._of(table)
        name = f"kartosql_partitions_{known.number}"
        if not known.partitions:
            partitions = table.partitions
            arrays = [*partitions.arrow.columns, array_of(range(partitions.count), pa.int32())]
            self._table(name, pa.table(arrays, [*(f"k{i}" for i in range(len(partitions.keys))), "part"]))
            known.partitions = True
        return name

    def files(self, table: FileTable) -> str:
        """Return the table of the files: label, file and part."""
        known = self._of(table)
        name = f"kartosql_files_{known.number}"
        if not known.files:
            numbers = array_of(range(len(table.files)), pa.int32())
            one_to_one = table.partitions.is_one_to_one
            parts = numbers if one_to_one else array_of(table.partitions.part_of_file, pa.int32())
            self._table(name, pa.table({"label": array_of(table.labels, pa.string()), "file": numbers, "part": parts}))
            known.files = True
        return name

    # -- indices ---------------------------------------------------------------------------------

    def index(self, table: FileTable, column: str) -> IndexTables:
        """Return the relations of an inverted index; raises ``missing-file`` and ``invalid-index``."""
        known = self._of(table)
        index = known.indices.get(column)
        if index is None:
            files = self.files(table)
            name = f"kartosql_index_{known.number}_{len(known.indices)}"
            index = IndexTables(name, column, table.indices[column], 0)
            try:
                self._values_view(index)
                self._session.run(
                    f"CREATE VIEW {name} AS SELECT i.v, l.file, l.part FROM "
                    f"(SELECT v, unnest(labels) AS label FROM {index.values}) i JOIN {files} l USING (label)"
                )
            except BaseException:
                self._drop_index(index)
                raise
            known.indices[column] = index
        if (seconds := index.allowance) > 0:
            self.hold(table, index, seconds)
        return index

    def sample(self, index: IndexTables, pairs: int) -> tuple[str, float]:
        """Return a table (v, files) with values of a held index that have about so many pairs, and their share."""
        share = min(1.0, pairs / max(1, index.pairs))
        if index.sampled is None:
            index.sampled = f"{index.name}_sample"
            # Of all parts of the index, as values that are next to each other often lie in the same files.
            chosen = f"hash(rowid) % 1000000 < {int(share * 1_000_000)}"
            self._session.run(f"CREATE TABLE {index.sampled} AS SELECT v, files FROM {index.held} WHERE {chosen}")
        return index.sampled, share

    def extremes(self, index: IndexTables) -> str | None:
        """Return the table (file, low, high) of a held index, once it was asked for often enough to pay."""
        index.ranges += 1
        if index.extremes is None and index.ranges > FREE_RANGES:
            name = f"{index.name}_extremes"
            spread = f"SELECT v, unnest(files) AS file FROM {index.held}"
            try:
                self._session.run(
                    f"CREATE TABLE {name} AS SELECT file, min(v) AS low, max(v) AS high FROM ({spread}) GROUP BY file"
                )
            except duckdb.Error:  # too large for the memory limit
                index.ranges = 0
                return None
            index.extremes = name
        return index.extremes

    def _values_view(self, index: IndexTables) -> None:
        stored = index.index
        declared = sql_type(stored.type)
        name = f"{index.values}_all"
        if stored.embedded is not None:
            self._table(f"{index.name}_embedded", _embedded(stored))
            self._session.run(f"CREATE VIEW {name} AS SELECT * FROM {index.name}_embedded")
        else:
            assert stored.key is not None
            self._index_view(name, stored.key, stored.column, declared)
            index.size = self._session.files.sizes.get(stored.key) or 0
            self._count_pairs(index, stored.key)
        values = f"SELECT CAST(v AS {declared}) AS v, labels FROM {name}"
        self._session.run(f"CREATE VIEW {index.values} AS {_with_zeros(values, 'labels', stored.type)}")

    def _index_view(self, name: str, key: str, column: str, declared: str) -> None:
        """Create a view (v, labels) over an index file; raises ``missing-file`` and ``invalid-index``."""
        session = self._session
        if session.instance.filesystem is not None:
            session.instance.filesystem.keep(key)
        path = session.files.paths([key], session.instance.filesystem)[0]
        if session.store.is_local:
            session.store.counter.add("reads", key, session.files.sizes[key] or 0)
        # With a size, as then the name is not taken for a pattern.
        reader = f"read_parquet([{{'filename': {literal(path)}, 'file_size': 1}}], hive_partitioning = false)"
        try:
            described = session.rows(f"SELECT column_name, column_type FROM (DESCRIBE FROM {reader})")
        except duckdb.Error as e:
            reraise(e, f"Cannot read {key!r}")
            raise FormatError(
                f"{key}: {str(e).splitlines()[0]}", code="invalid-index", hint="Build the index again."
            ) from None
        _check_columns(described, key, column, declared)
        session.run(f"CREATE VIEW {name} AS SELECT {quote(column)} AS v, partition AS labels FROM {reader}")

    def _count_pairs(self, index: IndexTables, key: str) -> None:
        """Note how much stands in an index file."""
        index.pairs = index.size
        index.may_be_held = index.size <= MAX_INDEX_BYTES
        index.plain = self._session.store.is_local and any(test(index.index.type) for test in _PLAIN)
        if index.size < SMALL_INDEX_BYTES:
            return
        file = f"{{'filename': {literal(self._session.files.names([key])[0])}, 'file_size': {index.size}}}"
        counts = (
            f"SELECT count(DISTINCT row_group_id), sum(num_values) FILTER (path_in_schema = {literal(index.column)}), "
            f"sum(num_values) FILTER (path_in_schema <> {literal(index.column)}) FROM parquet_metadata([{file}])"
        )
        with contextlib.suppress(duckdb.Error):
            ((groups, rows, pairs),) = self._session.rows(counts)
            index.groups, index.rows, index.pairs = max(1, groups), rows or 0, pairs or 0

    def hold(self, table: FileTable, index: IndexTables, seconds: float = math.inf) -> None:
        """Go on making a table (v, files) of an index for so long; once it is whole, it replaces the file."""
        type_ = index.index.type
        if index.held is not None:
            return
        if pa.types.is_string(type_) and self._session.rows("SELECT current_setting('default_collation') <> ''")[0][0]:
            index.may_be_held = False  # values that the collation takes for equal would become one
            return
        held, files = f"{index.name}_held", self.files(table)
        try:
            if index.plain and not self._take_over(table, index, held, seconds):
                return
            if not index.plain:
                if index.hold_seconds > seconds:
                    return
                stored = f"SELECT CAST(v AS {sql_type(type_)}) AS v, unnest(labels) AS label FROM {index.values}_all"
                lists = f"SELECT v, list(file) AS files FROM ({stored}) i JOIN {files} USING (label) GROUP BY v"
                self._session.run(f"CREATE TABLE {held} AS {_with_zeros(lists, 'files', type_)} ORDER BY v")
            ((index.rows, index.pairs),) = self._session.rows(
                f"SELECT count(*), coalesce(sum(len(files)), 0) FROM {held}"
            )
            self._session.run(
                f"CREATE OR REPLACE VIEW {index.name} AS SELECT i.v, i.file, l.part FROM "
                f"(SELECT v, unnest(files) AS file FROM {held}) i JOIN {files} l USING (file)"
            )
        except duckdb.Error:
            # Too large for the memory limit, or a broken file, which the statement will name.
            self._session.run(f"DROP TABLE IF EXISTS {held}")
            index.may_be_held, index.coming = False, None
            return
        index.held = held
        self._make_room(index)

    def _take_over(self, table: FileTable, index: IndexTables, held: str, seconds: float) -> bool:
        """Fill the table of an index with what Arrow reads; returns whether it is whole, or Arrow cannot read on."""
        from kartosql.engines.duckdb.sorted_index import Ascending, Portions  # takes long to import

        declared, key = sql_type(index.index.type), index.index.key
        assert key is not None
        if index.coming is None:
            path = self._session.files.names([key])[0]
            numbers = {label: n for n, label in enumerate(table.labels)}
            each = index.pairs / max(1, index.rows)
            try:
                index.coming = Portions(path, index.index.column, index.index.type, numbers, each)
            except ValueError:
                index.plain = False
                return True
            searched = pa.types.is_integer(index.index.type) or pa.types.is_string(index.index.type)
            if searched and self._kept_twice() + index.weight <= MAX_TWICE:
                index.coming.passed = []
            self._session.run(f"CREATE TABLE {held} (v {declared}, files INTEGER[])")
        for batch in index.coming.some(seconds):
            self._session.register("kartosql_new", batch)
            try:
                self._session.run(f"INSERT INTO {held} SELECT CAST(v AS {declared}), files FROM kartosql_new")
            finally:
                self._session.unregister("kartosql_new")
        index.plain, whole = not index.coming.is_broken, index.coming.is_whole
        passed = index.coming.passed if whole and index.plain else None
        if not index.plain or whole:
            index.coming = None
        if not index.plain:
            self._session.run(f"DROP TABLE {held}")
        elif whole:
            disorder = f"SELECT 1 FROM (SELECT v, lag(v) OVER () AS before FROM {held}) WHERE before >= v LIMIT 1"
            if self._session.rows(disorder):
                lists = f"SELECT v, flatten(list(files)) AS files FROM {held} GROUP BY v ORDER BY v"
                self._session.run(f"CREATE OR REPLACE TABLE {held} AS {lists}")
            elif passed is not None and not any(t.column(0).null_count for t in passed):
                index.ascending = Ascending(passed)
        return whole or not index.plain

    def _kept_twice(self) -> int:
        indices = (i for known in self._known.values() for i in known.indices.values())
        return sum(i.weight for i in indices if i.ascending is not None)

    def _make_room(self, newest: IndexTables) -> None:
        """Drop held indices, those of the tables used longest ago first, until the rest is small enough."""
        held = [(k, i) for k in self._known.values() for i in k.indices.values() if i.held is not None]
        total = sum(i.weight for _, i in held)
        for known, index in held:
            if total > MAX_PAIRS and index is not newest:
                total -= index.weight
                self._drop_index(known.indices.pop(index.column))

    # -- statistics ------------------------------------------------------------------------------

    def statistics(self, table: FileTable, found: ColumnStatistics) -> str:
        """Return the table of a column's statistics: file, low, high, has_values and nulls (-1 if not known)."""
        known = self._of(table)
        name, count = known.statistics.get(found.column, ("", 0))
        if count != len(found.rows):
            if name:
                self._session.run(f"DROP TABLE {name}")
                del known.statistics[found.column]
            rows = list(found.rows)
            name = f"kartosql_statistics_{known.number}_{self._count}"
            self._count += 1
            data = pa.table(
                {
                    "file": array_of([r[0] for r in rows], pa.int32()),
                    "low": array_of([r[1] or "" for r in rows], pa.string()),
                    "high": array_of([r[2] or "" for r in rows], pa.string()),
                    "has_values": array_of([r[1] is not None for r in rows], pa.bool_()),
                    "nulls": array_of([-1 if r[3] is None else r[3] for r in rows], pa.int64()),
                }
            )
            bounds = [f"CASE WHEN has_values THEN CAST({end} AS {found.type}) END AS {end}" for end in ("low", "high")]
            self._table(name, data, f"file, {bounds[0]}, {bounds[1]}, has_values, nulls")
            known.statistics[found.column] = (name, len(rows))
        return name


def _with_zeros(query: str, files: str, type_: pa.DataType) -> str:
    """Add the other zero to the values of an index: 0.0 and -0.0 are one there, but a predicate may tell them apart."""
    if not pa.types.is_floating(type_):
        return query
    return f"WITH found AS ({query}) FROM found UNION ALL SELECT -v, {files} FROM found WHERE v = 0"


def _embedded(index: InvertedIndex) -> pa.Table:
    """Return an index that stands in the metadata document as a table (v, labels)."""
    parse = value_parser(index.type)
    assert index.embedded is not None
    try:
        values = [parse(str(text).encode()) for text in index.embedded]
        labels = pa.array(list(index.embedded.values()), pa.list_(pa.string()))
        return pa.table({"v": array_of(values, index.type), "labels": labels})
    except (ValueError, OverflowError, KeyError, pa.ArrowException) as e:
        reraise(e)
        raise FormatError(
            f"The index of {index.column!r} in the metadata does not fit its type {index.type}: {e}",
            code="invalid-index",
        ) from None


def _check_columns(rows: list[tuple[str, str]], key: str, column: str, declared: str) -> None:
    """Check the top-level columns (name, type) of an index file; raises ``invalid-index``."""
    types = dict(rows)
    problem = None
    if column not in types or "partition" not in types:
        problem = f"it has no columns {column!r} and 'partition'"
    elif not fits(types[column], declared) or types[column] == '"NULL"' != declared:
        problem = f"its values are {types[column]}, the column is {declared}"
    elif types["partition"] != "VARCHAR[]":
        problem = f"its labels are {types['partition']}"
    if problem and types.get(column) != '"NULL"':
        raise FormatError(f"{key}: {problem}", code="invalid-index", hint="Build the index again.")
