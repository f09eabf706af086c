"""The schema file of a table (``_common_metadata``) and Kartothek's type rules."""

from __future__ import annotations

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.failures import reraise


def read_schema(data: bytes, key: str) -> pa.Schema:
    """Return the Arrow schema in the bytes of a ``_common_metadata`` file.

    Types are normalised as Kartothek does it; the key-value metadata is kept. Raises
    ``invalid-schema``. Source: facts of kartothek 5.3, ``core/common_metadata.py``.
    """
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError, TypeError) as e:
        reraise(e, f"Cannot read {key!r}")
        raise FormatError(
            f"{key}: it is torn or no Parquet schema file: {e}",
            code="invalid-schema",
            hint="Restore the file, or rebuild the dataset from its data.",
        ) from None
    return checked_schema(schema, key)


def checked_schema(schema: pa.Schema, key: str) -> pa.Schema:
    """Return a schema with Kartothek's types; raises ``invalid-schema`` for names that cannot be columns."""
    names = schema.names
    if len(set(names)) != len(names):
        raise FormatError(f"{key}: a column name occurs twice", code="invalid-schema")
    for name in names:
        if not name or "\0" in name or len(name) > 1024:
            raise FormatError(f"{key}: {name[:40]!r} is no usable column name", code="invalid-schema")
    return pa.schema([pa.field(f.name, normalise(f.type)) for f in schema], metadata=schema.metadata)


def normalise(type_: pa.DataType) -> pa.DataType:
    """Return the type that Kartothek records for a column of Arrow type ``type_``.

    Integers become 64 bits wide, floats double, dictionaries their value type, lists and
    large or view layouts the plain layout; timestamps are in microseconds, or nanoseconds
    where the schema says so.
    """
    t = pa.types
    if t.is_dictionary(type_):
        return normalise(type_.value_type)
    if t.is_signed_integer(type_):
        return pa.int64()
    if t.is_unsigned_integer(type_):
        return pa.uint64()
    if t.is_floating(type_):
        return pa.float64()
    if t.is_large_string(type_) or t.is_string_view(type_):
        return pa.string()
    if t.is_large_binary(type_) or t.is_binary_view(type_) or t.is_fixed_size_binary(type_):
        return pa.binary()
    if t.is_timestamp(type_):
        return pa.timestamp("ns" if type_.unit == "ns" else "us", type_.tz)
    if t.is_list(type_) or t.is_large_list(type_) or t.is_list_view(type_) or t.is_large_list_view(type_):
        return pa.list_(pa.field("item", normalise(type_.value_type)))
    return type_


def merge_types(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the common type of a column that two datasets share, or None if they do not fit.

    A column of type null fits every other type.
    """
    if left.equals(right) or pa.types.is_null(right):
        return left
    if pa.types.is_timestamp(left) and pa.types.is_timestamp(right) and left.tz == right.tz:
        return left
    return right if pa.types.is_null(left) else None
