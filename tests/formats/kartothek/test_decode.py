"""The short way through a document gives what the long way gives, whatever the document holds."""

from __future__ import annotations

import json
from contextlib import contextmanager

import msgpack
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import WRITE_ID, document
from kartosql.errors import FormatError
from kartosql.formats.kartothek import metadata
from kartosql.formats.kartothek.metadata import PlainPartitions, decode_document, parse_document
from kartosql.formats.kartothek.stored_partitions import StoredPartitions

JSON = "u.by-dataset-metadata.json"
ZSTD = "u.by-dataset-metadata.msgpack.zstd"
MANY = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pack(value):
    return zstandard.compress(msgpack.packb(value))


@contextmanager
def the_long_way():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "_plain_json", lambda text: None)
        patch.setattr(metadata, "_plain_msgpack", lambda unpacker, count: None)
        yield


def outcome(data, key):
    try:
        return parse_document(data, key, "u")
    except FormatError as e:
        return e.code, e.message


def same_either_way(data, key):
    found = outcome(data, key)
    with the_long_way():
        assert outcome(data, key) == found
    return found


@pytest.mark.parametrize("key", [JSON, ZSTD])
@pytest.mark.parametrize("table", ["table", "a b", "ü", "a.b+(c)", "{}"])
def test_what_the_originals_write_takes_the_short_way(key, table):
    labels = [f"p={i}/{WRITE_ID}" for i in (2, 1, 10)]
    keys = [f"u/{table}/{label}.parquet" for label in labels]
    made = document(
        "u",
        partitions={label: {"files": {table: k}} for label, k in zip(labels, keys, strict=True)},
        metadata={"é": 'a "partitions": {"', "partitions": 1},
    )
    data = json.dumps(made, ensure_ascii=False).encode() if key == JSON else pack(made)
    short = decode_document(data, key)["partitions"]
    assert isinstance(short, StoredPartitions if key == JSON else PlainPartitions)
    found = same_either_way(data, key)
    assert (found.labels, found.files) == (tuple(labels), {table: tuple(keys)})
    assert found.metadata == made["metadata"]


def test_the_golden_documents_are_the_same_either_way(ktk_store, plateau_store):
    for folder in (ktk_store, plateau_store):
        for path in folder.glob("*.by-dataset-metadata.*"):
            uuid = path.name.partition(".")[0]
            found = parse_document(path.read_bytes(), path.name, uuid)
            with the_long_way():
                assert parse_document(path.read_bytes(), path.name, uuid) == found


texts = st.text(st.sampled_from('ab/=."\\{}:, \n\x00é😀\ud800'), max_size=8)
tables = st.sampled_from(["table", "table", "table", "t", "é", "", "..", 'q"'])
entries = st.builds(
    lambda name, files, more: {"files": files, **more},
    st.none(),
    st.dictionaries(tables, texts.map("u/table/".__add__), min_size=1, max_size=2) | st.just({"table": None}),
    st.sampled_from([{}, {}, {}, {"x": 1}]),
)
documents = st.builds(
    lambda partitions, metadata: document("u", partitions=partitions, metadata=metadata),
    st.dictionaries(texts, entries, max_size=4),
    st.dictionaries(texts, texts | st.just({"partitions": {"a": {"files": {"table": "u/x"}}}}), max_size=2),
)
styles = st.sampled_from(
    [{}, {"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}, {"separators": (", ", " : ")}]
)


@MANY
@given(documents, styles)
def test_odd_documents_are_the_same_either_way(made, style):
    same_either_way(json.dumps(made, **style).encode("utf-8", "surrogatepass"), JSON)
    try:
        data = pack(made)
    except UnicodeEncodeError:
        return
    same_either_way(data, ZSTD)


GOOD = json.dumps(document("u", ["p=1", "p=2", "p=3"], partition_keys=["p"]))
fragments = st.sampled_from(
    [
        '"',
        "\\",
        '"}}, "',
        '"}}}',
        '"partitions": {',
        ", ",
        "}",
        "{",
        '"table": "',
        "\n",
        ": ",
        '": {"files": {"table": "',
    ]
)


@MANY
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), fragments | st.just("")), min_size=1, max_size=3))
def test_damaged_json_is_the_same_either_way(changes):
    text = GOOD
    for where, cut, fragment in changes:
        at = int(where * len(text))
        text = text[:at] + fragment + text[at + cut :]
    same_either_way(text.encode(), JSON)


@MANY
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=3))
def test_damaged_msgpack_is_the_same_either_way(changes):
    raw = bytearray(msgpack.packb(json.loads(GOOD)))
    for where, value in changes:
        raw[int(where * len(raw))] = value
    same_either_way(zstandard.compress(bytes(raw)), ZSTD)


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace('"}}, "p=2', '"}}"p=2', 1).replace('"}}}', '"}}, }', 1),
        GOOD.replace("p=2", "p=1"),
        GOOD.replace('"partitions": {', '"other": {"partitions": {', 1).replace('"}}}', '"}}}}', 1),
        GOOD.replace('"metadata": {', '"metadata": {"x": {"partitions": {"a": {"files": {"table": "u/b"}}}}, ', 1),
        GOOD.replace('{"dataset', '{"partitions": {"a": {"files": {"table": "u/b"}}}, "dataset', 1),
    ],
)
def test_what_only_looks_like_plain_partitions_is_the_same_either_way(text):
    assert text != GOOD
    same_either_way(text.encode(), JSON)


@pytest.mark.parametrize("label", [b"bytes", 7, None, True])
def test_labels_of_msgpack_are_text(label):
    made = document("u", partitions={label: {"files": {"table": "u/table/a.parquet"}}})
    assert same_either_way(pack(made), ZSTD)[0] == "invalid-metadata"


def test_labels_are_valid_unicode():
    made = document("u", partitions={"\ud800": {"files": {"table": "u/table/a.parquet"}}})
    assert same_either_way(json.dumps(made).encode(), JSON)[0] == "invalid-metadata"


@pytest.mark.parametrize("key", [JSON, ZSTD])
def test_a_bound_holds_on_both_ways(key, monkeypatch):
    made = document("u", [f"p={i}" for i in range(100)])
    data = json.dumps(made).encode() if key == JSON else pack(made)
    for limit, code in ((205, None), (202, "too-large")):  # two for each partition, and three or four
        monkeypatch.setattr(metadata, "MAX_CONTAINERS", limit)
        found = same_either_way(data, key)
        assert (found[0] if isinstance(found, tuple) else None) == code
