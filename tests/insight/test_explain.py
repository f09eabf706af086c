from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import SqlError

HOSTILE = 'p<script>alert("x")</script>\x1b[31m\u202e'


def _lines(con, sql):
    return [line for (line,) in con.sql(sql).rows()]


def test_text_shows_files_and_bytes_before_and_after_each_step(con):
    lines = _lines(con, "EXPLAIN SELECT v1 FROM c WHERE p > 1 AND i1 = 3 AND v1 > 0")
    steps = [re.split(r" {2,}", line.strip()) for line in lines]
    assert lines[0].startswith("engine: duckdb (2 files, ")
    assert re.fullmatch(r"c: 2 of 4 files, [\d.]+ KiB of [\d.]+ KiB", lines[1])
    (partition,) = [s for s in steps if s[0] == "p > 1"]
    assert partition[1:3] == ["partition key", "4 -> 2"]
    assert re.fullmatch(r"[\d.]+ KiB -> [\d.]+ KiB", partition[3])
    assert ["i1 = 3", "inverted index", "2 -> 2"] in [s[:3] for s in steps]
    assert ["e", "no column is used", "not opened", "0 of 2"] in [s[:4] for s in steps]
    assert any(line.startswith("  left to the engine: v1 > 0 (") for line in lines)


def test_table_has_a_row_per_dataset_step_and_remark(con):
    table = con.sql("EXPLAIN (FORMAT TABLE) SELECT v1, v2 FROM c WHERE p = 3 AND v1 > 0").arrow()
    rows = table.to_pylist()
    assert rows[0]["decided_by"] == "engine"
    assert rows[0]["note"].startswith("duckdb (")
    step = next(r for r in rows if r["condition"] == "p = 3" and r["dataset"] == "seed")
    whole = next(r for r in rows if r["dataset"] == "seed" and r["step"] == 0)
    assert (step["files_before"], step["files_after"], step["step"]) == (4, 1, 1)
    assert (whole["bytes_before"], whole["bytes_after"]) == (step["bytes_before"], step["bytes_after"])
    sizes = {r["key"]: r["bytes"] for r in con.sql("SHOW FILES FROM c.seed").arrow().to_pylist()}
    assert step["bytes_before"] == sum(sizes.values())
    assert step["bytes_after"] == sum(n for key, n in sizes.items() if "/p=3/" in key)


def test_bytes_of_steps_are_in_the_dictionary(con):
    (scan,) = con.explain("SELECT v1 FROM c WHERE p = 3 AND i1 = 3").to_dict()["scans"]
    (seed,) = scan["datasets"]
    assert seed["bytes_after_steps"] == [seed["bytes_selected"]] * 2
    assert [set(s) for s in seed["steps"]] == [{"condition", "by", "files_before", "files_after"}] * 2


def test_a_large_plan_notes_what_steps_left_only_if_it_is_asked_for(con, monkeypatch):
    monkeypatch.setattr("kartosql.plan.transfer.FEW_FILES", 0)
    query = con.sql("SELECT v1 FROM c WHERE p = 3")
    query.rows()
    assert query.explain().to_dict()["scans"][0]["datasets"][0]["bytes_after_steps"] == [None]
    traced = con.explain("SELECT v1 FROM c WHERE p = 3").to_dict()["scans"][0]["datasets"][0]
    assert traced["bytes_after_steps"] == [traced["bytes_selected"]]


def test_json_is_the_dictionary(con):
    (text,) = _lines(con, "EXPLAIN (FORMAT JSON) SELECT v1 FROM c")
    assert json.loads(text)["scans"][0]["table"] == "c"


def test_analyze_tells_what_was_read_in_every_format(con):
    sql = "SELECT v1 FROM c WHERE p = 3"
    assert "rows: 10" in _lines(con, f"EXPLAIN ANALYZE {sql}")
    assert "really read" in "".join(_lines(con, f"EXPLAIN (ANALYZE, FORMAT HTML) {sql}"))
    assert con.sql(f"EXPLAIN (ANALYZE) {sql}").stats["rows"] == 10


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_html_is_a_page_without_anything_from_elsewhere(con):
    page = "\n".join(_lines(con, "EXPLAIN (FORMAT HTML) SELECT v1 FROM c WHERE p = 3"))
    found = _Tags(page)
    assert page.startswith("<!DOCTYPE html>")
    assert not found.tags & {"script", "link", "img", "iframe", "object"}
    assert not found.attributes & {"src", "href", "onload"}
    assert "url(" not in page
    assert "@import" not in page


def test_names_of_strangers_do_no_harm_in_any_format(con):
    con.create_dataset("d", pa.table({HOSTILE: [1, 2, 3], "y": [1, 2, 3]}), partition_on=[HOSTILE])
    quoted = '"' + HOSTILE.replace('"', '""') + '"'
    sql = f"SELECT y FROM d WHERE {quoted} = 1"
    report = con.explain(sql)
    assert "1 of 3 files" in str(report)
    for text in (str(report), repr(con.sql(f"EXPLAIN {sql}")), report.html(), con.sql(f"EXPLAIN {sql}")._repr_html_()):
        assert "\x1b" not in text
        assert "\u202e" not in text
    for page in (report.html(), "\n".join(_lines(con, f"EXPLAIN (FORMAT HTML) {sql}"))):
        assert "script" not in _Tags(page).tags
        assert "&lt;script&gt;" in page


def test_repr_of_an_explain_is_its_text(con):
    query = con.sql("EXPLAIN SELECT v1 FROM c WHERE p = 3")
    assert repr(query).splitlines() == [line for (line,) in query.rows()]
    assert isinstance(query.report, kartosql.ScanReport)


@pytest.mark.parametrize(
    ("sql", "at", "message"),
    [
        ("EXPLAIN (FORMAT XML) SELECT 1", "FORMAT", "The options are ANALYZE, COST, FORMAT TEXT"),
        ("EXPLAIN ANALYZE (COST) SELECT 1", "SELECT", "not both"),
        ("EXPLAIN COST", "", "EXPLAIN needs a SELECT"),
        ("EXPLAIN WHY f SELECT 1", "f", "a file in quotes"),
        ("ADVISE SHOW TABLES", "SHOW", "ADVISE needs a SELECT"),
        ("VERIFY (ANALYZE) SELECT 1", "", None),
        ("SHOW COVERAGE c", "c", "needs OF and a cube"),
        ("SHOW COVERAGE OF c BY a, b, d", "d", "one or two columns"),
    ],
)
def test_mistakes_in_these_statements_name_their_place(con, sql, at, message):
    with pytest.raises(SqlError) as e:
        con.sql(sql)
    if message is not None:
        assert e.value.code == "syntax-error"
        assert message in e.value.message
        start, _ = e.value.span
        assert sql[start:].startswith(at)
