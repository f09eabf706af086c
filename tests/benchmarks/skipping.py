"""Measure skipping indexes: a query by a column that goes along with the partitions, with MINMAX and without.

    python -m tests.benchmarks.skipping --data FOLDER [--scale 1] [--runs 9]

The orders of a month are received within the next weeks, so the date of receipt is clustered by the month of
shipment, which the partitions are of. Each turn connects anew, as remembered statistics of row groups would help
the second query as well.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import tempfile

import kartosql
from tests.benchmarks.lineitem import prepare
from tests.benchmarks.ratios import HEAD, Figure, at_least, in_turns, row

TABLE, COLUMN = "lineitem_few", "l_receiptdate"


def statement(turn: int) -> str:
    """Return a query for one day."""
    day = dt.date(1994, 1, 1) + dt.timedelta(days=17 * turn)
    return f"SELECT count(*), sum(l_extendedprice) FROM {TABLE} WHERE {COLUMN} = DATE '{day}'"


def measure(root: str, runs: int) -> Figure:
    """Return how much faster the query is with the index, and name the files of the first turn."""

    def asked(turn: int) -> object:
        with kartosql.connect(root, keep_answers=False) as con:
            return con.sql(statement(turn)).arrow()

    with kartosql.connect(root, keep_answers=False) as con:
        without = in_turns({"without": asked}, runs)["without"]
        all_files = con.explain(statement(0)).files_selected
        expected = [con.sql(statement(turn)).rows() for turn in range(3)]
        con.create_skipping_index(TABLE, minmax=COLUMN)
        try:
            ours = in_turns({"with": asked}, runs)["with"]
            assert [con.sql(statement(turn)).rows() for turn in range(3)] == expected
            files = con.explain(statement(0)).files_selected
        finally:
            con.drop_skipping_index(TABLE)
    return at_least(f"{COLUMN} of one day, {files} of {all_files:,} files", 1, ours, without)


def main() -> int:
    """Measure, and print the figure."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.skipping", description=__doc__)
    parser.add_argument("--data", help="folder that keeps the data for the next run (default: a temporary one)")
    parser.add_argument("--scale", type=float, default=1, help="scale factor of TPC-H (default 1)")
    parser.add_argument("--runs", type=int, default=9, help="turns of which the median counts (default 9)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figure = measure(prepare(options.data or folder, options.scale).root, options.runs)
    print(f"{HEAD}\n{row(figure)}")
    return 0 if figure.ok else 1


if __name__ == "__main__":
    sys.exit(main())
