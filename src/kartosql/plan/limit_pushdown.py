"""SELECTs that need less than the rows of a table: the files of the first ones, or what is known of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from kartosql.errors import Span
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.reader import ConditionReader
from kartosql.plan.scan import FileSummary, OccurrenceScan, PartScan, Scan, Step
from kartosql.plan.scopes import Walked
from kartosql.plan.table_refs import Scope, Source
from kartosql.predicate.tree import Condition, is_evaluable, parameters_for
from kartosql.sql.tokens import number_of
from kartosql.sql.tree import span_of
from kartosql.tables.table import Changelog

# Nodes whose value for a row depends on nothing but the values below them.
_TRANSPARENT = (
    *(exp.Alias, exp.And, exp.Between, exp.Boolean, exp.Cast, exp.DataType, exp.EQ, exp.From, exp.GT, exp.GTE),
    *(exp.Group, exp.Having, exp.Identifier, exp.In, exp.Is, exp.LT, exp.LTE, exp.Limit, exp.Literal, exp.NEQ),
    *(exp.Not, exp.Null, exp.Offset, exp.Or, exp.Order, exp.Ordered, exp.Paren, exp.Placeholder, exp.Table),
    *(exp.TableAlias, exp.Where, exp.Add, exp.Sub, exp.Mul, exp.Mod, exp.Distinct, exp.Tuple, exp.Neg),
)

FIRST_FILES = 4  # row counts of so many files are read at once for a LIMIT; then four times as many, and so on


@dataclass(frozen=True)
class Summary:
    """A SELECT to which the number of rows and the extremes of each file are enough.

    ``extremes`` are the columns of which it wants minimum or maximum, ``counts`` the places of
    ``count(*)`` in the text.
    """

    occurrence: int
    extremes: frozenset[str]
    counts: tuple[tuple[Span, bool], ...]  # and whether it is a column of the result without a name


@dataclass(frozen=True)
class FirstRows:
    """A SELECT that needs only the first ``rows`` rows for which ``condition`` is TRUE."""

    occurrence: int
    rows: int
    condition: Condition | None


class LimitedSelects:
    """Recognises the SELECTs of one statement that need less than all rows."""

    def __init__(self, walked: Walked, reader: ConditionReader, parameters: Mapping[str, Any]) -> None:
        self._walked = walked
        self._reader = reader
        self._parameters = parameters

    def first_rows(self) -> Iterator[FirstRows]:
        """Yield the SELECTs with a LIMIT and without order."""
        for scope in self._walked.scopes:
            source = _only_source(scope)
            if source is None or source.occurrence is None or any(scope.select.args.get(k) for k in _NOT_FIRST):
                continue
            rows = [self._number(scope.select.args.get(key)) for key in ("limit", "offset")]
            if scope.select.args.get("limit") is None or None in rows or scope.nested or not self._is_by_row(scope):
                continue
            where = scope.select.args.get("where")
            if where is not None and not self._reader.agrees(where.this):
                continue
            condition = self._reader.read(where.this) if where is not None else None
            yield FirstRows(source.occurrence.id, sum(n for n in rows if n is not None), condition)

    def _number(self, node: exp.Expression | None) -> int | None:
        if node is None:
            return 0
        if any(value for key, value in node.args.items() if key not in ("this", "expression")):
            return None
        value = node.expression if isinstance(node.expression, exp.Expression) else node.this
        if isinstance(value, exp.Literal) and not value.is_string:
            number = number_of(str(value.this))
            return number if isinstance(number, int) else None
        pieces = self._reader.pieces(value) if isinstance(value, exp.Placeholder) else None
        name = getattr(pieces[1], "name", None) if pieces is not None and len(pieces) == 3 else None
        given = self._parameters.get(name) if name is not None else None
        return given if isinstance(given, int) and not isinstance(given, bool) and given >= 0 else None

    def _is_by_row(self, scope: Scope) -> bool:
        """Return whether every row of the table makes exactly one row of the result."""
        for e in scope.select.expressions:
            value = e.this if isinstance(e, exp.Alias) else e
            if isinstance(value, (exp.Star, exp.Column)):
                if any(isinstance(v, list) and v for v in _star_arguments(value)):
                    return False
            elif self._reader.pieces(value) is None:
                return False
        return True

    def summaries(self) -> Iterator[Summary]:
        """Yield the SELECTs that only count rows or ask for extremes, by partition keys."""
        for scope in self._walked.scopes:
            source = _only_source(scope)
            if source is None or source.occurrence is None or not source.occurrence.source.parts or scope.nested:
                continue
            found = self._summary(scope, source)
            if found is not None:
                yield found

    def _summary(self, scope: Scope, source: Source) -> Summary | None:
        select = scope.select
        if any(value for key, value in select.args.items() if key not in _SUMMARISED):
            return None
        distinct = select.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            return None
        assert source.occurrence is not None
        keys = source.occurrence.source.parts[0].table.partition_keys
        extremes: set[str] = set()
        counts: list[tuple[Span, bool]] = []
        stack: list[exp.Expression] = [v for v in _below(select) if not isinstance(v, exp.From)]
        aggregates = select.args.get("group") is not None or distinct is not None
        while stack:
            node = stack.pop()
            if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
                span = self._count(node)
                if span is None or any(v for k, v in node.args.items() if k not in ("this", "big_int")):
                    return None
                counts.append((span, node.parent is select and node.arg_key == "expressions"))
                aggregates = True
            elif isinstance(node, (exp.Min, exp.Max)) and isinstance(node.this, exp.Column):
                column = self._reader.column(node.this)
                if column is None or column[0] != source.id or any(v for k, v in node.args.items() if k != "this"):
                    return None
                extremes.add(source.real(column[1]))
                aggregates = True
            elif isinstance(node, exp.Column):
                column = self._reader.column(node)
                alias = self._reader.alias(node)
                if alias is None and (column is None or column[0] != source.id or source.real(column[1]) not in keys):
                    return None
            elif isinstance(node, _TRANSPARENT):
                stack += _below(node)
            elif not self._is_pure_by_keys(node, source, keys):
                return None
        if not aggregates or not _names_stay(select) or not _groups(select, bool(counts or extremes)):
            return None
        return Summary(source.occurrence.id, frozenset(extremes) - set(keys), tuple(counts))

    def _count(self, node: exp.Expression) -> Span | None:
        """Return the place of ``count(*)``; the parser notes no more than where it starts."""
        span = span_of(node)
        return self._reader.matched(_COUNT, span[0]) if span is not None else None

    def _is_pure_by_keys(self, node: exp.Expression, source: Source, keys: Sequence[str]) -> bool:
        pieces = self._reader.pieces(node)
        columns = [p for p in pieces or () if isinstance(p, tuple)]
        return pieces is not None and all(c[0] == source.id and source.real(c[1]) in keys for c in columns)


def _groups(select: exp.Select, aggregates: bool) -> bool:
    """Return whether rows become groups: GROUP BY ALL does nothing where there is nothing to group by."""
    group = select.args.get("group")
    if group is None or not group.args.get("all") or aggregates:
        return True
    return any(e.find(exp.Column) for e in select.expressions)


def _names_stay(select: exp.Select) -> bool:
    """Return whether no column of the result is named after an expression around ``count(*)``."""
    items = [e for e in select.expressions if not isinstance(e, (exp.Alias, exp.Count))]
    return not any(e.find(exp.Count) for e in items)


_COUNT = re.compile(r"count\s*\(\s*\*?\s*\)", re.IGNORECASE)
_NOT_FIRST = ("distinct", "group", "having", "qualify", "order", "sample", "windows", "connect", "kind")
_SUMMARISED = (
    "expressions",
    "from_",
    "where",
    "group",
    "having",
    "order",
    "limit",
    "offset",
    "distinct",
    "with_",
    "operation_modifiers",
)


def _only_source(scope: Scope) -> Source | None:
    sources = scope.sources
    if len(sources) != 1 or not sources[0].prunable or sources[0].join is not None or sources[0].renamed is not None:
        return None
    return sources[0]


def _star_arguments(node: exp.Expression) -> list[Any]:
    star = node.this if isinstance(node.this, exp.Star) else node
    return list(star.args.values()) if isinstance(star, exp.Star) else []


def _below(node: exp.Expression) -> list[exp.Expression]:
    return list(node.iter_expressions())


def push_down_limits(
    query: BoundQuery, evaluator: Evaluator, limited: LimitedSelects, scans: dict[int, OccurrenceScan]
) -> tuple[tuple[Span, bool], ...]:
    """Replace the scans that need fewer files, and return the places of ``count(*)`` that sum row counts then."""
    counts: list[tuple[Span, bool]] = []
    for summary in limited.summaries():
        part = _only_part(scans.get(summary.occurrence))
        less = _summarised(part, summary, evaluator) if part is not None else None
        if less is not None:
            scans[summary.occurrence] = replace(scans[summary.occurrence], parts=(less,))
            counts += summary.counts
    for head in limited.first_rows():
        part = _only_part(scans.get(head.occurrence))
        if part is not None and len(part.files) > 1:
            less = _first(part, head, query, evaluator)
            scans[head.occurrence] = replace(scans[head.occurrence], parts=(less,))
    return tuple(counts)


def counted(query: BoundQuery, scan: Scan) -> BoundQuery:
    """Return the query whose ``count(*)`` over files that are not opened sums their row counts."""
    total = "CAST(coalesce(sum(kartosql_rows), 0) AS BIGINT)"
    edits = [(span, f'{total} AS "count_star()"' if unnamed else total) for span, unnamed in scan.counts]
    return query.edited(edits) if edits else query


def _only_part(scan: OccurrenceScan | None) -> PartScan | None:
    """Return the dataset of a scan whose rows are the rows of its files."""
    if scan is None or len(scan.parts) != 1 or scan.parts[0].overlaid or scan.parts[0].summary is not None:
        return None
    if isinstance(scan.parts[0].part.rows, Changelog):
        return None
    return scan.parts[0] if scan.parts[0].files else None


def _summarised(part: PartScan, summary: Summary, evaluator: Evaluator) -> PartScan | None:
    table, files = part.part.table, part.files
    extremes = {}
    for column in sorted(summary.extremes):
        found = evaluator.extremes(table, column, files)
        if found is None:
            return None
        extremes[column] = found
    rows = evaluator.row_counts(table, files)
    if rows is None:
        return None
    kept = [i for i, count in enumerate(rows) if count]
    facts = FileSummary(
        tuple(files[i] for i in kept),
        tuple(rows[i] for i in kept),
        {
            column: (tuple(low[i] for i in kept), tuple(high[i] for i in kept))
            for column, (low, high) in extremes.items()
        },
    )
    return replace(part, summary=facts)


def _first(part: PartScan, head: FirstRows, query: BoundQuery, evaluator: Evaluator) -> PartScan:
    """Return the scan of the first files with rows enough that satisfy the condition of a SELECT."""
    table = part.part.table
    sure = _sure_files(part, head, query, evaluator)
    if not sure:
        return part
    found, at, size = 0, 0, FIRST_FILES
    while at < len(part.files) and (found < head.rows or at == 0):
        chunk = part.files[at : at + size]
        rows = evaluator.row_counts(table, chunk)
        if rows is None:
            return part
        for file, count in zip(chunk, rows, strict=True):
            at += 1
            found += count if file in sure else 0
            if found >= head.rows:
                break
        size *= 4
    if at == len(part.files):
        return part
    step = Step(f"the first {head.rows:,} rows suffice", "row counts", len(part.files), at, frozenset(part.files[:at]))
    return replace(part, files=part.files[:at], steps=(*part.steps, step))


def _sure_files(part: PartScan, head: FirstRows, query: BoundQuery, evaluator: Evaluator) -> frozenset[int] | set[int]:
    """Return the files of whose rows all satisfy a condition."""
    table, condition = part.part.table, head.condition
    if condition is None:
        return frozenset(part.files)
    keys = {name: f"k{i}" for i, name in enumerate(table.partition_keys)}
    if not is_evaluable(condition) or not condition.columns:
        return frozenset()
    if not all(o == head.occurrence and c in keys for o, c in condition.columns):
        return frozenset()
    predicate = f"({condition.render(lambda ref: keys[ref[1]])}) IS NOT TRUE"
    doubtful = evaluator.partitions(table, predicate, parameters_for(condition, query.parameters))
    return set(part.files) - set(doubtful)
