"""The text of values, column by column."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import zoneinfo
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pyarrow import types as t

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DAY = 86_400
_EPOCH = dt.datetime(1970, 1, 1)
PYTHON_DAYS = range(-719_162, 2_932_896)  # 0001-01-01 to 9999-12-30
_INFINITE_DAYS = 2**31 - 1
_INFINITE_TICKS = 2**63 - 1


def timestamps(array: pa.Array, separator: str = " ") -> list[str | None]:
    """Return timestamps as ``2026-01-31 00:00:00[.ffffff]``, with ``+00:00`` behind when they have a zone.

    DuckDB's infinite ones become ``infinity`` and ``-infinity``.
    """
    unit = PER_SECOND[array.type.unit]
    zone = _zone(array.type.tz) if array.type.tz else None
    return _each(array.view(pa.int64()), lambda v: _timestamp(v, unit, zone, separator))


def _zone(name: str) -> dt.tzinfo:
    with contextlib.suppress(ValueError):
        return dt.datetime.fromisoformat(f"2000-01-01T00:00:00{name}").tzinfo or dt.timezone.utc
    with contextlib.suppress(zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return zoneinfo.ZoneInfo(name)
    return dt.timezone.utc  # the moment is the same in every zone, so it is a true answer


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
    if not fraction:
        return text
    digits = f"{fraction * (10**9 // unit):09}"
    return f"{text}.{digits[:6] if digits.endswith('000') else digits}"


def _timestamp(ticks: int, unit: int, zone: dt.tzinfo | None, separator: str) -> str:
    if abs(ticks) == _INFINITE_TICKS:
        return "infinity" if ticks > 0 else "-infinity"
    seconds, fraction = divmod(ticks, unit)
    offset = _offset(seconds, zone) if zone else 0
    days, second = divmod(seconds + offset, DAY)
    date, _, era = _date(days).partition(" ")
    text = f"{date}{separator}{_clock(second, fraction, unit)}"
    if zone:
        minutes = abs(offset) // 60
        text += f"{'-' if offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
        text += f":{abs(offset) % 60:02}" if offset % 60 else ""
    return f"{text} {era}" if era else text


def _offset(seconds: int, zone: dt.tzinfo) -> int:
    if seconds // DAY not in PYTHON_DAYS[1:]:
        return 0
    moment = (_EPOCH + dt.timedelta(seconds=seconds)).replace(tzinfo=dt.timezone.utc)
    shift: Any = moment.astimezone(zone).utcoffset()
    return int(shift.total_seconds())


def _interval(months: int, days: int, nanoseconds: int) -> str:
    words = []
    years = int(months / 12)  # towards zero
    for count, word in ((years, "year"), (months - 12 * years, "month"), (days, "day")):
        if count:
            words.append(f"{count} {word}{'' if abs(count) == 1 else 's'}")
    if nanoseconds or not words:
        sign = "-" if nanoseconds < 0 else ""
        size = abs(nanoseconds)
        words.append(sign + _clock(size // 10**9, size % 10**9, 10**9))
    return " ".join(words)


Texts = list[str | None]

JSON_FLOATS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def texts(array: pa.Array) -> Texts:
    r"""Return the text of each value, None for NULL.

    Numbers have all their digits (floats the shortest that are exact), binary data is ``\x01\xFE``, lists, structs
    and maps are compact JSON, the rest is as DuckDB writes it: ``2026-01-31``, years before 1 as
    ``0044-03-15 (BC)``, times of day as ``23:59:59[.ffffff]`` until ``24:00:00``, durations as intervals of hours,
    minutes and seconds, intervals as ``1 year 2 months 3 days 04:05:06``.
    """
    array = plain(array)
    type_ = array.type
    if is_binary(type_):
        return _each(array, lambda v: "".join(f"\\x{byte:02X}" for byte in v))
    if t.is_timestamp(type_):
        return timestamps(array)
    if t.is_nested(type_):
        found = jsons(array)
        return [None if null else text for null, text in zip(array.is_null().to_pylist(), found, strict=True)]
    return _scalars(array)


def jsons(array: pa.Array) -> list[str]:
    """Return the JSON text of each value; NULL is ``null``.

    Integers and decimals are written with all their digits, NaN and the infinities as the
    texts "NaN", "Infinity" and "-Infinity", binary data as hexadecimal text.
    """
    array = plain(array)
    type_ = array.type
    if t.is_map(type_):
        return _map_jsons(array)
    if t.is_union(type_):
        return ["null" if m.value is None else jsons(pa.array([m.value], m.value.type))[0] for m in array]
    if t.is_struct(type_):
        return _struct_jsons(array)
    if t.is_nested(type_):
        return _list_jsons(array)
    if t.is_timestamp(type_):
        found = timestamps(array, "T")
    elif is_binary(type_):
        found = _each(array, bytes.hex)
    else:
        found = _scalars(array)
    if t.is_floating(type_):
        return ["null" if v is None else JSON_FLOATS.get(v, v) for v in found]
    if t.is_boolean(type_) or is_number(type_):
        return ["null" if v is None else v for v in found]
    return list(map(json_string, found))


def json_string(text: str | None) -> str:
    """Return a text as JSON, None as ``null``."""
    return json.dumps(text, ensure_ascii=False)


def is_number(type_: pa.DataType) -> bool:
    """Return whether values of a type are aligned to the right."""
    return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_decimal(type_))


def json_names(names: Iterable[str]) -> list[str]:
    """Return column names with ``_1``, ``_2`` ... behind those that repeat.

    JSON objects and Parquet files have no two fields of one name, results may.
    """
    names = list(names)
    taken, seen, found = set(names), set[str](), []
    for name in names:
        unique, number = name, 0
        while unique in seen or (number and unique in taken):
            number += 1
            unique = f"{name}_{number}"
        seen.add(unique)
        found.append(unique)
    return found


def is_binary(type_: pa.DataType) -> bool:
    """Return whether values of a type are bytes."""
    return any(is_(type_) for is_ in (t.is_binary, t.is_large_binary, t.is_fixed_size_binary, t.is_binary_view))


def _each(array: pa.Array, text: Callable[[Any], str]) -> Texts:
    return [None if v is None else text(v) for v in array.to_pylist()]


def plain(array: pa.Array) -> pa.Array:
    """Return the values themselves of dictionaries, run-ends and extension types."""
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            if array.type.extension_name == "arrow.uuid":
                return pa.array([None if v is None else str(v) for v in array.to_pylist()], pa.string())
            array = array.storage
        elif t.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif t.is_run_end_encoded(array.type):
            array = pa.array(array.to_pylist(), array.type.value_type)
        else:
            return array


def _scalars(array: pa.Array) -> Texts:
    type_ = array.type
    if t.is_boolean(type_):
        return _each(array, lambda v: "true" if v else "false")
    if t.is_decimal(type_):
        return _each(array, lambda v: format(v, "f"))
    if t.is_float64(type_):
        return _each(array, repr)
    if t.is_floating(type_):
        # Arrow finds the shortest digits of a float32; Python then writes them as it writes any float.
        return _each(array.cast(pa.float32()).cast(pa.string()), lambda v: repr(float(v)))
    if t.is_date(type_):
        return _each(array.cast(pa.date32()).view(pa.int32()), _date)
    if t.is_time(type_):
        unit = PER_SECOND[type_.unit]
        ticks = array.view(pa.int32() if type_.bit_width == 32 else pa.int64())
        return _each(ticks, lambda v: _clock(v // unit, v % unit, unit))
    if t.is_duration(type_):
        factor = 10**9 // PER_SECOND[type_.unit]
        return _each(array.view(pa.int64()), lambda v: _interval(0, 0, v * factor))
    if t.is_interval(type_):
        return _each(array, lambda v: _interval(v.months, v.days, v.nanoseconds))
    return _each(array, str)


def _list_jsons(array: pa.Array) -> list[str]:
    if t.is_list_view(array.type) or t.is_large_list_view(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    if t.is_fixed_size_list(array.type):
        size = array.type.list_size
        lengths = [size if valid else None for valid in array.is_valid().to_pylist()]
    else:
        lengths = array.value_lengths().to_pylist()
    items = iter(jsons(array.flatten()))
    return ["null" if n is None else "[" + ",".join(next(items) for _ in range(n)) + "]" for n in lengths]


def _struct_jsons(array: pa.Array) -> list[str]:
    names = json_names(f.name for f in array.type)
    heads = [json_string(name) + ":" for name in names]
    columns = [jsons(array.field(i)) for i in range(array.type.num_fields)]
    rows = zip(*columns, strict=True) if columns else iter([()] * len(array))
    found = ["{" + ",".join(map(str.__add__, heads, row)) + "}" for row in rows]
    return [text if valid else "null" for valid, text in zip(array.is_valid().to_pylist(), found, strict=True)]


def _map_jsons(array: pa.Array) -> list[str]:
    valid, offsets = array.is_valid().to_pylist(), array.offsets.to_pylist()
    if not valid:
        return []
    first = offsets[0]
    count = offsets[-1] - first
    keys = texts(array.keys.slice(first, count))
    values = jsons(array.items.slice(first, count))
    pairs = [f"{json_string(k)}:{v}" for k, v in zip(keys, values, strict=True)]
    return [
        "{" + ",".join(pairs[start - first : end - first]) + "}" if is_valid else "null"
        for is_valid, start, end in zip(valid, offsets[:-1], offsets[1:], strict=True)
    ]
