"""Predicates of a statement's text, read as conditions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from functools import cache, lru_cache
from typing import Any

from sqlglot import exp

from kartosql.errors import Span
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator, Outline, ParsedAtom
from kartosql.predicate.from_sql import Meaning, parsed, predicate_of
from kartosql.predicate.tree import (
    MAX_PIECES,
    UNKNOWN,
    ColumnRef,
    Condition,
    Opaque,
    Parameter,
    Path,
    Pieces,
    Predicate,
    Value,
    joined,
    value_of,
)
from kartosql.sql.tree import constant_of, name_parts, operands, span_of, tokens_of

_NOT = re.compile(r"NOT\b", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w$.'\"])\d+(?:\.\d+)?(?![\w.'\"])")
_UNEVALUATED = (exp.Window, exp.Star, exp.Lambda, exp.Columns)
_QUERIES = (exp.Query, exp.Subquery)
_MAX_ALIASES = 8  # aliases of the SELECT list that may refer to each other

# Functions whose value is the same all through a statement; some need no parentheses.
_WITHOUT_PARENTHESES = frozenset({"current_timestamp", "current_date", "current_time", "localtime", "localtimestamp"})
_CLOCK = _WITHOUT_PARENTHESES | {
    *("now", "today", "get_current_timestamp", "transaction_timestamp", "get_current_time"),
    *("current_localtime", "current_localtimestamp"),
}
_CLOCK_NODES: dict[type, str] = {
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "current_timestamp",
    exp.Localtimestamp: "localtimestamp",
}
# DuckDB's names of the operators that predicates are trees of, by sqlglot's.
_OPERATORS: dict[Any, tuple[str, ...]] = {
    exp.EQ: ("COMPARE_EQUAL",),
    exp.NEQ: ("COMPARE_NOTEQUAL",),
    exp.LT: ("COMPARE_LESSTHAN",),
    exp.LTE: ("COMPARE_LESSTHANOREQUALTO",),
    exp.GT: ("COMPARE_GREATERTHAN",),
    exp.GTE: ("COMPARE_GREATERTHANOREQUALTO",),
    exp.NullSafeEQ: ("COMPARE_NOT_DISTINCT_FROM",),
    exp.NullSafeNEQ: ("COMPARE_DISTINCT_FROM",),
    exp.Between: ("COMPARE_BETWEEN",),
    (exp.Not, exp.Between): ("NOT COMPARE_BETWEEN",),
    exp.In: ("COMPARE_IN",),
    (exp.Not, exp.In): ("NOT COMPARE_IN",),
    exp.Is: ("OPERATOR_IS_NULL", "COMPARE_NOT_DISTINCT_FROM"),
    (exp.Not, exp.Is): ("OPERATOR_IS_NOT_NULL", "COMPARE_DISTINCT_FROM"),
    exp.Like: ("~~",),
    exp.ILike: ("~~*",),
    exp.Escape: ("like_escape", "ilike_escape"),
    exp.RegexpLike: ("regexp_matches",),
    exp.RegexpFullMatch: ("regexp_full_match",),
    exp.SimilarTo: ("regexp_full_match",),
    exp.StartsWith: ("starts_with", "prefix", "^@"),
    exp.Contains: ("contains",),
    exp.Column: ("COLUMN_REF",),
    exp.Dot: ("COLUMN_REF",),
    exp.StructExtract: ("struct_extract",),
    exp.Bracket: ("ARRAY_EXTRACT",),
    exp.Boolean: ("VALUE_CONSTANT",),
    exp.Null: ("VALUE_CONSTANT",),
}
CLOCK = tuple(name if name in _WITHOUT_PARENTHESES else f"{name}()" for name in sorted(_CLOCK))
_MAY_TELL_TIME = re.compile(rf"\b(?:{'|'.join(sorted(_CLOCK))})\b", re.IGNORECASE)


@lru_cache(64)
def may_tell_time(text: str) -> bool:
    """Return whether the value of a statement may depend on the clock."""
    return _MAY_TELL_TIME.search(text) is not None


def clock_calls(text: str, columns: Collection[str]) -> list[tuple[Span, str]]:
    """Return the places where a text asks the clock, and which of CLOCK; ``columns`` hide what has their names."""
    tokens, found = tokens_of(text), list[tuple[Span, str]]()
    words = [text[token.start : token.end + 1].lower() for token in tokens]  # texts in quotes
    for at, (token, word) in enumerate(zip(tokens, words, strict=True)):
        name, is_call = word.strip('"'), words[at + 1 : at + 3] == ["(", ")"]
        is_name = word in _WITHOUT_PARENTHESES and word not in columns and words[at + 1 : at + 2] != ["."]
        if name in _CLOCK and (is_call or is_name) and words[max(0, at - 1)] != ".":
            end = tokens[at + 2 if is_call else at].end + 1
            found.append(((token.start, end), name if name in _WITHOUT_PARENTHESES else f"{name}()"))
    return found


class ConditionReader:
    """Turns predicates of one statement into conditions.

    ``freeze`` returns the literal of a function of the clock for this statement, as the evaluator does without it.
    """

    def __init__(
        self, query: BoundQuery, evaluator: Evaluator, freeze: Callable[[str], str | None] | None = None
    ) -> None:
        self.text = query.select.text
        self._bound = query.walked.bound
        self._members = query.walked.members
        self._places = query.parameter_places
        self._parameters = query.parameters
        self._evaluator = evaluator
        self._freeze = freeze or evaluator.clock
        self._parsed: dict[int, ParsedAtom] = {}  # by id of the node
        self._alike = query.walked.alike
        self._nodes = Meaning(self._path, self._value, self._literal, self._alias_target, self._sql, is_duckdb=True)

    def agrees(self, node: exp.Expression) -> bool:
        """Return whether the engine's parser sees the same AND, OR and NOT in a predicate, and note its atoms."""
        if ("atoms", id(node)) in self._alike:
            self._parsed.update(self._alike["atoms", id(node)][1])
            return True
        atoms: list[exp.Expression] = []
        outline = self._outline(node, atoms)
        span, spans = span_of(node), [s for s in map(span_of, atoms) if s is not None]
        if span is None or len(spans) < len(atoms):
            return False
        composed = self._composed(outline, map(self.slice, spans))
        found = self._evaluator.atoms(self.slice(span), composed, outline)
        if found is None:
            return outline is None
        parsed = dict(zip(map(id, atoms), found, strict=bool(found)))
        self._parsed.update(parsed)
        if node.parent is not None:  # it is of the statement
            self._alike["atoms", id(node)] = node, parsed
        return True

    def _outline(self, node: exp.Expression, atoms: list[exp.Expression]) -> Outline:
        """Return how AND, OR and NOT join the atoms of a predicate, and add these to a list."""
        while isinstance(node, exp.Paren):
            node = node.this
        if self._is_negation(node):
            return "NOT", (self._outline(node.this, atoms),)
        if not isinstance(node, (exp.And, exp.Or)):
            atoms.append(node)
            return None
        word, parts = "AND" if isinstance(node, exp.And) else "OR", list[Outline]()
        for side in operands(node):
            part = self._outline(side, atoms)
            parts += part[1] if part is not None and part[0] == word else (part,)
        return word, tuple(parts)

    def slice(self, span: Span) -> str:
        """Return a part of the statement's text."""
        return self.text[span[0] : span[1]]

    def column(self, node: exp.Expression) -> ColumnRef | None:
        """Return the column that an expression is, or None if it is anything else."""
        while isinstance(node, exp.Paren):
            node = node.this
        bound = self._bound.get(id(node)) if isinstance(node, exp.Column) else None
        return bound.ref if bound is not None and bound.source is not None else None

    def alias(self, node: exp.Expression) -> exp.Expression | None:
        """Return the item of the SELECT list that an expression names."""
        bound = self._bound.get(id(node))
        return bound.alias if bound is not None else None

    def _is_negation(self, node: exp.Expression) -> bool:
        """Return whether ``node`` is a NOT in front of a predicate; the parser also makes one of ``IS NOT NULL``."""
        span = span_of(node)
        return isinstance(node, exp.Not) and span is not None and _NOT.match(self.slice(span)) is not None

    def _composed(self, outline: Outline, atoms: Iterator[str]) -> str:
        if outline is None:
            return f"({next(atoms)}\n)"
        word, parts = outline
        composed = [self._composed(part, atoms) for part in parts]
        return f"(NOT {composed[0]})" if word == "NOT" else f"({f' {word} '.join(composed)})"

    def read(self, node: exp.Expression, negated: bool = False) -> Condition:
        """Return the condition that the predicate ``node`` (or its negation) is."""
        if isinstance(node, exp.Paren):
            return self.read(node.this, negated)
        if self._is_negation(node):
            return self.read(node.this, not negated)
        if isinstance(node, (exp.And, exp.Or)):
            op = "AND" if isinstance(node, exp.And) != negated else "OR"
            return joined(op, [self.read(side, negated) for side in operands(node)])
        return self._atom(node, negated)

    def _atom(self, node: exp.Expression, negated: bool) -> Condition:
        span = span_of(node)
        text = self.slice(span) if span else node.sql("duckdb")
        shown = f"NOT ({text})" if negated else text
        says = cache(lambda: self._says(node, negated))
        pieces = self.pieces(node)
        if pieces is not None:
            return Opaque(shown, pieces, negated, says=says)
        found = self.pieces(node, members=True)
        return Opaque(shown) if found is None else Opaque(shown, found, negated, is_of_members=True, says=says)

    # -- atoms as trees ------------------------------------------------------------------------

    def _says(self, node: exp.Expression, negated: bool) -> Predicate:
        """Return what an atom says; nothing is known where the engine's parser has another operator."""
        node = self._alias_target(node)
        if id(node) not in self._parsed:
            self.agrees(node)
        known = self._parsed.get(id(node))
        kind = (exp.Not, type(node.this)) if isinstance(node, exp.Not) else type(node)
        if known is None or known.operator not in _OPERATORS.get(kind, ()):
            return UNKNOWN
        return predicate_of(node, self._nodes, negated=negated)

    def _path(self, column: exp.Column) -> Path | None:
        """Return the column, as a ColumnRef, and the members of structs that a reference means."""
        bound, member = self._bound.get(id(column)), self._members.get(id(column))
        if bound is not None:
            return (bound.ref,) if bound.alias is None else None
        if member is None:
            return None
        return ((member.source.id, member.column), *(p.name.lower() for p in name_parts(column)[member.parts :]))

    def _value(self, placeholder: exp.Expression) -> Value | None:
        place = span_of(placeholder)
        name = None if place is None else self._places.get(place)
        return None if name is None else value_of(self._parameters.get(name))

    def _literal(self, literal: exp.Literal) -> str:
        """Return what a literal holds: the tree is that of a statement that may differ in constants."""
        start, end = literal.meta.get("start"), literal.meta.get("end")
        constant = None if start is None or end is None else constant_of(self.text[start : end + 1])
        return str(literal.name) if constant is None else constant

    def _alias_target(self, node: Any) -> Any:
        """Return what an alias stands for, and the constant that a function of the clock is."""
        bound = self._bound.get(id(node)) if isinstance(node, exp.Column) else None
        if bound is not None and bound.alias is not None:
            return self._alias_target(bound.alias)
        if isinstance(node, exp.Anonymous):
            is_clock = str(node.this).lower() in _CLOCK and not node.expressions
            function = f"{node.this}()" if is_clock else None
        else:
            function = _CLOCK_NODES.get(type(node))
            if function is not None and any(node.args.values()):
                return node
        literal = self._freeze(function) if function is not None else None
        return node if literal is None else parsed(literal, ("duckdb",))[0]

    def _sql(self, node: exp.Expression) -> str | None:
        """Return a constant operand of an atom as text, None unless it is one for the engine's parser, too."""
        parent = node.parent
        atom, own = span_of(parent) if isinstance(parent, exp.Expression) else None, span_of(node)
        pieces = None if atom is None or own is None or node.find(exp.Query) else self.pieces(node)
        if atom is None or own is None or pieces is None or any(isinstance(p, tuple) for p in pieces):
            return None
        before, operand, after = map(self.slice, ((atom[0], own[0]), own, (own[1], atom[1])))
        if not self._evaluator.is_same(f"{before}{operand}{after}", f"{before}({operand}\n){after}"):
            return None
        return "".join(p if isinstance(p, str) else f"${p.name}" for p in pieces if not isinstance(p, tuple))

    # -- atoms as text -------------------------------------------------------------------------

    def pieces(self, node: exp.Expression, depth: int = 0, *, members: bool = False) -> Pieces | None:
        """Return an expression cut at its columns and parameters, and with ``members`` at those of structs.

        None, if it depends on anything else or is not understood.
        """
        span = span_of(node)
        if span is None or depth > _MAX_ALIASES:
            return None
        if isinstance(node, exp.Func) and self.slice(span).isidentifier():
            return None  # inside of other expressions the parser notes no more of a function than its name
        kind = "members" if members else "cuts"
        if (kind, id(node)) in self._alike:
            return self._cut(span, self._alike[kind, id(node)][1], self._parsed.get(id(node)))
        nodes = list(node.walk())  # once, as it takes long where conditions are many
        if any(isinstance(n, _UNEVALUATED) for n in nodes):
            return None
        if any(isinstance(n, _QUERIES) and n.find(exp.Table) for n in nodes):
            return None
        cuts: list[tuple[int, int, Pieces]] = []
        for column in (n for n in nodes if isinstance(n, exp.Column)):
            place, found = span_of(column), self._meaning(column, depth)
            if found is None and members and (member := self._members.get(id(column))) is not None:
                spans = [span_of(part) for part in name_parts(column)[: member.parts]]
                place = None if None in spans else (spans[0][0], spans[-1][1])  # type: ignore[index]
                found = ((member.source.id, member.column),)
            if found is None or place is None:
                return None
            cuts.append((*place, found))
        for placeholder in (n for n in nodes if isinstance(n, exp.Placeholder)):
            place = span_of(placeholder)
            if place is None or place not in self._places:
                return None
            cuts.append((*place, (Parameter(self._places[place]),)))
        clock = self._clock(span, cuts)
        if clock is None:
            return None
        if node.parent is not None and not clock and all(isinstance(found[0], tuple) for *_, found in cuts):
            self._alike[kind, id(node)] = node, cuts
        cuts += clock
        return self._cut(span, cuts, None if clock else self._parsed.get(id(node)))

    def _meaning(self, column: exp.Column, depth: int) -> Pieces | None:
        bound = self._bound.get(id(column))
        if bound is None:
            return None
        if bound.alias is None:
            return (bound.ref,)
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

    def _cut(self, span: Span, cuts: list[tuple[int, int, Pieces]], known: ParsedAtom | None) -> Pieces | None:
        pieces: list[str | ColumnRef | Parameter] = []
        pure: list[str] = []  # the same as text; what stands for the columns was judged before
        at = span[0]
        for start, end, inserted in sorted(cuts, key=lambda c: c[:2]):
            if start < at or end > span[1]:
                return None
            pieces += [self.text[at:start], *inserted]
            pure.append(self.text[at:start])
            pure.append(inserted[0] if len(inserted) == 1 and isinstance(inserted[0], str) else self.text[start:end])
            at = end
        pieces.append(self.text[at : span[1]])
        pure.append(self.text[at : span[1]])
        # Whether an expression is pure does not depend on its numbers; without them, answers are found again.
        is_pure = known.is_pure if known is not None else self._evaluator.is_pure(_NUMBER.sub("0", "".join(pure)))
        return tuple(pieces) if is_pure else None


def conjuncts(node: exp.Expression) -> list[exp.Expression]:
    """Return the parts of a predicate that must all be TRUE."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.And):
        return [node]
    return [part for operand in operands(node) for part in conjuncts(operand)]
