"""Types of columns, and comparisons with constants as tests over keys that Arrow can compare.

Keys are int64 for integers, dates, timestamps, booleans and floating-point numbers (by an order in
which NaN is greatest and both zeros are one), bytes for text (UTF-8, whose order is DuckDB's) and
Decimals for decimals. A comparison whose meaning is not certain has no tests, and no file is
skipped for it.
"""

from __future__ import annotations

import bisect
import datetime as dt
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.arrays import array_of, constant, decimal_of
from kartosql.predicate.tree import Comparison, Contains, In, IsNull, Leaf, Value, date_of, moment_of, to_float32
from kartosql.text.types import type_name

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

    ``clock`` says of timestamps whether they are read as the time of a clock (True) or as
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
    """Values other than some keys; with no keys, each value."""

    keys: frozenset[Key] = frozenset()


@dataclass(frozen=True)
class Containing:
    """Texts that contain some bytes, or with ``begins`` begin with them."""

    part: bytes
    begins: bool


Test = Range | Among | Outside | Containing
ANY = Outside()
NEVER = Among(frozenset())


def as_tests(leaf: Leaf, type_: ColumnType, zone: str = "UTC") -> tuple[Test, ...] | None:
    """Return tests of which at least one holds for each value that satisfies a condition; None if nothing is known.

    ``zone`` is the time zone of the session.
    """
    if isinstance(leaf, IsNull):
        return (ANY,) if leaf.negated else None
    if isinstance(leaf, Contains):
        text = _utf8(leaf.text) if type_.family == "string" else None
        return None if text is None else (Containing(text, leaf.begins),)
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


_COMPARE = {"<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}
_TRUE, _FALSE = constant(True, pa.bool_()), constant(False, pa.bool_())
_ZERO, _INTEGER_ZERO = constant(0.0, pa.float64()), constant(0, pa.int64())
_SIGN, _NAN = constant(0x7FFFFFFFFFFFFFFF, pa.int64()), constant(0x7FF8000000000000, pa.int64())
_FEW = 8  # constants that are compared with bounds one by one
_OLD_DAY, _OLD_TIME = -25_567, -2_208_988_800_000_000  # 1900-01-01


class OddCells(ValueError):
    """Cells that are not what the schema of their file promises."""


class Vanished(OddCells):
    """The cells of a part file that somebody removed since it was opened."""


def repeated(value: bool, rows: int) -> pa.BooleanArray:
    """Return a value for each of some rows."""
    data = (b"\xff" if value else b"\0") * (rows // 8 + 1)
    return pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(data)])


def filled(flags: pa.BooleanArray, value: bool) -> pa.BooleanArray:
    """Return flags with a value in place of NULL."""
    return pc.coalesce(flags, _TRUE if value else _FALSE) if flags.null_count else flags


def keys_of(array: pa.Array, type_: ColumnType) -> pa.Array:
    """Return values as the keys that tests compare with; raises OddCells for values of another type."""
    family, arrow = type_.family, array.type
    if family in ("string", "binary"):
        if not (pa.types.is_string(arrow) or pa.types.is_binary(arrow)):
            raise OddCells(f"values of type {type_name(arrow)} where {family} is expected")
        try:
            array.validate(full=True)  # text from strangers may be no UTF-8
        except pa.ArrowInvalid as e:
            raise OddCells(str(e)) from None
        return array.cast(pa.binary())
    if family == "decimal":
        if not pa.types.is_decimal(arrow) or (arrow.precision, arrow.scale) != (type_.precision, type_.scale):
            raise OddCells(f"values of type {type_name(arrow)} where a decimal is expected")
        return array
    if family in ("float", "double"):
        if not pa.types.is_floating(arrow):
            raise OddCells(f"values of type {type_name(arrow)} where {family} is expected")
        # As integers of the same order: NaN is greatest, and both zeros are one.
        array = array.cast(pa.float64())
        array = pc.if_else(pc.equal(array, _ZERO), _ZERO, array)
        bits = pc.if_else(pc.is_nan(array), _NAN, array.view(pa.int64()))
        return pc.if_else(pc.less(bits, _INTEGER_ZERO), pc.bit_wise_xor(bits, _SIGN), bits)
    tests = {
        "integer": pa.types.is_signed_integer,
        "boolean": pa.types.is_boolean,
        "date": pa.types.is_date32,
        "timestamp": lambda t: pa.types.is_timestamp(t) and t.unit in ("us", "ms", "s"),
    }
    if family not in tests or not tests[family](arrow):
        raise OddCells(f"values of type {type_name(arrow)} where {family} is expected")
    try:
        if family == "date":
            array = array.view(pa.int32())
        elif family == "timestamp":
            array = array.cast(pa.timestamp("us", arrow.tz)).view(pa.int64())
        return array.cast(pa.int64())
    except pa.ArrowInvalid as e:
        raise OddCells(str(e)) from None


def is_old(keys: pa.Array, type_: ColumnType) -> pa.Array | None:
    """Return which dates and times lie before 1900, None for other types."""
    if type_.family not in ("date", "timestamp"):
        return None
    limit = constant(_OLD_DAY if type_.family == "date" else _OLD_TIME, pa.int64())
    return filled(pc.less(keys, limit), False)


def _after(prefix: bytes) -> bytes | None:
    """Return the first bytes behind all that begin with ``prefix``, or None."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1]) if cut else None


# -- bounds ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bounds:
    """The least and greatest keys of the files, NULL where they are not known.

    ``empty`` are the files that have no value but NULL.
    """

    low: pa.Array
    high: pa.Array
    empty: pa.BooleanArray

    def may_pass(self, test: Test) -> pa.BooleanArray:
        """Return which files may hold a value that passes a test."""
        if isinstance(test, Range):
            passes = self._compare(test.op, test.key)
        elif isinstance(test, Containing):
            passes = self._compare(">=", test.part) if test.begins else repeated(True, len(self.low))
            after = _after(test.part) if test.begins else None
            if after is not None:
                passes = pc.and_(passes, self._compare("<", after))
        elif isinstance(test, Outside):
            passes = self._outside(test.keys)
        else:
            passes = self._among(sorted(test.keys))
        return pc.and_not(passes, self.empty)

    def _compare(self, op: str, key: Key) -> pa.BooleanArray:
        side = self.low if op.startswith("<") else self.high
        return filled(_COMPARE[op](side, constant(key, side.type)), True)

    def _outside(self, keys: Iterable[Key]) -> pa.BooleanArray:
        known = array_of(list(keys), self.low.type)
        if not len(known):
            return repeated(True, len(self.low))
        one = pc.and_(pc.equal(self.low, self.high), pc.is_in(self.low, value_set=known))
        return pc.invert(filled(one, False))

    def _among(self, keys: Sequence[Any]) -> pa.BooleanArray:
        if len(keys) > _FEW:
            found = []
            for low, high in zip(self.low.to_pylist(), self.high.to_pylist(), strict=True):
                at = 0 if low is None else bisect.bisect_left(keys, low)
                found.append(at < len(keys) and (high is None or keys[at] <= high))
            return array_of(found, pa.bool_())
        passes = repeated(False, len(self.low))
        for key in keys:
            passes = pc.or_(passes, pc.and_(self._compare(">=", key), self._compare("<=", key)))
        return passes


# UTF-16, by whose order the bounds of text were found, puts these characters the other way round.
_SUPPLEMENTARY, _BEHIND_SURROGATES = rb"[\xf0-\xf4]", rb"[\xee\xef]"


def bounds_of(low: pa.Array, high: pa.Array, type_: ColumnType, *, is_legacy: bool) -> Bounds:
    """Return the bounds in columns of least and greatest values; raises OddCells."""
    empty = pc.and_(low.is_null(), high.is_null())
    low_keys, high_keys = keys_of(low, type_), keys_of(high, type_)
    if type_.family == "string":
        low_keys = _without(low_keys, pc.match_substring_regex(low_keys, _SUPPLEMENTARY))
        high_keys = _without(high_keys, pc.match_substring_regex(high_keys, _BEHIND_SURROGATES))
    if type_.family == "binary":
        # Xskipper has no order of its own for bytes.
        differs = pc.not_equal(low_keys, high_keys)
        low_keys, high_keys = _without(low_keys, differs), _without(high_keys, differs)
    if is_legacy:
        old = is_old(low_keys, type_)
        if old is not None:
            low_keys = _without(low_keys, old)
            high_keys = _without(high_keys, pc.or_(is_old(high_keys, type_), old))
    # Bounds the wrong way round bound nothing.
    wrong = pc.greater(low_keys, high_keys)
    return Bounds(_without(low_keys, wrong), _without(high_keys, wrong), empty)


def _without(keys: pa.Array, unusable: pa.BooleanArray) -> pa.Array:
    return pc.if_else(filled(unusable, False), pa.nulls(1, keys.type)[0], keys)


# -- values ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Values:
    """All keys of the files: ``keys`` one after the other, and the ``rows`` they belong to.

    ``unknown`` are the rows of which not all are known.
    """

    keys: pa.Array
    rows: pa.Array
    unknown: pa.BooleanArray

    def may_pass(self, test: Test) -> pa.BooleanArray:
        """Return which files may hold a value that passes a test."""
        rows = self.rows.filter(filter_keys(self.keys, test))
        return pc.or_(flags(rows, len(self.unknown)), self.unknown)


def filter_keys(keys: pa.Array, test: Test) -> pa.BooleanArray:
    """Return which keys pass a test."""
    if isinstance(test, Range):
        passes = _COMPARE[test.op](keys, constant(test.key, keys.type))
    elif isinstance(test, Containing):
        find = pc.starts_with if test.begins else pc.match_substring
        passes = find(keys, test.part) if test.part else pc.is_valid(keys)
    else:
        passes = pc.is_in(keys, value_set=array_of(list(test.keys), keys.type))
        if isinstance(test, Outside):
            passes = pc.and_(pc.invert(passes), pc.is_valid(keys))
    return filled(passes, False)


def flags(rows: pa.Array, count: int) -> pa.BooleanArray:
    """Return True for those of ``count`` rows that are listed."""
    found = bytearray(count)
    for row in rows.unique().to_pylist():
        found[row] = 1
    return pa.Array.from_buffers(pa.uint8(), count, [None, pa.py_buffer(bytes(found))]).cast(pa.bool_())


def values_of(lists: pa.Array, type_: ColumnType, *, is_legacy: bool) -> Values:
    """Return the values in a column of lists; raises OddCells."""
    if not (pa.types.is_list(lists.type) or pa.types.is_large_list(lists.type)):
        raise OddCells(f"cells of type {type_name(lists.type)} where lists are expected")
    keys = keys_of(lists.flatten(), type_)
    rows = pc.list_parent_indices(lists)
    old = is_old(keys, type_) if is_legacy else None
    unknown = repeated(False, len(lists)) if old is None else flags(rows.filter(old), len(lists))
    return Values(keys, rows, unknown)


def single_values(array: pa.Array, type_: ColumnType) -> Values:
    """Return the values of a column that has one for each file; raises OddCells."""
    rows = array_of(range(len(array)), pa.int64())
    return Values(keys_of(array, type_), rows, repeated(False, len(array)))
