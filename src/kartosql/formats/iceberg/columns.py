"""Columns of Iceberg tables: their types, their places in files by their ids, and bounds of manifests as values."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.conversions import from_json
from pyiceberg.table.name_mapping import MappedField

from kartosql.errors import FormatError
from kartosql.formats.arrays import constant
from kartosql.formats.iceberg.metadata import decoding, unsupported
from kartosql.formats.partition_table import TAG, Variant, tag_of
from kartosql.text.types import type_names

_FIELD_ID = b"PARQUET:field_id"
_EPOCH = dt.date(1970, 1, 1)
_GEOMETRY = pa.opaque(pa.binary(), "GEOMETRY", "Parquet")
_TIME_OF_ZONE = pa.opaque(pa.time64("us"), "TIME WITH TIME ZONE", "Parquet")
_PRIMITIVES: dict[type, pa.DataType] = {
    **{iceberg.BooleanType: pa.bool_(), iceberg.IntegerType: pa.int32(), iceberg.LongType: pa.int64()},
    **{iceberg.FloatType: pa.float32(), iceberg.DoubleType: pa.float64(), iceberg.DateType: pa.date32()},
    **{iceberg.TimestampType: pa.timestamp("us"), iceberg.TimestamptzType: pa.timestamp("us", "UTC")},
    **{iceberg.TimestampNanoType: pa.timestamp("ns"), iceberg.TimeType: pa.time64("us")},
    iceberg.TimestamptzNanoType: pa.opaque(pa.int64(), "TIMESTAMPTZ_NS", "Parquet"),
    **{iceberg.StringType: pa.string(), iceberg.BinaryType: pa.binary(), iceberg.FixedType: pa.binary()},
    **{iceberg.UUIDType: pa.uuid(), iceberg.UnknownType: pa.null()},
    **{iceberg.GeometryType: _GEOMETRY, iceberg.GeographyType: _GEOMETRY},
}


def arrow_type(type_: iceberg.IcebergType, name: str) -> pa.DataType:
    """Return a type as Arrow has it, members tagged with their ids; raises ``unsupported-type``."""
    if isinstance(type_, iceberg.DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, iceberg.StructType):
        for field in type_.fields:
            if field.initial_default is not None:
                raise unsupported(name, f"the default {field.initial_default!r} inside of a struct")
        return pa.struct([_tagged(f.name, arrow_type(f.field_type, name), f.field_id) for f in type_.fields])
    if isinstance(type_, iceberg.ListType):
        return pa.list_(pa.field("item", arrow_type(type_.element_type, name)))
    if isinstance(type_, iceberg.MapType):
        return pa.map_(arrow_type(type_.key_type, name), arrow_type(type_.value_type, name))
    found = _PRIMITIVES.get(type(type_))
    if found is None:
        raise FormatError(f"{name}: columns of type {type_} cannot be queried", code="unsupported-type")
    return found


def _tagged(name: str, type_: pa.DataType, id_: int | str) -> pa.Field:
    return pa.field(name, type_, metadata={TAG: str(id_).encode()})


def default_of(field: iceberg.NestedField, type_: pa.DataType, name: str) -> Any:
    """Return the value of a column in files that were written before it, given as for ``array_of``."""
    if field.initial_default is None:
        return None
    primitive = field.field_type
    if not isinstance(primitive, iceberg.PrimitiveType) or isinstance(type_, pa.BaseExtensionType):
        raise unsupported(name, f"the default of the column {field.name!r}")
    with decoding(name):
        value: Any = from_json(primitive, field.initial_default)
        if pa.types.is_timestamp(type_):
            value = pa.scalar(value, type_).cast(pa.int64()).as_py()
        constant(value, type_)
        return value


def in_file(
    schema: pa.Schema, columns: Mapping[str, tuple[int, pa.DataType]], mapping: Sequence[MappedField], name: str
) -> Variant:
    """Return how a file with a schema is read, given the ids and types of columns; raises ``schema-mismatch``.

    Fields without an id have the one that the ``mapping`` of names gives them.
    """
    stored = [_with_ids(field, mapping) for field in schema]
    by_id: dict[bytes, pa.Field] = {}
    for field in stored:
        if (tag := tag_of(field)) and by_id.setdefault(tag, field) is not field:
            raise _mismatch(name, f"the id {tag.decode()} is there twice")
    if stored and not by_id:
        raise _mismatch(name, "its columns have no ids, and the table maps no names to them")
    spelled = {f.name.lower() for f in stored}
    types, names = {}, {}
    for column, (id_, type_) in columns.items():
        found = by_id.get(str(id_).encode())
        if found is None:
            continue
        if not _holds(found.type, type_):
            given, wanted = type_names(found.type, type_)
            raise _mismatch(name, f"the column {column!r} is {given}, but {wanted} in the schema of its table")
        types[column] = found.type
        if found.name != column:
            names[column] = found.name
    if len(spelled) < len(stored):
        raise unsupported(name, "a file in which names of columns differ in case alone")
    return Variant((), types, None, names)


def _with_ids(field: pa.Field, mapping: Iterable[MappedField]) -> pa.Field:
    """Return a field of a file with its id as tag, also inside of it; an empty tag where it has none."""
    mapped = next((m for m in mapping if field.name in m.names), None)
    given = (field.metadata or {}).get(_FIELD_ID)
    by_name = "" if mapped is None or mapped.field_id is None else mapped.field_id
    id_ = by_name if given is None or given.startswith(b"-") else given.decode()
    return _tagged(field.name, _inside(field.type, mapped.fields if mapped is not None else ()), id_)


def _inside(type_: pa.DataType, mapping: Sequence[MappedField]) -> pa.DataType:
    t = pa.types
    if t.is_struct(type_):
        return pa.struct([_with_ids(f, mapping) for f in type_])
    if t.is_map(type_):
        return pa.map_(_inside(type_.key_type, _of("key", mapping)), _inside(type_.item_type, _of("value", mapping)))
    if t.is_list(type_):
        return pa.list_(pa.field("item", _inside(type_.value_type, _of("element", mapping))))
    return type_


def _of(part: str, mapping: Sequence[MappedField]) -> Sequence[MappedField]:
    return next((m.fields for m in mapping if part in m.names), ())


def _holds(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of a file are values of a column: of its type, or of one that was promoted to it."""
    t = pa.types
    if t.is_struct(given) and t.is_struct(wanted):
        known = {tag_of(f): f.type for f in given}
        return all(_holds(known[tag_of(f)], f.type) for f in wanted if tag_of(f) in known)
    if t.is_list(given) and t.is_list(wanted):
        return _holds(given.value_type, wanted.value_type)
    if t.is_map(given) and t.is_map(wanted):
        return _holds(given.key_type, wanted.key_type) and _holds(given.item_type, wanted.item_type)
    if t.is_decimal(given) and t.is_decimal(wanted):
        return bool(given.scale == wanted.scale and given.precision <= wanted.precision)
    promoted = [
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.date32(), pa.timestamp("us")),
        (_TIME_OF_ZONE, pa.time64("us")),  # of no zone but UTC, as Arrow up to version 24 noted every time
    ]
    return given.equals(wanted) or t.is_null(given) or (given, wanted) in promoted


def _mismatch(name: str, problem: str) -> FormatError:
    hint = "The file was written with another schema; read an older snapshot of the table."
    return FormatError(f"{name}: {problem}", code="schema-mismatch", hint=hint)


def bound_values(type_: pa.DataType, bounds: Sequence[bytes | None]) -> list[Any]:
    """Return bounds of a column, as values or integers that Arrow stores.

    None stands for bytes that are no value of the type, or of an older one.
    """
    if type_ == pa.int64() and {*map(type, bounds)} == {bytes} and {*map(len, bounds)} == {8}:  # type: ignore[arg-type]
        return [*struct.unpack(f"<{len(bounds)}q", b"".join(bounds))]  # type: ignore[arg-type]
    read, found = _bound_reader(type_), list[Any]()
    for raw in bounds:
        try:
            found.append(read(raw))
        except (ValueError, TypeError, OverflowError, struct.error):
            found.append(None)
    return found


def _bound_reader(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return what reads a bound; it raises ValueError, TypeError, struct.error or OverflowError."""
    t = pa.types
    if t.is_string(type_):
        return bytes.decode
    if t.is_floating(type_):
        return lambda raw: _real(raw, type_.bit_width)
    if t.is_decimal(type_):
        return lambda raw: _integer(raw, range(1, 17), "big", 10**type_.precision)
    if t.is_boolean(type_):
        return (b"\0", b"\1").index
    width = type_.bit_width
    # Of a type that is promoted from a narrower one there are shorter bounds; dates in them are no moments.
    sizes = (4, 8) if t.is_int64(type_) else (width // 8,)
    return lambda raw: _integer(raw, sizes, "little", (1 << (width - 1)) - (0 if t.is_integer(type_) else 1))


def _integer(raw: bytes, sizes: Sequence[int], order: Any, most: int) -> int:
    value = int.from_bytes(raw, order, signed=True)
    if len(raw) not in sizes or not -most <= value < most:
        raise ValueError(raw)
    return value


def _real(raw: bytes, width: int) -> float:
    value: float = struct.unpack("<f" if len(raw) == 4 else "<d", raw)[0]
    if value != value or len(raw) * 8 > width:
        raise ValueError(raw)
    return value


def partition_reader(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return what makes partition values such as ``array_of`` takes, the class ValueError of those of another type."""
    t, is_date = pa.types, pa.types.is_date32(type_)
    kinds = ((t.is_signed_integer, int), (t.is_timestamp, int), (t.is_string, str), (t.is_boolean, bool))
    more = ((t.is_floating, float), (t.is_decimal, Decimal), (t.is_binary, bytes), (t.is_date32, int))
    kind = next((kind for test, kind in (*kinds, *more) if test(type_)), None)
    least = -(1 << type_.bit_width - 1) if kind is int else 0

    def read(value: Any) -> Any:
        of = type(value)
        try:
            if of is kind and is_date:
                return _EPOCH + dt.timedelta(days=value)
            if of is kind and kind is not int:
                constant(value, type_)
        except (OverflowError, pa.ArrowException):
            return ValueError
        return value if value is None or (of is kind and (of is not int or least <= value < -least)) else ValueError

    return read
