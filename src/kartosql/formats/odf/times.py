"""Moments: nanoseconds since 1970 in UTC, the struct in blocks, and their texts (RFC 3339)."""

from __future__ import annotations

import datetime as dt
import re
from calendar import isleap
from functools import lru_cache

from kartosql.errors import FormatError, SqlError

SECOND = 1_000_000_000
DAY = 86_400
_START = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_EPOCH = _START.toordinal()
_TEXT = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ]([01]\d|2[0-3])(:[0-5]\d:[0-5]\d)(?:\.(\d{1,9}))?\d*([Zz]|[+-]\d\d:[0-5]\d)\Z", re.ASCII
)


def from_parts(year: int, ordinal: int, seconds: int, nanoseconds: int) -> int:
    """Return the moment of a struct: a year, a day in it from 1, and the time since midnight.

    Raises ValueError for what is no moment between the years 1 and 9999.
    """
    if seconds >= DAY or nanoseconds >= SECOND:
        raise ValueError(f"{seconds} s and {nanoseconds} ns are no time of a day")
    return (_day(year, ordinal) * DAY + seconds) * SECOND + nanoseconds


def to_parts(moment: int) -> tuple[int, int, int, int]:
    """Return year, day of the year from 1, seconds since midnight and nanoseconds of a moment."""
    seconds, nanoseconds = divmod(moment, SECOND)
    days, seconds = divmod(seconds, DAY)
    date = dt.date.fromordinal(days + _EPOCH)
    return date.year, date.timetuple().tm_yday, seconds, nanoseconds


def to_text(moment: int) -> str:
    """Return a moment as text: UTC as ``Z``, with 0, 3, 6 or 9 digits of a second."""
    seconds, nanoseconds = divmod(moment, SECOND)
    days, seconds = divmod(seconds, DAY)
    fraction = f"{nanoseconds:09}"
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    hours, minutes = divmod(seconds // 60, 60)
    text = f"{dt.date.fromordinal(days + _EPOCH).isoformat()}T{hours:02}:{minutes:02}:{seconds % 60:02}"
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"


def from_text(text: str) -> int:
    """Return the moment of a text with a zone; raises ``odf-invalid-manifest``."""
    found = _TEXT.match(text)
    try:
        if found is None:
            raise ValueError
        date, hour, rest, fraction, zone = found.groups()
        since = dt.datetime.fromisoformat(f"{date}T{hour}{rest}{zone.upper()}") - _START
        dt.date.fromordinal(since.days + _EPOCH)
        return (since.days * DAY + since.seconds) * SECOND + int((fraction or "").ljust(9, "0"))
    except (ValueError, OverflowError):
        hint = "Write it like 2026-01-02T03:04:05.678Z."
        raise FormatError(f"{text[:80]!r} is no point in time", code="odf-invalid-manifest", hint=hint) from None


def of_user(text: str) -> int:
    """Return the last nanosecond of a date or time as users write it, to the microsecond; UTC without another zone.

    Raises ValueError and OverflowError.
    """
    found = dt.datetime.fromisoformat(text.strip())
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=dt.timezone.utc)
    return (zoned.astimezone(dt.timezone.utc) - _START) // dt.timedelta(microseconds=1) * 1000 + 999


def statement_time(text: str) -> int:
    """Return what ``of_user`` does for a time in a statement; raises ``invalid-value``."""
    try:
        return of_user(text)
    except (ValueError, OverflowError):
        hint = "Expected a date or time such as '2026-01-31 12:00:00Z'."
        raise SqlError(f"{text[:80]!r} is no time.", code="invalid-value", hint=hint) from None


@lru_cache(maxsize=1024)
def _day(year: int, ordinal: int) -> int:
    if not 1 <= year <= 9999 or not 1 <= ordinal <= 365 + isleap(year):
        raise ValueError(f"day {ordinal} of the year {year} is no date")
    return dt.date(year, 1, 1).toordinal() + ordinal - 1 - _EPOCH
