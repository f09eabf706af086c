"""Roaring bitmaps of 64-bit numbers in the portable format, and the deletion vectors of lakes that are made of them."""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.arrays import array_of, constant

_RUNS, _NO_RUNS = 12347, 12346  # cookies of bitmaps of 32-bit numbers
_NO_OFFSETS = 4  # containers, below which there are no offsets where some are runs
_MOST_LISTED = 4096  # numbers of a container; more are bits
_BITS = 1 << 16
MAX_NUMBERS = 1 << 31
MAGIC = struct.pack("<I", 1_681_511_377)  # before the bitmap of a deletion vector


def rows_of(data: bytes, count: int, *, is_framed: bool) -> pa.Array:
    """Return the ``count`` rows of a deletion vector, ascending; raises ValueError, and struct.error for torn ones.

    In files it ``is_framed``: its length stands before it, and its checksum behind it.
    """
    if is_framed:
        length, data, crc = data[:4], data[4:-4], data[-4:]
        if length != struct.pack(">I", len(data)):
            raise ValueError("a deletion vector of another size stands there")
        if crc != struct.pack(">I", zlib.crc32(data)):
            raise ValueError("the checksum of the deletion vector is another one")
    if not data.startswith(MAGIC):
        raise ValueError("no deletion vector stands there")
    found = numbers_of(data[len(MAGIC) :])
    if len(found) != count:
        raise ValueError(f"the deletion vector has {len(found):,} rows, not {count:,}")
    return found


def numbers_of(data: bytes) -> pa.Array:
    """Return the numbers of a bitmap, ascending; raises ValueError for other bytes, and struct.error for torn ones."""
    reader, found = _Bytes(data), []
    for _ in range(reader.one("<Q")):
        high = reader.one("<I")
        found += _of_32_bits(reader, high << 32) if not high >> 31 else []
        if high >> 31 or sum(map(len, found)) > MAX_NUMBERS:
            raise ValueError("it holds too many or too large numbers")
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes stand behind it")
    return pa.concat_arrays(found) if found else pa.nulls(0, pa.int64())


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def one(self, form: str) -> int:
        (found,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(found)

    def array(self, type_: pa.DataType, count: int) -> pa.Array:
        size = (count * type_.bit_width + 7) // 8
        start, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise ValueError("it is torn")
        return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(self.data[start : self.at])])


def _of_32_bits(reader: _Bytes, base: int) -> list[pa.Array]:
    cookie = reader.one("<I")
    with_runs = cookie & 0xFFFF == _RUNS
    if not with_runs and cookie != _NO_RUNS:
        raise ValueError(f"{cookie} is no cookie of a bitmap")
    count = (cookie >> 16) + 1 if with_runs else reader.one("<I")
    if count > _BITS:
        raise ValueError(f"{count} containers are too many")
    are_runs = reader.array(pa.bool_(), count).to_pylist() if with_runs else [False] * count
    heads = reader.array(pa.uint16(), 2 * count).to_pylist()
    if not with_runs or count >= _NO_OFFSETS:
        reader.array(pa.uint32(), count)
    found = []
    for is_run, key, size in zip(are_runs, heads[::2], heads[1::2], strict=True):
        if is_run:
            ends = reader.array(pa.uint16(), 2 * reader.one("<H")).to_pylist()
            runs = [range(first, first + more + 1) for first, more in zip(ends[::2], ends[1::2], strict=True)]
            low = pa.concat_arrays([array_of(run, pa.int64()) for run in runs]) if runs else pa.nulls(0, pa.int64())
        elif size < _MOST_LISTED:
            low = reader.array(pa.uint16(), size + 1).cast(pa.int64())
        else:
            low = pc.indices_nonzero(reader.array(pa.bool_(), _BITS)).cast(pa.int64())
        if len(low) != size + 1:
            raise ValueError(f"a container holds {len(low)} numbers, not {size + 1}")
        found.append(pc.add(low, constant(base + (key << 16), pa.int64())))
    return found


def encoded(numbers: Sequence[int]) -> bytes:
    """Return the bitmap of ascending numbers."""
    by_high: dict[int, dict[int, array[int]]] = {}
    for number in numbers:
        by_high.setdefault(number >> 32, {}).setdefault(number >> 16 & 0xFFFF, array("H")).append(number & 0xFFFF)
    found = struct.pack("<Q", len(by_high))
    for high, containers in by_high.items():
        heads = b"".join(struct.pack("<HH", key, len(low) - 1) for key, low in containers.items())
        bodies = [_container(low) for low in containers.values()]
        begin = 8 + len(heads) + 4 * len(bodies)
        starts = accumulate(map(len, bodies[:-1]), initial=begin)
        found += struct.pack("<III", high, _NO_RUNS, len(bodies)) + heads
        found += b"".join([*(struct.pack("<I", at) for at in starts), *bodies])
    return found


def _container(low: array[int]) -> bytes:
    if len(low) <= _MOST_LISTED:
        return struct.pack(f"<{len(low)}H", *low)
    bits = bytearray(_BITS // 8)
    for number in low:
        bits[number >> 3] |= 1 << (number & 7)
    return bytes(bits)
