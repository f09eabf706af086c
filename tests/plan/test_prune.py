"""Which datasets of a cube are read, how they join, and how they leave out each other's files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
import kartosql.query
from kartosql.formats.kartothek.cube import Cube
from kartosql.plan.prune import prune
from kartosql.store import Store
from written import build_cube

CUBE = Cube("c", ["x", "y"], ["p"], index_columns=["i1", "j1"])


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    """A cube with p = 0..3; ``e`` has p = 0, 1 and 9, ``g`` its own key q and no p, ``h`` both."""
    store = Store(f"memory://{uuid.uuid4().hex}")
    cells = [(p, p * 10 + n, n) for p in range(4) for n in range(3)]
    seed = {"p": [p for p, *_ in cells], "x": [x for _, x, _ in cells], "y": [f"y{n}" for *_, n in cells]}
    e = {"p": [0, 0, 1, 9], "x": [0, 1, 10, 90], "j1": [5, 6, 7, 8], "w": [None, "b", "c", "d"]}
    g = {"y": ["y0", "y1", "y2", "zz"], "q": ["u", "u", "w", "w"], "k": [1, 2, 3, 4]}
    h = {"x": [0, 10, 20], "p": [0, 1, 2], "r": [1, 1, 2], "m": [1.5, 2.5, 3.5]}
    data = {"seed": seed | {"i1": [x for _, x, _ in cells]}, "e": e, "g": g, "h": h}
    build_cube(store, CUBE, {n: pa.table(d) for n, d in data.items()}, partition_on={"g": ["q"], "h": ["p", "r"]})
    with kartosql.connect(store.url) as made:
        yield made


@pytest.mark.parametrize(
    ("sql", "parts", "eliminated"),
    [
        ("SELECT x FROM c", {"seed": ("seed", 4)}, ["e", "g", "h"]),
        ("SELECT count(*) FROM c", {"seed": ("seed", 4)}, ["e", "g", "h"]),  # row counts stand in the footers
        ("SELECT x, p, y FROM c WHERE p = 1", {"seed": ("seed", 1)}, ["e", "g", "h"]),
        ("SELECT w FROM c", {"seed": ("seed", 4), "e": ("left", 2)}, ["g", "h"]),
        ("SELECT w FROM c WHERE p = 1", {"seed": ("seed", 1), "e": ("left", 1)}, ["g", "h"]),
        ("SELECT w FROM c WHERE p = 3", {"seed": ("seed", 1), "e": ("left", 0)}, ["g", "h"]),
        ("SELECT w FROM c WHERE p = 9", {"seed": ("seed", 0), "e": ("left", 0)}, ["g", "h"]),
        # a condition that drops rows without partner makes a dataset restrictive
        ("SELECT x FROM c WHERE j1 = 7", {"seed": ("seed", 1), "e": ("inner", 1)}, ["g", "h"]),
        ("SELECT x FROM c WHERE j1 > 0", {"seed": ("seed", 2), "e": ("inner", 2)}, ["g", "h"]),
        ("SELECT x FROM c WHERE j1 = 8", {"seed": ("seed", 0), "e": ("inner", 0)}, ["g", "h"]),
        ("SELECT x FROM c WHERE w = 'b'", {"seed": ("seed", 2), "e": ("inner", 2)}, ["g", "h"]),
        ("SELECT x FROM c WHERE w IS NOT NULL", {"seed": ("seed", 2), "e": ("inner", 2)}, ["g", "h"]),
        ("SELECT x FROM c WHERE w <> 'b'", {"seed": ("seed", 2), "e": ("inner", 2)}, ["g", "h"]),
        # and others do not
        ("SELECT x FROM c WHERE w IS NULL", {"seed": ("seed", 4), "e": ("left", 2)}, ["g", "h"]),
        ("SELECT x FROM c WHERE coalesce(j1, 7) = 7", {"seed": ("seed", 4), "e": ("left", 2)}, ["g", "h"]),
        ("SELECT x FROM c WHERE j1 = 7 OR x = 0", {"seed": ("seed", 4), "e": ("left", 2)}, ["g", "h"]),
        ("SELECT x FROM c WHERE j1 = 7 OR k = 1", {"seed": ("seed", 4), "e": ("left", 2), "g": ("left", 2)}, ["h"]),
        ("SELECT x, j1 = 7 FROM c", {"seed": ("seed", 4), "e": ("left", 2)}, ["g", "h"]),
        # the seed prunes the others where they share partition columns
        ("SELECT w FROM c WHERE i1 = 10", {"seed": ("seed", 1), "e": ("left", 1)}, ["g", "h"]),
        ("SELECT w, m FROM c WHERE i1 IN (0, 21)", {"seed": ("seed", 2), "e": ("left", 1), "h": ("left", 2)}, ["g"]),
        ("SELECT w, m FROM c WHERE j1 = 7", {"seed": ("seed", 1), "e": ("inner", 1), "h": ("left", 1)}, ["g"]),
        ("SELECT k FROM c WHERE i1 = 10", {"seed": ("seed", 1), "g": ("left", 2)}, ["e", "h"]),
        # partition keys of an enrichment that are no cube columns are payload
        ("SELECT q FROM c", {"seed": ("seed", 4), "g": ("left", 2)}, ["e", "h"]),
        ("SELECT x FROM c WHERE q = 'u'", {"seed": ("seed", 4), "g": ("inner", 1)}, ["e", "h"]),
        ("SELECT x FROM c WHERE q IS NULL", {"seed": ("seed", 4), "g": ("left", 2)}, ["e", "h"]),
        ("SELECT x FROM c WHERE q = 'u' OR p = 1", {"seed": ("seed", 4), "g": ("left", 2)}, ["e", "h"]),
        ("SELECT x FROM c WHERE r = 2", {"seed": ("seed", 1), "h": ("inner", 1)}, ["e", "g"]),
        ("SELECT x FROM c WHERE r = 1 AND j1 = 7", {"seed": ("seed", 1), "e": ("inner", 1), "h": ("inner", 1)}, ["g"]),
        ("SELECT x FROM c WHERE r = 2 AND j1 = 7", {"seed": ("seed", 0), "e": ("inner", 0), "h": ("inner", 0)}, ["g"]),
        # one dataset by itself
        ("SELECT * FROM c.e WHERE p = 9", {"e": ("seed", 1)}, []),
        ("SELECT * FROM c.g WHERE q = 'u'", {"g": ("seed", 1)}, []),
        ("SELECT * FROM c.seed WHERE i1 = 10", {"seed": ("seed", 1)}, []),
    ],
)  # fmt: skip
def test_datasets_of_a_cube(connection, monkeypatch, sql, parts, eliminated):
    query = connection.sql(sql)
    (scan,) = query.explain().to_dict()["scans"]
    assert {p["dataset"]: (p["join"], len(p["files"])) for p in scan["datasets"]} == parts, str(query.explain())
    assert scan["eliminated"] == eliminated
    rows = sorted(map(repr, query.rows()))
    with monkeypatch.context() as patch:
        patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
        assert sorted(map(repr, connection.sql(sql).rows())) == rows


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT count(*), count(w), count(k), count(m) FROM c", [(12, 2, 12, 3)]),
        ("SELECT x, w FROM c WHERE p = 1 ORDER BY x", [(10, "c"), (11, None), (12, None)]),
        ("SELECT x FROM c WHERE w IS NULL AND p = 0 ORDER BY x", [(0,), (2,)]),
        ("SELECT x FROM c WHERE j1 = 8", []),
        ("SELECT count(*) FROM c.e", [(4,)]),
        ("SELECT x, q, r FROM c WHERE m > 2 ORDER BY x", [(10, "u", 1), (20, "u", 2)]),
        ("SELECT count(*) FROM c WHERE p = 9", [(0,)]),
        ("SELECT max(x), min(w) FROM c WHERE p = 9", [(None, None)]),
        ("SELECT a.x FROM c a JOIN c b ON a.x = b.x + 10 WHERE b.j1 = 5 AND a.w = 'c'", [(10,)]),
    ],
)
def test_rows_of_a_cube(connection, sql, rows):
    assert connection.sql(sql).rows() == rows


def test_the_row_of_a_cube_as_a_value_has_the_columns_of_all_datasets(connection):
    ((row,),) = connection.sql("SELECT c FROM c WHERE x = 1 LIMIT 1").rows()
    assert (row["x"], row["w"], row["j1"]) == (1, "b", 6)


def test_nothing_is_left_out_when_pruning_is_switched_off(connection, monkeypatch):
    monkeypatch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
    report = connection.explain("SELECT w FROM c WHERE i1 = 10")
    (scan,) = report.to_dict()["scans"]
    assert [(p["dataset"], p["files_selected"], p["files_total"]) for p in scan["datasets"]] == [
        ("seed", 4, 4),
        ("e", 2, 3),
    ]
    assert scan["conditions"] == []


def test_join_steps_name_the_partner(connection):
    (scan,) = connection.explain("SELECT x FROM c WHERE j1 = 7").to_dict()["scans"]
    seed, e = scan["datasets"]
    assert seed["steps"] == [{"condition": "partner in e", "by": "join", "files_before": 4, "files_after": 1}]
    assert e["steps"] == [{"condition": "j1 = 7", "by": "inverted index", "files_before": 3, "files_after": 1}]


@pytest.mark.parametrize(
    ("where", "join", "files"),
    [
        ("r + p = 2", "inner", (1, 1)),
        ("r = p", "inner", (2, 2)),
        ("r + p IS NOT NULL", "inner", (3, 3)),
        ("coalesce(r, p) = 2", "left", (4, 3)),  # p alone decides where r is missing
        ("coalesce(r, 9) + p = 99", "inner", (0, 0)),  # which holds for no p
        ("coalesce(r, 9) + p = 11", "left", (4, 3)),
        ("r + x = 1", "left", (4, 3)),  # the values of x are not looked at
        ("r = 1 OR p = 1", "left", (4, 3)),
        ("r = 1 AND p = 1", "inner", (1, 1)),
        ("m > 2 AND coalesce(r, 0) < 9", "inner", (3, 3)),
        ("m = 1.5 OR j1 = 7", "left", (4, 3)),
        ("m = 1.5 OR r = 2", "inner", (3, 3)),
    ],
)
def test_a_condition_makes_a_dataset_restrictive_if_no_missing_row_meets_it(
    connection, monkeypatch, where, join, files
):
    sql = f"SELECT x, r, m FROM c WHERE {where}"
    (scan,) = connection.explain(sql).to_dict()["scans"]
    found = {p["dataset"]: (p["join"], len(p["files"])) for p in scan["datasets"]}
    assert (found["h"], found["seed"]) == ((join, files[1]), ("seed", files[0])), str(connection.explain(sql))
    rows = sorted(map(repr, connection.sql(sql).rows()))
    monkeypatch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
    assert sorted(map(repr, connection.sql(sql).rows())) == rows


def test_a_condition_on_a_dimension_prunes_through_the_values_it_has_in_the_seed(connection):
    (scan,) = connection.explain("SELECT a.x FROM c a JOIN c.e b ON a.x = b.x AND a.p = b.p WHERE a.p = 1").to_dict()[
        "scans"
    ][1:]
    assert len(scan["datasets"][0]["files"]) == 1


def test_an_index_column_of_a_cube_may_be_null(local):
    build_cube(local, Cube("n", ["x"], ["p"], index_columns=["i"]), pa.table({"x": [0, 1], "p": [0, 1], "i": [5, 6]}))
    document = builders.read_document(local, "n++seed")
    first, second = document["partitions"]
    # It was before it was indexed.
    local.put(f"n++seed/table/{first}.parquet", builders.parquet({"x": [0], "i": pa.array([None], pa.int64())}))
    index = {"i": [6], "partition": pa.array([[second]], pa.list_(pa.string()))}
    local.put(document["indices"]["i"], builders.parquet(index))
    with kartosql.connect(local.url) as made:
        assert made.sql("SELECT x FROM n WHERE i IS NULL").rows() == [(0,)]
        assert made.sql("SELECT x FROM n WHERE coalesce(i, p + 9) = 9").rows() == [(0,)]
