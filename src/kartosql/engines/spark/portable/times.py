"""Functions of dates and times, and of intervals between them, on Spark as DuckDB has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kartosql.engines.spark.portable.functions import Call, rule
from kartosql.engines.spark.types import FAR_DAYS, SparkExpression, refuses, text_literal

# Microseconds of a minute and of a day. Functions such as date_format and date_trunc would take a time without zone
# through the session's, which has gaps and overlaps; extract does not.
_OF_MINUTE = "CAST(extract(SECOND FROM {0}) * 1000000 AS BIGINT)"
_OF_DAY = f"(hour({{0}}) * 3600000000L + minute({{0}}) * 60000000L + {_OF_MINUTE})"
_FIELDS = {
    **{part: f"{part}({{0}})" for part in ["year", "month", "day", "quarter", "dayofyear", "hour", "minute", "second"]},
    "week": "weekofyear({0})",
    "dayofweek": "(dayofweek({0}) - 1)",
    "isodow": "(weekday({0}) + 1)",
    "isoyear": "extract(YEAROFWEEK FROM {0})",
    "millennium": "(CASE WHEN year({0}) > 0 THEN (year({0}) + 999) div 1000 ELSE year({0}) div 1000 - 1 END)",
    "century": "(CASE WHEN year({0}) > 0 THEN (year({0}) + 99) div 100 ELSE year({0}) div 100 - 1 END)",
    "decade": "(year({0}) div 10)",
    "millisecond": f"({_OF_MINUTE} div 1000)",
    "microsecond": _OF_MINUTE,
}
_ALIASES = {
    alias: part
    for part, aliases in {
        "year": "years yr y yrs", "month": "months mon mons", "day": "days d dayofmonth", "quarter": "quarters",
        "week": "weeks w weekofyear", "dayofweek": "dow weekday", "dayofyear": "doy", "hour": "hours h hr hrs",
        "minute": "minutes min mins m", "second": "seconds sec secs s",
        "millisecond": "milliseconds ms msec msecs", "microsecond": "microseconds us usec usecs",
        "decade": "decades decs", "century": "centuries", "millennium": "millennia",
    }.items()
    for alias in aliases.split()
}  # fmt: skip
# Microseconds of a unit of the day, and the seconds since it began, over a time.
_OF_TIME = {
    "hour": (3_600_000_000, "minute({0}) * 60 + extract(SECOND FROM {0})"),
    "minute": (60_000_000, "extract(SECOND FROM {0})"),
    "second": (1_000_000, "extract(SECOND FROM {0}) % 1"),
    "millisecond": (1_000, "extract(SECOND FROM {0}) % 0.001"),
    "microsecond": (1, "0"),
}
_YEARS = {"decade": 10, "century": 100, "millennium": 1000}
# The day on which a unit begins, over a date.
_FIRST_DAY = {
    "day": "{0}",
    **{unit: f"trunc({{0}}, '{unit}')" for unit in ("week", "month", "quarter", "year")},
    **{unit: f"make_date(year({{0}}) div {years} * {years}, 1, 1)" for unit, years in _YEARS.items()},
}
# How many boundaries of a unit lie before a date.
_BOUNDARIES = {
    **{unit: f"(year({{0}}) div {years})" for unit, years in _YEARS.items()},
    "year": "year({0})",
    "quarter": "((year({0}) * 12 + month({0}) - 1) div 3)",
    "month": "(year({0}) * 12 + month({0}))",
    "day": "unix_date(CAST({0} AS DATE))",
}
_MAX_MONTHS = FAR_DAYS // 31


def _add_days(call: Call) -> str:
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


def _date_trunc(call: Call) -> str:
    _utc(call)
    unit, time = call.constant(0), call.args[1]
    part = _part(unit)
    if part in _FIRST_DAY:
        return _FIRST_DAY[part].format(f"CAST({time.sql} AS DATE)")
    if part not in _OF_TIME:
        raise call.refused(f" for {unit}")
    if time.type.kind == "D":
        return time.sql
    return f"({time.sql} - make_dt_interval(0, 0, 0, {_OF_TIME[part][1].format(time.sql)}))"


def _shift(call: Call) -> str:
    """Return a date or time moved by a constant interval: by months, then days, then time."""
    _utc(call)
    moved, at = (1, 0) if call.args[0].type.kind == "y" else (0, 1)
    if not call.args[at].is_constant:
        return _moved(call, *(call.args[i] for i in (moved, at)))
    interval, sql = call.constant(at), call.args[moved].sql
    days = abs(interval.days) + abs(interval.nanoseconds) // (86_400_000_000_000)
    if abs(interval.months) > _MAX_MONTHS or days > FAR_DAYS:
        raise call.refused(" with so long an interval")
    if call.args[moved].type.kind == "D":
        sql = f"CAST({sql} AS TIMESTAMP_NTZ)"
    if interval.months:
        sql += f" {call.name} make_ym_interval(0, {interval.months})"
    if interval.days:
        sql += f" {call.name} make_dt_interval({interval.days})"
    if interval.nanoseconds:
        micros = interval.nanoseconds // 1000
        whole, rest = divmod(abs(micros), 1_000_000)
        seconds = f"{'-' if micros < 0 else ''}{whole}.{rest:06d}"
        sql += f" {call.name} make_dt_interval(0, 0, 0, CAST({seconds} AS DECIMAL(18,6)))"
    return f"({sql})"


def _moved(call: Call, time: SparkExpression, interval: SparkExpression) -> str:
    """Return a date or time moved by an interval of its row, as by a constant one."""
    if time.type.kind == "Z":
        raise call.refused(" unless the interval is a constant")
    seconds = "CAST(CAST(i.micros AS DECIMAL(19,0)) / 1000000 AS DECIMAL(18,6))"
    parts = ["make_ym_interval(0, i.months)", "make_dt_interval(i.days)", f"make_dt_interval(0, 0, 0, {seconds})"]
    found = f" {call.name} ".join([f"CAST({time.sql} AS TIMESTAMP_NTZ)", *parts])
    far = f"abs(i.months) > {_MAX_MONTHS} OR abs(i.days) + abs(i.micros div {_DAY}L) > {FAR_DAYS}"
    kept = f"CASE WHEN {far} THEN {refuses('so long an interval')} ELSE {found} END"
    return f"transform(array({interval.sql}), i -> {kept})[0]"


def length(interval: str) -> str:
    """Return how long an interval is, a month as 30 days: by what DuckDB compares them."""
    return f"transform(array({interval}), i -> (CAST(i.months AS DECIMAL(20,0)) * 30 + i.days) * {_DAY}L + i.micros)[0]"


def _interval(months: str = "0", days: str = "0", micros: str = "0L") -> str:
    parts = (("months", f"CAST({months} AS INT)"), ("days", f"CAST({days} AS INT)"), ("micros", micros))
    return f"named_struct({', '.join(f'{text_literal(name)}, {sql}' for name, sql in parts)})"


def _normalized(call: Call) -> str:
    """Return an interval with as many months as there are 30 days in it, and as many days: what DuckDB compares."""
    months = f"(t - pmod(t, {30 * _DAY}L)) div {30 * _DAY}L"
    made = _interval(months, f"pmod(t, {30 * _DAY}L) div {_DAY}L", f"CAST(pmod(t, {_DAY}L) AS BIGINT)")
    return f"transform(array({length(call.args[0].sql)}), t -> IF(t IS NULL, NULL, {made}))[0]"


def _between(call: Call) -> str:
    """Return how long it is from a time to another one, in days and parts of a day."""
    ends = f"{_micros(call, 0)} - {_micros(call, 1)}"
    return f"transform(array({ends}), m -> IF(m IS NULL, NULL, {_interval('0', f'm div {_DAY}L', f'm % {_DAY}L')}))[0]"


def _age(call: Call) -> str:
    """Return how long it is from a time to another one, in months, days of the month of the earlier one, and parts."""
    a, b = (a.sql for a in call.args)
    ends = f"struct(least({a}, {b}) AS a, greatest({a}, {b}) AS b, IF({a} < {b}, -1, 1) AS sign)"
    past = f"{_OF_DAY.format('e.b')} - {_OF_DAY.format('e.a')}"
    days = "day(e.b) - day(e.a) - IF(t < 0, 1, 0)"
    months = "year(e.b) * 12 + month(e.b) - year(e.a) * 12 - month(e.a) - IF(d < 0, 1, 0)"
    found = _interval(
        f"e.sign * ({months})", "e.sign * IF(d < 0, d + day(last_day(e.a)), d)", f"e.sign * IF(t < 0, t + {_DAY}L, t)"
    )
    for name, value in (("d", days), ("t", past)):
        found = f"transform(array({value}), {name} -> {found})[0]"
    return f"IF({a} IS NULL OR {b} IS NULL, NULL, transform(array({ends}), e -> {found})[0])"


def _of_interval(call: Call, part: str, at: int) -> str:
    if part not in _OF_INTERVAL:
        raise call.refused(f" for {part}")
    return f"transform(array({call.args[at].sql}), i -> {_OF_INTERVAL[part]})[0]"


_DAY = 86_400_000_000
_OF_INTERVAL = {
    "year": "i.months div 12",
    "month": "i.months % 12",
    "day": "i.days",
    "hour": "i.micros div 3600000000L",
    "minute": "i.micros % 3600000000L div 60000000L",
    "second": "i.micros % 60000000L div 1000000L",
    "epoch": "CAST(i.months div 12 * 31557600L + i.months % 12 * 2592000L + i.days * 86400L AS DOUBLE) "
    "+ CAST(i.micros AS DOUBLE) / 1000000D",
}
_MADE = {
    **{f"to_{unit}s": {"months": f"{{0}} * {n}"} for unit, n in {"year": 12, "quarter": 3, "month": 1}.items()},
    **{f"to_{unit}s": {"days": f"{{0}} * {n}"} for unit, n in {"week": 7, "day": 1}.items()},
    **{
        f"to_{unit}s": {"micros": f"CAST({{0}} AS BIGINT) * {_OF_TIME[unit][0]}L"}
        for unit in ("hour", "minute", "microsecond")
    },
}


def _make_interval(call: Call) -> str:
    made = _interval(**{name: sql.format(call.args[0].sql) for name, sql in _MADE[call.name].items()})
    return f"IF({call.args[0].sql} IS NULL, NULL, {made})"


def _date_diff(call: Call) -> str:
    _utc(call)
    part = _part(call.constant(0))
    a, b = call.args[1].sql, call.args[2].sql
    if part == "week":
        # Of the days between, DuckDB drops what is no whole week.
        return f"(datediff(CAST({b} AS DATE), CAST({a} AS DATE)) div 7)"
    if part in _BOUNDARIES:
        return f"({_BOUNDARIES[part].format(b)} - {_BOUNDARIES[part].format(a)})"
    if part in _OF_TIME:
        ends, unit = [_micros(call, at) for at in (2, 1)], _OF_TIME[part][0]
        if unit > 1:
            ends = [f"(({e} - pmod({e}, {unit}L)) div {unit}L)" for e in ends]
        return f"({ends[0]} - {ends[1]})"
    raise call.refused(f" for {part}")


def _micros(call: Call, at: int) -> str:
    """Return a time as microseconds since 1970, one without zone as if it were in UTC."""
    sql, kind = call.args[at].sql, call.args[at].type.kind
    if kind == "Z":
        return f"unix_micros({sql})"
    days = f"unix_date(CAST({sql} AS DATE)) * 86400000000L"
    return days if kind == "D" else f"({days} + {_OF_DAY.format(sql)})"


def _rounded_millis(micros: str) -> str:
    """Return microseconds as milliseconds, halves away from zero."""
    return f"CAST(round(CAST({micros} AS DECIMAL(20, 0)) / 1000) AS BIGINT)"


def _epoch(call: Call, at: int = 0) -> str:
    return f"(CAST({_micros(call, at)} AS DOUBLE) / 1000000D)"


def _bucket(call: Call) -> str:
    """Return the beginning of the interval that holds a time, counted from the first Monday or month of 2000."""
    width, time = call.constant(0), call.args[1]
    micros = width.days * 86_400_000_000 + width.nanoseconds // 1000
    if width.months > 0 and not micros:
        month = f"(year({time.sql}) * 12 + month({time.sql}) - 1)"
        begun = f"({month} - pmod({month} - 24000, {width.months}))"
        return f"make_date(CAST(floor({begun} / 12) AS INT), pmod({begun}, 12) + 1, 1)"
    if width.months or not 0 < micros < 2**53 or (time.type.kind == "D" and micros % 86_400_000_000):
        raise call.refused(" with such a width")
    past = f"pmod({_micros(call, 1)} - 946857600000000L, {micros}L)"
    if time.type.kind == "D":
        return f"date_sub({time.sql}, CAST({past} div 86400000000L AS INT))"
    return f"({time.sql} - make_dt_interval(0, 0, 0, CAST(CAST({past} AS DECIMAL(18,0)) / 1000000 AS DECIMAL(18,6))))"


_FIXED = {"Y": "[1-9][0-9]{3}", "m": "[0-9]{2}", "d": "[0-9]{2}", "H": "[0-9]{2}", "M": "[0-9]{2}", "S": "[0-5][0-9]"}


def _strptime(call: Call) -> str:
    """Return a text as a time, in the one form that both engines read alike; others are refused when met."""
    (text, format_), found, pattern, at = (call.args[0].sql, call.constant(1)), {}, "", 1
    for code, plain in re.findall(r"%(.?)|([^%]+)", format_, re.DOTALL):
        if (code and (code not in _FIXED or code in found)) or not re.fullmatch("[-/. :T,]*", plain):
            raise call.refused(f" with the format {format_!r}")
        if code:
            found[code] = f"CAST(substring({text}, {at}, {4 if code == 'Y' else 2}) AS INT)"
        pattern += _FIXED[code] if code else plain.replace(".", "[.]")
        at += (4 if code == "Y" else 2) if code else len(plain)
    if "Y" not in found:
        raise call.refused(f" with the format {format_!r}")
    parts = ", ".join(found.get(code, "1" if code in "md" else "0") for code in _FIXED)
    known = f"{text} IS NULL OR {text} RLIKE {text_literal(f'^{pattern}$')}"
    return f"CASE WHEN {known} THEN make_timestamp_ntz({parts}) ELSE {refuses('a text of another form as a time')} END"


def _strftime(call: Call) -> str:
    _utc(call)
    at = 1 if call.args[0].type.kind != "s" else 0
    format_, time = call.constant(at), call.args[1 - at]
    found = []
    for code, plain in re.findall(r"%(.?)|([^%]+)", format_, re.DOTALL):
        if not plain and (code not in _PIECES or (code in "HMSfIp" and time.type.kind == "D")):
            raise call.refused(f" with the format {format_!r}")
        found.append(text_literal(plain) if plain else _PIECES[code].format(time.sql))
    found = found or [text_literal("")]
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
_PIECES = {
    "Y": "lpad(CAST(year({0}) AS STRING), 4, '0')",
    "y": "lpad(CAST(year({0}) % 100 AS STRING), 2, '0')",
    **{
        code: f"lpad(CAST({part}({{0}}) AS STRING), 2, '0')"
        for code, part in {"m": "month", "d": "day", "H": "hour", "M": "minute", "S": "second"}.items()
    },
    "j": "lpad(CAST(dayofyear({0}) AS STRING), 3, '0')",
    "u": "CAST(weekday({0}) + 1 AS STRING)",
    "w": "CAST(dayofweek({0}) - 1 AS STRING)",
    "f": f"lpad(CAST({_OF_MINUTE} % 1000000 AS STRING), 6, '0')",
    "I": "lpad(CAST((hour({0}) + 11) % 12 + 1 AS STRING), 2, '0')",
    "p": "CASE WHEN hour({0}) < 12 THEN 'AM' ELSE 'PM' END",
    "B": _name(_MONTHS, "month({0})"),
    "b": _name([m[:3] for m in _MONTHS], "month({0})"),
    "A": _name(_DAYS, "dayofweek({0})"),
    "a": _name([d[:3] for d in _DAYS], "dayofweek({0})"),
    "%": "'%'",
}


_DATE_FIELDS = "year month day dayofmonth quarter week weekofyear dayofweek weekday isodow dayofyear isoyear"
rule(f"{_DATE_FIELDS} {' '.join(_OF_TIME)}", "[DTZ]", lambda call: _field_of(call, _part(call.name), 0), near=True)
rule("millennium century decade", "[DT]", lambda call: _field_of(call, _part(call.name), 0), near=True)
rule("date_part datepart", "s[DTZ]", lambda call: _field_of(call, _part(call.constant(0)), 1), near=True)
rule("date_trunc datetrunc", "s[DTZ]", _date_trunc, near=True)
rule(" ".join(_OF_INTERVAL), "y", lambda call: _of_interval(call, call.name, 0))
rule("date_part datepart", "sy", lambda call: _of_interval(call, _part(call.constant(0)), 1))
rule(" ".join(_MADE), "i", _make_interval)
rule("normalized_interval", "y", _normalized)
rule("-", "TT", _between, near=True)
rule("age", "TT", _age, near=True)
rule("+ -", "Di", _add_days, near=True)
rule("+", "iD", _add_days, near=True)
rule("-", "DD", "datediff({0}, {1})", near=True)
rule("+ -", "[DTZ]y", _shift, near=True)
rule("+", "y[DTZ]", _shift, near=True)
rule("date_diff datediff", "sDD|sTT|sZZ", _date_diff, near=True)
rule("last_day", "[DT]", "last_day({0})", near=True)
rule("strftime", "[DT]s|s[DT]", _strftime)
rule("strptime", "ss", _strptime)
rule("time_bucket", "y[DT]", _bucket, near=True)
rule("make_date", "iii", "make_date({0}, {1}, {2})")
rule("monthname", "[DTZ]", lambda call: _name(_MONTHS, _field_of(call, "month", 0)), near=True)
rule("dayname", "[DTZ]", lambda call: _name(_DAYS, f"({_field_of(call, 'dayofweek', 0)} + 1)"), near=True)
rule("epoch", "[DTZ]", _epoch, near=True)
rule("epoch_ms", "[DTZ]", lambda call: _rounded_millis(_micros(call, 0)), near=True)
rule("epoch_us", "[DTZ]", lambda call: _micros(call, 0), near=True)
