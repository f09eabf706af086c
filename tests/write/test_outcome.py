from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest

from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.store.keys import Version
from kartosql.write.commit import CommitAttempt, Fate
from kartosql.write.document import RECENT, Head, succeed

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def _head(token: str, *commits: str, removes: tuple[str, ...] = (), labels: tuple[str, ...] = ()) -> Head:
    identity = None
    for commit_id in commits:
        removing = commit_id in removes
        identity = succeed(
            identity, commit_id=commit_id, digest="", operation="x", time=NOW, schemas={}, removes=removing
        )
    metadata = {"kartosql_commit": identity.to_dict()} if identity else {}
    document = DatasetDocument("d", "d.by-dataset-metadata.json", labels, {}, (), {}, metadata)
    return Head(document, Version(token))


BEFORE = _head("1", "a")
MANY = [str(n) for n in range(RECENT + 1)]


@pytest.mark.parametrize(
    ("now", "fate"),
    [
        (_head("2", "a", "me"), Fate.LANDED),
        (_head("3", "a", "me", "b"), Fate.LANDED),
        (_head("1", "a"), Fate.OPEN),
        (_head("2", "a", "b"), Fate.LOST),
        (_head("2", "a", *MANY), Fate.LOST),
        (_head("2", "a", *MANY, removes=("1",)), Fate.UNKNOWN),
        (_head("2", "a", *MANY, labels=("mine",)), Fate.LANDED),
        (_head("2", labels=("mine",)), Fate.LANDED),
        (_head("2"), Fate.LOST),
        (None, Fate.UNKNOWN),
    ],
)
def test_what_a_later_head_tells(now, fate):
    assert CommitAttempt(BEFORE, None, False).fate(now, "me", ["mine"]) is fate


def test_without_conditions_an_unanswered_put_may_happen_at_any_time():
    now = _head("2", "a", "b")
    assert CommitAttempt(BEFORE, None, False, False).fate(now, "me", ["mine"]) is Fate.OPEN
    assert CommitAttempt(BEFORE, None, True, False).fate(now, "me", ["mine"]) is Fate.LOST


def test_a_refused_put_is_lost_with_the_dataset():
    assert CommitAttempt(BEFORE, None, True).fate(None, "me", ["mine"]) is Fate.LOST


def test_of_a_commit_without_files_only_the_id_can_tell():
    now = _head("2", "a", *MANY)
    assert CommitAttempt(BEFORE, None, False).fate(now, "me", ()) is Fate.UNKNOWN


def test_the_first_commit_of_a_new_dataset():
    first = CommitAttempt(None, None, False)
    assert first.fate(None, "me", ["mine"]) is Fate.OPEN
    assert first.fate(_head("1", "other"), "me", ["mine"]) is Fate.LOST
    assert first.fate(_head("1", "me", "other"), "me", ["mine"]) is Fate.LANDED


def test_the_version_of_an_attempt_is_that_of_its_head():
    assert CommitAttempt(BEFORE, None, False).version == Version("1")
    assert replace(CommitAttempt(BEFORE, None, False), head=None).version is None
