"""Statements that differ in constants of their conditions only: of these but the first one is parsed.

A constant counts if a WHERE compares something with it, and the text of another statement has
a constant of the same kind and length there, and the very same characters everywhere else.
Then its tokens are the same but for these constants, and so is its tree; places in the text
are the same as well. That the tree is shared means that constants are read from the text.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator

from sqlglot import exp

from kartosql.errors import Span
from kartosql.sql.statements import Select, Statement
from kartosql.sql.tree import span_of

MAX_TEXTS = 64
MAX_SHAPES = 256
LONG_TEXT = 20_000  # characters; the trees of longer texts are not kept
_TEXT = re.compile(r"'[^'\\$/*\0]*+'")
_NUMBER = re.compile(r"[0-9]++(?:\.[0-9]++)?")
_CONSTANT = re.compile(rf"(?<![\w.#$']){_TEXT.pattern}(?!')|(?<![\w.#$]){_NUMBER.pattern}(?![\w.])")
_LOGIC = (exp.And, exp.Or, exp.Not, exp.Paren)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
# What may stand around a SELECT whose WHERE counts, and as what it stands there. The items of a SELECT list
# do not count, as columns are named after their text.
_AROUND = (exp.Select, exp.Subquery, exp.From, exp.Join, exp.With, exp.CTE, exp.SetOperation)
_STANDS_AS = ("where", "this", "expression", "from_", "joins", "with_")


class ParsedTexts:
    """The statements of texts, those used last and one of each shape. Trees are only read."""

    def __init__(self, parse: Callable[[str], Statement]) -> None:
        self._parse = parse
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, Statement] = OrderedDict()
        self._shapes: OrderedDict[str, Select] = OrderedDict()

    def parse(self, text: str) -> Statement:
        """Return the statement of a text; raises what parsing raises."""
        if not isinstance(text, str) or len(text) > LONG_TEXT:
            return self._parse(text)
        shape = None
        with self._lock:
            found = self._texts.get(text)
            if found is None:
                shape = masked(text)
                like = self._shapes.get(shape)
                found = alike(like, text) if like is not None else None
        if found is None:
            found = self._parse(text)
        with self._lock:
            self._texts[text] = found
            self._texts.move_to_end(text)
            if shape is not None and isinstance(found, Select):
                self._note(shape, found, text)
            while len(self._texts) > MAX_TEXTS:
                self._texts.popitem(last=False)
        return found

    def _note(self, shape: str, select: Select, text: str) -> None:
        like = select.like or select
        if select.like is None and (like.text != text or not like.constants):
            return  # what is parsed is not what was written
        self._shapes[shape] = like
        self._shapes.move_to_end(shape)
        while len(self._shapes) > MAX_SHAPES:
            self._shapes.popitem(last=False)


def masked(text: str) -> str:
    """Return a text in which constants are the same for those that may have the same shape."""
    return _CONSTANT.sub(lambda match: _mask(match[0]), text)


def _mask(constant: str) -> str:
    """Return the constant that stands for all of the same kind and length."""
    return f"'{'x' * (len(constant) - 2)}'" if constant[0] == "'" else "".join("0" if c != "." else c for c in constant)


def with_masks(text: str, constants: tuple[Span, ...]) -> list[tuple[Span, str]]:
    """Return the edits of a text that put the same constants into all texts of a shape."""
    return [(span, _mask(text[span[0] : span[1]])) for span in constants]


def alike(select: Select, text: str) -> Select | None:
    """Return the statement of a text that differs from a known one in constants only, None for other texts."""
    known = select.text
    if len(known) != len(text):
        return None
    at = 0
    for start, end in select.constants:
        constant = text[start:end]
        if (
            text[at:start] != known[at:start]
            or not _is_constant(constant)
            or _mask(constant) != _mask(known[start:end])
        ):
            return None
        at = end
    return Select(text, select.tree, select.constants, select) if text[at:] == known[at:] else None


def constant_of(text: str) -> str | None:
    """Return what a constant that may differ between statements of a shape holds, None for other text."""
    return None if not _is_constant(text) else text[1:-1] if text.startswith("'") else text


def _is_constant(text: str) -> bool:
    return (_TEXT if text.startswith("'") else _NUMBER).fullmatch(text) is not None


def constants_of(tree: exp.Expression, text: str) -> tuple[Span, ...]:
    """Return the places of the constants that may differ while the tree stays the same, ascending."""
    found = (
        (node.meta["start"], node.meta["end"] + 1)
        for where in tree.find_all(exp.Where)
        if _is_reachable(where)
        for node in _compared(where.this)
        if "start" in node.meta and "end" in node.meta
    )
    return tuple(sorted(span for span in set(found) if _is_constant(text[span[0] : span[1]])))


def _is_reachable(where: exp.Where) -> bool:
    node: exp.Expression = where
    while node.parent is not None:
        if not isinstance(node.parent, _AROUND):
            return False
        if node.arg_key not in _STANDS_AS and not isinstance(node.parent, exp.With):
            return False
        node = node.parent
    return span_of(where.this) is not None


def _compared(condition: exp.Expression) -> Iterator[exp.Expression]:
    """Yield the literals that a condition compares something with."""
    pending = [condition]
    while pending:
        node = pending.pop()
        if isinstance(node, _LOGIC):
            pending += node.iter_expressions()
            continue
        operands: list[exp.Expression | None] = []
        if isinstance(node, _COMPARISONS):
            operands = [node.this, node.expression]
        elif isinstance(node, exp.Between):
            operands = [node.args.get("low"), node.args.get("high")]
        elif isinstance(node, exp.In):
            operands = list(node.expressions)
        if span_of(node) is not None:
            yield from (o for o in map(_literal, operands) if o is not None)


def _literal(node: exp.Expression | None) -> exp.Expression | None:
    """Return the literal of ``5``, ``-5``, ``'a'`` and ``DATE '2020-01-01'``."""
    if isinstance(node, exp.Neg) or (isinstance(node, exp.Cast) and node.to.is_type(exp.DataType.Type.DATE)):
        node = node.this
    return node if isinstance(node, exp.Literal) else None
