from __future__ import annotations

import json
import os
import warnings

import msgpack
import pyarrow as pa
import pytest
import zstandard

import golden
from builders import SEED_FLAGS, document, write_cube, write_dataset
from kartosql.errors import FormatError, KartosqlError, KartosqlWarning
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store

SEED = {"p": pa.int64(), "x": pa.int64(), "v": pa.int64()}
EXTRA = {"x": pa.int64(), "w": pa.int64()}


# -- names -----------------------------------------------------------------------------------


def test_datasets_are_known_by_their_metadata_files(store):
    write_dataset(store, "u", EXTRA)
    write_dataset(store, "c++d", EXTRA)
    suffix = ".by-dataset-metadata.json"
    for noise in ("readme.txt", f"a.b{suffix}", f"ü{suffix}", f"w{suffix}/x"):
        store.put(noise, b"")
    assert Snapshot(store).keys == {"u": ["u.by-dataset-metadata.json"], "c++d": ["c++d.by-dataset-metadata.json"]}
    assert Snapshot(store).members == {"c": ["d"]}


def test_json_wins_over_msgpack(store):
    write_dataset(store, "u", EXTRA, metadata={"from": "json"})
    packed = zstandard.compress(msgpack.packb(document("u", metadata={"from": "msgpack"})))
    store.put("u.by-dataset-metadata.msgpack.zstd", packed)
    assert Snapshot(store).dataset("u").document.metadata == {"from": "json"}


def test_the_golden_dataset_with_a_stale_msgpack_is_read_from_json(ktk_store):
    found = Snapshot(Store(str(ktk_store))).dataset("pd-evolved")
    assert found.document.key == "pd-evolved.by-dataset-metadata.json"
    assert found.document.metadata["rev"] == 3


def test_msgpack_is_taken_where_the_json_went_away(local):
    write_dataset(local, "u", EXTRA)
    packed = zstandard.compress(msgpack.packb(document("u", metadata={"from": "msgpack"})))
    local.put("u.by-dataset-metadata.msgpack.zstd", packed)
    snapshot = Snapshot(local)
    assert len(snapshot.keys["u"]) == 2
    os.unlink(f"{local.root}/u.by-dataset-metadata.json")
    assert snapshot.dataset("u").document.metadata == {"from": "msgpack"}


def test_a_broken_json_is_an_error_even_beside_a_msgpack(local):
    write_dataset(local, "u", EXTRA)
    local.put("u.by-dataset-metadata.msgpack.zstd", zstandard.compress(msgpack.packb(document("u"))))
    local.put("u.by-dataset-metadata.json", b"{")
    with pytest.raises(FormatError, match=r"^u\.by-dataset-metadata\.json: "):
        Snapshot(local).dataset("u")


def test_a_snapshot_does_not_move(store):
    write_dataset(store, "u", EXTRA, metadata={"n": 1})
    snapshot = Snapshot(store)
    first = snapshot.dataset("u")
    write_dataset(store, "u", EXTRA, metadata={"n": 2})
    write_dataset(store, "later", EXTRA)
    assert snapshot.dataset("u") is first
    assert "later" not in snapshot.keys
    assert Snapshot(store).dataset("u").document.metadata == {"n": 2}


# -- cubes -----------------------------------------------------------------------------------


def test_a_cube_is_discovered_from_its_seed(store):
    write_cube(store, "c", {"seed": SEED, "extra": EXTRA})
    write_dataset(store, "plain", EXTRA)
    snapshot = Snapshot(store)
    assert list(snapshot.cubes()) == ["c"]
    state = snapshot.cube("c")
    assert state.cube == snapshot.cubes()["c"]
    assert (state.cube.dimension_columns, state.cube.partition_columns) == (("x",), ("p",))
    assert list(state.types) == ["p", "v", "w", "x"]
    assert state.seed.name == "seed"
    assert snapshot.is_cube("c")
    assert not snapshot.is_cube("plain")


def test_golden_cubes_are_discovered_as_they_were_built(ktk_store):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Snapshot(Store(str(ktk_store))).cubes()
    for given in golden.load("kartothek/manifest.json")["cubes"]:
        cube = found[given["name"]]
        assert list(cube.dimension_columns) == given["dimension_columns"]
        assert list(cube.partition_columns) == given["partition_columns"]
        assert cube.seed_dataset == given["seed_dataset"]
        assert cube.suppress_index_on == set(given["suppress_index_on"])
        # An index column that is only a partition key of a member is not in any metadata.
        assert cube.index_columns <= set(given["index_columns"])


def test_golden_members_have_the_columns_of_the_manifest(ktk_store):
    snapshot = Snapshot(Store(str(ktk_store)))
    for given in golden.load("kartothek/manifest.json")["cubes"]:
        members = snapshot.cube(given["name"]).members
        assert set(members) == set(given["datasets"])
        for name, dataset in given["datasets"].items():
            table = members[name].table
            assert table.schema.names == list(dataset["columns"])
            assert list(table.partition_keys) == dataset["partition_keys"]
            assert len(table.files) == dataset["n_files"]
            assert sorted(table.indices) == sorted(dataset["secondary_indices"])


LEGACY = {"klee_is_seed": True, "klee_dimension_columns": ["x"], "klee_partition_columns": ["p"]}


def test_legacy_flags_are_accepted(store):
    schema = {**SEED, "KLEE_TS": pa.timestamp("us")}
    write_dataset(store, "c++seed", schema, ["p=1"], partition_keys=["p"], metadata=LEGACY)
    state = Snapshot(store).cube("c")
    assert (state.cube.dimension_columns, state.cube.partition_columns) == (("x",), ("p",))
    assert "KLEE_TS" not in state.types


@pytest.mark.parametrize("lost", [".by-dataset-metadata.json", "/table/_common_metadata"])
def test_an_incomplete_member_is_left_out_with_a_warning(local, lost):
    write_cube(local, "c", {"seed": SEED, "extra": EXTRA})
    snapshot = Snapshot(local)
    assert snapshot.members == {"c": ["extra", "seed"]}
    os.unlink(f"{local.root}/c++extra{lost}")
    with pytest.warns(KartosqlWarning, match=r"'extra' of cube 'c' is left out: c\+\+extra.* is missing"):
        state = snapshot.cube("c")
    assert list(state.members) == ["seed"]


@pytest.mark.parametrize("lost", [".by-dataset-metadata.json", "/table/_common_metadata"])
def test_a_cube_without_its_seed_is_an_error(local, lost):
    write_cube(local, "c", {"seed": SEED, "extra": EXTRA})
    snapshot = Snapshot(local)
    assert snapshot.keys
    os.unlink(f"{local.root}/c++seed{lost}")
    with pytest.raises(FormatError) as e, pytest.warns(KartosqlWarning):
        snapshot.cube("c")
    assert e.value.code in ("invalid-cube", "missing-metadata")


@pytest.mark.parametrize(
    ("key", "data", "code"),
    [
        ("c++extra.by-dataset-metadata.json", b"{", "invalid-metadata"),
        ("c++extra.by-dataset-metadata.json", json.dumps(document("other")).encode(), "invalid-metadata"),
        ("c++extra/table/_common_metadata", b"PAR1", "invalid-schema"),
    ],
)
def test_an_invalid_member_is_an_error(local, key, data, code):
    write_cube(local, "c", {"seed": SEED, "extra": EXTRA})
    local.put(key, data)
    with pytest.raises(FormatError) as e:
        Snapshot(local).cube("c")
    assert e.value.code == code
    assert key in e.value.message


def test_a_broken_cube_is_left_out_of_the_list_with_a_warning(local):
    write_cube(local, "good", {"seed": SEED})
    write_cube(local, "bad", {"seed": SEED, "other": EXTRA})
    local.put("bad++other.by-dataset-metadata.json", b"{")
    write_cube(local, "two", {"seed": SEED})
    write_dataset(local, "two++again", SEED, ["p=1"], partition_keys=["p"], metadata=SEED_FLAGS)
    with pytest.warns(KartosqlWarning) as caught:
        cubes = Snapshot(local).cubes()
    assert "good" in cubes
    assert "two" not in cubes
    texts = [str(w.message) for w in caught]
    assert any("bad" in t and "other" in t for t in texts)
    assert any("two" in t and "several seed" in t for t in texts)


def test_datasets_without_a_seed_are_no_cube(local):
    write_dataset(local, "c++a", EXTRA)
    assert Snapshot(local).cubes() == {}
    assert not Snapshot(local).is_cube("c")
    with pytest.raises(FormatError) as e:
        Snapshot(local).cube("c")
    assert e.value.code == "invalid-cube"
    assert '"c++a"' in e.value.hint


def test_a_cube_that_is_not_there_is_an_error(store):
    with pytest.raises(FormatError) as e:
        Snapshot(store).cube("none")
    assert e.value.code == "invalid-cube"


@pytest.mark.parametrize(
    "flags",
    [
        {"ktk_cube_dimension_columns": None},
        {"ktk_cube_dimension_columns": []},
        {"ktk_cube_dimension_columns": {"x": 1}},
        {"ktk_cube_dimension_columns": [1]},
        {"ktk_cube_dimension_columns": ["x", "x"]},
        {"ktk_cube_dimension_columns": 7},
        {"ktk_cube_partition_columns": ["x"]},
        {"ktk_cube_partition_columns": []},
        {"ktk_cube_suppress_index_on": ["v"]},
        {"ktk_cube_suppress_index_on": 3},
    ],
    ids=str,
)
def test_flags_that_do_not_fit_together_are_refused(local, flags):
    metadata = SEED_FLAGS | flags
    write_dataset(local, "c++seed", SEED, ["p=1"], partition_keys=["p"], metadata=metadata)
    with pytest.raises(KartosqlError) as e:
        Snapshot(local).cube("c")
    assert e.value.code == "invalid-cube"
    assert "c++seed.by-dataset-metadata.json" in e.value.message
    with pytest.warns(KartosqlWarning, match="c"):
        assert Snapshot(local).cubes() == {}


@pytest.mark.parametrize("flag", [False, None, 0, 1, "true", []])
def test_only_true_marks_a_seed(local, flag):
    write_dataset(local, "c++seed", SEED, metadata=SEED_FLAGS | {"ktk_cube_is_seed": flag})
    assert Snapshot(local).cubes() == {}
