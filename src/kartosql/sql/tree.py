"""sqlglot's DuckDB parser, extended by the place of every condition and parameter in the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span, SqlError
from kartosql.sql.tokens import CONSTANTS, DIALECT, tokens_of

_SPAN = "kartosql_span"


class SpanParser(DuckDBParser):
    """The DuckDB parser that notes which characters a condition or parameter was read from.

    Conditions are later evaluated from the user's own characters, so nothing depends on how
    the tree would be printed.
    """

    def _noted(self, start: Token | None, node: Any) -> Any:
        if start is not None and node is not None and self._prev is not None:
            node.meta[_SPAN] = (start.start, self._prev.end + 1)
        return node

    def _parse_disjunction(self) -> Any:
        start = self._curr
        return self._noted(start, super()._parse_disjunction())

    def _parse_conjunction(self) -> Any:
        start = self._curr
        return self._noted(start, super()._parse_conjunction())

    def _parse_equality(self, *args: Any, **kwargs: Any) -> Any:
        start = self._curr
        return self._noted(start, super()._parse_equality(*args, **kwargs))

    def _parse_bitwise(self) -> Any:
        start = self._curr
        return self._noted(start, super()._parse_bitwise())

    def _parse_placeholder(self) -> Any:
        start = self._curr
        return self._noted(start, super()._parse_placeholder())

    def _parse_historical_data(self) -> Any:
        start = self._curr
        return self._noted(start, super()._parse_historical_data())

    def _parse_version(self) -> Any:
        start = self._curr
        if start is not None and start.token_type == TokenType.ALIAS and self._next and self._next.text.upper() == "OF":
            index = self._index
            self._advance(2)
            value = self._parse_bitwise()
            if isinstance(value, exp.Literal | exp.Cast):
                node = self.expression(exp.Version(this="TIMESTAMP", expression=value, kind="AS OF"))
                return self._noted(start, node)
            self._retreat(index)
        return self._noted(start, super()._parse_version())

    def _parse_in(self, this: Any, *args: Any, **kwargs: Any) -> Any:
        held = self._next
        if held is None or held.token_type != CONSTANTS:
            return super()._parse_in(this, *args, **kwargs)
        # A Var, so that nobody takes one node for the values of the list; its text is that of the user.
        self._advance(2)
        node = self.expression(exp.In(this=this, expressions=[exp.Var(this=held.text)]))
        self._match_r_paren(node)
        return node

    def _parse_simplified_pivot(self, *args: Any, **kwargs: Any) -> Any:
        """Read what may follow a PIVOT of DuckDB's own form: ORDER BY, LIMIT, OFFSET."""
        node = super()._parse_simplified_pivot(*args, **kwargs)
        for name, read in (("order", self._parse_order), ("limit", self._parse_limit), ("offset", self._parse_offset)):
            if clause := read():
                node.set(name, clause)
        return node

    def _warn_unsupported(self) -> None:
        """Keep quiet; the engine judges what this parser cannot read."""


def is_plain_name(name: str) -> bool:
    """Return whether ``name`` is an identifier that needs no quotes."""
    if not (name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit()):
        return False
    try:
        tree = SpanParser(dialect=DIALECT).parse(tokens_of(f"SELECT 1 FROM {name}"), "")[0]
    except (ParseError, TokenError):
        return False
    table = tree.find(exp.Table) if tree is not None else None
    return table is not None and table.name == name and tokens_of(name)[0].token_type == TokenType.VAR


def parse_tree(tokens: list[Token], text: str) -> list[exp.Expression | None]:
    """Parse ``tokens`` of ``text``; raises sqlglot's ParseError, or RecursionError for deep nesting."""
    return SpanParser(dialect=DIALECT).parse(tokens, text)  # type: ignore[return-value]


def span_of(node: exp.Expression) -> Span | None:
    """Return the characters a node was read from, as far as the parser noted them."""
    if isinstance(node, exp.Identifier):
        return _own_span(node)
    if isinstance(node, (exp.Column, exp.Table)):
        spans = [_own_span(part) for part in name_parts(node)]
        if isinstance(node.this, exp.Star):
            spans.append(_own_span(node.this))
        if not spans or None in spans:
            return None
        known = [s for s in spans if s is not None]
        return min(s[0] for s in known), max(s[1] for s in known)
    return node.meta.get(_SPAN) or _own_span(node)


def _own_span(node: exp.Expression) -> Span | None:
    start, end = node.meta.get("start"), node.meta.get("end")
    return None if start is None or end is None else (start, end + 1)


def operands(node: exp.Expression) -> list[exp.Expression]:
    """Return what a chain of AND, or one of OR, connects; long chains are deep trees."""
    found: list[exp.Expression] = []
    at = node
    while type(at) is type(node):
        found.append(at.expression)
        at = at.this
    return [at, *reversed(found)]


def past_of(table: exp.Table, text: str) -> tuple[str, Span] | None:
    """Return the time at which a table is asked for, as text, and the place of the clause that says so.

    Raises ``not-supported`` for clauses that name no constant time.
    """
    clause = table.args.get("when") or table.args.get("version")
    if clause is None:
        return None
    span = clause.meta.get(_SPAN)
    value = clause.expression
    kind = clause.args.get("kind")
    is_time = kind == "TIMESTAMP" if isinstance(clause, exp.HistoricalData) else kind == "AS OF"
    while isinstance(value, exp.Cast):
        value = value.this
    if span is None or not is_time or not isinstance(value, exp.Literal) or not value.is_string:
        raise SqlError(
            "A table can be asked for at a constant time only.",
            code="not-supported",
            hint="Write FROM t AT (TIMESTAMP => '2026-01-31 12:00:00').",
            span=span,
            sql=text,
        )
    return value.this, span


def name_parts(node: exp.Column | exp.Table) -> list[exp.Identifier]:
    """Return the identifiers of a table or column name, outermost first."""
    parts = [node.args.get(key) for key in ("catalog", "db", "table", "this")]
    return [p for p in parts if isinstance(p, exp.Identifier)]


def placeholders(tree: exp.Expression) -> Iterator[tuple[str | None, Span | None]]:
    """Yield (name or number, place) of each parameter; the name of a plain ``?`` is None."""
    for node in tree.find_all(exp.Placeholder):
        this = node.this
        name = this.name if isinstance(this, exp.Expression) else this
        yield (str(name) if name else None), span_of(node)
