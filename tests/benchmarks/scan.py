"""Measures the figures of the planner on TPC-H lineitem: ``python -m tests.benchmarks.scan --help``."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace

import duckdb

import kartosql
from kartosql.connection import Connection
from tests.benchmarks import planning, pruning
from tests.benchmarks.comparisons import Comparison, comparisons
from tests.benchmarks.ideal import Ideal
from tests.benchmarks.lineitem import Data, prepare
from tests.benchmarks.ratios import HEAD, Figure, at_least, at_most, in_turns, ms, row, within

GLOB_RUNS = 3
PARTS = ("ideal", "planning", "pruning")


def ideal_figures(data: Data, con: Connection, runs: int, wanted: str) -> Iterator[Figure]:
    """Compare with DuckDB over the right files, and over the glob."""
    with Ideal() as ideal:
        for comparison in comparisons(data, ideal, runs + 1):
            if wanted in comparison.name:
                yield from compare(comparison, con, runs)


def compare(comparison: Comparison, con: Connection, runs: int) -> Iterator[Figure]:
    """Return the figures of one comparison."""
    pairs, glob = comparison.pairs, comparison.on_the_glob

    def ours(turn: int) -> object:
        return con.sql(pairs[turn % len(pairs)].sql).arrow()

    costs = in_turns({"ours": ours, "ideal": lambda turn: pairs[turn % len(pairs)].by_hand()}, runs)
    yield at_most(comparison.name, comparison.limit, costs["ours"], costs["ideal"])
    if glob is not None:
        with duckdb.connect(":memory:") as bare:
            costs = in_turns({"ours": ours, "glob": lambda turn: bare.sql(glob).to_arrow_table()}, GLOB_RUNS)
        yield at_least(f"{comparison.name}, DuckDB on the glob", 50, costs["ours"], costs["glob"])


def planning_figures(data: Data, con: Connection, runs: int, wanted: str) -> Iterator[Figure]:
    """Time statements from the text to the scan."""
    planner = planning.Planner(con)

    def timed(name: str, limit: float, statement: Callable[[int], str], runs: int) -> Iterator[Figure]:
        if wanted in name:
            planner.plan(statement(0))
            times = [planner.plan(statement(turn)) for turn in range(1, runs + 1)]
            scan, cpu, report = (statistics.median(t[i] for t in times) for i in range(3))
            fastest = min(t[0] for t in times)
            details = f"fastest {ms(fastest)}, CPU {ms(cpu)}, with the report {ms(report)}"
            yield within(f"plan: {name}", limit, scan, details)

    for name in planning.ORDINARY:
        yield from timed(name, 0.006, lambda turn, name=name: planning.ordinary(name, turn, data.scale), runs)
    for count in planning.LISTS:
        yield from timed(
            f"list of {count:,} keys",
            0.06 * count / planning.LISTS[0],
            lambda turn, count=count: planning.listed(count, turn, data.scale),
            max(3, runs * planning.LISTS[0] // count),
        )


def pruning_figures(data: Data, con: Connection, runs: int, wanted: str) -> Iterator[Figure]:
    """Run statements with and without pruning, each on a connection of its own, and repeat the worst of them."""
    with kartosql.connect(data.root, read_only=True, keep_answers=False) as other:

        def off(sql: str) -> None:
            with pruning.switched_off():
                other.sql(sql).arrow()

        worst: tuple[float, Figure] | None = None
        for name in pruning.STATEMENTS:
            if wanted in name:
                ways = {
                    "on": lambda turn, name=name: con.sql(pruning.statement(name, turn)).arrow(),
                    "off": lambda turn, name=name: off(pruning.statement(name, turn)),
                }
                costs = in_turns(ways, runs)
                figure = at_most(f"pruned: {name}", 1.05, costs["on"], costs["off"], "unpruned")
                yield figure
                ratio = costs["on"].ratio(costs["off"])
                worst = max(worst or (ratio, figure), (ratio, figure), key=lambda w: w[0])
    if worst is not None and not wanted:
        yield replace(worst[1], name=f"the worst of these: {worst[1].name}")


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scan", description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="scale factor of TPC-H (default 1: 6,001,215 rows)")
    parser.add_argument("--data", help="folder that keeps the data for the next run (default: a temporary one)")
    parser.add_argument("--runs", type=int, default=15, help="turns of which the median counts (default 15)")
    parser.add_argument("--part", choices=PARTS, action="append", help="measure only this part; may be repeated")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only what has this text in its name")
    return parser.parse_args()


def run(data: Data, parts: list[str], runs: int, only: str) -> Iterator[Figure]:
    """Measure the figures of some parts."""
    measures = {"ideal": ideal_figures, "planning": planning_figures, "pruning": pruning_figures}
    for part in parts:
        with kartosql.connect(data.root, read_only=True, keep_answers=False) as con:
            yield from measures[part](data, con, runs, only)


def main() -> int:
    """Measure the figures and print them as a table; returns 1 if one of them fails."""
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(options.data or folder, options.scale)
        sizes = ", ".join(f"{name} {len(files):,}" for name, files in data.files.items())
        print(f"TPC-H scale factor {options.scale:g}; files: {sizes}")
        print(f"Python {platform.python_version()}, DuckDB {duckdb.__version__}, {os.cpu_count()} cores")
        print(f"medians of {options.runs} turns\n\n{HEAD}", flush=True)
        failed = 0
        for figure in run(data, options.part or list(PARTS), options.runs, options.only):
            print(row(figure), flush=True)
            failed += not figure.ok
    print(f"\n{failed} figures are missed" if failed else "\nall figures are met")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
