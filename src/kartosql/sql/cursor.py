"""A position in the tokens of a statement: words, names, numbers, texts and queries are read from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span, SqlError
from kartosql.sql.statement_policy import check_tokens, check_tree
from kartosql.sql.statements import Name, Select
from kartosql.sql.tree import DIALECT, SpanParser, blank, constants_of, edited, number_of, tokens_of

Item = TypeVar("Item")
QUERY_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(", "PIVOT", "UNPIVOT", "SUMMARIZE", "PIVOT_WIDER")
SHOW_WORDS = (
    *("CUBES", "DATASETS", "TABLES", "COLUMNS", "PARTITIONS", "INDEXES", "SKIPPING", "FILES", "STATS", "METADATA"),
    *("ATTACHED", "SETTINGS", "COVERAGE", "HISTORY", "SCHEMA HISTORY"),
)
WRITE_WORDS = (
    *("CREATE", "ALTER", "INSERT", "DELETE", "DROP", "COPY", "COMPACT", "CLEANUP", "CHECK", "REFRESH"),
    *("RECORD", "EXPORT", "UPDATE", "MERGE", "RESTORE", "PUBLISH"),
)


class TokenCursor:
    """A position in the tokens of one statement."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    @property
    def token(self) -> Token | None:
        """The current token, None at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def word(self) -> str:
        """Return the current token in upper case, or an empty text at the end."""
        token = self.token
        return "" if token is None or token.token_type == TokenType.STRING else token.text.upper()

    def take(self, *words: str) -> bool:
        """Take the current word if it is one of some, and return whether it was."""
        found = self.word() in words and self.tokens[self.at].token_type != TokenType.IDENTIFIER
        self.at += found
        return found

    def usage(self) -> str | None:
        """Return the form of the statement, which is the hint of errors that have none."""
        return None

    def fail(
        self, message: str, hint: str | None = None, code: str = "syntax-error", span: Span | None = None
    ) -> SqlError:
        """Return the error at a place, without one at the current token."""
        end, token = len(self.text), self.token
        span = span or ((token.start, token.end + 1) if token else (end, end + 1))
        return SqlError(message, code=code, hint=hint or self.usage(), span=span, sql=self.text)

    def end(self) -> None:
        """Raise ``syntax-error`` unless all tokens were taken."""
        if (token := self.token) is not None:
            raise self.fail(f"Unexpected {token.text!r}.")

    def name(self) -> tuple[Name, Span]:
        """Read a dotted name."""
        parts: list[str] = []
        first = self.at
        while not parts or self.take("."):
            token = self.token
            if token is None:
                raise self.fail("Expected a name.")
            if token.token_type != TokenType.IDENTIFIER and not token.text.replace("_", "a").isalnum():
                raise self.fail(f"Expected a name, not {token.text!r}.")
            parts.append(token.text)
            self.at += 1
        return tuple(parts), (self.tokens[first].start, self.tokens[self.at - 1].end + 1)

    def keyword(self) -> str:
        """Return the current word in upper case, or an empty text for a quoted name and at the end."""
        token = self.token
        return "" if token is not None and token.token_type == TokenType.IDENTIFIER else self.word()

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
        token = self.token
        if token is None or token.token_type != TokenType.STRING:
            raise self.fail(wanted, hint)
        self.at += 1
        return token.text

    def aligned(self, *without: Span, end: int | None = None) -> Select:
        """Parse what is left of the statement without some pieces, with every character in its place."""
        text = edited(self.text[:end], [(span, blank(self.text[slice(*span)])) for span in without])
        try:
            return TokenCursor(text, tokens_of(text)).select()
        except SqlError as e:
            e.sql = self.text
            raise

    def at_number(self) -> bool:
        """Return whether a number begins here, or the sign of one."""
        token = self.token
        return token is not None and (token.token_type == TokenType.NUMBER or self.word() in ("-", "+", "."))

    def number(self) -> int | float:
        """Read a number with its sign; the one reader of those outside of queries."""
        sign = -1 if self.take("-") else 1
        if sign > 0:
            self.take("+")
        start = self.at
        whole = not self.take(".")
        token = self.token
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
            trees = SpanParser(dialect=DIALECT).parse(tokens, text)
        except (ParseError, RecursionError, ValueError, AttributeError, IndexError, TypeError):
            # The engine judges what this parser cannot read; it then runs without pruning.
            return Select(text, None)
        tree: Any = trees[0] if len(trees) == 1 else None
        if tree is not None:
            check_tree(tree, text)
        is_query = isinstance(tree, exp.Query | exp.Summarize | exp.Pivot | exp.Values)
        return Select(text, tree, constants_of(tree, text)) if is_query else Select(text, None)

    def separated(self, item: Callable[[], Item]) -> list[Item]:
        """Read at least one item, and one behind each comma."""
        found = [item()]
        while self.take(","):
            found.append(item())
        return found

    def in_brackets(self, item: Callable[[], Item]) -> list[Item]:
        """Read at least one item in parentheses, with commas between them."""
        self.expect("(")
        found = self.separated(item)
        if not self.take(")"):
            raise self.fail("Expected , or ).")
        return found

    def up_to(self, item: Callable[[], Item], *ends: str, wanted: str = "") -> list[Item]:
        """Read items with commas between them up to a bracket; ``wanted`` is how an error names that."""
        found = []
        while not self.take(*ends):
            found.append(item())
            if not self.take(",") and self.word() not in ends:
                raise self.fail(f"Expected , or {wanted or ends[0]}.")
        return found

    def at_query(self) -> bool:
        """Return whether a query begins here."""
        return self.word() in QUERY_WORDS

    def value(self) -> Any:
        """Read a number, a text or a word as the rest of the statement; NULL and DEFAULT are None."""
        if self.at_number():
            number = self.number()
            self.end()
            return number
        token = self.token
        if token is None:
            raise self.fail("Expected a value.")
        self.at += 1
        self.end()
        if token.token_type == TokenType.NULL or token.text.upper() == "DEFAULT":
            return None
        return token.text
