"""Statements and calls as in other databases: what to write for DuckDB."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys

import pyarrow as pa
import pytest

import kartosql
from kartosql.sql.dialects import in_duckdb


@pytest.fixture(scope="module")
def con():
    with kartosql.connect("memory://dialects") as con:
        rows = {"id": [1, 2, 3], "name": ["a", "b", None], "tags": [["x"], [], None], "d": [dt.date(2024, 5, 1)] * 3}
        con.register("t", pa.table(rows))
        yield con


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("SELECT TOP 2 id FROM t ORDER BY id", "SELECT id FROM t ORDER BY id LIMIT 2"),
        ("SELECT id FROM t ORDER BY id LIMIT 1, 2", "SELECT id FROM t ORDER BY id NULLS FIRST LIMIT 2 OFFSET 1"),
        ("SELECT id FROM t MINUS SELECT 1", "SELECT id FROM t EXCEPT SELECT 1"),
        ("SELECT x FROM t LATERAL VIEW explode(tags) v AS x", "SELECT x FROM t CROSS JOIN UNNEST(tags) AS v(x)"),
        ("nvl(name, 'none')", "COALESCE(name, 'none')"),
        ("to_char(DATE '2024-05-01', 'YYYY-MM')", "STRFTIME(CAST('2024-05-01' AS DATE), '%Y-%m')"),
        ("iif(id > 1, 'a', 'b')", "CASE WHEN id > 1 THEN 'a' ELSE 'b' END"),
        ("getdate()", "CURRENT_TIMESTAMP"),
        ("date_format(d, 'yyyy')", "STRFTIME(CAST(d AS TIMESTAMP), '%Y')"),
        ("charindex('a', name)", "STRPOS(name, 'a')"),
    ],
)
def test_what_other_databases_read_is_shown_as_duckdb_reads_it(con, written, meant):
    is_query = written.startswith("SELECT")
    with pytest.raises(kartosql.KartosqlError) as caught:
        con.sql(written if is_query else f"SELECT {written} FROM t").rows()
    assert caught.value.hint == f"In DuckDB's SQL: {meant}"
    assert con.sql(meant if is_query else f"SELECT {meant} FROM t").rows()


@pytest.mark.parametrize(
    "written",
    [
        "SELECT id nam e FROM t",
        "SELECT id FROM t WHERE id =",
        "SELECT id FROM t WHERE id = 1 name = 'a'",
        "SELECT id id2 id3",
        "SELECT summ(id) FROM t",
    ],
)
def test_slips_are_no_other_dialect(con, written):
    with pytest.raises(kartosql.KartosqlError) as caught:
        con.sql(written).rows()
    assert "In DuckDB's SQL" not in (caught.value.hint or "")


@pytest.mark.parametrize(
    "text",
    [f"SELECT TOP 3 {'a, ' * 200} a FROM t", "(" * 400, "SELECT TOP 3 a\0", "EXPLAIN EXTENDED SELECT a", "SHOW x y"],
)
def test_long_and_odd_texts_and_other_statements_are_not_read(text):
    assert in_duckdb(text) is None


def test_what_the_parser_warns_of_is_not_printed():
    code = "from kartosql.sql.dialects import in_duckdb as f; print(f(\"get_json_object(a, '$[')\", 'get_json_object'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("In DuckDB's SQL: a ->> '$['", "")
