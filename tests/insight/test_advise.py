"""Each advice is carried out, and has to save what it promised."""

from __future__ import annotations

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.sql import parse
from kartosql.sql.sargable import rewrites

ROWS = 120_000
DAY = dt.datetime(2020, 1, 1)


def _advice(con, sql, kind, parameters=None):
    return [a for a in con.sql(f"ADVISE {sql}", parameters).content.advice if a.kind == kind]


def _dataset(con, sql, name, parameters=None):
    (found,) = [
        d for s in con.explain(sql, parameters).to_dict()["scans"] for d in s["datasets"] if d["dataset"] == name
    ]
    return found


def _run(con, sql, parameters=None):
    query = con.sql(sql, parameters)
    rows = query.rows()
    return sorted(rows, key=repr), query.stats


@pytest.fixture
def parts(con):
    """A dataset of ten partitions, in each of which ``k`` has a range of its own, and ``m`` all its values."""
    n = 2_000
    i = np.arange(n)
    day = np.datetime64("2020-01-01") + i // 200
    table = pa.table({"q": i // 200, "k": i // 200 * 10 + i % 3, "m": i % 5, "w": i * 1.5, "day": day})
    con.create_dataset("d", table, partition_on=["q"])
    return con


# -- index -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "parameters"),
    [
        ("k = 31", None),
        ("k BETWEEN 40 AND 52", None),
        ("k = ?", [31]),
        ("k IN (1, 31, 61)", None),
        ("w < 100.5", None),
        ("k = 31 AND m >= 0", None),
        ("k % 10 = 1 AND q < 5 AND k > 20", None),
        ("k + q = 5", None),
    ],
)
def test_an_index_leaves_out_the_files_that_were_promised(parts, where, parameters):
    sql = f"SELECT w FROM d WHERE {where}"
    before, wanted = _dataset(parts, sql, "table", parameters), _run(parts, sql, parameters)[0]
    advice = _advice(parts, sql, "index", parameters)[0]
    assert advice.files == before["files_selected"]
    assert advice.bytes == before["bytes_selected"]
    parts.sql(advice.statement)
    after = _dataset(parts, sql, "table", parameters)
    assert before["files_selected"] - after["files_selected"] == advice.files_saved > 0
    assert before["bytes_selected"] - after["bytes_selected"] == advice.bytes_saved > 0
    assert _run(parts, sql, parameters)[0] == wanted


def test_an_index_on_a_dataset_of_a_cube_saves_what_was_promised(con):
    sql = "SELECT x, v2 FROM c.e WHERE v2 = 70"
    before, wanted = _dataset(con, sql, "e"), _run(con, sql)[0]
    (advice,) = _advice(con, sql, "index")
    assert advice.statement == "CREATE INDEX ON c.e (v2)"
    con.sql(advice.statement)
    after = _dataset(con, sql, "e")
    assert before["files_selected"] - after["files_selected"] >= advice.files_saved
    assert _run(con, sql)[0] == wanted


@pytest.mark.parametrize(
    "where",
    [
        "m = 3",  # stands in every file
        "w IS NULL",  # no index tells about NULL
        "k = 31 OR k IS NULL",
        "q = 3",  # is a partition key
        "k = m",  # two columns
        "random() < 0.5",
        "true",
    ],
)
def test_no_index_is_advised_that_could_not_help(parts, where):
    assert _advice(parts, f"SELECT w FROM d WHERE {where}", "index") == []


def test_nothing_is_advised_twice(parts):
    parts.sql("CREATE INDEX ON d (k)")
    assert _advice(parts, "SELECT w FROM d WHERE k = 31", "index") == []


def test_of_many_files_some_are_looked_into_and_the_advice_says_so(con):
    n = 80
    con.create_dataset("many", pa.table({"q": list(range(n)), "k": list(range(n))}), partition_on=["q"])
    (advice,) = _advice(con, "SELECT * FROM many WHERE k // 40 = 0", "index")
    assert advice.measured == "estimated from 32 of 80 files"
    assert abs(advice.files_saved - 40) <= 5


# -- skipping index --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "parameters"),
    [
        ("k = 31", None),
        ("k BETWEEN 40 AND 52", None),
        ("k = ?", [31]),
        ("k < 25", None),
        ("k >= 80", None),
        ("day < DATE '2020-01-04'", None),
        ("day BETWEEN DATE '2020-01-04' AND DATE '2020-01-05'", None),
    ],
)
def test_a_skipping_index_leaves_out_the_files_that_were_promised(parts, where, parameters):
    sql = f"SELECT w FROM d WHERE {where}"
    before, wanted = _dataset(parts, sql, "table", parameters), _run(parts, sql, parameters)[0]
    (advice,) = _advice(parts, sql, "skipping index", parameters)
    parts.sql(advice.statement)
    after = _dataset(parts, sql, "table", parameters)
    assert after["steps"][-1]["by"] == "minmax"
    assert before["files_selected"] - after["files_selected"] == advice.files_saved > 0
    assert before["bytes_selected"] - after["bytes_selected"] == advice.bytes_saved > 0
    assert _run(parts, sql, parameters)[0] == wanted
    assert _advice(parts, sql, "skipping index", parameters) == []


@pytest.mark.parametrize("where", ["m = 3", "k <> 31", "w < 3", "k = m", "k IS NULL", "k + 1 = 3", "k < 1000"])
def test_no_skipping_index_is_advised_that_could_not_help(parts, where):
    assert _advice(parts, f"SELECT w FROM d WHERE {where}", "skipping index") == []


@pytest.fixture
def mixed(con):
    """A dataset of ten files: in each all of ``m``, few values of ``few``, ``word`` and ``price``, many of ``many``."""
    n = 60_000
    i = np.arange(n)
    file = i // 6_000
    scattered = (i * 7919) % 6_000
    table = pa.table(
        {
            "q": file,
            "few": (scattered % 20) * 10 + file,
            "many": scattered * 10 + file,
            "word": [f"{k % 20}-{f}" for k, f in zip(scattered, file, strict=True)],
            "text": [f"{k}-{f}" for k, f in zip(scattered, file, strict=True)],
            "price": pa.array([f"{k % 20}.{f}" for k, f in zip(scattered, file, strict=True)]).cast(
                pa.decimal128(9, 1)
            ),
            "m": i % 5,
            "w": np.sin(i),
            "v": np.cos(i),
        }
    )
    con.create_dataset("d", table, partition_on=["q"])
    return con


@pytest.mark.parametrize(
    ("where", "parameters", "kind"),
    [
        ("few = 33", None, "valuelist"),
        ("few = ?", [33], "valuelist"),
        ("few IN (33, 44, 1000000)", None, "valuelist"),
        ("word = '3-3'", None, "valuelist"),
        ("word LIKE '3-3%'", None, "valuelist"),
        ("price = 3.4", None, "valuelist"),
        ("many = 33333", None, "bloomfilter"),
        ("many IN (33333, 44444)", None, "bloomfilter"),
        ("text = '3333-3'", None, "bloomfilter"),
        ("text IN (?, ?)", ["3333-3", "4444-4"], "bloomfilter"),
        ("text LIKE '3333-3%'", None, "prefix"),
        ("text LIKE '%3333-3%'", None, "ngram"),
        ("text LIKE ?", ["3%33-3"], "ngram"),  # the beginning is that of all files
        ("word ILIKE '%3-3'", None, "ngram"),
        ("regexp_matches(text, '[0-9]33-3$')", None, "ngram"),
    ],
)
def test_lists_filters_and_parts_of_texts_leave_out_the_files_that_were_promised(mixed, where, parameters, kind):
    sql = f"SELECT w FROM d WHERE {where}"
    before, wanted = _dataset(mixed, sql, "table", parameters), _run(mixed, sql, parameters)[0]
    (advice,) = _advice(mixed, sql, "skipping index", parameters)
    assert advice.files == before["files_selected"] == 10
    mixed.sql(advice.statement)
    after = _dataset(mixed, sql, "table", parameters)
    assert [s["by"] for s in after["steps"]] == [kind]
    saved = before["files_selected"] - after["files_selected"]
    assert saved >= advice.files_saved >= 7
    in_bytes = before["bytes_selected"] - after["bytes_selected"]
    assert in_bytes >= 0.98 * advice.bytes_saved > 0
    if kind != "bloomfilter":
        assert (saved, in_bytes) == (advice.files_saved, advice.bytes_saved)
    assert _run(mixed, sql, parameters)[0] == wanted
    assert _advice(mixed, sql, "skipping index", parameters) == []


@pytest.mark.parametrize(
    "where",
    [
        "m = 3",  # in all files
        "w = 0.5",  # no lists of floating-point numbers
        "many > 59990",  # filters do not tell, but bounds might
        "text > '9'",
        "text NOT LIKE '%3-3%'",
        "text LIKE '%-3'",  # no piece of three bytes
        "text LIKE '%33%' AND w > 2",
        "regexp_matches(text, '3-3|5-5')",
        "few + 1 = 34",
        "few = 33.5 OR few IS NULL",
        "few <> 33",
        f"many IN ({', '.join(str(n) for n in range(0, 1000, 10))})",  # too many values for a filter
    ],
)
def test_no_list_or_filter_is_advised_that_could_not_help(mixed, where):
    found = _advice(mixed, f"SELECT w FROM d WHERE {where}", "skipping index")
    assert [a for a in found if "MINMAX" not in a.statement] == []


def test_no_list_of_texts_is_advised_under_a_collation(mixed):
    mixed.sql("SET default_collation = 'nocase'")
    for where in ("word = '3-3'", "text LIKE '%33-3'"):
        assert _advice(mixed, f"SELECT w FROM d WHERE {where}", "skipping index") == []


def test_bounds_that_do_as_well_are_advised_alone(parts):
    (advice,) = _advice(parts, "SELECT w FROM d WHERE k = 31", "skipping index")
    assert "MINMAX(k)" in advice.statement


def test_broken_metadata_do_not_keep_advice_away(mixed):
    mixed.sql("CREATE SKIPPING INDEX ON d (MINMAX(m))")
    for key in mixed.store.list_below(".kartosql/skipping"):
        mixed.store.put(key, b"PAR1 nothing PAR1")
    with pytest.warns(KartosqlWarning, match="Data skipping"):
        (advice,) = _advice(mixed, "SELECT w FROM d WHERE few = 33", "skipping index")
    assert "VALUELIST(few)" in advice.statement


# -- useless index ---------------------------------------------------------------------------------


def test_dropping_a_useless_index_opens_no_more_files(parts):
    parts.sql("CREATE INDEX ON d (m, k)")
    sql = "SELECT w FROM d WHERE m = 3 AND k < 1000"
    before, (wanted, _) = _dataset(parts, sql, "table"), _run(parts, sql)
    (advice,) = _advice(parts, sql, "useless index")
    assert advice.statement == "DROP INDEX ON d (m)"
    key = next(r["key"] for r in parts.sql("SHOW INDEXES FROM d").arrow().to_pylist() if r["column"] == "m")
    assert advice.bytes_saved == parts.store.size(key)
    parts.sql(advice.statement)
    assert _dataset(parts, sql, "table")["files_selected"] == before["files_selected"]
    assert _run(parts, sql)[0] == wanted


def test_an_index_that_leaves_out_files_is_not_called_useless(parts):
    parts.sql("CREATE INDEX ON d (k)")
    assert _advice(parts, "SELECT w FROM d WHERE k = 31", "useless index") == []
    # Here it leaves out none, but its values stand in few files.
    assert _advice(parts, "SELECT w FROM d WHERE k >= 0", "useless index") == []


def test_the_index_of_a_dimension_stays(con):
    assert _advice(con, "SELECT v1 FROM c WHERE x >= 0", "useless index") == []


# -- compact ---------------------------------------------------------------------------------------


def test_compaction_leaves_as_many_files_as_promised(con):
    for number in range(4):
        rows = pa.table({"q": [0, 1, 2], "k": [number] * 3})
        if number:
            con.append_to_dataset("d", rows)
        else:
            con.create_dataset("d", rows, partition_on=["q"])
    sql = "SELECT sum(k) AS k FROM d WHERE q < 2"
    before, wanted = _dataset(con, sql, "table"), _run(con, sql)[0]
    (advice,) = _advice(con, sql, "compact")
    assert (advice.files, advice.files_saved, advice.statement) == (8, 6, "COMPACT d")
    con.sql(advice.statement)
    assert before["files_selected"] - _dataset(con, sql, "table")["files_selected"] == advice.files_saved
    assert _run(con, sql)[0] == wanted
    assert _advice(con, sql, "compact") == []


def test_compaction_of_a_cube_names_the_dataset(con):
    rows = {"x": [0, 39], "p": [0, 3], "i1": [5, 5], "v1": [-1.0, -2.0], "t": ["new", None]}
    con.append_to_cube("c", {"seed": pa.table(rows)})
    sql = "SELECT x, v1 FROM c"
    wanted = _run(con, sql)[0]
    (advice,) = _advice(con, sql, "compact")
    assert advice.statement == "COMPACT c.seed"
    assert "may hold newer versions" in advice.why
    before = _dataset(con, sql, "seed")["files_selected"]
    con.sql(advice.statement)
    assert before - _dataset(con, sql, "seed")["files_selected"] == advice.files_saved == 2
    assert _run(con, sql)[0] == wanted


# -- rewrite ---------------------------------------------------------------------------------------


@pytest.fixture
def hours(con):
    """One file with five row groups; all columns but ``w`` ascend."""
    i = np.arange(ROWS)
    t = np.datetime64("2020-01-01") + i.astype("timedelta64[m]") * 10
    day = t.astype("datetime64[D]")
    con.create_dataset("h", pa.table({"t": t.astype("datetime64[us]"), "day": day, "n": i, "w": np.sin(i)}))
    return con


@pytest.mark.parametrize(
    ("where", "new"),
    [
        ("strftime(t, '%Y-%m-%d') = '2020-02-03'", "(t >= DATE '2020-02-03' AND t < DATE '2020-02-04')"),
        ("'2021-12' = strftime(h.t, '%Y-%m')", "(h.t >= DATE '2021-12-01' AND h.t < DATE '2022-01-01')"),
        ("strftime(day, '%Y') = '2021'", "(day >= DATE '2021-01-01' AND day < DATE '2022-01-01')"),
        ("extract(year FROM t) = 2022", "(t >= DATE '2022-01-01' AND t < DATE '2023-01-01')"),
        ("date_part('year', t) = 2022", "(t >= DATE '2022-01-01' AND t < DATE '2023-01-01')"),
        ("t::DATE BETWEEN '2020-02-03' AND '2020-02-05'", "(t >= DATE '2020-02-03' AND t < DATE '2020-02-06')"),
        ("CAST(day AS VARCHAR) = '2020-02-03'", "(day >= DATE '2020-02-03' AND day < DATE '2020-02-04')"),
        ("CAST(n AS VARCHAR) = '70000'", "n = 70000"),
    ],
)
def test_a_rewritten_predicate_gives_the_same_rows_and_reads_fewer_row_groups(hours, where, new):
    sql = f"SELECT w FROM h WHERE {where} AND w > -2"
    (advice,) = _advice(hours, sql, "rewrite")
    assert advice.statement == f"SELECT w FROM h WHERE {new} AND w > -2"
    before, after = _run(hours, sql), _run(hours, advice.statement)
    assert before[0] == after[0] != []
    left = before[1]["row_groups_read"] - after[1]["row_groups_read"]
    assert left > 0
    assert f"in {left} of {before[1]['row_groups_read']} row groups" in advice.measured
    # Less than is told: where files are in the page cache, DuckDB reads only of ``day`` what holds no row.
    assert after[1]["bytes_read"] < before[1]["bytes_read"]
    assert 0 < advice.bytes_saved <= advice.bytes


@pytest.mark.parametrize(
    "where",
    [
        "CAST(n AS VARCHAR) = '007'",
        "CAST(n AS VARCHAR) = 'x'",
        "TRY_CAST(n AS VARCHAR) = '700'",
        "CAST(w AS VARCHAR) = '0'",
        "CAST(t AS VARCHAR) = '2020-02-03'",
        "month(t) = 3",
        "year(t) = 2020",  # DuckDB leaves out row groups by itself
        "CAST(t AS DATE) = DATE '2020-02-03'",
        "CAST(t AS DATE) NOT BETWEEN '2020-02-03' AND '2020-02-05'",
        "strftime(t, '%d') = '03'",
        "strftime(t, '%Y-%m-%d') = '2020-2-3'",
        "strftime(t, '%Y-%m') = '2020-13'",
        "extract(year FROM t) = n",
        "CAST(n AS VARCHAR) = '70000' OR w > 2",
    ],
)
def test_only_what_means_the_same_and_helps_is_rewritten(hours, where):
    assert _advice(hours, f"SELECT w FROM h WHERE {where}", "rewrite") == []


def test_a_time_zone_may_move_a_day_so_nothing_is_rewritten(con):
    t = pa.array([DAY + dt.timedelta(minutes=10 * i) for i in range(60_000)], pa.timestamp("us", "UTC"))
    con.create_dataset("z", pa.table({"t": t}))
    assert _advice(con, "SELECT * FROM z WHERE strftime(t, '%Y-%m-%d') = '2020-01-03'", "rewrite") == []


DAYS = [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2020, 2, 29), dt.date(2020, 3, 1), dt.date(2021, 12, 31)]
TIMES = [dt.datetime(d.year, d.month, d.day, *clock) for d in DAYS for clock in ((0, 0), (23, 59, 59, 999_999))]


@pytest.mark.parametrize(
    "predicate",
    [
        "strftime({}, '%Y-%m-%d') = '2020-02-29'",
        "strftime({}, '%Y-%m') = '2020-02'",
        "strftime({}, '%Y-%m') = '2021-12'",
        "strftime({}, '%Y') = '2021'",
        "extract(year FROM {}) = 1969",
        "date_part('YEAR', {}) = 2020",
        "{}::DATE BETWEEN DATE '1969-12-31' AND '2020-02-29'",
        "{}::DATE BETWEEN '2020-03-01' AND '2020-02-29'",
        "CAST({} AS VARCHAR) = '2020-02-29'",
    ],
)
@pytest.mark.parametrize("column", ["a", "b"])
def test_a_rewritten_predicate_holds_for_the_same_values(con, predicate, column):
    days = [*DAYS, *DAYS, None]
    con.register("r", pa.table({"a": pa.array(days, pa.date32()), "b": pa.array([*TIMES, None], pa.timestamp("us"))}))
    text = f"SELECT a FROM r WHERE {predicate.format(column)}"
    (found,) = rewrites(parse(text).tree, text)
    same = f"SELECT count(*) FROM r WHERE ({found.old}) IS DISTINCT FROM ({found.new})"
    if column == "a" or "timestamp" in found.types:
        assert con.sql(same).rows() == [(0,)]


def test_a_statement_that_shares_its_tree_with_another_one_is_rewritten_at_its_own_places(hours):
    for day, text in (("2020-02-03", "x"), ("2021-12-24", "a longer text")):
        sql = f"SELECT w FROM h WHERE '{text}' <> '' AND strftime(t, '%Y-%m-%d') = '{day}'"
        (advice,) = _advice(hours, sql, "rewrite")
        assert f"'{text}' <> '' AND (t >= DATE '{day}' AND t < DATE '" in advice.statement


# -- sort ------------------------------------------------------------------------------------------


def test_sorted_rows_stand_in_as_few_row_groups_as_promised(con):
    rng = np.random.default_rng(0)
    values = rng.permutation(ROWS)
    con.create_dataset("d", pa.table({"k": values, "w": values * 0.5, "g": rng.integers(0, 3, ROWS)}))
    sql = "SELECT sum(w) AS w FROM d WHERE k BETWEEN 1000 AND 1100"
    before = _run(con, sql)
    (advice,) = _advice(con, sql, "sort")
    assert advice.statement == "CREATE OR REPLACE DATASET d AS SELECT * FROM d ORDER BY k"
    con.sql(advice.statement)
    after = _run(con, sql)
    assert after[0] == before[0]
    of, left = (int(word) for word in advice.measured.replace(",", "").split() if word.isdigit())
    assert before[1]["row_groups_read"] == of
    assert after[1]["row_groups_read"] <= left
    assert after[1]["bytes_read"] <= before[1]["bytes_read"] - advice.bytes_saved
    assert _advice(con, sql, "sort") == []


def test_sorting_keeps_partitions_and_indices(con):
    rng = np.random.default_rng(0)
    values = rng.permutation(ROWS)
    con.create_dataset(
        "d", pa.table({"q": values % 2, "k": values, "i": values % 2}), partition_on=["q"], index_columns=["i"]
    )
    (advice,) = _advice(con, "SELECT * FROM d WHERE k < 10", "sort")
    assert advice.statement == "CREATE OR REPLACE DATASET d PARTITION BY (q) INDEX (i) AS SELECT * FROM d ORDER BY k"
    con.sql(advice.statement)
    assert con.sql("SHOW INDEXES FROM d").arrow()["column"].to_pylist() == ["i"]


@pytest.mark.parametrize("where", ["k % 7 = 3", "g >= 0", "abs(k) < 10"])
def test_sorting_is_not_advised_where_it_would_not_help(con, where):
    rng = np.random.default_rng(0)
    con.create_dataset("d", pa.table({"k": rng.permutation(ROWS), "g": rng.integers(0, 2, ROWS)}))
    assert _advice(con, f"SELECT * FROM d WHERE {where}", "sort") == []


# -- all of it -------------------------------------------------------------------------------------


def test_facts_say_what_is_read_and_why(con):
    facts = con.sql("ADVISE SELECT v1 FROM c WHERE v1 > 3").content.facts
    assert facts[0].startswith("reads 4 of 4 files, ")
    assert facts[1].startswith("c: v1 > 3 leaves out no file: no partition key, index")


def test_a_query_that_is_fine_gets_no_advice(con):
    advised = con.sql("ADVISE SELECT v1 FROM c WHERE p = 1").content
    assert advised.advice == ()
    assert str(advised).endswith("nothing was found that would help")


def test_the_best_advice_comes_first(parts):
    advice = parts.sql("ADVISE SELECT w FROM d WHERE k = 31 AND w < 1000").content.advice
    assert [a.bytes_saved for a in advice] == sorted((a.bytes_saved for a in advice), reverse=True)
    assert len(advice) >= 2


def test_advice_changes_nothing_and_works_on_connections_that_may_not_write(parts):
    with kartosql.connect(parts.store.url, read_only=True) as con:
        before = con.sql("SHOW FILES FROM d").rows()
        assert _advice(con, "SELECT w FROM d WHERE k = 31", "index")
        assert con.sql("SHOW FILES FROM d").rows() == before
        assert con.sql("SHOW INDEXES FROM d").rows() == []


def test_advice_in_every_format(parts):
    sql = "SELECT w FROM d WHERE k = 31"
    found = json.loads(parts.sql(f"ADVISE (FORMAT JSON) {sql}").rows()[0][0])
    assert found["advice"] == parts.sql(f"ADVISE (FORMAT TABLE) {sql}").arrow().to_pylist()
    query = parts.sql(f"ADVISE {sql}")
    assert "   do:    CREATE INDEX ON d (k)" in repr(query)
    assert "<code>CREATE INDEX ON d (k)</code>" in query._repr_html_()


def test_names_of_strangers_are_quoted_in_statements_and_escaped_in_texts(con):
    name = 'k"; DROP\x1b[31m\u202e <b>'
    table = pa.table({"q": list(range(10)), name: list(range(10))})
    con.create_dataset("d", table, partition_on=["q"])
    quoted = '"' + name.replace('"', '""') + '"'
    sql = f"SELECT q FROM d WHERE {quoted} = 3"
    query = con.sql(f"ADVISE {sql}")
    advice = next(a for a in query.content.advice if a.kind == "index")
    for text in (repr(query), query._repr_html_(), str(query.content)):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "<b>]" not in query._repr_html_()
    con.sql(advice.statement)
    assert con.explain(sql).files_selected == 1


def test_advice_about_registered_data_and_constants_is_empty(con):
    con.register("r", pa.table({"a": [1]}))
    assert con.sql("ADVISE SELECT a FROM r WHERE a = 3").content.advice == ()
    assert con.sql("ADVISE SELECT 1 AS a").content.advice == ()


def test_errors_of_the_query_are_its_own(con):
    with pytest.raises(KartosqlError) as e:
        con.sql("ADVISE SELECT nope FROM c")
    assert e.value.code == "unknown-column"
