"""Arrow types by the names of SQL, as DuckDB spells them: the ones that people read."""

from __future__ import annotations

import re
from functools import partial

import pyarrow as pa
from pyarrow import types as t

from kartosql.text.constants import quote

SIGNED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
UNSIGNED = ("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
SIMPLE: dict[pa.DataType, str] = {
    **dict(zip((pa.int8(), pa.int16(), pa.int32(), pa.int64()), SIGNED, strict=True)),
    **dict(zip((pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), UNSIGNED, strict=True)),
    **{pa.float16(): "FLOAT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"},
    **{pa.string(): "VARCHAR", pa.large_string(): "VARCHAR", pa.binary(): "BLOB", pa.large_binary(): "BLOB"},
    **{pa.date32(): "DATE", pa.date64(): "DATE", pa.month_day_nano_interval(): "INTERVAL"},
}
_TIMESTAMPS = {"s": "TIMESTAMP_S", "ms": "TIMESTAMP_MS", "us": "TIMESTAMP", "ns": "TIMESTAMP_NS"}
_OTHERS = (
    (t.is_duration, "INTERVAL"),
    (t.is_interval, "INTERVAL"),
    (t.is_fixed_size_binary, "BLOB"),
    (t.is_dictionary, "ENUM"),
    (t.is_string_view, "VARCHAR"),
    (t.is_binary_view, "BLOB"),
)
_PLAIN = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# Types that only Parquet and DuckDB have.
_EXTENSIONS = {"arrow.uuid": "UUID", "arrow.json": "JSON", "geoarrow.wkb": "GEOMETRY", "arrow.bool8": "BOOLEAN"}


def type_name(type_: pa.DataType, null: str = "NULL", *, quotes: bool = False) -> str:
    """Return the SQL name of an Arrow type; ``null`` is that of a column of which no type is known.

    Names of fields have quotes where they need them, or always if told.
    """
    found = SIMPLE.get(type_)
    if found is not None:
        return found
    if isinstance(type_, pa.OpaqueType):
        return str(type_.type_name)
    if isinstance(type_, pa.BaseExtensionType):
        return _EXTENSIONS.get(type_.extension_name) or type_name(type_.storage_type, null, quotes=quotes)
    if t.is_timestamp(type_):
        return "TIMESTAMP WITH TIME ZONE" if type_.tz is not None else _TIMESTAMPS[type_.unit]
    if t.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if t.is_time(type_):
        return "TIME_NS" if type_.unit == "ns" else "TIME"
    inner = partial(type_name, null=null, quotes=quotes)
    if t.is_struct(type_) or t.is_union(type_):
        fields = ", ".join(f"{quote(f.name) if quotes else _named(f.name)} {inner(f.type)}" for f in type_)
        return f"{'STRUCT' if t.is_struct(type_) else 'UNION'}({fields})"
    if t.is_map(type_):
        return f"MAP({inner(type_.key_type)}, {inner(type_.item_type)})"
    if t.is_run_end_encoded(type_):
        return inner(type_.value_type)
    if t.is_nested(type_):
        return f"{inner(type_.value_type)}[]"
    return next((name for test, name in _OTHERS if test(type_)), null)


def _named(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote(name)


def type_names(*types: pa.DataType) -> list[str]:
    """Return the names of types that differ, with units, zones and sizes where the names alone do not tell that."""
    names = [type_name(type_) for type_ in types]
    return [f"{n}{_detail(t)}" for n, t in zip(names, types, strict=True)] if len({*names}) < len(types) else names


def _detail(type_: pa.DataType) -> str:
    if t.is_timestamp(type_) or t.is_time(type_) or t.is_duration(type_):
        return " (" + ", ".join(filter(None, [f"in {type_.unit}", getattr(type_, "tz", None)])) + ")"
    if t.is_floating(type_) or t.is_fixed_size_binary(type_):
        return f" ({type_.bit_width} bits)"
    if t.is_fixed_size_list(type_):
        return f" (of {type_.list_size})"
    return ""


_ARROW_NAMES = re.compile(
    r"'[^']*'|\b(?:u?int(?:8|16|32|64)|large_\w+|\w+_view|half_?float|(?:date|time)(?:32|64)\[\w+\]|"
    r"(?:timestamp|duration)\[[^\]]*\]|decimal\d+\(\d+, ?-?\d+\)|dictionary<[^>]*>|"
    r"(?:(?<=[:,] )|(?<=\bmap<)|(?<=\b(?:from|type) )|(?<=\bto ))(?:string|utf8|double|float|bool|binary|null)\b)"
)
_ARROW_NESTED = re.compile(r"\b(?:\w+_)?(list|struct|map)(?:_view)?<([^<>]*)>(?:\[\d+\])?")


def in_sql_names(error: Exception) -> str:
    """Return the text of an error of Arrow with types by their SQL names, but for what stands in quotes."""
    found = _ARROW_NAMES.sub(lambda name: _renamed(name[0]), str(error).partition(" using function ")[0])
    while found != (found := _ARROW_NESTED.sub(_folded, found)):
        pass
    return found


def _renamed(name: str) -> str:
    unit, _, zone = name.partition("[")[2].rstrip("]").partition(", tz=")
    if name.startswith("timestamp"):
        return type_name(pa.timestamp(unit, zone or None))
    if name.startswith("decimal"):
        return f"DECIMAL{name[name.index('(') :].replace(' ', '')}"
    try:
        return "ENUM" if name.startswith("dict") else type_name(pa.type_for_alias(name.replace("half_", "half")))
    except ValueError:
        return name


def _folded(nested: re.Match[str]) -> str:
    kind, inner = nested[1], nested[2]
    return f"{inner.partition(': ')[2]}[]" if kind == "list" else f"{kind.upper()}({inner.replace(': ', ' ')})"
