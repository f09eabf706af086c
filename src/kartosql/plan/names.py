"""What column references mean in a scope, their names in the text that is run, and the columns of a SELECT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from kartosql.errors import SqlError
from kartosql.plan.table_refs import Bound, Member, Occurrence, Output, Scope, Source, Unknown
from kartosql.sql.tree import name_parts, span_of


class NameBinder:
    """Binds the columns of one statement to the sources of its scopes."""

    def __init__(self, occurrences: Mapping[int, Occurrence]) -> None:
        self.by_node = occurrences  # id of the Table node -> occurrence
        self.unknown: list[Unknown] = []
        # Columns of known tables that are not there, beside tables that are not known.
        self.missing: list[Unknown] = []
        self.bound: dict[int, Bound] = {}  # by id of the Column node
        self.members: dict[int, Member] = {}  # by id of the Column node; those of which the meaning is certain
        self.inner_names: dict[int, str] = {}  # id of Column node -> name inside of the engine
        # Identifiers that have another name in the text that is run.
        self.renamed: list[tuple[exp.Identifier, str]] = []
        # Names of common table expressions that are used where the walk does not look.
        self.tainted: set[str] = set()

    def bind(self, node: exp.Column, scope: Scope) -> None:
        """Find what a column reference means and note that it is used."""
        parts = name_parts(node)
        names = [p.name for p in parts]
        levels = list(scope.chain())
        for at, level in enumerate(levels):
            if self.bind_at(node, parts, names, level):
                if len(levels) > 1:
                    self.members.pop(id(node), None)  # further out the name may mean something as well
                if _may_be_field(names, level):
                    self._may_use(node, parts, names, levels[at + 1 :])
                return
            if any(s.open for s in level.sources):
                # It may belong to a source whose columns are not known, or to a query further out.
                named = [s for s in level.sources if len(names) == 2 and s.alias.lower() == names[0].lower()]
                if len(named) == 1 and not named[0].open:
                    self.missing.append(_unknown(node, names, scope))
                self._may_use(node, parts, names, levels[at + 1 :])
                return
            if len(names) == 1 and names[0].lower() in level.aliases:
                if level is scope:
                    self.bound[id(node)] = Bound(alias=level.aliases[names[0].lower()])
                return
        self.note_unknown(node, names, scope)

    def note_unknown(self, node: exp.Expression, names: list[str], scope: Scope) -> None:
        """Note a reference that nothing explains."""
        self.unknown.append(_unknown(node, names, scope))

    def bind_at(self, node: exp.Column, parts: list[exp.Identifier], names: list[str], scope: Scope) -> bool:
        """Bind a reference to the sources of one scope; False if none of them explains it."""
        # alias.column, or cube.dataset.column, possibly followed by struct fields
        for at in range(min(2, len(names) - 1)):
            named = [s for s in scope.sources if s.alias.lower() == names[at].lower()]
            if at == 1:
                named = [s for s in named if s.occurrence is not None and s.occurrence.name[-2:-1] == (names[0],)]
            # An alias may be there again after one that SEMI or ANTI hides.
            meant = [(s, found) for s in named if (found := s.find(names[at + 1])) is not None]
            if len(named) == 1 and meant and len(names) > at + 2:
                self.members[id(node)] = Member(*meant[0], at + 2)
            for source, found in meant:
                self.use(source, found, parts[at + 1], node if len(named) == 1 and len(names) == at + 2 else None)
                if at == 1 and source.occurrence is not None:
                    self.renamed.append((parts[0], source.occurrence.view[0]))
            if meant:
                return True
        # column, possibly followed by struct fields
        hits = [(s, found) for s in scope.sources if (found := s.find(names[0])) is not None]
        if len(names) > 1:
            hits = [(s, found) for s, found in hits if _has_fields(s, found)]
        if len(hits) > 1 and any(s.inner(found) != found for s, found in hits):
            # Their names inside of the engine differ, so it would not see that the reference is ambiguous.
            self.refuse(node, f"{names[0]!r} is a column of several tables here", "Name the table of the column.")
        if len(names) > 1 and len(hits) == 1 and names[0].lower() not in scope.merged:
            self.members[id(node)] = Member(*hits[0], 1)
        merged = scope.merged.get(names[0].lower()) if len(names) == 1 else None
        for source, found in hits:
            self.use(source, found, parts[0], node if len(hits) == len(names) == 1 and merged is None else None)
        if hits and merged is not None and len(hits) <= len(merged.parts):
            self.bound[id(node)] = Bound(*merged.owner) if merged.owner else Bound(merged=merged, column=names[0])
        if hits:
            return True
        # the name of a table as a value: its whole row
        for source in scope.sources:
            if len(names) == 1 and source.alias.lower() == names[0].lower():
                self.whole(source, node)
                return True
        return False

    def _may_use(
        self, node: exp.Column, parts: list[exp.Identifier], names: list[str], levels: Sequence[Scope]
    ) -> None:
        """Note that a reference may mean a column of one of ``levels``, without saying that it does."""
        for source in (s for level in levels for s in level.sources):
            for at, name in enumerate(names[:-1][:2]):
                column = source.find(names[at + 1]) if source.alias.lower() == name.lower() else None
                if column is not None:
                    self.use(source, column, parts[at + 1])
            column = source.find(names[0])
            if column is not None:
                if source.inner(column) != column:
                    self.refuse(node, f"what {names[0]!r} means cannot be told here", "Name the table of the column.")
                if source.occurrence is not None:
                    source.occurrence.use(source.real(column))
            elif len(names) == 1 and source.alias.lower() == names[0].lower():
                self.whole(source, node)

    def whole(self, source: Source, node: exp.Expression) -> None:
        """Note that a reference needs all columns of ``source`` under the names that they have."""
        if any(name != column for column, name in source.columns.items()):
            self.refuse(node, f"{source.alias!r} has columns whose names differ only in case", "Name the columns.")
        if source.occurrence is not None:
            source.occurrence.all_used = True

    def refuse(self, node: exp.Expression, reason: str, hint: str) -> None:
        """Raise ``ambiguous-name``."""
        raise SqlError(f"{reason[0].upper()}{reason[1:]}.", code="ambiguous-name", hint=hint, span=span_of(node))

    def use(self, source: Source, column: str, identifier: exp.Identifier, node: exp.Column | None = None) -> None:
        """Note that a reference means ``column`` of ``source``; ``node`` is given if it means nothing else."""
        inner = source.inner(column)
        if inner != column:
            self.renamed.append((identifier, inner))
            if node is not None:
                self.inner_names[id(node)] = inner
        if source.occurrence is not None:
            source.occurrence.use(source.real(column))
        if node is not None:
            self.bound[id(node)] = Bound(source, column)

    def star(self, node: exp.Expression, scope: Scope) -> None:
        """Note what ``*``, ``t.*`` and ``COLUMNS(...)`` use."""
        if isinstance(node, exp.Columns):
            for source in scope.sources:
                self.whole(source, node)
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
            self.note_unknown(node, [qualifier.name, "*"], scope)

    def opaque(self, node: exp.Expression, scope: Scope | None = None) -> None:
        """Note that everything below ``node`` may use all columns of the tables it can see."""
        for table in node.find_all(exp.Table):
            occurrence = self.by_node.get(id(table))
            if occurrence is not None:
                occurrence.all_used = True
            else:
                self.tainted.add(table.name.lower())
        for level in scope.chain() if scope is not None else ():
            for column in node.find_all(exp.Column):
                names = [p.name for p in name_parts(column)]
                for source in level.sources:
                    for name in names:
                        found = source.find(name)
                        if found is not None and source.occurrence is not None:
                            source.occurrence.use(source.real(found))
                    if source.occurrence is not None and source.alias.lower() in (n.lower() for n in names):
                        source.occurrence.all_used = True


def _unknown(node: exp.Expression, names: list[str], scope: Scope) -> Unknown:
    sources = [s for level in scope.chain() for s in level.sources]
    qualifier = names[-2] if len(names) > 1 else None
    named = [s for s in sources if qualifier is not None and s.alias.lower() == qualifier.lower()]
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


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ ")

# Expressions whose columns get names that no one writes by accident.
_UNNAMED: tuple[Any, ...] = (
    exp.Func,
    exp.Binary,
    exp.Cast,
    exp.Literal,
    exp.Window,
    exp.Neg,
    exp.Not,
    exp.Between,
    exp.In,
    exp.Null,
)


def outputs_of(
    node: exp.Select, scope: Scope, names: NameBinder, slice_: Callable[[exp.Expression], str | None]
) -> list[Output] | None:
    """Return the output columns of a SELECT in order, or None where they are not known."""
    found: list[Output] = []
    for e in node.expressions:
        if isinstance(e, exp.Alias):
            found.append(Output(e.alias, e.alias, e.this, _source(e.this, names)))
        elif isinstance(e, exp.Star) or (isinstance(e, exp.Column) and isinstance(e.this, exp.Star)):
            expanded = _star(e, scope)
            if expanded is None:
                return None
            found += expanded
        elif isinstance(e, exp.Column):
            # A bare column keeps the name that it has inside of the engine.
            found.append(Output(e.name, names.inner_names.get(id(e), e.name), e, _source(e, names)))
        elif isinstance(e, _UNNAMED) and not isinstance(e, (exp.Dot, exp.Bracket)):
            text = slice_(e)
            if text is None or set(text) <= _PLAIN or (e.find(exp.Columns, exp.Star) and not isinstance(e, exp.Count)):
                return None
            found.append(Output(None, "", e))
        else:
            return None
    if any(o.name is None for o in found) and not all(o.name is None or set(o.name) <= _PLAIN for o in found):
        # The name that the engine makes up for an expression might be one of these.
        return None
    return found


def _source(node: exp.Expression, names: NameBinder) -> tuple[Source, str] | None:
    bound = names.bound.get(id(node)) if isinstance(node, exp.Column) else None
    return (bound.source, bound.column) if bound is not None and bound.source is not None else None


def _star(node: exp.Expression, scope: Scope) -> list[Output] | None:
    """Return what ``*`` and ``t.*`` stand for."""
    star = node.this if isinstance(node, exp.Column) else node
    sources = [s for s in scope.sources if not is_filter(s)]
    qualifier = node.args.get("table") if isinstance(node, exp.Column) else None
    if qualifier is not None:
        sources = [s for s in sources if s.alias.lower() == qualifier.name.lower()]
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
                found.append(Output(column, inner, None, (source, column)))
            elif column.lower() not in merged:
                merged.add(column.lower())
                found.append(Output(column, inner, None, one.owner))
    return _modified(found, star)


def is_filter(source: Source) -> bool:
    """Return whether a source only filters others (SEMI and ANTI joins), so that its columns are not seen."""
    return source.join is not None and (source.join.kind or "").upper() in ("SEMI", "ANTI")


def _modified(found: list[Output], star: exp.Expression) -> list[Output] | None:
    """Apply EXCLUDE, REPLACE and RENAME."""
    if any(value for key, value in star.args.items() if key not in ("except_", "replace", "rename")):
        return None
    dropped = {e.name.lower() for e in star.args.get("except_") or ()}
    replaced = {e.alias.lower(): e.this for e in star.args.get("replace") or () if isinstance(e, exp.Alias)}
    renamed = {e.this.name.lower(): e.alias for e in star.args.get("rename") or () if isinstance(e, exp.Alias)}
    if any(isinstance(e, exp.Column) and e.args.get("table") for e in star.args.get("except_") or ()):
        return None
    result = []
    for output in found:
        lower = (output.name or "").lower()
        if lower in dropped:
            continue
        if lower in replaced:
            output = Output(output.name, output.inner, replaced[lower])
        elif lower in renamed:
            output = Output(renamed[lower], renamed[lower], output.value, output.source)
        result.append(output)
    return result
