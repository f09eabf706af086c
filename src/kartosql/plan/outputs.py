"""The columns that a SELECT returns, as far as its text tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from kartosql.plan.names import NameBinder
from kartosql.plan.table_refs import Output, Scope, Source

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
