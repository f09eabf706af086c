"""Partitions that are copied as bytes give what encoding all of them would, whatever the document holds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import document
from kartosql.errors import FormatError
from kartosql.formats.kartothek import metadata, stored_partitions
from kartosql.formats.kartothek.metadata import DatasetDocument, parse_document, partitions_digest
from kartosql.formats.kartothek.stored_partitions import StoredPartitions
from kartosql.store import Store
from kartosql.user_cache import UserCache
from kartosql.write import document as write_document
from kartosql.write.change import Change, apply
from kartosql.write.document import encode, read_raw, swap

KEY = "u.by-dataset-metadata.json"
MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
texts = st.text(st.sampled_from('ab/=."\\{}:, é\x01\x02'), max_size=6)
tables = st.sampled_from(["table", "table", "table", "t", "é", 'q"', "}}, "])
partitions = st.dictionaries(
    texts, st.dictionaries(tables, texts.map("u/table/".__add__), min_size=1, max_size=2), max_size=4
)


def parsed(found, **more):
    made = document("u", partitions={label: {"files": files} for label, files in found.items()}, **more)
    return parse_document(json.dumps(made, ensure_ascii=False).encode(), KEY, "u")


def plain(made: DatasetDocument) -> DatasetDocument:
    """Return a document that knows no bytes."""
    labels = None if made.labels is None else tuple(made.labels)
    return replace(made, labels=labels, files={table: tuple(keys) for table, keys in made.files.items()})


@pytest.fixture(params=[(1 << 19, 32 << 20), (1, 0)], ids=["kept", "read again"])
def sizes(request, monkeypatch):
    monkeypatch.setattr(stored_partitions, "_WINDOW", request.param[0])
    monkeypatch.setattr(stored_partitions, "KEPT_BYTES", request.param[1])


@MANY
@given(st.data(), partitions, st.lists(partitions, min_size=1, max_size=3))
def test_partitions_that_go_and_those_in_their_place_are_cut_as_encoding_does_it(sizes, data, found, changes):
    try:
        made = parsed(found)
    except FormatError:
        return
    for added in changes:
        labels = list(made.labels)
        removed = data.draw(st.frozensets(st.sampled_from(labels), max_size=3) if labels else st.just(frozenset()))
        places = st.sampled_from([*labels, "nowhere"])
        positions = data.draw(st.dictionaries(st.sampled_from(sorted(added)), places) if added else st.just({}))
        change = Change("u", "test", added={k: v for k, v in added.items() if k not in labels}, positions=positions)
        expected = encode(apply(plain(made), change, removed, "now"))
        after = apply(made, change, removed, "now")
        store = Store("memory://stored-partitions")
        store.delete([KEY])
        made = swap(store, after, None).document
        written = store.read(KEY)
        assert json.loads(written) == json.loads(expected)
        assert written == expected or not written.isascii()
        assert not written.isascii() or partitions_digest(made) == partitions_digest(plain(made))


def test_a_partition_is_cut_out_without_the_others_being_encoded(monkeypatch):
    found = parsed(
        {f"p={n}/x": {"files": f"u/files/p={n}/x.parquet"} for n in range(40)} | {"files": {"files": "u/files/f"}}
    )
    change = Change("u", "t", added={"new": {"files": "u/files/new"}}, positions={"new": "p=7/x"})
    after = apply(found, change, frozenset({"p=7/x", "files", "p=0/x"}), "now")
    assert after.stored is not None
    assert list(after.labels) == [*(f"p={n}/x" for n in range(1, 7)), "new", *(f"p={n}/x" for n in range(8, 40))]
    monkeypatch.setattr("kartosql.write.document.partitions_of", None)
    store = Store("memory://stored-partitions")
    store.delete([KEY])
    swap(store, after, None)
    read = read_raw(store, "u").document
    assert (list(read.labels), list(read.files["files"])) == (list(after.labels), list(after.files["files"]))
    assert apply(found, change, frozenset(found.labels) - {"p=7/x"}, "now").stored is None  # too many


@MANY
@given(partitions, st.lists(partitions, min_size=1, max_size=3))
def test_added_partitions_stand_where_encoding_puts_them(sizes, found, changes):
    try:
        made = parsed(found)
    except FormatError:
        return
    for added in changes:
        expected = encode(apply(plain(made), Change("u", "test", added=added), frozenset(), "now"))
        made = apply(made, Change("u", "test", added=added), frozenset(), "now")
        store = Store("memory://stored-partitions")
        store.delete([KEY])
        now = swap(store, made, None)
        written = store.read(KEY)
        # Encoding escapes what is not ASCII; what is copied stays as another program wrote it.
        assert json.loads(written) == json.loads(expected)
        assert written == expected or not written.isascii()
        if now.document.stored is not None:
            assert now.document == parse_document(store.read(KEY), KEY, "u")
        assert not written.isascii() or partitions_digest(now.document) == partitions_digest(plain(now.document))
        made = now.document


GOOD = json.dumps(document("u", ["p=1", "p=2", "p=3"], partition_keys=["p"]))
fragments = st.sampled_from(
    ['"', "\\", '"}}, "', '"}}}', ", ", "}", '"table": "', "\x01", "\x02", '": {"files": {"table": "', "\n", ""]
)


@MANY
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), fragments), min_size=1, max_size=3))
def test_damaged_documents_are_read_as_a_whole(sizes, changes):
    text = GOOD
    for where, cut, fragment in changes:
        at = int(where * len(text))
        text = text[:at] + fragment + text[at + cut :]

    def outcome():
        try:
            return parse_document(text.encode(), KEY, "u")
        except FormatError as e:
            return e.code, e.message

    found = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "_plain_json", lambda data: None)
        assert outcome() == found
    if isinstance(found, DatasetDocument) and found.stored is not None:
        assert b"".join(found.stored.pieces) in text.encode()


@pytest.mark.parametrize(
    "added",
    [
        {"p=1/x": {"table": "u/table/p=1/x.parquet"}},
        {"p=9/y": {"other": "u/other/p=9/y.parquet"}},
        {"p=9/y": {}},
        {'p="/y': {"table": "u/table/y.parquet"}},
        {"p=é/y": {"table": "u/table/y.parquet"}},
        {"p=9/y": {"table": "u/table/\\y.parquet"}},
    ],
    ids=["known", "other table", "no file", "quote", "no ASCII", "backslash"],
)
def test_what_cannot_stand_there_as_it_is_is_not_added(sizes, added):
    found = parsed({"p=1/x": {"table": "u/table/p=1/x.parquet"}}).stored
    assert found.with_more(added) is None
    assert found.with_more({}) is found


def test_many_labels_are_looked_up_together():
    found = parsed({"p=1/x": {"table": "u/table/p=1/x.parquet"}}).stored
    added = {f"p={n}/x": {"table": f"u/table/p={n}/x.parquet"} for n in range(40)}
    assert found.with_more(added) is None
    del added["p=1/x"]
    more = found.with_more(added)
    assert (more.count, more.with_more(added)) == (40, None)


def test_a_long_series_of_additions_stays_in_two_pieces():
    found = parsed({"p=0/x": {"table": "u/table/p=0/x.parquet"}}).stored
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_partitions, "_WINDOW", 200)
        for n in range(1, 50):
            found = found.with_more({f"p={n}/x": {"table": f"u/table/p={n}/x.parquet"}})
            assert len(found.pieces) <= 2
        vars(found).pop("columns", None)
        assert found.columns[0] == tuple(f"p={n}/x" for n in range(50))


def test_labels_that_occur_twice_are_refused_either_way(sizes):
    entry = '"p=1/x": {"files": {"table": "u/table/x.parquet"}}'
    data = f"{entry}, {entry}".encode()
    with pytest.raises(ValueError, match="twice"):
        StoredPartitions.read("table", data, 0, len(data))


def test_bytes_of_very_many_partitions_are_given_up_for_their_texts(monkeypatch):
    monkeypatch.setattr(metadata, "KEPT_BYTES", 10)
    made = parsed({"p=1/x": {"table": "u/table/p=1/x.parquet"}})
    before = made.version
    assert made.stored is not None
    made.release()
    assert (made.stored, made.content.pieces, made.version) == (None, None, before)
    assert (made.labels, made.files) == (("p=1/x",), {"table": ("u/table/p=1/x.parquet",)})


def test_a_file_that_still_holds_what_is_known_is_not_read_again(tmp_path):
    store = Store(str(tmp_path))
    head = swap(store, parsed({"p=1/x": {"table": "u/table/p=1/x.parquet"}}), None)
    assert read_raw(store, "u").document is head.document
    data = (tmp_path / KEY).read_bytes()
    (tmp_path / KEY).write_bytes(data.replace(b"p=1", b"p=2"))
    found = read_raw(store, "u")
    assert found.version != head.version
    assert tuple(found.document.labels) == ("p=2/x",)
    (tmp_path / KEY).write_bytes(data + b" ")
    assert read_raw(store, "u").version not in (head.version, found.version)


@pytest.mark.parametrize("at", [0, 30, 59])
def test_a_key_outside_of_the_dataset_is_refused_wherever_it_stands(sizes, at):
    made = json.loads(GOOD)
    files = {f"p={n}/x": {"files": {"table": f"u/table/p={n}/x.parquet"}} for n in range(60)}
    files[f"p={at}/x"]["files"]["table"] = f"u/table/p={at}/../../../x.parquet"
    with pytest.raises(FormatError) as e:
        parse_document(json.dumps(made | {"partitions": files}).encode(), KEY, "u")
    assert e.value.code == "unsafe-key"


@pytest.fixture
def proofs(tmp_path, monkeypatch):
    """Return stores of one folder, each as a process of its own has it, in which small documents are proven as well."""
    monkeypatch.setattr(write_document, "_PROVEN_BYTES", 0)
    (tmp_path / "store").mkdir()

    def begin():
        stored_partitions._proven.clear()
        metadata._newest.clear()
        store = Store(str(tmp_path / "store"))
        store.proofs = UserCache(str(tmp_path / "cache"))
        return store

    yield begin
    stored_partitions._proven.clear()


def written(store, labels):
    """Let this user write a document, and return its head."""
    made = parsed({label: {"table": f"u/table/{label}"} for label in labels})
    before = read_raw(store, "u")
    return swap(
        store, apply(made, Change("u", "t", added={"new": {"table": "u/table/new"}}), frozenset(), "now"), before
    )


def no_look(*given):
    raise AssertionError("each of the partitions was looked at")


def test_what_the_last_process_knew_of_partitions_is_not_found_out_again(proofs, monkeypatch):
    known = written(proofs(), ["a", "b"]).document
    store = proofs()
    with monkeypatch.context() as patch:
        patch.setattr(stored_partitions, "_windows", no_look)
        head = read_raw(store, "u")
        assert (head.document.stored.count, head.document.stored.safe_below) == (3, "u/")
        added = apply(head.document, Change("u", "t", added={"c": {"table": "u/table/c"}}), frozenset(), "now")
        swap(store, added, head)
        assert len(read_raw(proofs(), "u").document.labels) == 4
    assert head.document == known
    assert [*read_raw(store, "u").document.labels] == ["a", "b", "new", "c"]


def test_what_is_known_of_other_partitions_is_not_taken_for_theirs(proofs, monkeypatch):
    written(proofs(), ["a", "b"])
    store = proofs()
    text = store.read(KEY)
    store.put(KEY, text.replace(b"u/table/a", b"u/../../a"))
    with pytest.raises(FormatError) as e:
        read_raw(store, "u")
    assert e.value.code == "unsafe-key"
    store.put(KEY, text.replace(b'"b": {"files"', b'"a": {"files"'))
    with pytest.raises(FormatError) as e:
        read_raw(store, "u")
    assert "occurs twice" in e.value.message
    store.put(KEY, text)
    monkeypatch.setattr(stored_partitions, "_windows", no_look)
    assert len(read_raw(store, "u").document.labels) == 3


@pytest.mark.parametrize(
    "found", [b"", b"{", b"[]", b"[1, 2, 3]", b'["table", "x", "y", "many", 7]', b'[["t"], 1, 2, 3, 4]', b"\xff"]
)
def test_a_note_that_is_damaged_is_none(proofs, found):
    store = proofs()
    known = written(store, ["a"]).document
    store.proofs.put("partitions", [store.address[0], KEY], [found])
    assert read_raw(proofs(), "u").document == known


@pytest.mark.parametrize("labels", [["a"], ["a", "b", "c"], []])
def test_the_digest_of_partitions_does_not_tell_where_a_dataset_lies(labels):
    found = parsed({label: {"table": f"u/table/{label}"} for label in labels})
    keys = tuple(f"@k/u/table/{label}" for label in labels)
    away = replace(plain(found), uuid="@k/u", files={"table": keys} if labels else {})
    assert partitions_digest(away) == partitions_digest(found) == partitions_digest(plain(found))
    other = replace(away, files={"table": ("@k/u/other/a", *keys[1:])})
    assert not labels or partitions_digest(other) != partitions_digest(found)
