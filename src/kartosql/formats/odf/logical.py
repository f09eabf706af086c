"""The logical hash of records (arrow0-sha3-256): the same for equal rows, however they are laid out.

Names, types and values count, and the order of rows; batches, encodings and layouts do not. Source:
facts about arrow-digest, which tools of Open Data Fabric use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from struct import pack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.odf.hashes import logical_hash
from kartosql.text.types import type_name

_DECIMAL, _DATE, _TIME, _TIMESTAMP, _LIST = 6, 7, 8, 9, 11
_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_ROWS = 16_384  # encoded at once
_NULL = b"\0"


class NotCheckable(Exception):
    """There is no logical hash of these records, and why."""


class RecordDigest:
    """The logical hash of batches that are added one after another."""

    def __init__(self, schema: pa.Schema) -> None:
        """Take a schema; raises NotCheckable for types that have no hash."""
        self._head = hashlib.sha3_256()
        self._columns: list[Any] = []
        self._nulls: list[list[int]] = []  # of each column: how many there are on each level of structs
        for field, level in _walk(schema, 0):
            name = field.name.encode()
            self._head.update(pack("<Q", len(name)) + name + pack("<Q", level))
            if not pa.types.is_struct(field.type):
                self._columns.append(hashlib.sha3_256(_tag(field.type)))
                self._nulls.append([0] * (level + 1))

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        for start in range(0, batch.num_rows, _ROWS):
            part = batch.slice(start, _ROWS)
            leaves = [leaf for column in part.columns for leaf in _leaves(column, [])]
            for i, (array, nulls) in enumerate(leaves):
                self._columns[i].update(_content(_encode(array)))
                self._nulls[i] = [a + b for a, b in zip(self._nulls[i], nulls, strict=True)]

    def hash(self) -> bytes:
        """Return the multihash; raises NotCheckable.

        The original takes a member of a struct for NULL only where its struct and itself are, as
        soon as both have NULLs. Where that makes a difference it hashed bytes that nobody wrote.
        """
        for nulls in self._nulls:
            if len(set(filter(None, nulls))) > 1:
                raise NotCheckable("a member of a struct is NULL where the struct is not, and the struct has NULLs too")
        head = self._head.copy()
        for column in self._columns:
            head.update(column.digest())
        return logical_hash(head.digest())


def logical_hash_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    """Return the logical hash of records as a multihash; raises NotCheckable if they have none."""
    digest = RecordDigest(schema)
    for batch in batches:
        digest.update(batch)
    return digest.hash()


def _walk(fields: Iterable[pa.Field], level: int) -> Iterator[tuple[pa.Field, int]]:
    for field in fields:
        yield field, level
        if pa.types.is_struct(field.type):
            yield from _walk(field.type, level + 1)


def _leaves(array: pa.Array, above: list[int]) -> Iterator[tuple[pa.Array, list[int]]]:
    """Yield the columns that are hashed, and how many NULLs they and the structs around them have."""
    # Members of structs are NULL where the struct is.
    nulls = [*above, array.null_count]
    if not pa.types.is_struct(array.type):
        yield array, nulls
        return
    for member in array.flatten():
        yield from _leaves(member, nulls)


def _tag(type_: pa.DataType) -> bytes:
    t = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        raise NotCheckable(f"there is no logical hash for {type_name(type_)}")
    if t.is_integer(type_):
        return pack("<HBQ", 1, t.is_signed_integer(type_), type_.bit_width)
    if t.is_floating(type_):
        return pack("<HQ", 2, type_.bit_width)
    if t.is_timestamp(type_):
        zone = _NULL if type_.tz is None else pack("<Q", len(type_.tz.encode())) + type_.tz.encode()
        return pack("<HH", _TIMESTAMP, _UNITS[type_.unit]) + zone
    if t.is_decimal128(type_) or t.is_decimal256(type_):
        return pack("<HQQQ", _DECIMAL, type_.bit_width, type_.precision, type_.scale % (1 << 64))
    if t.is_date(type_):
        return pack("<HQH", _DATE, type_.bit_width, t.is_date64(type_))
    if t.is_time(type_):
        return pack("<HQH", _TIME, type_.bit_width, _UNITS[type_.unit])
    if t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_):
        return pack("<H", _LIST) + _tag(type_.value_type)
    for tag, tests in _SIMPLE.items():
        if any(is_a(type_) for is_a in tests):
            return pack("<H", tag)
    raise NotCheckable(f"there is no logical hash for {type_name(type_)}")


_SIMPLE: dict[int, tuple[Callable[[pa.DataType], bool], ...]] = {
    3: (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    4: (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    5: (pa.types.is_boolean,),
}


def _encode(array: pa.Array) -> pa.Array:
    """Return for each value the bytes that are hashed, a zero byte for NULL."""
    t = pa.types
    type_ = array.type
    if t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_):
        return _with_length(pc.list_value_length(array), _joined(array))
    if t.is_boolean(type_):
        return _fixed(pc.add(array.cast(pa.uint8()), pa.scalar(1, pa.uint8())))
    if t.is_fixed_size_binary(type_) or t.is_binary_view(type_) or t.is_string_view(type_):
        array = array.cast(pa.large_binary() if not t.is_string_view(type_) else pa.large_string())
    if t.is_large_string(array.type) or t.is_string(array.type):
        array = array.cast(pa.large_string()).cast(pa.large_binary())
    if t.is_binary(array.type) or t.is_large_binary(array.type):
        return _with_length(pc.binary_length(array), array.cast(pa.large_binary()))
    return _fixed(array)


def _fixed(array: pa.Array) -> pa.Array:
    """Return the values of a type of fixed width as bytes."""
    if len(array) == 0:
        return pa.array([], pa.large_binary())
    # View takes the buffers as they are; a slice is made into an array of its own before.
    whole = pa.concat_arrays([array])
    return pc.fill_null(whole.view(pa.binary(array.type.bit_width // 8)).cast(pa.large_binary()), _NULL)


def _with_length(lengths: pa.Array, content: pa.Array) -> pa.Array:
    stored = _fixed(pc.fill_null(lengths.cast(pa.int64()), 0))
    return pc.fill_null(pc.binary_join_element_wise(stored, content, pa.scalar(b"", pa.large_binary())), _NULL)


def _joined(array: pa.Array) -> pa.Array:
    """Return for each list the bytes of its items, one after another."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_pylist()
    offsets = pa.array(list(accumulate(lengths, initial=0)), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, _encode(array.flatten()).cast(pa.binary()))
    joined = pc.binary_join(lists, pa.scalar(b"", pa.binary())).cast(pa.large_binary())
    return pc.if_else(pc.is_null(array), pa.scalar(None, pa.large_binary()), joined)


def _content(array: pa.Array) -> memoryview | bytes:
    """Return all values of an array of bytes, one after another."""
    if len(array) == 0:
        return b""
    whole = pa.concat_arrays([array])
    offsets, data = whole.buffers()[1:]
    begin = int.from_bytes(offsets[8 * whole.offset : 8 * whole.offset + 8].to_pybytes(), "little")
    end_at = 8 * (whole.offset + len(whole))
    end = int.from_bytes(offsets[end_at : end_at + 8].to_pybytes(), "little")
    return memoryview(data)[begin:end] if data is not None else b""
