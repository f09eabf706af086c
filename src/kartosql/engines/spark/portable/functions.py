"""Scalar functions that Spark answers as DuckDB does, each proved by the conformance tests.

A rule is a name, a pattern over the kinds of its arguments (``Type.kind``), and a template or a
function that makes the Spark expression. What has no rule is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kartosql.engines.spark.types import (
    FAR_DAYS,
    INTEGERS,
    SparkExpression,
    Type,
    identifier,
    in_range,
    is_far,
    raises,
    refuses,
    text_literal,
)
from kartosql.errors import NotPortable

_LONG = 4_000  # characters of an argument that is not written twice
_MAX = 2**31


class _NullArgument(Exception):
    """An argument that has to be a constant is NULL, and so is the call."""


@dataclass(frozen=True)
class Call:
    """A call of a function as DuckDB bound it."""

    name: str
    args: tuple[SparkExpression, ...]
    type: Type
    zone: str
    data: Mapping[str, Any]  # what else DuckDB tells about it

    def refused(self, reason: str = "") -> NotPortable:
        """Return the error that refuses the call."""
        types = ", ".join(a.type.sql() for a in self.args)
        return NotPortable(f"Spark does not answer {self.name}({types}) as DuckDB does{reason}.")

    def constant(self, at: int, *, nullable: bool = False) -> Any:
        """Return the value of an argument that has to be a constant; NULL ends the call unless it is ``nullable``."""
        if not self.args[at].is_constant:
            raise self.refused(f" unless argument {at + 1} is a constant")
        if self.args[at].value is None and not nullable:
            raise _NullArgument
        return self.args[at].value

    def number(self, at: int, low: int, reason: str, *, below: int = _MAX) -> int:
        """Return a constant number, refused for a ``reason`` if it is out of a range."""
        value: int = self.constant(at)
        if not low <= value < below:
            raise self.refused(reason)
        return value


Make = Callable[[Call], str]


class Rule(NamedTuple):
    """How calls are written whose arguments are of certain kinds.

    The expression already has the Spark type of the result if it is ``exact``. Dates and times are refused if they
    are far and the rule is about ``near`` ones: the last ones to Spark are infinite to DuckDB.
    """

    pattern: re.Pattern[str]
    make: Make
    exact: bool
    near: bool


RULES: dict[str, list[Rule]] = {}


def rule(
    names: str,
    kinds: str,
    make: str | Make,
    *,
    exact: bool = False,
    near: bool = False,
    numbers: Mapping[int, tuple[int, str]] | None = None,
) -> None:
    """Declare functions as portable for arguments whose kinds match a pattern.

    A template has ``{0}``, ``{1}`` for arguments, ``{all}`` for all of them, ``{name}``, and ``{type}`` for that of the
    result. Of arguments that have to be constants ``numbers`` says how small they may be, and why others are refused.
    """
    made = _template(make, numbers or {}) if isinstance(make, str) else make
    for name in names.split(" "):
        RULES.setdefault(name, []).append(Rule(re.compile(kinds), made, exact, near))


def _template(text: str, numbers: Mapping[int, tuple[int, str]]) -> Make:
    def make(call: Call) -> str:
        shown = [str(call.number(i, *numbers[i])) if i in numbers else a.sql for i, a in enumerate(call.args)]
        return text.format(*shown, all=", ".join(shown), name=call.name, type=call.type.spark())

    return make


def render(
    name: str, args: Sequence[SparkExpression], type_: Type, zone: str, data: Mapping[str, Any] | None = None
) -> str:
    """Return the Spark expression of a call; raises ``not-portable``."""
    call = Call(name, tuple(args), type_, zone, data or {})
    kinds = "".join(a.type.kind for a in args)
    found = next((known for known in RULES.get(name, ()) if known.pattern.fullmatch(kinds)), None)
    if found is None:
        raise call.refused()
    try:
        text = found.make(call)
    except _NullArgument:
        return f"CAST(NULL AS {type_.spark()})"
    if found.near:
        far = [is_far(a.sql, a.type) for a in args if a.type.kind in "DTZ" and not a.is_constant]
        text = f"CASE WHEN {' OR '.join(far)} THEN {refuses('so far a date')} ELSE {text} END" if far else text
    if any(len(a.sql) > _LONG and text.count(a.sql) > 1 for a in args):
        raise call.refused(" on so long an expression")
    return text if found.exact else f"CAST({text} AS {type_.spark()})"


# -- numbers -------------------------------------------------------------------------------------

_INF, _NAN = "CAST('Infinity' AS DOUBLE)", "CAST('NaN' AS DOUBLE)"
_EXACT_ABOVE = "4503599627370496D"  # doubles from here on have no fraction


def _divide(call: Call) -> str:
    """Return a quotient of floats, in which division by zero is as IEEE 754 has it."""
    a, b = call.args
    if b.is_constant and b.value:
        return f"({a.sql} / {b.sql})"
    sign = f"(({a.sql} < 0) = (CAST({b.sql} AS STRING) LIKE '-%'))"
    return (
        f"CASE WHEN {a.sql} IS NULL OR {b.sql} IS NULL THEN NULL WHEN {b.sql} <> 0 THEN {a.sql} / {b.sql} "
        f"WHEN {a.sql} = 0 OR isnan({a.sql}) THEN {_NAN} WHEN {sign} THEN {_INF} ELSE -{_INF} END"
    )


def _nearest(x: str) -> str:
    """Return a float rounded to a whole number; what is rounded to zero keeps its sign."""
    return f"CASE WHEN abs({x}) < 0.5D THEN {x} * 0D ELSE round({x}, 0) END"


def _round(call: Call) -> str:
    """Return a float rounded as C does it: scaled, rounded to a whole number, scaled back."""
    x = call.args[0].sql
    digits = call.number(1, -15, " with so many digits", below=16) if len(call.args) == 2 else 0
    if digits == 0:
        return _nearest(x)
    there, back = ("*", "/") if digits > 0 else ("/", "*")
    scale = f"1e{abs(digits)}D"
    return f"CASE WHEN abs({x}) < 1e290D THEN ({_nearest(f'({x} {there} {scale})')}) {back} {scale} ELSE {x} END"


def _round_exact(call: Call) -> str:
    digits = call.number(1, -30, " with so many digits", below=39) if len(call.args) == 2 else 0
    return f"round({call.args[0].sql}, {digits})"


def _whole(spark: str) -> str:
    """Return the template of a function from floats to whole floats, which Spark returns as integers."""
    # These have one zero, a float has two: what becomes zero keeps its sign.
    return (
        f"CASE WHEN abs({{0}}) < {_EXACT_ABOVE} THEN CASE WHEN {spark} = 0 THEN {{0}} * 0D "
        f"ELSE CAST({spark} AS DOUBLE) END ELSE {{0}} END"
    )


def _logarithm(spark: str) -> str:
    """Return the template of a logarithm, which Spark has not for zero and less."""
    return f"CASE WHEN {{0}} = 0 THEN -{_INF} WHEN {{0}} < 0 THEN {_NAN} ELSE {spark}({{0}}) END"


def _log_of_base(call: Call) -> str:
    parts = [SparkExpression(f"({_logarithm('log10').format(a.sql)})", a.type) for a in reversed(call.args)]
    return _divide(Call("/", tuple(parts), call.type, call.zone, call.data))


def _shift_left(call: Call) -> str:
    (x, n), bits = (f"CAST({a.sql} AS BIGINT)" for a in call.args), INTEGERS[call.type.name]
    fits = f"{n} BETWEEN 0 AND {bits - 2} AND {x} BETWEEN 0 AND shiftright({2 ** (bits - 1) - 1}L, CAST({n} AS INT))"
    wrong = raises("a number is shifted out of its range")
    return (
        f"CASE WHEN {x} IS NULL OR {n} IS NULL THEN NULL WHEN {x} = 0 AND {n} >= 0 THEN 0 "
        f"WHEN {fits} THEN shiftleft({x}, CAST({n} AS INT)) ELSE {wrong} END"
    )


def _bit_count(call: Call) -> str:
    bits = INTEGERS[call.args[0].type.name]
    return f"bit_count(CAST({call.args[0].sql} AS BIGINT){'' if bits == 64 else f' & {2**bits - 1}L'})"


rule("+ - *", "ii|hh|dd|ff|mm", "({0} {name} {1})")
rule("*", "hm|mh", "({0} * {1})")
rule("+ - *", "uu", lambda call: in_range(f"({call.args[0].sql} {call.name} {call.args[1].sql})", call.type))
rule("- negate", "[ifd]", "(- {0})")
# Spark's own minus and abs round decimals to 34 digits.
rule("- negate", "[hm]", "(CAST(0 AS {type}) - {0})")
rule("+", "[iuhfdm]", "{0}")
rule("/ fdiv", "dd|ff", _divide)
rule(
    "// div divide",
    "ii",
    "CASE WHEN {0} = {1} * 0 - 9223372036854775807 - 1 AND {1} = -1 THEN "
    + raises("a quotient is out of range")
    + " ELSE {0} div {1} END",
)
rule("% mod fmod", "ii|hh|mm", "({0} % {1})")
rule("abs @", "[ifd]", "abs({0})")
rule("abs @", "[hm]", "CASE WHEN {0} < 0 THEN CAST(0 AS {type}) - {0} ELSE {0} END")
rule("sign", "[ihm]", "sign({0})")
rule("sign", "[fd]", f"CASE WHEN {{0}} = {_NAN} THEN 0 ELSE sign({{0}}) END")
rule("floor", "[fd]", _whole("floor({0})"))
rule("ceil ceiling", "[fd]", _whole("ceil({0})"))
rule("floor", "m", "floor({0})")
rule("ceil ceiling", "m", "ceil({0})")
rule("floor ceil ceiling trunc round", "[iuh]", "{0}")
rule("trunc", "[fd]", _whole("CAST({0} AS BIGINT)"))
rule("trunc", "m", "CASE WHEN {0} < 0 THEN ceil({0}) ELSE floor({0}) END")
rule("round", "[iu]i", _round_exact)
rule("round", "d|f|di|fi", _round)
rule("round", "m|mi", _round_exact)
rule("ln", "d", _logarithm("ln"))
rule("log log10", "d", _logarithm("log10"))
rule("log2", "d", _logarithm("log2"))
rule("log", "dd", _log_of_base)
# Of what C says is 1, Java says that it is no number.
rule(
    "pow power ** ^",
    "dd",
    "CASE WHEN {0} = 1 AND {1} IS NOT NULL THEN 1 "
    f"WHEN {{0}} = -1 AND abs({{1}}) = {_INF} THEN 1 ELSE power({{0}}, {{1}}) END",
)
rule("sqrt exp cbrt sin cos tan asin acos atan sinh cosh tanh radians degrees", "d", "{name}({0})")
# Spark's own takes the zero with a sign for the other one.
rule(
    "atan2",
    "dd",
    "CASE WHEN {0} = 0 AND NOT isnan({1}) AND {1} IS NOT NULL THEN CASE WHEN CAST({1} AS STRING) NOT LIKE '-%' "
    "THEN {0} WHEN CAST({0} AS STRING) LIKE '-%' THEN -pi() ELSE pi() END ELSE atan2({0}, {1}) END",
)
rule("isnan", "[fd]", f"({{0}} = {_NAN})", exact=True)
rule("isinf", "[fd]", f"(abs({{0}}) = {_INF})", exact=True)
rule("isfinite", "[fd]", f"(abs({{0}}) < {_INF})", exact=True)
# Both skip NULL in both engines.
rule("greatest least", "i|u|h|d|f|m|s|D|T|Z|b", "{0}")
rule("greatest least", "i+|u+|h+|d+|f+|m+|s+|D+|T+|Z+|b+", "{name}({all})")
rule("& |", "ii", "({0} {name} {1})")
rule("xor", "ii", "({0} ^ {1})")
rule("bit_count", "i", _bit_count)
rule("<<", "ii", _shift_left)
rule("~", "i", "(~ {0})")


# -- nested values -------------------------------------------------------------------------------


def _struct_extract(call: Call) -> str:
    name = call.constant(1)
    names = [n for n, _ in call.args[0].type.parts]
    found = [n for n in names if n == name] or [n for n in names if n.lower() == str(name).lower()]
    if len(found) != 1 or len({n.lower() for n in names}) < len(names):
        raise call.refused(" for such a field")
    return f"{call.args[0].sql}.{identifier(found[0])}"


def _struct_pack(call: Call) -> str:
    names = [n for n, _ in call.type.parts]
    fields = ", ".join(f"{text_literal(n)}, {a.sql}" for n, a in zip(names, call.args, strict=True))
    return f"named_struct({fields})"


rule("struct_extract array_extract", "Ss", _struct_extract)
rule("struct_pack row", ".*", _struct_pack)
rule("list_value unpivot_list", ".*", "array({all})")
rule("len length array_length", "l", "size({0})")
# NULL in the list makes neither engine's answer NULL here.
rule(
    "list_contains array_contains list_has contains",
    "l[iuhmsbDTZfd]",
    "coalesce(array_contains({0}, {1}), CASE WHEN {0} IS NULL OR {1} IS NULL THEN NULL ELSE false END)",
    exact=True,
)


# -- dates and times -----------------------------------------------------------------------------

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
_DAY, _MONTH = "dayofweek({0})", "month({0})"
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
    "B": _name(_MONTHS, _MONTH),
    "b": _name([m[:3] for m in _MONTHS], _MONTH),
    "A": _name(_DAYS, _DAY),
    "a": _name([d[:3] for d in _DAYS], _DAY),
    "%": "'%'",
}


_DATE_FIELDS = "year month day dayofmonth quarter week weekofyear dayofweek weekday isodow dayofyear isoyear"
rule(f"{_DATE_FIELDS} {' '.join(_OF_TIME)}", "[DTZ]", lambda call: _field_of(call, _part(call.name), 0), near=True)
rule("millennium century decade", "[DT]", lambda call: _field_of(call, _part(call.name), 0), near=True)
rule("date_part datepart", "s[DTZ]", lambda call: _field_of(call, _part(call.constant(0)), 1), near=True)
rule("date_trunc datetrunc", "s[DTZ]", _date_trunc, near=True)
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


# -- texts ---------------------------------------------------------------------------------------

# Regular expressions that RE2 and Java read alike: no classes that count letters, no look-around, no flags.
_SAFE = re.compile(
    r"(?:[A-Za-z0-9 _@#%&=:;,<>/~'\"!\-äöüÄÖÜßé]|\\[.\\+*?^$|(){}\[\]/\-dDwW]|[.^$|*+?]|\((?!\?)|\(\?:|\)|"
    r"\[\^?(?:[A-Za-z0-9_\- .,;:@#%/+*]|\\[dw.\-])+\]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})*"
)
_LINE_ENDS = r"[\n\r\x{85}\x{2028}\x{2029}]"
# Blanks to DuckDB: what Unicode has as space separators.
_BLANKS = " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
# Characters whose case both engines see alike, whatever version of Unicode they have; but for those mapped below.
_CASED = (
    r"^[\x{0}-\x{148}\x{14A}-\x{17F}\x{200}-\x{24F}\x{300}-\x{344}\x{370}-\x{38F}\x{391}-\x{3AF}\x{3B1}-\x{3FF}"
    r"\x{400}-\x{52F}\x{590}-\x{6FF}\x{900}-\x{FFF}\x{1100}-\x{11FF}\x{1E00}-\x{1E95}\x{1E9E}-\x{1EFF}"
    r"\x{2000}-\x{20CF}\x{2190}-\x{23FF}\x{2500}-\x{2BFF}\x{2E80}-\x{9FFF}\x{AC00}-\x{D7A3}\x{FF00}-\x{FFEF}"
    r"\x{1F000}-\x{1FAFF}\x{20000}-\x{2FFFF}]*$"
)
# To DuckDB case is a matter of single characters.
_SINGLE = {"lower": ("\u0130\u03a3", "i\u03c3"), "upper": ("\u00df", "\u1e9e")}


def _like(call: Call) -> str:
    text, pattern = call.args[0].sql, call.args[1]
    folded, negated = "*" in call.name or "ilike" in call.name, call.name.startswith(("!", "not_"))
    escape = call.constant(2) if len(call.args) == 3 else ""
    if len(escape) > 1:
        raise call.refused(" with such an escape")
    constant = call.constant(1) if pattern.is_constant else None
    if folded:
        text = _cased("lower", text)
        if escape.isalpha() or constant is None or not constant.isascii():
            raise call.refused(" unless the pattern is a constant of ASCII characters")
        constant = constant.lower()
    if constant is not None:
        shown = _pattern(call, constant, escape)
    elif escape:
        raise call.refused(" unless the pattern is a constant")
    else:
        # DuckDB has no escape of its own, Spark has the backslash.
        shown = f"replace({pattern.sql}, {text_literal(chr(92))}, {text_literal(chr(92) * 2)})"
    return f"({text} {'NOT ' if negated else ''}LIKE {shown})"


def _pattern(call: Call, pattern: str, escape: str) -> str:
    """Return a constant pattern in which the backslash is the escape."""
    found, characters = "", iter(pattern)
    for c in characters:
        escaped = c == escape
        if escaped:
            c = next(characters, "")
            if c not in ("%", "_", escape):
                raise call.refused(" with such an escape")
        found += "\\" + c if c == "\\" or (escaped and c in "%_") else c
    return text_literal(found)


def _cased(function: str, sql: str) -> str:
    """Return a text in one case; refused when it is met with characters that the engines see differently."""
    single, other = map(text_literal, _SINGLE[function])
    known = f"{sql} IS NULL OR {sql} RLIKE {text_literal(_CASED)}"
    cased = f"{function}(translate({sql}, {single}, {other}))"
    return f"(CASE WHEN {known} THEN {cased} ELSE {refuses('the case of such a character')} END)"


def _trim(call: Call) -> str:
    word = {"trim": "BOTH", "ltrim": "LEADING", "rtrim": "TRAILING"}[call.name]
    characters = call.constant(1) if len(call.args) == 2 else _BLANKS
    if not characters:
        return call.args[0].sql
    return f"trim({word} {text_literal(characters)} FROM {call.args[0].sql})"


def _pad(call: Call) -> str:
    reason = " with such a length or filler"
    count, filler = call.number(1, 0, reason, below=2**20), call.constant(2)
    if len(filler) != 1:
        raise call.refused(reason)
    return f"{call.name}({call.args[0].sql}, {count}, {text_literal(filler)})"


def _replace(call: Call) -> str:
    if call.constant(1) == "":
        call.constant(2)
        return call.args[0].sql
    return f"replace({', '.join(a.sql for a in call.args)})"


def _regular(call: Call) -> str:
    """Return the pattern of a call, refused if the engines might read it differently, or it takes Java forever."""
    pattern: str = call.constant(1)
    repeated = re.search(r"[*+?}][*+{]|[*+}][^()]*\)[*+{]|\)\)+[*+{]", pattern)
    if len(pattern) > 500 or not _SAFE.fullmatch(pattern) or repeated:
        raise call.refused(f" with the pattern {pattern!r}")
    return pattern


def _over_lines(pattern: str, subject: str, found: str) -> str:
    """Return a match, refused when it meets line ends that RE2 does not know."""
    if not any(c in pattern for c in (".", "$", "[^", "\\D", "\\W")):
        return found
    clean = f"({subject} IS NULL OR NOT {subject} RLIKE {text_literal(_LINE_ENDS)})"
    return f"CASE WHEN {clean} THEN {found} ELSE {refuses('a regular expression over lines')} END"


def _regexp(call: Call) -> str:
    pattern, subject = _regular(call), call.args[0].sql
    if call.name == "regexp_full_match":
        pattern = f"^(?:{pattern})$"
    return _over_lines(pattern, subject, f"({subject} RLIKE {text_literal(pattern)})")


def _regexp_replace(call: Call) -> str:
    """Return a text with all matches, or the first one, replaced by a constant."""
    pattern, subject, new = _regular(call), call.args[0].sql, call.constant(2)
    options = call.constant(3) if len(call.args) == 4 else ""
    if options not in ("", "g") or "\\" in new or "$" in new or re.search(pattern, ""):
        raise call.refused(" with such arguments")
    replaced = f"regexp_replace({subject}, {text_literal(pattern)}, {text_literal(new)})"
    if not options:
        parts = f"split({subject}, {text_literal(pattern)}, 2)"
        replaced = f"array_join({parts}, {text_literal(new)})"
    return _over_lines(pattern, subject, replaced)


def _regexp_extract(call: Call) -> str:
    pattern, subject = _regular(call), call.args[0].sql
    group = call.constant(2, nullable=True) if len(call.args) == 3 else 0
    if group is None or not 0 <= group <= re.compile(pattern).groups:
        raise call.refused(" for such a group")
    return _over_lines(pattern, subject, f"regexp_extract({subject}, {text_literal(pattern)}, {group})")


def _split(call: Call) -> str:
    separator = call.constant(1, nullable=True)
    if not separator or not separator.isascii():
        raise call.refused(" with such a separator")
    quoted = "".join(c if c.isalnum() or c.isspace() else f"\\{c}" for c in separator)
    return f"split({call.args[0].sql}, {text_literal(quoted)}, -1)"


def _split_part(call: Call) -> str:
    separator, reason = call.constant(1), " with such arguments"
    if not separator:
        raise call.refused(reason)
    return f"split_part({call.args[0].sql}, {text_literal(separator)}, {call.number(2, 1, reason)})"


def _translate(call: Call) -> str:
    old, new = call.constant(1), call.constant(2)
    if "\0" in old + new:
        raise call.refused(" for such characters")
    return f"translate({call.args[0].sql}, {text_literal(old)}, {text_literal(new)})"


def _format(call: Call) -> str:
    """Return a text with places for others: ``{}``, or ``%s`` and ``%05d``; no other forms."""
    text, pieces, at = call.constant(0), [], 0
    places = r"(\{\{|\}\})|(\{[^{}]*\}|[{}])|([^{}]+)"
    if call.name == "printf":
        places = r"(%%)|(%[^a-zA-Z%]*.?)|([^%]+)"
    for twice, place, plain in re.findall(places, text, re.DOTALL):
        if not place:
            pieces.append(text_literal(twice[:1] or plain))
            continue
        at += 1
        kind = call.args[at].type.kind if at < len(call.args) else ""
        if not kind or not re.fullmatch(
            {"printfs": "%s", "printfi": "%0?[0-9]{0,3}d"}.get(call.name + kind, r"\{\}"), place
        ):
            raise call.refused(f" with the format {text!r}")
        sql = f"CAST({call.args[at].sql} AS STRING)"
        pieces.append(sql if place == "{}" else f"format_string({text_literal(place)}, {call.args[at].sql})")
    if at < len(call.args) - 1:
        raise call.refused(f" with the format {text!r}")
    given = " OR ".join(f"{a.sql} IS NULL" for a in call.args[1:]) or "false"
    return f"CASE WHEN {given} THEN NULL ELSE concat({', '.join(pieces)}) END"


def _regexp_extract_all(call: Call) -> str:
    pattern, subject = _regular(call), call.args[0].sql
    if re.search(pattern, ""):
        raise call.refused(" with a pattern of nothing")
    return _over_lines(pattern, subject, f"regexp_extract_all({subject}, {text_literal(pattern)}, 0)")


rule("~~ !~~ ~~* !~~*", "ss", _like, exact=True)
rule("like_escape not_like_escape ilike_escape not_ilike_escape", "sss", _like, exact=True)
rule("lower lcase", "s", lambda call: _cased("lower", call.args[0].sql))
rule("upper ucase", "s", lambda call: _cased("upper", call.args[0].sql))
rule(
    "reverse",
    "s",
    f"CASE WHEN {{0}} IS NULL OR {{0}} RLIKE {text_literal('^[ -~]*$')} THEN reverse({{0}}) "
    f"ELSE {refuses('such characters in reverse')} END",
)
rule("length len char_length character_length", "s", "length({0})")
rule("strlen octet_length", "[sx]", "octet_length({0})")
rule("bit_length ascii md5", "s", "{name}({0})")
_PLACE = " at such a place"
rule("substring substr", "si|sii", "substring({all})", numbers={1: (1, _PLACE), 2: (0, _PLACE)})
rule("left right", "si", "{name}({all})", numbers={1: (0, " with such a number")})
rule("concat", "s+", "concat_ws('', {all})")  # NULL left out
rule("concat_ws", "ss+", "concat_ws({all})")
rule("||", "ss", "concat({0}, {1})")
rule("trim ltrim rtrim", "s|ss", _trim)
rule("lpad rpad", "sis", _pad)
rule("replace", "sss", _replace)
rule("repeat", "si", "repeat({0}, CAST(CASE WHEN {1} < 0 THEN 0 ELSE {1} END AS INT))")
_BYTES = "decode(encode({}, 'UTF-8'), 'ISO-8859-1')"  # DuckDB's distance is one of bytes
rule("levenshtein editdist3", "ss", f"levenshtein({_BYTES.format('{0}')}, {_BYTES.format('{1}')})")
rule("translate", "sss", _translate)
rule("format", "s[siu]+", _format)
rule("printf", "s[si]+", _format)
rule("regexp_extract_all", "ss", _regexp_extract_all)
rule("contains", "ss", "contains({0}, {1})", exact=True)
rule("prefix starts_with ^@", "ss", "startswith({0}, {1})", exact=True)
rule("suffix ends_with", "ss", "endswith({0}, {1})", exact=True)
rule("instr strpos position", "ss", "instr({0}, {1})")
rule("unicode ord", "s", "CASE WHEN {0} = '' THEN -1 ELSE ascii({0}) END")
rule("sha256", "s", "sha2({0}, 256)")
rule("regexp_matches regexp_full_match", "ss", _regexp, exact=True)
rule("regexp_replace", "ssss|sss", _regexp_replace)
rule("regexp_extract", "ss|ssi", _regexp_extract)
rule("string_split str_split split string_to_array", "ss", _split)
rule("split_part", "ssi", _split_part)
rule("array_extract", "si", "substring({0}, {1}, 1)", numbers={1: (1, _PLACE)})
_PLACES = " for such places"
rule(
    "array_slice", "sii", "substring({0}, {1}, greatest({2} - {1} + 1, 0))", numbers={1: (1, _PLACES), 2: (0, _PLACES)}
)
