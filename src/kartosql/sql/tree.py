"""Text to tokens and trees: sqlglot's DuckDB dialect, with the place of each condition; which texts share a tree."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import re
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from kartosql.errors import Span, SqlError
from kartosql.sql.interpreted import DuckDBParser
from kartosql.sql.statements import Select, Statement
from kartosql.text.constants import differ_in_constants_only, is_constant, mask, masked

Edit = tuple[Span, str]  # a place and its new text
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
CONSTANT = re.compile(r"(?:[+-]?\d++(?:\.\d++)?(?![\w.])|'(?:[^']++|'')*+')")  # of a long list
# What may hide a quote or a list, each from its beginning.
_PARTS = re.compile(
    rf"""(?P<comment>/\*)|(?<!\w)(?P<heredoc>\$(?:[^\W\d]\w*+)?\$)|(?<!\w)e'(?:[^'\\]|\\.|'')*+'"""
    rf"""|'[^']*+'|"[^"]*+"|--[^\n\r]*+"""
    rf"""|\bIN\s*+\(\s*+(?P<list>{CONSTANT.pattern}(?:\s*+,\s*+{CONSTANT.pattern}){{{LONG_LIST - 1},}}+)\s*+\)""",
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

    The first two are one token each, comments are left out. Raises sqlglot's TokenError.
    """
    found: Parts = {}
    if len(text) < 2 * LONG_LIST and "$" not in text and "/*" not in text:
        return found
    at = 0
    while match := _PARTS.search(text, at):
        at = match.end()
        if match["comment"]:
            end = end_of_comment(text, at)
            if end is None:
                raise TokenError("/* is not closed")
            at = end
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


def end_of_comment(text: str, at: int) -> int | None:
    """Return the place behind a comment whose text begins at a place, None if it is not closed."""
    depth = 1
    while depth and (match := _COMMENT_ENDS.search(text, at)):
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return None if depth else at


def tokens_of(text: str, parts: Parts | None = None) -> list[Token]:
    """Return the tokens of ``text``; raises sqlglot's TokenError.

    The constants of a long ``IN (...)`` are one token of the type CONSTANTS. ``parts`` is what
    parts_of returns. sqlglot ends comments elsewhere than DuckDB where their beginnings touch.
    """
    parts = parts_of(text) if parts is None else parts
    shown = edited(text, (((at, end), ("0" if kind else " ").ljust(end - at)) for at, (end, kind, _) in parts.items()))
    tokens = list(_Tokenizer(dialect=DIALECT).tokenize(shown))
    for index, token in enumerate(tokens if parts else ()):
        end, kind, content = parts.get(token.start, (0, None, ""))
        if kind is not None:
            tokens[index] = Token(kind, content, token.line, token.col, token.start, end - 1)
    return tokens


def cleaned(text: str, tokens: list[Token]) -> tuple[str, list[Token]]:
    """Return a statement and its tokens with spaces for all between the tokens.

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


def number_of(text: str) -> int | float | None:
    """Return the number that a literal without a sign stands for; None for other texts, and beyond all types."""
    if _NUMBER.fullmatch(text) is None:
        return None
    if text.isdecimal():
        return int(text) if len(text.lstrip("0")) <= MAX_DIGITS else None
    number = float(text)
    return None if math.isinf(number) else number


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return a text with other pieces at some places."""
    pieces, at = [], 0
    for (start, end), new in sorted(edits):
        pieces += [text[at:start], new]
        at = end
    return "".join([*pieces, text[at:]])


def original_span(text: str, edits: Sequence[Edit], place: int) -> Span:
    """Return the characters of ``text`` at a place of the edited text: a replaced piece, or a word."""
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


def blank(text: str) -> str:
    """Return a text with spaces for all but its line ends."""
    return "".join(c if c in "\r\n" else " " for c in text)


def _blank(gap: str) -> str:
    return blank(gap) if gap.strip(" \t\r\n") else gap


_SPAN = "kartosql_span"


def _noting(name: str) -> Any:
    parse = getattr(DuckDBParser, name)

    def noted(self: SpanParser, *args: Any, **kwargs: Any) -> Any:
        start = self._curr
        return self._noted(start, parse(self, *args, **kwargs))

    return noted


CHANGES = "changes"
# A time, how far back it is, a version, or a table and two versions between which changes are asked for, None for now.
Past = str | dt.timedelta | int | tuple[str, int, int | None]
_NOW = ("now", "get_current_timestamp", "transaction_timestamp")


class SpanParser(DuckDBParser):
    """The DuckDB parser that notes which characters a condition or parameter was read from.

    Conditions are later evaluated from the user's own characters, so nothing depends on how
    the tree would be printed.
    """

    # What may be joined within parentheses; without the last one (unnest(...) JOIN t) is none of its sentences.
    MODIFIABLES: ClassVar[Any] = (*DuckDBParser.MODIFIABLES, exp.Unnest)

    def _noted(self, start: Token | None, node: Any) -> Any:
        if start is not None and node is not None and self._prev is not None:
            node.meta[_SPAN] = (start.start, self._prev.end + 1)
        return node

    _parse_disjunction = _noting("_parse_disjunction")
    _parse_conjunction = _noting("_parse_conjunction")
    _parse_equality = _noting("_parse_equality")
    _parse_bitwise = _noting("_parse_bitwise")
    _parse_placeholder = _noting("_parse_placeholder")
    _parse_historical_data = _noting("_parse_historical_data")

    def _parse_version(self) -> Any:
        start = self._curr
        if start is not None and start.token_type == TokenType.ALIAS and self._next and self._next.text.upper() == "OF":
            index = self._index
            self._advance(2)
            value = self._parse_bitwise()
            if isinstance(value, exp.Literal | exp.Cast):
                node = self.expression(exp.Version(this="TIMESTAMP", expression=value, kind="AS OF"))
                return self._noted(start, node)
            self._retreat(index)
        return self._noted(start, super()._parse_version())

    def _parse_table_part(self, schema: bool = False) -> Any:
        start, node = self._curr, super()._parse_table_part(schema)
        if start is None or not isinstance(node, exp.Anonymous) or node.name.lower() != CHANGES:
            return node
        span = start.start, self._prev.end + 1
        values = node.expressions
        given = [v.this if isinstance(v, exp.Literal) and v.is_string == (v is values[0]) else "" for v in values]
        versions = [int(text) for text in given[1:] if text.isdigit()]
        if not 0 < len(versions) == len(given) - 1 < 3 or versions != sorted(versions) or not given[0]:
            message = "changes() takes the name of a table and one or two versions, the older one first."
            hint = "Write changes('t', 3, 7), or changes('t', 3) for all since; SHOW HISTORY FROM t lists versions."
            raise SqlError(message, code="not-supported", hint=hint, span=span)
        table = exp.to_identifier(CHANGES)
        table.meta.update(start=span[0], end=span[1] - 1, changes=(given[0], *versions, None)[:3])
        return table

    def _parse_from(self, joins: bool = False, *args: Any, **kwargs: Any) -> Any:
        """Read the joins behind any first item of a query that begins with FROM, not of tables and queries alone."""
        node = super()._parse_from(joins, *args, **kwargs)
        if joins and node is not None:
            for join in self._parse_joins():
                node.this.append("joins", join)
        return node

    def _parse_query_modifiers(self, this: Any) -> Any:
        """Give a query that begins with FROM its joins where all others have them."""
        from_ = this.args.get("from_") if isinstance(this, exp.Select) else None
        for join in (from_.this.args.pop("joins", None) or ()) if from_ is not None else ():
            this.append("joins", join)
        return super()._parse_query_modifiers(this)

    def _parse_in(self, this: Any, *args: Any, **kwargs: Any) -> Any:
        held = self._next
        if held is None or held.token_type != CONSTANTS:
            return super()._parse_in(this, *args, **kwargs)
        # A Var, so that nobody takes one node for the values of the list; its text is that of the user.
        self._advance(2)
        node = self.expression(exp.In(this=this, expressions=[exp.Var(this=held.text)]))
        self._match_r_paren(node)
        return node

    def _parse_simplified_pivot(self, *args: Any, **kwargs: Any) -> Any:
        """Read what may follow a PIVOT of DuckDB's own form: ORDER BY, LIMIT, OFFSET."""
        node = super()._parse_simplified_pivot(*args, **kwargs)
        for name, read in (("order", self._parse_order), ("limit", self._parse_limit), ("offset", self._parse_offset)):
            if clause := read():
                node.set(name, clause)
        return node

    def _warn_unsupported(self) -> None:
        """Keep quiet; the engine judges what this parser cannot read."""


def is_plain_name(name: str) -> bool:
    """Return whether ``name`` is an identifier that needs no quotes."""
    if not (name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit()):
        return False
    try:
        tree = SpanParser(dialect=DIALECT).parse(tokens_of(f"SELECT 1 FROM {name}"), "")[0]
    except (ParseError, TokenError):
        return False
    table = tree.find(exp.Table) if tree is not None else None
    return table is not None and table.name == name and tokens_of(name)[0].token_type == TokenType.VAR


def span_of(node: exp.Expression) -> Span | None:
    """Return the characters a node was read from, as far as the parser noted them."""
    if isinstance(node, exp.Identifier):
        return _own_span(node)
    if isinstance(node, (exp.Column, exp.Table)):
        spans = [_own_span(part) for part in name_parts(node)]
        if isinstance(node.this, exp.Star):
            spans.append(_own_span(node.this))
        if not spans or None in spans:
            return None
        known = [s for s in spans if s is not None]
        return min(s[0] for s in known), max(s[1] for s in known)
    return node.meta.get(_SPAN) or _own_span(node)


def _own_span(node: exp.Expression) -> Span | None:
    start, end = node.meta.get("start"), node.meta.get("end")
    return None if start is None or end is None else (start, end + 1)


def operands(node: exp.Expression) -> list[exp.Expression]:
    """Return what a chain of AND, or one of OR, connects; long chains are deep trees."""
    found: list[exp.Expression] = []
    at = node
    while type(at) is type(node):
        found.append(at.expression)
        at = at.this
    return [at, *reversed(found)]


def past_of(table: exp.Table, text: str) -> tuple[Past, Span] | None:
    """Return the time at which a table is asked for, or its version, and the place of the clause.

    Raises ``not-supported`` for clauses that name no constant time, none before ``now()``, and no number of a version.
    """
    clause = table.args.get("when") or table.args.get("version")
    if clause is None:
        told, end = table.this.meta.get(CHANGES), table.this.meta.get("end", 0) + 1
        return (told, (end, end)) if told is not None else None
    span = clause.meta.get(_SPAN)
    value = clause.expression
    kind = clause.args.get("kind")
    is_past = isinstance(clause, exp.HistoricalData)
    is_version = (kind if is_past else clause.this) == "VERSION"
    is_time = kind == "TIMESTAMP" if is_past else kind == "AS OF"
    if span is not None and is_version and isinstance(value, exp.Literal) and value.this.isdigit():
        return int(value.this[:MAX_DIGITS]), span
    if span is not None and is_time and (step := _from_now(value)) is not None:
        return step, span
    while isinstance(value, exp.Cast):
        value = value.this
    if span is None or is_version or not is_time or not isinstance(value, exp.Literal) or not value.is_string:
        raise SqlError(
            "A table can be asked for at a constant time or version only, or at one some time before now().",
            code="not-supported",
            hint="Write FROM t AT (TIMESTAMP => '2026-01-31 12:00:00'), now() - INTERVAL 3 DAY, or AT (VERSION => 7).",
            span=span,
            sql=text,
        )
    return value.this, span


def _from_now(node: exp.Expression) -> dt.timedelta | None:
    """Return how far from the present ``now()`` and such with intervals behind it is, None for other expressions."""
    if isinstance(node, exp.CurrentTimestamp) or (isinstance(node, exp.Anonymous) and node.name.lower() in _NOW):
        return None if node.expressions else dt.timedelta()
    step = node.expression.unnest() if isinstance(node, exp.Add | exp.Sub) else None
    number = step.this.unnest() if isinstance(step, exp.Interval) else None
    start = _from_now(node.this.unnest()) if isinstance(number, exp.Literal) else None
    if step is None or number is None or start is None:
        return None
    with contextlib.suppress(ValueError, TypeError, OverflowError):  # of months and years, which have no length
        unit = step.text("unit").lower().removesuffix("s")
        length = dt.timedelta(**{f"{unit}s": float(number.name)})
        return start + length if isinstance(node, exp.Add) else start - length
    return None


def columns_of_where(tree: exp.Expression) -> set[str]:
    """Return the names of the columns in the WHERE of a query, without qualifiers."""
    return {column.name for column in tree.args["where"].find_all(exp.Column)}


def name_parts(node: exp.Column | exp.Table) -> list[exp.Identifier]:
    """Return the identifiers of a table or column name, outermost first."""
    this = node.args.get("this")
    inner = this.flatten() if isinstance(this, exp.Dot) else [this]
    parts = [*map(node.args.get, ("catalog", "db", "table")), *inner]
    return [p for p in parts if isinstance(p, exp.Identifier)]


def placeholders(tree: exp.Expression) -> Iterator[tuple[str | None, Span | None]]:
    """Yield (name or number, place) of each parameter; the name of a plain ``?`` is None."""
    for node in tree.find_all(exp.Placeholder):
        this = node.this
        name = this.name if isinstance(this, exp.Expression) else this
        yield (str(name) if name else None), span_of(node)


def names_whole_rows(tree: exp.Expression, names: Collection[str]) -> bool:
    """Return whether something stands for all columns of a table, such as one of some ``names``."""
    lower = {name.lower() for name in names}
    for node in tree.find_all(exp.Star, exp.Columns):
        around = node.parent.parent if isinstance(node.parent, exp.Column) else node.parent
        if not isinstance(around, exp.Select | exp.Count) or isinstance(node, exp.Columns):
            return True
    return any(not c.table and c.name.lower() in lower for c in tree.find_all(exp.Column))


def aggregates(tree: exp.Expression) -> bool:
    """Return whether a SELECT makes one row of many by itself, not in windows or in a query within it."""
    return any(found.find_ancestor(exp.Window, exp.Select) is tree for found in tree.find_all(exp.AggFunc))


MAX_TEXTS = 64
MAX_SHAPES = 256
LONG_TEXT = 20_000  # characters; the trees of longer texts are not kept
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


def with_masks(text: str, constants: tuple[Span, ...]) -> list[tuple[Span, str]]:
    """Return the edits of a text that put the same constants into all texts of a shape."""
    return [(span, mask(text[span[0] : span[1]])) for span in constants]


def alike(select: Select, text: str) -> Select | None:
    """Return the statement of a text that differs from a known one in constants only, None for other texts."""
    if not differ_in_constants_only(select.text, select.constants, text):
        return None
    return Select(text, select.tree, select.constants, select)


def constant_of(text: str) -> str | None:
    """Return what a constant that may differ between statements of a shape holds, None for other text."""
    return None if not is_constant(text) else text[1:-1] if text.startswith("'") else text


def constants_of(tree: exp.Expression, text: str) -> tuple[Span, ...]:
    """Return the places of the constants that may differ while the tree stays the same, ascending."""
    found = (
        (node.meta["start"], node.meta["end"] + 1)
        for where in tree.find_all(exp.Where)
        if _is_reachable(where)
        for node in _compared(where.this)
        if "start" in node.meta and "end" in node.meta
    )
    return tuple(sorted(span for span in set(found) if is_constant(text[span[0] : span[1]])))


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
