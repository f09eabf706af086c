"""Columns that are added to a dataset with files: what older files lack is NULL, whatever leaves files out."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest
from rivals import act_at, count_calls

import builders
import kartosql
from differential import regimes
from kartosql.errors import KartosqlError
from kartosql.write import commit, datasets
from kartosql.write.operation import Operation

OLD = pa.table({"p": ["a", "a", "b"], "x": [1, 2, 3]})
NEW = pa.table({"p": ["a", "c"], "x": [4, 5], "z": ["k", None], "n": [1.5, 2.5]})
ALL = [("a", None, 1, None), ("a", None, 2, None), ("b", None, 3, None), ("a", 1.5, 4, "k"), ("c", 2.5, 5, None)]


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", OLD, partition_on="p", index_columns="x")
        yield con


def rows(con, text="SELECT * FROM d ORDER BY x"):
    return con.sql(text).rows()


def failure(con, text):
    with pytest.raises(KartosqlError) as e:
        con.sql(text)
    return e.value.code, e.value.message


# -- adding --------------------------------------------------------------------------------------------


def test_a_column_is_added_without_a_file(con):
    con.sql("ALTER DATASET d ADD COLUMN z DECIMAL(9, 2)")
    assert rows(con) == [("a", 1, None), ("a", 2, None), ("b", 3, None)]
    assert con.sql("SELECT z FROM d").schema.field("z").type == pa.decimal128(9, 2)
    assert rows(con, "SHOW SCHEMA HISTORY FROM d")[-1][4] == "z added (DECIMAL(9,2))"
    assert not [f for f in rows(con, "CHECK d FULL") if f[2] == "error"]


def test_rows_bring_new_columns_and_lack_others(con):
    con.append_to_dataset("d", NEW, evolve=True)
    assert sorted(rows(con), key=lambda r: r[2]) == ALL
    con.append_to_dataset("d", pa.table({"p": ["d"], "z": ["l"]}), evolve=True)
    assert rows(con, "SELECT * FROM d WHERE p = 'd'") == [("d", None, None, "l")]
    con.append_to_dataset("d", NEW)
    with pytest.raises(KartosqlError, match="'n' is missing in the new data"):
        con.append_to_dataset("d", OLD)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO d (EVOLVE) SELECT 'a' AS p, 4 AS x, 'k' AS z, 1.5::DOUBLE AS n",
        "INSERT INTO d (EVOLVE) (p, z, x, n) VALUES ('a', 'k', 4, 1.5::DOUBLE)",
        "INSERT INTO d (evolve) BY NAME SELECT 'k' AS z, 4 AS X, 'a' AS p, 1.5::DOUBLE AS n",
    ],
)
def test_a_statement_brings_new_columns(con, text):
    con.sql(text)
    assert rows(con, "SELECT * FROM d WHERE z = 'k'") == [("a", 1.5, 4, "k")]
    assert rows(con, "SELECT count(*) FROM d WHERE z IS NULL") == [(3,)]


def test_partitions_are_replaced_by_rows_with_new_columns(con):
    con.sql("INSERT OVERWRITE d (EVOLVE) SELECT 'a' AS p, 9 AS x, true AS t")
    assert rows(con) == [("b", None, 3), ("a", True, 9)]


def test_numbers_widen_exactly_and_nothing_narrows(con):
    con.create_dataset(
        "e", pa.table({"v": pa.array([Decimal("1.50")], pa.decimal128(4, 2)), "i": pa.array([1], "int8")})
    )
    con.create_skipping_index("e", minmax=["v", "i"])
    wide = {"v": pa.array([Decimal("12345.125")], pa.decimal128(9, 3)), "i": pa.array([2**40])}
    with pytest.raises(KartosqlError, match="does not fit"):
        con.append_to_dataset("e", pa.table(wide))
    con.append_to_dataset("e", pa.table(wide), evolve=True)
    both = [(1, Decimal("1.500")), (2**40, Decimal("12345.125"))]
    assert rows(con, "SELECT i, v FROM e ORDER BY i") == both
    for at, (_, value) in enumerate(both):
        assert rows(con, f"SELECT i, v FROM e WHERE v = {value}") == [both[at]]
    assert rows(con, "SELECT i, v FROM e WHERE v > 2") == both[1:]
    con.refresh_skipping_index("e")
    assert rows(con, "SELECT i, v FROM e WHERE v < 2") == both[:1]
    con.append_to_dataset("e", pa.table({"v": pa.array([Decimal("2.5")], pa.decimal128(2, 1)), "i": [3]}), evolve=True)
    assert con.sql("SELECT v FROM e").schema.field("v").type == pa.decimal128(9, 3)
    with pytest.raises(KartosqlError, match="'i' is BIGINT in the table, but VARCHAR"):
        con.append_to_dataset("e", pa.table({"v": wide["v"], "i": ["x"]}), evolve=True)
    with pytest.raises(KartosqlError, match=r"first 2\.5"):
        con.append_to_dataset("e", pa.table({"v": wide["v"], "i": [2.5]}), evolve=True)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("ALTER DATASET d ADD COLUMN x BIGINT", "incompatible-schema", "has a column 'x' already"),
        ("ALTER DATASET d ADD COLUMN p BIGINT", "incompatible-schema", "has a column 'p' already"),
        ("ALTER DATASET d ADD COLUMN X BIGINT", "incompatible-schema", "differs from 'x' in case alone"),
        ('ALTER DATASET d ADD COLUMN q "NULL"', "incompatible-schema", "has no type"),
        ("ALTER DATASET d ADD COLUMN q BIT", "invalid-data", "BIT, which cannot be stored"),
        ("ALTER DATASET d ADD COLUMN q", "syntax-error", "Expected the type of 'q'"),
        ("ALTER DATASET d ADD COLUMN q INT) AS y, (SELECT 1", "syntax-error", "Expected the type of 'q'"),
        ("ALTER DATASET d ADD COLUMN q NO_TYPE", "invalid-query", "NO_TYPE"),
        ("ALTER DATASET d RENAME COLUMN x TO y", "not-supported", "keep them"),
        ("ALTER DATASET d RENAME TO e", "not-supported", "keep it"),
        ("ALTER DATASET d DROP COLUMN x", "not-supported", "keep them"),
        ("ALTER DATASET d ALTER COLUMN x TYPE BIGINT", "not-supported", "keep them"),
        ("ALTER DATASET nothing ADD COLUMN q INT", "unknown-table", "nothing"),
        ("INSERT INTO d (EVOLVE) SELECT 1 AS x", "null-in-key", "'p' holds NULL"),
        ("INSERT INTO d (EVOLVE) SELECT 'a' AS p, NULL AS q", "incompatible-schema", "has no type"),
        ("INSERT INTO d SELECT 'a' AS p, 1 AS x, 2 AS q", "incompatible-schema", "is no column of d"),
    ],
)
def test_what_cannot_be_added_is_refused_and_nothing_changes(con, text, code, message):
    before = rows(con, "SHOW SCHEMA HISTORY FROM d")
    found = failure(con, text)
    assert found[0] == code
    assert message in found[1]
    assert rows(con, "SHOW SCHEMA HISTORY FROM d") == before


def test_the_place_of_an_error_is_that_of_the_type(con):
    text = "ALTER DATASET d ADD COLUMN q no_function(1)"
    with pytest.raises(KartosqlError) as e:
        con.sql(text)
    assert e.value.span is None or text[slice(*e.value.span)] in "no_function(1)"


def test_several_tables_get_no_columns(con):
    con.create_dataset("two", {"one": pa.table({"x": [1]}), "other": pa.table({"y": [1]})})
    data = {"one": pa.table({"x": [1], "z": [1]}), "other": pa.table({"y": [1]})}
    with pytest.raises(KartosqlError, match="several tables") as e:
        con.append_to_dataset("two", data, evolve=True)
    assert e.value.code == "incompatible-schema"


# -- cubes ---------------------------------------------------------------------------------------------


@pytest.fixture
def cube(con):
    cube = kartosql.Cube("c", "x", "p")
    seed = pa.table({"x": [1, 2, 3], "p": ["a", "a", "b"], "v": [1, 2, 3]})
    con.build_cube(cube, {"seed": seed, "en": pa.table({"x": [1], "p": ["a"], "w": [7]})})
    return con


def test_a_cell_that_is_overwritten_has_the_values_of_the_last_file(cube):
    cube.append_to_dataset("c.seed", pa.table({"x": [2], "p": ["a"], "v": [20], "z": ["k"]}), evolve=True)
    assert rows(cube, "SELECT x, v, z FROM c ORDER BY x") == [(1, 1, None), (2, 20, "k"), (3, 3, None)]
    assert rows(cube, "SELECT x FROM c WHERE z = 'k'") == [(2,)]
    cube.append_to_cube("c", {"seed": pa.table({"x": [2], "p": ["a"], "v": [21], "z": pa.nulls(1, pa.string())})})
    assert rows(cube, "SELECT x FROM c WHERE z = 'k'") == []
    assert rows(cube, "SELECT x FROM c WHERE z IS NULL ORDER BY x") == [(1,), (2,), (3,)]
    cube.compact("c")
    assert rows(cube, "SELECT x, v, z FROM c ORDER BY x") == [(1, 1, None), (2, 21, None), (3, 3, None)]


def test_a_column_of_another_dataset_is_joined(cube):
    cube.sql("ALTER DATASET c.en ADD COLUMN y DATE")
    cube.sql("INSERT INTO c.en (EVOLVE) SELECT 3 AS x, 'b' AS p, DATE '2020-01-01' AS y")
    found = rows(cube, "SELECT x, w, y IS NULL FROM c ORDER BY x")
    assert found == [(1, 7, True), (2, None, True), (3, None, False)]
    assert [r["x"] for r in cube.query_cube("c", conditions=[("y", ">", dt.date(2019, 1, 1))]).arrow().to_pylist()] == [
        3
    ]


@pytest.mark.parametrize("column", ["v", "x", "p"])
def test_a_column_belongs_to_one_dataset_of_a_cube(cube, column):
    text = f"ALTER DATASET c.en ADD COLUMN {column} BIGINT"
    assert failure(cube, text)[0] == ("invalid-cube" if column == "v" else "incompatible-schema")
    with pytest.raises(KartosqlError) as e:
        cube.append_to_dataset("c.en", pa.table({"x": [1], "p": ["a"], "w": [1], "v": [1]}), evolve=True)
    assert e.value.code == "invalid-cube"


def test_a_dimension_is_not_added(con):
    con.build_cube(
        kartosql.Cube("c", ["x", "y"], "p"),
        {"seed": pa.table({"x": [1], "y": [1], "p": ["a"]}), "en": pa.table({"x": [1], "p": ["a"], "w": [1]})},
    )
    assert failure(con, "ALTER DATASET c.en ADD COLUMN y BIGINT")[0] == "invalid-cube"


def test_a_dimension_is_not_filled(cube):
    with pytest.raises(KartosqlError) as e:
        cube.append_to_dataset("c.en", pa.table({"p": ["a"], "w": [1]}), evolve=True)
    assert e.value.code == "null-in-key"


# -- what leaves files out ------------------------------------------------------------------------------

CONDITIONS = (
    *("z = 2", "z <> 2", "z > 1", "z < 3 OR x = 1", "z IS NULL", "z IS NOT NULL", "z IN (0, 3)", "NOT z = 1"),
    *("s = 'b'", "s IS NULL", "s LIKE 'a%'", "s >= 'b'", "coalesce(s, 'b') = 'b'", "z IS DISTINCT FROM 2"),
    *("x > 5 AND z IS NULL", "z + x > 4", "x BETWEEN 3 AND 9", "s NOT IN ('a', 'b')", "z IS NULL AND s = 'c'"),
)
QUERIES = (
    *("SELECT count(*), count(z), min(z), max(z), min(s), count(s) FROM {}",),
    *("SELECT p, count(*), min(z), max(s) FROM {} GROUP BY p ORDER BY p",),
    *("SELECT z FROM {} ORDER BY z DESC NULLS LAST LIMIT 2", "SELECT z FROM {} ORDER BY z NULLS FIRST LIMIT 3"),
    *(
        "SELECT s FROM {} ORDER BY s LIMIT 2",
        "SELECT DISTINCT z FROM {} ORDER BY z",
        "SELECT max(z) FROM {} WHERE x > 3",
    ),
)


def history(draw, con):
    """Write files in some steps, with columns that come one by one, and return all rows."""
    columns: list[str] = ["x"]
    every = []
    for step in range(draw.randint(3, 6)):
        new = draw.choice([c for c in ("z", "s") if c not in columns] or [None])
        if new is not None and draw.random() < 0.6 and step:
            columns.append(new)
        count = draw.randint(1, 4)
        values = {"z": [draw.choice([None, 0, 1, 2, 3]) for _ in range(count)], "x": draw.choices(range(12), k=count)}
        values["s"] = [draw.choice([None, "a", "b", "c"]) for _ in range(count)]
        given = [c for c in columns if c == "x" or draw.random() < 0.8]
        types = {"z": pa.int64(), "x": pa.int64(), "s": pa.string()}
        table = pa.table({"p": draw.choices("abc", k=count)} | {c: pa.array(values[c], types[c]) for c in given})
        if step:
            con.append_to_dataset("r", table, evolve=True)
        else:
            con.create_dataset("r", table, partition_on="p", index_columns="x")
        every.append(table)
        there = [c for c in ("x", "z", "s") if c in con.sql("SELECT * FROM r").columns]
        if draw.random() < 0.3:
            con.create_index("r", [c for c in there if draw.random() < 0.7] or ["x"])
        if draw.random() < 0.3:
            con.create_skipping_index("r", minmax=there, valuelist=there[-1:])
        if draw.random() < 0.1:
            con.compact("r")
    for column, type_ in (("z", "BIGINT"), ("s", "VARCHAR")):
        if column not in con.sql("SELECT * FROM r").columns:
            con.sql(f"ALTER DATASET r ADD COLUMN {column} {type_}")
    return pa.concat_tables(every, promote_options="default")


@pytest.mark.parametrize("seed", range(12))
def test_pruned_answers_are_those_over_all_rows(tmp_path, seed):
    draw = random.Random(seed)
    with regimes.regime(seed), kartosql.connect(str(tmp_path)) as con:
        every = history(draw, con)
        for name in ("z", "s"):
            if name not in every.column_names:
                every = every.append_column(name, pa.nulls(every.num_rows, pa.int64() if name == "z" else pa.string()))
        con.register("everything", every)
        for text in [f"SELECT p, s, x, z FROM {{}} WHERE {c} ORDER BY ALL" for c in CONDITIONS] + list(QUERIES):
            assert rows(con, text.format("r")) == rows(con, text.format("everything")), text
        assert rows(con, "VERIFY (DUCKDB) SELECT p, s, x, z FROM r WHERE z > 1 OR s = 'a'")[0] == ("VERIFIED",)
        assert not [f for f in rows(con, "CHECK r FULL") if f[2] == "error"]


def test_an_index_leaves_out_files_that_lack_its_column(con):
    con.append_to_dataset("d", NEW, evolve=True)
    con.create_index("d", "z")
    (scan,) = con.explain("SELECT * FROM d WHERE z = 'k'").to_dict()["scans"]
    assert scan["datasets"][0]["files_selected"] == 1
    (scan,) = con.explain("SELECT * FROM d WHERE z IS NULL").to_dict()["scans"]
    assert scan["datasets"][0]["files_selected"] == 4
    assert rows(con, "SELECT x FROM d WHERE z IS NULL ORDER BY x") == [(1,), (2,), (3,), (5,)]


@pytest.mark.parametrize("evolve", ["yes", 1, None])
def test_evolve_is_true_or_false_and_nothing_else(con, evolve):
    with pytest.raises(KartosqlError) as e:
        con.append_to_dataset("d", NEW, evolve=evolve)
    assert (e.value.code, "evolve" in str(e.value)) == ("invalid-argument", True)
    assert rows(con, "SELECT count(*) FROM d") == [(3,)]


def test_columns_whose_names_differ_in_case_alone_may_stand_beside_an_added_one(con):
    con.create_dataset("e", pa.table({"v": [1], "V": [2]}))
    con.append_to_dataset("e", pa.table({"v": [3], "V": [4], "w": [5]}), evolve=True)
    assert rows(con, 'SELECT "v", "V", w FROM e ORDER BY "v"') == [(1, 2, None), (3, 4, 5)]


def test_a_file_that_lacks_a_column_which_was_not_added_is_an_error(con):
    con.append_to_dataset("d", NEW, evolve=True)
    key = next(k for k in con.store.list_below("d/table/p=b/"))
    con.store.put(key, builders.parquet({"y": [1]}))
    with kartosql.connect(con.store.url) as other, pytest.raises(KartosqlError) as e:
        other.sql("SELECT x FROM d").rows()
    assert e.value.code == "schema-mismatch"


# -- upkeep --------------------------------------------------------------------------------------------


def test_merged_and_copied_files_hold_the_same_rows(con, tmp_path):
    con.append_to_dataset("d", NEW, evolve=True)
    con.sql("COPY DATASET d TO '" + str(tmp_path) + "' AS copied")
    assert sorted(rows(con, "SELECT * FROM copied"), key=lambda r: r[2]) == ALL
    con.compact("d")
    assert sorted(rows(con), key=lambda r: r[2]) == ALL
    con.sql("INSERT OVERWRITE d SELECT * FROM d")
    assert sorted(rows(con), key=lambda r: r[2]) == ALL
    con.create_dataset("d", OLD, overwrite=True)
    assert "kartosql_added_columns" not in builders.read_document(con.store, "d")["metadata"]


def test_damaged_notes_of_added_columns_say_nothing(con):
    con.sql("ALTER DATASET d ADD COLUMN z BIGINT")
    for odd in (["z"], {"table": "z"}, {"table": [["z"]]}, {"other": ["z"]}, 7):
        document = builders.read_document(con.store, "d")
        document["metadata"]["kartosql_added_columns"] = odd
        builders.write_document(con.store, document)
        with kartosql.connect(con.store.url) as other, pytest.raises(KartosqlError) as e:
            other.sql("SELECT z FROM d").rows()
        assert e.value.code == "schema-mismatch"


# -- others at the same time -----------------------------------------------------------------------------


def test_rows_that_were_written_before_a_column_was_added_are_committed_after(con):
    def append(store):
        datasets.append_to_dataset(Operation(store, "append"), "d", OLD)

    for at in range(count_calls(con.store, append)):
        con.create_dataset("d", OLD, partition_on="p", index_columns="x", overwrite=True)
        try:
            append(act_at(con.store, at, lambda: con.sql("ALTER DATASET d ADD COLUMN z BIGINT")))
        except KartosqlError as e:  # it began when the column was there
            assert e.code == "incompatible-schema"  # noqa: PT017
            continue
        assert rows(con, "SELECT count(*), count(z) FROM d") == [(6, 0)]


def test_columns_that_two_add_at_a_time_are_both_added(con):
    def add(store, name="y"):
        datasets.add_columns(Operation(store, "add_column"), "d", pa.table({name: pa.array([], pa.int64())}))

    for at in range(count_calls(con.store, add)):
        con.create_dataset("d", OLD, partition_on="p", index_columns="x", overwrite=True)
        add(act_at(con.store, at, lambda: add(con.store, "z")))
        assert rows(con, "SELECT count(x), count(y), count(z) FROM d") == [(3, 0, 0)]
        con.append_to_dataset("d", pa.table({"p": ["a"], "x": [1], "y": [1], "z": [1]}))


def test_a_schema_file_that_is_still_to_be_written_keeps_nobody_from_reading_or_writing(con, monkeypatch):
    with monkeypatch.context() as context:
        context.setattr(commit, "complete_schemas", lambda store, uuid: None)
        con.append_to_dataset("d", NEW, evolve=True)
    with kartosql.connect(con.store.url) as other:
        assert sorted(rows(other), key=lambda r: r[2]) == ALL
        other.append_to_dataset("d", NEW)
        assert rows(other, "SELECT count(*), count(n) FROM d") == [(7, 4)]
    with kartosql.connect(con.store.url) as other:
        assert rows(other, "SELECT count(*), count(n) FROM d") == [(7, 4)]
