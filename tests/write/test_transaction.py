from __future__ import annotations

import contextlib
import json
import random
import threading
import uuid
import warnings

import pyarrow as pa
import pytest

import builders
from kartosql.errors import CommitUnknown, ConcurrentCommit, KartosqlWarning, StoreError, UsageError
from kartosql.formats.kartothek import versions
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown
from kartosql.write import document
from kartosql.write.change import Change
from kartosql.write.commit import commit, commit_all
from kartosql.write.recovery import finish, read_head
from write import rivals
from write.rivals import adding, in_partition, values

pytestmark = pytest.mark.usefixtures("impatient")

NAMES = ("seed", "e", "g")


@pytest.fixture
def memory() -> Store:
    """Where every single call is tried; the store's own steps on disks have tests of their own."""
    return Store(f"memory://{uuid.uuid4().hex}")


def flags(name: str) -> dict[str, object]:
    return {
        "ktk_cube_dimension_columns": ["x"],
        "ktk_cube_is_seed": name == "seed",
        "ktk_cube_partition_columns": ["p"],
        "ktk_cube_suppress_index_on": ["x"],
    }


def changes(store: Store, cube: str, value: str, names=NAMES, **options) -> list[Change]:
    return [adding(store, f"{cube}++{n}", {1: value}, metadata=flags(n), **options) for n in names]


def drops(cube: str, names=NAMES) -> list[Change]:
    return [Change(f"{cube}++{n}", "drop", drop=True) for n in names]


def build(store: Store, cube: str = "c") -> Store:
    commit_all(store, f"{cube}++seed", changes(store, cube, "a", create=True))
    return store


def values_of(store, dataset):
    return sorted(builders.read_parquet(store, key)["i"][0].as_py() for key in dataset.tables["table"].files)


def state(store: Store, cube: str = "c", names=NAMES) -> list[list[str] | None]:
    """Return the values of each dataset, all of them read as one snapshot."""
    snapshot = Snapshot(store)
    found = snapshot.datasets([f"{cube}++{n}" for n in names])
    seen = []
    for dataset in found.values():
        if isinstance(dataset, KeyError):
            seen.append(None)
            continue
        if isinstance(dataset, Exception):
            raise dataset
        keys = dataset.tables["table"].files
        seen.append(sorted(builders.read_parquet(store, key)["i"][0].as_py() for key in keys))
        index = dataset.tables["table"].indices["i"].key
        assert [value for value, _ in rivals.index_of(store, index)] == seen[-1]
    return seen


KEPT = ("kartosql_commit", "kartosql_schema_history")


def marks(store: Store, cube: str = "c") -> list[str]:
    """Return what is left of changes under way: marks in documents, and documents that wait."""
    found = [key for name in NAMES for key in store.list_below(f"{cube}++{name}/") if "/.commit/" in key]
    for entry in store.list_root():
        if entry.name.startswith(f"{cube}++") and entry.name.endswith(".json"):
            metadata = json.loads(store.read(entry.name))["metadata"]
            found += [k for k in metadata if k.startswith("kartosql_") and k not in KEPT]
    return found


@contextlib.contextmanager
def _told():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)
        yield


# -- one writer ----------------------------------------------------------------------------------------


def test_a_cube_is_built_appended_to_and_dropped_at_once(store):
    build(store)
    assert state(store) == [["a"], ["a"], ["a"]]
    assert Snapshot(store).cubes()["c"].dimension_columns == ("x",)
    done = commit_all(store, "c++seed", changes(store, "c", "b"))
    assert [d.uuid for d in done] == ["c++seed", "c++e", "c++g"]
    assert len({d.id for d in done}) == 1
    assert state(store) == [["a", "b"]] * 3
    assert marks(store) == []
    commit_all(store, "c++seed", drops("c"))
    assert state(store) == [None] * 3
    assert [e.name for e in store.list_root() if "metadata" in e.name] == []


def test_changes_of_one_cube_on_one_machine_have_turns(tmp_path, monkeypatch):
    monkeypatch.setattr("kartosql.store.turns.TURN_SECONDS", 1000.0)
    store = build(Store(tmp_path))
    waits, done = threading.Event(), []
    with store.turn("c++seed"):
        thread = threading.Thread(
            target=lambda: (waits.set(), done.extend(commit_all(store, "c++seed", changes(store, "c", "b"))))
        )
        thread.start()
        waits.wait()
        commit_all(store, "c++seed", changes(store, "c", "c"))  # who has the turn does not wait
        assert done == []
        assert state(store) == [["a", "c"]] * 3
    thread.join()
    assert state(store) == [["a", "b", "c"]] * 3


def test_the_seed_need_not_change(store):
    build(store)
    commit_all(store, "c++seed", changes(store, "c", "b", ("e", "g")))
    assert state(store) == [["a"], ["a", "b"], ["a", "b"]]
    commit_all(store, "c++seed", drops("c", ("e", "g")))
    assert state(store) == [["a"], None, None]
    assert marks(store) == []


def test_a_change_of_a_cube_without_its_seed_is_refused(store):
    with pytest.raises(ConcurrentCommit):
        commit_all(store, "c++seed", changes(store, "c", "b", ("e", "g"), create=True))
    assert state(store) == [None] * 3
    assert marks(store) == []


@pytest.mark.parametrize("broken", NAMES)
def test_where_one_dataset_refuses_none_changes(store, broken):
    build(store)
    wanted = changes(store, "c", "b")
    at = NAMES.index(broken)
    schema = rivals.SCHEMA.set(2, pa.field("x", pa.string()))
    wanted[at] = Change(**{**vars(wanted[at]), "schemas": {"table": schema}})
    with pytest.raises(UsageError) as e:
        commit_all(store, "c++seed", wanted)
    assert e.value.code == "incompatible-schema"
    assert state(store) == [["a"]] * 3
    assert marks(store) == []


@pytest.mark.parametrize("late", NAMES)
def test_where_one_dataset_was_changed_meanwhile_none_changes(store, late):
    build(store)
    bases = {f"c++{n}": read_head(store, f"c++{n}") for n in NAMES}
    commit(store, adding(store, f"c++{late}", {1: "t"}))
    with pytest.raises(ConcurrentCommit):
        commit_all(store, "c++seed", changes(store, "c", "b", removed=in_partition(1)), bases=bases)
    assert [v == ["a", "t"] for v in state(store)] == [n == late for n in NAMES]
    assert marks(store) == []


def test_an_overwrite_may_change_the_types_of_all_datasets(store):
    build(store)
    schema = rivals.SCHEMA.set(2, pa.field("x", pa.string()))
    wanted = changes(store, "c", "b", replace_all=True)
    bases = {f"c++{n}": read_head(store, f"c++{n}") for n in NAMES}
    commit_all(store, "c++seed", [Change(**{**vars(c), "schemas": {"table": schema}}) for c in wanted], bases=bases)
    assert state(store) == [["b"]] * 3
    found = Snapshot(store).datasets([f"c++{n}" for n in NAMES]).values()
    assert [d.schemas["table"].field("x").type for d in found] == [pa.string()] * 3
    assert marks(store) == []


def test_msgpack_datasets_stay_msgpack(store):
    commit_all(store, "c++seed", changes(store, "c", "a", create=True, format="msgpack"))
    commit_all(store, "c++seed", changes(store, "c", "b"))
    assert state(store) == [["a", "b"]] * 3
    assert {e.name.rpartition(".")[2] for e in store.list_root() if "metadata" in e.name} == {"zstd"}


# -- a writer that dies --------------------------------------------------------------------------------

KINDS = {
    "append": ([["a"]] * 3, [["a", "b"]] * 3),
    "others": ([["a"]] * 3, [["a"], ["a", "b"], ["a", "b"]]),
    "replace": ([["a"]] * 3, [["b"]] * 3),
    "create": ([None] * 3, [["b"]] * 3),
    "drop": ([["a"]] * 3, [None] * 3),
}


def _changes_of(store: Store, kind: str, cube: str) -> list[Change]:
    if kind == "drop":
        return drops(cube)
    names = ("e", "g") if kind == "others" else NAMES
    options = {"replace": {"removed": in_partition(1)}, "create": {"create": True}}.get(kind, {})
    return changes(store, cube, "b", names, **options)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_whoever_dies_leaves_the_old_or_the_new_state_of_all_datasets(memory, kind, when):
    old, new = KINDS[kind]
    at, seen = 0, []
    while True:
        cube = f"c{at}"
        if kind != "create":
            build(memory, cube)
        wanted = _changes_of(memory, kind, cube)
        try:
            commit_all(rivals.dies_at(memory, at, when), f"{cube}++seed", wanted)
            break
        except rivals.Died:
            pass
        before = state(memory, cube)
        assert before in (old, new)
        seen.append(before)
        if before[0] is None:
            commit_all(memory, f"{cube}++seed", changes(memory, cube, "z", create=True))
            assert state(memory, cube) == [["z"]] * 3
        else:
            commit_all(memory, f"{cube}++seed", changes(memory, cube, "z"))
            assert state(memory, cube) == [[*v, "z"] for v in before]
        assert [m for m in marks(memory, cube) if not m.endswith(".json")] == []
        builders.forget_memory_stores()  # each listing would look at all of their files
        at += 1
    assert old in seen
    assert new in seen
    assert at > 10


@pytest.mark.parametrize("kind", ["append", "create", "drop"])
def test_single_datasets_can_be_changed_after_a_death(memory, kind):
    at = 0
    while True:
        cube = f"c{at}"
        if kind != "create":
            build(memory, cube)
        try:
            commit_all(rivals.dies_at(memory, at, "after"), f"{cube}++seed", _changes_of(memory, kind, cube))
            break
        except rivals.Died:
            pass
        before = state(memory, cube)
        heads = [read_head(memory, f"{cube}++{name}") for name in NAMES]
        assert [h is None for h in heads] == [v is None for v in before]
        assert len(
            [e for e in memory.list_root() if e.name.startswith(f"{cube}++") and not e.is_dir]
        ) == 3 - heads.count(None)
        for at_name, name in enumerate(NAMES):
            if before[at_name] is None:
                assert read_head(memory, f"{cube}++{name}") is None
                commit(memory, adding(memory, f"{cube}++{name}", {1: "z"}, create=True))
            else:
                commit(memory, adding(memory, f"{cube}++{name}", {1: "z"}))
        assert state(memory, cube) == [[*(v or []), "z"] for v in before]
        builders.forget_memory_stores()  # each listing would look at all of their files
        at += 1


# -- rivals --------------------------------------------------------------------------------------------


def _calls(store: Store) -> int:
    build(store, "x")
    wanted = changes(store, "x", "b")
    return rivals.count_calls(store, lambda s: commit_all(s, "x++seed", wanted))


@pytest.mark.parametrize("rival", ["all", *NAMES])
def test_appends_to_one_and_to_all_datasets_lose_nothing(memory, rival):
    for at in range(_calls(memory)):
        cube = f"c{at}"
        build(memory, cube)
        theirs = changes(memory, cube, "t", NAMES if rival == "all" else (rival,))

        def act(cube=cube, theirs=theirs):
            other = Store(memory.url)
            if len(theirs) > 1:
                commit_all(other, f"{cube}++seed", theirs)
            else:
                commit(other, theirs[0])

        commit_all(rivals.act_at(memory, at, act), f"{cube}++seed", changes(memory, cube, "m"))
        expected = [["a", "m", "t"] if rival in ("all", n) else ["a", "m"] for n in NAMES]
        assert state(memory, cube) == expected
        assert marks(memory, cube) == []
        builders.forget_memory_stores()  # each listing would look at all of their files


def test_a_drop_meets_an_append_to_all_at_any_moment(memory):
    ends = set()
    for at in range(_calls(memory)):
        cube = f"c{at}"
        build(memory, cube)
        rival = rivals.act_at(memory, at, lambda cube=cube: commit_all(Store(memory.url), f"{cube}++seed", drops(cube)))
        try:
            commit_all(rival, f"{cube}++seed", changes(memory, cube, "m"))
            ends.add("through")
        except ConcurrentCommit:
            ends.add("dropped")
        assert state(memory, cube) == [None] * 3
        assert marks(memory, cube) == []
        builders.forget_memory_stores()  # each listing would look at all of their files
    assert "dropped" in ends


def test_only_one_of_two_builds_a_cube(memory):
    build(memory, "x")
    calls = rivals.count_calls(memory, lambda s: build(s, "y"))
    for at in range(calls):
        cube = f"c{at}"
        theirs = changes(memory, cube, "t", create=True)
        won = []

        def act(cube=cube, theirs=theirs, won=won):
            with contextlib.suppress(ConcurrentCommit):
                won.append(commit_all(Store(memory.url), f"{cube}++seed", theirs))

        with contextlib.suppress(ConcurrentCommit):
            commit_all(rivals.act_at(memory, at, act), f"{cube}++seed", changes(memory, cube, "m", create=True))
            assert not won
        assert state(memory, cube) == [["t" if won else "m"]] * 3
        assert marks(memory, cube) == []
        builders.forget_memory_stores()  # each listing would look at all of their files


def test_many_threads_see_and_leave_all_or_nothing(store):
    build(store)
    errors, stop = [], threading.Event()

    def write(name):
        other = Store(store.url)
        try:
            for n in range(4):
                commit_all(other, "c++seed", changes(other, "c", f"{name}{n}"))
                commit(other, adding(other, f"c++{random.choice(NAMES)}", {2: f"single-{name}{n}"}))
        except BaseException as e:
            errors.append(e)
            raise

    def read():
        other = Store(store.url)
        try:
            while not stop.is_set():
                seen = [[v for v in found if not v.startswith("single")] for found in state(other)]
                assert seen[0] == seen[1] == seen[2]
        except BaseException as e:
            errors.append(e)
            raise

    reader = threading.Thread(target=read)
    reader.start()
    writers = [threading.Thread(target=write, args=(f"t{t}-",)) for t in range(4)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert not errors
    expected = sorted(["a", *(f"t{t}-{n}" for t in range(4) for n in range(4))])
    found = state(store)
    assert [[v for v in values_ if not v.startswith("single")] for values_ in found] == [expected] * 3
    assert sum(len(v) for v in found) == 3 * len(expected) + 16
    assert marks(store) == []


# -- answers that do not come --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_lost_answers_apply_nothing_twice_and_are_no_errors(store, seed):
    build(store)
    chance = random.Random(seed)
    expected = ["a"]
    for n in range(6):
        other = rivals.loses_answers(store, lambda number, key: chance.random() < 0.3)
        commit_all(other, "c++seed", changes(store, "c", f"m{n}"))
        expected.append(f"m{n}")
        assert state(store) == [sorted(expected)] * 3
    finish(store, "c++seed")
    assert [m for m in marks(store) if not m.endswith(".json")] == []


def test_a_store_that_falls_silent_at_the_commit_gives_an_unknown_outcome(store, monkeypatch):
    monkeypatch.setattr(document, "BACKOFF_SECONDS", 0.2)
    build(store)
    other = rivals.watched(store)
    silent = []

    def hook(number, when, name, key):
        if silent and when == "before":
            raise StoreError("no answer")
        is_commit = when == "after" and name == "put_if" and key.startswith("c++seed.by")
        if is_commit and "kartosql_unfinished" in builders.read_document(store, "c++seed")["metadata"]:
            silent.append(key)
            raise OutcomeUnknown(key)

    other.hook = hook
    with pytest.raises(CommitUnknown):
        commit_all(other, "c++seed", changes(store, "c", "b"))
    assert silent
    assert state(store) == [["a", "b"]] * 3
    commit(store, adding(store, "c++e", {1: "z"}))
    assert state(store) == [["a", "b"], ["a", "b", "z"], ["a", "b"]]


# -- other programs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_another_program_appends_while_a_change_is_under_way_is_kept(memory, when):
    for at in range(0, _calls(memory)):
        cube = f"c{at}"
        build(memory, cube)

        def act(cube=cube):
            builders.append(memory, f"{cube}++e", pa.table({"p": [2], "i": ["f"], "x": [1]}))

        with _told():
            if when == "before":
                commit_all(rivals.act_at(memory, at, act), f"{cube}++seed", changes(memory, cube, "m"))
            else:
                with contextlib.suppress(rivals.Died):
                    commit_all(rivals.dies_at(memory, at, "before"), f"{cube}++seed", changes(memory, cube, "m"))
                act()
                commit_all(memory, f"{cube}++seed", changes(memory, cube, "z"))
        found = state(memory, cube)
        assert "f" in found[1]
        assert [[v for v in f if v != "f"] for f in found] == [found[0]] * 3
        assert values(memory, f"{cube}++e") == found[1]
        past = versions.read(Snapshot(memory), f"{cube}++e")
        assert len(past.document(past.entries[0].version).labels) == 1, past.entries  # as it was built
        builders.forget_memory_stores()  # each listing would look at all of their files


def test_readers_see_what_another_program_appended_before_a_change_is_carried_out(memory):
    for at in range(0, _calls(memory)):
        cube, acted, seen = f"c{at}", [], []
        build(memory, cube)
        other = rivals.watched(memory)

        def hook(number, when, *_, at=at, cube=cube, acted=acted, seen=seen):
            if when == "before" and number == at:
                acted.append(builders.append(memory, f"{cube}++e", pa.table({"p": [2], "i": ["f"], "x": [1]})))
            elif when == "after" and acted:
                found = Snapshot(memory).datasets([f"{cube}++{name}" for name in NAMES])
                seen.append([values_of(memory, dataset) for dataset in found.values()])

        other.hook = hook
        with _told():
            commit_all(other, f"{cube}++seed", changes(memory, cube, "m"))
        for found in seen:
            assert "f" in found[1], (at, found)
            assert [[v for v in f if v != "f"] for f in found] == [found[0]] * 3
        builders.forget_memory_stores()


# -- readers of another mark ---------------------------------------------------------------------------


def test_marks_that_kartosql_cannot_have_written_are_ignored(store):
    build(store)
    for mark in ("x", {}, {"tx": 1}, {"tx": "t", "seed": "../e", "kind": "change", "time": "x"}):
        document = builders.read_document(store, "c++e")
        document["metadata"]["kartosql_intent"] = mark
        builders.write_document(store, document)
        assert state(store) == [["a"]] * 3
        assert read_head(store, "c++e") is not None
