"""Dates and times on Spark as DuckDB has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kartosql.engines.spark.portable.casts import FAR_DAYS, is_far, refuses
from kartosql.engines.spark.portable.rules import LONG, Call, Make, rule
from kartosql.engines.spark.types import text_literal

# Microseconds of a minute and of a day. Functions such as date_format and date_trunc would take a time without zone
# through the session's, which has gaps and overlaps; extract does not.
_OF_MINUTE = "CAST(extract(SECOND FROM {0}) * 1000000 AS BIGINT)"
_OF_DAY = f"(hour({{0}}) * 3600000000L + minute({{0}}) * 60000000L + {_OF_MINUTE})"
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
    "millennium": "(CASE WHEN year({0}) > 0 THEN (year({0}) + 999) div 1000 ELSE year({0}) div 1000 - 1 END)",
    "century": "(CASE WHEN year({0}) > 0 THEN (year({0}) + 99) div 100 ELSE year({0}) div 100 - 1 END)",
    "decade": "(year({0}) div 10)",
    "millisecond": f"({_OF_MINUTE} div 1000)",
    "microsecond": _OF_MINUTE,
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
    "decades": "decade", "decs": "decade", "centuries": "century", "millennia": "millennium",
}  # fmt: skip
_OF_TIME = ("hour", "minute", "second", "millisecond", "microsecond")
_UNIT = {"hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000, "millisecond": 1_000, "microsecond": 1}
# The day on which a unit begins, over a date; and the seconds since a unit of the day began, over a time.
_FIRST_DAY = {
    "day": "{0}",
    **{unit: f"trunc({{0}}, '{unit}')" for unit in ("week", "month", "quarter", "year")},
    "decade": "make_date(year({0}) div 10 * 10, 1, 1)",
    "century": "make_date(year({0}) div 100 * 100, 1, 1)",
    "millennium": "make_date(year({0}) div 1000 * 1000, 1, 1)",
}
_PASSED = {
    "hour": "minute({0}) * 60 + extract(SECOND FROM {0})",
    "minute": "extract(SECOND FROM {0})",
    "second": "extract(SECOND FROM {0}) % 1",
    "millisecond": "extract(SECOND FROM {0}) % 0.001",
    "microsecond": "0",
}
_BOUNDARIES = {
    "millennium": "(year({x}) div 1000)",
    "century": "(year({x}) div 100)",
    "decade": "(year({x}) div 10)",
    "year": "year({x})",
    "quarter": "((year({x}) * 12 + month({x}) - 1) div 3)",
    "month": "(year({x}) * 12 + month({x}))",
}
_MAX_MONTHS = FAR_DAYS // 31


def _near(make: str | Make) -> Make:
    """Refuse far dates and times when they are met: the last ones to Spark are infinite to DuckDB."""

    def made(call: Call) -> str:
        found = make(call) if callable(make) else make.format(*(a.sql for a in call.args))
        asked = [a for a in call.args if a.type.kind in "DTZ" and not a.is_constant]
        if sum(len(a.sql) for a in asked) > LONG:
            raise call.refused(" on so long an expression")
        met = " OR ".join(is_far(a.sql, a.type) for a in asked)
        return f"CASE WHEN {met} THEN {refuses('so far a date')} ELSE {found} END" if met else found

    return made


def _add_days(call: Call) -> str:
    """Return a date that is moved by days."""
    day, days = sorted(call.args, key=lambda a: a.type.kind)
    function = "date_add" if call.name == "+" else "date_sub"
    if days.is_constant and abs(days.value or 0) <= FAR_DAYS:
        return f"{function}({day.sql}, {days.sql})"
    moved = f"{function}({day.sql}, CAST({days.sql} AS INT))"
    return f"CASE WHEN abs(CAST({days.sql} AS BIGINT)) > {FAR_DAYS} THEN {refuses('so far a date')} ELSE {moved} END"


def _part(name: Any) -> str:
    lower = str(name).lower()
    return _ALIASES.get(lower, lower)


def _utc(call: Call) -> None:
    """Refuse what hangs on the session's zone unless that is UTC."""
    if call.zone != "UTC" and any(a.type.kind == "Z" for a in call.args):
        raise call.refused(" unless the session's time zone is UTC")


def _field_of(call: Call, part: str, at: int) -> str:
    _utc(call)
    arg = call.args[at]
    if part == "epoch":
        return _epoch(call, at)
    if part not in _FIELDS:
        raise call.refused(f" for {part}")
    if part in _OF_TIME and arg.type.kind == "D":
        return f"({_FIELDS['day'].format(arg.sql)} * 0)"
    return _FIELDS[part].format(arg.sql)


def _date_part(call: Call) -> str:
    part = call.constant(0)
    return "NULL" if part is None else _field_of(call, _part(part), 1)


def _field(call: Call) -> str:
    return _field_of(call, _part(call.name), 0)


def _date_trunc(call: Call) -> str:
    _utc(call)
    unit = call.constant(0)
    if unit is None:
        return "NULL"
    part, time = _part(unit), call.args[1]
    if part in _FIRST_DAY:
        return _FIRST_DAY[part].format(f"CAST({time.sql} AS DATE)")
    if part not in _PASSED:
        raise call.refused(f" for {unit}")
    if time.type.kind == "D":
        return time.sql
    return f"({time.sql} - make_dt_interval(0, 0, 0, {_PASSED[part].format(time.sql)}))"


def _interval(call: Call, at: int, sign: str) -> str:
    """Return the terms that add or subtract a constant interval: months, then days, then time."""
    interval = call.constant(at)
    days = abs(interval.days) + abs(interval.nanoseconds) // (86_400_000_000_000)
    if abs(interval.months) > _MAX_MONTHS or days > FAR_DAYS:
        raise call.refused(" with so long an interval")
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
    if part in _BOUNDARIES:
        return f"({_BOUNDARIES[part].format(x=b)} - {_BOUNDARIES[part].format(x=a)})"
    if part in _UNIT:
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
    days = f"unix_date(CAST({sql} AS DATE)) * 86400000000L"
    return days if kind == "D" else f"({days} + {_OF_DAY.format(sql)})"


def _epoch(call: Call, at: int = 0) -> str:
    return f"(CAST({_micros(call, at)} AS DOUBLE) / 1000000D)"


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
    "f": f"lpad(CAST({_OF_MINUTE} % 1000000 AS STRING), 6, '0')",
    "I": "lpad(CAST((hour({0}) + 11) % 12 + 1 AS STRING), 2, '0')",
    "p": "CASE WHEN hour({0}) < 12 THEN 'AM' ELSE 'PM' END",
    "B": _name(_MONTHS, _MONTH),
    "b": _name([m[:3] for m in _MONTHS], _MONTH),
    "A": _name(_DAYS, _DAY),
    "a": _name([d[:3] for d in _DAYS], _DAY),
    "%": "'%'",
}


_DATE_FIELDS = "year month day dayofmonth quarter week weekofyear dayofweek weekday isodow dayofyear isoyear"
rule(_DATE_FIELDS, "[DTZ]", _near(_field))
rule("millennium century decade", "[DT]", _near(_field))
rule("hour minute second millisecond microsecond", "[DTZ]", _near(_field))
rule("date_part datepart", "s[DTZ]", _near(_date_part))
rule("date_trunc datetrunc", "s[DTZ]", _near(_date_trunc))
rule("+ -", "Di", _near(_add_days))
rule("+", "iD", _near(_add_days))
rule("-", "DD", _near("datediff({0}, {1})"))
rule("+ -", "[DTZ]y", _near(_shift))
rule("+", "y[DTZ]", _near(_shift))
rule("date_diff datediff", "sDD|sTT|sZZ", _near(_date_diff))
rule("last_day", "[DT]", _near("last_day({0})"))
rule("strftime", "[DT]s|s[DT]", _strftime)
rule("make_date", "iii", "make_date({0}, {1}, {2})")
rule("monthname", "[DTZ]", _near(lambda call: _name(_MONTHS, _field_of(call, "month", 0))))
rule("dayname", "[DTZ]", _near(lambda call: _name(_DAYS, f"({_field_of(call, 'dayofweek', 0)} + 1)")))
rule("epoch", "[DTZ]", _near(_epoch))
rule("epoch_us", "[DTZ]", _near(lambda call: _micros(call, 0)))
