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
from sqlglot.tokenizer_core import TokenType

from kartosql.indexes.index import Files, Subject
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.reader import ConditionReader
from kartosql.plan.scan import FileSummary, OccurrenceScan, PartScan, Step
from kartosql.plan.scopes import Occurrence, Origin, Scope
from kartosql.predicate.tree import ColumnRef, is_evaluable, joined, parameters_for
from kartosql.sql.tree import Edit, number_of, span_of, tokens_of
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


# Stands for count(*) where rows are replaced by counts of them.
_TOTAL = "CAST(coalesce(sum(kartosql_rows), 0) AS BIGINT)"


def push_down_limits(
    query: BoundQuery, reader: ConditionReader, evaluator: Evaluator, scans: dict[int, OccurrenceScan], origin: Origin
) -> tuple[Edit, ...]:
    """Replace the scans of SELECTs that need fewer files.

    ``origin`` finds the column of a table that a column is. Returns the edits of the statement by which ``count(*)``
    sums row counts then.
    """
    edits: tuple[Edit, ...] = ()
    is_free = "kartosql_rows" not in query.select.text.lower()  # who has the name has it for something else
    for scope in query.walked.scopes:
        reading = _reading(scope, reader, origin)
        part = None if reading is None else _only_part(scans.get(reading.of))
        if reading is None or part is None:
            continue
        occurrence = scans[reading.of].occurrence
        summary = _summary(reading, occurrence, part) if is_free and part.rows_are_files_rows else None
        used = occurrence.read if reading.inner else occurrence.columns
        less = _summarised(part, summary[0], used, evaluator) if summary is not None else None
        if less is not None and summary is not None:
            edits += summary[1]
        elif len(part.files) > 1:
            first = _FirstRows(part, reading, query, evaluator)
            less = first.of_files() if scope.select.args.get("order") is None else first.of_order()
        if less is not None:
            scans[reading.of] = replace(scans[reading.of], parts=(less,))
    return edits


@dataclass(frozen=True)
class _Reading:
    """A SELECT from one table, the occurrence ``of``, maybe by way of queries that pass all rows on, or drop some."""

    select: exp.Select
    inner: tuple[exp.Select, ...]
    of: int
    reader: ConditionReader
    _origin: Origin

    def at(self, ref: ColumnRef) -> str | None:
        """Return the column of the table that a column is."""
        found = self._origin(ref)
        return found[1] if found is not None and found[0] == self.of else None

    def column(self, node: exp.Expression) -> str | None:
        """Return the column of the table that an expression is."""
        ref = self.reader.column(node)
        return None if ref is None else self.at(ref)

    @property
    def wheres(self) -> list[exp.Expression]:
        """What the WHERE of each SELECT says."""
        return [where.this for s in (self.select, *self.inner) if (where := s.args.get("where")) is not None]


def _reading(scope: Scope, reader: ConditionReader, origin: Origin) -> _Reading | None:
    at, inner = scope, list[exp.Select]()
    while len(at.sources) == 1 and not at.nested:
        source = at.sources[0]
        if not source.prunable or source.join is not None or source.renamed is not None:
            break
        relation = source.relation
        if source.occurrence is not None:
            return _Reading(scope.select, tuple(inner), source.id, reader, origin)
        if relation is None or relation.scope is None or relation.barrier is not None or len(relation.uses) > 1:
            break
        alias = at.select.args["from_"].this.args.get("alias")
        at = relation.scope
        if (alias is not None and alias.args.get("columns")) or not _passes_on(at.select, reader):
            break
        inner.append(at.select)
    return None


def _passes_on(select: exp.Select, reader: ConditionReader) -> bool:
    """Return whether a query inside of another one makes one row of each row, or none, under the names it gives."""
    around: Any = select.parent
    while isinstance(around, exp.Subquery):
        if any(value for key, value in around.args.items() if key not in ("this", "alias", "with_")):
            return False
        around = around.parent
    if isinstance(around, exp.CTE) and around.args["alias"].columns:
        return False
    return not any(v for k, v in select.args.items() if k not in _PASSED_ON) and _is_by_row(select, reader)


def _summary(reading: _Reading, occurrence: Occurrence, part: PartScan) -> tuple[list[str], tuple[Edit, ...]] | None:
    """Return the columns whose extremes a SELECT wants, and the edits for its ``count(*)``; None if it wants more."""
    select, reader, keys = reading.select, reading.reader, part.part.table.partition_keys
    if any(value for key, value in select.args.items() if key not in _SUMMARISED):
        return None
    group, distinct = select.args.get("group"), select.args.get("distinct")
    if distinct is not None and distinct.args.get("on") is not None:
        return None
    extremes: set[str] = set()
    counts: list[Edit] = []
    stack: list[exp.Expression] = [v for v in select.iter_expressions() if not isinstance(v, (exp.From, exp.With))]
    stack += reading.wheres
    seen = set[int]()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
            span = span_of(node)  # the parser notes no more than where it starts
            found = _COUNT.match(reader.text, span[0]) if span is not None else None
            if found is None or any(v for k, v in node.args.items() if k not in ("this", "big_int")):
                return None
            is_unnamed = node.parent is select and node.arg_key == "expressions"
            counts.append((found.span(), f'{_TOTAL} AS "count_star()"' if is_unnamed else _TOTAL))
        elif isinstance(node, (exp.Min, exp.Max)) and isinstance(node.this, exp.Column):
            column = reading.column(node.this)
            if column is None or any(v for k, v in node.args.items() if k != "this"):
                return None
            extremes.add(column)
        elif isinstance(node, exp.Column):
            alias = reader.alias(node)
            if alias is not None:
                stack.append(alias)
            elif reading.column(node) not in keys:
                return None
        elif isinstance(node, _TRANSPARENT):
            stack += node.iter_expressions()
        else:
            pieces = reader.pieces(node)
            if pieces is None or any(reading.at(p) not in keys for p in pieces if isinstance(p, tuple)):
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
    # Other columns are NULL in what queries inside pass on, which may put them in order, but compute nothing of them.
    read = occurrence.read if reading.inner else frozenset[str]()
    ordered = [reading.column(o.this) for s in reading.inner if (by := s.args.get("order")) for o in by.expressions]
    is_taken = "kartosql_rows" in map(str.lower, occurrence.source.columns)
    if read is None or not read <= {*extremes, *keys, *ordered} or is_taken:
        return None
    passed = [_passing_rows(s, reader) for s in reading.inner if counts and not any(map(_star_of, s.expressions))]
    return sorted(extremes - set(keys)), (*counts, *passed)


def _passing_rows(select: exp.Select, reader: ConditionReader) -> Edit:
    """Return the edit that puts row counts into a SELECT list."""
    first = span_of(select.expressions[0].unalias())
    assert first is not None
    before = tokens_of(reader.text[: first[0]])
    place = max(t.end for t in before if t.token_type in (TokenType.SELECT, TokenType.ALL)) + 1
    return (place, place), " kartosql_rows,"


_COUNT = re.compile(r"count\s*\(\s*\*?\s*\)", re.IGNORECASE)
_NOT_FIRST = ("distinct", "group", "having", "qualify", "sample", "windows", "connect", "kind")
_SUMMARISED = (
    *("expressions", "from_", "where", "group", "having", "order", "limit", "offset", "distinct", "with_"),
    "operation_modifiers",
)
_PASSED_ON = ("expressions", "from_", "where", "order", "with_")


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
        value, star = e.unalias(), _star_of(e)
        made = [value] if star is None else [v.unalias() for v in star.args.get("replace") or ()]
        if star is not None and any(v for k, v in star.args.items() if k not in ("except_", "replace", "rename")):
            return False
        if any(not isinstance(v, exp.Column) and reader.pieces(v) is None for v in made):
            return False
    return True


def _star_of(item: exp.Expression) -> exp.Star | None:
    """Return the ``*`` that an item of a SELECT list is, maybe behind the name of a table."""
    star = item.this if isinstance(item, exp.Column) else item
    return star if isinstance(star, exp.Star) else None


@dataclass(frozen=True)
class _FirstRows:
    """A SELECT from one table that may need but the first rows of it, in any order or that of a column."""

    _part: PartScan
    _reading: _Reading
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
        first = self._reading.select.args["order"].expressions[0]
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
        select, reader, inner = self._reading.select, self._reading.reader, self._reading.inner
        is_ordered = any(s.args.get("order") for s in inner)
        if is_ordered or select.args.get("limit") is None or any(select.args.get(k) for k in _NOT_FIRST):
            return None
        rows = [_number(select.args.get(key), reader, self._query.parameters) for key in ("limit", "offset")]
        known = [n for n in rows if n is not None]
        if len(known) < len(rows) or not _is_by_row(select, reader):
            return None
        return sum(known) if all(map(reader.agrees, self._reading.wheres)) else None

    def _ordered_by(self, ordered: exp.Expression) -> str | None:
        """Return the column that a part of ORDER BY is, by its name, an alias or its number; else None."""
        node, items = ordered.this.unnest(), self._reading.select.expressions
        span = span_of(node) if isinstance(node, exp.Literal) else None
        number = self._reading.reader.slice(span) if span is not None else ""
        if number.isascii() and number.isdigit():
            is_known = 0 < int(number) <= len(items) and not any(e.find(exp.Star) for e in items)
            return self._reading.column(items[int(number) - 1].unalias()) if is_known else None
        if not isinstance(node, exp.Column):
            return None
        # A name that the SELECT list gives goes before one of the table.
        named = [a.this for e in items for a in e.find_all(exp.Alias) if a.alias.lower() == node.name.lower()]
        found = {self._reading.column(each) for each in ([] if node.table else named) or [node]}
        return found.pop() if len(found) == 1 else None

    def _sure_files(self) -> Files:
        """Return the files of whose rows all satisfy each WHERE, and none is deleted."""
        part, reading = self._part, self._reading
        if not reading.wheres:
            return part.whole_files
        condition, table = joined("AND", list(map(reading.reader.read, reading.wheres))), part.part.table
        columns = {ref: reading.at(ref) for ref in condition.columns}
        # Without a part of it rows would count that do not satisfy all of it.
        if not columns or not is_evaluable(condition) or not set(columns.values()).issubset(table.partition_keys):
            return frozenset()
        subject = Subject(table, reading.of, self._evaluator, self._query.parameters, frozenset(table.partition_keys))
        named = condition.render(lambda ref: subject.name((reading.of, columns[ref] or "")))
        found = parameters_for(condition, subject.parameters)
        return part.whole_files - self._evaluator.partitions(table, f"({named}) IS NOT TRUE", found)


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
