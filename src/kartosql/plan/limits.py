"""SELECTs that need less than all rows: counts and extremes, a LIMIT, and the first rows of an order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import Any

import pyarrow as pa
from sqlglot import exp

from kartosql.errors import Span
from kartosql.indexes.index import Files, Subject
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.reader import ConditionReader
from kartosql.plan.scan import FileSummary, OccurrenceScan, PartScan, Step
from kartosql.plan.scopes import Source
from kartosql.predicate.tree import parameters_for
from kartosql.sql.tree import number_of, span_of
from kartosql.tables.statistics import ColumnBounds, nothing_of, stored
from kartosql.tables.table import Changelog

# Nodes whose value for a row depends on nothing but the values below them.
_TRANSPARENT = (
    *(exp.Alias, exp.And, exp.Between, exp.Boolean, exp.Cast, exp.DataType, exp.EQ, exp.From, exp.GT, exp.GTE),
    *(exp.Group, exp.Having, exp.Identifier, exp.In, exp.Is, exp.LT, exp.LTE, exp.Limit, exp.Literal, exp.NEQ),
    *(exp.Not, exp.Null, exp.Offset, exp.Or, exp.Order, exp.Ordered, exp.Paren, exp.Placeholder, exp.Table),
    *(exp.TableAlias, exp.Where, exp.Add, exp.Sub, exp.Mul, exp.Mod, exp.Distinct, exp.Tuple, exp.Neg),
)

MIN_FILES = 8  # fewer are read as fast as their bounds are compared
FIRST_FILES = 4  # row counts of so many files are read at once for a LIMIT; then four times as many, and so on


Counts = tuple[tuple[Span, bool], ...]


def push_down_limits(
    query: BoundQuery, reader: ConditionReader, evaluator: Evaluator, scans: dict[int, OccurrenceScan]
) -> Counts:
    """Replace the scans of SELECTs that need fewer files.

    Returns the places of ``count(*)`` that sum row counts then, and whether each is a column of the result without a
    name.
    """
    counts: Counts = ()
    for scope in query.walked.scopes:
        source = scope.sources[0] if len(scope.sources) == 1 and not scope.nested else None
        if source is None or not source.prunable or source.join is not None or source.renamed is not None:
            continue
        part = _only_part(scans.get(source.id))
        if part is None:
            continue
        occurrence = scans[source.id].occurrence
        keys = part.part.table.partition_keys
        summary = _summary(scope.select, source, reader, keys) if part.rows_are_files_rows else None
        less = _summarised(part, summary[0], occurrence.columns, evaluator) if summary is not None else None
        if less is not None and summary is not None:
            counts += summary[1]
        elif len(part.files) > 1:
            first = _FirstRows(part, source.id, scope.select, reader, query, evaluator)
            less = first.of_files() if scope.select.args.get("order") is None else first.of_order()
        if less is not None:
            scans[source.id] = replace(scans[source.id], parts=(less,))
    return counts


def _summary(
    select: exp.Select, source: Source, reader: ConditionReader, keys: Sequence[str]
) -> tuple[list[str], Counts] | None:
    """Return the columns whose extremes a SELECT wants, and the places of its ``count(*)``; None if it wants more."""
    if any(value for key, value in select.args.items() if key not in _SUMMARISED):
        return None
    group, distinct = select.args.get("group"), select.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        return None
    extremes: set[str] = set()
    counts: list[tuple[Span, bool]] = []
    stack: list[exp.Expression] = [v for v in select.iter_expressions() if not isinstance(v, exp.From)]
    while stack:
        node = stack.pop()
        column = reader.column(node.this if isinstance(node, (exp.Min, exp.Max)) else node)
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
            span = span_of(node)  # the parser notes no more than where it starts
            place = reader.matched(_COUNT, span[0]) if span is not None else None
            if place is None or any(v for k, v in node.args.items() if k not in ("this", "big_int")):
                return None
            counts.append((place, node.parent is select and node.arg_key == "expressions"))
        elif isinstance(node, (exp.Min, exp.Max)) and isinstance(node.this, exp.Column):
            if column is None or column[0] != source.id or any(v for k, v in node.args.items() if k != "this"):
                return None
            extremes.add(column[1])
        elif isinstance(node, exp.Column):
            alias = reader.alias(node)
            if alias is None and (column is None or column[0] != source.id or column[1] not in keys):
                return None
        elif isinstance(node, _TRANSPARENT):
            stack += node.iter_expressions()
        else:
            pieces = reader.pieces(node)
            if pieces is None or any(p[0] != source.id or p[1] not in keys for p in pieces if isinstance(p, tuple)):
                return None
    aggregates = bool(counts or extremes)
    if not aggregates and group is None and distinct is None:
        return None
    # No column of the result may be named after an expression around count(*).
    if any(e.find(exp.Count) for e in select.expressions if not isinstance(e, (exp.Alias, exp.Count))):
        return None
    # GROUP BY ALL does nothing where there is nothing to group by.
    by_all = group is not None and group.args.get("all") and not aggregates
    if by_all and not any(e.find(exp.Column) for e in select.expressions):
        return None
    return sorted(extremes - set(keys)), tuple(counts)


_COUNT = re.compile(r"count\s*\(\s*\*?\s*\)", re.IGNORECASE)
_NOT_FIRST = ("distinct", "group", "having", "qualify", "sample", "windows", "connect", "kind")
_SUMMARISED = (
    *("expressions", "from_", "where", "group", "having", "order", "limit", "offset", "distinct", "with_"),
    "operation_modifiers",
)


def _only_part(scan: OccurrenceScan | None) -> PartScan | None:
    """Return the dataset of a scan of which no row depends on rows of another file; some may be deleted."""
    if scan is None or len(scan.parts) != 1 or scan.parts[0].overlaid:
        return None
    if isinstance(scan.parts[0].part.rows, Changelog):
        return None
    return scan.parts[0] if scan.parts[0].files else None


def _summarised(
    part: PartScan, columns: Sequence[str], used: frozenset[str] | None, evaluator: Evaluator
) -> PartScan | None:
    """Return a scan with counts and extremes in place of rows, for each combination of the partition values used."""
    table, files = part.part.table, part.files
    bounds = evaluator.bounds(table, columns, files) if columns else []
    rows = evaluator.row_counts(table, files) if bounds is not None else None
    if bounds is None or rows is None:
        return None
    is_split = used is None or not used.isdisjoint(table.partition_keys)
    numbers = table.partitions.part_of_file if is_split else None
    counts: dict[int, int] = {0: sum(rows)} if numbers is None else {}
    if numbers is not None:
        for file, count in zip(files, rows, strict=True):
            counts[numbers[file]] = counts.get(numbers[file], 0) + count
    counts = {number: count for number, count in counts.items() if count}
    found = {}
    for column, known in zip(columns, bounds, strict=True):
        extremes = known.extremes(files, numbers) if not pa.types.is_floating(known.type) else None
        if extremes is None:
            return None
        pairs = [extremes.get(number) for number in counts]
        nothing, present = nothing_of(known.type), [p is not None for p in pairs]
        lows, highs = ([nothing if p is None else p[end] for p in pairs] for end in (0, 1))
        found[column] = stored(lows, known.type, present), stored(highs, known.type, present)
    return replace(part, summary=FileSummary(tuple(counts), is_split, tuple(counts.values()), found))


def _number(node: exp.Expression | None, reader: ConditionReader, parameters: Mapping[str, Any]) -> int | None:
    if node is None:
        return 0
    if any(value for key, value in node.args.items() if key not in ("this", "expression")):
        return None
    value = node.expression if isinstance(node.expression, exp.Expression) else node.this
    if isinstance(value, exp.Literal) and not value.is_string:
        number = number_of(str(value.this))
        return number if isinstance(number, int) else None
    pieces = reader.pieces(value) if isinstance(value, exp.Placeholder) else None
    name = getattr(pieces[1], "name", None) if pieces is not None and len(pieces) == 3 else None
    given = parameters.get(name) if name is not None else None
    return given if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else None


def _is_by_row(select: exp.Select, reader: ConditionReader) -> bool:
    """Return whether every row of the table makes exactly one row of the result."""
    for e in select.expressions:
        value = e.unalias()
        if isinstance(value, (exp.Star, exp.Column)):
            star = value.this if isinstance(value.this, exp.Star) else value
            if isinstance(star, exp.Star) and any(isinstance(v, list) and v for v in star.args.values()):
                return False
        elif reader.pieces(value) is None:
            return False
    return True


@dataclass(frozen=True)
class _FirstRows:
    """A SELECT from one table that may need but the first rows of it, in any order or that of a column."""

    _part: PartScan
    _of: int
    _select: exp.Select
    _reader: ConditionReader
    _query: BoundQuery
    _evaluator: Evaluator

    def of_files(self) -> PartScan | None:
        """Return the scan of the first files with rows enough; None if that are all, or if all are needed."""
        wanted, part = self._wanted(), self._part
        sure = self._sure_files() if wanted is not None else None
        if wanted is None or not sure:
            return None
        found, at, size = 0, 0, FIRST_FILES
        while at < len(part.files) and (found < wanted or at == 0):
            chunk = part.files[at : at + size]
            rows = self._evaluator.row_counts(part.part.table, chunk)
            if rows is None:
                return None
            for file, count in zip(chunk, rows, strict=True):
                at += 1
                found += count if file in sure else 0
                if found >= wanted:
                    break
            size *= 4
        return self._narrowed(part.files[:at], f"the first {wanted:,} rows suffice", "row counts")

    def of_order(self) -> PartScan | None:
        """Return the scan of the files that may hold the first rows of an order, None if that may be all."""
        wanted, part = self._wanted(), self._part
        first = self._select.args["order"].expressions[0]
        column = self._ordered_by(first)
        if not wanted or column is None or column in part.part.table.partition_keys or len(part.files) < MIN_FILES:
            return None
        sure = self._sure_files()
        found = self._evaluator.bounds(part.part.table, [column], part.files) if sure else None
        if found is None:
            return None
        descending, bounds = bool(first.args.get("desc")), found[0]
        if descending and pa.types.is_floating(bounds.type):
            return None  # NaN comes first, of which bounds know nothing
        kept = _leading(bounds, frozenset(part.files), sure, wanted, descending, bool(first.args.get("nulls_first")))
        if kept is None:
            return None
        text = f"{column} DESC" if descending else column
        files = tuple(f for f in part.files if f in kept)
        return self._narrowed(files, f"the first {wanted:,} rows by {text}", "row groups")

    def _narrowed(self, files: tuple[int, ...], condition: str, by: str) -> PartScan | None:
        part = self._part
        if len(files) == len(part.files):
            return None
        step = Step(condition, by, len(part.files), len(files), frozenset(files))
        return replace(part, files=files, steps=(*part.steps, step))

    def _wanted(self) -> int | None:
        """Return how many rows are needed, None if that may be all."""
        select, reader = self._select, self._reader
        if select.args.get("limit") is None or any(select.args.get(k) for k in _NOT_FIRST):
            return None
        rows = [_number(select.args.get(key), reader, self._query.parameters) for key in ("limit", "offset")]
        known = [n for n in rows if n is not None]
        if len(known) < len(rows) or not _is_by_row(select, reader):
            return None
        where = select.args.get("where")
        return sum(known) if where is None or reader.agrees(where.this) else None

    def _ordered_by(self, ordered: exp.Expression) -> str | None:
        """Return the column that a part of ORDER BY is, by its name, an alias or its number; else None."""
        node = ordered.this
        span = span_of(node)
        number = self._reader.slice(span) if isinstance(node, exp.Literal) and span is not None else ""
        if number.isascii() and number.isdigit():
            items = self._select.expressions
            is_known = 0 < int(number) <= len(items) and not any(e.find(exp.Star) for e in items)
            node = items[int(number) - 1].unalias() if is_known else None
        elif (alias := self._reader.alias(node)) is not None:
            node = alias
        found = self._reader.column(node) if isinstance(node, exp.Expression) else None
        return found[1] if found is not None and found[0] == self._of else None

    def _sure_files(self) -> Files:
        """Return the files of whose rows all satisfy the WHERE, and none is deleted."""
        part, where = self._part, self._select.args.get("where")
        if where is None:
            return part.whole_files
        table, condition = part.part.table, self._reader.read(where.this)
        subject = Subject(table, self._of, self._evaluator, self._query.parameters, frozenset(table.partition_keys))
        if not subject.columns(condition):
            return frozenset()
        predicate = f"({condition.render(subject.name)}) IS NOT TRUE"
        doubtful = self._evaluator.partitions(table, predicate, parameters_for(condition, subject.parameters))
        return part.whole_files - doubtful


def _leading(
    bounds: ColumnBounds, files: Files, sure: Files, wanted: int, descending: bool, nulls_first: bool
) -> Files | None:
    """Return the files that may hold the first rows by a column, or None if unknown.

    Of a row group one row has the bound that comes first, if that is exact, and none comes behind the other bound.
    Where rows enough come before some value, nothing behind it is needed; what is equal to it may be.
    """
    near, far = (bounds.high, bounds.low) if descending else (bounds.low, bounds.high)
    is_number = not pa.types.is_floating(bounds.type)
    evidence: list[tuple[Any, int]] = []
    for at, (file, has_values) in enumerate(zip(bounds.files, bounds.has_values, strict=True)):
        if not has_values or file not in sure:
            continue
        count = bounds.rows[at] - bounds.nulls[at] if bounds.nulls[at] >= 0 else 1
        if bounds.exact[at]:
            evidence.append((near[at], 1))
            # How many are NaN, which comes last, is not known.
            count = count - 1 if is_number else int(near[at] != far[at])
        if count:
            evidence.append((far[at], count))
    end, rows = None, 0
    pick = nlargest if descending else nsmallest
    for value, count in pick(wanted, evidence, key=itemgetter(0)):
        end, rows = value, rows + count
        if rows >= wanted:
            break
    if rows < wanted:
        return None
    may_lead = {
        file
        for file, value, nulls, has_values in zip(bounds.files, near, bounds.nulls, bounds.has_values, strict=True)
        if (has_values and (value >= end if descending else value <= end)) or (nulls_first and nulls)
    }
    return (files - bounds.complete) | (files & may_lead)
