"""Rules of which each keeps rows that pruning would lose or invent without it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import builders
import kartosql
import kartosql.query
from kartosql.formats.kartothek.cube import Cube
from kartosql.plan import dynamic_filters
from kartosql.plan.prune import prune
from kartosql.store import Store
from written import build_cube, write_dataset


@pytest.fixture
def connection() -> Iterator[Any]:
    """``t`` and ``d`` by ``p``; ``lower`` and ``upper`` by ``s`` with one text each."""
    store = Store(f"memory://{uuid.uuid4().hex}")
    for name in ("t", "d"):
        table = pa.table({"p": [0, 1, 2, 3], "i": [0, 1, 1, 3], "v": [10, 11, 12, 13]})
        write_dataset(store, name, table, partition_on="p", index_columns=["i"])
    for name, text in (("lower", "a"), ("upper", "A")):
        write_dataset(store, name, pa.table({"s": [text], "v": [1]}), partition_on="s")
    with kartosql.connect(store.url) as made:
        yield made


@pytest.mark.parametrize(
    "sql",
    [
        # ON of a later join sees what an earlier one filled with NULL.
        "SELECT a.v, b.v, c.v FROM t a LEFT JOIN d b ON a.p = b.p + 1 RIGHT JOIN t c ON c.p = a.p AND b.p IS NULL",
        "SELECT a.v, b.v, c.v FROM t a LEFT JOIN d b ON a.p = b.p JOIN t c ON c.p = a.p AND (b.p = 1 OR b.p IS NULL)",
        "SELECT a.v, b.v FROM t a LEFT JOIN d b ON a.p = b.p JOIN t c ON c.p = a.p AND coalesce(b.p, 9) IN (1, 9)",
        # What is before a LEFT JOIN may reject NULL without making it an inner one.
        "SELECT a.v, b.v, c.v FROM t a FULL JOIN t b ON a.i = b.i LEFT JOIN d c ON b.p = c.p AND c.p = 2 WHERE a.p = 1",
        "SELECT a.v, b.v FROM t a RIGHT JOIN t b ON a.i = b.i LEFT JOIN d c ON b.p = c.p AND c.p = 2 WHERE a.p = 1",
        # One side of a FULL JOIN that rejects NULL leaves the other one to be filled.
        "SELECT a.v, b.v FROM t a FULL JOIN d b ON a.i = b.i AND a.p < 1 WHERE a.p IN (0, 1)",
        "SELECT a.v, b.v FROM t a FULL JOIN d b ON a.i = b.i WHERE b.p = 1 OR b.p IS NULL",
        # A comma binds less than JOIN.
        "SELECT a.v, c.v FROM t a, t b RIGHT JOIN d c ON b.p = c.p AND c.p = 2 WHERE a.p = 1",
        "SELECT a.v, c.v FROM t a, t b FULL JOIN d c ON b.i = c.p AND c.v = 11 WHERE a.p = 1",
        # A join in brackets is one side of another.
        "SELECT a.v, c.v FROM t a LEFT JOIN (t b JOIN d c ON b.p = c.p) ON a.i = b.i WHERE c.p = 1 OR c.p IS NULL",
        "SELECT a.v, c.v FROM t a LEFT JOIN t b JOIN d c ON b.p = c.p ON a.i = b.i WHERE c.p = 1 OR c.p IS NULL",
        # Merged columns.
        "SELECT p, a.v, b.v FROM t a FULL JOIN d b USING (p) WHERE p > 1 OR p IS NULL",
        "SELECT p, c.v FROM t a FULL JOIN d b USING (p) RIGHT JOIN t c ON c.i = p WHERE p IS NULL OR p = 1",
        "SELECT p, a.v, b.v FROM (SELECT * FROM t WHERE p < 2) a RIGHT JOIN d b USING (p) WHERE p <> 1",
        "SELECT p FROM (SELECT p + 2 AS p FROM t) a NATURAL LEFT JOIN d WHERE p = 3",
        # What SEMI and ANTI joins hide is in no merged column.
        "SELECT p, c.v FROM (SELECT p FROM t) x SEMI JOIN (FROM d WHERE i = 3) s ON x.p + 1 = s.p NATURAL JOIN t c",
        "SELECT p, c.v FROM (SELECT p FROM t) x ANTI JOIN (FROM d WHERE i < 3) s ON x.p + 1 = s.p NATURAL JOIN t c",
        "SELECT p, c.v FROM (SELECT p FROM t) x SEMI JOIN d s ON x.p + 1 = s.p JOIN t c USING (p) WHERE p < 2",
        # NULLs that ROLLUP makes.
        "SELECT x.n, d.v FROM (SELECT p, count(*) AS n FROM t WHERE p = 1 GROUP BY ROLLUP (p)) x LEFT JOIN d USING (p)",
        "SELECT * FROM (SELECT p, i, count(*) AS n FROM t GROUP BY GROUPING SETS ((p), (i))) WHERE p IS NULL",
        # One expression, used twice.
        "WITH r AS (SELECT * FROM t) SELECT a.v, b.v FROM r a, r b WHERE a.p = 1 AND b.v = 12",
        "WITH r AS (SELECT * FROM t) SELECT v FROM r WHERE p = 1 UNION ALL SELECT v FROM r",
        "WITH r AS (SELECT * FROM t) SELECT v FROM r WHERE p = 1 AND v > (SELECT min(v) FROM r)",
        # A subquery's rows matter for others, too.
        "SELECT v, (SELECT count(*) FROM d WHERE d.p <= t.p) FROM t WHERE p = 3",
        "SELECT v FROM t WHERE p = 1 AND v NOT IN (SELECT v + 1 FROM d)",
        "SELECT v FROM t WHERE p IN (SELECT p FROM d LIMIT 2) AND p < 3",
        "SELECT a.v, l.n FROM t a, LATERAL (SELECT count(*) AS n FROM d WHERE d.i = a.i) l WHERE l.n = 0 OR a.p = 3",
        "SELECT a.v FROM t a WHERE EXISTS (SELECT 1 FROM d b WHERE a.p = b.p LIMIT 1)",
        "SELECT CAST(NULL AS BOOLEAN) FROM d GROUP BY ALL",
        "SELECT q.a FROM t AS q(a, b, c) GROUP BY q.a",
        "SELECT count(*) FROM t q(a, b)",
        # Without GROUP BY an aggregation has a row even where nothing is found.
        "SELECT v FROM t WHERE EXISTS (SELECT 1 FROM d WHERE d.p = t.p AND d.p = 3 HAVING count(*) = 0)",
        "SELECT v FROM t WHERE EXISTS (SELECT 1 FROM d WHERE d.p = t.p AND d.p = 3 GROUP BY GROUPING SETS (()))",
        "SELECT v FROM t WHERE EXISTS (SELECT count(*) FROM d WHERE d.p = t.p AND d.p = 3)",
        # A literal has another type where it is seen as a column.
        "SELECT v FROM (SELECT v, p, 1 AS x FROM t) WHERE typeof(x + p::TINYINT) || p = 'INTEGER2'",
        # A name that stands for several things.
        "SELECT a.v FROM t a ANTI JOIN d z ON a.p = z.p + 2 LEFT JOIN d z ON z.p = a.p WHERE z.v > 10",
        "SELECT d.v FROM d JOIN t s ON d.p = s.p WHERE EXISTS (SELECT 1 FROM lower x WHERE s.p = 1)",
        "SELECT a.v, l.n FROM t a LEFT JOIN LATERAL (SELECT d.v AS n FROM d WHERE d.i = a.p) l ON l.n > 11",
    ],
)
def test_pruned_and_unpruned_rows_are_the_same(connection, monkeypatch, sql):
    rows = sorted(map(repr, connection.sql(sql).rows()))
    with monkeypatch.context() as patch:
        patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
        assert rows == sorted(map(repr, connection.sql(sql).rows()))


def test_texts_that_a_collation_makes_equal_are_not_the_same(connection):
    connection.sql("SET default_collation = 'NOCASE'")
    joined = "FROM lower JOIN upper ON lower.s = upper.s"
    assert connection.sql(f"SELECT count(*) {joined} WHERE ascii(lower.s) = 97").rows() == [(1,)]
    both = "SELECT s FROM lower UNION SELECT s FROM upper"
    kept = len(connection.sql(both).rows())
    assert connection.sql(f"SELECT count(*) FROM ({both}) WHERE ascii(s) IN (65, 97)").rows() == [(kept,)]


def test_zeros_that_are_equal_are_not_the_same(connection):
    for name, zero in (("plus", "0.0"), ("minus", "-0.0")):
        columns = {"f": pa.float64(), "v": pa.int64()}
        builders.write_dataset(connection.store, name, columns, [f"f={zero}", "f=1.0"], partition_keys=["f"])
        for v, folder in enumerate((f"f={zero}", "f=1.0"), 1):
            key = f"{name}/table/{folder}/{builders.WRITE_ID}.parquet"
            connection.store.put(key, builders.parquet({"v": [v]}))
    joined = "FROM plus JOIN minus ON plus.f = minus.f"
    assert connection.sql(f"SELECT plus.v {joined} WHERE signbit(minus.f)").rows() == [(1,)]


@pytest.mark.parametrize("where", ["p = 1 + floor(random() * 0)", "p = 1 OR random() > 2"])
def test_what_depends_on_more_than_columns_prunes_nothing(connection, where):
    report = connection.explain(f"SELECT v FROM t WHERE {where}").to_dict()
    assert len(report["scans"][0]["datasets"][0]["files"]) == 4


@pytest.mark.parametrize("where", ["p = 1 AND p < 3 -> '$'", "NOT p = 1 OR p = 3 -> '$'"])
def test_what_the_parsers_read_differently_prunes_nothing(connection, where):
    report = connection.explain(f"SELECT v FROM t WHERE {where}").to_dict()
    # To DuckDB 2.0.0 the whole text is a lambda, to later ones only what stands behind the last comparison.
    ((document,),) = duckdb.execute("SELECT json_serialize_sql(?)", [f"SELECT 1 WHERE {where}"]).fetchall()
    is_read_alike = json.loads(document)["statements"][0]["node"]["where_clause"]["type"] == "CONJUNCTION_AND"
    assert len(report["scans"][0]["datasets"][0]["files"]) == (1 if is_read_alike else 4)


def test_a_lookup_does_not_bring_an_overwritten_row_back(connection, monkeypatch):
    monkeypatch.setattr(dynamic_filters, "MIN_FILES", 1)
    monkeypatch.setattr(dynamic_filters, "MAX_SHARE", 10.0)
    cube = Cube("c", ["x", "y"], ["p"], index_columns=["i"])
    rows = pa.table({"x": [1, 2, 3], "y": [1, 2, 3], "p": [0, 0, 0], "i": [9, 9, 9]})
    build_cube(connection.store, cube, {"seed": rows})
    for x, i in ((2, 5), (3, 6)):
        builders.append(connection.store, cube.uuid("seed"), pa.table({"x": [x], "y": [x], "p": [0], "i": [i]}))
    write_dataset(connection.store, "e", pa.table({"y": [1, 2, 3], "n": [1, 2, 3]}), index_columns=["y"])
    sql = "SELECT c.x FROM e JOIN c ON e.y = c.y WHERE c.i = 9"
    for _ in range(2):  # how small e is, is known once its file was opened
        assert connection.sql(sql).rows() == [(1,)]
    with monkeypatch.context() as patch:
        patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
        assert connection.sql(sql).rows() == [(1,)]


def test_statements_without_stored_tables_do_not_share_their_views(connection):
    connection.register("reg", pa.table({"x": [1, 2]}))
    for _ in range(8):
        assert connection.sql("SELECT 1").rows() == [(1,)]
        assert connection.sql("SELECT max(x) FROM reg").rows() == [(2,)]
