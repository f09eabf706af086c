"""Spark DataFrames -> rows that stay where they are, with the types they are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kartosql.write.inputs import Rows, invalid_data, storage_schema, without_index

_TYPES = {
    "StringType": pa.string(),
    "CharType": pa.string(),
    "VarcharType": pa.string(),
    "BinaryType": pa.binary(),
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "DateType": pa.date32(),
    "TimestampType": pa.timestamp("us", "UTC"),
    "TimestampNTZType": pa.timestamp("us"),
    "TimeType": pa.time64("us"),
    "NullType": pa.null(),
}


@dataclass(frozen=True, eq=False)
class SparkRows(Rows):
    """Rows of Spark DataFrames, one behind the other; how many there are is not known before they are written."""

    frames: tuple[Any, ...] = ()

    def _type_in(self, own: pa.DataType, stored: pa.DataType | None) -> pa.DataType:
        # Spark tells tasks and cells apart by texts, of which two may be one date.
        return own if pa.types.is_string(own) else super()._type_in(own, stored)

    @property
    def _tables(self) -> None:
        return None


def open_frame(data: Any, name: str) -> SparkRows:
    """Return the rows of a DataFrame of Spark or of pandas-on-Spark; nothing is computed yet.

    Raises ``invalid-data`` for streams, other objects of Spark, and columns that cannot be stored.
    """
    # Asked of the class: of an instance columns are attributes.
    if hasattr(type(data), "to_spark"):
        data = data.to_spark()
    if not hasattr(type(data), "mapInArrow"):
        raise invalid_data(name, f"a {type(data).__name__} of Spark is no DataFrame", "Pass a DataFrame.")
    if data.isStreaming:
        raise invalid_data(name, "it is a stream", "Write each of its batches: writeStream.foreachBatch.")
    fields = []
    for field in data.schema.fields:
        type_ = arrow_type(field.dataType)
        if type_ is None:
            raise invalid_data(
                name,
                f"the column {field.name!r} is {field.dataType.simpleString()}, which cannot be stored",
                "Cast it to another type.",
            )
        fields.append(pa.field(field.name, type_))
    return SparkRows(name, storage_schema(without_index(pa.schema(fields)), name), (), (data,))


def arrow_type(type_: Any) -> pa.DataType | None:
    """Return the type in which a column of a Spark type is stored, None if it cannot be."""
    name = type(type_).__name__
    if name == "DecimalType":
        return pa.decimal128(type_.precision, type_.scale)
    if name == "ArrayType":
        item = arrow_type(type_.elementType)
        return None if item is None else pa.list_(pa.field("item", item))
    if name == "StructType":
        fields = [(f.name, arrow_type(f.dataType)) for f in type_.fields]
        return pa.struct(fields) if fields and all(t is not None for _, t in fields) else None
    return _TYPES.get(name)


def joined(rows: Sequence[Rows], schema: pa.Schema, name: str) -> SparkRows:
    """Return rows of several DataFrames as one; raises ``invalid-data`` where some are no DataFrames of Spark."""
    frames: list[Any] = []
    for one in rows:
        if not isinstance(one, SparkRows):
            raise invalid_data(
                name, "some of its parts are Spark DataFrames and others are not", "Make DataFrames of all, or of none."
            )
        frames += one.frames
    return SparkRows(name, schema, (), tuple(frames))
