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


def _to_integer(spark: str) -> str:
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
rule("floor", "[fd]", _to_integer("floor({0})"))
rule("ceil ceiling", "[fd]", _to_integer("ceil({0})"))
rule("floor", "m", "floor({0})")
rule("ceil ceiling", "m", "ceil({0})")
rule("floor ceil ceiling trunc round", "[iuh]", "{0}")
rule("trunc", "[fd]", _to_integer("CAST({0} AS BIGINT)"))
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
rule("random", "", "rand()", exact=True)  # another number each time that it is asked for, on both
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
