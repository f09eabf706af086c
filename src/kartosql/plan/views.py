"""Views in the place of their names: the text of each, as a derived table that conditions are pushed into."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlglot import exp

from kartosql.errors import KartosqlError, Span, SqlError, UnknownNameError
from kartosql.formats.views import View
from kartosql.plan.bind import is_cte
from kartosql.sql.statements import Select, Statement
from kartosql.sql.tree import Edit, edited, name_parts, past_of, placeholders, span_of
from kartosql.tables.names import Tables
from kartosql.text.constants import quote

MAX_DEPTH = 16  # of views that read views

Parse = Callable[[str], Statement]


@dataclass(frozen=True)
class _Reference:
    """A view that a query reads, with its place there."""

    view: View
    span: Span
    has_alias: bool
    is_alone: bool  # whether no FROM stands before it


class Views:
    """Puts the queries of views in the place of their names.

    ``parse`` makes a statement of text; ``check`` raises what is wrong with a query, such as names that it lacks.
    """

    def __init__(self, tables: Tables, parse: Parse, check: Callable[[Select], object]) -> None:
        self._tables, self._parse, self._check = tables, parse, check

    def expanded(self, select: Select, within: tuple[str, ...] = ()) -> tuple[Select, Sequence[Edit]]:
        """Return a query without views, and the edits of its text that made it.

        ``within`` are the views that the query is part of.

        Raises ``view-broken`` where a view cannot be read, and ``not-supported`` where it cannot stand.
        """
        edits = [(found.span, self._text(found, select, within)) for found in self._references(select)]
        if not edits:
            return select, ()
        made = self._parse(edited(select.text, edits))
        if not isinstance(made, Select) or made.tree is None:
            message = "A view cannot stand in this place of the statement."
            hint = "Name it behind FROM or JOIN."
            raise SqlError(message, code="not-supported", hint=hint, span=edits[0][0], sql=select.text)
        return made, edits

    def _references(self, select: Select) -> Iterator[_Reference]:
        for node in select.tree.find_all(exp.Table) if select.tree is not None else ():
            parts = name_parts(node)
            names = self._tables.without_schema(tuple(p.name for p in parts))
            if len(names) != 1 or not isinstance(node.this, exp.Identifier) or (len(parts) == 1 and is_cte(node)):
                continue
            name, span = self._tables.view_name(names[0]), span_of(node)
            if name is None or span is None:
                continue
            if past_of(node, select.text) is not None:
                message, hint = f"{name!r} is a view, which has no versions.", "Name the tables that it reads."
                raise SqlError(message, code="no-versions", hint=hint, span=span, sql=select.text)
            with _named(name, span, select.text):
                yield _Reference(
                    self._tables.snapshot.view(name), span, bool(node.alias), isinstance(node.parent, exp.Summarize)
                )

    def _text(self, found: _Reference, outer: Select, within: tuple[str, ...]) -> str:
        view = found.view
        with _named(view.name, found.span, outer.text):
            if view.name in within or len(within) >= MAX_DEPTH:
                raise SqlError(f"It reads itself: {' -> '.join((*within, view.name))}.", code="view-broken")
            inner = self._parse(view.sql)
            if not isinstance(inner, Select) or inner.tree is None or next(placeholders(inner.tree), None):
                raise SqlError("It is no query of fixed text.", code="view-broken")
            body = self.expanded(inner, (*within, view.name))[0]
            # By itself, as otherwise tables around it could explain names that its own tables lack.
            self._check(body)
            self._refuse_hidden(inner, outer)
        text, name = f"(\n{body.text}\n)", quote(view.name)
        if view.columns:
            text = f"(SELECT * FROM {text} AS {name}({', '.join(map(quote, view.columns))}))"
        text = text if found.has_alias else f"{text} AS {name}"
        return f"SELECT * FROM {text}" if found.is_alone else text

    def _refuse_hidden(self, inner: Select, outer: Select) -> None:
        """Raise ``not-supported`` where WITH around a view gives a table that it reads another meaning."""
        assert inner.tree is not None
        assert outer.tree is not None
        given = {cte.alias.lower() for cte in outer.tree.find_all(exp.CTE)}
        for table in inner.tree.find_all(exp.Table) if given else ():
            if table.name.lower() in given and len(name_parts(table)) == 1 and not is_cte(table):
                message = f"It reads the table {table.name!r}, and WITH gives this name to something else."
                raise SqlError(message, code="not-supported", hint="Give what WITH defines another name.")


@contextmanager
def _named(name: str, span: Span, sql: str) -> Iterator[None]:
    """Say of what is wrong with a view which view it is, and where it is named."""
    try:
        yield
    except KartosqlError as e:
        code = e.code if e.code in ("not-supported", "statement-too-long") else "view-broken"
        hint = e.hint if e.code != "view-broken" else None
        raise SqlError(f"The view {name!r}: {e.message}", code=code, hint=hint, span=span, sql=sql) from None


@contextmanager
def errors_of(select: Select, made: Select, edits: Sequence[Edit]) -> Iterator[None]:
    """Give errors about a query whose views are expanded the places in the text that the user wrote."""
    try:
        yield
    except SqlError as e:
        if edits and e.sql == made.text:
            each = [e, *e.errors] if isinstance(e, UnknownNameError) else [e]
            for error in each:
                error.sql, error.span = select.text, _original(error.span, edits)
        raise


def _original(span: Span | None, edits: Sequence[Edit]) -> Span | None:
    """Return the place in the text before edits; of what lies in one, the place of what it replaced."""
    if span is None:
        return None
    moved = 0
    for (start, end), text in sorted(edits):
        if span[0] < start + moved:
            break
        if span[0] < start + moved + len(text):
            return start, end
        moved += len(text) - (end - start)
    return span[0] - moved, span[1] - moved
