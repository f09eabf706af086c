"""The text of values, column by column."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pyarrow import types as t

from kartosql.render import temporal

Texts = list[str | None]

_JSON_FLOATS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def texts(array: pa.Array) -> Texts:
    r"""Return the text of each value, None for NULL.

    Numbers have all their digits (floats as few as tell them apart), binary data is
    ``\x01\xFE``, lists, structs and maps are compact JSON.
    """
    array = _plain(array)
    type_ = array.type
    if _is_binary(type_):
        return _each(array, lambda v: "".join(f"\\x{byte:02X}" for byte in v))
    if t.is_timestamp(type_):
        return temporal.timestamps(array)
    if t.is_nested(type_):
        found = jsons(array)
        return [None if null else text for null, text in zip(array.is_null().to_pylist(), found, strict=True)]
    return _scalars(array)


def jsons(array: pa.Array) -> list[str]:
    """Return the JSON text of each value; NULL is ``null``.

    Integers and decimals are written with all their digits, NaN and the infinities as the
    texts "NaN", "Infinity" and "-Infinity", binary data as hexadecimal text.
    """
    array = _plain(array)
    type_ = array.type
    if t.is_map(type_):
        return _map_jsons(array)
    if t.is_union(type_):
        return ["null" if m.value is None else jsons(pa.array([m.value], m.value.type))[0] for m in array]
    if t.is_struct(type_):
        return _struct_jsons(array)
    if t.is_nested(type_):
        return _list_jsons(array)
    if t.is_timestamp(type_):
        found = temporal.timestamps(array, "T")
    elif _is_binary(type_):
        found = _each(array, bytes.hex)
    else:
        found = _scalars(array)
    if t.is_floating(type_):
        return ["null" if v is None else _JSON_FLOATS.get(v, v) for v in found]
    if t.is_boolean(type_) or is_number(type_):
        return ["null" if v is None else v for v in found]
    return ["null" if v is None else json.dumps(v, ensure_ascii=False) for v in found]


def is_number(type_: pa.DataType) -> bool:
    """Return whether values of a type are aligned to the right."""
    return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_decimal(type_))


def json_names(names: Iterable[str]) -> list[str]:
    """Return column names with ``_1``, ``_2`` ... behind those that repeat.

    JSON objects and Parquet files have no two fields of one name, results may.
    """
    names = list(names)
    taken, seen, found = set(names), set[str](), []
    for name in names:
        unique, number = name, 0
        while unique in seen or (number and unique in taken):
            number += 1
            unique = f"{name}_{number}"
        seen.add(unique)
        found.append(unique)
    return found


def _is_binary(type_: pa.DataType) -> bool:
    kinds = (t.is_binary, t.is_large_binary, t.is_fixed_size_binary, t.is_binary_view)
    return any(kind(type_) for kind in kinds)


def _each(array: pa.Array, text: Callable[[Any], str]) -> Texts:
    return [None if v is None else text(v) for v in array.to_pylist()]


def _plain(array: pa.Array) -> pa.Array:
    """Return an array of the values themselves for dictionaries, run-ends and extension types."""
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            if array.type.extension_name == "arrow.uuid":
                return pa.array([None if v is None else str(v) for v in array.to_pylist()], pa.string())
            array = array.storage
        elif t.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif t.is_run_end_encoded(array.type):
            array = pa.array(array.to_pylist(), array.type.value_type)
        else:
            return array


def _scalars(array: pa.Array) -> Texts:
    type_ = array.type
    if t.is_boolean(type_):
        return _each(array, lambda v: "true" if v else "false")
    if t.is_decimal(type_):
        return _each(array, lambda v: format(v, "f"))
    if t.is_float64(type_):
        return _each(array, repr)
    if t.is_floating(type_):
        return _each(array.cast(pa.float32()).cast(pa.string()), _short_float)
    if t.is_date(type_):
        return temporal.dates(array)
    if t.is_time(type_):
        return temporal.times(array)
    if t.is_duration(type_):
        return temporal.durations(array)
    if t.is_interval(type_):
        return temporal.intervals(array)
    return _each(array, str)


def _short_float(text: str) -> str:
    # Arrow finds the shortest digits of a float32; Python then writes them as it writes any float.
    number = float(text)
    return text if math.isnan(number) else repr(number)


def _list_jsons(array: pa.Array) -> list[str]:
    if t.is_list_view(array.type) or t.is_large_list_view(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    if t.is_fixed_size_list(array.type):
        size = array.type.list_size
        lengths = [size if valid else None for valid in array.is_valid().to_pylist()]
    else:
        lengths = array.value_lengths().to_pylist()
    items = iter(jsons(array.flatten()))
    return ["null" if n is None else "[" + ",".join(next(items) for _ in range(n)) + "]" for n in lengths]


def _struct_jsons(array: pa.Array) -> list[str]:
    names = json_names(f.name for f in array.type)
    heads = [json.dumps(name, ensure_ascii=False) + ":" for name in names]
    columns = [jsons(array.field(i)) for i in range(array.type.num_fields)]
    rows = zip(*columns, strict=True) if columns else iter([()] * len(array))
    found = ["{" + ",".join(map(str.__add__, heads, row)) + "}" for row in rows]
    return [text if valid else "null" for valid, text in zip(array.is_valid().to_pylist(), found, strict=True)]


def _map_jsons(array: pa.Array) -> list[str]:
    valid, offsets = array.is_valid().to_pylist(), array.offsets.to_pylist()
    if not valid:
        return []
    first = offsets[0]
    count = offsets[-1] - first
    keys = texts(array.keys.slice(first, count))
    values = jsons(array.items.slice(first, count))
    pairs = [f"{json.dumps(k, ensure_ascii=False)}:{v}" for k, v in zip(keys, values, strict=True)]
    return [
        "{" + ",".join(pairs[start - first : end - first]) + "}" if is_valid else "null"
        for is_valid, start, end in zip(valid, offsets[:-1], offsets[1:], strict=True)
    ]
