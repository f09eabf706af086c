"""Arrow types as DuckDB types, and constants of them."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.predicate.tree import Value
from kartosql.text.constants import literal
from kartosql.text.types import SIGNED, SIMPLE, UNSIGNED, type_name

NULL_TYPE = "INTEGER"  # what DuckDB itself gives a column of which no type is known
TIMESTAMPS = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
# Types that only Parquet and DuckDB have; others, such as GEOMETRY, are not read.
_EXTENSIONS = ("arrow.uuid", "arrow.json")
_READ = ("TIME WITH TIME ZONE", "TIMESTAMPTZ_NS", "VARIANT", "HUGEINT", "BIGNUM")


@lru_cache(1024)
def sql_type(type_: pa.DataType) -> str:
    """Return the DuckDB type of an Arrow type; raises ``unsupported-type``."""
    if type_ not in SIMPLE:
        _check(type_)
    return type_name(type_, NULL_TYPE, quotes=True)


def _check(type_: pa.DataType, is_inner: bool = False) -> None:
    """Raise ``unsupported-type`` for a type of which no values are read."""
    t, where = pa.types, ""
    if isinstance(type_, pa.OpaqueType):
        is_read = type_.type_name in _READ
    elif isinstance(type_, pa.BaseExtensionType):
        is_read = type_.extension_name in _EXTENSIONS
    elif t.is_decimal(type_):
        is_read = type_.precision <= 38 and 0 <= type_.scale <= type_.precision
    elif t.is_duration(type_):
        # Parquet keeps durations as bare integers; only top-level ones are read with their unit.
        is_read, where = not is_inner, " inside of another type"
    elif t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_) or t.is_struct(type_):
        is_read = True
    else:
        others = (t.is_null, t.is_timestamp, t.is_time, t.is_fixed_size_binary, t.is_map)
        is_read = type_ in SIMPLE or any(test(type_) for test in others)
    if not is_read:
        raise FormatError(f"Columns of type {type_name(type_)}{where} cannot be queried", code="unsupported-type")
    for at in range(type_.num_fields):
        _check(type_.field(at).type, True)


def binding_type(type_: pa.DataType) -> str:
    """Return the DuckDB type of an Arrow type, also of one that can be bound but not read."""
    try:
        return sql_type(type_)
    except FormatError:
        if isinstance(type_, pa.OpaqueType):
            return str(type_.type_name)
        return "DOUBLE" if pa.types.is_decimal(type_) else NULL_TYPE


# Types of whose values Arrow holds a part or inner bytes only: UHUGEINT from 2**127 up, a time without its offset.
_INEXACT = re.compile(r"(?<!['\"\w])(?:BIT|BIGNUM|VARIANT|UHUGEINT|TIME WITH TIME ZONE)(?=$|[],)[])")


def exact_type(type_: str) -> str:
    """Return the DuckDB type in which values of a type come out of Arrow as they are: text for some, also inside."""
    return _INEXACT.sub("VARCHAR", type_)


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
