"""Which conditions of a statement may prune which table occurrence.

Conditions start at WHERE, HAVING and ON, and are carried from there: over equal columns to
other sources, into derived tables, common table expressions and set operations, and into and
out of subqueries. What cannot be carried is left behind, for conditions only ever save work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from kartosql.plan.columns import ColumnTypes
from kartosql.plan.evaluate import Evaluator, rejects_null
from kartosql.plan.joins import Conjunct, Joins, Pair, is_positional
from kartosql.plan.predicate_pushdown import Pushdown
from kartosql.plan.reader import ConditionReader, conjuncts
from kartosql.plan.scopes import Walked
from kartosql.plan.table_refs import Merged, Relation, Scope, Source
from kartosql.predicate.tree import (
    ColumnRef,
    Condition,
    DynamicFilter,
    Opaque,
    Pieces,
    disjunction,
    is_opaque,
    substitute,
)
from kartosql.sql.tree import span_of

MAX_CONDITIONS = 64  # on one source; what is carried over many equal columns multiplies


@dataclass
class _Local:
    """What a SELECT says by itself: conjuncts of WHERE and HAVING, and of ON by position."""

    final: list[Conjunct] = field(default_factory=list)
    on: dict[int, list[Conjunct]] = field(default_factory=dict)
    refused: str | None = None


class Extractor:
    """Collects, for every occurrence, the conditions that may prune it."""

    def __init__(
        self, walked: Walked, reader: ConditionReader, evaluator: Evaluator, parameters: Mapping[str, Any]
    ) -> None:
        self._walked = walked
        self._reader = reader
        self._evaluator = evaluator
        self._parameters = parameters
        self._sources = {s.id: s for scope in walked.scopes for s in scope.sources}
        self._relations = {r.id: r for r in walked.relations.values()}
        self._types = ColumnTypes(evaluator, reader, self._sources, self._relations)
        self._pushdown = Pushdown(reader, self._types)
        self._locals: dict[int, _Local] = {}
        self._pending: dict[int, list[list[Condition]]] = {}
        self._done: set[int] = set()
        self._known: dict[int, list[Condition]] = {}  # by source
        self.found: dict[int, list[Condition]] = {}  # by occurrence
        self.dynamic_filters: dict[int, list[DynamicFilter]] = {}  # by occurrence
        self.reasons: dict[int, str] = {}

    def run(self) -> None:
        """Collect the conditions of the whole statement."""
        self._relation(self._walked.root, [])
        for relation in (*self._walked.loose, *reversed(self._walked.expressions)):
            self._relation(relation, [])

    def origin(self, ref: ColumnRef) -> ColumnRef | None:
        """Return the column of an occurrence that has every value which a column has, or None."""
        source = self._sources.get(ref[0])
        if source is not None and source.occurrence is not None:
            return source.id, source.real(ref[1])
        if source is not None and source.relation is not None:
            ref = (source.relation.id, str(source.positions[ref[1]]))
        relation = self._relations.get(ref[0])
        if relation is None or relation.outputs is None or relation.branches is not None:
            return None
        inner = relation.outputs[int(ref[1])].source
        return None if inner is None else self.origin((inner[0].id, inner[1]))

    # -- queries -----------------------------------------------------------------------------

    def _relation(self, relation: Relation, conditions: list[Condition]) -> None:
        """Collect what is below a query, given conditions on its result."""
        if relation.id in self._done:
            return
        self._done.add(relation.id)
        if relation.barrier is not None:
            self._note(relation, relation.barrier)
            conditions = []
        if relation.branches is not None:
            for branch in relation.branches:
                self._relation(branch, self._moved(conditions, self._pushdown.into_branch(relation, branch)))
        if relation.scope is not None:
            moved = self._moved(conditions, self._pushdown.into_select(relation))
            if len(moved) < len(conditions):
                self._note(relation, "a condition is on what an aggregation, a window or an expression makes")
            self._scope(relation.scope, moved)

    def _moved(self, conditions: list[Condition], meaning: Callable[[ColumnRef], Pieces | None]) -> list[Condition]:
        moved = (substitute(c, meaning) for c in conditions)
        return [c for c in moved if not is_opaque(c)]

    def _note(self, relation: Relation, reason: str) -> None:
        for branch in relation.branches or ():
            self._note(branch, reason)
        for source in relation.scope.sources if relation.scope is not None else ():
            self.reasons.setdefault(source.id, reason)

    def _scope(self, scope: Scope, pushed: list[Condition]) -> None:
        local = self._local(scope)
        final = [] if local.refused else [*local.final, *(Conjunct(c) for c in pushed)]
        joins = Joins(scope.sources, final, local.on, self._rejects)
        usable = {s.id: joins.usable(at) for at, s in enumerate(scope.sources)}
        for at, source in enumerate(scope.sources):
            self._known[source.id] = [c.condition for c in usable[source.id]]
            self._known[source.id] += self._merged(final, scope, joins, source)
            self._explain(source, at, local, joins, usable[source.id], scope)
        self._carry(scope, usable)
        for source in scope.sources:
            known = list(dict.fromkeys(self._known[source.id]))
            if source.occurrence is not None:
                real = [substitute(c, lambda ref, s=source: _real(ref, s)) for c in known]  # type: ignore[misc]
                self.found.setdefault(source.id, []).extend(c for c in real if not isinstance(c, DynamicFilter))
                self.dynamic_filters.setdefault(source.id, []).extend(c for c in real if isinstance(c, DynamicFilter))
            elif source.relation is not None:
                self._use(source, source.relation, known)
        inward = self._inward(joins.holding)
        for relation in scope.nested:
            self._relation(relation, inward.get(relation.id, []))

    def _explain(
        self, source: Source, at: int, local: _Local, joins: Joins, usable: list[Conjunct], scope: Scope
    ) -> None:
        if local.refused:
            self.reasons[source.id] = local.refused
        elif not source.prunable:
            self.reasons[source.id] = "the table is sampled, pivoted or nested"
        elif joins.sides[at] == "ASOF":
            self.reasons.setdefault(source.id, "without some rows an ASOF join finds others")
        elif at in joins.nullable() and joins.final:
            self.reasons.setdefault(source.id, "rows of an outer join's NULL side cannot be left out")
        elif any(c.mentions(source) for found in joins.on.values() for c in found if c not in usable):
            self.reasons.setdefault(source.id, "ON of an outer join leaves out no rows of the side that it keeps")
        elif scope.select.args.get("qualify") is not None:
            self.reasons.setdefault(source.id, "QUALIFY is asked after windows over all rows")

    def _use(self, source: Source, relation: Relation, conditions: list[Condition]) -> None:
        """Hand the conditions of one use over to a query; it is looked into when all uses are known."""

        def meaning(ref: ColumnRef) -> Pieces | None:
            return ((relation.id, str(source.positions[ref[1]])),) if ref[0] == source.id else None

        pending = self._pending.setdefault(relation.id, [])
        pending.append(self._moved(conditions, meaning))
        if len(pending) == len(relation.uses):
            either = pending[0] if len(pending) == 1 else [c for c in (disjunction(pending),) if c is not None]
            self._relation(relation, either)

    # -- what a SELECT says --------------------------------------------------------------------

    def _local(self, scope: Scope) -> _Local:
        local = self._locals.get(id(scope))
        if local is None:
            local = self._locals[id(scope)] = self._read(scope)
        return local

    def _read(self, scope: Scope) -> _Local:
        select = scope.select
        if is_positional(scope.sources):
            return _Local(refused="a positional join needs all rows")
        if select.args.get("sample"):
            return _Local(refused="the rows are sampled")
        local = _Local()
        where, having = select.args.get("where"), select.args.get("having")
        if where is not None:
            local.final += self._conjuncts(where.this)
        keys = self._pushdown.group_keys(scope) if having is not None else None
        if having is not None and keys:
            kept = (
                substitute(c.condition, lambda ref: (ref,) if ref in keys else None)
                for c in self._conjuncts(having.this)
            )
            local.final += [Conjunct(c) for c in kept if not is_opaque(c)]
        for at, source in enumerate(scope.sources):
            on = source.join.args.get("on") if source.join is not None and not source.nested else None
            found = self._conjuncts(on) if on is not None else []
            for left, right in scope.using.get(at, ()):
                found.append(_equal((left[0].id, left[1]), (right[0].id, right[1]), f"USING ({right[1]})"))
            if found:
                local.on[at] = found
        return local

    def _conjuncts(self, node: exp.Expression) -> list[Conjunct]:
        if not self._reader.agrees(node):
            span = span_of(node)
            return [Conjunct(Opaque(self._reader.slice(span) if span is not None else node.sql("duckdb")))]
        return [self._conjunct(part) for part in conjuncts(node)]

    def _conjunct(self, node: exp.Expression) -> Conjunct:
        condition = self._reader.read(node)
        if isinstance(node, exp.EQ):
            left, right = self._reader.column(node.this), self._reader.column(node.expression)
            if left is not None and right is not None and left[0] != right[0]:
                return Conjunct(condition, (Pair(left, right), Pair(right, left)))
            if left is not None and isinstance(node.expression, exp.Any):
                return Conjunct(condition, self._listed([left], node.expression.this))
        if isinstance(node, exp.In) and node.args.get("query") is not None:
            items = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this]
            return Conjunct(condition, self._listed([self._reader.column(i) for i in items], node.args["query"]))
        if isinstance(node, exp.Exists):
            return Conjunct(condition, self._existing(node.this))
        return Conjunct(condition)

    def _listed(self, columns: list[ColumnRef | None], query: exp.Expression) -> tuple[Pair, ...]:
        """Return the pairs of ``columns IN (query)``."""
        relation = self._walked.relations.get(id(query))
        if relation is None or relation.outputs is None or len(relation.outputs) != len(columns):
            return ()
        known = tuple(self._implied(relation))
        return tuple(Pair(c, (relation.id, str(i)), known) for i, c in enumerate(columns) if c is not None)

    def _existing(self, query: exp.Expression) -> tuple[Pair, ...]:
        """Return the pairs of ``EXISTS (query)``: the equalities with columns around it."""
        relation = self._walked.relations.get(id(query))
        scope = relation.scope if relation is not None and relation.barrier is None else None
        if scope is None or any(scope.select.args.get(key) for key in ("group", "having", "qualify", "distinct")):
            return ()
        if any(e.find(exp.AggFunc, exp.Anonymous) for e in scope.select.expressions):
            return ()
        local = self._local(scope)
        joins = Joins(scope.sources, [] if local.refused else local.final, local.on, self._rejects)
        mine = {s.id for s in scope.sources}
        pairs = []
        for at, source in enumerate(scope.sources):
            usable = joins.usable(at)
            known = tuple(c.condition for c in usable)
            for conjunct in joins.holding:
                for p in conjunct.pairs:
                    if p.other[0] == source.id and p.column[0] not in mine:
                        pairs.append(Pair(p.column, p.other, known))
        return tuple(pairs)

    def _implied(self, relation: Relation, depth: int = 0) -> list[Condition]:
        """Return conditions that all rows of a query satisfy, over its output columns."""
        scope = relation.scope
        if scope is None or relation.outputs is None or depth > 8:
            return []
        local = self._local(scope)
        joins = Joins(scope.sources, [] if local.refused else local.final, local.on, self._rejects)
        inner = [c.condition for c in joins.holding]
        nullable = joins.nullable()
        for at, source in enumerate(scope.sources):
            if source.relation is not None and at not in nullable and joins.sides[at] in ("INNER", "LEFT", "RIGHT"):
                inner += self._seen(source, self._implied(source.relation, depth + 1))
        outward: dict[ColumnRef, ColumnRef] = {}
        for at, output in enumerate(relation.outputs):
            if output.source is not None:
                outward.setdefault((output.source[0].id, output.source[1]), (relation.id, str(at)))
        return self._moved(inner, lambda ref: (outward[ref],) if ref in outward else None)

    def _seen(self, source: Source, conditions: list[Condition]) -> list[Condition]:
        """Return conditions over the output of a query as conditions over the source that reads it."""
        names = {str(position): name for name, position in source.positions.items()}
        assert source.relation is not None
        of = source.relation.id
        return self._moved(
            conditions, lambda ref: ((source.id, names[ref[1]]),) if ref[0] == of and ref[1] in names else None
        )

    # -- NULL ----------------------------------------------------------------------------------

    def _rejects(self, conjunct: Conjunct, source: Source) -> bool:
        """Return whether a conjunct is not TRUE wherever a source's columns are all NULL."""
        if conjunct.equates(source):
            return True
        return rejects_null(
            conjunct.condition,
            lambda ref: (self._types.null(ref),) if ref[0] == source.id else None,
            self._evaluator,
            self._parameters,
        )

    # -- columns of USING with FULL JOIN ---------------------------------------------------------

    def _merged(self, final: list[Conjunct], scope: Scope, joins: Joins, source: Source) -> list[Condition]:
        """Return conditions over nothing but merged columns, which every one of their parts must satisfy."""
        parts: dict[int, ColumnRef] = {}
        for merged in scope.merged.values():
            part = next(((s.id, c) for s, c in merged.parts if s is source), None)
            if merged.owner is None and part is not None and source.prunable and self._is_uniform(merged, scope, joins):
                parts[merged.id] = part
        if not parts:
            return []
        return self._moved(
            [c.condition for c in final if c.condition.columns and all(r[0] in parts for r in c.condition.columns)],
            lambda ref: (parts[ref[0]],),
        )

    def _is_uniform(self, merged: Merged, scope: Scope, joins: Joins) -> bool:
        at = next(i for i, s in enumerate(scope.sources) if s.join is merged.join)
        types = {self._types.of((s.id, c)) for s, c in merged.parts}
        return joins.stays(at) and len(types) == 1 and self._types.is_plain(types.pop())

    # -- equal columns -------------------------------------------------------------------------

    def _carry(self, scope: Scope, usable: dict[int, list[Conjunct]]) -> None:
        """Carry conditions over equal columns, until nothing new is found."""
        edges: dict[tuple[int, int], dict[ColumnRef, ColumnRef]] = {}
        known: dict[int, list[Condition]] = {}
        for source in scope.sources:
            for conjunct in usable[source.id]:
                for pair in conjunct.pairs:
                    if pair.column[0] == source.id:
                        edges.setdefault((source.id, pair.other[0]), {})[pair.other] = pair.column
                        known.setdefault(pair.other[0], []).extend(pair.known or ())
            if source.relation is not None:
                known.setdefault(source.id, []).extend(self._seen(source, self._implied(source.relation)))
        for _ in range(len(scope.sources) + 1):
            if not any(self._carry_over(to, of, columns, known) for (to, of), columns in edges.items()):
                break
        for (to, of), columns in edges.items():
            for other, mine in columns.items():
                if self._types.carried(other, mine) is not None:
                    text = f"{mine[1]} has a value of {self._name(of)}"
                    self._known[to].append(DynamicFilter(mine, other, text))

    def _carry_over(
        self, to: int, of: int, columns: dict[ColumnRef, ColumnRef], known: dict[int, list[Condition]]
    ) -> bool:
        before = len(self._known[to])
        meaning = {other: self._types.carried(other, mine) for other, mine in columns.items()}
        for condition in self._moved([*self._known.get(of, ()), *known.get(of, ())], meaning.get):
            if isinstance(condition, DynamicFilter) or not condition.columns:
                continue
            if condition not in self._known[to] and len(self._known[to]) < MAX_CONDITIONS:
                self._known[to].append(condition)
        return len(self._known[to]) > before

    def _inward(self, holding: list[Conjunct]) -> dict[int, list[Condition]]:
        """Return the conditions that values of the subqueries of ``IN`` have to satisfy to matter."""
        found: dict[int, list[Condition]] = {}
        for pair in (p for c in holding for p in c.pairs if p.other[0] in self._relations):
            pieces = self._types.carried(pair.column, pair.other)
            if pieces is not None:
                known = [c for c in self._known.get(pair.column[0], ()) if c.columns == {pair.column}]
                conditions = self._moved(known, lambda ref, p=pieces: p)  # type: ignore[misc]
                found.setdefault(pair.other[0], []).extend(c for c in conditions if not isinstance(c, DynamicFilter))
        return found

    def _name(self, of: int) -> str:
        source = self._sources.get(of)
        return source.alias if source is not None and source.alias else "a subquery"


def _equal(left: ColumnRef, right: ColumnRef, text: str) -> Conjunct:
    return Conjunct(Opaque(text), (Pair(left, right), Pair(right, left)))


def _real(ref: ColumnRef, source: Source) -> Pieces:
    """Return a column under the name that its table has for it."""
    return ((ref[0], source.real(ref[1])),) if ref[0] == source.id else (ref,)
