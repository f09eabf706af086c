"""Text from data, made harmless for terminals and documents."""

from __future__ import annotations

import json
import re
import unicodedata

_JOINERS = "\u200c\u200d"
_CSV_UNSAFE = re.compile(r"[^\n\t\x20-\x7e]")
_JSON_UNSAFE = re.compile(r"[^\n\x20-\x7e]")


def is_unsafe(char: str) -> bool:
    """Return whether a character can move the cursor, start a terminal sequence or reorder text."""
    return char not in _JOINERS and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def is_unicode(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair, which no encoding holds."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def escaped(text: str) -> str:
    r"""Return ``text`` on one line, with unsafe characters as ``\n``, ``\x1b`` or ``\u202e``.

    A backslash of the data stays as it is, so paths read well.
    """
    if text.isprintable():
        return text
    return "".join(_escape(c) if is_unsafe(c) else c for c in text)


def escaped_lines(text: str) -> str:
    """Return ``text`` as ``escaped`` does, with its line ends kept."""
    return "\n".join(escaped(line) for line in text.split("\n"))


def escaped_csv(text: str) -> str:
    """Return ``text`` with unsafe characters escaped, except for line ends and tabs, which are quoted."""
    return _CSV_UNSAFE.sub(lambda m: _escape(m[0]) if is_unsafe(m[0]) else m[0], text)


def escaped_json(text: str) -> str:
    """Return JSON text with unsafe characters in the form that JSON has for them."""
    return _JSON_UNSAFE.sub(lambda m: json.dumps(m[0])[1:-1] if is_unsafe(m[0]) else m[0], text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode()


def width(text: str) -> int:
    """Return how many columns ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_char_width(c) for c in text)


def _char_width(char: str) -> int:
    if char in _JOINERS or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
