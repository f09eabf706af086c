"""Types of one column in several files, and the type that holds all of their values exactly."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.text.types import type_names

_UNITS = ("s", "ms", "us", "ns")
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}  # decimal digits that an integer of so many bits may have
MAX_PRECISION = 38


def plain(type_: pa.DataType) -> pa.DataType:
    """Return a type without what is only a matter of layout: dictionaries, views, large offsets, half floats."""
    t = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return plain(type_.storage_type) if type_.extension_name != "arrow.uuid" else pa.string()
    if t.is_dictionary(type_):
        return plain(type_.value_type)
    if t.is_large_string(type_) or t.is_string_view(type_):
        return pa.string()
    if t.is_large_binary(type_) or t.is_binary_view(type_) or t.is_fixed_size_binary(type_):
        return pa.binary()
    if t.is_float16(type_):
        return pa.float32()
    if t.is_decimal(type_) and type_.precision <= MAX_PRECISION and type_.scale >= 0:
        return pa.decimal128(type_.precision, type_.scale)
    if t.is_struct(type_):
        return pa.struct([pa.field(f.name, plain(f.type)) for f in type_])
    if t.is_map(type_):
        return pa.map_(plain(type_.key_type), plain(type_.item_type))
    if t.is_nested(type_) and hasattr(type_, "value_type"):  # lists of all layouts
        return pa.list_(pa.field("item", plain(type_.value_type)))
    return type_


def widened(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type to which values of two plain types widen exactly, or None.

    Integers to wider ones, to decimals and, up to 32 bits, to DOUBLE; decimals to more
    digits on both sides; timestamps to finer ones, if both or neither have a time zone; UUID and JSON to
    text; structs gain members; null to anything.
    """
    if left.equals(right):
        return left
    t = pa.types
    if t.is_null(left) or t.is_null(right):
        return right if t.is_null(left) else left
    if {_is_text(left), _is_text(right)} == {True}:
        return pa.string()
    if t.is_struct(left) and t.is_struct(right):
        return _structs(left, right)
    if t.is_list(left) and t.is_list(right):
        item = widened(left.value_type, right.value_type)
        return None if item is None else pa.list_(pa.field("item", item))
    if t.is_map(left) and t.is_map(right):
        # Keys of another type might meet; entries keep theirs.
        item = widened(left.item_type, right.item_type) if left.key_type.equals(right.key_type) else None
        return None if item is None else pa.map_(left.key_type, item)
    if (t.is_timestamp(left) and t.is_timestamp(right)) or (t.is_time(left) and t.is_time(right)):
        unit = max(left.unit, right.unit, key=_UNITS.index)
        if t.is_time(left):
            return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        if (left.tz is None) == (right.tz is None):
            return pa.timestamp(unit, left.tz if left.tz == right.tz else "UTC")
        return None
    return _numbers(left, right)


def _is_text(type_: pa.DataType) -> bool:
    """Return whether values of a type are written as text in one way only."""
    return bool(pa.types.is_string(type_)) or getattr(type_, "extension_name", "") in ("arrow.json", "arrow.uuid")


def _structs(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    fields = {f.name: f.type for f in left}
    if len(fields) < left.num_fields or len({f.name for f in right}) < right.num_fields:
        return None
    for field in right:
        known = fields.get(field.name)
        type_ = field.type if known is None else widened(known, field.type)
        if type_ is None:
            return None
        fields[field.name] = type_
    if len({name.lower() for name in fields}) < len(fields):
        return None  # DuckDB tells members apart by more than their case
    return pa.struct([pa.field(name, type_) for name, type_ in fields.items()])


def _numbers(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    t = pa.types
    if t.is_integer(left) and t.is_integer(right):
        return _integers(left, right)
    if t.is_floating(left) and t.is_floating(right):
        return pa.float64()
    for one, other in ((left, right), (right, left)):
        if t.is_integer(one) and t.is_float64(other):
            return other if one.bit_width <= 32 else None
        if t.is_integer(one) and t.is_decimal(other):
            digits = 20 if t.is_uint64(one) else _DIGITS[one.bit_width]
            return _decimal(max(digits, other.precision - other.scale), other.scale)
    if t.is_decimal(left) and t.is_decimal(right):
        return _decimal(max(left.precision - left.scale, right.precision - right.scale), max(left.scale, right.scale))
    return None


def _integers(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    signed = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    if pa.types.is_unsigned_integer(left) == pa.types.is_unsigned_integer(right):
        return left if left.bit_width > right.bit_width else right
    unsigned, other = (left, right) if pa.types.is_unsigned_integer(left) else (right, left)
    bits = max(2 * unsigned.bit_width, other.bit_width)
    return next((s for s in signed if s.bit_width == bits), None)


def _decimal(whole: int, scale: int) -> pa.DataType | None:
    return pa.decimal128(whole + scale, scale) if whole + scale <= MAX_PRECISION else None


def united(schemas: Sequence[pa.Schema], names: Sequence[str], source: str) -> dict[str, pa.DataType]:
    """Return the columns of files by name, in the order in which they first occur.

    ``schemas`` are those of the files ``names``. Types widen exactly, else ``schema-conflict``
    names the column, both types and a file of each.
    """
    found: dict[str, tuple[pa.DataType, str]] = {}
    spelled: dict[str, tuple[str, str]] = {}
    first: dict[int, tuple[pa.Schema, str]] = {}
    for schema, name in zip(schemas, names, strict=True):
        first.setdefault(id(schema), (schema, name))
    for schema, name in first.values():
        seen = set(schema.names)
        for field in schema:
            known = found.get(field.name)
            if known is None:
                other = spelled.setdefault(field.name.lower(), (field.name, name))
                if other[0] != field.name and other[0] not in seen:
                    raise _conflict(source, field.name, f"spelled {other[0]!r} in {other[1]}", f"not in {name}")
                found[field.name] = (field.type, name)
                continue
            type_ = widened(known[0], field.type)
            if type_ is None:
                one, other_one = type_names(known[0], field.type)
                raise _conflict(source, field.name, f"{one} in {known[1]}", f"{other_one} in {name}")
            if not type_.equals(known[0]):
                found[field.name] = (type_, name)
    return {name: type_ for name, (type_, _) in found.items()}


def _conflict(source: str, column: str, one: str, other: str) -> FormatError:
    hint = "No type holds the values of both exactly; write the files again with one type."
    return FormatError(f"{source}: the column {column!r} is {one}, but {other}", code="schema-conflict", hint=hint)
