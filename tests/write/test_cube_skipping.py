"""Skipping indexes of whole cubes: each dataset gets those over its columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import UsageError

DAYS = 6


@pytest.fixture
def con(tmp_path: Path) -> Iterator[Any]:
    """``c`` has a file for each of six days in ``seed`` and ``more``, and ``plain`` without partitions."""
    rows = range(DAYS * 10)
    cells = {"x": list(rows), "day": [r // 10 for r in rows]}
    seed = pa.table({**cells, "a": [r * 3 for r in rows]})
    more = pa.table({**cells, "b": [f"b{r // 4}" for r in rows]}).slice(5, 40)
    with kartosql.connect(tmp_path, read_only=False) as made:
        cube = kartosql.Cube("c", "x", "day", suppress_index_on="x")
        made.build_cube(cube, {"seed": seed, "more": more})
        yield made


def test_each_dataset_is_indexed_by_the_columns_that_it_has(con):
    made = con.sql("CREATE SKIPPING INDEX ON c (MINMAX(a, x), VALUELIST(b))").arrow().to_pylist()
    assert [(r["dataset"], r["indexes"], r["added"]) for r in made] == [("more", 2, 5), ("seed", 2, 6)]
    shown = con.sql("SHOW SKIPPING INDEXES FROM c").arrow().to_pylist()
    assert sorted((r["dataset"], r["index"], r["column"]) for r in shown) == [
        ("more", "minmax", "x"),
        ("more", "valuelist", "b"),
        ("seed", "minmax", "a"),
        ("seed", "minmax", "x"),
    ]


@pytest.mark.parametrize("where", ["a = 33", "b = 'b7'", "x BETWEEN 12 AND 18", "a > 100 AND b < 'b5'", "NOT a < 150"])
def test_answers_are_those_of_all_files(con, where):
    sql = f"SELECT * FROM c WHERE {where} ORDER BY x"
    before = con.sql(sql)
    rows, files = before.rows(), before.stats["files_read"]
    con.create_skipping_index("c", minmax=["a", "x"], valuelist="b")
    after = con.sql(sql)
    assert after.rows() == rows
    assert after.stats["files_read"] < files


def test_refresh_and_drop_are_for_all_datasets_that_have_indexes(con):
    con.create_skipping_index("c", valuelist="b")
    assert con.sql("REFRESH SKIPPING INDEX ON c").arrow().to_pylist() == [
        {"dataset": "more", "indexes": 1, "added": 0, "removed": 0, "kept": 5, "unindexed": 0}
    ]
    con.create_skipping_index("c", minmax="x")
    assert {name: one["indexes"] for name, one in con.refresh_skipping_index("c").items()} == {"seed": 1, "more": 2}
    assert con.sql("DROP SKIPPING INDEX ON c").rows() == [("more", 1), ("seed", 1)]
    with pytest.raises(UsageError, match="'c' has no skipping indexes") as e:
        con.sql("DROP SKIPPING INDEX ON c")
    assert e.value.code == "not-indexed"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"minmax": ["a", "nope"]}, "unknown-column"),
        ({"minmax": ["a", "day"]}, "unknown-column"),
        ({"minmax": "a", "bloomfilter": {"b": {"nope": 1}}}, "invalid-argument"),
        ({}, "invalid-argument"),
    ],
)
def test_nothing_is_made_where_one_index_cannot_be(con, given, code):
    with pytest.raises(UsageError) as e:
        con.create_skipping_index("c", **given)
    assert e.value.code == code
    assert con.sql("SHOW SKIPPING INDEXES FROM c").rows() == []
