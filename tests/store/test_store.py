from __future__ import annotations

import os
import threading
import time

import pytest

from builders import write_cube, write_dataset
from kartosql.errors import FormatError, StoreError
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Entry, Store, syscalls
from kartosql.store import store as store_module

INT = {"x": "int64", "p": "int64", "v": "int64"}


# -- reading and writing, in a folder and in memory ----------------------------------------


def test_what_was_put_is_read(store):
    store.put("u/table/x.bin", b"0123456789")
    assert store.read("u/table/x.bin") == b"0123456789"
    assert store.read("u/table/x.bin", start=2, end=5) == b"234"
    assert store.size("u/table/x.bin") == 10


def test_put_replaces(store):
    store.put("a", b"long before")
    store.put("a", b"now")
    assert store.read("a") == b"now"


@pytest.mark.parametrize("key", ["none", "u/none", "u", "u/a/b"])
def test_reading_what_is_not_there_is_a_key_error(store, key):
    store.put("u/a", b"1")
    for read in (store.read, store.read_metadata):
        with pytest.raises(KeyError, match=key):
            read(key)


def test_the_size_of_what_is_not_there_is_a_key_error(store):
    with pytest.raises(KeyError):
        store.size("none")


def test_root_listing_shows_files_and_folders_sorted(store):
    store.put("b", b"12")
    store.put("a/x", b"1")
    store.put("c/d/e", b"1")
    assert store.list_root() == [
        Entry("a", None, True),
        Entry("b", None if store.is_local else 2, False),
        Entry("c", None, True),
    ]


def test_an_empty_root_lists_nothing(store):
    assert store.list_root() == []


def test_listing_below_shows_all_keys_with_sizes(store):
    store.put("u/t/p=1/x", b"1")
    store.put("u/t/y", b"22")
    store.put("uu/z", b"3")
    assert store.list_below("u/") == {"u/t/p=1/x": 1, "u/t/y": 2}
    assert store.list_below("none/") == {}


def test_listings_see_what_was_put_after_an_earlier_one(store):
    store.put("a", b"1")
    store.list_root()
    store.put("b", b"1")
    store.put("u/c", b"1")
    assert [e.name for e in store.list_root()] == ["a", "b", "u"]
    assert store.list_below("u/") == {"u/c": 1}


def test_metadata_is_capped(store, monkeypatch):
    store.put("a", b"12345")
    monkeypatch.setattr(store_module, "MAX_METADATA_BYTES", 4)
    with pytest.raises(FormatError) as e:
        store.read_metadata("a")
    assert e.value.code == "too-large"


def test_map_calls_at_the_same_time_and_keeps_the_order(store):
    together = threading.Barrier(2, timeout=200)
    assert store.map(lambda item: (together.wait(), item)[1], ["a", "b"]) == ["a", "b"]
    assert store.map(str, []) == []


# -- sizes and stamps ------------------------------------------------------------------------------


def test_sizes_are_those_of_size(store):
    keys = [f"u/t/p={i}/{name}" for i in range(3) for name in ("a", "b")]
    for i, key in enumerate(keys):
        store.put(key, bytes(i))
    assert store.sizes(keys) == {key: i for i, key in enumerate(keys)}
    assert store.sizes([]) == {}


@pytest.mark.parametrize("lost", ["u/t/none", "u/t", "none/x", "u/t/a/x"])
def test_sizes_name_the_key_that_is_not_there(local, lost):
    local.put("u/t/a", b"1")
    with pytest.raises(KeyError) as e:
        local.sizes(["u/t/a", lost])
    assert e.value.args == (lost,)


def test_sizes_refuse_what_is_no_file(local):
    os.mkfifo(local.root + "/pipe")
    with pytest.raises(FormatError) as e:
        local.sizes(["pipe"])
    assert e.value.code == "unsafe-key"


def test_a_stamp_changes_with_every_kind_of_write(local):
    local.put("a", b"1")
    path = local.local_path("a")
    stamps = [local.stamp("a")]

    def note():
        stamps.append(local.stamp("a"))
        assert len(set(stamps)) == len(stamps)

    local.put("a", b"2")
    note()
    time.sleep(0.05)  # longer than the clock of a filesystem ticks
    with open(path, "r+b") as f:
        f.write(b"3")
    note()
    time.sleep(0.05)
    os.utime(path, ns=(stamps[0].mtime_ns, stamps[0].mtime_ns))
    note()
    assert local.stamp("a") == stamps[-1]


def test_only_local_files_have_stamps(store):
    store.put("a", b"1")
    assert (store.stamp("a") is None) != store.is_local
    if store.is_local:
        with pytest.raises(KeyError):
            store.stamp("none")


@pytest.mark.parametrize("key", ["../a", "/a", "u/../../a", "", "a\0b", "u/" + "c" * 300])
def test_put_refuses_unsafe_keys(store, key):
    with pytest.raises(FormatError) as e:
        store.put(key, b"1")
    assert e.value.code == "unsafe-key"
    assert store.list_root() == []


def test_listing_refuses_unsafe_prefixes(store):
    with pytest.raises(FormatError) as e:
        store.list_below("../")
    assert e.value.code == "unsafe-key"


# -- counting ------------------------------------------------------------------------------


def test_every_call_is_counted(store):
    store.put("a", b"12345")
    store.list_root()
    store.list_below("u/")
    store.read("a")
    store.read("a", start=1, end=3)
    counts = store.counter.to_dict()
    assert counts == {"lists": 2, "reads": 2, "sizes": 0, "writes": 1, "bytes_read": 7}
    assert store.counter.keys == ["a", "a"]


ENDS = (".by-dataset-metadata.json", "/table/_common_metadata")


def test_opening_a_cube_costs_one_listing_and_two_files_per_dataset(store):
    write_cube(store, "c", {"seed": INT, "a": {"x": "int64", "w": "int64"}, "b": {"x": "int64", "u": "int64"}})
    write_dataset(store, "other", {"x": "int64"})
    before = store.counter.to_dict()
    snapshot = Snapshot(store)
    assert sorted(snapshot.cube("c").members) == ["a", "b", "seed"]
    counts = store.counter.to_dict()
    assert counts["lists"] - before["lists"] == 1
    documents, schemas = ([f"c++{d}{end}" for d in ("a", "b", "seed")] for end in ENDS)
    # Nothing but the content tells in memory whether a document changed while the others were read.
    again = [] if store.is_local else documents
    assert sorted(store.counter.keys) == sorted([*documents, *schemas, *again])
    assert counts["sizes"] == before["sizes"]
    snapshot.cube("c")
    snapshot.cubes()
    assert store.counter.to_dict() == counts


def test_opening_a_golden_cube_costs_the_same(ktk_store):
    store = Store(str(ktk_store))
    assert len(Snapshot(store).cube("retail").members) == 4
    assert (store.counter.lists, store.counter.reads, store.counter.sizes) == (1, 8, 0)


# -- what is no store ----------------------------------------------------------------------


def test_a_missing_folder_is_no_store(tmp_path):
    with pytest.raises(StoreError, match="none") as e:
        Store(str(tmp_path / "none"))
    assert e.value.code == "store-not-found"
    assert (
        e.value.hint
        == "Check the path. To begin a new store: connect(..., read_only=False) in Python, --write on the command line."
    )


def test_a_way_out_of_a_path_that_is_no_store(tmp_path):
    (tmp_path / "flights").mkdir()
    (tmp_path / "rows.csv").write_text("a\n1\n")
    for name, hint in (("fligths", f"Did you mean '{tmp_path}/flights'?"), ("rows.csv", f"is '{tmp_path}', where")):
        with pytest.raises(StoreError) as e:
            Store(str(tmp_path / name))
        assert hint in e.value.hint


def test_a_missing_folder_is_made_on_demand(tmp_path):
    Store(str(tmp_path / "new" / "deep"), create=True).put("a", b"1")
    assert (tmp_path / "new" / "deep" / "a").read_bytes() == b"1"


def test_a_file_is_no_store(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for create in (False, True):
        with pytest.raises(StoreError) as e:
            Store(str(tmp_path / "file"), create=create)
        assert e.value.code in ("store-not-found", "store-failed")


@pytest.mark.parametrize("url", ["", "a\0b", b"bytes"])
def test_texts_that_are_no_path_are_refused(url):
    with pytest.raises(StoreError) as e:
        Store(url)
    assert e.value.code == "store-not-found"


def test_paths_may_be_path_objects(tmp_path):
    assert Store(tmp_path).list_root() == []


def test_file_urls_are_local(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    store = Store(f"file://{tmp_path}")
    assert store.is_local
    assert store.read("a") == b"1"


def test_unknown_protocols_are_named_errors():
    with pytest.raises(StoreError, match="nosuchprotocol://x/y") as e:
        Store("nosuchprotocol://x/y")
    assert e.value.code == "store-failed"


def test_bad_storage_options_are_named_errors(tmp_path):
    with pytest.raises(StoreError):
        Store(str(tmp_path), {"auto_mkdir": "x", "protocol": 3})


# -- links -----------------------------------------------------------------------------------


@pytest.fixture
def linked(tmp_path):
    """A store beside a secret, with links of every kind to it."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_bytes(b"secret")
    root = tmp_path / "store"
    (root / "u" / "table").mkdir(parents=True)
    (root / "v").mkdir()
    (root / "v" / "file").write_bytes(b"of another dataset")
    (root / "u" / "file").write_bytes(b"fine")
    os.symlink(tmp_path / "secret" / "file", root / "u" / "table" / "out")
    os.symlink(tmp_path / "secret", root / "u" / "folder")
    os.symlink(tmp_path / "secret" / "file", root / "top.json")
    os.symlink(root / "v", root / "u" / "other")
    os.symlink(root / "v" / "file", root / "u" / "other-file")
    return Store(str(root))


@pytest.mark.parametrize("key", ["u/table/out", "u/folder/file", "top.json", "u/other/file", "u/other-file"])
def test_links_are_not_followed(linked, key):
    reads = (
        linked.read,
        linked.read_metadata,
        linked.size,
        linked.local_path,
        linked.stamp,
        lambda k: linked.sizes([k]),
    )
    for read in reads:
        with pytest.raises(FormatError) as e:
            read(key)
        assert e.value.code == "unsafe-key"
        assert key in e.value.message


def test_a_link_among_many_folders_is_not_followed(linked):
    keys = [f"u/many/p={n}/file" for n in range(100)]
    for key in keys:
        linked.put(key, b"1")
    assert [s.size for s in Store(linked.root).stamps(keys).values()] == [1] * 100
    os.symlink(os.path.dirname(linked.root) + "/secret", linked.root + "/u/many/p=out")
    with pytest.raises(FormatError) as e:
        Store(linked.root).stamps([*keys, "u/many/p=out/file"])
    assert e.value.code == "unsafe-key"
    os.symlink(os.path.dirname(linked.root) + "/secret", linked.root + "/u/all")
    os.makedirs(os.path.dirname(linked.root) + "/secret/many/p=1")
    with pytest.raises(FormatError):
        Store(linked.root).stamps([f"u/all/many/p={n}/file" for n in range(100)])


def test_links_are_not_written_through(linked):
    with pytest.raises(FormatError):
        linked.put("u/folder/file", b"overwritten")
    with pytest.raises(FormatError):
        linked.put("u/folder/new/file", b"1")
    assert sorted(os.listdir(os.path.dirname(linked.root) + "/secret")) == ["file"]
    with open(os.path.dirname(linked.root) + "/secret/file", "rb") as f:
        assert f.read() == b"secret"


def test_files_beside_links_are_read(linked):
    assert linked.read("u/file") == b"fine"


def test_links_that_stay_in_their_dataset_are_followed(linked):
    os.symlink(linked.root + "/u", linked.root + "/u/table/up")
    os.symlink(linked.root + "/u/table", linked.root + "/u/again")
    linked.put("u/table/file", b"inside")
    assert linked.read("u/table/up/file") == b"fine"
    assert linked.sizes(["u/again/file", "u/again/up/again/file"]) == {"u/again/file": 6, "u/again/up/again/file": 6}


@pytest.mark.parametrize("target", ["secret", "store/v"])
def test_links_below_folders_that_were_looked_at_are_not_followed(linked, tmp_path, target):
    assert linked.put("u/table/file", b"1") is None
    os.makedirs(linked.root + "/u/table/p=1")
    os.symlink(tmp_path / target, linked.root + "/u/table/p=1/q=1")
    os.symlink(linked.root + "/u/table/p=1", linked.root + "/u/table/p=2")
    assert linked.read("u/table/file") == b"1"
    for key in ("u/table/p=1/q=1/file", "u/table/p=2/q=1/file"):
        for read in (linked.size, linked.read, lambda k: linked.sizes(["u/table/file", k])):
            with pytest.raises(FormatError) as e:
                read(key)
            assert e.value.code == "unsafe-key"


def test_a_store_may_itself_be_a_link(linked, tmp_path):
    os.symlink(linked.root, tmp_path / "link")
    assert Store(str(tmp_path / "link")).read("u/file") == b"fine"


@pytest.mark.timeout(120)
def test_a_pipe_is_not_waited_for(local, tmp_path):
    os.mkfifo(tmp_path / "u.by-dataset-metadata.json")
    with pytest.raises(FormatError, match=r"u\.by-dataset-metadata.json"):
        Snapshot(local).dataset("u")


# -- a store that fails ----------------------------------------------------------------------


class EndpointConnectionError(Exception):
    """Object store clients have errors of their own that are no OSError."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PermissionError("no"), "access-denied"),
        (OSError("gone"), "store-failed"),
        (TimeoutError("slow"), "store-failed"),
        (EndpointConnectionError("unreachable"), "store-failed"),
    ],
)
def test_failures_of_the_filesystem_are_named(store, monkeypatch, error, code):
    store.put("a", b"1")

    def fail(*args, **kwargs):
        raise error

    for name in ("cat_file", "ls", "find"):
        monkeypatch.setattr(store.fs, name, fail)
    calls = ((lambda: store.read("a"), "a"), (store.list_root, store.url), (lambda: store.list_below("u/"), "u/"))
    for call, where in calls:
        with pytest.raises(StoreError) as e:
            call()
        assert e.value.code == code
        assert where in e.value.message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files_are_named(local, tmp_path):
    local.put("a", b"1")
    (tmp_path / "a").chmod(0)
    with pytest.raises(StoreError) as e:
        local.read("a")
    assert e.value.code == "access-denied"


def test_a_failed_put_leaves_the_old_bytes_and_no_rest(local, tmp_path, monkeypatch):
    local.put("u/a", b"old")

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(syscalls, "rename", fail)
    with pytest.raises(StoreError, match="disk full") as e:
        local.put("u/a", b"new")
    assert e.value.code == "store-failed"
    assert [path.name for path in (tmp_path / "u").rglob("*") if path.is_file()] == ["a"]
    assert local.read("u/a") == b"old"


def test_a_reader_sees_the_old_or_the_new_document_whole(local):
    old, new = b"a" * 100_000, b"b" * 100_000
    local.put("doc", old)
    stop = threading.Event()
    seen = set()

    def read():
        while not stop.is_set():
            seen.add(local.read("doc"))

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(40):
        local.put("doc", new if i % 2 == 0 else old)
    stop.set()
    reader.join()
    assert seen <= {old, new}


def test_put_where_a_file_is_a_folder_is_a_named_error(local):
    local.put("a", b"1")
    with pytest.raises(StoreError):
        local.put("a/b", b"2")
    local.put("c/d", b"1")
    with pytest.raises(StoreError):
        local.put("c", b"2")


def test_what_is_neither_text_nor_a_path_is_no_store():
    with pytest.raises(StoreError) as e:
        Store(5)
    assert e.value.code == "store-not-found"
