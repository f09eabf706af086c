"""Statements that inspect, asked of what was attached: it is read, but not written and not read in another way."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def attached(con, tmp_path_factory):
    folder = tmp_path_factory.mktemp("attached")
    for number in range(4):
        rows = pa.table({"a": [10 * number + i for i in range(10)], "b": ["x", "y"] * 5})
        pq.write_table(rows, folder / f"p{number}.parquet")
    con.sql(f"ATTACH '{folder}' AS f (TYPE parquet)")
    return con, folder


def test_cost_and_report_are_those_of_the_files(attached):
    con, folder = attached
    (item,) = con.sql("EXPLAIN COST SELECT a FROM f").content.items
    assert (item.files, item.rows, item.columns) == (4, 40, ("a",))
    assert item.bytes == sum(p.stat().st_size for p in folder.iterdir())


def test_why_names_the_file_as_people_know_it(attached):
    con, folder = attached
    (verdict,) = con.sql("EXPLAIN WHY 'p1.parquet' SELECT * FROM f").content.verdicts
    assert verdict.file == f"{folder}/p1.parquet"


def test_only_statements_that_can_be_run_are_advised(attached):
    con, _ = attached
    query = "ADVISE SELECT * FROM f WHERE a = 13"
    for advice in con.sql(query).content.advice:
        con.sql(advice.statement)
    assert con.sql(query).content.advice == ()


def test_pruned_and_unpruned_answers_are_compared(attached):
    con, _ = attached
    found = con.sql("VERIFY (DUCKDB) SELECT * FROM f WHERE a > 13").content
    assert found.verdict == "verified"
    assert [a.verdict for a in found.answers] == ["reference", "equal", "not asked"]


def test_rows_are_counted(attached):
    con, _ = attached
    rows = con.sql("SHOW COVERAGE (FORMAT TABLE) OF f BY b").arrow().to_pylist()
    assert [(r["b"], r["cells"]) for r in rows] == [("x", 20), ("y", 20)]
