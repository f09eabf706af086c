"""Dates, times and intervals as ISO text, over the whole range that Arrow and DuckDB know.

Python's datetime ends at the year 9999 and has no nanoseconds and no 24:00, so the text is
made from the stored integers.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

import pyarrow as pa

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_EPOCH = dt.datetime(1970, 1, 1)
_PYTHON_DAYS = range(-719_162, 2_932_896)  # 0001-01-01 to 9999-12-30
_INFINITE_DAYS = 2**31 - 1
_INFINITE_TICKS = 2**63 - 1


def dates(array: pa.Array) -> list[str | None]:
    """Return dates as ``2026-01-31``; years before 1 as ``0044-03-15 (BC)``, as DuckDB does."""
    if pa.types.is_date64(array.type):
        array = array.cast(pa.date32())
    return [None if v is None else _date(v) for v in array.view(pa.int32()).to_pylist()]


def times(array: pa.Array) -> list[str | None]:
    """Return times of day as ``23:59:59[.ffffff]``; the end of a day is ``24:00:00``."""
    unit = _PER_SECOND[array.type.unit]
    integers = pa.int32() if array.type.bit_width == 32 else pa.int64()
    values = array.view(integers).to_pylist()
    return [None if v is None else _clock(v // unit, v % unit, unit) for v in values]


def timestamps(array: pa.Array, separator: str = " ") -> list[str | None]:
    """Return timestamps as ``2026-01-31 00:00:00[.ffffff]``, with ``+00:00`` behind when they have a zone.

    DuckDB's infinite ones become ``infinity`` and ``-infinity``.
    """
    unit = _PER_SECOND[array.type.unit]
    zone = _zone(array.type.tz) if array.type.tz else None
    values = array.view(pa.int64()).to_pylist()
    return [None if v is None else _timestamp(v, unit, zone, separator) for v in values]


def durations(array: pa.Array) -> list[str | None]:
    """Return durations as intervals of hours, minutes and seconds."""
    factor = 10**9 // _PER_SECOND[array.type.unit]
    return [None if v is None else _interval(0, 0, v * factor) for v in array.view(pa.int64()).to_pylist()]


def intervals(array: pa.Array) -> list[str | None]:
    """Return intervals as DuckDB writes them: ``1 year 2 months 3 days 04:05:06``."""
    return [None if v is None else _interval(v.months, v.days, v.nanoseconds) for v in array.to_pylist()]


def _zone(name: str) -> dt.tzinfo:
    try:
        return dt.datetime.fromisoformat(f"2000-01-01T00:00:00{name}").tzinfo or dt.timezone.utc
    except ValueError:
        pass
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        # The moment is the same in every zone, so UTC is a true answer.
        return dt.timezone.utc


def _date(days: int) -> str:
    if abs(days) == _INFINITE_DAYS:
        return "infinity" if days > 0 else "-infinity"
    year, month, day = _civil(days)
    era = "" if year > 0 else " (BC)"
    return f"{year if year > 0 else 1 - year:04}-{month:02}-{day:02}{era}"


def _civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a proleptic Gregorian day number; year 0 is 1 BC."""
    # Years of 400-year eras that begin in March, so that the leap day is the last of a year.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1


def _clock(seconds: int, fraction: int, unit: int) -> str:
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + _fraction(fraction, unit)


def _fraction(fraction: int, unit: int) -> str:
    if not fraction:
        return ""
    digits = f"{fraction * (10**9 // unit):09}"
    return "." + (digits[:6] if digits.endswith("000") else digits)


def _timestamp(ticks: int, unit: int, zone: dt.tzinfo | None, separator: str) -> str:
    if abs(ticks) == _INFINITE_TICKS:
        return "infinity" if ticks > 0 else "-infinity"
    seconds, fraction = divmod(ticks, unit)
    offset = _offset(seconds, zone) if zone else 0
    days, second = divmod(seconds + offset, _DAY)
    date, _, era = _date(days).partition(" ")
    text = f"{date}{separator}{_clock(second, fraction, unit)}"
    if zone:
        minutes = abs(offset) // 60
        text += f"{'-' if offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
        text += f":{abs(offset) % 60:02}" if offset % 60 else ""
    return f"{text} {era}" if era else text


def _offset(seconds: int, zone: dt.tzinfo) -> int:
    if seconds // _DAY not in _PYTHON_DAYS[1:]:
        return 0
    moment = (_EPOCH + dt.timedelta(seconds=seconds)).replace(tzinfo=dt.timezone.utc)
    shift: Any = moment.astimezone(zone).utcoffset()
    return int(shift.total_seconds())


def _interval(months: int, days: int, nanoseconds: int) -> str:
    words = []
    years, months = _split(months, 12)
    for count, word in ((years, "year"), (months, "month"), (days, "day")):
        if count:
            words.append(f"{count} {word}{'' if abs(count) == 1 else 's'}")
    if nanoseconds or not words:
        sign = "-" if nanoseconds < 0 else ""
        size = abs(nanoseconds)
        words.append(sign + _clock(size // 10**9, size % 10**9, 10**9))
    return " ".join(words)


def _split(value: int, by: int) -> tuple[int, int]:
    whole, rest = divmod(abs(value), by)
    return (whole, rest) if value >= 0 else (-whole, -rest)
