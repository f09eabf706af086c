"""Rows in any order -> rows in the order of their layout, also when they are larger than memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import StoreError
from kartosql.failures import failure_of
from kartosql.write.inputs import Rows, invalid_data
from kartosql.write.layout import Layout
from kartosql.write.split import arranged, check_nulls, check_unique, is_sorted, sorted_by

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


BATCH_BYTES = 256 << 10
MAX_RUN_BYTES = 1 << 30  # text columns of one Arrow array end at 2 GiB
_COMPRESSION = "lz4" if pa.Codec.is_available("lz4") else None


@dataclass(frozen=True)
class _Bound:
    """A place in the order of rows: before those that equal ``key``, or behind them."""

    key: pa.Table
    behind: bool

    def count(self, rows: pa.Table) -> int:
        """Return how many of some sorted rows stand before this place."""
        before = None
        for name in reversed(self.key.column_names):
            column, value = rows[name], self.key[name][0]
            if before is None:
                before = (pc.less_equal if self.behind else pc.less)(column, value)
            else:
                before = pc.or_(pc.less(column, value), pc.and_(pc.equal(column, value), before))
        return int(pc.sum(before).as_py() or 0)


class SpillingSorter:
    """Sorts streams larger than memory, by way of files in ``temp_directory`` (default: that of the system).

    Sorted runs are written one after the other. Samples of their keys cut the order of all rows
    into ranges that fit into memory; each range is then read from all runs, and sorted. So every
    row is written once and read once, however many there are.
    """

    def __init__(self, temp_directory: str | None = None) -> None:
        self._temp_directory = temp_directory

    def sort(
        self, pieces: Iterable[pa.Table], schema: pa.Schema, columns: Sequence[str], memory: int
    ) -> Generator[pa.Table]:
        """Yield the rows ascending by ``columns``, text by code point, equal ones in the order given.

        The tables yielded are not empty. Takes about ``memory`` bytes; closing the iterator
        removes the files. Raises ``disk-full`` and ``store-failed``; errors of ``pieces`` pass.
        """
        with self.runs(columns) as runs:
            for table in _gathered(pieces, min(memory // 4, MAX_RUN_BYTES)):
                runs.add(table)
                del table
            yield from runs.merged(memory // 6)

    def runs(self, columns: Sequence[str]) -> SortedRuns:
        """Return a place for tables that are handed in one by one; raises ``disk-full`` and ``store-failed``."""
        with _disk():
            return SortedRuns(tempfile.mkdtemp(prefix="kartosql-sort-", dir=self._temp_directory), columns)


class SortedRuns:
    """Tables of one schema in a folder of their own, each sorted by ``columns``; removed at the end of a with-block."""

    def __init__(self, folder: str, columns: Sequence[str]) -> None:
        self._folder, self._columns = folder, tuple(columns)
        self._runs: list[_Run] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, table: pa.Table) -> None:
        """Sort a table and write it; raises ``disk-full`` and ``store-failed``."""
        path = os.path.join(self._folder, f"{len(self._runs)}.arrow")
        self._runs.append(_Run(path, sorted_by(table, self._columns), self._columns))

    def merged(self, limit: int) -> Iterator[pa.Table]:
        """Yield all rows in order, in tables of about ``limit`` bytes."""
        yield from _merged(self._runs, self._columns, min(limit, MAX_RUN_BYTES))

    def mapped(self, pieces: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
        """Return ``pieces`` as one table that stays on disk, also when the files are removed."""
        path = os.path.join(self._folder, "mapped.arrow")
        with _disk():
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                for piece in pieces:
                    writer.write_table(piece)
            # Pages of a mapped file take no memory that the system could not have back.
            with pa.memory_map(path) as source:
                return pa.ipc.open_file(source).read_all()


def _gathered(pieces: Iterable[pa.Table], limit: int) -> Iterator[pa.Table]:
    found: list[pa.Table] = []
    size = 0
    for piece in pieces:
        if found and size + piece.nbytes > limit:
            table, found, size = pa.concat_tables(found).combine_chunks(), [], 0
            yield table
            del table
        found.append(piece)
        size += piece.nbytes
    if size:
        yield pa.concat_tables(found).combine_chunks()


def _merged(runs: Sequence[_Run], columns: Sequence[str], limit: int) -> Iterator[pa.Table]:
    for bound, all_equal in [*_bounds(runs, columns, limit), (None, False)]:
        if all_equal:
            for run in runs:
                yield from run.until(bound)
            continue
        found = [piece for run in runs for piece in run.until(bound)]
        if found:
            table = pa.concat_tables(found).combine_chunks()
            del found
            yield sorted_by(table, tuple(columns))
            del table


def _bounds(runs: Sequence[_Run], columns: Sequence[str], limit: int) -> Iterator[tuple[_Bound, bool]]:
    """Yield the ends of ranges of about ``limit`` bytes, and whether all rows of a range have the same key."""
    if not runs:
        return
    firsts = sorted_by(pa.concat_tables([run.firsts for run in runs]), tuple(columns))
    average = sum(run.nbytes for run in runs) / firsts.num_rows
    each = max(1, int(limit / average))
    last = None
    for at in range(each, firsts.num_rows, each):
        key = firsts.slice(at, 1)
        if last is None or not key.equals(last):
            yield _Bound(key, False), False
            last, closed = key, False
        elif not closed:
            # One key fills a range of its own, which may be of any size and is in order already.
            yield _Bound(key, True), True
            closed = True


class _Run:
    """Sorted rows in a file, as batches of which the first keys are known; read from front to back."""

    def __init__(self, path: str, table: pa.Table, columns: Sequence[str]) -> None:
        self.nbytes = table.nbytes
        rows = max(1, table.num_rows * BATCH_BYTES // max(1, table.nbytes))
        self.firsts = table.select(list(columns)).take(pa.array(range(0, table.num_rows, rows), pa.int64()))
        self._path = path
        self._next = 0
        self._rest: pa.Table | None = None
        options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
        with _disk(), pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows)

    def until(self, bound: _Bound | None) -> Iterator[pa.Table]:
        """Yield the rows before ``bound`` that were not yielded yet, None for all."""
        count = self.firsts.num_rows
        stop = count if bound is None else bound.count(self.firsts)
        if self._rest is not None:
            # Rows of a batch that was read before; if a later one begins before the bound, all of them do.
            yield from self._cut(self._rest, bound if stop <= self._next else None)
        if self._next < stop:
            # Opened anew for each range: there may be more runs than files that may be open.
            with _disk(), pa.OSFile(self._path) as source, pa.ipc.open_file(source) as reader:
                while self._next < stop:
                    batch = pa.Table.from_batches([reader.get_batch(self._next)])
                    self._next += 1
                    yield from self._cut(batch, bound if self._next == stop else None)

    def _cut(self, batch: pa.Table, bound: _Bound | None) -> Iterator[pa.Table]:
        end = batch.num_rows if bound is None else bound.count(batch)
        self._rest = batch.slice(end) if end < batch.num_rows else None
        if end:
            yield batch.slice(0, end)


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as e:
        found = failure_of(e)
        raise StoreError(
            f"Rows cannot be written to the temporary folder while they are sorted: {e}",
            code=found.code if found is not None else None,
            hint="Set temp_directory to a folder with space for them.",
        ) from e
