"""Measure PUBLISH: CPU time for 1,000 files of the first version, and of the next one with one new file.

python -m tests.benchmarks.publishing [--files 2000] [--runs 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import kartosql

ASKED = 10  # milliseconds for 1,000 files


def rows(files: int) -> pa.Table:
    """Return ten rows of four columns for each partition."""
    n = range(10 * files)
    return pa.table({"p": [i // 10 for i in n], "x": n, "s": [f"v{i}" for i in n], "f": [i / 3 for i in n]})


def main() -> None:
    """Measure, and print the figures: medians of the CPU time of all threads."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.publishing", description=__doc__)
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--runs", type=int, default=5, help="turns of which the median counts (default 5)")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        with kartosql.connect(folder) as con:
            con.create_dataset("t", rows(options.files), partition_on=["p"])
        for run in range(options.runs):
            with kartosql.connect(folder) as con:
                for type_ in ("delta", "iceberg"):

                    def measured(what: str, place: str, type_: str = type_) -> None:
                        started = time.process_time()
                        con.publish("t", Path(folder, place), type_)
                        taken = 1e6 * (time.process_time() - started) / options.files
                        found.setdefault((type_, what), []).append(taken)

                    measured("the first version", f"{type_}{run}")
                    con.append_to_dataset("t", rows(1))
                    measured("the next version, one file more", f"{type_}{run}")
    print("| format | what | ms for 1,000 files | asked |\n|---|---|---|---|")
    for (type_, what), taken in sorted(found.items()):
        print(f"| {type_} | {what} | {statistics.median(taken):.1f} | {ASKED} |")


if __name__ == "__main__":
    main()
