"""Conditions: the boolean structure of a predicate over atoms of the user's own text.

Nodes are immutable. NOT is pushed down to the atoms (De Morgan's laws hold in three-valued
logic), so that a condition is a tree of AND and OR over atoms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from kartosql.errors import Span
from kartosql.plan.occurrences import Occurrence
from kartosql.sql.tree import span_of

_NOT = re.compile(r"NOT\b", re.IGNORECASE)

ColumnRef = tuple[int, str]  # occurrence id, column


@dataclass(frozen=True)
class Atom:
    """One predicate as the user wrote it, cut at its column references and parameters.

    ``pieces`` alternate between text and a ColumnRef or a parameter name (as ``Parameter``).
    """

    pieces: tuple[str | ColumnRef | Parameter, ...]
    negated: bool
    text: str

    @property
    def columns(self) -> frozenset[ColumnRef]:
        """The columns the atom refers to."""
        return frozenset(p for p in self.pieces if isinstance(p, tuple))

    def render(self, column: Callable[[ColumnRef], str]) -> str:
        """Return the atom as SQL, with ``column`` naming each column reference."""
        body = "".join(
            p if isinstance(p, str) else f"${p.name}" if isinstance(p, Parameter) else column(p) for p in self.pieces
        )
        return f"(NOT ({body}))" if self.negated else f"({body})"


@dataclass(frozen=True)
class Parameter:
    """A parameter of the statement, under the name it is handed over with."""

    name: str


@dataclass(frozen=True)
class Group:
    """AND or OR of at least two conditions."""

    op: str
    items: tuple[Condition, ...]

    @property
    def columns(self) -> frozenset[ColumnRef]:
        """The columns that occur below."""
        return frozenset().union(*(i.columns for i in self.items))

    @property
    def text(self) -> str:
        """The condition for people."""
        return f" {self.op} ".join(f"({i.text})" if isinstance(i, Group) else i.text for i in self.items)

    def render(self, column: Callable[[ColumnRef], str]) -> str:
        """Return the condition as SQL."""
        return "(" + f" {self.op} ".join(i.render(column) for i in self.items) + ")"


@dataclass(frozen=True)
class Opaque:
    """A predicate that is not evaluated while planning; it may be true for every row."""

    text: str
    columns: frozenset[ColumnRef] = frozenset()

    def render(self, column: Callable[[ColumnRef], str]) -> str:
        """Never called: opaque conditions are not evaluated."""
        raise AssertionError(self.text)


Condition = Atom | Group | Opaque


def is_evaluable(condition: Condition) -> bool:
    """Return whether no part of ``condition`` is opaque."""
    if isinstance(condition, Group):
        return all(is_evaluable(i) for i in condition.items)
    return not isinstance(condition, Opaque)


def conjunction(items: list[Condition]) -> Condition:
    """Return the AND of ``items``."""
    flat: list[Condition] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Group) and item.op == "AND" else (item,))
    return flat[0] if len(flat) == 1 else Group("AND", tuple(flat))


def parameters_for(condition: Condition, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the statement's parameters that occur in ``condition``."""
    return {name: parameters[name] for name in _parameter_names(condition)}


def _parameter_names(condition: Condition) -> Iterator[str]:
    if isinstance(condition, Group):
        for item in condition.items:
            yield from _parameter_names(item)
    elif isinstance(condition, Atom):
        yield from (p.name for p in condition.pieces if isinstance(p, Parameter))


class ConditionReader:
    """Turns predicates of one statement into conditions."""

    def __init__(
        self,
        text: str,
        bound: dict[int, tuple[Occurrence, str]],
        parameters: dict[tuple[int, int], str],
        is_pure: Callable[[str], bool],
        same_meaning: Callable[[str, str], bool],
    ) -> None:
        self._text = text
        self._bound = bound
        self._parameters = parameters  # place in the text -> name
        self._is_pure = is_pure
        self._same_meaning = same_meaning

    def agrees(self, node: exp.Expression) -> bool:
        """Return whether the engine's parser sees the same AND, OR and NOT in a predicate."""
        span = span_of(node)
        composed = self._compose(node)
        return span is not None and composed is not None and self._same_meaning(self.slice(span), composed)

    def slice(self, span: Span) -> str:
        """Return a part of the statement's text."""
        return self._text[span[0] : span[1]]

    def _is_negation(self, node: exp.Expression) -> bool:
        """Return whether ``node`` is a NOT in front of a predicate; the parser also makes one of ``IS NOT NULL``."""
        span = span_of(node)
        return isinstance(node, exp.Not) and span is not None and _NOT.match(self.slice(span)) is not None

    def _compose(self, node: exp.Expression) -> str | None:
        if isinstance(node, exp.Paren):
            return self._compose(node.this)
        if self._is_negation(node):
            inner = self._compose(node.this)
            return None if inner is None else f"(NOT {inner})"
        if isinstance(node, (exp.And, exp.Or)):
            left, right = self._compose(node.this), self._compose(node.expression)
            word = "AND" if isinstance(node, exp.And) else "OR"
            return None if left is None or right is None else f"({left} {word} {right})"
        span = span_of(node)
        return None if span is None else f"({self.slice(span)}\n)"

    def read(self, node: exp.Expression, negated: bool = False) -> Condition:
        """Return the condition that the predicate ``node`` (or its negation) is."""
        if isinstance(node, exp.Paren):
            return self.read(node.this, negated)
        if self._is_negation(node):
            return self.read(node.this, not negated)
        if isinstance(node, (exp.And, exp.Or)):
            op = "AND" if isinstance(node, exp.And) != negated else "OR"
            items: list[Condition] = []
            for side in (node.this, node.expression):
                item = self.read(side, negated)
                items.extend(item.items if isinstance(item, Group) and item.op == op else (item,))
            return Group(op, tuple(items))
        return self._atom(node, negated)

    def _atom(self, node: exp.Expression, negated: bool) -> Condition:
        span = span_of(node)
        text = self._text[span[0] : span[1]] if span else node.sql("duckdb")
        shown = f"NOT ({text})" if negated else text
        if span is None or node.find(exp.Query, exp.Subquery, exp.Window, exp.Star, exp.Lambda, exp.Columns):
            return Opaque(shown)
        cuts: list[tuple[int, int, ColumnRef | Parameter]] = []
        for column in node.find_all(exp.Column):
            bound, place = self._bound.get(id(column)), span_of(column)
            if bound is None or place is None:
                return Opaque(shown)
            cuts.append((*place, (bound[0].id, bound[1])))
        for placeholder in node.find_all(exp.Placeholder):
            place = span_of(placeholder)
            if place not in self._parameters:
                return Opaque(shown)
            cuts.append((*place, Parameter(self._parameters[place])))
        if not self._is_pure(text):
            return Opaque(shown)
        pieces: list[str | ColumnRef | Parameter] = []
        at = span[0]
        for start, end, piece in sorted(cuts, key=lambda c: c[:2]):
            if start < at or end > span[1]:
                return Opaque(shown)
            pieces += [self._text[at:start], piece]
            at = end
        pieces.append(self._text[at : span[1]])
        return Atom(tuple(pieces), negated, shown)
