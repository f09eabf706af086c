"""Measure how opening and planning grow with the number of partitions: ``python -m tests.benchmarks.metadata``.

Nothing heavy is imported here: a process starts with the peak memory of the one that made it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

SIZES = (10_000, 100_000, 1_000_000)
WRITE_ID = "0123456789abcdef" * 2
KINDS = ("json, int key", "json, string key", "msgpack, int key")
STATEMENTS = {"partition key": "SELECT * FROM t WHERE p = {0}", "inverted index": "SELECT * FROM t WHERE i = {1}"}
WARM_RUNS = 5
SIZED = 10_000  # files


def make(folder: str, kind: str, count: int) -> None:
    """Write the metadata of a dataset of ``count`` partitions and one indexed column; data files are empty.

    Only the file that a statement selects is there, or all where they are few enough for the report to ask their sizes.
    """
    import pyarrow as pa

    from tests.benchmarks.keyed_files import write_metadata

    text = "string" in kind
    keys = [f"key-{k}" if text else str(k) for k in range(count)]
    schema = pa.schema({"p": pa.string() if text else pa.int64(), "i": pa.int64(), "v": pa.float64()})
    write_metadata(folder, [f"p={key}/{WRITE_ID}" for key in keys], schema, kind)
    for key in keys if count <= SIZED else keys[count // 3 : count // 3 + 1]:
        os.makedirs(os.path.join(folder, f"t/table/p={key}"))
        with open(os.path.join(folder, f"t/table/p={key}/{WRITE_ID}.parquet"), "wb"):
            pass


def measure(folder: str, sql: str, statements: int) -> dict[str, float]:
    """Open the store, plan ``sql`` and then again a few times; return seconds and MB."""
    started, cpu = time.perf_counter(), time.process_time()
    import kartosql

    with kartosql.connect(folder) as con:
        report = con.explain(sql)
        first, first_cpu = time.perf_counter() - started, time.process_time() - cpu
        assert report.files_selected == 1, report
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        again = []
        for _ in range(statements):
            at = time.perf_counter()
            con.explain(sql)
            again.append(time.perf_counter() - at)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"first": first, "cpu": first_cpu, "peak": peak, "again": min(again, default=0.0), "most": most}


def child(*arguments: str) -> str:
    """Run this module in a process of its own and return what it prints."""
    command = [sys.executable, "-m", "tests.benchmarks.metadata", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Make the datasets in a temporary folder, measure each statement and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of partitions")
    parser.add_argument("--folder", help="keep the datasets here, and use those that exist")
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        make(given.make[0], given.make[1], int(given.make[2]))
    elif given.measure:
        print(json.dumps(measure(*given.measure, WARM_RUNS)))
    elif given.folder:
        table(given.folder, given.sizes)
    else:
        with tempfile.TemporaryDirectory() as folder:
            table(folder, given.sizes)


def table(root: str, sizes: list[int]) -> None:
    """Measure all cases below ``root`` and print them."""
    print("| partitions | document | point query by | first, s | CPU, s | peak, MB | again, ms | peak then, MB |")
    print("|---|---|---|---|---|---|---|---|")
    for count in sizes:
        for kind in KINDS:
            folder = os.path.join(root, f"{count}-{kind.replace(', ', '-').replace(' ', '-')}")
            if not os.path.isdir(folder):
                child("--make", folder, kind, str(count))
            for by, sql in STATEMENTS.items():
                literal = f"'key-{count // 3}'" if "string" in kind else str(count // 3)
                found = json.loads(child("--measure", folder, sql.format(literal, count // 3)))
                print(
                    f"| {count:,} | {kind} | {by} | {found['first']:.2f} | {found['cpu']:.2f} | {found['peak']:.0f} "
                    f"| {found['again'] * 1000:.1f} | {found['most']:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
