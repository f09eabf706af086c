"""Text of large batches, whole columns at once by Arrow's kernels; the same as ``render.values`` gives.

What Arrow would spell in another way than we do is left to ``render.values``, for each distinct value once.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from kartosql.render import values

# Where Arrow writes a float with Python's digits, but for the ".0" of whole numbers.
_SMALLEST, _LARGEST = 1e-4, 1e9
_MAX_SCALE = 6  # Arrow writes decimals of more digits with an exponent
_JSON_SPECIAL = '"\\' + "".join(map(chr, range(0x20)))
_SAMPLE = 4_096  # values that tell whether they repeat


def csv_rows(batch: pa.RecordBatch, separator: str, special: str) -> memoryview:
    """Return the records of a batch by RFC 4180 in UTF-8, a line feed behind each; NULL is empty, empty text ``""``.

    Texts with one of the ASCII characters ``special`` are quoted.
    """
    pieces: list[Any] = []
    for column in map(values.plain, batch.columns):
        texts = _text(column)
        pieces += [texts if _is_bare(column.type) else _csv_cells(texts, special), separator]
    pieces[-1] = "\n"
    return _joined(pieces)


def json_rows(batch: pa.RecordBatch, before: str, after: str) -> memoryview:
    """Return the JSON objects of a batch in UTF-8, a text before and one behind each."""
    pieces: list[Any] = []
    end = f"{before}{{"
    for name, column in zip(values.json_names(batch.schema.names), batch.columns, strict=True):
        texts, quote = _json_cells(values.plain(column))
        pieces += [f"{end}{values.json_string(name)}:{quote}", texts]
        end = f"{quote},"
    return _joined([*pieces, f"{end[:-1]}}}{after}"])


def _joined(pieces: list[Any]) -> memoryview:
    """Return the bytes of all rows, each made of the pieces, columns and constants."""
    rows = pc.binary_join_element_wise(*pieces, "", null_handling="replace", null_replacement="")
    _, offsets, data = rows.buffers()
    return memoryview(data)[: memoryview(offsets).cast("i")[len(rows)]]


def _is_bare(type_: pa.DataType) -> bool:
    """Return whether no text of a value is empty or has a character that csv or JSON would quote."""
    return bool(t.is_boolean(type_) or t.is_temporal(type_) or values.is_number(type_))


def _csv_cells(texts: pa.Array, special: str) -> pa.Array:
    empty = pc.equal(texts, "")
    if _has(texts, special):
        needed = pc.or_(empty, pc.match_substring_regex(texts, _any_of(special)))
    elif pc.any(empty).as_py():
        needed = empty
    else:
        return texts
    return pc.if_else(needed, _in_quotes(pc.replace_substring(texts, '"', '""')), texts)


def _json_cells(array: pa.Array) -> tuple[pa.Array, str]:
    """Return the JSON of each value, and the quote that belongs around each."""
    type_ = array.type
    if t.is_nested(type_) or values.is_binary(type_):
        return pa.array(values.jsons(array), pa.string()), ""
    texts = _text(array, "T")
    if t.is_boolean(type_) or values.is_number(type_):
        if t.is_floating(type_) and not pc.all(pc.is_finite(array)).as_py():
            for text, found in values.JSON_FLOATS.items():
                texts = pc.if_else(pc.equal(texts, text), found, texts)
        return texts.fill_null("null"), ""
    if not t.is_temporal(type_) and _has(texts, _JSON_SPECIAL):
        special = pc.match_substring_regex(texts, _any_of(_JSON_SPECIAL)).fill_null(False)
        escaped = [values.json_string(text)[1:-1] for text in texts.filter(special).to_pylist()]
        texts = pc.replace_with_mask(texts, special, pa.array(escaped, pa.string()))
    return (_in_quotes(texts).fill_null("null"), "") if texts.null_count else (texts, '"')


def _in_quotes(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _any_of(characters: str) -> str:
    return f"[{re.escape(characters)}]"


def _has(texts: pa.Array, characters: str) -> bool:
    """Return whether any text has one of some ASCII characters; looks at the bytes of all at once."""
    _, offsets, data = texts.buffers()
    if data is None:
        return False
    ends = memoryview(offsets).cast("i")
    used = bytes(memoryview(data)[ends[texts.offset] : ends[texts.offset + len(texts)]])
    return len(used.translate(None, characters.encode())) < len(used)


def _text(array: pa.Array, separator: str = " ") -> pa.Array:
    """Return the text of each value, made once where values repeat; timestamps with ``separator`` before the time."""
    type_ = array.type
    if t.is_string(type_):
        return array
    if t.is_boolean(type_) or t.is_integer(type_) or t.is_large_string(type_) or t.is_string_view(type_):
        return array.cast(pa.string())
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
    if t.is_date(type_):
        days = array.cast(pa.date32())
        if _are_days_of_python(days.view(pa.int32()), 1):
            return days.cast(pa.string())
    if not t.is_timestamp(type_):
        return pa.array(values.texts(array), pa.string())
    if type_.tz in (None, "UTC") and type_.unit != "ns":
        moments, ticks = array.view(pa.int64()), values.PER_SECOND[type_.unit]
        if _are_days_of_python(moments, values.DAY * ticks):
            found = _timestamps(array.view(pa.timestamp(type_.unit)), moments, ticks, separator)
            return found if type_.tz is None else pc.binary_join_element_wise(found, "+00:00", "")
    return pa.array(values.timestamps(array, separator), pa.string())


def _are_days_of_python(numbers: pa.Array, per_day: int) -> bool:
    found = pc.min_max(numbers).as_py()
    first, last = values.PYTHON_DAYS[0] * per_day, values.PYTHON_DAYS[-1] * per_day
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
    other = pc.invert(alike).fill_null(False)
    if not pc.any(other).as_py():
        return found
    return pc.replace_with_mask(found, other, pa.array(values.texts(array.filter(other)), pa.string()))
