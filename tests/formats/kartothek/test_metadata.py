from __future__ import annotations

import gc
import json
import time
import tracemalloc
import weakref

import msgpack
import pytest
import zstandard

from builders import WRITE_ID, document
from kartosql.errors import FormatError
from kartosql.formats.kartothek import metadata
from kartosql.formats.kartothek.metadata import parse_document
from kartosql.store.store import MAX_METADATA_BYTES

JSON = "u.by-dataset-metadata.json"
ZSTD = "u.by-dataset-metadata.msgpack.zstd"


def pack(value, *, size=True):
    return zstandard.ZstdCompressor(write_content_size=size).compress(msgpack.packb(value))


def parse(value, key=JSON):
    data = json.dumps(value).encode() if key == JSON else pack(value)
    return parse_document(data, key, "u")


def refuse(data, key=JSON, code="invalid-metadata"):
    """Parse what must be refused, and return the error after checking what all of them share."""
    with pytest.raises(FormatError) as e:
        parse_document(data, key, "u")
    assert e.value.code == code
    assert e.value.message.startswith(f"{key}: ")
    assert len(str(e.value)) < 1000
    if code != "too-large":
        assert e.value.hint
    return e.value


# -- what is read ----------------------------------------------------------------------------


@pytest.mark.parametrize("key", [JSON, ZSTD])
def test_a_document_is_read(key):
    found = parse(
        document("u", ["p=2", "p=1"], partition_keys=["p"], indices={"x": "u/indices/x/1.parquet"}, unknown=[1]), key
    )
    assert found.uuid == "u"
    assert found.key == key
    assert found.labels == (f"p=2/{WRITE_ID}", f"p=1/{WRITE_ID}")  # in document order
    assert found.files == {"table": (f"u/table/p=2/{WRITE_ID}.parquet", f"u/table/p=1/{WRITE_ID}.parquet")}
    assert found.partition_keys == ("p",)
    assert found.indices == {"x": "u/indices/x/1.parquet"}
    assert found.metadata == {"creation_time": "2026-01-12T08:00:14.604941"}
    assert found.tables == ("table",)


def test_a_large_document_that_is_still_held_is_not_parsed_again(monkeypatch):
    held = weakref.WeakValueDictionary()
    monkeypatch.setattr(metadata, "LARGE_BYTES", 0)
    monkeypatch.setattr(metadata, "_newest", held)
    data = json.dumps(document("u", ["p=1"])).encode()
    first = parse_document(data, JSON, "u")
    assert parse_document(bytes(bytearray(data)), JSON, "u") is first
    assert parse_document(data + b" ", JSON, "u") is not first
    del first
    gc.collect()
    assert dict(held) == {}


def test_optional_parts_may_be_absent():
    found = parse({"dataset_metadata_version": 4, "dataset_uuid": "u"})
    assert (found.labels, found.files, found.partition_keys) == (None, {}, None)
    assert (found.indices, found.metadata) == ({}, {})


def test_no_partitions_differ_from_none_listed():
    assert parse(document("u")).labels == ()
    assert parse(document("u", partitions=...)).labels is None


def test_tables_may_miss_in_some_partitions():
    partitions = {
        "a": {"files": {"core": "u/core/a.parquet"}},
        "b": {"files": {"core": "u/core/b.parquet", "help": "u/help/b.parquet"}, "unknown": 1},
    }
    found = parse(document("u", partitions=partitions))
    assert found.files == {"core": ("u/core/a.parquet", "u/core/b.parquet"), "help": (None, "u/help/b.parquet")}


def test_an_index_may_stand_in_the_document():
    assert parse(document("u", indices={"x": {"1": ["a"]}})).indices == {"x": {"1": ["a"]}}


def test_msgpack_without_a_content_size_is_read():
    assert parse_document(pack(document("u"), size=False), ZSTD, "u").labels == ()


def test_the_golden_msgpack_documents_are_read(ktk_store, plateau_store):
    for folder, uuid in ((ktk_store, "mpack++seed"), (ktk_store, "mpack++enrich"), (plateau_store, "pl-ext")):
        key = f"{uuid}.by-dataset-metadata.msgpack.zstd"
        assert parse_document((folder / key).read_bytes(), key, uuid).labels


def test_every_golden_document_is_read(ktk_store, plateau_store):
    found = [p for folder in (ktk_store, plateau_store) for p in folder.glob("*.by-dataset-metadata.*")]
    assert len(found) > 25
    for path in found:
        uuid = path.name.partition(".")[0]
        assert parse_document(path.read_bytes(), path.name, uuid).uuid == uuid


# -- torn, mistyped, mislabelled -------------------------------------------------------------

GOOD = json.dumps(document("u", ["p=1"], partition_keys=["p"])).encode()


@pytest.mark.parametrize("cut", [0, 1, 20, len(GOOD) // 2, len(GOOD) - 1])
def test_torn_json_is_refused(cut):
    refuse(GOOD[:cut])
    refuse(GOOD[:cut] + b"\0" * (len(GOOD) - cut))  # preallocated, never written


@pytest.mark.parametrize("cut", [0, 1, 5, 20, -1])
def test_torn_msgpack_is_refused(cut):
    refuse(pack(json.loads(GOOD))[:cut], ZSTD)


@pytest.mark.parametrize(
    "data",
    [
        b"not zstd at all",
        zstandard.compress(b""),
        zstandard.compress(b"\xc1"),  # a byte that msgpack never uses
        zstandard.compress(msgpack.packb({"a": 1}) + b"\x01"),
        zstandard.compress(msgpack.packb({1: 2})),
        zstandard.compress(b"\x81\xa1a\xa1\xff"),  # text that is not UTF-8
        zstandard.compress(msgpack.packb({"a": msgpack.ExtType(5, b"x")})),
        zstandard.compress(msgpack.packb({"a": msgpack.Timestamp(0)})),
        zstandard.compress(b"\x82\xa1a\x01\xa1a\x02"),  # one key twice
        zstandard.compress(b"\xdd\xff\xff\xff\xff"),  # four billion items announced, none there
        zstandard.compress(b"\xdf\xff\xff\xff\xff"),
        zstandard.compress(b"\xc6\xff\xff\xff\xff"),
        zstandard.compress(b"\x91" * 100_000),
        zstandard.compress(b"\x81\xa1a" * 100_000),
    ],
)  # fmt: skip
def test_damaged_msgpack_is_refused(data):
    refuse(data, ZSTD)


@pytest.mark.parametrize("value", ["[]", "null", "1", '"text"', "true"])
def test_documents_that_are_no_map_are_refused(value):
    refuse(value.encode())
    refuse(pack(json.loads(value)), ZSTD)


@pytest.mark.parametrize("data", [b'{"a": "\xff"}', b"\xff\xfe{\0}\0", b'{"a": "\xed\xa0\x80"}', b"\xc3"])
def test_json_that_is_not_utf8_is_refused(data):
    assert "UTF-8" in refuse(data).message


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"dataset_metadata_version": 4, "metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_deeply_nested_json_is_refused(data):
    refuse(data)


@pytest.mark.parametrize(
    "text",
    [
        '{"dataset_uuid": "u", "dataset_uuid": "v"}',
        '{"metadata": {"a": 1, "a": 1}}',
        '{"partitions": {"l": {"files": {"table": "u/a", "table": "u/b"}}}}',
    ],
)
def test_a_key_that_occurs_twice_is_refused(text):
    assert "twice" in refuse(text.encode()).message


def test_a_number_too_long_to_read_is_refused():
    refuse(b'{"metadata": {"n": ' + b"9" * 10_000 + b"}}")


@pytest.mark.parametrize("version", [3, 5, 0, -1, 10**30])
def test_other_versions_are_refused(version):
    error = refuse(json.dumps(document("u", dataset_metadata_version=version)).encode(), code="unsupported-version")
    assert "4" in error.hint


@pytest.mark.parametrize("version", [..., None, "4", 4.0, True, [4]])
def test_versions_that_are_no_integer_are_refused(version):
    refuse(json.dumps(document("u", dataset_metadata_version=version)).encode())


@pytest.mark.parametrize("uuid", [..., None, "v", "U", "u\0", 1, ["u"]])
def test_documents_of_another_dataset_are_refused(uuid):
    refuse(json.dumps({k: v for k, v in document("u").items() if k != "dataset_uuid"} | _given(uuid)).encode())


def _given(uuid):
    return {} if uuid is ... else {"dataset_uuid": uuid}


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": None},
        {"partitions": []},
        {"partitions": "text"},
        {"partitions": {"l": None}},
        {"partitions": {"l": []}},
        {"partitions": {"l": {}}},
        {"partitions": {"l": {"files": None}}},
        {"partitions": {"l": {"files": []}}},
        {"partitions": {"l": {"files": {"table": 1}}}},
        {"partitions": {"l": {"files": {"table": ["u/a"]}}}},
        {"partitions": {"l": {"files": {"table": {}}}}},
        {"partition_keys": None},
        {"partition_keys": "p"},
        {"partition_keys": {"p": 1}},
        {"partition_keys": [1]},
        {"partition_keys": [None]},
        {"partition_keys": [["p"]]},
        {"partition_keys": [""]},
        {"partition_keys": ["p", "p"]},
        {"indices": None},
        {"indices": []},
        {"indices": {"x": None}},
        {"indices": {"x": 1}},
        {"indices": {"x": ["u/a"]}},
        {"metadata": None},
        {"metadata": []},
        {"metadata": "text"},
    ],
    ids=str,
)
def test_values_of_a_wrong_type_are_refused(changes):
    refuse(json.dumps(document("u", **changes)).encode())
    refuse(pack(document("u", **changes)), ZSTD)


# -- keys ------------------------------------------------------------------------------------

ESCAPES = [
    "",
    "../x.parquet",
    "/etc/passwd",
    "u/../v/table/x.parquet",
    "u/table/../../v/x",
    "u/./x",
    "v/table/x.parquet",
    "u",
    "u2/x",
    "file:///etc/passwd",
    "s3://bucket/x",
    "u/s3://bucket/x",
    "u/a\0b",
    "u/a\nb",
    "u/\ud800",
    "u/" + "n" * 300,
    "u/" + "n/" * 3000,
]


@pytest.mark.parametrize("key", ESCAPES, ids=lambda key: repr(key)[:30])
def test_file_keys_that_leave_the_dataset_are_refused(key):
    refuse(json.dumps(document("u", partitions={"l": {"files": {"table": key}}})).encode(), code="unsafe-key")


@pytest.mark.parametrize("key", ESCAPES, ids=lambda key: repr(key)[:30])
def test_index_keys_that_leave_the_dataset_are_refused(key):
    refuse(json.dumps(document("u", indices={"x": key})).encode(), code="unsafe-key")


@pytest.mark.parametrize(
    "table", ["..", ".", "/", "a/b", "../v", "a\0b", "n" * 300, "\ud800"], ids=lambda t: repr(t)[:20]
)
def test_table_names_that_leave_the_dataset_are_refused(table):
    data = json.dumps(document("u", partitions={"l": {"files": {table: "u/x/y"}}})).encode()
    with pytest.raises(FormatError) as e:
        parse_document(data, JSON, "u")
    assert e.value.code in ("unsafe-key", "invalid-metadata")
    assert e.value.message.startswith(f"{JSON}: ")


LONG = "n" * 100_000


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset_uuid": LONG},
        {"partition_keys": [1] * 100_000},
        {"partition_keys": [LONG, LONG]},
        {"indices": {LONG: None}},
        {"partitions": {LONG: None}},
        {"partitions": {"l": {"files": {"a/" + LONG: "u/x"}}}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_errors_stay_short_whatever_the_document_holds(changes):
    with pytest.raises(FormatError) as e:
        parse(document("u", **changes))
    assert len(str(e.value)) < 1000


# -- bombs -----------------------------------------------------------------------------------


def zeros(head, total):
    """Return ``head`` and ``total`` zero bytes as a zstd frame that does not say how many they are."""
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    chunk = bytes(1 << 20)
    parts = [compressor.compress(head), *(compressor.compress(chunk) for _ in range(total >> 20))]
    return b"".join([*parts, compressor.compress(bytes(total & 0xFFFFF)), compressor.flush()])


def peak_of(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_frame_that_says_it_is_too_large_is_not_unpacked():
    head = zstandard.ZstdCompressor(level=1).compressobj(size=MAX_METADATA_BYTES + 1)
    frame = head.compress(bytes(1 << 20)) + head.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    assert peak_of(lambda: refuse(frame, ZSTD, "too-large")) < 1 << 24


def test_a_frame_that_hides_its_size_is_unpacked_up_to_the_limit():
    head = b"\x81\xa8metadata\xc6" + (MAX_METADATA_BYTES - 10).to_bytes(4, "big")
    bomb = zeros(head, MAX_METADATA_BYTES)
    assert len(bomb) < 1 << 18
    started = time.process_time()
    assert peak_of(lambda: refuse(bomb, ZSTD, "too-large")) < MAX_METADATA_BYTES * 9 // 4
    assert time.process_time() - started < 60


def test_what_stands_behind_a_document_is_not_unpacked():
    bomb = zeros(b"\x80", MAX_METADATA_BYTES + 1)
    assert peak_of(lambda: refuse(bomb, ZSTD)) < 1 << 24


def test_small_documents_take_little_memory():
    data = pack(document("u", [f"p={i}" for i in range(100)]), size=False)
    assert peak_of(lambda: parse_document(data, ZSTD, "u")) < 1 << 24


def test_the_limit_itself_is_allowed(monkeypatch):
    raw = msgpack.packb(document("u"))
    data = zstandard.ZstdCompressor(write_content_size=False).compress(raw)
    monkeypatch.setattr(metadata, "MAX_METADATA_BYTES", len(raw))
    assert parse_document(data, ZSTD, "u").labels == ()
    monkeypatch.setattr(metadata, "MAX_METADATA_BYTES", len(raw) - 1)
    refuse(data, ZSTD, "too-large")
