"""Rows in any order -> rows in the order of their layout, checked, also when they are larger than memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import StoreError, UsageError
from kartosql.failures import failure_of
from kartosql.formats.kartothek import naming
from kartosql.store.keys import key_problem
from kartosql.write import files
from kartosql.write.inputs import Rows, invalid_data
from kartosql.write.layout import Layout


def arranged(table: pa.Table, layout: Layout) -> pa.Table:
    """Return the rows in the order of ``layout``, in which cells are unique; raises ``duplicate-cells``."""
    if layout.cell and not layout.cells_stay_together:
        check_unique(sorted_by(table.select(list(layout.cell)), layout.cell), layout)
    table = sorted_by(table, layout.order)
    if layout.cell and layout.cells_stay_together:
        check_unique(table, layout)
    return table


def check_columns(schema: pa.Schema, layout: Layout) -> None:
    """Raise ``invalid-data`` for columns that are missing or cannot play their role."""
    checks: tuple[tuple[tuple[str, ...], Callable[[pa.DataType], bool], str], ...] = (
        (layout.partition_on, _is_partition_type, "partition"),
        (layout.cell, _is_ordered, "dimension"),
        (layout.index_columns, is_index_type, "index"),
    )
    for columns, fits, what in checks:
        for column in columns:
            if column not in schema.names:
                raise invalid_data(layout.name, f"the {what} column {column!r} is missing")
            type_ = schema.field(column).type
            if not fits(type_) and not (pa.types.is_null(type_) and column in layout.not_null):
                also = " (dimensions of the seed are indexed)" if what == "index" and column in layout.cell else ""
                raise invalid_data(
                    layout.name,
                    f"{column!r} is {type_}, which cannot serve as {what} column{also}",
                    "Cast it to text, an integer, a date or a timestamp"
                    + (", or list it in suppress_index_on." if also else "."),
                )
    if "partition" in layout.index_columns:
        raise invalid_data(layout.name, "a column named 'partition' cannot be indexed", "Rename it.")
    if set(schema.names) == set(layout.partition_on):
        raise invalid_data(layout.name, "all its columns are partition columns, so its files would be empty")


def _is_partition_type(type_: pa.DataType) -> bool:
    # Bytes are left out: the original reads them back from the path as text.
    return is_index_type(type_) and not pa.types.is_binary(type_)


def is_index_type(type_: pa.DataType) -> bool:
    """Return whether the values of a column of this storage type can be indexed."""
    t = pa.types
    number = t.is_boolean(type_) or t.is_integer(type_) or t.is_floating(type_)
    return bool(number or t.is_string(type_) or t.is_binary(type_) or t.is_date32(type_) or t.is_timestamp(type_))


def _is_ordered(type_: pa.DataType) -> bool:
    return is_index_type(type_) or bool(pa.types.is_decimal(type_) or pa.types.is_time(type_))


def check_nulls(table: pa.Table, layout: Layout, before: int | None = 0) -> None:
    """Raise ``null-in-key`` for NULL and NaN where values are needed.

    ``before`` rows stand before ``table``; None for rows that have no numbers.
    """
    for name in dict.fromkeys(layout.partition_on + layout.cell + layout.index_columns):
        column = table[name]
        what = "NULL"
        empty = column.is_null()
        if name not in layout.not_null or not column.null_count:
            if not pa.types.is_floating(column.type):
                continue
            what = "NaN"
            empty = pc.fill_null(pc.is_nan(column), False)
        row = pc.index(empty, True).as_py()
        if row >= 0:
            raise invalid_data(
                layout.name,
                f"the {layout.role(name)} {name!r} holds {what}"
                + ("" if before is None else f", first in row {row + before:,}"),
                "Drop these rows or fill in a value such as 'unknown'.",
                "null-in-key",
            )


def check_unique(table: pa.Table, layout: Layout) -> None:
    """Raise ``duplicate-cells`` if a cell occurs in two neighbouring rows."""
    differs = changed(table, layout.cell)
    count = len(differs) - (pc.sum(differs).as_py() or 0)
    if count:
        row = table.select(list(layout.cell)).slice(pc.index(differs, False).as_py(), 1)
        raise duplicate_cells(layout, count, {c: row[c][0] for c in layout.cell})


def duplicate_cells(layout: Layout, count: int, cell: Mapping[str, Any]) -> UsageError:
    """Return the error for ``count`` rows whose cell another row has already, of which ``cell`` is the first."""
    at = ", ".join(f"{c} = {str(value)[:60]}" for c, value in cell.items())
    return invalid_data(
        layout.name,
        f"a cell occurs again in {_rows(count)}, first at {at}",
        f"One row per combination of {', '.join(layout.cell)} is allowed: aggregate, or drop the repeats.",
        "duplicate-cells",
    )


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def sorted_by(table: pa.Table, columns: tuple[str, ...]) -> pa.Table:
    """Return the rows ascending by ``columns``, text by code point; equal ones stay in their order."""
    if is_sorted(table, columns):
        return table
    order = pc.sort_indices(table.select(list(columns)), sort_keys=[(c, "ascending") for c in columns])
    return table.take(order)


def is_sorted(table: pa.Table, columns: tuple[str, ...]) -> bool:
    """Return whether no row is smaller in ``columns`` than the row before it."""
    count = table.num_rows - 1
    if count < 1 or not columns:
        return True
    ascends = None
    for name in reversed(columns):
        before, after = table[name].slice(0, count), table[name].slice(1)
        if ascends is None:
            ascends = pc.less_equal(before, after)
        else:
            ascends = pc.or_(pc.less(before, after), pc.and_(pc.equal(before, after), ascends))
    return bool(pc.all(ascends).as_py())


def changed(table: pa.Table, columns: tuple[str, ...]) -> pa.ChunkedArray:
    """Return for each row but the first whether ``columns`` differ from the row before."""
    found = pa.chunked_array([pa.repeat(False, max(0, table.num_rows - 1))])
    for name in columns if table.num_rows > 1 else ():
        column = table[name]
        found = pc.or_(found, pc.not_equal(column.slice(1), column.slice(0, table.num_rows - 1)))
    return found


def run_starts(table: pa.Table, columns: tuple[str, ...]) -> list[int]:
    """Return the first row of each run of rows that are equal in ``columns``."""
    if not table.num_rows:
        return []
    return [0, *(i + 1 for i in pc.indices_nonzero(changed(table, columns)).to_pylist())]


def folders(table: pa.Table, layout: Layout, starts: list[int]) -> list[tuple[str, ...]]:
    """Return the quoted ``column=value`` of each partition column in some rows; raises ``invalid-data``."""
    firsts = table.select(list(layout.partition_on)).take(pa.array(starts, pa.int64()))
    found: list[tuple[str, ...]] = [()] * len(starts)
    for name in layout.partition_on:
        try:
            texts = files.value_texts(firsts[name])
        except (ValueError, OverflowError) as e:
            raise invalid_data(layout.name, f"a value of {name!r} has no text form: {e}") from None
        if pa.types.is_floating(firsts[name].type):
            texts = ["0.0" if t == "-0.0" else t for t in texts]  # they are equal, so they are one partition
        column = naming.quote(name)
        found = [(*f, f"{column}={naming.quote(t)}") for f, t in zip(found, texts, strict=True)]
    return found


def check_label(label: str, layout: Layout) -> None:
    """Raise ``invalid-data`` for a partition whose file could have no name."""
    problem = key_problem(replace(layout, table=naming.DEFAULT_TABLE).file_key(label))
    if problem:
        raise invalid_data(
            layout.name,
            f"the partition {label[:120]!r} gives no usable file name: {problem}",
            "Partition by a column with shorter values.",
        )


MIN_MEMORY = 1 << 20
# Text columns of one Arrow array end at 2 GiB.
MAX_IN_MEMORY = 1 << 30


def ordered(rows: Rows, layout: Layout, sorter: SpillingSorter | None, memory: int) -> Generator[pa.Table]:
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
    pieces: Iterator[pa.Table], schema: pa.Schema, layout: Layout, sorter: SpillingSorter, memory: int
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
