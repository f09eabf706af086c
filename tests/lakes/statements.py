"""Random statements over lake tables of other writers, against what the tables' own readers give plain DuckDB.

    PYTHONPATH=tests python -m lakes.statements [--statements 20000] [--seed 0] [--only NUMBER]

A store with five tables and some of their past versions answers 200 statements; ``--only`` shows one of those over the
store ``--seed``. Statements, reference and comparison are those of ``differential``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from typing import Any
from unittest import mock

from differential.answers import Checker, Mismatch, run_plain
from differential.regimes import regime
from differential.runs import Runs, checked
from differential.statements import statement
from differential.tally import Tally
from kartosql.sources import file_indexes
from lakes.worlds import make_world

PER_STORE = 200


class LakeChecker(Checker):
    """Checks the statements over the tables that are attached to one store."""

    def connect(self) -> Any:
        connection = super().connect()
        self.world.attach(connection)
        return connection

    def again(self, number: int) -> str:
        return f"again: PYTHONPATH=tests python -m lakes.statements --seed {self.world.seed} --only {number}"


def run_lakes(seed: int, numbers: range) -> Tally:
    """Check statements over one store."""
    with tempfile.TemporaryDirectory() as folder, regime(seed), mock.patch.object(file_indexes, "GROUP_ROWS", 3):
        try:
            checker = LakeChecker(make_world(seed, folder))
        except Exception:  # noqa: BLE001 - not all errors of writers can be sent to another process
            return Tally(failures=[f"store {seed}\n{traceback.format_exc()}"])
        return checked(checker, numbers)


def show(seed: int, number: int) -> int:
    """Check one statement and show its answers."""
    with tempfile.TemporaryDirectory() as folder, regime(seed), mock.patch.object(file_indexes, "GROUP_ROWS", 3):
        checker = LakeChecker(world := make_world(seed, folder))
        made = statement(world, number)
        print(f"{made.text}{made.tail}\nparameters {made.parameters}, settings {world.settings}\n")
        for options in (name for _, *name in world.attached):
            print(*options)
        try:
            print("reference:", run_plain(world.plain, made.text, made.parameters).to_pylist())
            query = checker.connection.sql(made.text + made.tail, made.parameters)
            print("kartosql:", query.rows(), query.explain(), sep="\n")
            print(checker.check(number, unpruned=True, again=True).status)
        except Mismatch as e:
            print(f"\n{e}")
            return 1
        finally:
            checker.end()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--statements", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    if given.only is not None:
        return show(given.seed, given.only)
    stores = -(-given.statements // PER_STORE)
    runs, total = Runs(range(given.seed, given.seed + stores), PER_STORE, run_lakes), Tally()
    try:
        for done, (seed, future) in enumerate(runs.futures.items(), 1):
            total.merge(found := future.result())
            for failure in found.failures:
                print(f"{failure}\n", flush=True)
            print(f"{done} of {stores} stores, to seed {seed}: {dict(total.statuses)}", flush=True)
    finally:
        runs.end()
    print(*str(total).splitlines()[:2], f"{stores} stores from seed {given.seed}", sep="\n")
    return len(total.failures) > 0


if __name__ == "__main__":
    sys.exit(main())
