"""Deleted rows on Spark: the relations are DuckDB's, so are the rows and the errors."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import kartosql
from deleting import Keys, Lake, check, lake, rows
from kartosql.errors import FormatError


@pytest.fixture
def con(tmp_path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as made:
        yield made


@pytest.mark.parametrize("seed", [101, 102, 103])
def test_random_deletes_leave_the_rows_that_are_computed_one_by_one(con, tmp_path, seed, spark: Any):
    check(con, tmp_path, seed, "spark")


def test_the_key_may_be_a_partition_column_or_one_that_is_not_seen(con, tmp_path, spark: Any):
    values = pa.table({"X": [1, 2], "x_": [5, 6]})
    made = Lake(
        {"p=1/f": values, "p=2/f": values},
        keys=(Keys(["p", "x_"], [pa.table({"p": [2], "x_": [5]})], [2]),),
        sequence=[1, 1],
        hidden=["x_"],
    )
    lake(con, tmp_path, "t", made)
    assert rows(con, "SELECT X, p FROM t", "spark") == [(1, 1), (2, 1), (2, 2)]


def test_rows_that_arrow_decodes_lose_the_same_ones(con, tmp_path, spark: Any):
    values = pa.table({"x": range(6), "X": range(6)})  # Spark cannot tell them apart
    lake(con, tmp_path, "t", Lake({"a": values}, {0: [1, 5]}))
    assert rows(con, 'SELECT x + "X" FROM t', "spark") == [(0,), (4,), (6,), (8,)]


def test_positions_that_cannot_be_are_an_error(con, tmp_path, spark: Any):
    lake(con, tmp_path, "t", Lake({"a": pa.table({"x": [1, 2, 3]})}, {0: [3]}))
    with pytest.raises(FormatError) as caught:
        con.sql("SELECT x FROM t", engine="spark").rows()
    assert (caught.value.code, "the number 3, of 3 rows" in caught.value.message) == ("invalid-metadata", True)
