"""Joins whose first item is no table: within parentheses, and in queries that begin with FROM."""

from __future__ import annotations

import itertools

import duckdb
import pyarrow as pa
import pytest

import kartosql

JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN")
CONDITIONS = ("o.p = 1", "o.p = u.x", "o.a = u.x AND o.p < 3")
ITEMS = ("unnest([1, 2]) u(x)", "(VALUES (1), (2)) u(x)", "(SELECT p AS x FROM v) u", "range(1, 3) u(x)", "t u(x, b)")


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    rows = pa.table({"p": [1, 2, 3, 4], "a": [1, 3, 5, None]})
    with kartosql.connect(tmp_path_factory.mktemp("store")) as con, duckdb.connect() as peer:
        con.create_dataset("t", rows, partition_on=["p"])
        peer.register("t", rows.select(con.sql("FROM t").columns))
        for engine in (con, peer):
            engine.sql("CREATE VIEW v AS SELECT a, p FROM t")
        yield con, peer


def check(engines, sql):
    con, peer = engines
    assert sorted(map(str, con.sql(sql).rows())) == sorted(map(str, peer.sql(sql).fetchall())), sql


@pytest.mark.parametrize("join", JOINS)
def test_joins_of_unnest_within_parentheses_are_those_of_duckdb(engines, join):
    for name, on, where in itertools.product("tv", CONDITIONS, ("", "WHERE u.x = 1")):
        check(engines, f"SELECT * FROM (unnest([1, 2]) u(x) {join} {name} o ON {on}) {where}")


@pytest.mark.parametrize("item", ITEMS)
def test_joins_of_queries_that_begin_with_from_are_those_of_duckdb(engines, item):
    for join, name, on, tail in itertools.product(JOINS, "tv", CONDITIONS, ("", "SELECT u.x", "SELECT 1 WHERE x = 1")):
        check(engines, f"FROM {item} {join} {name} o ON {on} {tail}")


@pytest.mark.parametrize("item", ITEMS)
def test_conditions_of_queries_that_begin_with_from_leave_out_files(engines, item):
    query = engines[0].sql(f"FROM {item} JOIN v o ON true SELECT u.x, o.a WHERE o.p = 2")
    assert len(query.rows()) in (2, 4)
    assert "1 of 4" in str(query.explain())
