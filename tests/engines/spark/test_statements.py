"""Statements have the same rows on both engines, whatever SQL's parts they are made of."""

from __future__ import annotations

import re

import nasty
import portable_statements
import pyarrow as pa
import pytest

from kartosql.errors import KartosqlError, NotPortable
from sparks import Both, same, unordered

BATCH = 20
# Parts of SQL that Spark has not, or not as DuckDB has them.
REFUSED = r"""
SELECT * FROM t ASOF RIGHT JOIN u ON t.n >= u.p
SELECT * FROM u POSITIONAL JOIN v
SELECT * FROM u TABLESAMPLE 50% (bernoulli, 7)
WITH RECURSIVE r(n) AS (SELECT 1 UNION SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r
SELECT p, row_number() OVER () FROM u
SELECT p, sum(y) OVER (ORDER BY y GROUPS 1 PRECEDING) FROM u
SELECT p, sum(y) OVER (ORDER BY y ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) FROM u
SELECT DISTINCT ON (p) p, y FROM u
SELECT list(y) FROM u
SELECT sum(random()) FROM u
SELECT max(y) FILTER (WHERE random() < 2) FROM u
SELECT * FROM u LEFT JOIN v ON u.p = v.p AND (random() < 2 OR u.y IS NULL)
SELECT * FROM u LIMIT 50%
SELECT * FROM u LIMIT (SELECT 2)
SELECT p FROM u ORDER BY [p, y]
SELECT (p, y) NOT IN (SELECT p, w FROM v) FROM u
PIVOT u ON p, y USING count(*)
SUMMARIZE u
SELECT * FROM t ORDER BY st
SELECT max(l) FROM t
SELECT id FROM t WHERE l = [1]
SELECT sum(i) FROM (SELECT unnest(range(200000)) AS i)
""".strip().split("\n")


@pytest.fixture(scope="module")
def both(spark, tmp_path_factory):
    u = pa.table({"p": pa.array([1, 1, 2, None, 4, 2, 2], pa.int32()), "y": [10, 30, None, 5, 40, 20, 20]})
    v = pa.table({"p": pa.array([1, 2, 2, None, 3], pa.int64()), "w": pa.array([1, 2, 2, 7, None], pa.int16())})
    store = str(tmp_path_factory.mktemp("store"))
    with Both(store, {"t": nasty.table(), "u": u, "v": v}) as found:
        yield found


def _is_ordered(sql: str) -> bool:
    return bool(re.search(r"ORDER BY (?!.*\))", sql))


@pytest.mark.parametrize("first", range(0, len(portable_statements.STATEMENTS), BATCH))
def test_statements_have_the_same_rows_on_both_engines(both, first):
    different = {}
    for sql in portable_statements.STATEMENTS[first : first + BATCH]:
        wanted = both.on_duckdb(sql)
        try:
            found = both.on_spark(sql)
        except KartosqlError as e:
            different[sql] = f"{e.code}: {e.message}"
            continue
        if not _is_ordered(sql):
            wanted, found = unordered(wanted), unordered(found)
        if not same(wanted, found):
            different[sql] = f"{wanted[:8]} but {found[:8]}"
    assert not different


def test_parts_of_sql_that_spark_has_not_are_refused(both):
    for sql in REFUSED:
        with pytest.raises(NotPortable) as caught:
            both.on_spark(sql)
        assert caught.value.message.endswith("."), caught.value.message
        assert caught.value.hint
