"""Text to tokens: comments and odd spaces blanked, long lists of constants held together."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any, ClassVar

from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

Parts = dict[int, tuple[int, TokenType | None, str]]  # beginning -> end, kind of token, content

DIALECT = Dialect.get_or_raise("duckdb")
LONG_LIST = 100  # values from which on a list of constants is one token
# The type of a token that is a long list; no text of the DuckDB dialect has tokens of it.
CONSTANTS = TokenType.STREAMLIT
_QUOTED = (
    TokenType.STRING,
    TokenType.IDENTIFIER,
    TokenType.HEREDOC_STRING,
    TokenType.BYTE_STRING,
    TokenType.NATIONAL_STRING,
)
_CONSTANT = r"(?:[+-]?\d++(?:\.\d++)?(?![\w.])|'(?:[^']++|'')*+')"
# What may hide a quote or a list, each from its beginning.
_PARTS = re.compile(
    rf"""(?P<comment>/\*)|(?<!\w)(?P<heredoc>\$(?:[^\W\d]\w*+)?\$)|(?<!\w)e'(?:[^'\\]|\\.|'')*+'"""
    rf"""|'[^']*+'|"[^"]*+"|--[^\n\r]*+"""
    rf"""|\bIN\s*+\(\s*+(?P<list>{_CONSTANT}(?:\s*+,\s*+{_CONSTANT}){{{LONG_LIST - 1},}}+)\s*+\)""",
    re.IGNORECASE | re.DOTALL,
)
_COMMENT_ENDS = re.compile(r"/\*|\*/")
_NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
MAX_DIGITS = 308  # of whole numbers, so that each of them has a float, too


class _Tokenizer(DuckDB.Tokenizer):
    """The DuckDB tokenizer without the statements whose text sqlglot leaves unread.

    It does not look for ``$tag$`` either: a parameter makes sqlglot search the whole text for
    the end of a tag, and lose its place where it meets a doubled quote.
    """

    HEREDOC_STRINGS: ClassVar[list[Any]] = []
    COMMANDS: ClassVar[set[Any]] = set()
    # Another dialect's operator, which hides the parameter in ``?::INT``.
    KEYWORDS: ClassVar[dict[str, Any]] = {k: v for k, v in DuckDB.Tokenizer.KEYWORDS.items() if k != "?::"}


def parts_of(text: str) -> Parts:
    """Return what sqlglot is not shown, by its beginning: long lists behind IN, ``$$text$$`` and ``/* text */``.

    The first two are one token each, comments are none. Raises sqlglot's TokenError.
    """
    found: Parts = {}
    if len(text) < 2 * LONG_LIST and "$" not in text and "/*" not in text:
        return found
    at = 0
    while match := _PARTS.search(text, at):
        at = match.end()
        if match["comment"]:
            at = _end_of_comment(text, at)
            found[match.start()] = (at, None, "")
        elif match["list"]:
            found[match.start("list")] = (match.end("list"), CONSTANTS, match["list"])
        elif match["heredoc"]:
            end = text.find(match["heredoc"], at)
            if end < 0:
                raise TokenError(f"{match['heredoc']} is not closed")
            content, at = text[at:end], end + len(match["heredoc"])
            found[match.start()] = (at, TokenType.HEREDOC_STRING, content)
    return found


def _end_of_comment(text: str, at: int) -> int:
    depth = 1
    while depth and (match := _COMMENT_ENDS.search(text, at)):
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    if depth:
        raise TokenError("/* is not closed")
    return at


def tokens_of(text: str, parts: Parts | None = None) -> list[Token]:
    """Return the tokens of ``text``; raises sqlglot's TokenError.

    The constants of a long ``IN (...)`` are one token of the type CONSTANTS. ``parts`` is what
    parts_of returns. sqlglot ends comments elsewhere than DuckDB where their beginnings touch.
    """
    parts = parts_of(text) if parts is None else parts
    pieces, at = [], 0
    for start, (end, kind, _) in parts.items():
        pieces += [text[at:start], "0" if kind else " ", " " * (end - start - 1)]
        at = end
    tokens = list(_Tokenizer(dialect=DIALECT).tokenize("".join([*pieces, text[at:]])))
    for index, token in enumerate(tokens if parts else ()):
        end, kind, content = parts.get(token.start, (0, None, ""))
        if kind is not None:
            tokens[index] = Token(kind, content, token.line, token.col, token.start, end - 1)
    return tokens


def cleaned(text: str, tokens: list[Token]) -> tuple[str, list[Token]]:
    """Return a statement and its tokens with spaces for all that stands between the tokens.

    The engine then reads nothing that this tokenizer took for a comment, and finds spaces
    where it would see them and this tokenizer does not. Places stay the same.
    """
    pieces: list[str] = []
    at = 0
    odd = False
    for token in tokens:
        if token.start > at + 1 or (token.start > at and text[at] != " "):
            pieces.append(_blank(text[at : token.start]))
        else:
            pieces.append(text[at : token.start])
        own = text[token.start : token.end + 1]
        if token.token_type not in _QUOTED and token.token_type != CONSTANTS and not own.isascii():
            spaced = "".join(" " if unicodedata.category(c) in ("Cf", "Zs", "Zl", "Zp", "Cc") else c for c in own)
            odd |= spaced != own
            own = spaced
        pieces.append(own)
        at = max(at, token.end + 1)
    text = "".join([*pieces, _blank(text[at:])])
    return text, tokens_of(text) if odd else tokens


def constants_in(text: str) -> list[str]:
    """Return the constants of a long list, each as it is written."""
    return re.findall(_CONSTANT, text)


def number_of(text: str) -> int | float | None:
    """Return the number that a literal without a sign stands for; None for what is none, or beyond all types."""
    if _NUMBER.fullmatch(text) is None:
        return None
    if text.isdecimal():
        return int(text) if len(text.lstrip("0")) <= MAX_DIGITS else None
    number = float(text)
    return None if math.isinf(number) else number


def _blank(gap: str) -> str:
    return gap if not gap.strip(" \t\r\n") else "".join(c if c in "\r\n" else " " for c in gap)
