"""Figures of the Spark engine: views over many files, scans through them, and point queries by index.

    python -m tests.benchmarks.spark --data FOLDER [--scale 1] [--runs 7] [--no-scans] [--connect]

takes the data of ``tests.benchmarks.scan`` and prints a table; it ends with exit code 1 if a figure is missed.
``--connect`` measures a session of Spark Connect, whose server is in the JVM of the local one, and counts its calls.
"""

from __future__ import annotations

import argparse
import collections
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

import kartosql
import kartosql.spark
from kartosql.engines.spark.session import session
from tests.benchmarks.lineitem import MONTH, Data, prepare

TABLE = "lineitem_many"
COLUMNS = ("l_orderkey", "l_partkey", "l_quantity", "l_extendedprice", "l_shipdate", "l_comment")
SCANS = {
    "count and sum of one column": "SELECT count(*), sum(l_quantity) FROM {}",
    "four columns": "SELECT max(l_orderkey), sum(l_extendedprice), max(l_shipmode), max(l_comment) FROM {}",
}


def seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def cpu_seconds(spark: Any) -> float:
    """Return the CPU time that this process and the JVM of the session have taken."""
    with open(f"/proc/{spark._sc._gateway.proc.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def planned(spark: Any, text: str) -> None:
    spark.sql(text)._jdf.queryExecution().executedPlan()


def registered(spark: Any, data: Data, name: str, told: Callable[..., None]) -> None:
    """Register a view of many files, and plan a query over it."""
    before = cpu_seconds(spark)
    started = time.perf_counter()
    views = kartosql.spark.register(spark, data.root, [TABLE])
    took, used = time.perf_counter() - started, cpu_seconds(spark) - before
    plan = seconds(lambda: planned(spark, f"SELECT count(*), sum(l_quantity) FROM {TABLE} WHERE {MONTH} >= '1997-06'"))
    views.close()
    count = len(data.files[TABLE])
    found = f"{took:.2f} s, of CPU {used:.2f} s; {plan:.2f} s to plan a query"
    told(f"register a view of {count:,} files, {name}", found, "1 s", took <= 1)


def own_view(spark: Any, data: Data) -> None:
    """Let Spark read the same files by their explicit list, as fast as it can."""
    from pyspark.sql.pandas.types import from_arrow_schema

    files = data.files[TABLE]
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000000")
    frame = spark.read.schema(from_arrow_schema(pq.read_schema(files[0]))).parquet(*[f"file://{f}" for f in files])
    frame.createOrReplaceTempView("own")


def compared(
    spark: Any, ours: Callable[[], Any], other: Callable[[], Any], runs: int
) -> tuple[float, float, float, float]:
    """Return the medians of both in turns, the median of the ratios, and the ratio of CPU times."""
    for _ in range(2):
        ours(), other()
    pairs, used = [], [0.0, 0.0]
    for _ in range(runs):
        took = []
        for at, action in enumerate((ours, other)):
            before = cpu_seconds(spark)
            took.append(seconds(action))
            used[at] += cpu_seconds(spark) - before
        pairs.append((took[0], took[1]))
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
        used[0] / used[1],
    )


def connected(spark: Any) -> tuple[Any, collections.Counter[str]]:
    """Return a session of Spark Connect with a server in the JVM of a classic one, and its calls, as they are made."""
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession

    calls: collections.Counter[str] = collections.Counter()

    class Counting(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
        def intercept_unary_unary(self, proceed: Any, details: Any, request: Any) -> Any:
            calls[str(details.method).rpartition("/")[2]] += 1
            return proceed(details, request)

        intercept_unary_stream = intercept_unary_unary

    context = spark._jsc.sc()
    context.conf().set("spark.connect.grpc.binding.address", "127.0.0.1").set("spark.connect.grpc.binding.port", "0")
    server = getattr(getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    server.start(context)
    builder = DefaultChannelBuilder(f"sc://127.0.0.1:{server.localPort()}")
    builder.add_interceptor(Counting())
    return SparkSession.builder.channelBuilder(builder).create(), calls


def full_scans(spark: Any, classic: Any, runs: int, most: float, told: Callable[..., None]) -> None:
    """Compare scans of the view with those of the folder as Spark reads it; CPU is that of the classic session."""
    for name, text in SCANS.items():
        ours, own, ratio, cpu = compared(
            classic,
            lambda text=text: spark.sql(text.format(TABLE)).collect(),  # type: ignore[misc]
            lambda text=text: spark.sql(text.format("own")).collect(),  # type: ignore[misc]
            runs,
        )
        found = f"{ours:.2f} s to {own:.2f} s: {ratio:.2f} x, of CPU {cpu:.2f} x"
        told(f"full scan, {name}", found, f"{most:.2f} x", ratio <= most)


def over_connect(classic: Any, data: Data, runs: int, *, scans: bool, told: Callable[..., None]) -> None:
    """Compare what Spark Connect reads through us with what it reads from the folder by itself."""
    spark, calls = connected(classic)
    views = kartosql.spark.register(spark, data.root, [TABLE])
    spark.read.parquet(f"{data.root}/{TABLE}/table").createOrReplaceTempView("own")
    if scans:
        full_scans(spark, classic, runs, 1.2, lambda name, *found: told(f"Connect: {name}", *found))
    views.close()
    with kartosql.connect(data.root) as con:
        key = key_of(con)
        point = f"SELECT * FROM {TABLE} WHERE l_orderkey = {key}"

        def folder() -> Any:
            return spark.read.parquet(f"{data.root}/{TABLE}/table").where(f"l_orderkey = {key}").collect()

        def asked() -> Any:
            return kartosql.spark.sql(spark, con, point).collect()

        assert len(asked()) == len(folder()) > 0
        ours, own, ratio, cpu = compared(classic, asked, folder, max(3, runs // 2))
        found = f"{ours:.2f} s to {own:.2f} s: 1/{1 / ratio:.0f} x, of CPU 1/{1 / cpu:.0f} x"
        told("Connect: point query by index, with an open connection", found, "1/15 x", ratio <= 1 / 15)
        for name, action in (("ours", asked), ("of the folder", folder)):
            calls.clear()
            action()
            print(f"| calls of a point query, {name} | {dict(calls)} | |", flush=True)
    spark.stop()


def key_of(con: kartosql.Connection) -> int:
    """Return a value of the indexed column that few files have."""
    first = f"(SELECT min({MONTH}) FROM {TABLE})"
    ((key,),) = con.sql(f"SELECT max(l_orderkey) FROM {TABLE} WHERE {MONTH} = {first}").rows()
    return int(key)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-scans", action="store_true", help="leave out what takes longest")
    parser.add_argument("--connect", action="store_true", help="over Spark Connect, and nothing else")
    given = parser.parse_args()
    data = prepare(given.data, given.scale)
    started = time.perf_counter()
    spark = session(master="local[2]", memory="1g")
    spark.range(10).count()
    print(f"session up, first job done: {time.perf_counter() - started:.1f} s")
    missed = False

    def told(what: str, found: str, at_most: str, good: bool) -> None:
        nonlocal missed
        missed |= not good
        print(f"| {what} | {found} | {at_most} |{'' if good else ' missed'}", flush=True)

    if given.connect:
        over_connect(spark, data, given.runs, scans=not given.no_scans, told=told)
        return 1 if missed else 0
    for name in ("first time", "the same again"):
        registered(spark, data, name, told)

    views = kartosql.spark.register(spark, data.root, [TABLE])
    own_view(spark, data)
    if not given.no_scans:
        full_scans(spark, spark, given.runs, 1.1, told)
    views.close()

    with kartosql.connect(data.root) as con:
        key = key_of(con)
        point = f"SELECT * FROM {TABLE} WHERE l_orderkey = {key}"

        def folder() -> Any:
            frame = spark.read.parquet(f"{data.root}/{TABLE}/table")
            return frame.where(f"l_orderkey = {key}").collect()

        rows = len(folder())
        assert len(kartosql.spark.sql(spark, data.root, point).collect()) == rows > 0
        runs = max(3, given.runs // 2)
        for name, url in (("with an open connection", con), ("from the URL", data.root)):
            ours, own, ratio, cpu = compared(
                spark,
                lambda url=url: kartosql.spark.sql(spark, url, point).collect(),  # type: ignore[misc]
                folder,
                runs,
            )
            told(
                f"point query by index, {name}",
                f"{ours:.2f} s to {own:.2f} s: 1/{1 / ratio:.0f} x, of CPU 1/{1 / cpu:.0f} x",
                "1/25 x",
                ratio <= 1 / 25,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
