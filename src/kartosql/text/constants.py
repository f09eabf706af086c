"""Names and constants in the text of statements: how they are written, and where two texts differ in constants only."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Span = Sequence[int]  # the first character, and the one behind the last

_PLAIN_TEXT = re.compile(r"'[^'\\$/*\0]*+'")
_PLAIN_NUMBER = re.compile(r"[0-9]++(?:\.[0-9]++)?")
_MASKED = re.compile(rf"(?<![\w.#$']){_PLAIN_TEXT.pattern}(?!')|(?<![\w.#$]){_PLAIN_NUMBER.pattern}(?![\w.])")


def quote(name: str) -> str:
    """Return a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a string literal."""
    return "'" + text.replace("'", "''") + "'"


def masked(text: str) -> str:
    """Return a text in which constants are the same for those that may have the same shape."""
    return _MASKED.sub(lambda match: mask(match[0]), text)


def mask(constant: str) -> str:
    """Return the constant that stands for all of the same kind and length."""
    return f"'{'x' * (len(constant) - 2)}'" if constant[0] == "'" else "".join("0" if c != "." else c for c in constant)


def is_constant(text: str) -> bool:
    """Return whether a text is a constant that may differ between statements of a shape."""
    return (_PLAIN_TEXT if text.startswith("'") else _PLAIN_NUMBER).fullmatch(text) is not None


def differ_in_constants_only(known: str, constants: Sequence[Span], text: str) -> bool:
    """Return whether a text is a known one but for constants of the same kind and length at its places for them."""
    if len(known) != len(text):
        return False
    at = 0
    for start, end in constants:
        constant = text[start:end]
        if text[at:start] != known[at:start] or not is_constant(constant) or mask(constant) != mask(known[start:end]):
            return False
        at = end
    return text[at:] == known[at:]
