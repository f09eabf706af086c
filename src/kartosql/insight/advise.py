"""ADVISE: why a query is slow, what would help, how much, and the statement that does it."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.engines.duckdb.bounds import Bounded, bounded
from kartosql.engines.duckdb.types import sql_type
from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.dataset import InvertedIndex
from kartosql.formats.xskipper.bloom import shape_for
from kartosql.formats.xskipper.domain import as_tests
from kartosql.formats.xskipper.schema import BLOOM, MINMAX, VALUE_LIST, Index
from kartosql.formats.xskipper.writer import value_type
from kartosql.indexes.skipping import column_types, in_metadata_terms
from kartosql.insight.cost import Sample, columns_read, sample
from kartosql.parquet.metadata import column_bytes, extremes, group_bytes, may_hold_null
from kartosql.plan.report import ScanReport
from kartosql.plan.scan import OccurrenceScan, PartScan
from kartosql.predicate.tree import Comparison, Condition, In, Leaf, Opaque, Prefix, is_evaluable
from kartosql.query import SelectQuery
from kartosql.session import Request
from kartosql.sql import Select, parse
from kartosql.sql.sargable import Rewrite, rewrites
from kartosql.sql.statements import Advise
from kartosql.tables.names import Tables, quote_identifier, quote_if_needed
from kartosql.tables.table import FileTable, Table, arrow_table, file_table
from kartosql.text import markup
from kartosql.text.grid import one_line
from kartosql.text.report import Report, dict_of, table_of
from kartosql.text.sizes import counted, human_bytes, percent
from kartosql.write.compact import TARGET_BYTES
from kartosql.write.datasets import ORIGINALS_REFUSE
from kartosql.write.files import ROW_GROUP_ROWS
from kartosql.write.sorting import is_index_type

MAX_FILES = 32  # into which is looked for one condition
MAX_BYTES = 256_000_000  # of the columns of a condition


@dataclass(frozen=True)
class Matches:
    """In how many rows of each file of a sample a condition holds."""

    sample: Sample
    rows: tuple[int, ...]

    @property
    def files(self) -> int:
        """About how many of all files hold a match; all that hold one if all were looked into."""
        return self.sample.scaled(sum(n > 0 for n in self.rows))

    @property
    def share(self) -> float:
        """The share of the rows for which the condition holds."""
        whole = sum(f.num_rows for f in self.sample.footers)
        return sum(self.rows) / whole if whole else 0.0


class Measure:
    """Runs the small queries of one ADVISE."""

    def __init__(self, request: Request, parameters: Mapping[str, Any]) -> None:
        self._request = request
        self.parameters = parameters

    def matches(self, part: PartScan, condition: Condition, columns: Sequence[str]) -> Matches | None:
        """Count the matches of a condition in files of a dataset; None if that would read too much."""
        table = part.part.table
        found = sample(self._request.session.mounts, table.files, part.files, MAX_FILES)
        if sum(column_bytes(f, columns) for f in found.footers) > MAX_BYTES:
            return None
        predicate = _over_columns(condition)
        return Matches(found, tuple(self._by_file("count(*)", predicate, table, found)))

    def distinct(self, part: PartScan, found: Sample, column: str) -> list[int]:
        """Return how many different values the files of a sample have of a column."""
        return self._by_file(f"count(DISTINCT {quote_identifier(column)})", "true", part.part.table, found)

    def may_hold_for_null(self, table: FileTable, condition: Condition, column: str) -> bool:
        """Return whether a condition may hold where a column is NULL, which no index tells about."""
        row = {}
        for _, name in condition.columns:
            type_ = table.types[name]
            row[name] = pa.nulls(1, type_)
        source = arrow_table("measured", pa.table(row))
        predicate = _over_columns(condition)
        ((count,),) = self._ask("SELECT count(*) AS n FROM measured WHERE ", predicate, {"measured": source}).rows()
        return int(count) > 0

    def in_range(self, found: Sample, table: FileTable, column: str, asked: Bounded) -> list[bool] | None:
        """Return for each file of a sample whether what is asked of bounds may hold for its own.

        None, if a file does not tell them, or they prove nothing.
        """
        bounds = []
        for footer in found.footers:
            groups = [extremes(footer.row_group(at), column) for at in range(footer.num_row_groups)]
            known = [g for g in groups if g is not None]
            if len(known) < len(groups) or not known:
                return None
            bounds.append((min(g[0] for g in known), max(g[1] for g in known)))
        type_ = table.types[column]
        typed = [f"typeof({t}) AS t{at}" for at, t in enumerate(t for t in asked.typed if t is not None)]
        types = self._ask("SELECT ", ", ".join(typed), {}).rows()[0] if typed else ()
        predicate = asked.over(sql_type(type_), types)
        if predicate is None:
            return None
        low, high = (pa.array([b[i] for b in bounds], type_) for i in (0, 1))
        told = {"has_values": pa.repeat(True, len(bounds)), "nulls": pa.repeat(-1, len(bounds))}
        rows = pa.table({"n": pa.array(range(len(bounds)), pa.int64()), "low": low, "high": high, **told})
        answer = self._ask("SELECT n FROM measured WHERE ", predicate, {"measured": arrow_table("measured", rows)})
        kept = {n for (n,) in answer.rows()}
        return [n in kept for n in range(len(bounds))]

    def _by_file(self, aggregate: str, predicate: str, table: FileTable, found: Sample) -> list[int]:
        """Return an aggregate over the rows of each file of a sample that satisfy a predicate, 0 where there are none.

        It is one statement over all of the files: each statement costs more than a small file.
        """
        number = "kartosql_file"
        while any(name.lower() == number for name in table.types):
            number += "_"
        tables = {
            f"measured_{n}": file_table(f"measured_{n}", table.only(at), "measured") for n, at in enumerate(found.files)
        }
        every = " UNION ALL ".join(f"SELECT {n} AS {number}, * FROM {name}" for n, name in enumerate(tables))
        head = f"SELECT {number}, {aggregate} AS n FROM ({every}) WHERE "
        counts = dict(self._ask(head, f"({predicate}) GROUP BY {number}", tables).rows()) if tables else {}
        return [counts.get(n, 0) for n in range(len(tables))]

    def _ask(self, head: str, predicate: str, tables: Mapping[str, Table]) -> SelectQuery:
        given: dict[str, Any] = {}
        for planned, value in sorted(self.parameters.items(), reverse=True):
            # Names that the planner gives to parameters cannot be handed over.
            if f"${planned}" in predicate:
                name = f"advise_{len(given)}"
                given[name] = value
                predicate = predicate.replace(f"${planned}", f"${name}")
        statement = parse(head + predicate)
        assert isinstance(statement, Select)
        session = self._request.session
        known = Tables(session.tables().snapshot, tables)
        return SelectQuery(statement, known, session.runtime, session.settings, given or None, pruned=False)


def _over_columns(condition: Condition) -> str:
    """Return a condition as SQL over the columns of one table."""
    return condition.render(lambda ref: quote_identifier(ref[1]))


def is_excluded(group: Any, column: str, low: Any, high: Any) -> bool:
    """Return whether the extremes of a column in a row group say that no value is from ``low`` to below ``high``."""
    found = extremes(group, column)
    if found is None:
        return False
    least, most = (v.date() if isinstance(v, dt.datetime) else v for v in found)
    return bool(most < low or least >= high)


def is_ordered(footers: Sequence[Any], column: str) -> bool:
    """Return whether the row groups of each file have ranges of a column that follow each other."""
    for footer in footers:
        ranges = [extremes(footer.row_group(at), column) for at in range(footer.num_row_groups)]
        if None in ranges or any(a[1] > b[0] for a, b in itertools.pairwise(ranges)):  # type: ignore[index]
            return False
    return True


def index_share(request: Request, index: InvertedIndex, files: int) -> tuple[float, int] | None:
    """Return in what share of the files a value of an index stands on average, and the bytes of the index."""
    if index.key is None or not files:
        return None
    data = request.session.store.read(index.key)
    labels = pq.read_table(pa.BufferReader(data), columns=["partition"]).column("partition")
    if not len(labels):
        return None
    pairs = sum(len(chunk.flatten()) for chunk in labels.chunks)
    return pairs / (len(labels) * files), len(data)


LEAST_SHARE = 0.1  # of the files or bytes that have to be saved
USELESS = 0.9  # the share of files in which a value of a useless index stands
SMALL_BYTES = 8_000_000  # files below are merged
_COMPARISON = re.compile(r"\s*(=|<|>|IN\b|BETWEEN\b)", re.IGNORECASE)


@dataclass(frozen=True)
class Advice:
    """One thing that would help a query.

    ``statement`` does it. It saves ``files_saved`` of the ``files`` and ``bytes_saved`` of the
    ``bytes`` that the query reads of one dataset now; ``measured`` says from what that is known.
    """

    kind: str
    title: str
    why: str
    statement: str
    files: int
    files_saved: int
    bytes: int
    bytes_saved: int
    measured: str
    note: str | None = None


def target_of(scan: OccurrenceScan, part: PartScan) -> str:
    """Return a dataset as statements that write name it."""
    cube = scan.occurrence.source.cube
    if cube is not None:
        return f"{quote_if_needed(cube.uuid_prefix)}.{quote_if_needed(part.part.name)}"
    return quote_if_needed(part.part.table.uuid)


def sizes(request: Request, part: PartScan) -> tuple[int, int]:
    """Return the bytes of the files that are read of a dataset, and their mean."""
    keys = [part.part.table.files[i] for i in part.files]
    total = sum(n or 0 for n in request.session.mounts.sizes(keys).values())
    return total, total // max(1, len(keys))


def alone(scan: OccurrenceScan, part: PartScan, condition: Condition) -> str | None:
    """Return the one column without index that a condition is about, besides partition keys of a dataset."""
    table, source = part.part.table, scan.occurrence.source
    names = {name for o, name in condition.columns if o == scan.occurrence.id}
    if not is_evaluable(condition) or len(names) != len(condition.columns):
        return None
    rest = names - set(table.partition_keys)
    if len(rest) != 1:
        return None
    (column,) = rest
    owned = source.owner.get(column) == part.part.name or column in part.part.join_key
    return column if owned and column in table.types and column not in table.indices else None


def unused(scan: OccurrenceScan) -> list[Condition]:
    """Return the conditions that leave out no file, asked of an index or not."""
    steps = [s.condition for part in scan.parts for s in part.steps if s.files_after < s.files_before]
    return [c for c in dict.fromkeys(scan.predicates) if not any(c.text in step for step in steps)]


@dataclass(frozen=True)
class Opportunity:
    """A condition that leaves out no file of a dataset, and its column, which an index could be over."""

    request: Request
    measure: Measure
    scan: OccurrenceScan
    part: PartScan
    condition: Condition
    column: str

    @property
    def type(self) -> pa.DataType:
        """The type of the column."""
        return self.part.part.table.types[self.column]

    @property
    def target(self) -> str:
        """The dataset as statements that write name it."""
        return target_of(self.scan, self.part)

    def pays(self, saved: int) -> bool:
        """Return whether it pays to leave out so many files."""
        return saved >= max(1, LEAST_SHARE * len(self.part.files))

    def matches(self) -> Matches | None:
        """Count the rows that the condition holds for; None if that would read too much."""
        return self.measure.matches(self.part, self.condition, [self.column])

    def has(self, kind: str) -> bool:
        """Return whether the dataset has a skipping index of a kind over the column already."""
        skipping = self.part.part.table.skipping
        indexes: Sequence[Index] = ()
        if skipping is not None:
            with contextlib.suppress(KartosqlError):
                indexes = skipping.indexed()[0]
        return any(i.name == kind and i.path == (self.column.lower(),) for i in indexes)

    def advice(self, kind: str, title: str, why: str, statement: str, saved: int, size: int, *notes: str) -> Advice:
        """Return the advice that leaves out ``saved`` files of ``size`` bytes; ``notes`` say how that is known."""
        total, _ = sizes(self.request, self.part)
        return Advice(kind, title, why, statement, len(self.part.files), saved, total, size, *notes)


def opportunities(request: Request, scan: OccurrenceScan, measure: Measure) -> Iterator[Opportunity]:
    """Yield what an index over a column of its own could help."""
    for part in scan.parts:
        if len(part.files) < 2 or part.summary is not None or scan.occurrence.source.is_attached:
            continue
        for condition in unused(scan):
            column = alone(scan, part, condition)
            if column is not None:
                yield Opportunity(request, measure, scan, part, condition, column)


def indices(request: Request, scan: OccurrenceScan, measure: Measure) -> Iterator[Advice]:
    """Yield the indices that would leave out files."""
    for c in opportunities(request, scan, measure):
        if not is_index_type(c.type) or measure.may_hold_for_null(c.part.part.table, c.condition, c.column):
            continue
        found = c.matches()
        if found is None or not c.pays(saved := len(c.part.files) - found.files):
            continue
        yield c.advice(
            "index",
            f"an index on {c.column} of {c.target}",
            f"{_holds_in(c, found)}and nothing tells in which",
            f"CREATE INDEX ON {c.target} ({quote_if_needed(c.column)})",
            saved,
            _missing(found),
            looked(found),
            "writes to the dataset then keep the index up to date" + _about_nulls(scan, c.column, found),
        )


def _holds_in(c: Opportunity, found: Matches) -> str:
    return f"{c.condition.text} holds in {counted(found.files, 'file')} of the {len(c.part.files):,} that are read, "


def _missing(found: Matches) -> int:
    """Return about how many bytes files have without a match."""
    return found.sample.scaled(sum(n for n, rows in zip(found.sample.sizes, found.rows, strict=True) if not rows))


def _about_nulls(scan: OccurrenceScan, column: str, found: Matches) -> str:
    if scan.occurrence.source.cube is None or not any(may_hold_null(f, column) for f in found.sample.footers):
        return ""
    return f"; {column} holds NULL, which the index leaves out: {ORIGINALS_REFUSE.removesuffix('.')}"


def looked(found: Matches) -> str:
    """Return in how many files matches were counted."""
    of = found.sample
    if of.is_all:
        return f"counted in all {counted(of.of, 'file')}"
    return f"estimated from {len(of.files):,} of {of.of:,} files"


def useless_indices(request: Request, scan: OccurrenceScan) -> Iterator[Advice]:
    """Yield the indices that were read in vain, and in which most values stand in most files."""
    cube = scan.occurrence.source.cube
    kept = set(cube.dimension_columns) if cube is not None else set()
    for part in scan.parts:
        table = part.part.table
        if scan.occurrence.source.is_attached:
            continue
        vain = {s.condition for s in part.steps if s.by == "inverted index" and s.files_before == s.files_after}
        for condition in dict.fromkeys(scan.predicates):
            if not any(condition.text in text for text in vain):
                continue
            for _, column in sorted(condition.columns):
                index = table.indices.get(column)
                measured = index_share(request, index, len(table.files)) if index and column not in kept else None
                if measured is None or measured[0] < USELESS:
                    continue
                share, size = measured
                target = target_of(scan, part)
                yield Advice(
                    "useless index",
                    f"no index on {column} of {target}",
                    f"{condition.text} was looked up and left out no file: on average a value stands in "
                    f"{100 * share:.0f} % of all files",
                    f"DROP INDEX ON {target} ({quote_if_needed(column)})",
                    0,
                    0,
                    size,
                    size,
                    "the bytes of the index file, which planning reads",
                    "queries for rare values of this column may still gain from it",
                )


def compaction(request: Request, scan: OccurrenceScan) -> Iterator[Advice]:
    """Yield the datasets of which many small files of the same partition are read."""
    for part in scan.parts:
        table = part.part.table
        if len(part.files) < 2 or part.summary is not None or scan.occurrence.source.is_attached:
            continue
        total, mean = sizes(request, part)
        folders = Counter(table.partitions.part_of_file[i] for i in part.files)
        merged = sum(max(1, -(-count * mean // TARGET_BYTES)) for count in folders.values())
        saved = len(part.files) - merged
        if mean > SMALL_BYTES or saved < max(1, LEAST_SHARE * len(part.files)):
            continue
        target = target_of(scan, part)
        why = f"{counted(len(part.files), 'file')} of {mean:,} bytes on average stand in {len(folders):,} partitions"
        if part.overlaid:
            why += f", and {len(part.overlaid):,} may hold newer versions of each other's rows"
        yield Advice(
            "compact",
            f"larger files in {target}",
            why,
            f"COMPACT {target}",
            len(part.files),
            saved,
            total,
            0,
            "by the sizes of the files and their partitions",
        )


def bare_columns(request: Request, scan: OccurrenceScan, text: str) -> Iterator[Advice]:
    """Yield predicates that row groups could be left out by if they were said of the column itself."""
    statement = parse(text)
    conditions = {c.text: c for c in scan.predicates}
    for found in rewrites(statement.tree if isinstance(statement, Select) else None, text):
        condition = conditions.get(found.old)
        if condition is None or len(condition.columns) != 1:
            continue
        ((occurrence, column),) = condition.columns
        for part in scan.parts if occurrence == scan.occurrence.id else ():
            table = part.part.table
            structures = (*table.partition_keys, *table.indices)
            if scan.occurrence.source.owner.get(column) != part.part.name or column in structures:
                continue
            if part.summary is None and _is_of(table.types[column], found.types):
                yield from _bare(request, scan, part, column, found, text)


def _is_of(type_: pa.DataType, types: tuple[str, ...]) -> bool:
    t = pa.types
    # A time zone may move a day.
    timestamp = t.is_timestamp(type_) and type_.tz is None
    tests = {"date": t.is_date32(type_), "integer": t.is_integer(type_), "timestamp": timestamp}
    return any(tests[name] for name in types)


def _bare(
    request: Request, scan: OccurrenceScan, part: PartScan, column: str, found: Rewrite, text: str
) -> Iterator[Advice]:
    footers = sample(request.session.mounts, part.part.table.files, part.files)
    columns = columns_read(scan, part)
    groups = [f.row_group(at) for f in footers.footers for at in range(f.num_row_groups)]
    sizes = [group_bytes(group, columns) for group in groups]
    skipped = [is_excluded(group, column, found.low, found.high) for group in groups]
    total, saved = sum(sizes), sum(size for size, skip in zip(sizes, skipped, strict=True) if skip)
    if not saved or saved < LEAST_SHARE * total:
        return
    yield Advice(
        "rewrite",
        f"{found.new} instead of {found.old}",
        f"a function stands around {column}, so the extremes of row groups cannot be compared with it",
        text[: found.span[0]] + found.new + text[found.span[1] :],
        len(part.files),
        0,
        footers.scaled(total),
        footers.scaled(saved),
        f"by the extremes of {column} in {sum(skipped):,} of {len(groups):,} row groups",
    )


def order(request: Request, scan: OccurrenceScan, measure: Measure) -> Iterator[Advice]:
    """Yield the plain datasets whose matching rows would stand together if they were sorted."""
    part, source = scan.parts[0], scan.occurrence.source
    table = part.part.table
    if source.cube is not None or source.is_attached or part.summary is not None or not part.files:
        return
    for condition in unused(scan):
        column = alone(scan, part, condition)
        if column is None or not is_index_type(table.types[column]) or not compares(condition):
            continue
        found = measure.matches(part, condition, [column])
        if found is None or not found.sample.is_all:
            continue
        groups = sum(f.num_row_groups for f in found.sample.footers)
        # In each file the matches stand together then, and may begin in the middle of a row group.
        needed = sum(min(-(-f.num_rows // ROW_GROUP_ROWS), rows // ROW_GROUP_ROWS + 2) for f, rows in _with_rows(found))
        columns = columns_read(scan, part)
        total = sum(column_bytes(f, columns) for f in found.sample.footers)
        saved = total * (groups - needed) // groups if groups else 0
        if is_ordered(found.sample.footers, column) or needed >= groups or saved < LEAST_SHARE * total:
            continue
        target, keys = target_of(scan, part), ", ".join(map(quote_if_needed, table.partition_keys))
        by = f" PARTITION BY ({keys})" if keys else ""
        indexed = ", ".join(map(quote_if_needed, sorted(table.indices)))
        by += f" INDEX ({indexed})" if indexed else ""
        yield Advice(
            "sort",
            f"rows of {target} in the order of {column}",
            f"{condition.text} holds for {100 * found.share:.1f} % of the rows, which stand in all row groups",
            f"CREATE OR REPLACE DATASET {target}{by} AS SELECT * FROM {target} ORDER BY {quote_if_needed(column)}",
            len(part.files),
            0,
            total,
            saved,
            f"by {groups:,} row groups, of which {needed:,} would be left",
            "only for conditions that compare the column with values; later writes are not sorted",
        )


def compares(condition: Condition) -> bool:
    """Return whether a condition compares a column with values."""
    if not isinstance(condition, Opaque) or condition.negated:
        return False
    column, then, *_ = *(p for p in condition.pieces or () if p != ""), None, None
    return isinstance(column, tuple) and isinstance(then, str) and _COMPARISON.match(then) is not None


def _with_rows(found: Matches) -> Iterator[tuple[Any, int]]:
    return ((f, n) for f, n in zip(found.sample.footers, found.rows, strict=True) if n)


MAX_LIST = 1_000  # values of a file that a list may hold; of more a filter is made
FPP = 0.01
FILTER_SHARE = 0.1  # of the bytes of a file that its filter may have


def skipping_indices(request: Request, scan: OccurrenceScan, measure: Measure) -> Iterator[Advice]:
    """Yield the skipping indexes that would leave out files: bounds, else lists of values, else filters."""
    for c in opportunities(request, scan, measure):
        is_ordered_exactly = pa.types.is_signed_integer(c.type) or pa.types.is_date32(c.type)
        bounds = _by_bounds(c) if is_ordered_exactly else None
        if bounds is not None:
            yield bounds
        values = _by_values(c)
        # Bounds are smaller than all else, so the others have to do better.
        if values is not None and c.pays(values.files_saved - (bounds.files_saved if bounds is not None else 0)):
            yield values


def _by_bounds(c: Opportunity) -> Advice | None:
    asked = bounded(c.condition.says()) if isinstance(c.condition, Opaque) and compares(c.condition) else None
    if asked is None or c.has(MINMAX):
        return None
    table = c.part.part.table
    found = sample(c.request.session.mounts, table.files, c.part.files)
    left = c.measure.in_range(found, table, c.column, asked)
    missing = [size for size, kept in zip(found.sizes, left or (), strict=False) if not kept]
    saved = found.scaled(len(missing))
    if not c.pays(saved):
        return None
    return c.advice(
        "skipping index",
        f"a skipping index with the bounds of {c.column} of {c.target}",
        f"the bounds of {c.column} rule out {c.condition.text} in {counted(saved, 'file')}, "
        "but their footers tell that only when they are opened",
        f"CREATE SKIPPING INDEX ON {c.target} (MINMAX({quote_if_needed(c.column)}))",
        saved,
        found.scaled(sum(missing)),
        f"by the footers of {counted(len(found.files), 'file')}",
        "smaller and quicker to keep up to date than an index of all values",
    )


def _by_values(c: Opportunity) -> Advice | None:
    """Return the advice for a list of values, or for a filter where there are too many of them."""
    leaf = _leaf(c)
    found = c.matches() if leaf is not None else None
    if leaf is None or found is None or not c.pays(without := len(c.part.files) - found.files):
        return None
    most, quoted = max(c.measure.distinct(c.part, found.sample, c.column)), quote_if_needed(c.column)
    if most <= MAX_LIST:
        if c.has(VALUE_LIST):
            return None
        return c.advice(
            "skipping index",
            f"a skipping index with the values of {c.column} of {c.target}",
            f"{_holds_in(c, found)}and a file has {most:,} different values of {c.column} at most",
            f"CREATE SKIPPING INDEX ON {c.target} (VALUELIST({quoted}))",
            without,
            _missing(found),
            looked(found),
            "quicker to keep up to date than an index of all values",
        )
    ndv, vain = _rounded(most), min(1.0, FPP * _looked_for(leaf))
    size, saved = shape_for(FPP, ndv).bits // 8, int(without * (1 - vain))
    is_wanted = c.pays(saved) and size <= FILTER_SHARE * sizes(c.request, c.part)[1]
    if not is_wanted or value_type(c.type, BLOOM) is None or c.has(BLOOM):
        return None
    return c.advice(
        "skipping index",
        f"a skipping index with a filter of {c.column} of {c.target}",
        f"{_holds_in(c, found)}and a file has up to {most:,} different values of {c.column}, too many for a list",
        f"CREATE SKIPPING INDEX ON {c.target} (BLOOMFILTER({quoted}) WITH (fpp = {FPP}, ndv = {ndv}))",
        saved,
        _missing(found) * saved // without,
        f"{looked(found)}, less {vain:.0%} that filters read in vain",
        f"the filter of a file takes {human_bytes(size)}; for = and IN only",
    )


def _leaf(c: Opportunity) -> Leaf | None:
    """Return a condition as lists and filters answer it, None for those that they do not."""
    leaf = in_metadata_terms(c.condition, c.scan.occurrence.id, {c.column})
    settings = c.request.session.settings
    known = column_types({c.column: c.type}, texts=not settings["default_collation"]).get((c.column.lower(),))
    if not isinstance(leaf, Comparison | In | Prefix) or known is None or known.family in ("float", "double"):
        return None
    zone = str(settings["TimeZone"])
    return leaf if value_type(c.type, VALUE_LIST) is not None and as_tests(leaf, known, zone) is not None else None


def _looked_for(leaf: Leaf) -> float:
    """Return how many values a filter is asked for, infinity where it cannot be asked."""
    if isinstance(leaf, In) and not leaf.negated:
        return len(leaf.values or ())
    return 1 if isinstance(leaf, Comparison) and leaf.op == "=" else float("inf")


def _rounded(number: int) -> int:
    """Return a number of two digits and zeros that is not less."""
    step = int(10 ** max(0, len(str(number)) - 2))
    return -(-number // step) * step


@dataclass(frozen=True, repr=False)
class Advised(Report):
    """What was found about a query: ``facts`` say what it reads and why, ``advice`` what would help, best first."""

    sql: str
    facts: tuple[str, ...]
    advice: tuple[Advice, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able dictionary."""
        return {**dict_of(self), "advice": list(map(dict_of, self.advice))}

    def table(self) -> pa.Table:
        """Return one row per advice."""
        types = {"files": pa.int64(), "files_saved": pa.int64(), "bytes": pa.int64(), "bytes_saved": pa.int64()}
        return table_of(self.advice, Advice, types, pa.string())

    def __str__(self) -> str:
        lines = [one_line(fact, 300) for fact in self.facts]
        for number, a in enumerate(self.advice, 1):
            lines += ["", f"{number}. {one_line(a.title, 300)}", f"   why:   {one_line(a.why, 300)}"]
            lines.append(f"   saves: {saving(a)}")
            lines.append(f"   do:    {one_line(a.statement, 2_000)}")
            if a.note:
                lines.append(f"   note:  {one_line(a.note, 300)}")
        if not self.advice:
            lines += ["", "nothing was found that would help"]
        return "\n".join(lines)

    def html(self) -> str:
        """Return it as a piece of HTML."""
        facts = "<ul>" + "".join(f"<li>{markup.text(f)}</li>" for f in self.facts) + "</ul>"
        rows = [
            [*map(markup.text, (a.title, a.why, saving(a))), markup.code(a.statement), markup.text(a.note or "")]
            for a in self.advice
        ]
        found = markup.table(("advice", "why", "saves", "do", "note"), rows) if rows else "<p>nothing would help</p>"
        return markup.fragment(facts, found)


def saving(advice: Advice) -> str:
    """Return what an advice saves, as it was measured."""
    parts = []
    if advice.files_saved:
        parts.append(f"{advice.files_saved:,} of {counted(advice.files, 'file')}")
    if advice.bytes_saved:
        share = percent(advice.bytes_saved, advice.bytes)
        parts.append(f"{human_bytes(advice.bytes_saved)} of {human_bytes(advice.bytes)} ({share})")
    return f"{', '.join(parts)}; {advice.measured}"


def advise(request: Request, statement: Advise) -> Advised:
    """Look at the plan of a query, the footers of its files and at some of the data for what would help.

    Nothing is changed. For each condition that leaves out no file, its column is read in up to
    32 files. Raises what the query raises.
    """
    query = request.query(statement.query, traced=True)
    report = query.report
    measure = Measure(request, query.parameters)
    found = list(_all(request, report, measure))
    unique = {a.statement: a for a in sorted(found, key=_worth)}
    return Advised(
        statement.query.text, tuple(_facts(report)), tuple(sorted(unique.values(), key=_worth, reverse=True))
    )


def _worth(advice: Advice) -> tuple[int, int]:
    return advice.bytes_saved, advice.files_saved


def _all(request: Request, report: ScanReport, measure: Measure) -> Iterator[Advice]:
    for scan in report.scan.occurrences:
        yield from indices(request, scan, measure)
        yield from skipping_indices(request, scan, measure)
        yield from useless_indices(request, scan)
        yield from compaction(request, scan)
        yield from bare_columns(request, scan, report.sql)
        yield from order(request, scan, measure)


def _facts(report: ScanReport) -> Iterator[str]:
    """Yield what a query reads, and what keeps it from reading less."""
    total, size = report.files_total, report.bytes_selected
    amount = "" if size is None else f", {human_bytes(size)}"
    yield f"reads {report.files_selected:,} of {counted(total, 'file')}{amount}"
    for scan in report.scan.occurrences:
        name = scan.occurrence.source.name
        for text, reason in scan.unused:
            yield f"{name}: {text} leaves out no file: {reason}"
        for step in (s for part in scan.parts for s in part.steps if s.files_before == s.files_after > 0):
            yield f"{name}: {step.condition} leaves out no file: {step.by} was asked, and keeps all of them"
        if scan.kept_because:
            yield f"{name}: all files are kept: {scan.kept_because}"
        overlaid = sum(len(p.overlaid) for p in scan.parts)
        if overlaid:
            yield f"{name}: {counted(overlaid, 'file')} may hold newer versions of each other's rows"
