"""Casts of DuckDB as expressions of Spark, where both give the same values."""

from __future__ import annotations

from kartosql.engines.spark.types import UNSIGNED, Type, text_literal
from kartosql.errors import NotPortable

# What raise_error says for a value that Spark would treat differently; the engine makes it NotPortable.
REFUSED = "kartosql-not-portable: "
# Dates and times further than that from 1970 are refused when they are met: the last ones are infinite to DuckDB.
FAR_DAYS = 36_500_000
_TWO_63 = "CAST('9223372036854775808' AS DOUBLE)"
_INTEGER = r"^[-]?[0-9]{1,18}$"
_DECIMAL = r"^[-]?[0-9]{1,15}([.][0-9]{1,15})?$"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}( [0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?)?$"


def cast(sql: str, source: Type, target: Type, *, tries: bool = False, zone: str = "UTC") -> str:
    """Return a Spark expression for ``CAST(sql AS target)``; raises ``not-portable``.

    With ``tries`` it is NULL where the cast fails. ``zone`` is that of the session.
    """
    if source == target:
        return sql
    spark = target.spark()
    if source.name == "NULL":
        return f"CAST(NULL AS {spark})"
    pair = source.kind + target.kind
    word = "try_cast" if tries else "CAST"
    found: str | None = None
    if pair in _PLAIN or (pair in _IN_UTC and zone == "UTC"):
        found = f"{word}({sql} AS {spark})"
        if target.kind == "D":
            found = f"CASE WHEN {is_far(sql, source)} THEN {refuses('so far a date')} ELSE {found} END"
    elif target.kind == "u" and source.kind in "iubh":
        found = in_range(f"{word}({sql} AS {spark})", target, tries=tries)
    elif target.kind == "i" and source.kind in "mfd":
        found = _rounded(sql, source, target, word, tries=tries)
    elif pair in ("fm", "dm"):
        found = _to_decimal(sql, target, tries=tries)
    elif pair == "mb":
        found = f"({sql} <> 0)"
    elif pair == "df":
        found = _narrowed(sql, tries=tries)
    elif target.kind == "s":
        found = _to_text(sql, source)
    elif source.kind == "s":
        found = _from_text(sql, target, tries=tries)
    elif source.is_nested and target.is_nested:
        found = _nested(sql, source, target, zone)
    if found is None:
        raise NotPortable(f"Spark does not cast {source.sql()} to {target.sql()} as DuckDB does.")
    return found


# Spark's own cast gives the same value, or fails as well.
_PLAIN = frozenset(
    [a + b for a in "iuh" for b in "ihdmfb"]
    + ["hh", "hi", "md", "mm", "fd", "db", "fb", "bi", "DT", "TD", "ib", "bd", "bf", "bh", "NT", "ND"]
)
_IN_UTC = frozenset(["DZ", "TZ", "ZD", "ZT"])


def in_range(sql: str, type_: Type, *, tries: bool = False) -> str:
    """Return an expression whose values are those of ``sql``, checked to be in the range of an unsigned type."""
    top = 2 ** UNSIGNED[type_.name] - 1
    otherwise = f"CAST(NULL AS {type_.spark()})" if tries else raises("a number is out of range")
    return f"CASE WHEN {sql} < 0 OR {sql} > {top} THEN {otherwise} ELSE {sql} END"


def is_far(sql: str, type_: Type) -> str:
    """Return whether a date or time is ``FAR_DAYS`` from 1970, whatever the session's zone."""
    if type_.kind == "Z":
        return f"abs(unix_micros({sql})) > {FAR_DAYS * 86_400_000_000}L"
    return f"abs(unix_date({sql if type_.kind == 'D' else f'CAST({sql} AS DATE)'})) > {FAR_DAYS}"


def raises(message: str) -> str:
    """Return an expression that fails when it is evaluated."""
    return f"raise_error({text_literal(message)})"


def refuses(message: str) -> str:
    """Return an expression that refuses the statement when it is evaluated."""
    return raises(REFUSED + message)


def _rounded(sql: str, source: Type, target: Type, word: str, *, tries: bool) -> str:
    if source.kind == "m":
        return f"{word}(round({sql}, 0) AS {target.spark()})"
    number = f"rint(CAST({sql} AS DOUBLE))"
    if target.name != "BIGINT":
        return f"{word}({number} AS {target.spark()})"
    # Spark takes 2 to the power of 63 for the largest integer.
    otherwise = "CAST(NULL AS BIGINT)" if tries else raises("a number is out of the range of BIGINT")
    return f"CASE WHEN {number} >= {_TWO_63} THEN {otherwise} ELSE {word}({number} AS BIGINT) END"


def _narrowed(sql: str, *, tries: bool) -> str:
    inf = "CAST('Infinity' AS DOUBLE)"
    otherwise = "CAST(NULL AS FLOAT)" if tries else raises("a number is out of the range of FLOAT")
    return (
        f"CASE WHEN abs(CAST({sql} AS FLOAT)) = {inf} AND abs({sql}) <> {inf} THEN {otherwise} "
        f"ELSE CAST({sql} AS FLOAT) END"
    )


def _to_decimal(sql: str, target: Type, *, tries: bool) -> str | None:
    """Return a float as a decimal: scaled, rounded to a whole number, which has to be one that a double is exactly."""
    if target.scale > 15 or tries:
        return None
    scaled = f"round(CAST({sql} AS DOUBLE) * 1e{target.scale}D, 0)"
    unit = f"CAST('1e-{target.scale}' AS DECIMAL({target.scale + 1},{target.scale}))"
    return (
        f"CASE WHEN abs({scaled}) < 9007199254740992D THEN "
        f"CAST(CAST(CAST({scaled} AS BIGINT) AS DECIMAL(16,0)) * {unit} AS {target.spark()}) "
        f"WHEN {sql} IS NULL THEN NULL ELSE {refuses('a number so large as a decimal')} END"
    )


def _to_text(sql: str, source: Type) -> str | None:
    if source.kind == "m" and source.scale == source.width:
        return f"replace(CAST({sql} AS STRING), '0.', '.')"  # DuckDB writes no digit that the type has no room for
    if source.kind in "iuhmb":
        return f"CAST({sql} AS STRING)"
    if source.kind in "DT":
        # Years of more or less than four digits, and those before Christ, are written differently.
        first, last = ("DATE'0001-01-01'", "DATE'9999-12-31'")
        return (
            f"CASE WHEN CAST({sql} AS DATE) < {first} OR CAST({sql} AS DATE) > {last} "
            f"THEN {refuses('a date that far away as text')} ELSE CAST({sql} AS STRING) END"
        )
    return None


def _from_text(sql: str, target: Type, *, tries: bool) -> str | None:
    """Return the cast of texts in the one form that both engines read alike; others are refused when met."""
    pattern = {"i": _INTEGER, "d": _DECIMAL, "D": _DATE, "T": _TIMESTAMP}.get(target.kind)
    if pattern is None or (tries and target.kind != "i"):
        return None
    # What holds no digit is no number to either.
    none = f"WHEN NOT {sql} RLIKE '[0-9]' THEN CAST(NULL AS {target.spark()}) " if tries else ""
    return (
        f"CASE WHEN {sql} IS NULL OR {sql} RLIKE {text_literal(pattern)} "
        f"THEN {'try_cast' if tries else 'CAST'}({sql} AS {target.spark()}) {none}"
        f"ELSE {refuses(f'a text of an unusual form as {target.sql()}')} END"
    )


def _nested(sql: str, source: Type, target: Type, zone: str) -> str | None:
    if source.kind == target.kind == "l":
        inner = cast("x", source.element, target.element, zone=zone)
        return f"transform({sql}, x -> {inner})" if "x -> " not in inner else None
    return None
