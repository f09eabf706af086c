from __future__ import annotations

import json

import pytest

import builders
from kartosql.errors import FormatError, StoreError
from kartosql.formats.kartothek.metadata import DatasetDocument, parse_document
from kartosql.store.keys import PreconditionFailed
from kartosql.write.document import check_writable, encode, read_raw, remove, swap, tombstone, touched, with_marks

JSON, MSGPACK = "d.by-dataset-metadata.json", "d.by-dataset-metadata.msgpack.zstd"
FILES = {"table": ("d/table/a.parquet", "d/table/b.parquet"), "other": ("d/other/a.parquet", None)}


def _document(key: str = JSON, **changes) -> DatasetDocument:
    made = {
        "labels": ("a", "b"),
        "files": FILES,
        "partition_keys": (),
        "indices": {"i": "d/indices/i/1"},
        "metadata": {"ü": [1, None]},
    }
    return DatasetDocument("d", key, **{**made, **changes})


@pytest.mark.parametrize("key", [JSON, MSGPACK])
@pytest.mark.parametrize("files", [FILES, {"table": FILES["table"]}])
def test_a_document_reads_back_as_it_was(key, files):
    document = _document(key, files=files)
    assert parse_document(encode(document), key, "d") == document


def test_a_partition_without_the_only_table_keeps_its_label():
    found = json.loads(encode(_document(files={"table": (None, "d/table/b.parquet")})))
    assert found["partitions"] == {"a": {"files": {}}, "b": {"files": {"table": "d/table/b.parquet"}}}


def test_json_counts_where_both_stand(store):
    swap(store, _document(MSGPACK), None)
    assert read_raw(store, "d").key == MSGPACK
    store.put(JSON, encode(_document(JSON, labels=(), files={})))
    assert read_raw(store, "d").key == JSON
    assert read_raw(store, "other") is None


def test_msgpack_hidden_by_json_counts_as_lost(store):
    head = swap(store, _document(MSGPACK), None)
    store.put(JSON, encode(_document(JSON)))
    with pytest.raises(PreconditionFailed):
        swap(store, touched(head.document), head)


def test_removing_json_does_not_bring_msgpack_to_light(store):
    store.put(MSGPACK, encode(_document(MSGPACK)))
    head = swap(store, _document(JSON), None)
    remove(store, head)
    assert read_raw(store, "d") is None


def test_where_a_store_cannot_delete_safely_the_document_says_that_there_is_no_dataset(store, monkeypatch):
    head = swap(store, _document(), None)

    def refuse(key, expected):
        raise StoreError("no", code="no-conditional-delete")

    monkeypatch.setattr(store, "delete_if", refuse)
    remove(store, head)
    found = read_raw(store, "d")
    assert found.is_absent
    assert found.document.labels == ()


def test_a_stale_head_is_not_replaced(store):
    head = swap(store, _document(), None)
    swap(store, touched(head.document), head)
    with pytest.raises(PreconditionFailed):
        swap(store, touched(head.document), head)
    with pytest.raises(PreconditionFailed):
        remove(store, head)


def test_marks_come_and_go_and_leave_the_rest():
    document = with_marks(_document(), unfinished={"t": ["e"]}, absent=True)
    assert document.metadata == {"ü": [1, None], "kartosql_unfinished": {"t": ["e"]}, "kartosql_absent": True}
    assert with_marks(document, unfinished={}, absent=None) == _document()


def test_a_tombstone_keeps_only_marks():
    found = tombstone(with_marks(_document(), unfinished={"t": ["e"]}))
    assert found.metadata == {"kartosql_absent": True, "kartosql_unfinished": {"t": ["e"]}}
    assert (found.labels, found.files, found.indices) == ((), {}, {})


def test_a_document_without_partitions_cannot_be_changed(store):
    builders.write_dataset(store, "d", {}, partitions=...)
    with pytest.raises(FormatError) as e:
        check_writable(read_raw(store, "d").document)
    assert e.value.code == "implicit-partitions"
