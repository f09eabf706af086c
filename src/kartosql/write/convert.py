"""Values as the type that they are stored in: converted where none of them changes, refused where one would."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_DIGITS = 38  # of the widest decimals that every reader has
_SHOWN = 60


def may_become(given: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether a statement converts columns of one type to another, as far as no value changes.

    That is between numbers, between dates and times of the same kind, from text to dates and
    times, and from NULL to anything.
    """
    t = pa.types
    if t.is_null(given) or t.is_null(stored):
        return bool(t.is_null(given))
    if t.is_timestamp(given) and t.is_timestamp(stored):
        return (given.tz is None) == (stored.tz is None)
    if t.is_date(stored) or (t.is_timestamp(stored) and stored.tz is None):
        return bool(t.is_date(given) or (t.is_timestamp(given) and given.tz is None) or t.is_string(given))
    return _is_number(given) and _is_number(stored)


def converted(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the values of a column as ``type_``; raises ValueError, which names the first that would change.

    Each value is converted, converted back, and compared: with the sign of zero, and one NaN
    like another. Text is only read, as it writes one value in several ways.
    """
    if pa.types.is_dictionary(column.type):
        return _decoded(column, type_)
    found = _unchanged(column, type_)
    if found is None:
        raise ValueError(_text(column, _first_change(column, type_)))
    return found


def _decoded(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the values of a dictionary, converted before they are taken, which those of views cannot be."""
    chunks = []
    for chunk in column.chunks:
        values = converted(pa.chunked_array([chunk.dictionary]), type_).combine_chunks()
        chunks.append(values.take(chunk.indices))
    return pa.chunked_array(chunks, type_)


def _unchanged(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray | None:
    """Return the values as ``type_``, None if one of them is another then."""
    given = column.type
    if given.equals(type_):
        return column
    try:
        found = _cast(column, type_)
        # Arrow itself sees to the others: text, times, and layouts.
        compared = _is_number(given) or pa.types.is_timestamp(given)
        return found if not compared or _same(column, _cast(found, given)) else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _first_change(column: pa.ChunkedArray, type_: pa.DataType) -> int:
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        if _unchanged(column.slice(low, middle - low), type_) is None:
            high = middle
        else:
            low = middle
    return low


def _text(column: pa.ChunkedArray, at: int) -> str:
    try:
        text = column.slice(at, 1).cast(pa.string())[0].as_py()
    except pa.ArrowNotImplementedError:
        text = str(column[at])
    return str(text)[:_SHOWN]


def _is_number(type_: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_decimal(type_))


# -- one way -----------------------------------------------------------------------------------


def _cast(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the nearest values of ``type_``; where Arrow checks for itself what changes, it raises."""
    t = pa.types
    given = column.type
    if t.is_floating(given):
        if t.is_decimal(type_):
            return _float_to_decimal(column, type_)
        if t.is_integer(type_):
            return _float_to_decimal(column, pa.decimal128(_DIGITS, 0)).cast(type_)
        return column.cast(type_, safe=False) if t.is_floating(type_) else column.cast(type_)
    if t.is_integer(given) and (t.is_decimal(type_) or t.is_floating(type_)):
        # Arrow looks at the widths of the types, not at the values.
        column = column.cast(pa.decimal128(20, 0))
    if t.is_decimal(column.type) and t.is_floating(type_):
        # Its own conversion misses the nearest double now and then.
        return column.cast(pa.string()).cast(type_)
    return column.cast(type_)


def _float_to_decimal(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the decimals of the shortest texts, 0.1 of 0.1; whole numbers beyond all fractions are exact."""
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    beyond = pc.greater_equal(pc.abs(column), 2.0 ** (24 if pa.types.is_float32(column.type) else 53))
    none = pa.scalar(None, column.type)
    short = pc.if_else(beyond, none, column).cast(pa.string()).cast(type_)
    if not pc.any(beyond).as_py():
        return short
    return pc.coalesce(pc.if_else(beyond, column, none).cast(pa.decimal128(_DIGITS, 0)).cast(type_), short)


# -- and back ----------------------------------------------------------------------------------


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    if not pa.types.is_floating(left.type):
        return bool(left.equals(right))
    equal = pc.or_(pc.equal(_bits(left), _bits(right)), pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return pc.all(equal).as_py() is not False


def _bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    return pa.chunked_array([chunk.view(type_) for chunk in column.chunks], type_)
