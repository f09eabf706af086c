"""Measure workers of untrusted connections: ``python -m tests.benchmarks.workers``.

Beside what their start takes, it asks for rows of a small file and a point query of the demo cube through a worker, by
Flight SQL, and in this process, in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from pyarrow import flight

import kartosql
from kartosql.demo import build_flights
from kartosql.serve.flight import PREFIX, _message
from kartosql.store import Store
from tests.benchmarks.ratios import Figure, in_turns, table

STATEMENTS = {
    "rows of a small file": "SELECT name FROM airports WHERE faa = 'JFK'",
    "a point query of the demo cube": "SELECT count(*), avg(dep_delay) FROM flights WHERE tailnum = 'N14228'",
}
START, ABOVE, BY_FLIGHT = 0.3, 3, 5  # seconds, milliseconds
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


def family_of(pid: int) -> float:
    """Return the CPU seconds of a process and of those that it started and that run."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return cpu_of(pid) + sum(family_of(int(child)) for child in children)


def above_by_flight(folder: str, sql: str, runs: int) -> tuple[float, float, float]:
    """Return what ``above`` does for a statement by Flight SQL, with the server, and the client in this process."""
    command = [sys.executable, "-m", "kartosql", "serve", folder, "--workers", "1"]
    asked = _message(f1=(PREFIX + "CommandStatementQuery").encode(), f2=_message(f1=sql.encode()))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = dict(line.split() for line in iter(server.stdout.readline, "ready\n") if line)
        with flight.connect(lines["flight"]) as client, kartosql.connect(folder, keep_answers=False) as near:

            def far(_: int) -> object:
                info = client.get_flight_info(flight.FlightDescriptor.for_command(asked))
                return client.do_get(info.endpoints[0].ticket).read_all().to_pylist()

            ways = {"far": far, "near": lambda _: near.sql(sql).rows()}
            in_turns(ways, WARM)
            before = family_of(server.pid)
            costs = in_turns(ways, runs, warm=0)
            there = (family_of(server.pid) - before) / runs
        server.terminate()
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
            for way, by, most in ((above, "a worker", ABOVE), (above_by_flight, "Flight SQL", BY_FLIGHT)):
                ours, other, waits = way(folder, sql, runs)
                about = f"{ours:.1f} ms / {other:.1f} ms; elapsed {waits:+.1f} ms"
                name = f"CPU of {what} by {by}, above that in this process"
                figures.append(Figure(name, f"<= {most} ms", f"{ours - other:.1f} ms", ours - other <= most, about))
    print(table(figures))
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
