"""Explicit lists of files as relations of Spark, each file with values for partition columns.

Spark takes the values of partition columns from paths, decodes them in its own way, and lists
paths that it is given once more. A file index of our own tells it both (``ListedFiles.java``), so
that partition filters, dynamic ones too, choose files, and values cost nothing per row.
"""

from __future__ import annotations

import datetime as dt
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.engines.spark.types import quote, spark_type
from kartosql.errors import ExecutionError, NotPortable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = dt.date(1970, 1, 1).toordinal()
_PACKAGE = "org.apache.spark.sql.execution.datasources."
FORMATS = {
    "parquet": f"{_PACKAGE}parquet.ParquetFileFormat",
    "binary": f"{_PACKAGE}binaryfile.BinaryFileFormat",
}
# Whatever the session says: no file is left out, and dates are what they are.
OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
}


@dataclass(frozen=True)
class FileColumn:
    """A column whose value is the same in all rows of a file: one value per file, given as for ``array_of``."""

    name: str
    type: pa.DataType
    values: Sequence[Any]


def relation(
    spark: SparkSession,
    format_: str,
    root: str,
    paths: Sequence[str],
    sizes: Sequence[int],
    stored: Mapping[str, str],
    columns: Sequence[FileColumn],
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of files as a DataFrame: the columns ``stored`` in them (name to Spark type), then ``columns``.

    ``format_`` is ``parquet`` or ``binary``; the latter gives one row per file, with its bytes as
    ``content``. ``paths`` are URLs of Hadoop, not encoded.
    """
    from pyspark.sql import DataFrame

    jvm: Any = spark._jvm
    java: Any = spark._jsparkSession
    partition = _schema(jvm, _struct({c.name: spark_type(c.type) for c in columns}))
    data = _schema(jvm, _struct(stored)) if format_ == "parquet" else getattr(jvm, FORMATS[format_]).schema()
    encoded = b"".join([_texts([p.encode() for p in paths]), _longs(sizes), *map(_encoded, columns)])
    files = _new(spark, _class(spark), root, partition, len(paths), encoded)
    made = getattr(jvm, f"{_PACKAGE}HadoopFsRelation")(
        files,
        partition,
        data,
        jvm.scala.Option.empty(),
        getattr(jvm, FORMATS[format_])(),
        jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({**OPTIONS, **(options or {})}),
        java,
    )
    return DataFrame(java.baseRelationToDataFrame(made), spark)


def moved(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Return a DataFrame of one session as one of another, which then runs it."""
    from pyspark.sql import DataFrame

    jvm: Any = spark._jvm
    datasets = getattr(jvm, "org.apache.spark.sql.classic.Dataset$")
    plan = frame._jdf.queryExecution().analyzed()
    return DataFrame(getattr(datasets, "MODULE$").ofRows(spark._jsparkSession, plan), spark)


def _schema(jvm: Any, text: str) -> Any:
    return jvm.org.apache.spark.sql.types.DataType.fromDDL(text)


def _struct(columns: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'{quote(n)}: {t}' for n, t in columns.items())}>"


# -- Java ----------------------------------------------------------------------------------------


def _class(spark: SparkSession) -> Any:
    """Return our file index as a Java class, compiled once per JVM by the compiler that Spark itself uses."""
    context: Any = spark._sc
    found = getattr(context, "_kartosql_files", None)
    if found is None:
        jvm: Any = spark._jvm
        source = resources.files("kartosql.engines.spark").joinpath("ListedFiles.java").read_text("utf-8")
        try:
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(spark._jsparkSession.getClass().getClassLoader())
            compiler.cook(source)
            found = compiler.getClassLoader().loadClass("kartosql.ListedFiles")
        except Exception as e:
            raise ExecutionError(
                f"This version of Spark does not take lists of files: {str(e).splitlines()[0]}",
                code="spark-failed",
                hint="Use PySpark 4 as the extra 'spark' installs it, or engine='duckdb'.",
            ) from e
        context._kartosql_files = found
    return found


def _new(spark: SparkSession, kind: Any, *arguments: Any) -> Any:
    gateway: Any = spark._sc._gateway
    listed = gateway.new_array(gateway.jvm.java.lang.Object, len(arguments))
    for at, argument in enumerate(arguments):
        listed[at] = argument
    return kind.getConstructors()[0].newInstance(listed)


# -- values --------------------------------------------------------------------------------------


def _encoded(column: FileColumn) -> bytes:
    t = pa.types
    type_, values = column.type, column.values
    if t.is_string(type_):
        return _texts([v.encode() for v in values])
    if t.is_binary(type_):
        return _texts(values)
    if t.is_uint64(type_):
        return _texts([str(v).encode() for v in values])
    if t.is_floating(type_):
        return _big_endian(array("d", values))
    if t.is_date32(type_):
        return _longs([v.toordinal() - _EPOCH for v in values])
    if t.is_timestamp(type_):
        return _longs(_microseconds(column))
    return _longs(values)


def _microseconds(column: FileColumn) -> Sequence[int]:
    if column.type.unit != "ns":
        return column.values
    if any(v % 1000 for v in column.values):
        raise NotPortable(
            f"Spark has no nanoseconds, and the partition key {column.name!r} does.", hint="Use engine='duckdb'."
        )
    return [v // 1000 for v in column.values]


def _texts(values: Sequence[bytes]) -> bytes:
    return _longs(list(map(len, values))) + b"".join(values)


def _longs(values: Sequence[int]) -> bytes:
    return _big_endian(array("q", values))


def _big_endian(values: array[Any]) -> bytes:
    if sys.byteorder == "little":
        values.byteswap()
    return values.tobytes()
