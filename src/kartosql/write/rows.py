"""Rows -> data files of one table, written by several threads, and the values of its indices."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from kartosql.formats.kartothek import naming
from kartosql.store import Store
from kartosql.write import files
from kartosql.write.indexing import Postings, unique_values
from kartosql.write.inputs import Rows
from kartosql.write.layout import Layout
from kartosql.write.sorting import SpillingSorter, check_columns, check_label, folders, in_order, ordered, run_starts

DEFAULT_MEMORY = 512_000_000
REMOTE_WRITERS = 16
MIN_FLUSH_BYTES = 8 << 20


@dataclass(frozen=True)
class WriteProgress:
    """Progress of the writing of a dataset: what the store holds already."""

    dataset: str
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True)
class Written:
    """Data files that nothing refers to yet, in the order of their partitions.

    ``schema`` has the types that columns are stored in, partition columns included. ``pairs``
    has for each index column a table of ``value`` (in its normalised type) and ``label`` (as a
    dictionary), each pair once and none with NULL; if it is large, it is a file in memory's place.
    """

    layout: Layout
    schema: pa.Schema
    labels: tuple[str, ...]
    keys: tuple[str, ...]
    pairs: Mapping[str, pa.Table]
    rows: int
    bytes: int

    @property
    def added(self) -> dict[str, dict[str, str]]:
        """The partitions that were written, as they stand in a document."""
        return {label: {self.layout.table: key} for label, key in zip(self.labels, self.keys, strict=True)}


@dataclass(frozen=True)
class WriteOptions:
    """How files are written: in about ``memory`` bytes, what does not fit into it sorted by ``sorter``.

    A partition with more than ``rows_per_file`` rows has several files; ``progress`` is told of each.
    """

    sorter: SpillingSorter | None = None
    memory: int = DEFAULT_MEMORY
    progress: Callable[[WriteProgress], object] | None = None
    row_group_rows: int = files.ROW_GROUP_ROWS
    rows_per_file: int | None = None


def write_rows(
    store: Store,
    rows: Rows,
    layout: Layout,
    options: WriteOptions,
    *,
    write_id: str | None = None,
    presorted: bool = False,
) -> Written:
    """Write the data files of one table, sorted, one for each partition, and return what they are.

    With ``write_id`` the files belong to a write of which others write other files; ``presorted``
    rows come in order. Raises ``invalid-data``, ``null-in-key``, ``duplicate-cells``, ``disk-full``
    and ``store-failed``; the files that were written by then are deleted.
    """
    check_columns(rows.schema, layout)
    with _Files(store, layout, rows.schema, options, write_id) as out:
        found = in_order(rows, layout) if presorted else ordered(rows, layout, options.sorter, options.memory)
        with contextlib.closing(found) as pieces:
            for piece in pieces:
                out.add(piece)
        return out.finish()


def joined(store: Store, written: Sequence[Written]) -> tuple[dict[str, dict[str, str]], dict[str, pa.Table]]:
    """Return the partitions of all tables, and the pairs of their indices.

    Files of the same partition values share a label. Where a table has no rows of a partition,
    a file without rows is written, as the original wants all tables in each partition.
    """
    if len(written) == 1:
        return written[0].added, dict(written[0].pairs)
    by_folder: dict[str, list[list[tuple[str, str] | None]]] = {}
    for at, one in enumerate(written):
        for label, key in zip(one.labels, one.keys, strict=True):
            columns = by_folder.setdefault(label.rpartition("/")[0], [[] for _ in written])
            columns[at].append((label, key))
    added: dict[str, dict[str, str]] = {}
    renamed: dict[str, str] = {}
    for columns in by_folder.values():
        for files_ in zip_longest(*columns):
            label = next(f[0] for f in files_ if f is not None)
            added[label] = {}
            for one, file in zip(written, files_, strict=True):
                if file is None:
                    added[label][one.layout.table] = _put_empty(store, one, label)
                else:
                    added[label][one.layout.table] = file[1]
                    renamed[file[0]] = label
    pairs: dict[str, pa.Table] = {}
    for one in written:
        for column, found in one.pairs.items():
            labels = pa.array([renamed[label] for label in found["label"].to_pylist()], pa.string())
            found = pa.table({"value": found["value"], "label": labels})
            pairs[column] = pa.concat_tables([pairs[column], found]) if column in pairs else found
    return added, {c: t.group_by(["value", "label"]).aggregate([]) for c, t in pairs.items()}


def _put_empty(store: Store, written: Written, label: str) -> str:
    layout = written.layout
    key = layout.file_key(label)
    rows = written.schema.empty_table().select(files.file_columns(written.schema, layout.partition_on))
    store.put(key, files.parquet_bytes(rows, files.ROW_GROUP_ROWS))
    return key


def discard(store: Store, keys: Sequence[str]) -> None:
    """Delete files that will not be committed, as far as the store lets us."""
    # The error that led here is what the caller needs to hear of; what stays behind is an orphan.
    with contextlib.suppress(Exception):
        store.delete(keys)


Size = tuple[int, int]  # rows and bytes of a file that was written


class _Files:
    """The files of one call: takes rows in order and hands each partition to a thread."""

    def __init__(
        self,
        store: Store,
        layout: Layout,
        schema: pa.Schema,
        options: WriteOptions,
        write_id: str | None,
    ) -> None:
        self._store, self._layout, self._schema = store, layout, schema
        self._progress = options.progress
        self._columns = files.file_columns(schema, layout.partition_on)
        self._format = files.FileFormat(layout, options.row_group_rows)
        limit = options.memory // 8 // max(1, len(layout.index_columns))
        self._pairs = {c: Postings(schema.field(c).type, options.sorter, limit) for c in layout.index_columns}
        # One id per call, as the original does: it tells which files cannot overlay each other.
        self._write_id = write_id or uuid.uuid4().hex
        self._is_shared = write_id is not None
        self._most_rows = options.rows_per_file
        self._labels: list[str] = []
        self._folder: str | None = None
        self._known: set[str] = set()
        self._in_file = 0
        self._files = 0
        self._waiting: deque[tuple[Future[Size], int]] = deque()
        self._waiting_bytes, self._rows, self._bytes = 0, 0, 0
        self._max_waiting = options.memory // 8
        self._flush_bytes = max(MIN_FLUSH_BYTES, options.memory // 16)
        self._parts: list[pa.Table] = []
        self._parts_bytes = 0
        self._large: _LargeFile | None = None
        self._large_files: list[_LargeFile] = []
        workers = max(2, os.cpu_count() or 1) if store.is_local else REMOTE_WRITERS
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="kartosql-write")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=error is not None)
        if error is not None:
            for large in self._large_files:
                large.abort()
            discard(self._store, [self._layout.file_key(label) for label in self._labels])
        for pairs in self._pairs.values():
            pairs.close()

    def add(self, piece: pa.Table) -> None:
        """Take rows that come behind all rows taken before."""
        starts = run_starts(piece, self._layout.partition_on)
        found = folders(piece, self._layout, starts)
        rows = piece.select(self._columns)
        for folder, (start, end) in zip(found, pairwise([*starts, piece.num_rows]), strict=True):
            self._add_run("/".join(folder), rows.slice(start, end - start))
        if self._parts_bytes >= self._flush_bytes:
            self._flush()

    def _add_run(self, folder: str, rows: pa.Table) -> None:
        """Take rows of one partition."""
        while rows.num_rows:
            if folder != self._folder or self._in_file == self._most_rows:
                self._end_file()
                self._begin_file(folder)
            room = rows.num_rows if self._most_rows is None else self._most_rows - self._in_file
            some, rows = rows.slice(0, room), rows.slice(room)
            self._in_file += some.num_rows
            self._parts.append(some)
            self._parts_bytes += some.nbytes

    def _begin_file(self, folder: str) -> None:
        is_first = folder != self._folder
        # Were rows of a partition to come twice, the second file would replace the first.
        assert not is_first or folder not in self._known, folder
        name = self._write_id if is_first and not self._is_shared else naming.file_id(self._write_id)
        label = "/".join(filter(None, [folder, name]))
        check_label(label, self._layout)
        self._known.add(folder)
        self._folder, self._in_file = folder, 0
        self._labels.append(label)

    def _end_file(self) -> None:
        parts, size = self._parts, self._parts_bytes
        self._parts, self._parts_bytes = [], 0
        if self._large is not None:
            large, self._large = self._large, None
            self._submit(large.end, parts, size)
        elif parts:
            self._submit(self._small_file(), parts, size)

    def _flush(self) -> None:
        """Write the row groups that are full of a partition that goes on."""
        if self._large is None:
            number = len(self._labels) - 1
            self._large = _LargeFile(
                self._store, self._layout.file_key(self._labels[-1]), self._format, self._pairs, number
            )
            self._large_files.append(self._large)
        # One at a time: the row groups of a file stand one behind the other.
        parts, self._parts = self._parts, []
        rest = self._large.add(self._pool, pa.concat_tables(parts))
        self._parts, self._parts_bytes = [rest], rest.nbytes

    def _small_file(self) -> Callable[[list[pa.Table]], Size]:
        number, key = len(self._labels) - 1, self._layout.file_key(self._labels[-1])

        def write(parts: list[pa.Table]) -> Size:
            rows = pa.concat_tables(parts)
            data = self._format.encode(rows, _collect(rows, self._pairs, number))
            with self._store.output(key, sync_folders=False) as out:
                out.write(data)
            return rows.num_rows, len(data)

        return write

    def _submit(self, write: Callable[[list[pa.Table]], Size], parts: list[pa.Table], size: int) -> None:
        future = self._pool.submit(write, parts)
        self._files += 1
        self._waiting.append((future, size))
        self._waiting_bytes += size
        while self._waiting and (self._waiting_bytes > self._max_waiting or self._waiting[0][0].done()):
            self._await_oldest()

    def _await_oldest(self) -> None:
        future, size = self._waiting.popleft()
        rows, written = future.result()
        self._waiting_bytes -= size
        self._rows += rows
        self._bytes += written
        if self._progress is not None:
            done = self._files - len(self._waiting)
            self._progress(WriteProgress(self._layout.name, self._rows, done, self._bytes))

    def finish(self) -> Written:
        """Wait for all files and return what was written."""
        self._end_file()
        if not self._labels and not self._layout.partition_on:
            # An empty dataset without partition columns is one file without rows.
            self._begin_file("")
            self._submit(self._small_file(), [self._schema.empty_table().select(self._columns)], 0)
        while self._waiting:
            self._await_oldest()
        self._store.sync([self._layout.file_key(label) for label in self._labels])
        pairs = {column: pairs.finish(self._labels) for column, pairs in self._pairs.items()}
        keys = tuple(self._layout.file_key(label) for label in self._labels)
        return Written(self._layout, self._schema, tuple(self._labels), keys, pairs, self._rows, self._bytes)


def _collect(rows: pa.Table, pairs: Mapping[str, Postings], number: int) -> dict[str, int]:
    """Add the values of some rows of a file to the pairs of each column, and return how many there are."""
    distinct = {}
    for column, found in pairs.items():
        values = unique_values(rows[column])
        distinct[column] = len(values)
        found.add(number, values)
    return distinct


class _LargeFile:
    """A file that is written while its rows come in, one run of row groups after the other."""

    def __init__(
        self, store: Store, key: str, format_: files.FileFormat, pairs: Mapping[str, Postings], number: int
    ) -> None:
        self._format, self._pairs, self._number = format_, pairs, number
        self._context = contextlib.ExitStack()
        self._out = files.Counted(self._context.enter_context(store.output(key, sync_folders=False)))
        self._writer: Any = None
        self._rows = 0
        self._before: Future[None] | None = None

    def add(self, pool: ThreadPoolExecutor, rows: pa.Table) -> pa.Table:
        """Let ``pool`` write the row groups that ``rows`` fill, and return what is left over."""
        full = rows.num_rows - rows.num_rows % self._format.row_group_rows
        if full:
            self._wait()
            self._before = pool.submit(self._write, rows.slice(0, full))
        return rows.slice(full)

    def _wait(self) -> None:
        if self._before is not None:
            self._before.result()

    def _write(self, rows: pa.Table) -> None:
        _collect(rows, self._pairs, self._number)
        if self._writer is None:
            distinct = dict.fromkeys(self._pairs, self._format.row_group_rows)
            self._writer = self._format.writer(self._out, rows, distinct)
        self._writer.write_table(rows, row_group_size=self._format.row_group_rows)
        self._rows += rows.num_rows

    def end(self, parts: list[pa.Table]) -> Size:
        """Write the rest and close the file."""
        # What was submitted before runs already, so threads never wait for one another in a circle.
        self._wait()
        rows = pa.concat_tables(parts)
        if rows.num_rows:
            self._write(rows)
        self._writer.close()
        self._context.close()
        return self._rows, self._out.count

    def abort(self) -> None:
        """Drop the file, if it is not written to its end."""
        aborted = RuntimeError("the write failed")
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(Exception):
            self._context.__exit__(RuntimeError, aborted, None)
