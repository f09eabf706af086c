"""Arrow types as DuckDB types."""

from __future__ import annotations

import re
from decimal import Decimal

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.predicate.tree import Value

NULL_TYPE = "INTEGER"  # what DuckDB itself gives a column of which no type is known


SIGNED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
UNSIGNED = ("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
TIMESTAMPS = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
_SIMPLE: dict[pa.DataType, str] = {
    **dict(zip((pa.int8(), pa.int16(), pa.int32(), pa.int64()), SIGNED, strict=True)),
    **dict(zip((pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), UNSIGNED, strict=True)),
    **{pa.float16(): "FLOAT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE"},
    **{pa.string(): "VARCHAR", pa.large_string(): "VARCHAR", pa.binary(): "BLOB", pa.large_binary(): "BLOB"},
    **{pa.date32(): "DATE", pa.date64(): "DATE", pa.month_day_nano_interval(): "INTERVAL"},
    **{pa.null(): NULL_TYPE, pa.bool_(): "BOOLEAN"},
}


def sql_type(type_: pa.DataType) -> str:
    """Return the DuckDB type of an Arrow type; raises ``unsupported-type``."""
    t = pa.types
    simple = _SIMPLE.get(type_)
    if simple is not None:
        return simple
    if t.is_fixed_size_binary(type_):
        return "BLOB"
    if t.is_timestamp(type_):
        if type_.tz is not None:
            return "TIMESTAMP WITH TIME ZONE"
        return {"s": "TIMESTAMP_S", "ms": "TIMESTAMP_MS", "us": "TIMESTAMP", "ns": "TIMESTAMP_NS"}[type_.unit]
    if t.is_decimal(type_) and type_.precision <= 38 and 0 <= type_.scale <= type_.precision:
        return f"DECIMAL({type_.precision},{type_.scale})"
    if t.is_time(type_):
        return "TIME_NS" if type_.unit == "ns" else "TIME"
    if t.is_duration(type_):
        return "INTERVAL"
    if t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_):
        return f"{_inner(type_.value_type)}[]"
    if t.is_struct(type_):
        fields = ", ".join(f"{quote(f.name)} {_inner(f.type)}" for f in type_)
        return f"STRUCT({fields})"
    if t.is_map(type_):
        return f"MAP({_inner(type_.key_type)}, {_inner(type_.item_type)})"
    if isinstance(type_, pa.OpaqueType):
        if type_.type_name in _READ:
            return str(type_.type_name)
        raise FormatError(f"Columns of type {type_.type_name} cannot be queried", code="unsupported-type")
    if isinstance(type_, pa.BaseExtensionType) and type_.extension_name in _EXTENSIONS:
        return _EXTENSIONS[type_.extension_name]
    raise FormatError(f"Columns of type {type_} cannot be queried", code="unsupported-type")


def binding_type(type_: pa.DataType) -> str:
    """Return the DuckDB type of an Arrow type, also of one that can be bound but not read."""
    try:
        return sql_type(type_)
    except FormatError:
        if isinstance(type_, pa.OpaqueType):
            return str(type_.type_name)
        return "DOUBLE" if pa.types.is_decimal(type_) else NULL_TYPE


def _inner(type_: pa.DataType) -> str:
    """Return the DuckDB type of an element of another type."""
    if pa.types.is_duration(type_):
        # Parquet keeps durations as bare integers; only top-level ones are read with their unit.
        raise FormatError(
            f"Columns that hold {type_} inside of another type cannot be queried", code="unsupported-type"
        )
    return sql_type(type_)


# Types that only Parquet and DuckDB have; others, such as GEOMETRY, are not read.
_EXTENSIONS = {"arrow.uuid": "UUID", "arrow.json": "JSON"}
_READ = ("TIME WITH TIME ZONE", "TIMESTAMPTZ_NS", "VARIANT", "HUGEINT", "BIGNUM")


# Types of whose values Arrow holds a part or inner bytes only: UHUGEINT from 2**127 up, a time without its offset.
_INEXACT = re.compile(r"(?<!['\"\w])(?:BIT|BIGNUM|VARIANT|UHUGEINT|TIME WITH TIME ZONE)(?=$|[],)[])")


def exact_type(type_: str) -> str:
    """Return the DuckDB type in which values of a type come out of Arrow as they are: text for some, also inside."""
    return _INEXACT.sub("VARCHAR", type_)


def quote(name: str) -> str:
    """Return a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a string literal."""
    return "'" + text.replace("'", "''") + "'"


def sql_of(value: Value) -> str:
    """Return a constant of a predicate as SQL."""
    kind, raw = value.kind, value.value
    if isinstance(raw, bytes):
        return f"unhex('{raw.hex()}')"
    if kind in ("string", "text"):
        return literal(str(raw)) if kind == "string" else f"CAST({literal(str(raw))} AS VARCHAR)"
    if kind in ("double", "float"):
        return f"CAST('{raw}' AS {kind})"
    if kind == "date":
        return f"(DATE '1970-01-01' + {raw})"
    if kind == "timestamp":
        return f"make_timestamp({raw})"
    if kind in ("zoned", "instant"):
        zone = "" if kind == "zoned" else " AT TIME ZONE 'UTC'"
        return f"CAST(make_timestamp({raw}){zone} AS TIMESTAMPTZ)"
    if isinstance(raw, Decimal):
        text = f"{raw:f}"
        return f"({text})" if "." in text else f"({text}.)"  # without a point it were an integer
    return f"({raw})"


# Which types of a file's column may stand for a declared type without loss. Kartothek widens
# integers and floats, and writes columns that hold only NULL with the type null.
_FAMILIES = (SIGNED, UNSIGNED, TIMESTAMPS, ("FLOAT", "DOUBLE"), ("TIME", "TIME_NS"), ("VARCHAR", "JSON", "UUID"))


def fits(file_type: str, declared: str) -> bool:
    """Return whether values of a file's column type are values of the declared type."""
    if file_type == declared or file_type == '"NULL"' or declared == '"NULL"':
        return True
    for family in _FAMILIES:
        if declared in family:
            return file_type in family
    if declared.startswith("DECIMAL(") and file_type.startswith("DECIMAL("):
        precision, scale = _decimal(declared)
        file_precision, file_scale = _decimal(file_type)
        return file_scale <= scale and file_precision - file_scale <= precision - scale
    if declared.endswith("[]") and file_type.endswith("[]"):
        return fits(file_type[:-2], declared[:-2])
    if declared == "TIME" and file_type == "TIME WITH TIME ZONE":
        return True  # as older versions of Arrow noted every TIME; what is stored is UTC
    # Nested types are compared by the engine, which fails on values that do not fit.
    return declared.split("(")[0] == file_type.split("(")[0] and declared.split("(")[0] in ("STRUCT", "MAP")


def _decimal(type_: str) -> tuple[int, int]:
    precision, scale = type_[8:-1].split(",")
    return int(precision), int(scale)
