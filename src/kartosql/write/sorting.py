"""Rows in any order -> rows in the order of their layout, also when they are larger than memory."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

import pyarrow as pa

from kartosql.write.frames import invalid_data
from kartosql.write.inputs import Rows
from kartosql.write.layout import Layout
from kartosql.write.spill import SortedRuns
from kartosql.write.split import arranged, check_nulls, check_unique, is_sorted

MIN_MEMORY = 1 << 20
# Text columns of one Arrow array end at 2 GiB.
MAX_IN_MEMORY = 1 << 30


class Sorter(Protocol):
    """Sorts rows that are larger than memory."""

    def sort(
        self, pieces: Iterable[pa.Table], schema: pa.Schema, columns: Sequence[str], memory: int
    ) -> Generator[pa.Table]:
        """Yield the rows ascending by ``columns``, text by code point, equal ones in the order given.

        The tables yielded are not empty. Takes about ``memory`` bytes and spills the rest;
        closing the iterator frees both.
        """

    def runs(self, columns: Sequence[str]) -> SortedRuns:
        """Return a place for tables that are handed in one by one."""


def ordered(rows: Rows, layout: Layout, sorter: Sorter | None, memory: int) -> Generator[pa.Table]:
    """Yield the rows, checked and in the order of ``layout``, in pieces.

    What takes more than a third of ``memory`` and is in another order goes through ``sorter``.
    Raises ``invalid-data``, ``null-in-key`` and ``duplicate-cells``.
    """
    pieces = _checked(rows, layout)
    if not layout.order or _is_in_order(rows, layout):
        yield from pieces
        return
    limit = min(max(memory // 3, MIN_MEMORY), MAX_IN_MEMORY)
    head: list[pa.Table] = []
    size = 0
    for piece in pieces:
        head.append(piece)
        size += piece.nbytes
        if sorter is not None and size > limit:
            yield from _sorted_outside(chain(_drained(head), pieces), rows.schema, layout, sorter, memory)
            return
    if head:
        table = pa.concat_tables(_drained(head)).combine_chunks()
        yield arranged(table, layout)


def in_order(rows: Rows, layout: Layout) -> Generator[pa.Table]:
    """Yield rows that come in the order of ``layout`` already, checked, one piece at a time.

    Cells are unique in what is yielded where rows of a cell stay together. Raises
    ``invalid-data``, ``null-in-key`` and ``duplicate-cells``.
    """
    last = None
    for piece in _checked(rows, layout, numbered=False):
        keys = piece.select(list(layout.order))
        joined = keys if last is None else pa.concat_tables([last, keys])
        if not is_sorted(joined, layout.order):
            raise AssertionError(f"rows of {layout.name!r} are not in the order of {layout.order}")
        if layout.cell and layout.cells_stay_together:
            check_unique(joined, layout)
        last = keys.slice(keys.num_rows - 1)
        yield piece


def _is_in_order(rows: Rows, layout: Layout) -> bool:
    """Return whether rows in memory need no sorting; raises ``duplicate-cells`` if they do not."""
    if layout.cell and not layout.cells_stay_together:
        return False
    keys = rows.columns(layout.order)
    if keys is None or any(c.null_count for c in keys.columns) or not is_sorted(keys, layout.order):
        return False
    if layout.cell:
        check_unique(keys, layout)
    return True


def _checked(rows: Rows, layout: Layout, numbered: bool = True) -> Iterator[pa.Table]:
    count = 0
    for piece in rows.pieces():
        check_nulls(piece, layout, count if numbered else None)
        count += piece.num_rows
        yield piece
    if layout.cell and not count:
        raise invalid_data(layout.name, "it has no rows", "Leave the dataset out.")


def _drained(pieces: list[pa.Table]) -> Iterator[pa.Table]:
    # Each is freed as soon as it was read.
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def _sorted_outside(
    pieces: Iterator[pa.Table], schema: pa.Schema, layout: Layout, sorter: Sorter, memory: int
) -> Iterator[pa.Table]:
    with contextlib.ExitStack() as stack:

        def by(columns: Sequence[str], share: int) -> Iterator[pa.Table]:
            return stack.enter_context(contextlib.closing(sorter.sort(pieces, schema, columns, share)))

        if layout.cell and not layout.cells_stay_together:
            # Rows of one cell may go to different partitions, so they are neighbours only in an order of their own.
            pieces = _unique(by(layout.cell, memory // 4), layout)
            yield from by(layout.order, memory // 4)
        elif layout.cell:
            yield from _unique(by(layout.order, memory // 2), layout)
        else:
            yield from by(layout.order, memory // 2)


def _unique(pieces: Iterator[pa.Table], layout: Layout) -> Iterator[pa.Table]:
    """Yield ``pieces`` unless a cell occurs in two neighbouring rows; raises ``duplicate-cells``."""
    last = None
    for piece in pieces:
        cells = piece.select(list(layout.cell))
        check_unique(cells if last is None else pa.concat_tables([last, cells]), layout)
        last = cells.take([cells.num_rows - 1])
        yield piece
