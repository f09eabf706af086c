"""How often a statement asks the store, and what for."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.engines.duckdb import remote
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube, write_dataset

CUBE = Cube("c", ["x"], ["p"], index_columns=["i1", "j1"])


@pytest.fixture(params=["memory", "local"])
def connection(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """A cube of three datasets with 50 partitions each, and a dataset beside it."""
    store = Store(str(tmp_path)) if request.param == "local" else Store(f"memory://{uuid.uuid4().hex}")
    size = range(50)
    seed = pa.table({"x": list(size), "p": list(size), "i1": [x * 2 for x in size], "v": [1.5] * 50})
    e = pa.table({"x": list(size), "p": list(size), "j1": [x * 3 for x in size], "w": ["w"] * 50})
    g = pa.table({"x": list(size), "p": list(size), "k": ["k"] * 50})
    build_cube(store, CUBE, {"seed": seed, "e": e, "g": g})
    write_dataset(store, "d", pa.table({"x": [1]}))
    return kartosql.connect(store.url)


def _calls(connection: Any, act: Any) -> tuple[int, list[str]]:
    counter = connection.store.counter
    lists, at = counter.lists, len(counter.keys)
    act()
    return counter.lists - lists, sorted(counter.keys[at:])


def _metadata(*names: str) -> list[str]:
    return sorted(f"{n}.by-dataset-metadata.json" for n in names)


def _with_schemas(*names: str) -> list[str]:
    return sorted([*_metadata(*names), *(f"{n}/table/_common_metadata" for n in names)])


MEMBERS = ("c++e", "c++g", "c++seed")


def _opened(connection: Any) -> list[str]:
    """What is read to open the cube; in memory only reading shows that no document was written meanwhile."""
    again = [] if connection.store.is_local else [f"{n}.by-dataset-metadata.json" for n in MEMBERS]
    return sorted([*_metadata(*MEMBERS), *again])


def test_a_cube_is_opened_with_one_listing_and_one_read_per_dataset(connection):
    assert _calls(connection, lambda: connection.sql("SELECT x FROM c").schema) == (1, _opened(connection))


def test_without_a_history_the_schema_files_are_read_too(connection):
    builders.forget_history(connection.store, *MEMBERS)
    again = [] if connection.store.is_local else _metadata(*MEMBERS)
    lists, keys = _calls(connection, lambda: connection.sql("SELECT x FROM c").schema)
    assert (lists, keys) == (1, sorted([*_with_schemas(*MEMBERS), *again]))


@pytest.mark.parametrize("sql", ["SELECT x FROM c WHERE p = 1", "SELECT w, k FROM c WHERE p IN (1, 2) AND v > 1"])
def test_partition_keys_are_pruned_without_an_index_file(connection, sql):
    assert _calls(connection, lambda: connection.explain(sql)) == (1, _opened(connection))


@pytest.mark.parametrize(
    ("where", "indices"),
    [
        ("i1 = 4", ["c++seed/indices/i1"]),
        ("j1 = 6", ["c++e/indices/j1"]),
        ("i1 = 4 AND j1 = 6", ["c++e/indices/j1", "c++seed/indices/i1"]),
        ("i1 = 4 OR v = 2", []),
        ("i1 + x = 6", []),
        ("x = 2", ["c++seed/indices/x"]),
    ],
)
def test_index_files_are_read_only_where_a_condition_needs_them(connection, where, indices):
    lists, keys = _calls(connection, lambda: connection.explain(f"SELECT w FROM c WHERE {where}"))
    extra = sorted(k.rpartition("/")[0] for k in keys if k not in _metadata(*MEMBERS))
    assert lists == 1
    if connection.store.is_local and where == "i1 = 4 OR v = 2":
        indices = ["c++seed/indices/i1"]  # footers of local files are cheap to ask about v
    assert extra == indices
    assert len(keys) == len(_opened(connection)) + len(indices)


def test_a_dataset_beside_a_cube_is_opened_by_itself(connection):
    assert _calls(connection, lambda: connection.sql("SELECT x FROM d").schema) == (1, _metadata("d"))


def test_a_cube_named_twice_is_read_once(connection):
    sql = "SELECT 1 FROM c a JOIN c b USING (x) JOIN c.e USING (x) WHERE a.i1 = 4 AND b.p = 1"
    lists, keys = _calls(connection, lambda: connection.explain(sql))
    assert lists == 1
    assert [k for k in keys if "indices" not in k] == _opened(connection)


def test_a_statement_over_nothing_asks_for_nothing(connection):
    assert _calls(connection, lambda: connection.sql("SELECT 1").rows()) == (0, [])


def test_only_the_selected_files_are_read(connection):
    def run() -> None:
        assert connection.sql("SELECT w FROM c WHERE i1 = 4").rows() == [("w",)]

    lists, keys = _calls(connection, run)
    data = [k for k in keys if k.endswith(".parquet") and "/indices/" not in k]
    assert lists == 1
    if connection.store.is_local:
        assert data == []  # the engine opens local files by itself
    else:
        assert sorted(k.rpartition("/")[0] for k in data) == ["c++e/table/p=2", "c++seed/table/p=2"]


# -- remote files ----------------------------------------------------------------------------------


@pytest.fixture
def large() -> Any:
    """A dataset in memory with two files of several hundred kB and many columns."""
    store = Store(f"memory://{uuid.uuid4().hex}")
    builders.write_dataset(
        store, "d", {"p": pa.int64(), "a": pa.int64(), "b": pa.string()}, ["p=0", "p=1"], partition_keys=["p"]
    )
    for p in (0, 1):
        rows = pa.table({"a": list(range(50_000)), "b": [f"{uuid.uuid4()}" for _ in range(50_000)]})
        store.put(f"d/table/p={p}/{builders.WRITE_ID}.parquet", builders.parquet(rows, use_dictionary=False))
    return kartosql.connect(store.url)


def test_small_files_are_fetched_whole_with_one_request(large):
    _, keys = _calls(large, lambda: large.sql("SELECT sum(a), count(DISTINCT b) FROM d").rows())
    assert sorted(k for k in keys if k.endswith(".parquet")) == [
        f"d/table/p={p}/{builders.WRITE_ID}.parquet" for p in (0, 1)
    ]


def test_of_larger_files_only_ranges_are_fetched(large, monkeypatch):
    monkeypatch.setattr(remote, "WHOLE_FILE", 1_000)
    monkeypatch.setattr(remote, "BLOCK", 10_000)
    total = sum(large.store.size(f"d/table/p={p}/{builders.WRITE_ID}.parquet") for p in (0, 1))
    before = large.store.counter.bytes_read
    assert large.sql("SELECT sum(a) FROM d WHERE p = 1").rows() == [(sum(range(50_000)),)]
    assert large.store.counter.bytes_read - before < total / 4
    assert not [k for k in large.store.counter.keys if "p=0" in k]
    assert large.sql("SELECT count(DISTINCT b), max(a) FROM d").rows() == [(100_000, 49_999)]


@pytest.mark.parametrize("block", [7, 64, 4096])
def test_ranges_of_any_size_give_the_same_rows(large, monkeypatch, block):
    expected = large.sql("SELECT p, sum(a), min(b), max(b) FROM d GROUP BY p ORDER BY p").rows()
    monkeypatch.setattr(remote, "WHOLE_FILE", 0)
    monkeypatch.setattr(remote, "BLOCK", block)
    assert large.sql("SELECT p, sum(a), min(b), max(b) FROM d GROUP BY p ORDER BY p").rows() == expected


def test_a_store_that_fails_in_the_middle_of_a_run_is_our_error(large, monkeypatch):
    monkeypatch.setattr(remote, "WHOLE_FILE", 0)
    query = large.sql("SELECT count(DISTINCT b) FROM d")

    def broken(key: str, **kwargs: Any) -> bytes:
        raise kartosql.KartosqlError("the network is down", code="store-failed")

    real = Store.read

    def read(self: Store, key: str, **kwargs: Any) -> bytes:
        return broken(key) if key.endswith(".parquet") else real(self, key, **kwargs)

    monkeypatch.setattr(Store, "read", read)
    with pytest.raises(kartosql.KartosqlError) as e:
        query.rows()
    assert "the network is down" in str(e.value)
