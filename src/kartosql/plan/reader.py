"""Predicates of a statement's text, read as conditions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from sqlglot import exp

from kartosql.errors import Span
from kartosql.plan.conditions import MAX_PIECES, Atom, Condition, Group, Opaque, Parameter, Pieces
from kartosql.plan.occurrences import Bound, ColumnRef, Member
from kartosql.sql.tokens import tokens_of
from kartosql.sql.tree import name_parts, span_of

_NOT = re.compile(r"NOT\b", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w$.'\"])\d+(?:\.\d+)?(?![\w.'\"])")
_MAX_ALIASES = 8  # aliases of the SELECT list that may refer to each other

# Functions whose value is the same all through a statement; some need no parentheses.
_WITHOUT_PARENTHESES = frozenset({"current_timestamp", "current_date", "current_time", "localtime", "localtimestamp"})
_CLOCK = _WITHOUT_PARENTHESES | {
    "now",
    "today",
    "get_current_timestamp",
    "transaction_timestamp",
    "get_current_time",
    "current_localtime",
    "current_localtimestamp",
}
_MAY_TELL_TIME = re.compile("|".join(sorted(_CLOCK)), re.IGNORECASE)


def may_tell_time(text: str) -> bool:
    """Return whether the value of a statement may depend on the clock."""
    return _MAY_TELL_TIME.search(text) is not None


class ConditionReader:
    """Turns predicates of one statement into conditions.

    ``freeze`` returns the literal of a function of the clock for this statement.
    """

    def __init__(
        self,
        text: str,
        bound: Mapping[int, Bound],
        members: Mapping[int, Member],
        parameters: Mapping[Span, str],
        is_pure: Callable[[str], bool],
        same_meaning: Callable[[str, str], bool],
        freeze: Callable[[str], str | None],
    ) -> None:
        self._text = text
        self._bound = bound
        self._members = members
        self._parameters = parameters  # place in the text -> name
        self._is_pure = is_pure
        self._same_meaning = same_meaning
        self._freeze = freeze

    def agrees(self, node: exp.Expression) -> bool:
        """Return whether the engine's parser sees the same AND, OR and NOT in a predicate."""
        span = span_of(node)
        if not self._is_composed(node):
            return span is not None
        composed = self._compose(node)
        return span is not None and composed is not None and self._same_meaning(self.slice(span), composed)

    def _is_composed(self, node: exp.Expression) -> bool:
        """Return whether a predicate is made of others."""
        while isinstance(node, exp.Paren):
            node = node.this
        return isinstance(node, (exp.And, exp.Or)) or self._is_negation(node)

    def slice(self, span: Span) -> str:
        """Return a part of the statement's text."""
        return self._text[span[0] : span[1]]

    def matched(self, pattern: re.Pattern[str], at: int) -> Span | None:
        """Return the place where the statement's text matches a pattern from a position on."""
        found = pattern.match(self._text, at)
        return None if found is None else found.span()

    def column(self, node: exp.Expression) -> ColumnRef | None:
        """Return the column that an expression is, or None if it is anything else."""
        while isinstance(node, exp.Paren):
            node = node.this
        bound = self._bound.get(id(node)) if isinstance(node, exp.Column) else None
        return (bound.source.id, bound.column) if bound is not None and bound.source is not None else None

    def alias(self, node: exp.Expression) -> exp.Expression | None:
        """Return the item of the SELECT list that an expression names."""
        bound = self._bound.get(id(node))
        return bound.alias if bound is not None else None

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
            word = " AND " if isinstance(node, exp.And) else " OR "
            sides = [self._compose(n) for n in operands(node)]
            return None if None in sides else "(" + word.join(s for s in sides if s is not None) + ")"
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
            for side in operands(node):
                item = self.read(side, negated)
                items.extend(item.items if isinstance(item, Group) and item.op == op else (item,))
            return Group(op, tuple(items))
        return self._atom(node, negated)

    def _atom(self, node: exp.Expression, negated: bool) -> Condition:
        span = span_of(node)
        text = self.slice(span) if span else node.sql("duckdb")
        shown = f"NOT ({text})" if negated else text
        pieces = self.pieces(node)
        if pieces is not None:
            return Atom(pieces, negated, shown)
        found = self.pieces(node, members=True)
        if found is None:
            return Opaque(shown)
        atom = Atom(found, negated, shown)
        return Opaque(shown, atom.columns, atom)

    def pieces(self, node: exp.Expression, depth: int = 0, *, members: bool = False) -> Pieces | None:
        """Return an expression cut at its columns and parameters, and with ``members`` at those of structs.

        None, if it depends on anything else or is not understood.
        """
        span = span_of(node)
        if span is None or depth > _MAX_ALIASES or node.find(exp.Window, exp.Star, exp.Lambda, exp.Columns):
            return None
        if any(q.find(exp.Table) for q in node.find_all(exp.Query, exp.Subquery)):
            return None
        cuts: list[tuple[int, int, Pieces]] = []
        for column in node.find_all(exp.Column):
            place, found = span_of(column), self._meaning(column, depth)
            if found is None and members and (member := self._members.get(id(column))) is not None:
                spans = [span_of(part) for part in name_parts(column)[: member.parts]]
                place = None if None in spans else (spans[0][0], spans[-1][1])  # type: ignore[index]
                found = ((member.source.id, member.column),)
            if found is None or place is None:
                return None
            cuts.append((*place, found))
        for placeholder in node.find_all(exp.Placeholder):
            place = span_of(placeholder)
            if place is None or place not in self._parameters:
                return None
            cuts.append((*place, (Parameter(self._parameters[place]),)))
        clock = self._clock(span, cuts)
        if clock is None:
            return None
        cuts += clock
        return self._cut(span, cuts)

    def _meaning(self, column: exp.Column, depth: int) -> Pieces | None:
        bound = self._bound.get(id(column))
        if bound is None:
            return None
        if bound.source is not None:
            return ((bound.source.id, bound.column),)
        if bound.merged is not None:
            return ((bound.merged.id, bound.column),)
        assert bound.alias is not None
        found = self.pieces(bound.alias, depth + 1)
        return None if found is None or len(found) > MAX_PIECES else ("(", *found, ")")

    def _clock(self, span: Span, cuts: list[tuple[int, int, Pieces]]) -> list[tuple[int, int, Pieces]] | None:
        """Return the functions of the clock in a part of the text with their literals."""
        text = self.slice(span)
        if not may_tell_time(text):
            return []
        taken = {c[0] for c in cuts}
        tokens = [t for t in tokens_of(text) if span[0] + t.start not in taken]
        found: list[tuple[int, int, Pieces]] = []
        for at, token in enumerate(tokens):
            word = token.text.lower()
            if word not in _CLOCK or text[token.start] in "\"'" or (at and tokens[at - 1].text == "."):
                continue
            called = [t.text for t in tokens[at + 1 : at + 3]] == ["(", ")"]
            if not called and (word not in _WITHOUT_PARENTHESES or [t.text for t in tokens[at + 1 : at + 2]] == ["("]):
                continue
            end = tokens[at + 2].end + 1 if called else token.end + 1
            literal = self._freeze(text[token.start : end])
            if literal is None:
                return None
            found.append((span[0] + token.start, span[0] + end, (literal,)))
        return found

    def _cut(self, span: Span, cuts: list[tuple[int, int, Pieces]]) -> Pieces | None:
        pieces: list[str | ColumnRef | Parameter] = []
        pure: list[str] = []  # the same as text; what stands for the columns was judged before
        at = span[0]
        for start, end, inserted in sorted(cuts, key=lambda c: c[:2]):
            if start < at or end > span[1]:
                return None
            pieces += [self._text[at:start], *inserted]
            pure.append(self._text[at:start])
            pure.append(inserted[0] if len(inserted) == 1 and isinstance(inserted[0], str) else self._text[start:end])
            at = end
        pieces.append(self._text[at : span[1]])
        pure.append(self._text[at : span[1]])
        # Whether an expression is pure does not depend on its numbers; without them, answers are found again.
        return tuple(pieces) if self._is_pure(_NUMBER.sub("0", "".join(pure))) else None


def operands(node: exp.Expression) -> list[exp.Expression]:
    """Return what a chain of AND, or one of OR, connects; long chains are deep trees."""
    found: list[exp.Expression] = []
    at = node
    while type(at) is type(node):
        found.append(at.expression)
        at = at.this
    return [at, *reversed(found)]


def conjuncts(node: exp.Expression) -> list[exp.Expression]:
    """Return the parts of a predicate that must all be TRUE."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.And):
        return [node]
    return [part for operand in operands(node) for part in conjuncts(operand)]
