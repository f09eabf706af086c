from __future__ import annotations

import json

import pytest

import builders
from kartosql.formats.kartothek.versions import read_entries
from kartosql.store import Store
from kartosql.write.change import Change
from kartosql.write.check import lost
from kartosql.write.commit import commit
from kartosql.write.recovery import read_head
from write import rivals
from write.rivals import adding, in_partition


@pytest.fixture
def made(store):
    commit(store, adding(store, "d", {1: "a", 2: "b"}, "create", create=True))
    return store


def losses(store):
    head = read_head(store, "d")
    return lost(read_entries(store, "d"), head.identity, head.document.labels)


def test_each_commit_leaves_what_it_did(made):
    change = adding(made, "d", {1: "c"}, "replace", removed=in_partition(1))
    old = [label for label in read_head(made, "d").document.labels if label.startswith("p=1/")]
    done = commit(made, change)
    first, second = read_entries(made, "d")
    assert (first.operation, first.parent, first.origin) == ("create", None, first.id)
    assert (second.id, second.parent, second.origin, second.sequence) == (done.id, first.id, first.id, done.sequence)
    assert (second.operation, second.time) == ("replace", read_head(made, "d").identity.time)
    assert (second.added, list(second.removed)) == (change.added, old)
    assert second.before is not None
    assert second.before.id == first.id
    assert second.key("d") in made.list_below(".kartosql/history/d/")


def test_a_commit_counts_where_its_entry_cannot_be_written(made, monkeypatch):
    from kartosql.errors import StoreError

    output = Store.output

    def refuse(self, key, **options):
        if "/history/" in key:
            raise StoreError("no")
        return output(self, key, **options)

    monkeypatch.setattr(Store, "output", refuse)
    commit(made, adding(made, "d", {1: "c"}))
    assert rivals.values(made, "d") == ["a", "b", "c"]
    assert len(read_entries(made, "d")) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        json.dumps(
            {
                "id": "x",
                "parent": None,
                "sequence": 9,
                "operation": "o",
                "time": "t",
                "origin": None,
                "added": {"l": {"table": "../../x"}},
                "removed": [],
            }
        ).encode(),
        json.dumps(
            {
                "id": "y",
                "parent": None,
                "sequence": 9,
                "operation": "o",
                "time": "t",
                "origin": None,
                "added": {},
                "removed": [],
            }
        ).encode(),
    ],
)
def test_entries_that_are_torn_or_lie_are_left_out(made, data):
    before = read_entries(made, "d")
    made.put(".kartosql/history/d/000000000009-000000000009-x.json.zst", data)
    assert read_entries(made, "d") == before


def test_nothing_is_lost_as_long_as_only_kartosql_writes(made):
    for n in range(80):
        commit(made, adding(made, "d", {1: f"v{n}"}, removed=in_partition(1) if n % 7 == 0 else None))
    assert losses(made) == []


def test_a_commit_that_a_blind_overwrite_dropped_is_found(made):
    stale = builders.read_document(made, "d")
    kept = commit(made, adding(made, "d", {1: "c"}))
    commit(made, adding(made, "d", {2: "e"}))
    builders.write_document(made, stale)
    found = losses(made)
    assert [one.entry.operation for one in found] == ["append", "append"]
    assert found[0].entry.id == kept.id
    assert [list(one.added) for one in found] == [list(one.entry.added) for one in found]
    assert all(one.reason is None for one in found)


def test_it_is_still_found_after_many_more_commits(made):
    stale = builders.read_document(made, "d")
    dropped = commit(made, adding(made, "d", {1: "c"}))
    builders.write_document(made, stale)
    for n in range(71):
        commit(made, adding(made, "d", {2: f"v{n}"}))
    (one,) = losses(made)
    assert one.entry.id == dropped.id
    assert len(one.later) == 71


def test_what_another_program_removed_knowingly_is_not_lost(made):
    commit(made, adding(made, "d", {1: "c"}))
    document = builders.read_document(made, "d")
    document["partitions"] = {k: v for k, v in document["partitions"].items() if k.startswith("p=2")}
    builders.write_document(made, document)
    assert losses(made) == []


def test_nothing_is_known_without_an_identity_and_of_another_dataset_of_the_name(made):
    stale = builders.read_document(made, "d")
    commit(made, adding(made, "d", {1: "c"}))
    del stale["metadata"]["kartosql_commit"]
    builders.write_document(made, stale)
    assert losses(made) == []
    commit(made, adding(made, "d", {1: "z"}, replace_all=True))
    assert losses(made) == []


def test_dropping_the_dataset_ends_its_history(made):
    commit(made, Change("d", "drop", drop=True))
    commit(made, adding(made, "d", {1: "z"}, "create", create=True))
    assert losses(made) == []
