"""Values of small sources are looked up in the structures of large ones, where that saves files."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import kartosql
import kartosql.query
from kartosql.engines.duckdb import evaluator
from kartosql.engines.duckdb.evaluator import Planner
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.plan import dynamic_filters
from kartosql.plan.prune import prune
from kartosql.store import Store
from written import write_dataset

FILES = 200


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    """``big`` has 200 files by ``p`` with an index on ``i`` (10 p .. 10 p + 3) and ``s``; ``small`` has 4 rows."""
    store = Store(f"memory://{uuid.uuid4().hex}")
    rows = [(p, 10 * p + i) for p in range(FILES) for i in range(4)]
    big = pa.table(
        {
            "p": [p for p, _ in rows],
            "i": pa.array([i if i % 7 else None for _, i in rows], pa.int64()),
            "s": [f"s{i}" for _, i in rows],
            "f": [float(p) for p, _ in rows],
            "v": [i % 5 for _, i in rows],
        }
    )
    write_dataset(store, "big", big, partition_on="p", index_columns=["i", "s", "f"])
    small = pa.table(
        {
            "k": pa.array([11, 12, 501, None], pa.int32()),
            "p": [1, 1, 50, 3],
            "s": ["s11", "s12", None, "none"],
            "f": [1.0, 1.0, 50.0, float("nan")],
            "flag": [True, False, True, True],
        }
    )
    write_dataset(store, "small", small)
    with kartosql.connect(store.url) as made:
        made.register("given", pa.table({"k": [21, 22, 999_999], "s": ["s21", "x", "y"]}))
        yield made


def check(connection: Any, monkeypatch: pytest.MonkeyPatch, sql: str, parameters: Any = None) -> int:
    """Compare the rows with those of all files, and return how many files of ``big`` are read."""
    rows = sorted(map(repr, connection.sql(sql, parameters).rows()))
    with monkeypatch.context() as patch:
        patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
        assert rows == sorted(map(repr, connection.sql(sql, parameters).rows()))
    scans = connection.explain(sql, parameters).to_dict()["scans"]
    return sum(len(scan["datasets"][0]["files"]) for scan in scans if scan["table"] == "big")


@pytest.mark.parametrize(
    ("sql", "files"),
    [
        ("SELECT * FROM big WHERE i IN (SELECT k FROM small)", 2),
        ("SELECT * FROM big WHERE i IN (SELECT k FROM small WHERE flag)", 2),
        ("SELECT * FROM big WHERE i IN (SELECT k FROM small WHERE NOT flag)", 1),
        ("SELECT * FROM big WHERE i IN (SELECT k FROM small WHERE k > 1000)", 0),
        ("SELECT * FROM big WHERE s IN (SELECT s FROM small)", 1),
        ("SELECT * FROM big WHERE p IN (SELECT p FROM small)", 3),
        ("SELECT * FROM big WHERE p = ANY (SELECT p FROM small WHERE flag)", 3),
        ("SELECT * FROM big WHERE EXISTS (SELECT 1 FROM small WHERE small.k = big.i AND flag)", 2),
        ("SELECT * FROM big WHERE EXISTS (SELECT 1 FROM small WHERE small.k = big.i AND small.p = big.p)", 2),
        ("SELECT * FROM big JOIN small ON big.i = small.k", 2),
        ("SELECT * FROM big JOIN small ON big.i = small.k WHERE NOT small.flag", 1),
        ("SELECT * FROM big SEMI JOIN small ON big.i = small.k", 2),
        ("SELECT * FROM small LEFT JOIN big ON big.i = small.k", 2),
        ("SELECT * FROM big, small WHERE big.p = small.p AND small.k = 501", 1),
        ("SELECT * FROM big JOIN small USING (p)", 3),
        ("SELECT * FROM (SELECT p, i AS j FROM big) b JOIN small ON b.j = small.k", 2),
        ("WITH b AS (SELECT DISTINCT i FROM big) SELECT * FROM b WHERE i IN (SELECT k FROM small)", 2),
        ("SELECT * FROM big JOIN (SELECT k AS n FROM small WHERE flag) x ON x.n = big.i", 2),
        ("SELECT * FROM big WHERE i IN (SELECT k FROM given)", 1),
        ("SELECT * FROM big JOIN given ON big.i = given.k AND given.k > 21", 1),
        ("SELECT * FROM big a WHERE i IN (SELECT k FROM small WHERE EXISTS (SELECT 1 FROM given))", 2),
        # What may not be looked up.
        ("SELECT * FROM big WHERE i NOT IN (SELECT k FROM small WHERE k IS NOT NULL)", FILES),
        ("SELECT * FROM big WHERE NOT EXISTS (SELECT 1 FROM small WHERE small.k = big.i)", FILES),
        ("SELECT * FROM big ANTI JOIN small ON big.i = small.k", FILES),
        ("SELECT * FROM big LEFT JOIN small ON big.i = small.k", FILES),
        ("SELECT * FROM big FULL JOIN small ON big.i = small.k", FILES),
        ("SELECT * FROM big WHERE i IN (SELECT k FROM small) OR v = 1", FILES),
        ("SELECT * FROM big JOIN small ON big.f = small.f", FILES),
        ("SELECT *, i IN (SELECT k FROM small) FROM big", FILES),
        ("SELECT count(*) FROM big WHERE EXISTS (SELECT count(*) FROM small WHERE small.k = big.i)", FILES),
        ("SELECT * FROM big, LATERAL (SELECT count(*) FROM small WHERE small.k = big.i)", FILES),
        ("SELECT * FROM (SELECT * FROM big LIMIT 800) b JOIN small ON b.i = small.k", FILES),
    ],
)
@pytest.mark.parametrize("fetched", [256, 0], ids=["values fetched", "values held"])
def test_the_files_that_a_small_source_leaves(connection, monkeypatch, sql, files, fetched):
    monkeypatch.setattr(evaluator, "MAX_FETCHED", fetched)
    assert check(connection, monkeypatch, sql) == files


def test_values_that_were_held_are_gone_after_the_statement(connection, monkeypatch):
    monkeypatch.setattr(evaluator, "MAX_FETCHED", 0)
    planners = []
    begin = Planner.begin
    monkeypatch.setattr(Planner, "begin", lambda self, *args: planners.append(self) or begin(self, *args))
    assert check(connection, monkeypatch, "SELECT * FROM big WHERE i IN (SELECT k FROM small WHERE k < 500)") == 1
    for planner in planners:
        assert planner.rows("SELECT table_name FROM duckdb_tables() WHERE table_name LIKE 'kartosql_values%'") == []


def test_a_large_source_is_not_read_twice(connection, monkeypatch):
    assert check(connection, monkeypatch, "SELECT count(*) FROM big a JOIN big b ON a.i = b.i") == 2 * FILES


def test_more_values_than_may_be_looked_up_are_no_condition(connection, monkeypatch):
    monkeypatch.setattr(dynamic_filters, "MAX_VALUES", 2)
    assert check(connection, monkeypatch, "SELECT i, p FROM big WHERE i IN (SELECT k FROM small)") == FILES
    assert check(connection, monkeypatch, "SELECT i, p FROM big WHERE i IN (SELECT k FROM small WHERE flag)") == 2


def test_values_found_for_one_table_are_a_condition_for_the_next(connection, monkeypatch):
    joined = "big a JOIN big b ON a.i = b.i + 0 JOIN big c ON c.p = a.p"
    sql = f"SELECT count(*) FROM {joined} WHERE a.i IN (SELECT k FROM given)"
    connection.sql(sql).rows()
    scans = {scan["table"]: scan for scan in connection.explain(sql).to_dict()["scans"]}
    assert "given" in str(scans)
    assert check(connection, monkeypatch, sql) < 3 * FILES


def test_the_report_shows_what_was_looked_up(connection):
    report = connection.explain("SELECT * FROM big WHERE i IN (SELECT k FROM small)")
    (step,) = report.to_dict()["scans"][0]["datasets"][0]["steps"]
    assert step == {
        "condition": "i is one of 3 values of small.k",
        "by": "inverted index",
        "files_before": FILES,
        "files_after": 2,
    }


def test_parameters_of_the_small_source_are_used(connection, monkeypatch):
    sql = "SELECT * FROM big WHERE i IN (SELECT k FROM small WHERE k <> ?)"
    assert check(connection, monkeypatch, sql, [501]) == 1


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("d = current_date", 1),
        ("d = today()", 1),
        ("d > now()", 2),
        ("d >= current_date - 1 AND d < current_timestamp", 2),
        ("d = '2001-01-01' AND now() > TIMESTAMP '2020-01-01'", 1),
        ("d < get_current_timestamp() OR d IS NULL", 3),
        ("d = 'now()' OR d = current_date", None),
        ("d > random() * now()", None),
    ],
)
def test_the_clock_stands_still_while_a_statement_is_planned_and_run(monkeypatch, where, files):
    now = dt.datetime.now(dt.UTC)
    if (now + dt.timedelta(minutes=1)).date() != now.date():
        time.sleep(60)  # or it is tomorrow in the middle of it
    today = dt.datetime.now(dt.UTC).date()
    days = [dt.date(2001, 1, 1), today - dt.timedelta(1), today, today + dt.timedelta(1), today + dt.timedelta(400)]
    store = Store(f"memory://{uuid.uuid4().hex}")
    write_dataset(store, "t", pa.table({"d": days, "v": range(5)}), partition_on="d")
    sql = f"SELECT v FROM t WHERE {where}"
    with kartosql.connect(store.url) as con:
        if files is None:
            with pytest.raises(kartosql.KartosqlError):
                con.sql(sql).rows()
            return
        rows = con.sql(sql).rows()
        with monkeypatch.context() as patch:
            patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
            assert con.sql(sql).rows() == rows
        assert con.explain(sql).to_dict()["scans"][0]["datasets"][0]["files_selected"] == files


@pytest.mark.parametrize("fetched", [256, 0], ids=["values fetched", "values held"])
def test_values_that_python_has_no_type_for_are_joined_as_all_others(tmp_path, monkeypatch, fetched):
    monkeypatch.setattr(evaluator, "MAX_FETCHED", fetched)
    (tmp_path / "store").mkdir()
    (tmp_path / "big").mkdir()
    day = "INTERVAL (i) DAY"
    dates = "CASE WHEN i = 7 THEN DATE 'infinity' WHEN i = 9 THEN DATE '-infinity' ELSE DATE '2020-01-01' + i::INT END"
    columns = f"i, {dates} AS d, TIMESTAMP 'epoch' + {day} AS t, TIMESTAMPTZ '2020-01-01 00:00:00+00' + {day} AS z"
    for i in range(40):
        duckdb.sql(f"COPY (SELECT {columns} FROM range({i}, {i + 1}) r(i)) TO '{tmp_path}/big/{i}.parquet'")
    duckdb.sql(f"COPY (SELECT {columns} FROM range(40) r(i) WHERE i IN (2, 7, 9, 11)) TO '{tmp_path}/small.parquet'")
    with kartosql.connect(tmp_path / "store") as con:
        con.attach(tmp_path / "big", "big")
        con.attach(tmp_path / "small.parquet", "small")
        con.create_index("big", ["d", "t", "z"])
        for column in "dtz":
            query = con.sql(f"SELECT big.i FROM big JOIN small USING ({column}) ORDER BY 1")
            assert query.rows() == [(2,), (7,), (9,), (11,)]
        assert fetched == 0 or con.explain("SELECT * FROM big JOIN small USING (z)").files_selected == 5


def test_a_result_that_cannot_be_fetched_is_not_in_the_way_of_what_comes(connection):
    statement = connection._session.runtime
    with statement.planner(connection._session.settings, FileAccess(statement.store)) as planner:
        with pytest.raises(OverflowError):
            planner.rows("SELECT INTERVAL 2000000000 days")
        planner.register("more", pa.table({"a": [1]}))
        assert planner.rows("FROM more") == [(1,)]
        planner.unregister("more")
