"""What somebody typed or pasted, as commands and statements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kartosql.sql.incremental_lexer import is_blank, statement_end

_COMMAND = re.compile(r"[.\\](?=[A-Za-z?!])")
# Words that people type to leave or to get help, whatever shell they come from.
BARE = {"exit": ".quit", "quit": ".quit", "help": ".help", "?": ".help"}
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class Unit:
    """A command, a statement with its semicolon, or the rest of a text, which is not complete."""

    kind: Literal["command", "statement", "rest"]
    text: str


def units(text: str) -> Iterator[Unit]:
    """Yield the commands and statements of a text in order; a command is one line at the beginning of a statement."""
    at = 0
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if at >= len(text):
            return
        line_end = text.find("\n", at)
        line_end = len(text) if line_end < 0 else line_end
        line = text[at:line_end].strip()
        bare = BARE.get(line.rstrip("; ").lower())
        if _COMMAND.match(line) or bare:
            yield Unit("command", bare or line)
            at = line_end
            continue
        end = statement_end(text, at)
        if end is None:
            if not is_blank(text[at:]):
                yield Unit("rest", text[at:])
            return
        if not is_blank(text[at : end - 1]):
            yield Unit("statement", text[at:end])
        at = end


def is_ready(text: str) -> bool:
    """Return whether Enter runs a text: all of it is commands and whole statements."""
    last = None
    for unit in units(text):
        last = unit
        if unit.kind == "rest":
            return False
    return last is not None
