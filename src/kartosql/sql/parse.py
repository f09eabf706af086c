"""Text to statement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import SqlError, closest
from kartosql.sql.cursor import QUERY_WORDS, SHOW_WORDS, WRITE_WORDS, TokenCursor
from kartosql.sql.statement_policy import caps_on, check_caps
from kartosql.sql.statements import Describe, Reset, Select, Set, Show, Statement
from kartosql.sql.tree import CONSTANTS, cleaned, edited, parts_of, tokens_of
from kartosql.text.escape import is_unicode

MAX_TEXT = 1_000_000  # characters outside of long lists of constants
MAX_LISTS = 4_000_000  # characters of those lists: 100,000 values of 38 characters
INSPECT_WORDS = ("EXPLAIN", "ADVISE", "VERIFY")
_NEEDS_TARGET = ("PARTITIONS", "INDEXES", "SKIPPING", "FILES", "STATS", "METADATA", "HISTORY")
# Behind these a colon is that of a slice, a struct or an alias.
_OPERANDS = (
    *(TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER),
    *(TokenType.R_PAREN, TokenType.L_BRACKET, TokenType.R_BRACKET),
)
# Behind these comes an operand, so that % begins one: the mark of other drivers for a value, which is no SQL.
_EXPECTING = {
    *(TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE, TokenType.LIKE),
    *(TokenType.ILIKE, TokenType.IN, TokenType.BETWEEN, TokenType.AND, TokenType.OR, TokenType.L_PAREN),
    *(TokenType.COMMA, TokenType.PLUS, TokenType.DASH, TokenType.LIMIT, TokenType.OFFSET, TokenType.SELECT),
}
_MARK = re.compile(r"%(\(\w+\))?[sdf]\b")
_OTHER_WORDS = ("SHOW", "DESCRIBE", "DESC", "SET", "RESET", "ATTACH", "DETACH")


def tokenize(text: str) -> list[Token]:
    """Return the tokens of ``text``; raises ``syntax-error`` and ``statement-too-long``."""
    if not isinstance(text, str):
        raise SqlError(f"A statement is text, not {type(text).__name__}.", code="invalid-argument")
    if not text.isascii() and not is_unicode(text):
        at = next(at for at, char in enumerate(text) if not is_unicode(char))
        message = f"The statement holds {text[at]!r}, half of a surrogate pair, which is no character."
        raise SqlError(message, code="syntax-error", span=(at, at + 1))
    try:
        parts = parts_of(text) if len(text) <= MAX_TEXT + MAX_LISTS else {}
    except TokenError as e:
        raise _unreadable(text, e) from None
    listed = sum(end - start for start, (end, kind, _) in parts.items() if kind == CONSTANTS)
    if len(text) - listed > MAX_TEXT or listed > MAX_LISTS:
        raise SqlError(
            f"The statement has {len(text):,} characters, the limit is {MAX_TEXT:,}, "
            f"and {MAX_LISTS:,} in IN (...) with constants.",
            code="statement-too-long",
            hint="Hand long lists over as a registered table, or as a list parameter.",
        )
    if "\0" in text:
        at = text.index("\0")
        raise SqlError("The statement holds a NUL character.", code="syntax-error", span=(at, at + 1))
    try:
        return tokens_of(text, parts)
    except TokenError as e:
        raise _unreadable(text, e) from None


def check_size(text: str, caps: Mapping[str, int]) -> None:
    """Raise ``too-many-columns`` and its like, or ``statement-too-deep``, for more than settings allow."""
    if isinstance(text, str) and (caps := caps_on(text, caps)):
        check_caps(tokenize(text), text, caps)


def split_statements(text: str) -> list[str]:
    """Return the statements of a script, split at semicolons outside of strings and comments."""
    found, start = [], 0
    for token in tokenize(text):
        if token.token_type == TokenType.SEMICOLON:
            found.append(text[start : token.start])
            start = token.end + 1
    found.append(text[start:])
    return [s.strip() for s in found if any(t.token_type != TokenType.SEMICOLON for t in tokens_of(s))]


def parse(text: str) -> Statement:
    """Return the one statement that ``text`` holds.

    Raises ``empty-statement``, ``several-statements``, ``syntax-error`` and
    ``not-supported`` for statements that kartosql does not have.
    """
    text, tokens = cleaned(text, tokenize(text))
    named = _named_parameters(text, tokens)
    if named != text:
        text, tokens = named, tokenize(named)
    if "%" in text:
        _check_marks(text, tokens)
    while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
        tokens.pop()
    if not tokens:
        raise SqlError("There is no statement.", code="empty-statement")
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            raise SqlError(
                "One statement at a time, please; here is a second one.",
                code="several-statements",
                span=(token.start, token.end + 1),
                sql=text,
            )
    return _StatementCursor(text[: tokens[-1].end + 1], tokens).statement()


def parse_select(text: str) -> Select:
    """Return the query that a text of our own holds."""
    statement = parse(text)
    assert isinstance(statement, Select)
    return statement


def _named_parameters(text: str, tokens: list[Token]) -> str:
    """Write the parameters ``:name`` as ``$name``, which is what DuckDB reads; places stay the same."""
    found = []
    for before, colon, name in zip([None, *tokens], tokens, tokens[1:], strict=False):
        if (
            colon.token_type == TokenType.COLON
            and name.start == colon.end + 1
            and (name.token_type == TokenType.VAR or name.text.isidentifier())
            and name.token_type not in (TokenType.IDENTIFIER, TokenType.STRING)
            and (before is None or before.token_type not in _OPERANDS)
        ):
            found.append(((colon.start, name.start), "$"))
    return edited(text, found)


def _check_marks(text: str, tokens: list[Token]) -> None:
    """Raise ``invalid-parameters`` for ``%s`` and ``%(name)s`` where a value is expected."""
    for before, token in pairwise(tokens):
        if token.token_type == TokenType.MOD and before.token_type in _EXPECTING:
            mark = _MARK.match(text, token.start)
            if mark is not None:
                hint = "Write ? and hand over a list, or $name and a dictionary."
                message = f"{mark[0]} is no parameter here."
                raise SqlError(message, code="invalid-parameters", hint=hint, span=mark.span(), sql=text)


class _StatementCursor(TokenCursor):
    def statement(self) -> Statement:
        word = self.word()
        if word in QUERY_WORDS:
            return self.select()
        if self.take("SHOW"):
            return self.show()
        if self.take("DESCRIBE", "DESC"):
            return self.describe()
        if word in INSPECT_WORDS:
            from kartosql.sql import inspect_parse  # not at the top: most statements are queries

            self.at += 1
            return getattr(inspect_parse, word.lower())(self)  # type: ignore[no-any-return]
        if self.take("SET"):
            return self.set()
        if self.take("RESET"):
            name, _ = self.name()
            self.end()
            return Reset(self.text, name[-1])
        if word in ("ATTACH", "DETACH"):
            from kartosql.sql.attach_parse import parse_attach

            return parse_attach(self.text, self.tokens)
        if word in WRITE_WORDS:
            from kartosql.sql.write_statements import parse_write  # not at the top: most statements are queries

            return parse_write(self.text, self.tokens)
        raise self.unknown(word)

    def unknown(self, word: str) -> SqlError:
        close = closest(word, (*QUERY_WORDS, *INSPECT_WORDS, *WRITE_WORDS, *_OTHER_WORDS), 0.73)
        if close:
            return self.fail(f"{self.tokens[0].text!r} is no statement.", f"Did you mean {close}?")
        return self.fail(
            f"{word or self.tokens[0].text} statements are not supported.",
            "Supported are SELECT, SHOW, DESCRIBE, EXPLAIN, ADVISE, VERIFY, SET, RESET "
            "and statements about cubes and datasets.",
            "not-supported" if word.isalpha() else "syntax-error",
        )

    def show(self) -> Statement:
        if self.take("COVERAGE"):
            from kartosql.sql.inspect_parse import coverage

            return coverage(self)
        if self.take("SCHEMA"):
            return self.show_history()
        if self.take("COLUMNS"):
            if not self.take("FROM", "IN", "OF"):
                raise self.fail("SHOW COLUMNS needs FROM and a table.")
            return self.describe()
        word = self.word()
        if word not in SHOW_WORDS:
            close = closest(word, SHOW_WORDS)
            hint = f"Did you mean SHOW {close}?" if close else f"SHOW one of: {', '.join(SHOW_WORDS)}."
            raise self.fail("SHOW what?", hint)
        self.at += 1
        if word == "SKIPPING" and not self.take("INDEXES"):
            raise self.fail("Expected INDEXES.", "SHOW SKIPPING INDEXES FROM t")
        target = span = None
        if word in (*_NEEDS_TARGET, "DATASETS") and self.take("FROM", "IN", "OF"):
            target, span = self.name()
        elif word in _NEEDS_TARGET:
            raise self.fail(f"SHOW {word} needs FROM and a table.")
        self.end()
        return Show(self.text, word.lower(), target, span)

    def show_history(self) -> Show:
        if not self.take("HISTORY") or not self.take("FROM", "IN", "OF", "FOR"):
            raise self.fail("SHOW SCHEMA what?", "SHOW SCHEMA HISTORY FROM t")
        target, span = self.name()
        self.end()
        return Show(self.text, "schema history", target, span)

    def describe(self) -> Describe:
        if self.word() in QUERY_WORDS and self.word() != "TABLE":
            return Describe(self.text, None, None, self.select())
        self.take("TABLE")
        target, span = self.name()
        version = as_of = None
        if self.take("VERSION"):
            number = self.number() if self.at_number() else None
            if not isinstance(number, int) or number < 0:
                raise self.fail("Expected the number of a version.", "DESCRIBE t VERSION 2")
            version = number
        elif self.take("AS"):
            if not self.take("OF"):
                raise self.fail("Expected OF.", "DESCRIBE t AS OF '2026-01-02 03:04:05'")
            self.take("TIMESTAMP")
            as_of = self.string("Expected a time in single quotes.", "DESCRIBE t AS OF '2026-01-02 03:04:05'")
        self.end()
        return Describe(self.text, target, span, None, version, as_of)

    def set(self) -> Set:
        self.take("SESSION", "LOCAL", "GLOBAL")
        if self.take("TIME"):
            if not self.take("ZONE"):
                raise self.fail("Expected ZONE.")
            return Set(self.text, "TimeZone", self.value())
        name, _ = self.name()
        if not self.take("=", "TO"):
            raise self.fail("Expected = and a value.")
        return Set(self.text, name[-1], self.value())


def _unreadable(text: str, error: TokenError) -> SqlError:
    from kartosql.sql.diagnosis import unreadable  # not at the top: most statements can be read

    return unreadable(text, error)
