"""Random statements, over random stores, on Spark: DuckDB's rows, or refused."""

from __future__ import annotations

import os
from collections import Counter

import duckdb
import pytest

from differential.answers import Checker, differ, is_undetermined, run_plain
from differential.regimes import regime
from differential.statements import statement
from differential.stores import make_world
from kartosql.errors import KartosqlError
from sparks import rows_of, same, unordered

# <first store>-<last store>x<statements>; each statement that is not refused is a job or more.
CHOSEN = os.environ.get("KARTOSQL_SPARK_DIFFERENTIAL", "0-2x40" if "CI" in os.environ else "0-1x15")
STORES, STATEMENTS = CHOSEN.split("x")
FIRST, LAST = map(int, STORES.split("-"))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_spark_gives_duckdbs_rows_or_refuses(seed, spark, tmp_path):
    tally: Counter[str] = Counter()
    failures = []
    with regime(seed):
        world = make_world(seed, str(tmp_path))
        checker = Checker(world)
        try:
            for number in range(int(STATEMENTS)):
                status, told = check(checker, number)
                tally[status] += 1
                if status == "failed":
                    failures.append(f"{told}\nagain: PYTHONPATH=tests python -m differential {seed} {number}")
        finally:
            checker.end()
    print(seed, dict(tally))
    assert not failures, f"{tally}\n\n" + "\n\n".join(failures[:5])
    if "default_collation" in world.settings:
        assert not tally["same"], tally  # Spark has no such comparisons
    else:
        assert tally["same"] > 0.3 * sum(tally.values()), tally


def check(checker: Checker, number: int) -> tuple[str, str]:
    """Answer a statement on Spark and over plain tables; returns what became of it, and how they differ."""
    world = checker.world
    made = statement(world, number)
    try:
        wanted = run_plain(world.plain, made.text, made.parameters)
    except duckdb.Error:
        wanted = None
    try:
        found = checker.connection.sql(made.text + made.tail, made.parameters, engine="spark").arrow()
    except KartosqlError as e:
        if e.code == "not-portable":
            return "refused", ""
        if wanted is None or is_undetermined(world, made, wanted):
            return "invalid", ""
        return "failed", f"{made.text}{made.tail}\n{made.parameters} {world.settings}\n{e.code}: {e.message}"
    if wanted is None:
        return "invalid", ""
    difference = differ(found, wanted, made)
    if difference is not None and made.limit is None:
        # Sums of floats hang on the order of the rows.
        pairs = zip(unordered(rows_of(found)), unordered(rows_of(wanted)), strict=False)
        if found.num_rows == wanted.num_rows and all(same(a, b, 1e-9) for a, b in pairs):
            return "same", ""
    if difference is None or is_undetermined(world, made, wanted):
        return "same", ""
    return "failed", f"{made.text}{made.tail}\n{made.parameters} {world.settings}\n{difference}"
