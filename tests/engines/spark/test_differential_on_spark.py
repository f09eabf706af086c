"""Random statements, over random stores, on Spark: DuckDB's rows, or refused."""

from __future__ import annotations

import os

import pytest

from engines.spark.random_statements import checker, chosen

# <first store>-<last store>x<statements>; each statement that is not refused is a job or more.
STORES, STATEMENTS = chosen(os.environ.get("KARTOSQL_SPARK_DIFFERENTIAL", "0-2x40" if "CI" in os.environ else "0-1x15"))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", STORES)
def test_spark_gives_duckdbs_rows_or_refuses(seed, spark, tmp_path):
    with checker(seed, str(tmp_path), spark) as found:
        for number in range(STATEMENTS):
            found.ask(number)
    print(seed, dict(found.tally))
    assert not found.failures, f"{found.tally}\n\n" + "\n\n".join(found.failures[:5])
    if "default_collation" in found.world.settings:
        assert not found.tally["same"], found.tally  # Spark has no such comparisons
    else:
        assert found.tally["same"] > 0.3 * STATEMENTS, found.tally
