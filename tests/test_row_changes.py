"""DELETE, UPDATE and MERGE by row: rows are those of the same changes in a database, files without a match stay."""

from __future__ import annotations

import datetime as dt
import os
import random
import re
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.errors import KartosqlError
from kartosql.statements import row_changes
from writing import originals

SCHEMA = pa.schema([("p", pa.int64()), ("i", pa.int64()), ("v", pa.float64()), ("s", pa.string()), ("d", pa.date32())])
TYPES = "p BIGINT, i BIGINT, v DOUBLE, s VARCHAR, d DATE"
SEEDS = int(os.environ.get("KARTOSQL_ROW_CHANGES", "4"))
COLUMNS = ", ".join(SCHEMA.names)
CONDITIONS = (
    "i = {a}",
    "i IN ({a}, {b})",
    "v > {a}",
    "v IS NULL",
    "NOT v < {a}",
    "isnan(v)",
    "s = 's{a}'",
    "s LIKE 's%' AND i < {a}",
    "d >= DATE '2020-01-01' + {a}",
    "p = {p} AND i % 2 = 0",
    "i = {a} OR v = {b}",
    "coalesce(s, 'x') <> 's{a}' AND p <> {p}",
    "i BETWEEN {a} AND {b} AND p = {p}",
    "i > (SELECT avg(i) FROM {t})",
    "s IN (SELECT s FROM other WHERE i < {a})",
    "EXISTS (SELECT * FROM other AS o WHERE o.i = {q}.i AND o.v > {q}.v)",
)
VALUES = {
    "v": ("v + 1", "NULL", "i / 2.0", "CASE WHEN s IS NULL THEN 0 ELSE v END"),
    "s": ("upper(s)", "'s{a}'", "s || i", "NULL"),
    "d": ("d + 1", "NULL", "'2021-02-03'"),
    "i": ("i + {a}", "i"),
    "p": ("{p}", "p + 1"),
}


def _random_rows(rng: random.Random, count: int, cells: bool) -> pa.Table:
    """Return random rows; of ``cells`` each (p, i) occurs once."""
    keys = [(rng.randrange(3), rng.randrange(12)) for _ in range(count)]
    keys = sorted(set(keys)) if cells else keys

    def some(values: list[Any]) -> list[Any]:
        return [rng.choice([None, *values]) for _ in keys]

    columns = [
        [p for p, _ in keys],
        [i for _, i in keys],
        some([float("nan"), *map(float, range(12))]),
        some([f"s{n}" for n in range(12)]),
        some(list(range(18262, 18274))),
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _statement(rng: random.Random, columns: list[str], key: str, name: str) -> tuple[str, str]:
    """Return a random statement for a dataset, and the same one for the table ``t`` of a database."""
    numbers = {"a": (a := rng.randrange(12)), "b": a + rng.randrange(4), "p": rng.randrange(3)}
    kind, condition = rng.choice(["DELETE", "UPDATE", "UPDATE", "MERGE"]), rng.choice(CONDITIONS)
    chosen = rng.sample(columns, rng.randint(1, 2))
    change = ", ".join(f"{column} = {rng.choice(VALUES[column])}" for column in chosen)
    also, then = (
        rng.choice(["", " AND s.v > 3", " AND {q}.v IS NULL", " AND s.i < {q}.p + 9"]),
        rng.choice(["DELETE", "U"]),
    )
    taken = ", ".join(f"{c} = s.{c}" for c in ("v", "s"))
    last = rng.choice(["", also and " WHEN MATCHED THEN UPDATE SET s = {q}.s || s.i"])
    insert = rng.choice(["", " WHEN NOT MATCHED THEN INSERT (p, i, v, s) VALUES (s.p, s.i, s.v, 'new')"])
    listed = ", ".join(c if c in key.split(", ") else f"max({c}) AS {c}" for c in SCHEMA.names)
    texts = []
    for table, qualifier in ((name, name.rpartition(".")[2]), ("t", "t")):
        texts.append(
            {
                "DELETE": f"DELETE FROM {table} WHERE {condition}",
                "UPDATE": f"UPDATE {table} SET {change} WHERE {condition}",
                "MERGE": f"MERGE INTO {table} USING (SELECT {listed} FROM other GROUP BY {key}) AS s "
                f"ON ({key}) WHEN MATCHED{also} THEN {'DELETE' if then == 'DELETE' else f'UPDATE SET {taken}'}"
                f"{last}{insert}",
            }[kind].format(t=table, q=qualifier, **numbers)
        )
    on = " AND ".join(f"t.{k} = s.{k}" for k in key.split(", "))
    return texts[0], texts[1].replace(f"ON ({key}) WHEN", f"ON {on} WHEN")


def _sorted(rows: Any) -> list[str]:
    return sorted(map(repr, rows))


def _files(con: kartosql.Connection, name: str) -> set[str]:
    return set(con.sql(f"SHOW FILES FROM {name}").arrow()["key"].to_pylist())


def _check(con: kartosql.Connection, model: Any, ours: str, theirs: str, name: str) -> None:
    """Run a statement here and there, and compare the rows; what was touched is what was told."""
    before = _files(con, name)
    did = con.sql(ours)
    model.execute(theirs)
    assert _sorted(con.sql(f"SELECT {COLUMNS} FROM {name}").rows()) == _sorted(model.execute("FROM t").fetchall()), ours
    (row,) = did.arrow().to_pylist() or [{"removed": 0, "files": 0}]
    after = _files(con, name)
    assert (len(before - after), len(after - before)) == (row["removed"], row["files"]), ours
    if "changed" in row:
        assert bool(row["changed"] or row["inserted"]) == (before != after), ours


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_of_a_dataset_are_those_of_the_same_changes_in_a_database(tmp_path, seed, monkeypatch):
    if seed % 3 == 0:  # rows to change are counted before they are read
        monkeypatch.setattr("kartosql.statements.row_changes.FILES_AT_ONCE", 0)
    rng, model = random.Random(seed), duckdb.connect()
    keys, indices = [(["p"], ["i", "s"]), (["p", "i"], ["s"]), ([], ["i"]), (["p"], [])][seed % 4]
    with kartosql.connect(tmp_path) as con:
        for name, count in (("x", 4), ("other", 1)):
            model.execute(f"CREATE TABLE {name.replace('x', 't')} ({TYPES})")
            con.create_dataset(name, SCHEMA.empty_table(), partition_on=keys, index_columns=indices)
            for _ in range(count):
                given = _random_rows(rng, rng.randint(1, 30), cells=False)
                con.append_to_dataset(name, given)
                model.register("given", given)
                model.execute(f"INSERT INTO {name.replace('x', 't')} FROM given")
        for _ in range(8):
            ours, theirs = _statement(rng, sorted(VALUES), rng.choice(["i", "p, i", "s"]), "x")
            _check(con, model, ours, theirs, "x")
        assert not [r for r in con.sql("CHECK x FULL").arrow().to_pylist() if r["severity"] != "info"]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_of_a_cube_are_those_of_the_same_changes_in_a_database_and_none_comes_to_light(tmp_path, seed):
    rng, model = random.Random(seed), duckdb.connect()
    cube = kartosql.Cube("c", ["i"], ["p"], suppress_index_on=["i"] if seed % 2 else ())
    with kartosql.connect(tmp_path) as con:
        con.build_cube(cube, _random_rows(rng, 20, cells=True))
        for _ in range(4):
            con.append_to_cube(cube, _random_rows(rng, rng.randint(1, 12), cells=True))
        other = _random_rows(rng, 15, cells=True)
        con.create_dataset("other", other)
        model.register("given", con.sql(f"SELECT {COLUMNS} FROM c").arrow())
        model.register("others", other)
        model.execute("CREATE TABLE t AS FROM given; CREATE TABLE other AS FROM others")
        for at in range(8):
            ours, theirs = _statement(rng, ["v", "s", "d"], "p, i", "c.seed")
            _check(con, model, ours, theirs, "c.seed")
            if at == 4:
                new = _random_rows(rng, 6, cells=True)
                con.append_to_cube(cube, new)
                model.register("new", new)
                model.execute("DELETE FROM t WHERE (p, i) IN (SELECT (p, i) FROM new); INSERT INTO t FROM new")
        assert not [r for r in con.sql("CHECK c FULL").arrow().to_pylist() if r["severity"] != "info"]


def _cells(rng: random.Random, count: int) -> list[tuple[int, int, int]]:
    return sorted({(rng.randrange(2), rng.randrange(4), rng.randrange(4)) for _ in range(count)})


def _some_of_a_cube(rng: random.Random, cells: list[tuple[int, int, int]]) -> dict[str, pa.Table]:
    """Return rows of the seed, of another dataset with some of the cells, and of one with rows that cells share."""
    names = ["p", "i", "j"]
    keys = [pa.array(column, pa.int64()) for column in zip(*cells, strict=True)]
    v, w = ([rng.choice([None, *range(8)]) for _ in cells] for _ in "vw")
    shared = sorted({i for _, i, _ in cells if i})
    return {
        "seed": pa.table([*keys, pa.array(v, pa.int64())], names=[*names, "v"]),
        "w": pa.table([*keys, pa.array(w, pa.int64())], names=[*names, "w"]).filter(
            pa.array([rng.random() < 0.6 for _ in cells[1:]] + [True])
        ),
        "g": pa.table({"i": pa.array(shared, pa.int64()), "g": pa.array([10 + i for i in shared], pa.int64())}),
    }


_OF_CUBES = (
    "i = {a}",
    "v > {a} AND w IS NULL",
    "g = 1{a} AND j <> {b}",
    "w IN ({a}, {b}) OR v = {b}",
    "p = 0 AND i < {b}",
    "v > (SELECT avg(v) FROM {t})",
    "i IN (SELECT i FROM other WHERE v > {a})",
)


def _of_a_cube(rng: random.Random) -> str:
    condition, kind = rng.choice(_OF_CUBES), rng.choice(["DELETE", "UPDATE", "UPDATE", "MERGE"])
    also, other = rng.choice([" AND s.v > 3", " AND {t}.w IS NULL"]), rng.choice(["v = s.v, w = 7", "w = s.v"])
    values = {"v": "coalesce(w, 0) + 1", "w": rng.choice(["v + g", "NULL", "{a}"]), "g": rng.choice(["g + 1", "{b}"])}
    chosen = rng.sample(sorted(values), rng.randint(1, 2))
    first = rng.choice(["DELETE", f"UPDATE SET {other}"])
    return {
        "DELETE": f"DELETE FROM {{t}} WHERE {condition}",
        "UPDATE": f"UPDATE {{t}} SET {', '.join(f'{c} = {values[c]}' for c in chosen)} WHERE {condition}",
        "MERGE": f"MERGE INTO {{t}} USING other AS s ON {{on}} WHEN MATCHED{also} THEN {first} "
        "WHEN MATCHED AND s.v < 6 THEN UPDATE SET w = s.v"
        " WHEN NOT MATCHED AND s.j > 0 THEN INSERT (p, i, j, w) VALUES (s.p, s.i, s.j, s.v)",
    }[kind]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_cells_of_a_whole_cube_change_in_all_datasets_that_hold_them_or_not_at_all(tmp_path, seed):
    rng, model, refused = random.Random(seed), duckdb.connect(), 0
    cube = kartosql.Cube("c", ["i", "j"], ["p"], suppress_index_on=["i"] if seed % 2 else ())
    with kartosql.connect(tmp_path) as con:
        con.build_cube(cube, _some_of_a_cube(rng, _cells(rng, 25)), partition_on={"g": []})
        for _ in range(2):
            more = _some_of_a_cube(rng, _cells(rng, 8))
            con.append_to_cube(cube, {"seed": more["seed"], "w": more["w"]})
        missing = con.sql(
            "SELECT 0 AS p, 9 AS i, 9 AS j, 1 AS v UNION SELECT p, i, j, NULL FROM c.w ANTI JOIN c.seed USING (p, i, j)"
        )
        con.append_to_cube(cube, {"seed": missing.arrow()})
        con.create_dataset("other", _some_of_a_cube(rng, _cells(rng, 8))["seed"])
        model.register("given", con.sql("SELECT p, i, j, v, w, g FROM c").arrow())
        model.register("others", con.sql("SELECT p, i, j, v FROM other").arrow())
        model.execute("CREATE TABLE t AS FROM given; CREATE TABLE other AS FROM others")
        for _ in range(8):
            numbers = {"a": rng.randrange(4), "b": rng.randrange(4)}
            text = _of_a_cube(rng)
            ours = text.format(t="c", on="(p, i, j)", **numbers)
            before = {name: _files(con, f"c.{name}") for name in ("seed", "w", "g")}
            model.execute("CREATE OR REPLACE TABLE last AS FROM t")
            on = "t.p = s.p AND t.i = s.i AND t.j = s.j"
            model.execute(text.format(t="t", on=on, **numbers))
            model.execute(
                "UPDATE t SET g = (SELECT any_value(l.g) FROM last AS l SEMI JOIN t AS o USING (p, i, j) "
                "WHERE l.i = t.i) WHERE (p, i, j) NOT IN (SELECT (p, i, j) FROM last)"
            )
            refusal = None
            try:
                con.sql(ours)
            except kartosql.KartosqlError as e:
                refusal = e
            if refusal is not None:
                assert refusal.code == "not-supported", ours
                assert before == {name: _files(con, f"c.{name}") for name in before}
                model.execute("CREATE OR REPLACE TABLE t AS FROM last")
                refused += 1
            rows = con.sql("SELECT p, i, j, v, w, g FROM c").rows()
            assert _sorted(rows) == _sorted(model.execute("FROM t").fetchall()), ours
            assert con.sql("SELECT 1 FROM c.w ANTI JOIN c.seed USING (p, i, j)").rows() == [], ours
        assert refused < 8
        assert not [r for r in con.sql("CHECK c FULL").arrow().to_pylist() if r["severity"] != "info"]


# -- what is refused, and what is told ---------------------------------------------------------


@pytest.fixture
def con(tmp_path):
    """A store with the dataset ``d`` by p, and the cube ``c`` with a seed and the dataset ``w``."""
    with kartosql.connect(tmp_path) as con:
        rows = pa.table({"p": [0, 0, 1], "i": [1, 2, 3], "s": ["a", None, "c"]})
        con.create_dataset("d", rows, partition_on=["p"], index_columns=["i"])
        seed = pa.table({"x": [0, 1], "p": [0, 1], "v": [10, 11]})
        con.build_cube(kartosql.Cube("c", "x", "p"), {"seed": seed, "w": pa.table({"x": [0], "p": [0], "w": [5]})})
        yield con


MERGE = "MERGE INTO d USING (SELECT 1 AS i, 'x' AS s) AS n ON (i)"


@pytest.mark.parametrize(
    ("sql", "code", "place"),
    [
        ("UPDATE d SET s = nope WHERE i = 1", "unknown-column", None),
        ("UPDATE d SET nope = 1 WHERE i = 1", "unknown-column", "nope"),
        ("UPDATE d SET s=nope, i=1 WHERE(i = 1)", "unknown-column", None),
        ("UPDATE d SET s = 'x' WHERE nope = 1", "unknown-column", None),
        ("UPDATE d SET s = 'x', S = 'y' WHERE i = 1", "syntax-error", "S"),
        ("UPDATE d SET s = 'x'", "syntax-error", None),
        ("UPDATE d SET i = s WHERE i = 1", "invalid-value", None),
        ("UPDATE d SET s = $q WHERE i = 1", "invalid-parameters", None),
        ("UPDATE d SET s = 'x' WHERE random() < i", "invalid-condition", "d"),
        ("DELETE FROM d WHERE i IN (SELECT i FROM d LIMIT 1)", "invalid-condition", "d"),
        ("UPDATE d SET i = i + max(i) WHERE i = 1", "invalid-query", "d"),
        ("UPDATE d SET s = 'x' WHERE i = count(*) FILTER (i > 0)", "invalid-query", "d"),
        ("DELETE FROM d WHERE sum(i) > 1", "invalid-query", "d"),
        ("UPDATE c SET v = max(v) WHERE v = 11", "invalid-query", "c"),
        (f"{MERGE} WHEN MATCHED THEN UPDATE SET s = max(n.s)", "invalid-query", "d"),
        ("DELETE FROM d WHERE COLUMNS(*) = 1", "not-supported", "d"),
        ("DELETE FROM d WHERE d::VARCHAR LIKE '%1%'", "not-supported", "d"),
        ("DELETE FROM d WHERE hash(d.*) > 0", "not-supported", "d"),
        ("UPDATE c SET x = 1 WHERE v = 11", "not-supported", "c"),
        ("UPDATE c SET nope = 1 WHERE v = 11", "unknown-column", "nope"),
        ("UPDATE c SET v = 1 WHERE nope = 11", "unknown-column", None),
        ("DELETE FROM c WHERE random() < v", "invalid-condition", "c"),
        ("MERGE INTO c USING d ON (p) WHEN NOT MATCHED THEN INSERT (x) VALUES (d.i)", "not-supported", "c"),
        ("MERGE INTO c USING d ON (p) WHEN MATCHED THEN DELETE", "merge-conflict", "c"),
        ("UPDATE c.seed SET x = 1 WHERE v = 11", "not-supported", "c.seed"),
        ("UPDATE c.seed SET v = 1 WHERE w = 11", "unknown-column", None),
        (f"{MERGE} WHEN MATCHED THEN UPDATE SET s = n.nope", "unknown-column", None),
        (f"{MERGE} WHEN NOT MATCHED THEN INSERT (i) VALUES (d.i)", "unknown-column", None),
        (f"{MERGE} WHEN NOT MATCHED THEN INSERT (i, s) VALUES (1)", "syntax-error", None),
        (MERGE.replace("1 AS i", "9 AS i") + " WHEN NOT MATCHED THEN INSERT (i) VALUES (n.i)", "null-in-key", None),
        ("DELETE FROM d WHERE age(TIMESTAMP '2020-01-01') > INTERVAL 1 DAY AND i = 1", "invalid-condition", "d"),
        (f"{MERGE}", "syntax-error", None),
        (MERGE.replace("ON (i)", "ON (p)") + " WHEN MATCHED THEN DELETE", "unknown-column", "p"),
        (MERGE.replace("ON (i)", "ON d.i = n.i AND d.p > 0") + " WHEN MATCHED THEN DELETE", "syntax-error", ">"),
        (MERGE.replace("ON (i)", "ON d.i = p") + " WHEN MATCHED THEN DELETE", "syntax-error", "d.i = p"),
        (MERGE.replace("ON (i)", "ON (i, d.p = d.i)") + " WHEN MATCHED THEN DELETE", "syntax-error", "d.p = d.i"),
        (f"{MERGE} WHEN NOT MATCHED THEN INSERT *", "unknown-column", "d"),
        (f"{MERGE} WHEN MATCHED THEN UPDATE BY NAME", "unknown-column", "d"),
        ("MERGE INTO c USING c.w ON (x, p) WHEN MATCHED THEN UPDATE SET *", "unknown-column", "c"),
        (MERGE.replace("1 AS i", "unnest([1, 1]) AS i") + " WHEN MATCHED THEN DELETE", "merge-conflict", "d"),
        ("MERGE INTO d USING nope ON (i) WHEN MATCHED THEN DELETE", "unknown-table", None),
        ("MERGE INTO c.seed USING c.w ON (x) WHEN NOT MATCHED THEN INSERT (x) VALUES (w.x)", "not-supported", "c.seed"),
    ],
)
def test_what_cannot_be_changed_is_refused_and_everything_stays(con, sql, code, place):
    before = {name: (con.sql(f'FROM "{name}"').rows(), _files(con, f'"{name}"')) for name in con.datasets()}
    with pytest.raises(kartosql.KartosqlError) as e:
        con.sql(sql)
    assert e.value.code == code
    if place is not None:
        assert e.value.sql == sql
        assert sql[slice(*e.value.span)] == place
    assert {name: (con.sql(f'FROM "{name}"').rows(), _files(con, f'"{name}"')) for name in con.datasets()} == before


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("UPDATE d SET i = CAST(s AS INT) WHERE i = 1", "CAST(s AS INT)"),
        ("DELETE FROM d WHERE s::INT > 0", "::INT"),
        ("UPDATE d SET i = s WHERE i = 1", None),  # the cast is ours
    ],
)
def test_a_value_that_does_not_fit_is_shown_in_the_text_of_the_user(con, sql, place):
    with pytest.raises(kartosql.KartosqlError) as e:
        con.sql(sql)
    assert (e.value.code, e.value.sql) == ("invalid-value", sql if place else None)
    assert (sql[slice(*e.value.span)] if e.value.span else None) == place
    assert "kartosql_" not in str(e.value)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE d SET s = nope WHERE i = 1",
        "DELETE FROM d WHERE nope = 1",
        "VERIFY ERASED d WHERE nope = 1",
        "MERGE INTO d USING (SELECT 1 AS i) AS n ON (i) WHEN MATCHED THEN UPDATE SET s = nope",
    ],
)
def test_a_name_that_is_unknown_is_shown_in_the_text_of_the_user(con, sql):
    with pytest.raises(kartosql.KartosqlError) as e:
        con.sql(sql)
    assert (e.value.code, e.value.sql, sql[slice(*e.value.span)]) == ("unknown-column", sql, "nope")
    assert "kartosql_" not in f"{e.value} {e.value.to_dict()}"


@pytest.mark.parametrize(
    "on", ["(i)", "d.i = n.i", "(n.I = d.i)", "D.i = n.i AND d.p = n.p", "(p, d.i = n.i)", "(i, p)"]
)
def test_keys_of_a_merge_may_be_compared_and_a_star_stands_for_all_columns_by_their_names(con, on):
    source = pa.table({"S": ["x", "y"], "more": [1, 2], "i": [1, 9], "p": [0, 5]})
    con.register("n", source)
    told = con.sql(
        f"MERGE INTO d USING n ON {on} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).arrow()
    assert told.select(["changed", "inserted"]).to_pylist() == [{"changed": 1, "inserted": 1}]
    assert con.sql("SELECT p, i, s FROM d ORDER BY i").rows() == [(0, 1, "x"), (0, 2, None), (1, 3, "c"), (5, 9, "y")]


def test_tables_of_a_merge_may_have_other_names_there(con):
    con.register(
        "n",
        pa.table(
            {"k": [0, 3], "p": [0, 3], "v": [20, 23], "w": [50, None]},
            pa.schema([("k", pa.int64()), ("p", pa.int64()), ("v", pa.int64()), ("w", pa.int64())]),
        ),
    )
    con.sql(
        "MERGE INTO c AS a USING n AS b ON a.x = b.k AND b.p = a.p WHEN MATCHED AND a.v < b.v THEN UPDATE BY NAME "
        "WHEN NOT MATCHED THEN INSERT BY NAME"
    )
    assert con.sql("SELECT x, p, v, w FROM c ORDER BY x").rows() == [(0, 0, 20, 50), (1, 1, 11, None), (3, 3, 23, None)]
    con.sql("MERGE INTO c.seed a USING n b ON (a.x = b.k AND a.p = b.p) WHEN MATCHED AND b.v = 23 THEN DELETE")
    assert con.sql("SELECT x FROM c.seed ORDER BY x").rows() == [(0,), (1,)]


def test_rows_of_a_dataset_with_several_tables_do_not_change_one_by_one(con):
    con.create_dataset("m", {"a": pa.table({"x": [1]}), "b": pa.table({"y": [2]})})
    with pytest.raises(kartosql.KartosqlError) as e:
        con.sql("DELETE FROM m.a WHERE x = 1")
    assert e.value.code == "not-supported"


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM odd WHERE kartosql_file = 9",
        "UPDATE odd SET a = 0 WHERE a = 1",
        "MERGE INTO t USING (SELECT 1 AS k, 2 AS KARTOSQL_ROW) s ON t.k = s.k WHEN MATCHED THEN DELETE",
    ],
)
def test_a_column_with_the_name_of_one_that_rows_get_here_is_refused(con, sql):
    con.create_dataset("odd", {"a": [1], "kartosql_file": [9]})
    con.create_dataset("t", {"k": [1]}, overwrite=True)
    with pytest.raises(kartosql.KartosqlError) as caught:
        con.sql(sql)
    assert caught.value.code == "not-supported"
    assert "kartosql_" in caught.value.message
    assert con.sql("SELECT count(*) FROM odd").rows() == [(1,)]


def test_values_may_hold_windows_and_aggregates_of_queries(con):
    con.sql("UPDATE d SET i = (SELECT max(i) FROM d) + 1 WHERE i < (SELECT max(i) FROM d)")
    assert len({i for (i,) in con.sql("SELECT i FROM d").rows()}) == 2
    con.sql("UPDATE d SET i = sum(i) OVER () WHERE true")
    assert len({i for (i,) in con.sql("SELECT i FROM d").rows()}) == 1


def test_a_change_of_no_row_commits_nothing(con):
    did = con.sql("UPDATE d SET s = 'x' WHERE i > 100")
    assert did.written == 0
    assert did.arrow().to_pylist() == [
        {"dataset": "d", "files": 0, "rows": 0, "bytes": 0, "removed": 0, "sequence": None, "id": None}
        | {"changed": 0, "inserted": 0}
    ]


@pytest.mark.parametrize("text", ["unknown", "now", "today()"])
def test_a_constant_that_holds_the_name_of_a_clock_does_not_ask_it(con, text):
    con.sql("UPDATE d SET s = ? WHERE i = 2", [text])
    con.sql(f"DELETE FROM d WHERE s = '{text}'")
    assert sorted(con.sql("SELECT i FROM d").rows()) == [(1,), (3,)]


def test_is_unknown_is_no_clock(con):
    con.sql("DELETE FROM d WHERE (s = 'a') IS UNKNOWN")
    assert sorted(con.sql("SELECT i FROM d").rows()) == [(1,), (3,)]


def test_the_clock_stands_still_within_a_change(con, monkeypatch):
    old = [dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc), dt.datetime(9020, 1, 1, tzinfo=dt.timezone.utc)] * 2
    rows = pa.table({"n": range(4), "t": pa.array(old, pa.timestamp("us", "UTC")), "p": [0, 0, 1, 1]})
    con.create_dataset("t", rows, partition_on=["p"])
    con.sql("DELETE FROM t WHERE t < NOW() - INTERVAL 90 DAY AND n < extract(year FROM today())")
    assert sorted(con.sql("SELECT n FROM t").rows()) == [(1,), (3,)]
    monkeypatch.setattr(row_changes, "FILES_AT_ONCE", 0)  # each file by a query of its own
    more = "OR localtime < '00:00:00' OR n < 2 AND current_time IS NULL"
    con.sql(f"UPDATE t SET t = current_timestamp WHERE t > get_current_timestamp() OR p = year(current_date) {more}")
    assert con.sql("SELECT count(DISTINCT t), count(*) FILTER (t <= now()) FROM t").rows() == [(1, 2)]
    con.sql("MERGE INTO t USING (SELECT 1 AS n) AS s ON (n) WHEN MATCHED AND t.t < now() THEN DELETE")
    assert con.sql("SELECT n FROM t").rows() == [(3,)]


@pytest.mark.parametrize("name", ["st.x", "q.st.x", "st['x']"])
def test_fields_of_structs_are_named_as_in_a_query(con, name):
    con.create_dataset("q", pa.table({"p": [0, 0, 1], "st": [{"x": 1}, {"x": 2}, {"x": 1}]}), partition_on=["p"])
    con.sql(f"UPDATE q SET st = {{'x': 3}} WHERE {name} = 2")
    con.sql(f"DELETE FROM q WHERE {name} = 1 AND p = 0")
    assert sorted(con.sql("SELECT p, st.x FROM q").rows()) == [(0, 3), (1, 1)]


@pytest.mark.parametrize("name", ["AS x", "x"])
def test_the_table_of_a_change_may_have_another_name_there(con, name):
    con.sql(f"UPDATE d {name} SET s = x.s || x.i WHERE x.i = 3")
    con.sql(f"DELETE FROM d {name} WHERE x.i = 1 AND EXISTS (SELECT 1 FROM d WHERE d.i = x.i + 1)")
    con.sql(f"DELETE FROM d {name} WHERE x.p = 5")
    assert sorted(con.sql("SELECT i, s FROM d").rows()) == [(2, None), (3, "c3")]
    con.sql(f"DELETE FROM d {name} WHERE x.p = 0")
    assert con.sql("SELECT i FROM d").rows() == [(3,)]
    con.sql(f"UPDATE c {name} SET w = x.v WHERE x.v = 10")
    con.sql(f"DELETE FROM c {name} DATASETS (w) WHERE x.v = 11")
    con.sql(f"DELETE FROM c {name} WHERE x.p = 1")
    assert con.sql("SELECT v, w FROM c").rows() == [(10, 10)]
    with pytest.raises(KartosqlError, match=r"no column 'd\.i'"):
        con.sql(f"DELETE FROM d {name} WHERE d.i = 3 AND x.s = 'c3'")


@pytest.mark.parametrize(
    "text", ["UPDATE d SET s = n.s FROM n WHERE d.i = n.i", "DELETE FROM d USING n WHERE d.i = n.i"]
)
def test_changes_by_other_tables_are_led_to_merge(con, text):
    with pytest.raises(KartosqlError) as caught:
        con.sql(text)
    assert "MERGE INTO" in (caught.value.hint or "")


def test_parameters_stand_for_the_same_values_wherever_they_are(con):
    con.sql("UPDATE d SET s = ? WHERE i = ? AND s = ?", ["new", 1, "a"])
    assert con.sql("SELECT i FROM d WHERE s = 'new'").rows() == [(1,)]
    sql = "MERGE INTO d USING (SELECT ? AS i, ? AS s) AS n ON (i) WHEN MATCHED AND n.s = ? THEN UPDATE SET s = ? || n.s"
    assert con.sql(sql, [3, "y", "y", "x"]).written == 1
    con.sql("DELETE FROM d WHERE i = $a OR s = $b OR i = $a", {"a": 2, "b": "new"})
    assert con.sql("SELECT i, s FROM d").rows() == [(3, "xy")]


def test_columns_whose_names_differ_in_case_keep_apart(con):
    con.create_dataset("k", pa.table({"v": [1, 2], "V": [3, 4]}))
    con.sql('UPDATE k SET "V" = "V" + v WHERE v = 2')
    assert con.sql('SELECT v, "V" FROM k').rows() == [(1, 3), (2, 6)]


def test_a_certificate_names_the_files_that_still_hold_a_row(con, tmp_path):
    live, index = con.sql("VERIFY ERASED d WHERE i = 2").arrow().to_pylist()
    assert (live["state"], live["rows"], live["versions"]) == ("live", 1, [1])
    assert (index["state"], index["rows"], index["versions"]) == ("live", 1, [1])
    assert index["file"].startswith("d/indices/i/")
    con.sql("DELETE FROM d WHERE i = 2")
    before = [{**row, "state": "kept version"} for row in (live, index)]
    assert con.sql("VERIFY ERASED d WHERE i = 2").arrow().to_pylist() == before
    assert con.sql("VERIFY ERASED d WHERE i = 2 AND p = 0").arrow().to_pylist() == before[:1]
    old = "d/indices/i/old.by-dataset-index.parquet"
    (tmp_path / old).write_bytes((tmp_path / index["file"]).read_bytes())
    found = con.sql("VERIFY ERASED d WHERE i = 2").arrow().to_pylist()
    assert {"file": old, "state": "unreferenced", "rows": 1, "versions": []} in found
    (tmp_path / old).unlink()
    left = "d/table/p=0/left.parquet"
    (tmp_path / left).write_bytes((tmp_path / live["file"]).read_bytes())
    found = con.sql("VERIFY ERASED d WHERE d.i = 2 OR i = 3").arrow().to_pylist()
    assert {"file": left, "state": "unreferenced", "rows": 1, "versions": []} in found
    assert {row["state"] for row in found} == {"live", "kept version", "unreferenced"}
    assert con.sql("VERIFY ERASED d WHERE i = 100").rows() == []
    assert con.sql("VERIFY ERASED d WHERE d.i = ? OR i = ?", [2, 3]).arrow().to_pylist() == found
    assert con.sql("VERIFY ERASED d WHERE i = :person", {"person": 100}).rows() == []
    with pytest.raises(kartosql.KartosqlError, match="parameter"):
        con.sql("VERIFY ERASED d WHERE i = ?", [1, 2])


def _certified(con: kartosql.Connection, where: str) -> list[tuple[str, int | None, list[int]]]:
    """Return what a certificate says of part files of skipping indexes: state, rows and versions."""
    found = con.sql(f"VERIFY ERASED d WHERE {where}").arrow().to_pylist()
    return [(r["state"], r["rows"], r["versions"]) for r in found if r["file"].startswith(".kartosql/skipping/d/")]


def test_a_certificate_names_skipping_indexes_that_hold_a_value_of_live_files_kept_ones_and_those_that_are_gone(
    con, tmp_path, monkeypatch
):
    con.sql("CREATE SKIPPING INDEX ON d (MINMAX(i), VALUELIST(i), VALUELIST(s), BLOOMFILTER(i, s), NGRAM(s))")
    assert _certified(con, "i = 2") == [("live", 1, [1, 2])]  # two indexes of one file hold one value
    assert _certified(con, "i >= 1") == [("live", 3, [1, 2])]
    assert _certified(con, "s IN ('a', 'c') OR s IS NULL") == [("live", 2, [1, 2])]
    assert _certified(con, "i = 2 AND p = 0") == _certified(con, "p = 0") == _certified(con, "i = 100") == []

    con.sql("DELETE FROM d WHERE i = 2")
    assert (_certified(con, "i = 2"), _certified(con, "i = 1")) == ([], [("live", 1, [3])])
    with monkeypatch.context() as patch:  # as if the process ended behind the commit
        patch.setattr("kartosql.write.operation.Operation._keep_up", lambda *_: None)
        con.sql("DELETE FROM d WHERE i = 1")
    assert _certified(con, "i = 1") == [("kept version", 1, [3])]
    assert [state for state, *_ in _certified(con, "i = 3")] == ["live"]
    found = con.sql("VERIFY ERASED d WHERE i = 1 AND p = 0").arrow().to_pylist()
    (old,) = (row["file"] for row in found if row["versions"] == [3])
    (tmp_path / old).unlink()
    assert _certified(con, "i = 1") == [("unreferenced", 1, [])]
    con.sql("REFRESH SKIPPING INDEX ON d")
    assert _certified(con, "i = 1") == []
    assert _certified(con, "i = 3") == [("live", 1, [1, 2, 3, 4])]

    (left,) = (tmp_path / ".kartosql/skipping/d").rglob("part-*")
    data = left.read_bytes()
    con.sql("DROP SKIPPING INDEX ON d")
    assert _certified(con, "i = 3") == []
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_bytes(data)  # as if it could not be removed
    assert [state for state, *_ in _certified(con, "i = 3")] == ["live"]
    con.sql("CREATE SKIPPING INDEX ON d (BLOOMFILTER(i))")
    con.sql("DROP SKIPPING INDEX ON d")
    assert _certified(con, "i = 3") == []


def test_a_certificate_of_a_cube_is_about_all_datasets_with_the_columns(tmp_path):
    with kartosql.connect(tmp_path) as con:
        made = {
            "seed": pa.table({"x": [1, 2], "y": [1, 1], "p": [0, 1], "s": ["a", "b"]}),
            "e": pa.table({"p": [0], "x": [1], "w": [5]}),
            "f": pa.table({"p": [0, 1], "y": [1, 1], "u": [7, 8]}),
        }
        con.build_cube(kartosql.Cube("c", ["x", "y"], "p"), made)
        con.sql("DELETE FROM c WHERE x = 1")
        for condition, names in [
            ("x = 1", ["seed", "e"]),
            ("c.s = 'a'", ["seed"]),
            ("W = 5 AND C.x < 2", ["e"]),
            ("p = 0 AND u > 1", ["f"]),
            ("u = 7", ["f"]),
            ("x = 3", []),
        ]:
            found = con.sql(f"VERIFY ERASED C WHERE {condition}").arrow()
            plain = re.sub("(?i)c[.]", "", condition)
            each = [con.sql(f"VERIFY ERASED c.{name} WHERE {plain}").arrow() for name in names]
            assert found.to_pylist() == [row for one in each for row in one.to_pylist()]
            assert bool(names) == bool(found.num_rows)
        with pytest.raises(
            kartosql.KartosqlError, match="No dataset of the cube holds all columns of the condition: s, w"
        ):
            con.sql("VERIFY ERASED c WHERE s = 'a' AND w = 5")
        with pytest.raises(kartosql.KartosqlError, match="There is no column 'nope'"):
            con.sql("VERIFY ERASED c WHERE nope = 1")


def test_a_certificate_of_a_cube_leaves_out_no_dataset_that_once_had_the_columns(tmp_path):
    keys = {"x": [1], "p": [0]}
    with kartosql.connect(tmp_path) as con:
        con.build_cube(
            kartosql.Cube("c", "x", "p"), {"seed": pa.table(keys), "o": pa.table({**keys, "person": ["anna"]})}
        )
        con.extend_cube("c", {"o": pa.table({**keys, "note": ["n"]})}, overwrite=True)
        con.extend_cube("c", {"q": pa.table({**keys, "person": ["bob"]})})
        for sql in ("VERIFY ERASED c WHERE person = 'anna'", "VERIFY ERASED c WHERE PERSON = 'anna' AND x = 1"):
            with pytest.raises(
                kartosql.KartosqlError, match="'o' has not all columns of the condition now, but a file"
            ):
                con.sql(sql)
        assert con.sql("VERIFY ERASED c WHERE note = 'other'").rows() == []
        assert [row[1] for row in con.sql("VERIFY ERASED c WHERE p = 0 AND note = 'n'").rows()] == ["live"]


def test_a_certificate_goes_by_whole_values_of_skipping_indexes_alone(con, tmp_path):
    con.sql("CREATE SKIPPING INDEX ON d (BLOOMFILTER(i, s), NGRAM(s), REGEXVALUELIST(s) WITH (pattern = '(.*)'))")
    assert _certified(con, "s = 'a'") == _certified(con, "i = 1") == []
    con.sql("CREATE SKIPPING INDEX ON d (MINMAX(i))")
    assert (_certified(con, "i = 1"), _certified(con, "s = 'a'")) == ([("live", 1, [1, 2])], [])
    con.create_dataset("d", pa.table({"s": ["seventh", "eighth-and-more", "eighth-a"]}), overwrite=True)
    con.sql("CREATE SKIPPING INDEX ON d (PREFIX(s))")
    assert [r[:2] for r in _certified(con, "s LIKE '%th%'")] == [("live", 1)]  # others are cut
    for path in (tmp_path / ".kartosql/skipping/d").rglob("*.parquet"):
        path.write_bytes(b"PAR1 torn")
    assert {r[:2] for r in _certified(con, "s = 'x'")} == {("unreadable", None)}


@pytest.mark.parametrize("kind", ["MINMAX", "VALUELIST", "PREFIX"])
@pytest.mark.parametrize(
    "cells", [None, [1], ["a"], [b"a"], [{"value": b"a"}], [["a"]], [[{"a": 1}]], [{"min": "a", "max": ["a"]}]], ids=str
)
def test_a_certificate_of_odd_skipping_indexes_does_not_fail(con, tmp_path, kind, cells):
    con.create_dataset("d", pa.table({"s": ["a"]}), overwrite=True)
    con.sql(f"CREATE SKIPPING INDEX ON d ({kind}(s))")
    for path in (tmp_path / ".kartosql/skipping/d").rglob("*.parquet"):
        rows, about = pq.read_table(path), pq.read_metadata(path).metadata
        if cells is None:  # as a Spark with another calendar writes it
            del about[b"org.apache.spark.version"]
        else:
            (at,) = [at for at, name in enumerate(rows.column_names) if name != "obj_name"]
            rows = rows.set_column(at, rows.column_names[at], pa.array(cells * len(rows)))
        pq.write_table(rows.replace_schema_metadata(about), path)
    expected = ("live", 1) if cells == [["a"]] and kind != "MINMAX" else ("unreadable", None)
    assert [r[:2] for r in _certified(con, "s = 'a'")] == [expected]


def test_a_certificate_names_bounds_of_every_type_only_where_they_are_the_value(con):
    moment = pa.scalar(1_700_000_000_000_001, pa.timestamp("us"))
    numbers = pa.array([7, 8, 9], pa.uint64())
    rows = pa.table({"u": numbers, "t": pa.array([moment] * 3), "f": [0.5, float("nan"), -1.5]})
    con.create_dataset("d", rows, overwrite=True)
    con.sql("CREATE SKIPPING INDEX ON d (MINMAX(u, t, f))")
    assert [len(_certified(con, f"u = {n}")) for n in (7, 8, 9)] == [1, 0, 1]
    assert [len(_certified(con, f)) for f in ("f = -1.5", "f = 0.5", "isnan(f)")] == [1, 0, 1]
    assert [r[:2] for r in _certified(con, "t = TIMESTAMP '2023-11-14 22:13:20.000001'")] == [("live", 1)]


@pytest.mark.filterwarnings("ignore:.*another program wrote it:kartosql.KartosqlWarning")
def test_a_certificate_names_the_versions_that_hold_a_row_also_restored_ones_and_those_beside_other_programs(con):
    store = con.store
    con.append_to_dataset("d", pa.table({"p": [1], "i": [4], "s": ["d"]}))
    con.sql("DELETE FROM d WHERE i = 2")  # version 3
    originals.append(store, originals.read(store, "d"), pa.table({"p": [1], "i": [5], "s": ["e"]}))  # 4, a foreign one
    con.restore("d", 2)
    con.sql("DELETE FROM d WHERE i IN (2, 5)")
    held = {
        i: [
            sorted({v for row in con.sql(sql).arrow().to_pylist() for v in row["versions"]})
            for sql in (f"VERIFY ERASED d WHERE i = {i} AND p >= 0", f"VERIFY ERASED d WHERE i = {i}")
        ]
        for i in range(1, 6)
    }
    assert all(data == with_indices for data, with_indices in held.values())
    expected: dict[int, list[int]] = {i: [] for i in held}
    for version in con.history("d").arrow()["version"].to_pylist():
        for (i,) in con.sql(f"SELECT i FROM d AT (VERSION => {version})").rows():
            expected[i].append(version)
    assert {i: data for i, (data, _) in held.items()} == expected
    assert [len(versions) for versions in expected.values()] == [6, 3, 6, 5, 1]


def test_a_certificate_counts_rows_of_a_cube_that_others_hide(con):
    con.append_to_cube("c", {"seed": pa.table({"x": [0], "p": [0], "v": [12]})})
    assert con.sql("SELECT v FROM c.seed WHERE x = 0").rows() == [(12,)]
    assert con.sql("VERIFY ERASED c.seed WHERE v = 10").arrow()["state"].to_pylist() == ["live"]
    con.sql("DELETE FROM c.seed WHERE v = 12")
    assert con.sql("SELECT v FROM c.seed").rows() == [(11,)]
    assert con.sql("VERIFY ERASED c.seed WHERE v = 10").arrow()["state"].to_pylist() == ["kept version"]


def test_a_certificate_reads_files_from_before_a_dataset_was_replaced_and_names_those_that_are_torn(con, tmp_path):
    old = con.sql("SHOW FILES FROM d").arrow()["key"].to_pylist()
    rows = pa.table({"i": ["1", "7"], "name": ["a", "b"], "p": [0.5, 1.5]})
    con.create_dataset("d", rows, partition_on=["name"], overwrite=True)
    found = con.sql("VERIFY ERASED d WHERE i = '1'").arrow().to_pylist()
    assert [(r["file"] in old, r["state"], r["rows"], r["versions"]) for r in found if "/table/" in r["file"]] == [
        (False, "live", 1, [2]),
        (True, "kept version", 1, [1]),
    ]
    assert [r["state"] for r in found if "/indices/" in r["file"]] == ["kept version"]
    assert con.sql("VERIFY ERASED d WHERE name = 'a'").arrow()["file"].to_pylist() == [found[0]["file"]]
    assert [r["rows"] for r in con.sql("VERIFY ERASED d WHERE p = 0").arrow().to_pylist()] == [2]
    torn = [old[0], next(k for k in con.sql("SHOW FILES FROM d").arrow()["key"].to_pylist() if k != found[0]["file"])]
    for key in torn:
        (tmp_path / key).write_bytes(b"PAR1 torn")
    states = {r["file"]: (r["state"], r["rows"]) for r in con.sql("VERIFY ERASED d WHERE i = '1'").arrow().to_pylist()}
    assert {key: states.pop(key) for key in torn} == dict.fromkeys(torn, ("unreadable", None))
    assert states[found[0]["file"]] == ("live", 1)


@pytest.mark.parametrize(
    "sql", ["VERIFY ERASED d WHERE nope = 1", "VERIFY ERASED nope WHERE i = 1", "VERIFY ERASED c WHERE nope = 1"]
)
def test_a_certificate_is_about_columns_of_one_dataset(con, sql):
    with pytest.raises(kartosql.KartosqlError) as e:
        con.sql(sql)
    assert e.value.code in ("unknown-column", "unknown-table")


# -- beside others -----------------------------------------------------------------------------


def test_rows_that_others_append_meanwhile_stay_and_a_merge_looks_again(con, monkeypatch):
    from kartosql.statements import row_changes

    write, appended = row_changes.append_to_dataset, []

    def late(*args, **keywords):
        if not appended:
            appended.append(con.append_to_dataset("d", pa.table({"p": [0], "i": [7], "s": ["late"]})))
        return write(*args, **keywords)

    monkeypatch.setattr(row_changes, "append_to_dataset", late)
    con.sql("UPDATE d SET s = 'x' WHERE i IN (1, 7)")
    assert sorted(con.sql("SELECT i, s FROM d WHERE i IN (1, 7)").rows()) == [(1, "x"), (7, "late")]
    appended.clear()
    con.sql(
        "MERGE INTO d USING (SELECT 7 AS i, 'm' AS s) AS n ON (i) WHEN MATCHED THEN UPDATE SET s = n.s "
        "WHEN NOT MATCHED THEN INSERT (p, i, s) VALUES (0, n.i, n.s)"
    )
    assert con.sql("SELECT s FROM d WHERE i = 7").rows() == [("m",), ("m",)]


@pytest.mark.parametrize("is_indexed", [True, False])
def test_two_updates_do_not_each_miss_what_the_other_one_makes(con, monkeypatch, is_indexed):
    from kartosql.statements import row_changes

    write, met = row_changes.append_to_dataset, []

    def late(*args, **keywords):
        if not met:
            met.append(True)
            con.sql("UPDATE d SET s = 'a' WHERE s = 'c'")  # in the other partition
        return write(*args, **keywords)

    if is_indexed:
        con.create_index("d", "s")
    monkeypatch.setattr(row_changes, "append_to_dataset", late)
    con.sql("UPDATE d SET s = 'c' WHERE s = 'a'")
    assert sorted(con.sql("SELECT i, s FROM d WHERE i IN (1, 3)").rows()) == [(1, "c"), (3, "c")]


def test_changes_of_partitions_that_the_condition_names_are_not_begun_again(con, monkeypatch):
    from kartosql.statements import row_changes

    write, met = row_changes.append_to_dataset, []

    def late(*args, **keywords):
        met.append(True)
        if len(met) == 1:
            con.sql("UPDATE d SET s = 'z' WHERE p = 1 AND i = 3")
        return write(*args, **keywords)

    monkeypatch.setattr(row_changes, "append_to_dataset", late)
    con.sql("UPDATE d SET s = 'x' WHERE p = 0 AND i = 1")
    assert len(met) == 2
    assert sorted(con.sql("SELECT i, s FROM d WHERE i IN (1, 3)").rows()) == [(1, "x"), (3, "z")]


def test_a_change_that_was_too_late_once_has_its_turn_before_it_looks_again(con, monkeypatch):
    from kartosql.statements import row_changes
    from kartosql.store import turns

    prepare, held = row_changes._RowChange.prepare, []

    def looked(change):
        held.append(getattr(turns._held, "any", False))
        answer = prepare(change)
        if len(held) == 1:
            con.sql("UPDATE d SET s = 'z' WHERE i = 1")
        return answer

    monkeypatch.setattr(row_changes._RowChange, "prepare", looked)
    con.sql("UPDATE d SET s = 'x' WHERE i = 1")
    assert held == [False, False, True]  # the second is that of the other statement
    assert con.sql("SELECT s FROM d WHERE i = 1").rows() == [("x",)]
    assert not turns._held.any


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("UPDATE d SET s = 'x' WHERE i = 1", []),
        ("DELETE FROM d WHERE i = 1", []),
        ("MERGE INTO d USING (SELECT 0 p, 9 i, 'n' s) n ON d.i = n.i WHEN NOT MATCHED THEN INSERT BY NAME", [(9,)]),
    ],
)
def test_rows_that_others_deleted_with_all_rows_meanwhile_stay_deleted(con, monkeypatch, text, left):
    from kartosql.statements import row_changes

    prepare, looked = row_changes._RowChange.prepare, []

    def late(change):
        looked.append(True)
        answer = prepare(change)
        if len(looked) == 1:
            con.sql("DELETE FROM d WHERE true")
        return answer

    monkeypatch.setattr(row_changes._RowChange, "prepare", late)
    con.sql(text)
    assert con.sql("SELECT i FROM d").rows() == left
    assert len(looked) > 1


def test_a_change_that_others_are_always_faster_than_ends_with_their_commit(con, monkeypatch):
    from kartosql.statements import row_changes

    write = row_changes.append_to_dataset

    def late(*args, **keywords):
        con.append_to_dataset("d", pa.table({"p": [0], "i": [1], "s": pa.array([None], pa.string())}))
        con.compact("d")
        return write(*args, **keywords)

    monkeypatch.setattr(row_changes, "append_to_dataset", late)
    with pytest.raises(kartosql.KartosqlError) as e:
        con.sql("DELETE FROM d WHERE i = 1")
    assert e.value.code == "concurrent-commit"
    assert con.sql("SELECT count(*) FROM d WHERE i = 1").rows() == [(6,)]
