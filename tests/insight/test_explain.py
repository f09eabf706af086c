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


ASKED = {
    "partition key": ("p >= 0", None),
    "inverted index": ("i1 >= 0", None),
    "minmax": ("s >= 's'", "minmax"),
    "valuelist": ("s <> 'x'", "valuelist"),
    "bloomfilter": ("s IN ('s0', 's1', 's2', 's3')", "bloomfilter"),
    "row groups": ("n >= 0", None),
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A dataset of 40 files in which each kind of structure knows a column, and leaves out nothing of it."""
    with kartosql.connect(str(tmp_path_factory.mktemp("asked"))) as con:
        rows = pa.table(
            {
                "p": [i // 4 for i in range(160)],
                "i1": [i % 4 for i in range(160)],
                "s": [f"s{i % 4}" for i in range(160)],
                "n": list(range(160)),
                "v": [float(i) for i in range(160)],
            }
        )
        con.create_dataset("ds", rows, partition_on=["p"], index_columns=["i1"])
        yield con


def _report(con, sql):
    for _ in range(2):  # statistics of row groups are remembered when a second statement that asks opens the files
        con.sql(sql).rows()
    (scan,) = con.explain(sql).to_dict()["scans"]
    return scan


@pytest.mark.parametrize("kind", list(ASKED))
def test_what_was_asked_and_left_everything_is_a_step_and_nothing_else(asked, kind):
    where, index = ASKED[kind]
    if index:
        asked.create_skipping_index("ds", **{index: ["s"]})
    scan = _report(asked, f"SELECT sum(n) FROM ds WHERE {where}")
    steps = scan["datasets"][0]["steps"]
    if index:
        asked.drop_skipping_index("ds")
    assert {"condition": where, "by": kind, "files_before": 40, "files_after": 40} in steps
    assert {s["by"] for s in steps} <= {kind, "row groups"}
    assert scan["not_used"] == []


def test_a_skipping_index_that_cannot_answer_was_not_asked(asked):
    asked.create_skipping_index("ds", minmax=["s"])
    scan = _report(asked, "SELECT sum(v) FROM ds WHERE length(s) = 2")
    asked.drop_skipping_index("ds")
    assert scan["datasets"][0]["steps"] == []
    assert [n["condition"] for n in scan["not_used"]] == ["length(s) = 2"]


@pytest.mark.parametrize(
    ("where", "by", "alternatives"),
    [
        (
            "(p = 1 AND length(s) = 2) OR (p = 2 AND length(s) = 3)",
            "partition key",
            [("p = 1 AND length(s) = 2", "partition key", 1), ("p = 2 AND length(s) = 3", "partition key", 1)],
        ),
        (
            "(p = 1 AND length(s) = 2) OR (p < 4 AND i1 = 9)",
            "inverted index",
            [("p = 1 AND length(s) = 2", "partition key", 1), ("p < 4 AND i1 = 9", "inverted index", 0)],
        ),
        (
            "(p = 1 AND i1 = 1) OR (p = 2 AND length(s) > 1)",
            "inverted index",  # asked for pairs of both columns
            [("p = 1 AND i1 = 1", "inverted index", 1), ("p = 2 AND length(s) > 1", "partition key", 1)],
        ),
    ],
)
def test_an_or_tells_what_each_of_its_parts_left_and_what_answered_it(asked, where, by, alternatives):
    sql = f"SELECT sum(v) FROM ds WHERE {where}"
    (step,) = [s for s in _report(asked, sql)["datasets"][0]["steps"] if s["condition"] == where]
    assert step["by"] == by
    assert [tuple(a.values()) for a in step["alternatives"]] == alternatives
    lines = [re.split(r" {2,}", line.strip()) for line in _lines(asked, f"EXPLAIN {sql}")]
    for text, kind, left in alternatives:
        assert [f"or: {text}", kind, f"40 -> {left}"] in [line[:3] for line in lines]
    assert "<code>" in str(asked.explain(sql).html())
    table = asked.sql(f"EXPLAIN (FORMAT TABLE) {sql}").arrow().to_pylist()
    assert [r["condition"] for r in table if r["step"] is None and r["files_after"] is not None] == [
        text for text, _, _ in alternatives
    ]


def test_advice_tells_what_was_asked_in_vain_and_still_finds_what_would_help(asked):
    asked.create_skipping_index("ds", minmax=["s"])
    found = str(asked.sql("ADVISE SELECT sum(v) FROM ds WHERE s = 's1' AND v < 8"))
    asked.drop_skipping_index("ds")
    assert "s = 's1' leaves out no file: minmax was asked, and keeps all of them" in found


def test_a_large_plan_notes_what_steps_left_only_if_it_is_asked_for(con, monkeypatch):
    monkeypatch.setattr("kartosql.plan.prune.FEW_FILES", 0)
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
    assert re.search(r"^  rows: +10$", "\n".join(_lines(con, f"EXPLAIN ANALYZE {sql}")), re.MULTILINE)
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


def _all(operators):
    for operator in operators:
        yield operator
        yield from _all(operator["children"])


def test_analyze_shows_the_operators_of_the_engine_with_what_they_took(con):
    con.register("r", pa.table({"p": [3, 3]}))
    query = con.sql(
        "EXPLAIN ANALYZE SELECT i1, count(*) AS n, max(v2) FROM c JOIN r USING (p) WHERE v1 > 31 GROUP BY i1"
    )
    text = str(query.content)
    assert "{" not in text
    assert "#" not in text
    report = query.content.to_dict()
    found = {o["name"]: o for o in _all(report["operators"])}
    (seed,) = [o for name, o in found.items() if name.startswith("read c.seed: 4 of 4 files; 4 row groups; columns ")]
    assert (seed["name"].endswith("where (v1 > 31.0)"), seed["rows"]) == (True, 8)
    assert [name for name in found if name.startswith("read c.e: 1 of 2 files")]
    assert [name for name in found if name.startswith("read data in memory")]
    (groups,) = [o for name, o in found.items() if name == "hash group by i1: count(*), max(v2)"]
    assert groups["rows"] == report["actual"]["rows"] == 8
    assert all(o["seconds"] >= 0 for o in found.values())
    lines = [line for line in text.splitlines() if "hash group by" in line]
    assert re.search(r"i1: count\(\*\), max\(v2\) +[\d.]+ m?s +8 +\d+ B$", lines[0])
    assert "hash group by i1" in query._repr_html_()


def test_scans_of_one_run_name_the_table_that_each_reads(con):
    con.create_dataset("d", pa.table({"x": [1, 2], "y": [3, 4]}), partition_on=["y"])
    text = str(con.sql("EXPLAIN ANALYZE SELECT * FROM d JOIN c.seed USING (x) WHERE y = 3").content)
    assert "read d: 1 of 2 files" in text
    assert re.search(r"read (c\.)?seed: \d of 4 files", text), text


@pytest.mark.parametrize("sql", ["VALUES (1), (2)", "PIVOT r ON t USING sum(n)"])
def test_where_the_engine_tells_nothing_the_report_says_so(con, sql):
    con.register("r", pa.table({"n": [1, 2], "t": ["a", "b"]}))
    assert "operators: DuckDB does not tell what they took" in _lines(con, f"EXPLAIN ANALYZE {sql}")


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELECT unnest([1, 2])", "unnest"),
        (
            "WITH w AS MATERIALIZED (SELECT p, count(*) AS n FROM r GROUP BY p) FROM w a JOIN w b USING (p)",
            "keep rows of w",
        ),
        ("SELECT p FROM r ORDER BY p DESC LIMIT 1", "first 1 by p DESC"),
        ("SELECT rank() OVER (ORDER BY p) FROM r QUALIFY rank() OVER (ORDER BY p) < 2", "filter "),
        ("WITH RECURSIVE z AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM z WHERE n < 3) FROM z", "repeat of z"),
        ("SELECT p FROM r a ANTI JOIN r b USING (p)", "anti hash join on p = p"),
        ("SELECT count(*) FILTER (p > 1) FROM r", "where a condition holds"),
        ("SELECT 1 WHERE 1 = 0", "no row"),
    ],
)
def test_operators_are_named_in_words(con, sql, told):
    con.register("r", pa.table({"p": [1, 2, 3]}))
    names = [o["name"] for o in _all(con.sql(f"EXPLAIN ANALYZE {sql}").content.to_dict()["operators"])]
    assert [name for name in names if told in name], names
    assert not [name for name in names if "#" in name or "__" in name or name.isupper()]
