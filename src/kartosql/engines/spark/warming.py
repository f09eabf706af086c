"""What a session does for the first time takes seconds, most of which Java needs to load classes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from kartosql.engines.spark.listing import FileColumn, relation
from kartosql.engines.spark.session import is_connect, isolated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    frame = relation(session, "parquet", "file:///", [], [], {"x": "INT"}, [FileColumn("p", pa.string(), [])])
    frame.createOrReplaceTempView("rows")
    session.sql("SELECT p0.x AS x FROM (SELECT x, p FROM rows) p0 WHERE p0.p = 'a'")
    session.catalog.tableExists("rows")
