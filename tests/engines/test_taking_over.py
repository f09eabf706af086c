"""A statement goes on with the connection of one that rests, and sees nothing of what that one read."""

from __future__ import annotations

import datetime
import gc
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.engines.duckdb import relations
from kartosql.engines.duckdb.statement import EngineSession
from kartosql.errors import KartosqlError, SqlError
from kartosql.plan import small_reads
from kartosql.store import Store
from written import write_dataset

COUNT = 12


@pytest.fixture(autouse=True)
def by_engine(monkeypatch) -> None:
    """Every file is read by the engine."""
    monkeypatch.setattr(small_reads, "MAX_FILES", 0)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Any]:
    """``t`` and ``u`` have twelve files by ``p`` and an index on ``i``; in ``t`` v is i and in ``u`` -i."""
    store = Store(str(tmp_path / "store"), create=True)
    numbers = list(range(3 * COUNT))
    for name, sign in (("t", 1), ("u", -1)):
        table = pa.table({"p": [f"p{n % COUNT}" for n in numbers], "i": numbers, "v": [sign * n for n in numbers]})
        write_dataset(store, name, table, partition_on="p", index_columns=["i"])
    with kartosql.connect(tmp_path / "store") as made:
        for n in range(3):  # so that an instance for the whole tables is worth while
            for name in "tu":
                made.sql(f"SELECT v FROM {name} WHERE i = {n}").rows()
            made.sql(f"SELECT 1 FROM t JOIN u USING (i) WHERE i = {n}").rows()
        yield made


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is run of our own."""
    found: list[str] = []
    run = EngineSession.run

    def noting(self: EngineSession, sql: str) -> None:
        found.append(sql)
        run(self, sql)

    monkeypatch.setattr(EngineSession, "run", noting)
    return found


def _left(connection: Any) -> Any:
    return connection._session.runtime._idle[-1].resting


def test_a_statement_with_other_values_makes_neither_view_nor_transaction(connection, texts):
    connection.sql("SELECT v FROM t WHERE i = 20").rows()
    texts.clear()
    for i in range(21, 33):
        assert connection.sql(f"SELECT v FROM t WHERE i = {i}").rows() == [(i,)]
    assert not [text for text in texts if "VIEW" in text or "BEGIN" in text]


def test_one_and_several_partition_values_take_turns(connection):
    for i in range(COUNT):
        sql = f"SELECT p, v FROM t WHERE i = {10 + i}"
        assert connection.sql(sql).rows() == [(f"p{(10 + i) % COUNT}", 10 + i)]
        sql = f"SELECT p, v FROM t WHERE i IN ({10 + i}, {15 + i}) ORDER BY v"
        assert connection.sql(sql).rows() == [(f"p{n % COUNT}", n) for n in (10 + i, 15 + i)]


def test_statements_of_all_forms_take_turns(connection):
    rng = random.Random(7)
    for _ in range(150):
        a, b = rng.randrange(3 * COUNT), rng.randrange(3 * COUNT)
        sql, expected = rng.choice(
            [
                (f"SELECT v FROM t WHERE i = {a}", [(a,)]),
                (f"SELECT v FROM u WHERE i = {a}", [(-a,)]),
                (f"SELECT p FROM u WHERE i = {a}", [(f"p{a % COUNT}",)]),
                (f"SELECT t.v, u.v FROM t, u WHERE t.i = {a} AND u.i = {b}", [(a, -b)]),
                (f"SELECT u.v, t.v FROM u, t WHERE t.i = {a} AND u.i = {b}", [(-b, a)]),
                (f"SELECT x.v + y.v FROM t x, t y WHERE x.i = {a} AND y.i = {b}", [(a + b,)]),
                (f"SELECT count(*) FROM t WHERE p = 'p{a % COUNT}'", [(3,)]),
                (f"SELECT sum(v) FROM t WHERE i < {a + 1}", [(a * (a + 1) // 2,)]),
                ("SELECT max(v), min(p) FROM t", [(3 * COUNT - 1, "p0")]),
                (f"SELECT v FROM t WHERE i = {3 * COUNT + a}", []),
            ]
        )
        assert connection.sql(sql).rows() == expected, sql


def test_views_and_variables_that_are_not_asked_for_are_dropped(connection):
    connection.sql("SELECT t.v, u.p, t.p FROM t, u WHERE t.i = 5 AND u.i IN (5, 6)").rows()
    connection.sql("SELECT v FROM t WHERE i = 5").rows()
    rows = _left(connection).rows
    assert rows("SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name LIKE '%kartosql%'") == [("t",)]
    assert {name for (name,) in rows("SELECT name FROM duckdb_variables()")} <= {"kartosql_files_0", "kartosql_unread"}


def test_a_view_that_was_left_is_no_table(connection):
    connection.sql("SELECT t.v, u.v FROM t, u WHERE t.i = 5 AND u.i = 5").rows()
    for text in (
        "SELECT * FROM __kartosql_1.u, t WHERE t.i = 5",
        "PIVOT (SELECT t.v, x.p FROM __kartosql_1.u x, t) ON p USING sum(v)",
    ):
        with pytest.raises(SqlError) as caught:
            connection.sql(text).rows()
        assert caught.value.code == "unknown-table"


def test_the_clock_goes_on(connection):
    seen = []
    for i in range(4):
        connection.sql(f"SELECT v FROM t WHERE i = {20 + i}").rows()
        before = datetime.datetime.now(datetime.UTC)
        seen.append(connection.sql(f"SELECT now() FROM t WHERE i = {20 + i}").rows()[0][0])
        assert seen[-1] >= before
    assert len({*seen}) == 4


def test_an_error_ends_the_connection(connection):
    for i in range(3):
        assert connection.sql(f"SELECT v FROM t WHERE i = {20 + i}").rows() == [(20 + i,)]
        with pytest.raises(KartosqlError):
            connection.sql(f"SELECT v, CAST(p AS INTEGER) FROM t WHERE i = {20 + i}").rows()


def test_a_stream_that_is_not_read_to_its_end_leaves_nothing(connection):
    reader = connection.sql("SELECT v FROM t, range(1000000)").reader()
    reader.read_next_batch()
    assert connection.sql("SELECT v FROM t WHERE i = 30").rows() == [(30,)]
    reader.close()
    assert connection.sql("SELECT v FROM t WHERE i = 31").rows() == [(31,)]


def test_registered_data_are_those_of_the_statement(connection):
    for i in range(5):
        connection.register("r", pa.table({"i": [i, i + 1]} if i % 2 else {"i": [float(i)]}))
        found = connection.sql("SELECT t.v FROM t JOIN r USING (i) ORDER BY 1").rows()
        assert found == ([(i,), (i + 1,)] if i % 2 else [(i,)])


def test_a_transaction_replaces_few_views(connection, monkeypatch, texts):
    monkeypatch.setattr(relations, "MAX_REPLACED", 3)
    texts.clear()
    for i in range(12):
        assert connection.sql(f"SELECT {'vip'[i % 3]}, i FROM t WHERE i = {i}").rows()[0][1] == i
    assert 2 <= texts.count("BEGIN") <= 6


def test_a_connection_that_is_dropped_after_fresh_statements_is_freed(tmp_path):
    write_dataset(Store(str(tmp_path / "s"), create=True), "t", pa.table({"p": [0, 1], "v": [1, 2]}), partition_on="p")
    connection = kartosql.connect(tmp_path / "s")
    for p in (0, 1):
        connection.sql(f"SELECT v FROM t WHERE p = {p}").rows()
    runtime = weakref.ref(connection._session.runtime)
    del connection
    gc.collect()
    assert runtime() is None


@pytest.mark.parametrize(
    "types", [(pa.int32(), pa.int32()), (pa.int8(), pa.int16()), (pa.int16(), pa.int64()), (pa.int64(), pa.int32())]
)
def test_integers_that_are_narrower_in_files_are_widened(tmp_path, types):
    write_dataset(
        Store(str(tmp_path / "s"), create=True), "t", pa.table({"p": [0, 1], "v": [100, 101]}), partition_on="p"
    )
    for path in (tmp_path / "s" / "t" / "table").rglob("*.parquet"):
        at = int("p=1" in str(path))
        pq.write_table(pa.table({"v": pa.array([100 + at], types[at])}), path)
    with kartosql.connect(tmp_path / "s") as con:
        for p in (0, 1, 0, 1, 1):
            found = con.sql(f"SELECT v, v * 30000000000 AS big FROM t WHERE p = {p} AND v < 5000000000").arrow()
            assert found.schema.field("v").type == pa.int64()
            assert found.to_pydict() == {"v": [100 + p], "big": [(100 + p) * 30000000000]}
        assert sorted(con.sql("SELECT v FROM t WHERE v IN (100, 101, 200)").rows()) == [(100,), (101,)]


def test_a_column_without_a_type_has_the_type_of_the_files_at_hand(tmp_path):
    table = pa.table({"p": [0, 1, 2], "v": pa.nulls(3)})
    write_dataset(Store(str(tmp_path / "s"), create=True), "t", table, partition_on="p")
    arrays = [pa.array([7], pa.int64()), pa.array(["seven"]), pa.nulls(1)]
    for path in (tmp_path / "s" / "t" / "table").rglob("*.parquet"):
        (at,) = (n for n in range(3) if f"p={n}" in str(path))
        pq.write_table(pa.table({"v": arrays[at]}), path)
    with kartosql.connect(tmp_path / "s") as con:
        for p in (0, 1, 2, 0, 0, 1, 1, 2):
            assert con.sql(f"SELECT v FROM t WHERE p = {p}").rows() == [([7, "seven", None][p],)]


def test_conditions_over_widened_integers_leave_row_groups_out(tmp_path):
    table = pa.table({"v": range(20_000), "w": range(20_000)})
    write_dataset(Store(str(tmp_path / "s"), create=True), "t", table)
    (path,) = (tmp_path / "s" / "t" / "table").rglob("*.parquet")
    narrow = table.cast(pa.schema([("v", pa.int32()), ("w", pa.int32())]))
    pq.write_table(narrow, path, row_group_size=2_000)
    with kartosql.connect(tmp_path / "s") as con:
        for condition in ("v = 5", "v IN (5, 6)", "v BETWEEN 5 AND 8", "v < 7"):
            query = con.sql(f"SELECT sum(w) FROM t WHERE {condition}")
            query.rows()
            assert query.stats["row_groups_read"] == 1


def test_names_that_differ_in_case_are_one_view(connection):
    for name in ("T", "t", "T", "T AS T", "t AS T"):
        assert connection.sql(f"SELECT v FROM {name} WHERE i = 7").rows() == [(7,)]
    assert connection.sql("SELECT T.v FROM t JOIN U ON t.i = U.i AND U.v = -8").rows() == [(8,)]
    assert connection.sql("SELECT t.v FROM T JOIN u ON T.i = u.i AND u.v = -8").rows() == [(8,)]
