"""The orders of tasks, as they travel to the executors, and how they are carried out there."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import ExecutionError, FormatError, KartosqlError, LimitError, StoreError, UsageError
from kartosql.formats.kartothek import naming
from kartosql.store import Store
from kartosql.store.streams import CountedOutput
from kartosql.text.secrets import redacted
from kartosql.write import files
from kartosql.write.files import WriteOptions, copy_file, footer, opened_parquet, values_of_file, write_rows
from kartosql.write.indexing import KEYS, Postings
from kartosql.write.inputs import FILE_BATCH_ROWS, keys_for, rows_of
from kartosql.write.layout import Layout, SpillingSorter, ordered
from kartosql.write.merge import Merge, Run, write_merged

if TYPE_CHECKING:
    from kartosql.formats.xskipper.domain import ColumnType
    from kartosql.formats.xskipper.layout import IndexLayout

PAIRS_PER_ROW_GROUP = 65_536
# What one task may take for rows; the processes of executors have little memory beside the JVM.
TASK_MEMORY = 128_000_000


def task_sorter() -> SpillingSorter:
    """Return what sorts the rows of a task, in a folder that Spark clears away when the executor ends."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return SpillingSorter(folder if os.path.isdir(folder) else None)


def spark_name(number: int) -> str:
    """Return the name that a column has in Spark, where names that differ in case alone are the same."""
    return f"c{number}"


@dataclass(frozen=True)
class Address:
    """How to reach a store; its options may hold secrets, so they are in no text form."""

    url: str
    options: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Address({redacted(self.url)!r})"

    def open(self) -> Store:
        """Return the store, as far as a task needs it; raises ``store-failed`` and ``store-not-found``."""
        return Store(self.url, self.options, without_driver=True)


# How many files a task looks at together for metadata.
PORTION = 500
# More than the rows of metadata that come together.
_METADATA_ROWS = 1 << 20
Batches = Iterable[pa.RecordBatch]
# Of a store, the token of a job and the rows of a task, what the driver is told.
Work = Callable[[Store, str, Batches], dict[str, Any]]

# In front of an error of ours in the text of one of Spark's.
MARK = "kartosql-error:"
_KINDS: Mapping[str, type[KartosqlError]] = {
    kind.__name__: kind for kind in (ExecutionError, FormatError, LimitError, StoreError, UsageError)
}


class StoreFailed(Exception):
    """An error of the store, as text that the driver finds in the message of Spark."""


def run(work: Callable[[Batches], Iterator[pa.RecordBatch]], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Do ``work`` on the rows of a task and yield what it makes of them.

    Errors of the data are answers, as trying again does not help against them. Those of the
    store are raised, so that Spark tries again.
    """
    try:
        yield from work(batches)
    except StoreError as e:
        raise StoreFailed(MARK + json.dumps(as_dict(e))) from None


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


def items(batches: Batches) -> Iterator[Any]:
    """Yield what the driver has spread over tasks."""
    for batch in batches:
        for text in batch.column(0).to_pylist():
            yield json.loads(text)


# -- for the driver, which merges pairs of values and files into indices ------------------------------


def put_pairs(store: Store, token: str, found: Mapping[str, pa.Table]) -> dict[str, str]:
    """Write the pairs of each index, as ``Postings`` returns them, for the driver, and return the keys by column."""
    keys = {}
    for column, pairs in found.items():
        if pairs.num_rows:
            # Labels as the numbers of files, which they are in order of.
            numbers = pa.chunked_array([chunk.indices for chunk in pairs["label"].chunks], pa.int32())
            table = pa.table({"value": pairs["value"], "file": numbers})
            keys[column] = put_tables(store, token, table.schema, [table], PAIRS_PER_ROW_GROUP)
    return keys


def put_tables(store: Store, token: str, schema: pa.Schema, tables: Iterable[pa.Table], row_group_rows: int) -> str:
    """Write tables that only the driver reads, and only once, and return their key; each begins a row group."""
    key = f"{token}-{uuid.uuid4().hex}"
    with store.output(key, sync_folders=False, sync_content=False) as out:
        files.write_parquet(CountedOutput(out), schema, tables, row_group_rows)
    return key


def answer(address: Address, token: str, work: Work, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield what ``work`` reports to the driver about the rows of a task: one row, a number and a JSON text.

    ``token`` is the key of an object that the driver put into the store at ``address``; beside it go the files that
    tasks write for the driver.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    found = (batch for batch in batches if batch.num_rows)
    first = next(found, None)
    if first is not None:
        told = json.dumps(_checked(address, token, work, chain([first], found)))
        yield pa.RecordBatch.from_arrays([pa.array([number]), pa.array([told])], names=["task", "answer"])


def _checked(address: Address, token: str, work: Work, batches: Batches) -> dict[str, Any]:
    try:
        store = address.open()
    except StoreError as e:
        # A folder of the driver's machine.
        raise unreachable(address.url) if e.code == "store-not-found" else e from None
    try:
        if store.read(token):
            return {"skipped": True}  # another task has found an error already
    except KeyError:
        raise unreachable(store.url) from None
    try:
        return work(store, token, batches)
    except StoreError:
        raise
    except KartosqlError as e:
        store.put(token, json.dumps(as_dict(e)).encode())
        return {"skipped": True}


# -- work --------------------------------------------------------------------------------------------


def write_files(
    store: Store,
    token: str,
    batches: Batches,
    *,
    write_id: str,
    layout: Layout,
    schema: pa.Schema,
    options: WriteOptions,
) -> dict[str, Any]:
    """Write rows, which arrive as columns in the order of ``schema``, as files of a dataset; return what these are."""
    # What reading them raises is no error of the data: the task may have been stopped.
    rows = rows_of((_renamed(batch, schema) for batch in batches), schema, layout.name)
    options = replace(options, sorter=task_sorter(), memory=TASK_MEMORY)
    written = write_rows(store, rows, layout, options, write_id=write_id, presorted=True)
    return {
        "labels": written.labels,
        "rows": written.rows,
        "bytes": written.bytes,
        "pairs": put_pairs(store, token, written.pairs),
    }


def _renamed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the names of ``schema``; moments come in the zone of the session."""
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        is_moment = pa.types.is_timestamp(field.type) and field.type.tz is not None
        columns.append(column.cast(field.type) if is_moment else column)
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


class _Indexed:
    """The pairs of several columns, of files that come one after the other."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self._pairs: dict[str, Postings] = {}

    def add(self, column: str, values: pa.Array) -> None:
        """Take different values of the latest of the labels."""
        if column not in self._pairs:
            self._pairs[column] = Postings(values.type, task_sorter(), TASK_MEMORY // 8)
        self._pairs[column].add(len(self.labels) - 1, values)

    def put(self, store: Store, token: str) -> dict[str, Any]:
        """Write the pairs for the driver and return what it needs to find them."""
        try:
            found = {column: pairs.finish(self.labels) for column, pairs in self._pairs.items()}
            return {"labels": self.labels, "pairs": put_pairs(store, token, found)}
        finally:
            for pairs in self._pairs.values():
                pairs.close()


def read_values(store: Store, token: str, batches: Batches, *, types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    """Read the different values of columns, for their indices, from files that arrive as label and key."""
    found = _Indexed()
    for label, key in items(batches):
        found.labels.append(label)
        for column, type_ in types.items():
            found.add(column, values_of_file(store, key, column, type_))
    return found.put(store, token)


def read_keys(
    store: Store, token: str, batches: Batches, *, sources: Sequence[Address], type_: pa.DataType, of: ColumnType
) -> dict[str, Any]:
    """Read the different keys of a column from files: a number, that of the source, the key and the column's name."""
    from kartosql.formats.segments import key_type  # most tasks do without

    stores, schema = [source.open() for source in sources], pa.schema([(KEYS[0], key_type(of)), (KEYS[1], pa.int32())])

    def found() -> Iterator[pa.Table]:
        for number, at, key, name in items(batches):
            keys = keys_for(values_of_file(stores[at], key, name, type_), name, of)
            yield pa.table([keys, pa.repeat(pa.scalar(number, pa.int32()), len(keys))], schema=schema)

    return {"keys": put_tables(store, token, schema, found(), PAIRS_PER_ROW_GROUP)}


def merge_files(
    store: Store, token: str, batches: Batches, *, prefix: str, how: Merge, options: WriteOptions
) -> dict[str, Any]:
    """Merge files that arrive as the number, the folders and the keys of a run, and return what became of the runs.

    The ids of what is written begin with ``prefix``.
    """
    options = replace(options, sorter=task_sorter(), memory=TASK_MEMORY)
    arrange = partial(ordered, sorter=options.sorter, memory=TASK_MEMORY)
    found, made = _Indexed(), []
    for number, folders, keys in items(batches):
        run = Run(folders, keys=keys)
        # The files of two runs may hold the same cells, so they share no id.
        write_id = prefix + uuid.uuid4().hex[len(prefix) :]
        written = write_merged(how, run, store, arrange, partial(write_rows, store, options=options, write_id=write_id))
        if written is None:
            made.append([number, None])
            continue
        found.labels.append(run.label_of(written))
        for one in written.values():
            for column, pairs in one.pairs.items():
                found.add(column, pairs["value"].combine_chunks())
        tables = {table: [w.labels[0], w.keys[0], w.rows, w.bytes] for table, w in written.items()}
        made.append([number, tables])
    return {"made": made, **found.put(store, token)}


def copy_files(store: Store, token: str, batches: Batches, *, source: Address) -> dict[str, Any]:
    """Copy files that arrive as their number, their key, the folder to copy to and the id to have there.

    Returns the keys, rows and bytes of the copies.
    """
    of = source.open()
    made = []
    for number, old, folder, write_id in items(batches):
        # A name for each attempt: one that was cut off may have left a file behind.
        new = f"{folder}{naming.file_id(write_id)}.parquet"
        copy_file(of, store, (old, new))
        made.append([number, new, *footer(store, new)])
    store.sync([new for _, new, *_ in made])
    return {"made": made}


def read_cells(address: Address, columns: Sequence[str], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield columns of files, which arrive as their key and a text, with that text."""
    store = address.open()
    names = ["text", *map(spark_name, range(len(columns)))]
    for key, text in items(batches):
        with opened_parquet(store, key) as file:
            for batch in file.iter_batches(FILE_BATCH_ROWS, columns=list(columns)):
                texts = pa.repeat(pa.scalar(text), batch.num_rows)
                yield pa.RecordBatch.from_arrays([texts, *map(batch.column, columns)], names=names)


def collect_metadata(
    store: Store, token: str, batches: Batches, *, layout: IndexLayout, sources: Sequence[Address] = ()
) -> dict[str, Any]:
    """Collect data-skipping metadata of files, which arrive as their path and time in the metadata and their key.

    These are followed by the number of the store, ``sources`` from 1 on, and columns by what the file calls them.
    """
    # Most tasks do without, and a worker may have to compile what it imports.
    from kartosql.formats.xskipper.refreshing import Sources
    from kartosql.formats.xskipper.scans import DataFile, parquet_scan, renamed

    stores = [store, *(source.open() for source in sources)]

    def found() -> Iterator[pa.Table]:
        for (at, there), listed in groupby(items(batches), lambda item: item[3:]):
            scan = parquet_scan(stores[at])
            alike = Sources(scan if there is None else renamed(scan, there))
            while portion := [DataFile(*item[:3]) for item in islice(listed, PORTION)]:
                yield from alike.rows(portion, layout)

    return {"metadata": put_tables(store, token, layout.arrow_schema, found(), _METADATA_ROWS)}
