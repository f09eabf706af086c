"""Engines are kept from statement to statement, and nothing of a statement stays in them."""

from __future__ import annotations

import datetime as dt
import glob
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.engines.duckdb import runtime
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.errors import KartosqlError
from kartosql.store import Store
from written import write_dataset

ROWS = pa.table({"x": list(range(40)), "p": [i // 4 for i in range(40)], "i": [i % 7 for i in range(40)]})


def _write(store: Store, name: str = "t", rows: pa.Table = ROWS, **options: Any) -> None:
    write_dataset(store, name, rows, partition_on=["p"], index_columns=["i"], **options)


@pytest.fixture
def connection(store: Store) -> Any:
    """Ten files of four rows each, and a second dataset."""
    _write(store)
    _write(store, "other")
    with kartosql.connect(store.url) as connection:
        yield connection


def _idle(connection: Any) -> list[runtime.Instance]:
    return list(connection._session.runtime._idle)


# -- what is used again ------------------------------------------------------------------------


def test_a_repeated_statement_makes_no_engine(connection, made):
    for _ in range(5):
        assert connection.sql("SELECT sum(x) FROM t WHERE p = 3").rows() == [(54,)]
    assert len(made) == 2  # the planner's and one locked


def test_statements_over_other_files_of_a_table_soon_need_no_new_engine(connection, made):
    for p in range(10):
        assert connection.sql(f"SELECT sum(x) FROM t WHERE p = {p}").rows() == [(16 * p + 6,)]
    assert len(made) == 3


def test_a_statement_over_another_table_gets_another_engine(connection, made):
    for name in ("t", "other", "t", "other"):
        connection.sql(f"SELECT sum(x) FROM {name}").rows()
    assert len(made) == 3


def test_readers_that_are_open_at_once_have_engines_of_their_own(connection):
    readers = [connection.sql(f"SELECT x FROM t WHERE i = {i} ORDER BY x").reader() for i in range(7)]
    found = [[row["x"] for row in r.read_all().to_pylist()] for r in readers]
    assert found == [list(range(i, 40, 7)) for i in range(7)]
    assert len(_idle(connection)) <= runtime.MAX_IDLE


def test_statements_run_in_many_threads(connection):
    def ask(i: int) -> tuple[int, list[Any]]:
        query = connection.sql("SELECT sum(x), count(*) FROM t WHERE i = ?", [i % 7])
        return i % 7, query.rows()

    with ThreadPoolExecutor(8) as pool:
        for i, rows in pool.map(ask, range(60)):
            matching = list(range(i, 40, 7))
            assert rows == [(sum(matching), len(matching))]


def test_an_engine_in_which_a_statement_failed_is_not_used_again(connection, made):
    connection.sql("SELECT x FROM t").rows()
    with pytest.raises(KartosqlError):
        connection.sql("SELECT CAST('a' || x AS INTEGER) FROM t").rows()
    assert connection.sql("SELECT sum(x) FROM t").rows() == [(780,)]
    assert len(made) == 3
    assert _idle(connection) == made[2:]


def test_an_engine_whose_result_was_not_read_to_its_end_is_not_used_again(connection):
    reader = connection.sql("SELECT a.x FROM t a, t b, t c, t d").reader()
    reader.read_next_batch()
    reader.close()
    del reader
    assert _idle(connection) == []
    assert connection.sql("SELECT sum(x) FROM t").rows() == [(780,)]


def test_footers_are_bounded(connection, made, monkeypatch):
    one = runtime.COLUMN_BYTES * len(connection.sql("SELECT * FROM t").schema)
    monkeypatch.setattr(runtime, "MAX_FOOTER_BYTES", 4 * one)
    held = []
    for p in (0, 1, 2, 3, 4, 5):
        assert connection.sql(f"SELECT sum(x) FROM t WHERE p = {p}").rows() == [(16 * p + 6,)]
        held.append(sum(i.footer_bytes for i in _idle(connection)))
    assert 0 < max(held) <= 4 * one
    assert connection.sql("SELECT sum(x) FROM t WHERE x >= 0").rows() == [(780,)]
    assert all(i.footer_bytes <= 4 * one for i in made)
    monkeypatch.setattr(runtime, "MAX_FOOTER_BYTES", 0)
    assert connection.sql("SELECT sum(x) FROM t WHERE p = 1").rows() == [(22,)]
    assert [(i.footer_bytes, i.setting("parquet_metadata_cache")) for i in _idle(connection)] == [(0, False)]


# -- the one statement of a command -------------------------------------------------------------

ALONE = [
    "SELECT sum(x) FROM t WHERE i = 1",
    "SELECT x FROM t WHERE p = 3 ORDER BY x",
    "SELECT count(*) FROM t WHERE p = 99",
    "SELECT count(*) FROM t",
    "SELECT count(*) FROM t JOIN other USING (x) WHERE t.i = 1 AND other.p < 5",
    "SELECT x FROM t WHERE x IN (SELECT x FROM other WHERE i = 2) ORDER BY x",
    "SELECT * FROM (PIVOT t ON i USING sum(x)) ORDER BY ALL",
    "SELECT max(x) FROM t WHERE now() > TIMESTAMPTZ '2020-01-01' AND i = 1",
]


@pytest.mark.parametrize("sql", ALONE)
def test_a_statement_that_is_expected_alone_has_the_same_rows(connection, sql):
    expected = connection.sql(sql).rows()
    with kartosql.connect(connection.store.url) as alone:
        alone.expect_one_statement()
        assert alone.sql(sql).rows() == expected
        assert alone.sql(sql).rows() == expected  # others still work
        found = alone.sql("SELECT sum(x) FROM other WHERE i < 3 AND p <> 4").rows()
        assert found == [(sum(x for x in range(40) if x % 7 < 3 and x // 4 != 4),)]


def test_a_statement_that_is_expected_alone_runs_in_the_planners_engine(connection, made):
    connection.expect_one_statement()
    assert connection.sql("SELECT sum(x) FROM t WHERE i = 1").rows() == [(111,)]
    assert len(made) == 1
    assert not connection._session.runtime._planners
    assert not any(_left(connection).values())
    (kept,) = _idle(connection)
    cursor = kept.cursor()
    assert cursor.execute("SELECT * FROM duckdb_schemas() WHERE schema_name LIKE '%planner%'").fetchall() == []
    cursor.close()


def test_the_planners_engine_is_locked_before_it_runs_a_statement(tmp_path):
    store = Store(str(tmp_path / "store"), create=True)
    _write(store)
    with kartosql.connect(store.url) as connection:
        connection.expect_one_statement()
        assert connection.sql("SELECT sum(x) FROM t WHERE i = 1 AND p < 3").rows() == [(9,)]
        (kept,) = _idle(connection)
        (index,) = glob.glob(f"{store.url}/t/indices/i/*")
        (unread,) = glob.glob(f"{store.url}/t/table/p=9/*.parquet")
        for path in (index, unread):
            assert "disabled by configuration" in _refused(kept, f"FROM read_parquet('{path}')")
        assert "locked" in _refused(kept, "SET enable_external_access = true")


def test_engines_are_closed_by_threads_that_the_interpreter_waits_for(connection, monkeypatch):
    daemons: list[bool] = []
    close = runtime.Instance.close

    def noted(self: runtime.Instance) -> None:
        daemons.append(threading.current_thread().daemon)
        close(self)

    def work() -> None:
        reader = connection.sql("SELECT a.x FROM t a, t b, t c, t d").reader()
        reader.read_next_batch()
        reader.close()

    monkeypatch.setattr(runtime.Instance, "close", noted)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    for closing in threading.enumerate():
        if closing.name == "kartosql-close":
            closing.join()
    assert daemons == [False]


# -- what does not stay ------------------------------------------------------------------------


def _left(connection: Any) -> dict[str, list[Any]]:
    (kept,) = _idle(connection)
    cursor = kept.cursor()
    queries = {
        "views": "SELECT view_name FROM duckdb_views() WHERE NOT internal",
        "tables": "SELECT table_name FROM duckdb_tables()",
        "types": "SELECT type_name FROM duckdb_types() WHERE NOT internal",
        "schemas": "SELECT schema_name FROM duckdb_schemas() "
        "WHERE regexp_full_match(schema_name, '__kartosql_([4-9]|..+)')",
        "variables": "SELECT name FROM duckdb_variables()",
    }
    found = {what: cursor.execute(sql).fetchall() for what, sql in queries.items()}
    cursor.close()
    return found


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t a JOIN t b USING (p) WHERE a.i = 1",
        "SELECT count(*) FROM r JOIN t USING (x)",
        "SELECT count(*) FROM (PIVOT t ON i USING sum(x))",
    ],
)
def test_a_statement_leaves_nothing_behind(connection, sql):
    connection.register("r", pa.table({"x": [1, 2]}))
    connection.sql(sql).rows()
    assert not any(_left(connection).values())


def test_planning_leaves_no_variables_and_tables_of_a_statement(connection):
    for sql in ("SELECT x FROM t WHERE i = 1", "SELECT x FROM t WHERE p = 1 AND i < 3"):
        connection.sql(sql).rows()
        (planner,) = connection._session.runtime._planners.values()
        assert planner.rows("SELECT name FROM duckdb_variables() WHERE name LIKE 'kartosql_files%'") == []
        assert planner.data_keys == []


def _refused(kept: runtime.Instance, sql: str) -> str:
    cursor = kept.cursor()
    with pytest.raises(duckdb.Error) as e:
        cursor.execute(sql).fetchall()
    cursor.close()
    return str(e.value)


def test_a_kept_engine_reads_no_files_but_those_of_its_tables(tmp_path):
    store = Store(str(tmp_path / "store"), create=True)
    _write(store)
    _write(store, "other")
    with kartosql.connect(store.url) as connection:
        for p in range(5):
            connection.sql(f"SELECT x FROM t WHERE p = {p}").rows()
        kept = _idle(connection)[-1]
        own = glob.glob(f"{store.url}/t/table/*/*.parquet")
        foreign = glob.glob(f"{store.url}/other/table/*/*.parquet")[0]
        assert kept.allows([os.path.relpath(path, store.url) for path in own])
        for sql in (
            f"FROM read_parquet('{foreign}')",
            f"FROM glob('{store.url}/*')",
            f"FROM read_text('{store.url}/t.by-dataset-metadata.json')",
            f"FROM read_parquet('{store.url}/t/indices/i/*')",
            f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
            f"ATTACH '{tmp_path}/out.db'",
        ):
            assert "disabled by configuration" in _refused(kept, sql)
        for sql in (
            "SET enable_external_access = true",
            "SET allowed_paths = ['/']",
            "SET threads = 1",
            "RESET threads",
        ):
            assert "locked" in _refused(kept, sql)
        assert not os.path.exists(tmp_path / "out.csv")


def test_an_engine_that_only_bound_a_query_reads_no_file(connection):
    assert connection.sql("SELECT x FROM t").schema == pa.schema({"x": pa.int64()})
    (kept,) = _idle(connection)
    assert kept.allows([])
    assert not kept.allows(connection.explain("SELECT x FROM t").selected)


# -- settings ----------------------------------------------------------------------------------


def test_changed_settings_hold_for_the_next_statement(connection):
    sql = "SELECT CAST(TIMESTAMPTZ '2026-01-01 00:00:00+00' AS VARCHAR), count(*) FROM t WHERE p = 1"
    assert connection.sql(sql).rows() == [("2026-01-01 00:00:00+00", 4)]
    connection.sql("SET TimeZone = 'Asia/Tokyo'")
    assert connection.sql(sql).rows() == [("2026-01-01 09:00:00+09", 4)]
    connection.sql("RESET TimeZone")
    assert connection.sql(sql).rows() == [("2026-01-01 00:00:00+00", 4)]


def test_settings_change_what_conditions_on_partitions_mean(store):
    rows = pa.table({"x": [1, 2], "p": ["a", "A"]})
    write_dataset(store, "t", rows, partition_on=["p"])
    with kartosql.connect(store.url) as connection:
        for collation, expected in ((None, [(1,)]), ("NOCASE", [(1,), (2,)]), (None, [(1,)])):
            connection.settings.set("default_collation", collation)
            assert connection.sql("SELECT x FROM t WHERE p = 'a' ORDER BY x").rows() == expected


def test_a_setting_that_the_engine_does_not_take_is_refused_when_it_is_set(connection):
    for name, value in (("memory_limit", "much"), ("TimeZone", "Not/AZone"), ("default_collation", "loud")):
        with pytest.raises(KartosqlError) as e:
            connection.sql(f"SET {name} = '{value}'")
        assert e.value.code == "invalid-setting"
    assert connection.sql("SELECT sum(x) FROM t").rows() == [(780,)]


def test_a_timeout_holds_for_the_statements_it_was_set_for(connection):
    slow = "SELECT count(*) FROM range(3000000) a, range(100) b, t WHERE (a.range * b.range + x) % 7 = 8"
    connection.sql("SELECT sum(x) FROM t").rows()
    connection.sql("SET timeout = 0.05")
    with pytest.raises(KartosqlError) as e:
        connection.sql(slow).rows()
    assert e.value.code == "timeout"
    connection.sql("RESET timeout")
    assert connection.sql("SELECT count(*) FROM range(100000) a, range(100) b, t WHERE p = 1").rows() == [(40_000_000,)]


# -- the end -----------------------------------------------------------------------------------


def test_results_outlive_the_connection(store, made):
    _write(store)
    connection = kartosql.connect(store.url)
    lazy, done = connection.sql("SELECT sum(x) FROM t"), connection.sql("SELECT max(x) FROM t")
    done.arrow()
    reader = connection.sql("SELECT x FROM t ORDER BY x").reader()
    connection.close()
    assert reader.read_all().num_rows == 40
    assert done.rows() == [(39,)]
    assert lazy.rows() == [(780,)]
    assert lazy.explain().files_selected == 10
    assert _idle(connection) == []
    assert not connection._session.runtime._planners


def test_an_engine_that_ran_short_of_memory_is_closed_before_the_next_statement(tmp_path, monkeypatch):
    closed, close = [], runtime.Instance.close
    monkeypatch.setattr(runtime.Instance, "close", lambda self: (closed.append(threading.get_ident()), close(self)))
    with kartosql.connect(tmp_path, memory_limit="60MB") as con:
        with pytest.raises(KartosqlError) as e:
            con.sql("SELECT list(repeat('x', 1000)) FROM range(1000000)").rows()
        assert (e.value.code, closed) == ("out-of-memory", [threading.get_ident()])
        assert con.sql("SELECT 1").rows() == [(1,)]


def test_closing_waits_for_nothing_and_leaves_no_thread_and_no_folder(store, tmp_path_factory, monkeypatch):
    _write(store)
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with kartosql.connect(store.url) as connection:
        for i in range(3):
            connection.sql("SELECT * FROM t WHERE i = ? ORDER BY x", [i]).rows()
    for thread in threading.enumerate():
        if thread.name == "kartosql-close":
            thread.join()
    assert os.listdir(temporary) == []


def test_a_connection_that_is_dropped_frees_its_engines(store, made):
    _write(store)
    connection = kartosql.connect(store.url)
    connection.sql("SELECT x FROM t").rows()
    kept = _idle(connection)[0]
    del connection
    import gc

    gc.collect()
    with pytest.raises(duckdb.Error):
        kept.cursor().execute("SELECT 1")


# -- what others write -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*another program wrote it")
def test_each_statement_sees_what_was_committed_before(store):
    _write(store)
    with kartosql.connect(store.url) as connection:
        for _ in range(3):
            assert connection.sql("SELECT count(*), sum(x) FROM t").rows() == [(40, 780)]
        builders.append(store, "t", pa.table({"x": [1000], "p": [99], "i": [3]}))
        for _ in range(3):
            assert connection.sql("SELECT count(*), sum(x) FROM t").rows() == [(41, 1780)]
            assert connection.sql("SELECT x FROM t WHERE i = 3 AND x > 100").rows() == [(1000,)]
        _write(store, rows=ROWS.slice(0, 4), overwrite=True)
        assert connection.sql("SELECT count(*), sum(x) FROM t").rows() == [(4, 6)]


def test_one_text_with_other_parameters_and_other_tables(store):
    _write(store)
    with kartosql.connect(store.url) as connection:
        sql = "SELECT count(*) AS n, $v AS v FROM t WHERE i = $v"
        assert connection.sql(sql, {"v": 1}).rows() == [(6, 1)]
        assert connection.sql(sql, {"v": 6}).rows() == [(5, 6)]
        connection.register("t", pa.table({"i": ["a", "a"]}))
        assert connection.sql(sql, {"v": "a"}).rows() == [(2, "a")]


def test_a_file_that_was_written_again_in_place_is_read_anew(store):
    builders.write_dataset(store, "t", {"p": pa.int64(), "a": pa.int64()}, ["p=0"], partition_keys=["p"])
    key = f"t/table/p=0/{builders.WRITE_ID}.parquet"
    with kartosql.connect(store.url) as connection:
        for first in (1, 2, 3):
            store.put(key, builders.parquet({"a": [first, 5]}))
            assert connection.sql("SELECT a FROM t ORDER BY a").rows() == [(first,), (5,)]
        store.put(key, builders.parquet({"a": list(range(10_000))}))
        assert connection.sql("SELECT count(*), sum(a) FROM t").rows() == [(10_000, 49_995_000)]


def test_a_file_that_was_deleted_since_is_named(connection):
    sql = "SELECT sum(x) FROM t"
    assert connection.sql(sql).rows() == [(780,)]
    key = connection.explain(sql).selected[3]
    store = connection.store
    if store.is_local:
        os.unlink(store.local_path(key))
    else:
        store.fs.rm(store.path(key))
    with pytest.raises(KartosqlError) as e:
        connection.sql(sql).rows()
    assert e.value.code == "missing-file"
    assert key in str(e.value)


@pytest.mark.parametrize("name", ["a[b]c", "a*b", "a?", "it's", "a b"])
def test_characters_of_patterns_in_the_path_of_the_store(tmp_path: Path, name: str):
    store = Store(str(tmp_path / name), create=True)
    twin = Store(str(tmp_path / name.translate(str.maketrans("*?[", "xxx"))), create=True)
    _write(store)
    if twin.url != store.url:
        _write(twin, rows=ROWS.slice(0, 4))
    with kartosql.connect(store.url) as connection:
        assert connection.sql("SELECT sum(x) FROM t").rows() == [(780,)]
        assert connection.sql("SELECT sum(x) FROM t WHERE i = 3").rows() == [(sum(range(3, 40, 7)),)]


# -- clock and account -------------------------------------------------------------------------


def test_now_is_one_instant_before_and_in_the_text(connection):
    connection.sql("SELECT x FROM t").rows()
    query = connection.sql("SELECT CAST(now() AS VARCHAR) AS n, CAST(current_date AS VARCHAR) AS d FROM t WHERE x = 0")
    (source,) = query.sources
    statement = connection._session.runtime.statement(
        connection.settings, FileAccess(connection.store), [p.table for p in source.parts]
    )
    try:
        now, today = (statement.clock(f).split("'")[1] for f in ("now()", "current_date"))
        assert abs(dt.datetime.fromisoformat(now + ":00") - dt.datetime.now(dt.timezone.utc)) < dt.timedelta(minutes=1)
        statement.prepare(query._attempt.bound, query.report.scan)
        schema, batches, _ = statement.stream(query._attempt.bound)
        assert pa.Table.from_batches(batches, schema).to_pylist() == [{"n": now, "d": today}]
    finally:
        statement.close()


def test_statistics_tell_what_was_opened(connection):
    query = connection.sql("SELECT x FROM t WHERE p < 3")
    query.rows()
    assert query.stats is not None
    assert query.stats["files_read"] == 3
    assert query.stats["files_opened"] == 3
    assert query.stats["row_groups_read"] == 3
    query = connection.sql("SELECT 1 AS one")
    query.rows()
    assert query.stats is not None
    assert query.stats["files_opened"] == 0


def test_an_interrupt_from_another_thread_stops_the_run(connection):
    query = connection.sql("SELECT count(*) FROM range(100000000) a, range(100000) b, t WHERE a.range * b.range = x")
    ended = threading.Event()

    def stop() -> None:
        # Again and again: what does not run yet is not stopped.
        while not ended.wait(0.1):
            query.interrupt()

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        with pytest.raises(KartosqlError) as e:
            query.rows()
    finally:
        ended.set()
        thread.join()
    assert e.value.code == "interrupted"
    assert connection.sql("SELECT sum(x) FROM t").rows() == [(780,)]


@pytest.mark.parametrize("condition", ["x < ANY (SELECT max(x) FROM t)", "x >ALL (SELECT min(x) FROM t)"])
@pytest.mark.parametrize("order", ["", "ORDER BY x"])
def test_a_limit_holds_beside_a_comparison_with_all_values_of_a_subquery(connection, condition, order):
    inner = f"SELECT x FROM t WHERE {condition} {order} LIMIT 2"
    assert len(connection.sql(inner).rows()) == 2
    assert connection.sql(f"SELECT count(*) FROM ({inner})").rows() == [(2,)]


def test_a_join_does_not_change_what_a_distinct_on_picks(store):
    numbers = range(50)
    write_dataset(store, "cells", pa.table({"u": [i % 5 for i in numbers], "y": [i // 5 for i in numbers]}))
    write_dataset(store, "more", pa.table({"y": list(range(10)), "j": [2 * y for y in range(10)]}))
    write_dataset(store, "few", pa.table({"m": [7, 8, None], "e": [1, 2, 1]}))
    inner = "SELECT DISTINCT ON (u) u, j, y FROM cells LEFT JOIN more USING (y) ORDER BY ALL"
    with kartosql.connect(store.url) as connection:
        query = f"SELECT * FROM ({inner}) q LEFT JOIN few ON q.y = few.m WHERE e = 1"
        assert [connection.sql(query).rows() for _ in range(50)] == [[]] * 50


def test_many_connections_keep_few_instances_and_few_threads(store, monkeypatch):
    monkeypatch.setattr(FileAccess, "is_in_page_cache", lambda files, keys: False)
    _write(store)
    connections = [kartosql.connect(store.url) for _ in range(3 * runtime.MAX_WARM)]
    for _ in range(2):
        for connection in connections:
            assert connection.sql("SELECT sum(x) FROM t").rows() == [(780,)]
    runtimes = [connection._session.runtime for connection in connections]
    assert sum(bool(r._idle or r._planners) for r in runtimes) == runtime.MAX_WARM
    reading = [i for r in runtimes for i in r._idle if i._current["async_threads"]]
    assert 0 < len(reading) <= runtime.MAX_READING_AHEAD
    for connection in connections:
        connection.close()


def test_the_planner_has_no_threads_that_read_ahead(connection, monkeypatch):
    monkeypatch.setattr(FileAccess, "is_in_page_cache", lambda files, keys: False)
    connection.sql("SELECT sum(x) FROM t WHERE i = 3").rows()
    (planner,) = connection._session.runtime._planners.values()
    assert planner.rows("SELECT current_setting('async_threads')") == [(0,)]
    (running,) = _idle(connection)
    assert running.cursor().execute("SELECT current_setting('async_threads')").fetchall() > [(0,)]
