"""Statement to bound query: every name resolved against the snapshot, all errors at once."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from kartosql.errors import Span, SqlError, UnknownNameError
from kartosql.plan.scopes import ScopeWalker, Walked
from kartosql.plan.table_refs import Occurrence, Relation, Unknown
from kartosql.plan.unquoted import compared_with, quoted
from kartosql.sql.shapes import with_masks
from kartosql.sql.statements import Select
from kartosql.sql.tree import name_parts, past_of, placeholders, span_of
from kartosql.tables.names import Name, Tables, quote_identifier, quote_if_needed
from kartosql.tables.table import Table

Edit = tuple[Span, str]


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Return a text with other pieces at some places."""
    pieces, at = [], 0
    for (start, end), new in sorted(edits):
        pieces += [text[at:start], new]
        at = end
    return "".join([*pieces, text[at:]])


def original_span(text: str, edits: Sequence[Edit], place: int) -> Span:
    """Return the characters of ``text`` that stand at a place of the edited text: a replaced piece, or a word."""
    shift = 0
    for (start, end), new in sorted(edits):
        if place < start + shift:
            break
        if place < start + shift + len(new):
            return start, end
        shift += len(new) - (end - start)
    begin = max(0, min(place - shift, len(text)))
    behind = begin
    while behind < len(text) and (text[behind].isalnum() or text[behind] == "_"):
        behind += 1
    return begin, max(behind, begin + 1)


SCHEMA = "__kartosql_"

# Parts of the text that is run that are not the user's: views' schemas and names of parameters.
_INTERNAL = re.compile(r'"?__kartosql_\d+"?\.|\$kartosql_(?:p_(\w+)|(\d+))')

Parameters = Sequence[Any] | Mapping[str, Any] | None


@dataclass(frozen=True)
class BoundQuery:
    """A query whose names are resolved.

    ``text`` is the user's text in which each table occurrence has the name of its own view
    (``occurrence.view``) and each parameter the form ``$name``; ``shape`` is the same for
    statements that differ in constants only. ``suspects`` are
    references nothing explains; the engine has the last word on them.
    """

    select: Select
    text: str
    occurrences: tuple[Occurrence, ...]
    walked: Walked
    parameters: Any  # values by name; a list for queries that only the engine can parse
    parameter_places: Mapping[Span, str]
    suspects: tuple[Unknown, ...]
    edits: tuple[tuple[Span, str], ...] = ()
    shape: str = ""

    def edited(self, edits: Sequence[tuple[Span, str]]) -> BoundQuery:
        """Return the query with more edits of the user's text."""
        return self._of(self.select, [*self.edits, *edits])

    def alike(self, select: Select) -> BoundQuery:
        """Return the query of a statement with the same tree."""
        return self._of(select, self.edits)

    def with_all_columns(self) -> BoundQuery:
        """Return the query with every column of its tables, as a reference to one may have been overlooked."""
        return replace(self, occurrences=tuple(replace(o, all_used=True) for o in self.occurrences))

    def _of(self, select: Select, edits: Sequence[tuple[Span, str]]) -> BoundQuery:
        text, shape = texts_of(select, edits)
        return replace(self, select=select, text=text, shape=shape)

    @property
    def sources(self) -> tuple[Table, ...]:
        """The tables of the query, one per occurrence."""
        return tuple(o.source for o in self.occurrences)

    @property
    def has_dynamic_columns(self) -> bool:
        """Whether the output columns depend on the data."""
        return self.select.tree is None or self.select.tree.find(exp.Pivot) is not None

    @property
    def is_pivot(self) -> bool:
        """Whether it is a PIVOT as a statement, which the engine carries out in several steps."""
        return isinstance(self.select.tree, exp.Pivot)

    def restore(self, name: str) -> str:
        """Return an output column's name as the user knows it."""
        for source in self.sources:
            for column, exposed in source.exposed.items():
                name = name.replace(exposed, column)
        return _INTERNAL.sub(lambda m: f"${m[1] or m[2]}" if m[1] or m[2] else "", name)

    def unknown_names(self) -> UnknownNameError:
        """Return the error about the references that nothing explains."""
        return UnknownNameError([_unknown_column(u, self.select.text) for u in self.suspects], self.select.text)


def rebind(bound: BoundQuery, parameters: Parameters) -> BoundQuery:
    """Return a bound query with other parameters; raises ``invalid-parameters``."""
    if not parameters and not bound.parameter_places:
        return bound
    assert bound.select.tree is not None
    values, _, _ = _parameters(bound.select, bound.select.tree, parameters)
    return replace(bound, parameters=values)


def bind(select: Select, tables: Tables, parameters: Parameters = None) -> BoundQuery:
    """Resolve the names of a query.

    Raises ``unknown-table``, ``ambiguous-name`` (all of a statement at once),
    ``invalid-parameters``, and what is wrong with a table that is named.
    """
    tree = select.tree
    if tree is None:
        raise SqlError("The statement cannot be planned.", code="syntax-error", sql=select.text)
    clauses: list[tuple[Span, str]] = []
    occurrences, errors = _occurrences(select, tree, tables, clauses)

    def slice_(node: exp.Expression) -> str | None:
        span = span_of(node)
        return None if span is None else select.text[span[0] : span[1]]

    walker = ScopeWalker({id(o.node): o for o in occurrences}, slice_)
    if errors:
        raise _unknown_names(errors, walker, tree, select.text)
    try:
        walked = walker.statement(tree)
    except SqlError as e:
        e.sql = select.text
        raise
    except RecursionError:
        for occurrence in occurrences:
            occurrence.understood = False
        walker, walked = ScopeWalker({}, slice_), Walked(Relation(None))
    values, places, edits = _parameters(select, tree, parameters)
    for occurrence in occurrences:
        assert occurrence.span is not None
        edits.append((occurrence.span, ".".join(quote_identifier(n) for n in occurrence.view)))
    edits += [*clauses, *_renames(walker)]
    text, shape = texts_of(select, edits)
    return BoundQuery(
        select=select,
        text=text,
        occurrences=tuple(occurrences),
        walked=walked,
        parameters=values,
        parameter_places=places,
        suspects=tuple(walker.names.unknown),
        edits=tuple(edits),
        shape=shape,
    )


def bind_unplanned(select: Select, names: Sequence[Name], tables: Tables, parameters: Parameters = None) -> BoundQuery:
    """Resolve the tables of a query that only the engine can parse.

    ``names`` are the tables that the engine found in it. Such a query reads all files.
    """
    occurrences = []
    for at, name in enumerate(names):
        view = ("main", name[0]) if len(name) == 1 else (name[0], name[1])
        occurrences.append(Occurrence(at, tables.find(name, None, select.text), name, view))
    values: Any = dict(parameters) if isinstance(parameters, Mapping) else parameters
    return BoundQuery(select, select.text, tuple(occurrences), Walked(Relation(None)), values, {}, ())


def _occurrences(
    select: Select, tree: exp.Expression, tables: Tables, edits: list[tuple[Span, str]]
) -> tuple[list[Occurrence], list[SqlError]]:
    """Return the occurrences, and what is wrong with the names of others.

    Clauses that only occurrences understand are blanked by ``edits``.
    """
    found: list[Occurrence] = []
    errors: list[SqlError] = []
    for node in sorted(tree.find_all(exp.Table), key=lambda n: span_of(n) or (0, 0)):
        parts = name_parts(node)
        if not isinstance(node.this, exp.Identifier) or (len(parts) == 1 and _is_cte(node)):
            continue
        span = span_of(node)
        name = tuple(p.name for p in parts)
        if span is None:
            raise SqlError(f"The place of {'.'.join(name)!r} in the text is not known.", code="not-supported")
        try:
            past = past_of(node, select.text)
            as_of = past[0] if past is not None else None
            source = tables.find(name, span, select.text, as_of=as_of)
        except SqlError as e:
            errors.append(e)
            continue
        view = (f"{SCHEMA}{len(found)}", name[-1])
        found.append(Occurrence(len(found), source, name, view, node, span, as_of))
        if past is not None:
            edits.append((past[1], " " * (past[1][1] - past[1][0])))
    return found, errors


def _unknown_names(errors: list[SqlError], walker: ScopeWalker, tree: exp.Expression, sql: str) -> SqlError:
    """Return the error about tables, together with the columns that the other tables do not have."""
    with contextlib.suppress(SqlError, RecursionError):
        walker.statement(tree)
    found = [*errors, *(_unknown_column(u, sql) for u in (*walker.names.unknown, *walker.names.missing))]
    found.sort(key=lambda e: e.span or (0, 0))
    return found[0] if len(found) == 1 else UnknownNameError(found, sql)


def _is_cte(table: exp.Table) -> bool:
    """Return whether a one-part table name is that of a common table expression in scope."""
    name = table.name.lower()
    child: Any = table
    parent: Any = table.parent
    while parent is not None:
        if isinstance(parent, exp.With):
            # Inside of one of the expressions: it sees those before it, and itself if recursive.
            for cte in parent.expressions:
                if cte.alias.lower() == name and (cte is not child or parent.args.get("recursive")):
                    return True
                if cte is child:
                    break
            child, parent = parent.parent or parent, parent.parent and parent.parent.parent
            continue
        with_ = parent.args.get("with_")
        if with_ is not None and any(cte.alias.lower() == name for cte in with_.expressions):
            return True
        child, parent = parent, parent.parent
    return False


def _parameters(
    select: Select, tree: exp.Expression, given: Parameters
) -> tuple[dict[str, Any], dict[Span, str], list[tuple[Span, str]]]:
    """Return values by name, names by place, and the edits that give each parameter its name."""
    found = sorted(((span, name) for name, span in placeholders(tree) if span is not None), key=lambda f: f[0])
    positional = not isinstance(given, Mapping)
    if given is not None and positional and (isinstance(given, (str, bytes)) or not isinstance(given, Sequence)):
        raise SqlError(f"Parameters are a list or a dictionary, not {type(given).__name__}.", code="invalid-parameters")
    values: dict[str, Any] = {}
    places: dict[Span, str] = {}
    count = 0
    missing: list[tuple[Span, str]] = []
    listed = list(given) if positional and given is not None else []
    for span, name in found:
        if name is None or (name.isdecimal() and len(name) < 10):
            count = count + 1 if name is None else count
            number = count if name is None else int(name)
            key = f"kartosql_{number}"
            if positional and 1 <= number <= len(listed):
                values[key] = listed[number - 1]
            elif not positional and str(number) in given:  # type: ignore[operator]
                values[key] = given[str(number)]  # type: ignore[index,call-overload]
            else:
                missing.append((span, f"number {number}"))
        else:
            key = f"kartosql_p_{name}"
            if not positional and name in given:  # type: ignore[operator]
                values[key] = given[name]  # type: ignore[index,call-overload]
            else:
                missing.append((span, repr(name)))
        places[span] = key
    _check_parameters(select.text, given, listed, places, missing)
    return values, places, [(span, f"${key}") for span, key in places.items()]


def _check_parameters(
    text: str, given: Parameters, listed: list[Any], places: Mapping[Span, str], missing: list[tuple[Span, str]]
) -> None:
    if missing:
        what = ", ".join(dict.fromkeys(name for _, name in missing))
        hint = "Hand over a list for ? and $1, a dictionary for $name and :name."
        raise SqlError(
            f"No value for the parameter {what}.", code="invalid-parameters", hint=hint, span=missing[0][0], sql=text
        )
    used = {key.removeprefix("kartosql_p_").removeprefix("kartosql_") for key in places.values()}
    extra = [n for n in (given if isinstance(given, Mapping) else map(str, range(1, len(listed) + 1))) if n not in used]
    if extra:
        raise SqlError(
            f"The statement has no parameter {extra[0]!r}.",
            code="invalid-parameters",
            hint=f"It has {len(set(places.values()))}, and {len(listed) or len(given or ())} values were given.",
        )


def _renames(walker: ScopeWalker) -> list[tuple[Span, str]]:
    """Return the edits that give references the names of the views' schemas and columns."""
    edits: dict[Span, str] = {}
    for identifier, name in walker.names.renamed:
        span = span_of(identifier)
        if span is not None:
            edits[span] = quote_identifier(name)
    return list(edits.items())


def texts_of(select: Select, edits: Sequence[tuple[Span, str]]) -> tuple[str, str]:
    """Return the text to run and its shape."""
    text = edited(select.text, edits)
    if not select.constants:
        return text, text
    return text, edited(select.text, [*edits, *with_masks(select.text, select.constants)])


def _unknown_column(unknown: Unknown, sql: str) -> SqlError:
    span = span_of(unknown.node)
    shown = f"{unknown.qualifier}.{unknown.name}" if unknown.qualifier else unknown.name
    message = f"There is no column {shown!r}."
    aliases = {a.lower(): a for a in unknown.aliases}
    if unknown.qualifier and aliases and unknown.qualifier.lower() not in aliases:
        message += f" {unknown.qualifier!r} is no table of this query."
        close = difflib.get_close_matches(unknown.qualifier.lower(), aliases, 1, cutoff=0.6)
        if close or len(aliases) == 1:
            alias = aliases[close[0]] if close else next(iter(aliases.values()))
            hint = f"Did you mean {quote_if_needed(alias)}.{quote_if_needed(unknown.name)}?"
        else:
            hint = f"Its tables are {', '.join(aliases.values())}."
        return SqlError(message, code="unknown-column", hint=hint, span=span, sql=sql)
    return SqlError(message, code="unknown-column", hint=_suggestion(unknown), span=span, sql=sql)


def _suggestion(unknown: Unknown) -> str | None:
    if unknown.hint is not None:
        return unknown.hint
    hints = [_similar(unknown)]
    if compared_with(unknown) is not None:
        hints.append(f"A text stands in single quotes: {quoted(unknown.name)}.")
    return " ".join(h for h in hints if h) or None


def _similar(unknown: Unknown) -> str | None:
    by_lower = {c.lower(): c for c in unknown.candidates}
    close = difflib.get_close_matches(unknown.name.lower(), by_lower, 1, cutoff=0.6)
    if close:
        return f"Did you mean {quote_if_needed(by_lower[close[0]])}?"
    if not unknown.candidates:
        return None
    return f"Columns: {', '.join(unknown.candidates[:20])}{', ...' if len(unknown.candidates) > 20 else ''}."
