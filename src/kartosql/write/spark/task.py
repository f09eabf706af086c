"""The part of a job that runs on an executor."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import ExecutionError, FormatError, KartosqlError, StoreError, UsageError
from kartosql.formats.kartothek import naming
from kartosql.store import Store
from kartosql.write import files
from kartosql.write.copy_files import copy_file
from kartosql.write.indexing import values_of_file
from kartosql.write.inputs import FILE_BATCH_ROWS, Rows, rows_of
from kartosql.write.layout import Layout
from kartosql.write.merge import Run, write_merged
from kartosql.write.pairs import Pairs
from kartosql.write.rows import Written, write_rows
from kartosql.write.sorting import ordered
from kartosql.write.spark.sides import put_pairs, put_tables
from kartosql.write.spark.work import (
    TASK_MEMORY,
    CollectMetadata,
    CopyFiles,
    MergeFiles,
    ReadCells,
    ReadValues,
    Work,
    WriteRows,
    spark_name,
    task_sorter,
)
from kartosql.write.stats import footer

# How many files a task looks at together for metadata.
PORTION = 500
# More than the rows of metadata that come together.
_METADATA_ROWS = 1 << 20


class _Indexed:
    """The pairs of several columns, of files that come one after the other."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self._pairs: dict[str, Pairs] = {}

    def add(self, column: str, values: pa.Array) -> None:
        """Take different values of the latest of the labels."""
        if column not in self._pairs:
            self._pairs[column] = Pairs(values.type, task_sorter(), TASK_MEMORY // 8)
        self._pairs[column].add(len(self.labels) - 1, values)

    def put(self, store: Store, work: ReadValues | MergeFiles) -> dict[str, Any]:
        """Write the pairs for the driver and return what it needs to find them."""
        try:
            found = {column: pairs.finish(self.labels) for column, pairs in self._pairs.items()}
            return {"labels": self.labels, "pairs": put_pairs(store, work.token, found, self.labels)}
        finally:
            for pairs in self._pairs.values():
                pairs.close()


def read_values(store: Store, work: ReadValues, items: Iterable[Any]) -> dict[str, Any]:
    """Return where the values of columns of some files are."""
    found = _Indexed()
    for label, key in items:
        found.labels.append(label)
        for column, type_ in work.types.items():
            found.add(column, values_of_file(store, key, column, type_))
    return found.put(store, work)


def merge_files(store: Store, work: MergeFiles, items: Iterable[Any]) -> dict[str, Any]:
    """Return what became of some runs of files."""
    sorter = task_sorter()
    arrange = partial(ordered, sorter=sorter, memory=TASK_MEMORY)
    found, made = _Indexed(), []
    for number, folders, keys in items:
        run = Run(folders, keys=keys)
        # The files of two runs may hold the same cells, so they share no id.
        write_id = work.prefix + uuid.uuid4().hex[len(work.prefix) :]

        def write(rows: Rows, layout: Layout, table: str, write_id: str = write_id) -> Written:
            options: dict[str, Any] = {"sorter": sorter, "memory": TASK_MEMORY, "row_group_rows": work.row_group_rows}
            return write_rows(store, rows, layout, table=table, write_id=write_id, **options)

        written = write_merged(work.how, run, store, arrange, write)
        if written is None:
            made.append([number, None])
            continue
        found.labels.append(run.label_of(written))
        for one in written.values():
            for column, pairs in one.pairs.items():
                found.add(column, pairs["value"].combine_chunks())
        tables = {table: [w.labels[0], w.keys[0], w.rows, w.bytes] for table, w in written.items()}
        made.append([number, tables])
    return {"made": made, **found.put(store, work)}


def copy_files(store: Store, work: CopyFiles, items: Iterable[Any]) -> dict[str, Any]:
    """Return the keys, rows and bytes of the copies of some files."""
    source = work.source.open()
    made = []
    for number, old, folder, write_id in items:
        # A name for each attempt: one that was cut off may have left a file behind.
        new = f"{folder}{naming.file_id(write_id)}.parquet"
        copy_file(source, store, (old, new))
        made.append([number, new, *footer(store, new)])
    store.sync([new for _, new, *_ in made])
    return {"made": made}


def collect_metadata(store: Store, work: CollectMetadata, items: Iterable[Any]) -> dict[str, Any]:
    """Return where the data-skipping metadata of some files are."""
    # Most tasks do without, and a worker may have to compile what it imports.
    from kartosql.formats.xskipper import DataFile, Sources
    from kartosql.formats.xskipper.scans import parquet_scan
    from kartosql.parquet.reader import open_footer

    sources = Sources(parquet_scan(store), partial(open_footer, store))

    def found() -> Iterator[pa.Table]:
        listed = iter(items)
        while portion := [DataFile(*item) for item in islice(listed, PORTION)]:
            yield from sources.rows(portion, work.layout)

    return {"metadata": put_tables(store, work.token, work.layout.arrow_schema, found(), _METADATA_ROWS)}


ANSWER = pa.schema([("task", pa.int64()), ("answer", pa.string())])
# In front of an error of ours in the text of one of Spark's.
MARK = "kartosql-error:"
_KINDS: Mapping[str, type[KartosqlError]] = {
    kind.__name__: kind for kind in (ExecutionError, FormatError, StoreError, UsageError)
}


class StoreFailed(Exception):
    """An error of the store, as text that the driver finds in the message of Spark."""


def run(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do ``work`` on the rows of a task and yield its answer: one row, a number and a JSON text.

    Errors of the data are answers, as trying again does not help against them. Those of the
    store are raised, so that Spark tries again.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    try:
        if isinstance(work, ReadCells):
            yield from _cells(work, batches)
            return
        answer = _answer(work, batches)
    except StoreError as e:
        raise StoreFailed(MARK + json.dumps(as_dict(e))) from None
    if answer is not None:
        yield pa.RecordBatch.from_arrays([pa.array([number]), pa.array([json.dumps(answer)])], schema=ANSWER)


def _answer(work: Work, batches: Iterable[pa.RecordBatch]) -> dict[str, Any] | None:
    found = (batch for batch in batches if batch.num_rows)
    first = next(found, None)
    if first is None:
        return None
    try:
        store = work.store.open()
    except StoreError as e:
        # A folder of the driver's machine.
        raise unreachable(work.store.url) if e.code == "store-not-found" else e from None
    if token(store, work.token):
        return {"skipped": True}  # another task has found an error already
    try:
        given = chain([first], found)
        if isinstance(work, WriteRows):
            return _write(store, work, given)
        if isinstance(work, ReadValues):
            return read_values(store, work, items(given))
        if isinstance(work, MergeFiles):
            return merge_files(store, work, items(given))
        if isinstance(work, CollectMetadata):
            return collect_metadata(store, work, items(given))
        assert isinstance(work, CopyFiles), work
        return copy_files(store, work, items(given))
    except StoreError:
        raise
    except KartosqlError as e:
        store.put(work.token, json.dumps(as_dict(e)).encode())
        return {"skipped": True}


def token(store: Store, key: str) -> bytes:
    """Return nothing, or the error that a task has met; raises ``store-unreachable``."""
    try:
        return store.read(key)
    except KeyError:
        raise unreachable(store.url) from None


def unreachable(url: str) -> StoreError:
    """Return the error for a store that is another one on executors."""
    return StoreError(
        f"The executors of Spark do not see what the driver writes to {url!r}.",
        code="store-unreachable",
        hint="Use a store that all machines reach under one address, such as s3://; a local folder has to be shared.",
    )


def as_dict(error: KartosqlError) -> dict[str, Any]:
    """Return an error as it travels to the driver."""
    return {"class": type(error).__name__, "code": error.code, "message": error.message, "hint": error.hint}


def as_error(found: Mapping[str, Any]) -> KartosqlError:
    """Return the error that a task met."""
    kind = _KINDS.get(found["class"], KartosqlError)
    return kind(found["message"], code=found["code"], hint=found["hint"])


# -- rows ------------------------------------------------------------------------------------------


def _write(store: Store, work: WriteRows, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
    # What reading them raises is no error of the data: the task may have been stopped.
    renamed = (_renamed(batch, work.schema) for batch in batches)
    written = write_rows(
        store,
        rows_of(renamed, work.schema, work.layout.name),
        work.layout,
        sorter=task_sorter(),
        memory=TASK_MEMORY,
        table=work.table,
        row_group_rows=work.row_group_rows,
        rows_per_file=work.rows_per_file,
        write_id=work.write_id,
        presorted=True,
    )
    return {
        "labels": written.labels,
        "rows": written.rows,
        "bytes": written.bytes,
        "pairs": put_pairs(store, work.token, written.pairs, written.labels),
    }


def _renamed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the names of ``schema``; moments come in the zone of the session."""
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        is_moment = pa.types.is_timestamp(field.type) and field.type.tz is not None
        columns.append(column.cast(field.type) if is_moment else column)
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _cells(work: ReadCells, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    store = work.store.open()
    for key, text in items(batches):
        with contextlib.closing(files.open_key(store, key)) as source, pq.ParquetFile(source) as file:
            for batch in file.iter_batches(FILE_BATCH_ROWS, columns=list(work.columns)):
                columns = [pa.repeat(pa.scalar(text), batch.num_rows), *map(batch.column, work.columns)]
                yield pa.RecordBatch.from_arrays(columns, names=["text", *map(spark_name, range(len(work.columns)))])


def items(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    """Yield what the driver has spread over tasks."""
    for batch in batches:
        for text in batch.column(0).to_pylist():
            yield json.loads(text)
