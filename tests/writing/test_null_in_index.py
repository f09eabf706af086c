"""Indexed columns of cubes that hold NULL: rows are written whatever they hold, and answers stay right."""

from __future__ import annotations

import warnings
from functools import partial
from random import Random
from unittest import mock

import duckdb
import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError
from kartosql.plan.prune import prune

CONDITIONS = (
    "i = 'u1'",
    "i <> 'u1'",
    "NOT i = 'u1'",
    "i IS NULL",
    "i IS NOT NULL",
    "i IS DISTINCT FROM 'u1'",
    "i IS NOT DISTINCT FROM NULL",
    "i IN ('u1', 'u2')",
    "i IN ('u1', NULL)",
    "i NOT IN ('u1', 'u2')",
    "coalesce(i, 'none') = 'none'",
    "(i = 'u1') IS NULL",
    "i = 'u1' OR j IS NULL",
    "i = 'u1' AND j IS NULL",
    "i IS NULL AND j = 3",
    "j > 2 OR i IS NULL",
    "coalesce(j, 3) = 3",
    "CASE WHEN i IS NULL THEN j = 1 ELSE i = 'u2' END",
)


TUPLES = [("i", op, "u1") for op in ("==", "!=", "<", ">=")] + [
    ("i", "in", ["u1", "u2"]),
    ("j", "!=", 3),
    ("j", ">", 2),
]


def some_rows(random: Random, first: int) -> pa.Table:
    count = random.randint(1, 4)
    i = [random.choice([None, None, *(f"u{n}" for n in range(1, 9))]) for _ in range(count)]
    return pa.table(
        {
            "x": range(first, first + count),
            "p": [random.choice("abc") for _ in range(count)],
            "i": pa.array([None] * count if random.random() < 0.3 else i, pa.string()),
            "j": pa.array([random.choice([None, *range(1, 7)]) for _ in range(count)], pa.int64()),
        }
    )


def _index(con: kartosql.Connection, columns: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kartosql.KartosqlWarning)
        if columns:
            con.create_index("c.seed", columns)


def random_cube(con: kartosql.Connection, random: Random) -> pa.Table:
    """Write a cube in several ways, with indices made before and after, and return its rows."""
    written = [some_rows(random, 0)]
    con.build_cube(kartosql.Cube("c", "x", "p"), written[0])
    _index(con, random.choice([[], ["i"], ["i", "j"]]))
    for number in range(1, 10):
        rows = some_rows(random, 100 * number)
        written.append(rows)
        con.register("given", rows)
        ways = [
            lambda rows=rows: con.append_to_cube("c", rows),
            lambda rows=rows: con.append_to_cube(con.cubes()["c"], rows),
            lambda rows=rows: con.update_cube("c", rows),
            lambda: con.sql("INSERT INTO c.seed SELECT * FROM given"),
        ]
        random.choice(ways)()
        if number == 4:
            _index(con, ["i", "j"])
    if random.random() < 0.3:
        con.compact("c", "seed", target_bytes=2500)
    return pa.concat_tables(written)


@pytest.mark.parametrize("seed", range(5))
def test_answers_over_indices_without_their_nulls_are_right(tmp_path, seed):
    random = Random(seed)
    with kartosql.connect(tmp_path) as con, duckdb.connect() as memory:
        memory.register("c", random_cube(con, random))
        left_out = 0
        for condition in CONDITIONS:
            sql = f"SELECT x, p, i, j FROM c WHERE {condition} ORDER BY x"
            wanted = memory.sql(sql).fetchall()
            assert con.sql(sql).rows() == wanted, condition
            with (
                mock.patch.object(kartosql.query, "prune", partial(prune, enabled=False)),
                kartosql.connect(tmp_path) as whole,  # which remembers no plan
            ):
                assert whole.sql(sql).rows() == wanted, condition
            (of_c,) = con.explain(sql).to_dict()["scans"][0]["datasets"]
            left_out += of_c["files_selected"] < of_c["files_total"]
        assert left_out
        found = con.check("c")
        assert {f.severity for f in found} <= {"info"}
        assert "null-in-index" in {f.check for f in found}


def test_query_cube_answers_the_same_over_all_files(tmp_path):
    with kartosql.connect(tmp_path) as con:
        random_cube(con, Random(2))
        for condition in TUPLES:
            found = con.query_cube("c", conditions=[condition]).rows()
            with (
                mock.patch.object(kartosql.query, "prune", partial(prune, enabled=False)),
                kartosql.connect(tmp_path) as whole,
            ):
                again = whole.query_cube("c", conditions=[condition]).rows()
            assert sorted(again, key=repr) == sorted(found, key=repr), condition


def test_answers_on_spark_are_those_of_duckdb(spark, tmp_path):
    with kartosql.connect(tmp_path) as con:
        random_cube(con, Random(1))
        for condition in CONDITIONS:
            sql = f"SELECT x, i, j FROM c WHERE {condition} ORDER BY x"
            assert con.sql(sql, engine="spark").rows() == con.sql(sql).rows(), condition


@pytest.fixture
def con(tmp_path):
    rows = pa.table({"x": range(8), "p": list("abcdefgh"), "v": ["k", None, "l", "m", "n", "o", "q", "r"]})
    with kartosql.connect(tmp_path) as con:
        con.build_cube(kartosql.Cube("c", "x", "p"), rows)
        con.create_dataset("d", rows, partition_on="p")
        yield con


def test_what_the_originals_refuse_is_said_before(con):
    advice = "\n".join(line for (line,) in con.sql("ADVISE SELECT x FROM c WHERE v = 'k'").rows())
    assert "CREATE INDEX ON c.seed (v)" in advice
    assert "v holds NULL" in advice
    with pytest.warns(kartosql.KartosqlWarning, match="'v' holds NULL.* kartothek and plateau refuse"):
        con.sql("CREATE INDEX ON c.seed (v)")
    (found,) = con.check("c")
    assert (found.check, found.severity) == ("null-in-index", "info")
    con.append_to_cube("c", {"seed": pa.table({"x": [9], "p": ["a"], "v": pa.array([None], pa.string())})})
    assert con.sql("SELECT x FROM c WHERE v IS NULL ORDER BY x").rows() == [(1,), (9,)]


def test_index_columns_that_a_cube_asks_for_take_no_null_as_in_the_original(con):
    asking = kartosql.Cube("c", "x", "p", index_columns="v")
    without = {"x": [9], "p": ["a"], "v": pa.array([None], pa.string())}
    con.remove_partitions("c", "p == b")
    con.create_index("c.seed", "v")
    before = con.sql("SELECT count(*) FROM c").rows()
    with pytest.raises(KartosqlError, match="index column 'v' holds NULL") as caught:
        con.append_to_cube(asking, {"seed": pa.table(without)})
    assert caught.value.code == "null-in-key"
    assert con.sql("SELECT count(*) FROM c").rows() == before
    assert con.cubes()["c"] == asking  # found in the store, what it asks for cannot be told from what was indexed later
    for number, cube in enumerate((con.cubes()["c"], "c", kartosql.Cube("c", "x", "p"))):
        con.append_to_cube(cube, {"seed": pa.table(without | {"x": [10 + number]})})


def test_nothing_is_said_of_columns_without_null_and_of_plain_datasets(con):
    con.create_index("d", "v")
    con.remove_partitions("c", "p == b")
    con.create_index("c.seed", "v")
    assert con.check("c") == []
    assert con.check("d") == []


@pytest.mark.parametrize("column", ["x", "p"])
def test_dimensions_and_partition_columns_take_no_null(con, column):
    rows = {"x": [9], "p": ["a"], "v": ["w"]} | {column: [None]}
    with pytest.raises(KartosqlError) as e:
        con.append_to_cube("c", {"seed": pa.table(rows)})
    assert e.value.code == "null-in-key"
