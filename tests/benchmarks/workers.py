"""Measure workers of untrusted connections: ``python -m tests.benchmarks.workers``.

Beside what their start takes, it asks a point query of the demo cube through a worker and in this process, in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import kartosql
from kartosql.demo import build_flights
from kartosql.store import Store
from tests.benchmarks.ratios import HEAD, Figure, in_turns, row

POINT_QUERY = "SELECT count(*), avg(dep_delay) FROM flights WHERE tailnum = 'N14228'"
START, ABOVE = 0.3, 0.003  # seconds


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process, without those that it started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def starts(folder: str, runs: int) -> tuple[list[float], float]:
    """Return the CPU seconds of workers that answered one trivial statement, and of the process they come from."""
    spent = []
    with kartosql.connect(folder, untrusted=True) as con:
        for _ in range(runs):
            con.sql("SELECT 1 AS a")
            spent.append(cpu_of(con._idle[-1].pid))
            con._idle[-1].stop()
        return spent, cpu_of(con._template.process.pid)


def main() -> int:
    """Print the figures; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        build_flights(Store(folder))
        workers, template = starts(folder, runs)
        with kartosql.connect(folder, untrusted=True) as far, kartosql.connect(folder, keep_answers=False) as near:
            far.sql(POINT_QUERY).rows()
            worker = far._idle[-1].pid
            before = cpu_of(worker)
            ways = {"far": lambda _: far.sql(POINT_QUERY).rows(), "near": lambda _: near.sql(POINT_QUERY).rows()}
            costs = in_turns(ways, runs, warm=10)
            there = (cpu_of(worker) - before) / (runs + 10)
    start = statistics.median(workers)
    pairs = zip(costs["far"].elapsed, costs["near"].elapsed, strict=True)
    above = statistics.median(a - b for a, b in pairs)
    cpu = there + statistics.mean(costs["far"].cpu) - statistics.mean(costs["near"].cpu)
    near_text = f"in this process {costs['near'].median * 1000:.1f} ms; CPU of both processes {cpu * 1000:+.1f} ms"
    figures = [
        Figure(
            "CPU of a worker up to its first answer",
            f"<= {START} s",
            f"{start:.2f} s",
            start <= START,
            f"once per connection {template:.2f} s, the forks of {len(workers)} workers included",
        ),
        Figure(
            "warm point query through a worker, above the same in this process",
            f"<= {ABOVE * 1000:g} ms",
            f"{above * 1000:.1f} ms",
            above <= ABOVE,
            near_text,
        ),
    ]
    print(time.strftime("%Y-%m-%d"))
    print(HEAD)
    for figure in figures:
        print(row(figure))
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
