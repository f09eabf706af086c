"""The original's ``query_cube``, with the same arguments."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.conditions import C
from kartosql.errors import KartosqlError, UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube

CUBE = Cube("c", ["x", "y"], ["p"], index_columns=["i", "j", "d"])


@pytest.fixture
def connection(store: Store) -> Any:
    cells = [(x, y) for y in ("b", "a") for x in (2, 1, 0)]
    seed = pa.table(
        {
            "x": [x for x, _ in cells],
            "y": [y for _, y in cells],
            "p": [x % 2 for x, _ in cells],
            "i": [x * 10 for x, _ in cells],
            "d": [dt.date(2020, 1, 1 + x) for x, _ in cells],
            "v": [None if x == 0 else f"{y}{x}" for x, y in cells],
        }
    )
    e = pa.table({"x": [0, 1], "p": [0, 1], "j": [5, 6], "w": [1.5, None]})
    build_cube(store, CUBE, {"seed": seed, "e": e})
    return kartosql.connect(store.url)


def _rows(result: Any) -> list[tuple[Any, ...]]:
    return list(result.rows())


def test_columns_are_sorted_by_name_and_rows_by_the_dimensions(connection):
    result = connection.query_cube(CUBE)
    assert result.columns == ["d", "i", "j", "p", "v", "w", "x", "y"]
    assert [(r[6], r[7]) for r in _rows(result)] == [(x, y) for x in (0, 1, 2) for y in ("a", "b")]
    result = connection.query_cube("c", dimension_columns=["y", "x"], payload_columns=["v"])
    assert result.columns == ["p", "v", "x", "y"]
    assert [(r[3], r[2]) for r in _rows(result)] == [(y, x) for y in ("a", "b") for x in (0, 1, 2)]


def test_text_is_sorted_by_code_point_whatever_the_collation(connection):
    cube = Cube("t", ["x"], ["p"])
    connection.build_cube(cube, pa.table({"x": ["b", "A", "a", "Z", "é"], "p": [0] * 5}))
    connection.sql("SET default_collation = nocase")
    assert [x for _, x in _rows(connection.query_cube(cube))] == ["A", "Z", "a", "b", "é"]


@pytest.mark.parametrize(
    ("conditions", "rows"),
    [
        (C("i") == 10, [(1, "a"), (1, "b")]),
        (("i", ">", 10), [(2, "a"), (2, "b")]),
        ("i >= 10 & y == b", [(1, "b"), (2, "b")]),
        ([C("x").isin([0, 2]), ("y", "==", "a")], [(0, "a"), (2, "a")]),
        (C("x").in_interval(1, 2), [(1, "a"), (1, "b")]),
        (C("p") == 1, [(1, "a"), (1, "b")]),
        (C("j") == 5, [(0, "a"), (0, "b")]),
        (C("j") != 5, [(1, "a"), (1, "b")]),
        (C("w") > 1.0, [(0, "a"), (0, "b")]),
        (C("v") != "a1", [(1, "b"), (2, "a"), (2, "b")]),
        (C("x").isin([]), []),
        (C("d") == dt.date(2020, 1, 2), [(1, "a"), (1, "b")]),
        (C("d") >= "2020-01-03", [(2, "a"), (2, "b")]),
        (C("x").in_interval(), [(x, y) for x in (0, 1, 2) for y in ("a", "b")]),
    ],
)
def test_conditions(connection, conditions, rows):
    result = connection.query_cube(CUBE, payload_columns=[], conditions=conditions)
    assert [(x, y) for _, x, y in _rows(result)] == rows


def test_a_condition_prunes_like_sql(connection):
    report = connection.query_cube(CUBE, payload_columns="v", conditions=C("i") == 10).report.to_dict()
    (scan,) = report["scans"]
    assert scan["table"] == "c"
    assert [(p["dataset"], p["files_selected"]) for p in scan["datasets"]] == [("seed", 1)]
    assert scan["eliminated"] == ["e"]


def test_fewer_dimensions_give_each_combination_once(connection):
    assert _rows(connection.query_cube(CUBE, dimension_columns="x", payload_columns=[])) == [(0, 0), (1, 1), (0, 2)]
    assert _rows(connection.query_cube(CUBE, dimension_columns=["x"], payload_columns=["w"])) == [
        (0, 1.5, 0),
        (1, None, 1),
        (0, None, 2),
    ]
    result = connection.query_cube(CUBE, dimension_columns="y", payload_columns=[], conditions=C("x") == 1)
    assert _rows(result) == [(1, "a"), (1, "b")]


def test_partition_by_gives_one_result_per_value(connection):
    results = connection.query_cube(CUBE, partition_by="i", payload_columns=[])
    assert [_rows(r) for r in results] == [
        [(i, x % 2, x, y) for y in ("a", "b")] for x, i in ((0, 0), (1, 10), (2, 20))
    ]
    results = connection.query_cube(CUBE, partition_by=["p", "i"], payload_columns=[])
    assert [_rows(r)[0][:2] for r in results] == [(0, 0), (20, 0), (10, 1)]
    assert connection.query_cube(CUBE, partition_by="i", conditions=C("x") == 99) == []


def test_partition_by_leaves_out_rows_without_a_value(connection):
    results = connection.query_cube(CUBE, partition_by="j", payload_columns=[])
    assert [[r[2] for r in _rows(result)] for result in results] == [[0, 0], [1, 1]]


def test_datasets_may_be_chosen(connection):
    assert connection.query_cube(CUBE, datasets="seed").columns == ["d", "i", "p", "v", "x", "y"]
    assert connection.query_cube(CUBE, datasets={"seed", "e"}).columns == connection.query_cube(CUBE).columns


def test_names_may_be_bytes(connection):
    result = connection.query_cube(CUBE, dimension_columns=[b"x", b"y"], payload_columns=b"v")
    assert result.columns == ["p", "v", "x", "y"]


def test_an_overwritten_row_is_never_brought_back(connection):
    row = {"x": [0], "y": ["a"], "p": [0], "i": [77], "d": [dt.date(2021, 1, 1)], "v": ["new"]}
    builders.append(connection.store, "c++seed", pa.table(row))
    assert _rows(connection.query_cube(CUBE, payload_columns="v", conditions=C("i") == 0)) == [(0, None, 0, "b")]
    assert _rows(connection.query_cube(CUBE, payload_columns="v", conditions=C("i") == 77)) == [(0, "new", 0, "a")]
    groups = connection.query_cube(CUBE, partition_by="i", payload_columns=[])
    assert [len(g) for g in groups] == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"dimension_columns": []}, "invalid-argument"),
        ({"dimension_columns": ["x", "nope"]}, "unknown-column"),
        ({"dimension_columns": ["v"]}, "unknown-column"),
        ({"dimension_columns": 5}, None),
        ({"payload_columns": ["nope"]}, "unknown-column"),
        ({"payload_columns": [5]}, "invalid-argument"),
        ({"partition_by": "nope"}, "unknown-column"),
        ({"partition_by": "v"}, "not-indexed"),
        ({"partition_by": "d"}, "not-indexed"),
        ({"datasets": ["seed", "nope"]}, "unknown-dataset"),
        ({"datasets": ["e"]}, "no-seed"),
        ({"conditions": C("nope") == 1}, "unknown-column"),
        ({"conditions": C("i") == "1"}, "invalid-condition"),
        ({"conditions": C("w") == 1}, "invalid-condition"),
        ({"conditions": "i == x"}, "invalid-condition"),
        ({"conditions": 5}, "invalid-condition"),
        ({"dimension_columns": "x"}, "cannot-project"),
        ({"dimension_columns": "y", "payload_columns": ["w"]}, "cannot-project"),
        ({"dimension_columns": "x", "payload_columns": [], "conditions": C("v") == "a1"}, "cannot-project"),
    ],
)
def test_what_the_original_refuses_is_refused(connection, arguments, code):
    with pytest.raises(UsageError) as e:
        connection.query_cube(CUBE, **arguments)
    assert code is None or e.value.code == code


@pytest.mark.parametrize("cube", ["nope", "c++seed", Cube("nope", ["x"], ["p"]), Cube("c", ["zz"], ["p"]), 5, None])
def test_a_cube_that_is_not_there(connection, cube):
    with pytest.raises(KartosqlError):
        connection.query_cube(cube)


def test_types_are_those_of_the_schema(connection):
    schema = connection.query_cube(CUBE).schema
    assert (schema.field("j").type, schema.field("d").type) == (pa.int64(), pa.date32())
