"""Predicates as trees of AND and OR, whatever they were read from, and the constants in them.

NOT is gone: De Morgan's laws hold in three-valued logic, and leaves have their negations. A
leaf is the text that an engine evaluates, and says what is known of it as a tree of typed
leaves. These say TRUE or not, NULL counts as not. They may hold for more rows than the text,
never for fewer; of what nothing is known may hold for each.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from typing import Any, Generic, TypeVar

import pyarrow as pa

from kartosql.memo import memoized
from kartosql.text.escape import is_unicode

_DAY = 86_400_000_000
_EPOCH = dt.datetime(1970, 1, 1)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?(?:(Z)|([+-])(\d\d)(?::?(\d\d))?)?")


@dataclass(frozen=True)
class Value:
    """A constant and its kind.

    ``integer`` (int), ``decimal`` (Decimal), ``double`` and ``float`` (float), ``string`` (a bare
    literal, str), ``text`` (of the type VARCHAR, str), ``binary`` (bytes), ``boolean`` (bool), ``date``
    (days since 1970), ``timestamp`` (microseconds since 1970 on the clock of the session), ``zoned`` (the same,
    compared as an instant), ``instant`` (microseconds since 1970, UTC). ``sql`` is the text of a constant
    expression that only the engine can evaluate (str).
    """

    kind: str
    value: int | float | Decimal | str | bytes | bool


def value_of(value: Any) -> Value | None:
    """Return the value of a parameter as the engine takes it, None for types that are not certain."""
    if type(value) is dt.datetime:  # those of pandas have nanoseconds
        utc = dt.timezone.utc
        since = (value if value.tzinfo is not None else value.replace(tzinfo=utc)) - dt.datetime(1970, 1, 1, tzinfo=utc)
        kind = "timestamp" if value.tzinfo is None else "instant"
        return Value(kind, since // dt.timedelta(microseconds=1))
    if type(value) is dt.date:
        return Value("date", value.toordinal() - dt.date(1970, 1, 1).toordinal())
    if type(value) not in _KINDS or (isinstance(value, str) and not is_unicode(value)):
        return None
    if isinstance(value, Decimal) and not value.is_finite():
        return None
    return Value(_KINDS[type(value)], value)


_KINDS = {bool: "boolean", int: "integer", float: "double", Decimal: "decimal", str: "text", bytes: "binary"}


def to_float32(number: float) -> float | None:
    """Return the nearest number of 32 bits, None beyond their range."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return None


def date_of(text: str) -> int | None:
    """Return the days since 1970 of a date written ``YYYY-MM-DD``, None for everything else."""
    match = _DATE.fullmatch(text) if text.isascii() else None
    try:
        return dt.date(*map(int, match.groups())).toordinal() - _EPOCH.toordinal() if match else None
    except ValueError:
        return None


def moment_of(text: str) -> tuple[int, bool] | None:
    """Return the microseconds since 1970 of a time in ISO's form, and whether its offset made it UTC.

    None for everything else, such as fractions beyond microseconds.
    """
    match = _TIME.fullmatch(text) if text.isascii() else None
    if match is None:
        day = date_of(text)
        return None if day is None else (day * _DAY, False)
    day = date_of(match[1])
    hours, minutes, seconds = int(match[2]), int(match[3]), int(match[4] or 0)
    if day is None or hours > 23 or minutes > 59 or seconds > 59:
        return None
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int((match[5] or "0").ljust(6, "0"))
    offset = (int(match[8] or 0) * 60 + int(match[9] or 0)) * (-1 if match[7] == "-" else 1)
    return day * _DAY + micros - offset * 60_000_000, bool(match[6] or match[7])


def as_type(value: Value, type_: pa.DataType) -> Any:
    """Return a constant as a value of a column's type with which comparing means the same, or None."""
    kind, raw, t = value.kind, value.value, pa.types
    if t.is_boolean(type_):
        return raw if kind == "boolean" else None
    if t.is_string(type_):
        return raw if kind in ("string", "text") else None
    if t.is_binary(type_):
        return raw if kind == "binary" else None
    if t.is_date(type_) or t.is_timestamp(type_):
        return _time(value, type_)
    if isinstance(raw, str | bytes) or kind not in ("integer", "decimal", "double", "float"):
        return None
    if t.is_integer(type_):
        signed = t.is_signed_integer(type_)
        lowest, highest = (-(1 << (type_.bit_width - 1)) if signed else 0), 1 << (type_.bit_width - signed)
        return int(raw) if kind in ("integer", "decimal") and raw == int(raw) and lowest <= raw < highest else None
    if not t.is_floating(type_) or (not isinstance(raw, float) and not _is_short(Decimal(raw))):
        return None
    number = float(raw)
    return number if type_.bit_width == 64 or to_float32(number) == number else None


def _is_short(number: Decimal) -> bool:
    """Return whether a number is divided exactly by its power of ten, whoever makes it floating-point."""
    _, digits, exponent = number.as_tuple()
    return len(digits) <= 15 and isinstance(exponent, int) and -22 <= exponent <= 0


def _time(value: Value, type_: pa.DataType) -> dt.date | dt.datetime | None:
    kind, raw = value.kind, value.value
    if kind == "string" and pa.types.is_timestamp(type_) and (moment := moment_of(str(raw))) is not None:
        raw, kind = moment[0], "instant" if moment[1] else "timestamp"
    elif kind == "string":
        day = date_of(str(raw))
        kind, raw = ("unknown", 0) if day is None else ("date", day)
    try:
        if pa.types.is_date(type_):
            return (_EPOCH + dt.timedelta(days=int(raw))).date() if kind == "date" else None
        moved = _EPOCH + (dt.timedelta(days=int(raw)) if kind == "date" else dt.timedelta(microseconds=int(raw)))
    except (OverflowError, ValueError):
        return None
    if type_.tz is not None:
        return moved.replace(tzinfo=dt.timezone.utc) if kind == "instant" else None
    return moved if kind in ("date", "timestamp") else None


Item = TypeVar("Item")
ColumnRef = tuple[int, str]  # id of a source, query or merged column; column name, or position as text
# A column, as its reader names it, and the members of structs below it, in lower case.
Path = tuple[Any, ...]


@dataclass(frozen=True)
class Comparison:
    """A column compared with a constant; ``op`` is one of ``= <> < <= > >=``."""

    path: Path
    op: str
    value: Value


@dataclass(frozen=True)
class LongList:
    """The text of many constants, which are read when somebody needs them."""

    text: str
    read: Callable[[str], tuple[Value, ...] | None] = field(compare=False, repr=False)

    @memoized
    def values(self) -> tuple[Value, ...] | None:
        """The constants, None if it is not certain how they are compared."""
        return self.read(self.text)


@dataclass(frozen=True)
class In:
    """A column that is one of some constants or, negated, a value other than them."""

    path: Path
    listed: tuple[Value, ...] | LongList
    negated: bool = False

    @property
    def values(self) -> tuple[Value, ...] | None:
        """The constants, None if it is not certain how they are compared."""
        return self.listed.values if isinstance(self.listed, LongList) else self.listed


@dataclass(frozen=True)
class Contains:
    """A text that contains another one, or with ``begins`` begins with it."""

    path: Path
    text: str
    begins: bool = False


@dataclass(frozen=True)
class ContainsFolded:
    """A text that contains another one, of ASCII characters, if the case of letters does not count."""

    path: Path
    text: str


@dataclass(frozen=True)
class IsNull:
    """A column that is NULL or, negated, has a value."""

    path: Path
    negated: bool = False


@dataclass(frozen=True)
class Extracted:
    """A text whose first group of a regular expression is one of some texts."""

    path: Path
    pattern: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Constant:
    """A predicate that holds for each row, or for none."""

    holds: bool


@dataclass(frozen=True)
class Parameter:
    """A parameter of the statement, under the name it is handed over with."""

    name: str


Pieces = tuple["str | ColumnRef | Parameter", ...]


@dataclass(frozen=True)
class Opaque:
    """A predicate as the user wrote it, cut at its columns and parameters; without ``pieces`` nothing is known of it.

    ``says`` returns what it says as a tree, whose paths begin with a ColumnRef; it is made when it is asked for.
    Predicates over members of structs are not evaluated while planning, but data-skipping metadata know these.
    """

    text: str = ""
    pieces: Pieces | None = None
    negated: bool = False
    is_of_members: bool = False
    says: Callable[[], Predicate] = field(default=lambda: UNKNOWN, compare=False, repr=False)

    @property
    def columns(self) -> frozenset[ColumnRef]:
        """The columns it refers to."""
        return frozenset(p for p in self.pieces or () if isinstance(p, tuple))

    def render(self, column: Callable[[ColumnRef], str]) -> str:
        """Return it as SQL, with ``column`` naming each column reference."""
        assert self.pieces is not None, self.text
        body = "".join(
            p if isinstance(p, str) else f"${p.name}" if isinstance(p, Parameter) else column(p) for p in self.pieces
        )
        return f"(NOT ({body}))" if self.negated else f"({body})"


@dataclass(frozen=True)
class DynamicFilter:
    """The condition that a column has a value which a column of another source also has.

    Without a column: that the other source, an occurrence of a table, has a row at all. ``given`` are conditions on
    the other source of which only such rows count. It is not evaluated by itself; partition values are known, and where
    the other source is small, its values are looked up.
    """

    column: ColumnRef | None
    of: ColumnRef
    text: str
    given: tuple[Condition, ...] = ()

    @property
    def columns(self) -> frozenset[ColumnRef]:
        """The column that is restricted."""
        return frozenset() if self.column is None else frozenset({self.column})

    def render(self, column: Callable[[ColumnRef], str]) -> str:
        """Raise AssertionError: what is evaluated are the values that are found."""
        raise AssertionError(self.text)


@dataclass(frozen=True)
class Group(Generic[Item]):
    """AND or OR of at least two predicates."""

    op: str
    items: tuple[Item, ...]

    @memoized
    def columns(self: Group[Condition]) -> frozenset[ColumnRef]:
        """The columns that occur below."""
        return frozenset().union(*(i.columns for i in self.items))

    @property
    def text(self: Group[Condition]) -> str:
        """The condition as reports show it."""
        return f" {self.op} ".join(f"({i.text})" if isinstance(i, Group) else i.text for i in self.items)

    def render(self: Group[Condition], column: Callable[[ColumnRef], str]) -> str:
        """Return the condition as SQL."""
        return "(" + f" {self.op} ".join(i.render(column) for i in self.items) + ")"


Leaf = Comparison | In | Contains | ContainsFolded | IsNull | Extracted
Predicate = Leaf | Constant | Opaque | Group["Predicate"]
Condition = Opaque | DynamicFilter | Group["Condition"]  # of a statement; its leaves are texts
UNKNOWN: Opaque = Opaque()
# Beyond, a predicate is not carried further: expressions put into each other multiply.
MAX_PIECES = 1_000


def joined(op: str, items: Sequence[Item]) -> Item | Group[Item]:
    """Return AND or OR of at least one predicate, in one group with those below that are the same."""
    flat = _flat(op, items)
    return flat[0] if len(flat) == 1 else Group(op, tuple(flat))


def _flat(op: str, items: Sequence[Any]) -> list[Any]:
    return [part for item in items for part in (item.items if isinstance(item, Group) and item.op == op else (item,))]


def group(op: str, items: list[Predicate]) -> Predicate:
    """Return AND or OR of some predicates, without those that change nothing."""
    flat: list[Predicate] = _flat(op, items)
    if op == "AND":
        kept = [i for i in flat if i not in (UNKNOWN, Constant(True))]
        if Constant(False) in kept:
            return Constant(False)
        if not kept:
            return UNKNOWN if UNKNOWN in flat else Constant(True)
    else:
        kept = [i for i in flat if i != Constant(False)]
        if Constant(True) in kept:
            return Constant(True)
        if not kept:
            return Constant(False)
        if UNKNOWN in kept:
            return UNKNOWN
    return joined(op, kept)


def alternatives(leaf: object) -> tuple[Value, ...] | None:
    """Return the constants of which a column has to equal one, None if that is not all that a predicate says."""
    if isinstance(leaf, Comparison):
        return (leaf.value,) if leaf.op == "=" else None
    return leaf.values if isinstance(leaf, In) and not leaf.negated else None


def mapped(predicate: Predicate, leaf: Callable[[Leaf], Predicate]) -> Predicate:
    """Return a predicate with something else in place of each of its leaves."""
    if isinstance(predicate, Group):
        return group(predicate.op, [mapped(item, leaf) for item in predicate.items])
    return predicate if isinstance(predicate, Constant | Opaque) else leaf(predicate)


def renamed(predicate: Predicate, path: Callable[[Path], Path | None]) -> Predicate:
    """Return what a predicate says of columns under other names; of those without one nothing is known."""

    def leaf(one: Leaf) -> Predicate:
        found = path(one.path)
        return UNKNOWN if found is None else replace(one, path=found)

    return mapped(predicate, leaf)


def may_hold_for_null(predicate: Predicate) -> bool:
    """Return whether a predicate may be TRUE where all its columns are NULL."""
    if isinstance(predicate, Group):
        found = map(may_hold_for_null, predicate.items)
        return all(found) if predicate.op == "AND" else any(found)
    if isinstance(predicate, IsNull):
        return not predicate.negated
    return predicate in (UNKNOWN, Constant(True))


# -- conditions of statements ------------------------------------------------------------------------


def said(condition: Condition) -> Predicate:
    """Return what a condition says, of which a comparison alone is all that the condition says."""
    if isinstance(condition, Group):
        return Group(condition.op, tuple(map(said, condition.items)))
    return condition.says() if isinstance(condition, Opaque) else UNKNOWN


def is_evaluable(condition: Condition) -> bool:
    """Return whether an engine can evaluate each part of a condition while planning."""
    if isinstance(condition, Group):
        return all(is_evaluable(i) for i in condition.items)
    return isinstance(condition, Opaque) and condition.pieces is not None and not condition.is_of_members


def is_opaque(condition: Condition) -> bool:
    """Return whether a condition is a single predicate that cannot be evaluated."""
    return isinstance(condition, Opaque) and not is_evaluable(condition)


def parameters_for(condition: Condition, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the statement's parameters that occur in ``condition``."""
    if isinstance(condition, Group):
        return {name: value for item in condition.items for name, value in parameters_for(item, parameters).items()}
    pieces = condition.pieces or () if isinstance(condition, Opaque) else ()
    return {p.name: parameters[p.name] for p in pieces if isinstance(p, Parameter)}


def substitute(condition: Condition, pieces: Callable[[ColumnRef], Pieces | None]) -> Condition:
    """Return a condition that holds wherever ``condition`` does, with other pieces for its columns.

    Predicates over other columns become opaque, as they may be true.
    """
    if isinstance(condition, Group):
        items = [substitute(i, pieces) for i in condition.items]
        known = [i for i in items if not is_opaque(i)]
        if not known or (condition.op == "OR" and len(known) < len(items)):
            return Opaque(condition.text)
        return known[0] if len(known) == 1 else Group(condition.op, tuple(known))
    if isinstance(condition, DynamicFilter):
        if condition.column is None:
            return condition
        found = pieces(condition.column)
        if found is None or len(found) != 1 or not isinstance(found[0], tuple):
            return Opaque(condition.text)
        return replace(condition, column=found[0])
    if condition.pieces is None:
        return condition
    new: list[str | ColumnRef | Parameter] = []
    for piece in condition.pieces:
        found = pieces(piece) if isinstance(piece, tuple) else (piece,)
        if found is None:
            return Opaque(condition.text)
        new.extend(found)
        if len(new) > MAX_PIECES:
            return Opaque(condition.text)
    if condition.is_of_members and len(new) != len(condition.pieces):
        return Opaque(condition.text)
    says = condition.says
    return replace(condition, pieces=tuple(new), says=cache(lambda: renamed(says(), _moved(pieces))))


def _moved(pieces: Callable[[ColumnRef], Pieces | None]) -> Callable[[Path], Path | None]:
    """Return what becomes of paths when columns are substituted: they end where a column becomes an expression."""

    def path(known: Path) -> Path | None:
        found = pieces(known[0]) or ()
        return (found[0], *known[1:]) if len(found) == 1 and isinstance(found[0], tuple) else None

    return path
