"""Measure building a cube on Spark against Spark's own partitioned write, and the memory of the driver.

    python -m tests.benchmarks.spark_building [--scale 1] [--runs 3]

Both write the same rows (TPC-H lineitem by month of shipment) on local[2] to the same disk: Spark with
repartition(month).write.partitionBy(month).parquet(...), and with sortWithinPartitions(month, order, line) before that,
ours as a cube with indices on three columns, which is sorted. CPU time is that of this process, the JVM and all its
Python workers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import kartosql
from kartosql.engines.spark.session import session
from tests.benchmarks.ratios import HEAD, Figure, row

MONTH = "l_shipmonth"
DIMENSIONS = ["l_orderkey", "l_linenumber"]
CUBE = kartosql.Cube(
    "lines", DIMENSIONS, [MONTH], index_columns=["l_partkey", "l_suppkey"], suppress_index_on=["l_linenumber"]
)
MEMORY_MB = 64
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Return the CPU time of this process and of all processes below it, also of those that have ended."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(name)] = int(fields[1])
        spent[int(name)] = sum(map(int, fields[11:15])) / TICKS
    ours = {os.getpid()}
    while found := {p for p, parent in parents.items() if parent in ours} - ours:
        ours |= found
    return sum(spent[p] for p in ours)


@dataclass
class Costs:
    """What the runs of one way took."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, work: Callable[[], object]) -> None:
        """Do some work once and note what it took."""
        cpu, wall = cpu_seconds(), time.perf_counter()
        work()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(cpu_seconds() - cpu)


def lineitem(spark: Any, folder: str, scale: float) -> Any:
    """Return lineitem with the month of shipment, as it stands in the file of the generator."""
    path = os.path.join(folder, "lineitem.parquet")
    if not os.path.exists(path):
        generator = os.path.join(os.path.dirname(sys.executable), "tpchgen-cli")
        if not os.path.exists(generator):
            sys.exit("tpchgen-cli is missing: pip install 'kartosql[benchmarks]'")
        subprocess.run([generator, "parquet", "--quiet", "-s", str(scale), "-T", "lineitem", "-o", folder], check=True)
    return spark.read.parquet(path).selectExpr(f"date_format(l_shipdate, 'yyyy-MM') AS {MONTH}", "*")


def plain(rows: Any, folder: str, *, is_sorted: bool) -> None:
    """Write rows by Spark alone."""
    apart = rows.repartition(MONTH)
    ordered = apart.sortWithinPartitions(MONTH, *DIMENSIONS) if is_sorted else apart
    ordered.write.mode("overwrite").partitionBy(MONTH).parquet(folder)


def ours(rows: Any, folder: str, **settings: Any) -> int:
    """Build the cube and return the number of rows."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with kartosql.connect(folder, **settings) as con:
        return int(con.build_cube(CUBE, {"seed": rows})["seed"]["rows"])


def throughput(rows: Any, folder: str, runs: int) -> Iterator[Figure]:
    """Yield how much longer our build takes; all take turns, and a first turn warms up."""
    count = 0

    def build() -> None:
        nonlocal count
        count = ours(rows, os.path.join(folder, "ours"))

    ways = {"ours": build}
    for kind in ("plain", "sorted"):
        place, is_sorted = os.path.join(folder, kind), kind == "sorted"
        ways[kind] = partial(plain, rows, place, is_sorted=is_sorted)
    costs = {name: Costs() for name in ways}
    for turn in range(runs + 1):
        for name, way in ways.items():
            (costs[name] if turn else Costs()).add(way)
    own = costs["ours"]
    for kind in ("plain", "sorted"):
        spark = costs[kind]
        ratio = statistics.median(a / b for a, b in zip(own.wall, spark.wall, strict=True))
        cpu = statistics.median(a / b for a, b in zip(own.cpu, spark.cpu, strict=True))
        name = f"build {count:,} rows, 3 indices: time of Spark's own {kind} partitioned write"
        times = f"{statistics.median(own.wall):.1f} s / {statistics.median(spark.wall):.1f} s"
        yield Figure(name, "<= 1.2 x", f"{ratio:.2f} x", ratio <= 1.2, f"by CPU time {cpu:.2f} x; {times}")


def own_memory() -> int:
    """Return the megabytes that this process holds beside files it has mapped."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) // 1000 for line in f if line.startswith("RssAnon:"))


def peak_of(work: Callable[[], object]) -> int:
    """Return the most megabytes that this process held while it did some work."""
    done = threading.Event()
    seen = [own_memory()]

    def watch() -> None:
        while not done.wait(0.02):
            seen.append(own_memory())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return max(seen)


def memory(rows: Any, folder: str) -> Figure:
    """Return by how much more the driver holds for all rows than for a quarter of them."""
    limit = {"write_memory": f"{MEMORY_MB}MB"}
    few = rows.where("l_orderkey % 4 = 0")
    peaks = [peak_of(lambda r=r: ours(r, os.path.join(folder, "memory"), **limit)) for r in (few, rows)]  # type: ignore[misc]
    grown = peaks[1] - peaks[0]
    name = f"build 4 x the rows with write_memory={MEMORY_MB}MB: the driver's process holds more"
    return Figure(name, f"<= {MEMORY_MB} MB", f"{grown} MB", grown <= MEMORY_MB, f"{peaks[0]} MB, then {peaks[1]} MB")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="TPC-H scale factor")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data", metavar="FOLDER", help="a folder that holds lineitem.parquet, or is to hold it")
    given = parser.parse_args()
    spark = session(master="local[2]", memory="1g")
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        rows = lineitem(spark, given.data or folder, given.scale)
        print(row(memory(rows, folder)))
        for found in throughput(rows, folder, given.runs):
            print(row(found))


if __name__ == "__main__":
    main()
