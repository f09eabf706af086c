"""Columns of a Delta table: their types, what files call them, and values of partitions."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.formats.partition_table import TAG
from kartosql.formats.type_promotion import MAX_PRECISION, widened
from kartosql.text.types import type_name, type_names

# Notes of columns and members: the name in files and the number there; whether its values were FLOAT once.
PHYSICAL, ID, WAS_FLOAT = b"physical", b"PARQUET:field_id", b"float"
_PRIMITIVES = {
    **{"string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "short": pa.int16(), "byte": pa.int8()},
    **{"float": pa.float32(), "double": pa.float64(), "boolean": pa.bool_(), "binary": pa.binary()},
    **{"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")},
    "void": pa.null(),
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_TRUTHS = {"true": True, "false": False}


def columns_of(metadata: Mapping[str, Any], name: str) -> tuple[list[pa.Field], list[str], str]:
    """Return the columns with notes, the names of those that part files, and how files name columns.

    That is ``none``, ``name`` or ``id``. Raises ``delta-invalid-log``, ``schema-conflict`` and ``unsupported-type``.
    """
    try:
        mode = str(dict(metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none"))
        if mode not in ("none", "name", "id"):
            raise ValueError(f"columns are mapped by {mode!r}")
        fields = [_field(f, mode != "none") for f in json.loads(metadata["schemaString"])["fields"]]
        keys = [str(key) for key in metadata.get("partitionColumns") or ()]
        if not {*keys} <= {f.name for f in fields} or len({*keys}) < len(keys):
            raise ValueError(f"the partition columns are {keys}")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise FormatError(f"{name}: the schema is odd: {str(e)[:200]}", code="delta-invalid-log") from None
    if len({f.name.lower() for f in fields}) < len(fields) or len({f.metadata[PHYSICAL] for f in fields}) < len(fields):
        raise FormatError(f"{name}: a column is there twice", code="schema-conflict")
    return fields, keys, mode


def _field(field: Mapping[str, Any], mapped: bool) -> pa.Field:
    notes, name = field.get("metadata") or {}, field["name"]
    told = {PHYSICAL: notes["delta.columnMapping.physicalName"] if mapped else name}
    if mapped:
        told[ID] = str(notes["delta.columnMapping.id"])
    if any(change.get("fromType") == "float" for change in notes.get("delta.typeChanges") or ()):
        told[WAS_FLOAT] = "1"
    return pa.field(name, _type(field["type"], mapped), metadata=told)


def _type(type_: Any, mapped: bool) -> pa.DataType:
    if isinstance(type_, str):
        found = _DECIMAL.fullmatch(type_)
        if found and 0 < int(found[1]) <= MAX_PRECISION and int(found[2]) <= int(found[1]):
            return pa.decimal128(int(found[1]), int(found[2]))
        if type_ not in _PRIMITIVES:
            raise FormatError(f"Columns of type {type_[:80]} cannot be queried", code="unsupported-type")
        return _PRIMITIVES[type_]
    if type_["type"] == "struct":
        return pa.struct([_field(f, mapped) for f in type_["fields"]])
    if type_["type"] == "array":
        return pa.list_(pa.field("item", _type(type_["elementType"], mapped)))
    if type_["type"] == "map":
        return pa.map_(_type(type_["keyType"], mapped), _type(type_["valueType"], mapped))
    raise ValueError(f"there is no type {type_['type']!r}")


def in_files(columns: Iterable[pa.Field], schema: pa.Schema, mode: str, name: str) -> dict[str, pa.Field]:
    """Return the columns that a file has, each as the field that it is there; raises ``schema-mismatch``."""
    mark = ID if mode == "id" else PHYSICAL
    found = {_mark(field, mark): field for field in schema}
    if mode == "id" and len(schema) and found.keys() == {None}:
        raise FormatError(
            f"{name}: its columns have no numbers", code="schema-mismatch", hint="The table maps them by id."
        )
    pairs = {c.name: (c, found[c.metadata[mark]]) for c in columns if c.metadata[mark] in found}
    return {
        column: pa.field(field.name, _as_file(wanted.type, field.type, mark, mode != "none", f"{name}: {column!r}"))
        for column, (wanted, field) in pairs.items()
    }


def _mark(field: pa.Field, mark: bytes) -> bytes | None:
    return field.name.encode() if mark == PHYSICAL else (field.metadata or {}).get(mark)


def _as_file(wanted: pa.DataType, found: pa.DataType, mark: bytes, mapped: bool, place: str) -> pa.DataType:
    """Return the type of a column in a file; its members note what the table calls them, where that differs."""
    t = pa.types
    if t.is_struct(wanted) and t.is_struct(found):
        known, members = {f.metadata[mark]: f for f in wanted}, []
        for field in found:
            member = known.get(_mark(field, mark) or b"")
            if member is not None:
                inner = _as_file(member.type, field.type, mark, mapped, f"{place}.{member.name}")
                members.append(pa.field(field.name, inner, metadata={TAG: member.name} if mapped else None))
        # A struct without the members that are wanted still tells which of its rows are NULL.
        return pa.struct(members or [pa.field(f.name, f.type, metadata={TAG: b"\0"}) for f in list(found)[:1]])
    if t.is_list(wanted) and t.is_list(found):
        return pa.list_(pa.field("item", _as_file(wanted.value_type, found.value_type, mark, mapped, place)))
    if t.is_map(wanted) and t.is_map(found):
        pairs = ((wanted.key_type, found.key_type), (wanted.item_type, found.item_type))
        return pa.map_(*(_as_file(w, f, mark, mapped, place) for w, f in pairs))
    is_moment = t.is_timestamp(wanted) and found == pa.timestamp("us")  # INT96 have no zone and mean UTC
    if is_moment or (t.is_date32(found) and wanted == pa.timestamp("us")):
        return found
    type_ = None if t.is_nested(wanted) else widened(found, wanted)
    if type_ is None or not type_.equals(wanted):
        names = type_names(found, wanted)
        raise FormatError(
            f"{place} is {names[0]}, but {names[1]} in the schema of the table",
            code="schema-mismatch",
            hint="The file was written with another schema; read an older VERSION of the table.",
        )
    return found


# -- values that are written as text -------------------------------------------------------------


def value_reader(type_: pa.DataType) -> Callable[[str], Any]:
    """Return what reads a text as a value, timestamps as microseconds since 1970; raises ValueError and the like."""
    t = pa.types
    if t.is_integer(type_):
        return lambda text: _integer(text, type_.bit_width)
    if t.is_timestamp(type_):
        return lambda text: _moment(text, type_.tz is not None)
    if t.is_decimal(type_):
        return lambda text: _decimal(Decimal(text), type_)
    if t.is_boolean(type_):
        return lambda text: _TRUTHS[text.lower()]
    readers: list[tuple[Callable[[pa.DataType], bool], Callable[[str], Any]]]
    readers = [
        (t.is_floating, float),
        (t.is_date32, dt.date.fromisoformat),
        (t.is_string, str),
        (t.is_binary, str.encode),
    ]
    found = next((reader for test, reader in readers if test(type_)), None)
    if found is None:
        raise FormatError(f"Files cannot be parted by columns of type {type_name(type_)}", code="unsupported-type")
    return found


def _integer(text: str, bits: int) -> int:
    if not _INTEGER.fullmatch(text) or not -(1 << (bits - 1)) <= (value := int(text)) < 1 << (bits - 1):
        raise ValueError(text)
    return value


def _moment(text: str, zoned: bool) -> int:
    found = dt.datetime.fromisoformat(text)
    if not zoned and found.tzinfo is not None:
        raise ValueError(text)
    found = found if found.tzinfo is not None else found.replace(tzinfo=dt.timezone.utc)
    return (found - _EPOCH) // dt.timedelta(microseconds=1)


def _decimal(value: Decimal, type_: pa.DataType) -> Decimal:
    _, digits, exponent = value.as_tuple()
    if (
        not isinstance(exponent, int)
        or exponent < -type_.scale
        or len(digits) + exponent > type_.precision - type_.scale
    ):
        raise ValueError(str(value))
    return value
