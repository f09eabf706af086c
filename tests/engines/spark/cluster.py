"""The pipeline on executors that are processes of their own: what is written and read is what DuckDB has.

    PYTHONPATH=src:tests:tests/sources python -m engines.spark.cluster [--submit] [--rows 200000]

runs it on ``local-cluster[2,1,1024]``, in a session of this process or by spark-submit, kills an executor while a
cube is built and one while lakes are read. It ends with exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import kartosql
import kartosql.spark

MASTER = "local-cluster[2,1,1024]"
ROOT = Path(__file__).resolve().parents[3]


def executors(parent: int) -> list[int]:
    """Return the processes of executors below a process."""
    above, names = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            above[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            names[int(entry)] = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue  # ended meanwhile

    def is_below(process: int) -> bool:
        while process in above and process != parent:
            process = above[process]
        return process == parent

    return [p for p, name in names.items() if b"CoarseGrainedExecutorBackend" in name and is_below(p)]


@contextlib.contextmanager
def killing(spark: Any) -> Iterator[list[int]]:
    """Kill an executor once a job runs; gives those that were killed."""
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not killed and not ended.wait(0.2):
            found = executors(os.getpid()) or executors(os.getppid())  # of spark-submit
            if found and tracker.getActiveStageIds():
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        yield killed
    finally:
        ended.set()
        killer.join()


def pipeline(spark: Any, rows: int) -> None:
    """Build, append, read and compare; raises what differs."""

    def frame(first: int) -> Any:
        return spark.range(first, first + rows).selectExpr("id AS x", "id % 7 AS p", "id * 2 AS v", "uuid() AS t")

    with tempfile.TemporaryDirectory() as folder, kartosql.connect(folder) as con:
        started = time.perf_counter()
        with killing(spark) as killed:
            con.build_cube(kartosql.Cube("c", ["x"], ["p"], index_columns=["v"]), frame(0))
        print(f"built {rows:,} rows in {time.perf_counter() - started:.1f} s; executors killed: {len(killed)}")
        con.append_to_cube("c", frame(rows))
        text = "SELECT p, count(*) AS n, sum(v) AS s, median(x) AS m, max(x) AS t FROM c GROUP BY p ORDER BY 1"
        wanted = con.sql(text, engine="duckdb").rows()
        assert sum(r[1] for r in wanted) == 2 * rows
        assert con.sql(text, engine="spark").rows() == wanted
        assert [tuple(r) for r in kartosql.spark.sql(spark, con, text).collect()] == wanted
        point = f"SELECT x FROM c WHERE v = {rows}"
        assert [r.x for r in kartosql.spark.sql(spark, con, point).collect()] == [rows // 2]
        views = kartosql.spark.register(spark, folder)
        assert spark.table("c").count() == 2 * rows
        views.close()
    print("built, appended, read by views, statements and an index: as on DuckDB")


def lakes(spark: Any) -> None:
    """Read what is attached, of each kind; raises what differs."""
    from iceberg_tables import HandTable
    from odf_folder import Dataset
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField, StringType

    from delta_tables import DeltaTable, column

    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "store").mkdir()
        con = stack.enter_context(kartosql.connect(folder / "store"))
        delta = DeltaTable(
            folder / "delta", [column("a", "long"), column("s", "string")], features=("deletionVectors",)
        )
        for n in range(6):
            last = delta.add([{"a": 10 * n + k, "s": f"x{k}"} for k in range(5)])
        delta.delete(last, [0, 3])
        schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "s", StringType()), schema_id=0)
        iceberg = HandTable(folder / "iceberg", schema, version=3)
        files = [iceberg.data(pa.table({"a": [n, n + 1, n + 2], "s": ["x", None, f"y{n}"]})) for n in range(6)]
        iceberg.commit(*files)
        keys = iceberg.keys(pa.table({"s": ["y2"]}))
        iceberg.commit(iceberg.vector(files[0], [0]), iceberg.positions([(files[1], 2)]), keys)
        iceberg.write()
        odf = Dataset(folder / "odf", {"offset": "o", "op": "w", "system": "st", "event": "et"}, ["a"])
        odf.schema(a=pa.int64(), s=pa.string())
        odf.append([0, 0, 0], {"a": pa.int64(), "s": pa.string()}, [{"a": k, "s": f"z{k}"} for k in range(3)])
        odf.append([1], {"a": pa.int64(), "s": pa.string()}, [{"a": 1}])
        for n in range(4):
            (folder / "raw" / f"p={n}").mkdir(parents=True)
            old = [dt.datetime(1500, 1, n + 1), None]
            rows = pa.table({"a": [n, 2 * n], "s": ["q", None], "t": pa.array(old, pa.timestamp("us"))})
            pq.write_table(rows, folder / "raw" / f"p={n}" / "f.parquet", use_deprecated_int96_timestamps=n % 2 == 0)
        (folder / "text").mkdir()
        (folder / "text" / "t.csv").write_text("a,s\n1,x\n20,\n")
        kinds = {"delta": "delta", "iceberg": "iceberg", "odf": "odf", "raw": None, "text": "csv"}
        for name, kind in kinds.items():
            con.attach(folder / name, name, **({"type": kind} if kind else {}))
        with killing(spark) as killed:
            for table in kinds:
                for text in (f"FROM {table}", f"SELECT s, count(*), sum(a) FROM {table} WHERE a > 1 GROUP BY s"):
                    found, wanted = (con.sql(text, engine=engine).rows() for engine in ("spark", "duckdb"))
                    assert Counter(map(repr, found)) == Counter(map(repr, wanted)), text
                    assert found, text
            text = "SELECT count(*) FROM iceberg a, delta b, odf c, raw d, text e WHERE a.a < b.a"
            assert con.sql(text, engine="spark").rows() == con.sql(text, engine="duckdb").rows()
        print(f"read {', '.join(kinds)}: as on DuckDB; executors killed: {len(killed)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--submit", action="store_true")
    given = parser.parse_args()
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    os.environ |= {"SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable, "SPARK_SCALA_VERSION": "2.13"}
    if given.submit:
        path = f"{ROOT / 'src'}:{ROOT / 'tests'}:{ROOT / 'tests' / 'sources'}"
        environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_DRIVER_PYTHON": sys.executable}
        command = [os.path.join(home, "bin", "spark-submit"), "--master", MASTER, __file__, "--rows", str(given.rows)]
        return subprocess.run(command, env=environment, check=False).returncode
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        lakes(spark)
        pipeline(spark, given.rows)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
