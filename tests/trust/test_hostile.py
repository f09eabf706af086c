"""Damaged files of each kind; ``python -m tests.trust hostile`` damages more of them."""

from __future__ import annotations

from random import Random

import pytest

from trust import hostile
from trust.hostile import Hostile, Untyped


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Hostile(str(tmp_path_factory.mktemp("hostile")))


def test_damaged_files_are_refused_or_told_by_check(made):
    for number in range(40):
        made.check(number)
    assert made.counts["refused"] > 10


def test_every_kind_of_file_is_damaged(made):
    assert {"d", "m", "c", "delta", "iceberg", "odf"} == set(made.right)
    kinds = {hostile._kind(key) for key in made.files}
    for kind in (
        "d json",
        "d indices",
        "d history",
        "d skipping",
        "delta _delta_log",
        "iceberg metadata avro",
        "odf blocks",
    ):
        assert any(kind in found.replace("  ", " ") for found in kinds), kind


def test_other_rows_of_which_nothing_tells_are_noticed(made, monkeypatch):
    monkeypatch.setattr(hostile, "findings", lambda *_: [])
    monkeypatch.setattr(hostile, "_may_say_so", lambda *_: False)
    with pytest.raises(Untyped, match="CHECK FULL tells nothing"):
        list(map(made.check, range(400)))


def test_errors_of_others_are_noticed(made, monkeypatch):
    def failing(*_):
        raise TypeError

    monkeypatch.setattr(hostile.kartosql.Connection, "attach", failing)
    with pytest.raises(Untyped, match="TypeError"):
        list(map(made.check, range(20)))


def test_values_of_json_are_replaced():
    lines = b'{"add": {"path": "a", "stats": "{\\"n\\": 1}"}}\n{"remove": {"path": "b"}}'
    found = {hostile.restructured(lines, Random(n), [b"x"]) for n in range(50)}
    assert len(found) > 30
    assert all(found)
