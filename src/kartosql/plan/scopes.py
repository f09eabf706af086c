"""The queries inside of a statement, their FROM items and outputs, by SQL's scoping rules.

The walk understands the constructs listed in its methods; below anything else it only
notes that all columns of the tables there may be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from kartosql.plan.names import NameBinder, is_filter, outputs_of
from kartosql.plan.table_refs import Bound, Member, Merged, Occurrence, Output, Relation, Scope, Source
from kartosql.sql.tree import name_parts

Known = Mapping[str, Relation]  # common table expressions by lower-case name

_LIMITS = ("limit", "offset", "sample", "fetch")


@dataclass(frozen=True)
class Walked:
    """What a walk found: every query of the statement, and what the columns in it mean.

    ``relations`` are found by the id of their node, which the statement's tree keeps alive.
    """

    root: Relation
    scopes: tuple[Scope, ...] = ()
    relations: Mapping[int, Relation] = field(default_factory=dict)
    expressions: tuple[Relation, ...] = ()  # common table expressions
    loose: tuple[Relation, ...] = ()  # queries in ORDER BY and LIMIT of set operations
    bound: Mapping[int, Bound] = field(default_factory=dict)  # by id of the Column node
    members: Mapping[int, Member] = field(default_factory=dict)  # the same, of references to members of structs


class ScopeWalker:
    """Walks a statement once and binds its columns to the table occurrences."""

    def __init__(self, occurrences: Mapping[int, Occurrence], slice_: Callable[[exp.Expression], str | None]) -> None:
        self._by_node = occurrences  # id of the Table node -> occurrence
        self._slice = slice_
        self.names = NameBinder(occurrences)
        self._scopes: list[Scope] = []
        self._relations: dict[int, Relation] = {}
        self._expressions: list[tuple[str, Relation]] = []
        self._loose: list[Relation] = []

    def statement(self, tree: exp.Expression) -> Walked:
        """Walk a whole statement."""
        root = self.query(tree, {}, ())
        for name, relation in self._expressions:
            if name in self.names.tainted:
                relation.barrier = "it is also used where the planner does not look"
        return Walked(
            root,
            tuple(self._scopes),
            self._relations,
            tuple(relation for _, relation in self._expressions),
            tuple(self._loose),
            self.names.bound,
            self.names.members,
        )

    # -- queries ---------------------------------------------------------------------------

    def query(self, node: exp.Expression, ctes: Known, outer: tuple[Scope, ...]) -> Relation:
        """Walk a query."""
        relation = self._query(node, ctes, outer)
        limited = next((key for key in _LIMITS if node.args.get(key) is not None), None)
        if limited:
            relation.barrier = relation.barrier or f"a {limited.upper()} stands between"
        self._relations[id(node)] = relation
        return relation

    def _query(self, node: exp.Expression, ctes: Known, outer: tuple[Scope, ...]) -> Relation:
        if isinstance(node, exp.Subquery):
            inner = self._with(node, ctes, outer)
            if node.args.get("pivots") or isinstance(node.this, exp.Table):
                self.names.opaque(node, outer[0] if outer else None)
                return Relation(None)
            for key in ("order", "limit", "offset"):
                self._nested(node.args.get(key), inner, outer)
            return self.query(node.this, inner, outer)
        if isinstance(node, exp.SetOperation):
            inner = self._with(node, ctes, outer)
            left = self.query(node.this, inner, outer)
            right = self.query(node.expression, inner, outer)
            for key, value in node.args.items():
                if key not in ("this", "expression", "with_"):
                    self._nested(value, inner, outer)
            return _set_operation(node, left, right)
        if isinstance(node, exp.Select):
            return self._select(node, self._with(node, ctes, outer), outer)
        self.names.opaque(node, outer[0] if outer else None)
        return Relation(None)

    def _with(self, node: exp.Expression, ctes: Known, outer: tuple[Scope, ...]) -> dict[str, Relation]:
        known = dict(ctes)
        with_ = node.args.get("with_")
        for cte in with_.expressions if with_ else ():
            alias = cte.args["alias"]
            name = alias.name.lower()
            recursive = node.args["with_"].args.get("recursive") and any(
                t.name.lower() == name for t in cte.find_all(exp.Table)
            )
            if recursive:
                known[name] = Relation(None)
            relation = self.query(cte.this, known, outer)
            if recursive or (len(cte.args) > 2 and cte.args.get("key_expressions")):
                relation.barrier = "it is recursive"
            if alias.columns:
                relation.rename([c.name for c in alias.columns])
            known[name] = relation
            self._expressions.append((name, relation))
        return known

    def _select(self, node: exp.Select, ctes: Known, outer: tuple[Scope, ...]) -> Relation:
        scope = Scope(node, outer)
        self._scopes.append(scope)
        from_ = node.args.get("from_")
        if from_ is not None:
            self._item(from_.this, None, scope, ctes, first=True)
        for join in node.args.get("joins") or ():
            self._item(join.this, join, scope, ctes)
        for lateral in node.args.get("laterals") or ():
            self._item(lateral, None, scope, ctes)
        for at, source in enumerate(scope.sources):
            if source.join is not None:
                self._join(at, source.join, scope, ctes)
        # Items of the SELECT list can be named everywhere but in ON.
        names = [e.alias.lower() for e in node.expressions if isinstance(e, exp.Alias)]
        scope.aliases = {
            e.alias.lower(): e.this if names.count(e.alias.lower()) == 1 else exp.Null()
            for e in node.expressions
            if isinstance(e, exp.Alias)
        }
        for key, value in node.args.items():
            if key not in ("from_", "joins", "laterals", "with_"):
                self._values(value, scope, ctes)
        relation = Relation(outputs_of(node, scope, self.names, self._slice), scope)
        distinct = node.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            relation.barrier = "a DISTINCT ON stands between"
        relation.keeps_duplicates = distinct is None
        return relation

    # -- FROM ------------------------------------------------------------------------------

    def _item(
        self,
        node: exp.Expression,
        join: exp.Join | None,
        scope: Scope,
        ctes: Known,
        *,
        first: bool = False,
        nested: bool = False,
    ) -> None:
        if isinstance(node, exp.Table) and not node.args.get("pivots"):
            inner = node.args.get("joins") or ()
            # Joins that hang on the first table of FROM follow it as all others do.
            grouped = bool(inner) and not first
            self._table(node, join, scope, ctes, nested=nested, grouped=grouped or nested)
            for following in inner:
                self._item(following.this, following, scope, ctes, nested=grouped or nested)
            return
        if (
            isinstance(node, exp.Subquery)
            and isinstance(node.this, exp.Table)
            and not any(value for key, value in node.args.items() if key != "this")
        ):
            self._item(node.this, join, scope, ctes, first=first and join is None, nested=nested)
            return
        lateral = node.this if isinstance(node, exp.Lateral) else None
        query = lateral if isinstance(lateral, exp.Subquery) and isinstance(lateral.this, exp.Query) else None
        if isinstance(node, exp.Subquery) and not node.args.get("pivots") and not isinstance(node.this, exp.Table):
            query = node
        alias = node.alias if isinstance(node, (exp.Subquery, exp.Lateral, exp.Unnest, exp.Values)) else ""
        if query is not None:
            relation = self.query(query, ctes, (scope, *scope.outer))
            prunable = not node.args.get("sample") and not nested
            self._derived(alias, relation, join, scope, node.args.get("alias"), prunable=prunable, nested=nested)
            return
        # Pivots, table functions, lateral items: not looked into.
        self.names.opaque(node, scope)
        scope.sources.append(Source(alias, {}, open=True, join=join, nested=nested, prunable=False))

    def _derived(
        self,
        alias: str,
        relation: Relation,
        join: exp.Join | None,
        scope: Scope,
        table_alias: exp.Expression | None,
        *,
        prunable: bool,
        nested: bool,
    ) -> None:
        listed = [c.name for c in table_alias.columns] if isinstance(table_alias, exp.TableAlias) else []
        columns, positions, open_ = relation.seen_as(listed)
        source = Source(
            alias,
            columns,
            open_,
            relation=relation,
            join=join,
            nested=nested,
            prunable=prunable,
            positions=positions,
        )
        relation.uses.append(source)
        scope.sources.append(source)

    def _table(
        self, node: exp.Table, join: exp.Join | None, scope: Scope, ctes: Known, *, nested: bool, grouped: bool
    ) -> None:
        occurrence = self._by_node.get(id(node))
        table_alias = node.args.get("alias")
        alias = node.alias or node.name
        listed = [c.name for c in table_alias.columns] if table_alias is not None else []
        sampled = bool(node.args.get("sample")) or bool(node.args.get("when"))
        prunable = not (sampled or grouped)
        if occurrence is not None:
            self._occurrence(occurrence, alias, listed, join, scope, nested=nested, prunable=prunable)
        elif isinstance(node.this, exp.Identifier) and len(name_parts(node)) == 1 and node.name.lower() in ctes:
            relation = ctes[node.name.lower()]
            self._derived(alias, relation, join, scope, table_alias, prunable=prunable, nested=nested)
        else:
            if not isinstance(node.this, exp.Identifier):
                self._nested(node.this, ctes, (scope, *scope.outer), scope)
            scope.sources.append(Source(alias, {}, open=True, join=join, nested=nested, prunable=False))

    def _occurrence(
        self,
        occurrence: Occurrence,
        alias: str,
        listed: list[str],
        join: exp.Join | None,
        scope: Scope,
        *,
        nested: bool,
        prunable: bool,
    ) -> None:
        table = occurrence.source
        columns = {c: table.exposed.get(c, c) for c in table.columns}
        renamed = None
        open_ = False
        if listed:
            # The names go to the columns by position, so all of them have to be there.
            occurrence.all_used = True
            renamed = dict(zip([*listed, *list(columns)[len(listed) :]], columns, strict=False))
            open_ = bool(table.exposed) or len({n.lower() for n in renamed}) < len(columns)
            columns = {} if open_ else {name: name for name in renamed}
        occurrence.understood = not open_
        scope.sources.append(
            Source(
                alias,
                columns,
                open_,
                None if open_ else occurrence,
                join=join,
                nested=nested,
                prunable=prunable,
                renamed=None if open_ else renamed,
            )
        )

    def _join(self, at: int, join: exp.Join, scope: Scope, ctes: Known) -> None:
        source, before = scope.sources[at], [s for s in scope.sources[:at] if not is_filter(s)]
        if join.method and join.method.upper() == "NATURAL":
            for one in (*before, source):
                self.names.whole(one, one.join or join)
            seen = {name.lower() for s in before for name in s.columns}
            for name in [c for c in source.columns if c.lower() in seen]:
                self._merge(at, name, join, scope)
            if source.open or any(s.open for s in before):
                scope.merged = {name: Merged(None, m.parts, m.join) for name, m in scope.merged.items()}
        for column in join.args.get("using") or ():
            hits = [(s, found) for s in (*before, source) if (found := s.find(column.name)) is not None]
            if len({s.inner(found) for s, found in hits}) > 1 and any(s.inner(f) != f for s, f in hits):
                self.names.refuse(
                    column, f"USING cannot take {column.name!r}, a name that differs only in case", "Use ON."
                )
            for one, found in hits:
                self.names.use(one, found, column)
            if all(not s.open and s.find(column.name) is None for s in (*before, source)):
                self.names.note_unknown(column, [column.name], scope)
            self._merge(at, column.name, join, scope)
        on = join.args.get("on")
        if on is not None:
            self._values(on, scope, ctes)

    def _merge(self, at: int, name: str, join: exp.Join, scope: Scope) -> None:
        """Note that ``name`` is one column of the source at a position and of those before it."""
        right, lower = scope.sources[at], name.lower()
        mine = right.find(name)
        known = scope.merged.get(lower)
        seen = [s for s in scope.sources[:at] if not is_filter(s)]
        before = [(s, found) for s in seen if (found := s.find(name)) is not None and not s.nested]
        parts = known.parts if known is not None else tuple(before)
        left = known.owner if known is not None else before[0] if len(before) == 1 else None
        side = (join.side or "").upper()
        if mine is None or right.nested or any(s.nested for s in seen):
            scope.merged[lower] = Merged(None, (), join)
            return
        both = (*parts, (right, mine))
        if left is not None:
            scope.using.setdefault(at, []).append((left, (right, mine)))
        if side == "RIGHT":
            scope.merged[lower] = Merged((right, mine), both, join)
        elif side == "FULL" or left is None:
            usable = len(before) == 1 and known is None
            scope.merged[lower] = Merged(None, both if usable else (), join)
        else:
            scope.merged[lower] = Merged(left, both, join)

    # -- expressions -----------------------------------------------------------------------

    def _values(self, value: object, scope: Scope, ctes: Known) -> None:
        self._nested(value, ctes, (scope, *scope.outer), scope)

    def _nested(self, value: object, ctes: Known, outer: tuple[Scope, ...], scope: Scope | None = None) -> None:
        """Bind the columns below ``value`` in ``scope`` and walk the queries inside of it."""
        if isinstance(value, list):
            for item in value:
                self._nested(item, ctes, outer, scope)
            return
        if not isinstance(value, exp.Expression):
            return
        if isinstance(value, (exp.Subquery, exp.Select, exp.SetOperation)):
            relation = self.query(value, ctes, outer)
            (self._loose if scope is None else scope.nested).append(relation)
            return
        if isinstance(value, exp.Lambda):
            self._lambda(value, ctes, outer, scope)
            return
        if scope is not None and isinstance(value, exp.Column) and not value.is_star:
            self.names.bind(value, scope)
            return
        if scope is not None and isinstance(value, exp.Dot) and isinstance(value.this, exp.Identifier):
            # A method call such as ``v.abs()``; an unknown name may also be that of a function's schema.
            for level in scope.chain():
                if self.names.bind_at(exp.Column(this=value.this.copy()), [value.this], [value.this.name], level):
                    break
        if scope is not None and (value.is_star or isinstance(value, exp.Columns)):
            self.names.star(value, scope)
        for child in value.args.values():
            self._nested(child, ctes, outer, scope)

    def _lambda(self, node: exp.Lambda, ctes: Known, outer: tuple[Scope, ...], scope: Scope | None) -> None:
        parameters = {e.name.lower() for e in node.expressions}
        for column in list(node.this.find_all(exp.Column)):
            parts = name_parts(column)
            if scope is not None and parts and parts[0].name.lower() not in parameters:
                self.names.bind(column, scope)
        for query in node.this.find_all(exp.Select):
            self._loose.append(self.query(query, ctes, outer))


def _set_operation(node: exp.SetOperation, left: Relation, right: Relation) -> Relation:
    outputs = None
    if left.outputs is not None:
        outputs = [Output(o.name, o.inner) for o in left.outputs]
    relation = Relation(outputs, branches=(left, right))
    relation.keeps_duplicates = isinstance(node, exp.Union) and not node.args.get("distinct")
    if node.args.get("by_name"):
        relation.barrier = "a set operation BY NAME stands between"
        relation.outputs = None
    elif right.outputs is None or left.outputs is None or len(left.outputs) != len(right.outputs):
        relation.barrier = "the columns of a set operation are not known"
    return relation
