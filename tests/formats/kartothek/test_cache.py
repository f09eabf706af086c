from __future__ import annotations

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import msgpack
import pyarrow as pa
import pytest
import zstandard

from builders import document, schema_bytes, write_cube, write_dataset
from kartosql.errors import FormatError
from kartosql.formats.kartothek import snapshot as snapshot_module
from kartosql.formats.kartothek.snapshot import MetadataCache, Snapshot
from kartosql.store import Entry, ObjectStamp, Store

SCHEMA = {"p": pa.int64(), "v": pa.int64()}
SEED = {"p": pa.int64(), "x": pa.int64(), "v": pa.int64()}
EXTRA = {"p": pa.int64(), "x": pa.int64(), "w": pa.int64()}
JSON = "u.by-dataset-metadata.json"
ZSTD = "u.by-dataset-metadata.msgpack.zstd"
COMMON = "u/table/_common_metadata"


@pytest.fixture
def cache():
    return MetadataCache()


@pytest.fixture
def old(monkeypatch):
    """Return a function that lets the files written so far be old enough for their times to be trusted."""
    monkeypatch.setattr(snapshot_module, "SETTLED_NS", 10**18)
    return lambda: monkeypatch.setattr(snapshot_module, "SETTLED_NS", -(10**18))


def table(store, cache, uuid="u"):
    return Snapshot(store, cache).dataset(uuid).tables["table"]


def reads(store, act):
    before = len(store.counter.keys)
    act()
    return sorted(store.counter.keys[before:])


def pack(value):
    return zstandard.compress(msgpack.packb(value))


def put(store, folders, key=JSON):
    made = document("u", folders, partition_keys=["p"])
    store.put(key, json.dumps(made).encode() if key == JSON else pack(made))


# -- nothing changed -------------------------------------------------------------------------------


def test_the_same_objects_come_back_while_nothing_changes(store, cache):
    write_dataset(store, "u", SCHEMA, ["p=1"], partition_keys=["p"])
    write_cube(store, "c", {"seed": SEED, "extra": EXTRA})
    first, cube = table(store, cache), Snapshot(store, cache).cube("c")
    assert table(store, cache) is first
    assert table(store, cache).partitions is first.partitions
    again = Snapshot(store, cache).cube("c")
    assert again is cube
    assert again.members["extra"].table is cube.members["extra"].table


def test_snapshots_without_a_cache_share_nothing(store):
    write_dataset(store, "u", SCHEMA, ["p=1"], partition_keys=["p"])
    assert Snapshot(store).dataset("u") is not Snapshot(store).dataset("u")


def test_files_that_are_old_enough_are_not_read_again(local, cache, old):
    write_dataset(local, "u", SCHEMA, ["p=1"], partition_keys=["p"])
    old()
    assert reads(local, lambda: table(local, cache)) == [JSON, COMMON]
    assert reads(local, lambda: table(local, cache)) == []


def test_files_that_were_just_written_are_read_again_but_not_parsed(local, cache, monkeypatch):
    write_dataset(local, "u", SCHEMA, ["p=1"], partition_keys=["p"])
    first = table(local, cache)
    monkeypatch.setattr(snapshot_module, "parse_document", None)
    assert reads(local, lambda: table(local, cache)) == [JSON, COMMON]
    assert table(local, cache) is first


def test_files_become_old_enough(local, cache, old):
    write_dataset(local, "u", SCHEMA, ["p=1"], partition_keys=["p"])
    first = table(local, cache)
    old()
    assert reads(local, lambda: table(local, cache)) == [JSON, COMMON]
    assert reads(local, lambda: table(local, cache)) == []
    assert table(local, cache) is first


def test_remote_files_are_read_again_each_time(cache):
    store = Store(f"memory://{os.urandom(8).hex()}")
    write_dataset(store, "u", SCHEMA, ["p=1"], partition_keys=["p"])
    first = table(store, cache)
    assert reads(store, lambda: table(store, cache)) == [JSON, COMMON]
    assert table(store, cache) is first


# -- changes by others -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", [JSON, ZSTD])
def test_other_content_of_the_same_size_is_seen_at_once(store, cache, key):
    store.put(COMMON, schema_bytes(SCHEMA))
    for value in (1, 2, 3, 2):
        put(store, [f"p={value}"], key)
        assert table(store, cache).partitions.tuples == ((value,),)


@pytest.mark.parametrize("key", [JSON, ZSTD])
def test_a_write_into_an_old_file_is_seen_though_its_time_is_set_back(local, cache, old, key):
    local.put(COMMON, schema_bytes(SCHEMA))
    put(local, ["p=1"], key)
    path = local.local_path(key)
    before = os.stat(path)
    old()
    assert table(local, cache).partitions.tuples == ((1,),)
    put(local, ["p=2"], ZSTD if key == JSON else JSON)
    other = local.read(ZSTD if key == JSON else JSON)
    os.unlink(local.local_path(ZSTD if key == JSON else JSON))
    changed = json.loads(other) if key == ZSTD else msgpack.unpackb(zstandard.decompress(other))
    with open(path, "r+b") as f:  # as the original writes: into the file itself
        data = json.dumps(changed).encode() if key == JSON else pack(changed)
        f.write(data)
        f.truncate()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert table(local, cache).partitions.tuples == ((2,),)


def test_a_write_that_leaves_the_times_as_they_are_is_seen_while_the_file_is_new(local, cache, monkeypatch):
    stamps: dict[str, object] = {}
    plain = local.stamp
    monkeypatch.setattr(local, "stamp", lambda key: stamps.setdefault(key, plain(key)))  # a clock that stands still
    local.put(COMMON, schema_bytes(SCHEMA))
    for value in (1, 2):
        put(local, [f"p={value}"])
        assert table(local, cache).partitions.tuples == ((value,),)


def test_a_change_between_stamp_and_read_is_not_taken_for_the_old_file(local, cache, old, monkeypatch):
    local.put(COMMON, schema_bytes(SCHEMA))
    put(local, ["p=1"])
    path = local.local_path(JSON)
    os.rename(path, path + ".kept")
    put(local, ["p=1"])
    old()
    plain = local.read_metadata
    changes = iter([["p=2"]])

    def replaced(key):
        if key == JSON:
            for folders in changes:
                put(local, folders)
        return plain(key)

    monkeypatch.setattr(local, "read_metadata", replaced)
    assert table(local, cache).partitions.tuples == ((2,),)
    monkeypatch.undo()
    put(local, ["p=1"])
    assert table(local, cache).partitions.tuples == ((1,),)


def test_a_changed_schema_is_seen(store, cache):
    write_dataset(store, "u", SCHEMA, ["p=1"], partition_keys=["p"])
    first = table(store, cache)
    store.put(COMMON, schema_bytes(SCHEMA | {"v": pa.string()}))
    second = table(store, cache)
    assert (first.types["v"], second.types["v"]) == (pa.int64(), pa.string())
    assert table(store, cache) is second


def test_a_dataset_that_is_deleted_is_gone_and_may_come_back(local, cache, old):
    write_dataset(local, "u", SCHEMA, ["p=1"], partition_keys=["p"])
    old()
    first = table(local, cache)
    os.unlink(local.local_path(JSON))
    shutil.rmtree(os.path.join(local.root, "u"))
    with pytest.raises(FormatError) as e:
        table(local, cache)
    assert e.value.code == "missing-metadata"
    write_dataset(local, "u", {"q": pa.string(), "z": pa.int64()}, ["q=a"], partition_keys=["q"])
    again = table(local, cache)
    assert again is not first
    assert (again.partition_keys, again.partitions.tuples) == (("q",), (("a",),))


def test_a_json_beside_a_msgpack_wins_and_its_end_is_seen(store, cache):
    store.put(COMMON, schema_bytes(SCHEMA))
    put(store, ["p=1"], ZSTD)
    assert table(store, cache).partitions.tuples == ((1,),)
    put(store, ["p=2"])
    assert table(store, cache).partitions.tuples == ((2,),)
    store.fs.rm(store.path(JSON)) if not store.is_local else os.unlink(store.local_path(JSON))
    assert table(store, cache).partitions.tuples == ((1,),)


def test_errors_are_not_kept(store, cache):
    store.put(COMMON, schema_bytes(SCHEMA))
    store.put(JSON, b"{")
    for _ in range(2):
        with pytest.raises(FormatError):
            table(store, cache)
    put(store, ["p=1"])
    first = table(store, cache)
    store.put(JSON, b"{")
    with pytest.raises(FormatError):
        table(store, cache)
    put(store, ["p=1"])
    assert table(store, cache).partitions.tuples == first.partitions.tuples


def test_files_found_by_listing_are_listed_each_time(store, cache):
    write_dataset(store, "u", SCHEMA, partition_keys=["p"], partitions=...)
    store.put("u/table/p=1/a.parquet", b"1")
    first = table(store, cache)
    assert table(store, cache) is first
    store.put("u/table/p=2/a.parquet", b"1")
    second = table(store, cache)
    assert second.partitions.tuples == ((1,), (2,))
    assert table(store, cache) is second


@pytest.mark.parametrize("member", ["seed", "extra"])
def test_a_cube_changes_with_each_of_its_members(store, cache, member):
    write_cube(store, "c", {"seed": SEED, "extra": EXTRA})
    first = Snapshot(store, cache).cube("c")
    key = f"c++{member}.by-dataset-metadata.json"
    changed = json.loads(store.read(key))
    label, entry = next(iter(changed["partitions"].items()))
    changed["partitions"] = {label: entry}
    store.put(key, json.dumps(changed).encode())
    second = Snapshot(store, cache).cube("c")
    assert len(second.members[member].table.files) == 1
    unchanged = "extra" if member == "seed" else "seed"
    assert second.members[unchanged].table is first.members[unchanged].table


def test_a_new_member_of_a_cube_is_seen(store, cache):
    write_cube(store, "c", {"seed": SEED})
    assert list(Snapshot(store, cache).cube("c").members) == ["seed"]
    write_dataset(store, "c++extra", EXTRA, ["p=0"], partition_keys=["p"], metadata={"ktk_cube_is_seed": False})
    assert list(Snapshot(store, cache).cube("c").members) == ["extra", "seed"]


# -- ETags -----------------------------------------------------------------------------------------


def with_etags(store, monkeypatch, etag_of):
    plain = store.list_root
    monkeypatch.setattr(
        store,
        "list_root",
        lambda: [
            e if e.is_dir else Entry(e.name, e.size, e.is_dir, ObjectStamp(etag_of(e.name), None)) for e in plain()
        ],
    )


def md5(data):
    import hashlib

    return hashlib.md5(data).hexdigest()


def test_a_document_is_not_read_again_while_its_etag_is_the_md5_of_what_was_read(cache, monkeypatch):
    store = Store(f"memory://{os.urandom(8).hex()}")
    write_dataset(store, "u", SCHEMA, ["p=1"], partition_keys=["p"])
    with_etags(store, monkeypatch, lambda name: md5(store.fs.cat_file(store.path(name))))
    first = table(store, cache)
    assert reads(store, lambda: table(store, cache)) == [COMMON]
    assert table(store, cache) is first
    put(store, ["p=2"])
    assert table(store, cache).partitions.tuples == ((2,),)


def test_an_etag_that_does_not_belong_to_what_was_read_is_not_trusted(cache, monkeypatch):
    store = Store(f"memory://{os.urandom(8).hex()}")
    write_dataset(store, "u", SCHEMA, ["p=1"], partition_keys=["p"])
    original = store.read(JSON)
    with_etags(store, monkeypatch, lambda name: md5(original))
    put(store, ["p=2"])  # behind the listing, and taken back afterwards
    assert table(store, cache).partitions.tuples == ((2,),)
    store.put(JSON, original)
    assert table(store, cache).partitions.tuples == ((1,),)


# -- bounds and threads ----------------------------------------------------------------------------


def test_only_so_many_datasets_are_held(local, cache, old, monkeypatch):
    monkeypatch.setattr(snapshot_module, "MAX_DATASETS", 2)
    for uuid in ("a", "b", "d"):
        write_dataset(local, uuid, SCHEMA, ["p=1"], partition_keys=["p"])
    old()
    for uuid in ("a", "b", "a", "d"):
        table(local, cache, uuid)
    assert reads(local, lambda: table(local, cache, "a")) == []
    assert reads(local, lambda: table(local, cache, "d")) == []
    assert len(reads(local, lambda: table(local, cache, "b"))) == 2


def test_only_so_many_partitions_are_held(local, cache, old, monkeypatch):
    monkeypatch.setattr(snapshot_module, "MAX_PARTITIONS", 5)
    for uuid, count in (("a", 3), ("b", 3), ("d", 9)):
        write_dataset(local, uuid, SCHEMA, [f"p={i}" for i in range(count)], partition_keys=["p"])
    old()
    table(local, cache, "a")
    table(local, cache, "b")
    assert len(reads(local, lambda: table(local, cache, "a"))) == 2
    table(local, cache, "d")
    assert reads(local, lambda: table(local, cache, "d")) == []  # the newest is held, whatever its size


def test_a_statement_over_more_datasets_than_are_held_still_sees_all(local, cache, monkeypatch):
    monkeypatch.setattr(snapshot_module, "MAX_DATASETS", 1)
    write_cube(local, "c", {"seed": SEED, "extra": EXTRA})
    for _ in range(3):
        assert list(Snapshot(local, cache).cube("c").members) == ["extra", "seed"]


def test_threads_get_the_same_objects(store, cache):
    write_dataset(store, "u", SCHEMA, [f"p={i}" for i in range(100)], partition_keys=["p"])
    together = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: (together.wait(), table(store, cache))[1], range(8)))
    assert len({id(t) for t in found}) == 1
