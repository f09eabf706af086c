from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace

import pytest

from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.store.keys import Version
from kartosql.write import document
from kartosql.write.document import RECENT, Head, Identity, digest, read_identity, succeed, touched_identity

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)
DOCUMENT = DatasetDocument(
    "d", "d.by-dataset-metadata.json", ("a", "b"), {"table": ("d/a", "d/b")}, ("p",), {"i": "d/i"}, {}
)


def _next(before: Identity | None, commit_id: str, **options) -> Identity:
    return succeed(before, commit_id=commit_id, digest="x", operation="append", time=NOW, schemas={}, **options)


def test_an_identity_reads_back_from_json():
    identity = replace(_next(_next(None, "1", anew=True), "2", removes=True), created=("c++e",), transaction="t")
    metadata = json.loads(json.dumps({"kartosql_commit": identity.to_dict()}))
    assert read_identity(metadata) == identity
    assert identity.parent == "1"
    assert identity.origin == "1"
    assert (identity.sequence, identity.removal, identity.recent) == (2, 2, ("1", "2"))


@pytest.mark.parametrize(
    "damage",
    [
        {"sequence": "1"},
        {"sequence": True},
        {"recent": None},
        {"recent": [1]},
        {"id": None},
        {"origin": 3},
        {"created": {}},
        {"removal": 1.5},
    ],
)
def test_a_damaged_identity_is_none(damage):
    good = _next(None, "1").to_dict()
    assert read_identity({"kartosql_commit": good}) is not None
    assert read_identity({"kartosql_commit": {**good, **damage}}) is None
    assert read_identity({"kartosql_commit": []}) is None
    assert read_identity({}) is None


def test_the_last_ids_are_kept():
    identity = None
    for n in range(RECENT + 5):
        identity = _next(identity, str(n))
    assert identity is not None
    assert identity.recent == tuple(str(n) for n in range(5, RECENT + 5))


def test_a_write_of_marks_raises_the_sequence_and_keeps_the_rest():
    before = _next(None, "1")
    document = replace(DOCUMENT, metadata={"kartosql_commit": before.to_dict()})
    assert touched_identity(document) == replace(before, sequence=2)
    first = touched_identity(DOCUMENT)
    assert (first.sequence, first.recent, first.digest) == (1, (), digest(DOCUMENT))
    assert read_identity({"kartosql_commit": first.to_dict()}) == replace(first, schemas={})


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": ("b", "a"), "files": {"table": ("d/b", "d/a")}},
        {"files": {"table": ("d/a", "d/c")}},
        {"files": {"other": ("d/a", "d/b")}},
        {"files": {"table": ("d/a", None)}},
        {"labels": ("a", "c")},
        {"indices": {}},
        {"indices": {"i": "d/j"}},
        {"partition_keys": ()},
    ],
)
def test_the_digest_tells_any_other_content(changes):
    assert digest(replace(DOCUMENT, **changes)) != digest(DOCUMENT)


def test_the_digest_does_not_depend_on_what_the_originals_shuffle():
    one = replace(DOCUMENT, indices={"i": "d/i", "j": "d/j"}, metadata={"a": 1})
    other = replace(DOCUMENT, indices={"j": "d/j", "i": "d/i"})
    assert digest(one) == digest(other)


@pytest.mark.parametrize("make", [document._digest_of_text, document._digest_of_columns, document._older_digest])
def test_digests_of_all_forms_tell_what_another_program_changed(make):
    identity = replace(_next(None, "1"), digest=make(DOCUMENT))
    metadata = {"kartosql_commit": identity.to_dict()}
    assert not Head(replace(DOCUMENT, metadata=metadata), Version("1")).is_foreign
    for change in (
        {"labels": ("b", "a")},
        {"labels": ("a", "c")},
        {"files": {"table": ("d/a", "d/c")}},
        {"files": {"other": ("d/a", "d/b")}},
        {"indices": {}},
        {"partition_keys": None},
    ):
        assert Head(replace(DOCUMENT, metadata=metadata, **change), Version("1")).is_foreign
