"""Spark's Bloom filters, bit for bit, and the Java object in which Xskipper keeps them.

A filter is ``int32 version | int32 hashes | (version 2: int32 seed) | int32 words | int64 * words``, big-endian;
bit i is bit ``i & 63`` of word ``i >> 6``. The object around it is fixed text, and cuts the filter in
blocks of 1,024 bytes, so that every bit has a known place in the cell.
"""

from __future__ import annotations

import math
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, pairwise, repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.arrays import constant
from kartosql.formats.xskipper.domain import OddCells
from kartosql.formats.xskipper.java import MAGIC, JavaObject, JavaStreamError, parse
from kartosql.formats.xskipper.segment import Index, Segment
from kartosql.settings import machine_memory
from kartosql.text.types import type_name

MAX_WORDS = 1 << 24  # 128 MiB, a thousand times the default
MAX_HASHES = 1024
DEFAULT_FPP = 0.01
DEFAULT_NDV = 100_000
BLOCK = 1024
_FILTERS = {"org.apache.spark.util.sketch.BloomFilterImpl": 1, "org.apache.spark.util.sketch.BloomFilterImplV2": 2}
_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Shape:
    """What decides which bits a value has: version of the hashing, number of hashes, seed, and bits (64 a word)."""

    version: int
    hashes: int
    seed: int
    bits: int

    def places(self, value: int | str | bytes) -> list[tuple[int, int]]:
        """Return the places of the bits of a value in the words: bytes, and masks."""
        return [((bit >> 6 << 3) + 7 - ((bit & 63) >> 3), 1 << (bit & 7)) for bit in self.positions(value)]

    def positions(self, value: int | str | bytes) -> list[int]:
        """Return the bits of a value; integers are those of 64 bits, text counts as UTF-8."""
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        first = murmur3(data, self.seed)
        second = murmur3(data, first)
        width = 32 if self.version == 1 else 64
        combined = first if self.version == 1 else _signed(first * 2147483647, 64)
        found = []
        for _ in range(self.hashes):
            combined = _signed(combined + second, width)
            found.append((~combined if combined < 0 else combined) % self.bits)
        return found


def _signed(number: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return ((number + half) & ((1 << bits) - 1)) - half


def murmur3(value: int | bytes, seed: int) -> int:
    """Return Spark's Murmur3_x86_32 as a signed number; each byte of the tail counts as a block of its own."""
    if isinstance(value, int):
        number = value & 0xFFFFFFFFFFFFFFFF
        blocks: Sequence[int] = (number & _MASK, number >> 32)
        length = 8
    else:
        length = len(value)
        whole = length & ~3
        tail = [b | 0xFFFFFF00 if b > 127 else b for b in value[whole:]]
        blocks = [*struct.unpack(f"<{whole // 4}I", value[:whole]), *tail]
    mixed = seed & _MASK
    for block in blocks:
        block = block * 0xCC9E2D51 & _MASK
        block = (block << 15 | block >> 17) & _MASK
        mixed ^= block * 0x1B873593 & _MASK
        mixed = (mixed << 13 | mixed >> 19) & _MASK
        mixed = mixed * 5 + 0xE6546B64 & _MASK
    mixed ^= length
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _MASK
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed & 0x80000000 else mixed


@lru_cache
def shape_for(fpp: float = DEFAULT_FPP, ndv: int = DEFAULT_NDV) -> Shape:
    """Return the shape of Spark's filters (version 1) for a share of false positives and a number of values."""
    bits = int(-ndv * math.log(fpp) / (math.log(2) * math.log(2)))
    # Java rounds halves up, Python to even numbers.
    hashes = max(1, math.floor(bits / ndv * math.log(2) + 0.5))
    return Shape(1, hashes, 0, 64 * max(1, -(-bits // 64)))


# -- cells -------------------------------------------------------------------------------------


class CellLayout:
    """The places of the bits of a filter in cells that begin with the same bytes and are as long as each other."""

    def __init__(self, cell: bytes) -> None:
        """Read a cell by the rules of Java's serialization; raises JavaStreamError if it is no filter."""
        self.shape, words = words_of(cell)
        self.length = len(cell)
        self._header = header = 12 if self.shape.version == 1 else 16
        # The object ends with the filter, so the place of its first block follows from its length.
        full, rest = divmod(header + len(words), BLOCK)
        blocks = full * (BLOCK + 5) + ((rest + (2 if rest <= 0xFF else 5)) if rest else 0)
        self._start = len(cell) - 1 - blocks
        self._full, self._rest = full, rest
        self.prefix = cell[: self._offset(header)]
        marks = [bytes([b]) * full for b in b"\x7a" + struct.pack(">i", BLOCK)]
        self._expected = [*marks, _block_head(rest) if rest else b"\x78", b"\x78"]
        if self._start < 0 or self._read_marks(cell) != self._expected:
            raise JavaStreamError("the filter is not cut into blocks of 1,024 bytes")

    def _offset(self, at: int) -> int:
        block = at // BLOCK
        last = 2 if block == self._full and self._rest <= 0xFF else 5
        return self._start + at + 5 * block + last

    def _read_marks(self, cell: bytes | memoryview) -> list[bytes]:
        end = self._start + self._full * (BLOCK + 5)
        marks = [bytes(cell[self._start + i : end : BLOCK + 5]) for i in range(5)]
        last = end + (2 if 0 < self._rest <= 0xFF else 5 if self._rest else 1)
        return [*marks, bytes(cell[end:last]), bytes(cell[-1:])]

    def fits(self, cell: bytes | memoryview) -> bool:
        """Return whether a cell has this layout."""
        begins = len(cell) == self.length and cell[: len(self.prefix)] == self.prefix
        return begins and self._read_marks(cell) == self._expected

    def probes(self, value: int | str | bytes) -> tuple[tuple[int, int], ...]:
        """Return where to look for a value: places in the cell, and masks."""
        return tuple((self._offset(self._header + byte), mask) for byte, mask in self.shape.places(value))


def words_of(cell: bytes) -> tuple[Shape, bytes]:
    """Return the shape and the words of the filter in a cell; raises JavaStreamError for what is no filter."""
    if len(cell) > 8 * MAX_WORDS + 64 * 1024:
        raise JavaStreamError(f"a filter of {len(cell):,} bytes is too large")
    value = parse(cell, whole=True)
    if isinstance(value, JavaObject) and value.class_name not in _FILTERS:
        value = value.fields.get("bloomFilter")
    if not isinstance(value, JavaObject) or value.class_name not in _FILTERS:
        raise JavaStreamError("the object holds no Bloom filter")
    if not all(isinstance(part, bytes) for part in value.content):
        raise JavaStreamError("the filter holds objects")
    data = b"".join(value.content)
    if data[:4] != struct.pack(">i", _FILTERS[value.class_name]):
        raise JavaStreamError("the version of the filter is not that of its class")
    numbers = struct.unpack_from(">4i", data) if len(data) >= 16 else ()
    if not numbers or numbers[0] not in (1, 2):
        raise JavaStreamError("the filter has an unknown version")
    version, hashes, third, fourth = numbers
    seed, words, header = (0, third, 12) if version == 1 else (third, fourth, 16)
    if not 0 < hashes <= MAX_HASHES or not 0 < words <= MAX_WORDS or len(data) != header + 8 * words:
        raise JavaStreamError(f"a filter with {hashes} hashes and {words} words in {len(data):,} bytes")
    return Shape(version, hashes, seed, 64 * words), data[header:]


# -- writing -----------------------------------------------------------------------------------

_ENVELOPE = (
    MAGIC
    + b"sr\x00\x2eio.xskipper.index.metadata.BloomFilterMetaData\x00\x00\x00\x00\x00\x00\x00\x01\x02\x00\x01"
    + b"L\x00\x0bbloomFiltert\x00\x2aLorg/apache/spark/util/sketch/BloomFilter;x"
    + b"r\x00\x27io.xskipper.index.metadata.MetadataType\x25\xe4\xf5\x53\x29\x2c\x5e\x68\x02\x00\x00xp"
    + b"sr\x00\x2corg.apache.spark.util.sketch.BloomFilterImpl\x39\x4d\x74\x92\x1a\x9b\xcc\x14\x03\x00\x02"
    + b"I\x00\x10numHashFunctionsL\x00\x04bitst\x00\x27Lorg/apache/spark/util/sketch/BitArray;xp"
)


def cell_of(shape: Shape, words: bytes) -> bytes:
    """Return the cell of a filter of version 1, as version 4 of the metadata keeps it."""
    assert shape.version == 1
    assert 8 * len(words) == shape.bits
    data = struct.pack(">3i", 1, shape.hashes, shape.bits // 64) + words
    pieces = [_ENVELOPE]
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        pieces += [_block_head(len(block)), block]
    return b"".join([*pieces, b"\x78"])


def _block_head(length: int) -> bytes:
    return struct.pack(">BB", 0x77, length) if length <= 0xFF else struct.pack(">Bi", 0x7A, length)


def build(values: Sequence[int | str | bytes], shape: Shape) -> bytes:
    """Return the words of a filter that holds some values."""
    bits = bytearray(shape.bits // 8)
    for value in values:
        for byte, mask in shape.places(value):
            bits[byte] |= mask
    return bytes(bits)


MAX_LAYOUTS = 64  # forms of cells in one column; cells of others are not looked at
MAX_READ = 16 << 30  # bytes of all filters of a row group
MAX_FAILURES = 64  # cells of one column that are no filters; after so many, others are not tried
MAX_VALUES = 1_000  # of one condition; longer lists are not looked for
_BATCH = 32
_CELL_BYTES = 200  # beside its words
_MOST_HELD = 5 << 28  # 1.25 GiB: 10,000 filters of the default size
_SHARE_OF_MEMORY = 10
_ZERO = constant(0, pa.int64())


class Budget:
    """How many bytes of filters may stay in memory; by default a tenth of the machine's, and 1.25 GiB at most."""

    def __init__(self, size: int | None = None) -> None:
        self._left = min(_MOST_HELD, machine_memory() // _SHARE_OF_MEMORY) if size is None else size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Return whether so many bytes may stay, and count them then."""
        with self._lock:
            fits = size <= self._left
            self._left -= size if fits else 0
            return fits


@dataclass(frozen=True)
class _Cell:
    """A filter: the number of its layout, and its bytes, or where it is in a batch that stays in memory.

    Of such a batch, ``data`` are the words of 64 bits that are not zero, and ``bitmap`` says of each whether
    it is one of them. Words are counted from the byte of the cell that is numbered ``origin``; in front of
    those from the byte ``start`` of the bitmap on, ``before`` words are not zero.
    """

    form: int
    data: memoryview
    bitmap: bytes | None = None
    origin: int = 0
    start: int = 0
    before: int = 0

    def has(self, probe: Sequence[tuple[int, int]]) -> bool:
        data, bitmap = self.data, self.bitmap
        if bitmap is None:
            return all(data[at] & mask for at, mask in probe)
        for at, mask in probe:
            word, byte = divmod(at - self.origin, 8)
            place, bit = divmod(word, 8)
            if not bitmap[place] >> bit & 1:
                return False
            kept = self.before + _count(bitmap[self.start : place]) + (bitmap[place] & (1 << bit) - 1).bit_count()
            if not data[8 * kept + byte] & mask:
                return False
        return True


def _count(bitmap: bytes) -> int:
    return int.from_bytes(bitmap, "little").bit_count()


@dataclass(frozen=True)
class _Batch:
    """Cells one after the other: where each begins and the last ends, and the numbers of their layouts, or -1."""

    data: memoryview
    places: Sequence[int]
    forms: Sequence[int]

    def cells(self) -> list[_Cell | None]:
        ends = zip(self.forms, pairwise(self.places), strict=True)
        return [_Cell(form, self.data[a:b]) if form >= 0 else None for form, (a, b) in ends]

    def packed(self) -> tuple[list[_Cell | None], int]:
        """Return the filters as they stay in memory, without the words that are zero, if most are, and their size."""
        first = self.places[0]
        # No value is looked for in the first bytes of a cell.
        first += (self.places[-1] - first) % 8
        raw = bytes(self.data[first : self.places[-1]])
        words = pa.Array.from_buffers(pa.int64(), len(raw) // 8, [None, pa.py_buffer(raw)])
        filled = pc.not_equal(words, _ZERO)
        if 2 * filled.true_count > len(words):
            copied = [replace(c, data=memoryview(bytes(c.data))) if c is not None else None for c in self.cells()]
            return copied, self.places[-1] - self.places[0]
        bitmap = filled.buffers()[1].to_pybytes()
        data = memoryview(words.filter(filled).buffers()[1] or b"").cast("B")
        found: list[_Cell | None] = []
        start = before = 0
        for form, place in zip(self.forms, self.places, strict=False):
            begin = max(0, place - first) // 64
            before += _count(bitmap[start:begin])
            start = begin
            found.append(_Cell(form, data, bitmap, first - place, start, before) if form >= 0 else None)
        return found, data.nbytes + len(bitmap)


class Filters:
    """The filters of one column of a part file.

    Asked for the first time, they are read bit by bit; from the second time on they stay in
    memory, as far as the budget goes.
    """

    def __init__(self, segment: Segment, index: Index, budget: Budget) -> None:
        self._segment = segment
        self._index = index
        self._budget = budget
        self._layouts: list[CellLayout] = []
        self._failures = 0
        self._held: dict[int, list[_Cell | None]] = {}
        self._asked = 0
        self._is_full = False  # so that nothing is packed in vain
        self._lock = threading.Lock()

    def may_hold(self, values: Sequence[int | str], alive: Sequence[bool]) -> list[bool]:
        """Return which files may hold one of some values; those that are not ``alive`` are not looked at.

        Cells that are NULL, or no filters, may hold everything. Raises OddCells.
        """
        found = [True] * self._segment.rows
        with self._lock:
            self._asked += 1
            probes: dict[int, list[tuple[tuple[int, int], ...]]] = {}
            start = 0
            for group, count in enumerate(self._segment.row_groups):
                if any(alive[start : start + count]):
                    for row, cell in enumerate(self._cells(group, count), start):
                        if cell is None or not alive[row]:
                            continue
                        if cell.form not in probes:
                            probes[cell.form] = [self._layouts[cell.form].probes(v) for v in values]
                        found[row] = any(map(cell.has, probes[cell.form]))
                start += count
        return found

    # -- cells -----------------------------------------------------------------------------

    def _cells(self, group: int, count: int) -> Iterable[_Cell | None]:
        if group in self._held:
            return self._held[group]
        batches = self._batches(group, count)
        if self._asked == 1 or self._is_full:
            return chain.from_iterable(b.cells() for b in batches)
        cells, size = list[_Cell | None](), _CELL_BYTES * count
        for batch in batches:
            packed, more = batch.packed()
            cells += packed
            size += more
        if self._budget.take(size):
            self._held[group] = cells
        else:
            self._is_full = True
        return cells

    def _batches(self, group: int, count: int) -> Iterator[_Batch]:
        seen = size = 0
        for array in self._segment.batches(self._index.column, _BATCH, [group], is_large=True):
            if pa.types.is_struct(array.type) and array.type.num_fields == 1:
                array = array.flatten()[0]
            if not pa.types.is_binary(array.type):
                raise OddCells(f"cells of type {type_name(array.type)} where filters are expected")
            seen += len(array)
            size += array.nbytes
            if size > MAX_READ:
                raise OddCells(f"its filters have more than {MAX_READ:,} bytes")
            _, offsets, buffer = array.buffers()
            places = memoryview(offsets).cast("B").cast("i")[array.offset : array.offset + len(array) + 1].tolist()
            data = memoryview(buffer if buffer is not None else b"").cast("B")
            known = array.is_valid().to_pylist() if array.null_count else repeat(True)
            forms = [self._form(data[a:b]) if k else -1 for k, (a, b) in zip(known, pairwise(places), strict=False)]
            yield _Batch(data, places, forms)
        if seen != count:
            raise OddCells("it has another number of rows than its file says")

    def _form(self, cell: memoryview) -> int:
        """Return the number of the layout of a cell, -1 if it is no filter."""
        for number, layout in enumerate(self._layouts):
            if layout.fits(cell):
                return number
        problem = "there are too many forms of them"
        if len(self._layouts) < MAX_LAYOUTS and self._failures < MAX_FAILURES:
            try:
                self._layouts.append(CellLayout(bytes(cell)))
                return len(self._layouts) - 1
            except JavaStreamError as e:
                self._failures += 1
                problem = str(e)
        self._segment.report(
            f"{self._segment.source}: cells of the column {self._index.column} are not used: {problem}"
        )
        return -1


_HASHES = 1 << 18  # found at once: their arrays stay in the processor's cache
_BYTES = 1 << 20  # of texts that are hashed at once


def prepared(values: pa.Array) -> pa.Array:
    """Return integers as those of 64 bits, and texts as their bytes, once each; without NULL, which is no value."""
    if values.null_count:
        values = values.drop_null()
    if not pa.types.is_integer(values.type):
        return pc.unique(values).cast(pa.large_binary())
    return values if values.type == pa.int64() else values.cast(pa.int64())


def filters_of(files: Sequence[Sequence[pa.Array]], shape: Shape) -> list[bytes]:
    """Return the cells of filters, one for each file, of all its values as ``prepared`` returns them."""
    if numpy_or_none() is None:
        return [cell_of(shape, build([v for a in arrays for v in a.to_pylist()], shape)) for arrays in files]
    builder, cells = FilterBuilder(shape), list[bytes]()
    for pieces in _chunks(files, builder.at_once):
        places = builder.places(pa.concat_arrays([array for _, array in pieces]))
        start = 0
        for number, array in pieces:
            while len(cells) < number:
                cells.append(cell_of(shape, builder.taken()))
            builder.mark(places[:, start : start + len(array)])
            start += len(array)
    while len(cells) < len(files):
        cells.append(cell_of(shape, builder.taken()))
    return cells


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
        self._numpy = np = numpy_or_none()
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
        return bytes(self._numpy.packbits(self._flags, bitorder="little").view("<u8").byteswap().tobytes())

    # -- with numpy ----------------------------------------------------------------------------

    def mark(self, places: Any) -> None:
        """Set the bits that ``places`` returned, one row for each hash."""
        for row in places:
            self._flags[row] = True

    def taken(self) -> bytes:
        """Return the words of the filter, and leave it empty for the next file."""
        words = self.words()
        self._flags.fill(False)
        return words

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
        mixed = [np.array(b, np.uint32) for b in blocks]
        for block in mixed:
            block *= 0xCC9E2D51
            self._rotate(block, 15)
            block *= 0x1B873593
        first = self._murmur(mixed, np.full(count, self._shape.seed & 0xFFFFFFFF, np.uint32), length)
        return first, self._murmur(mixed, first.copy(), length)

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


def numpy_or_none() -> Any:
    """Return the module, None where it is not installed."""
    # The command line starts without it, but making filters without it takes much longer than to import it.
    if "numpy" in sys.modules and sys.modules["numpy"] is None:
        del sys.modules["numpy"]
    try:
        import numpy
    except ImportError:
        return None
    return numpy
