"""Bloom filters of many values at once: the hashes of bloom.py over arrays, with numpy where it is installed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.xskipper.bloom import Shape, build

_CHUNK = 1 << 15  # values hashed at once: their arrays stay in the processor's cache


class FilterBuilder:
    """Collects the values of one file: integers of any width, or text. NULL is no value."""

    def __init__(self, shape: Shape) -> None:
        assert shape.version == 1
        self._shape = shape
        self._numpy = _numpy()
        # Word by word, with the bits of each word the other way round: packed, that is big-endian.
        self._flags = self._numpy.zeros(shape.bits, self._numpy.bool_) if self._numpy else None
        self._words = bytes(shape.bits // 8)

    def add(self, values: pa.Array) -> None:
        """Put values into the filter."""
        if values.null_count:
            values = values.drop_null()
        if not pa.types.is_integer(values.type):
            values = pc.unique(values)
        if self._numpy is None:
            words = build(values.to_pylist(), self._shape)
            joined = int.from_bytes(self._words, "big") | int.from_bytes(words, "big")
            self._words = joined.to_bytes(len(words), "big")
            return
        for start in range(0, len(values), _CHUNK):
            part = values.slice(start, _CHUNK)
            if pa.types.is_integer(part.type):
                self._add_integers(part)
            else:
                self._add_texts(part)

    def words(self) -> bytes:
        """Return the words of the filter."""
        if self._numpy is None:
            return self._words
        packed: bytes = self._numpy.packbits(self._flags).tobytes()
        return packed

    def _add_integers(self, values: pa.Array) -> None:
        np = self._numpy
        # Little-endian, so the low half of each number is the first of two.
        numbers = values.cast(pa.int64())
        content = np.frombuffer(numbers.buffers()[1], np.int64)[numbers.offset : numbers.offset + len(numbers)]
        halves = content.astype("<i8", copy=False).view("<u4")
        self._mark([np.ascontiguousarray(halves[0::2]), np.ascontiguousarray(halves[1::2])], 8)

    def _add_texts(self, values: pa.Array) -> None:
        """Hash texts of equal length together."""
        np = self._numpy
        array = values.cast(pa.large_binary())
        offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
        data = array.buffers()[2]
        content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
        lengths = np.diff(offsets)
        for length in np.unique(lengths).tolist():
            starts = offsets[:-1][lengths == length]
            rows = content[starts[:, None] + np.arange(length)] if length else np.zeros((len(starts), 0), np.uint8)
            whole = length & ~3
            blocks = rows[:, :whole].copy().view("<u4")
            tail = rows[:, whole:].astype(np.int8).astype(np.int32).view(np.uint32)
            columns = [*(blocks[:, i] for i in range(whole // 4)), *(tail[:, i] for i in range(length - whole))]
            self._mark([np.ascontiguousarray(c) for c in columns], length, len(starts))

    def _mark(self, blocks: list[Any], length: int, count: int | None = None) -> None:
        np, shape = self._numpy, self._shape
        count = len(blocks[0]) if count is None else count
        mixed = [self._premixed(b) for b in blocks]
        first = self._murmur(mixed, np.full(count, shape.seed & 0xFFFFFFFF, np.uint32), length)
        second = self._murmur(mixed, first, length).view(np.int32)
        combined = first.view(np.int32).copy()
        for _ in range(shape.hashes):
            combined += second
            bit = (combined ^ (combined >> 31)).view(np.uint32)
            if shape.bits <= 0xFFFFFFFF:
                bit = bit - bit // np.uint32(shape.bits) * np.uint32(shape.bits)
            assert self._flags is not None
            self._flags[bit ^ np.uint32(63)] = True

    def _premixed(self, block: Any) -> Any:
        np = self._numpy
        block = block * np.uint32(0xCC9E2D51)
        block = (block << np.uint32(15)) | (block >> np.uint32(17))
        block *= np.uint32(0x1B873593)
        return block

    def _murmur(self, premixed: list[Any], seed: Any, length: int) -> Any:
        np = self._numpy
        mixed = seed.copy()
        for block in premixed:
            mixed ^= block
            mixed = (mixed << np.uint32(13)) | (mixed >> np.uint32(19))
            mixed *= np.uint32(5)
            mixed += np.uint32(0xE6546B64)
        mixed ^= np.uint32(length)
        mixed ^= mixed >> np.uint32(16)
        mixed *= np.uint32(0x85EBCA6B)
        mixed ^= mixed >> np.uint32(13)
        mixed *= np.uint32(0xC2B2AE35)
        mixed ^= mixed >> np.uint32(16)
        return mixed


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy
