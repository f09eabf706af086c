"""Which conditions of a statement may prune which table occurrence.

Conditions start at WHERE, HAVING and ON, and are carried from there: over equal columns to
other sources, into derived tables, common table expressions and set operations, and into and
out of subqueries. What cannot be carried is left behind, for conditions only ever save work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqlglot import exp

from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.reader import ConditionReader, conjuncts
from kartosql.plan.scopes import Merged, Occurrence, Output, Relation, Scope, Source
from kartosql.predicate.tree import (
    ColumnRef,
    Condition,
    Constant,
    DynamicFilter,
    Group,
    IsNull,
    Opaque,
    Parameter,
    Pieces,
    is_evaluable,
    is_opaque,
    joined,
    parameters_for,
    said,
    substitute,
)
from kartosql.sql.tree import number_of, span_of

MAX_CONDITIONS = 64  # on one source; what is carried over many equal columns multiplies
_MAX_REQUIRED = 16  # sources of one SELECT of which all others are asked whether they have a row


@dataclass
class _Local:
    """What a SELECT says by itself: conjuncts of WHERE and HAVING, and of ON by position."""

    final: list[Conjunct] = field(default_factory=list)
    on: dict[int, list[Conjunct]] = field(default_factory=dict)
    refused: str | None = None


class Extractor:
    """Collects, for every occurrence, the conditions that may prune it."""

    def __init__(self, query: BoundQuery, reader: ConditionReader, evaluator: Evaluator) -> None:
        self._query = query
        self._walked = query.walked
        self._reader = reader
        self._evaluator = evaluator
        self._columns = QueryColumns(query, reader, evaluator)
        self._sources, self._relations = self._columns.sources, self._columns.relations
        self._locals: dict[int, _Local] = {}
        self._pending: dict[int, list[list[Condition]]] = {}
        self._done: set[int] = set()
        self._known: dict[int, list[Condition]] = {}  # by source
        self.found: dict[int, list[Condition]] = {}  # by occurrence
        self.dynamic_filters: dict[int, list[DynamicFilter]] = {}  # by occurrence
        self.reasons: dict[int, str] = {}

    def run(self) -> None:
        """Collect the conditions of the whole statement."""
        try:
            for relation in (self._walked.root, *self._walked.loose, *reversed(self._walked.expressions)):
                self._relation(relation, [])
        except RecursionError:
            self.found, self.dynamic_filters = {}, {}
            self.reasons = {o.id: "the statement is nested too deeply" for o in self._query.occurrences}
        for occurrence in self._query.occurrences:
            if occurrence.id not in self.found:
                self.reasons.setdefault(occurrence.id, "the planner does not look into the construct around it")

    def origin(self, ref: ColumnRef) -> ColumnRef | None:
        """Return the column of an occurrence that has every value which a column has, or None."""
        source = self._sources.get(ref[0])
        if source is not None and source.occurrence is not None:
            return source.id, source.real(ref[1])
        inner = self._columns.inside(ref)
        return None if inner is None else self.origin(inner)

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
                self._relation(branch, self._moved(conditions, self._columns.into_branch(relation, branch)))
        if relation.scope is not None:
            moved = self._moved(conditions, self._columns.into_select(relation)) if conditions else []
            if len(moved) < len(conditions):
                self._note(relation, "a condition is on what an aggregation, a window or an expression makes")
            self._scope(relation.scope, moved)

    def _moved(self, conditions: list[Condition], meaning: Callable[[ColumnRef], Pieces | None]) -> list[Condition]:
        moved = (substitute(c, meaning) for c in conditions)
        return [c for c in moved if not is_opaque(c)]

    def _renamed(self, conditions: list[Condition], names: Mapping[ColumnRef, ColumnRef]) -> list[Condition]:
        return self._moved(conditions, lambda ref: (names[ref],) if ref in names else None)

    def _note(self, relation: Relation, reason: str) -> None:
        for branch in relation.branches or ():
            self._note(branch, reason)
        for source in relation.scope.sources if relation.scope is not None else ():
            self.reasons.setdefault(source.id, reason)

    def _scope(self, scope: Scope, pushed: list[Condition]) -> None:
        local = self._local(scope)
        final = [] if local.refused else [*local.final, *map(Conjunct, pushed)]
        joins = Joins(scope.sources, final, local.on, self._rejects)
        usable = {s.id: joins.usable(at) for at, s in enumerate(scope.sources)}
        for at, source in enumerate(scope.sources):
            equal = {pair.column for c in usable[source.id] for pair in c.pairs}
            self._known[source.id] = [_without_nulls(c.condition, source, equal) for c in usable[source.id]]
            self._known[source.id] += self._merged(final, scope, joins, source)
            self._explain(source, at, local, joins, usable[source.id], scope)
        self._carry(scope, usable, joins)
        self._empty(scope, joins)
        for source in scope.sources:
            known = list(dict.fromkeys(self._known[source.id]))
            if source.occurrence is not None:
                real = known if source.renamed is None else [substitute(c, partial(_real, source)) for c in known]
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
        names = {(source.id, name): (relation.id, str(at)) for name, at in source.positions.items()}
        pending = self._pending.setdefault(relation.id, [])
        pending.append(self._renamed(conditions, names))
        if len(pending) == len(relation.uses):
            either = pending[0]
            if len(pending) > 1:
                either = [joined("OR", list(dict.fromkeys(joined("AND", p) for p in pending)))] if all(pending) else []
            self._relation(relation, either)

    # -- what a SELECT says --------------------------------------------------------------------

    def _local(self, scope: Scope) -> _Local:
        if id(scope) not in self._locals:
            self._locals[id(scope)] = self._read(scope)
        return self._locals[id(scope)]

    def _joins(self, scope: Scope) -> Joins:
        local = self._local(scope)
        return Joins(scope.sources, local.final, local.on, self._rejects)

    def _read(self, scope: Scope) -> _Local:
        select = scope.select
        if any(s.side == "POSITIONAL" for s in scope.sources):
            return _Local(refused="a positional join needs all rows")
        if select.args.get("sample"):
            return _Local(refused="the rows are sampled")
        local = _Local()
        where, having = select.args.get("where"), select.args.get("having")
        if where is not None:
            local.final += self._conjuncts(where.this)
        keys = self._columns.group_keys(scope) if having is not None else None
        if having is not None and keys:
            after = [c.condition for c in self._conjuncts(having.this)]
            local.final += map(Conjunct, self._renamed(after, {key: key for key in keys}))
        for at, source in enumerate(scope.sources):
            on = source.join.args.get("on") if source.join is not None and not source.nested else None
            found = self._conjuncts(on) if on is not None else []
            for left, right in scope.using.get(at, ()):
                pairs = Pair(left, right), Pair(right, left)
                found.append(Conjunct(Opaque(f"USING ({right[1]})"), pairs))
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
        joins, mine = self._joins(scope), {s.id: at for at, s in enumerate(scope.sources)}
        pairs = [p for c in joins.holding for p in c.pairs if p.other[0] in mine and p.column[0] not in mine]
        pairs.sort(key=lambda pair: mine[pair.other[0]])
        return tuple(replace(p, known=tuple(c.condition for c in joins.usable(mine[p.other[0]]))) for p in pairs)

    def _implied(self, relation: Relation, depth: int = 0) -> list[Condition]:
        """Return conditions that all rows of a query satisfy, over its output columns."""
        scope = relation.scope
        if scope is None or relation.outputs is None or depth > 8:
            return []
        joins = self._joins(scope)
        inner = [c.condition for c in joins.holding]
        nullable = joins.nullable()
        for at, source in enumerate(scope.sources):
            if source.relation is not None and at not in nullable and joins.sides[at] in ("INNER", "LEFT", "RIGHT"):
                inner += self._over_source(source, self._implied(source.relation, depth + 1))
        outward: dict[ColumnRef, ColumnRef] = {}
        for at, output in enumerate(relation.outputs):
            if output.source is not None:
                outward.setdefault(output.source, (relation.id, str(at)))
        return self._renamed(inner, outward)

    def _over_source(self, source: Source, conditions: list[Condition]) -> list[Condition]:
        """Return conditions over the output of a query as conditions over the source that reads it."""
        assert source.relation is not None
        of = source.relation.id
        return self._renamed(conditions, {(of, str(at)): (source.id, name) for name, at in source.positions.items()})

    def _rejects(self, conjunct: Conjunct, source: Source) -> bool:
        """Return whether a conjunct is not TRUE wherever a source's columns are all NULL."""
        if conjunct.equates(source):
            return True
        return rejects_null(
            conjunct.condition,
            lambda ref: (self._columns.null(ref),) if ref[0] == source.id else None,
            self._evaluator,
            self._query.parameters,
        )

    def _merged(self, final: list[Conjunct], scope: Scope, joins: Joins, source: Source) -> list[Condition]:
        """Return conditions over nothing but merged columns, which every one of their parts must satisfy."""
        parts: dict[int, ColumnRef] = {}
        for merged in scope.merged.values():
            part = next((p for p in merged.parts if p[0] == source.id), None)
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
        types = {self._columns.of(part) for part in merged.parts}
        return joins.stays(at) and len(types) == 1 and self._columns.is_plain(types.pop())

    # -- equal columns -------------------------------------------------------------------------

    def _carry(self, scope: Scope, usable: dict[int, list[Conjunct]], joins: Joins) -> None:
        """Carry conditions over equal columns, until nothing new is found."""
        given: dict[tuple[int, int], list[Condition]] = {}
        for at, source in enumerate(scope.sources):
            for condition in (c.condition for c in joins.on_of(at)):
                others = {ref[0] for ref in condition.columns}
                if len(others) == 1 and source.id not in others:
                    given.setdefault((source.id, others.pop()), []).append(condition)
        edges: dict[tuple[int, int], dict[ColumnRef, ColumnRef]] = {}
        known: dict[int, list[Condition]] = {}
        for source in scope.sources:
            for conjunct in usable[source.id]:
                for pair in conjunct.pairs:
                    if pair.column[0] == source.id:
                        edges.setdefault((source.id, pair.other[0]), {})[pair.other] = pair.column
                        known.setdefault(pair.other[0], []).extend(pair.known or ())
            if source.relation is not None:
                known.setdefault(source.id, []).extend(self._over_source(source, self._implied(source.relation)))
        for _ in range(len(scope.sources) + 1):
            found = ((edge, columns, known.get(edge[1], []) + given.get(edge, [])) for edge, columns in edges.items())
            if not any(self._carry_over(*edge, columns, more) for edge, columns, more in found):
                break
        for (to, of), columns in edges.items():
            for other, mine in columns.items():
                if self._columns.carried(other, mine) is not None:
                    filter_ = self._filter(mine, other)
                    from_ = self._sources.get(of)
                    if from_ is not None and from_.occurrence is not None:
                        beside = [c for c in given.get((to, of), ()) if c not in self._known.get(of, ())]
                        filter_ = replace(filter_, given=tuple(substitute(c, partial(_real, from_)) for c in beside))
                    self._known[to].append(filter_)

    def _carry_over(self, to: int, of: int, columns: dict[ColumnRef, ColumnRef], more: list[Condition]) -> bool:
        before = len(self._known[to])
        meaning = {other: self._columns.carried(other, mine) for other, mine in columns.items()}
        for condition in self._moved([*self._known.get(of, ()), *more], meaning.get):
            if isinstance(condition, DynamicFilter) or not condition.columns:
                continue
            if condition not in self._known[to] and len(self._known[to]) < MAX_CONDITIONS:
                self._known[to].append(condition)
        return len(self._known[to]) > before

    def _empty(self, scope: Scope, joins: Joins) -> None:
        """Ask of each source that those have a row without which the FROM clause has none: it does not matter then."""
        for at in joins.required()[:_MAX_REQUIRED]:
            for of in self._bearing(scope.sources[at]):
                filter_ = DynamicFilter(None, (of.id, ""), f"{of.name[-1]} has a row")
                for source in scope.sources:
                    if source.prunable and source.id != of.id:
                        self._known[source.id].append(filter_)

    def _bearing(self, source: Source) -> Iterator[Occurrence]:
        """Yield the occurrences of tables without whose rows a source has none."""
        relation = source.relation
        if source.occurrence is not None:
            yield source.occurrence
        # Only columns as they are: aggregates make a row of none.
        elif relation is not None and relation.scope is not None and relation.barrier is None:
            scope = relation.scope
            columns = relation.outputs is not None and all(o.source is not None for o in relation.outputs)
            if columns and not any(scope.select.args.get(key) for key in ("group", "having")):
                joins = self._joins(scope)
                for at in joins.required():
                    yield from self._bearing(scope.sources[at])

    def _inward(self, holding: list[Conjunct]) -> dict[int, list[Condition]]:
        """Return the conditions that values of the subqueries of ``IN`` have to satisfy to matter."""
        found: dict[int, list[Condition]] = {}
        for pair in (p for c in holding for p in c.pairs if p.other[0] in self._relations):
            pieces = self._columns.carried(pair.column, pair.other)
            if pieces is not None:
                known = [c for c in self._known.get(pair.column[0], ()) if c.columns == {pair.column}]
                conditions = self._moved(known, lambda ref, p=pieces: p)  # type: ignore[misc]
                found.setdefault(pair.other[0], []).extend(c for c in conditions if not isinstance(c, DynamicFilter))
                found[pair.other[0]].append(self._filter(pair.other, pair.column))
        return found

    def _filter(self, mine: ColumnRef, other: ColumnRef) -> DynamicFilter:
        named = self._sources.get(other[0])
        return DynamicFilter(mine, other, f"{mine[1]} has a value of {(named.alias if named else '') or 'a subquery'}")


def _real(source: Source, ref: ColumnRef) -> Pieces:
    return ((ref[0], source.real(ref[1])),) if ref[0] == source.id else (ref,)


def _without_nulls(condition: Condition, source: Source, equal: Set[ColumnRef]) -> Condition:
    """Return a condition that says FALSE where it says that a column is NULL which is not in rows that matter."""
    # Those are the columns of cells, and columns that must be ``equal`` to others.
    if isinstance(condition, Group):
        return replace(condition, items=tuple(_without_nulls(item, source, equal) for item in condition.items))
    says = said(condition)
    if not isinstance(says, IsNull) or says.negated or len(says.path) > 1 or says.path[0][0] != source.id:
        return condition
    if says.path[0] not in equal:
        table = source.occurrence.source if source.occurrence is not None else None
        if table is None or not table.is_never_null(source.real(says.path[0][1])):
            return condition
    return Opaque(condition.text, ("FALSE",), says=lambda: Constant(False))


@dataclass(frozen=True)
class Pair:
    """A column that must equal another one; ``known`` are the conditions on the other, if it is elsewhere."""

    column: ColumnRef
    other: ColumnRef
    known: tuple[Condition, ...] | None = None


@dataclass(frozen=True)
class Conjunct:
    """A part of WHERE, HAVING or ON that must be TRUE, and the columns that are equal by it."""

    condition: Condition
    pairs: tuple[Pair, ...] = ()

    def mentions(self, source: Source) -> bool:
        """Return whether a column of ``source`` occurs."""
        return any(c[0] == source.id for c in self.condition.columns) or self.equates(source)

    def equates(self, source: Source) -> bool:
        """Return whether a column of ``source`` must equal another one."""
        return any(p.column[0] == source.id for p in self.pairs)


class Joins:
    """The FROM clause of one SELECT, with outer joins strengthened by conditions that reject NULL.

    ``final`` are conjuncts that hold for all rows that matter of the joined table, ``on``
    those of each join by the position of its source.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        final: Sequence[Conjunct],
        on: dict[int, list[Conjunct]],
        rejects: Callable[[Conjunct, Source], bool],
    ) -> None:
        self.sources = sources
        self.final = final
        self.on = on
        self.sides = [s.side for s in sources]
        # A comma binds less than JOIN: outer joins reach back to the last one.
        self._start: list[int] = []
        for at, source in enumerate(sources):
            self._start.append(at if at == 0 or source.is_behind_comma else self._start[-1])
        self._strengthen(rejects)

    @property
    def holding(self) -> list[Conjunct]:
        """Conjuncts that hold for all rows that matter: the final ones, and ON of inner joins that nothing undoes."""
        inner = [
            c for i, found in self.on.items() if self.sides[i] in ("INNER", "SEMI") for c in found if self.stays(i)
        ]
        return [*self.final, *inner]

    def stays(self, join: int) -> bool:
        """Return whether no later join adds rows for which the ON of a join was not TRUE."""
        following = range(join + 1, len(self.sides))
        return not any(self.sides[i] in ("RIGHT", "FULL") and self._start[i] <= join for i in following)

    def nullable(self, before: int | None = None) -> set[int]:
        """Return the positions of the sources that outer joins may fill with NULLs, up to a position."""
        found: set[int] = set()
        for at, side in enumerate(self.sides[:before]):
            if side in ("LEFT", "FULL"):
                found.add(at)
            if side in ("RIGHT", "FULL"):
                found.update(range(self._start[at], at))
        return found

    def required(self) -> list[int]:
        """Return the positions of the sources of which each row has one: without rows of them there are none."""
        nullable = self.nullable()
        if {"ASOF", "POSITIONAL"}.intersection(self.sides):
            return []
        return [
            at for at, s in enumerate(self.sources) if s.prunable and at not in nullable and self.sides[at] != "ANTI"
        ]

    def _strengthen(self, rejects: Callable[[Conjunct, Source], bool]) -> None:
        """Turn outer joins into inner ones where the rows they add cannot matter."""
        changed = True
        while changed and self.nullable():
            changed = False
            holding = self.holding
            nullable = self.nullable()
            rejected = {
                i
                for i in nullable
                if not self.sources[i].nested
                and self._is_seen(i)
                and any(c.mentions(self.sources[i]) and rejects(c, self.sources[i]) for c in holding)
            }
            for i, side in enumerate(self.sides):
                left = any(self._start[i] <= j < i for j in rejected)
                new = _STRONGER.get((side, left, i in rejected), side)
                changed |= new != side
                self.sides[i] = new

    def _is_seen(self, at: int) -> bool:
        """Return whether WHERE sees the source as it is: not those of SEMI, ANTI and ASOF joins."""
        return self.sides[at] not in ("SEMI", "ANTI", "ASOF", "POSITIONAL")

    def usable(self, at: int) -> list[Conjunct]:
        """Return the conjuncts that may prune the source at a position."""
        source = self.sources[at]
        if not source.prunable:
            return []
        is_kept = self._is_seen(at) and at not in self.nullable()
        # Those without a column of a table here hold for all sources.
        found = [c for c in self.final if (is_kept and c.mentions(source)) or not (c.condition.columns or c.pairs)]
        return found + [c for c in self.on_of(at) if c.mentions(source)]

    def on_of(self, at: int) -> list[Conjunct]:
        """Return the conjuncts of ON that are TRUE wherever a row of the source at a position matters."""
        following = range(at, len(self.sides)) if self.sources[at].prunable else ()
        return [c for i in following if i in self.on and self._on_may_prune(i, at) for c in self.on[i]]

    def _on_may_prune(self, join: int, at: int) -> bool:
        side, is_right = self.sides[join], join == at
        if side in ("FULL", "ASOF", "POSITIONAL") or at < self._start[join]:
            return False
        if side in ("LEFT", "ANTI"):
            return is_right
        if side == "RIGHT":
            return not is_right and at not in self.nullable(join) and self._is_seen(at)
        return is_right or (at not in self.nullable(join) and self._is_seen(at))


# (side, something before is rejected, the joined source is rejected) -> what the join is then
_STRONGER = {
    ("LEFT", False, True): "INNER",
    ("LEFT", True, True): "INNER",
    ("RIGHT", True, False): "INNER",
    ("RIGHT", True, True): "INNER",
    ("FULL", True, False): "LEFT",
    ("FULL", False, True): "RIGHT",
    ("FULL", True, True): "INNER",
}


Meaning = Callable[[ColumnRef], Pieces | None]


_INTEGER = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)")
# Types whose equal values no function can tell apart: not floats (0.0 = -0.0), intervals, nested types.
_PLAIN = re.compile(
    rf"{_INTEGER.pattern}|BOOLEAN|DATE|TIME|TIMESTAMP(_S|_MS|_NS)?|TIMESTAMP WITH TIME ZONE|BLOB|UUID|DECIMAL.*"
)


class QueryColumns:
    """The columns of a statement's queries: their types by the engine's own rules, and what they stand for inside.

    Output columns of a query are replaced by expressions inside of it where a condition may be pushed down.
    """

    def __init__(self, query: BoundQuery, reader: ConditionReader, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._reader = reader
        self.sources = {s.id: s for scope in query.walked.scopes for s in scope.sources}
        self.relations = {r.id: r for r in query.walked.relations.values()}
        self._known: dict[ColumnRef, str | None] = {}

    def of(self, ref: ColumnRef) -> str | None:
        """Return the engine's name of a column's type, None if it is not known."""
        if ref not in self._known:
            self._known[ref] = None  # should a column refer to itself
            self._known[ref] = self._find(ref)
        return self._known[ref]

    def null(self, ref: ColumnRef) -> str:
        """Return a NULL of a column's type as SQL."""
        type_ = self.of(ref)
        return "NULL" if type_ is None else f"CAST(NULL AS {type_})"

    def _find(self, ref: ColumnRef) -> str | None:
        source = self.sources.get(ref[0])
        if source is not None and source.occurrence is not None:
            return self._evaluator.type_name(source.occurrence.source.columns[source.real(ref[1])])
        inner = self.inside(ref)
        if inner is not None:
            return self.of(inner)
        relation = self.relations.get(ref[0])
        if relation is None or relation.outputs is None:
            return None
        if relation.branches is not None:
            sides = [self.of((branch.id, ref[1])) for branch in relation.branches]
            if None in sides:
                return None
            if sides[0] == sides[1]:
                return sides[0]
            queries = " UNION ALL ".join(f"SELECT CAST(NULL AS {side})" for side in sides)
            return self._evaluator.type_of(f"(FROM ({queries}) LIMIT 1)")
        value = relation.outputs[int(ref[1])].value
        pieces = self._reader.pieces(value) if value is not None else None
        if pieces is None or any(isinstance(p, Parameter) for p in pieces):
            return None
        return self._evaluator.type_of("".join(self.null(p) if isinstance(p, tuple) else str(p) for p in pieces))

    def inside(self, ref: ColumnRef) -> ColumnRef | None:
        """Return the column inside of a query that one of its columns is, or None for expressions."""
        source, relation = self.sources.get(ref[0]), self.relations.get(ref[0])
        if source is not None and source.relation is not None:
            return source.relation.id, str(source.positions[ref[1]])
        return relation.outputs[int(ref[1])].source if relation is not None and relation.outputs is not None else None

    def is_plain(self, type_: str | None) -> bool:
        """Return whether values of a type that are equal are the same in every other way, too."""
        if type_ is None:
            return False
        if type_ == "VARCHAR":
            return not self._evaluator.has_collation()
        return _PLAIN.fullmatch(type_) is not None

    def carried(self, of: ColumnRef, to: ColumnRef) -> Pieces | None:
        """Return the expression that replaces column ``of`` in conditions carried over to an equal column ``to``."""
        one, other = self.of(of), self.of(to)
        if not (self.is_plain(one) and self.is_plain(other)):
            return None
        if one == other:
            return (to,)
        if one and other and _INTEGER.fullmatch(one) and _INTEGER.fullmatch(other):
            # A value that does not fit has no equal; NULL makes the condition less strict at most.
            return ("TRY_CAST(", to, f" AS {one})")
        return None

    # -- through queries -----------------------------------------------------------------------

    def into_branch(self, relation: Relation, branch: Relation) -> Meaning:
        """Return the meaning of a set operation's columns in one of its branches."""

        def meaning(ref: ColumnRef) -> Pieces | None:
            if ref[0] != relation.id:
                return None
            type_ = self.of(ref)
            if type_ is None or not (relation.keeps_duplicates or self.is_plain(type_)):
                return None
            inner = (branch.id, ref[1])
            return (inner,) if self.of(inner) == type_ else ("CAST(", inner, f" AS {type_})")

        return meaning

    def into_select(self, relation: Relation) -> Meaning:
        """Return the meaning of a SELECT's columns in terms of the sources of its FROM clause.

        Rows that are dropped must not change other rows: of an aggregation only whole groups
        may go, of a window whole partitions.
        """
        scope, outputs = relation.scope, relation.outputs
        if scope is None or outputs is None or scope.select.args.get("sample"):
            return lambda ref: None
        keys = self.group_keys(scope)
        windows = [self._partition_keys(w, scope) for w in _windows(scope.select)]

        def meaning(ref: ColumnRef) -> Pieces | None:
            if ref[0] != relation.id:
                return None
            at = int(ref[1])
            pieces = self._value(outputs[at], ref)
            if pieces is None or not (relation.keeps_duplicates or self.is_plain(self.of(ref))):
                return None
            used = {p for p in pieces if isinstance(p, tuple)}
            if keys is not None and not used <= keys and not self._is_key(at, relation):
                return None
            return pieces if all(used <= partition for partition in windows) else None

        return meaning

    def _value(self, output: Output, ref: ColumnRef) -> Pieces | None:
        if output.source is not None:
            return (output.source,)
        pieces = self._reader.pieces(output.value) if output.value is not None else None
        type_ = self.of(ref) if pieces is not None else None
        # Seen from outside the expression has a type of its own, which a literal takes on only there.
        return None if pieces is None or type_ is None else ("CAST((", *pieces, f") AS {type_})")

    def group_keys(self, scope: Scope) -> frozenset[ColumnRef] | None:
        """Return the columns that are equal in each group, or None where nothing is aggregated."""
        group = scope.select.args.get("group")
        if group is None:
            return frozenset() if scope.select.args.get("having") is not None else None
        if not _is_simple(group):
            return frozenset()
        return self._plain(_group_items(scope.select, group))

    def _is_key(self, at: int, relation: Relation) -> bool:
        """Return whether an output column is itself an expression that is grouped by."""
        scope, output = relation.scope, (relation.outputs or [])[at]
        group = scope.select.args.get("group") if scope is not None else None
        if scope is None or group is None or output.value is None or not _is_simple(group):
            return False
        if not self.is_plain(self.of((relation.id, str(at)))):
            return False
        items = _group_items(scope.select, group)
        return any(e == output.value or self._reader.alias(e) is output.value for e in items)

    def _partition_keys(self, window: exp.Window, scope: Scope) -> frozenset[ColumnRef]:
        by = list(window.args.get("partition_by") or ())
        name = window.args.get("alias") or (window.this if isinstance(window.this, exp.Identifier) else None)
        if name is not None and not by:
            named = [w for w in scope.select.args.get("windows") or () if w.this.name.lower() == name.name.lower()]
            by = [k for w in named[:1] for k in w.args.get("partition_by") or ()]
        return self._plain(by)

    def _plain(self, nodes: list[exp.Expression]) -> frozenset[ColumnRef]:
        keys = map(self._reader.column, nodes)
        return frozenset(k for k in keys if k is not None and self.is_plain(self.of(k)))


def _windows(select: exp.Select) -> Iterator[exp.Window]:
    """Yield the windows that a SELECT's rows and columns depend on, without those of queries inside of it."""
    for top in filter(None, (*select.expressions, select.args.get("qualify"))):
        nodes = top.walk(prune=lambda node: isinstance(node, exp.Query))
        yield from (node for node in nodes if isinstance(node, exp.Window))


def _is_simple(group: exp.Expression) -> bool:
    """Return whether a GROUP BY has no ROLLUP, CUBE or GROUPING SETS."""
    if any(value for key, value in group.args.items() if key not in ("expressions", "all")):
        return False
    return not any(isinstance(e, (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple)) for e in group.expressions)


def _group_items(select: exp.Select, group: exp.Expression) -> list[exp.Expression]:
    """Return what is grouped by; positions and aliases stand for items of the SELECT list."""
    items = select.expressions
    if group.args.get("all"):
        return [e.unalias() for e in items if e.find(exp.AggFunc, exp.Anonymous, exp.Window, exp.Query) is None]
    found = []
    for e in group.expressions:
        if isinstance(e, exp.Literal):
            number = None if e.is_string else number_of(str(e.this))
            at = number - 1 if isinstance(number, int) else -1
            plain = not any(i.is_star for i in items)
            if plain and 0 <= at < len(items):
                found.append(items[at].unalias())
        else:
            found.append(e)
    return found


def rejects_null(
    condition: Condition,
    nulls: Callable[[ColumnRef], Pieces | None],
    evaluator: Evaluator,
    parameters: Mapping[str, Any],
) -> bool:
    """Return whether a condition is not TRUE for any row that has ``nulls`` in place of columns.

    What depends on other columns may be TRUE.
    """
    left = substitute(condition, nulls)
    return is_evaluable(left) and not evaluator.constant(left.render(str), parameters_for(left, parameters))
