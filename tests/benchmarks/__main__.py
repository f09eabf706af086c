"""Measure every figure and print them as the table of docs/performance.md."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.demo import build_flights
from kartosql.store import Store
from tests.written import write_dataset

RUNS = 9
PARTITIONS = 100_000
POINT_QUERY = "SELECT count(*), avg(dep_delay) FROM flights WHERE tailnum = 'N14228'"


# An installed package has its bytecode; to compile it each time is not what is measured.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def child_cpu(command: list[str]) -> float:
    """Return the CPU seconds, user and system, of a whole process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def median(measure: Callable[[], float]) -> float:
    """Return the median of several runs behind one that warms caches up."""
    measure()
    return statistics.median(measure() for _ in range(RUNS))


def imported(code: str) -> list[str]:
    """Return which of the libraries that must stay out a fresh interpreter loads for ``code``."""
    watched = ["pandas", "pyspark", "rich", "prompt_toolkit", "polars"]
    script = f"{code}\nimport sys; print([m for m in {watched!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    return list(json.loads(found.splitlines()[-1].replace("'", '"')))


def many_partitions(folder: str) -> None:
    """Write a dataset whose metadata name 100,000 partitions, one file each; the files are never opened."""
    store = Store(folder, create=True)
    rows = pa.table({"p": pa.array([0, 1]), "i": pa.array([1, 2]), "v": [1.0, 2.0]})
    write_dataset(store, "t", rows, partition_on=["p"], index_columns=["i"])
    path = os.path.join(folder, "t.by-dataset-metadata.json")
    with open(path) as f:
        document = json.load(f)
    label = next(iter(document["partitions"])).split("/")[-1]
    document["partitions"] = {
        f"p={k}/{label}": {"files": {"table": f"t/table/p={k}/{label}.parquet"}} for k in range(PARTITIONS)
    }
    with open(path, "w") as f:
        json.dump(document, f)
    index = pa.table(
        {
            "i": pa.array(range(PARTITIONS)),
            "partition": pa.array([[f"p={k}/{label}"] for k in range(PARTITIONS)], pa.list_(pa.string())),
        }
    )
    pq.write_table(index, os.path.join(folder, document["indices"]["i"]), row_group_size=10_000)
    os.makedirs(os.path.join(folder, "t/table/p=7"))
    os.link(os.path.join(folder, f"t/table/p=1/{label}.parquet"), os.path.join(folder, f"t/table/p=7/{label}.parquet"))


def plan_cpu(folder: str, sql: str) -> float:
    """Return the CPU seconds from opening a store to the plan of a query, in this process."""
    import kartosql

    started = time.process_time()
    with kartosql.connect(folder) as con:
        report = con.explain(sql)
    spent = time.process_time() - started
    assert report.files_selected == 1, report
    return spent


def main() -> None:
    """Run all benchmarks."""
    rows: list[tuple[str, str, str]] = []
    command = [sys.executable, "-m", "kartosql"]
    rows.append(
        (
            "`kartosql --version`, whole process",
            f"{median(lambda: child_cpu([*command, '--version'])):.3f} s CPU",
            "0.1 s",
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        build_flights(folder)
        query = [*command, folder, "-c", POINT_QUERY]
        rows.append(
            ("point query on the demo, whole process", f"{median(lambda: child_cpu(query)):.3f} s CPU", "0.5 s")
        )
    with tempfile.TemporaryDirectory() as folder:
        many_partitions(folder)
        for what, sql in (
            ("partition key", "SELECT * FROM t WHERE p = 7"),
            ("inverted index", "SELECT * FROM t WHERE i = 7"),
        ):
            spent = median(lambda sql=sql: plan_cpu(folder, sql))  # type: ignore[misc]
            rows.append((f"100,000 partitions: open and plan a point query by {what}", f"{spent:.3f} s CPU", "0.5 s"))
    loaded = imported("import kartosql") + imported("import kartosql; kartosql.connect")
    rows.append(
        (
            "`import kartosql` loads pandas, pyspark, rich, prompt_toolkit, polars",
            ", ".join(loaded) or "none of them",
            "none",
        )
    )
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, median of {RUNS} runs\n")
    print("| what | measured | at most |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
