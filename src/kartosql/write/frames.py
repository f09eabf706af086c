"""Whatever carries Arrow data -> one table whose types can be stored."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from kartosql.errors import KartosqlError, UsageError
from kartosql.failures import reraise
from kartosql.write.convert import converted

MAX_COLUMN_NAME = 1024
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
# Types of DuckDB whose values are others in Arrow: bytes of their own, less digits, no offset.
_CHANGING = re.compile(r"(?<!['\"\w])(BIT|BIGNUM|VARIANT|UHUGEINT|TIME WITH TIME ZONE)(?=$|[],)[])")


def invalid_data(name: str, reason: str, hint: str | None = None, code: str = "invalid-data") -> UsageError:
    """Return the error for rows of the dataset ``name`` that cannot be written."""
    return UsageError(f"Dataset {name!r}: {reason}", code=code, hint=hint)


def arrow_table(data: Any, name: str) -> pa.Table:
    """Return ``data`` as a table whose types may be any; raises ``invalid-data`` for what carries no Arrow data."""
    if not carries_arrow(data):
        raise invalid_data(
            name,
            f"{type(data).__name__} carries no Arrow data",
            "Pass a pyarrow Table, a DataFrame or another object with __arrow_c_stream__.",
        )
    is_pandas = type(data).__module__.split(".")[0] == "pandas"
    if is_pandas and not all(isinstance(label, str) for label in getattr(data, "columns", ())):
        raise invalid_data(name, "a column label is not text", "Rename the columns of the frame.")
    with reading(name):
        # A table is taken as it is: on the way through the C interface names would end at a NUL.
        return data if isinstance(data, pa.Table) else pa.table(data)


def carries_arrow(data: Any) -> bool:
    """Return whether ``data`` hands out Arrow data by the protocol for it."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Report what a foreign producer of data raises as an error of ours."""
    try:
        yield
    except KartosqlError:
        raise
    except Exception as e:  # the producer is foreign code and may raise anything
        reraise(e)
        raise invalid_data(name, f"its Arrow data cannot be read: {e}") from e


def without_index(schema: pa.Schema) -> pa.Schema:
    """Return the columns that are no unnamed index of pandas, which goes by its name where its metadata are lost."""
    return pa.schema([f for f in schema if not _UNNAMED_INDEX.fullmatch(f.name)])


def storage_schema(schema: pa.Schema, name: str) -> pa.Schema:
    """Return the columns of ``schema`` with the types they are stored in; raises ``invalid-data``."""
    _check_names(schema.names, name)
    fields = []
    for field in schema:
        type_ = storage_type(field.type)
        if type_ is None:
            raise invalid_data(
                name, f"the column {field.name!r} is {field.type}, which cannot be stored", "Cast it to another type."
            )
        fields.append(pa.field(field.name, type_))
    return pa.schema(fields)


def check_origin(types: Mapping[str, Any], dataset: str) -> None:
    """Raise ``invalid-data`` for columns of a query of DuckDB whose values are others in Arrow."""
    for name, type_ in types.items():
        found = _CHANGING.search(str(type_))
        if found:
            raise invalid_data(
                dataset,
                f"the column {name!r} is {type_}, which cannot be stored",
                f"Cast {found[1]} to another type, such as VARCHAR.",
            )


def to_storage(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Return the columns of ``schema`` in its types; raises ``invalid-data`` for values that do not fit or are torn."""
    with reading(name):
        table.validate(full=True)
    return pa.table([_to_storage(table[f.name], f, name) for f in schema], schema=schema)


def _check_names(names: list[str], dataset: str) -> None:
    if not names:
        raise invalid_data(dataset, "it has no columns")
    seen = set()
    for name in names:
        if not name or "\0" in name or len(name) > MAX_COLUMN_NAME:
            raise invalid_data(dataset, f"{name[:40]!r} is no usable column name")
        if name in seen:
            raise invalid_data(dataset, f"the column {name!r} occurs twice")
        seen.add(name)


def _to_storage(column: pa.ChunkedArray, field: pa.Field, dataset: str) -> pa.ChunkedArray:
    try:
        return converted(column, field.type)
    except ValueError as e:
        raise invalid_data(
            dataset,
            f"the column {field.name!r} does not fit into {field.type}: a value would change, first {e}",
            "Round or cast it first.",
        ) from None


def storage_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type in which a column of ``type_`` stands in data files, None if it cannot.

    Numbers keep their width; layouts (dictionary, large, view, fixed size) become the plain
    ones and timestamps are in microseconds.
    """
    t = pa.types
    if t.is_dictionary(type_) or t.is_run_end_encoded(type_):
        return storage_type(type_.value_type)
    if t.is_string(type_) or t.is_large_string(type_) or t.is_string_view(type_):
        return pa.string()
    if t.is_binary(type_) or t.is_large_binary(type_) or t.is_binary_view(type_) or t.is_fixed_size_binary(type_):
        return pa.binary()
    if t.is_float16(type_):
        return pa.float32()
    if t.is_date(type_):
        return pa.date32()
    if t.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    if t.is_time(type_):
        return pa.time64("us")
    if t.is_decimal(type_):
        if not 0 <= type_.scale <= type_.precision:
            return None  # Parquet has no such decimals
        wide = type_.precision > 38
        return (pa.decimal256 if wide else pa.decimal128)(type_.precision, type_.scale)
    if _is_list(type_):
        item = storage_type(type_.value_type)
        return None if item is None else pa.list_(pa.field("item", item))
    if t.is_struct(type_):
        fields = [(f.name, storage_type(f.type)) for f in type_]
        return pa.struct(fields) if fields and all(s is not None for _, s in fields) else None
    plain = t.is_boolean(type_) or t.is_integer(type_) or t.is_floating(type_) or t.is_null(type_)
    return type_ if plain else None


def _is_list(type_: pa.DataType) -> bool:
    t = pa.types
    plain = t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_)
    return bool(plain or t.is_list_view(type_) or t.is_large_list_view(type_))
