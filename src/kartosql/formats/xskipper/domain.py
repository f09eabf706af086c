"""Types of columns, and comparisons with constants as tests over keys that Arrow can compare.

Keys are int64 for integers, dates, timestamps, booleans and floating-point numbers (by an order in
which NaN is greatest and both zeros are one), bytes for text (UTF-8, whose order is DuckDB's) and
Decimals for decimals. A comparison whose meaning is not certain has no tests, and no file is
skipped for it.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from kartosql.formats.arrays import decimal_of
from kartosql.predicate.tree import Comparison, In, IsNull, Leaf, Prefix
from kartosql.predicate.values import Value, date_of, moment_of, to_float32

Key = int | bytes | Decimal
_INTEGERS = {"byte", "short", "integer", "long", "tinyint", "smallint", "int", "bigint"}
_PLAIN = {"float", "double", "string", "binary", "boolean", "date", "timestamp"}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),(-?\d{1,2})\)")
_DAY = 86_400_000_000
MAX_DIGITS = 38
_MIN64, _MAX64 = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class ColumnType:
    """What an index knows of a column: its family, and precision and scale of decimals.

    ``clock`` tells of timestamps whether they are read as the time of a clock (True) or as
    instants (False); None, if that is not known, which matters in sessions that are not in UTC.
    """

    family: str
    precision: int = 0
    scale: int = 0
    clock: bool | None = None


def spark_type(described: Any) -> ColumnType | None:
    """Return the type that a Spark schema describes as text, None for those that no index is used for."""
    if not isinstance(described, str):
        return None
    if described in _INTEGERS:
        return ColumnType("integer")
    if described in _PLAIN:
        return ColumnType(described)
    match = _DECIMAL.fullmatch("decimal(10,0)" if described == "decimal" else described)
    if match is None:
        return None
    precision, scale = int(match[1]), int(match[2])
    return ColumnType("decimal", precision, scale) if 0 <= scale <= precision <= MAX_DIGITS and precision else None


# -- tests -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """Values that compare with a key; ``op`` is one of ``< <= > >=``."""

    op: str
    key: Key


@dataclass(frozen=True)
class Among:
    """Values that are one of some keys."""

    keys: frozenset[Key]


@dataclass(frozen=True)
class Outside:
    """Values that are none of some keys; with no keys, each value."""

    keys: frozenset[Key] = frozenset()


@dataclass(frozen=True)
class Prefixed:
    """Texts that begin with some bytes."""

    prefix: bytes


Test = Range | Among | Outside | Prefixed
ANY = Outside()
NEVER = Among(frozenset())


def as_tests(leaf: Leaf, type_: ColumnType, zone: str = "UTC") -> tuple[Test, ...] | None:
    """Return tests of which at least one holds for each value that satisfies a condition; None if nothing is known.

    ``zone`` is the time zone of the session.
    """
    if isinstance(leaf, IsNull):
        return (ANY,) if leaf.negated else None
    if isinstance(leaf, Prefix):
        if type_.family != "string":
            return None
        prefix = _utf8(leaf.prefix)
        return None if prefix is None else (Prefixed(prefix),)
    if isinstance(leaf, Comparison):
        found = points(leaf.value, type_, zone)
        if leaf.op == "<>":
            return (_outside([found]),)
        return None if found is None else tuple(dict.fromkeys(_comparison(leaf.op, p) for p in found))
    if isinstance(leaf, In) and leaf.values is not None:
        each = [points(v, type_, zone) for v in leaf.values]
        if leaf.negated:
            return (_outside(each),)
        keys = [p.key for found in each if found is not None for p in found if p.exact]
        return None if None in each else (Among(frozenset(keys)),)
    return None


def _outside(each: list[list[Point] | None]) -> Test:
    """Return the test for values that are unequal to constants; those with several meanings exclude nothing."""
    keys = [found[0].key for found in each if found is not None and len(found) == 1 and found[0].exact]
    return Outside(frozenset(keys))


def _comparison(op: str, point: Point) -> Test:
    if point.exact:
        return Among(frozenset({point.key})) if op == "=" else Range(op, point.key)
    if op == "=":
        return NEVER
    if point.side:
        return ANY if (point.side > 0) == op.startswith("<") else NEVER
    return Range("<=" if op.startswith("<") else ">", point.key)


# -- constants -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Where a constant lies among the keys of a column: at a key, or else right above one.

    ``side`` is -1 and 1 for constants below and above all keys.
    """

    key: Key
    exact: bool = True
    side: int = 0


_BELOW, _ABOVE = Point(0, False, -1), Point(0, False, 1)


def points(value: Value, type_: ColumnType, zone: str = "UTC") -> list[Point] | None:
    """Return where a constant may lie among the keys of a column; several, if engines differ. None, if unknown."""
    family, kind, raw = type_.family, value.kind, value.value
    if family in ("string", "binary"):
        wanted = ("string", "text") if family == "string" else ("binary",)
        key = raw if isinstance(raw, bytes) else _utf8(str(raw))
        return [Point(key)] if kind in wanted and key is not None else None
    if family == "boolean":
        return [Point(int(raw))] if kind == "boolean" else None
    if family in ("date", "timestamp"):
        return _moments(value, type_, zone)
    if kind not in ("integer", "decimal", "double", "float") or isinstance(raw, str | bytes):
        return None
    if family == "integer":
        return _integers(value)
    if family == "decimal":
        return _decimals(value, type_)
    return _floats(value, narrow=family == "float")


def _utf8(text: str) -> bytes | None:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return None


def _integers(value: Value) -> list[Point] | None:
    raw = value.value
    if value.kind in ("double", "float"):
        assert isinstance(raw, float)
        if math.isnan(raw) or math.isinf(raw):
            return [_BELOW if raw < 0 else _ABOVE]
        # Engines compare as floating-point numbers, which are not exact beyond.
        if abs(raw) >= (1 << (53 if value.kind == "double" else 24)):
            return None
    assert not isinstance(raw, str | bytes)
    if isinstance(raw, Decimal) and (raw.adjusted() > MAX_DIGITS or _scale(raw) > MAX_DIGITS - 19):
        return None  # a common type with an integer of 19 digits has too few of them
    floor = math.floor(raw)
    if floor < _MIN64:
        return [_BELOW]
    return [_ABOVE] if floor > _MAX64 else [Point(floor, floor == raw)]


def _scale(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else MAX_DIGITS + 1


def _decimals(value: Value, type_: ColumnType) -> list[Point] | None:
    raw = value.value
    if value.kind not in ("integer", "decimal"):
        return None
    number = raw if isinstance(raw, Decimal) else Decimal(int(raw))
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or len(digits) > MAX_DIGITS or abs(exponent) > MAX_DIGITS:
        return None
    scale = max(type_.scale, -exponent)
    whole = max(type_.precision - type_.scale, len(digits) + exponent, 1)
    if scale + whole > MAX_DIGITS:
        return None  # the common type has not enough digits: engines round, or fail
    unscaled = math.floor(Fraction(number) * 10**type_.scale)
    limit = 10**type_.precision
    if not -limit < unscaled < limit:
        return [_BELOW if unscaled < 0 else _ABOVE]
    key = decimal_of(unscaled, type_.scale)
    return [Point(key, key == number)]


def _floats(value: Value, *, narrow: bool) -> list[Point] | None:
    raw = value.value
    assert not isinstance(raw, str | bytes)
    try:
        number = float(raw)
    except OverflowError:
        return None
    if math.isinf(number) and not isinstance(raw, float):
        return None
    candidates = [number]
    digits = len(raw.as_tuple().digits) if isinstance(raw, Decimal) else len(str(abs(raw)))
    if not isinstance(raw, float) and digits > 15:
        # How engines divide such a number by its power of ten is not certain to the last bit.
        candidates += [math.nextafter(number, -math.inf), math.nextafter(number, math.inf)]
    if narrow:
        # DuckDB narrows the constant to the column's type, Spark widens the column.
        narrowed = to_float32(number)
        if narrowed is None:
            return None
        candidates.append(narrowed)
        if narrowed != number or (digits > 7 and value.kind != "float"):
            candidates += [neighbour(narrowed, -1), neighbour(narrowed, 1)]
    return [Point(key) for key in dict.fromkeys(order_key(c) for c in candidates)]


def neighbour(number: float, step: int) -> float:
    """Return the next number of 32 bits above or below one."""
    if math.isnan(number) or math.isinf(number):
        return number
    (bits,) = struct.unpack("<i", struct.pack("<f", number or 0.0))
    moved = (bits if bits >= 0 else -(bits & 0x7FFFFFFF)) + step
    packed = struct.pack("<I", moved if moved >= 0 else 0x80000000 | -moved)
    return float(struct.unpack("<f", packed)[0])


def order_key(number: float) -> int:
    """Return the key of a floating-point number: NaN is greatest, and both zeros are one."""
    if math.isnan(number):
        number = math.nan
    (bits,) = struct.unpack("<q", struct.pack("<d", abs(number) if number == 0 or number != number else number))
    return bits ^ 0x7FFFFFFFFFFFFFFF if bits < 0 else int(bits)


# -- dates and times -------------------------------------------------------------------------------

_EPOCH = dt.datetime(1970, 1, 1)


def _moments(value: Value, type_: ColumnType, zone: str) -> list[Point] | None:
    kind, raw = value.kind, value.value
    if kind == "string":
        if type_.family == "date":
            day = date_of(str(raw))
            return None if day is None else [Point(day)]
        moment = moment_of(str(raw))
        if moment is None:
            return None
        kind, raw = ("instant" if moment[1] else "timestamp"), moment[0]
        if kind == "instant" and type_.clock is True:
            return None  # DuckDB passes over the offset of a text that it compares with a time of a clock
    if kind == "zoned":
        # Of times that clocks leave out, instants have another order.
        if not is_utc(zone) and (type_.clock is True or type_.family == "date"):
            return None
        kind = "timestamp"
    if kind not in ("date", "timestamp", "instant") or not isinstance(raw, int):
        return None
    if type_.family == "date":
        if kind == "date":
            return [Point(raw)]
        if kind == "instant":
            return None  # the day of an instant depends on the session
        return [Point(raw // _DAY, raw % _DAY == 0)]
    if kind == "date":
        raw *= _DAY
    if is_utc(zone) or (type_.clock is True and kind != "instant"):
        return [Point(raw)]
    if type_.clock is True:
        return None  # the column is cast by the clock of the session, which does not keep its order
    return [Point(raw)] if kind == "instant" else _on_clock(raw, zone)


def is_utc(zone: str) -> bool:
    """Return whether a time zone is UTC under one of its usual names."""
    return zone.upper() in ("UTC", "ETC/UTC", "Z", "GMT", "ETC/GMT", "ZULU", "+00:00")


def _on_clock(micros: int, zone: str) -> list[Point] | None:
    """Return the instants at which a clock shows a time: two where clocks change."""
    try:
        local = _EPOCH + dt.timedelta(microseconds=micros)
        info = ZoneInfo(zone)
    except (OverflowError, ZoneInfoNotFoundError, ValueError, OSError):
        return None
    if not 1970 <= local.year <= 2037:
        return None  # zone databases differ there
    shifts = [local.replace(tzinfo=info, fold=fold).utcoffset() for fold in (0, 1)]
    found = [micros - s // dt.timedelta(microseconds=1) for s in shifts if s is not None]
    return [Point(key) for key in dict.fromkeys(found)] or None
