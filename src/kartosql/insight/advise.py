"""ADVISE: why a query is slow, what would help, how much, and the statement that does it."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.engines.duckdb.evaluator import Bounded, bounded
from kartosql.engines.duckdb.types import sql_type
from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.dataset import InvertedIndex
from kartosql.formats.xskipper.bloom import shape_for
from kartosql.formats.xskipper.domain import as_tests
from kartosql.formats.xskipper.grams import SIZE
from kartosql.formats.xskipper.kinds import DEFAULT_LENGTH, KINDS
from kartosql.formats.xskipper.segment import Index
from kartosql.indexes.metadata_terms import column_types, in_metadata_terms
from kartosql.insight.explain import MAX_FOOTERS, Sample, columns_read, sample, selected
from kartosql.memo import memoized
from kartosql.parquet import column_bytes, extremes, group_bytes, may_hold_null
from kartosql.plan.scan import OccurrenceScan, PartScan, ScanReport
from kartosql.predicate.tree import (
    UNKNOWN,
    Comparison,
    Condition,
    Contains,
    ContainsFolded,
    Group,
    In,
    Leaf,
    Opaque,
    alternatives,
    is_evaluable,
)
from kartosql.query import SelectQuery
from kartosql.session import Request
from kartosql.sql import Select, parse
from kartosql.sql.sargable import rewrites
from kartosql.sql.statements import Advise
from kartosql.tables.names import quote_if_needed
from kartosql.tables.table import FileTable, Table, arrow_table, file_table
from kartosql.text.constants import literal, quote
from kartosql.text.report import Code, Page, Report, counted, human_bytes, percent
from kartosql.write.compact import TARGET_BYTES
from kartosql.write.datasets import ORIGINALS_REFUSE
from kartosql.write.files import ROW_GROUP_ROWS
from kartosql.write.layout import is_index_type

MAX_FILES = 32  # into which is looked for one condition
MAX_BYTES = 256_000_000  # of the columns of a condition
LEAST_SHARE = 0.1  # of the files or bytes that have to be saved
USELESS = 0.9  # the share of files in which a value of a useless index stands
SMALL_BYTES = 8_000_000  # files below are merged
MAX_LIST = 1_000  # values of a file that a list may hold; of more a filter is made
MAX_PIECES = 16  # of constants that are looked for
FPP = 0.01
FILTER_SHARE = 0.1  # of the bytes of a file that its filter may have
_COMPARISON = re.compile(r"\s*(=|<|>|IN\b|BETWEEN\b)", re.IGNORECASE)


@dataclass(frozen=True)
class Recommendation:
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

    @property
    def saving(self) -> str:
        """What it saves, as it was measured."""
        parts = []
        if self.files_saved:
            parts.append(f"{self.files_saved:,} of {counted(self.files, 'file')}")
        if self.bytes_saved:
            share = percent(self.bytes_saved, self.bytes)
            parts.append(f"{human_bytes(self.bytes_saved)} of {human_bytes(self.bytes)} ({share})")
        return f"{', '.join(parts)}; {self.measured}"


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
    def bytes_without(self) -> int:
        """About how many bytes the files without a match have."""
        return self.sample.scaled(sum(n for n, rows in zip(self.sample.sizes, self.rows, strict=True) if not rows))

    @property
    def measured(self) -> str:
        """In how many files matches were counted."""
        of = self.sample
        if of.is_all:
            return f"counted in all {counted(of.of, 'file')}"
        return f"estimated from {len(of.files):,} of {of.of:,} files"


@dataclass(frozen=True)
class DatasetAdvisor:
    """What a query reads of one dataset, and the small queries that measure what would help."""

    request: Request
    sql: str
    parameters: Mapping[str, Any]
    scan: OccurrenceScan
    part: PartScan

    @property
    def table(self) -> FileTable:
        """The table whose files are read."""
        return self.part.part.table

    @property
    def target(self) -> str:
        """The dataset as statements that write name it."""
        cube = self.scan.occurrence.source.cube
        if cube is None:
            return quote_if_needed(self.table.uuid)
        return f"{quote_if_needed(cube.uuid_prefix)}.{quote_if_needed(self.part.part.name)}"

    @property
    def reads_several(self) -> bool:
        """Whether several files of it are opened."""
        return len(self.part.files) > 1 and self.part.summary is None

    @memoized
    def bytes(self) -> int:
        """The bytes of the files that are read."""
        keys = [self.table.files[i] for i in self.part.files]
        return sum(n or 0 for n in self.request.session.mounts.sizes(keys).values())

    def pays(self, saved: int) -> bool:
        """Return whether it pays to leave out so many files."""
        return saved >= max(1, LEAST_SHARE * len(self.part.files))

    def unindexed(self) -> Iterator[tuple[Condition, str]]:
        """Yield the conditions that leave out no file, asked of an index or not, with their one column without index.

        They may use partition keys of the dataset as well.
        """
        source = self.scan.occurrence.source
        used = [s.condition for part in self.scan.parts for s in part.steps if s.files_after < s.files_before]
        for condition in dict.fromkeys(self.scan.predicates):
            names = {name for o, name in condition.columns if o == self.scan.occurrence.id}
            rest = names - set(self.table.partition_keys)
            is_alone = len(rest) == 1 and len(names) == len(condition.columns) and is_evaluable(condition)
            if not is_alone or any(condition.text in step for step in used):
                continue
            (column,) = rest
            owned = source.owner.get(column) == self.part.part.name or column in self.part.part.join_key
            if owned and column in self.table.types and column not in self.table.indices:
                yield condition, column

    def has(self, kind: str, column: str) -> bool:
        """Return whether there is a skipping index of a kind over a column already."""
        indexes: Sequence[Index] = ()
        if self.table.skipping is not None:
            with contextlib.suppress(KartosqlError):
                indexes = self.table.skipping.indexed()[0]
        return any(i.name == kind and i.path == (column.lower(),) for i in indexes)

    # -- measuring -------------------------------------------------------------------------------

    def sample(self, most: int = MAX_FOOTERS) -> Sample:
        """Read the footers of the files that are read, or of as many of them."""
        return sample(self.request.session.mounts, self.table.files, self.part.files, most)

    def matches(self, condition: Condition, column: str) -> Matches | None:
        """Count the rows that a condition holds for; None if that would read too much."""
        found = self.sample(MAX_FILES)
        if sum(column_bytes(f, [column]) for f in found.footers) > MAX_BYTES:
            return None
        return Matches(found, tuple(self.by_file("count(*)", _over_columns(condition), found)))

    def distinct(self, found: Sample, column: str) -> list[int]:
        """Return how many different values the files of a sample have of a column."""
        return self.by_file(f"count(DISTINCT {quote(column)})", "true", found)

    def may_hold_for_null(self, condition: Condition) -> bool:
        """Return whether a condition may hold where its columns are NULL, which are in no index."""
        row = {name: pa.nulls(1, self.table.types[name]) for _, name in condition.columns}
        source = arrow_table("measured", pa.table(row))
        head = "SELECT count(*) AS n FROM measured WHERE "
        ((count,),) = self._ask(head, _over_columns(condition), {"measured": source}).rows()
        return int(count) > 0

    def in_range(self, found: Sample, column: str, asked: Bounded) -> list[bool] | None:
        """Return for each file of a sample whether what is asked of bounds may hold for its own.

        None, if a file has none, or they prove nothing.
        """
        bounds = []
        for footer in found.footers:
            known = _ranges(footer, column)
            if known is None or not known:
                return None
            bounds.append((min(low for low, _ in known), max(high for _, high in known)))
        type_ = self.table.types[column]
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

    def by_file(self, aggregate: str, predicate: str, found: Sample) -> list[int]:
        """Return an aggregate over the rows of each file of a sample that satisfy a predicate, 0 without any."""
        # It is one statement over all of the files: each statement costs more than a small file.
        number = "kartosql_file"
        while any(name.lower() == number for name in self.table.types):
            number += "_"
        tables = {
            f"measured_{n}": file_table(f"measured_{n}", self.table.only(at), "measured")
            for n, at in enumerate(found.files)
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
        return selected(self.request, head + predicate, tables, given or None, pruned=False)


def _over_columns(condition: Condition) -> str:
    return condition.render(lambda ref: quote(ref[1]))


def _ranges(footer: Any, column: str) -> list[tuple[Any, Any]] | None:
    """Return the extremes of a column in the row groups of a file, or None if one has none."""
    found = [extremes(footer.row_group(at), column) for at in range(footer.num_row_groups)]
    return None if None in found else [f for f in found if f is not None]


# -- what would help -----------------------------------------------------------------------------


def indices(d: DatasetAdvisor) -> Iterator[Recommendation]:
    """Yield the indices that would leave out files."""
    for condition, column in d.unindexed() if d.reads_several else ():
        source = d.scan.occurrence.source
        # Indices of what is attached are asked what a condition says.
        is_asked = not source.is_attached or in_metadata_terms(condition, d.scan.occurrence.id, {column}) != UNKNOWN
        if not is_asked or not is_index_type(d.table.types[column]) or d.may_hold_for_null(condition):
            continue
        found = d.matches(condition, column)
        if found is None or not d.pays(saved := len(d.part.files) - found.files):
            continue
        note = "writes to the dataset then keep the index up to date"
        if source.is_attached:
            note = "files that come later are read until CREATE INDEX is run again"
        if source.cube is not None and any(may_hold_null(f, column) for f in found.sample.footers):
            note += f"; {column} holds NULL, which the index leaves out: {ORIGINALS_REFUSE.removesuffix('.')}"
        yield Recommendation(
            "index",
            f"an index on {column} of {d.target}",
            f"{_holds_in(d, condition, found)}and nothing tells in which",
            f"CREATE INDEX ON {d.target} ({quote_if_needed(column)})",
            len(d.part.files),
            saved,
            d.bytes,
            found.bytes_without,
            found.measured,
            note,
        )


def _holds_in(d: DatasetAdvisor, condition: Condition, found: Matches) -> str:
    return f"{condition.text} holds in {counted(found.files, 'file')} of the {len(d.part.files):,} that are read, "


def skipping_indices(d: DatasetAdvisor) -> Iterator[Recommendation]:
    """Yield the skipping indexes that would leave out files: bounds, else values, else filters, else parts of texts."""
    for condition, column in d.unindexed() if d.reads_several else ():
        type_ = d.table.types[column]
        is_ordered_exactly = pa.types.is_signed_integer(type_) or pa.types.is_date32(type_)
        bounds = _by_bounds(d, condition, column) if is_ordered_exactly else None
        if bounds is not None:
            yield bounds
        values = _by_values(d, condition, column)
        # Bounds are smaller than all else, so the others have to do better.
        if values is not None and d.pays(values.files_saved - (bounds.files_saved if bounds is not None else 0)):
            yield values
        if values is None:
            yield from _by_parts(d, condition, column)


def _by_bounds(d: DatasetAdvisor, condition: Condition, column: str) -> Recommendation | None:
    asked = bounded(condition.says()) if isinstance(condition, Opaque) and compares(condition) else None
    if asked is None or d.has("minmax", column):
        return None
    found = d.sample()
    left = d.in_range(found, column, asked)
    missing = [size for size, kept in zip(found.sizes, left or (), strict=False) if not kept]
    saved = found.scaled(len(missing))
    if not d.pays(saved):
        return None
    why = (
        f"the bounds of {column} rule out {condition.text} in {counted(saved, 'file')}, "
        "but their footers tell that only when they are opened"
    )
    measured = f"by the footers of {counted(len(found.files), 'file')}"
    note = "smaller and quicker to keep up to date than an index of all values"
    index = f"MINMAX({quote_if_needed(column)})"
    return _skipping(d, f"the bounds of {column}", why, index, saved, found.scaled(sum(missing)), measured, note)


def _by_values(d: DatasetAdvisor, condition: Condition, column: str) -> Recommendation | None:
    """Return the recommendation of a list of values, or of a filter where there are too many of them."""
    leaf = _leaf(d, condition, column)
    found = d.matches(condition, column) if leaf is not None else None
    if leaf is None or found is None or not d.pays(without := len(d.part.files) - found.files):
        return None
    most, quoted = max(d.distinct(found.sample, column)), quote_if_needed(column)
    if most <= MAX_LIST:
        if d.has("valuelist", column):
            return None
        why = f"{_holds_in(d, condition, found)}and a file has {most:,} different values of {column} at most"
        index, note = f"VALUELIST({quoted})", "quicker to keep up to date than an index of all values"
        holds = f"the values of {column}"
        return _skipping(d, holds, why, index, without, found.bytes_without, found.measured, note)
    step = int(10 ** max(0, len(str(most)) - 2))
    ndv = -(-most // step) * step  # two digits and zeros
    constants = alternatives(leaf)  # of anything else a filter cannot be asked
    vain = 1.0 if constants is None else min(1.0, FPP * len(constants))
    size, saved = shape_for(FPP, ndv).bits // 8, int(without * (1 - vain))
    is_wanted = d.pays(saved) and size <= FILTER_SHARE * (d.bytes // len(d.part.files))
    if not is_wanted or KINDS["bloomfilter"].value_type(d.table.types[column]) is None or d.has("bloomfilter", column):
        return None
    why = f"{_holds_in(d, condition, found)}and a file has up to {most:,} different values of {column}, "
    index = f"BLOOMFILTER({quoted}) WITH (fpp = {FPP}, ndv = {ndv})"
    measured = f"{found.measured}, less {vain:.0%} that filters read in vain"
    note = f"the filter of a file takes {human_bytes(size)}; for = and IN only"
    bytes_saved = found.bytes_without * saved // without
    return _skipping(d, f"a filter of {column}", f"{why}too many for a list", index, saved, bytes_saved, measured, note)


def _by_parts(d: DatasetAdvisor, condition: Condition, column: str) -> Iterator[Recommendation]:
    """Yield the recommendations of beginnings of texts and of their pieces, by the texts of the files."""
    known = in_metadata_terms(condition, d.scan.occurrence.id, {column})
    leaves = known.items if isinstance(known, Group) and known.op == "AND" else (known,)
    parts = [leaf for leaf in leaves if isinstance(leaf, Contains | ContainsFolded)]
    is_text = KINDS["ngram"].value_type(d.table.types[column]) is not None
    found = None
    if parts and is_text and not d.request.session.settings["default_collation"]:
        found = d.matches(condition, column)
    if found is None or not d.pays(len(d.part.files) - found.files):
        return
    begins = {leaf.text[:DEFAULT_LENGTH] for leaf in parts if isinstance(leaf, Contains) and leaf.begins} - {""}
    pieces = {leaf.text[at : at + SIZE].lower() for leaf in parts for at in range(len(leaf.text) - SIZE + 1)}
    quoted, name = quote_if_needed(column), quote(column)
    kinds = {
        "prefix": ("beginnings", f"starts_with({name}, ", begins, "for LIKE 'x%', = and ranges"),
        "ngram": (
            "pieces",
            f"contains(lower({name}), ",
            pieces,
            "for LIKE '%x%' and regular expressions; 10 bits for each piece of three bytes in a file",
        ),
    }
    best = 0
    for kind, (what, test, wanted, note) in kinds.items():
        if not wanted or d.has(kind, column):
            continue
        counts = [f"count(*) FILTER ({test}{literal(text)}))" for text in sorted(wanted)[:MAX_PIECES]]
        left = replace(found, rows=tuple(d.by_file(f"least({', '.join(counts)})", "true", found.sample)))
        saved = len(d.part.files) - left.files
        if d.pays(saved - best):
            best, why = saved, f"{_holds_in(d, condition, found)}and the {what} of {column} tell of most in which"
            holds, index = f"the {what} of {column}", f"{kind.upper()}({quoted})"
            yield _skipping(d, holds, why, index, saved, left.bytes_without, left.measured, note)


def _skipping(
    d: DatasetAdvisor, holds: str, why: str, index: str, files: int, bytes_: int, measured: str, note: str
) -> Recommendation:
    title, statement = f"a skipping index with {holds} of {d.target}", f"CREATE SKIPPING INDEX ON {d.target} ({index})"
    total = len(d.part.files)
    return Recommendation("skipping index", title, why, statement, total, files, d.bytes, bytes_, measured, note)


def _leaf(d: DatasetAdvisor, condition: Condition, column: str) -> Leaf | None:
    """Return a condition as lists and filters answer it, None for those that they do not."""
    leaf, type_ = in_metadata_terms(condition, d.scan.occurrence.id, {column}), d.table.types[column]
    settings = d.request.session.settings
    known = column_types({column: type_}, texts=not settings["default_collation"]).get((column.lower(),))
    if not isinstance(leaf, Comparison | In | Contains) or known is None or known.family in ("float", "double"):
        return None
    zone = str(settings["TimeZone"])
    is_answered = KINDS["valuelist"].value_type(type_) is not None and as_tests(leaf, known, zone) is not None
    return leaf if is_answered else None


def compares(condition: Condition) -> bool:
    """Return whether a condition compares a column with values."""
    if not isinstance(condition, Opaque) or condition.negated:
        return False
    column, then, *_ = *(p for p in condition.pieces or () if p != ""), None, None
    return isinstance(column, tuple) and isinstance(then, str) and _COMPARISON.match(then) is not None


def useless_indices(d: DatasetAdvisor) -> Iterator[Recommendation]:
    """Yield the indices that were read in vain, and in which most values have most files."""
    cube = d.scan.occurrence.source.cube
    kept = set(cube.dimension_columns) if cube is not None else set()
    vain = {s.condition for s in d.part.steps if s.by == "inverted index" and s.files_before == s.files_after}
    for condition in dict.fromkeys(d.scan.predicates):
        if not any(condition.text in text for text in vain):
            continue
        for _, column in sorted(condition.columns):
            index = d.table.indices.get(column)
            measured = _index_share(d, index) if index and column not in kept else None
            if measured is None or measured[0] < USELESS:
                continue
            share, size = measured
            yield Recommendation(
                "useless index",
                f"no index on {column} of {d.target}",
                f"{condition.text} was looked up and left out no file: on average a value stands in "
                f"{100 * share:.0f} % of all files",
                f"DROP INDEX ON {d.target} ({quote_if_needed(column)})",
                0,
                0,
                size,
                size,
                "the bytes of the index file, which planning reads",
                "queries for rare values of this column may still gain from it",
            )


def _index_share(d: DatasetAdvisor, index: InvertedIndex) -> tuple[float, int] | None:
    """Return the share of the files that a value of an index has on average, and the bytes of the index."""
    if index.key is None or not d.table.files:
        return None
    data = d.request.session.store.read(index.key)
    labels = pq.read_table(pa.BufferReader(data), columns=["partition"]).column("partition")
    if not len(labels):
        return None
    pairs = sum(len(chunk.flatten()) for chunk in labels.chunks)
    return pairs / (len(labels) * len(d.table.files)), len(data)


def compaction(d: DatasetAdvisor) -> Iterator[Recommendation]:
    """Yield to merge the files if many small ones of the same partition are read."""
    if not d.reads_several:
        return
    count, mean = len(d.part.files), d.bytes // len(d.part.files)
    folders = Counter(d.table.partitions.part_of_file[i] for i in d.part.files)
    saved = count - sum(max(1, -(-files * mean // TARGET_BYTES)) for files in folders.values())
    if mean > SMALL_BYTES or not d.pays(saved):
        return
    why = f"{counted(count, 'file')} of {mean:,} bytes on average stand in {len(folders):,} partitions"
    if d.part.overlaid:
        why += f", and {len(d.part.overlaid):,} may hold newer versions of each other's rows"
    measured = "by the sizes of the files and their partitions"
    title, statement = f"larger files in {d.target}", f"COMPACT {d.target}"
    yield Recommendation("compact", title, why, statement, count, saved, d.bytes, 0, measured)


def bare_columns(d: DatasetAdvisor) -> Iterator[Recommendation]:
    """Yield predicates that row groups could be left out by if they were said of the column itself."""
    text, statement = d.sql, parse(d.sql)
    conditions = {c.text: c for c in d.scan.predicates}
    for found in rewrites(statement.tree if isinstance(statement, Select) else None, text):
        condition = conditions.get(found.old)
        if condition is None or len(condition.columns) != 1 or d.part.summary is not None:
            continue
        ((occurrence, column),) = condition.columns
        owned = occurrence == d.scan.occurrence.id and d.scan.occurrence.source.owner.get(column) == d.part.part.name
        if not owned or column in d.table.partition_keys or column in d.table.indices:
            continue
        if not _is_of(d.table.types[column], found.types):
            continue
        footers, columns = d.sample(), columns_read(d.scan, d.part)
        groups = [f.row_group(at) for f in footers.footers for at in range(f.num_row_groups)]
        skipped = [group for group in groups if _is_excluded(group, column, found.low, found.high)]
        total, saved = (sum(group_bytes(group, columns) for group in some) for some in (groups, skipped))
        if not saved or saved < LEAST_SHARE * total:
            continue
        yield Recommendation(
            "rewrite",
            f"{found.new} instead of {found.old}",
            f"a function stands around {column}, so the extremes of row groups cannot be compared with it",
            text[: found.span[0]] + found.new + text[found.span[1] :],
            len(d.part.files),
            0,
            footers.scaled(total),
            footers.scaled(saved),
            f"by the extremes of {column} in {len(skipped):,} of {len(groups):,} row groups",
        )


def _is_of(type_: pa.DataType, types: tuple[str, ...]) -> bool:
    t = pa.types
    # A time zone may move a day.
    timestamp = t.is_timestamp(type_) and type_.tz is None
    tests = {"date": t.is_date32(type_), "integer": t.is_integer(type_), "timestamp": timestamp}
    return any(tests[name] for name in types)


def _is_excluded(group: Any, column: str, low: Any, high: Any) -> bool:
    """Return whether the extremes of a column in a row group say that no value is from ``low`` to below ``high``."""
    found = extremes(group, column)
    if found is None:
        return False
    least, most = (v.date() if isinstance(v, dt.datetime) else v for v in found)
    return bool(most < low or least >= high)


def order(d: DatasetAdvisor) -> Iterator[Recommendation]:
    """Yield to sort a plain dataset if matching rows would be together then."""
    if d.scan.occurrence.source.cube is not None or d.part.summary is not None or not d.part.files:
        return
    for condition, column in d.unindexed():
        if not is_index_type(d.table.types[column]) or not compares(condition):
            continue
        found = d.matches(condition, column)
        if found is None or not found.sample.is_all:
            continue
        footers, columns = found.sample.footers, columns_read(d.scan, d.part)
        groups = sum(f.num_row_groups for f in footers)
        # In each file the matches stand together then, and may begin in the middle of a row group.
        needed = sum(
            min(-(-f.num_rows // ROW_GROUP_ROWS), rows // ROW_GROUP_ROWS + 2)
            for f, rows in zip(footers, found.rows, strict=True)
            if rows
        )
        total = sum(column_bytes(f, columns) for f in footers)
        saved = total * (groups - needed) // groups if groups else 0
        if _is_ordered(footers, column) or needed >= groups or saved < LEAST_SHARE * total:
            continue
        keys, indexed = (", ".join(map(quote_if_needed, c)) for c in (d.table.partition_keys, sorted(d.table.indices)))
        by = (f" PARTITION BY ({keys})" if keys else "") + (f" INDEX ({indexed})" if indexed else "")
        share = sum(found.rows) / max(1, sum(f.num_rows for f in footers))
        yield Recommendation(
            "sort",
            f"rows of {d.target} in the order of {column}",
            f"{condition.text} holds for {100 * share:.1f} % of the rows, which stand in all row groups",
            f"CREATE OR REPLACE DATASET {d.target}{by} AS SELECT * FROM {d.target} ORDER BY {quote_if_needed(column)}",
            len(d.part.files),
            0,
            total,
            saved,
            f"by {groups:,} row groups, of which {needed:,} would be left",
            "only for conditions that compare the column with values; later writes are not sorted",
        )


def _is_ordered(footers: Sequence[Any], column: str) -> bool:
    """Return whether the row groups of each file have ranges of a column that follow each other."""
    found = [_ranges(footer, column) for footer in footers]
    return all(r is not None and not any(a[1] > b[0] for a, b in itertools.pairwise(r)) for r in found)


@dataclass(frozen=True, repr=False)
class Advised(Report):
    """What was found about a query: ``facts`` say what it reads and why, ``advice`` what would help, best first."""

    listed = "advice", Recommendation
    sql: str
    facts: tuple[str, ...]
    advice: tuple[Recommendation, ...]

    def _laid_out(self, page: Page) -> list[str]:
        """Return the lines of its text on a page."""
        lines = [line for fact in self.facts for line in page.text(fact, limit=300)]
        for number, a in enumerate(self.advice, 1):
            facts = [
                ("why", a.why),
                ("saves", a.saving),
                ("do", Code(a.statement)),
                *([("note", a.note)] if a.note else []),
            ]
            lines += ["", *page.text(a.title, f"{number}. ", 300, "name"), *page.facts(facts, "   ", 2_000)]
        return lines if self.advice else [*lines, "", *page.text("nothing was found that would help")]


def advise(request: Request, statement: Advise) -> Advised:
    """Look at the plan of a query, the footers of its files and at some of the data for what would help.

    Nothing is changed. For each condition that leaves out no file, its column is read in up to
    32 files. Raises what the query raises.
    """
    query = request.query(statement.query, traced=True)
    report = query.report
    found: list[Recommendation] = []
    for scan in report.scan.occurrences:
        datasets = [DatasetAdvisor(request, report.sql, query.parameters, scan, part) for part in scan.parts]
        is_ours = not scan.occurrence.source.is_attached
        made = request.session.attached and request.session.attached.find((scan.occurrence.source.name,))
        kinds = [indices, skipping_indices, useless_indices, compaction]
        if not is_ours:
            is_indexed = scan.parts[0].part.table.has_footers and hasattr(made, "file_indexes")
            kinds = kinds[:2] if is_indexed else []
        for recommend in kinds:
            found += (r for d in datasets for r in recommend(d))
        found += (r for d in datasets for r in bare_columns(d))
        found += order(datasets[0]) if is_ours else ()
    # Of those that one statement does, the best.
    unique = {r.statement: r for r in sorted(found, key=_worth)}
    best = sorted(unique.values(), key=_worth, reverse=True)
    return Advised(statement.query.text, tuple(_facts(report)), tuple(best))


def _worth(recommendation: Recommendation) -> tuple[int, int]:
    return recommendation.bytes_saved, recommendation.files_saved


def _facts(report: ScanReport) -> Iterator[str]:
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
