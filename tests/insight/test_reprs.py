"""What results, reports and cubes look like in a Python shell and in a notebook."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

import kartosql

HOSTILE = '<img src=x onerror=alert(1)>\x1b[31m\u202e"'
INSPECT = ("EXPLAIN", "EXPLAIN ANALYZE", "EXPLAIN COST", "ADVISE", "VERIFY (DUCKDB)", "EXPLAIN WHY '.parquet'")
SUMMARY = r"(\d+) rows? in [\d.]+ s \(plan [\d.]+, read [\d.]+\) · 2 of 4 files · [\d.]+ K?i?B of [\d.]+ KiB read"


def test_a_result_shows_its_first_rows_and_what_it_took(con):
    query = con.sql("SELECT x, v1 FROM c WHERE p < 2 ORDER BY x")
    lines = repr(query).splitlines()
    assert lines[0].startswith("┌")
    assert len(lines) == 20 + 6
    assert lines[-1].startswith("20 rows in ")
    assert re.match(SUMMARY, lines[-1])
    query.arrow()
    assert re.match(SUMMARY, repr(query).splitlines()[-1])
    assert re.search(f"<p>{SUMMARY}", query._repr_html_())


def test_a_result_that_was_not_read_to_its_end_does_not_say_how_many_rows_it_has(con):
    query = con.sql("SELECT x, v1 FROM c WHERE p < 3")
    lines = repr(query).splitlines()
    assert lines[-1] == "(more rows)"
    assert "rows in" not in query._repr_html_()
    assert len(query.rows()) == 30
    assert repr(query).splitlines()[-1].startswith("30 rows in ")
    assert repr(query).splitlines()[-2] == "(more rows)"


def test_statements_that_scan_nothing_show_their_rows_alone(con):
    assert repr(con.sql("SHOW CUBES")).splitlines()[-1].startswith(("└", "6 columns"))


def test_a_cube_shows_its_columns_by_role(con):
    cube = con.cubes()["c"]
    html = cube._repr_html_()
    for text in ("<b>c</b>", "<code>x</code>", "<code>p</code>", "<code>i1</code>", "<code>seed</code>"):
        assert text in html
    assert "suppress" not in html
    assert eval(repr(cube), {"Cube": kartosql.Cube, "frozenset": frozenset}) == cube


def _pages(con):
    con.register("r", pa.table({HOSTILE: [HOSTILE, None], "p": [1, 2]}))
    con.create_dataset("d", pa.table({HOSTILE: [1, 2, 3], "t": [HOSTILE, "", "x"], "q": [1, 2, 3]}), partition_on=["q"])
    name = '"' + HOSTILE.replace('"', '""') + '"'
    yield con.sql("SELECT * FROM r")
    yield con.sql(f"SELECT * FROM d WHERE {name} = 2")
    for statement in (
        "EXPLAIN",
        "EXPLAIN ANALYZE",
        "EXPLAIN COST",
        "ADVISE",
        "VERIFY (DUCKDB)",
        "EXPLAIN WHY '.parquet'",
    ):
        yield con.sql(f"{statement} SELECT * FROM d WHERE {name} = 2 AND t <> '{HOSTILE}'")
    yield con.coverage("d", "t")
    yield con.sql("SHOW COVERAGE OF d BY t")
    yield con.explain(f"SELECT * FROM d WHERE {name} = 2")
    yield kartosql.Cube("c", [HOSTILE], ["p"])


def test_nothing_of_strangers_becomes_markup_or_reaches_a_terminal(con):
    count = 0
    for shown in _pages(con):
        html = shown._repr_html_()
        texts = [html] if isinstance(shown, kartosql.Cube) else [html, repr(shown)]
        texts += [str(shown)] if isinstance(shown, kartosql.ScanReport) else []
        for text in texts:
            assert "\x1b" not in text, text
            assert "\u202e" not in text, text
        assert "<img" not in html
        for outside in ("<script", "<link", "src=", "href=", "url(", "@import"):
            assert outside not in html.replace("&lt;img src=x", ""), outside
        count += 1
    assert count == 12


@pytest.mark.parametrize("format", ["TEXT", "TABLE", "JSON", "HTML"])
@pytest.mark.parametrize("statement", ["EXPLAIN", "EXPLAIN COST", "EXPLAIN WHY", "ADVISE", "VERIFY", "SHOW COVERAGE"])
def test_every_statement_that_inspects_has_every_format(con, statement, format):
    what = "OF c" if statement.startswith("SHOW") else "SELECT x FROM c.seed WHERE p = 1"
    options = f"(DUCKDB, FORMAT {format})" if statement == "VERIFY" else f"(FORMAT {format})"
    if "WHY" in statement:
        (key,) = [r["key"] for r in con.sql("SHOW FILES FROM c.seed").arrow().to_pylist() if "p=1" in r["key"]]
        statement = f"EXPLAIN WHY '{key}'"
    query = con.sql(f"{statement} {options} {what}")
    assert query.content.to_dict()
    assert query.columns
    assert (query.lines is None) == (format == "TABLE")
