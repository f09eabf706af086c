"""What the planner's DuckDB holds of tables, and predicates looked up in inverted indices, as far as that pays."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from kartosql.engines.base import RowRequest
from kartosql.engines.duckdb.sorted_index import Ordered, Portions, compared, in_order, listed
from kartosql.engines.duckdb.types import fits, sql_type
from kartosql.errors import FormatError, reraise
from kartosql.formats.arrays import array_of
from kartosql.formats.kartothek.dataset import InvertedIndex, value_parser
from kartosql.indexes.index import Candidates, Files, ValueCondition
from kartosql.memo import memoized
from kartosql.plan.evaluate import HOLD_PAIR, HOLD_VALUE, MAX_PROBES, VALUE_PAIRS
from kartosql.tables.statistics import ColumnBounds
from kartosql.tables.table import FileTable
from kartosql.text.constants import literal, quote
from kartosql.text.report import counted
from kartosql.text.types import in_sql_names, type_name

if TYPE_CHECKING:
    from kartosql.engines.duckdb.evaluator import Planner


# Seconds that one core takes, per index, value, and pair of value and file: to hold an index, beside what that takes
# for its values, to read its file, and to look into a held one.
HOLD_SECONDS = 0.004
READ_VALUE, READ_PAIR = 1.5e-8, 3.5e-8
SCAN_VALUE, SCAN_PAIR = 2e-9, 6e-9
TOUCH = 0.15  # the share of a row group's time that it takes to find nothing but one value in it
HELD = "kartosql_held"  # a database in memory for them, which compresses its tables
MAX_TABLES = 64
MAX_PAIRS = 60_000_000  # of value and file in all indices that are held; one takes about 5 bytes
MAX_ORDERED = 20_000_000  # of them that are held in ascending order, where later processes cannot have them
MAX_INDEX_BYTES = 80_000_000
FREE_RANGES = 2  # lookups of a range, before the extremes of each file are noted, which takes about as long
SMALL_INDEX_BYTES = 50_000  # about as many pairs; they are not counted
SLOW = 4  # times that, if DuckDB has to make a text of each label

FREE_USES = 2  # of an index file, before a table is made of it
HOLD_SHARE = 0.5  # of what the last use saved is spent on that
BRIEF_SECONDS = 0.01
PORTION_SECONDS = 0.02  # less is not worth beginning
STATEMENT_SECONDS, MAX_PORTIONS = 0.1, 4  # no statement spends more than that, unless it takes too many of them
FACTOR = 2  # where nothing is saved, a table is made once this multiple of its time was spent on reading
NEGLIGIBLE = 0.002  # seconds that nobody reckons with
# What it takes at least to scan a file, roughly: to open it, and its columns that conditions are about.
FILE_SECONDS, BYTE_SECONDS = 7e-5, 1e-10
REMOTE_FILE_SECONDS = 0.02
SPREAD_PAIR = 5e-8  # to join a pair of a held index with its partition values
FIRST = 64  # values that match are fetched from a held index before it is asked any further
FIRST_PAIRS = 100_000
# Pairs of value and file in a sample, for each file: of a held index, and of an index file, where they cost more.
PER_FILE, PER_FILE_READ = 10, 5
MAX_SAMPLE = 1_000_000
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
    def weight(self) -> int:
        """What a held index takes of MAX_PAIRS."""
        return self.pairs + VALUE_PAIRS * self.rows

    @property
    def allowance(self) -> float:
        """Seconds that may be spent now on making a table of the index, or on putting its values in order."""
        if not self.may_be_held or self.uses < FREE_USES:
            return 0.0
        cost = self.hold_seconds
        most = min(cost, max(STATEMENT_SECONDS, cost / MAX_PORTIONS))
        if self.seconds > (cost if cost < BRIEF_SECONDS else FACTOR * cost):
            return most
        share = min(most, HOLD_SHARE * self.saved)
        return share if share >= min(cost, PORTION_SECONDS) else 0.0


@dataclass
class _Known:
    """The relations of one table, by its number."""

    table: weakref.ref[FileTable]
    number: int
    made: set[str] = field(default_factory=set)
    indices: dict[str, IndexTables] = field(default_factory=dict)
    ordered: dict[str, Ordered] = field(default_factory=dict)
    statistics: dict[tuple[str, str], tuple[str, ColumnBounds]] = field(default_factory=dict)


class PlannerTables:
    """Makes relations once per table, and drops those of tables that are gone or were not used for long."""

    def __init__(self, session: Planner) -> None:
        self._session = session
        self._known: OrderedDict[int, _Known] = OrderedDict()
        self.file_seconds: weakref.WeakKeyDictionary[FileTable, float] = weakref.WeakKeyDictionary()
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
        for name in [*known.made, *(name for name, _ in known.statistics.values())]:
            self._session.run(f"DROP TABLE IF EXISTS {name}")

    def _drop_index(self, index: IndexTables) -> None:
        for view in (index.name, index.values, f"{index.values}_all"):
            self._session.run(f"DROP VIEW IF EXISTS {view}")
        for end in ("sample", "extremes", "embedded"):
            self._session.run(f"DROP TABLE IF EXISTS {index.name}_{end}")
        self._session.run(f"DROP TABLE IF EXISTS {HELD}.{index.name}_held")

    def _insert(self, statement: str, data: pa.Table) -> None:
        """Run a statement whose end, a query for rows of ``data``, is not in it."""
        self._session.register("kartosql_new", data)
        try:
            self._session.run(f"{statement} FROM kartosql_new")
        finally:
            self._session.unregister("kartosql_new")

    # -- partitions and files --------------------------------------------------------------------

    def partitions(self, table: FileTable) -> str:
        """Return the table of the partition values: k0, k1, ... and part."""
        known, values = self._of(table), table.partitions
        name = f"kartosql_partitions_{known.number}"
        if name not in known.made:
            arrays = [*values.arrow.columns, array_of(range(values.count), pa.int32())]
            names = [*(f"k{i}" for i in range(len(values.keys))), "part"]
            self._insert(f"CREATE OR REPLACE TABLE {name} AS SELECT *", pa.table(arrays, names))
            known.made.add(name)
        return name

    def files(self, table: FileTable) -> str:
        """Return the table of the files: label, file and part."""
        known, values = self._of(table), table.partitions
        name = f"kartosql_files_{known.number}"
        if name not in known.made:
            numbers = array_of(range(len(table.files)), pa.int32())
            parts = numbers if values.is_one_to_one else array_of(values.part_of_file, pa.int32())
            data = pa.table({"label": array_of(table.labels, pa.string()), "file": numbers, "part": parts})
            self._insert(f"CREATE OR REPLACE TABLE {name} AS SELECT *", data)
            known.made.add(name)
        return name

    # -- indices ---------------------------------------------------------------------------------

    def ordered(self, table: FileTable, column: str) -> Ordered:
        """Return the values of an inverted index in ascending order, as far as they are known."""
        known, index = self._of(table), table.indices[column]
        if column not in known.ordered:
            found = Ordered(self._session.store, table, index, self._session.footers.user_cache)
            if self._collates(index.type):  # values that are equal then do not stand side by side
                found.values, found.may_come = None, False
            known.ordered[column] = found
        return known.ordered[column]

    def order(self, table: FileTable, index: IndexTables) -> None:
        """Go on putting the values of an index in order, if that may cost something now."""
        found, seconds = self.ordered(table, index.column), index.allowance
        if seconds <= 0 or not found.may_come or found.values is not None:
            return
        others = [(i, o) for k in self._known.values() for c, i in k.indices.items() if (o := k.ordered.get(c))]
        held = sum(i.weight for i, o in others if o.values is not None and not o.is_kept)
        found.may_come = held + index.weight <= MAX_ORDERED
        if found.may_come:
            found.collect(index.pairs / max(1, index.rows), seconds)

    def index(self, table: FileTable, column: str, *, hold: bool = True) -> IndexTables:
        """Return the relations of an inverted index, which it may be time to ``hold``.

        Raises ``missing-file`` and ``invalid-index``.
        """
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
        if hold and index.held is None and (seconds := index.allowance) > 0:
            self.hold(table, index, seconds)
        return index

    def sample(self, index: IndexTables, pairs: int) -> tuple[str, float]:
        """Return a table (v, files) with values of a held index that have about so many pairs, and their share."""
        share = min(1.0, pairs / max(1, index.pairs))
        if index.sampled is None:
            name = f"{index.name}_sample"
            # Of all parts of the index, as values that are next to each other often lie in the same files.
            chosen = f"hash(rowid) % 1000000 < {int(share * 1_000_000)}"
            self._session.run(f"CREATE OR REPLACE TABLE {name} AS SELECT v, files FROM {index.held} WHERE {chosen}")
            index.sampled = name
        return index.sampled, share

    def extremes(self, index: IndexTables) -> str | None:
        """Return the table (file, low, high) of a held index, once it was asked for often enough to pay."""
        index.ranges += 1
        if index.extremes is None and index.ranges > FREE_RANGES:
            name = f"{index.name}_extremes"
            spread = f"SELECT v, unnest(files) AS file FROM {index.held}"
            try:
                bounds = f"SELECT file, min(v) AS low, max(v) AS high FROM ({spread}) GROUP BY file"
                self._session.run(f"CREATE OR REPLACE TABLE {name} AS {bounds}")
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
            self._insert(f"CREATE TABLE {index.name}_embedded AS SELECT *", _embedded(stored))
            self._session.run(f"CREATE VIEW {name} AS FROM {index.name}_embedded")
        else:
            assert stored.key is not None
            self._index_view(name, stored, stored.key, declared)
            index.size = self._session.files.sizes.get(stored.key) or 0
            self._count_pairs(index, stored.key)
        values = f"SELECT CAST(v AS {declared}) AS v, labels FROM {name}"
        self._session.run(f"CREATE VIEW {index.values} AS {_with_zeros(values, 'labels', stored.type)}")

    def _index_view(self, name: str, stored: InvertedIndex, key: str, declared: str) -> None:
        """Create a view (v, labels) over an index file; raises ``missing-file`` and ``invalid-index``."""
        session = self._session
        whole = None
        if session.instance.filesystem is not None:
            from kartosql.engines.duckdb.remote import WHOLE_INDEX

            whole = WHOLE_INDEX
            session.instance.filesystem.keep(key)
        path = session.files.paths([key], session.instance.filesystem, whole, stored.version)[0]
        if session.store.is_local:
            session.store.counter.add("reads", key, session.files.sizes[key] or 0)
        # With a size, as then the name is not taken for a pattern.
        reader = f"read_parquet([{{'filename': {literal(path)}, 'file_size': 1}}], hive_partitioning = false)"
        try:
            described = session.rows(f"SELECT column_name, column_type FROM (DESCRIBE FROM {reader})")
        except duckdb.Error as e:
            reraise(e, f"Cannot read {key!r}")
            raise _invalid(key, str(e).splitlines()[0]) from None
        _check_columns(described, key, stored.column, declared)
        session.run(f"CREATE VIEW {name} AS SELECT {quote(stored.column)} AS v, partition AS labels FROM {reader}")

    def _count_pairs(self, index: IndexTables, key: str) -> None:
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

    def _collates(self, type_: pa.DataType) -> bool:
        collation = "SELECT current_setting('default_collation') <> ''"
        return pa.types.is_string(type_) and bool(self._session.rows(collation)[0][0])

    def hold(self, table: FileTable, index: IndexTables, seconds: float = math.inf) -> None:
        """Go on making a table (v, files) of an index for so long; once it is whole, it replaces the file."""
        type_ = index.index.type
        if index.held is not None:
            return
        if self._collates(type_):
            index.may_be_held = False  # values that the collation takes for equal would become one
            return
        held, files = f"{HELD}.{index.name}_held", self.files(table)
        try:
            if index.plain and not self._take_over(table, index, held, seconds):
                return
            if not index.plain:
                if index.hold_seconds > seconds:
                    return
                stored = f"SELECT CAST(v AS {sql_type(type_)}) AS v, unnest(labels) AS label FROM {index.values}_all"
                lists = f"SELECT v, list(file) AS files FROM ({stored}) i JOIN {files} USING (label) GROUP BY v"
                self._session.run(f"CREATE OR REPLACE TABLE {held} AS {_with_zeros(lists, 'files', type_)} ORDER BY v")
            ((index.rows, index.pairs),) = self._session.rows(
                f"SELECT count(*), coalesce(sum(len(files)), 0) FROM {held}"
            )
            self._session.run(
                f"CREATE OR REPLACE VIEW {index.name} AS SELECT i.v, i.file, l.part FROM "
                f"(SELECT v, unnest(files) AS file FROM {held}) i JOIN {files} l USING (file)"
            )
        except BaseException as e:
            # Whoever goes on with what was made so far lacks what was on its way into the table.
            index.coming = None
            self._session.run(f"DROP TABLE IF EXISTS {held}")
            if not isinstance(e, duckdb.Error):
                raise
            index.may_be_held = False  # too large for the memory limit, or a broken file, which the statement will name
            return
        index.held = held
        self._make_room(index)

    def _take_over(self, table: FileTable, index: IndexTables, held: str, seconds: float) -> bool:
        """Fill the table of an index with what Arrow reads; returns whether it is whole, or Arrow cannot read on."""
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
            self._session.run(f"CREATE OR REPLACE TABLE {held} (v {declared}, files INTEGER[])")
        for batch in index.coming.some(seconds):
            self._insert(f"INSERT INTO {held} SELECT CAST(v AS {declared}), files", batch)
        index.plain, whole = not index.coming.is_broken, index.coming.is_whole
        if not index.plain or whole:
            index.coming = None
        if not index.plain:
            self._session.run(f"DROP TABLE {held}")
        elif whole:
            disorder = f"SELECT 1 FROM (SELECT v, lag(v) OVER () AS before FROM {held}) WHERE before >= v LIMIT 1"
            if self._session.rows(disorder):
                lists = f"SELECT v, flatten(list(files)) AS files FROM {held} GROUP BY v ORDER BY v"
                self._session.run(f"CREATE OR REPLACE TABLE {held} AS {lists}")
        return whole or not index.plain

    def _make_room(self, newest: IndexTables) -> None:
        """Drop held indices, those of the tables used longest ago first, until the rest is small enough."""
        held = [(k, i) for k in self._known.values() for i in k.indices.values() if i.held is not None]
        total = sum(i.weight for _, i in held)
        for known, index in held:
            if total > MAX_PAIRS and index is not newest:
                total -= index.weight
                self._drop_index(known.indices.pop(index.column))

    # -- statistics ------------------------------------------------------------------------------

    def statistics(self, table: FileTable, column: str, found: ColumnBounds, by: str = "") -> str:
        """Return the table of a column's bounds: file, low, high, has_values and nulls (-1 if not known).

        Bounds from another source have a name of their own, ``by``, and another table.
        """
        known = self._of(table)
        name, held = known.statistics.get((column, by), ("", None))
        if held is not found:
            if name:
                self._session.run(f"DROP TABLE {name}")
                del known.statistics[column, by]
            name = f"kartosql_statistics_{known.number}_{self._count}"
            self._count += 1
            type_ = sql_type(table.types[column])
            bounds = ", ".join(f"CAST({end} AS {type_}) AS {end}" for end in ("low", "high"))
            self._insert(f"CREATE OR REPLACE TABLE {name} AS SELECT file, {bounds}, has_values, nulls", found.arrow)
            known.statistics[column, by] = (name, found)
        return name

    def check(self, index: IndexTables) -> None:
        """Raise ``invalid-index`` if an index file cannot be read."""
        try:
            self._session.rows(
                f"SELECT count(v), count(labels), sum(len(labels)), max(labels::VARCHAR) FROM {index.values}_all"
            )
        except duckdb.Error as e:
            reraise(e, f"Cannot read {index.index.key!r}")
            raise _invalid(index.index.key, str(e).splitlines()[0]) from None


def _with_zeros(query: str, files: str, type_: pa.DataType) -> str:
    """Add the other zero to the values of an index: 0.0 and -0.0 are one there, but not to a predicate."""
    if not pa.types.is_floating(type_):
        return query
    return f"WITH found AS ({query}) FROM found UNION ALL SELECT -v, {files} FROM found WHERE v = 0"


def _embedded(index: InvertedIndex) -> pa.Table:
    parse = value_parser(index.type)
    assert index.embedded is not None
    try:
        values = [parse(str(text).encode()) for text in index.embedded]
        labels = pa.array(list(index.embedded.values()), pa.list_(pa.string()))
        return pa.table({"v": array_of(values, index.type), "labels": labels})
    except (ValueError, OverflowError, KeyError, pa.ArrowException) as e:
        reraise(e)
        raise FormatError(
            f"The index of {index.column!r} in the metadata does not fit its type {type_name(index.type)}: "
            f"{in_sql_names(e)}",
            code="invalid-index",
        ) from None


def _check_columns(rows: list[tuple[str, str]], key: str, column: str, declared: str) -> None:
    types = dict(rows)
    problem = None
    if column not in types or "partition" not in types:
        problem = f"it has no columns {column!r} and 'partition'"
    elif not fits(types[column], declared) or types[column] == '"NULL"' != declared:
        problem = f"its values are {types[column]}, the column is {declared}"
    elif types["partition"] != "VARCHAR[]":
        problem = f"its labels are {types['partition']}"
    if problem and types.get(column) != '"NULL"':
        raise _invalid(key, problem)


def _invalid(key: str | None, reason: str) -> FormatError:
    return FormatError(f"{key}: {reason}", code="invalid-index", hint="Build the index again.")


@dataclass
class Lookup:
    """One condition, looked up in the index of one column.

    Given the relation of the partition values, ``parts``, the predicate may use these. What most values match is
    found in nearly all files: there the files with some of these values are looked at first. If no file is
    left that reading on might leave out, or not enough of them, all files are kept.
    """

    _planner: Planner
    _asked: ValueCondition
    _parts: str = ""

    def __post_init__(self) -> None:
        asked, self._structures = self._asked, self._planner.structures
        self._table, self._column, self._among = asked.table, asked.column, asked.among
        type_ = self._table.indices[self._column].type
        self._operator, _ = compared(asked.says, type_)
        self._search = None if self._parts else in_order(asked.says, type_)
        self._everything = Candidates(self._table.all_files)
        self._sample_pairs = min(MAX_SAMPLE, PER_FILE * len(self._table.files))

    @memoized
    def _index(self) -> IndexTables:
        ordered = self._structures.ordered(self._table, self._column)
        is_coming = self._search is not None and ordered.values is None and ordered.may_come
        return self._structures.index(self._table, self._column, hold=not is_coming)

    def files(self) -> Candidates:
        """Return the files with a value of the column for which the predicate may be TRUE."""
        if (found := self._in_order() or self._near()) is not None:
            return found
        index = self._index
        if pa.types.is_binary(index.index.type):
            return self._binary()
        if self._search is not None:
            self._structures.order(self._table, index)
            found = self._in_order()
        index.uses += 1
        if found is None:
            found = self._find_candidates()
        index.saved = self._seconds(self._among - found.files)
        return found

    def _in_order(self) -> Candidates | None:
        """Look into the values in ascending order, if they are there, and not too many match."""
        ordered = self._structures.ordered(self._table, self._column) if self._search is not None else None
        if ordered is None or ordered.values is None or self._search is None:
            return None
        try:
            spans = self._search(ordered.values)
            few = ordered.values.pairs_of(spans) <= FIRST_PAIRS
            return Candidates(ordered.values.files(spans)) if few else None
        except ValueError:  # somebody damaged what was kept
            ordered.values = None
            return None

    def _near(self) -> Candidates | None:
        """Look into the few row groups of a new file that may have the values."""
        values = listed(self._asked.says, self._table.indices[self._column].type) if self._search is not None else []
        found = self._structures.ordered(self._table, self._column).near(values) if values else None
        return Candidates(found) if found is not None else None

    def _find_candidates(self) -> Candidates:
        index = self._index
        lowest = index.touch_seconds
        if self._parts:
            making = 0.0 if index.held is not None else min(index.hold_seconds, index.read_seconds)
            lowest = making + SPREAD_PAIR * self._sample_pairs
        if self._exceeds(lowest, self._among):
            return self._keep_all(self._among)
        if self._parts:
            large = SPREAD_PAIR * index.pairs > NEGLIGIBLE
            if large and index.held is None and index.may_be_held and index.hold_seconds < index.read_seconds:
                self._structures.hold(self._table, index)
            return self._sampled(frozenset()) if index.held is not None else self._all_candidates()
        if index.read_seconds < NEGLIGIBLE:
            return self._all_candidates()
        return self._match_in_memory() if index.held is not None else self._in_file()

    # -- binary values -----------------------------------------------------------------------------

    def _binary(self) -> Candidates:
        """Return the files of an index of binary values.

        The originals cut these at their first NUL byte. Compared with values that have none,
        all that were cut to v are in the files of v and one NUL byte; files that match only
        there are doubtful.
        """
        found = self._matching()
        clean = not any(isinstance(v, bytes) and b"\0" in v for v in self._asked.parameters.values())
        if isinstance(found, bool) or not (clean and self._planner.compares(self._asked.predicate)):
            return self._everything
        files = {row[0] for row in found}
        more = self._matching("v || '\\x00'::BLOB")
        doubtful = set(self._table.all_files) if isinstance(more, bool) else {row[0] for row in more}
        return Candidates(frozenset(files | self._really_matching(doubtful - files)))

    def _really_matching(self, doubtful: set[int]) -> set[int]:
        """Return those of the ``doubtful`` files in which a value matches, found by looking into a few of them."""
        if len(doubtful) > MAX_PROBES:
            return doubtful
        names = {self._index.column: "v", **{key: f"k{i}" for i, key in enumerate(self._table.partition_keys)}}
        found = set()
        for file in sorted(doubtful):
            rows = self._planner.relations.rows_of(self._table, [file], RowRequest(names))
            before = f"SELECT 1 FROM ({rows}) WHERE "
            if self._planner.select(before, self._asked.predicate, self._asked.parameters, " LIMIT 1"):
                found.add(file)
        return found

    # -- where the index is held ---------------------------------------------------------------------

    def _match_in_memory(self) -> Candidates:
        """Fetch what the first values have that match, which often are all of them."""
        index = self._index
        limit = max(1, min(FIRST, FIRST_PAIRS * index.rows // max(1, index.pairs)))
        found = self._ask(f"SELECT files FROM {index.held} WHERE ", f" LIMIT {limit}")
        if isinstance(found, bool):
            return self._everything
        files = frozenset(f for (listed,) in found for f in listed)
        if len(found) < limit:
            return Candidates(files)
        return self._by_extremes() or self._sampled(files)

    def _by_extremes(self) -> Candidates | None:
        """Look at the smallest or largest value of each file, for predicates that it answers."""
        index = self._index
        if SCAN_PAIR * index.pairs < NEGLIGIBLE:
            return None
        end = {"<": "low", "<=": "low", ">": "high", ">=": "high"}.get(self._operator)
        name = self._structures.extremes(index) if end is not None else None
        if name is None:
            return None
        found = self._ask(f"SELECT file FROM (SELECT file, {end} AS v FROM {name}) WHERE ")
        return self._everything if isinstance(found, bool) else Candidates(frozenset(file for (file,) in found))

    def _sampled(self, found: Files) -> Candidates:
        """Look at a sample of the values before looking at all of them."""
        index = self._index
        per_pair = SPREAD_PAIR if self._parts else SCAN_PAIR
        pairs = self._sample_pairs
        if per_pair * index.pairs < NEGLIGIBLE or 2 * pairs > index.pairs:
            return self._all_candidates()
        name, share = self._structures.sample(index, pairs)
        rows = f"SELECT unnest(files) AS file FROM {name}"
        if self._parts:
            files = self._structures.files(self._table)
            spread = f"(SELECT v, unnest(files) AS file FROM {name}) JOIN {files} USING (file)"
            rows = f"SELECT file FROM {spread} JOIN {self._parts} USING (part)"
        sample = self._ask(f"WITH m AS MATERIALIZED ({rows} WHERE ", ") SELECT count(*), list(DISTINCT file) FROM m")
        if isinstance(sample, bool):
            return self._everything
        ((matching, listed),) = sample
        rest = self._among.difference(found, listed or ())
        price = per_pair * (index.pairs if self._parts else matching / share)
        return self._keep_all(rest) if self._exceeds(price, rest) else self._all_candidates()

    # -- where it is a file --------------------------------------------------------------------------

    def _in_file(self) -> Candidates:
        """Find out how many values match, and read files of some of them, before all are read."""
        index = self._index
        limit = max(FIRST, min(MAX_SAMPLE, PER_FILE_READ * len(self._table.files)) * index.rows // max(1, index.pairs))
        matching = self._count() if READ_VALUE * index.rows < index.read_seconds / index.groups else None
        if matching == 0:
            return Candidates(frozenset())
        rest = self._among
        if matching is None or matching > limit:
            if matching is not None and self._exceeds_gain(matching):
                return self._keep_all(rest)
            found = self._first(limit)
            if found is None:
                return self._everything
            if found[0] < limit:
                return Candidates(found[1])
            rest = rest - found[1]
            if not rest:
                return self._everything
            matching = self._count() if matching is None else matching
        if self._exceeds_gain(matching, rest):
            return self._keep_all(rest)
        if index.may_be_held and index.hold_seconds < self._price(matching):
            self._structures.hold(self._table, index)
        return self._all_candidates()

    def _first(self, limit: int) -> tuple[int, Files] | None:
        """Return the number of values that match, up to a limit, and their files; None stands for everything."""
        files = self._structures.files(self._table)
        found = self._ask(
            f"WITH m AS MATERIALIZED (SELECT labels FROM {self._index.values} WHERE ",
            f" LIMIT {limit}) SELECT (SELECT count(*) FROM m), (SELECT list(file) FROM "
            f"(SELECT DISTINCT unnest(labels) AS label FROM m) JOIN {files} USING (label))",
        )
        return None if isinstance(found, bool) else (found[0][0], frozenset(found[0][1] or ()))

    def _count(self) -> int:
        found = self._ask(f"SELECT count(*) FROM {self._index.values} WHERE ")
        return self._index.rows if isinstance(found, bool) else int(found[0][0])

    def _price(self, matching: int) -> float:
        return self._index.touch_seconds + self._share(matching) * self._index.read_seconds

    def _share(self, matching: int) -> float:
        return min(1.0, matching / max(1, self._index.rows))

    def _exceeds_gain(self, matching: int, rest: Files | None = None) -> bool:
        """Return whether to read the files of so many values takes longer than all that this could save."""
        price = self._price(matching)
        if self._index.may_be_held:
            price = min(price, self._index.hold_seconds)
        # What some values do not match cannot leave out more files than these values have.
        gain = (1 - self._share(matching)) * self._seconds(self._table.all_files)
        if rest is not None:
            gain = min(gain, self._seconds(rest))
        return price > max(NEGLIGIBLE, gain)

    # -- queries -----------------------------------------------------------------------------------

    def _all_candidates(self) -> Candidates:
        found = self._matching()
        return self._everything if isinstance(found, bool) else Candidates(frozenset(row[0] for row in found))

    def _matching(self, value: str = "v") -> list[Any] | bool:
        """Return the files with an index value, or what ``value`` makes of it, that matches; True is all of them."""
        index = self._index
        if self._parts:
            spread = f"(SELECT * REPLACE ({value} AS v) FROM {index.name}) JOIN {self._parts} USING (part)"
            return self._ask(f"SELECT DISTINCT file FROM {spread} WHERE ")
        if index.held is not None:
            return self._ask(
                f"SELECT DISTINCT unnest(files) FROM (SELECT {value} AS v, files FROM {index.held}) WHERE "
            )
        # The values are filtered before their labels are spread.
        return self._ask(
            "SELECT DISTINCT l.file FROM (SELECT DISTINCT unnest(labels) AS label "
            f"FROM (SELECT {value} AS v, labels FROM {index.values}) WHERE ",
            f") i JOIN {self._structures.files(self._table)} l USING (label)",
        )

    def _ask(self, before: str, after: str = "") -> list[Any] | bool:
        with self._index.timed():
            return self._planner.select(before, self._asked.predicate, self._asked.parameters, after, self._index)

    def _seconds(self, files: Files) -> float:
        """Return about what it takes to scan files."""
        if not files:
            return 0.0
        if not self._planner.store.is_local:
            return REMOTE_FILE_SECONDS * len(files)  # to ask for a size takes as long as to open a file
        known = self._structures.file_seconds
        if self._table not in known:
            mean = self._planner.cells.data_bytes(self._table, self._table.all_files) / len(self._table.files)
            known[self._table] = FILE_SECONDS + BYTE_SECONDS * mean
        return known[self._table] * len(files)

    def _exceeds(self, price: float, files: Files) -> bool:
        return price > NEGLIGIBLE and price > self._seconds(files)

    def _keep_all(self, rest: Files) -> Candidates:
        """Keep all files, as it would not pay to look for the ``rest``."""
        if not rest:
            return self._everything
        note = f"not looked up, at most {counted(len(rest), 'file')} could be left out"
        return Candidates(self._table.all_files, note)
