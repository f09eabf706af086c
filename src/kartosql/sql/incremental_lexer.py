"""Lex a text that is still being typed, for highlighting, completion, and the Enter key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.sql.parse import EXPORT_WORDS, SHOW_WORDS, WRITE_WORDS
from kartosql.sql.statement_policy import words
from kartosql.sql.tokens import tokens_of

Kind = Literal["keyword", "function", "name", "quoted", "string", "number", "comment", "parameter", "symbol"]

# What may hide a semicolon, from its beginning.
_HIDING = re.compile(
    r"""(?P<line>--)|(?P<block>/\*)|(?<!\w)(?P<tag>\$(?:[^\W\d]\w*+)?\$)|(?<!\w)(?P<escaped>e')|(?P<quote>['"])""",
    re.IGNORECASE,
)
_STOP = re.compile(rf"{_HIDING.pattern}|(?P<semicolon>;)", re.IGNORECASE)
_BLOCK = re.compile(r"/\*|\*/")
_ESCAPED = re.compile(r"(?:[^'\\]|\\.|'')*+'", re.DOTALL)
# Words of our own statements, which the tokenizer takes for names.
OWN_WORDS = frozenset((*SHOW_WORDS, *WRITE_WORDS, *EXPORT_WORDS)) | words(
    "SHOW CUBE DATASET DIMENSIONS SEED REPAIR RESET EXPLAIN ANALYZE ADVISE COVERAGE VERIFY HISTORY INDEX OVERWRITE",
    "ATTACH DETACH COST TYPE SCHEMA VERSION PRIMARY_KEY EVENT_TIME",
)
_QUERY = ("SELECT", "WITH", "FROM", "VALUES")


@dataclass(frozen=True)
class Lexeme:
    """A piece of the text, [start, end), and what it is."""

    start: int
    end: int
    kind: Kind
    text: str

    @property
    def word(self) -> str:
        """The text in upper case, empty for what is in quotes or a comment."""
        return "" if self.kind in ("string", "quoted", "comment") else self.text.upper()


@dataclass(frozen=True)
class Hidden:
    """A string, quoted name or comment, [start, end); ``closed`` says whether its end was written."""

    start: int
    end: int
    kind: Kind
    closed: bool


def hidden(text: str) -> list[Hidden]:
    """Return the strings, quoted names and comments of a text; the last one may be open."""
    found: list[Hidden] = []
    at = 0
    while match := _HIDING.search(text, at):
        end, kind, closed = _end_of(text, match)
        found.append(Hidden(match.start(), end, kind, closed))
        at = end
    return found


def _end_of(text: str, match: re.Match[str]) -> tuple[int, Kind, bool]:
    at = match.end()
    if match["line"]:
        ends = [end for end in (text.find("\n", at), text.find("\r", at)) if end >= 0]
        # Whatever comes next on the same line is comment, too.
        return (min(ends), "comment", True) if ends else (len(text), "comment", True)
    if match["block"]:
        depth = 1
        while depth and (inner := _BLOCK.search(text, at)):
            depth += 1 if inner[0] == "/*" else -1
            at = inner.end()
        return (at, "comment", True) if not depth else (len(text), "comment", False)
    if match["escaped"]:
        whole = _ESCAPED.match(text, at)
        return (whole.end(), "string", True) if whole else (len(text), "string", False)
    mark = match["tag"] or match["quote"]
    kind: Kind = "quoted" if mark == '"' else "string"
    end = text.find(mark, at)
    while match["quote"] and end >= 0 and text.startswith(mark, end + 1):
        end = text.find(mark, end + 2)  # a doubled quote stands for itself
    return (end + len(mark), kind, True) if end >= 0 else (len(text), kind, False)


def statement_end(text: str, at: int = 0) -> int | None:
    """Return the place behind the semicolon of the statement that begins at ``at``, None where none was written."""
    while match := _STOP.search(text, at):
        if match["semicolon"]:
            return match.end()
        at, _, closed = _end_of(text, match)
        if not closed:
            return None
    return None


def is_blank(text: str) -> bool:
    """Return whether a text is nothing but spaces and comments that are closed."""
    parts = hidden(text)
    return all(p.kind == "comment" and p.closed for p in parts) and not blanked(text, parts).strip()


def open_mark(text: str) -> str | None:
    """Return the quote or comment that the end of a text is in, as it was opened; None outside of them."""
    parts = hidden(text)
    if not parts or parts[-1].closed:
        return None
    match = _HIDING.match(text, parts[-1].start)
    return match[0] if match else None


def blanked(text: str, parts: list[Hidden] | None = None) -> str:
    """Return a text with spaces for its strings, quoted names and comments; line ends stay."""
    pieces, at = [], 0
    for part in hidden(text) if parts is None else parts:
        own = text[part.start : part.end]
        pieces += [text[at : part.start], "".join(c if c in "\r\n" else " " for c in own)]
        at = part.end
    return "".join([*pieces, text[at:]])


def lexemes(text: str) -> list[Lexeme]:
    """Return the pieces of a text in order, white space left out; half of a statement will do."""
    parts = hidden(text)
    try:
        tokens = tokens_of(blanked(text, parts), {})
    except TokenError:
        tokens = []
    found = [Lexeme(p.start, p.end, p.kind, text[p.start : p.end]) for p in parts]
    first = next((t.text.upper() for t in tokens if t.text.strip()), "")
    own = first in OWN_WORDS and first not in _QUERY
    for token, following in zip(tokens, [*tokens[1:], None], strict=False):
        start, end = token.start, token.end + 1
        found.append(Lexeme(start, end, _kind(token, following, text, own), text[start:end]))
    return sorted(found, key=lambda lexeme: lexeme.start)


def _kind(token: Token, following: Token | None, text: str, own: bool) -> Kind:
    kind, written = token.token_type, text[token.start : token.end + 1]
    called = following is not None and following.token_type == TokenType.L_PAREN and following.start == token.end + 1
    if kind == TokenType.NUMBER:
        return "number"
    if kind in (TokenType.PARAMETER, TokenType.PLACEHOLDER):
        return "parameter"
    if not (written[:1].isalpha() or written[:1] == "_"):
        return "symbol"
    if kind != TokenType.VAR:
        # LEFT( and DATE( are calls, IN ( and VALUES ( are not.
        return "function" if called and not _stays_keyword(written) else "keyword"
    if called:
        return "function"
    return "keyword" if own and written.upper() in OWN_WORDS else "name"


def _stays_keyword(word: str) -> bool:
    return word.upper() in ("IN", "VALUES", "USING", "ON", "AND", "OR", "NOT", "EXISTS", "OVER", "AS", "FILTER", "BY")
