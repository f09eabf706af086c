"""Files that call columns otherwise, lack some, or call another column so."""

import pyarrow as pa
import pytest

import kartosql
from renaming import EXPECTED, LONG, STATEMENTS, Written, attached, renamed


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path, attach=True) as made:
        yield made


def test_columns_are_found_by_the_names_in_the_files(con, tmp_path):
    attached(con, tmp_path)
    found = con.sql("SELECT a, b, c, n, m FROM t", engine="duckdb").rows()
    assert sorted(found, key=repr) == sorted(EXPECTED, key=repr)


@pytest.mark.parametrize("few", [0, 100])
@pytest.mark.parametrize(("sql", "expected"), STATEMENTS)
def test_bounds_of_footers_are_those_of_the_column_that_is_meant(con, tmp_path, monkeypatch, sql, expected, few):
    monkeypatch.setattr("kartosql.indexes.index.MIN_FOR_STATISTICS", few)
    attached(con, tmp_path)
    for _ in range(2):  # anew, and as it is remembered
        assert con.sql(sql, engine="duckdb").rows() == expected
        assert con.sql(sql, engine="duckdb").rows() == expected


def test_files_are_left_out_by_bounds_of_columns_that_they_call_otherwise(con, tmp_path, monkeypatch):
    monkeypatch.setattr("kartosql.indexes.index.MIN_FOR_STATISTICS", 0)
    attached(con, tmp_path)
    scan = con.explain("SELECT b FROM t WHERE a = 3").to_dict()["scans"][0]["datasets"][0]
    # Of the last one nothing is known, as what it lacks need not be NULL.
    assert scan["files"] == ["001.parquet", "002.parquet"]
    assert [s["by"] for s in scan["steps"]] == ["row groups"]


def test_columns_that_differ_in_case_alone_are_told_apart(con, tmp_path):
    rows = pa.table({"A": [1], "a": [2]})
    renamed(
        con,
        tmp_path,
        "t",
        pa.schema({"x": LONG, "y": LONG}),
        [Written(rows, {"x": LONG, "y": LONG}, {"x": "A", "y": "a"})],
    )
    assert con.sql("SELECT x, y FROM t").rows() == [(1, 2)]
