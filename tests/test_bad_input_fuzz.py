"""Bytes flipped at random and random statements: nothing but our own errors comes out of ``con.sql``."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import builders
import kartosql
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube

CUBE = Cube("c", ["x"], ["p"], index_columns=["i"])
SEED = {"x": [0, 1, 2, 3], "p": [0, 0, 1, 1], "i": [5, 6, 7, 8], "v": [1.5, 2.5, 3.5, 4.5], "s": ["a", "b", "c", "d"]}
E = {"x": [0, 2], "p": [0, 1], "w": ["A", "B"]}
BY_INDEX = "SELECT x FROM c WHERE i = 7"


def _data(store: Store) -> str:
    labels = builders.read_document(store, "c++seed")["partitions"]
    return str(next(e["files"]["table"] for e in labels.values() if "p=1" in e["files"]["table"]))


def _index(store: Store) -> str:
    return str(builders.read_document(store, "c++seed")["indices"]["i"])


QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
flips = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=6)


def _flip(data: bytes, edits: list[tuple[float, int]]) -> bytes:
    damaged = bytearray(data)
    for place, mask in edits:
        damaged[int(place * len(damaged))] ^= mask
    return bytes(damaged)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(str(tmp_path_factory.mktemp("fuzz")))
    build_cube(store, CUBE, {"seed": pa.table(SEED), "e": pa.table(E)})
    return store


def _survives(store: Store, key: str, damaged: bytes, sql: str) -> None:
    original = store.read(key)
    store.put(key, damaged)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KartosqlWarning)
            kartosql.connect(store.root).sql(sql).arrow()
    except KartosqlError as e:
        json.dumps(e.to_dict())
    finally:
        store.put(key, original)


@QUICK
@given(flips)
def test_no_damage_to_a_data_file_lets_a_foreign_error_out(clean, edits):
    key = _data(clean)
    _survives(clean, key, _flip(clean.read(key), edits), "SELECT * FROM c WHERE i > 5")


@QUICK
@given(flips)
def test_no_damage_to_an_index_file_lets_a_foreign_error_out(clean, edits):
    key = _index(clean)
    _survives(clean, key, _flip(clean.read(key), edits), BY_INDEX)


@QUICK
@given(flips, st.sampled_from(["c++seed.by-dataset-metadata.json", "c++e/table/_common_metadata"]))
def test_no_damage_to_metadata_lets_a_foreign_error_out(clean, edits, key):
    _survives(clean, key, _flip(clean.read(key), edits), "SELECT * FROM c WHERE i > 5")


WORDS = st.sampled_from(
    [
        "SELECT",
        "FROM",
        "c",
        "c.e",
        "WHERE",
        "x",
        "p",
        "i",
        "=",
        "(",
        ")",
        ",",
        "*",
        "'a'",
        "1",
        "NULL",
        "AND",
        "OR",
        "NOT",
        "IN",
        "JOIN",
        "LEFT",
        "USING",
        "ON",
        "GROUP BY",
        "ORDER BY",
        "WITH",
        "AS",
        "UNION",
        ";",
        "?",
        "$1",
        "::",
        ".",
        '"x"',
        "--",
        "/*",
        "SHOW",
        "DESCRIBE",
        "EXPLAIN",
        "SET",
        "PIVOT",
        "UNNEST",
        "LATERAL",
        "lambda",
        "[",
        "]",
        "{",
        "}",
        "\n",
        "é",
        "'",
    ]
)


@settings(QUICK, max_examples=300)
@given(st.one_of(st.lists(WORDS, max_size=15).map(" ".join), st.text(max_size=30)))
def test_no_text_lets_a_foreign_error_out(clean, text):
    try:
        kartosql.connect(clean.root).sql(text).arrow()
    except KartosqlError as e:
        json.dumps(e.to_dict())


def test_values_of_any_kind_as_parameters_are_answered_or_refused(clean):
    values: list[Any] = [
        object(),
        {1: 2},
        {"a"},
        [1, "a"],
        2**200,
        "a\0b",
        b"\xff",
        float("nan"),
        complex(1),
        "\ud800",
        type,
    ]
    for value in values:
        try:
            kartosql.connect(clean.root).sql("SELECT ? FROM c WHERE i = 7", [value]).arrow()
        except KartosqlError as e:
            json.dumps(e.to_dict())
