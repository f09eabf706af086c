"""What a closed connection leaves: used by the next one of the same kind, never by another, and freed in the end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql import session_pool
from kartosql.errors import KartosqlError
from kartosql.store import Store
from written import write_dataset

ROWS = pa.table({"x": list(range(40)), "p": [i // 4 for i in range(40)], "i": [i % 7 for i in range(40)]})
ASKED = "SELECT sum(x) FROM t WHERE i = {} AND p < 8"


@pytest.fixture(autouse=True)
def _written(store: Store) -> None:
    write_dataset(store, "t", ROWS, partition_on=["p"], index_columns=["i"])
    session_pool.clear()


def ask(url: str, i: int = 3, **options: Any) -> list[tuple[Any, ...]]:
    with kartosql.connect(url, **options) as connection:
        return connection.sql(ASKED.format(i)).rows()


def expected(i: int) -> list[tuple[Any, ...]]:
    return [(sum(x for x in range(32) if x % 7 == i),)]


def test_one_connection_after_the_other_needs_the_engines_of_one(store, made):
    for turn in range(20):
        assert ask(store.url, turn % 7) == expected(turn % 7)
    assert len(made) <= 4


def test_connections_at_the_same_time_have_engines_of_their_own(store, made):
    ask(store.url)
    with kartosql.connect(store.url) as one, kartosql.connect(store.url) as other:
        assert one.sql(ASKED.format(3)).rows() == other.sql(ASKED.format(3)).rows() == expected(3)
        assert one._session.metadata is not other._session.metadata
        assert not {*map(id, one._session.runtime._idle)} & {*map(id, other._session.runtime._idle)}


def test_what_was_committed_meanwhile_is_seen(store, made):
    for turn in range(5):
        assert ask(store.url, 0) == [(sum(range(0, 32, 7)) + turn * 1000,)]
        with kartosql.connect(store.url) as writer:
            writer.append_to_dataset("t", pa.table({"x": [1000], "p": [1], "i": [0]}))


def test_a_dataset_that_was_made_anew_is_another_one(store):
    assert ask(store.url) == expected(3)
    with kartosql.connect(store.url) as writer:
        writer.create_dataset("t", ROWS.slice(0, 8), partition_on=["p"], index_columns=["i"], overwrite=True)
    assert ask(store.url) == [(3,)]


@pytest.mark.parametrize("other", [{"read_only": True}, {"threads": 1}, {"timeout": 1000}, {"attach": False}], ids=str)
def test_another_kind_of_connection_finds_nothing(store, made, other):
    ask(store.url)
    before = len(made)
    with kartosql.connect(store.url, **other) as connection:
        assert not connection._session.runtime._idle
        assert connection.sql(ASKED.format(3)).rows() == expected(3)
    assert len(made) == before + 2


def test_other_options_of_the_store_find_nothing(tmp_path):
    one, same = (Store("memory://x", {"token": "a"}) for _ in range(2))
    assert one.is_same(same)
    assert not one.is_same(Store("memory://x", {"token": "b"}))
    assert not one.is_same(Store("memory://x"))
    assert not one.is_same(Store("memory://y", {"token": "a"}))
    other = Store("memory://x", {"token": "a"})
    other.fs = type(other.fs)(skip_instance_cache=True)
    assert not one.is_same(other)
    assert not Store(str(tmp_path)).is_same(Store(f"{tmp_path}/."))


def test_a_setting_of_one_connection_is_not_that_of_the_next(store):
    ask(store.url)
    with kartosql.connect(store.url) as connection:
        connection.sql("SET TimeZone = 'Asia/Tokyo'")
        connection.sql(ASKED.format(3)).rows()
        assert {i.settings["TimeZone"] for i in connection._session.runtime._idle} == {"Asia/Tokyo", "UTC"}
    ask(store.url)
    kept = [[i.settings["TimeZone"] for i in s.state.engines.idle] for s in session_pool._idle]
    assert kept == [["Asia/Tokyo"], ["UTC"]]


def test_what_was_registered_or_attached_is_gone(store, made, tmp_path):
    with kartosql.connect(store.url) as connection:
        connection.register("mine", pa.table({"i": [3]}))
        assert connection.sql("SELECT count(*) FROM t JOIN mine USING (i)").rows() == [(6,)]
    assert not session_pool._idle
    with kartosql.connect(store.url) as connection:
        connection.sql(f"ATTACH '{tmp_path}' AS f (TYPE kartothek)")
    assert not session_pool._idle
    with kartosql.connect(store.url) as connection, pytest.raises(KartosqlError, match="mine"):
        connection.sql("SELECT * FROM mine").rows()


def test_no_view_of_a_statement_is_left(store, made):
    ask(store.url)
    (state,) = [i.state for i in session_pool._idle]
    for instance in [*state.engines.idle, *(p.instance for p in state.engines.planners.values())]:
        assert instance.resting is None
        views = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name <> 'kartosql_planner'"
        assert instance.cursor().execute(views).fetchall() == []
    assert [i._current["async_threads"] for i in state.engines.idle] == [0]


def test_calls_of_the_store_are_counted_for_each_connection(store):
    ask(store.url)
    with kartosql.connect(store.url) as connection:
        assert connection.store.counter.lists == connection.store.counter.reads == 0
        connection.sql(ASKED.format(3)).rows()
        assert connection.store.counter.lists == 1
        assert connection._session.runtime.store.counter is connection.store.counter


def test_few_are_kept_and_the_oldest_go_first(tmp_path, made):
    for at in range(session_pool.MAX_SESSIONS + 3):
        write_dataset(Store(str(tmp_path / f"s{at}"), create=True), "t", ROWS, partition_on=["p"], index_columns=["i"])
        ask(str(tmp_path / f"s{at}"))
    assert [i.state.store.root[-2:] for i in session_pool._idle] == ["s3", "s4", "s5", "s6"]
    kept = [i for s in session_pool._idle for i in s.state.engines.idle]
    _wait(lambda: sum(not i.is_closed for i in made) == len(kept) + session_pool.MAX_SESSIONS)


@pytest.mark.parametrize(("limit", "value"), [("MAX_PARTITIONS", 5), ("MAX_BYTES", 10)])
def test_large_ones_are_not_kept(store, made, monkeypatch, limit, value):
    monkeypatch.setattr(session_pool, limit, value)
    ask(store.url)
    _wait(lambda: all(instance.is_closed for instance in made))


def test_what_nobody_takes_is_freed_after_a_while(store, made, monkeypatch):
    monkeypatch.setattr(session_pool, "MAX_SECONDS", 0.2)
    ask(store.url)
    _wait(lambda: not session_pool._idle and not session_pool._waits)
    _wait(lambda: all(instance.is_closed for instance in made))


def _wait(holds: Any) -> None:
    limit = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_connection_that_was_closed_still_answers_and_disturbs_nobody(store):
    with kartosql.connect(store.url) as first:
        late = first.sql(ASKED.format(2))
        stream = first.sql("SELECT x FROM t ORDER BY x").reader()
    with kartosql.connect(store.url) as second:
        assert second.sql(ASKED.format(2)).rows() == late.rows() == expected(2)
        assert stream.read_all().num_rows == 40
        first.close()
        assert second.sql(ASKED.format(4)).rows() == expected(4)
    assert len(session_pool._idle) == 1


def test_many_threads_that_open_and_close_get_right_answers(store, made):
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for turn in range(12):
            i = (seed + turn) % 7
            try:
                if ask(store.url, i) != expected(i):
                    wrong.append(i)
            except KartosqlError as e:
                wrong.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(session_pool._idle) <= session_pool.MAX_SESSIONS


def test_closing_while_a_query_runs_leaves_nothing_that_was_stopped(store, made):
    for _ in range(3):
        connection = kartosql.connect(store.url)
        connection.sql(ASKED.format(1)).rows()
        failed: list[str | None] = []

        def run(connection=connection, failed=failed) -> None:
            try:
                connection.sql("SELECT sum(a.x * b.range) FROM t a, range(10000000000) b").rows()
            except KartosqlError as e:
                failed.append(e.code)

        thread = threading.Thread(target=run)
        thread.start()
        _wait(lambda connection=connection: any(w._stops for w in list(connection._session.runtime.works._all)))
        connection.close()
        thread.join()
        assert failed == ["connection-closed"]
        assert ask(store.url, 1) == expected(1)


_FORKED = """
import os, sys, kartosql
from kartosql import session_pool
def ask():
    with kartosql.connect(sys.argv[1]) as con:
        return con.sql("SELECT sum(x) FROM t WHERE i = 3").rows()
print(ask(), len(session_pool._idle), flush=True)
pid = os.fork()
if pid == 0:
    print(len(session_pool._idle), ask(), len(session_pool._idle), flush=True)
    sys.exit(0)
print(os.waitpid(pid, 0)[1], flush=True)
print(ask(), len(session_pool._idle), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("store", ["local"], indirect=True)
def test_a_fork_has_nothing_of_its_parent_and_both_end_in_order(store):
    run = subprocess.run([sys.executable, "-c", _FORKED, store.url], capture_output=True, text=True, check=True)
    answer = str([(sum(range(3, 40, 7)),)])
    assert run.stdout.splitlines() == [f"{answer} 1", f"0 {answer} 1", "0", f"{answer} 1"]
    assert "Error" not in run.stderr
