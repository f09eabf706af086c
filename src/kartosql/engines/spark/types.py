"""Types and values as Spark has them: those of Arrow in files, and those of DuckDB in plans, with its casts."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kartosql.engines.duckdb.types import sql_type as duckdb_type
from kartosql.errors import NotPortable
from kartosql.text.constants import quote as duckdb_quote
from kartosql.text.types import type_name


@dataclass(frozen=True)
class FileColumn:
    """A column whose value is the same in all rows of a file: one value or None per file, given as for ``array_of``."""

    name: str
    type: pa.DataType
    values: Sequence[Any]


# -- text ----------------------------------------------------------------------------------------


def quote(name: str) -> str:
    """Return a quoted identifier."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(value: str) -> str:
    """Return a text as a Spark literal.

    Spark replaces ``${...}`` anywhere in a statement, so no dollar sign is written as such.
    """
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024").replace("\0", "\\u0000")
    return f"'{escaped}'"


def identifier(name: str) -> str:
    """Return a quoted Spark identifier; raises ``not-portable``."""
    if "${" in name:
        # Spark replaces variables anywhere in the text, and a name has no escapes.
        raise NotPortable(f"Spark cannot be given the name {name!r}.")
    return quote(name)


# -- types of Arrow ------------------------------------------------------------------------------

_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
}
_STORED = {
    pa.null(): pa.int32(),  # as in DuckDB, for a column of which no type is known
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),  # what Spark has for numbers up to 2**64 - 1
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which Spark holds values of ``type_``.

    Unsigned integers become the next wider signed ones, as Spark has no others, timestamps are
    in microseconds. Raises ``not-portable`` for types that Spark does not have, and
    ``unsupported-type`` for those that no engine has.
    """
    t = pa.types
    if type_ in _NAMES:
        return type_
    if type_ in _STORED:
        return _STORED[type_]
    if t.is_fixed_size_binary(type_):
        return pa.binary()
    if t.is_dictionary(type_):
        return stored_type(type_.value_type)
    if t.is_timestamp(type_):
        return pa.timestamp("us", None if type_.tz is None else "UTC")
    if t.is_decimal(type_) and type_.precision <= 38 and 0 <= type_.scale <= type_.precision:
        return pa.decimal128(type_.precision, type_.scale)
    if t.is_map(type_):
        return pa.map_(stored_type(type_.key_type), stored_type(type_.item_type))
    if t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_) or t.is_list_view(type_):
        return pa.list_(stored_type(type_.value_type))
    if t.is_struct(type_):
        return pa.struct([pa.field(f.name, stored_type(f.type)) for f in type_])
    duckdb_type(type_)  # raises unsupported-type where DuckDB has none either
    raise NotPortable(
        f"Spark has no values of type {type_name(type_)}", hint="Use engine='duckdb', or leave the column out."
    )


def spark_type(type_: pa.DataType) -> str:
    """Return the Spark SQL type of an Arrow type; raises as ``stored_type``."""
    t = pa.types
    stored = stored_type(type_)
    if stored in _NAMES:
        return _NAMES[stored]
    if t.is_timestamp(stored):
        return "TIMESTAMP_LTZ" if stored.tz is not None else "TIMESTAMP_NTZ"  # plain TIMESTAMP is a setting
    if t.is_decimal(stored):
        return f"DECIMAL({stored.precision},{stored.scale})"
    if t.is_map(stored):
        return f"MAP<{spark_type(stored.key_type)}, {spark_type(stored.item_type)}>"
    if t.is_list(stored):
        return f"ARRAY<{spark_type(stored.value_type)}>"
    fields = ", ".join(f"{quote(f.name)}: {spark_type(f.type)}" for f in stored)
    return f"STRUCT<{fields}>"


# -- types of DuckDB -----------------------------------------------------------------------------

INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}
UNSIGNED = {"UTINYINT": 8, "USMALLINT": 16, "UINTEGER": 32, "UBIGINT": 64}
# Kinds that both engines order alike, and find equal alike.
COMPARABLE = "iuhfdmsbDTZNx0"
# One letter for each type in the patterns of portable functions, and the Spark type that holds the values.
_TYPES = {
    "BOOLEAN": ("b", "BOOLEAN"),
    "TINYINT": ("i", "TINYINT"),
    "SMALLINT": ("i", "SMALLINT"),
    "INTEGER": ("i", "INT"),
    "BIGINT": ("i", "BIGINT"),
    # Spark has no unsigned integers; the next wider type holds their values.
    "UTINYINT": ("u", "SMALLINT"),
    "USMALLINT": ("u", "INT"),
    "UINTEGER": ("u", "BIGINT"),
    "UBIGINT": ("u", "DECIMAL(20,0)"),
    "HUGEINT": ("h", "DECIMAL(38,0)"),
    "FLOAT": ("f", "FLOAT"),
    "DOUBLE": ("d", "DOUBLE"),
    "DECIMAL": ("m", "DECIMAL({width},{scale})"),
    "VARCHAR": ("s", "STRING"),
    "BLOB": ("x", "BINARY"),
    "DATE": ("D", "DATE"),
    "TIMESTAMP": ("T", "TIMESTAMP_NTZ"),
    # Views hold them in microseconds, and refuse files with more precise ones.
    **dict.fromkeys(("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), ("N", "TIMESTAMP_NTZ")),
    "TIMESTAMP WITH TIME ZONE": ("Z", "TIMESTAMP_LTZ"),
    # Spark has none of all three.
    "INTERVAL": ("y", "STRUCT<months: INT, days: INT, micros: BIGINT>"),
    "JSON": ("j", "STRING"),
    "LIST": ("l", "ARRAY<{parts}>"),
    "STRUCT": ("S", "STRUCT<{parts}>"),
    "MAP": ("M", "MAP<{parts}>"),
    # What DuckDB itself gives a column of which no type is known.
    "NULL": ("0", "INT"),
}


@dataclass(frozen=True)
class Type:
    """A DuckDB type: its name, width and scale of a DECIMAL, and the parts of a nested one by name."""

    name: str
    width: int = 0
    scale: int = 0
    parts: tuple[tuple[str, Type], ...] = ()

    @property
    def kind(self) -> str:
        """One letter: i and u integers, h HUGEINT, f and d floats, m DECIMAL, s text, D T Z N times, l S M nested."""
        return _TYPES.get(self.name, ("?", None))[0]

    @property
    def element(self) -> Type:
        """The type of a list's elements."""
        return self.parts[0][1]

    def sql(self) -> str:
        """Return the type as DuckDB writes it."""
        if self.name == "DECIMAL":
            return f"DECIMAL({self.width},{self.scale})"
        if self.name == "LIST":
            return f"{self.element.sql()}[]"
        if self.name == "MAP":
            return f"MAP({self.parts[0][1].sql()}, {self.parts[1][1].sql()})"
        if self.name == "STRUCT":
            fields = ", ".join(f"{duckdb_quote(name)} {part.sql()}" for name, part in self.parts)
            return f"STRUCT({fields})"
        return '"NULL"' if self.name == "NULL" else self.name

    def spark(self) -> str:
        """Return the Spark type that holds the values; raises ``not-portable``."""
        found = _TYPES.get(self.name, ("?", None))[1]
        if found is None:
            raise NotPortable(f"Spark has no type for the values of {self.name}.")
        if any(part.kind == "y" for _, part in self.parts):  # which could not be compared as DuckDB does
            raise NotPortable(f"Spark has no type for the values of {self.sql()}.")
        names = [f"{identifier(name)}: " if self.name == "STRUCT" else "" for name, _ in self.parts]
        parts = ", ".join(name + part.spark() for name, (_, part) in zip(names, self.parts, strict=True))
        return found.format(width=self.width, scale=self.scale, parts=parts)


BOOLEAN = Type("BOOLEAN")
BIGINT = Type("BIGINT")


def read_type(node: Mapping[str, Any] | None) -> Type:
    """Return the type that a node of DuckDB's plan stands for; raises ``not-portable``."""
    name = (node or {}).get("id")
    if node is None or not isinstance(name, str):
        raise NotPortable("DuckDB does not tell the type of a part of the statement.")
    info = node.get("type_info") or {}
    if info.get("alias") == "JSON":
        return Type("JSON")
    if info.get("alias"):
        raise NotPortable(f"Spark has no type for the values of {info['alias']}.")
    if name == "DECIMAL":
        return Type(name, info["width"], info.get("scale", 0))
    if name == "LIST":
        return Type(name, parts=(("", read_type(info["child_type"])),))
    if name == "STRUCT":
        return Type(name, parts=tuple((c.get("first", ""), read_type(c["second"])) for c in info["child_types"]))
    if name == "MAP":
        entry = read_type(info["child_type"])
        return Type(name, parts=entry.parts)
    if info:
        # Enums, collated texts, arrays of a fixed size and whatever else has more to it than a name.
        raise NotPortable(f"Spark has no type for the values of {name}.")
    return Type(name)


# -- values --------------------------------------------------------------------------------------

_MISSING: Any = object()
_MAX_HUGEINT = 10**38 - 1


@dataclass(frozen=True)
class SparkExpression:
    """An expression of Spark, its type, and its value if it is a constant."""

    sql: str
    type: Type
    value: Any = _MISSING

    @property
    def is_constant(self) -> bool:
        """Whether the value is known."""
        return self.value is not _MISSING


def literal(value: Any, type_: Type) -> str:
    """Return a Python value as a Spark literal of a type; raises ``not-portable``."""
    spark = type_.spark()
    if value is None:
        return f"CAST(NULL AS {spark})"
    name = type_.name
    if name == "BOOLEAN":
        return "true" if value else "false"
    if name == "INTEGER":
        return f"{value}" if value > -(2**31) else f"CAST({value} AS INT)"
    if name == "HUGEINT" and abs(int(value)) > _MAX_HUGEINT:
        raise NotPortable("Spark has no integers of more than 38 digits.")
    if name in INTEGERS or name in UNSIGNED or name == "HUGEINT":
        return f"CAST('{int(value)}' AS {spark})"
    if name == "DECIMAL":
        return f"CAST('{decimal.Decimal(value):f}' AS {spark})"
    if name in ("DOUBLE", "FLOAT"):
        return f"CAST('{float(value)!r}' AS {spark})"
    if name in ("VARCHAR", "JSON"):
        return text_literal(value)
    if name == "BLOB":
        return f"X'{value.hex()}'"
    if name == "DATE":
        return f"date_from_unix_date({(value - dt.date(1970, 1, 1)).days})"
    if getattr(value, "nanosecond", 0):
        raise NotPortable("Spark has no nanoseconds.")
    if name in ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"):
        return f"CAST('{value.isoformat(sep=' ', timespec='microseconds')}' AS TIMESTAMP_NTZ)"
    if name == "TIMESTAMP WITH TIME ZONE":
        micros = (value - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)) // dt.timedelta(microseconds=1)
        return f"timestamp_micros({micros})"
    if name == "INTERVAL":
        return f"named_struct('months', {value.months}, 'days', {value.days}, 'micros', {value.nanoseconds // 1000}L)"
    if name == "LIST":
        items = ", ".join(literal(v, type_.element) for v in value)
        return f"array({items})" if value else f"CAST(array() AS {spark})"
    if name == "STRUCT":
        fields = ", ".join(f"{text_literal(n)}, {literal(value[n], part)}" for n, part in type_.parts)
        return f"named_struct({fields})"
    raise NotPortable(f"Spark cannot be given a constant of the type {type_.sql()}.")


# -- casts ---------------------------------------------------------------------------------------

# What raise_error says for a value that Spark would treat differently; the engine makes it NotPortable.
REFUSED = "kartosql-not-portable: "
# Dates and times further than that from 1970 are refused when they are met: the last ones are infinite to DuckDB.
FAR_DAYS = 36_500_000
_TWO_63 = "CAST('9223372036854775808' AS DOUBLE)"
_INTEGER = r"^[-]?[0-9]{1,18}$"
_NO_NUMBER = r"^[ \\t\\n-\\r]*[^-+.0-9 \\t\\n-\\r]"
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
    elif pair == "ll":
        inner = cast("x", source.element, target.element, zone=zone)
        found = f"transform({sql}, x -> {inner})" if "x -> " not in inner else None
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
    if source.kind in "iuhmbj":
        return f"CAST({sql} AS STRING)"
    if source.kind in "fd":
        return f"transform(array(CAST({sql} AS STRING)), j -> {_FLOAT_TEXT[source.kind]})[0]"
    if source.kind in "DT":
        # Years of more or less than four digits, and those before Christ, are written differently.
        first, last = ("DATE'0001-01-01'", "DATE'9999-12-31'")
        return (
            f"CASE WHEN CAST({sql} AS DATE) < {first} OR CAST({sql} AS DATE) > {last} "
            f"THEN {refuses('a date that far away as text')} ELSE CAST({sql} AS STRING) END"
        )
    return None


def _float_text(digits: int, least: int) -> str:
    """Return DuckDB's text of a float over Java's, ``j``: fewest digits, and no exponent from -4 to 15.

    Numbers of so few ``digits`` have one text that is read as them; of more Java finds the shortest from 19 on. Of
    those below ``10 ** least`` it writes two digits where one would do.
    """
    exponent, mantissa = "try_cast(regexp_extract(j, 'E(.*)', 1) AS INT)", "regexp_extract(j, '^(.*?)([.]0)?(E|$)', 1)"
    many = f"length(regexp_replace({mantissa}, '^-?[0.]*|[.]', '')) > {digits}"
    old = "CAST(2e23D + length(j) * 0 AS STRING) <> '2.0E23'"
    plain = "regexp_replace(regexp_replace(CAST(CAST(j AS DECIMAL(38,21)) AS STRING), '0+$', ''), '[.]$', '.0')"
    sign = f"CASE WHEN {exponent} < 0 THEN 'e-' ELSE 'e+' END"
    return (
        f"CASE WHEN j IS NULL THEN j WHEN j = 'NaN' THEN 'nan' WHEN j LIKE '%Infinity' THEN replace(j, 'Infinity', "
        f"'inf') WHEN {many} AND {old} THEN {refuses('a number of so many digits as text before Java 19')} "
        f"WHEN {exponent} < {least} THEN {refuses('so small a number as text')} "
        f"WHEN j NOT LIKE '%E%' THEN j WHEN {exponent} BETWEEN -4 AND 15 THEN {plain} ELSE "
        f"concat({mantissa}, {sign}, CASE WHEN abs({exponent}) < 10 THEN '0' ELSE '' END, abs({exponent})) END"
    )


_FLOAT_TEXT = {"f": _float_text(6, -37), "d": _float_text(15, -307)}


def _from_text(sql: str, target: Type, *, tries: bool) -> str | None:
    """Return the cast of texts in the one form that both engines read alike; others are refused when met."""
    pattern = {"i": _INTEGER, "d": _DECIMAL, "D": _DATE, "T": _TIMESTAMP}.get(target.kind)
    if pattern is None or (tries and target.kind != "i"):
        return None
    # What holds no digit, or begins with something else, is no number to either.
    none = f"WHEN {sql} RLIKE '^[^0-9]*$|{_NO_NUMBER}' THEN CAST(NULL AS {target.spark()}) " if tries else ""
    return (
        f"CASE WHEN {sql} IS NULL OR {sql} RLIKE {text_literal(pattern)} "
        f"THEN {'try_cast' if tries else 'CAST'}({sql} AS {target.spark()}) {none}"
        f"ELSE {refuses(f'a text of an unusual form as {target.sql()}')} END"
    )
