from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
import threading
import types
import warnings

import pyarrow as pa
import pytest

import builders
from kartosql.errors import (
    CommitError,
    CommitUnknown,
    ConcurrentCommit,
    FormatError,
    KartosqlWarning,
    StoreError,
    UsageError,
)
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed
from kartosql.write import commit as committing
from kartosql.write import document
from kartosql.write.change import Change
from kartosql.write.commit import commit
from kartosql.write.recovery import read_head
from write import rivals
from write.rivals import adding, content, in_partition, values

pytestmark = pytest.mark.usefixtures("impatient")

JSON = "d.by-dataset-metadata.json"


@pytest.fixture
def made(store):
    """A dataset with one file in each of two partitions."""
    commit(store, adding(store, "d", {1: "a", 2: "b"}, "create", create=True))
    return store


def _keys(store: Store) -> list[str]:
    return [k for k in store.list_below("d/") if not k.endswith("_common_metadata")]


def _referenced(store: Store) -> list[str]:
    document = builders.read_document(store, "d")
    return sorted(
        [entry["files"]["table"] for entry in document["partitions"].values()] + list(document["indices"].values())
    )


@contextlib.contextmanager
def _told():
    """Allow the warning about other programs, which depends on the moment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)
        yield


# -- one writer ----------------------------------------------------------------------------------------


def test_the_document_has_the_keys_of_the_format_in_their_order(made):
    document = json.loads(made.read(JSON))
    assert list(document) == [
        "dataset_metadata_version",
        "dataset_uuid",
        "indices",
        "metadata",
        "partitions",
        "partition_keys",
    ]
    created = dt.datetime.fromisoformat(document["metadata"]["creation_time"])
    assert created.tzinfo is None
    assert abs(dt.datetime.now(dt.timezone.utc).replace(tzinfo=None) - created) < dt.timedelta(minutes=5)
    assert [label.split("/")[0] for label in document["partitions"]] == ["p=1", "p=2"]
    assert all(v == {"files": {"table": f"d/table/{k}.parquet"}} for k, v in document["partitions"].items())
    assert document["partition_keys"] == ["p"]


def test_a_dataset_without_indices_has_no_such_key(store):
    commit(store, adding(store, "d", {1: "a"}, create=True, pairs={}))
    assert "indices" not in builders.read_document(store, "d")


def test_appended_files_come_last(made):
    done = commit(made, adding(made, "d", {1: "c"}))
    assert content(made, "d") == [("p=1", "a"), ("p=2", "b"), ("p=1", "c")]
    assert (done.sequence, done.rebased, done.foreign, done.labels_removed) == (2, 0, False, ())
    assert read_head(made, "d").identity.recent[-1] == done.id


def test_removed_files_are_gone_from_document_and_index(made):
    done = commit(made, Change("d", "remove", removed=in_partition(1)))
    assert content(made, "d") == [("p=2", "b")]
    assert [label.partition("/")[0] for label in done.labels_removed] == ["p=1"]


def test_all_files_may_go(made):
    commit(made, Change("d", "remove", removed=in_partition(1, 2)))
    assert content(made, "d") == []
    commit(made, adding(made, "d", {3: "c"}))
    assert content(made, "d") == [("p=3", "c")]


def test_a_replaced_partition_comes_last(made):
    commit(made, adding(made, "d", {1: "c"}, "replace", removed=in_partition(1)))
    assert content(made, "d") == [("p=2", "b"), ("p=1", "c")]


def test_a_compacted_file_takes_the_place_it_is_given(made):
    commit(made, adding(made, "d", {1: "c", 3: "d"}))
    labels = read_head(made, "d").document.labels
    change = adding(made, "d", {1: "ac"}, "compact", removed=frozenset([labels[0], labels[2]]))
    change = Change(**{**vars(change), "positions": {next(iter(change.added)): labels[2]}})
    commit(made, change)
    assert content(made, "d") == [("p=2", "b"), ("p=1", "ac"), ("p=3", "d")]


def test_overwriting_keeps_nothing(made):
    commit(
        made, adding(made, "d", {5: "z"}, "overwrite", replace_all=True, metadata={"new": 1}), base=read_head(made, "d")
    )
    assert content(made, "d") == [("p=5", "z")]
    metadata = builders.read_document(made, "d")["metadata"]
    assert metadata["new"] == 1


def test_metadata_are_merged(made):
    commit(made, Change("d", "set", metadata={"a": 1, "b": 1}))
    created = builders.read_document(made, "d")["metadata"]["creation_time"]
    commit(made, Change("d", "set", metadata={"b": 2}))
    metadata = builders.read_document(made, "d")["metadata"]
    assert (metadata["a"], metadata["b"], metadata["creation_time"]) == (1, 2, created)


def test_an_index_is_created_and_dropped(store):
    plain = adding(store, "d", {1: "a"}, create=True)
    commit(store, Change(**{**vars(plain), "pairs": {}}))
    commit(store, Change("d", "create_index", indices={"i": plain.pairs["i"]}, indexed=frozenset(plain.added)))
    assert list(read_head(store, "d").document.indices) == ["i"]
    assert content(store, "d") == [("p=1", "a")]
    commit(store, Change("d", "drop_index", indices={"i": None}))
    assert dict(read_head(store, "d").document.indices) == {}


def test_a_dropped_dataset_is_gone(made):
    commit(made, Change("d", "drop", drop=True))
    assert read_head(made, "d") is None
    assert content(made, "d") is None


def test_a_dropped_dataset_can_be_made_again_with_other_columns(made):
    commit(made, Change("d", "drop", drop=True))
    change = adding(made, "d", {1: "a"}, "create", create=True, pairs={})
    schema = pa.schema([("p", pa.int64()), ("i", pa.string()), ("x", pa.int64()), ("y", pa.int64())])
    commit(made, Change(**{**vars(change), "schemas": {"table": schema}}))
    assert Snapshot(made).dataset("d").schemas["table"].names == ["p", "i", "x", "y"]


def test_msgpack_stays_msgpack(store):
    commit(store, adding(store, "d", {1: "a"}, "create", create=True, format="msgpack"))
    commit(store, adding(store, "d", {1: "b"}))
    assert content(store, "d") == [("p=1", "a"), ("p=1", "b")]
    assert [e.name for e in store.list_root() if "metadata" in e.name] == ["d.by-dataset-metadata.msgpack.zstd"]


def test_json_that_appears_beside_msgpack_is_what_counts(store):
    def make(name):
        commit(store, adding(store, name, {1: "a"}, "create", create=True, format="msgpack"))
        return read_head(store, name)

    def foreign(head):
        document = builders.document(head.uuid, partition_keys=["p"], indices=dict(head.document.indices))
        document["partitions"] = {head.document.labels[0]: {"files": {"table": head.document.files["table"][0]}}}
        builders.write_document(store, document)

    make("x")
    for at in range(rivals.count_calls(store, lambda s: commit(s, adding(store, "x", {2: "b"})))):
        name = f"d{at}"
        head = make(name)
        with _told():
            commit(rivals.act_at(store, at, lambda head=head: foreign(head)), adding(store, name, {2: "b"}))
        assert values(store, name) == ["a", "b"]


# -- schemas -------------------------------------------------------------------------------------------


def _with_type(change: Change, type_: pa.DataType) -> Change:
    schema = rivals.SCHEMA.set(2, pa.field("x", type_))
    return Change(**{**vars(change), "schemas": {"table": schema}})


def test_a_column_of_nulls_takes_the_type_of_what_comes_later(store):
    commit(store, _with_type(adding(store, "d", {1: "a"}, create=True), pa.null()))
    commit(store, adding(store, "d", {1: "b"}))
    assert Snapshot(store).dataset("d").schemas["table"].field("x").type == pa.int64()
    commit(store, _with_type(adding(store, "d", {1: "c"}), pa.null()))
    assert Snapshot(store).dataset("d").schemas["table"].field("x").type == pa.int64()


def test_other_types_are_refused_and_nothing_changes(made):
    before = made.read(JSON), made.read("d/table/_common_metadata")
    with pytest.raises(UsageError) as e:
        commit(made, _with_type(adding(made, "d", {1: "b"}), pa.string()))
    assert e.value.code == "incompatible-schema"
    assert (made.read(JSON), made.read("d/table/_common_metadata")) == before


def test_other_partition_keys_are_refused(made):
    with pytest.raises(UsageError) as e:
        commit(made, adding(made, "d", {1: "b"}, partition_keys=("i",)))
    assert e.value.code == "incompatible-schema"


def test_an_overwrite_may_change_types_and_the_next_one_again(made):
    for type_ in (pa.string(), pa.int64(), pa.float64()):
        change = _with_type(adding(made, "d", {1: "b"}, "overwrite", replace_all=True), type_)
        commit(made, change, base=read_head(made, "d"))
        assert Snapshot(made).dataset("d").schemas["table"].field("x").type == type_
        assert "kartosql_schema" not in builders.read_document(made, "d")["metadata"]


def _overwrite_states(store: Store, at: int, when: str) -> str:
    change = _with_type(adding(store, "d", {1: "new"}, "overwrite", replace_all=True), pa.string())
    with pytest.raises(rivals.Died):
        commit(rivals.dies_at(store, at, when), change, base=read_head(store, "d"))
    found = Snapshot(store).dataset("d")
    return f"{values(store, 'd')} {found.schemas['table'].field('x').type}"


def test_whoever_dies_while_types_change_leaves_the_old_or_the_new_state(tmp_path):
    seen = set()
    at = 0
    while True:
        store = Store(str(tmp_path / str(at)), create=True)
        commit(store, adding(store, "d", {1: "a"}, create=True))
        try:
            for when in ("before", "after"):
                state = _overwrite_states(store, at, when)
                assert state in ("['a'] int64", "['new'] string")
                seen.add(state)
                if state.startswith("['new'"):
                    commit(store, _with_type(adding(store, "d", {1: "b"}), pa.string()))
                    assert values(store, "d") == ["b", "new"]
                    assert "kartosql_schema" not in builders.read_document(store, "d")["metadata"]
                    commit(store, adding(store, "d", {1: "a"}, "overwrite", replace_all=True))
                else:
                    commit(store, adding(store, "d", {2: "b"}))
                    assert values(store, "d") == ["a", "b"]
                    commit(store, Change("d", "remove", removed=in_partition(2)))
        except pytest.fail.Exception:
            break  # it went through
        at += 1
    assert len(seen) == 2


# -- rivals --------------------------------------------------------------------------------------------


def _races(store: Store, mine, theirs):
    """Run ``mine(store)`` once for each of its calls, with ``theirs()`` before that call; yield the results."""
    calls = rivals.count_calls(store, mine)
    assert calls > 4
    for at in range(calls):
        yield mine(rivals.act_at(store, at, theirs()))


def test_two_appends_never_lose_each_other(made):
    expected = {"a", "b"}
    count = 0

    def mine(store):
        nonlocal count
        count += 1
        expected.add(f"m{count}")
        return commit(store, adding(made, "d", {1: f"m{count}"}))

    def theirs():
        name = f"t{count}"
        expected.add(name)
        change = adding(made, "d", {2: name})
        return lambda: commit(Store(made.url), change)

    rebased = 0
    for result in _races(made, mine, theirs):
        rebased += result.rebased
        found = values(made, "d")
        assert set(found) == expected
        assert len(found) == len(expected)
    assert rebased
    assert set(_keys(made)) >= set(_referenced(made))


def test_what_a_lost_round_wrote_is_deleted(local):
    commit(local, adding(local, "d", {1: "a"}, create=True))
    change = adding(local, "d", {1: "m"})
    calls = []
    other = rivals.watched(local)

    def hook(number, when, name, key):
        if name == "put_if" and when == "before" and not calls:
            calls.append(key)
            commit(Store(local.url), adding(local, "d", {1: "t"}))

    other.hook = hook
    assert commit(other, change).rebased == 1
    assert calls
    # Three states were committed, each with its index.
    assert len([k for k in _keys(local) if "/indices/" in k]) == 3


def test_replacing_different_partitions_goes_together(made):
    def mine(store):
        change = adding(made, "d", {1: "m"}, "replace", removed=in_partition(1))
        return commit(store, change, base=read_head(made, "d"))

    def theirs():
        change = adding(made, "d", {2: "t"}, "replace", removed=in_partition(2))
        return lambda: commit(Store(made.url), change)

    for result in _races(made, mine, theirs):
        assert result.labels_removed
        assert sorted(content(made, "d")) == [("p=1", "m"), ("p=2", "t")]


def test_replacing_the_same_partition_names_the_winner(made):
    def replacing(value, operation):
        return adding(made, "d", {1: value}, operation, removed=in_partition(1))

    calls = rivals.count_calls(made, lambda s: commit(s, replacing("m", "mine")))
    errors = []
    for at in range(calls):
        base, won = read_head(made, "d"), []
        theirs = replacing("t", "rival")
        store = rivals.act_at(made, at, lambda: won.append(commit(Store(made.url), theirs)))
        try:
            commit(store, replacing("m", "mine"), base=base)
            assert content(made, "d")[-1] == ("p=1", "t")
        except ConcurrentCommit as e:
            errors.append((e, won[0]))
            assert content(made, "d")[-1] == ("p=1", "t")
        assert len(content(made, "d")) == 2
    assert len(errors) > 3
    for error, winner in errors:
        assert error.code == "concurrent-commit"
        assert (error.winner["operation"], error.winner["id"]) == ("rival", winner.id)
        assert winner.id in error.message
        assert error.winner["time"] in error.message


def test_removing_does_not_take_what_was_added_meanwhile(made):
    base = read_head(made, "d")
    commit(made, adding(made, "d", {1: "late"}))
    with pytest.raises(ConcurrentCommit):
        commit(made, Change("d", "remove", removed=in_partition(1)), base=base)
    assert values(made, "d") == ["a", "b", "late"]


def test_removing_what_was_removed_meanwhile_is_no_conflict(made):
    base = read_head(made, "d")
    commit(made, Change("d", "remove", removed=in_partition(1)))
    assert commit(made, Change("d", "remove", removed=in_partition(1)), base=base).labels_removed == ()


def test_compacting_files_that_are_gone_is_a_conflict(made):
    base = read_head(made, "d")
    label = base.document.labels[0]
    commit(made, Change("d", "remove", removed=in_partition(1)))
    with pytest.raises(ConcurrentCommit):
        commit(made, adding(made, "d", {1: "a"}, "compact", removed=frozenset([label])), base=base)


@pytest.mark.parametrize("options", [{"replace_all": True}, {"drop": True}])
def test_overwriting_and_dropping_go_together_with_nothing(made, options):
    base = read_head(made, "d")
    commit(made, adding(made, "d", {1: "late"}))
    with pytest.raises(ConcurrentCommit):
        commit(made, Change("d", "end", **options), base=base)
    assert values(made, "d") == ["a", "b", "late"]


def test_appending_to_what_was_replaced_or_dropped_is_a_conflict(made):
    base = read_head(made, "d")
    commit(made, adding(made, "d", {1: "n"}, replace_all=True))
    with pytest.raises(ConcurrentCommit):
        commit(made, adding(made, "d", {1: "m"}), base=base)
    base = read_head(made, "d")
    commit(made, Change("d", "drop", drop=True))
    with pytest.raises(ConcurrentCommit):
        commit(made, adding(made, "d", {1: "m"}), base=base)
    commit(made, adding(made, "d", {1: "n"}, create=True))
    with pytest.raises(ConcurrentCommit):
        commit(made, adding(made, "d", {1: "m"}), base=base)


def test_only_one_of_two_creates_a_dataset(store):
    calls = rivals.count_calls(store, lambda s: commit(s, adding(store, "x", {1: "a"}, create=True)))
    for at in range(calls):
        name = f"d{at}"
        theirs = _with_type(adding(store, name, {1: "t"}, create=True, pairs={}), pa.string())
        rival = rivals.act_at(store, at, lambda name=name, theirs=theirs: commit(Store(store.url), theirs))
        with pytest.raises(ConcurrentCommit):
            commit(rival, adding(store, name, {1: "m"}, create=True))
        found = Snapshot(store).dataset(name)
        assert values(store, name) == ["t"]
        assert found.schemas["table"].field("x").type == pa.string()


def test_an_index_made_meanwhile_covers_the_files_of_both(store):
    first = adding(store, "d", {1: "a"}, create=True)
    commit(store, Change(**{**vars(first), "pairs": {}}))
    base = read_head(store, "d")
    late = adding(store, "d", {2: "b"})
    commit(store, Change(**{**vars(late), "pairs": {}}))
    made = Change("d", "create_index", indices={"i": first.pairs["i"]}, indexed=frozenset(first.added))
    commit(store, made, base=base)
    assert values(store, "d") == ["a", "b"]
    other = adding(store, "d", {2: "c"})
    commit(store, Change(**{**vars(other), "pairs": {}}), base=base)
    assert values(store, "d") == ["a", "b", "c"]
    assert list(read_head(store, "d").document.indices) == ["i"]


def test_many_threads_lose_nothing(made):
    errors = []

    def run(name):
        store = Store(made.url)
        try:
            for n in range(6):
                commit(store, adding(store, "d", {n % 3: f"{name}{n}"}))
        except BaseException as e:
            errors.append(e)
            raise

    threads = [threading.Thread(target=run, args=(f"t{t}-",)) for t in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert values(made, "d") == sorted(["a", "b", *(f"t{t}-{n}" for t in range(8) for n in range(6))])


# -- answers that do not come --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_lost_answers_apply_nothing_twice_and_are_no_errors(made, seed):
    chance = random.Random(seed)
    expected = ["a", "b"]
    for n in range(12):
        other = rivals.loses_answers(made, lambda number, key: chance.random() < 0.4)
        commit(other, adding(made, "d", {1: f"m{n}"}))
        expected.append(f"m{n}")
        assert values(made, "d") == sorted(expected)


def test_a_refusal_of_what_was_carried_out_is_no_error(made):
    """A library sends a request again whose answer was lost, and reports the second answer."""
    other = rivals.watched(made)
    refused = []

    def hook(number, when, name, key):
        if when == "after" and name == "put_if" and key == JSON and not refused:
            refused.append(key)
            raise PreconditionFailed(key)

    other.hook = hook
    done = commit(other, adding(made, "d", {1: "m"}))
    assert refused
    assert done.rebased == 1
    assert values(made, "d") == ["a", "b", "m"]


@pytest.fixture
def waits(monkeypatch):
    """What is waited for, at its longest, in a time that goes on in these waits only."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        clock.now += seconds
        waited.append(seconds)

    clock = types.SimpleNamespace(now=0.0, sleep=sleep, monotonic=lambda: clock.now)
    for module in (document, committing):
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "random", types.SimpleNamespace(uniform=lambda low, high: high))
    return clock, waited


def test_waits_after_lost_races_stay_as_long_and_those_for_an_answer_grow(waits):
    clock, waited = waits
    backoff = document.Backoff(10)
    for is_race in [True] * 6 + [False] * 6:
        clock.now += 1  # the round
        backoff.wait(is_race=is_race)
    assert waited == [2.0] * 6 + [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert (backoff.rounds, backoff.lost) == (12, 4.0)


def test_who_lost_races_gives_way_before_the_next_commit_until_nobody_is_met(made, waits):
    clock, waited = waits
    mine, lost = rivals.watched(made), []

    def hook(number, when, name, key):
        if when == "before" and name == "put_if" and key == JSON and len(lost) < 2:
            lost.append(key)
            clock.now += 1
            commit(made, adding(made, "d", {1: f"r{len(lost)}"}))

    mine.hook = hook
    assert commit(mine, adding(made, "d", {1: "m"})).rebased == 2
    assert mine.paces == {"d": 2.0}
    assert made.paces == {"d": 0.0}
    waited.clear()
    for number in range(3):
        assert commit(mine, adding(made, "d", {1: f"n{number}"})).rebased == 0
    assert waited == [2.0, pytest.approx(1.6), pytest.approx(1.28)]
    assert values(made, "d") == sorted(["a", "b", "m", "r1", "r2", "n0", "n1", "n2"])


def test_a_store_that_falls_silent_gives_an_unknown_outcome_and_nothing_is_deleted(made, monkeypatch):
    monkeypatch.setattr(document, "BACKOFF_SECONDS", 0.2)
    change = adding(made, "d", {1: "m"})
    other = rivals.watched(made)
    silent = []

    def hook(number, when, name, key):
        if silent and name == "read_versioned":
            raise StoreError("no answer")
        if when == "after" and name == "put_if" and key == JSON:
            silent.append(key)
            raise OutcomeUnknown(key)
        assert not (silent and name == "delete")

    other.hook = hook
    with pytest.raises(CommitUnknown) as e:
        commit(other, change)
    assert e.value.code == "commit-unknown"
    assert values(made, "d") == ["a", "b", "m"]


def test_a_lost_answer_followed_by_many_other_commits_is_found_by_its_files(made):
    other = rivals.watched(made)
    lost = []

    def hook(number, when, name, key):
        if when == "after" and name == "put_if" and key == JSON and not lost:
            lost.append(key)
            for n in range(70):
                commit(Store(made.url), Change("d", "set", metadata={"n": n}))
            raise OutcomeUnknown(key)

    other.hook = hook
    commit(other, adding(made, "d", {1: "m"}))
    assert values(made, "d") == ["a", "b", "m"]


def test_where_neither_id_nor_files_can_tell_the_outcome_is_unknown(made):
    other = rivals.watched(made)
    lost = []

    def hook(number, when, name, key):
        if when == "after" and name == "put_if" and key == JSON and not lost:
            lost.append(key)
            for n in range(70):
                commit(Store(made.url), Change("d", "set", metadata={"n": n}))
            commit(Store(made.url), Change("d", "remove", removed=in_partition(1)))
            raise OutcomeUnknown(key)

    other.hook = hook
    with pytest.raises(CommitUnknown):
        commit(other, adding(made, "d", {1: "m"}))
    assert values(made, "d") == ["b"]


# -- a writer that dies --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["append", "replace", "create", "drop"])
def test_whoever_dies_leaves_the_old_or_the_new_state(store, kind):
    def change(n):
        if kind == "drop":
            return Change(f"d{n}", "drop", drop=True)
        options = {"removed": in_partition(1)} if kind == "replace" else {"create": True} if kind == "create" else {}
        return adding(store, f"d{n}", {1: "m"}, kind, **options)

    def prepare(n):
        if kind != "create":
            commit(store, adding(store, f"d{n}", {1: "a", 2: "b"}, create=True))

    old, new = {
        "append": (["a", "b"], ["a", "b", "m"]),
        "replace": (["a", "b"], ["b", "m"]),
        "create": (None, ["m"]),
        "drop": (["a", "b"], None),
    }[kind]
    prepare(999)
    calls = rivals.count_calls(store, lambda s: commit(s, change(999)))
    seen = []
    for n in range(2 * calls):
        prepare(n)
        with pytest.raises(rivals.Died):
            commit(rivals.dies_at(store, n // 2, ("before", "after")[n % 2]), change(n))
        state = values(store, f"d{n}")
        assert state in (old, new)
        seen.append(state)
        if state is None:
            commit(store, adding(store, f"d{n}", {1: "a"}, create=True))
        else:
            commit(store, adding(store, f"d{n}", {9: "z"}))
            assert values(store, f"d{n}") == [*state, "z"]
    assert old in seen
    assert new in seen


# -- other programs ------------------------------------------------------------------------------------


def _append_as_the_original_does(store: Store, value: str, document=None) -> None:
    if document is not None:
        builders.write_document(store, document)
    builders.append(store, "d", pa.table({"p": [2], "i": [value], "x": [1]}))


def test_what_another_program_appended_is_kept_and_told(made):
    _append_as_the_original_does(made, "f")
    assert read_head(made, "d").is_foreign
    with pytest.warns(KartosqlWarning, match="another program"):
        done = commit(made, adding(made, "d", {1: "m"}))
    assert done.foreign
    assert values(made, "d") == ["a", "b", "f", "m"]
    assert not commit(made, adding(made, "d", {1: "n"})).foreign


def test_a_blind_overwrite_by_another_program_is_told(made):
    stale = builders.read_document(made, "d")
    base = read_head(made, "d")
    commit(made, adding(made, "d", {1: "lost"}))
    _append_as_the_original_does(made, "f", stale)
    with pytest.warns(KartosqlWarning, match="REPAIR"):
        done = commit(made, adding(made, "d", {1: "m"}), base=base)
    assert done.foreign
    assert values(made, "d") == ["a", "b", "f", "m"]


def test_metadata_wiped_by_another_program_are_told(made):
    base = read_head(made, "d")
    document = builders.read_document(made, "d")
    document["metadata"] = {}
    builders.write_document(made, document)
    with pytest.warns(KartosqlWarning):
        assert commit(made, adding(made, "d", {1: "m"}), base=base).foreign
    assert values(made, "d") == ["a", "b", "m"]


def test_a_foreign_append_at_any_moment_is_not_lost_unless_it_is_blind(made):
    def mine(store):
        return commit(store, adding(made, "d", {1: "m"}))

    calls = rivals.count_calls(made, mine)
    for at in range(calls):
        before = len(values(made, "d"))
        with _told():
            mine(rivals.act_at(made, at, lambda: _append_as_the_original_does(made, "f")))
        assert len(values(made, "d")) == before + 2


def test_a_dataset_that_only_the_original_wrote_can_be_changed(store):
    builders.write_dataset(store, "d", {"p": pa.int64(), "i": pa.string(), "x": pa.int64()}, partition_keys=["p"])
    builders.append(store, "d", pa.table({"p": [2], "i": ["f"], "x": [1]}))
    done = commit(store, adding(store, "d", {1: "m"}))
    assert not done.foreign
    assert values(store, "d") == ["f", "m"]


def test_an_index_inside_of_the_document_becomes_a_file(store):
    builders.write_dataset(store, "d", {"p": pa.int64(), "i": pa.string(), "x": pa.int64()}, partition_keys=["p"])
    builders.append(store, "d", pa.table({"p": [2], "i": ["f"], "x": [1]}))
    document = builders.read_document(store, "d")
    document["indices"] = {"i": {"f": list(document["partitions"])}}
    builders.write_document(store, document)
    commit(store, adding(store, "d", {1: "m"}))
    assert values(store, "d") == ["f", "m"]
    assert read_head(store, "d").document.indices["i"].startswith("d/indices/i/")


# -- refused -------------------------------------------------------------------------------------------


def test_a_dataset_whose_files_are_found_by_listing_is_refused(store):
    builders.write_dataset(store, "d", {"p": pa.int64(), "i": pa.string()}, partition_keys=["p"], partitions=...)
    with pytest.raises(FormatError) as e:
        commit(store, adding(store, "d", {1: "m"}))
    assert e.value.code == "implicit-partitions"


def test_a_late_commit_looks_for_its_files(made):
    long_ago = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=4)
    commit(made, adding(made, "d", {1: "m"}, started=long_ago))
    change = adding(made, "d", {1: "n"}, started=long_ago)
    made.delete([next(iter(change.added.values()))["table"]])
    with pytest.raises(CommitError) as e:
        commit(made, change)
    assert e.value.code == "commit-expired"
    assert values(made, "d") == ["a", "b", "m"]


@pytest.mark.parametrize("content_", [None, b"torn", builders.parquet({"i": ["a"], "other": [1]})])
def test_a_broken_index_file_is_named(made, content_):
    key = read_head(made, "d").document.indices["i"]
    made.delete([key]) if content_ is None else made.put(key, content_)
    with pytest.raises(FormatError) as e:
        commit(made, adding(made, "d", {1: "m"}))
    assert e.value.code == "invalid-index"
    assert key in e.value.message
