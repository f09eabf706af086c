"""Which conditions of a statement may prune which table occurrence.

A condition may prune a table if rows for which it is not TRUE cannot change the result.
Here: conjuncts of WHERE at the same block, and of ON by join type. Where the table is on the
side of an outer join that is filled with NULLs, some conjunct must reject the row of NULLs.
Source of the rules: the three-valued logic of SQL, and differential fuzzing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sqlglot import exp

from kartosql.plan.conditions import Condition, ConditionReader, Opaque, is_evaluable
from kartosql.plan.occurrences import Occurrence, Scope, Source
from kartosql.sql.tree import name_parts

RejectsNull = Callable[[Condition, Occurrence], bool]


def conjuncts(node: exp.Expression) -> Iterable[exp.Expression]:
    """Yield the parts of a predicate that must all be TRUE."""
    if isinstance(node, exp.And):
        yield from conjuncts(node.this)
        yield from conjuncts(node.expression)
    elif isinstance(node, exp.Paren):
        yield from conjuncts(node.this)
    else:
        yield node


class Extractor:
    """Collects, for every occurrence, the conditions that may prune it."""

    def __init__(self, reader: ConditionReader, rejects_null: RejectsNull) -> None:
        self._reader = reader
        self._rejects_null = rejects_null
        self.found: dict[int, list[Condition]] = {}
        self.reasons: dict[int, str] = {}

    def scope(self, scope: Scope) -> None:
        """Collect the conditions of one SELECT."""
        sources = scope.sources
        if any(_method(s) == "POSITIONAL" for s in sources):
            self._refuse(scope, "a positional join needs all rows")
            return
        if scope.select.args.get("sample"):
            self._refuse(scope, "the rows are sampled")
            return
        where = scope.select.args.get("where")
        conditions = self._predicate(where.this, scope) if where is not None else []
        nullable = _null_supplied(sources)
        for at, source in enumerate(sources):
            occurrence = source.occurrence
            if occurrence is None:
                continue
            if not source.prunable:
                self.reasons[occurrence.id] = "the table is sampled, pivoted or nested"
                continue
            if _hidden(source):
                continue
            usable = [c for c in conditions if _mentions(c, occurrence) or not c.columns]
            inner = at not in nullable or any(
                _only(c, occurrence) and self._rejects_null(c, occurrence) for c in usable
            )
            if inner:
                self._add(occurrence, usable)
            else:
                self._add(occurrence, [c for c in usable if not c.columns])
                self.reasons.setdefault(occurrence.id, "rows of an outer join's NULL side cannot be left out")
        self._on(sources, scope, nullable)

    def _on(self, sources: list[Source], scope: Scope, nullable: set[int]) -> None:
        """Collect the conjuncts of ON."""
        for at, source in enumerate(sources):
            on = source.join.args.get("on") if source.join is not None else None
            if on is None:
                continue
            side, kind, method = _side(source), _kind(source), _method(source)
            if side == "FULL" or method in ("ASOF", "POSITIONAL"):
                continue
            conditions = self._predicate(on, scope)
            for other, target in enumerate(sources[: at + 1]):
                if target.occurrence is None or not target.prunable:
                    continue
                is_right = other == at
                if side == "LEFT" or kind == "ANTI":
                    allowed = is_right
                elif side == "RIGHT":
                    allowed = not is_right and other not in _null_supplied(sources[:at])
                else:
                    allowed = is_right or other not in _null_supplied(sources[:at])
                if allowed:
                    mine = [c for c in conditions if _mentions(c, target.occurrence)]
                    self._add(target.occurrence, mine)

    def _predicate(self, node: exp.Expression, scope: Scope) -> list[Condition]:
        if not self._reader.agrees(node):
            return [Opaque(node.sql("duckdb"))]
        return [self._read(c, scope) for c in conjuncts(node)]

    def _read(self, node: exp.Expression, scope: Scope) -> Condition:
        for column in node.find_all(exp.Column):
            parts = name_parts(column)
            # What a merged column means depends on the join; it is left to the engine.
            if len(parts) == 1 and (scope.natural or parts[0].name.lower() in scope.merged):
                return Opaque(node.sql("duckdb"))
        return self._reader.read(node)

    def _add(self, occurrence: Occurrence, conditions: list[Condition]) -> None:
        self.found.setdefault(occurrence.id, []).extend(conditions)

    def _refuse(self, scope: Scope, reason: str) -> None:
        for source in scope.sources:
            if source.occurrence is not None:
                self.reasons[source.occurrence.id] = reason


def _mentions(condition: Condition, occurrence: Occurrence) -> bool:
    return any(c[0] == occurrence.id for c in condition.columns)


def _only(condition: Condition, occurrence: Occurrence) -> bool:
    return bool(condition.columns) and all(c[0] == occurrence.id for c in condition.columns) and is_evaluable(condition)


def _side(source: Source) -> str:
    return ((source.join.side if source.join is not None else "") or "").upper()


def _kind(source: Source) -> str:
    return ((source.join.kind if source.join is not None else "") or "").upper()


def _method(source: Source) -> str:
    return ((source.join.method if source.join is not None else "") or "").upper()


def _hidden(source: Source) -> bool:
    """Return whether WHERE cannot see the source."""
    return _kind(source) in ("SEMI", "ANTI") or _method(source) == "ASOF"


def _null_supplied(sources: list[Source]) -> set[int]:
    """Return the positions of the sources that an outer join may fill with NULLs."""
    found: set[int] = set()
    for at, source in enumerate(sources):
        side = _side(source)
        if side in ("LEFT", "FULL"):
            found.add(at)
        if side in ("RIGHT", "FULL"):
            found.update(range(at))
    return found
