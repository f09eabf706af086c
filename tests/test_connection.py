"""The connection: opening, statements that are no SELECT, registered data, building, closing."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest

import kartosql
from kartosql.errors import KartosqlError, SqlError, StoreError, UsageError
from kartosql.store import Store
from written import write_dataset

CUBE = kartosql.Cube("c", ["x"], ["p"], index_columns=["i"])


@pytest.fixture
def connection() -> Any:
    url = f"memory://{uuid.uuid4().hex}"
    made = kartosql.connect(url)
    made.build_cube(
        CUBE,
        {"seed": pa.table({"x": [0, 1], "p": [0, 1], "i": [5, 6]}), "e": pa.table({"x": [0], "p": [0], "w": ["a"]})},
    )
    write_dataset(Store(url), "d", pa.table({"k": ["a", "b"]}))
    return made


def test_opening_what_is_not_there(tmp_path):
    with pytest.raises(StoreError) as e:
        kartosql.connect(str(tmp_path / "nothing"))
    assert e.value.code == "store-not-found"
    assert "read_only=False" in e.value.hint
    with pytest.raises(StoreError) as e:
        kartosql.connect("nosuchprotocol://x")
    assert e.value.code == "store-failed"


def test_the_first_write_makes_a_new_store(tmp_path, caplog):
    con = kartosql.connect(tmp_path / "new", read_only=False)
    assert caplog.messages == [f"{tmp_path}/new is new: what is written makes it a store."]
    assert con.sql("SHOW TABLES").rows() == []
    assert not (tmp_path / "new").exists()
    con.create_dataset("d", {"a": [1, None], "b": ["x", "y"]})
    assert con.sql("SELECT a, b FROM d ORDER BY b").rows() == [(1, "x"), (None, "y")]
    assert repr(con.tables()) == "<tables d>"
    kartosql.connect(tmp_path / "new", read_only=False)
    assert len(caplog.messages) == 1
    for slip in (tmp_path / "news", tmp_path / "none" / "new"):
        with pytest.raises(StoreError) as e:
            kartosql.connect(slip, read_only=False)
        assert e.value.code == "store-not-found"
    for other in ("new2", "2new", "old", "x"):
        kartosql.connect(tmp_path / other, read_only=False)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"thread": 1}, "unknown-setting"),
        ({"threads": "x"}, "invalid-setting"),
        ({"engine": "nothing"}, "invalid-setting"),
    ],
)
def test_settings_are_checked_at_once(tmp_path, settings, code):
    with pytest.raises(UsageError) as e:
        kartosql.connect(str(tmp_path), **settings)
    assert e.value.code == code


def test_a_pathlike_is_a_url(tmp_path):
    with kartosql.connect(tmp_path) as connection:
        assert connection.sql("SELECT 1").rows() == [(1,)]


def test_an_empty_store(tmp_path):
    connection = kartosql.connect(str(tmp_path))
    assert connection.cubes() == {}
    assert connection.datasets() == []
    with pytest.raises(SqlError) as e:
        connection.sql("SELECT * FROM c")
    assert e.value.hint == "The store holds no datasets."


def test_an_unknown_table_in_a_store_that_is_not_there_yet(tmp_path):
    with kartosql.connect(tmp_path / "new", read_only=False) as connection, pytest.raises(SqlError) as e:
        connection.sql("SELECT * FROM c")
    assert e.value.hint == f"There is no '{tmp_path}/new' yet; the first write makes it."


@pytest.mark.parametrize("data", [pa.table({"a": [1]}), {"a": [1]}, [{"a": 1}]], ids=["arrow", "lists", "rows"])
def test_an_unknown_table_that_is_a_variable_is_to_be_registered(connection, data):
    for run in (connection.sql, connection.explain):
        with pytest.raises(SqlError) as e:
            run("SELECT * FROM data")
        assert e.value.hint == "con.register('data', data) makes a table of the variable."


@pytest.mark.parametrize("name", ["kartosql", "connection", "number", "nowhere"])
def test_other_variables_are_no_tables(connection, name):
    number = 3
    with pytest.raises(SqlError) as e:
        connection.sql(f"SELECT {number} FROM {name}")
    assert e.value.hint == "SHOW TABLES lists what the store holds."


def test_cubes_and_datasets(connection):
    (cube,) = connection.cubes().values()
    assert cube == CUBE
    assert connection.datasets() == ["c++e", "c++seed", "d"]


def test_each_statement_sees_what_was_committed_before(connection):
    query = connection.sql("SELECT count(*) FROM d")
    write_dataset(connection.store, "d", pa.table({"k": ["z"]}), overwrite=True)
    write_dataset(connection.store, "d2", pa.table({"k": ["z"]}))
    assert connection.sql("SELECT count(*) FROM d").rows() == [(1,)]
    assert connection.sql("SELECT count(*) FROM d2").rows() == [(1,)]
    assert query.rows() == [(2,)]  # its snapshot is from before, and files never change


def test_settings_hold_for_the_statements_that_follow(connection):
    assert connection.sql("SET TimeZone = 'Asia/Tokyo'").rows()[0][:2] == ("TimeZone", "Asia/Tokyo")
    assert connection.sql("SELECT CAST(TIMESTAMPTZ '2020-01-01 00:00:00+00' AS VARCHAR)").rows() == [
        ("2020-01-01 09:00:00+09",)
    ]
    assert connection.sql("RESET timezone").rows()[0][1] == "UTC"
    assert connection.sql("SELECT CAST(TIMESTAMPTZ '2020-01-01 00:00:00+00' AS VARCHAR)").rows() == [
        ("2020-01-01 00:00:00+00",)
    ]


def test_a_query_keeps_the_settings_it_was_made_with(connection):
    query = connection.sql("SELECT CAST(TIMESTAMPTZ '2020-01-01 00:00:00+00' AS VARCHAR)")
    connection.sql("SET TimeZone = 'Asia/Tokyo'")
    assert query.rows() == [("2020-01-01 00:00:00+00",)]


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SET nothing = 1", "unknown-setting"),
        ("RESET nothing", "unknown-setting"),
        ("SET threads = 'x'", "invalid-setting"),
    ],
)
def test_settings_that_do_not_exist(connection, sql, code):
    with pytest.raises(UsageError) as e:
        connection.sql(sql)
    assert e.value.code == code


def test_a_setting_that_the_engine_refuses_is_our_error(connection):
    with pytest.raises(KartosqlError) as e:
        connection.sql("SET TimeZone = 'Not/AZone'")
    assert e.value.code == "invalid-setting"


def test_explain_gives_lines_or_json(connection):
    lines = [line for (line,) in connection.sql("EXPLAIN SELECT x FROM c WHERE i = 6").rows()]
    assert any("i = 6 inverted index 2 -> 1" in " ".join(line.split()) for line in lines)
    ((text,),) = connection.sql("EXPLAIN (FORMAT JSON) SELECT x FROM c WHERE i = 6").rows()
    report = json.loads(text)
    assert report.pop("phases").keys() >= {"parse", "bind", "conditions", "files"}
    again = connection.explain("SELECT x FROM c WHERE i = 6").to_dict()
    assert report == {name: value for name, value in again.items() if name != "phases"}
    assert report["scans"][0]["table"] == "c"
    assert "actual" not in report


def test_explain_analyze_adds_what_was_read(connection):
    ((text,),) = connection.sql("EXPLAIN (ANALYZE, FORMAT JSON) SELECT x FROM c WHERE i = 6").rows()
    assert json.loads(text)["actual"]["rows"] == 1
    lines = [line.split() for (line,) in connection.sql("EXPLAIN ANALYZE SELECT x FROM c WHERE i = 6").rows()]
    assert ["rows:", "1"] in lines


def test_explain_takes_parameters(connection):
    assert connection.explain("EXPLAIN SELECT x FROM c WHERE i = ?", [6]).files_selected == 1
    assert connection.sql("EXPLAIN SELECT x FROM c WHERE i = $i", {"i": 6}).rows()


def test_only_a_select_can_be_explained(connection):
    with pytest.raises(UsageError) as e:
        connection.explain("SHOW TABLES")
    assert e.value.code == "not-explainable"


# -- registered data -------------------------------------------------------------------------------


def test_registered_data_is_a_table(connection):
    connection.register("mine", pa.table({"x": [0, 7], "note": ["n", "m"]}))
    assert connection.sql("SELECT c.x, note FROM c JOIN Mine USING (x)").rows() == [(0, "n")]
    assert connection.sql("SELECT note FROM mine WHERE x NOT IN (SELECT x FROM c)").rows() == [("m",)]
    assert connection.sql("DESCRIBE mine").columns == ["column", "type", "role", "dataset", "index"]


def test_registered_data_may_hide_a_dataset(connection):
    connection.register("d", pa.table({"k": ["mine"]}))
    assert connection.sql("SELECT k FROM d").rows() == [("mine",)]


def test_registered_data_is_replaced(connection):
    connection.register("mine", pa.table({"a": [1]}))
    connection.register("mine", pa.table({"b": [2]}))
    assert connection.sql("SELECT * FROM mine").arrow().to_pydict() == {"b": [2]}


def test_frames_and_results_and_streams_can_be_registered(connection):
    import pandas
    import polars

    connection.register("a", pandas.DataFrame({"v": [1]}))
    connection.register("b", polars.DataFrame({"v": [2]}))
    connection.register("r", connection.sql("SELECT 3 AS v"))
    connection.register("s", pa.table({"v": [4]}).to_reader())
    sql = "SELECT a.v, b.v, r.v, s.v FROM a, b, r, s"
    assert connection.sql(sql).rows() == connection.sql(sql).rows() == [(1, 2, 3, 4)]


def test_rows_of_python_files_and_datasets_can_be_registered(connection, tmp_path):
    (tmp_path / "a.csv").write_text("v\n1\n")
    dataset = pyarrow.dataset.InMemoryDataset(pa.table({"v": [1]}))
    for data in ({"v": [1]}, [{"v": 1}], str(tmp_path / "a.csv"), tmp_path / "*.csv", dataset):
        connection.register("mine", data)
        assert connection.sql("SELECT v FROM mine").rows() == [(1,)]


def test_registered_columns_that_differ_only_in_case_stay_apart(connection):
    connection.register("mine", pa.table({"v": [1], "V": ["a"]}))
    assert connection.sql("SELECT v, V FROM mine").rows() == [(1, "a")]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("", pa.table({"a": [1]})),
        (None, pa.table({"a": [1]})),
        ("a\0", pa.table({"a": [1]})),
        ("a", 5),
        ("a", object()),
    ],
)
def test_what_cannot_be_registered(connection, name, data):
    with pytest.raises(UsageError) as e:
        connection.register(name, data)
    assert e.value.code == "invalid-argument"


# -- life ------------------------------------------------------------------------------------------


def test_a_closed_connection_answers_nothing_more(connection):
    kept = connection.sql("SELECT x FROM c ORDER BY x")
    with connection:
        assert kept.rows() == [(0,), (1,)]
    for act in (
        lambda: connection.sql("SELECT 1"),
        lambda: connection.explain("SELECT 1"),
        connection.cubes,
        connection.datasets,
        lambda: connection.query_cube("c"),
        lambda: connection.register("a", pa.table({"a": [1]})),
        lambda: connection.build_cube(CUBE, {}),
    ):
        with pytest.raises(UsageError) as e:
            act()
        assert e.value.code == "connection-closed"
    connection.close()
    assert kept.rows() == [(0,), (1,)]


def test_a_read_only_connection_builds_nothing(tmp_path):
    with pytest.raises(UsageError) as e:
        kartosql.connect(str(tmp_path), read_only=True).build_cube(CUBE, {"seed": pa.table({"x": [1], "p": [1]})})
    assert e.value.code == "read-only"
    assert list(tmp_path.iterdir()) == []


def test_a_cube_that_was_built_is_there(connection):
    other = kartosql.Cube("other", ["x"], ["p"])
    summary = connection.build_cube(other, pa.table({"x": [1, 2], "p": [1, 1], "v": [None, 2.5]}))
    assert summary["seed"]["rows"] == 2
    assert connection.sql("SELECT x, v FROM other ORDER BY x").rows() == [(1, None), (2, 2.5)]


def test_an_unknown_engine_is_refused(connection):
    with pytest.raises(UsageError) as e:
        connection.sql("SELECT 1", engine="nothing")
    assert e.value.code == "invalid-setting"
    assert connection.sql("SELECT 1", engine="duckdb").rows() == [(1,)]


def test_a_query_loads_nothing_that_it_does_not_need(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", pa.table({"a": [1], "p": [1]}), partition_on="p")
    heavy = ("pandas", "polars", "pyspark", "rich", "prompt_toolkit", "pyarrow.compute", "fsspec", "cryptography")
    rooms = (
        "kartosql.sources",
        "kartosql.formats.xskipper.store",
        "kartosql.formats.odf.chain",
        "kartosql.indexes.skipping",
    )
    code = (
        f"import sys, kartosql; con = kartosql.connect({str(tmp_path)!r}); "
        f"con.sql('SELECT a FROM d WHERE p = 1 AND a > 0').rows(); "
        f"print([m for m in {heavy + rooms} if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_what_is_read_without_an_engine_loads_no_pandas(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", pa.table({"a": [1, 2], "s": ["x", "y"], "p": [1, 1]}), partition_on="p")
    code = (
        f"import sys, kartosql; con = kartosql.connect({str(tmp_path)!r}, keep_answers=False); "
        "told = [con.sql(f\"SELECT s, a FROM d WHERE a = {n} AND s = 'x'\") for n in (1, 2, 1, 2)]; "
        "print([q.rows() for q in told], 'without it' in told[-1].report.engine_reason, 'pandas' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[[('x', 1)], [], [('x', 1)], []] True False"


def test_a_list_of_tables_loads_no_source(tmp_path):
    code = (
        "import sys; from kartosql.cli.batch import run_batch; from kartosql.cli.options import parse_options; "
        f"run_batch(parse_options([{str(tmp_path)!r}, '-c', 'SHOW TABLES'])); "
        "print([m for m in ('fsspec', 'pyarrow.parquet', 'kartosql.sources.folder') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.splitlines()[-1] == "[]"


def test_the_import_is_light():
    heavy = ("pandas", "polars", "pyspark", "rich", "prompt_toolkit")
    code = f"import sys, kartosql; kartosql.connect; print([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
