"""How the names of a statement find tables and columns."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import SqlError, UnknownNameError
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube, write_dataset

TWINS = Cube("c", ["x"], ["p"])
ODD = Cube("g-h", ["x"], ["p"])


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    store = Store(f"memory://{uuid.uuid4().hex}")
    seed = pa.table({"x": [0, 1, 2], "p": [0, 0, 1], "v": [1, 2, 3], "V": ["a", "b", "c"], "Mixed": [7, 8, 9]})
    build_cube(store, TWINS, {"seed": seed, "e": pa.table({"x": [0, 1], "p": [0, 0], "w": [5, 6], "W": ["A", "B"]})})
    build_cube(store, ODD, {"seed": pa.table({"x": [0], "p": [1], "a b": [3], 'sel"ect': [4], "order": [5]})})
    write_dataset(store, "d", pa.table({"v": [1, 2], "k": ["a", "b"]}))
    write_dataset(store, "Sales", pa.table({"a": [1]}))
    write_dataset(store, "one", pa.table({"a": [1]}))
    write_dataset(store, "One", pa.table({"b": [2]}))
    schema = {"a": pa.int64()}
    files = {"partitions": {"l": {"files": {"t1": "m/t1/l.parquet", "T2": "m/T2/l.parquet"}}}}
    for table in ("t1", "T2"):
        builders.write_dataset(store, "m", schema, table=table, **files)
        store.put(f"m/{table}/l.parquet", builders.parquet({"a": [len(table)]}))
    with kartosql.connect(store.url) as made:
        yield made


@pytest.fixture(scope="module")
def rows(connection) -> Callable[[str], list[Any]]:
    return lambda sql: sorted(connection.sql(sql).rows(), key=repr)


def _failure(connection: Any, sql: str) -> SqlError:
    with pytest.raises(SqlError) as e:
        connection.sql(sql)
    return e.value


# -- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("FROM c", ["Mixed", "V", "W", "p", "v", "w", "x"]),
        ("FROM C", ["Mixed", "V", "W", "p", "v", "w", "x"]),
        ("FROM c.e", ["W", "p", "w", "x"]),
        ("FROM C.E", ["W", "p", "w", "x"]),
        ('FROM "c++e"', ["W", "p", "w", "x"]),
        ('FROM "C++E"', ["W", "p", "w", "x"]),
        ("FROM sales", ["a"]),
        ('FROM "g-h"', ["a b", "order", "p", 'sel"ect', "x"]),
        ('FROM "g-h".seed', ["a b", "order", "p", 'sel"ect', "x"]),
        ("FROM one", ["a"]),
        ('FROM "One"', ["b"]),
        ("FROM m.t1", ["a"]),
        ("FROM m.t2", ["a"]),
        ('FROM M."T2"', ["a"]),
    ],
)
def test_tables_are_found_exactly_else_by_case(connection, sql, columns):
    assert connection.sql(sql).columns == columns


@pytest.mark.parametrize(
    ("sql", "code", "place", "hint"),
    [
        ("SELECT * FROM ONE", "ambiguous-name", "ONE", "exactly"),
        ("SELECT * FROM Sale s", "unknown-table", "Sale", "Did you mean Sales?"),
        ('SELECT * FROM "g-i"', "unknown-table", '"g-i"', 'Did you mean "g-h"?'),
        ("SELECT * FROM zzzzz", "unknown-table", "zzzzz", "SHOW TABLES"),
        ("SELECT * FROM c . f", "unknown-table", "c . f", "It has e, seed."),
        ("SELECT * FROM m", "unknown-table", "m", '"m".T2, "m".t1'),
        ("SELECT * FROM m.t3", "unknown-table", "m.t3", "It has T2, t1."),
        ("SELECT * FROM nope.t", "unknown-table", "nope.t", "SHOW TABLES"),
        ("SELECT 1 WHERE 1 IN (SELECT x FROM nope)", "unknown-table", "nope", "SHOW TABLES"),
        ("WITH a AS (FROM nope) SELECT 1", "unknown-table", "nope", "SHOW TABLES"),
        ("SELECT * FROM x.y.z", "unknown-table", "x.y.z", ""),
        ("SELECT * FROM '/etc/passwd'", "unknown-table", "'/etc/passwd'", "SHOW TABLES"),
    ],
)
def test_a_table_that_is_not_there_is_an_error_at_its_place(connection, sql, code, place, hint):
    error = _failure(connection, sql)
    assert error.code == code
    assert sql[slice(*error.span)] == place
    assert hint in (error.hint or "")


def test_all_unknown_tables_are_reported_at_once(connection):
    sql = "SELECT * FROM nope1, c, (FROM nope2) t JOIN c.nope3 USING (x)"
    error = _failure(connection, sql)
    assert isinstance(error, UnknownNameError)
    assert [sql[slice(*e.span)] for e in error.errors] == ["nope1", "nope2", "c.nope3"]
    assert [e["code"] for e in error.to_dict()["errors"]] == ["unknown-table"] * 3


# -- common table expressions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("WITH d AS (SELECT 7 AS q) SELECT q FROM d", [(7,)]),
        ("WITH D AS (SELECT 7 AS q) SELECT q FROM d", [(7,)]),
        ("WITH d AS (SELECT v + 10 AS q FROM d) SELECT q FROM d", [(11,), (12,)]),
        ("WITH a AS (SELECT v FROM d), d AS (SELECT 7 AS v) SELECT a.v, d.v FROM a, d", [(1, 7), (2, 7)]),
        ("WITH d AS (SELECT 7 AS v), a AS (SELECT v FROM d) SELECT v FROM a", [(7,)]),
        ("WITH a AS (WITH d AS (SELECT 7 AS v) FROM d) SELECT a.v, d.v FROM a, d", [(7, 1), (7, 2)]),
        ("SELECT (WITH d AS (SELECT 7 AS v) SELECT v FROM d) AS q, v FROM d", [(7, 1), (7, 2)]),
        ("WITH d AS (SELECT 7 AS v) SELECT v FROM (SELECT v FROM d WHERE v IN (FROM d))", [(7,)]),
        ("SELECT v FROM d UNION ALL (WITH d AS (SELECT 7 AS v) SELECT v FROM d)", [(1,), (2,), (7,)]),
        ("WITH RECURSIVE d(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM d WHERE n < 3) FROM d", [(1,), (2,), (3,)]),
        (
            "WITH RECURSIVE r(n) AS (SELECT min(v) FROM d UNION SELECT d.v FROM d, r WHERE d.v = n + 1) FROM r",
            [(1,), (2,)],
        ),
        ("WITH c AS (SELECT 7 AS q) SELECT q, w FROM c, c.e", [(7, 5), (7, 6)]),
        ("WITH c AS (SELECT 1 AS a) SELECT a FROM c WHERE EXISTS (SELECT 1 FROM c WHERE a = 1)", [(1,)]),
        ("WITH r(a, b) AS (SELECT v, k FROM d) SELECT b FROM r WHERE a = 2", [("b",)]),
    ],
)
def test_a_common_table_expression_hides_a_table_where_it_is_in_scope(rows, sql, expected):
    assert rows(sql) == expected


# -- columns ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT v, V FROM c WHERE x = 0", [(1, "a")]),
        ("SELECT v FROM c WHERE V = 'b'", [(2,)]),
        ("SELECT V FROM c WHERE v = 2", [("b",)]),
        ("SELECT c.V FROM c WHERE c.v > 1", [("b",), ("c",)]),
        ("SELECT V, sum(v) FROM c GROUP BY V", [("a", 1), ("b", 2), ("c", 3)]),
        ("SELECT v, count(*) FROM c GROUP BY v HAVING v > 2", [(3, 1)]),
        ("SELECT first(V ORDER BY v DESC) FROM c", [("c",)]),
        ("SELECT sum(v) FILTER (V = 'a') FROM c", [(1,)]),
        ("SELECT V FROM c QUALIFY row_number() OVER (ORDER BY v DESC) = 1", [("c",)]),
        ("SELECT a.V, b.v FROM c a JOIN c b ON a.v = b.v + 1", [("b", 1), ("c", 2)]),
        ("SELECT c.V FROM c JOIN c.e ON c.w = e.w", [("a",), ("b",)]),
        ("SELECT c.v, d.k FROM c JOIN d ON c.V = d.k", [(1, "a"), (2, "b")]),
        ("SELECT w, W, v FROM c WHERE W = 'B'", [(6, "B", 2)]),
        ("SELECT e.W, e.w FROM c.e", [("A", 5), ("B", 6)]),
        ("SELECT c.e.W FROM c.e WHERE c.e.w = 6", [("B",)]),
        ("SELECT c.V, e.W FROM c, c.e WHERE c.x = c.e.x", [("a", "A"), ("b", "B")]),
        ('SELECT * EXCLUDE (v, p, x, "Mixed", w, W) FROM c', [("a",), ("b",), ("c",)]),
        ('SELECT * EXCLUDE (V, p, x, "Mixed", w, W) FROM c', [(1,), (2,), (3,)]),
        ("SELECT x FROM c WHERE v IN (SELECT v FROM d)", [(0,), (1,)]),
        ("SELECT k, (SELECT V FROM c WHERE c.v = d.v) FROM d", [("a", "a"), ("b", "b")]),
        ("SELECT s.q FROM c, LATERAL (SELECT c.v AS q) s WHERE V = 'c'", [(3,)]),
        ("SELECT v FROM c UNION ALL SELECT v FROM d", [(1,), (1,), (2,), (2,), (3,)]),
        ('SELECT mixed, MIXED FROM c WHERE "mIxEd" = 8', [(8, 8)]),
        ('SELECT "a b", "sel""ect", "ORDER" FROM "g-h"', [(3, 4, 5)]),
        ('SELECT "g-h"."a b", "g-h".seed.x FROM "g-h", "g-h".seed', [(3, 0)]),
        ("SELECT x AS y FROM c WHERE y = 2", [(2,)]),
        ("SELECT x + 1 AS a, a + 1 AS b FROM c WHERE b = 2", [(1, 2)]),
        ("SELECT list_transform([1], lambda v: v + x) FROM c WHERE v = 3", [([3],)]),
    ],
)
def test_columns_are_found_exactly_else_by_case(rows, sql, expected):
    assert rows(sql) == expected


def test_a_star_shows_columns_that_differ_only_in_case(connection):
    table = connection.sql("SELECT * FROM c ORDER BY x").arrow()
    assert table.column_names == ["Mixed", "V", "W", "p", "v", "w", "x"]
    assert table["v"].to_pylist() == [1, 2, 3]
    assert table["V"].to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT v FROM (SELECT * FROM c)", [(1,), (2,), (3,)]),
        ("SELECT v FROM (SELECT v, V FROM c)", [(1,), (2,), (3,)]),
        ("WITH r AS (FROM c) SELECT r.v FROM r WHERE r.v = 2", [(2,)]),
        ("SELECT s.v FROM c JOIN (SELECT 1 AS v) s ON s.v = c.v", [(1,)]),
        ("SELECT s.v FROM c, LATERAL (SELECT c.v AS v) s", [(1,), (2,), (3,)]),
        ("SELECT v.abs() FROM c", [(1,), (2,), (3,)]),
    ],
)
def test_columns_that_differ_only_in_case_stay_apart_in_derived_tables(rows, sql, expected):
    assert rows(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT COLUMNS('^v$') FROM c", [(1,), (2,), (3,)]),
        ("SELECT c FROM c.seed AS c WHERE c.x = 0", [({"Mixed": 7, "V": "a", "p": 0, "v": 1, "x": 0},)]),
        ("SELECT c.V, d.v FROM c JOIN d USING (v)", [("a", 1), ("b", 2)]),
    ],
)
def test_columns_that_differ_only_in_case_are_never_silently_mixed_up(connection, sql, expected):
    try:
        found = connection.sql(sql).rows()
    except SqlError as e:
        found = None if e.span is not None and e.hint else e
    assert found in (None, expected)


def test_output_columns_without_alias_show_the_users_names(connection):
    assert connection.sql("SELECT (SELECT max(k) FROM d), c.x + 1 FROM c").columns == [
        "(SELECT max(k) FROM d)",
        "(c.x + 1)",
    ]


def test_all_unknown_columns_are_reported_at_once_with_place_and_suggestion(connection):
    sql = "SELECT foo, x, c.bar, mixd FROM c WHERE 'é' = k2 AND x IN (SELECT kk FROM d) ORDER BY v, qux"
    error = _failure(connection, sql)
    assert isinstance(error, UnknownNameError)
    assert error.code == "unknown-column"
    assert [sql[slice(*e.span)] for e in error.errors] == ["foo", "c.bar", "mixd", "k2", "kk", "qux"]
    assert error.errors[2].hint == "Did you mean Mixed?"
    assert error.errors[4].hint == "Did you mean k?"
    assert "6 names are unknown" in str(error)


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("SELECT nope FROM c", "nope"),
        ("SELECT c.nope FROM c", "c.nope"),
        ("SELECT (SELECT nope FROM d) FROM c", "nope"),
        ("SELECT x FROM c JOIN d ON c.v = d.nope", "d.nope"),
        ("SELECT x FROM c GROUP BY nope", "nope"),
        ("SELECT x FROM c ORDER BY nope", "nope"),
        ("SELECT row_number() OVER (PARTITION BY nope) FROM c", "nope"),
        ("SELECT list_transform([1], lambda q: q + nope) FROM c", "nope"),
        ("SELECT * EXCLUDE (nope) FROM c", "nope"),
        ("SELECT x FROM c WHERE EXISTS (SELECT 1 FROM d WHERE d.v = c.nope)", "c.nope"),
        ("SELECT t.nope FROM (SELECT x FROM c) t", "t.nope"),
        ("WITH r AS (SELECT x FROM c) SELECT nope FROM r", "nope"),
        ("SELECT x FROM c WHERE x = 1 UNION SELECT nope FROM d", "nope"),
        ("SELECT rowid FROM c", "rowid"),
        ("SELECT filename FROM c", "filename"),
        ("SELECT * FROM c JOIN d USING (nope)", "nope"),
        ("SELECT z.x FROM c", "z.x"),
        ("SELECT z.* FROM c", "z.*"),
    ],
)
def test_an_unknown_column_is_an_error_at_its_place(connection, sql, place):
    error = _failure(connection, sql)
    assert error.code in ("unknown-column", "unknown-table")
    assert error.span is not None, error
    assert sql[slice(*error.span)] == place


def test_suggestions_for_a_qualified_column_come_from_its_table(connection):
    hint = _failure(connection, "SELECT d.kk, c.Mixe FROM c, d WHERE c.kk = 1").errors[2].hint
    assert "k," not in f"{hint},".replace("Mixed", "")


@pytest.mark.parametrize("sql", ["SELECT x FROM c JOIN c.e ON c.x = e.x", "SELECT a.x, v FROM c.seed a, d"])
def test_a_name_that_means_two_columns_is_an_error(connection, sql):
    with pytest.raises(SqlError) as e:
        connection.sql(sql).rows()
    assert e.value.code in ("invalid-query", "ambiguous-name")
    assert "kartosql" not in str(e.value)


def test_a_table_named_twice_is_scanned_twice_with_conditions_of_its_own(connection):
    report = connection.explain("SELECT 1 FROM c a, c b WHERE a.p = 0 AND b.p = 1").to_dict()
    files = [scan["datasets"][0]["files"] for scan in report["scans"]]
    assert [len(f) for f in files] == [1, 1]
    assert "p=0" in files[0][0]
    assert "p=1" in files[1][0]


def test_unused_datasets_are_not_opened(connection):
    report = connection.explain("SELECT x, v FROM c WHERE p = 0").to_dict()
    assert report["scans"][0]["eliminated"] == ["e"]
    assert [d["dataset"] for d in report["scans"][0]["datasets"]] == ["seed"]


@pytest.mark.parametrize(
    "inner",
    [
        "SELECT b.v FROM range(4) r(n)",
        "SELECT x FROM range(4) r(n)",
        "SELECT b.v + n FROM (SELECT 1) q, range(4) r(n)",
        "SELECT x FROM (PIVOT (SELECT 1 AS n) ON n USING count(*)) r",
    ],
)
def test_columns_of_outer_tables_are_read_beside_items_whose_columns_are_not_known(rows, inner):
    middle = f"SELECT b.x FROM c b WHERE b.p IS NOT NULL AND EXISTS ({inner})"
    sql = f"SELECT count(*) FROM c a WHERE EXISTS (SELECT 1 FROM ({middle}) q)"
    assert rows(sql) == rows("SELECT count(*) FROM c")


@pytest.mark.parametrize("inner", ["SELECT x AS b FROM c", "SELECT x AS B, p FROM c GROUP BY ALL", "SELECT 1 AS b"])
def test_a_column_of_a_derived_table_with_the_name_of_an_outer_table_hides_no_column_of_that(rows, inner):
    sql = f"SELECT count(*) FROM c b WHERE EXISTS (SELECT 1 FROM ({inner}) q WHERE b.v IS NOT NULL OR b.v IS NULL)"
    assert rows(sql) == rows("SELECT count(*) FROM c")
