from __future__ import annotations

import pyarrow as pa

from kartosql.render import tables
from kartosql.text.escape import width

HOSTILE = "<script>&\"'\x1b[31m\u202e\n|"


def test_a_box_aligns_numbers_to_the_right_and_measures_wide_characters():
    table = pa.table({"name": ["a", "東京", None], "n": [1, 23, None]})
    assert tables.preview(table, 10) == "\n".join(
        [
            "┌──────┬──────┐",
            "│ name │    n │",
            "├──────┼──────┤",
            "│ a    │    1 │",
            "│ 東京 │   23 │",
            "│ NULL │ NULL │",
            "└──────┴──────┘",
        ]
    )


def test_a_preview_says_when_there_is_more():
    table = pa.table({"n": [1, 2, 3]})
    assert "more" not in tables.preview(table, 3)
    lines = tables.preview(table, 2).splitlines()
    assert lines[-1] == "(more rows)"
    assert len(lines) == 7


def test_a_preview_of_no_rows_still_shows_the_columns():
    assert "│ name │" in tables.preview(pa.table({"name": pa.array([], pa.string())}), 5)


def test_a_preview_cuts_long_values():
    lines = tables.preview(pa.table({"a": ["x" * 1000, "y" * 80]}), 5).splitlines()
    assert {width(line) for line in lines} == {84}
    assert "x…" in lines[3]
    assert "…" not in lines[4]


def test_a_box_holds_hostile_text_on_one_line():
    lines = tables.preview(pa.table({HOSTILE: [HOSTILE]}), 5).splitlines()
    assert len(lines) == 5
    assert len({width(line) for line in lines}) == 1
    assert all(c.isprintable() for line in lines for c in line)


def test_html_escapes_names_and_values():
    text = tables.table(pa.table({HOSTILE: [HOSTILE]}), 5)
    assert text.count("&lt;script&gt;&amp;&quot;&#x27;\\x1b[31m\\u202e\\n|") == 2
    assert "<script" not in text
    assert "\x1b" not in text


def test_html_tells_null_from_its_text_and_aligns_numbers():
    text = tables.table(pa.table({"s": ["NULL", None], "n": [1, 2]}), 1)
    assert "<td>NULL</td>" in text
    assert '<td style="text-align: right">1</td>' in text
    assert text.endswith("<p>(more rows)</p>")
    assert "<td><i>NULL</i></td>" in tables.table(pa.table({"s": [None]}), 5)
