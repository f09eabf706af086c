"""Dates and times on Spark as DuckDB has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kartosql.engines.spark.portable.casts import refuses
from kartosql.engines.spark.portable.functions import Call, rule
from kartosql.engines.spark.portable.literals import text_literal

_OF_DAY = (
    "(hour({0}) * 3600000000L + minute({0}) * 60000000L + second({0}) * 1000000L "
    "+ CAST(date_format({0}, 'SSSSSS') AS INT))"
)
_FIELDS = {
    "year": "year({0})",
    "month": "month({0})",
    "day": "day({0})",
    "quarter": "quarter({0})",
    "week": "weekofyear({0})",
    "dayofweek": "(dayofweek({0}) - 1)",
    "isodow": "(weekday({0}) + 1)",
    "dayofyear": "dayofyear({0})",
    "hour": "hour({0})",
    "minute": "minute({0})",
    "second": "second({0})",
    "isoyear": "extract(YEAROFWEEK FROM {0})",
    "century": "(CASE WHEN year({0}) > 0 THEN (year({0}) + 99) div 100 ELSE year({0}) div 100 - 1 END)",
    "decade": "(CASE WHEN year({0}) >= 0 THEN year({0}) div 10 ELSE (year({0}) - 9) div 10 END)",
    "millisecond": "(second({0}) * 1000 + CAST(date_format({0}, 'SSS') AS INT))",
    "microsecond": "(second({0}) * 1000000 + CAST(date_format({0}, 'SSSSSS') AS INT))",
}
_ALIASES = {
    "years": "year", "yr": "year", "y": "year", "yrs": "year",
    "months": "month", "mon": "month", "mons": "month",
    "days": "day", "d": "day", "dayofmonth": "day",
    "quarters": "quarter", "weeks": "week", "w": "week", "weekofyear": "week",
    "dow": "dayofweek", "weekday": "dayofweek", "doy": "dayofyear",
    "hours": "hour", "h": "hour", "hr": "hour", "hrs": "hour",
    "minutes": "minute", "min": "minute", "mins": "minute", "m": "minute",
    "seconds": "second", "sec": "second", "secs": "second", "s": "second",
    "milliseconds": "millisecond", "ms": "millisecond", "msec": "millisecond", "msecs": "millisecond",
    "microseconds": "microsecond", "us": "microsecond", "usec": "microsecond", "usecs": "microsecond",
    "decades": "decade", "centuries": "century",
}  # fmt: skip
_TRUNCATED = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")
_OF_TIME = ("hour", "minute", "second", "millisecond", "microsecond")
_UNIT = {"hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000, "millisecond": 1_000, "microsecond": 1}


def _part(name: Any) -> str:
    lower = str(name).lower()
    return _ALIASES.get(lower, lower)


def _utc(call: Call) -> None:
    """Refuse what hangs on the session's zone unless that is UTC."""
    if call.zone != "UTC" and any(a.type.kind == "Z" for a in call.args):
        raise call.refused(" unless the session's time zone is UTC")


def _field_of(call: Call, part: str, at: int) -> str:
    _utc(call)
    if part not in _FIELDS or (part in _OF_TIME and call.args[at].type.kind == "D"):
        raise call.refused(f" for {part}")
    return _FIELDS[part].format(call.args[at].sql)


def _date_part(call: Call) -> str:
    part = call.constant(0)
    return "NULL" if part is None else _field_of(call, _part(part), 1)


def _field(call: Call) -> str:
    return _field_of(call, _part(call.name), 0)


def _date_trunc(call: Call) -> str:
    _utc(call)
    part = call.constant(0)
    if part is None:
        return "NULL"
    if _part(part) not in _TRUNCATED:
        raise call.refused(f" for {part}")
    sql = call.args[1].sql
    return f"date_trunc('{_part(part)}', {sql})"


def _interval(call: Call, at: int, sign: str) -> str:
    """Return the terms that add or subtract a constant interval: months, then days, then time."""
    interval = call.constant(at)
    terms = []
    if interval.months:
        terms.append(f" {sign} make_ym_interval(0, {interval.months})")
    if interval.days:
        terms.append(f" {sign} make_dt_interval({interval.days})")
    if interval.nanoseconds:
        micros = interval.nanoseconds // 1000
        whole, rest = divmod(abs(micros), 1_000_000)
        seconds = f"{'-' if micros < 0 else ''}{whole}.{rest:06d}"
        terms.append(f" {sign} make_dt_interval(0, 0, 0, CAST({seconds} AS DECIMAL(18,6)))")
    return "".join(terms)


def _shift(call: Call) -> str:
    """Return a date or time moved by a constant interval."""
    _utc(call)
    moved, at = (1, 0) if call.args[0].type.kind == "y" else (0, 1)
    if call.constant(at) is None:
        return "NULL"
    sql = call.args[moved].sql
    if call.args[moved].type.kind == "D":
        sql = f"CAST({sql} AS TIMESTAMP_NTZ)"
    return f"({sql}{_interval(call, at, call.name)})"


def _date_diff(call: Call) -> str:
    """Return how many boundaries of a unit lie between two points in time."""
    part = call.constant(0)
    if part is None:
        return "NULL"
    if call.zone != "UTC" and call.args[1].type.kind == "Z":
        raise call.refused(" unless the session's time zone is UTC")
    part = _part(part)
    a, b = call.args[1].sql, call.args[2].sql
    if part == "day":
        return f"datediff(CAST({b} AS DATE), CAST({a} AS DATE))"
    if part == "week":
        # Of the days between, DuckDB drops what is no whole week.
        return f"(datediff(CAST({b} AS DATE), CAST({a} AS DATE)) div 7)"
    months = {
        "year": "year({x})",
        "quarter": "(year({x}) * 4 + quarter({x}))",
        "month": "(year({x}) * 12 + month({x}))",
    }
    if part in months:
        return f"({months[part].format(x=b)} - {months[part].format(x=a)})"
    if part in _UNIT and call.args[1].type.kind in "TZ":
        ends = [_micros(call, at) for at in (2, 1)]
        if part != "microsecond":
            ends = [f"(({e} - pmod({e}, {_UNIT[part]}L)) div {_UNIT[part]}L)" for e in ends]
        return f"({ends[0]} - {ends[1]})"
    raise call.refused(f" for {part}")


def _micros(call: Call, at: int) -> str:
    """Return a time as microseconds since 1970, one without zone as if it were in UTC."""
    sql, kind = call.args[at].sql, call.args[at].type.kind
    if kind == "Z":
        return f"unix_micros({sql})"
    return f"(datediff(CAST({sql} AS DATE), DATE'1970-01-01') * 86400000000L + {_OF_DAY.format(sql)})"


def _epoch(call: Call) -> str:
    return f"(CAST({_micros(call, 0)} AS DOUBLE) / 1000000D)"


def _strftime(call: Call) -> str:
    """Return a time in a constant format."""
    _utc(call)
    at = 1 if call.args[0].type.kind != "s" else 0
    format_, time = call.constant(at), call.args[1 - at]
    if format_ is None:
        return "CAST(NULL AS STRING)"
    found, plain, characters = [], "", iter(format_)
    for c in characters:
        if c != "%":
            plain += c
            continue
        code = next(characters, "")
        piece = _PIECES.get(code)
        if piece is None or (code in "HMSfIp" and time.type.kind == "D"):
            raise call.refused(f" with the format {format_!r}")
        if plain:
            found.append(text_literal(plain))
            plain = ""
        found.append(piece.format(time.sql))
    if plain or not found:
        found.append(text_literal(plain))
    far = f"year({time.sql}) < 1 OR year({time.sql}) > 9999"
    shown = f"CASE WHEN {far} THEN {refuses('a date that far away as text')} ELSE concat({', '.join(found)}) END"
    return f"CASE WHEN {time.sql} IS NULL THEN NULL ELSE {shown} END"


def _name(names: Sequence[str], number: str) -> str:
    return f"elt({number}, {', '.join(map(text_literal, names))})"


_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAY, _MONTH = "dayofweek({0})", "month({0})"
_PIECES = {
    "Y": "lpad(CAST(year({0}) AS STRING), 4, '0')",
    "y": "lpad(CAST(year({0}) % 100 AS STRING), 2, '0')",
    "m": "lpad(CAST(month({0}) AS STRING), 2, '0')",
    "d": "lpad(CAST(day({0}) AS STRING), 2, '0')",
    "j": "lpad(CAST(dayofyear({0}) AS STRING), 3, '0')",
    "u": "CAST(weekday({0}) + 1 AS STRING)",
    "w": "CAST(dayofweek({0}) - 1 AS STRING)",
    "H": "lpad(CAST(hour({0}) AS STRING), 2, '0')",
    "M": "lpad(CAST(minute({0}) AS STRING), 2, '0')",
    "S": "lpad(CAST(second({0}) AS STRING), 2, '0')",
    "f": "date_format({0}, 'SSSSSS')",
    "I": "lpad(CAST((hour({0}) + 11) % 12 + 1 AS STRING), 2, '0')",
    "p": "CASE WHEN hour({0}) < 12 THEN 'AM' ELSE 'PM' END",
    "B": _name(_MONTHS, _MONTH),
    "b": _name([m[:3] for m in _MONTHS], _MONTH),
    "A": _name(_DAYS, _DAY),
    "a": _name([d[:3] for d in _DAYS], _DAY),
    "%": "'%'",
}


rule("year month day dayofmonth quarter week weekofyear dayofweek weekday isodow dayofyear isoyear", "[DTZ]", _field)
rule("century decade", "[DT]", _field)
rule("hour minute second millisecond microsecond", "[TZ]", _field)
rule("date_part datepart", "s[DTZ]", _date_part)
rule("date_trunc datetrunc", "s[DTZ]", _date_trunc)
rule("+", "Di", "date_add({0}, {1})")
rule("+", "iD", "date_add({1}, {0})")
rule("-", "Di", "date_sub({0}, {1})")
rule("-", "DD", "datediff({0}, {1})")
rule("+ -", "[DTZ]y", _shift)
rule("+", "y[DTZ]", _shift)
rule("date_diff datediff", "sDD|sTT|sZZ", _date_diff)
rule("last_day", "[DT]", "last_day({0})")
rule("strftime", "[DT]s|s[DT]", _strftime)
rule("make_date", "iii", "make_date({0}, {1}, {2})")
rule("monthname", "[DTZ]", lambda call: _name(_MONTHS, _field_of(call, "month", 0)))
rule("dayname", "[DTZ]", lambda call: _name(_DAYS, f"({_field_of(call, 'dayofweek', 0)} + 1)"))
rule("epoch", "[TZ]", _epoch)
rule("epoch_us", "[TZ]", lambda call: _micros(call, 0))
