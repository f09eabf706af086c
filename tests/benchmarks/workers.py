"""Measure workers of untrusted connections: ``python -m tests.benchmarks.workers``.

Beside what their start takes, it asks a point query of the demo cube through a worker and in this process, in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

import kartosql
from kartosql.demo import build_flights
from kartosql.store import Store
from tests.benchmarks.ratios import Figure, in_turns, table

STATEMENTS = {
    "rows of a small file": "SELECT name FROM airports WHERE faa = 'JFK'",
    "a point query of the demo cube": "SELECT count(*), avg(dep_delay) FROM flights WHERE tailnum = 'N14228'",
}
START, ABOVE = 0.3, 3  # seconds, milliseconds
WARM = 20  # turns


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


def above(folder: str, sql: str, runs: int) -> tuple[float, float, float]:
    """Return the CPU milliseconds of a warm statement through a worker, in both processes, of it here, and between."""
    with kartosql.connect(folder, untrusted=True) as far, kartosql.connect(folder, keep_answers=False) as near:
        ways = {"far": lambda _: far.sql(sql).rows(), "near": lambda _: near.sql(sql).rows()}
        in_turns(ways, WARM)
        worker = far._idle[-1].pid
        before = cpu_of(worker)
        costs = in_turns(ways, runs, warm=0)
        there = (cpu_of(worker) - before) / runs
    ours, other = there + statistics.mean(costs["far"].cpu), statistics.mean(costs["near"].cpu)
    waits = statistics.median(a - b for a, b in zip(costs["far"].elapsed, costs["near"].elapsed, strict=True))
    return ours * 1000, other * 1000, waits * 1000


def main() -> int:
    """Print the figures; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        build_flights(Store(folder))
        workers, template = starts(folder, runs)
        start = statistics.median(workers)
        about = f"once per connection {template:.2f} s, the forks of {len(workers)} workers included"
        name = "CPU of a worker up to its first answer"
        figures = [Figure(name, f"<= {START} s", f"{start:.2f} s", start <= START, about)]
        for what, sql in STATEMENTS.items():
            ours, other, waits = above(folder, sql, runs)
            about = f"{ours:.1f} ms / {other:.1f} ms; elapsed {waits:+.1f} ms"
            name = f"CPU of {what}, above that in this process"
            figures.append(Figure(name, f"<= {ABOVE} ms", f"{ours - other:.1f} ms", ours - other <= ABOVE, about))
    print(table(figures))
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
