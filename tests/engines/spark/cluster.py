"""The pipeline on executors that are processes of their own: what is written and read is what DuckDB has.

    PYTHONPATH=src:tests python -m engines.spark.cluster [--submit] [--rows 200000]

runs it on ``local-cluster[2,1,1024]``, in a session of this process or by spark-submit, and kills an executor while
a cube is built. It ends with exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

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


def pipeline(spark: Any, rows: int) -> None:
    """Build, append, read and compare; raises what differs."""
    killed: list[int] = []

    def kill() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not killed:
            found = executors(os.getpid()) or executors(os.getppid())  # of spark-submit
            if found and tracker.getActiveStageIds():
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])
            time.sleep(0.2)

    def frame(first: int) -> Any:
        return spark.range(first, first + rows).selectExpr("id AS x", "id % 7 AS p", "id * 2 AS v", "uuid() AS t")

    with tempfile.TemporaryDirectory() as folder, kartosql.connect(folder) as con:
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        started = time.perf_counter()
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--submit", action="store_true")
    given = parser.parse_args()
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    os.environ |= {"SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable, "SPARK_SCALA_VERSION": "2.13"}
    if given.submit:
        path = f"{ROOT / 'src'}:{ROOT / 'tests'}"
        environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_DRIVER_PYTHON": sys.executable}
        command = [os.path.join(home, "bin", "spark-submit"), "--master", MASTER, __file__, "--rows", str(given.rows)]
        return subprocess.run(command, env=environment, check=False).returncode
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master(MASTER).config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        pipeline(spark, given.rows)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
