"""Measure text output: ``python -m tests.benchmarks.output [--runs N]``.

All rows of the demo cube, 336,776 of 25 columns, are written as csv, JSON and lines of JSON, from batches that are in
memory; beside it DuckDB's COPY writes them from a table of its own, with one thread, as one thread writes ours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from functools import partial

import duckdb
import pyarrow as pa

import kartosql
from kartosql.demo import build_flights
from kartosql.render.formats import write_file
from kartosql.store import Store
from tests.benchmarks.ratios import HEAD, Cost, Figure, in_turns, row

SQL = "SELECT * FROM flights"
FORMATS = {"csv": "(FORMAT csv, HEADER)", "json": "(FORMAT json, ARRAY true)", "jsonl": "(FORMAT json)"}
LIMIT = 1.5


def costs(table: pa.Table, folder: str, format_: str, runs: int) -> dict[str, Cost]:
    """Return what it takes to write a table, ours and DuckDB's."""
    with duckdb.connect(config={"threads": 1}) as con:
        con.register("given", table)
        con.execute("CREATE TABLE rows AS FROM given")
        copy = f"COPY rows TO '{folder}/theirs' {FORMATS[format_]}"

        def ours(_: int) -> None:
            write_file(table.to_reader(), os.path.join(folder, "ours"), format_)

        return in_turns({"ours": ours, "theirs": lambda _: con.execute(copy)}, runs)


def figure(name: str, found: dict[str, Cost]) -> Figure:
    """Return the figure of a format: CPU time as multiple of DuckDB's."""
    ours, theirs = (statistics.median(found[way].cpu) for way in ("ours", "theirs"))
    ratio = statistics.median(a / b for a, b in zip(found["ours"].cpu, found["theirs"].cpu, strict=True))
    told = f"{ours:.2f} s / {theirs:.2f} s CPU"
    return Figure(f"{name}, 336,776 rows of 25 columns", f"<= {LIMIT} x DuckDB", f"{ratio:.2f} x", ratio <= LIMIT, told)


def main() -> int:
    """Print the figures; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build_flights(Store(folder))
        with kartosql.connect(folder, read_only=True) as con:
            table = con.sql(SQL).arrow()
        measure = partial(costs, table, folder, runs=given.runs)
        figures = [figure(name, measure(format_=name)) for name in FORMATS]
    print(HEAD, *map(row, figures), sep="\n")
    return int(not all(f.ok for f in figures))


if __name__ == "__main__":
    raise SystemExit(main())
