"""Arithmetic and numeric functions on Spark as DuckDB has them."""

from __future__ import annotations

from kartosql.engines.spark.portable.casts import in_range, raises
from kartosql.engines.spark.portable.duckdb_types import identifier
from kartosql.engines.spark.portable.rules import LONG, Arg, Call, rule
from kartosql.engines.spark.types import text_literal

_INF, _NAN = "CAST('Infinity' AS DOUBLE)", "CAST('NaN' AS DOUBLE)"
_EXACT_ABOVE = "4503599627370496D"  # doubles from here on have no fraction


def _arithmetic(call: Call) -> str:
    """Return +, - or * of two numbers of one type."""
    a, b = call.args
    found = f"({a.sql} {call.name} {b.sql})"
    if call.type.kind == "u":
        if len(found) > LONG:
            raise call.refused(" on so long an expression")
        return in_range(f"({found})", call.type)
    return found


def _divide(call: Call) -> str:
    """Return a quotient of floats, in which division by zero is as IEEE 754 has it."""
    a, b = call.args
    if b.is_constant and b.value:
        return f"({a.sql} / {b.sql})"
    if len(a.sql) + len(b.sql) > LONG:
        raise call.refused(" on so long an expression")
    sign = f"(({a.sql} < 0) = (CAST({b.sql} AS STRING) LIKE '-%'))"
    return (
        f"CASE WHEN {a.sql} IS NULL OR {b.sql} IS NULL THEN NULL WHEN {b.sql} <> 0 THEN {a.sql} / {b.sql} "
        f"WHEN {a.sql} = 0 OR isnan({a.sql}) THEN {_NAN} WHEN {sign} THEN {_INF} ELSE -{_INF} END"
    )


def _negate(call: Call) -> str:
    arg = call.args[0]
    # Spark's own minus and abs round decimals to 34 digits.
    return f"({_zero(arg)} - {arg.sql})" if arg.type.kind in "hm" else f"(- {arg.sql})"


def _abs(call: Call) -> str:
    arg = call.args[0]
    if arg.type.kind not in "hm":
        return f"abs({arg.sql})"
    if len(arg.sql) > LONG:
        raise call.refused(" on so long an expression")
    return f"CASE WHEN {arg.sql} < 0 THEN {_zero(arg)} - {arg.sql} ELSE {arg.sql} END"


def _zero(arg: Arg) -> str:
    return f"CAST(0 AS {arg.type.spark()})"


def _nearest(x: str) -> str:
    """Return a float rounded to a whole number; what is rounded to zero keeps its sign."""
    return f"CASE WHEN abs({x}) < 0.5D THEN {x} * 0D ELSE round({x}, 0) END"


def _round(call: Call) -> str:
    """Return a float rounded as C does it: scaled, rounded to a whole number, scaled back."""
    x = call.args[0].sql
    digits = call.constant(1) if len(call.args) == 2 else 0
    if digits is None or not -15 <= digits <= 15:
        raise call.refused(" with so many digits")
    if len(x) > LONG:
        raise call.refused(" on so long an expression")
    if digits == 0:
        return _nearest(x)
    scale = f"1e{abs(digits)}D"
    scaled = (
        f"({_nearest(f'({x} * {scale})')}) / {scale}" if digits > 0 else f"({_nearest(f'({x} / {scale})')}) * {scale}"
    )
    return f"CASE WHEN abs({x}) < 1e290D THEN {scaled} ELSE {x} END"


def _round_exact(call: Call) -> str:
    digits = call.constant(1) if len(call.args) == 2 else 0
    if digits is None or not -30 <= digits <= 38:
        raise call.refused(" with so many digits")
    return f"round({call.args[0].sql}, {digits})"


def _whole(spark: str) -> str:
    """Return the template of a function from floats to whole floats, which Spark returns as integers.

    These have one zero, a float has two: what becomes zero keeps its sign.
    """
    whole = spark.format("{0}")
    return (
        f"CASE WHEN abs({{0}}) < {_EXACT_ABOVE} THEN CASE WHEN {whole} = 0 THEN {{0}} * 0D "
        f"ELSE CAST({whole} AS DOUBLE) END ELSE {{0}} END"
    )


def _logarithm(spark: str) -> str:
    """Return the template of a logarithm, which Spark has not for zero and less."""
    return f"CASE WHEN {{0}} = 0 THEN -{_INF} WHEN {{0}} < 0 THEN {_NAN} ELSE {spark}({{0}}) END"


def _extreme(call: Call) -> str:
    """Return greatest or least, which skip NULL in both engines."""
    if len(call.args) == 1:
        return call.args[0].sql
    return f"{call.name}({', '.join(a.sql for a in call.args)})"


rule("+ - *", "ii|hh|uu|dd", _arithmetic)
rule("+ - *", "ff", _arithmetic)
rule("+ - *", "mm", _arithmetic)
rule("- negate", "[ihfdm]", _negate)
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
rule("abs @", "[ihmfd]", _abs)
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
rule("sqrt", "d", "sqrt({0})")
rule("ln", "d", _logarithm("ln"))
rule("log log10", "d", _logarithm("log10"))
rule("log2", "d", _logarithm("log2"))
rule("exp", "d", "exp({0})")
rule("cbrt", "d", "cbrt({0})")
# Of what C says is 1, Java says that it is no number.
rule(
    "pow power ** ^",
    "dd",
    "CASE WHEN {0} = 1 AND {1} IS NOT NULL THEN 1 "
    f"WHEN {{0}} = -1 AND abs({{1}}) = {_INF} THEN 1 ELSE power({{0}}, {{1}}) END",
)
rule(
    "sin cos tan asin acos atan sinh cosh tanh radians degrees",
    "d",
    lambda call: f"{call.name}({call.args[0].sql})",
)
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
rule("greatest least", "i+|u+|h+|d+|f+|m+|s+|D+|T+|Z+|b+", _extreme)
rule(
    "& | xor", "ii", lambda call: f"({call.args[0].sql} {'^' if call.name == 'xor' else call.name} {call.args[1].sql})"
)
rule("~", "i", "(~ {0})")


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


def _item(call: Call) -> str:
    at = call.constant(1)
    if at is None or not 1 <= at < 2**31:
        raise call.refused(" for such a place")
    return f"get({call.args[0].sql}, {at - 1})"


def _list(call: Call) -> str:
    return f"array({', '.join(a.sql for a in call.args)})" if call.args else "array()"


def _contains(call: Call) -> str:
    """Return whether a list holds a value; NULL in the list makes neither engine's answer NULL here."""
    values, value = call.args[0].sql, call.args[1].sql
    known = f"CASE WHEN {values} IS NULL OR {value} IS NULL THEN NULL ELSE false END"
    return f"coalesce(array_contains({values}, {value}), {known})"


rule("struct_extract array_extract", "Ss", _struct_extract)
rule("struct_pack row", ".*", _struct_pack)
rule("array_extract list_extract list_element", "li", _item)
rule("list_value", ".*", _list)
rule("len length array_length", "l", "size({0})")
rule("list_contains array_contains list_has contains", "l[iuhmsbDTZfd]", _contains, exact=True)
