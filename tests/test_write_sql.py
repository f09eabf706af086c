"""Statements that write: what they do to a store, and what they refuse before anything is visible."""

from __future__ import annotations

import datetime as dt
import threading
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import ConcurrentCommit, KartosqlError
from kartosql.statements import upkeep
from kartosql.statements.query_rows import QueryRows

SEED = {"x": [0, 1, 2, 3], "p": [0, 0, 1, 1], "v": ["a", None, "", "d"], "f": [0.5, 1.0, 2.0, 3.0]}


@pytest.fixture
def con(tmp_path):
    """A store with the cube ``c`` (seed, ``w`` by p, ``z`` unpartitioned) and the dataset ``d`` by day and name."""
    with kartosql.connect(tmp_path) as con:
        seed = pa.table(SEED)
        w = pa.table({"x": [0, 1, 2], "p": [0, 0, 1], "w": [10, 11, 12]})
        z = pa.table({"x": [0, 1], "z": [20, 21]})
        cube = kartosql.Cube("c", "x", "p", index_columns=["v2"])
        con.build_cube(cube, {"seed": seed, "w": w, "z": z}, partition_on={"z": []})
        days = [dt.date(2020, 1, 1), dt.date(2020, 1, 2), dt.date(2020, 1, 2)]
        d = pa.table({"day": days, "name": ["a", "a", "B"], "n": [1, 2, 3], "t": [dt.datetime(2020, 1, 1)] * 3})
        con.create_dataset("d", d, partition_on=["day", "name"])
        yield con


def _rows(con: kartosql.Connection, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    return sorted(con.sql(sql, parameters).rows(), key=repr)


def _failure(con: kartosql.Connection, sql: str, parameters: Any = None) -> KartosqlError:
    """Return the error of a statement that has to leave everything readable as it was."""
    before = _everything(con)
    with pytest.raises(KartosqlError) as e:
        con.sql(sql, parameters)
    assert _everything(con) == before
    return e.value


def _everything(con: kartosql.Connection) -> dict[str, Any]:
    return {name: con.sql(f'FROM "{name}"').rows() for name in con.datasets()}


def _did(con: kartosql.Connection, sql: str, parameters: Any = None) -> dict[str, dict[str, Any]]:
    """Run a statement and return its table by dataset."""
    return {row.pop("dataset"): row for row in con.sql(sql, parameters).arrow().to_pylist()}


# -- CREATE and ALTER --------------------------------------------------------------------------


def test_create_cube_builds_a_cube_of_the_rows_of_its_query(con):
    did = _did(
        con,
        "CREATE CUBE n DIMENSIONS (x) PARTITION BY (P) SEED s INDEX (V) AS SELECT x, p, v FROM c WHERE v IS NOT NULL",
    )
    assert list(did) == ["s"]
    assert (did["s"]["files"], did["s"]["rows"], did["s"]["removed"]) == (2, 3, 0)
    assert did["s"]["bytes"] > 0
    assert did["s"]["id"]
    assert con.cubes()["n"] == kartosql.Cube("n", "x", "p", "s", ["v"])
    assert _rows(con, "SELECT x, p, v FROM n") == [(0, 0, "a"), (2, 1, ""), (3, 1, "d")]


def test_an_existing_cube_is_replaced_only_if_asked_for(con):
    sql = "CUBE n DIMENSIONS (x) PARTITION BY (p) AS SELECT x, p FROM c"
    con.sql(f"CREATE {sql} WHERE x = 1")
    error = _failure(con, f"CREATE {sql}")
    assert (error.code, error.hint) == ("dataset-exists", "CREATE OR REPLACE replaces it.")
    con.sql(f"CREATE OR REPLACE {sql} WHERE x > 1")
    assert _rows(con, "SELECT x FROM n") == [(2,), (3,)]


def test_a_cube_may_be_replaced_by_rows_of_its_own(con):
    con.sql("CREATE CUBE n DIMENSIONS (x) PARTITION BY (p) AS SELECT x, p FROM c")
    con.sql("CREATE OR REPLACE CUBE n DIMENSIONS (x) PARTITION BY (p) AS SELECT x + 1 AS x, p FROM n")
    assert _rows(con, "SELECT x FROM n") == [(1,), (2,), (3,), (4,)]


def test_alter_cube_adds_a_dataset(con):
    did = _did(con, "ALTER CUBE C ADD DATASET more INDEX (y) AS SELECT x, p, x * ? AS y FROM c", [5])
    assert (did["more"]["files"], did["more"]["rows"]) == (2, 4)
    assert _rows(con, "SELECT x, y FROM c") == [(0, 0), (1, 5), (2, 10), (3, 15)]
    assert con.sql("SHOW INDEXES FROM c.more").arrow()["column"].to_pylist() == ["y"]


def test_alter_cube_can_leave_a_dataset_unpartitioned(con):
    did = _did(con, "ALTER CUBE c ADD DATASET more PARTITION BY () AS SELECT x, x AS y FROM c")
    assert did["more"]["files"] == 1
    assert con.sql("SHOW DATASETS FROM c").arrow().filter(pa.compute.field("dataset") == "more")[
        "partition_keys"
    ].to_pylist() == [[]]


def test_create_dataset_keeps_rows_that_repeat(con):
    did = _did(con, "CREATE DATASET e PARTITION BY (p) INDEX (v) AS SELECT p, v FROM c UNION ALL SELECT p, v FROM c")
    assert (did["e"]["files"], did["e"]["rows"]) == (2, 8)
    assert _rows(con, "SELECT count(*), count(DISTINCT v) FROM e") == [(8, 3)]
    con.sql("CREATE OR REPLACE DATASET e AS SELECT 1 AS one")
    assert con.sql("FROM e").arrow().to_pylist() == [{"one": 1}]


@pytest.mark.parametrize(
    ("sql", "code", "place"),
    [
        ("CREATE CUBE n DIMENSIONS (nope) PARTITION BY (p) AS SELECT x, p FROM c", "unknown-column", "nope"),
        ("CREATE CUBE n DIMENSIONS (x) PARTITION BY (p) INDEX (i) AS SELECT x, p FROM c", "unknown-column", "i"),
        ("CREATE CUBE n DIMENSIONS (x) PARTITION BY (p) AS SELECT x, vv AS p FROM c", "unknown-column", "vv"),
        ("CREATE CUBE n DIMENSIONS (x) PARTITION BY (p) AS SELECT x, p FROM nope", "unknown-table", "nope"),
        ("CREATE CUBE n DIMENSIONS (x) PARTITION BY (x) AS SELECT x, p FROM c", "invalid-cube", None),
        ('CREATE CUBE "a++b" DIMENSIONS (x) PARTITION BY (p) AS SELECT x, p FROM c', "invalid-cube", None),
        ("CREATE CUBE n DIMENSIONS (v) PARTITION BY (p) AS SELECT v, p FROM c", "null-in-key", None),
        ("CREATE CUBE n DIMENSIONS (p) PARTITION BY (q) AS SELECT p, 1 AS q FROM c", "duplicate-cells", None),
        ("CREATE CUBE n DIMENSIONS (x) PARTITION BY (p) AS SELECT x, p FROM c WHERE x > 9", "invalid-data", None),
        ("CREATE DATASET e PARTITION BY (q) AS SELECT x FROM c", "unknown-column", "q"),
        ("CREATE DATASET e AS SELECT x, x AS x FROM c", "invalid-data", None),
        ("CREATE DATASET d AS SELECT x FROM c", "dataset-exists", None),
        ("ALTER CUBE nope ADD DATASET e AS SELECT x FROM c", "unknown-table", "nope"),
        ("ALTER CUBE c ADD DATASET w AS SELECT x, p, 1 AS y FROM c", "dataset-exists", None),
        ("ALTER CUBE c ADD DATASET e AS SELECT x, p, 1 AS w FROM c", "invalid-data", None),
        ("ALTER CUBE c ADD DATASET seed AS SELECT x, p, 1 AS y FROM c", "invalid-cube", None),
    ],
)
def test_what_cannot_be_made_is_refused_and_nothing_is_there(con, sql, code, place):
    before = con.datasets()
    error = _failure(con, sql)
    assert error.code == code
    if place is not None:
        assert error.span is not None
        assert sql[slice(*error.span)] == place
        assert error.sql == sql
    assert con.datasets() == before


# -- INSERT ------------------------------------------------------------------------------------


def test_insert_finds_columns_by_their_names(con):
    did = _did(con, "INSERT INTO c.seed SELECT 'z' AS V, 9 AS x, 1::TINYINT AS f, 1 AS p")
    assert (did["seed"]["files"], did["seed"]["rows"], did["seed"]["removed"]) == (1, 1, 0)
    assert _rows(con, "SELECT x, p, v, f FROM c WHERE x = 9") == [(9, 1, "z", 1.0)]
    assert con.sql("SELECT f FROM c").schema.field("f").type == pa.float64()


def test_insert_takes_values_in_the_order_of_select_star_or_of_a_list(con):
    assert con.sql("FROM c.seed").columns == ["f", "p", "v", "x"]
    con.sql("INSERT INTO c.seed VALUES (19.7, 2, 'q', 7), (0.1, 2, NULL, 8)")
    con.sql("INSERT INTO c.seed (x, p, F) VALUES (?, 2, 5)", [9])
    con.sql("INSERT INTO c.seed (x, p) SELECT 10, 2")
    con.sql("INSERT INTO c.seed BY POSITION SELECT 1, 2, 'r', 11")
    assert _rows(con, "SELECT x, v, f FROM c WHERE p = 2") == [
        (10, None, None),
        (11, "r", 1.0),
        (7, "q", 19.7),
        (8, None, 0.1),
        (9, None, 5.0),
    ]


def test_a_row_takes_the_place_of_the_row_with_the_same_cell(con):
    con.sql("INSERT INTO c.w VALUES (0, 99, 0)")
    assert _rows(con, "SELECT x, w FROM c WHERE p = 0") == [(0, 99), (1, 11)]


def test_insert_into_a_plain_dataset_by_uuid_and_into_a_member_by_uuid(con):
    con.sql("INSERT INTO d (day, name, n) VALUES ('2020-01-02', 'a', 4)")
    assert _rows(con, "SELECT n FROM d WHERE name = 'a'") == [(1,), (2,), (4,)]
    con.sql('INSERT INTO "c++z" SELECT 3 AS x, 23 AS z')
    assert _rows(con, "SELECT x, z FROM c WHERE z > 20") == [(1, 21), (3, 23)]


def test_a_cube_of_one_dataset_can_be_named_alone(con):
    con.sql("CREATE CUBE n DIMENSIONS (x) PARTITION BY (p) AS SELECT x, p FROM c")
    con.sql("INSERT INTO n SELECT 8 AS x, 8 AS p")
    assert _rows(con, "SELECT x FROM n WHERE p = 8") == [(8,)]


def test_insert_into_one_of_several_tables_needs_rows_of_all(con):
    con.create_dataset("m", {"a": pa.table({"k": [1], "p": [0]}), "b": pa.table({"l": [1], "p": [0]})})
    with pytest.raises(KartosqlError) as e:
        con.sql("INSERT INTO m.a SELECT 2 AS k, 0 AS p")
    assert e.value.code == "invalid-data"
    con.create_dataset("one", pa.table({"k": [1]}), table="a")
    con.sql("INSERT INTO one SELECT 2 AS k")
    con.sql("INSERT INTO one.a SELECT 3 AS k")
    assert _rows(con, "SELECT k FROM one") == [(1,), (2,), (3,)]


def test_a_statement_may_read_what_it_writes(con):
    con.sql("INSERT INTO d SELECT * REPLACE (n + 10 AS n) FROM d")
    assert _rows(con, "SELECT n FROM d") == [(1,), (11,), (12,), (13,), (2,), (3,)]


def test_registered_data_and_engine_only_queries_are_sources(con):
    con.register("given", pa.table({"x": pa.array([50], pa.uint8()), "z": [5]}))
    con.sql("INSERT INTO c.z FROM given")
    con.sql("INSERT INTO c.z PIVOT (SELECT 51 AS x, 6 AS v, 'z' AS k) ON k IN ('z') USING max(v)")
    assert _rows(con, "SELECT x, z FROM c.z WHERE x >= 50") == [(50, 5), (51, 6)]


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("INSERT INTO c.seed SELECT 9 AS x, 1 AS p, 'z' AS v", "incompatible-schema"),
        ("INSERT INTO c.seed SELECT 9 AS x, 1 AS p, 'z' AS v, 1 AS f, 2 AS g", "incompatible-schema"),
        ("INSERT INTO c.seed SELECT 9 AS x, 1 AS p, 'z' AS v, 1 AS f, 1 AS F", "incompatible-schema"),
        ("INSERT INTO c.seed VALUES (1, 2)", "incompatible-schema"),
        ("INSERT INTO c.seed (x, p) VALUES (1, 2, 3)", "incompatible-schema"),
        ("INSERT INTO c.seed (x, p, q) VALUES (1, 2, 3)", "unknown-column"),
        ("INSERT INTO c.seed (x, X) VALUES (1, 2)", "syntax-error"),
        ("INSERT INTO c.seed (p, v) VALUES (1, 'a')", "null-in-key"),
        ("INSERT INTO c.seed (x, p) VALUES (2.5, 1)", "invalid-data"),
        ("INSERT INTO c.seed (x, p) VALUES (99999999999999999999, 1)", "invalid-data"),
        ("INSERT INTO c.seed (x, p, v) VALUES (5, 1, 5)", "incompatible-schema"),
        ("INSERT INTO c.seed (x, p, f) VALUES (5, 1, '1.5')", "incompatible-schema"),
        ("INSERT INTO c.seed (x, p, f) VALUES (5, 1, 9007199254740993::BIGINT)", "invalid-data"),
        ("INSERT INTO c.seed (x, p) VALUES (5, 1), (5, 1)", "duplicate-cells"),
        ("INSERT INTO d (day, name) VALUES ('2020-13-01', 'a')", "invalid-data"),
        ("INSERT INTO d (day, name) VALUES (NULL, 'a')", "null-in-key"),
        ("INSERT INTO c SELECT 1 AS x", "unknown-table"),
        ("INSERT INTO c.nope SELECT 1 AS x", "unknown-table"),
        ("INSERT INTO nope SELECT 1 AS x", "unknown-table"),
        ("INSERT INTO c.z FROM c.z WHERE z > 99", "invalid-data"),
        ("INSERT INTO d SELECT * REPLACE (error('boom') AS n) FROM d", "invalid-value"),
        ("INSERT INTO d SELECT * FROM d WHERE n = $a", "invalid-parameters"),
        ("INSERT OVERWRITE d SELECT * FROM d WHERE n > 9", "invalid-data"),
        ("INSERT OVERWRITE d PARTITION (day) SELECT * FROM d", "invalid-argument"),
        ("INSERT OVERWRITE d PARTITION (day, n) SELECT * FROM d", "unknown-column"),
        ("INSERT OVERWRITE d PARTITION (day = 'x', name) SELECT 'a' AS name, 1 AS n, now() AS t", "invalid-data"),
        ("INSERT OVERWRITE d PARTITION (day = '2020-01-01', name) SELECT * FROM d", "incompatible-schema"),
        ("INSERT OVERWRITE d PARTITION (day = '2020-01-01', name) (day) SELECT 1", "syntax-error"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_changes(con, sql, code):
    assert _failure(con, sql).code == code


def test_registered_data_are_no_target(con):
    con.register("given", pa.table({"x": [1]}))
    error = _failure(con, "INSERT INTO given SELECT 2 AS x")
    assert (error.code, error.span) == ("unknown-table", (12, 17))


def test_overwrite_replaces_exactly_the_partitions_that_occur(con):
    did = _did(
        con, "INSERT OVERWRITE d SELECT DATE '2020-01-02' AS day, unnest(['a', 'new']) AS name, 7 AS n, NULL AS t"
    )
    assert (did["d"]["files"], did["d"]["rows"], did["d"]["removed"]) == (2, 2, 1)
    assert _rows(con, "SELECT day, name, n FROM d") == [
        (dt.date(2020, 1, 1), "a", 1),
        (dt.date(2020, 1, 2), "B", 3),
        (dt.date(2020, 1, 2), "a", 7),
        (dt.date(2020, 1, 2), "new", 7),
    ]


def test_overwrite_of_a_cube_dataset_leaves_the_others_alone(con):
    con.sql("INSERT OVERWRITE c.w PARTITION (p) SELECT x, p, w + 1 AS w FROM c.w WHERE x = 1")
    assert _rows(con, "SELECT x, w, z FROM c") == [(0, None, 20), (1, 12, 21), (2, 12, None), (3, None, None)]


def test_overwrite_takes_constants_for_partition_columns(con):
    con.sql("INSERT OVERWRITE d PARTITION (day = DATE '2020-01-02', name = 'a') (n) VALUES (5)")
    assert _rows(con, "SELECT day, n FROM d WHERE name = 'a'") == [(dt.date(2020, 1, 1), 1), (dt.date(2020, 1, 2), 5)]
    con.sql("INSERT OVERWRITE d PARTITION (name, day = '2020-01-05') SELECT 'q' AS name, 1 AS n, NULL AS t")
    assert _rows(con, "SELECT n FROM d WHERE name = 'q' AND day = '2020-01-05'") == [(1,)]


# -- DELETE ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "parameters", "left"),
    [
        ("p = 1", None, [0, 1]),
        ("P IN (0, 7)", None, [2, 3]),
        ("p IN $gone", {"gone": [0, 1]}, []),
        ("p > ?", [0], [0, 1]),
        ("c.p + 1 = 2", None, [0, 1]),
        ("p = 1 AND p = 0", None, [0, 1, 2, 3]),
        ("p = NULL", None, [0, 1, 2, 3]),
        ("true", None, []),
        ("1 = ?", [2], [0, 1, 2, 3]),
        ("NULL", None, [0, 1, 2, 3]),
    ],
)
def test_delete_removes_the_partitions_for_which_the_condition_is_true(con, where, parameters, left):
    con.sql(f"DELETE FROM c WHERE {where}", parameters)
    assert _rows(con, "SELECT x FROM c") == [(x,) for x in left]
    assert sorted(con.sql("SHOW DATASETS FROM c").arrow()["dataset"].to_pylist()) == ["seed", "w", "z"]


def test_a_dataset_without_the_columns_of_the_condition_keeps_its_rows(con):
    did = _did(con, "DELETE FROM c WHERE p = 0")
    assert {name: row["removed"] for name, row in did.items()} == {"seed": 1, "w": 1, "z": 0}
    assert _rows(con, "SELECT x, z FROM c.z") == [(0, 20), (1, 21)]


def test_delete_true_empties_datasets_without_partition_columns_too(con):
    con.sql("DELETE FROM c DATASETS (z) WHERE true")
    assert _rows(con, "SELECT x, z FROM c") == [(0, None), (1, None), (2, None), (3, None)]


@pytest.mark.parametrize("where", ["v = 'd'", "p = 1 AND X = 3", "w IS NULL AND p IN (SELECT 1)", "c.f > 2.5"])
def test_any_condition_deletes_cells_from_all_datasets_of_a_cube_at_once(con, where):
    left = _rows(con, f"FROM c WHERE NOT coalesce({where}, false)")
    con.sql("INSERT INTO c.z (x, z) SELECT x, 20 FROM c WHERE x > 1")
    gone = [x for (x,) in _rows(con, f"SELECT x FROM c WHERE {where}")]
    did = _did(con, f"DELETE FROM c WHERE {where}")
    assert len({row["id"] for row in did.values() if row["id"] is not None}) == 1
    assert did["seed"]["changed"] == len(gone) > 0
    assert [r[0] for r in _rows(con, "FROM c")] == [r[0] for r in left]
    for name in ("seed", "w", "z"):
        assert not set(gone).intersection(x for (x,) in _rows(con, f"SELECT x FROM c.{name}"))


def test_cells_keep_their_rows_of_other_datasets_where_a_delete_names_one(con):
    did = _did(con, "DELETE FROM c DATASETS (W) WHERE v = 'a'")
    assert (list(did), did["w"]["changed"]) == (["w"], 1)
    assert _rows(con, "SELECT x, w FROM c") == [(0, None), (1, 11), (2, 12), (3, None)]


def test_datasets_leaves_the_others_alone(con):
    con.sql("DELETE FROM c DATASETS (W) WHERE p = 0")
    assert _rows(con, "SELECT x, w FROM c") == [(0, None), (1, None), (2, 12), (3, None)]


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("day < DATE '2020-01-02'", [2, 3]),
        ("name = 'A'", [1, 2, 3]),
        ("upper(NAME) = 'B' OR day = '2020-01-01'", [2]),
        ("d.name = 'a' AND day = '2020-01-02'", [1, 3]),
        ("day < now()", []),
        ("NOT (name = 'a')", [1, 2]),
    ],
)
def test_delete_from_a_dataset_goes_by_its_own_partition_columns(con, where, left):
    con.sql(f"DELETE FROM d WHERE {where}")
    assert _rows(con, "SELECT n FROM d") == [(n,) for n in left]


@pytest.mark.parametrize(
    ("sql", "code", "place"),
    [
        ("DELETE FROM c WHERE nope = 1", "unknown-column", "nope"),
        ("DELETE FROM c WHERE c IS NOT NULL", "not-supported", "c"),
        ("DELETE FROM c WHERE COLUMNS(*) = 1", "not-supported", "c"),
        ("DELETE FROM c DATASETS (z) WHERE p = 1", "invalid-condition", None),
        ("DELETE FROM c DATASETS (nope) WHERE p = 1", "unknown-dataset", "nope"),
        ("DELETE FROM c WHERE p = $q", "invalid-parameters", "$q"),
        ("DELETE FROM d DATASETS (a) WHERE name = 'a'", "syntax-error", "d"),
        ("DELETE FROM c DATASETS (nope) WHERE v = 'a'", "unknown-dataset", "nope"),
        ("DELETE FROM d WHERE name::INT = 1", "invalid-value", None),
        ("DELETE FROM d WHERE (name = ", "syntax-error", None),
        ("DELETE FROM nope WHERE p = 1", "unknown-table", "nope"),
        ("DELETE FROM c.z WHERE p = 1", "unknown-column", "p"),
    ],
)
def test_a_condition_that_tells_neither_partitions_nor_rows_is_refused(con, sql, code, place):
    error = _failure(con, sql)
    assert error.code == code
    if place is not None:
        assert error.span is not None
        assert error.sql == sql
        assert sql[slice(*error.span)] == place


# -- DROP and indices --------------------------------------------------------------------------


def test_drop_dataset_and_drop_cube(con):
    assert _did(con, "DROP DATASET c.Z") == {"c++z": {"files": 1}}
    assert _did(con, "DROP DATASET d") == {"d": {"files": 3}}
    assert sorted(_did(con, "DROP CUBE C")) == ["seed", "w"]
    assert con.datasets() == []


def test_dropping_deletes_the_files_of_earlier_versions_too(tmp_path):
    with kartosql.connect(tmp_path, read_only=False) as con:
        con.sql(
            "CREATE DATASET d PARTITION BY (k) INDEX (n) AS SELECT range AS id, range % 3 k, range AS n FROM range(9)"
        )
        con.create_skipping_index("d", minmax=["id"])
        for sql in ("DELETE FROM d WHERE id < 4", "INSERT OVERWRITE d SELECT * FROM d", "RESTORE d TO VERSION 2"):
            con.sql(sql)
        con.sql("DROP DATASET d")
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        assert con.sql("SHOW TABLES").rows() == []


def test_what_is_not_there_is_dropped_only_if_exists(con):
    for sql in ("DROP CUBE IF EXISTS nope", "DROP DATASET IF EXISTS nope", "DROP DATASET IF EXISTS c.nope"):
        assert con.sql(sql).rows() == []
        error = _failure(con, sql.replace(" IF EXISTS", ""))
        assert error.code == "unknown-table"
    assert "Use one of c.seed" in str(_failure(con, "DROP DATASET IF EXISTS c").hint)
    assert _failure(con, "DROP CUBE d").code == "unknown-table"


@pytest.mark.filterwarnings("ignore:.*holds NULL, which its index leaves out")
def test_create_and_drop_index(con):
    made = con.sql("CREATE INDEX ON c.seed (V, f)").arrow().to_pylist()
    assert [(r["dataset"], r["column"], r["values"]) for r in made] == [("seed", "v", 3), ("seed", "f", 4)]
    assert "inverted index" in str(con.sql("EXPLAIN SELECT x FROM c WHERE v = 'd'").rows())
    con.sql("DROP INDEX ON c.seed (f)")
    assert con.sql("SHOW INDEXES FROM c.seed").arrow()["column"].to_pylist() == ["v", "x"]
    assert _rows(con, "SELECT x FROM c WHERE v = 'd'") == [(3,)]
    assert _failure(con, "DROP INDEX ON c.seed (f)").code == "not-indexed"
    assert _failure(con, "CREATE INDEX ON c.seed (nope)").code == "unknown-column"
    assert _failure(con, "CREATE INDEX ON c (v)").code == "unknown-table"


# -- around ------------------------------------------------------------------------------------

STATEMENTS = [
    "CREATE CUBE n DIMENSIONS (x) PARTITION BY (p) AS SELECT x, p FROM c",
    "ALTER CUBE c ADD DATASET e AS SELECT x, p, 1 AS y FROM c",
    "CREATE DATASET e AS SELECT 1 AS x",
    "INSERT INTO c.z VALUES (1, 2)",
    "INSERT OVERWRITE c.z VALUES (1, 2)",
    "DELETE FROM c WHERE p = 1",
    "DROP CUBE c",
    "DROP DATASET d",
    "CREATE INDEX ON c.seed (v)",
    "DROP INDEX ON c.seed (v)",
    "ALTER DATASET d SET METADATA (a = 1)",
    "COPY CUBE c TO 'memory://elsewhere'",
    "COMPACT c",
    "CLEANUP c",
    "CLEANUP c DRY RUN",
    "CHECK c",
    "CHECK c FULL REPAIR",
]


@pytest.mark.parametrize("sql", STATEMENTS)
def test_a_read_only_connection_refuses_every_statement_that_writes(con, sql):
    with kartosql.connect(con.store.url, read_only=True) as reader:
        error = _failure(reader, sql)
    assert error.code == "read-only"
    assert "--write" in str(error.hint)


@pytest.mark.parametrize("sql", [s for s in STATEMENTS if s.split()[0] in ("DROP", "COMPACT", "CLEANUP", "CHECK")])
def test_statements_without_a_query_take_no_parameters(con, sql):
    assert _failure(con, sql, [1]).code == "invalid-parameters"


@pytest.mark.parametrize("sql", ["EXPLAIN INSERT INTO d VALUES (1)", "DESCRIBE DELETE FROM d WHERE true"])
def test_statements_that_write_are_not_explained(con, sql):
    assert _failure(con, sql).code == "syntax-error"


def test_a_closed_connection_writes_nothing(con):
    con.close()
    with pytest.raises(KartosqlError) as e:
        con.sql("DROP CUBE c")
    assert e.value.code == "connection-closed"


def test_an_overwrite_of_what_was_read_sees_rivals(con, monkeypatch):
    """The rows come from before the rival's commit, so replacing its rows would lose them."""
    rival = kartosql.connect(con.store.url)
    plain = QueryRows._run

    def late(self: QueryRows) -> Any:
        monkeypatch.setattr(QueryRows, "_run", plain)
        yield from plain(self)
        rival.sql("INSERT INTO d (day, name, n) VALUES ('2020-01-02', 'a', 40)")

    monkeypatch.setattr(QueryRows, "_run", late)
    with pytest.raises(ConcurrentCommit):
        con.sql("INSERT OVERWRITE d SELECT * REPLACE (n + 1 AS n) FROM d WHERE name = 'a'")
    assert _rows(con, "SELECT n FROM d WHERE name = 'a'") == [(1,), (2,), (40,)]


def test_an_overwrite_reads_what_was_committed_until_it_began(con, monkeypatch):
    rival = kartosql.connect(con.store.url)
    begin = con._session.operation

    def late(name: str) -> Any:
        rival.sql("INSERT INTO d (day, name, n) VALUES ('2020-01-02', 'a', 40)")
        return begin(name)

    monkeypatch.setattr(con._session, "operation", late)
    con.sql("INSERT OVERWRITE d SELECT * REPLACE (n + 1 AS n) FROM d WHERE name = 'a'")
    assert _rows(con, "SELECT n FROM d WHERE name = 'a'") == [(2,), (3,), (41,)]


def test_a_query_whose_columns_change_meanwhile_is_not_written(con, monkeypatch):
    rival = kartosql.connect(con.store.url)
    begin = con._session.operation

    def late(name: str) -> Any:
        rival.sql("CREATE OR REPLACE DATASET e AS SELECT 'text' AS n")
        return begin(name)

    con.sql("CREATE DATASET e AS SELECT 1 AS n")
    monkeypatch.setattr(con._session, "operation", late)
    with pytest.raises(ConcurrentCommit):
        con.sql("INSERT INTO d (n) SELECT n FROM e")


def test_interrupt_stops_the_query_of_a_statement_and_leaves_no_file(con):
    files = {e.name for e in con.store.list_root()}
    sql = (
        "CREATE DATASET e AS SELECT max(a.i * b.i * c.i) AS m FROM range(3000) a(i), range(3000) b(i), range(3000) c(i)"
    )
    raised: list[KartosqlError] = []

    def run() -> None:
        try:
            con.sql(sql)
        except KartosqlError as e:
            raised.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        con.interrupt()
        thread.join(0.05)
    assert [e.code for e in raised] == ["interrupted"]
    assert {e.name for e in con.store.list_root()} == files


def test_a_dropped_cube_may_lack_a_schema(con):
    con.store.put("c++w/table/_common_metadata", b"torn")
    assert sorted(_did(con, "DROP CUBE c")) == ["seed", "w", "z"]
    assert con.datasets() == ["d"]


# -- upkeep ------------------------------------------------------------------------------------


class Calls:
    """Stands for what the statements of upkeep call; what it does has tests of its own."""

    def __init__(self, con: kartosql.Connection, monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
        self.made: list[Any] = []
        for call, answer in answers.items():
            monkeypatch.setattr(upkeep, call, self._noted(call, answer))
        begin = con._session.operation
        monkeypatch.setattr(con._session, "operation", lambda name, target=None: target or begin(name))

    def _noted(self, call: str, answer: Any) -> Any:
        def made(*given: Any, **named: Any) -> Any:
            self.made.append((call, *(g for g in given if isinstance(g, str | list)), named))
            return answer

        return made


DONE = {"files": 1, "rows": 2, "bytes": 3, "removed": 4, "sequence": 5, "id": "a" * 32}


@pytest.mark.parametrize(
    ("sql", "call"),
    [
        ("COMPACT C", ("compact", "c", {})),
        ("COMPACT c.W", ("compact", "c", ["w"], {})),
        ('COMPACT "c++w"', ("compact", "c", ["w"], {})),
        ("COPY CUBE c TO 'memory://other'", ("copy_cube", "c", "memory://other", {"name": None, "datasets": None})),
        (
            "COPY CUBE c DATASETS (W) TO 'memory://other' AS n",
            ("copy_cube", "c", "memory://other", {"name": "n", "datasets": ["w"]}),
        ),
    ],
)
def test_compact_and_copy_name_cube_and_dataset(con, monkeypatch, sql, call):
    calls = Calls(con, monkeypatch, compact={"w": DONE}, copy_cube={"w": DONE})
    assert con.sql(sql).arrow().to_pylist() == [{"dataset": "w", **DONE}]
    assert calls.made == [call]


def test_compact_of_a_plain_dataset(con, monkeypatch):
    calls = Calls(con, monkeypatch, compact=DONE)
    assert con.sql("COMPACT D").arrow().to_pylist() == [{"dataset": "d", **DONE}]
    assert calls.made == [("compact", "d", {})]


class File(NamedTuple):
    key: str
    bytes: int
    since: dt.datetime
    due: dt.datetime
    removed: bool


@pytest.mark.parametrize("dry_run", [False, True])
def test_cleanup_lists_each_file(con, monkeypatch, dry_run):
    now = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    file = File("c++w/table/x.parquet", 7, now, now + dt.timedelta(7), False)
    calls = Calls(con, monkeypatch, cleanup_cube={"w": {"files": [file]}}, garbage_collect={"files": [file]})
    for name, dataset in (("c", "w"), ("d", "d"), ("c.w", "c++w")):
        found = con.sql(f"CLEANUP {name}{' DRY RUN' * dry_run}").arrow().to_pylist()
        assert found == [{"dataset": dataset, **file._asdict()}]
    assert calls.made == [
        ("cleanup_cube", "c", {"dry_run": dry_run}),
        ("garbage_collect", "d", {"dry_run": dry_run}),
        ("garbage_collect", "c++w", {"dry_run": dry_run}),
    ]


class Finding(NamedTuple):
    dataset: str
    check: str
    severity: str
    key: str | None
    message: str
    repairable: bool


def test_check_lists_what_it_found(con, monkeypatch):
    finding = Finding("w", "files", "error", None, "it is missing", True)
    calls = Calls(con, monkeypatch, check=[finding])
    assert con.sql("CHECK c FULL").arrow().to_pylist() == [finding._asdict()]
    con.sql("CHECK c.w REPAIR")
    assert calls.made == [
        ("check", "c", {"full": True, "repair": False}),
        ("check", "c++w", {"full": False, "repair": True}),
    ]


@pytest.mark.parametrize("sql", ["COMPACT nope", "CHECK c.nope", "CLEANUP nope", "COPY CUBE d TO 'memory://x'"])
def test_upkeep_of_what_is_not_there_is_refused(con, sql):
    assert _failure(con, sql).code == "unknown-table"


def test_a_broken_cube_is_still_a_name_for_upkeep(con, monkeypatch):
    calls = Calls(con, monkeypatch, check=[])
    con.store.put("c++seed/table/_common_metadata", b"torn")
    assert con.sql("CHECK c").arrow().num_rows == 0
    assert [call[1] for call in calls.made] == ["c"]


def test_compact_merges_files_and_cleanup_lists_those_it_replaced(con):
    con.sql("INSERT INTO c.w VALUES (0, 99, 0)")
    before = _rows(con, "SELECT x, p, w FROM c")
    did = _did(con, "COMPACT c.w")
    assert (did["w"]["files"], did["w"]["rows"], did["w"]["removed"]) == (1, 2, 2)
    assert _rows(con, "SELECT x, p, w FROM c") == before
    con.sql("SET history_versions = 0")
    listed = con.sql("CLEANUP c DRY RUN").arrow().to_pylist()
    assert {(f["dataset"], f["removed"]) for f in listed if "/table/" in f["key"]} == {("w", False)}
    assert len([f for f in listed if "/table/" in f["key"]]) == 2
    con.sql("CLEANUP c")
    assert _rows(con, "SELECT x, p, w FROM c") == before
