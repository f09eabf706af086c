"""Cells that occur twice, in files that different tasks have written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from kartosql.formats.kartothek import naming
from kartosql.write.files import file_key
from kartosql.write.layout import Layout
from kartosql.write.spark.job import Job, spark_errors
from kartosql.write.spark.work import ReadCells, spark_name
from kartosql.write.split import duplicate_cells


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
