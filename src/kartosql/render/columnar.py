"""Text of large batches, whole columns at once by Arrow's kernels; the same as ``render.values`` gives.

What Arrow would spell in another way than we do is left to ``render.values``, for each distinct value once.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from kartosql.render import values

# Where Arrow writes a float with Python's digits, but for the ".0" of whole numbers.
_SMALLEST, _LARGEST = 1e-4, 1e9
_FIRST_DAY, _LAST_DAY = values.PYTHON_DAYS[0], values.PYTHON_DAYS[-1]  # that Python's dates have
_MAX_SCALE = 6  # Arrow writes decimals of more digits with an exponent
_JSON_SPECIAL = '\\"' + "".join(map(chr, range(0x20)))
_SAMPLE = 4_096  # values that tell whether they repeat


def csv_rows(batch: pa.RecordBatch, separator: str, special: str, null: str) -> memoryview:
    """Return the records of a batch by RFC 4180 in UTF-8, a line feed behind each.

    Texts with one of the characters ``special`` are quoted, and those that are empty or read as ``null`` does; nothing
    is without such characters.
    """
    pieces: list[Any] = []
    for column in map(values.plain, batch.columns):
        texts = column_text(column)
        pieces += [texts if _is_bare(column.type) or not special else _csv_cells(texts, special, null), separator]
    pieces[-1] = "\n"
    return _joined(pieces, null)


def json_rows(batch: pa.RecordBatch, before: str, after: str) -> memoryview:
    """Return the JSON objects of a batch in UTF-8, a text before and one behind each."""
    return _joined(_object(batch.schema.names, batch.columns, before, after))


def _object(names: list[str], columns: Sequence[pa.Array], before: str, after: str) -> list[Any]:
    """Return the pieces of which JSON objects are joined, columns and constants."""
    pieces: list[Any] = []
    end = f"{before}{{"
    for name, column in zip(values.json_names(names), columns, strict=True):
        texts, quote = _json_cells(values.plain(column))
        pieces += [f"{end}{values.json_string(name)}:{quote}", texts]
        end = f"{quote},"
    return [*pieces, f"{end[:-1]}}}{after}"]


def _jsons(array: pa.Array) -> pa.Array:
    """Return the JSON of each value; NULL is ``null``."""
    array = values.plain(array)
    type_ = array.type
    if t.is_struct(type_) and type_.num_fields and len(array):
        columns = [array.field(i) for i in range(type_.num_fields)]
        found = pc.binary_join_element_wise(*_object([f.name for f in type_], columns, "", ""), "")
    elif t.is_list(type_) and len(array):
        found = _lists(array, _jsons(_inner(array, array.values)), "[", "]")
    elif t.is_map(type_) and len(array):
        keys = _in_quotes(_escaped(column_text(values.plain(_inner(array, array.keys)))))
        pairs = pc.binary_join_element_wise(keys, _jsons(_inner(array, array.items)), ":")
        found = _lists(array, pairs, "{", "}")
    elif t.is_nested(type_):
        return pa.array(values.jsons(array), pa.string())
    else:
        texts, quote = _json_cells(array)
        return _in_quotes(texts) if quote else texts
    return pc.if_else(array.is_valid(), found, "null")


def _inner(array: pa.Array, items: pa.Array) -> pa.Array:
    """Return those of the items of lists that a slice of them has."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return items.slice(first, last - first)


def _lists(array: pa.Array, items: pa.Array, start: str, end: str) -> pa.Array:
    lists = pa.ListArray.from_arrays(pc.subtract(array.offsets, array.offsets[0]), items)
    return pc.binary_join_element_wise(start, pc.binary_join(lists, ","), end, "")


def _joined(pieces: list[Any], null: str = "") -> memoryview:
    """Return the bytes of all rows, each made of the pieces, columns and constants."""
    rows = pc.binary_join_element_wise(*pieces, "", null_handling="replace", null_replacement=null)
    _, offsets, data = rows.buffers()
    return memoryview(data)[: memoryview(offsets).cast("i")[len(rows)]]


def _is_bare(type_: pa.DataType) -> bool:
    """Return whether no text of a value is empty or has a character that csv or JSON would quote."""
    return bool(t.is_boolean(type_) or t.is_temporal(type_) or values.is_number(type_))


def _csv_cells(texts: pa.Array, special: str, null: str) -> pa.Array:
    empty = pc.is_in(texts, pa.array(["", null], texts.type))
    if _has(texts, special):
        needed = pc.or_(empty, pc.match_substring_regex(texts, f"[{re.escape(special)}]"))
    elif pc.any(empty).as_py():
        needed = empty
    else:
        return texts
    return pc.if_else(needed, _in_quotes(pc.replace_substring(texts, '"', '""')), texts)


def _json_cells(array: pa.Array) -> tuple[pa.Array, str]:
    """Return the JSON of each value, and the quote that belongs around each."""
    type_ = array.type
    if t.is_nested(type_):
        return _jsons(array), ""
    if values.is_binary(type_) and not t.is_binary(type_):
        return pa.array(values.jsons(array), pa.string()), ""
    texts = _hex(array, "") if t.is_binary(type_) else column_text(array, "T")
    if t.is_boolean(type_) or values.is_number(type_):
        if t.is_floating(type_) and not pc.all(pc.is_finite(array)).as_py():
            for text, found in values.JSON_FLOATS.items():
                texts = pc.if_else(pc.equal(texts, text), found, texts)
        return texts.fill_null("null"), ""
    if not t.is_temporal(type_):
        texts = _escaped(texts)
    return (_in_quotes(texts).fill_null("null"), "") if texts.null_count else (texts, '"')


def _escaped(texts: pa.Array) -> pa.Array:
    """Return texts as JSON has them between quotes."""
    if _has(texts, _JSON_SPECIAL):
        for character in filter(partial(_has, texts), _JSON_SPECIAL):
            texts = pc.replace_substring(texts, character, values.json_string(character)[1:-1])
    return texts


def _hex(array: pa.Array, before: str) -> pa.Array:
    """Return the bytes of each value in hexadecimal, something before each, all at once."""
    valid, offsets, data = array.buffers()
    ends = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets], offset=array.offset)
    first, last = ends[0].as_py(), ends[-1].as_py()
    text = memoryview(data)[first:last].hex(" ") if data is not None and last > first else ""
    text = (before + text.upper().replace(" ", before)) if before and text else text.replace(" ", "")
    sizes = pc.multiply_checked(pc.subtract(ends, first), 2 + len(before)).cast(pa.int32()).buffers()[1]
    made = pa.Array.from_buffers(pa.string(), len(array), [None, sizes, pa.py_buffer(text.encode())])
    return pc.if_else(array.is_valid(), made, None) if valid is not None else made


def _in_quotes(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _has(texts: pa.Array, characters: str) -> bool:
    """Return whether any text has one of some ASCII characters; looks at the bytes of all at once."""
    _, offsets, data = texts.buffers()
    if data is None:
        return False
    ends = memoryview(offsets).cast("i")
    used = bytes(memoryview(data)[ends[texts.offset] : ends[texts.offset + len(texts)]])
    return len(used.translate(None, characters.encode())) < len(used)


def column_text(array: pa.Array, separator: str = " ") -> pa.Array:
    """Return the text of each value, made once where values repeat; timestamps with ``separator`` before the time."""
    type_ = array.type
    if t.is_string(type_):
        return array
    if t.is_boolean(type_) or t.is_integer(type_) or t.is_large_string(type_) or t.is_string_view(type_):
        return array.cast(pa.string())
    if t.is_binary(type_):
        return _hex(array, "\\x")
    if t.is_nested(type_):
        return pc.if_else(array.is_valid(), _jsons(array), None)
    bits = _bits(array)
    if bits is None or 2 * pc.count_distinct(some := bits.slice(0, _SAMPLE)).as_py() > len(some):
        return _distinct_text(array, separator)
    coded = bits.dictionary_encode()
    return _distinct_text(coded.dictionary.view(type_), separator).take(coded.indices)


def _bits(array: pa.Array) -> pa.Array | None:
    """Return values that Arrow can hash and that are equal where those of the array are the same, if there are any."""
    type_ = array.type
    if t.is_floating(type_) or t.is_date(type_) or t.is_time(type_) or t.is_timestamp(type_) or t.is_duration(type_):
        return array.view({16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[type_.bit_width])
    return array if t.is_decimal(type_) else None


def _distinct_text(array: pa.Array, separator: str) -> pa.Array:
    type_ = array.type
    if t.is_floating(type_):
        return _floats(array)
    if t.is_decimal(type_) and 0 <= type_.scale <= _MAX_SCALE:
        return array.cast(pa.string())
    if t.is_decimal(type_) and type_.scale > _MAX_SCALE and type_.precision > type_.scale:
        # Those with fewer leading zeros than that have no exponent.
        small = pc.less(pc.abs(array), pa.scalar(decimal.Decimal(1).scaleb(-_MAX_SCALE), type_))
        return _replaced(array.cast(pa.string()), array, small)
    if t.is_time(type_) and type_.unit != "ns":
        moments, ticks = array.view(pa.int32() if type_.bit_width == 32 else pa.int64()), values.PER_SECOND[type_.unit]
        moments = moments.cast(pa.int64())
        if _are_within(moments, 0, values.DAY * ticks - 1):
            return pc.utf8_slice_codeunits(_timestamps(moments.view(pa.timestamp(type_.unit)), moments, ticks, " "), 11)
    if t.is_date(type_):
        days = array.cast(pa.date32())
        if _are_within(days.view(pa.int32()), _FIRST_DAY, _LAST_DAY):
            return days.cast(pa.string())
    if not t.is_timestamp(type_):
        return pa.array(values.texts(array), pa.string())
    if type_.tz in (None, "UTC") and type_.unit != "ns":
        moments, ticks = array.view(pa.int64()), values.PER_SECOND[type_.unit]
        if _are_within(moments, _FIRST_DAY * values.DAY * ticks, _LAST_DAY * values.DAY * ticks):
            found = _timestamps(array.view(pa.timestamp(type_.unit)), moments, ticks, separator)
            return found if type_.tz is None else pc.binary_join_element_wise(found, "+00:00", "")
    return pa.array(values.timestamps(array, separator), pa.string())


def _are_within(numbers: pa.Array, first: int, last: int) -> bool:
    found = pc.min_max(numbers).as_py()
    return found["min"] is None or (first <= found["min"] and found["max"] <= last)


def _timestamps(array: pa.Array, moments: pa.Array, ticks: int, separator: str) -> pa.Array:
    fraction = pc.subtract(moments, pc.multiply(pc.divide(moments, ticks), ticks))
    found = array.cast(pa.timestamp("s"), safe=False).cast(pa.string())
    if pc.any(has_fraction := pc.not_equal(fraction, 0)).as_py():
        found = pc.if_else(has_fraction, array.cast(pa.timestamp("us")).cast(pa.string()), found)
    return found if separator == " " else pc.replace_substring(found, " ", separator)


def _floats(array: pa.Array) -> pa.Array:
    size = pc.abs(array.cast(pa.float32()) if t.is_float16(array.type) else array)
    alike = pc.or_(pc.equal(size, 0), pc.and_(pc.greater_equal(size, _SMALLEST), pc.less(size, _LARGEST)))
    found = array.cast(pa.string())
    found = pc.if_else(pc.match_substring(found, "."), found, pc.binary_join_element_wise(found, ".0", ""))
    return _replaced(found, array, pc.invert(alike))


def _replaced(texts: pa.Array, array: pa.Array, other: pa.Array) -> pa.Array:
    """Return texts of values, of some ``other`` ones as Python writes them."""
    other = other.fill_null(False)
    if not pc.any(other).as_py():
        return texts
    return pc.replace_with_mask(texts, other, pa.array(values.texts(array.filter(other)), pa.string()))
