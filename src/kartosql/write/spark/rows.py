"""DataFrames -> data files that executors write, as ``write_rows`` does of rows in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from importlib import import_module
from typing import Any

import pyarrow as pa

from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import parse_partitions
from kartosql.store import Store
from kartosql.write.files import WriteOptions, WriteProgress, Written, write_rows
from kartosql.write.inputs import Rows, invalid_data, open_rows, storage_schema, without_index
from kartosql.write.layout import Layout, check_columns, duplicate_cells
from kartosql.write.spark.job import Job, collected, discard, spark_errors
from kartosql.write.spark.task import read_cells, spark_name, write_files

_TYPES = {
    "StringType": pa.string(),
    "CharType": pa.string(),
    "VarcharType": pa.string(),
    "BinaryType": pa.binary(),
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "DateType": pa.date32(),
    "TimestampType": pa.timestamp("us", "UTC"),
    "TimestampNTZType": pa.timestamp("us"),
    "TimeType": pa.time64("us"),
    "NullType": pa.null(),
}


@dataclass(frozen=True, eq=False)
class SparkRows(Rows):
    """Rows of Spark DataFrames, one behind the other; how many there are is not known before they are written."""

    frames: tuple[Any, ...] = ()

    def _type_in(self, own: pa.DataType, stored: pa.DataType | None) -> pa.DataType:
        # Spark tells tasks and cells apart by texts, of which two may be one date.
        return own if pa.types.is_string(own) else super()._type_in(own, stored)

    @property
    def _tables(self) -> None:
        return None


def open_frame(data: Any, name: str) -> SparkRows:
    """Return the rows of a DataFrame of Spark or of pandas-on-Spark; nothing is computed yet.

    Raises ``invalid-data`` for streams, other objects of Spark, and columns that cannot be stored.
    """
    # Asked of the class: of an instance columns are attributes.
    if hasattr(type(data), "to_spark"):
        data = data.to_spark()
    if not hasattr(type(data), "mapInArrow"):
        raise invalid_data(name, f"a {type(data).__name__} of Spark is no DataFrame", "Pass a DataFrame.")
    if data.isStreaming:
        raise invalid_data(name, "it is a stream", "Write each of its batches: writeStream.foreachBatch.")
    fields = []
    for field in data.schema.fields:
        type_ = arrow_type(field.dataType)
        if type_ is None:
            raise invalid_data(
                name,
                f"the column {field.name!r} is {field.dataType.simpleString()}, which cannot be stored",
                "Cast it to another type.",
            )
        fields.append(pa.field(field.name, type_))
    return SparkRows(name, storage_schema(without_index(pa.schema(fields)), name), (), (data,))


def arrow_type(type_: Any) -> pa.DataType | None:
    """Return the type in which a column of a Spark type is stored, None if it cannot be."""
    name = type(type_).__name__
    if name == "DecimalType":
        return pa.decimal128(type_.precision, type_.scale)
    if name == "ArrayType":
        item = arrow_type(type_.elementType)
        return None if item is None else pa.list_(pa.field("item", item))
    if name == "StructType":
        fields = [(f.name, arrow_type(f.dataType)) for f in type_.fields]
        return pa.struct(fields) if fields and all(t is not None for _, t in fields) else None
    return _TYPES.get(name)


def joined(rows: Sequence[Rows], schema: pa.Schema, name: str) -> SparkRows:
    """Return rows of several DataFrames as one; raises ``invalid-data`` where some are no DataFrames of Spark."""
    frames: list[Any] = []
    for one in rows:
        if not isinstance(one, SparkRows):
            raise invalid_data(
                name, "some of its parts are Spark DataFrames and others are not", "Make DataFrames of all, or of none."
            )
        frames += one.frames
    return SparkRows(name, schema, (), tuple(frames))


def check_cells(job: Job, frame: Any, answers: Sequence[Mapping[str, Any]], schema: pa.Schema, layout: Layout) -> None:
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
        [layout.file_key(label), folder]
        for folder, files in found.items()
        if len({task if layout.cells_stay_together else label for task, label in files}) > 1
        for _, label in files
    ]
    if not items:
        return
    shape = frame.selectExpr("'' AS text", *(spark_name(schema.names.index(c)) for c in columns))
    shape = shape.toDF("text", *map(spark_name, range(len(columns))))
    with spark_errors():
        cells = job.mapped(job.spread(items), partial(read_cells, job.address, columns), shape.schema)
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
    store: Store, rows: SparkRows, layout: Layout, options: WriteOptions, repartition: bool | str
) -> Written:
    """Write the data files of one table on the executors, and return what they are.

    Raises what ``write_rows`` raises, ``store-unreachable`` and ``spark-job-failed``; the files
    that were written by then are deleted, as far as they can be.
    """
    check_columns(rows.schema, layout)
    with Job(rows.frames[0].sparkSession, store, layout.uuid) as job:
        given = WriteOptions(row_group_rows=options.row_group_rows, rows_per_file=options.rows_per_file)
        work = partial(write_files, write_id=job.id, layout=layout, schema=rows.schema, options=given)
        try:
            with spark_errors():
                frame = distributed(_one(rows), rows.schema, layout, repartition)
            answers = job.run(frame, work)
            if not answers:
                # Says what is wrong with data without rows, or writes what stands for them.
                empty = open_rows(rows.schema.empty_table(), layout.name)
                return write_rows(store, empty, layout, WriteOptions(row_group_rows=options.row_group_rows))
            if layout.cell and not (repartition and layout.cells_stay_together):
                check_cells(job, frame, answers, rows.schema, layout)
            written = _written(store, answers, rows.schema, layout, options)
        except BaseException:
            discard(store, [f"{layout.uuid}/{layout.table}/"], job.id.__eq__)
            raise
    if options.progress is not None:
        options.progress(WriteProgress(layout.name, written.rows, len(written.keys), written.bytes))
    return written


# -- where rows go -----------------------------------------------------------------------------------


def _one(rows: SparkRows) -> Any:
    """Return one DataFrame with the columns of all, in the order of the schema and by plain names."""
    frames = []
    for frame in rows.frames:
        names = list(frame.columns)
        frame = frame.toDF(*map(spark_name, range(len(names))))
        columns = [
            frame[spark_name(names.index(f.name))] if f.name in names else _null(frame, f.type) for f in rows.schema
        ]
        # Text with a collation of its own has another order, and other values are equal.
        texts = map(pa.types.is_string, rows.schema.types)
        frames.append(frame.select(*(c.cast("string") if text else c for c, text in zip(columns, texts, strict=True))))
    return reduce(lambda a, b: a.union(b), frames).toDF(*map(spark_name, range(len(rows.schema))))


def _null(frame: Any, type_: pa.DataType) -> Any:
    """Return the column of NULLs that stands for one which the rows lack (``Rows.filled``)."""
    from pyspark.sql.pandas.types import from_arrow_type

    # Columns of classic sessions are none of Spark Connect.
    functions = import_module(type(frame).__module__.rpartition(".")[0].removesuffix(".classic") + ".functions")
    return functions.lit(None).cast(from_arrow_type(type_, prefer_timestamp_ntz=True))


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
    store: Store, answers: Sequence[Mapping[str, Any]], schema: pa.Schema, layout: Layout, options: WriteOptions
) -> Written:
    labels = [label for answer in answers for label in answer["labels"]]
    # Ascending by partition values, as one process writes them.
    partition_types = [schema.field(name).type for name in layout.partition_on]
    keys = list(map(layout.file_key, labels))
    parts = parse_partitions(keys, layout.uuid, layout.table, layout.partition_on, partition_types)
    order = sorted(range(len(labels)), key=lambda place: parts.tuples[parts.part_of_file[place]])
    labels = [labels[place] for place in order]
    types = {name: schema.field(name).type for name in layout.index_columns}
    return Written(
        layout,
        schema,
        tuple(labels),
        tuple(map(layout.file_key, labels)),
        collected(store, answers, types, labels, options),
        sum(answer["rows"] for answer in answers),
        sum(answer["bytes"] for answer in answers),
    )
