"""Extending, changing and deleting cubes; building them is tested in test_build."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pytest

import builders
from kartosql.errors import CommitError, ConcurrentCommit, KartosqlError, StoreError, UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.write import cubes
from kartosql.write.operation import Operation
from kartosql.write.removal import Removal
from written import build_cube

CUBE = Cube("c", "x", "p", index_columns="i")
SEED = pa.table({"x": [1, 2, 3], "p": ["a", "a", "b"], "i": ["u", "v", "u"], "v": [10, 20, 30]})
EN = pa.table({"x": [1, 3], "p": ["a", "b"], "w": [0.5, None]})
WHOLE = pa.table({"x": [1, 2, 3], "z": [7, 8, 9]})


def operation(store, name="test", **options):
    return Operation(store, name, **options)


def append(store, data, cube=CUBE, **options):
    return cubes.update_cube(operation(store, "append_to_cube"), cube, data, **options)


def partition(value):
    """Return the removal of one value of p."""

    def select(table):
        at = table.partition_keys.index("p")
        parts = table.partitions
        return [t for f, t in enumerate(table.labels) if parts.tuples[parts.part_of_file[f]][at] == value]

    return Removal(frozenset("p"), select)


def table_rows(store, name):
    return _sorted(builders.dataset_rows(store, CUBE.uuid(name))[1])


def expected(*tables):
    return _sorted(row for t in tables for row in t.to_pylist())


def _sorted(rows):
    return sorted(repr(sorted(row.items())) for row in rows)


def index_of(store, uuid, column):
    """Return the labels by value that an index file holds, and the labels that the data files hold."""
    document = builders.read_document(store, uuid)
    stored = builders.read_parquet(store, document["indices"][column])
    found = {r[column]: set(r["partition"]) for r in stored.to_pylist()}
    real = {}
    for label, entry in document["partitions"].items():
        for value in builders.read_parquet(store, entry["files"]["table"])[column].to_pylist():
            if value is not None:
                real.setdefault(value, set()).add(label)
    return found, real


@pytest.fixture
def built(store):
    build_cube(store, CUBE, {"seed": SEED, "en": EN})
    return store


# -- append ------------------------------------------------------------------------------------


def test_rows_are_appended_to_all_datasets_given(built):
    more = pa.table({"x": [4], "p": ["c"], "i": ["z"], "v": [40]})
    other = pa.table({"x": [4], "p": ["c"], "w": [1.5]})
    done = append(built, {"seed": more, "en": other})
    assert {n: (d["files"], d["rows"], d["removed"]) for n, d in done.items()} == {"seed": (1, 1, 0), "en": (1, 1, 0)}
    assert table_rows(built, "seed") == expected(SEED, more)
    assert table_rows(built, "en") == expected(EN, other)


def test_indices_follow_the_data(built):
    append(built, {"seed": pa.table({"x": [1, 4], "p": ["a", "c"], "i": ["n", "u"], "v": [11, 40]})})
    for column in ("i", "x"):
        found, real = index_of(built, "c++seed", column)
        assert found == real


def test_an_appended_file_stands_last(built):
    append(built, {"seed": SEED.slice(0, 1)})
    labels = list(builders.read_document(built, "c++seed")["partitions"])
    assert len(labels) == 3
    assert labels[-1].startswith("p=a/")


def test_a_list_of_parts_is_one_append(built):
    parts = [{"seed": SEED.slice(0, 1)}, None, {"seed": SEED.slice(1, 1), "en": None}, SEED.slice(2, 1)]
    done = append(built, parts)
    assert (done["seed"]["files"], done["seed"]["rows"]) == (2, 3)


def test_a_null_column_gets_the_type_of_the_dataset(built):
    append(built, {"en": pa.table({"x": [9], "p": ["a"], "w": pa.nulls(1)})})
    table = Snapshot(built).dataset("c++en").tables["table"]
    assert table.types["w"] == pa.float64()
    assert builders.read_parquet(built, table.files[-1]).schema.field("w").type == pa.float64()


def test_a_null_column_of_the_dataset_gets_the_type_of_the_data(store):
    build_cube(store, CUBE, {"seed": SEED.set_column(3, "v", pa.nulls(3))})
    append(store, {"seed": SEED})
    assert Snapshot(store).cube("c").types["v"] == pa.int64()


def test_metadata_are_merged_and_the_flags_stay(built):
    append(built, {"en": EN}, metadata={"en": {"owner": "me", "a": 1}})
    append(built, {"en": EN}, metadata={"en": {"a": 2}})
    metadata = builders.read_document(built, "c++en")["metadata"]
    assert (metadata["owner"], metadata["a"]) == ("me", 2)
    assert metadata["ktk_cube_is_seed"] is False
    assert metadata["ktk_cube_dimension_columns"] == ["x"]


def test_the_cube_may_be_given_by_its_name(built):
    append(built, {"en": EN}, cube="c")
    assert len(table_rows(built, "en")) == 4


def test_an_index_that_no_cube_asks_for_is_kept_up_and_may_lack_nulls(store):
    plain = Cube("c", "x", "p")
    build_cube(store, CUBE, {"seed": SEED})
    append(store, {"seed": SEED.set_column(2, "i", pa.array(["k", None, "l"]))}, cube=plain)
    found, real = index_of(store, "c++seed", "i")
    assert found == real
    assert set(found) == {"u", "v", "k", "l"}


BAD_APPENDS = {
    "unknown dataset": ({"zz": EN}, {}, "unknown-dataset", "no dataset 'zz'"),
    "bad name": ({"a/b": EN}, {}, "invalid-argument", "no legal dataset name"),
    "nothing": ({}, {}, "invalid-argument", "no data to append"),
    "None": (None, {}, "invalid-argument", "no data to append"),
    "no rows": ({"en": EN.slice(0, 0)}, {}, "invalid-data", "it has no rows"),
    "type": ({"en": EN.set_column(2, "w", pa.array(["a", "b"]))}, {}, "incompatible-schema", "'w'"),
    "missing": ({"en": EN.drop_columns(["w"])}, {}, "incompatible-schema", "'w'"),
    "extra": ({"en": EN.append_column("k", EN["w"])}, {}, "incompatible-schema", "'k'"),
    "null key": ({"en": EN.set_column(0, "x", pa.array([1, None]))}, {}, "null-in-key", "'x'"),
    "null index": (
        {"seed": SEED.set_column(2, "i", pa.array(["u", None, "v"]))},
        {},
        "null-in-key",
        "index column 'i'",
    ),
    "cells": ({"en": pa.concat_tables([EN, EN])}, {}, "duplicate-cells", "a cell occurs again"),
    "metadata of": ({"en": EN}, {"metadata": {"seed": {}}}, "invalid-argument", "'seed' is none of the datasets"),
    "second dataset": ({"en": EN, "seed": SEED.slice(0, 0)}, {}, "invalid-data", "'seed': it has no rows"),
    "later dataset": (
        {"en": EN, "seed": pa.concat_tables([SEED, SEED])},
        {},
        "duplicate-cells",
        "'seed': a cell occurs again",
    ),
}


def keys_of(store):
    found = set()
    for entry in store.list_root():
        found |= set(store.list_below(f"{entry.name}/")) if entry.is_dir else {entry.name}
    return {key: store.read(key) for key in found}


@pytest.mark.parametrize(("data", "options", "code", "message"), BAD_APPENDS.values(), ids=BAD_APPENDS)
def test_a_bad_append_leaves_nothing_behind(built, data, options, code, message):
    before = keys_of(built)
    with pytest.raises(UsageError, match=message) as e:
        append(built, data, **options)
    assert e.value.code == code
    assert keys_of(built) == before


@pytest.mark.parametrize(
    ("cube", "code"),
    [
        (Cube("zz", "x", "p"), "unknown-table"),
        ("zz", "unknown-table"),
        (3, "invalid-argument"),
        (Cube("c", "x", "p", seed_dataset="zz"), "unknown-table"),
        (Cube("c", "x", "p", seed_dataset="en"), "invalid-cube"),
        (Cube("c", ["x", "v"], "p"), "invalid-cube"),
        (Cube("c", "x", "p", index_columns="v"), "invalid-cube"),
    ],
)
def test_a_cube_that_is_not_there_or_another_one_is_refused(built, cube, code):
    before = keys_of(built)
    with pytest.raises(KartosqlError) as e:
        append(built, {"seed": SEED}, cube=cube)
    assert e.value.code == code
    assert keys_of(built) == before


# -- extend ------------------------------------------------------------------------------------


def test_a_cube_is_extended_by_several_datasets(built):
    more = {"whole": WHOLE, "own": pa.table({"x": [1], "k": ["a"], "y": [1]})}
    done = cubes.extend_cube(
        operation(built), CUBE, more, partition_on={"whole": [], "own": "k"}, metadata={"own": {"a": 1}}
    )
    assert {n: d["files"] for n, d in done.items()} == {"whole": 1, "own": 1}
    state = Snapshot(built).cube("c")
    assert {n: m.table.partition_keys for n, m in state.members.items()} == {
        "seed": ("p",),
        "en": ("p",),
        "whole": (),
        "own": ("k",),
    }
    assert state.members["own"].table.metadata["a"] == 1
    assert state.members["own"].table.metadata["ktk_cube_is_seed"] is False


def test_an_extension_replaces_datasets_with_overwrite(built):
    new = pa.table({"x": [1], "p": ["a"], "other": ["text"]})
    cubes.extend_cube(operation(built), CUBE, {"en": new}, overwrite=True)
    assert table_rows(built, "en") == expected(new)
    assert "w" not in Snapshot(built).cube("c").types


BAD_EXTENSIONS = {
    "seed": ({"seed": SEED}, {}, "invalid-cube", "cannot be an extension"),
    "exists": ({"en": EN}, {}, "dataset-exists", "'en' already exists"),
    "payload": ({"k": EN}, {}, "invalid-data", "payload column 'w' is also in 'en'"),
    "payload of seed": ({"en": EN.append_column("v", EN["x"])}, {"overwrite": True}, "invalid-data", "also in 'seed'"),
    "type": ({"k": pa.table({"x": ["1"], "p": ["a"]})}, {}, "invalid-data", "'x' is VARCHAR, but BIGINT in 'seed'"),
    "alone": (WHOLE, {}, "invalid-argument", "which dataset"),
    "none": ({}, {}, "invalid-argument", "no data"),
    "no keys": ({"whole": WHOLE}, {}, "invalid-data", "partition column 'p' is missing"),
}


@pytest.mark.parametrize(("data", "options", "code", "message"), BAD_EXTENSIONS.values(), ids=BAD_EXTENSIONS)
def test_a_bad_extension_leaves_nothing_behind(built, data, options, code, message):
    before = keys_of(built)
    with pytest.raises(UsageError, match=message) as e:
        cubes.extend_cube(operation(built), CUBE, data, **options)
    assert e.value.code == code
    assert keys_of(built) == before


def test_there_must_be_a_cube_to_extend(store):
    with pytest.raises(UsageError) as e:
        cubes.extend_cube(operation(store), CUBE, {"en": EN})
    assert e.value.code == "unknown-table"


# -- removal and update --------------------------------------------------------------------------


def test_partitions_are_removed_from_all_datasets_that_have_the_column(built):
    cubes.extend_cube(operation(built), CUBE, {"whole": WHOLE}, partition_on={"whole": []})
    done = cubes.remove_partitions(operation(built), CUBE, partition("a"))
    assert {n: d["removed"] for n, d in done.items()} == {"seed": 1, "en": 1, "whole": 0}
    assert table_rows(built, "seed") == expected(SEED.slice(2))
    assert table_rows(built, "en") == expected(EN.slice(1))
    assert table_rows(built, "whole") == expected(WHOLE)
    for column in ("i", "x"):
        found, real = index_of(built, "c++seed", column)
        assert found == real


def test_a_dataset_without_the_column_is_emptied_if_it_is_named(built):
    cubes.extend_cube(operation(built), CUBE, {"whole": WHOLE}, partition_on={"whole": []})
    cubes.remove_partitions(operation(built), CUBE, partition("a"), ["whole"])
    assert builders.read_document(built, "c++whole")["partitions"] == {}
    assert table_rows(built, "seed") == expected(SEED)


def test_without_conditions_everything_goes_and_the_datasets_stay(built):
    done = cubes.remove_partitions(operation(built), CUBE, Removal())
    assert {n: d["removed"] for n, d in done.items()} == {"seed": 2, "en": 2}
    assert set(Snapshot(built).cube("c").members) == {"seed", "en"}
    append(built, {"seed": SEED})
    assert table_rows(built, "seed") == expected(SEED)


def test_an_unknown_dataset_is_refused(built):
    with pytest.raises(UsageError) as e:
        cubes.remove_partitions(operation(built), CUBE, Removal(), ["zz"])
    assert e.value.code == "unknown-dataset"


def test_an_update_removes_and_appends_in_one_commit(built):
    new = pa.table({"x": [5], "p": ["b"], "i": ["n"], "v": [50]})
    before = builders.read_document(built, "c++seed")["metadata"]["kartosql_commit"]["sequence"]
    done = cubes.update_cube(operation(built), CUBE, {"seed": new}, removal=partition("b"))
    assert (done["seed"]["removed"], done["seed"]["rows"], done["seed"]["sequence"]) == (1, 1, before + 1)
    assert table_rows(built, "seed") == expected(SEED.slice(0, 2), new)
    assert table_rows(built, "en") == expected(EN)


def test_an_update_may_remove_from_datasets_without_new_rows(built):
    done = cubes.update_cube(operation(built), CUBE, {"seed": SEED}, removal=Removal(), datasets=["seed", "en"])
    assert {n: (d["removed"], d["rows"]) for n, d in done.items()} == {"seed": (2, 3), "en": (2, 0)}
    assert table_rows(built, "en") == []


# -- deletion --------------------------------------------------------------------------------------


def test_a_deleted_cube_leaves_no_file(built):
    done = cubes.delete_cube(operation(built), CUBE)
    assert {n: d["files"] for n, d in done.items()} == {"seed": 2, "en": 2}
    assert keys_of(built) == {}


def test_one_dataset_is_deleted_and_may_be_built_again(built):
    cubes.delete_cube(operation(built), "c", "en")
    assert set(Snapshot(built).cube("c").members) == {"seed"}
    other = pa.table({"x": [1], "p": ["a"], "w": ["text"]})
    cubes.extend_cube(operation(built), CUBE, {"en": other})
    assert table_rows(built, "en") == expected(other)


@pytest.mark.parametrize(
    ("arguments", "code"), [(("zz",), "unknown-table"), ((None,), "unknown-table"), (("c", ["zz"]), "unknown-dataset")]
)
def test_what_is_not_there_cannot_be_deleted(built, arguments, code):
    with pytest.raises(UsageError) as e:
        cubes.delete_cube(operation(built), *arguments)
    assert e.value.code == code
    assert set(Snapshot(built).cube("c").members) == {"seed", "en"}


# -- several writers -------------------------------------------------------------------------------


def test_appends_that_began_together_are_both_there(built):
    one, other = operation(built), operation(built)
    for each in (one, other):
        cubes.begin(each, CUBE)
        assert each.snapshot.cube("c")
    first, second = (pa.table({"x": [n], "p": ["a"], "i": ["n"], "v": [n]}) for n in (7, 8))
    cubes.update_cube(one, CUBE, {"seed": first})
    cubes.update_cube(other, CUBE, {"seed": second})
    assert table_rows(built, "seed") == expected(SEED, first, second)
    found, real = index_of(built, "c++seed", "i")
    assert found == real


def test_a_removal_does_not_take_rows_that_it_did_not_see(built):
    late = operation(built, "remove_partitions")
    cubes.begin(late, CUBE)
    append(built, {"seed": SEED.slice(0, 1)})
    before = keys_of(built)
    with pytest.raises(ConcurrentCommit, match="append_to_cube"):
        cubes.update_cube(late, CUBE, {"seed": SEED}, removal=partition("a"))
    assert keys_of(built) == before


def test_a_build_does_not_replace_a_cube_that_came_meanwhile(store):
    late = operation(store, "build_cube")
    cubes.begin(late, CUBE)
    assert late.snapshot.members == {}
    build_cube(store, CUBE, {"seed": SEED})
    with pytest.raises(ConcurrentCommit):
        cubes.build_cube(late, CUBE, {"seed": SEED.slice(0, 1)})
    assert table_rows(store, "seed") == expected(SEED)


@pytest.mark.parametrize("failing", ["c++seed/table/p=b", "indices", "c++seed.by-dataset"])
def test_a_failing_store_leaves_the_old_cube(local, monkeypatch, failing):
    build_cube(local, CUBE, {"seed": SEED, "en": EN})

    def fragile(function):
        def call(key, *args, **options):
            if failing in key:
                raise StoreError(f"Cannot write {key!r}")
            return function(key, *args, **options)

        return call

    for name in ("put", "put_if", "output"):
        monkeypatch.setattr(local, name, fragile(getattr(local, name)))
    with pytest.raises(StoreError):
        append(local, {"en": EN, "seed": SEED})
    monkeypatch.undo()
    assert table_rows(local, "seed") == expected(SEED)
    assert table_rows(local, "en") == expected(EN)
    append(local, {"en": EN, "seed": SEED})
    assert len(table_rows(local, "seed")) == 6


def test_the_document_names_the_operation(built):
    append(built, {"en": EN})
    assert json.loads(built.read("c++en.by-dataset-metadata.json"))["metadata"]["kartosql_commit"]["operation"] == (
        "append_to_cube"
    )


def test_no_dataset_is_a_choice_as_well(built):
    before = keys_of(built)
    assert cubes.delete_cube(operation(built), CUBE, []) == {}
    assert cubes.remove_partitions(operation(built), CUBE, Removal(), []) == {}
    assert keys_of(built) == before


def test_a_commit_that_comes_late_looks_whether_its_files_are_still_there(built, monkeypatch):
    late = operation(built, grace=dt.timedelta(hours=2))
    late.started -= dt.timedelta(hours=1, minutes=1)
    commit = late._commit
    monkeypatch.setattr(late, "_commit", lambda changes, primary: (remove(changes), commit(changes, primary))[1])

    def remove(changes):
        built.delete([key for c in changes for entry in c.added.values() for key in entry.values()])

    with pytest.raises(CommitError) as e:
        cubes.update_cube(late, CUBE, {"seed": SEED})
    assert e.value.code == "commit-expired"
    assert table_rows(built, "seed") == expected(SEED)
