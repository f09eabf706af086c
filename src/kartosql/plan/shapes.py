"""SELECTs that need less than the rows of a table: the first ones, or what is known of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from kartosql.errors import Span
from kartosql.plan.occurrences import Scope, Source
from kartosql.plan.reader import ConditionReader
from kartosql.plan.scopes import Walked
from kartosql.predicate.tree import Condition
from kartosql.sql.tokens import number_of
from kartosql.sql.tree import span_of

# Nodes whose value for a row depends on nothing but the values below them.
_TRANSPARENT = (
    *(exp.Alias, exp.And, exp.Between, exp.Boolean, exp.Cast, exp.DataType, exp.EQ, exp.From, exp.GT, exp.GTE),
    *(exp.Group, exp.Having, exp.Identifier, exp.In, exp.Is, exp.LT, exp.LTE, exp.Limit, exp.Literal, exp.NEQ),
    *(exp.Not, exp.Null, exp.Offset, exp.Or, exp.Order, exp.Ordered, exp.Paren, exp.Placeholder, exp.Table),
    *(exp.TableAlias, exp.Where, exp.Add, exp.Sub, exp.Mul, exp.Mod, exp.Distinct, exp.Tuple, exp.Neg),
)


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
class Head:
    """A SELECT that needs only the first ``rows`` rows for which ``condition`` is TRUE."""

    occurrence: int
    rows: int
    condition: Condition | None


class Shapes:
    """Recognises the SELECTs of one statement that need less than all rows."""

    def __init__(self, walked: Walked, reader: ConditionReader, parameters: Mapping[str, Any]) -> None:
        self._walked = walked
        self._reader = reader
        self._parameters = parameters

    def heads(self) -> Iterator[Head]:
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
            yield Head(source.occurrence.id, sum(n for n in rows if n is not None), condition)

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
