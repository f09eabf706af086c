"""Joins within parentheses that begin with unnest(...), over datasets and views, as DuckDB has them."""

from __future__ import annotations

import itertools

import duckdb
import pyarrow as pa

import kartosql

JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN")
CONDITIONS = ("o.p = 1", "o.p = u.x", "o.a = u.x AND o.p < 3")


def test_joins_of_unnest_within_parentheses_are_those_of_duckdb(tmp_path):
    rows = pa.table({"p": [1, 2, 3, 4], "a": [1, 3, 5, None]})
    with kartosql.connect(tmp_path) as con, duckdb.connect() as peer:
        con.create_dataset("t", rows, partition_on=["p"])
        peer.register("t", rows)
        for engine in (con, peer):
            engine.sql("CREATE VIEW v AS SELECT a, p FROM t")
        for name, join, on, where in itertools.product("tv", JOINS, CONDITIONS, ("", "WHERE u.x = 1")):
            sql = f"SELECT * FROM (unnest([1, 2]) u(x) {join} {name} o ON {on}) {where}"
            assert sorted(map(str, con.sql(sql).rows())) == sorted(map(str, peer.sql(sql).fetchall())), sql
