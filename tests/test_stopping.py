"""Statements are stopped from any thread, and a fork is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kartosql
import kartosql.query
from kartosql import stopping
from kartosql.connection import Connection
from kartosql.errors import KartosqlError
from kartosql.stopping import Work
from kartosql.write.operation import Operation
from kartosql.write.spark.job import spark_errors

ENDLESS = "SELECT count(*) FROM range(100000000) a, range(1000000) b, d WHERE a.range * b.range = x"
STATEMENTS = (
    ENDLESS,
    "SELECT * FROM range(100000000) a, range(1000000) b",
    f"EXPLAIN ANALYZE {ENDLESS}",
    f"VERIFY {ENDLESS}",
    f"CREATE DATASET e AS {ENDLESS}",
    f"INSERT INTO d (x) {ENDLESS}",
)
SECONDS = 240  # that something may take on a busy machine


@pytest.fixture
def con(tmp_path: Path):
    with kartosql.connect(str(tmp_path)) as con:
        con.create_dataset("d", pa.table({"p": [1, 2, 3], "x": [1, 2, 3]}), partition_on=["p"], index_columns=["x"])
        yield con


def _until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def _in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    raised: list[Any] = []

    def run() -> None:
        try:
            raised.append(work())
        except BaseException as e:  # noqa: BLE001 - the test looks at whatever came
            raised.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def _is_running(con: Connection) -> bool:
    return any(work._stops for work in list(con._session.runtime.works._all))


def _consume(con: Connection, sql: str) -> int:
    return sum(batch.num_rows for batch in con.sql(sql).reader())


@pytest.mark.parametrize("sql", STATEMENTS)
def test_one_interrupt_stops_any_statement_and_the_connection_works_on(con, sql):
    names = {entry.name for entry in con.store.list_root()}
    thread, raised = _in_thread(lambda: _consume(con, sql))
    _until(lambda: _is_running(con))
    con.interrupt()
    thread.join(SECONDS)
    assert [getattr(e, "code", e) for e in raised] == ["interrupted"]
    assert con.sql("SELECT p FROM d WHERE x = 2").rows() == [(2,)]
    assert {entry.name for entry in con.store.list_root()} == names


def test_close_stops_what_another_thread_runs(con):
    for sql in STATEMENTS[:2]:
        other = kartosql.connect(con.store.url)
        thread, raised = _in_thread(lambda sql=sql, other=other: _consume(other, sql))
        _until(lambda other=other: _is_running(other))
        other.close()
        thread.join(SECONDS)
        assert [getattr(e, "code", e) for e in raised] == ["connection-closed"]
        with pytest.raises(KartosqlError) as e:
            other.sql("SELECT 1")
        assert e.value.code == "connection-closed"


def test_an_interrupt_just_before_the_engine_starts_is_heard(con, monkeypatch):
    running, interrupted = Work.running, []

    def early(self: Work, stop: Callable[[], None]) -> Any:
        block = running(self, stop)

        class Early:
            def __enter__(self) -> None:
                block.__enter__()
                con.interrupt()
                interrupted.append(1)

            def __exit__(self, *error: Any) -> Any:
                return block.__exit__(*error)

        return Early() if len(interrupted) < 1 and "count" in query.report.sql else block

    query = con.sql(ENDLESS)
    _ = query.report
    monkeypatch.setattr(Work, "running", early)
    with pytest.raises(KartosqlError) as e:
        query.rows()
    assert interrupted
    assert e.value.code == "interrupted"


def test_planning_is_stopped_and_leaves_a_planner_that_is_right(con, monkeypatch):
    prune = kartosql.query.prune

    def endless(bound: Any, evaluator: Any, **options: Any) -> Any:
        evaluator.rows("SELECT count(*) FROM range(100000000) a, range(1000000) b WHERE a.range * b.range = 7")
        return prune(bound, evaluator, **options)

    monkeypatch.setattr(kartosql.query, "prune", endless)
    for run in (lambda: con.sql("SELECT * FROM d WHERE x = 1").rows(), lambda: con.explain("SELECT * FROM d")):
        thread, raised = _in_thread(run)
        _until(lambda: _is_running(con))
        con.interrupt()
        thread.join(SECONDS)
        assert [getattr(e, "code", e) for e in raised] == ["interrupted"]
    monkeypatch.undo()
    assert con.sql("SELECT p FROM d WHERE x = 1").rows() == [(1,)]


def test_an_interrupt_stops_streams_that_wait_and_one_query_only_where_it_is_asked_to(con):
    readers = [con.sql("SELECT * FROM range(3000000)").reader() for _ in range(2)]
    query = con.sql("SELECT * FROM range(3000000)")
    readers.append(query.reader())
    for reader in readers:
        assert reader.read_next_batch().num_rows
    query.interrupt()
    with pytest.raises(KartosqlError) as e:
        readers[2].read_all()
    assert e.value.code == "interrupted"
    assert readers[0].read_next_batch().num_rows
    con.interrupt()
    for reader in readers[:2]:
        with pytest.raises(KartosqlError) as e:
            reader.read_all()
        assert e.value.code == "interrupted"
    assert query.rows()[:1] == [(0,)]


def test_a_commit_is_not_stopped(con, monkeypatch):
    commit = Operation._commit

    def stopped(self: Operation, *args: Any) -> Any:
        con.interrupt()
        return commit(self, *args)

    monkeypatch.setattr(Operation, "_commit", stopped)
    con.append_to_dataset("d", pa.table({"p": [4], "x": [4]}))
    con.sql("INSERT INTO d SELECT 5 AS p, 5 AS x")
    monkeypatch.undo()
    assert con.sql("SELECT count(*), max(x) FROM d").rows() == [(5, 5)]


def test_nothing_is_left_of_work_that_ended(con):
    con.sql("SELECT sum(x) FROM d").rows()
    with pytest.raises(KartosqlError):
        con.sql("SELECT sum(nothing) FROM d")
    assert not list(con._session.runtime.works._all)
    con.interrupt()
    assert con.sql("SELECT sum(x) FROM d").rows() == [(6,)]


# -- forks -----------------------------------------------------------------------------------------

_PROGRAM = """
import faulthandler, os, sys, threading, time
import kartosql
con = kartosql.connect(sys.argv[1])
query = con.sql("SELECT sum(x) FROM d")
kept = con.sql("SELECT max(x) FROM d")
kept.arrow()
stream = con.sql("SELECT * FROM range(3000000)").reader()
stream.read_next_batch()
ended = threading.Event()
def ask():
    mine = kartosql.connect(sys.argv[1])
    while not ended.is_set():
        con.sql("SELECT count(*) FROM d WHERE x > 1").rows()
        mine.sql("SELECT p FROM d WHERE x = 2").rows()
threads = [threading.Thread(target=ask) for _ in range(3)]
for thread in threads:
    thread.start()
def code(run):
    try:
        return run()
    except kartosql.KartosqlError as e:
        return e.code
def child():
    faulthandler.dump_traceback_later(float(sys.argv[2]) / 2, exit=True)
    found = [
        code(lambda: con.sql("SELECT 1")), code(query.rows), code(lambda: stream.read_all()), code(con.cubes),
        code(lambda: con.append_to_dataset("d", [])), code(con.interrupt), kept.rows(),
    ]
    with kartosql.connect(sys.argv[1]) as other:
        found.append(other.sql("SELECT sum(x) FROM d WHERE x > 1").rows())
    con.close()
    print(found, flush=True)
children = []
for i in range(6):
    time.sleep(0.05)
    pid = os.fork()
    if pid == 0:
        threads.clear()
        child()
        if i % 2:
            sys.exit(0)  # with all that the interpreter does at its end
        os._exit(0)
    children.append(pid)
print([os.waitpid(pid, 0)[1] for pid in children])
ended.set()
for thread in threads:
    thread.join()
print(query.rows(), sum(b.num_rows for b in stream) > 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_is_told_and_does_not_hang(con):
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, con.store.url, str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    lines = run.stdout.splitlines()
    other = "other-process"
    assert run.returncode == 0, run.stderr
    assert sorted(lines) == sorted(
        [str([other, other, other, other, other, None, [(3,)], [(5,)]])] * 6 + ["[0, 0, 0, 0, 0, 0]", "[(6,)] True"]
    )


class Clearing:
    """Fails when it is left, as objects of py4j do whose connection an interrupt broke."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        raise OSError("no answer")


def test_an_interrupt_stays_one_where_clearing_up_fails():
    interrupt = KeyboardInterrupt()
    for raised, met in ((interrupt, KeyboardInterrupt), (ValueError(), OSError)):
        with pytest.raises(met) as e, stopping.interrupts(), Clearing():
            raise raised
        assert (e.value is interrupt) == (raised is interrupt)
    # One that the caller has met before is none of the block.
    try:
        raise interrupt
    except KeyboardInterrupt:
        with pytest.raises(OSError, match="no answer"), stopping.interrupts(), Clearing():
            raise ValueError from None


def test_what_spark_says_after_an_interrupt_is_not_told_instead_of_it():
    with pytest.raises(KeyboardInterrupt), spark_errors(), Clearing():
        raise KeyboardInterrupt
