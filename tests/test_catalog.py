"""The answers of SHOW and DESCRIBE."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from kartosql.text.types import type_name
from written import build_cube, write_dataset

CUBE = Cube("c", ["x"], ["p"], index_columns=["i"])


@pytest.fixture
def connection(store: Store) -> Any:
    seed = pa.table({"x": [0, 1, 2], "p": [0, 0, 1], "i": [5, 6, 7], "v": [1.5, None, 2.5]})
    build_cube(store, CUBE, {"seed": seed, "e-1": pa.table({"x": [0], "p": [0], "w": ["a"]})})
    write_dataset(store, "d", pa.table({"k": ["a", "b"], "q": ["é/x", "it's"]}), partition_on="q", index_columns=["k"])
    made = kartosql.connect(store.url)
    made.register("mine", pa.table({"a": [1]}))
    return made


def _rows(connection: Any, sql: str) -> list[dict[str, Any]]:
    return list(connection.sql(sql).arrow().to_pylist())


def test_datasets_of_which_a_document_says_that_there_are_none_are_not_listed(connection, store):
    before = [connection.sql(f"SHOW {what}").rows() for what in ("CUBES", "TABLES", "DATASETS")]
    uuids = connection.datasets()
    for uuid in ("gone", "c++coming"):
        builders.write_document(store, builders.document(uuid, [], metadata={"kartosql_absent": True}))
    assert [connection.sql(f"SHOW {what}").rows() for what in ("CUBES", "TABLES", "DATASETS")] == before
    assert connection.datasets() == uuids
    with pytest.raises(KartosqlError, match="no dataset 'gone'") as e:
        connection.sql("SELECT * FROM gone")
    assert e.value.code == "unknown-table"


def test_a_dataset_whose_document_is_torn_is_listed(connection, store):
    store.put("torn.by-dataset-metadata.json", b"{")
    assert "torn" in connection.datasets()


def test_show_cubes(connection):
    assert _rows(connection, "SHOW CUBES") == [
        {
            "cube": "c",
            "seed_dataset": "seed",
            "dimension_columns": ["x"],
            "partition_columns": ["p"],
            "index_columns": ["i"],
            "datasets": ["e-1", "seed"],
        }
    ]


def test_show_tables_names_what_can_be_selected_from(connection):
    tables = [(r["table"], r["kind"]) for r in _rows(connection, "SHOW TABLES")]
    assert tables == [
        ("c", "cube"),
        ('c."e-1"', "dataset of a cube"),
        ("c.seed", "dataset of a cube"),
        ("d", "dataset"),
        ("mine", "registered"),
    ]
    for name, _ in tables:
        assert connection.sql(f"SELECT * FROM {name}").columns


@pytest.mark.parametrize("uuid", ["2020-x", "select", "a-b"])
def test_tables_are_shown_as_they_must_be_written(connection, uuid):
    write_dataset(connection.store, uuid, pa.table({"k": [1]}))
    build_cube(connection.store, Cube(f"{uuid}1", ["x"], ["p"], seed_dataset="select"), pa.table({"x": [1], "p": [1]}))
    for row in _rows(connection, "SHOW TABLES"):
        assert connection.sql(f"SELECT * FROM {row['table']}").columns, row


def test_show_datasets(connection):
    rows = {r["dataset"]: r for r in _rows(connection, "SHOW DATASETS")}
    assert list(rows) == ["c++e-1", "c++seed", "d"]
    assert rows["d"] == {
        "dataset": "d",
        "tables": ["table"],
        "partition_keys": ["q"],
        "files": 2,
        "indexes": ["k"],
        "problem": None,
    }


def test_show_datasets_says_what_is_broken(connection):
    connection.store.put("x.by-dataset-metadata.json", b"{")
    connection.store.put("y.by-dataset-metadata.json", b"{}")
    rows = {r["dataset"]: r for r in _rows(connection, "SHOW DATASETS")}
    assert "x.by-dataset-metadata.json" in rows["x"]["problem"]
    assert rows["y"]["problem"]
    assert rows["y"]["files"] is None
    assert rows["d"]["problem"] is None


def test_show_datasets_of_a_cube(connection):
    rows = {r["dataset"]: r for r in _rows(connection, "SHOW DATASETS FROM c")}
    assert rows["seed"]["role"] == "seed"
    assert rows["e-1"] == {
        "dataset": "e-1",
        "role": "enrichment",
        "join_key": ["x", "p"],
        "partition_keys": ["p"],
        "payload_columns": ["w"],
        "indexes": [],
        "files": 1,
    }


def test_show_partitions(connection):
    assert _rows(connection, "SHOW PARTITIONS FROM c.seed") == [
        {"dataset": "seed", "partition": "p = 0", "files": 1},
        {"dataset": "seed", "partition": "p = 1", "files": 1},
    ]
    assert [r["partition"] for r in _rows(connection, "SHOW PARTITIONS FROM d")] == ['q = "it\'s"', "q = 'é/x'"]


def test_show_indexes(connection):
    rows = _rows(connection, "SHOW INDEXES FROM c")
    assert [(r["dataset"], r["column"], r["type"]) for r in rows] == [("seed", "i", "BIGINT"), ("seed", "x", "BIGINT")]
    assert all(connection.store.size(r["key"]) for r in rows)


def test_show_files_and_stats(connection):
    files = _rows(connection, "SHOW FILES FROM d")
    assert [r["bytes"] for r in files] == [connection.store.size(r["key"]) for r in files]
    (stats,) = _rows(connection, "SHOW STATS FROM d")
    assert (stats["partitions"], stats["files"], stats["rows"]) == (2, 2, 2)
    assert stats["bytes"] == sum(r["bytes"] for r in files)


def test_stats_count_overwritten_rows_too(connection):
    builders.append(connection.store, "c++seed", pa.table({"x": [0], "p": [0], "i": [9], "v": [0.5]}))
    assert next(r for r in _rows(connection, "SHOW STATS FROM c") if r["dataset"] == "seed")["rows"] == 4


def test_stats_of_a_damaged_file_are_an_error(connection):
    (key, *_) = [r["key"] for r in _rows(connection, "SHOW FILES FROM d")]
    connection.store.put(key, b"PAR1 torn")
    with pytest.raises(KartosqlError) as e:
        connection.sql("SHOW STATS FROM d")
    assert e.value.code == "corrupt-file"
    assert key in e.value.message


def test_show_settings(connection):
    rows = {r["name"]: r["value"] for r in _rows(connection, "SHOW SETTINGS")}
    assert rows["TimeZone"] == "UTC"
    connection.sql("SET threads = 2")
    assert {r["name"]: r["value"] for r in _rows(connection, "SHOW SETTINGS")}["threads"] == "2"


def test_describe_a_cube(connection):
    rows = {r.pop("column"): r for r in _rows(connection, "DESCRIBE c")}
    assert list(rows) == ["i", "p", "v", "w", "x"]
    assert rows["x"] == {"type": "BIGINT", "role": "dimension", "dataset": "seed", "index": "inverted index"}
    assert rows["p"] == {"type": "BIGINT", "role": "partition", "dataset": "seed", "index": "partition key"}
    assert rows["i"] == {"type": "BIGINT", "role": "index", "dataset": "seed", "index": "inverted index"}
    assert rows["w"] == {"type": "VARCHAR", "role": "payload", "dataset": "e-1", "index": None}


def test_describe_a_query(connection):
    assert _rows(connection, "DESCRIBE SELECT x + 0.5 AS y, k FROM c, d") == [
        {"column": "y", "type": type_name(connection.sql("SELECT x + 0.5 AS y FROM c").schema.field("y").type)},
        {"column": "k", "type": "VARCHAR"},
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "SHOW PARTITIONS FROM nope",
        "SHOW FILES FROM c.nope",
        "DESCRIBE nope",
        "SHOW INDEXES FROM mine",
        "SHOW STATS FROM mine",
    ],
)
def test_what_is_not_there_cannot_be_shown(connection, sql):
    with pytest.raises(KartosqlError) as e:
        connection.sql(sql)
    assert e.value.code == "unknown-table"
    assert e.value.sql == sql


def test_broken_cubes_are_left_out_with_a_warning(connection):
    connection.store.put("z++seed.by-dataset-metadata.json", b"{")
    with pytest.warns(KartosqlWarning, match="left out"):
        assert [r["cube"] for r in _rows(connection, "SHOW CUBES")] == ["c"]
