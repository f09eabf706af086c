from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import CommitError, FormatError, StoreError, UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from kartosql.write.change import Change
from kartosql.write.commit import commit, commit_all
from kartosql.write.document import MIN_GRACE, GarbageMarks, garbage_key, put_garbage, read_garbage, unmark_garbage
from kartosql.write.history import Retention
from kartosql.write.recovery import read_head
from kartosql.write.removal import collect
from write import rivals
from write.rivals import adding, in_partition, values
from written import build_cube

pytestmark = pytest.mark.usefixtures("impatient")

GRACE = dt.timedelta(days=7)


class Clock:
    """The clock of the store, moved instead of waited for."""

    def __init__(self) -> None:
        self.ahead = dt.timedelta()

    def now(self, store: Store) -> dt.datetime:
        return dt.datetime.now(dt.timezone.utc) + self.ahead


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(Store, "now", lambda self: made.now(self))
    return made


@pytest.fixture
def made(store):
    commit(store, adding(store, "d", {1: "a", 2: "b"}, "create", create=True))
    return store


def gc(store, *uuids, grace=GRACE, **options):
    """Collect, with no earlier version to be kept, and return what was found."""
    return collect(store, uuids or ["d"], grace, kept=Retention(0), **options)


def clean(store, clock, *uuids):
    """Collect twice, a grace period apart, and return what was removed."""
    gc(store, *uuids)
    clock.ahead += GRACE
    return sorted(g.key for g in gc(store, *uuids) if g.removed)


def below(store, uuid="d"):
    return list(store.list_below(f"{uuid}/"))


def orphan(store, key="d/table/p=1/old.parquet"):
    store.put(key, b"x" * 7)
    return key


def test_a_file_that_nothing_refers_to_is_marked_first_and_removed_a_grace_period_later(made, clock):
    before = below(made)
    key = orphan(made)
    (found,) = gc(made)
    assert (found.uuid, found.key, found.bytes, found.removed) == ("d", key, 7, False)
    assert found.due >= found.since + GRACE
    clock.ahead = GRACE - dt.timedelta(minutes=1)
    assert [g.removed for g in gc(made)] == [False]
    assert made.read(key) == b"x" * 7
    clock.ahead = GRACE + dt.timedelta(minutes=1)
    assert [(g.key, g.removed) for g in gc(made)] == [(key, True)]
    assert below(made) == sorted([*before, garbage_key("d")])
    assert gc(made) == []
    assert values(made, "d") == ["a", "b"]


def test_an_old_file_gets_its_grace_period_from_the_moment_it_was_seen(made, clock):
    key = orphan(made)
    clock.ahead = 3 * GRACE
    assert [g.removed for g in gc(made)] == [False]
    assert made.read(key)


def test_a_file_that_was_written_again_waits_anew(made, clock, monkeypatch):
    key = orphan(made)
    gc(made)
    clock.ahead = GRACE
    details = Store.details

    def later(self, prefix=""):
        found = details(self, prefix)
        return {k: d._replace(modified=d.modified + GRACE) if k == key else d for k, d in found.items()}

    monkeypatch.setattr(Store, "details", later)
    assert [g.removed for g in gc(made)] == [False]


def test_a_dry_run_changes_nothing(made, clock):
    orphan(made)
    before = {k: made.read(k) for k in made.list_below("d/")}
    assert [g.removed for g in gc(made, dry_run=True)] == [False]
    gc(made)
    marked = {k: made.read(k) for k in made.list_below("d/")}
    assert set(marked) - set(before) == {garbage_key("d")}
    clock.ahead = 2 * GRACE
    (found,) = gc(made, dry_run=True)
    assert found.due < clock.now(made)
    assert {k: made.read(k) for k in made.list_below("d/")} == marked


def test_replaced_partitions_and_indices_are_garbage(made, clock):
    old = [k for k in below(made) if "p=1" in k or "/indices/" in k]
    commit(made, adding(made, "d", {1: "c"}, "replace", removed=in_partition(1)))
    assert clean(made, clock) == sorted(old)
    assert values(made, "d") == ["b", "c"]


def test_a_file_that_is_referred_to_again_is_not_removed(made, clock):
    head = read_head(made, "d")
    label = head.document.labels[0]
    entry = {label: {"table": head.document.files["table"][0]}}
    commit(made, Change("d", "remove", removed=frozenset({label})))
    gc(made)
    commit(made, Change("d", "undo", added=entry))
    clock.ahead = GRACE
    assert not any(g.key in entry[label].values() for g in gc(made))
    assert values(made, "d") == ["a", "b"]


def test_all_files_below_an_implicit_dataset_are_data(store, clock):
    builders.write_dataset(store, "d", {"p": pa.int64(), "x": pa.int64()}, partition_keys=["p"], partitions=...)
    key = orphan(store)
    other = orphan(store, "d/table/p=1/notes.txt")
    assert clean(store, clock) == [other]
    assert store.read(key)


def test_files_of_all_tables_are_referred_to(tmp_path, clock):
    with kartosql.connect(tmp_path) as con:
        tables = {"t": pa.table({"p": [1], "x": [1]}), "u": pa.table({"p": [2], "y": [1]})}
        con.create_dataset("d", tables, partition_on="p")
        before = below(con.store)
        assert clean(con.store, clock) == []
        assert below(con.store) in (before, sorted([*before, garbage_key("d")]))


def test_what_a_crashed_build_left_is_removed_and_its_folder_too(store, clock):
    for key in ("d/table/p=1/a.parquet", "d/table/_common_metadata", "d/indices/i/x.by-dataset-index.parquet"):
        orphan(store, key)
    assert len(clean(store, clock)) == 3
    assert store.list_below("d/") == {}
    assert all(e.name != "d" for e in store.list_root())


def test_the_schema_stays_as_long_as_there_is_a_dataset(made, clock):
    commit(made, Change("d", "remove", removed=in_partition(1, 2)))
    other = orphan(made, "d/other/_common_metadata")
    clean(made, clock)
    assert made.read("d/table/_common_metadata")
    assert made.read(other)


def test_metadata_that_cannot_be_read_keep_everything(made, clock):
    key = orphan(made)
    gc(made)
    made.put("d.by-dataset-metadata.json", b"{torn")
    commit(made, adding(made, "e", {1: "a"}, "create", create=True))
    there = orphan(made, "e/table/old.parquet")
    clock.ahead = 2 * GRACE
    with pytest.raises(FormatError) as e:
        gc(made, "d", "e")
    assert e.value.code == "invalid-metadata"
    assert made.read(key)
    assert there in read_garbage(made, "e").since


def test_datasets_of_other_names_are_not_touched(tmp_path, clock):
    with kartosql.connect(tmp_path) as con:
        cube = Cube("c", "x", "p")
        data = pa.table({"x": [1], "p": [1]})
        con.build_cube(cube, {"seed": data, "en": data})
        con.build_cube(Cube("c2", "x", "p"), {"seed": data})
        theirs = orphan(con.store, "c2++seed/table/old.parquet")
        plain = orphan(con.store, "c/table/old.parquet")
        mine = orphan(con.store, "c++en/table/old.parquet")
        gone = orphan(con.store, "c++gone/table/old.parquet")
        report = con.cleanup_cube(cube, dry_run=True)
        assert {name: r["marked"] for name, r in report.items()} == {"seed": 0, "en": 1, "gone": 1}
        assert report["gone"]["bytes"] == 7
        con.cleanup_cube("c")
        clock.ahead = GRACE
        report = con.cleanup_cube("c")
        assert all((r["marked"], r["removed"]) == (0, len(r["files"])) for r in report.values())
        gone_now = {g.key for r in report.values() for g in r["files"]}
        assert gone_now == {mine, gone}
        keys = set(con.store.list_below("c")) | {k for u in ("c++en", "c2++seed", "c") for k in below(con.store, u)}
        assert {theirs, plain} <= keys
        assert not {mine, gone} & keys
        others = [g.key for g in con.garbage_collect("c2.seed", dry_run=True)["files"]]
        assert others == [theirs]
        for call in (lambda: con.cleanup_cube("nope"), lambda: con.garbage_collect("nope")):
            with pytest.raises(UsageError) as e:
                call()
            assert e.value.code == "unknown-table"


def test_a_connection_that_may_not_write_can_only_look(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.create_dataset("d", pa.table({"x": [1]}))
        orphan(con.store)
    with kartosql.connect(tmp_path, read_only=True) as con:
        assert con.garbage_collect("d", dry_run=True)["marked"] == 1
        with pytest.raises(UsageError) as e:
            con.garbage_collect("d")
        assert e.value.code == "read-only"


def test_a_short_grace_period_is_refused(made):
    with pytest.raises(UsageError) as e:
        gc(made, grace=MIN_GRACE / 2)
    assert e.value.code == "invalid-setting"


# -- changes of several datasets -------------------------------------------------------------------------


CUBE = Cube("c", "x", "p", suppress_index_on="x")
NAMES = ["c++seed", "c++en"]


@pytest.fixture
def cube(local):
    data = pa.table({"x": [1], "p": [1]})
    one = pa.array([1])
    build_cube(local, CUBE, {"seed": data.append_column("v", one), "en": data.append_column("w", one)})
    return local


def _append(store):
    changes = []
    for uuid, column in (("c++seed", "v"), ("c++en", "w")):
        tail = f"{random.getrandbits(128):032x}"
        key = f"{uuid}/table/p=1/{tail}.parquet"
        store.put(key, builders.parquet({"x": [1], column: [2]}))
        schema = pa.schema([("p", pa.int64()), ("x", pa.int64()), (column, pa.int64())])
        added = {f"p=1/{tail}": {"table": key}}
        changes.append(Change(uuid, "append", added=added, schemas={"table": schema}, partition_keys=("p",)))
    return commit_all(store, "c++seed", changes)


def _state(store):
    found = []
    for uuid, column in (("c++seed", "v"), ("c++en", "w")):
        _, rows = builders.dataset_rows(store, uuid)
        found.append(sorted(r[column] for r in rows))
    return found


def test_what_a_crash_leaves_of_a_change_of_several_datasets_is_gone_after_the_grace_period(
    cube, clock, tmp_path_factory
):
    total = rivals.count_calls(Store(shutil.copytree(cube.root, tmp_path_factory.mktemp("count") / "s")), _append)
    assert total > 10
    for at in range(0, total, 2):
        for when in ("before", "after"):
            store = Store(shutil.copytree(cube.root, tmp_path_factory.mktemp("crash") / "s"))
            clock.ahead = dt.timedelta()
            with pytest.raises(rivals.Died):
                _append(rivals.dies_at(store, at, when))
            clean(store, clock, *NAMES)
            assert _state(store) in ([[1], [1]], [[1, 2], [1, 2]]), (at, when)
            for uuid in NAMES:
                document = builders.read_document(store, uuid)
                needed = {e["files"]["table"] for e in document["partitions"].values()} | set(
                    document.get("indices", {}).values()
                )
                left = set(below(store, uuid)) - needed - {garbage_key(uuid), f"{uuid}/table/_common_metadata"}
                assert not left, (at, when)


def test_a_change_under_way_keeps_its_files(cube, clock):
    def look(number, when, name, key):
        if name == "put_if" and when == "after" and key == "c++en.by-dataset-metadata.json":
            # The member is marked now, and the seed has not decided.
            seen.append([g.key for g in collect(Store(cube.url), ["c++en"], GRACE, dry_run=True)])

    seen = []
    store = rivals.watched(cube)
    store.hook = look
    _append(store)
    assert seen
    assert all("/p=1/" not in k and "/.commit/" not in k for k in seen[0])
    assert _state(cube) == [[1, 2], [1, 2]]


# -- writers that take long ------------------------------------------------------------------------------


def _late(store, value="z"):
    long_ago = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=4)
    return adding(store, "d", {1: value}, started=long_ago)


def _tries(store, change):
    """Commit, or be told that it is too late; return whether it was committed."""
    with contextlib.suppress(CommitError):
        return commit(Store(store.url) if type(store) is Store else store, change)


def test_a_late_commit_takes_its_files_off_the_list(made, clock):
    change = _late(made)
    assert len(gc(made)) == 1
    commit(made, change)
    clock.ahead = 2 * GRACE
    assert not any("p=1" in g.key for g in gc(made))
    assert values(made, "d") == ["a", "b", "z"]


def test_a_commit_that_comes_too_late_is_refused(made, clock):
    change = _late(made)
    clean(made, clock)
    with pytest.raises(CommitError) as e:
        commit(made, change)
    assert e.value.code == "commit-expired"
    assert values(made, "d") == ["a", "b"]


def test_no_file_is_both_removed_and_committed_whoever_comes_first(made, clock, tmp_path_factory):
    """A late commit before each call of a cleanup, and a cleanup before each call of a late commit."""
    gc(made)
    values_before = values(made, "d")
    at = 0
    while True:
        clock.ahead = dt.timedelta()
        change = _late(made, f"v{at}")
        gc(made)
        clock.ahead = GRACE
        done = []

        def act(change=change, done=done):
            if _tries(made, change):
                done.append(True)

        store = rivals.act_at(made, at, act)
        gc(store)
        if done:
            values_before = sorted([*values_before, f"v{at}"])
        assert values(made, "d") == values_before, at
        if store.calls <= at:
            break
        at += 1
    assert at > 5


def test_no_cleanup_in_the_middle_of_a_late_commit_takes_its_files(made, clock):
    values_before = values(made, "d")
    at = 0
    while True:
        clock.ahead = dt.timedelta()
        change = _late(made, f"w{at}")
        gc(made)
        clock.ahead = GRACE
        store = rivals.act_at(made, at, lambda: gc(Store(made.url)))
        if _tries(store, change):
            values_before = sorted([*values_before, f"w{at}"])
        assert values(made, "d") == values_before, at
        if store.calls <= at:
            break
        at += 1
    assert at > 5


def test_a_cleanup_that_dies_in_the_middle_is_finished_by_the_next(made, clock, tmp_path_factory):
    key = orphan(made)
    gc(made)
    clock.ahead = GRACE
    total = rivals.count_calls(made, lambda s: gc(s, dry_run=True)) + 4
    for at in range(total):
        orphan(made)
        with pytest.raises(rivals.Died):
            gc(rivals.dies_at(made, at, "after"))
        assert values(made, "d") == ["a", "b"]
    clock.ahead = 3 * GRACE
    gc(made)
    clock.ahead = 5 * GRACE
    gc(made)
    assert key not in below(made)


def test_files_on_the_list_that_are_being_removed_cannot_be_kept(made):
    put_garbage(made, "d", GarbageMarks({"d/a": dt.datetime.now(dt.timezone.utc)}, frozenset({"d/b"})))
    unmark_garbage(made, "d", {"d/a"})
    assert read_garbage(made, "d").since == {}
    with pytest.raises(CommitError) as e:
        unmark_garbage(made, "d", {"d/b"})
    assert e.value.code == "commit-expired"


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"marked": {"a": "b"}, "removing": []}',
        b'{"marked": {"a": "2026-01-01T00:00:00"}, "removing": []}',
    ],
)
def test_a_damaged_list_is_named(made, data):
    made.put(garbage_key("d"), data)
    with pytest.raises(FormatError) as e:
        gc(made)
    assert "garbage.json" in e.value.message


def test_the_list_says_what_it_is(made):
    key = orphan(made)
    gc(made)
    stored = json.loads(made.read(garbage_key("d")))
    assert list(stored["marked"]) == [key]
    assert replace(read_garbage(made, "d"), version=None).removing == frozenset()


def test_the_schema_of_a_dropped_dataset_stays_where_deletes_have_no_condition(cube, clock, monkeypatch):
    def refuse(store, key, expected):
        raise StoreError("no condition", code="no-conditional-delete")

    commit(cube, Change("c++en", "delete", drop=True))
    monkeypatch.setattr(Store, "delete_if", refuse)
    for _ in range(2):
        clean(cube, clock, "c++en")
        assert {k for k in cube.list_below("c++en/") if k.endswith("_common_metadata")}
    assert not [k for k in cube.list_below("c++en/") if k.endswith(".parquet")]
