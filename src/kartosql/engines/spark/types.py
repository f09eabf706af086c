"""Types and values as Spark has them: those of Arrow in files, and those of DuckDB in plans."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kartosql.engines.duckdb.types import quote as duckdb_quote
from kartosql.engines.duckdb.types import sql_type as duckdb_type
from kartosql.errors import FormatError, NotPortable

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
    raise NotPortable(f"Spark has no values of type {type_}", hint="Use engine='duckdb', or leave the column out.")


def is_supported(type_: pa.DataType) -> bool:
    """Return whether Spark has values of a type."""
    try:
        stored_type(type_)
    except (NotPortable, FormatError):
        return False
    return True


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
    "INTERVAL": ("y", None),
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
    def is_nested(self) -> bool:
        """Whether values hold other values."""
        return bool(self.parts)

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
        return f"CAST('{_float(float(value))}' AS {spark})"
    if name == "VARCHAR":
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
    if name == "LIST":
        items = ", ".join(literal(v, type_.element) for v in value)
        return f"array({items})" if value else f"CAST(array() AS {spark})"
    if name == "STRUCT":
        fields = ", ".join(f"{text_literal(n)}, {literal(value[n], part)}" for n, part in type_.parts)
        return f"named_struct({fields})"
    raise NotPortable(f"Spark cannot be given a constant of the type {type_.sql()}.")


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)
