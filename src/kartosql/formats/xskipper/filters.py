"""Bloom filters of many files, looked at where a value has its bits."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from kartosql.formats.xskipper.bloom import Layout
from kartosql.formats.xskipper.cells import OddCells
from kartosql.formats.xskipper.java import JavaStreamError
from kartosql.formats.xskipper.schema import Index
from kartosql.formats.xskipper.segment import Segment

MAX_LAYOUTS = 64  # forms of cells in one column; cells of others are not looked at
MAX_VALUES = 1_000  # of one condition; longer lists are not looked for
_BATCH = 128

Probes = list[tuple[tuple[int, int], ...]]
Cells = Sequence[Any]


class Filters:
    """The filters of one column of a part file."""

    def __init__(self, segment: Segment, index: Index) -> None:
        self._segment = segment
        self._index = index
        self._layouts: list[Layout] = []
        self._forms: list[int] | None = None
        self._lock = threading.Lock()
        self.odd = 0

    def may_hold(self, values: Sequence[int | str], alive: Sequence[bool]) -> list[bool]:
        """Return which files may hold one of some values; those that are not ``alive`` are not looked at.

        Cells that are NULL, or no filters, may hold everything. Raises OddCells.
        """
        probes: dict[int, Probes] = {}
        found = [True] * self._segment.rows
        for start, cells in self._batches(alive):
            for row, cell in enumerate(cells, start):
                if not alive[row] or cell is None:
                    continue
                form = self._form(cell)
                if form is None:
                    continue
                if form not in probes:
                    probes[form] = self._probes(form, values)
                found[row] = any(all(cell[at] & mask for at, mask in probe) for probe in probes[form])
        return found

    def _probes(self, form: int, values: Iterable[int | str]) -> Probes:
        return [self._layouts[form].probes(v) for v in values]

    def _form(self, cell: bytes) -> int | None:
        """Return the number of the layout of a cell, None if it is no filter."""
        for number, layout in enumerate(self._layouts):
            if layout.fits(cell):
                return number
        if len(self._layouts) >= MAX_LAYOUTS:
            self.odd += 1
            return None
        try:
            self._layouts.append(Layout(cell))
        except JavaStreamError:
            self.odd += 1
            return None
        return len(self._layouts) - 1

    def _batches(self, alive: Sequence[bool]) -> Iterable[tuple[int, Cells]]:
        start = 0
        for array in self._segment.batches(self._index.column, _BATCH):
            if pa.types.is_struct(array.type) and array.type.num_fields == 1:
                array = array.flatten()[0]
            if not pa.types.is_binary(array.type):
                raise OddCells(f"cells of type {array.type} where filters are expected")
            rows = range(start, start + len(array))
            if any(alive[row] for row in rows):
                yield start, array.to_pylist()
            start += len(array)
