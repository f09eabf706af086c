"""Finds what the names of a statement mean, by SQL's scoping rules, and which columns are needed for its rows.

The walk understands the constructs listed in its methods; below anything else it only
notes that all columns of the tables there may be used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from kartosql.errors import SqlError
from kartosql.plan.scopes import (
    Bound,
    Dependencies,
    Member,
    Merged,
    Occurrence,
    Output,
    Relation,
    Scope,
    Source,
    Unknown,
    Walked,
)
from kartosql.predicate.tree import ColumnRef
from kartosql.sql.tree import name_parts, span_of, tokens_of

Known = Mapping[str, Relation]  # common table expressions by lower-case name

_LIMITS = ("limit", "offset", "sample", "fetch")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ ")

# What makes an item of the SELECT list more than a value of one row that is NULL where its columns are: functions that
# may make several rows of one, queries, and what fails or not by whether something is NULL.
_DECISIVE: tuple[Any, ...] = (
    *(exp.Query, exp.UDTF, exp.Anonymous, exp.Columns, exp.Lambda, exp.Case, exp.If, exp.Nvl2, exp.Connector),
    *(exp.Filter, exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ),
)
_AGGREGATES = (exp.Sum, exp.Count, exp.Min, exp.Max, exp.Avg)

# Expressions whose columns get names that no one writes by accident.
_UNNAMED: tuple[Any, ...] = (
    *(exp.Func, exp.Binary, exp.Cast, exp.Literal, exp.Window, exp.Neg, exp.Not, exp.Between, exp.In, exp.Null),
)


class NameBinder:
    """Walks a statement once and binds its columns to the table occurrences."""

    def __init__(self, occurrences: Mapping[int, Occurrence], text: str) -> None:
        self.found = Walked()
        self._text = text
        self._by_node = occurrences  # id of the Table node -> occurrence
        self._inner_names: dict[int, str] = {}  # id of Column node -> name inside of the engine
        self._expressions: list[tuple[str, Relation]] = []
        # Names of common table expressions that are used where the walk does not look.
        self._tainted: set[str] = set()
        self._values = Dependencies()  # what depends on that which is walked now

    def statement(self, tree: exp.Expression) -> None:
        """Walk a whole statement."""
        self.found.root = self._relation(tree, {}, ())
        self._depends(self.found.root.values())
        self.found.expressions = [relation for _, relation in self._expressions]
        for name, relation in self._expressions:
            if name in self._tainted:
                relation.barrier = "it is also used where the planner does not look"
                self._depends(relation.values())
        occurrences = self._by_node.values()
        if not self.found.unknown and self._values.settle(occurrences) and self._loses_names(tree):
            for occurrence in occurrences:
                occurrence.needed = None

    def _loses_names(self, tree: exp.Expression) -> bool:
        """Return whether the tree may lack a column that the text names."""
        # The parser takes a column for a constant where it expects a word, such as the unit of date_trunc.
        lost = Counter(t.text.lower() for t in tokens_of(self._text) if t.token_type != TokenType.STRING)
        lost -= Counter(i.name.lower() for i in tree.find_all(exp.Identifier))
        names = ([*scope.items, *(c for s in scope.sources for c in s.columns)] for scope in self.found.scopes)
        return any(name.lower() in lost for listed in names for name in listed)

    def _depends(self, *values: Dependencies) -> None:
        self._values.others += values

    @contextmanager
    def _making(self, values: Dependencies) -> Iterator[None]:
        """Note what is used as that on which values depend."""
        before, self._values = self._values, values
        yield
        self._values = before

    # -- queries ---------------------------------------------------------------------------

    def _relation(self, node: exp.Expression, ctes: Known, outer: tuple[Scope, ...]) -> Relation:
        relation = self._query(node, ctes, outer)
        limited = next((key for key in _LIMITS if node.args.get(key) is not None), None)
        if limited:
            relation.barrier = relation.barrier or f"a {limited.upper()} stands between"
        self.found.relations[id(node)] = relation
        return relation

    def _query(self, node: exp.Expression, ctes: Known, outer: tuple[Scope, ...]) -> Relation:
        if isinstance(node, exp.Subquery):
            inner = self._with(node, ctes, outer)
            if node.args.get("pivots") or node.args.get("joins") or isinstance(node.this, exp.Table):
                self._opaque(node, outer[0] if outer else None)
                return Relation(None)
            for key in ("order", "limit", "offset"):
                self._nested(node.args.get(key), inner, outer)
            relation = self._relation(node.this, inner, outer)
            if node.args.get("order") is not None:
                self._depends(relation.values())
            return relation
        if isinstance(node, exp.SetOperation):
            inner = self._with(node, ctes, outer)
            left = self._relation(node.this, inner, outer)
            right = self._relation(node.expression, inner, outer)
            for key, value in node.args.items():
                if key not in ("this", "expression", "with_"):
                    self._nested(value, inner, outer)
            if not _keeps_columns_apart(node, left, right):
                self._depends(left.values(), right.values())
            return _set_operation(node, left, right)
        if isinstance(node, exp.Select):
            return self._select(node, self._with(node, ctes, outer), outer)
        self._opaque(node, outer[0] if outer else None)
        return Relation(None)

    def _with(self, node: exp.Expression, ctes: Known, outer: tuple[Scope, ...]) -> dict[str, Relation]:
        known = dict(ctes)
        with_: Any = node.args.get("with_")
        for cte in with_.expressions if with_ else ():
            alias = cte.args["alias"]
            name = alias.name.lower()
            recursive = with_.args.get("recursive") and any(t.name.lower() == name for t in cte.find_all(exp.Table))
            if recursive:
                known[name] = Relation(None)
            relation = self._relation(cte.this, known, outer)
            if recursive or (len(cte.args) > 2 and cte.args.get("key_expressions")):
                relation.barrier = "it is recursive"
                self._depends(relation.values())
            if alias.columns:
                relation.rename([c.name for c in alias.columns])
            known[name] = relation
            self._expressions.append((name, relation))
        return known

    def _select(self, node: exp.Select, ctes: Known, outer: tuple[Scope, ...]) -> Relation:
        scope = Scope(node, outer)
        self.found.scopes.append(scope)
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
        items = [self._values if is_decisive else Dependencies() for is_decisive in _decisive(node)]
        for e, values in zip(node.expressions, items, strict=True):
            if isinstance(e, exp.Alias):
                name = e.alias.lower()
                scope.aliases[name] = exp.Null() if name in scope.aliases else e.this
                scope.items.setdefault(name, Dependencies()).others.append(values)
        for e, values in zip(node.expressions, items, strict=True):
            self._item_of_list(e, values, ctes, scope)
        for key, value in node.args.items():
            if key not in ("expressions", "from_", "joins", "laterals", "with_"):
                self._nested(value, ctes, (scope, *outer), scope)
        relation = Relation(self._outputs(node, scope, items), scope)
        relation.whole.others += [*items, *(s.values() for s in scope.sources if relation.outputs is None)]
        distinct = node.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            relation.barrier = "a DISTINCT ON stands between"
        relation.keeps_duplicates = distinct is None
        return relation

    def _item_of_list(self, node: exp.Expression, values: Dependencies, ctes: Known, scope: Scope) -> None:
        """Bind an item of the SELECT list on which nothing but ``values`` depends."""
        around, star = (scope, *scope.outer), node.this if isinstance(node, exp.Column) else node
        if not isinstance(star, exp.Star):
            with self._making(values):
                self._nested(node, ctes, around, scope)
            return
        # Each column of it depends on its own; columns that are left out have to be there.
        with self._making(self._values if values is self._values else Dependencies()):
            self._star(node, scope)
            self._nested([v for k, v in star.args.items() if k != "replace"], ctes, around, scope)
        with self._making(values):
            self._nested(star.args.get("replace"), ctes, around, scope)

    def _outputs(self, node: exp.Select, scope: Scope, items: Sequence[Dependencies]) -> list[Output] | None:
        """Return the output columns of a SELECT in order, or None where they are not known."""
        found: list[Output] = []
        for e, values in zip(node.expressions, items, strict=True):
            if isinstance(e, exp.Alias):
                found.append(Output(e.alias, e.alias, e.this, self._source(e.this), values))
            elif isinstance(e, exp.Star) or (isinstance(e, exp.Column) and isinstance(e.this, exp.Star)):
                expanded = _star(e, scope, values)
                if expanded is None:
                    return None
                found += expanded
            elif isinstance(e, exp.Column):
                # A bare column keeps the name that it has inside of the engine.
                found.append(Output(e.name, self._inner_names.get(id(e), e.name), e, self._source(e), values))
            elif isinstance(e, _UNNAMED) and not isinstance(e, (exp.Dot, exp.Bracket)):
                span = span_of(e)
                is_made_up = span is not None and not _PLAIN.issuperset(self._text[span[0] : span[1]])
                if not is_made_up or (e.find(exp.Columns, exp.Star) and not isinstance(e, exp.Count)):
                    return None
                found.append(Output(None, "", e, values=values))
            else:
                return None
        if any(o.name is None for o in found) and not all(o.name is None or _PLAIN.issuperset(o.name) for o in found):
            # The name that the engine makes up for an expression might be one of these.
            return None
        return found

    def _source(self, node: exp.Expression) -> ColumnRef | None:
        bound = self.found.bound.get(id(node)) if isinstance(node, exp.Column) else None
        return bound.ref if bound is not None and bound.source is not None else None

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
        alias, names = node.args.get("alias"), list[str]()
        if isinstance(alias, exp.TableAlias):
            names = [c.name for c in alias.columns]
        place = partial(Source, join=join, nested=nested)
        if isinstance(node, exp.Table) and not node.args.get("pivots"):
            inner = node.args.get("joins") or ()
            # Joins that hang on the first table of FROM follow it as all others do.
            grouped = nested or (bool(inner) and not first)
            prunable = not (grouped or node.args.get("sample"))
            self._table(node, names, scope, ctes, partial(place, node.alias or node.name, prunable=prunable))
            for following in inner:
                self._item(following.this, following, scope, ctes, nested=grouped)
            return
        is_query = isinstance(node, exp.Subquery) and not node.args.get("pivots")
        if is_query and isinstance(node.this, exp.Table):
            if not any(value for key, value in node.args.items() if key != "this"):
                self._item(node.this, join, scope, ctes, first=first and join is None, nested=nested)
                return
            is_query = False
        query: Any = node if is_query else node.this if isinstance(node, exp.Lateral) else None
        name = node.alias if isinstance(node, (exp.Subquery, exp.Lateral, exp.Unnest, exp.Values)) else ""
        if is_query or (isinstance(query, exp.Subquery) and isinstance(query.this, exp.Query)):
            relation = self._relation(query, ctes, (scope, *scope.outer))
            prunable = not node.args.get("sample") and not nested
            self._derived(relation, names, scope, partial(place, name, prunable=prunable))
            return
        # Pivots, table functions, lateral items: not looked into.
        self._opaque(node, scope)
        scope.sources.append(place(name, {}, open=True, prunable=False))

    def _derived(self, relation: Relation, names: list[str], scope: Scope, place: Callable[..., Source]) -> None:
        columns, positions, open_ = relation.seen_as(names)
        source = place(columns, open_, relation=relation, positions=positions)
        relation.uses.append(source)
        scope.sources.append(source)

    def _table(
        self, node: exp.Table, names: list[str], scope: Scope, ctes: Known, place: Callable[..., Source]
    ) -> None:
        occurrence = self._by_node.get(id(node))
        is_name = isinstance(node.this, exp.Identifier)
        if occurrence is not None:
            scope.sources.append(_of_occurrence(occurrence, names, place))
        elif is_name and len(name_parts(node)) == 1 and node.name.lower() in ctes:
            self._derived(ctes[node.name.lower()], names, scope, place)
        else:
            if not is_name:
                self._nested(node.this, ctes, (scope, *scope.outer), scope)
            scope.sources.append(place({}, open=True, prunable=False))

    def _join(self, at: int, join: exp.Join, scope: Scope, ctes: Known) -> None:
        source, before = scope.sources[at], [s for s in scope.sources[:at] if not s.is_filter]
        if join.method and join.method.upper() == "NATURAL":
            with self._making(Dependencies()):  # they all have to be there, and those in common are compared
                for one in (*before, source):
                    self._whole(one, one.join or join)
            seen = {name.lower() for s in before for name in s.columns}
            for name in [c for c in source.columns if c.lower() in seen]:
                self._depends(*(s.values(found) for s, found in _having((*before, source), name)))
                self._merge(at, name, join, scope)
            if source.open or any(s.open for s in before):
                self._depends(*(s.values() for s in (*before, source)))
                scope.merged = {name: Merged(None, m.parts, m.join) for name, m in scope.merged.items()}
        for column in join.args.get("using") or ():
            hits = _having((*before, source), column.name)
            if len({s.inner(found) for s, found in hits}) > 1 and any(s.inner(f) != f for s, f in hits):
                self._refuse(column, f"USING cannot take {column.name!r}, a name that differs only in case", "Use ON.")
            for one, found in hits:
                self._use(one, found, column)
            self._depends_on_open(s for s in (*before, source) if s.find(column.name) is None)
            if not hits and not any(s.open for s in (*before, source)):
                self.found.unknown.append(_unknown(column, [column.name], scope))
            self._merge(at, column.name, join, scope)
        self._nested(join.args.get("on"), ctes, (scope, *scope.outer), scope)

    def _merge(self, at: int, name: str, join: exp.Join, scope: Scope) -> None:
        """Note that ``name`` is one column of the source at a position and of those before it."""
        right, lower = scope.sources[at], name.lower()
        mine = right.find(name)
        known = scope.merged.get(lower)
        seen = [s for s in scope.sources[:at] if not s.is_filter]
        before = [Bound(s, found) for s, found in _having(seen, name) if not s.nested]
        parts = known.parts if known is not None else tuple(b.ref for b in before)
        left = known.owner if known is not None else before[0] if len(before) == 1 else None
        side = (join.side or "").upper()
        if mine is None or right.nested or any(s.nested for s in seen):
            scope.merged[lower] = Merged(None, (), join)
            return
        own = Bound(right, mine)
        both = (*parts, own.ref)
        if left is not None:
            scope.using.setdefault(at, []).append((left.ref, own.ref))
        if side == "RIGHT":
            scope.merged[lower] = Merged(own, both, join)
        elif side == "FULL" or left is None:
            usable = len(before) == 1 and known is None
            scope.merged[lower] = Merged(None, both if usable else (), join)
        else:
            scope.merged[lower] = Merged(left, both, join)

    def _nested(self, value: object, ctes: Known, outer: tuple[Scope, ...], scope: Scope | None = None) -> None:
        """Bind the columns below ``value`` in ``scope`` and walk the queries inside of it."""
        if isinstance(value, list):
            for item in value:
                self._nested(item, ctes, outer, scope)
            return
        if not isinstance(value, exp.Expression):
            return
        if isinstance(value, (exp.Subquery, exp.Select, exp.SetOperation)):
            relation = self._relation(value, ctes, outer)
            (self.found.loose if scope is None else scope.nested).append(relation)
            if not isinstance(value.parent, exp.Exists):
                self._depends(relation.values())
            return
        if isinstance(value, exp.Lambda):
            self._lambda(value, ctes, outer, scope)
            return
        if scope is not None and isinstance(value, exp.Column) and not value.is_star:
            self._bind(value, scope)
            return
        if scope is not None and isinstance(value, (exp.Identifier, exp.Var)) and value.arg_key != "alias":
            # Not a column to the parser, which it may be all the same.
            self._depends_on_items(value.name, scope)
            for level in scope.chain():
                self._depends_on_open(level.sources)
                named = [(s, c) for s in level.sources for c in s.columns if c.lower() == value.name.lower()]
                self._depends(*(s.values(column) for s, column in named))
        if scope is not None and isinstance(value, exp.Dot) and isinstance(value.this, exp.Identifier):
            # A method call such as ``v.abs()``; an unknown name may also be that of a function's schema.
            self._depends_on_items(value.this.name, scope)
            for level in scope.chain():
                if self._bind_at(exp.Column(this=value.this.copy()), [value.this], [value.this.name], level):
                    break
                self._depends_on_open(level.sources)
        if scope is not None and (value.is_star or isinstance(value, exp.Columns)):
            self._star(value, scope)
        for child in value.args.values():
            self._nested(child, ctes, outer, scope)

    def _lambda(self, node: exp.Lambda, ctes: Known, outer: tuple[Scope, ...], scope: Scope | None) -> None:
        parameters = {e.name.lower() for e in node.expressions}
        for column in list(node.this.find_all(exp.Column)):
            parts = name_parts(column)
            if scope is not None and parts and parts[0].name.lower() not in parameters:
                self._bind(column, scope)
        for query in node.this.find_all(exp.Select):
            self.found.loose.append(self._relation(query, ctes, outer))
            self._depends(self.found.loose[-1].values())

    # -- columns ---------------------------------------------------------------------------

    def _bind(self, node: exp.Column, scope: Scope) -> None:
        """Find what a column reference means and note that it is used."""
        parts = name_parts(node)
        names = [p.name for p in parts]
        levels = list(scope.chain())
        self._depends_on_items(names[0], scope)
        for at, level in enumerate(levels):
            if self._bind_at(node, parts, names, level):
                if len(levels) > 1:
                    self.found.members.pop(id(node), None)  # further out the name may mean something as well
                if _may_be_field(names, level):
                    self._may_use(node, parts, names, levels[at + 1 :])
                return
            if any(s.open for s in level.sources):
                # It may belong to a source whose columns are not known, or to a query further out.
                named = [s for s in level.sources if len(names) == 2 and s.is_called(names[0])]
                if len(named) == 1 and not named[0].open:
                    self.found.missing.append(_unknown(node, names, scope))
                self._depends_on_open(level.sources)
                self._may_use(node, parts, names, levels[at + 1 :])
                return
            if len(names) == 1 and names[0].lower() in level.aliases:
                if level is scope:
                    self.found.bound[id(node)] = Bound(alias=level.aliases[names[0].lower()])
                return
        self.found.unknown.append(_unknown(node, names, scope))

    def _bind_at(self, node: exp.Column, parts: list[exp.Identifier], names: list[str], scope: Scope) -> bool:
        """Bind a reference to the sources of one scope; False if none of them explains it."""
        # alias.column, or cube.dataset.column, possibly followed by struct fields
        for at in range(min(2, len(names) - 1)):
            named = [s for s in scope.sources if s.is_called(names[at])]
            if at == 1:
                named = [s for s in named if s.occurrence is not None and s.occurrence.name[-2:-1] == (names[0],)]
            # An alias may be there again after one that SEMI or ANTI hides.
            meant = _having(named, names[at + 1])
            if len(named) == 1 and meant and len(names) > at + 2:
                self.found.members[id(node)] = Member(*meant[0], at + 2)
            for source, found in meant:
                self._use(source, found, parts[at + 1], node if len(named) == 1 and len(names) == at + 2 else None)
                if at == 1 and source.occurrence is not None:
                    self.found.renamed.append((parts[0], source.occurrence.view[0]))
            if meant:
                return True
        # column, possibly followed by struct fields
        hits = [hit for hit in _having(scope.sources, names[0]) if len(names) == 1 or _has_fields(*hit)]
        if len(hits) > 1 and any(s.inner(found) != found for s, found in hits):
            # Their names inside of the engine differ, so it would not see that the reference is ambiguous.
            self._refuse(node, f"{names[0]!r} is a column of several tables here", "Name the table of the column.")
        if len(names) > 1 and len(hits) == 1 and names[0].lower() not in scope.merged:
            self.found.members[id(node)] = Member(*hits[0], 1)
        merged = scope.merged.get(names[0].lower()) if len(names) == 1 else None
        for source, found in hits:
            self._use(source, found, parts[0], node if len(hits) == len(names) == 1 and merged is None else None)
        if hits and merged is not None and len(hits) <= len(merged.parts):
            self.found.bound[id(node)] = merged.owner or Bound(merged=merged, column=names[0])
        if hits:
            return True
        # the name of a table as a value: its whole row
        for source in scope.sources:
            if len(names) == 1 and source.is_called(names[0]):
                self._whole(source, node)
                return True
        return False

    def _may_use(
        self, node: exp.Column, parts: list[exp.Identifier], names: list[str], levels: Sequence[Scope]
    ) -> None:
        """Note that a reference may mean a column of one of ``levels``, without saying that it does."""
        self._depends_on_open(s for level in levels for s in level.sources)
        for source in (s for level in levels for s in level.sources):
            for at, name in enumerate(names[:-1][:2]):
                column = source.find(names[at + 1]) if source.is_called(name) else None
                if column is not None:
                    self._use(source, column, parts[at + 1])
            column = source.find(names[0])
            if column is not None:
                if source.inner(column) != column:
                    self._refuse(node, f"what {names[0]!r} means cannot be told here", "Name the table of the column.")
                self._depends(source.use(column))
            elif len(names) == 1 and source.is_called(names[0]):
                self._whole(source, node)

    def _whole(self, source: Source, node: exp.Expression) -> None:
        """Note that a reference needs all columns of ``source`` under the names that they have."""
        if any(name != column for column, name in source.columns.items()):
            self._refuse(node, f"{source.alias!r} has columns whose names differ only in case", "Name the columns.")
        self._depends(source.use())

    def _depends_on_open(self, sources: Iterable[Source]) -> None:
        """Note that a name may be that of a column which is not known."""
        self._depends(*(s.values() for s in sources if s.open))

    def _depends_on_items(self, name: str, scope: Scope) -> None:
        """Note that a name may be that of an item of a SELECT list."""
        self._depends(*(level.items[name.lower()] for level in scope.chain() if name.lower() in level.items))

    def _refuse(self, node: exp.Expression, reason: str, hint: str) -> NoReturn:
        raise SqlError(f"{reason[0].upper()}{reason[1:]}.", code="ambiguous-name", hint=hint, span=span_of(node))

    def _use(self, source: Source, column: str, identifier: exp.Identifier, node: exp.Column | None = None) -> None:
        """Note that a reference means ``column`` of ``source``; ``node`` is given if it means nothing else."""
        inner = source.inner(column)
        if inner != column:
            self.found.renamed.append((identifier, inner))
            if node is not None:
                self._inner_names[id(node)] = inner
        self._depends(source.use(column))
        if node is not None:
            self.found.bound[id(node)] = Bound(source, column)

    def _star(self, node: exp.Expression, scope: Scope) -> None:
        """Note what ``*``, ``t.*`` and ``COLUMNS(...)`` use."""
        if isinstance(node, exp.Columns):
            for source in scope.sources:
                self._whole(source, node)
        if isinstance(node, exp.Star) and isinstance(node.parent, (exp.Count, exp.Column)):
            return  # it counts rows, or is the star of a table, which is met before
        qualifier = node.args.get("table") if isinstance(node, exp.Column) else None
        hit = False
        for source in scope.sources:
            if qualifier is None or source.is_called(qualifier.name):
                hit = True
                self._depends(source.use())
        if not hit and qualifier is not None and not any(s.find(qualifier.name) for s in scope.sources):
            self.found.unknown.append(_unknown(node, [qualifier.name, "*"], scope))

    def _opaque(self, node: exp.Expression, scope: Scope | None = None) -> None:
        """Note that everything below ``node`` may use all columns of the tables it can see."""
        for table in node.find_all(exp.Table):
            occurrence = self._by_node.get(id(table))
            if occurrence is not None:
                occurrence.all_used = True
            else:
                self._tainted.add(table.name.lower())
        sources = [s for level in scope.chain() for s in level.sources] if scope is not None else []
        for column in node.find_all(exp.Column) if sources else ():
            names = [p.name for p in name_parts(column)]
            for source in sources:
                self._depends(*(source.use(found) for found in filter(None, map(source.find, names))))
                if source.open or any(map(source.is_called, names)):
                    self._depends(source.use())


def _of_occurrence(occurrence: Occurrence, names: list[str], place: Callable[..., Source]) -> Source:
    table = occurrence.source
    columns = {c: table.exposed.get(c, c) for c in table.columns}
    if not names:
        occurrence.understood = True
        return place(columns, occurrence=occurrence)
    # The names go to the columns by position, so all of them have to be there.
    occurrence.all_used = True
    renamed = dict(zip([*names, *list(columns)[len(names) :]], columns, strict=False))
    occurrence.understood = not table.exposed and len({n.lower() for n in renamed}) == len(columns)
    if not occurrence.understood:
        return place({}, open=True)
    return place({name: name for name in renamed}, occurrence=occurrence, renamed=renamed)


def _set_operation(node: exp.SetOperation, left: Relation, right: Relation) -> Relation:
    outputs = None
    if left.outputs is not None:
        outputs = [Output(o.name, o.inner) for o in left.outputs]
        if _keeps_columns_apart(node, left, right):
            for output, *sides in zip(outputs, left.outputs, right.outputs or (), strict=True):
                output.values.others += [o.values for o in sides]
    relation = Relation(outputs, branches=(left, right))
    relation.keeps_duplicates = isinstance(node, exp.Union) and not node.args.get("distinct")
    if node.args.get("by_name"):
        relation.barrier = "a set operation BY NAME stands between"
        relation.outputs = None
    elif right.outputs is None or left.outputs is None or len(left.outputs) != len(right.outputs):
        relation.barrier = "the columns of a set operation are not known"
    return relation


def _keeps_columns_apart(node: exp.SetOperation, left: Relation, right: Relation) -> bool:
    """Return whether a column of a set operation is that of one query or that of the other, whatever else they have."""
    if not isinstance(node, exp.Union) or any(map(node.args.get, ("distinct", "by_name", "order"))):
        return False
    return left.outputs is not None and right.outputs is not None and len(left.outputs) == len(right.outputs)


def _decisive(select: exp.Select) -> list[bool]:
    """Return for each item of a SELECT list whether rows of the result depend on it, or their order."""
    group, order = select.args.get("group"), select.args.get("order")
    if select.args.get("distinct") is not None:
        return [True] * len(select.expressions)
    # Keys may be positions, ALL and others that are no names of columns, or names that a star gives to others.
    gives = any(s.args.get("replace") or s.args.get("rename") for e in select.expressions for s in e.find_all(exp.Star))
    if order is not None and (gives or not all(_is_named(o.this) for o in order.expressions)):
        return [True] * len(select.expressions)
    sets = group is not None and any(v for k, v in group.args.items() if k not in ("expressions", "all"))
    by_items = group is not None and (group.args.get("all") or not all(map(_is_named, group.expressions)))
    found = []
    for e in select.expressions:
        is_key = sets or (by_items and (e.find(*_AGGREGATES) is None or e.find(exp.Window) is not None))
        values = (value for given in e.find_all(exp.Coalesce) for value in given.expressions)
        is_odd = any(not isinstance(v, (exp.Column, exp.Literal, exp.Null)) for v in values)
        found.append(bool(is_key or is_odd or e.find(*_DECISIVE) is not None))
    return found


def _is_named(key: exp.Expression) -> bool:
    """Return whether a key of GROUP BY or ORDER BY is an expression over columns by their names."""
    return key.find(exp.Column) is not None and key.find(exp.Columns, exp.Star) is None and key.name.upper() != "ALL"


def _having(sources: Iterable[Source], name: str) -> list[tuple[Source, str]]:
    """Return the sources that have a column, with its name there."""
    return [(s, found) for s in sources if (found := s.find(name)) is not None]


def _unknown(node: exp.Expression, names: list[str], scope: Scope) -> Unknown:
    sources = [s for level in scope.chain() for s in level.sources]
    qualifier = names[-2] if len(names) > 1 else None
    named = [s for s in sources if qualifier is not None and s.is_called(qualifier)]
    columns = dict.fromkeys(c for s in named or sources for c in sorted(s.columns))
    aliases = dict.fromkeys(s.alias for s in sources if s.alias)
    return Unknown(node, names[-1], qualifier, tuple(columns), tuple(aliases))


def _may_be_field(names: list[str], scope: Scope) -> bool:
    """Return whether a reference was taken for a field of a column that may have none."""
    if len(names) == 1 or any(s.alias.lower() in (n.lower() for n in names[:2]) for s in scope.sources):
        return False
    return any(s.occurrence is None and s.find(names[0]) is not None for s in scope.sources)


def _has_fields(source: Source, column: str) -> bool:
    """Return whether a column may have fields; the type of an expression is not known here."""
    if source.occurrence is None:
        return True
    type_ = source.occurrence.source.columns[source.real(column)]
    return bool(pa.types.is_nested(type_) or pa.types.is_null(type_))


def _star(node: exp.Expression, scope: Scope, replaced: Dependencies) -> list[Output] | None:
    star = node.this if isinstance(node, exp.Column) else node
    sources = [s for s in scope.sources if not s.is_filter]
    qualifier = node.args.get("table") if isinstance(node, exp.Column) else None
    if qualifier is not None:
        sources = [s for s in sources if s.is_called(qualifier.name)]
        if len(sources) != 1:
            return None
    if any(s.open for s in sources) or (any(s.nested for s in sources) and scope.merged):
        return None
    found: list[Output] = []
    merged: set[str] = set()
    for source in sources:
        for column, inner in source.columns.items():
            one = scope.merged.get(column.lower()) if qualifier is None else None
            if one is None:
                found.append(Output(column, inner, None, (source.id, column), source.values(column)))
            elif column.lower() not in merged:
                merged.add(column.lower())  # rows depend on it, too
                found.append(Output(column, inner, None, one.owner.ref if one.owner else None))
    return _modified(found, star, replaced)


def _modified(found: list[Output], star: exp.Expression, values: Dependencies) -> list[Output] | None:
    """Apply EXCLUDE, REPLACE, whose expressions depend on ``values``, and RENAME."""
    if any(value for key, value in star.args.items() if key not in ("except_", "replace", "rename")):
        return None
    dropped = {e.name.lower() for e in star.args.get("except_") or ()}
    replaced = {e.alias.lower(): e.this for e in star.args.get("replace") or () if isinstance(e, exp.Alias)}
    renamed = {e.this.name.lower(): e.alias for e in star.args.get("rename") or () if isinstance(e, exp.Alias)}
    if any(isinstance(e, exp.Column) and e.args.get("table") for e in star.args.get("except_") or ()):
        return None
    if dropped | replaced.keys() | renamed.keys() and len({(o.name or "").lower() for o in found}) < len(found):
        return None  # which of several is meant is not known
    result = []
    for output in found:
        lower = (output.name or "").lower()
        if lower in dropped:
            continue
        if lower in replaced:
            output = Output(output.name, output.inner, replaced[lower], values=values)
        elif lower in renamed:
            output = Output(renamed[lower], renamed[lower], output.value, output.source, output.values)
        result.append(output)
    return result
