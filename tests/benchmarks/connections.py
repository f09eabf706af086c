"""Measure what open connections hold: ``python -m tests.benchmarks.connections``.

A process of its own opens them on the demo cube, runs two statements on each, and tells its threads and its resident
memory then. That of one connection has the interpreter, Arrow and DuckDB, and tells what the others add.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

from kartosql.demo import build_flights
from kartosql.store import Store
from tests.benchmarks.ratios import Figure, table

CONNECTIONS = 50
THREADS, MEGABYTES = 100, 400  # at most
STATEMENTS = (
    "SELECT count(*), avg(dep_delay) FROM flights WHERE tailnum = 'N14228'",
    "SELECT month, count(*), max(dep_delay) FROM flights GROUP BY month ORDER BY month",
)


def held(folder: str, count: int) -> tuple[int, int]:
    """Run the statements on each of so many connections; return threads and resident bytes of this process."""
    import kartosql

    connections = [kartosql.connect(folder, read_only=True) for _ in range(count)]
    answers = {repr([con.sql(sql).rows() for sql in STATEMENTS]) for con in connections}
    assert len(answers) == 1
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    threads = len(os.listdir("/proc/self/task"))
    for con in connections:
        con.close()
    return threads, resident


def measure(folder: str, count: int, runs: int) -> tuple[int, float]:
    """Return the medians of threads and megabytes of several processes."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.connections", "--hold", folder, str(count)]
    answers = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(runs)]
    threads, resident = zip(*map(json.loads, answers), strict=True)
    return sorted(threads)[runs // 2], sorted(resident)[runs // 2] / 1e6


def main() -> int:
    """Print the figures; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hold", nargs=2, metavar=("FOLDER", "COUNT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hold:
        print(json.dumps(held(given.hold[0], int(given.hold[1]))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        build_flights(Store(folder))
        one = measure(folder, 1, given.runs)
        threads, megabytes = measure(folder, given.connections, given.runs)
    name = f"{given.connections} connections that ran {len(STATEMENTS)} statements each"
    figures = [
        Figure(f"threads of {name}", f"<= {THREADS}", f"{threads}", threads <= THREADS, f"one: {one[0]}"),
        Figure(
            f"memory of {name}",
            f"<= {MEGABYTES} MB",
            f"{megabytes:.0f} MB",
            megabytes <= MEGABYTES,
            f"one: {one[1]:.0f} MB",
        ),
    ]
    print(table(figures))
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
