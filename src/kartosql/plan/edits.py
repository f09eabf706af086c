"""The user's text and the text that is run: edits, and places carried from one to the other."""

from __future__ import annotations

from collections.abc import Sequence

from kartosql.errors import Span

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
