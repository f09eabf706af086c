"""Answers one random statement again: ``PYTHONPATH=tests python -m differential STORE STATEMENT``."""

from __future__ import annotations

import sys
import tempfile

from differential.answers import Checker, Mismatch, run_plain
from differential.regimes import regime
from differential.statements import statement
from differential.stores import make_world


def main() -> int:
    seed, number = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder, regime(seed):
        world = make_world(seed, None if seed % 6 == 5 else folder)
        stmt = statement(world, number)
        print(f"{stmt.text}{stmt.tail}\nparameters {stmt.parameters}, settings {world.settings}\n\nreference:")
        try:
            print(run_plain(world.plain, stmt.text, stmt.parameters).to_pylist())
        except Exception as e:  # noqa: BLE001 - shown, whatever it is
            print(e)
        checker = Checker(world)
        try:
            query = checker.connect().sql(stmt.text + stmt.tail, stmt.parameters)
            print("\nkartosql:", query.rows(), query.explain(), sep="\n")
        except Exception as e:  # noqa: BLE001
            print(e)
        try:
            for cold in (False, True):
                print(
                    "\ncold:" if cold else "\nwarm:", checker.check(number, cold=cold, unpruned=True, again=True).status
                )
        except Mismatch as e:
            print(f"\n{e}")
            return 1
        finally:
            checker.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
