"""Arrow schemas in events: as bytes (RFC-010) and as logical ones (RFC-016), and what a new one changes.

Whether a value may be NULL is a type around the type (Option). How Arrow lays values out is in
extra attributes of a field, as does that a timestamp has no zone, which the format cannot say.

Allowed changes are other attributes, another order, and new columns that may be NULL, also as members of
structs, in lists and maps. Refused are removed, renamed and retyped columns, new ones that must not be
NULL, and a schema that changes nothing. How Arrow lays values out is no type. Between raw schemas a
column of type null may get a type: nothing was in it, so it is as good as new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from struct import pack, unpack_from
from typing import Any, Literal

import pyarrow as pa

from kartosql.errors import reraise
from kartosql.formats.odf.blocks import DAMAGED, MAX_DEPTH, Event, invalid_schema
from kartosql.text.types import type_name, type_names

_PREFIX = 8  # of a message: a marker and the length
_MARKER = 0xFFFFFFFF
_HEADER_SLOT = 2
_MESSAGE = 32  # bytes of the table Message that goes in front


def to_bytes(schema: pa.Schema) -> bytes:
    """Return a schema as a bare flatbuffer; its metadata and those of its fields are kept."""
    message: bytes = schema.serialize().to_pybytes()[_PREFIX:]
    (table,) = unpack_from("<I", message, 0)
    (back,) = unpack_from("<i", message, table)
    (at,) = unpack_from("<H", message, table - back + 4 + 2 * _HEADER_SLOT)
    header = table + at
    (offset,) = unpack_from("<I", message, header)
    return pack("<I", header + offset) + message[4:]


def from_bytes(data: bytes, what: str = "the schema") -> pa.Schema:
    """Return the schema that a bare flatbuffer holds; raises ``odf-invalid-schema``."""
    if len(data) < 8:
        raise invalid_schema(f"{what}: it has {len(data)} bytes only", DAMAGED)
    (root,) = unpack_from("<I", data, 0)
    if root == _MARKER:
        raise invalid_schema(f"{what}: it is a message of Arrow, not the bare table Schema", DAMAGED)
    if not 4 <= root <= len(data) - 4:
        raise invalid_schema(f"{what}: its root lies outside of it", DAMAGED)
    # vtable: 12 bytes, of 4 slots; table: 12 bytes, the offset of the header at 4, version at 8, type at 10.
    front = pack("<IHHHHHHiIHBx4x", 16, 12, 12, 8, 10, 4, 0, 12, _MESSAGE + root - 20, 4, 1)
    body = front + data
    body += bytes(-len(body) % 8)
    try:
        return pa.ipc.read_schema(pa.py_buffer(pack("<Ii", _MARKER, len(body)) + body))
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, UnicodeDecodeError) as e:
        reraise(e)
        raise invalid_schema(f"{what}: Arrow cannot read it: {' '.join(str(e).split())[:200]}", DAMAGED) from None


BUFFER = "arrow.apache.org/bufferEncoding"
DATE = "arrow.apache.org/dateEncoding"
DECIMAL = "arrow.apache.org/decimalEncoding"
NAIVE = "kartosql.dev/naiveTimestamp"

_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_SHORT = {name: unit for unit, name in _UNITS.items()}
_NAMES = "Bool Float16 Float32 Float64 Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64 Null"
_SIMPLE: dict[str, pa.DataType] = {kind: pa.type_for_alias(kind.lower()) for kind in _NAMES.split()}
_KINDS = {type_: kind for kind, type_ in _SIMPLE.items()}
_PLAIN = ("Contiguous", 32)
_TEXT = {_PLAIN: pa.string(), ("Contiguous", 64): pa.large_string(), ("View", 32): pa.string_view()}
_BINARY = {_PLAIN: pa.binary(), ("Contiguous", 64): pa.large_binary(), ("View", 32): pa.binary_view()}
_LISTS: dict[tuple[str, int], tuple[Callable[[pa.Field], pa.DataType], Callable[[pa.DataType], bool]]] = {
    _PLAIN: (pa.list_, pa.types.is_list),
    ("Contiguous", 64): (pa.large_list, pa.types.is_large_list),
    ("View", 32): (pa.list_view, pa.types.is_list_view),
    ("View", 64): (pa.large_list_view, pa.types.is_large_list_view),
}
_LAYOUTS = {type_: layout for layouts in (_TEXT, _BINARY) for layout, type_ in layouts.items()}


def event_schema(event: Event, what: str = "SetDataSchema") -> pa.Schema:
    """Return the Arrow schema of a SetDataSchema event in either form; raises ``odf-invalid-schema``."""
    raw = event.get("rawArrowSchema")
    return to_arrow(event["schema"], what) if raw is None else from_bytes(raw, what)


# -- to Arrow --------------------------------------------------------------------------------


def to_arrow(schema: dict[str, Any], what: str = "the schema") -> pa.Schema:
    """Return the Arrow schema of a logical one; raises ``odf-invalid-schema`` for what Arrow cannot hold."""
    return pa.schema([_to_field(field, what, 0) for field in schema["fields"]])


def _to_field(field: dict[str, Any], what: str, depth: int) -> pa.Field:
    where = f"{what}, field {field['name']!r}"
    return pa.field(field["name"], *_to_type(field["type"], field.get("extra") or {}, where, depth))


def _to_type(type_: dict[str, Any], extra: dict[str, Any], where: str, depth: int) -> tuple[pa.DataType, bool]:
    """Return the Arrow type, and whether values may be NULL."""
    if depth > MAX_DEPTH:
        raise invalid_schema(f"{where}: types are nested more than {MAX_DEPTH} levels deep")
    kind = type_["kind"]
    if kind == "Option":
        if type_["inner"]["kind"] == "Option":
            raise invalid_schema(f"{where}: an Option in an Option means nothing in Arrow")
        return _to_type(type_["inner"], extra, where, depth + 1)[0], True
    try:
        if kind in _SIMPLE:
            return _SIMPLE[kind], kind == "Null"
        return _compound(type_, extra, where, depth), False
    except (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError, AttributeError) as e:
        reraise(e)
        raise invalid_schema(f"{where}: Arrow has no such {kind}: {str(e)[:120]}") from None


def _layout(extra: dict[str, Any]) -> tuple[str, int]:
    stored = extra.get(BUFFER)
    return _PLAIN if stored is None else (stored["kind"], stored.get("offsetBitWidth", 32))


def _unit(type_: dict[str, Any]) -> str:
    return _SHORT[type_.get("unit") or "Millisecond"]


def _compound(type_: dict[str, Any], extra: dict[str, Any], where: str, depth: int) -> pa.DataType:
    length = type_.get("fixedLength")
    if length is not None and length >= 1 << 31:
        raise ValueError(f"{length} is too long")
    match type_["kind"]:
        case "String":
            return _TEXT[_layout(extra)]
        case "Binary":
            return _BINARY[_layout(extra)] if length is None else pa.binary(length)
        case "Date":
            return pa.date64() if (extra.get(DATE) or {}).get("unit") == "Millisecond" else pa.date32()
        case "Decimal":
            precision, scale = type_["precision"], type_["scale"]
            width = (extra.get(DECIMAL) or {}).get("bitWidth") or (128 if precision <= 38 else 256)
            made = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}[width]
            return made(precision, scale)
        case "Duration":
            return pa.duration(_unit(type_))
        case "Time":
            unit = _unit(type_)
            return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        case "Timestamp":
            zone = type_.get("timezone")
            return pa.timestamp(_unit(type_), "UTC" if zone is None and extra.get(NAIVE) is not True else zone)
        case "List":
            # What the extra attributes of a field say is about the list; layouts of items are not kept.
            field = pa.field("item", *_to_type(type_["itemType"], {}, where, depth + 1))
            return _LISTS[_layout(extra)][0](field) if length is None else pa.list_(field, length)
        case "Map":
            key, nullable = _to_type(type_["keyType"], {}, where, depth + 1)
            if nullable:
                raise invalid_schema(f"{where}: keys of a map cannot be NULL")
            value = pa.field("value", *_to_type(type_["valueType"], {}, where, depth + 1))
            return pa.map_(key, value, keys_sorted=bool(type_.get("keysSorted")))
        case "Struct":
            return pa.struct([_to_field(field, where, depth + 1) for field in type_["fields"]])
    raise KeyError(type_["kind"])


# -- from Arrow ------------------------------------------------------------------------------


def from_arrow(schema: pa.Schema, *, encodings: bool = True) -> dict[str, Any]:
    """Return the logical schema of an Arrow one.

    Raises ``odf-invalid-schema`` for types that the format has not: dictionaries, unions, intervals,
    run-end encoding, extension types, and timestamps without zone inside of lists and maps. Metadata
    of the schema and its fields, names and layouts of list items are not kept. Without ``encodings``
    layouts are not kept at all.
    """
    return {"fields": [_from_field(field, f"field {field.name!r}", encodings) for field in schema]}


def _from_field(field: pa.Field, where: str, encodings: bool) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    found = {"name": field.name, "type": _from_type(field.type, field.nullable, where, extra, encodings)}
    if not encodings:
        extra = {key: value for key, value in extra.items() if key == NAIVE}
    return {**found, "extra": extra} if extra else found


def _from_type(
    type_: pa.DataType, nullable: bool, where: str, extra: dict[str, Any] | None, encodings: bool
) -> dict[str, Any]:
    kind = _KINDS.get(type_)
    found = {"kind": kind} if kind else _from_compound(type_, where, {} if extra is None else extra, encodings)
    if extra is None and pa.types.is_timestamp(type_) and type_.tz is None:
        raise invalid_schema(f"{where}: a list or map of timestamps without zone is not expressible in ODF")
    return {"kind": "Option", "inner": found} if nullable and kind != "Null" else found


def _from_compound(type_: pa.DataType, where: str, extra: dict[str, Any], encodings: bool) -> dict[str, Any]:
    t = pa.types
    refusal = invalid_schema(f"{where}: {str(type_)[:100]} is not expressible in ODF")
    if isinstance(type_, pa.BaseExtensionType):
        raise refusal
    layout = _LAYOUTS.get(type_) or next((layout for layout, (_, is_a) in _LISTS.items() if is_a(type_)), None)
    if layout is not None:
        extra[BUFFER] = {"kind": layout[0], "offsetBitWidth": layout[1]}
    if type_ in _LAYOUTS:
        return {"kind": "String" if type_ in _TEXT.values() else "Binary"}
    if t.is_fixed_size_binary(type_):
        return {"kind": "Binary", "fixedLength": type_.byte_width}
    if t.is_date(type_):
        if t.is_date64(type_):
            extra[DATE] = {"unit": "Millisecond"}
        return {"kind": "Date"}
    if t.is_decimal(type_):
        extra[DECIMAL] = {"bitWidth": type_.bit_width}
        return {"kind": "Decimal", "precision": type_.precision, "scale": type_.scale}
    if t.is_time(type_) or t.is_duration(type_):
        return {"kind": "Time" if t.is_time(type_) else "Duration", "unit": _UNITS[type_.unit]}
    if t.is_timestamp(type_):
        if type_.tz is None:
            extra[NAIVE] = True
        return {"kind": "Timestamp", "unit": _UNITS[type_.unit], **({"timezone": type_.tz} if type_.tz else {})}
    if t.is_map(type_):
        key = _from_type(type_.key_type, False, where, None, encodings)
        value = _from_type(type_.item_type, type_.item_field.nullable, where, None, encodings)
        found = {"kind": "Map", "keyType": key, "valueType": value}
        return {**found, "keysSorted": True} if type_.keys_sorted else found
    if t.is_struct(type_):
        return {"kind": "Struct", "fields": [_from_field(f, f"{where}.{f.name}", encodings) for f in type_]}
    if layout is not None or t.is_fixed_size_list(type_):
        item = _from_type(type_.value_type, type_.value_field.nullable, where, None, encodings)
        return {"kind": "List", "itemType": item, **({} if layout else {"fixedLength": type_.list_size})}
    raise refusal


Verdict = Literal["compatible", "incompatible", "no-op"]


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What a schema changes against the one before, in words, and the verdict."""

    verdict: Verdict
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return "; ".join(self.changes) or "nothing"


def compare_events(old: Event, new: Event) -> SchemaChange:
    """Return what a SetDataSchema event changes against the one before; raises ``odf-invalid-schema``."""
    raw = old.get("schema") is None, new.get("schema") is None
    before, after = event_schema(old), event_schema(new)
    if raw == (True, True):
        return compare_schemas(before, after)
    if old.get("schema") == new.get("schema"):
        return SchemaChange("no-op", ())
    # Raw schemas say of columns that they may be NULL where the data never were.
    return _Comparison(with_optionality=raw[0] == raw[1], from_null=False).change(before, after)


def compare_schemas(old: pa.Schema, new: pa.Schema) -> SchemaChange:
    """Return what an Arrow schema changes against another one."""
    if old.equals(new, check_metadata=True):
        return SchemaChange("no-op", ())
    return _Comparison(with_optionality=True, from_null=True).change(old, new)


class _Comparison:
    """What a schema changes, and what counts as a change besides types."""

    def __init__(self, *, with_optionality: bool, from_null: bool) -> None:
        self.with_optionality = with_optionality
        self.from_null = from_null
        self.changes: list[str] = []
        self.verdict: Verdict = "compatible"

    def change(self, old: pa.Schema, new: pa.Schema) -> SchemaChange:
        self.fields(old, new, "")
        return SchemaChange(self.verdict, tuple(self.changes) or ("attributes changed",))

    def refuse(self, change: str) -> None:
        self.changes.append(change)
        self.verdict = "incompatible"

    def fields(self, old: Iterable[pa.Field], new: Iterable[pa.Field], path: str) -> None:
        before, after = {f.name: f for f in old}, {f.name: f for f in new}
        for name in before:
            if name not in after:
                self.refuse(f"{path}{name} removed")
        for name, field in after.items():
            if name in before:
                self.field(before[name], field, f"{path}{name}")
            elif field.nullable:
                self.changes.append(f"{path}{name} added ({type_name(field.type)})")
            else:
                self.refuse(f"{path}{name} added ({type_name(field.type)}, not NULL)")
        if [n for n in before if n in after] != [n for n in after if n in before]:
            self.changes.append(f"order of {path.rstrip('.') or 'columns'} changed")

    def field(self, old: pa.Field, new: pa.Field, path: str) -> None:
        self.types(old.type, new.type, path)
        if self.with_optionality and old.nullable != new.nullable:
            self.refuse(f"{path} {'may be' if new.nullable else 'must not be'} NULL")

    def types(self, old: pa.DataType, new: pa.DataType, path: str) -> None:
        t = pa.types
        if self.from_null and t.is_null(old) and not t.is_null(new):
            self.changes.append(f"{path} got a type ({type_name(new)})")
        elif t.is_struct(old) and t.is_struct(new):
            self.fields(old, new, f"{path}.")
        elif t.is_map(old) and t.is_map(new) and old.keys_sorted == new.keys_sorted:
            self.types(old.key_type, new.key_type, f"{path}.key")
            self.field(old.item_field, new.item_field, f"{path}.value")
        elif _list_length(old) is not None and _list_length(old) == _list_length(new):
            self.field(old.value_field, new.value_field, f"{path}[]")
        elif not _logical(old).equals(_logical(new)):
            self.refuse(f"type of {path} changed from {' to '.join(type_names(old, new))}")


def _list_length(type_: pa.DataType) -> int | None:
    """Return the length of lists of a type, -1 if they have any, None for what is no list."""
    if pa.types.is_fixed_size_list(type_):
        return int(type_.list_size)
    return -1 if any(is_a(type_) for _, is_a in _LISTS.values()) else None


def _logical(type_: pa.DataType) -> pa.DataType:
    """Return the type that stands for all that differ from it in layout only."""
    t = pa.types
    if t.is_large_string(type_) or t.is_string_view(type_):
        return pa.string()
    if t.is_large_binary(type_) or t.is_binary_view(type_):
        return pa.binary()
    if t.is_date64(type_):
        return pa.date32()
    if t.is_decimal(type_):
        return pa.decimal256(type_.precision, type_.scale)
    return type_
