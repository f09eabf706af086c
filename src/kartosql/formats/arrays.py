"""Python values as Arrow arrays, without pyarrow's own constructor.

``pyarrow.array`` imports pandas wherever it is installed, which costs more than a query.
"""

from __future__ import annotations

import datetime as dt
from array import array
from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa

_EPOCH = dt.date(1970, 1, 1).toordinal()


def array_of(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return ``values`` as an Arrow array of ``type_``.

    Timestamps are given as integers in the unit of the type.
    """
    t = pa.types
    has_nulls = not isinstance(values, range) and None in values
    if has_nulls:
        return _with_nulls(values, type_)
    if t.is_string(type_):
        joined = "".join(values)
        if joined.isascii():
            return _sliced(list(map(len, values)), joined.encode(), type_)
        return texts([v.encode("utf-8") for v in values], type_)
    if t.is_binary(type_):
        return texts(values, type_)
    letter = "q" if t.is_timestamp(type_) else _LETTERS.get(type_)
    if letter is not None:
        if t.is_date32(type_):
            values = [v.toordinal() - _EPOCH for v in values]
        return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(array(letter, values).tobytes())])
    if t.is_boolean(type_):
        bits = int("".join("1" if v else "0" for v in reversed(values)) or "0", 2).to_bytes(
            len(values) // 8 + 1, "little"
        )
        return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(bits)])
    if t.is_decimal128(type_) and all(v.as_tuple().exponent >= -type_.scale for v in values):
        return _decimals(values, type_)
    return pa.array(values, type_)


def _with_nulls(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    given = [v for v in values if v is not None]
    if not given:
        return pa.nulls(len(values), type_)
    filled = array_of([given[0] if v is None else v for v in values], type_)
    valid = array_of([v is not None for v in values], pa.bool_())
    return pa.Array.from_buffers(type_, len(values), [valid.buffers()[1], *filled.buffers()[1:]])


def texts(encoded: Sequence[bytes], type_: pa.DataType) -> pa.Array:
    """Return encoded texts or bytes as an Arrow array of ``type_``, string or binary."""
    return _sliced(list(map(len, encoded)), b"".join(encoded), type_)


def _sliced(lengths: Sequence[int], data: bytes, type_: pa.DataType) -> pa.Array:
    offsets = array("i", [0])
    offsets.extend(accumulate(lengths))
    return pa.Array.from_buffers(type_, len(lengths), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)])


def _decimals(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    data = bytearray()
    for value in values:
        sign, digits, exponent = value.as_tuple()
        unscaled = int("".join(map(str, digits))) * 10 ** (type_.scale + exponent)
        data += (-unscaled if sign else unscaled).to_bytes(16, "little", signed=True)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(bytes(data))])


def decimal_of(unscaled: int, scale: int) -> Decimal:
    """Return ``unscaled`` / 10 ** ``scale`` exactly; Decimal's own arithmetic rounds to the digits of its context."""
    return Decimal(f"{unscaled}E{-scale}")


def integers_as(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return values as an array; decimals, dates and times are given as the integers that Arrow has for them."""
    if pa.types.is_decimal128(type_):
        data = b"".join([value.to_bytes(16, "little", signed=True) for value in values])
        return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(data)])
    return array_of(values, pa.int32() if pa.types.is_date32(type_) else type_).view(type_)


def constant(value: Any, type_: pa.DataType) -> pa.Scalar:
    """Return ``value`` as an Arrow scalar of ``type_``; ``pyarrow.scalar`` imports pandas as well."""
    return array_of([value], type_)[0]


# Of Python's array module.
_LETTERS = {
    **dict(zip((pa.int8(), pa.int16(), pa.int32(), pa.int64()), "bhiq", strict=True)),
    **dict(zip((pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), "BHIQ", strict=True)),
    **dict(zip((pa.float32(), pa.float64(), pa.date32()), "fdi", strict=True)),
}
