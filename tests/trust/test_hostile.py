"""Damaged files of each kind; ``python -m tests.trust hostile`` damages more of them."""

from __future__ import annotations

import json
import sys
from random import Random

import pytest

from trust import fuzz, hostile
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


def test_decoders_refuse_damaged_bytes_with_typed_errors():
    begin, decoders = fuzz.seeds(), fuzz._decoders()
    assert {*begin} == {*decoders} == {*fuzz.NAMES}
    for name in fuzz.NAMES:
        assert begin[name], name
        for data in (*begin[name][:3], *fuzz.blindly(name, begin[name], 25, 0)):
            fuzz.decode(name, data, decoders)
    assert all(fuzz.decode(name, begin[name][0], decoders) for name in ("document", "delta log", "odf block", "sql"))


def test_an_untyped_error_of_a_decoder_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fuzz, "_decoders", lambda: {"document": json.loads})
    monkeypatch.setitem(sys.modules, "atheris", None)
    (tmp_path / "one").write_bytes(b"{}")
    fuzz.fuzz_here("document", 60, 0, 0, str(tmp_path))
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("untyped: document: JSONDecodeError")
    assert told[-1] == "blind cases: 60"
    assert list((tmp_path.parent / f"{tmp_path.name}.failures").iterdir())
