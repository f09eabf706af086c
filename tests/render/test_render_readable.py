from __future__ import annotations

import pyarrow as pa
import pytest

from kartosql.render.tables import MAX_CELL, Look, bars, grouped, preview, readable
from kartosql.text.escape import width


def plain_box(table: pa.Table, **look) -> list[str]:
    found = readable(table, [str(t) for t in table.schema.types], "box", Look(**look))
    assert found[0].startswith("┌")
    return found


def vertical(table: pa.Table) -> list[str]:
    return readable(table, [], "vertical", Look())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1234", "1234"),
        ("12345", "12,345"),
        ("-12345.678901", "-12,345.678901"),
        ("1234567890123456789012345678901234567", "1,234,567,890,123,456,789,012,345,678,901,234,567"),
        ("1e+300", "1e+300"),
        ("nan", "nan"),
        ("00012", "00012"),
        ("0.000012345", "0.000012345"),
    ],
)
def test_digits_are_grouped_from_five_on(text, shown):
    assert grouped(text) == shown


def test_lines_of_a_box_are_of_one_width_whatever_the_script():
    table = pa.table({"名前": ["東京", "e\u0301", "\u200d", None], "n": [1, 22, 12345, None]})
    assert len({width(line) for line in plain_box(table)}) == 1


def test_names_types_and_values_are_escaped():
    table = pa.table({"a\x1b[2J": ["\u202eb\n"], "c": ["\r"]})
    text = "\n".join([*plain_box(table), *vertical(table)])
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\r" not in text
    assert "a\\x1b[2J" in text
    assert "\\u202eb\\n" in text


def test_null_differs_from_every_text():
    painted = Look(paint=lambda style, text: f"<{style}>{text}" if style == "null" else text)
    table = pa.table({"v": ["NULL", None, "null", "'NULL'"]})
    found = readable(table, ["varchar"], "box", painted)
    assert found is not None
    cells = [line.strip("│ ") for line in found[4:-1]]
    assert cells == ["'NULL'", "<null>NULL", "null", "'NULL'"]


def test_a_box_that_is_too_wide_becomes_vertical():
    table = pa.table({"a": ["x" * 10]})
    assert readable(table, ["varchar"], "box", Look(columns=14))[0].startswith("┌")
    assert readable(table, ["varchar"], "box", Look(columns=13)) == vertical(table)


WIDE = pa.table({f"c{number}": list(range(9)) for number in range(6)})


@pytest.mark.parametrize(
    ("columns", "head"),
    [
        (31, "│ c0 │ c1 │ c2 │ c3 │ c4 │ c5 │"),
        (30, "│ c0 │ c1 │ c2 │ … │ c4 │ c5 │"),
        (29, "│ c0 │ c1 │ … │ c4 │ c5 │"),
        (15, "│ c0 │ … │ c5 │"),
    ],
)
def test_a_long_box_that_is_too_wide_shows_its_first_and_last_columns(columns, head):
    lines = readable(WIDE, ["bigint"] * 6, "box", Look(columns=columns, types=False))
    assert lines[1] == head
    assert {len(line) for line in lines[:13]} == {len(head)}
    shown = head.count("c")
    assert lines[13:] == ([f"6 columns ({shown} shown)"] if shown < 6 else [])


def test_a_box_is_elided_where_two_columns_fit_and_it_is_asked_for():
    for look in (Look(columns=14), Look(columns=29, elided=False)):
        assert readable(WIDE, ["bigint"] * 6, "box", look) == vertical(WIDE)
    assert readable(WIDE.slice(0, 5), ["bigint"] * 6, "box", Look(columns=30)) == vertical(WIDE.slice(0, 5))
    assert readable(pa.table({"a": ["x" * 50] * 30}), ["varchar"], "box", Look(columns=30))[0] == "── row 1 ──"


def test_python_shows_first_and_last_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "33")
    lines = preview(WIDE, 3, ["INT"] * 6).splitlines()
    assert lines[1:4] == [
        "│  c0 │  c1 │ … │  c4 │  c5 │",
        "│ INT │ INT │   │ INT │ INT │",
        "├─────┼─────┼───┼─────┼─────┤",
    ]
    assert lines[-2:] == ["6 columns (4 shown)", "(more rows)"]
    monkeypatch.setenv("COLUMNS", "10")
    assert preview(WIDE, 3, ["INT"] * 6).splitlines()[1].count("│") == 7


def test_a_long_value_is_cut_and_says_so():
    (line,) = list(vertical(pa.table({"v": ["x" * (MAX_CELL + 1)]})))[1:]
    assert line.endswith("x… (10,001 characters)")


def test_a_table_without_rows_or_columns_has_lines():
    assert len(plain_box(pa.table({"a": pa.array([], pa.int64())}))) == 5
    assert list(vertical(pa.table({"a": pa.array([], pa.int64())}))) == []
    assert plain_box(pa.table({})) != []


def test_bars_are_as_long_as_their_values():
    found = bars(["a", "b", "c", "d"], [8.0, 4.0, -8.0, float("nan")], ["8", "4", "-8", "NULL"], Look(columns=25))
    assert [line.count("█") for line in found] == [16, 8, 0, 0]
    assert found[2].count("░") == 16
    assert bars(["a"], [0.0], ["0"], Look()) == ["a 0"]
    assert bars([], [], [], Look()) == []
    assert "\x1b" not in bars(["\x1b"], [1.0], ["1"], Look())[0]
