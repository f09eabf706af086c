"""A position in the tokens of a statement: words, names, numbers, texts and queries are read from there."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span, SqlError
from kartosql.sql.shapes import constants_of
from kartosql.sql.statement_policy import check_tokens, check_tree
from kartosql.sql.statements import Name, Select
from kartosql.sql.tokens import number_of, tokens_of
from kartosql.sql.tree import parse_tree

QUERY_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(", "PIVOT", "UNPIVOT", "SUMMARIZE", "PIVOT_WIDER")


class TokenCursor:
    """A position in the tokens of one statement."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    def word(self) -> str:
        """Return the current token in upper case, or an empty text at the end."""
        if self.at >= len(self.tokens) or self.tokens[self.at].token_type == TokenType.STRING:
            return ""
        return self.tokens[self.at].text.upper()

    def take(self, *words: str) -> bool:
        """Take the current word if it is one of some, and return whether it was."""
        if self.word() in words and self.tokens[self.at].token_type != TokenType.IDENTIFIER:
            self.at += 1
            return True
        return False

    def fail(self, message: str, hint: str | None = None) -> SqlError:
        """Return a ``syntax-error`` at the current token."""
        end = len(self.text)
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        span = (token.start, token.end + 1) if token else (end, end + 1)
        return SqlError(message, code="syntax-error", hint=hint, span=span, sql=self.text)

    def end(self) -> None:
        """Raise ``syntax-error`` unless all tokens were taken."""
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
            return TokenCursor(text, tokens_of(text)).select()
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

    def at_query(self) -> bool:
        """Return whether a query begins here."""
        return self.at < len(self.tokens) and self.word() in QUERY_WORDS

    def value(self) -> Any:
        """Read a number, a text or a word as the rest of the statement; NULL and DEFAULT are None."""
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
