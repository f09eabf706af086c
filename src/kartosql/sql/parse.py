"""Text to statement, read word by word; of statements that differ in constants only, one is parsed."""

from __future__ import annotations

import difflib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from sqlglot import exp
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span, SqlError
from kartosql.sql.statement_policy import check_tokens, check_tree
from kartosql.sql.statements import Describe, Name, Reset, Select, Set, Show, Statement
from kartosql.sql.tree import (
    CONSTANTS,
    DIALECT,
    SpanParser,
    blank,
    cleaned,
    edited,
    number_of,
    parts_of,
    span_of,
    tokens_of,
)
from kartosql.text.escape import is_unicode

Item = TypeVar("Item")
QUERY_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(", "PIVOT", "UNPIVOT", "SUMMARIZE", "PIVOT_WIDER")


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
        """Parse what is left of the statement without some pieces; it stands where it stood, so places agree."""
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
        """Read a number with its sign; the one reader of those that stand outside of queries."""
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


MAX_TEXT = 1_000_000  # characters outside of long lists of constants
MAX_LISTS = 4_000_000  # characters of those lists: 100,000 values of 38 characters
SHOW_WORDS = (
    *("CUBES", "DATASETS", "TABLES", "PARTITIONS", "INDEXES", "SKIPPING", "FILES", "STATS", "METADATA", "ATTACHED"),
    *("SETTINGS", "COVERAGE", "SCHEMA HISTORY"),
)
INSPECT_WORDS = ("EXPLAIN", "ADVISE", "VERIFY")
_NEEDS_TARGET = ("PARTITIONS", "INDEXES", "SKIPPING", "FILES", "STATS", "METADATA")
# Behind these a colon is that of a slice, a struct or an alias.
_OPERANDS = (
    *(TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER),
    *(TokenType.R_PAREN, TokenType.L_BRACKET, TokenType.R_BRACKET),
)
WRITE_WORDS = (
    *("CREATE", "ALTER", "INSERT", "DELETE", "DROP", "COPY", "COMPACT", "CLEANUP", "CHECK", "REFRESH"),
    *("RECORD", "EXPORT"),
)
_OTHER_WORDS = ("SHOW", "DESCRIBE", "DESC", "SET", "RESET", "ATTACH", "DETACH")


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
    return _StatementCursor(text[: tokens[-1].end + 1], tokens).statement()


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
        close = difflib.get_close_matches(
            word, (*QUERY_WORDS, *INSPECT_WORDS, *WRITE_WORDS, *_OTHER_WORDS), 1, cutoff=0.73
        )
        if close:
            return self.fail(f"{self.tokens[0].text!r} is no statement.", f"Did you mean {close[0]}?")
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


MAX_TEXTS = 64
MAX_SHAPES = 256
LONG_TEXT = 20_000  # characters; the trees of longer texts are not kept
_TEXT = re.compile(r"'[^'\\$/*\0]*+'")
_NUMBER = re.compile(r"[0-9]++(?:\.[0-9]++)?")
_CONSTANT = re.compile(rf"(?<![\w.#$']){_TEXT.pattern}(?!')|(?<![\w.#$]){_NUMBER.pattern}(?![\w.])")
_LOGIC = (exp.And, exp.Or, exp.Not, exp.Paren)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
# What may stand around a SELECT whose WHERE counts, and as what it stands there. The items of a SELECT list
# do not count, as columns are named after their text.
_AROUND = (exp.Select, exp.Subquery, exp.From, exp.Join, exp.With, exp.CTE, exp.SetOperation)
_STANDS_AS = ("where", "this", "expression", "from_", "joins", "with_")


class ParsedTexts:
    """The statements of texts, those used last and one of each shape. Trees are only read.

    Texts of one shape differ in constants only, and of these but the first one is parsed. A constant counts if a
    WHERE compares something with it, and the text of another statement has a constant of the same kind and length
    there, and the very same characters everywhere else. Then its tokens are the same but for these constants, and so
    is its tree; places in the text are the same as well. That the tree is shared means that constants are read from
    the text.
    """

    def __init__(self, parse: Callable[[str], Statement]) -> None:
        self._parse = parse
        self._lock = threading.Lock()
        self._texts: OrderedDict[str, Statement] = OrderedDict()
        self._shapes: OrderedDict[str, Select] = OrderedDict()

    def parse(self, text: str) -> Statement:
        """Return the statement of a text; raises what parsing raises."""
        if not isinstance(text, str) or len(text) > LONG_TEXT:
            return self._parse(text)
        shape = None
        with self._lock:
            found = self._texts.get(text)
            if found is None:
                shape = masked(text)
                like = self._shapes.get(shape)
                found = alike(like, text) if like is not None else None
        if found is None:
            found = self._parse(text)
        with self._lock:
            self._texts[text] = found
            self._texts.move_to_end(text)
            if shape is not None and isinstance(found, Select):
                self._note(shape, found, text)
            while len(self._texts) > MAX_TEXTS:
                self._texts.popitem(last=False)
        return found

    def _note(self, shape: str, select: Select, text: str) -> None:
        like = select.like or select
        if select.like is None and (like.text != text or not like.constants):
            return  # what is parsed is not what was written
        self._shapes[shape] = like
        self._shapes.move_to_end(shape)
        while len(self._shapes) > MAX_SHAPES:
            self._shapes.popitem(last=False)


def masked(text: str) -> str:
    """Return a text in which constants are the same for those that may have the same shape."""
    return _CONSTANT.sub(lambda match: _mask(match[0]), text)


def _mask(constant: str) -> str:
    """Return the constant that stands for all of the same kind and length."""
    return f"'{'x' * (len(constant) - 2)}'" if constant[0] == "'" else "".join("0" if c != "." else c for c in constant)


def with_masks(text: str, constants: tuple[Span, ...]) -> list[tuple[Span, str]]:
    """Return the edits of a text that put the same constants into all texts of a shape."""
    return [(span, _mask(text[span[0] : span[1]])) for span in constants]


def alike(select: Select, text: str) -> Select | None:
    """Return the statement of a text that differs from a known one in constants only, None for other texts."""
    known = select.text
    if len(known) != len(text):
        return None
    at = 0
    for start, end in select.constants:
        constant = text[start:end]
        if (
            text[at:start] != known[at:start]
            or not _is_constant(constant)
            or _mask(constant) != _mask(known[start:end])
        ):
            return None
        at = end
    return Select(text, select.tree, select.constants, select) if text[at:] == known[at:] else None


def constant_of(text: str) -> str | None:
    """Return what a constant that may differ between statements of a shape holds, None for other text."""
    return None if not _is_constant(text) else text[1:-1] if text.startswith("'") else text


def _is_constant(text: str) -> bool:
    return (_TEXT if text.startswith("'") else _NUMBER).fullmatch(text) is not None


def constants_of(tree: exp.Expression, text: str) -> tuple[Span, ...]:
    """Return the places of the constants that may differ while the tree stays the same, ascending."""
    found = (
        (node.meta["start"], node.meta["end"] + 1)
        for where in tree.find_all(exp.Where)
        if _is_reachable(where)
        for node in _compared(where.this)
        if "start" in node.meta and "end" in node.meta
    )
    return tuple(sorted(span for span in set(found) if _is_constant(text[span[0] : span[1]])))


def _is_reachable(where: exp.Where) -> bool:
    node: exp.Expression = where
    while node.parent is not None:
        if not isinstance(node.parent, _AROUND):
            return False
        if node.arg_key not in _STANDS_AS and not isinstance(node.parent, exp.With):
            return False
        node = node.parent
    return span_of(where.this) is not None


def _compared(condition: exp.Expression) -> Iterator[exp.Expression]:
    """Yield the literals that a condition compares something with."""
    pending = [condition]
    while pending:
        node = pending.pop()
        if isinstance(node, _LOGIC):
            pending += node.iter_expressions()
            continue
        operands: list[exp.Expression | None] = []
        if isinstance(node, _COMPARISONS):
            operands = [node.this, node.expression]
        elif isinstance(node, exp.Between):
            operands = [node.args.get("low"), node.args.get("high")]
        elif isinstance(node, exp.In):
            operands = list(node.expressions)
        if span_of(node) is not None:
            yield from (o for o in map(_literal, operands) if o is not None)


def _literal(node: exp.Expression | None) -> exp.Expression | None:
    """Return the literal of ``5``, ``-5``, ``'a'`` and ``DATE '2020-01-01'``."""
    if isinstance(node, exp.Neg) or (isinstance(node, exp.Cast) and node.to.is_type(exp.DataType.Type.DATE)):
        node = node.this
    return node if isinstance(node, exp.Literal) else None
