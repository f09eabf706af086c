from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kartosql.errors import UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot
from written import build_cube, write_dataset

CUBE = Cube("c", ["x", "y"], "p", index_columns="i")
SEED = pa.table({"x": [1, 2, 1], "y": ["b", "a/ä", "a"], "p": ["q/1", "r", "r"], "v": [1.5, None, 2.5]})
EN = pa.table({"x": [2, 1], "p": ["r", "r"], "i": ["u", "v"]})
DATA = {"seed": SEED, "en": EN}


def rows_on_disk(store, uuid):
    table = Snapshot(store).dataset(uuid).tables["table"]
    found = []
    for i, key in enumerate(table.files):
        values = dict(zip(table.partition_keys, table.partitions.tuples[table.partitions.part_of_file[i]], strict=True))
        found += [row | values for row in pq.read_table(pa.BufferReader(store.read(key))).to_pylist()]
    return found


def by_cell(rows):
    return sorted(rows, key=lambda r: [str(r[c]) for c in sorted(r)])


def test_what_is_built_is_read_back(store):
    summary = build_cube(store, CUBE, DATA, metadata={"en": {"owner": "me"}})
    assert {n: (s["files"], s["rows"]) for n, s in summary.items()} == {"seed": (2, 3), "en": (1, 2)}
    state = Snapshot(store).cube("c")
    assert state.cube == CUBE
    assert state.types == {"i": pa.string(), "p": pa.string(), "v": pa.float64(), "x": pa.int64(), "y": pa.string()}
    assert set(state.seed.table.indices) == {"x", "y"}
    assert set(state.members["en"].table.indices) == {"i"}
    assert state.members["en"].table.metadata["owner"] == "me"
    for name, table in DATA.items():
        assert by_cell(rows_on_disk(store, f"c++{name}")) == by_cell(table.to_pylist())
        size = sum(len(store.read(key)) for key in state.members[name].table.files)
        assert summary[name]["bytes"] == size


def test_one_object_alone_is_the_seed(local):
    assert list(build_cube(local, CUBE, SEED)) == ["seed"]


def test_frames_that_are_none_are_left_out(local):
    assert list(build_cube(local, CUBE, {"seed": SEED, "en": None})) == ["seed"]


def test_other_datasets_choose_their_partition_columns(local):
    data = {
        "seed": SEED,
        "own": pa.table({"y": ["a", "b"], "p": ["r", "q/1"], "r": [1, 2], "w": [1, 2]}),
        "whole": EN.drop_columns(["p"]),
        "bydim": pa.table({"x": [1, 2], "y": ["a", "a"], "z": [1, 2]}),
    }
    build_cube(local, CUBE, data, partition_on={"own": ["r", "p"], "whole": [], "bydim": "x"})
    members = Snapshot(local).cube("c").members
    assert {n: m.table.partition_keys for n, m in members.items()} == {
        "seed": ("p",),
        "own": ("r", "p"),
        "whole": (),
        "bydim": ("x",),
    }
    for name, table in data.items():
        assert by_cell(rows_on_disk(local, f"c++{name}")) == by_cell(table.to_pylist())


def test_a_partition_key_is_not_indexed_as_well(local):
    build_cube(local, CUBE, DATA, partition_on={"en": ["i", "p"]})
    assert not Snapshot(local).cube("c").members["en"].table.indices


def test_a_column_is_null_typed_only_if_nothing_else_is_known(local):
    data = SEED.append_column("n", pa.nulls(3)).append_column("m", pa.array([None, None, 1], pa.int64()))
    build_cube(local, CUBE, data)
    table = Snapshot(local).cube("c").seed.table
    assert (table.types["n"], table.types["m"]) == (pa.null(), pa.int64())
    types = [pq.read_schema(pa.BufferReader(local.read(k))).field("m").type for k in table.files]
    assert types == [pa.int64(), pa.int64()]


def test_data_files_keep_narrow_types_and_the_schema_is_normalised(local):
    build_cube(local, CUBE, SEED.set_column(0, "x", SEED["x"].cast(pa.int8())))
    table = Snapshot(local).cube("c").seed.table
    assert table.types["x"] == pa.int64()
    assert pq.read_schema(pa.BufferReader(local.read(table.files[0]))).field("x").type == pa.int8()


def test_hidden_columns_may_occur_in_several_datasets(local):
    data = {name: t.append_column("__h", pa.array([0] * t.num_rows)) for name, t in DATA.items()}
    assert set(build_cube(local, CUBE, data)) == {"seed", "en"}


def test_row_groups_have_the_size_asked_for(local):
    build_cube(local, CUBE, SEED, row_group_rows=1)
    key = Snapshot(local).cube("c").seed.table.files[-1]
    assert pq.read_metadata(pa.BufferReader(local.read(key))).num_row_groups == 2


# -- what is refused, before anything is written ------------------------------------------


def changed(**tables):
    return {k: v for k, v in {**DATA, **tables}.items() if v is not ...}


BAD_DATA = {
    "no seed": (changed(seed=...), {}, "invalid-cube", "lack the seed dataset 'seed'"),
    "no data": ({}, {}, "invalid-cube", "lack the seed"),
    "bad name": ({"a/b": SEED}, {}, "invalid-argument", "'a/b' is no legal dataset name"),
    "cube name": ({"a++b": SEED}, {}, "invalid-argument", "no legal dataset name"),
    "no rows": (changed(en=EN.slice(0, 0)), {}, "invalid-data", "'en': it has no rows"),
    "seed dimension": (changed(seed=SEED.drop_columns(["y"])), {}, "invalid-data", "dimension column 'y' is missing"),
    "no dimension": (changed(en=EN.drop_columns(["x"])), {}, "invalid-data", "none of the dimension columns x, y"),
    "no partition": (changed(en=EN.drop_columns(["p"])), {}, "invalid-data", "partition column 'p' is missing"),
    "unlisted": (changed(), {"partition_on": {"en": []}}, "invalid-data", "'p' is a partition column of the cube"),
    "seed fixed": (changed(), {"partition_on": {"seed": []}}, "invalid-cube", "always partitioned by p"),
    "overlap": (
        changed(en=EN.append_column("v", EN["x"])),
        {},
        "invalid-data",
        "'en': the payload column 'v' is also in 'seed'",
    ),
    "types differ": (
        changed(en=EN.set_column(0, "x", pa.array(["1", "2"]))),
        {},
        "invalid-data",
        "'x' is VARCHAR, but BIGINT in 'seed'",
    ),
    "nulls": (changed(en=EN.set_column(0, "x", pa.array([1, None]))), {}, "null-in-key", "dimension column 'x'"),
    "null index": (changed(en=EN.set_column(2, "i", pa.array(["u", None]))), {}, "null-in-key", "index column 'i'"),
    "cells": (changed(en=pa.concat_tables([EN, EN])), {}, "duplicate-cells", "a cell occurs again in 2 rows"),
    "partition_on": (changed(), {"partition_on": {"zz": []}}, "invalid-argument", "partition_on: 'zz' is none"),
    "partition_on type": (changed(), {"partition_on": {"en": 3}}, "invalid-argument", "no list of different column"),
    "partition_on list": (changed(), {"partition_on": ["seed"]}, "invalid-argument", "partition_on: expected a dict"),
    "metadata list": (changed(), {"metadata": ["seed"]}, "invalid-argument", "metadata: expected a dict"),
    "metadata of": (changed(), {"metadata": {"zz": {}}}, "invalid-argument", "metadata: 'zz' is none"),
    "metadata": (changed(), {"metadata": {"en": {"a": object()}}}, "invalid-argument", "cannot be written as JSON"),
    "metadata nan": (changed(), {"metadata": {"en": {"a": float("nan")}}}, "invalid-argument", "as JSON"),
    "metadata keys": (changed(), {"metadata": {"en": {1: 2}}}, "invalid-argument", "no dictionary with text keys"),
    "row groups": (changed(), {"row_group_rows": 0}, "invalid-argument", "no positive whole number"),
    "decimal": (
        {"seed": SEED.set_column(0, "x", pa.array([Decimal(1)] * 3))},
        {},
        "invalid-data",
        "dimensions of the seed are indexed",
    ),
}


@pytest.mark.parametrize(("data", "options", "code", "message"), BAD_DATA.values(), ids=BAD_DATA)
def test_bad_input_is_refused_before_the_first_put(local, data, options, code, message):
    with pytest.raises(UsageError, match=message) as e:
        build_cube(local, CUBE, data, **options)
    assert e.value.code == code
    assert local.counter.writes == 0


def test_an_index_needs_a_usable_file_name(local):
    long = "x" * 300
    with pytest.raises(UsageError, match=r"the index of 'xxx.* gets no usable file name") as e:
        build_cube(local, Cube("c", [long, "y"], "p"), SEED.rename_columns([long, "y", "p", "v"]))
    assert e.value.code == "invalid-data"
    assert local.counter.writes == 0


# -- datasets that exist -----------------------------------------------------------------


def test_existing_datasets_are_kept_without_overwrite(local):
    build_cube(local, CUBE, DATA)
    before = local.read("c++seed.by-dataset-metadata.json")
    with pytest.raises(UsageError, match="'en' already exists") as e:
        build_cube(local, CUBE, DATA)
    assert e.value.code == "dataset-exists"
    assert local.read("c++seed.by-dataset-metadata.json") == before


def test_overwrite_replaces_all_rows(local):
    build_cube(local, CUBE, DATA)
    build_cube(local, CUBE, {"seed": SEED.slice(0, 1), "en": EN}, overwrite=True)
    assert rows_on_disk(local, "c++seed") == SEED.slice(0, 1).to_pylist()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_cube_is_never_built_beside_datasets_of_another(local, overwrite):
    build_cube(local, CUBE, DATA)
    json_key = "c++seed.by-dataset-metadata.json"
    if not overwrite:
        (document := json.loads(local.read(json_key)))["metadata"] = {}
        local.put(json_key.replace("seed", "other"), json.dumps(document).encode())
    with pytest.raises(UsageError) as e:
        build_cube(local, CUBE, SEED, overwrite=overwrite)
    assert e.value.code == "dataset-exists"


def test_the_error_names_the_dataset_that_would_stay(local):
    build_cube(local, CUBE, DATA)
    with pytest.raises(UsageError, match="the existing dataset 'en' would stay beside"):
        build_cube(local, CUBE, SEED, overwrite=True)


def test_a_cube_of_another_prefix_is_no_obstacle(local):
    build_cube(local, CUBE, DATA)
    assert build_cube(local, Cube("c2", ["x", "y"], "p"), SEED)


# -- plain datasets ----------------------------------------------------------------------


def test_a_plain_dataset_is_read_back(store):
    summary = write_dataset(store, "d", SEED, partition_on="p", index_columns=["y", "p"], metadata={"a": 1})
    assert (summary["files"], summary["rows"]) == (2, 3)
    table = Snapshot(store).dataset("d").tables["table"]
    assert table.partition_keys == ("p",)
    assert set(table.indices) == {"y"}
    assert table.metadata["a"] == 1
    assert not [k for k in table.metadata if k.startswith("ktk_cube")]
    assert by_cell(rows_on_disk(store, "d")) == by_cell(SEED.to_pylist())


def test_rows_of_a_plain_dataset_may_repeat_and_keep_their_order(local):
    write_dataset(local, "d", pa.table({"x": [2, 1, 2]}))
    assert rows_on_disk(local, "d") == [{"x": 2}, {"x": 1}, {"x": 2}]


@pytest.mark.parametrize(("keys", "files"), [((), 1), (("p",), 0)])
def test_an_empty_plain_dataset_keeps_its_schema(local, keys, files):
    assert write_dataset(local, "d", SEED.slice(0, 0), partition_on=keys, index_columns="x")["files"] == files
    assert Snapshot(local).dataset("d").tables["table"].types["v"] == pa.float64()
    assert rows_on_disk(local, "d") == []


def test_a_plain_dataset_is_replaced_only_with_overwrite(local):
    write_dataset(local, "d", SEED)
    with pytest.raises(UsageError) as e:
        write_dataset(local, "d", EN)
    assert e.value.code == "dataset-exists"
    write_dataset(local, "d", EN, overwrite=True)
    assert rows_on_disk(local, "d") == EN.to_pylist()


@pytest.mark.parametrize(
    ("uuid", "options", "code"),
    [
        ("a.b", {}, "invalid-argument"),
        ("d", {"partition_on": ["zz"]}, "invalid-data"),
        ("d", {"index_columns": ["zz"]}, "invalid-data"),
        ("d", {"partition_on": ["x", "x"]}, "invalid-argument"),
        ("d", {"metadata": []}, "invalid-argument"),
        ("d", {"partition_on": "v"}, "null-in-key"),
    ],
)
def test_bad_options_of_a_plain_dataset_are_refused(local, uuid, options, code):
    with pytest.raises(UsageError) as e:
        write_dataset(local, uuid, SEED, **options)
    assert e.value.code == code
    assert local.counter.writes == 0
