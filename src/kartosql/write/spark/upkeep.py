"""Upkeep that executors do: reading values for indices, merging files, copying them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.metadata import normalise
from kartosql.formats.xskipper.domain import ColumnType
from kartosql.formats.xskipper.layout import IndexLayout
from kartosql.formats.xskipper.naming import OBJECT_COLUMN, VIRTUAL
from kartosql.formats.xskipper.refreshing import Sources
from kartosql.formats.xskipper.scans import DataFile, Place, partition_values
from kartosql.store import Store
from kartosql.write.files import WriteOptions, Written
from kartosql.write.layout import Layout
from kartosql.write.merge import Merge, Run
from kartosql.write.operation import Operation
from kartosql.write.spark.job import Job, address_of, collected, discard, pieces
from kartosql.write.spark.task import Address, collect_metadata, copy_files, merge_files, read_keys, read_values

# How much of the id of a job stands at the beginning of the ids of what its tasks write.
_PREFIX = 16


def pairs_of_columns(operation: Operation, table: DatasetTable, columns: Sequence[str]) -> dict[str, pa.Table]:
    """Return for some columns the pairs of values and labels that the files of a table hold, as ``pairs_of_files``."""
    types = {column: normalise(table.schema.field(column).type) for column in columns}
    with Job(operation.spark, operation.store, table.uuid) as job:
        items = list(zip(table.labels, table.files, strict=True))
        answers = job.run_items(items, partial(read_values, types=types))
        return collected(operation.store, answers, types, table.labels, operation.options)


# -- merging -----------------------------------------------------------------------------------------


def merge_runs(
    operation: Operation, how: Merge, runs: Sequence[Run]
) -> tuple[list[dict[str, Written] | None], dict[str, pa.Table]]:
    """Write the files that take the place of those of some runs.

    Returns the files of each run by table, None for one that was left alone, and the pairs of all.
    """
    store, uuid_ = operation.store, next(iter(how.tables.values())).uuid
    with Job(operation.spark, store, uuid_) as job:
        prefix = job.id[:_PREFIX]
        try:
            items = [[number, run.folders, run.keys] for number, run in enumerate(runs)]
            options = WriteOptions(row_group_rows=operation.options.row_group_rows)
            answers = job.run_items(items, partial(merge_files, prefix=prefix, how=how, options=options))
            labels = [label for answer in answers for label in answer["labels"]]
            of = ((c, t.schema.field(c).type) for c in how.indexed for t in how.tables.values() if c in t.schema.names)
            types = {column: normalise(type_) for column, type_ in of if not pa.types.is_null(type_)}
            pairs = collected(store, answers, types, labels, operation.options)
        except BaseException:
            discard(store, [f"{uuid_}/{table}/" for table in how.tables], lambda id_: id_.startswith(prefix))
            raise
    found = dict(chain.from_iterable(answer["made"] for answer in answers))
    made = [None if found[n] is None else _written(how, found[n]) for n in range(len(runs))]
    return made, {column: table for column, table in pairs.items() if table.num_rows}


def _written(how: Merge, made: Mapping[str, Any]) -> dict[str, Written]:
    found = {}
    for name, (label, key, rows, size) in made.items():
        table = how.tables[name]
        layout = Layout(table.uuid, how.name, table=name)
        found[name] = Written(layout, table.schema, (label,), (key,), {}, rows, size)
    return found


# -- copying -----------------------------------------------------------------------------------------


def copy_all(
    session: Any, source: Store, target: Store, moves: Sequence[tuple[str, str]], uuid_: str
) -> tuple[list[str], int, int]:
    """Copy files and return the new keys, and how many rows and bytes they have.

    ``moves`` are keys of ``source`` and what keys of ``target``, of the dataset ``uuid_``, begin
    with: a folder and the id of a write. After an error nothing stays of the copies.
    """
    with Job(session, target, uuid_) as job:
        begins = [new.rpartition("/") for _, new in moves]
        try:
            items = [
                [number, old, folder + slash, id_]
                for number, ((old, _), (folder, slash, id_)) in enumerate(zip(moves, begins, strict=True))
            ]
            answers = job.run_items(items, partial(copy_files, source=address_of(source)))
        except BaseException:
            ids = {id_ for *_, id_ in begins}
            discard(target, [f"{uuid_}/"], ids.__contains__)
            raise
    made = sorted(chain.from_iterable(answer["made"] for answer in answers))
    return [key for _, key, *_ in made], sum(rows for *_, rows, _ in made), sum(size for *_, size in made)


# What the driver takes of metadata at once.
PIECE_BYTES = 4 << 20


def keys_of_files(
    session: Any, store: Store, folder: str, places: Iterable[Place], type_: pa.DataType, of: ColumnType
) -> Iterator[pa.Table]:
    """Yield the different keys of a column in files of ``places`` with their numbers, in no order."""
    sources, listed = [], []
    for at, (source, files, name) in enumerate(places):
        sources.append(address_of(source))
        listed += [[number, at, key, name] for number, key in files]
    with Job(session, store, folder) as job:
        for answer in job.run_items(listed, partial(read_keys, sources=sources, type_=type_, of=of)):
            yield from pieces(store, answer["keys"], PIECE_BYTES)


@dataclass(frozen=True)
class SparkSources:
    """How the executors of a session collect the metadata of files, those of the dataset ``folder`` in ``store``.

    Files that are elsewhere are told by ``places``, given their keys and the columns; how they would be read ``here``
    tells whether they changed meanwhile.
    """

    session: Any
    store: Store
    folder: str
    here: Sources | None = None
    places: Callable[[Sequence[str], Sequence[str]], Iterable[Place]] | None = None

    def rows(self, files: Sequence[DataFile], layout: IndexLayout) -> Generator[pa.Table]:
        """Yield metadata rows of files, see ``Collecting``; nothing is yielded before all files were read.

        Raises ``store-unreachable``, ``spark-job-failed``, and what the store raises.
        """
        if not files:
            return
        by_id = {file.id: file for file in files}
        sources: list[Address] = []
        items: list[Any] = [[f.path, f.modified_ms, f.key, 0, None] for f in files] if self.places is None else []
        columns = [spec.column for spec, _ in layout.indexes]
        for source, some, there in self.places([f.key for f in files], columns) if self.places is not None else ():
            sources.append(address_of(source))
            items += [[files[n].path, files[n].modified_ms, key, len(sources), there] for n, key in some]
        with Job(self.session, self.store, self.folder) as job:
            # The driver knows the values of partition columns; JSON has no dates.
            plain = replace(layout, partitions={})
            for answer in job.run_items(items, partial(collect_metadata, layout=plain, sources=sources)):
                for rows in pieces(self.store, answer["metadata"], PIECE_BYTES):
                    indexed = [by_id[i] for i in rows.column(OBJECT_COLUMN).to_pylist()]
                    made = _with_partitions(rows, indexed, layout)
                    yield made if self.here is None else self.here.unchanged(made, by_id)


def _with_partitions(rows: pa.Table, files: Sequence[DataFile], layout: IndexLayout) -> pa.Table:
    arrays = []
    for field in layout.arrow_schema:
        if field.name.startswith(VIRTUAL) and (name := field.name.removeprefix(VIRTUAL)) in layout.partitions:
            arrays.append(pa.chunked_array([partition_values(files, name, field.type)], field.type))
        else:
            arrays.append(rows.column(field.name))
    return pa.Table.from_arrays(arrays, schema=layout.arrow_schema)
