"""The views of a repeated statement are left where they are, and used again only for the same scan."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import builders
import kartosql
from kartosql.engines.duckdb import statement
from kartosql.engines.duckdb.relations import Relations
from kartosql.engines.duckdb.statement import SAMPLED_FILES, DuckStatement, FileAccess
from kartosql.errors import FormatError, LimitError
from kartosql.plan import small_reads
from kartosql.plan.bind import LEARNED
from kartosql.store import Store
from written import write_dataset

SQL = "SELECT v FROM t WHERE i = 11"


@pytest.fixture(autouse=True)
def by_engine(monkeypatch) -> None:
    """Every file is read by the engine."""
    monkeypatch.setattr(small_reads, "MAX_FILES", 0)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Any]:
    """``t`` has four files by ``p`` and an index on ``i``."""
    table = pa.table({"p": [0, 0, 1, 2, 3], "i": [1, 2, 11, 21, 31], "v": [1.0, 2.0, 3.0, 4.0, 5.0]})
    write_dataset(Store(str(tmp_path / "store"), create=True), "t", table, partition_on="p", index_columns=["i"])
    with kartosql.connect(tmp_path / "store", keep_answers=False) as made:
        yield made


@pytest.fixture
def created(monkeypatch) -> list[Any]:
    """Scans for which views were made."""
    made: list[Any] = []
    create = Relations.create

    def noting(self: Relations, scan: Any) -> None:
        made.append(scan)
        create(self, scan)

    monkeypatch.setattr(Relations, "create", noting)
    return made


def test_views_are_made_until_the_plan_is_kept(connection, created):
    for _ in range(LEARNED + 3):
        query = connection.sql(SQL)
        assert query.rows() == [(3.0,)]
        assert query.stats["files_read"] == query.stats["files_opened"] == 1
    assert len(created) == LEARNED


def test_another_statement_in_between_takes_the_instance(connection, created):
    for _ in range(LEARNED + 1):
        assert connection.sql(SQL).rows() == [(3.0,)]
    assert connection.sql("SELECT v FROM t WHERE i = 21").rows() == [(4.0,)]
    assert connection.sql(SQL).rows() == [(3.0,)]
    assert connection.sql(SQL).rows() == [(3.0,)]


def test_a_write_is_seen(connection):
    for _ in range(LEARNED + 1):
        connection.sql("SELECT sum(v) FROM t").rows()
    builders.append(connection.store, "t", pa.table({"p": [1], "i": [12], "v": [7.0]}))
    assert connection.sql("SELECT sum(v) FROM t").rows() == [(22.0,)]


def test_a_file_that_is_gone_is_an_error_of_ours(connection):
    for _ in range(LEARNED + 1):
        connection.sql(SQL).rows()
    (key,) = connection.explain(SQL).selected
    Path(connection.store.local_path(key)).unlink()
    with pytest.raises(FormatError) as caught:
        connection.sql(SQL).rows()
    assert caught.value.code == "missing-file"


def test_the_timeout_is_that_of_the_statement_at_hand(connection):
    sql = "SELECT count(*) FROM t, range(300000) a, range(300000) b"
    small = "SELECT count(*) FROM t, range(3) a WHERE i = 11"
    for _ in range(LEARNED + 1):
        connection.sql(small).rows()
    connection.sql("SET timeout = 100")
    assert connection.sql(small).rows() == [(3,)]
    connection.sql("SET timeout = 0.2")
    with pytest.raises(LimitError):
        connection.sql(sql).rows()
    connection.sql("SET timeout = 100")
    assert connection.sql(small).rows() == [(3,)]


def test_one_statement_may_run_many_times_at_once(connection):
    for _ in range(LEARNED + 1):
        connection.sql("SELECT v FROM t").rows()
    readers = [connection.sql("SELECT v FROM t").reader() for _ in range(3)]
    assert [sorted(r.read_all().column(0).to_pylist()) for r in readers] == [[1.0, 2.0, 3.0, 4.0, 5.0]] * 3
    found: list[Any] = []

    def work() -> None:
        found.extend(connection.sql(SQL).rows() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[(3.0,)]] * 80


@pytest.fixture
def bound(monkeypatch) -> list[str]:
    """Texts that were bound to tell their columns."""
    texts: list[str] = []
    monkeypatch.setattr(statement, "checked", {})
    query = DuckStatement._query

    def noting(self: DuckStatement, bound_query: Any) -> Any:
        texts.append(bound_query.text)
        return query(self, bound_query)

    monkeypatch.setattr(DuckStatement, "_query", noting)
    return texts


def test_a_shape_is_bound_once_to_tell_its_columns(connection, bound):
    for _ in range(LEARNED + 3):
        assert connection.sql(SQL).rows() == [(3.0,)]
        assert connection.sql(SQL.replace("11", "21")).rows() == [(4.0,)]
    assert len(bound) == 1


def test_a_shape_whose_columns_are_others_in_another_store_is_bound_again(connection, bound, tmp_path):
    sql = "SELECT v, v FROM t WHERE i = 11"
    other = Store(str(tmp_path / "other"), create=True)
    write_dataset(other, "t", pa.table({"i": [11], "v": pa.array([2**64 - 1], pa.uint64())}), index_columns=["i"])
    with kartosql.connect(other.url, keep_answers=False) as second:
        for _ in range(3):
            assert connection.sql(sql).rows() == [(3.0, 3.0)]
            assert second.sql(sql).rows() == [(2**64 - 1, 2**64 - 1)]
            # Arrow has no column of such a sum, which is told as text.
            for one in (second, connection):
                one.sql("SELECT sum(v)::UHUGEINT AS v FROM t WHERE i = 11").rows()
    assert len(bound) >= 6


def test_a_kept_text_runs_with_the_parameters_at_hand(connection):
    sql = "SELECT v, ? AS given FROM t WHERE i = ?"
    for _ in range(LEARNED + 2):
        for i, v in ((11, 3.0), (21, 4.0)):
            for given in (1, True, 1.0, "1"):
                (row,) = connection.sql(sql, [given, i]).rows()
                assert row == (v, given)
                assert type(row[1]) is type(given)


def test_a_kept_text_is_computed_each_time(connection):
    volatile = ("SELECT random() AS r FROM t", "PIVOT (SELECT p, random() AS r FROM t) ON p USING sum(r)")
    for sql in volatile:
        found = {connection.sql(sql).rows()[0] for _ in range(LEARNED + 3)}
        assert len(found) == LEARNED + 3


def test_a_file_that_was_replaced_by_one_of_the_same_size_is_read_again(connection):
    for _ in range(LEARNED + 2):
        assert connection.sql(SQL).rows() == [(3.0,)]
    (key,) = connection.explain(SQL).selected
    path = Path(connection.store.local_path(key))
    data = path.read_bytes()
    other = data.replace(struct.pack("<d", 3.0), struct.pack("<d", 9.0))
    assert other != data
    path.with_suffix(".new").write_bytes(other)
    path.with_suffix(".new").replace(path)
    assert connection.sql(SQL).rows() == [(9.0,)]


def test_what_a_run_read_is_known_after_the_next_one_and_after_the_end(connection):
    queries = [connection.sql("SELECT sum(v) FROM t WHERE i < ?", [i]) for i in (5, 15, 40) for _ in range(LEARNED + 2)]
    for query in queries:
        query.rows()
    connection.close()
    assert [q.stats["files_opened"] for q in queries] == [q.stats["files_read"] for q in queries]
    assert {q.stats["files_read"] for q in queries} == {1, 2, 4}


def test_files_are_read_without_threads_of_their_own_where_the_system_has_them_in_memory(connection, monkeypatch):
    def threads() -> int:
        (instance,) = connection._session.runtime._idle
        (row,) = instance.cursor().execute("SELECT current_setting('async_threads')").fetchall()
        return int(row[0])

    held = True
    monkeypatch.setattr(FileAccess, "is_in_page_cache", lambda files, keys: held)
    for _ in range(LEARNED + 1):
        connection.sql(SQL).rows()
        assert threads() == 0
    held = False
    connection.sql(SQL).rows()  # a small scan that is repeated finds its files there
    assert threads() == 0
    connection.sql("SELECT v FROM t WHERE i = 12").rows()
    assert (usual := threads()) > 0
    monkeypatch.setattr(statement, "DIRECT_BYTES", 10)
    for _ in range(LEARNED + 1):
        connection.sql(SQL).rows()
        assert threads() == usual


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="only Linux tells what is in memory")
def test_a_file_is_in_memory_if_the_system_gives_its_middle_without_waiting(connection, monkeypatch):
    asked = []

    def read(descriptor, buffers, offset, flags):
        asked.append((os.fstat(descriptor).st_ino, offset, flags))
        if len(asked) in waits:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(os, "preadv", read)
    paths = sorted(Path(connection.store.root, "t", "table").rglob("*.parquet"))
    keys = [str(path.relative_to(connection.store.root)) for path in paths]
    files, waits = FileAccess(connection.store), ()
    assert files.is_in_page_cache(keys)
    assert asked == [(p.stat().st_ino, p.stat().st_size // 2, os.RWF_NOWAIT) for p in paths]
    asked.clear()
    many = keys * 10
    assert files.is_in_page_cache(many)
    assert SAMPLED_FILES // 2 < len(asked) <= SAMPLED_FILES < len(many)
    for waits in ((1,), (len(keys),)):
        asked.clear()
        assert not files.is_in_page_cache(keys)
    waits = ()
    assert not files.is_in_page_cache([*keys, "t/table/none.parquet"])
    assert files.is_in_page_cache([])


def test_columns_that_are_narrower_in_files_are_widened_each_time(tmp_path):
    narrow = pa.table({"p": [0, 1], "v": pa.array([1, 2], pa.int32())})
    store = Store(str(tmp_path / "store"), create=True)
    write_dataset(store, "t", pa.table({"p": [0, 1], "v": [1, 2]}), partition_on="p")
    for path in (tmp_path / "store" / "t" / "table").rglob("*.parquet"):
        pq.write_table(narrow.slice(int("p=1" in str(path)), 1).select(["v"]), path)
    with kartosql.connect(tmp_path / "store", keep_answers=False) as con:
        for _ in range(LEARNED + 2):
            found = con.sql("SELECT v, v * 3000000000 AS big FROM t ORDER BY v").arrow()
            assert found.schema.field("v").type == pa.int64()
            assert found.to_pydict() == {"v": [1, 2], "big": [3000000000, 6000000000]}
