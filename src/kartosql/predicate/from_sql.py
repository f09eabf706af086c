"""Predicates of SQL as trees that indexes answer.

What is not certain to mean the same in each engine that reads the files becomes Unknown, and
then no file is skipped for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from kartosql.errors import SqlError
from kartosql.predicate.patterns import Pieces, ascii_runs, of_like, of_regex
from kartosql.predicate.tree import (
    UNKNOWN,
    Comparison,
    Constant,
    Contains,
    ContainsFolded,
    Extracted,
    In,
    IsNull,
    LongList,
    Path,
    Predicate,
    Value,
    date_of,
    group,
    moment_of,
    to_float32,
)
from kartosql.sql.tree import CONSTANT, MAX_DIGITS, number_of, operands

MAX_TEXT = 1_000_000
MAX_DEPTH = 200
_OPERATORS = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
_LIKES, _REGEXES = (exp.Like, exp.ILike), (exp.RegexpLike, exp.RegexpFullMatch, exp.SimilarTo)
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_INTEGERS = {exp.DType.BIGINT: 64, exp.DType.INT: 32, exp.DType.SMALLINT: 16, exp.DType.TINYINT: 8}
_TEXTS = (exp.DType.VARCHAR, exp.DType.TEXT)
_CLOCKS = (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ)
_INTEGER = re.compile(r"[+-]?\d{1,40}")
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE)
_MAX_HUGE = 1 << 127
# What tells of the place of a text in another one, from 1 on, that it is there.
_FOUND = {
    ("=", Value("integer", 1)),
    (">", Value("integer", 0)),
    (">=", Value("integer", 1)),
    ("<>", Value("integer", 0)),
}
_SEARCH = {"this", "substr"}
_EXACT = Context(prec=80)
_CONVERSIONS = ("date", "timestamp", "tinyint", "smallint", "int", "bigint", "float", "double", "string")


def name_of(node: exp.Column) -> Path | None:
    """Return the column that a reference names by itself, with the members of structs behind it."""
    return _names([p for p in (node.args.get(k) for k in ("catalog", "db", "table", "this")) if p is not None])


@dataclass(frozen=True)
class Meaning:
    """What trees say, by what their nodes refer to: columns, parameters, texts of literals, aliased expressions.

    ``sql`` returns a constant expression as the engine evaluates it, None for everything else. ``is_duckdb`` tells that
    the trees are certainly of DuckDB's text, in which a backslash is no escape.
    """

    column: Callable[[exp.Column], Path | None] = name_of
    parameter: Callable[[exp.Expression], Value | None] = lambda node: None
    literal: Callable[[exp.Literal], str] = lambda node: str(node.name)
    behind: Callable[[Any], Any] = lambda node: node
    sql: Callable[[exp.Expression], str | None] = lambda node: None
    is_duckdb: bool = False

    # -- predicates ------------------------------------------------------------------------

    def said_by(self, node: Any, negated: bool, depth: int = 0) -> Predicate:
        """Return what ``node``, or its negation, says when it is TRUE."""
        if depth > MAX_DEPTH:
            return UNKNOWN
        node = self.behind(node)
        if isinstance(node, exp.Paren):
            return self.said_by(node.this, negated, depth + 1)
        if isinstance(node, exp.Not):
            return self.said_by(node.this, not negated, depth + 1)
        if node.args.get("negate"):
            return UNKNOWN
        if isinstance(node, exp.And | exp.Or):
            word = "AND" if isinstance(node, exp.And) != negated else "OR"
            return group(word, [self.said_by(n, negated, depth + 1) for n in operands(node)])
        if isinstance(node, exp.Boolean):
            return Constant(bool(node.this) != negated)
        if isinstance(node, exp.Null):
            return Constant(False)
        if type(node) in _OPERATORS:
            op = _OPERATORS[type(node)]
            return self._compared(node.this, _NEGATED[op] if negated else op, node.expression)
        if isinstance(node, exp.Between) and not node.args.get("symmetric"):
            return self._between(node, negated)
        if isinstance(node, exp.In):
            return self._listed(node, negated)
        if isinstance(node, exp.Is):
            return self._tested(node, negated)
        if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
            return self._distinct(node, isinstance(node, exp.NullSafeEQ) == negated)
        path = self._columns(node)
        if path is not None:
            return Comparison(path, "=", Value("boolean", not negated))
        return UNKNOWN if negated else self._matched(node)

    def _compared(self, left: Any, op: str, right: Any) -> Predicate:
        left, right = self.behind(left), self.behind(right)
        if self._columns(left) is None and not isinstance(left, exp.RegexpExtract | exp.StrPosition):
            left, op, right = right, _FLIPPED[op], left
        value = self._value(right)
        if isinstance(value, _Null):
            return Constant(False)
        if isinstance(left, exp.RegexpExtract):
            return UNKNOWN if value is None or op != "=" else _extracted(left, [value], self._columns(left.this))
        if isinstance(left, exp.StrPosition):
            is_found = value is not None and (op, value) in _FOUND and set(filter(left.args.get, left.args)) == _SEARCH
            return self._contained(left.this, left.args["substr"]) if is_found else UNKNOWN
        path = self._columns(left)
        value = value or (None if path is None else self._evaluated(right))
        return UNKNOWN if path is None or value is None else Comparison(path, op, value)

    def _between(self, node: exp.Between, negated: bool) -> Predicate:
        path = self._columns(node.this)
        ends = [self._value(node.args.get(k)) for k in ("low", "high")]
        if any(isinstance(e, _Null) for e in ends):
            return UNKNOWN if negated else Constant(False)
        if path is not None and None in ends:
            ends = [self._evaluated(node.args[k]) for k in ("low", "high")]
        known = [e for e in ends if isinstance(e, Value)]
        if all(e.kind != "sql" for e in known):
            # DuckDB compares in the type that both ends and the column have in common.
            known = _unified(known) or []
        if path is None or len(known) < len(ends):
            return UNKNOWN
        word, ops = ("OR", ("<", ">")) if negated else ("AND", (">=", "<="))
        return group(word, [Comparison(path, op, v) for op, v in zip(ops, known, strict=True)])

    def _listed(self, node: exp.In, negated: bool) -> Predicate:
        if any(node.args.get(k) for k in ("query", "unnest", "field")):
            return UNKNOWN
        path = self._columns(node.this)
        held = len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Var)
        if held and path is not None:
            return In(path, LongList(node.expressions[0].name, _constants), negated)
        values: list[Any] = [self._value(n) for n in node.expressions]
        if held:
            values = list(_constants(node.expressions[0].name) or (None,))
        if None in values or not values:
            return UNKNOWN
        # NULL in a list matches nothing, but NOT IN is never TRUE then, and nobody means that.
        if negated and _NULL in values:
            return UNKNOWN
        known = _unified([v for v in values if isinstance(v, Value)])
        if known is None:
            return UNKNOWN
        if isinstance(node.this, exp.RegexpExtract):
            return UNKNOWN if negated else _extracted(node.this, known, self._columns(node.this.this))
        if path is None:
            return UNKNOWN
        return In(path, tuple(known), negated) if known else Constant(False)

    def _tested(self, node: exp.Is, negated: bool) -> Predicate:
        """Return what IS NULL, IS TRUE and the like say."""
        path = self._columns(node.this)
        if path is None:
            return UNKNOWN
        if isinstance(node.expression, exp.Null):
            return IsNull(path, negated)
        if isinstance(node.expression, exp.Boolean) and not negated:
            return Comparison(path, "=", Value("boolean", bool(node.expression.this)))
        return UNKNOWN

    def _distinct(self, node: exp.NullSafeEQ | exp.NullSafeNEQ, differs: bool) -> Predicate:
        found = self._compared(node.this, "<>" if differs else "=", node.expression)
        if isinstance(found, Constant):
            return UNKNOWN
        # What only the engine can evaluate may be NULL.
        if isinstance(found, Comparison) and (differs or found.value.kind == "sql"):
            return group("OR", [IsNull(found.path), found])
        return found

    def _matched(self, node: Any) -> Predicate:
        """Return what LIKE, a regular expression and the like say, UNKNOWN for everything else."""
        if isinstance(node, exp.StartsWith | exp.Contains):
            return self._contained(node.this, node.expression, begins=isinstance(node, exp.StartsWith))
        escape = self._pattern(node.expression) if isinstance(node, exp.Escape) else None
        if isinstance(node, exp.Escape):
            node = node.this if escape is not None and len(escape) == 1 else None
        if not isinstance(node, (*_LIKES, *_REGEXES)) or node.args.get("escape"):
            return UNKNOWN
        pattern = self._pattern(node.expression)
        if pattern is None:
            return UNKNOWN
        if isinstance(node, _REGEXES):
            flag = node.args.get("flag") or node.args.get("options")
            flags = "" if flag is None else self._pattern(flag)
            is_whole = not isinstance(node, exp.RegexpLike)
            pieces = of_regex(pattern, is_whole=is_whole, any_case=flags == "i") if flags in ("", "i", "c") else None
            return UNKNOWN if pieces is None else self._holding(node.this, pieces)
        path = self._columns(node.this)
        if escape is None and path is not None and type(node) is exp.Like and not re.search(r"[%_\\]", pattern):
            return Comparison(path, "=", Value("text", pattern))  # texts are compared, of whatever type the column is
        # A backslash takes the meaning from a wildcard in Spark, and nothing in DuckDB.
        before, backslash, _ = (pattern, "", "") if escape is not None else pattern.partition("\\")
        found = of_like(before + "%" * len(backslash), escape, any_case=isinstance(node, exp.ILike))
        return UNKNOWN if found is None else self._holding(node.this, found)

    def _pattern(self, node: Any) -> str | None:
        """Return a constant text, None for everything else."""
        if self.is_duckdb and isinstance(node, exp.Literal) and node.is_string:
            return self.literal(node)
        value = self._value(node)
        return str(value.value) if isinstance(value, Value) and value.kind in ("string", "text") else None

    def _contained(self, subject: Any, part: Any, *, begins: bool = False) -> Predicate:
        text = self._pattern(part)
        return UNKNOWN if text is None else self._holding(subject, Pieces(*((text, ()) if begins else ("", (text,)))))

    def _holding(self, subject: Any, pieces: Pieces) -> Predicate:
        """Return that a column, perhaps in lower case, contains some texts."""
        subject = self.behind(subject)
        is_folded = pieces.any_case or isinstance(subject, exp.Lower)
        path = self._columns(subject.this if isinstance(subject, exp.Lower) else subject)
        if path is None:
            return UNKNOWN
        if is_folded:
            runs = [run for text in (pieces.begin, *pieces.parts) for run in ascii_runs(text)]
            return group("AND", [ContainsFolded(path, run) for run in runs]) if runs else UNKNOWN
        begin = [Contains(path, pieces.begin, begins=True)] if pieces.begin or not pieces.parts else []
        return group("AND", [*begin, *(Contains(path, part) for part in pieces.parts)])

    # -- constants -------------------------------------------------------------------------

    def _evaluated(self, node: Any) -> Value | None:
        """Return a constant expression as the engine's to evaluate, None for everything else."""
        sql = self.sql(node)
        return None if sql is None else Value("sql", sql)

    def _value(self, node: Any) -> Value | _Null | None:
        """Return the constant that an expression is, None for everything else."""
        node = self.behind(node)
        if isinstance(node, exp.Paren):
            return self._value(node.this)
        if isinstance(node, exp.Null):
            return _NULL
        if isinstance(node, exp.Boolean):
            return Value("boolean", bool(node.this))
        if isinstance(node, exp.Neg):
            return _negative(self._value(node.this))
        if isinstance(node, exp.Literal):
            text = self.literal(node)
            return _text(text) if node.is_string else _number(text)
        if isinstance(node, exp.HexString):
            try:
                return Value("binary", bytes.fromhex(str(node.this)))
            except ValueError:
                return None
        if isinstance(node, exp.Placeholder | exp.Parameter):
            return self.parameter(node)
        if isinstance(node, exp.UnixToTime) and len(node.args) == 1:
            inner = self._value(node.this)
            return _moment(inner, "instant") if isinstance(inner, Value) and inner.kind == "string" else None
        if isinstance(node, exp.Cast):  # TRY_CAST is one of them
            inner = self._value(node.this)
            return inner if not isinstance(inner, Value) else _cast(inner, node.to)
        return self._converted(node)

    def _converted(self, node: Any) -> Value | None:
        """Return the constant that a function of Spark with the name of a type makes."""
        if isinstance(node, exp.Date | exp.Timestamp):
            name, given = type(node).__name__.lower(), [v for v in node.args.values() if v]
        elif isinstance(node, exp.TsOrDsToDate):
            name, given = "date", [v for k, v in node.args.items() if v and k != "safe"]
        elif isinstance(node, exp.Anonymous) and isinstance(node.this, str):
            name, given = node.this.lower().removeprefix("to_"), node.expressions
        else:
            return None
        inner = self._value(given[0]) if len(given) == 1 and name in _CONVERSIONS else None
        return _cast(inner, exp.DataType.build(name, dialect="spark")) if isinstance(inner, Value) else None

    def _columns(self, node: Any) -> Path | None:
        """Return the column and the members of structs below it that an expression is, None for anything else."""
        node = self.behind(node)
        if isinstance(node, exp.Paren):
            return self._columns(node.this)
        if isinstance(node, exp.Column):
            return self.column(node)
        member: Any = node.expression if isinstance(node, exp.Dot | exp.StructExtract) else None
        if isinstance(node, exp.Bracket) and len(node.expressions) == 1:
            member = node.expressions[0]
        if not isinstance(node, exp.Dot):
            is_text = isinstance(member, exp.Literal) and member.is_string
            member = exp.to_identifier(member.name) if is_text else None
        last = _names([member]) if member is not None else None
        first = self._columns(node.this) if last is not None else None
        return None if first is None or last is None else first + last


def predicate_of(
    where: str | exp.Expression,
    meaning: Meaning | None = None,
    *,
    negated: bool = False,
    dialects: Sequence[str] = ("duckdb", "spark"),
) -> Predicate:
    """Return what a predicate, or its negation, says about the columns in it when it is TRUE.

    ``where`` is a tree, or text in the first of the ``dialects`` in which it can be read. Without
    a ``meaning`` names stand for themselves. Raises ``syntax-error``.
    """
    tree, dialect = parsed(where, dialects) if isinstance(where, str) else (where, "duckdb")
    # The escapes in texts of Spark are none in those of DuckDB, for which the predicate may be meant.
    if dialect != "duckdb" and "\\" in str(where):
        return UNKNOWN
    try:
        return (meaning or Meaning()).said_by(tree, negated)
    except RecursionError:
        return UNKNOWN


def parsed(text: str, dialects: Sequence[str]) -> tuple[Any, str]:
    """Return the tree of an expression, and the first dialect in which it can be read; raises ``syntax-error``."""
    if len(text) > MAX_TEXT:
        raise SqlError(f"The predicate has {len(text):,} characters, the limit is {MAX_TEXT:,}.", code="syntax-error")
    problem: Exception | None = None
    for dialect in dialects:
        try:
            tree: Any = sqlglot.parse_one(text, dialect=dialect)
        except (ParseError, TokenError, RecursionError, ValueError, AttributeError, TypeError, IndexError) as e:
            problem = problem or e
            continue
        # DuckDB's dialect takes the letter in 1.5D for a name.
        if isinstance(tree, exp.Condition) and not isinstance(tree, exp.Query) and tree.find(exp.Alias) is None:
            return tree, dialect
    reason = str(problem).strip().splitlines()[0][:200] if problem and str(problem).strip() else "it is no expression"
    raise SqlError(f"Cannot read the predicate: {reason}", code="syntax-error")


def _names(parts: list[Any]) -> Path | None:
    if not all(isinstance(p, exp.Identifier) and p.name for p in parts):
        return None
    return tuple(p.name.lower() for p in parts)


class _Null:
    """The constant NULL."""


_NULL = _Null()
_SIGNED = ("integer", "decimal", "double", "float")


def _unified(values: list[Value]) -> list[Value] | None:
    """Return values as engines compare a column with all of them at once, None where that is not certain."""
    kinds = {v.kind for v in values}
    if len(kinds) <= 1 or kinds == {"date", "timestamp"}:
        return values
    if kinds == {"string", "text"}:
        return [Value("text", v.value) for v in values]
    if kinds == {"integer", "decimal"}:
        small = all(-(10**18) < v.value < 10**18 for v in values if isinstance(v.value, int | Decimal))
        return values if small else None
    if kinds <= {"integer", "decimal", "double"}:
        made = [_floating(v, narrow=False) for v in values]
        return None if None in made else [v for v in made if v is not None]
    return None


def _negative(value: Any) -> Value | None:
    if isinstance(value, Value) and isinstance(value.value, int | float | Decimal) and value.kind in _SIGNED:
        # The minus of a Decimal would round it.
        negated = value.value.copy_negate() if isinstance(value.value, Decimal) else -value.value
        return Value(value.kind, negated)
    return None


def _constants(text: str) -> tuple[Value, ...] | None:
    """Return the constants of a long list that the parser held together, None where engines may differ."""
    found: list[Value | None] = []
    for item in CONSTANT.findall(text):
        if item.startswith("'"):
            found.append(_text(item[1:-1].replace("''", "'")))
        else:
            number = _number(item.lstrip("+-"))
            found.append(_negative(number) if item.startswith("-") else number)
    known = _unified([v for v in found if v is not None])
    return None if known is None or None in found else tuple(known)


def _text(text: str) -> Value | None:
    # In Spark's text a backslash is the beginning of an escape, in DuckDB's it is a backslash.
    return None if "\\" in text else Value("string", text)


def _number(text: str) -> Value | None:
    """Return a number as DuckDB and Spark read it: digits, digits with a point, or floating-point."""
    if not text.isascii() or not _FLOAT.fullmatch(text):
        return None
    if text.isdigit():
        number = number_of(text)
        if number is None:
            return None
        return Value("integer", number) if number < _MAX_HUGE else Value("double", float(text))
    if "e" in text.lower() or sum(c.isdigit() for c in text) > 38:
        return Value("double", float(text))
    return Value("decimal", Decimal(text))


def _cast(value: Value, to: exp.DataType) -> Value | None:
    """Return a constant in another type, None where that is not exact or engines differ."""
    type_, raw = to.this, value.value
    if to.expressions and type_ != exp.DType.DECIMAL:
        return None
    if type_ in _INTEGERS:
        if value.kind == "string" and _INTEGER.fullmatch(str(raw)) and len(str(raw)) <= MAX_DIGITS:
            value = Value("integer", int(str(raw)))
        limit = 1 << (_INTEGERS[type_] - 1)
        fits = value.kind == "integer" and isinstance(value.value, int) and -limit <= value.value < limit
        return value if fits else None
    if type_ in (exp.DType.DOUBLE, exp.DType.FLOAT):
        return _floating(value, narrow=type_ == exp.DType.FLOAT)
    if type_ == exp.DType.DECIMAL:
        return _decimal(value, to)
    if type_ in _TEXTS:
        return Value("text", raw) if value.kind in ("string", "text") else None
    if type_ == exp.DType.BOOLEAN:
        return value if value.kind == "boolean" else None
    if type_ == exp.DType.DATE:
        day = date_of(str(raw)) if value.kind == "string" else None
        return Value("date", day) if day is not None else value if value.kind == "date" else None
    if type_ in _CLOCKS:
        return _moment(value, "timestamp")
    return _moment(value, "zoned") if type_ in (exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ) else None


def _floating(value: Value, *, narrow: bool) -> Value | None:
    raw = value.value
    if value.kind == "string" and _FLOAT.fullmatch(str(raw)):
        number = float(str(raw))
        exact = not narrow or number != number
    elif value.kind in _SIGNED and not isinstance(raw, str | bytes):
        digits = len(raw.as_tuple().digits) if isinstance(raw, Decimal) else len(str(raw))
        if isinstance(raw, Decimal) and not -22 <= raw.as_tuple().exponent <= 0:  # type: ignore[operator]
            return None  # the power of ten that it is divided by is no exact number
        try:
            number = float(raw)
        except OverflowError:
            return None
        exact = isinstance(raw, float) or digits <= (7 if narrow else 15)
    else:
        return None
    if not narrow:
        return Value("double", number) if exact else None
    narrowed = to_float32(number)
    # What has more digits than fit in is rounded once or twice, depending on the engine.
    return Value("float", narrowed) if narrowed is not None and (exact or narrowed == number) else None


def _decimal(value: Value, to: exp.DataType) -> Value | None:
    sizes = [p.this.name if isinstance(p, exp.DataTypeParam) else "" for p in to.expressions]
    if len(sizes) != 2 or not all(s.isdigit() and len(s) < 3 for s in sizes):
        return None
    raw = value.value
    if value.kind == "string" and re.fullmatch(r"-?\d{1,38}(\.\d{1,38})?", str(raw)):
        raw = Decimal(str(raw))
    elif value.kind not in ("integer", "decimal"):
        return None
    number = raw if isinstance(raw, Decimal) else Decimal(int(raw))
    exponent = number.as_tuple().exponent
    precision, scale = map(int, sizes)
    fits = isinstance(exponent, int) and -exponent <= scale and number.copy_abs() < 10 ** (precision - scale)
    # Its scale decides how it is compared with floating-point numbers.
    return Value("decimal", number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)) if fits else None


def _moment(value: Value, target: str) -> Value | None:
    """Return a constant as a time on the clock of the session, or as an instant."""
    raw = value.value
    clock = "zoned" if target == "zoned" else "timestamp"
    if value.kind == "date" and isinstance(raw, int):
        return Value(clock, raw * 86_400_000_000)
    if value.kind in ("timestamp", "zoned", "instant"):
        return value if value.kind == target else None
    found = moment_of(str(raw)) if value.kind == "string" else None
    if found is None:
        return None
    micros, is_utc = found
    if is_utc and target == "timestamp":
        return None  # DuckDB passes over the offset and reads the rest as the time of a clock, Spark as an instant
    return Value("instant" if is_utc else clock, micros)


def _extracted(node: exp.RegexpExtract, values: list[Value], path: Path | None) -> Predicate:
    """Return what ``regexp_extract(column, pattern, 1)`` compared with texts says."""
    pattern, number = node.expression, node.args.get("group")
    is_simple = isinstance(pattern, exp.Literal) and pattern.is_string
    is_first = isinstance(number, exp.Literal) and number.name == "1"
    options = any(node.args.get(k) for k in ("position", "parameters"))
    if path is None or options or not (is_simple and is_first) or any(v.kind not in ("string", "text") for v in values):
        return UNKNOWN
    return Extracted(path, pattern.name, tuple(str(v.value) for v in values))
