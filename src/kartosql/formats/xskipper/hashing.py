"""Bloom filters of many values at once: the hashes of bloom.py over arrays, with numpy where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.arrays import array_of
from kartosql.formats.xskipper.bloom import BLOCK, Shape, block_head, build, cell_of, header_of

_HASHES = 1 << 18  # found at once: their arrays stay in the processor's cache
_BYTES = 1 << 20  # of texts that are hashed at once


def prepared(values: pa.Array) -> pa.Array:
    """Return integers as those of 64 bits, and texts as their bytes, once each; without NULL, which is no value."""
    if values.null_count:
        values = values.drop_null()
    if not pa.types.is_integer(values.type):
        return pc.unique(values).cast(pa.large_binary())
    return values if values.type == pa.int64() else values.cast(pa.int64())


def filters_of(files: Sequence[Sequence[pa.Array]], shape: Shape) -> pa.Array:
    """Return the cells of filters, one for each file, of all its values as ``prepared`` returns them."""
    numpy = _numpy()
    if numpy is None:
        cells = [cell_of(shape, build([v for a in arrays for v in a.to_pylist()], shape)) for arrays in files]
        return array_of(cells, pa.binary())
    builder = FilterBuilder(shape)
    rows = _Cells(numpy, shape, len(files))
    for pieces in _chunks(files, builder.at_once):
        places = builder.places(pa.concat_arrays([array for _, array in pieces]))
        start = 0
        for number, array in pieces:
            while rows.count < number:
                rows.add(builder.taken())
            builder.mark(places[:, start : start + len(array)])
            start += len(array)
    while rows.count < len(files):
        rows.add(builder.taken())
    return rows.array()


def _chunks(files: Sequence[Sequence[pa.Array]], size: int) -> Iterator[list[tuple[int, pa.Array]]]:
    """Yield the arrays of files in order, with the numbers of their files, as many at once as have ``size`` values."""
    held: list[tuple[int, pa.Array]] = []
    left = size
    for number, arrays in enumerate(files):
        for array in arrays:
            start = 0
            while start < len(array):
                piece = array.slice(start, left)
                held.append((number, piece))
                start += len(piece)
                left -= len(piece)
                if not left:
                    yield held
                    held, left = [], size
    if held:
        yield held


class FilterBuilder:
    """Collects the values of one filter: integers of any width, or text. NULL is no value."""

    def __init__(self, shape: Shape) -> None:
        assert shape.version == 1
        self._shape = shape
        self._numpy = np = _numpy()
        self._words = bytes(shape.bits // 8)
        self.at_once = max(256, _HASHES // shape.hashes)
        if np is not None:
            self._flags = np.zeros(shape.bits, np.bool_)
            self._places = np.empty((shape.hashes, self.at_once), np.intp)
            self._spare = np.empty((2, self.at_once), np.uint32)

    def add(self, values: pa.Array) -> None:
        """Put values into the filter."""
        values = prepared(values)
        if self._numpy is None:
            words = build(values.to_pylist(), self._shape)
            joined = int.from_bytes(self._words, "big") | int.from_bytes(words, "big")
            self._words = joined.to_bytes(len(words), "big")
            return
        for start in range(0, len(values), self.at_once):
            self.mark(self.places(values.slice(start, self.at_once)))

    def words(self) -> bytes:
        """Return the words of the filter."""
        if self._numpy is None:
            return self._words
        packed: bytes = self._packed().byteswap().tobytes()
        return packed

    # -- with numpy ----------------------------------------------------------------------------

    def mark(self, places: Any) -> None:
        """Set the bits that ``places`` returned, one row for each hash."""
        for row in places:
            self._flags[row] = True

    def taken(self) -> Any:
        """Return the words of the filter as integers, and leave it empty for the next file."""
        packed = self._packed()
        self._flags.fill(False)
        return packed

    def _packed(self) -> Any:
        return self._numpy.packbits(self._flags, bitorder="little").view("<u8")

    def places(self, values: pa.Array) -> Any:
        """Return which bits values have, ``at_once`` of them at most; good until it is called again."""
        np, bits = self._numpy, self._shape.bits
        first, second = self._integers(values) if pa.types.is_integer(values.type) else self._texts(values)
        combined, second = first.view(np.int32), second.view(np.int32)
        places, (bit, whole) = self._places[:, : len(values)], self._spare[:, : len(values)]
        for row in places:
            combined += second
            # Of negative numbers, all bits are turned over.
            np.right_shift(combined, 31, out=whole.view(np.int32))
            np.bitwise_xor(combined.view(np.uint32), whole, out=bit)
            # There is no fast remainder, but fast quotients.
            np.floor_divide(bit, bits, out=whole)
            whole *= bits
            bit -= whole
            row[:] = bit
        return places

    def _integers(self, values: pa.Array) -> tuple[Any, Any]:
        np = self._numpy
        content = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values)]
        # Little-endian, so the low half of each number is the first of two.
        halves = content.astype("<i8", copy=False).view("<u4")
        return self._both([halves[0::2], halves[1::2]], 8, len(values))

    def _texts(self, values: pa.Array) -> tuple[Any, Any]:
        """Hash texts of equal length together."""
        np = self._numpy
        offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
        data = values.buffers()[2]
        content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
        lengths = np.diff(offsets)
        found = np.empty((2, len(values)), np.uint32)
        for length in np.unique(lengths).tolist():
            places = np.flatnonzero(lengths == length)
            step = 1 + _BYTES // (length + 1)
            for some in np.split(places, range(step, len(places), step)):
                rows = content[offsets[some][:, None] + np.arange(length)]
                whole = length & ~3
                blocks = rows[:, :whole].copy().view("<u4")
                # Each byte of the tail is a block of its own, with its sign.
                tail = rows[:, whole:].astype(np.int8).astype(np.int32).view(np.uint32)
                found[:, some] = self._both([*blocks.T, *tail.T], length, len(some))
        return found[0], found[1]

    def _both(self, blocks: list[Any], length: int, count: int) -> tuple[Any, Any]:
        """Return the two hashes of values that have a length in bytes, from their blocks."""
        np = self._numpy
        mixed = [self._premixed(np.array(b, np.uint32)) for b in blocks]
        first = self._murmur(mixed, np.full(count, self._shape.seed & 0xFFFFFFFF, np.uint32), length)
        return first, self._murmur(mixed, first.copy(), length)

    def _premixed(self, block: Any) -> Any:
        block *= 0xCC9E2D51
        self._rotate(block, 15)
        block *= 0x1B873593
        return block

    def _murmur(self, premixed: list[Any], mixed: Any, length: int) -> Any:
        for block in premixed:
            mixed ^= block
            self._rotate(mixed, 13)
            mixed *= 5
            mixed += 0xE6546B64
        mixed ^= length
        for bits, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
            mixed ^= self._numpy.right_shift(mixed, bits, out=self._spare[0, : len(mixed)])
            if factor > 1:
                mixed *= factor
        return mixed

    def _rotate(self, block: Any, bits: int) -> None:
        high = self._numpy.right_shift(block, 32 - bits, out=self._spare[0, : len(block)])
        block <<= bits
        block |= high


class _Cells:
    """Cells one after the other in one buffer, as Arrow has them."""

    def __init__(self, numpy: Any, shape: Shape, count: int) -> None:
        blank = cell_of(shape, bytes(shape.bits // 8))
        header = header_of(shape)
        self.count = 0
        self._blank = numpy.frombuffer(blank, numpy.uint8)
        self._cells = numpy.empty((count, len(blank)), numpy.uint8)
        # The words begin at a multiple of eight bytes.
        self._data = numpy.zeros(16 + shape.bits // 8, numpy.uint8)[16 - len(header) :]
        self._data[: len(header)] = numpy.frombuffer(header, numpy.uint8)
        self._words = self._data[len(header) :].view(">u8")

    def add(self, words: Any) -> None:
        """Write a filter into the next cell."""
        cell = self._cells[self.count]
        self.count += 1
        cell[:] = self._blank
        self._words[:] = words
        data, end = self._data, len(cell) - 1
        whole, rest = divmod(len(data), BLOCK)
        if rest:
            cell[end - rest : end] = data[-rest:]
            end -= rest + len(block_head(rest))
        head = len(block_head(BLOCK))
        blocks = cell[end - whole * (head + BLOCK) : end].reshape(whole, head + BLOCK)
        blocks[:, head:] = data[: whole * BLOCK].reshape(whole, BLOCK)

    def array(self) -> pa.Array:
        """Return the cells."""
        count, length = self._cells.shape
        offsets = array_of(range(0, count * length + 1, length), pa.int32())
        return pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(self._cells)])


def _numpy() -> Any:
    # The command line starts without it, but making filters without it takes much longer than to import it.
    if "numpy" in sys.modules and sys.modules["numpy"] is None:
        del sys.modules["numpy"]
    try:
        import numpy
    except ImportError:
        return None
    return numpy
