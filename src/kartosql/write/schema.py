"""The bytes of ``_common_metadata``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import UsageError
from kartosql.formats.kartothek.schema import merge_types, normalise

# The version whose description of columns the pandas block follows.
_PANDAS_VERSION = "1.3.5"


def common_schema(schema: pa.Schema, partition_on: tuple[str, ...]) -> pa.Schema:
    """Return the schema that Kartothek records for a table: partition keys, then by name.

    Types are normalised; a pandas block is attached, without which Kartothek refuses to append.
    """
    names = [*partition_on, *sorted(n for n in schema.names if n not in partition_on)]
    return _with_pandas_block([pa.field(n, normalise(schema.field(n).type)) for n in names], {})


def widen(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema that holds what ``old`` and ``new`` hold, in the order of ``old``.

    Both have the same columns of the same normalised types, except that a column of type null
    takes any; ``old`` itself is returned where nothing is to be widened. Raises
    ``incompatible-schema``, which names the first column that does not fit.
    """
    for name in sorted(set(old.names).symmetric_difference(new.names)):
        known = name in old.names
        raise UsageError(
            f"The column {name!r} is missing in the new data."
            if known
            else f"The new data have a column {name!r} that the table does not have.",
            code="incompatible-schema",
            hint=f"The columns of the table are {', '.join(old.names)}."[:300],
        )
    fields = []
    for field in old:
        left, right = normalise(field.type), normalise(new.field(field.name).type)
        type_ = merge_types(left, right)
        if type_ is None:
            raise UsageError(
                f"The column {field.name!r} is {left} in the table, but {right} in the new data.",
                code="incompatible-schema",
                hint=f"Cast the new column to {left}.",
            )
        fields.append(field if type_.equals(field.type) else pa.field(field.name, type_))
    if all(f.type.equals(o.type) for f, o in zip(fields, old, strict=True)):
        return old
    return _with_pandas_block(fields, old.metadata or {})


def _with_pandas_block(fields: list[pa.Field], metadata: Mapping[bytes, bytes]) -> pa.Schema:
    block = {
        "index_columns": [],
        "column_indexes": [],
        "columns": [_pandas_column(f.name, f.type) for f in fields],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": _PANDAS_VERSION,
    }
    return pa.schema(fields, metadata={**metadata, b"pandas": json.dumps(block).encode()})


def schema_bytes(schema: pa.Schema) -> bytes:
    """Return ``schema`` as a Parquet file without rows."""
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema, sink, version="2.6", coerce_timestamps="us", use_compliant_nested_type=False)
    return bytes(sink.getvalue().to_pybytes())


def _pandas_column(name: str, type_: pa.DataType) -> dict[str, Any]:
    numpy_type, details = "object", None
    if pa.types.is_timestamp(type_):
        numpy_type = "datetime64[ns]"
        details = {"timezone": type_.tz} if type_.tz else None
    elif pa.types.is_decimal(type_):
        details = {"precision": type_.precision, "scale": type_.scale}
    elif pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_):
        numpy_type = _pandas_type(type_)
    return {
        "name": name,
        "field_name": name,
        "pandas_type": _pandas_type(type_),
        "numpy_type": numpy_type,
        "metadata": details,
    }


def _pandas_type(type_: pa.DataType) -> str:
    t = pa.types
    if t.is_list(type_):
        return f"list[{_pandas_type(type_.value_type)}]"
    if t.is_timestamp(type_):
        return "datetimetz" if type_.tz else "datetime"
    if t.is_decimal(type_):
        return "decimal"
    names = {
        pa.string(): "unicode",
        pa.binary(): "bytes",
        pa.date32(): "date",
        pa.float64(): "float64",
        pa.int64(): "int64",
        pa.uint64(): "uint64",
        pa.bool_(): "bool",
        pa.null(): "empty",
    }
    return names.get(type_, "time" if t.is_time(type_) else "object")
