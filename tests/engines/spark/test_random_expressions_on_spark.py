"""Random expressions, aggregates and window functions on Spark: DuckDB's values, or refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from random_expressions import Expressions, table

from kartosql.errors import KartosqlError, NotPortable
from sparks import Both, same, unordered

# <first seed>-<last seed>; each is some hundred expressions, in three statements or more.
FIRST, LAST = map(int, os.environ.get("KARTOSQL_SPARK_EXPRESSIONS", "0-1").split("-"))
FORMS = [
    ("any", 60, "SELECT id, {} FROM t ORDER BY id"),
    ("aggregate", 25, "SELECT 0, {} FROM t"),
    ("aggregate", 25, "SELECT n, {} FROM t GROUP BY n"),
    ("window", 12, "SELECT id, {} FROM t ORDER BY id"),
]


@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(FIRST, LAST))
def test_spark_gives_duckdbs_values_or_refuses(seed, spark, tmp_path):
    made = Expressions(seed)
    with Both(str(tmp_path), {"t": table(seed)}) as both:
        for kind, count, form in FORMS:
            asked = [x for x in (getattr(made, kind)() for _ in range(4 * count)) if answered(both, form.format(x))]
            assert len(asked) > count // 3
            different = compared(both, asked[:count], form)
            assert not different, f"seed {seed}: {different}"


def answered(both: Both, sql: str) -> bool:
    """Return whether DuckDB has an answer, and Spark does not refuse it before it runs."""
    try:
        both.on_duckdb(sql)
    except (KartosqlError, ValueError, OverflowError):  # Python has not all values either
        return False
    try:
        both.translation(sql)
    except NotPortable:
        return False
    return True


def compared(both: Both, asked: list[str], form: str) -> dict[str, Any]:
    """Return the expressions that have other values on Spark, with the first rows that differ."""
    sql = form.format(", ".join(asked))
    try:
        found = both.on_spark(sql)
    except KartosqlError as e:
        if len(asked) == 1:
            return {} if e.code == "not-portable" else {asked[0]: f"{e.code}: {e.message}"}
        half = len(asked) // 2
        return {**compared(both, asked[:half], form), **compared(both, asked[half:], form)}
    wanted = both.on_duckdb(sql)
    order: Callable[[Any], Any] = unordered if "GROUP BY" in form else list
    wanted, found = order(wanted), order(found)
    assert [row[0] for row in found] == [row[0] for row in wanted]
    return {
        x: pairs[:3]
        for at, x in enumerate(asked, 1)
        if (pairs := [(a[0], a[at], b[at]) for a, b in zip(wanted, found, strict=True) if not same(a[at], b[at], 1e-9)])
    }
