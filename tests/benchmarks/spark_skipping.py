"""Measure data-skipping metadata that executors collect against those of one process, and the memory of the driver.

    python -m tests.benchmarks.spark_skipping [--files 1000] [--rows 6000] [--runs 3]

The files hold random numbers and texts; of each they keep bounds, a list of values, and a Bloom filter of the default
size, 120 kB. CPU time is that of this process, the JVM and all its Python workers, on local[2].
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import kartosql
from kartosql.formats.xskipper.kinds import IndexSpec
from tests.benchmarks.ratios import HEAD, Figure, row
from tests.benchmarks.spark_building import cpu_seconds

INDEXES: dict[str, Any] = {"minmax": "n", "valuelist": "few", "bloomfilter": "many"}


def make(folder: str, files: int, rows: int) -> None:
    """Write a dataset of many files."""
    numbers = pc.random(files * rows, initializer=1)
    whole = pc.cast(pc.multiply(numbers, 1e12), pa.int64(), safe=False)
    table = pa.table(
        {
            "p": pa.array(range(files * rows), pa.int64()),
            "n": whole,
            "few": pc.cast(pc.bit_wise_and(whole, 15), pa.string()),
            "many": whole,
        }
    )
    table = table.set_column(0, "p", pc.divide(table["p"], rows))
    with kartosql.connect(folder) as con:
        con.create_dataset("d", table, partition_on="p")


def once(folder: str, on_spark: bool) -> None:
    """Make the indexes and print the CPU seconds, the elapsed ones and by how many MB the process grew."""
    session: Any = None
    if on_spark:
        from kartosql.engines.spark.session import session as start

        session = start(master="local[2]", memory="700m")
        session.range(4).repartition(4).mapInArrow(lambda batches: batches, "id long").collect()
    with kartosql.connect(folder) as con:
        con.sql("SELECT count(*) FROM d").rows()
        held, spent, begun = _peak(), cpu_seconds(), time.monotonic()
        made = con.create_skipping_index("d", **INDEXES, spark=session)
        assert made["unindexed"] == 0
        print(cpu_seconds() - spent, time.monotonic() - begun, _peak() - held)
        con.drop_skipping_index("d")
    if session is not None:
        session.stop()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(folder: str, way: str) -> list[float]:
    """Return what ``once`` prints in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.spark_skipping", way, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(text) for text in done.stdout.split()[-3:]]


def figures(files: int, rows: int, runs: int) -> Iterator[Figure]:
    """Yield the time in comparison, and the driver's memory for four times as many files with few rows."""
    with tempfile.TemporaryDirectory() as folder:
        stores = {count: os.path.join(folder, str(count)) for count in (files, 4 * files)}
        for count, store in stores.items():
            Path(store).mkdir()
            make(store, count, rows if count == files else 100)
        pairs = [(measured(stores[files], "spark"), measured(stores[files], "local")) for _ in range(runs)]
        cpu = sorted(spark[0] / local[0] for spark, local in pairs)[runs // 2]
        times = ", ".join(f"{spark[1]:.1f} s / {local[1]:.1f} s" for spark, local in pairs)
        yield Figure(f"{files:,} files on Spark to one process, CPU", "-", f"{cpu:.2f} x", True, f"elapsed {times}")
        filters = 4 * files * IndexSpec("bloomfilter", "many").shape.bits / 8 / (1 << 20)
        less, more = (measured(store, "spark")[2] for store in stores.values())
        name = f"growth of the driver to the {filters:,.0f} MB of filters of {4 * files:,} files"
        ratio = more / filters
        yield Figure(name, "<= 0.5 x", f"{ratio:.2f} x", ratio <= 0.5, f"{more:.0f} MB; {files:,} files: {less:.0f} MB")


def main() -> int:
    """Print the figures as they are known; return 1 if one is missed."""
    if sys.argv[1:2] in (["spark"], ["local"]):
        once(sys.argv[2], sys.argv[1] == "spark")
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=6_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    print(HEAD, flush=True)
    ok = True
    for figure in figures(given.files, given.rows, given.runs):
        ok = ok and figure.ok
        print(row(figure), flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
