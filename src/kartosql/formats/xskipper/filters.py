"""Bloom filters of many files, looked at where a value has its bits."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise, repeat

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.arrays import constant
from kartosql.formats.xskipper.bloom import Layout
from kartosql.formats.xskipper.cells import OddCells
from kartosql.formats.xskipper.java import JavaStreamError
from kartosql.formats.xskipper.schema import Index
from kartosql.formats.xskipper.segment import Segment

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
        self._left = _default_budget() if size is None else size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Return whether so many bytes may stay, and count them then."""
        with self._lock:
            fits = size <= self._left
            self._left -= size if fits else 0
            return fits


def _default_budget() -> int:
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _MOST_HELD // _SHARE_OF_MEMORY
    return min(_MOST_HELD, memory // _SHARE_OF_MEMORY)


@dataclass(frozen=True)
class _Cell:
    """A filter: the number of its layout, and its bytes, or where it is in a batch that stays in memory.

    Of such a batch, ``data`` are the words of 64 bits that are not zero, and ``bitmap`` tells of each whether
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
        """Return whether all bits of a value are set."""
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
        """Return the filters, None for cells that are none."""
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
        self._layouts: list[Layout] = []
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
        """Return the cells of a row group, None for those that are no filters."""
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
        for array in self._segment.batches(self._index.column, _BATCH, [group]):
            if pa.types.is_struct(array.type) and array.type.num_fields == 1:
                array = array.flatten()[0]
            if not pa.types.is_binary(array.type):
                raise OddCells(f"cells of type {array.type} where filters are expected")
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
                self._layouts.append(Layout(bytes(cell)))
                return len(self._layouts) - 1
            except JavaStreamError as e:
                self._failures += 1
                problem = str(e)
        self._segment.report(
            f"{self._segment.source}: cells of the column {self._index.column} are not used: {problem}"
        )
        return -1
