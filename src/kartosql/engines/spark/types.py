"""Arrow types as Spark types."""

from __future__ import annotations

import pyarrow as pa

from kartosql.engines.duckdb.types import sql_type as duckdb_type
from kartosql.errors import FormatError, NotPortable

UINT64 = pa.decimal128(20, 0)  # what Spark has for numbers up to 2**64 - 1
NULL_TYPE = pa.int32()  # as in DuckDB, for a column of which no type is known


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which Spark holds values of ``type_``.

    Unsigned integers become the next wider signed ones, as Spark has no others, timestamps are
    in microseconds. Raises ``not-portable`` for types that Spark does not have, and
    ``unsupported-type`` for those that no engine has.
    """
    t = pa.types
    if t.is_null(type_):
        return NULL_TYPE
    if t.is_dictionary(type_):
        return stored_type(type_.value_type)
    for test, stored in _SIMPLE:
        if test(type_):
            return stored
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
    for test, name in _NAMES:
        if test(stored):
            return name
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


def quote(name: str) -> str:
    """Return a quoted identifier."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(value: str) -> str:
    """Return a text as a Spark literal.

    Spark replaces ``${...}`` anywhere in a statement, so no dollar sign is written as such.
    """
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024").replace("\0", "\\u0000")
    return f"'{escaped}'"


_SIMPLE = (
    (pa.types.is_boolean, pa.bool_()),
    (pa.types.is_int8, pa.int8()),
    (pa.types.is_int16, pa.int16()),
    (pa.types.is_int32, pa.int32()),
    (pa.types.is_int64, pa.int64()),
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, UINT64),
    (pa.types.is_float16, pa.float32()),
    (pa.types.is_float32, pa.float32()),
    (pa.types.is_float64, pa.float64()),
    (pa.types.is_string, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_binary, pa.binary()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_date, pa.date32()),
)
_NAMES = (
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INT"),
    (pa.types.is_int64, "BIGINT"),
    (pa.types.is_float32, "FLOAT"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_string, "STRING"),
    (pa.types.is_binary, "BINARY"),
    (pa.types.is_date32, "DATE"),
)
