from __future__ import annotations

import base64
import json
import warnings

import pyarrow as pa
import pytest

from builders import SEED_FLAGS, document, read_document, schema_bytes, write_cube, write_dataset, write_document
from kartosql.errors import FormatError
from kartosql.formats.kartothek import metadata, snapshot
from kartosql.formats.kartothek.snapshot import Snapshot

OLD = {"p": pa.int64(), "x": pa.int64()}
NEW = {"p": pa.int64(), "x": pa.string()}


def _mark(store, uuid, **marks):
    made = read_document(store, uuid)
    made["metadata"].update({f"kartosql_{name}": value for name, value in marks.items()})
    write_document(store, made)


def _intent(seed="c++seed", kind="change", staged="c++e/.commit/t.json"):
    return {"tx": "t", "seed": seed, "kind": kind, "time": "2026-01-01T00:00:00+00:00", "staged": staged}


@pytest.fixture
def cube(store):
    """A cube whose dataset ``e`` has a change under way that adds the partition p=2."""
    write_cube(store, "c", {"seed": OLD, "e": {"p": pa.int64(), "x": pa.int64(), "v": pa.int64()}})
    staged = document("c++e", ["p=0", "p=1", "p=2"], partition_keys=["p"], metadata={"ktk_cube_is_seed": False})
    store.put("c++e/.commit/t.json", json.dumps(staged).encode())
    _mark(store, "c++e", intent=_intent())
    return store


def _labels(store, uuid="c++e"):
    found = Snapshot(store).datasets([uuid])[uuid]
    return None if isinstance(found, KeyError) else [v.partition("/")[0] for v in found.document.labels]


def test_a_change_that_the_seed_does_not_know_is_not_seen(cube):
    assert _labels(cube) == ["p=0", "p=1"]


def test_a_change_that_is_only_announced_is_not_seen(cube):
    _mark(cube, "c++seed", intent=_intent(kind="primary"))
    assert _labels(cube) == ["p=0", "p=1"]


def test_a_committed_change_is_seen_before_it_is_carried_out(cube):
    _mark(cube, "c++seed", unfinished={"t": ["c++e"]})
    assert _labels(cube) == ["p=0", "p=1", "p=2"]
    assert len(Snapshot(cube).cube("c").members["e"].table.files) == 3


def test_a_committed_change_of_another_name_is_not_taken_for_it(cube):
    _mark(cube, "c++seed", unfinished={"other": ["c++e"]})
    assert _labels(cube) == ["p=0", "p=1"]


def test_a_committed_deletion_hides_the_dataset_without_a_warning(cube):
    _mark(cube, "c++e", intent=_intent(kind="delete", staged=None))
    assert _labels(cube) == ["p=0", "p=1"]
    _mark(cube, "c++seed", unfinished={"t": ["c++e"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(Snapshot(cube).cube("c").members) == ["seed"]
        assert "c" in Snapshot(cube).cubes()
    assert _labels(cube) is None


def test_an_absent_dataset_is_not_there_until_it_is_committed(cube):
    _mark(cube, "c++e", absent=True)
    assert _labels(cube) is None
    _mark(cube, "c++seed", unfinished={"t": ["c++e"]})
    assert _labels(cube) == ["p=0", "p=1", "p=2"]


def test_an_absent_seed_is_no_cube(cube):
    _mark(cube, "c++seed", absent=True)
    assert Snapshot(cube).cubes() == {}
    assert not Snapshot(cube).is_cube("c")


def test_a_change_that_is_carried_out_while_it_is_looked_at_is_seen(cube, monkeypatch):
    _mark(cube, "c++seed", unfinished={"t": ["c++e"]})
    plain = cube.read_metadata

    def read(key):
        if key.endswith("/.commit/t.json"):
            monkeypatch.undo()
            made = json.loads(cube.read("c++e/.commit/t.json"))
            write_document(cube, made)
            _mark(cube, "c++seed", unfinished={})
            cube.delete(["c++e/.commit/t.json"])
        return plain(key)

    monkeypatch.setattr(cube, "read_metadata", read)
    assert _labels(cube) == ["p=0", "p=1", "p=2"]


def test_a_document_that_waits_and_is_lost_is_an_error(cube):
    _mark(cube, "c++seed", unfinished={"t": ["c++e"]})
    cube.delete(["c++e/.commit/t.json"])
    with pytest.raises(FormatError, match="committed change waits") as e:
        Snapshot(cube).cube("c")
    assert e.value.code == "missing-metadata"


def test_a_document_that_waits_elsewhere_is_refused(cube):
    _mark(cube, "c++e", intent=_intent(staged="c++seed/.commit/t.json"))
    with pytest.raises(FormatError) as e:
        Snapshot(cube).cube("c")
    assert e.value.code == "unsafe-key"


def test_what_is_wrong_with_one_dataset_is_not_wrong_with_others(cube):
    write_dataset(cube, "d", {"p": pa.int64()})
    _mark(cube, "c++e", intent=_intent(staged="c++seed/.commit/t.json"))
    found = Snapshot(cube)
    assert found.uuids() == ["c++e", "c++seed", "d"]
    assert found.names("c") == ["e", "seed"]
    assert found.dataset("d").uuid == "d"


def test_a_seed_that_cannot_be_read_is_an_error_for_what_waits_on_it(cube):
    cube.put("c++seed.by-dataset-metadata.json", b"torn")
    found = Snapshot(cube).datasets(["c++e"])["c++e"]
    assert isinstance(found, FormatError)


# -- schemas -------------------------------------------------------------------------------------------


def test_a_schema_in_the_document_counts_instead_of_the_file(store):
    write_dataset(store, "d", OLD, partition_keys=["p"])
    _mark(store, "d", schema={"table": base64.b64encode(schema_bytes(pa.schema(NEW))).decode()})
    assert Snapshot(store).dataset("d").schemas["table"].field("x").type == pa.string()


@pytest.mark.parametrize("text", ["%", 3, base64.b64encode(b"torn").decode()])
def test_a_damaged_schema_in_the_document_is_named(store, text):
    write_dataset(store, "d", OLD, partition_keys=["p"])
    _mark(store, "d", schema={"table": text})
    with pytest.raises(FormatError) as e:
        Snapshot(store).dataset("d")
    assert "d.by-dataset-metadata.json" in e.value.message


def _overwrite_when(store, monkeypatch, suffix):
    """Let the dataset be overwritten just before its next file with this suffix is read."""
    plain = store.read_metadata

    def read(key):
        if key.endswith(suffix):
            monkeypatch.undo()
            write_dataset(store, "d", NEW, ["p=7"], partition_keys=["p"])
        return plain(key)

    monkeypatch.setattr(store, "read_metadata", read)


@pytest.mark.parametrize("suffix", ["metadata.json", "_common_metadata"])
def test_document_and_schema_are_of_one_state(store, monkeypatch, suffix):
    write_dataset(store, "d", OLD, ["p=1"], partition_keys=["p"])
    _overwrite_when(store, monkeypatch, suffix)
    found = Snapshot(store).dataset("d")
    assert (found.schemas["table"].field("x").type, found.document.labels[0][:3]) == (pa.string(), "p=7")


def test_a_schema_that_the_commit_knew_needs_no_second_look(store):
    write_dataset(store, "d", OLD, partition_keys=["p"])
    schema = Snapshot(store).dataset("d").schemas["table"]
    _mark(store, "d", commit={"schemas": {"table": metadata.fingerprint(schema)}})
    before = len(store.counter.keys)
    Snapshot(store).dataset("d")
    assert len(store.counter.keys) - before == 2


# -- several datasets ----------------------------------------------------------------------------------


def test_datasets_of_a_cube_are_of_one_state(store, monkeypatch):
    members = {"seed": OLD, "e": {**OLD, "v": pa.int64()}}
    write_cube(store, "c", members)
    plain = store.read_metadata
    seen = []

    def read(key):
        data = plain(key)
        if key == "c++seed.by-dataset-metadata.json" and len(seen) < 3:
            # Both get a further partition, when one of them was read already.
            seen.append(key)
            folders = [f"p={n}" for n in range(2 + len(seen))]
            for name, flags in (("seed", SEED_FLAGS), ("e", {"ktk_cube_is_seed": False})):
                write_document(store, document(f"c++{name}", folders, partition_keys=["p"], metadata=flags))
        return data

    store.map = lambda function, items: [function(item) for item in reversed(items)][::-1]
    monkeypatch.setattr(store, "read_metadata", read)
    found = Snapshot(store).cube("c").members
    assert seen
    assert found["e"].table.labels == found["seed"].table.labels


def test_a_dataset_that_a_change_made_after_the_listing_is_found(store):
    write_cube(store, "c", {"seed": OLD})
    snapshot = Snapshot(store)
    assert list(snapshot.members["c"]) == ["seed"]
    write_cube(store, "c", {"seed": OLD, "e": {**OLD, "v": pa.int64()}})
    _mark(store, "c++seed", commit={"transaction": "t", "created": ["c++e"]})
    assert sorted(snapshot.cube("c").members) == ["e", "seed"]


def test_three_rounds_without_a_change_of_several_datasets_bound_the_middle_one():
    rounds = [({}, ["t1"]), ({}, ["t1"]), ({}, ["t1"])]
    assert snapshot.is_between_transactions(rounds)
    assert not snapshot.is_between_transactions(rounds[:2])
    assert not snapshot.is_between_transactions([*rounds[:2], ({}, ["t2"])])
