from __future__ import annotations

import re

import pyarrow as pa

from kartosql.render import tables
from kartosql.text.escape import width

HOSTILE = "<script>&\"'\x1b[31m\u202e\n|"


def test_a_box_aligns_numbers_to_the_right_and_measures_wide_characters():
    table = pa.table({"name": ["a", "東京", None], "n": [1, -2_345_678, None]})
    assert tables.preview(table, 10, ["VARCHAR", "BIGINT"]) == "\n".join(
        [
            "┌─────────┬────────────┐",
            "│ name    │          n │",
            "│ VARCHAR │     BIGINT │",
            "├─────────┼────────────┤",
            "│ a       │          1 │",
            "│ 東京    │ -2,345,678 │",
            "│ NULL    │       NULL │",
            "└─────────┴────────────┘",
        ]
    )


def test_a_preview_says_when_there_is_more():
    table = pa.table({"n": [1, 2, 3]})
    assert "more" not in tables.preview(table, 3, ["BIGINT"])
    lines = tables.preview(table, 2, ["BIGINT"]).splitlines()
    assert lines[-1] == "(more rows)"
    assert len(lines) == 8


def test_a_preview_of_no_rows_still_shows_the_columns():
    assert "│ name    │" in tables.preview(pa.table({"name": pa.array([], pa.string())}), 5, ["VARCHAR"])


def test_a_preview_cuts_long_values():
    lines = tables.preview(pa.table({"a": ["x" * 1000, "y" * 80]}), 5, ["VARCHAR"]).splitlines()
    assert {width(line) for line in lines} == {84}
    assert "x…" in lines[4]
    assert "…" not in lines[5]


def test_a_box_holds_hostile_text_on_one_line():
    lines = tables.preview(pa.table({HOSTILE: [HOSTILE]}), 5, [HOSTILE]).splitlines()
    assert len(lines) == 6
    assert len({width(line) for line in lines}) == 1
    assert all(c.isprintable() for line in lines for c in line)


def test_html_escapes_names_and_values():
    text = tables.table(pa.table({HOSTILE: [HOSTILE]}), 5, [HOSTILE])
    assert text.count("&lt;script&gt;&amp;&quot;&#x27;\\x1b[31m\\u202e\\n|") == 2
    assert "<script" not in text
    assert "\x1b" not in text


def test_html_tells_null_from_its_text_and_aligns_numbers():
    text = tables.table(pa.table({"s": ["NULL", None], "n": [12345, 2]}), 1, ["VARCHAR", "BIGINT"])
    assert re.search('text-align: left">&#x27;NULL&#x27;</td><td style="[^"]*text-align: right">12,345</td>', text)
    assert text.endswith("<p>(more rows)</p>")
    assert re.search('text-align: left"><i>NULL</i></td>', tables.table(pa.table({"s": [None]}), 5, ["NULL"]))


def test_html_looks_alike_anywhere_and_scrolls():
    text = tables.table(pa.table({f"c{i}": [0.5] for i in range(30)}), 5, ["DOUBLE"] * 30)
    assert text.startswith('<div style="max-height: 32em; max-width: 100%; overflow: auto"><table')
    assert text.count("DOUBLE") == text.count("<th ") == text.count("<td ") == 30
    assert not re.search(r"<style|class=|[^-]color:|background|http|<script", text)  # what is around has these


def test_a_preview_that_is_too_wide_shows_its_first_and_last_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = tables.preview(pa.table({f"column_{i}": [10**6] for i in range(25)}), 5, ["BIGINT"] * 25)
    lines = text.splitlines()
    assert lines[-1] == "25 columns (4 shown)"
    assert {width(line) for line in lines[:-1]} == {53}
    assert [cell.strip() for cell in lines[1].strip("│").split("│")] == [
        *("column_0", "column_1", "…", "column_23", "column_24")
    ]
    assert "BIGINT" in lines[2]
    assert "1,000,000" in lines[4]
