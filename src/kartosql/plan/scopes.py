"""Which table of a statement each column reference means, by SQL's scoping rules.

The walk understands the constructs listed in its methods; below anything else it only
notes that all columns of the tables there may be used.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from kartosql.errors import SqlError
from kartosql.plan.occurrences import Columns, Known, Occurrence, Scope, Source, Unknown
from kartosql.sql.tree import name_parts, span_of


class ScopeWalker:
    """Walks a statement once and binds its columns to the table occurrences."""

    def __init__(self, occurrences: Mapping[int, Occurrence]) -> None:
        self._by_node = occurrences  # id of the Table node -> occurrence
        self.scopes: list[Scope] = []
        self.unknown: list[Unknown] = []
        self.bound: dict[int, tuple[Occurrence, str]] = {}  # id of Column node -> table and column
        self._inner_names: dict[int, str] = {}  # id of Column node -> name inside of the engine
        # Identifiers that have another name in the text that is run.
        self.renamed: list[tuple[exp.Identifier, str]] = []

    # -- queries ---------------------------------------------------------------------------

    def query(self, node: exp.Expression, ctes: Known, outer: tuple[Scope, ...]) -> Columns | None:
        """Walk a query and return its output columns, or None when they are not known."""
        if isinstance(node, exp.Subquery):
            inner = self._with(node, ctes, outer)
            if node.args.get("pivots") or isinstance(node.this, exp.Table):
                self.opaque(node, outer[0] if outer else None)
                return None
            return self.query(node.this, inner, outer)
        if isinstance(node, exp.SetOperation):
            inner = self._with(node, ctes, outer)
            left = self.query(node.this, inner, outer)
            self.query(node.expression, inner, outer)
            for key, value in node.args.items():
                if key not in ("this", "expression", "with_"):
                    self._nested(value, inner, outer)
            return left
        if isinstance(node, exp.Select):
            return self._select(node, self._with(node, ctes, outer), outer)
        self.opaque(node, outer[0] if outer else None)
        return None

    def _with(self, node: exp.Expression, ctes: Known, outer: tuple[Scope, ...]) -> dict[str, Columns | None]:
        known = dict(ctes)
        with_ = node.args.get("with_")
        for cte in with_.expressions if with_ else ():
            alias = cte.args["alias"]
            if with_ is not None and with_.args.get("recursive"):
                known[alias.name.lower()] = None
            columns = self.query(cte.this, known, outer)
            if alias.columns:
                columns = None
            known[alias.name.lower()] = columns
        return known

    def _select(self, node: exp.Select, ctes: dict[str, Columns | None], outer: tuple[Scope, ...]) -> Columns | None:
        scope = Scope(node, outer)
        self.scopes.append(scope)
        from_ = node.args.get("from_")
        if from_ is not None:
            self._item(from_.this, None, scope, ctes)
        for join in node.args.get("joins") or ():
            self._item(join.this, join, scope, ctes)
        for lateral in node.args.get("laterals") or ():
            self._item(lateral, None, scope, ctes)
        scope.aliases = {e.alias.lower() for e in node.expressions if isinstance(e, exp.Alias)}
        for source in scope.sources:
            if source.join is not None:
                self._join(source.join, scope, ctes)
        for key, value in node.args.items():
            if key not in ("from_", "joins", "laterals", "with_"):
                self._values(value, scope, ctes)
        return self._outputs(node, scope)

    def _item(self, node: exp.Expression, join: exp.Join | None, scope: Scope, ctes: dict[str, Columns | None]) -> None:
        if isinstance(node, exp.Table) and not node.args.get("pivots"):
            self._table(node, join, scope, ctes)
            return
        lateral = node.this if isinstance(node, exp.Lateral) else None
        if isinstance(lateral, exp.Subquery) and isinstance(lateral.this, exp.Query):
            columns = self.query(lateral, ctes, (scope, *scope.outer))
            renamed = bool(node.args["alias"].columns) if node.args.get("alias") else False
            scope.sources.append(Source(node.alias, None if renamed else columns, None, join))
            return
        alias = node.alias if isinstance(node, (exp.Subquery, exp.Lateral, exp.Unnest, exp.Values)) else ""
        if isinstance(node, exp.Subquery) and not node.args.get("pivots") and not isinstance(node.this, exp.Table):
            columns = self.query(node, ctes, (scope, *scope.outer))
            table_alias = node.args.get("alias")
            if table_alias is not None and table_alias.columns:
                columns = None
            scope.sources.append(Source(alias, columns, None, join))
            return
        # Nested joins, pivots, table functions, lateral items: not looked into.
        self.opaque(node, scope)
        scope.sources.append(Source(alias, None, None, join, prunable=False))

    def _table(self, node: exp.Table, join: exp.Join | None, scope: Scope, ctes: dict[str, Columns | None]) -> None:
        occurrence = self._by_node.get(id(node))
        table_alias = node.args.get("alias")
        alias = node.alias or node.name
        renamed = table_alias is not None and bool(table_alias.columns)
        if occurrence is not None:
            occurrence.understood = not renamed
            exposed = occurrence.source.exposed
            columns: Columns | None = None if renamed else {c: exposed.get(c, c) for c in occurrence.source.columns}
            sampled = bool(node.args.get("sample")) or bool(node.args.get("when"))
            source = Source(alias, columns, None if renamed else occurrence, join, prunable=not sampled)
        elif isinstance(node.this, exp.Identifier):
            columns = None if renamed else ctes.get(node.name.lower())
            source = Source(alias, columns, None, join)
        else:
            self._nested(node.this, ctes, (scope, *scope.outer), scope)
            source = Source(alias, None, None, join)
        scope.sources.append(source)
        for inner in node.args.get("joins") or ():
            self._item(inner.this, inner, scope, ctes)

    def _join(self, join: exp.Join, scope: Scope, ctes: dict[str, Columns | None]) -> None:
        if join.method and join.method.upper() == "NATURAL":
            scope.natural = True
            for source in scope.sources:
                self._whole(source, source.join or join)
        for column in join.args.get("using") or ():
            scope.merged.add(column.name.lower())
            hits = [(s, found) for s in scope.sources if (found := s.find(column.name)) is not None]
            if len({s.inner(found) for s, found in hits}) > 1 and any(s.inner(f) != f for s, f in hits):
                self._refuse(column, f"USING cannot take {column.name!r}, a name that differs only in case", "Use ON.")
            for source, found in hits:
                self._use(source, found, column)
            if all(s.columns is not None and s.find(column.name) is None for s in scope.sources):
                self._note_unknown(column, [column.name], scope)
        on = join.args.get("on")
        if on is not None:
            self._values(on, scope, ctes)

    def _outputs(self, node: exp.Select, scope: Scope) -> Columns | None:
        names: dict[str, str] = {}
        for e in node.expressions:
            if isinstance(e, exp.Alias):
                found = {e.alias: e.alias}
            elif isinstance(e, exp.Column) and not e.is_star:
                # A bare column keeps the name that it has inside of the engine.
                found = {e.name: self._inner_names.get(id(e), e.name)}
            elif isinstance(e, exp.Star) and not any(e.args.values()):
                found = {}
                for source in scope.sources:
                    if source.columns is None or found.keys() & source.columns.keys():
                        return None
                    found |= source.columns
            else:
                return None
            if names.keys() & found.keys():
                return None
            names |= found
        return names

    # -- expressions -----------------------------------------------------------------------

    def _values(self, value: object, scope: Scope, ctes: dict[str, Columns | None]) -> None:
        self._nested(value, ctes, (scope, *scope.outer), scope)

    def _nested(
        self,
        value: object,
        ctes: Known,
        outer: tuple[Scope, ...],
        scope: Scope | None = None,
    ) -> None:
        """Bind the columns below ``value`` in ``scope`` and walk the queries inside of it."""
        if isinstance(value, list):
            for item in value:
                self._nested(item, ctes, outer, scope)
            return
        if not isinstance(value, exp.Expression):
            return
        if isinstance(value, (exp.Subquery, exp.Select, exp.SetOperation)):
            self.query(value, ctes, outer)
            return
        if isinstance(value, exp.Lambda):
            self._lambda(value, ctes, outer, scope)
            return
        if scope is not None and isinstance(value, exp.Column) and not value.is_star:
            self._bind(value, scope)
            return
        if scope is not None and isinstance(value, exp.Dot) and isinstance(value.this, exp.Identifier):
            # A method call such as ``v.abs()``; an unknown name may also be that of a function's schema.
            for level in scope.chain():
                if self._bind_at(exp.Column(this=value.this.copy()), [value.this], [value.this.name], level):
                    break
        if scope is not None and (value.is_star or isinstance(value, exp.Columns)):
            self._star(value, scope)
        for child in value.args.values():
            self._nested(child, ctes, outer, scope)

    def _lambda(
        self,
        node: exp.Lambda,
        ctes: Known,
        outer: tuple[Scope, ...],
        scope: Scope | None,
    ) -> None:
        parameters = {e.name.lower() for e in node.expressions}
        for column in list(node.this.find_all(exp.Column)):
            parts = name_parts(column)
            if scope is not None and parts and parts[0].name.lower() not in parameters:
                self._bind(column, scope)
        for query in node.this.find_all(exp.Select):
            self.query(query, ctes, outer)

    def _star(self, node: exp.Expression, scope: Scope) -> None:
        if isinstance(node, exp.Columns):
            for source in scope.sources:
                self._whole(source, node)
        if isinstance(node, exp.Count) or (isinstance(node, exp.Star) and isinstance(node.parent, exp.Count)):
            return
        qualifier = node.args.get("table") if isinstance(node, exp.Column) else None
        hit = False
        for source in scope.sources:
            if qualifier is None or source.alias.lower() == qualifier.name.lower():
                hit = True
                if source.occurrence is not None:
                    source.occurrence.all_used = True
        if not hit and qualifier is not None and not any(s.find(qualifier.name) for s in scope.sources):
            self._note_unknown(node, [qualifier.name, "*"], scope)

    def _bind(self, node: exp.Column, scope: Scope) -> None:
        """Find what a column reference means and note that it is used."""
        parts = name_parts(node)
        names = [p.name for p in parts]
        for level in scope.chain():
            if self._bind_at(node, parts, names, level):
                return
            if any(s.columns is None for s in level.sources):
                # It may belong to a source whose columns are not known.
                return
            if len(names) == 1 and names[0].lower() in level.aliases:
                return
        self._note_unknown(node, names, scope)

    def _note_unknown(self, node: exp.Expression, names: list[str], scope: Scope) -> None:
        known = [c for level in scope.chain() for s in level.sources for c in sorted(s.columns or ())]
        qualifier = names[-2] if len(names) > 1 else None
        self.unknown.append(Unknown(node, names[-1], qualifier, tuple(dict.fromkeys(known))))

    def _bind_at(self, node: exp.Column, parts: list[exp.Identifier], names: list[str], scope: Scope) -> bool:
        # alias.column, or cube.dataset.column, possibly followed by struct fields
        for at in range(min(2, len(names) - 1)):
            for source in scope.sources:
                if source.alias.lower() != names[at].lower():
                    continue
                if at == 1 and (source.occurrence is None or source.occurrence.name[-2:-1] != (names[0],)):
                    continue
                found = source.find(names[at + 1])
                if found is not None:
                    self._use(source, found, parts[at + 1], node if len(names) == at + 2 else None)
                    if at == 1 and source.occurrence is not None:
                        self.renamed.append((parts[0], source.occurrence.view[0]))
                    return True
        # column, possibly followed by struct fields
        hits = [(s, found) for s in scope.sources if (found := s.find(names[0])) is not None]
        if len(hits) > 1 and any(s.inner(found) != found for s, found in hits):
            # Their names inside of the engine differ, so it would not see that the reference is ambiguous.
            self._refuse(node, f"{names[0]!r} is a column of several tables here", "Name the table of the column.")
        for source, found in hits:
            self._use(source, found, parts[0], node if len(hits) == len(names) == 1 else None)
        if hits:
            return True
        # the name of a table as a value: its whole row
        for source in scope.sources:
            if len(names) == 1 and source.alias.lower() == names[0].lower():
                self._whole(source, node)
                return True
        return False

    def _whole(self, source: Source, node: exp.Expression) -> None:
        """Note that a reference needs all columns of ``source`` under the names that they have."""
        if any(name != column for column, name in (source.columns or {}).items()):
            self._refuse(node, f"{source.alias!r} has columns whose names differ only in case", "Name the columns.")
        if source.occurrence is not None:
            source.occurrence.all_used = True

    def _refuse(self, node: exp.Expression, reason: str, hint: str) -> None:
        raise SqlError(f"{reason[0].upper()}{reason[1:]}.", code="ambiguous-name", hint=hint, span=span_of(node))

    def _use(self, source: Source, column: str, identifier: exp.Identifier, node: exp.Column | None = None) -> None:
        """Note that a reference means ``column`` of ``source``; ``node`` is given if it means nothing else."""
        inner = source.inner(column)
        if inner != column:
            self.renamed.append((identifier, inner))
            if node is not None:
                self._inner_names[id(node)] = inner
        if source.occurrence is not None:
            source.occurrence.use(column)
            if node is not None:
                self.bound[id(node)] = (source.occurrence, column)

    def opaque(self, node: exp.Expression, scope: Scope | None = None) -> None:
        """Note that everything below ``node`` may use all columns of the tables it can see."""
        for table in node.find_all(exp.Table):
            occurrence = self._by_node.get(id(table))
            if occurrence is not None:
                occurrence.all_used = True
        for level in scope.chain() if scope is not None else ():
            for column in node.find_all(exp.Column):
                names = [p.name for p in name_parts(column)]
                for source in level.sources:
                    for name in names:
                        found = source.find(name)
                        if found is not None and source.occurrence is not None:
                            source.occurrence.use(found)
                    if source.occurrence is not None and source.alias.lower() in (n.lower() for n in names):
                        source.occurrence.all_used = True
