"""Commits on local disks: kill -9 at every step, power losses, races, disks that are full."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from crashes import every_crash
from kartosql.errors import FormatError, StoreError
from kartosql.store import OutcomeUnknown, PreconditionFailed, Store, local_commit, syscalls
from power_loss import Recorder

DOC = "u.by-dataset-metadata.json"
DATA = "u/table/p=1/a.parquet"
SCHEMA = "u/table/_common_metadata"


def files_of(root) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}


# -- kill -9 -------------------------------------------------------------------------------


def commit_new(store):
    with store.output(DATA) as file:
        file.write(b"rows")
    store.put_if(SCHEMA, b"schema", None)
    store.put_if(DOC, b"new " * 1000, None)


def commit_next(store):
    with store.output(DATA) as file:
        file.write(b"rows")
    store.put_if(DOC, b"new " * 1000, store.read_versioned(DOC)[1])


def remove(store):
    store.delete_if(DOC, store.read_versioned(DOC)[1])


@pytest.mark.parametrize(
    ("act", "before", "old", "new"),
    [
        (commit_new, {}, None, b"new " * 1000),
        (commit_next, {DOC: b"old"}, b"old", b"new " * 1000),
        (remove, {DOC: b"old"}, b"old", None),
    ],
)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_document(tmp_path, act, before, old, new):
    root = tmp_path / "store"

    def reset():
        shutil.rmtree(root, ignore_errors=True)
        store = Store(str(root), create=True)
        for key, data in before.items():
            store.put_if(key, data, None)
        store.require_conditional_put("u")
        return store

    store = reset()
    seen = []
    for at, phase, killed in every_crash(lambda: act(store)):
        found = files_of(root)
        document = found.get(DOC)
        seen.append((killed, document))
        assert document in (old, new), (at, phase)
        temporary = [key for key in found if local_commit.SIDE_FOLDER in key]
        assert len(temporary) <= 1, (at, phase)
        assert all(key.startswith("u/.commit/") for key in temporary)
        if document is not None and document == new:
            assert found[DATA] == b"rows"
        if not killed:
            assert (document, temporary) == (new, [])
        # The next writer is not held up by what was left.
        again = Store(str(root))
        version = again.read_versioned(DOC)[1] if document is not None else None
        again.put_if(DOC, b"next", version)
        assert again.read(DOC) == b"next"
        store = reset()
    assert {(True, old), (True, new), (False, new)} <= set(seen)


# -- power loss ----------------------------------------------------------------------------


def violations(root, monkeypatch, drop=None, pause=0.0) -> tuple[list[str], int]:
    """Commit three times, delete, commit again; return what a power loss breaks, and how many states were looked at.

    Before each commit there is a ``pause`` of some seconds.
    """
    store = Store(str(root), create=True)
    if drop is not None:
        monkeypatch.setattr(syscalls, drop, lambda *args: None)
    recorder = Recorder(str(root), monkeypatch)
    if drop is not None:
        # The step is called, but neither done nor recorded.
        monkeypatch.setattr(syscalls, drop, lambda *args: None)
    version = None
    for i in range(3):
        key = f"u/table/p={i % 2}/{i}.parquet"
        time.sleep(pause)
        with store.output(key) as file:
            file.write(b"rows of " + key.encode())
        version = store.put_if(DOC, f"{i} {key}".encode(), version)
        recorder.mark(i)
    store.delete_if(DOC, version)
    recorder.mark("deleted")
    time.sleep(pause)
    with store.output("u/table/last.parquet") as file:
        file.write(b"rows of u/table/last.parquet")
    store.put_if(DOC, b"4 u/table/last.parquet", None)
    recorder.mark(4)
    found, count = [], 0
    for done, marks, state in recorder.crashes():
        count += 1
        problem = _problem(marks, state)
        if problem:
            found.append(f"after {done} steps: {problem}")
    return found, count


def _problem(marks, state) -> str | None:
    document = state.get(DOC)
    order = [None, 0, 1, 2, "deleted", 4]
    told = order.index(marks[-1]) if marks else 0
    allowed = order[told : told + 2]
    if document is None:
        return None if None in allowed or "deleted" in allowed else f"{allowed} is lost"
    number, _, key = document.decode(errors="replace").partition(" ")
    if not number.isdigit() or int(number) not in allowed:
        return f"{document!r} is found instead of {allowed}"
    if state.get(key) != b"rows of " + key.encode():
        return f"the document refers to {key}, which holds {state.get(key)!r}"
    return None


def test_no_power_loss_loses_or_tears_what_was_acknowledged(tmp_path, monkeypatch):
    found, count = violations(tmp_path / "store", monkeypatch)
    assert found == []
    assert count > 200


def test_folders_that_are_known_to_be_on_the_disk_are_not_needed_after_a_power_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(local_commit, "_SETTLED_NS", 20_000_000)
    assert violations(tmp_path / "store", monkeypatch, pause=0.05)[0] == []


def test_a_folder_is_brought_to_the_disk_again_only_if_a_name_came_or_went(tmp_path, monkeypatch):
    store, folders = Store(str(tmp_path)), []
    real = syscalls.fsync_folder
    monkeypatch.setattr(syscalls, "fsync_folder", lambda path: (folders.append(path), real(path)))

    def synced(key):
        folders.clear()
        with store.output(key) as file:
            file.write(b"rows")
        return [os.path.relpath(path, tmp_path) for path in folders]

    monkeypatch.setattr(local_commit, "_SETTLED_NS", 1 << 60)  # nothing is that old
    assert synced("u/table/p=1/a") == ["u/table/p=1", "u/table", "u", "."]
    assert synced("u/table/p=1/b") == ["u/table/p=1", "u/table", "u", "."]
    monkeypatch.setattr(local_commit, "_SETTLED_NS", 20_000_000)
    time.sleep(0.05)
    assert synced("u/table/p=1/c") == ["u/table/p=1", "u/table", "u", "."]
    assert synced("u/table/p=1/d") == ["u/table/p=1"]
    assert synced("u/table/p=2/a") == ["u/table/p=2", "u/table"]
    time.sleep(0.05)
    assert synced("u/table/p=2/b") in (["u/table/p=2"], ["u/table/p=2", "u/table"])
    time.sleep(0.05)
    store.delete(["u/table/p=2/a", "u/table/p=2/b"])
    assert synced("u/table/p=2/c") == ["u/table/p=2", "u/table"]


def test_a_folder_whose_own_name_did_not_come_to_the_disk_is_not_known_to_be_there(tmp_path, monkeypatch):
    monkeypatch.setattr(local_commit, "_SETTLED_NS", -(1 << 60))
    store, folders = Store(str(tmp_path)), []

    def failing(path):
        if path.endswith("/u"):
            raise OSError(errno.EIO, "no")

    monkeypatch.setattr(syscalls, "fsync_folder", failing)
    with pytest.raises(StoreError), store.output("u/table/p=1/a"):
        pass
    monkeypatch.setattr(syscalls, "fsync_folder", folders.append)
    with store.output("u/table/p=1/b"):
        pass
    assert [os.path.relpath(path, tmp_path) for path in folders] == ["u/table/p=1", "u/table", "u", "."]


@pytest.mark.parametrize("drop", ["fsync", "fsync_folder"])
def test_the_model_finds_a_protocol_without_one_of_its_syncs(tmp_path, monkeypatch, drop):
    assert violations(tmp_path / "store", monkeypatch, drop)[0]


# -- races -----------------------------------------------------------------------------------


def test_a_writer_that_waited_for_the_lock_sees_the_new_document(local, monkeypatch):
    """Both looked at the old document; the second one waits while the first one renames."""
    version = local.put_if(DOC, b"old", None)
    renamed, go_on = threading.Event(), threading.Event()
    real = syscalls.rename

    def slow(source, target):
        renamed.set()
        assert go_on.wait(200)
        real(source, target)

    monkeypatch.setattr(syscalls, "rename", slow)
    outcome = {}

    def write(data):
        try:
            outcome[data] = local.put_if(DOC, data, version)
        except PreconditionFailed as e:
            outcome[data] = e

    one = threading.Thread(target=write, args=(b"first",))
    one.start()
    assert renamed.wait(200)
    two = threading.Thread(target=write, args=(b"second",))
    two.start()
    two.join(0.2)
    assert two.is_alive()
    go_on.set()
    one.join()
    two.join()
    assert outcome[b"first"] == local.read_versioned(DOC)[1]
    assert isinstance(outcome[b"second"], PreconditionFailed)
    assert local.read(DOC) == b"first"


def test_a_write_past_the_lock_is_noticed(local):
    """The original libraries write in place and know no lock."""
    version = local.put_if(DOC, b"old", None)
    with open(local.local_path(DOC), "wb") as f:
        f.write(b"foreign")
    with pytest.raises(PreconditionFailed):
        local.put_if(DOC, b"ours", version)
    assert local.read(DOC) == b"foreign"


def test_a_lock_that_nobody_gives_back_is_a_named_error(local, monkeypatch):
    version = local.put_if(DOC, b"old", None)
    fd = os.open(local.local_path(DOC), os.O_RDONLY)
    assert syscalls.try_lock(fd)
    monkeypatch.setattr(local_commit, "LOCK_SECONDS", 0.05)
    try:
        with pytest.raises(StoreError) as e:
            local.put_if(DOC, b"new", version)
    finally:
        os.close(fd)
    assert e.value.code == "store-locked"
    assert files_of(local.root) == {DOC: b"old"}
    local.put_if(DOC, b"new", version)


def test_outputs_and_deletes_of_the_same_folders_do_not_disturb_each_other(local):
    errors = []

    def write(name):
        for i in range(150):
            try:
                key = f"u/table/p=1/q=2/{name}-{i}"
                with local.output(key, sync_folders=False) as file:
                    file.write(b"1")
                assert local.read(key) == b"1"
                local.delete([key])
                version = local.put_if(f"u/{name}/{i}", b"1", None)
                local.delete_if(f"u/{name}/{i}", version)
                local.delete([f"u/{name}/{i}"])
            except Exception as e:  # noqa: BLE001
                errors.append(e)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert files_of(local.root) == {}
    assert local.list_root() == []


# -- disks that fail -------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["create", "write", "fsync", "mkdir", "link"])
def test_a_full_disk_is_named_and_leaves_nothing(local, monkeypatch, step):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(syscalls, step, full)
    with pytest.raises(StoreError) as e:
        local.put_if(DOC, b"new", None)
    assert e.value.code == "disk-full"
    assert e.value.hint
    assert DOC in e.value.message
    if step != "link":
        with pytest.raises(StoreError) as e, local.output(DATA) as file:
            file.write(b"1" * (3 << 20))
        assert e.value.code == "disk-full"
    monkeypatch.undo()
    assert files_of(local.root) == {}


def test_a_disk_that_becomes_full_while_parquet_is_written_is_named(local, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    real, written = syscalls.write, []

    def full(fd, data):
        written.append(len(data))
        if sum(written) > 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    monkeypatch.setattr(syscalls, "write", full)
    table = pa.table({"x": [os.urandom(1 << 20) for _ in range(5)]})
    with pytest.raises(StoreError) as e, local.output(DATA) as file:
        pq.write_table(table, file)
    assert e.value.code == "disk-full"
    assert files_of(local.root) == {}


def test_a_failing_sync_after_the_rename_is_an_unknown_outcome(local, monkeypatch):
    version = local.put_if(DOC, b"old", None)

    def broken(path):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(syscalls, "fsync_folder", broken)
    with pytest.raises(OutcomeUnknown):
        local.put_if(DOC, b"new", version)
    assert files_of(local.root) == {DOC: b"new"}
    with pytest.raises(OutcomeUnknown):
        local.put_if("v.by-dataset-metadata.json", b"new", None)


def test_a_refused_rename_changes_nothing(local, monkeypatch):
    version = local.put_if(DOC, b"old", None)

    def refuse(*args):
        raise PermissionError(errno.EACCES, "no")

    monkeypatch.setattr(syscalls, "rename", refuse)
    with pytest.raises(StoreError) as e:
        local.put_if(DOC, b"new", version)
    assert e.value.code == "access-denied"
    assert files_of(local.root) == {DOC: b"old"}


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("is_alone", [False, True])
@pytest.mark.parametrize("step", ["rename", "link", "unlink"])
def test_a_step_that_fails_without_an_answer_is_an_unknown_outcome(local, monkeypatch, step, is_alone, is_done):
    version = local.put_if(DOC, b"old", None)
    if is_alone:
        monkeypatch.setattr(syscalls, "try_lock", lambda fd: (_ for _ in ()).throw(OSError(errno.ENOTSUP, "no locks")))
        local = Store(local.url)
        local.single_writer = True
        local.require_conditional_put("u")
    name = "rename" if is_alone and step == "link" else step
    real = getattr(syscalls, name)

    def lost(*args):
        if str(args[-1]).endswith(".json"):
            if is_done:
                real(*args)
            raise OSError(errno.EIO, "the server does not answer")
        real(*args)

    monkeypatch.setattr(syscalls, name, lost)
    act = {
        "rename": lambda: local.put_if(DOC, b"new", version),
        "link": lambda: local.put_if("v.by-dataset-metadata.json", b"new", None),
        "unlink": lambda: local.delete_if(DOC, version),
    }[step]
    with pytest.raises(OutcomeUnknown):
        act()


@pytest.mark.parametrize("missing", ["link", "flock"])
def test_a_folder_without_links_or_locks_is_only_for_a_single_writer(local, monkeypatch, missing):
    def refuse(*args):
        raise OSError(errno.ENOTSUP, "not supported")

    if missing == "link":
        monkeypatch.setattr(os, "link", refuse)
    else:
        monkeypatch.setattr(syscalls, "try_lock", refuse)
    with pytest.raises(StoreError) as e:
        local.require_conditional_put("u")
    assert e.value.code == "no-conditional-put"
    assert "single_writer" in e.value.hint
    alone = Store(local.url)
    alone.single_writer = True
    version = alone.put_if(DOC, b"one", None)
    with pytest.raises(PreconditionFailed):
        alone.put_if(DOC, b"other", None)
    second = alone.put_if(DOC, b"two", version)
    with pytest.raises(PreconditionFailed):
        alone.delete_if(DOC, version)
    alone.delete_if(DOC, second)
    assert files_of(local.root) == {}


# -- files that are in the way ---------------------------------------------------------------


def test_an_output_never_replaces_a_file(local):
    local.put(DATA, b"precious")
    with pytest.raises(StoreError), local.output(DATA) as file:
        file.write(b"1")
    assert local.read(DATA) == b"precious"


def test_commits_do_not_follow_links(local, tmp_path):
    (tmp_path.parent / "secret").mkdir(exist_ok=True)
    os.symlink(tmp_path.parent / "secret", tmp_path / "u")
    for write in (
        lambda: local.put_if("u/table/x", b"1", None),
        lambda: local.output("u/table/x").__enter__(),
        lambda: local.delete(["u/table/x"]),
        lambda: local.details("u/"),
    ):
        with pytest.raises(FormatError) as e:
            write()
        assert e.value.code == "unsafe-key"
    os.symlink(tmp_path.parent / "secret" / "file", tmp_path / DOC)
    with pytest.raises(FormatError):
        local.put_if(DOC, b"1", None)
    assert os.listdir(tmp_path.parent / "secret") == []
