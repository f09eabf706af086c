"""Constants of predicates: their kinds, and the forms in which engines write dates and times."""

from __future__ import annotations

import datetime as dt
import re
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

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
    """Return a constant as a value of a column's type with which comparing means the same, None if there is none."""
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
