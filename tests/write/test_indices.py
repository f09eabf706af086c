"""Indices that are built and dropped later."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.cube import Cube
from kartosql.write import check, datasets
from kartosql.write.commit import commit
from kartosql.write.operation import Operation
from kartosql.write.recovery import read_head
from written import build_cube, write_dataset

ROWS = pa.table(
    {
        "p": ["a", "a", "b"],
        "i": pa.array([1, 2, 1], pa.int8()),
        "s": ["k", None, "l"],
        "t": pa.array([dt.datetime(1960, 1, 1), None, dt.datetime(2026, 1, 1)], pa.timestamp("us")),
        "f": [0.0, -0.0, 1.5],
        "n": pa.nulls(3),
        "l": [[1], [2], []],
        "partition": [1, 2, 3],
    }
)


def create(store, columns, uuid="d"):
    return datasets.create_index(Operation(store, "create_index"), uuid, columns)


def drop(store, columns, uuid="d"):
    return datasets.drop_index(Operation(store, "drop_index"), uuid, columns)


def index_of(store, column, uuid="d"):
    table = builders.read_parquet(store, builders.read_document(store, uuid)["indices"][column])
    assert table.column_names == [column, "partition"]
    return {r[column]: {label.split("/")[0] for label in r["partition"]} for r in table.to_pylist()}


@pytest.fixture
def made(store):
    write_dataset(store, "d", ROWS, partition_on="p", metadata={"owner": "me"})
    return store


def test_an_index_lists_the_partitions_of_each_value(made):
    done = create(made, ["i", "s", "t", "f"])
    assert done["values"] == {"i": 2, "s": 2, "t": 2, "f": 2}
    assert index_of(made, "i") == {1: {"p=a", "p=b"}, 2: {"p=a"}}
    assert index_of(made, "s") == {"k": {"p=a"}, "l": {"p=b"}}
    assert index_of(made, "t") == {dt.datetime(1960, 1, 1): {"p=a"}, dt.datetime(2026, 1, 1): {"p=b"}}
    assert index_of(made, "f") == {0.0: {"p=a"}, 1.5: {"p=b"}}


def test_an_index_keeps_metadata_and_partitions(made):
    before = builders.read_document(made, "d")
    create(made, "i")
    after = builders.read_document(made, "d")
    assert after["partitions"] == before["partitions"]
    assert after["metadata"]["owner"] == "me"
    assert after["metadata"]["creation_time"] == before["metadata"]["creation_time"]


def test_an_index_is_kept_up_by_later_appends(made):
    create(made, "i")
    datasets.append_to_dataset(Operation(made, "t"), "d", ROWS.slice(2).set_column(0, "p", pa.array(["c"])))
    assert index_of(made, "i") == {1: {"p=a", "p=b", "p=c"}, 2: {"p=a"}}


def test_an_index_holds_what_was_appended_while_it_was_built(made):
    late = Operation(made, "create_index")
    datasets.find_dataset(late, "d")
    assert late.snapshot.dataset("d")
    datasets.append_to_dataset(Operation(made, "t"), "d", ROWS.slice(2).set_column(0, "p", pa.array(["c"])))
    datasets.create_index(late, "d", "i")
    assert index_of(made, "i") == {1: {"p=a", "p=b", "p=c"}, 2: {"p=a"}}


def test_a_dropped_index_is_gone(made):
    create(made, ["i", "s"])
    drop(made, "i")
    assert list(builders.read_document(made, "d")["indices"]) == ["s"]
    drop(made, "s")
    assert "indices" not in builders.read_document(made, "d")


def test_an_index_covers_all_tables(store):
    one, two = pa.table({"p": ["a"], "x": [1]}), pa.table({"p": ["b"], "x": [2]})
    datasets.create_dataset(Operation(store, "t"), "d", {"one": one, "two": two}, partition_on="p")
    create(store, "x")
    assert index_of(store, "x") == {1: {"p=a"}, 2: {"p=b"}}


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ("zz", "unknown-column"),
        ("p", "invalid-data"),
        ("l", "invalid-data"),
        ("n", "invalid-data"),
        ("partition", "invalid-data"),
        ([], "invalid-argument"),
        (["i", "i"], "invalid-argument"),
        (3, "invalid-argument"),
    ],
)
def test_what_cannot_be_indexed_is_refused(made, columns, code):
    before = builders.read_document(made, "d")
    with pytest.raises(KartosqlError) as e:
        create(made, columns)
    assert e.value.code == code
    assert builders.read_document(made, "d") == before


def test_only_indices_that_are_there_can_be_dropped(made):
    with pytest.raises(KartosqlError) as e:
        drop(made, "i")
    assert e.value.code == "not-indexed"


def test_the_seed_keeps_the_indices_of_its_dimensions(store):
    seed = pa.table({"x": [1], "y": [1], "p": ["a"], "i": ["u"]})
    build_cube(store, Cube("c", ["x", "y"], "p", index_columns="i", suppress_index_on="y"), {"seed": seed})
    create(store, "y", "c.seed")
    for column in ("y", "i"):
        drop(store, column, "c.seed")
    with pytest.raises(KartosqlError) as e:
        drop(store, "x", "c.seed")
    assert e.value.code == "invalid-cube"
    assert list(builders.read_document(store, "c++seed")["indices"]) == ["x"]


def test_an_index_is_of_what_was_read_also_if_a_restore_brings_back_what_its_head_had(tmp_path, monkeypatch):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", pa.table({"p": [1, 2], "n": [1, 2]}), partition_on="p")
        operation = con._session.operation("create_index")
        operation.begin_at(["d"])  # the first state; the second one is read, and the third one has files of the first
        con.replace_partitions("d", pa.table({"p": [1, 2], "n": [3, 4]}))
        read = datasets._pairs

        def late(*arguments):
            pairs = read(*arguments)
            con.restore("d", 1)
            con.append_to_dataset("d", pa.table({"p": [1], "n": [5]}))
            return pairs

        monkeypatch.setattr(datasets, "_pairs", late)
        datasets.create_index(operation, "d", "n")
        assert con.check("d", full=True) == []
        assert [con.sql(f"SELECT n FROM d WHERE n = {n}").rows() for n in (1, 2, 3, 4, 5)] == [
            [(1,)],
            [(2,)],
            [],
            [],
            [(5,)],
        ]


def test_a_repaired_index_is_of_what_was_read_also_if_a_restore_brings_back_what_its_head_had(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", pa.table({"p": [1, 2], "n": [1, 2]}), partition_on="p", index_columns="n")
        head = read_head(con.store, "d")
        con.replace_partitions("d", pa.table({"p": [1, 2], "n": [3, 4]}))
        change = check._indices(con.store, head, {"n"})
        con.restore("d", 1)
        commit(con.store, change, base=head)
        assert con.check("d", full=True) == []
        assert [con.sql(f"SELECT n FROM d WHERE n = {n}").rows() for n in (1, 2, 3)] == [[(1,)], [(2,)], []]
