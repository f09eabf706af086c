"""DataFrames -> data files that executors write, as ``write_rows`` does of rows in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa

from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.partitions import parse_partitions
from kartosql.store import Store
from kartosql.write import files
from kartosql.write.files import file_key
from kartosql.write.inputs import open_rows
from kartosql.write.layout import Layout
from kartosql.write.rows import Progress, Written, write_rows
from kartosql.write.sorting import Sorter
from kartosql.write.spark.frames import SparkRows
from kartosql.write.spark.job import Job, spark_errors
from kartosql.write.spark.sides import collected
from kartosql.write.spark.work import ReadCells, WriteRows, spark_name
from kartosql.write.split import check_columns, duplicate_cells


def check_cells(
    job: Job, frame: Any, answers: Sequence[Mapping[str, Any]], schema: pa.Schema, layout: Layout, table: str
) -> None:
    """Raise ``duplicate-cells`` if a cell occurs in two of the files that tasks have written.

    It is looked up in the files and not in the ``frame``, which may not be the same when it is
    computed again; they hold the columns of ``schema``.
    """
    known = [c for c in layout.partition_on if c in layout.cell]
    columns = tuple(c for c in layout.cell if c not in layout.partition_on)
    places = [layout.partition_on.index(c) for c in known]
    found: dict[str, list[tuple[int, str]]] = {}
    for task, answer in enumerate(answers):
        for label in answer["labels"]:
            parts = label.split("/")
            found.setdefault("/".join(parts[i] for i in places), []).append((task, label))
    items = [
        [file_key(layout.uuid, label, table), folder]
        for folder, files in found.items()
        if len({task if layout.cells_stay_together else label for task, label in files}) > 1
        for _, label in files
    ]
    if not items:
        return
    shape = frame.selectExpr("'' AS text", *(spark_name(schema.names.index(c)) for c in columns))
    shape = shape.toDF("text", *map(spark_name, range(len(columns))))
    work = ReadCells(job.address, job.token, columns)
    with spark_errors():
        cells = job.mapped(job.spread(items), work, shape.schema)
        names = cells.columns
        again = cells.groupBy(*names).count().where("count > 1")
        # The first one and how many there are, in one pass.
        row = again.selectExpr("count", f"struct({', '.join(names)}) AS cell").selectExpr(
            "sum(count - 1) AS count", "min(cell) AS cell"
        )
        first = row.collect()[0]
    if first["count"]:
        folder = dict(zip(known, first["cell"]["text"].split("/"), strict=False))
        values = {c: naming.unquote(part.partition("=")[2]).decode() for c, part in folder.items()}
        values |= {c: first["cell"][spark_name(i)] for i, c in enumerate(columns)}
        raise duplicate_cells(layout, first["count"], {c: values[c] for c in layout.cell})


def write_frames(
    store: Store,
    rows: SparkRows,
    layout: Layout,
    *,
    sorter: Sorter | None,
    memory: int,
    progress: Callable[[Progress], object] | None,
    table: str,
    row_group_rows: int,
    rows_per_file: int | None,
    repartition: bool | str,
) -> Written:
    """Write the data files of one table on the executors, and return what they are.

    Raises what ``write_rows`` raises, ``store-unreachable`` and ``spark-job-failed``; the files
    that were written by then are deleted, as far as they can be.
    """
    check_columns(rows.schema, layout)
    with Job(rows.frames[0].sparkSession, store, layout.uuid) as job:
        work = WriteRows(job.address, job.token, job.id, layout, rows.schema, table, row_group_rows, rows_per_file)
        try:
            with spark_errors():
                frame = distributed(_one(rows), rows.schema, layout, repartition)
            answers = job.run(frame, work)
            if not answers:
                # Says what is wrong with data without rows, or writes what stands for them.
                empty = open_rows(rows.schema.empty_table(), layout.name)
                return write_rows(store, empty, layout, table=table, row_group_rows=row_group_rows)
            if layout.cell and not (repartition and layout.cells_stay_together):
                check_cells(job, frame, answers, rows.schema, layout, table)
            written = _written(store, answers, rows.schema, layout, table, sorter, memory)
        except BaseException:
            discard_write(store, f"{layout.uuid}/{table}/", job.id)
            raise
    if progress is not None:
        progress(Progress(layout.name, written.rows, len(written.keys), written.bytes))
    return written


def discard_write(store: Store, prefix: str, write_id: str) -> None:
    """Delete the files of a write, also those of which no task could tell, as far as the store lets us."""
    with contextlib.suppress(Exception):
        store.delete([key for key in store.list_below(prefix) if key.rpartition("/")[2].startswith(write_id)])


# -- where rows go -----------------------------------------------------------------------------------


def _one(rows: SparkRows) -> Any:
    """Return one DataFrame with the columns of all, in the order of the schema and by plain names."""
    frames = []
    for frame in rows.frames:
        names = list(frame.columns)
        frame = frame.toDF(*map(spark_name, range(len(names))))
        frames.append(frame.select(*(_plain(frame, names.index(name), rows, name) for name in rows.schema.names)))
    return reduce(lambda a, b: a.union(b), frames).toDF(*map(spark_name, range(len(rows.schema))))


def _plain(frame: Any, number: int, rows: SparkRows, name: str) -> Any:
    found = frame[spark_name(number)]
    # Text with a collation of its own has another order, and other values are equal.
    return found.cast("string") if pa.types.is_string(rows.schema.field(name).type) else found


def distributed(frame: Any, schema: pa.Schema, layout: Layout, repartition: bool | str) -> Any:
    """Return a DataFrame whose tasks hold what belongs into the same files, in the order of the layout."""

    def columns(names: Sequence[str]) -> list[Any]:
        return [frame[spark_name(schema.names.index(name))] for name in names]

    if repartition and layout.partition_on and repartition != "range":
        frame = frame.repartition(*columns(layout.partition_on))
    elif repartition and layout.order:
        frame = frame.repartitionByRange(*columns(layout.order))
    return frame.sortWithinPartitions(*columns(layout.order)) if layout.order else frame


# -- what came of it -----------------------------------------------------------------------------------


def _written(
    store: Store,
    answers: Sequence[Mapping[str, Any]],
    schema: pa.Schema,
    layout: Layout,
    table: str,
    sorter: Sorter | None,
    memory: int,
) -> Written:
    labels = [label for answer in answers for label in answer["labels"]]
    order = _ascending(labels, schema, layout, table)
    types = {name: schema.field(name).type for name in layout.index_columns}
    labels = [labels[place] for place in order]
    return Written(
        layout,
        table,
        schema,
        tuple(labels),
        tuple(files.file_key(layout.uuid, label, table) for label in labels),
        collected(store, answers, types, labels, sorter, memory),
        sum(answer["rows"] for answer in answers),
        sum(answer["bytes"] for answer in answers),
    )


def _ascending(labels: Sequence[str], schema: pa.Schema, layout: Layout, table: str) -> list[int]:
    """Return the places of ``labels`` ascending by partition values, as one process writes them."""
    keys = [files.file_key(layout.uuid, label, table) for label in labels]
    types = [schema.field(name).type for name in layout.partition_on]
    parts = parse_partitions(keys, layout.uuid, table, layout.partition_on, types)
    return sorted(range(len(labels)), key=lambda place: parts.tuples[parts.part_of_file[place]])
