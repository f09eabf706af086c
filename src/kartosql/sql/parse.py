"""Text to statement."""

from __future__ import annotations

import difflib
from typing import Any

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span, SqlError
from kartosql.sql.shapes import constants_of
from kartosql.sql.statement_policy import check_tokens, check_tree
from kartosql.sql.statements import Describe, Name, Reset, Select, Set, Show, Statement
from kartosql.sql.tokens import CONSTANTS, cleaned, number_of, parts_of, tokens_of
from kartosql.sql.tree import parse_tree
from kartosql.text.escape import is_unicode

MAX_TEXT = 1_000_000  # characters outside of long lists of constants
MAX_LISTS = 4_000_000  # characters of those lists: 100,000 values of 38 characters
SHOW_WORDS = (
    "CUBES",
    "DATASETS",
    "TABLES",
    "PARTITIONS",
    "INDEXES",
    "SKIPPING",
    "FILES",
    "STATS",
    "METADATA",
    "ATTACHED",
    "SETTINGS",
    "COVERAGE",
    "SCHEMA HISTORY",
)
INSPECT_WORDS = ("EXPLAIN", "ADVISE", "VERIFY")
_NEEDS_TARGET = ("PARTITIONS", "INDEXES", "SKIPPING", "FILES", "STATS", "METADATA")
QUERY_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(", "PIVOT", "UNPIVOT", "SUMMARIZE", "PIVOT_WIDER")
# Behind these a colon is that of a slice, a struct or an alias.
_OPERANDS = (
    TokenType.VAR,
    TokenType.IDENTIFIER,
    TokenType.STRING,
    TokenType.NUMBER,
    TokenType.R_PAREN,
    TokenType.L_BRACKET,
    TokenType.R_BRACKET,
)
WRITE_WORDS = ("CREATE", "ALTER", "INSERT", "DELETE", "DROP", "COPY", "COMPACT", "CLEANUP", "CHECK", "REFRESH")
EXPORT_WORDS = ("RECORD", "EXPORT")
_WORDS = (
    *QUERY_WORDS,
    *EXPORT_WORDS,
    "SHOW",
    "DESCRIBE",
    "DESC",
    *INSPECT_WORDS,
    "SET",
    "RESET",
    "ATTACH",
    "DETACH",
    *WRITE_WORDS,
)


def tokenize(text: str) -> list[Token]:
    """Return the tokens of ``text``; raises ``syntax-error`` and ``statement-too-long``."""
    if not isinstance(text, str):
        raise SqlError(f"A statement is text, not {type(text).__name__}.", code="invalid-argument")
    if not is_unicode(text):
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
        text, tokens = named, tokens_of(named)
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
    return _TokenCursor(text[: tokens[-1].end + 1], tokens).statement()


def _named_parameters(text: str, tokens: list[Token]) -> str:
    """Write the parameters ``:name`` as ``$name``, which is what DuckDB reads; places stay the same."""
    pieces, at = [], 0
    for before, colon, name in zip([None, *tokens], tokens, tokens[1:], strict=False):
        if (
            colon.token_type == TokenType.COLON
            and name.start == colon.end + 1
            and (name.token_type == TokenType.VAR or name.text.isidentifier())
            and name.token_type not in (TokenType.IDENTIFIER, TokenType.STRING)
            and (before is None or before.token_type not in _OPERANDS)
        ):
            pieces += [text[at : colon.start], "$"]
            at = colon.start + 1
    return "".join([*pieces, text[at:]])


class _TokenCursor:
    """A position in the tokens of one statement."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    # -- helpers -------------------------------------------------------------------------

    def word(self) -> str:
        """Return the current token in upper case, or an empty text at the end."""
        if self.at >= len(self.tokens) or self.tokens[self.at].token_type == TokenType.STRING:
            return ""
        return self.tokens[self.at].text.upper()

    def take(self, *words: str) -> bool:
        if self.word() in words and self.tokens[self.at].token_type != TokenType.IDENTIFIER:
            self.at += 1
            return True
        return False

    def fail(self, message: str, hint: str | None = None) -> SqlError:
        end = len(self.text)
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        span = (token.start, token.end + 1) if token else (end, end + 1)
        return SqlError(message, code="syntax-error", hint=hint, span=span, sql=self.text)

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.fail(f"Unexpected {self.tokens[self.at].text!r}.")

    def name(self) -> tuple[Name, Span]:
        """Read a dotted name."""
        parts: list[str] = []
        first = self.at
        while True:
            if self.at >= len(self.tokens):
                raise self.fail("Expected a name.")
            token = self.tokens[self.at]
            if token.token_type != TokenType.IDENTIFIER and not token.text.replace("_", "a").isalnum():
                raise self.fail(f"Expected a name, not {token.text!r}.")
            parts.append(token.text)
            self.at += 1
            if not self.take("."):
                break
        return tuple(parts), (self.tokens[first].start, self.tokens[self.at - 1].end + 1)

    def keyword(self) -> str:
        """Return the current word in upper case, or an empty text for a quoted name and at the end."""
        if self.at < len(self.tokens) and self.tokens[self.at].token_type == TokenType.IDENTIFIER:
            return ""
        return self.word()

    def phrase(self, *words: str) -> bool:
        """Take some words if all of them come next; the tokenizer makes one token of words such as PARTITION BY."""
        start, wanted = self.at, list(words)
        while wanted:
            found = self.keyword().split()
            if not found or found != wanted[: len(found)]:
                self.at = start
                return False
            wanted = wanted[len(found) :]
            self.at += 1
        return True

    def expect(self, *words: str) -> None:
        """Take some words; raises ``syntax-error`` if something else comes next."""
        if not self.phrase(*words):
            raise self.fail(f"Expected {' '.join(words)}.")

    def string(self, wanted: str, hint: str | None = None) -> str:
        """Read a text in single quotes; ``wanted`` is what an error says."""
        if self.at >= len(self.tokens) or self.tokens[self.at].token_type != TokenType.STRING:
            raise self.fail(wanted, hint)
        self.at += 1
        return self.tokens[self.at - 1].text

    def aligned(self, text: str) -> Select:
        """Parse a query in which every character stands where it stands in the statement, so that places agree."""
        try:
            return _TokenCursor(text, tokens_of(text)).select()
        except SqlError as e:
            e.sql = self.text
            raise

    def at_number(self) -> bool:
        """Return whether a number begins here, or the sign of one."""
        if self.at >= len(self.tokens):
            return False
        kind, text = self.tokens[self.at].token_type, self.tokens[self.at].text
        return kind == TokenType.NUMBER or (kind != TokenType.STRING and text in ("-", "+", "."))

    def number(self) -> int | float:
        """Read a number with its sign; the one reader of those that stand outside of queries."""
        sign = -1 if self.take("-") else 1
        if sign > 0:
            self.take("+")
        start = self.at
        whole = not self.take(".")
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is None or token.token_type != TokenType.NUMBER:
            raise self.fail("Expected a number.")
        found = number_of(token.text if whole else f".{token.text}")
        if found is None or token.start != self.tokens[start].start + (not whole):
            self.at = start
            raise self.fail("This is no number, or too large a one.")
        self.at += 1
        return sign * found

    # -- statements ------------------------------------------------------------------------

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
        if word in EXPORT_WORDS:
            from kartosql.sql.write_parse import parse_export

            return parse_export(self.text, self.tokens)
        if word in WRITE_WORDS:
            from kartosql.sql.write_parse import parse_write  # not at the top: most statements are queries

            return parse_write(self.text, self.tokens)
        raise self.unknown(word)

    def unknown(self, word: str) -> SqlError:
        close = difflib.get_close_matches(word, _WORDS, 1, cutoff=0.73)
        if close:
            return self.fail(f"{self.tokens[0].text!r} is no statement.", f"Did you mean {close[0]}?")
        error = self.fail(
            f"{word or self.tokens[0].text} statements are not supported.",
            "Supported are SELECT, SHOW, DESCRIBE, EXPLAIN, ADVISE, VERIFY, SET, RESET "
            "and statements about cubes and datasets.",
        )
        error.code = "not-supported" if word.isalpha() else "syntax-error"
        return error

    def select(self) -> Select:
        """Parse the rest of the tokens as a query; raises what a query may not do."""
        check_tokens(self.tokens[self.at :], self.text)
        start = self.tokens[self.at].start
        text, tokens = self.text, self.tokens
        if self.at:
            text = text[start:]
            tokens = tokens_of(text)
        try:
            trees = parse_tree(tokens, text)
        except (ParseError, RecursionError, ValueError, AttributeError, IndexError, TypeError):
            # The engine judges what this parser cannot read; it then runs without pruning.
            return Select(text, None)
        tree = trees[0] if len(trees) == 1 else None
        if tree is not None:
            check_tree(tree, text)
        if not isinstance(tree, exp.Query | exp.Summarize | exp.Pivot | exp.Values):
            return Select(text, None)
        return Select(text, tree, constants_of(tree, text))

    def show(self) -> Statement:
        if self.take("COVERAGE"):
            from kartosql.sql.inspect_parse import coverage

            return coverage(self)
        if self.take("SCHEMA"):
            return self.show_history()
        word = self.word()
        if word not in SHOW_WORDS:
            close = difflib.get_close_matches(word, SHOW_WORDS, 1)
            hint = f"Did you mean SHOW {close[0]}?" if close else f"SHOW one of: {', '.join(SHOW_WORDS)}."
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

    def at_query(self) -> bool:
        """Return whether a query begins here."""
        return self.at < len(self.tokens) and self.word() in QUERY_WORDS

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

    def value(self) -> Any:
        if self.at_number():
            number = self.number()
            self.end()
            return number
        if self.at >= len(self.tokens):
            raise self.fail("Expected a value.")
        token = self.tokens[self.at]
        self.at += 1
        self.end()
        if token.token_type == TokenType.NULL or token.text.upper() == "DEFAULT":
            return None
        return token.text


def _unreadable(text: str, error: TokenError) -> SqlError:
    from kartosql.sql.diagnosis import unreadable  # not at the top: most statements can be read

    return unreadable(text, error)
