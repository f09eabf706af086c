"""One connection for many threads and tasks."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import kartosql
from kartosql.errors import KartosqlError

ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000000) b"


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.sql("CREATE DATASET t PARTITION BY (p) INDEX (k) AS SELECT i % 4 p, i k, i * 2 v FROM range(200) r(i)")
        yield con


def test_one_connection_serves_threads_that_read_write_and_change_settings(con):
    def work(number):
        if number % 5 == 0:
            con.sql("INSERT INTO t SELECT 9 p, ? AS k, 0 v", [1000 + number])
        if number % 7 == 0:
            con.sql(f"SET max_bytes = '{number + 1}GB'")
        return con.sql("SELECT v, p FROM t WHERE k = ?", [number]).rows()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(60))) == [[(2 * k, k % 4)] for k in range(60)]
    assert con.sql("SELECT count(*) FROM t WHERE p = 9").rows() == [(12,)]


def test_tasks_share_a_connection(con):
    async def ask():
        found = await asyncio.gather(*(con.sql_async("SELECT v FROM t WHERE k = ?", [k]) for k in range(12)))
        return [query.rows() for query in found]

    assert asyncio.run(ask()) == [[(2 * k,)] for k in range(12)]


def test_errors_are_raised_where_they_are_awaited(con):
    with pytest.raises(KartosqlError) as caught:
        asyncio.run(con.sql_async("SELECT nope FROM t"))
    assert caught.value.code == "unknown-column"


def _stop(con, runs):
    async def ask():
        task = asyncio.create_task(con.sql_async(ENDLESS))
        while not runs():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await con.sql_async("SELECT 1 AS a")).rows()

    assert asyncio.run(ask()) == [(1,)]  # and it ends, as asyncio waits for its threads


def test_a_task_that_is_cancelled_stops_its_statement(con):
    works = con._session.runtime.works
    _stop(con, lambda: any(work._stops for work in works._all))


@pytest.mark.process
def test_a_task_that_is_cancelled_stops_its_statement_in_a_worker(con, tmp_path):
    with kartosql.connect(tmp_path, untrusted=True, timeout=300) as untrusted:
        started = time.monotonic()
        _stop(untrusted, lambda: untrusted._busy and time.monotonic() - started > 0.3)
