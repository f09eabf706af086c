"""Reports at each width that they may get: lines fit, words stay whole, and none is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import kartosql
from kartosql.text.escape import width
from kartosql.text.report import Branch, Page, Report, elided, one_line

WIDTHS = (40, 60, 80, 120, 200)
JOIN = (
    "SELECT origin, count(*) AS n, max(delay) FROM flights JOIN planes USING (tail_number) WHERE month > 2 GROUP BY 1"
)
ASKED = {
    "explain": f"EXPLAIN {JOIN}",
    "analyze": f"EXPLAIN ANALYZE {JOIN}",
    "or": "EXPLAIN SELECT * FROM flights WHERE (month = 1 AND length(origin) = 3) OR (month = 2 AND delay = 1)",
    "long": f"EXPLAIN SELECT * FROM flights WHERE origin IN ({', '.join(repr('X' * n) for n in range(1, 50))})",
    "wide": "EXPLAIN SELECT * FROM planes WHERE maker = '東京都東京都東京都東京都東京都東京都東京都東京都東京都東京都'",
    "cost": f"EXPLAIN COST {JOIN}",
    "why": "EXPLAIN WHY '.parquet' SELECT delay FROM flights WHERE month > 2 AND delay > 10",
    "advise": "ADVISE SELECT origin, delay FROM flights WHERE delay = 7 AND CAST(month AS VARCHAR) = '1'",
    "verify": "VERIFY (DUCKDB) SELECT origin, delay FROM flights WHERE tail_number = 'N1' AND month < 3",
    "map": "SHOW COVERAGE OF flights BY origin, tail_number",
    "bars": "SHOW COVERAGE OF flights BY month",
}


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kartosql.Connection]:
    rows = range(240)
    seed = {
        "flight": list(rows),
        "month": [i // 60 + 1 for i in rows],
        "origin": [("EWR", "JFK", "LGA")[i % 3] for i in rows],
        "tail_number": [f"N{i % 70}" for i in rows],
    }
    late = [i for i in rows if i % 5]
    delays = {"flight": late, "month": [i // 60 + 1 for i in late], "delay": [i % 90 for i in late]}
    folder: Path = tmp_path_factory.mktemp("a folder with a long name, as in a store")
    with kartosql.connect(str(folder)) as found:
        cube = kartosql.Cube("flights", ["flight"], ["month"], index_columns=["tail_number"], seed_dataset="flights")
        found.build_cube(cube, {"flights": pa.table(seed), "delays": pa.table(delays)})
        planes = {"tail_number": [f"N{i}" for i in range(70)], "maker": ["Boeing"] * 70}
        found.create_dataset("planes", pa.table(planes))
        yield found


@pytest.fixture(scope="module")
def reports(con: kartosql.Connection) -> dict[str, Report]:
    return {name: con.sql(sql).content for name, sql in ASKED.items()}


def pieces(lines: list[str]) -> list[str]:
    """Return the words of lines, without those that draw; long ones in the pieces that may stand in other lines."""
    words = re.split(r"\s+|(?<=/)(?=.)|(?<=,)(?=\D)", " ".join(lines))
    return [word.rstrip(":") for word in words if re.search(r"\w", word)]


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", ASKED)
def test_a_report_fits_and_breaks_no_word(reports, name, columns):
    lines = reports[name]._laid_out(Page(columns))
    assert max(map(width, lines)) <= columns
    assert not [line for line in lines if line != line.rstrip()]
    whole = reports[name]._laid_out(Page(100_000))
    known = {*pieces(whole), *(f"N{i}" for i in range(70))}  # a map with fewer places begins and ends at other values
    for word in pieces(lines):
        if word in known:
            continue
        left, _, right = word.partition("…")
        assert right, (word, "is neither a word nor elided")
        assert [w for w in known if w.startswith(left) and w.endswith(right) and width(w) > columns // 3], word


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("name", [name for name in ASKED if name != "map"])  # whose places are put together
def test_a_report_says_the_same_at_each_width(reports, name, columns):
    found = set(pieces(reports[name]._laid_out(Page(columns))))
    heads = {"condition", "dataset", "operator", "answered", "by", "n", "share"}  # of the first column of a table
    elisions = [word.partition("…")[::2] for word in found if "…" in word]
    for word in set(pieces(reports[name]._laid_out(Page(100_000)))) - found - heads:
        assert [1 for left, right in elisions if word.startswith(left) and word.endswith(right)], word


@pytest.mark.parametrize("columns", WIDTHS)
def test_numbers_of_a_table_end_in_one_column(columns):
    rows = [["a name of several words that goes on", "1,234"], ["short", "7"], ["another", "123,456"]]
    lines = Page(columns).grid(("what", "rows"), rows, right=(1,))
    ends = {width(line) for line in lines if re.search(r"\d$", line)}
    assert len(ends) == 1


def test_a_table_without_room_shows_its_rows_as_paragraphs():
    rows = [["first", "a_word_of_a_column", "1,234,567", "12.3 GiB of 45.6 GiB"]]
    lines = Page(40).grid(("name", "column", "rows", "bytes of files"), rows, right=(2, 3))
    assert lines == [
        "  first",
        "    column:         a_word_of_a_column",
        "    rows:           1,234,567",
        "    bytes of files: 12.3 GiB of 45.6 GiB",
    ]


def test_a_tree_keeps_its_lines_where_its_cells_go_on():
    rows = [
        [Branch("join on one = two, three = four and five = six", "", "│ "), "7"],
        [Branch("read", "└─ ", "   "), "8"],
    ]
    assert Page(40).grid(("operator", "rows"), rows, right=(1,)) == [
        "  operator                          rows",
        "  ────────────────────────────────  ────",
        "  join on one = two, three =           7",
        "  │ four and five = six",
        "  └─ read                              8",
    ]


@pytest.mark.parametrize(
    ("text", "room", "wanted"),
    [("a/b", 3, "a/b"), ("abcdefgh", 5, "ab…gh"), ("東京都東京都", 7, "東…京都"), ("x" * 10**6, 4, "x…xx")],
)
def test_a_long_word_is_elided_in_the_middle(text, room, wanted):
    assert width(elided(text, room)) <= room
    assert elided(text, room) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("carrier, dest, flight, origin", "carrier, dest, …"),
        ("one two", "one two"),
        ("a" * 30, "aaaaaaaaa…aaaaaaaaaa"),
        ("short " + "b" * 30, "short bbb…bbbbbbbbbb"),
        ("東京都 " * 9, "東京都 東京都 …"),
    ],
)
def test_what_is_cut_is_cut_between_words(text, wanted):
    assert width(one_line(text, 20)) <= 20
    assert one_line(text, 20) == wanted


def test_hostile_text_stays_harmless_on_every_page():
    page = Page(40, lambda style, text: f"<{text}>" if style else text)
    lines = page.text("a\x1b[31m\u202eb", "", style="name") + page.grid(("h\x1b",), [["c\x9b"]])
    assert not [line for line in lines if re.search("[\x00-\x1f\x80-\x9f\u202e]", line)]
