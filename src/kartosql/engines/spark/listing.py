"""Explicit lists of files as relations of Spark, each file with values for partition columns.

Spark takes the values of partition columns from paths, decodes them in its own way, and lists
paths that it is given once more. A file index of our own tells it both (``ListedFiles.java``), so
that partition filters, dynamic ones too, choose files, and values cost nothing per row.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sys
import threading
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.engines.spark.session import is_connect, isolated, maker
from kartosql.engines.spark.types import quote, spark_type
from kartosql.errors import NotPortable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = dt.date(1970, 1, 1).toordinal()
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
    root: str,
    paths: Sequence[str],
    sizes: Sequence[int],
    stored: Mapping[str, str] | None,
    columns: Sequence[FileColumn],
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of files as a DataFrame: the columns ``stored`` in them (name to Spark type), then ``columns``.

    Without ``stored`` there is one row per file, with its bytes as ``content``. ``paths`` are URLs of Hadoop, not
    encoded.
    """
    from pyspark.sql import DataFrame

    partition = _struct({c.name: spark_type(c.type) for c in columns})
    data = None if stored is None else _struct(stored)
    given = {**OPTIONS, **(options or {})}
    texts = [text.encode() for pair in given.items() for text in pair]
    encoded = b"".join([_texts(texts), _texts([p.encode() for p in paths]), _longs(sizes), *map(_encoded, columns)])
    # A call to Java takes its arguments as text, and the names of many files have much in common.
    made = maker(spark).relation(
        spark._jsparkSession, root, partition, data, len(given), len(paths), zlib.compress(encoded, 1), len(encoded)
    )
    return DataFrame(made, spark)


def moved(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Return a DataFrame of one session as one of another, which then runs it."""
    from pyspark.sql import DataFrame

    return DataFrame(maker(spark).moved(frame._jdf, spark._jsparkSession), spark)


def _struct(columns: Mapping[str, str]) -> str:
    return f"STRUCT<{', '.join(f'{quote(n)}: {t}' for n, t in columns.items())}>"


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
        if type_.unit == "ns" and any(v % 1000 for v in values):
            message = f"Spark has no nanoseconds, and the partition key {column.name!r} does."
            raise NotPortable(message, hint="Use engine='duckdb'.")
        return _longs([v // 1000 for v in values] if type_.unit == "ns" else values)
    return _longs(values)


def _texts(values: Sequence[bytes]) -> bytes:
    return _longs(list(map(len, values))) + b"".join(values)


def _longs(values: Sequence[int]) -> bytes:
    return _big_endian(array("q", values))


def _big_endian(values: array[Any]) -> bytes:
    if sys.byteorder == "little":
        values.byteswap()
    return values.tobytes()


@contextlib.contextmanager
def warming(spark: SparkSession) -> Iterator[None]:
    """Let Java load what a scan needs while Python plans one, unless that was done before."""
    # Else threads of Java are those of several threads of Python, with their active sessions.
    has_threads = os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true"
    if is_connect(spark) or hasattr(spark._sc, "_kartosql_warm") or not has_threads:
        yield
        return
    spark._sc._kartosql_warm = True
    thread = threading.Thread(target=_warm, args=(spark,), name="kartosql-warming", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _warm(spark: SparkSession) -> None:
    # Whoever does it next meets the same error, and tells it.
    with contextlib.suppress(Exception):
        _tried(spark)


def _tried(spark: SparkSession) -> None:
    """Do what a scan does, over no file."""
    session = isolated(spark)
    frame = relation(session, "file:///", [], [], {"x": "INT"}, [FileColumn("p", pa.string(), [])])
    frame.createOrReplaceTempView("rows")
    session.sql("SELECT p0.x AS x FROM (SELECT x, p FROM rows) p0 WHERE p0.p = 'a'")
    session.catalog.tableExists("rows")
