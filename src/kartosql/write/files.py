"""Partitions -> Parquet files: how they look, are read, copied and counted."""

from __future__ import annotations

import base64
import contextlib
import inspect
import os
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, zip_longest
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import FormatError, UsageError, missing_file, quoted, reraise
from kartosql.formats import row_groups
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.metadata import normalise
from kartosql.parquet import DAMAGE, file_metadata
from kartosql.store import Files, Store
from kartosql.store.streams import CountedOutput, RangedFile
from kartosql.tables.table import FileTable
from kartosql.text.types import in_sql_names, type_name
from kartosql.write import indexing
from kartosql.write.document import discard
from kartosql.write.indexing import Postings, StoredIndex, pairs_of, unique_values
from kartosql.write.inputs import Rows
from kartosql.write.layout import (
    Layout,
    SpillingSorter,
    check_columns,
    check_label,
    folders,
    in_order,
    ordered,
    run_starts,
)

# Small enough that a point query reads little, and a multiple of DuckDB's vectors.
ROW_GROUP_ROWS = 24_576
BLOOM_FALSE_POSITIVES = 0.01
DEFAULT_MEMORY = 512_000_000
REMOTE_WRITERS = 16
MIN_FLUSH_BYTES = 8 << 20
CHUNK_BYTES = 4 << 20

PAGE_ROWS = 4_096  # which is what a point query reads of a large file in an object store

_KNOWN_OPTIONS = inspect.signature(pq.ParquetWriter.__init__).parameters
_OPTIONS: dict[str, Any] = {
    "version": "2.6",
    "compression": "zstd",
    "coerce_timestamps": "us",
    "use_compliant_nested_type": False,
    "write_page_checksum": True,
}


def file_columns(schema: pa.Schema, partition_on: tuple[str, ...]) -> list[str]:
    """Return the columns in the data files, those with structs last."""
    # Kartothek counts leaves where it should count columns: behind a struct it would filter by the wrong one.
    names = [f.name for f in schema if f.name not in partition_on]
    return sorted(names, key=lambda n: _has_struct(schema.field(n).type))


def _has_struct(type_: pa.DataType) -> bool:
    return bool(pa.types.is_struct(type_)) or (bool(pa.types.is_list(type_)) and _has_struct(type_.value_type))


def parquet_bytes(rows: pa.Table, row_group_rows: int = ROW_GROUP_ROWS) -> bytes:
    """Return ``rows`` as a Parquet file: ZSTD, format 2.6, checksummed pages.

    Dictionaries, also those in lists, become what they hold.
    """
    sink = pa.BufferOutputStream()
    write_parquet(sink, rows.schema, [rows], row_group_rows)
    return bytes(sink.getvalue().to_pybytes())


def write_parquet(
    sink: Any, schema: pa.Schema, pieces: Iterable[pa.Table], row_group_rows: int, **options: Any
) -> None:
    """Write tables of ``schema`` as one Parquet file as of ``parquet_bytes``; each begins a row group."""
    plain = pa.schema([field.with_type(_without_dictionaries(field.type)) for field in schema])
    is_plain = plain.equals(schema)
    with pq.ParquetWriter(sink, schema, store_schema=is_plain, **_OPTIONS, **options) as writer:
        if not is_plain:
            # Readers would otherwise be told to make dictionaries, which the originals do not expect.
            writer.add_key_value_metadata({"ARROW:schema": base64.b64encode(plain.serialize()).decode()})
        for piece in pieces:
            writer.write_table(piece, row_group_size=row_group_rows)


def write_index(
    sink: Any, old: StoredIndex | None, removed: Set[str], gone: pa.Table | None, added: pa.Table, column: str
) -> None:
    """Write the index of a column after a change: row groups are copied where few of its pairs come and go.

    The arguments are those of ``merged`` and ``patched``.
    """
    schema, parts = indexing.index_schema(added, column), list[bytes | memoryview]()
    for exchanging in (True, False):
        if old is None or parts:
            break
        made = indexing.patched(old, removed, gone, added, column, exchanging=exchanging)
        if made is not None:
            with contextlib.suppress(*DAMAGE, OSError):
                parts = _with_groups(old.data, made, schema)
    if parts:
        for part in parts:
            sink.write(part)
    else:
        pieces = indexing.merged(old.read() if old is not None else None, removed, added, column)
        _write_lists(sink, schema, pieces)


def _write_lists(sink: Any, schema: pa.Schema, pieces: Iterable[pa.Table]) -> None:
    # No value occurs twice, and nobody asks for the bounds of labels.
    written = {"use_dictionary": ["partition.list.item"], "write_statistics": schema.names[:1]}
    write_parquet(sink, schema, pieces, 2 * indexing.MOST_VALUES, **written)


def _with_groups(
    data: bytes, made: Mapping[int, list[pa.Table] | indexing.Exchange], schema: pa.Schema
) -> list[bytes | memoryview]:
    """Return the bytes of a Parquet file with others in the place of some row groups; raises what is in ``DAMAGE``."""
    before, groups = row_groups.cut(data), list[row_groups.RowGroup]()
    pieces = [piece for some in made.values() if isinstance(some, list) for piece in some]
    sink = pa.BufferOutputStream()
    _write_lists(sink, schema, pieces)
    after = row_groups.cut(sink.getvalue().to_pybytes())
    if after.head != before.head:
        raise ValueError("it was written in another way")
    new = iter(after.groups)
    places = {n: [next(new) for _ in some] for n, some in made.items() if isinstance(some, list)}
    for number, old in enumerate(before.groups):
        some = made.get(number)
        groups += [row_groups.exchanged(old, *some)] if isinstance(some, tuple) else places.get(number, [old])
    return list(row_groups.joined(replace(before, groups=groups)))


def _without_dictionaries(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_without_dictionaries(type_.value_type)))
    return type_.value_type if pa.types.is_dictionary(type_) else type_


@dataclass(frozen=True)
class _FileFormat:
    """How the data files of a layout are written, so that a query for one cell or value reads little.

    Rows are in small row groups with a page index; where a file has several of them, the
    columns with an inverted index get bloom filters, as their values are in any order.
    Dictionaries are made for columns whose values repeat within a row group.
    """

    layout: Layout
    row_group_rows: int = ROW_GROUP_ROWS
    _repeating: dict[int, list[str]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def writer(self, sink: Any, rows: pa.Table, distinct: Mapping[str, int]) -> pq.ParquetWriter:
        """Return a writer of row groups for rows like ``rows``; ``distinct`` says how many values columns have."""
        schema = rows.schema
        options = _OPTIONS | {"write_page_index": True, "use_dictionary": self._dictionaries(rows)}
        if "max_rows_per_page" in _KNOWN_OPTIONS:
            options["max_rows_per_page"] = PAGE_ROWS
        order = [c for c in self.layout.order if c in schema.names] if self.layout.cell else []
        if order:
            options["sorting_columns"] = pq.SortingColumn.from_ordering(schema, [(c, "ascending") for c in order])
        if "bloom_filter_options" in _KNOWN_OPTIONS:
            # Values of the first column that rows are sorted by are found by the bounds of row groups.
            options["bloom_filter_options"] = {
                column: {"ndv": min(count, self.row_group_rows), "fpp": BLOOM_FALSE_POSITIVES}
                for column, count in distinct.items()
                if count and column not in order[:1] and not pa.types.is_boolean(schema.field(column).type)
            } or None
        return pq.ParquetWriter(sink, schema, **options)

    def _dictionaries(self, rows: pa.Table) -> bool | list[str]:
        if any(pa.types.is_nested(type_) for type_ in rows.schema.types):
            return True  # leaves would have to be named
        # Files of one call are taken to be alike; those twice as large as the ones before are looked at again.
        size = min(rows.num_rows, self.row_group_rows).bit_length()
        known = next((found for seen, found in list(self._repeating.items()) if seen >= size), None)
        if known is None:
            sample = rows.slice(0, self.row_group_rows)
            known = [c for c in rows.column_names if 2 * len(pc.unique(sample[c])) <= sample.num_rows]
            self._repeating[size] = known
        return known


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
        """The partitions that were written in a document."""
        return {label: {self.layout.table: key} for label, key in zip(self.labels, self.keys, strict=True)}


@dataclass(frozen=True)
class WriteOptions:
    """How files are written: in about ``memory`` bytes, what does not fit into it sorted by ``sorter``.

    A partition with more than ``rows_per_file`` rows has several files; ``progress`` is called for each.
    """

    sorter: SpillingSorter | None = None
    memory: int = DEFAULT_MEMORY
    progress: Callable[[WriteProgress], object] | None = None
    row_group_rows: int = ROW_GROUP_ROWS
    rows_per_file: int | None = None

    def __post_init__(self) -> None:
        for what, value in (("row_group_rows", self.row_group_rows), ("rows_per_file", self.rows_per_file)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**63):
                raise UsageError(f"{what}: {quoted(value)} is no positive whole number.")
        if self.progress is not None and not callable(self.progress):
            raise UsageError(f"progress is a function, not {type(self.progress).__name__}.")


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
                key = one.layout.file_key(label) if file is None else file[1]
                added[label][one.layout.table] = key
                if file is None:
                    rows = one.schema.empty_table().select(file_columns(one.schema, one.layout.partition_on))
                    store.put(key, parquet_bytes(rows))
                else:
                    renamed[file[0]] = label
    pairs: dict[str, pa.Table] = {}
    for one in written:
        for column, found in one.pairs.items():
            labels = pa.array([renamed[label] for label in found["label"].to_pylist()], pa.string())
            found = pa.table({"value": found["value"], "label": labels})
            pairs[column] = pa.concat_tables([pairs[column], found]) if column in pairs else found
    return added, {c: t.group_by(["value", "label"]).aggregate([]) for c, t in pairs.items()}


class _Files:
    """The files of one call: takes rows in order and hands each partition to a thread."""

    def __init__(
        self, store: Store, layout: Layout, schema: pa.Schema, options: WriteOptions, write_id: str | None
    ) -> None:
        self._store, self._layout, self._schema = store, layout, schema
        self._progress = options.progress
        self._columns = file_columns(schema, layout.partition_on)
        self._format = _FileFormat(layout, options.row_group_rows)
        limit = options.memory // 8 // max(1, len(layout.index_columns))
        self._pairs = {c: Postings(schema.field(c).type, options.sorter, limit) for c in layout.index_columns}
        # One id per call, as the original does: it tells which files cannot overlay each other.
        self._write_id = write_id or uuid.uuid4().hex
        self._is_shared = write_id is not None
        self._most_rows = options.rows_per_file
        self._files: list[_File] = []
        self._folder: str | None = None
        self._known: set[str] = set()
        self._in_file = 0
        self._waiting: deque[tuple[Future[Size], int]] = deque()
        self._waiting_bytes, self._rows, self._bytes = 0, 0, 0
        self._max_waiting = options.memory // 8
        self._flush_bytes = max(MIN_FLUSH_BYTES, options.memory // 16)
        self._parts: list[pa.Table] = []
        self._parts_bytes = 0
        workers = max(2, os.cpu_count() or 1) if store.is_local else REMOTE_WRITERS
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="kartosql-write")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=error is not None)
        if error is not None:
            for file in self._files:
                file.abort()
            discard(self._store, [file.key for file in self._files])
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
            # Write the row groups that are full of a partition that goes on.
            parts, self._parts = self._parts, []
            rest = self._files[-1].add(self._pool, pa.concat_tables(parts))
            self._parts, self._parts_bytes = [rest], rest.nbytes

    def _add_run(self, folder: str, rows: pa.Table) -> None:
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
        key = self._layout.file_key(label)
        self._files.append(_File(self._store, label, key, self._format, self._pairs, len(self._files)))

    def _end_file(self) -> None:
        parts, size = self._parts, self._parts_bytes
        self._parts, self._parts_bytes = [], 0
        if not parts:
            return
        self._waiting.append((self._pool.submit(self._files[-1].end, parts), size))
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
            done = len(self._files) - len(self._waiting)
            self._progress(WriteProgress(self._layout.name, self._rows, done, self._bytes))

    def finish(self) -> Written:
        """Wait for all files and return what was written."""
        if not self._files and not self._layout.partition_on:
            # An empty dataset without partition columns is one file without rows.
            self._begin_file("")
            self._parts = [self._schema.empty_table().select(self._columns)]
        self._end_file()
        while self._waiting:
            self._await_oldest()
        labels, keys = tuple(file.label for file in self._files), tuple(file.key for file in self._files)
        self._store.sync(keys)
        pairs = {column: pairs.finish(labels) for column, pairs in self._pairs.items()}
        return Written(self._layout, self._schema, labels, keys, pairs, self._rows, self._bytes)


Size = tuple[int, int]  # rows and bytes of a file that was written


class _File:
    """A file of a partition, the ``number``-th of its call: encoded as a whole, or while its rows come in."""

    def __init__(
        self, store: Store, label: str, key: str, format_: _FileFormat, pairs: Mapping[str, Postings], number: int
    ) -> None:
        self.label, self.key = label, key
        self._store, self._format, self._pairs, self._number = store, format_, pairs, number
        self._context = contextlib.ExitStack()
        self._out: CountedOutput | None = None
        self._writer: Any = None
        self._rows = 0
        self._before: Future[None] | None = None

    def add(self, pool: ThreadPoolExecutor, rows: pa.Table) -> pa.Table:
        """Let ``pool`` write the row groups that ``rows`` fill, and return what is left over."""
        if self._out is None:
            self._out = CountedOutput(self._context.enter_context(self._store.output(self.key, sync_folders=False)))
        full = rows.num_rows - rows.num_rows % self._format.row_group_rows
        if full:
            # One at a time: the row groups of a file stand one behind the other.
            self._wait()
            self._before = pool.submit(self._write, rows.slice(0, full))
        return rows.slice(full)

    def _wait(self) -> None:
        if self._before is not None:
            self._before.result()

    def _write(self, rows: pa.Table) -> None:
        self._collect(rows)
        if self._writer is None:
            distinct = dict.fromkeys(self._pairs, self._format.row_group_rows)
            self._writer = self._format.writer(self._out, rows, distinct)
        self._writer.write_table(rows, row_group_size=self._format.row_group_rows)
        self._rows += rows.num_rows

    def _collect(self, rows: pa.Table) -> dict[str, int]:
        """Add the values of some rows to the pairs of each column, and return how many there are."""
        distinct = {}
        for column, found in self._pairs.items():
            values = unique_values(rows[column])
            distinct[column] = len(values)
            found.add(self._number, values)
        return distinct

    def end(self, parts: list[pa.Table]) -> Size:
        """Write the rest and close the file."""
        # What was submitted before runs already, so threads never wait for one another in a circle.
        self._wait()
        rows = pa.concat_tables(parts)
        if self._out is None:
            distinct = self._collect(rows)
            sink = pa.BufferOutputStream()
            several = rows.num_rows > self._format.row_group_rows
            with self._format.writer(sink, rows, distinct if several else {}) as writer:
                writer.write_table(rows, row_group_size=self._format.row_group_rows)
            data = bytes(sink.getvalue().to_pybytes())
            with self._store.output(self.key, sync_folders=False) as out:
                out.write(data)
            return rows.num_rows, len(data)
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


# -- reading, copying and counting files ---------------------------------------------------------------


@contextlib.contextmanager
def opened_parquet(store: Store, key: str, **options: Any) -> Iterator[pq.ParquetFile]:
    """Read a Parquet file by ranges; raises ``missing-file`` and ``corrupt-file``, also for what the block raises."""
    try:
        source = pa.OSFile(store.local_path(key)) if store.is_local else pa.PythonFile(_remote(store, key), "r")
        with contextlib.closing(source), pq.ParquetFile(source, **options) as file:
            yield file
    except (KeyError, FileNotFoundError):
        raise missing_file(key, "Restore the file, or remove its partition.") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as e:  # the last for names of columns
        reraise(e, f"Cannot read {key!r}")
        raise FormatError(f"{key}: {e}", code="corrupt-file", hint="Restore the file.") from None


def _remote(store: Store, key: str) -> RangedFile:
    size = store.size(key)
    return RangedFile(
        lambda start, end: store.read(key, start=start, end=end), len(store.read(key)) if size is None else size
    )


def pairs_of_files(store: Store, table: DatasetTable, labels: Iterable[str], column: str) -> pa.Table:
    """Return the pairs (``value``, ``label``) of ``column``  in the files of ``labels``.

    Raises ``missing-file``, ``corrupt-file`` and ``schema-mismatch`` for values that do not fit the column's type.
    """
    labels = tuple(labels)
    files = dict(zip(table.labels, table.files, strict=True))
    type_ = normalise(table.schema.field(column).type)
    return pairs_of(type_, labels, list(store.map(lambda at: values_of_file(store, files[at], column, type_), labels)))


def values_of_file(store: Store, key: str, column: str, type_: pa.DataType) -> pa.Array:
    """Return the different values of a column of a file as ``type_``; none where the file lacks it."""
    with opened_parquet(store, key, pre_buffer=True) as file:
        if column not in file.schema_arrow.names:
            return pa.array([], type_)
        try:
            found = [unique_values(file.read_row_group(i, [column])[column], type_) for i in range(file.num_row_groups)]
            return pc.unique(pa.chunked_array(found, type_))
        except pa.ArrowInvalid as e:
            code = "corrupt-file" if "Parquet" in str(e) else "schema-mismatch"
            message = f"{key}: the column {column!r} cannot be read as {type_name(type_)}: {in_sql_names(e)}"
            raise FormatError(message, code=code) from None


def copy_file(source: Store, target: Store, keys: tuple[str, str]) -> None:
    """Copy the first of two keys to the second; raises ``missing-file``."""
    old, new = keys
    try:
        size = source.size(old)
        with target.output(new, sync_folders=False, whole=True) as out:
            if size is None:
                out.write(source.read(old))
                return
            for start in range(0, size, CHUNK_BYTES):
                out.write(source.read(old, start=start, end=min(size, start + CHUNK_BYTES)))
    except KeyError:
        raise missing_file(old) from None


def collect_stats(store: Files, table: FileTable) -> dict[str, int]:
    """Return how much the files of a table hold, by the names of the original; ``missing-file``, ``corrupt-file``.

    Rows that were overwritten are counted, as they are still there.
    """
    found = list(store.map(partial(footer, store), table.files))
    return {
        "blobsize": sum(size for _, size in found),
        "files": len(found),
        "partitions": len(set(table.partitions.part_of_file)),
        "rows": sum(rows for rows, _ in found),
    }


def footer(store: Files, key: str) -> tuple[int, int]:
    """Return rows and bytes of a data file, as ``file_metadata`` reads them."""
    found, size = file_metadata(store, key)
    return found.num_rows, size
