"""SELECTs that need less than the rows of a table: the files of the first ones, or what is known of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from kartosql.errors import Span
from kartosql.indexes.index import Files
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.names import Source
from kartosql.plan.reader import ConditionReader
from kartosql.plan.scan import FileSummary, OccurrenceScan, PartScan, Step
from kartosql.predicate.tree import Condition, is_evaluable, parameters_for
from kartosql.sql.tree import number_of, span_of
from kartosql.tables.table import Changelog

# Nodes whose value for a row depends on nothing but the values below them.
_TRANSPARENT = (
    *(exp.Alias, exp.And, exp.Between, exp.Boolean, exp.Cast, exp.DataType, exp.EQ, exp.From, exp.GT, exp.GTE),
    *(exp.Group, exp.Having, exp.Identifier, exp.In, exp.Is, exp.LT, exp.LTE, exp.Limit, exp.Literal, exp.NEQ),
    *(exp.Not, exp.Null, exp.Offset, exp.Or, exp.Order, exp.Ordered, exp.Paren, exp.Placeholder, exp.Table),
    *(exp.TableAlias, exp.Where, exp.Add, exp.Sub, exp.Mul, exp.Mod, exp.Distinct, exp.Tuple, exp.Neg),
)

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
        summary = _summary(scope.select, source, reader, part.part.table.partition_keys)
        less = _summarised(part, summary[0], evaluator) if summary is not None else None
        if less is not None and summary is not None:
            counts += summary[1]
        elif len(part.files) > 1:
            less = _first(part, source.id, scope.select, reader, query, evaluator)
        if less is not None:
            scans[source.id] = replace(scans[source.id], parts=(less,))
    return counts


def _summary(
    select: exp.Select, source: Source, reader: ConditionReader, keys: Sequence[str]
) -> tuple[list[str], Counts] | None:
    """Return of which columns a SELECT wants minimum or maximum, and the places of its ``count(*)``.

    None, if it asks for more than these by partition keys.
    """
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
_NOT_FIRST = ("distinct", "group", "having", "qualify", "order", "sample", "windows", "connect", "kind")
_SUMMARISED = (
    *("expressions", "from_", "where", "group", "having", "order", "limit", "offset", "distinct", "with_"),
    "operation_modifiers",
)


def _only_part(scan: OccurrenceScan | None) -> PartScan | None:
    """Return the dataset of a scan whose rows are the rows of its files."""
    if scan is None or len(scan.parts) != 1 or scan.parts[0].overlaid:
        return None
    if isinstance(scan.parts[0].part.rows, Changelog):
        return None
    return scan.parts[0] if scan.parts[0].files else None


def _summarised(part: PartScan, columns: Sequence[str], evaluator: Evaluator) -> PartScan | None:
    table, files = part.part.table, part.files
    extremes = {}
    for column in columns:
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


def _first_rows(
    select: exp.Select, reader: ConditionReader, parameters: Mapping[str, Any]
) -> tuple[int, Condition | None] | None:
    """Return how many rows a SELECT with a LIMIT and without order needs, and for which of them; else None."""
    if select.args.get("limit") is None or any(select.args.get(k) for k in _NOT_FIRST):
        return None
    rows = [_number(select.args.get(key), reader, parameters) for key in ("limit", "offset")]
    known = [n for n in rows if n is not None]
    if len(known) < len(rows) or not _is_by_row(select, reader):
        return None
    where = select.args.get("where")
    if where is not None and not reader.agrees(where.this):
        return None
    return sum(known), reader.read(where.this) if where is not None else None


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
        value = e.this if isinstance(e, exp.Alias) else e
        if isinstance(value, (exp.Star, exp.Column)):
            star = value.this if isinstance(value.this, exp.Star) else value
            if isinstance(star, exp.Star) and any(isinstance(v, list) and v for v in star.args.values()):
                return False
        elif reader.pieces(value) is None:
            return False
    return True


def _first(
    part: PartScan, of: int, select: exp.Select, reader: ConditionReader, query: BoundQuery, evaluator: Evaluator
) -> PartScan | None:
    """Return the scan of the first files with rows enough for a SELECT; None if that are all, or if it needs all."""
    wanted = _first_rows(select, reader, query.parameters)
    sure = _sure_files(part, of, wanted[1], query, evaluator) if wanted is not None else None
    if wanted is None or not sure:
        return None
    found, at, size = 0, 0, FIRST_FILES
    while at < len(part.files) and (found < wanted[0] or at == 0):
        chunk = part.files[at : at + size]
        rows = evaluator.row_counts(part.part.table, chunk)
        if rows is None:
            return None
        for file, count in zip(chunk, rows, strict=True):
            at += 1
            found += count if file in sure else 0
            if found >= wanted[0]:
                break
        size *= 4
    if at == len(part.files):
        return None
    left = part.files[:at]
    step = Step(f"the first {wanted[0]:,} rows suffice", "row counts", len(part.files), at, frozenset(left))
    return replace(part, files=left, steps=(*part.steps, step))


def _sure_files(part: PartScan, of: int, condition: Condition | None, query: BoundQuery, evaluator: Evaluator) -> Files:
    """Return the files of whose rows all satisfy a condition."""
    if condition is None:
        return frozenset(part.files)
    table = part.part.table
    keys = {name: f"k{i}" for i, name in enumerate(table.partition_keys)}
    if not is_evaluable(condition) or not condition.columns:
        return frozenset()
    if not all(o == of and c in keys for o, c in condition.columns):
        return frozenset()
    predicate = f"({condition.render(lambda ref: keys[ref[1]])}) IS NOT TRUE"
    doubtful = evaluator.partitions(table, predicate, parameters_for(condition, query.parameters))
    return frozenset(part.files) - doubtful
