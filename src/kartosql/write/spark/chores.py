"""The part of upkeep that runs on an executor."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa

from kartosql.formats.kartothek import naming
from kartosql.parquet.reader import open_footer
from kartosql.store import Store
from kartosql.write.copy_files import copy_file
from kartosql.write.indexing import values_of_file
from kartosql.write.inputs import Rows
from kartosql.write.layout import Layout
from kartosql.write.merge import Run, write_merged
from kartosql.write.pairs import Pairs
from kartosql.write.rows import Written, write_rows
from kartosql.write.sorting import ordered
from kartosql.write.spark.sides import put_pairs, put_tables
from kartosql.write.spark.work import TASK_MEMORY, CollectMetadata, CopyFiles, MergeFiles, ReadValues, task_sorter
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

    sources = Sources(parquet_scan(store), partial(open_footer, store))

    def found() -> Iterator[pa.Table]:
        listed = iter(items)
        while portion := [DataFile(*item) for item in islice(listed, PORTION)]:
            yield from sources.rows(portion, work.layout)

    return {"metadata": put_tables(store, work.token, work.layout.arrow_schema, found(), _METADATA_ROWS)}
