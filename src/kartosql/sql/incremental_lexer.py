"""Lex a text that is still being typed, for highlighting, completion, and the Enter key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.sql.cursor import SHOW_WORDS, WRITE_WORDS
from kartosql.sql.statement_policy import words
from kartosql.sql.tree import blank, edited, end_of_comment, tokens_of

Kind = Literal["keyword", "function", "name", "quoted", "string", "number", "comment", "parameter", "symbol"]

# What may hide a semicolon, from its beginning.
_HIDING = re.compile(
    r"""(?P<line>--)|(?P<block>/\*)|(?<!\w)(?P<tag>\$(?:[^\W\d]\w*+)?\$)|(?<!\w)(?P<escaped>e')|(?P<quote>['"])""",
    re.IGNORECASE,
)
_STOP = re.compile(rf"{_HIDING.pattern}|(?P<semicolon>;)", re.IGNORECASE)
_ESCAPED = re.compile(r"(?:[^'\\]|\\.|'')*+'", re.DOTALL)
# Words of our own statements, which the tokenizer takes for names.
OWN_WORDS = frozenset((*SHOW_WORDS, *WRITE_WORDS)) | words(
    "SHOW CUBE DATASET DIMENSIONS SEED REPAIR RESET EXPLAIN ANALYZE ADVISE COVERAGE VERIFY HISTORY INDEX OVERWRITE",
    "ATTACH DETACH COST TYPE SCHEMA VERSION PRIMARY_KEY EVENT_TIME",
)
_QUERY = ("SELECT", "WITH", "FROM", "VALUES")
_BEFORE_BRACKETS = ("IN", "VALUES", "USING", "ON", "AND", "OR", "NOT", "EXISTS", "OVER", "AS", "FILTER", "BY")


@dataclass(frozen=True)
class Lexeme:
    """A piece of the text, [start, end), and what it is; ``closed`` says whether its end was written."""

    start: int
    end: int
    kind: Kind
    text: str
    closed: bool = True

    @property
    def word(self) -> str:
        """The text in upper case, empty for what is in quotes or a comment."""
        return "" if self.kind in ("string", "quoted", "comment") else self.text.upper()


def hidden(text: str) -> list[Lexeme]:
    """Return the strings, quoted names and comments of a text; the last one may be open."""
    found: list[Lexeme] = []
    at = 0
    while match := _HIDING.search(text, at):
        end, kind = _end_of(text, match)
        at = len(text) if end is None else end
        found.append(Lexeme(match.start(), at, kind, text[match.start() : at], end is not None))
    return found


def _end_of(text: str, match: re.Match[str]) -> tuple[int | None, Kind]:
    at = match.end()
    if match["line"]:
        # Whatever comes next on the same line is comment, too.
        ends = [end for end in (text.find("\n", at), text.find("\r", at)) if end >= 0]
        return min(ends, default=len(text)), "comment"
    if match["block"]:
        return end_of_comment(text, at), "comment"
    if match["escaped"]:
        whole = _ESCAPED.match(text, at)
        return whole.end() if whole else None, "string"
    mark = match["tag"] or match["quote"]
    end = text.find(mark, at)
    while match["quote"] and end >= 0 and text.startswith(mark, end + 1):
        end = text.find(mark, end + 2)  # a doubled quote stands for itself
    return None if end < 0 else end + len(mark), "quoted" if mark == '"' else "string"


def statement_end(text: str, at: int = 0) -> int | None:
    """Return the place behind the semicolon of the statement that begins at ``at``, None where none was written."""
    while match := _STOP.search(text, at):
        if match["semicolon"]:
            return match.end()
        end, _ = _end_of(text, match)
        if end is None:
            return None
        at = end
    return None


def is_blank(text: str) -> bool:
    """Return whether a text is nothing but spaces and comments that are closed."""
    parts = hidden(text)
    return all(p.kind == "comment" and p.closed for p in parts) and not _blanked(text, parts).strip()


def open_mark(text: str) -> str | None:
    """Return the quote or comment that the end of a text is in, as it was opened; None outside of them."""
    parts = hidden(text)
    if not parts or parts[-1].closed:
        return None
    match = _HIDING.match(text, parts[-1].start)
    return match[0] if match else None


def _blanked(text: str, parts: list[Lexeme]) -> str:
    return edited(text, (((p.start, p.end), blank(p.text)) for p in parts))


def lexemes(text: str) -> list[Lexeme]:
    """Return the pieces of a text in order, white space left out; half of a statement will do."""
    parts = hidden(text)
    try:
        tokens = tokens_of(_blanked(text, parts), {})
    except TokenError:
        tokens = []
    found = list(parts)
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
        return "function" if called and written.upper() not in _BEFORE_BRACKETS else "keyword"
    if called:
        return "function"
    return "keyword" if own and written.upper() in OWN_WORDS else "name"
