"""What is told of predicates by their trees alone."""

from __future__ import annotations

import duckdb
import pytest

from kartosql.predicate.from_sql import predicate_of
from kartosql.predicate.tree import may_hold_for_null

NEVER_FOR_NULL = [
    "v = 5",
    "-5 < v",
    "NOT v <> 2.5",
    "v BETWEEN 1 AND 2",
    "v NOT IN (1, 2)",
    "v = 1 OR NOT (v > 5 AND v < 7)",
    "v = 99999999999999999999",
    "v IN ('a', 'b') AND v > 'c'",
    "v IS NOT DISTINCT FROM 5",
    "v IS NOT NULL",
    "v = 1 AND w + 1 = 1",
]
MAY_HOLD_FOR_NULL = [
    "v IS NULL",
    "v IS DISTINCT FROM 5",
    "coalesce(v, 1) = 1",
    "v = 1 OR true",
    "v IN (SELECT unnest([1]))",
    "CASE WHEN v = 1 THEN false ELSE true END",
    "v + 1 = 2",
]


@pytest.mark.parametrize("predicate", NEVER_FOR_NULL)
def test_comparisons_with_literals_do_not_hold_for_null(predicate):
    assert not may_hold_for_null(predicate_of(predicate))
    row = "SELECT CAST(NULL AS BIGINT) AS v, 0 AS w" if "'" not in predicate else "SELECT CAST(NULL AS TEXT) AS v"
    assert duckdb.connect().sql(f"SELECT 1 FROM ({row}) WHERE {predicate}").fetchall() == []


@pytest.mark.parametrize("predicate", MAY_HOLD_FOR_NULL)
def test_of_other_predicates_the_engine_has_to_tell_whether_they_hold_for_null(predicate):
    assert may_hold_for_null(predicate_of(predicate))
