"""Plans of repeated statements are kept, and forgotten when anything they depend on changed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
import kartosql.query
from kartosql.plan.bind import LEARNED, PlanCache
from kartosql.plan.prune import prune
from kartosql.plan.scopes import Source
from kartosql.sql import parse
from kartosql.store import Store
from written import write_dataset


@pytest.fixture
def connection() -> Iterator[Any]:
    """``t`` has four files by ``p`` and an index on ``i``."""
    store = Store(f"memory://{uuid.uuid4().hex}")
    table = pa.table({"p": [0, 0, 1, 2, 3], "i": [1, 2, 11, 21, 31], "v": [1.0, 2.0, 3.0, 4.0, 5.0]})
    write_dataset(store, "t", table, partition_on="p", index_columns=["i"])
    with kartosql.connect(store.url) as made:
        yield made


@pytest.fixture
def plans(monkeypatch) -> list[str]:
    """Texts of the statements that were really planned."""
    seen: list[str] = []

    def noting(query: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(query.select.text)
        return prune(query, *args, **kwargs)

    monkeypatch.setattr(kartosql.query, "prune", noting)
    return seen


def repeat(connection: Any, sql: str, parameters: Any = None, times: int = LEARNED + 2) -> list[Any]:
    return [connection.sql(sql, parameters).rows() for _ in range(times)][-1]


def test_a_repeated_statement_is_planned_a_few_times_only(connection, plans):
    assert repeat(connection, "SELECT v FROM t WHERE i = 11") == [(3.0,)]
    assert len(plans) == LEARNED


def test_other_parameters_are_planned_anew(connection, plans):
    sql = "SELECT v FROM t WHERE i = ?"
    assert repeat(connection, sql, [11]) == [(3.0,)]
    assert repeat(connection, sql, [21]) == [(4.0,)]
    assert repeat(connection, sql, [11.0]) == [(3.0,)]
    assert repeat(connection, sql, [True]) == [(1.0,)]


def test_parameters_that_are_only_equal_in_python_are_planned_anew(connection, plans):
    typed = "SELECT v FROM t WHERE typeof(?) = 'DOUBLE' AND p = 1"
    signed = "SELECT v FROM t WHERE signbit(?) AND p = 1"
    for sql, one, other in ((typed, 1, 1.0), (typed, True, 1.0), (signed, 0.0, -0.0)):
        assert repeat(connection, sql, [one]) == []
        assert repeat(connection, sql, [other]) == [(3.0,)]


def test_a_write_is_seen_at_once(connection, plans):
    assert repeat(connection, "SELECT count(*), sum(v) FROM t WHERE p = 1") == [(1, 3.0)]
    builders.append(connection.store, "t", pa.table({"p": [1], "i": [12], "v": [7.0]}))
    assert connection.sql("SELECT count(*), sum(v) FROM t WHERE p = 1").rows() == [(2, 10.0)]


def test_settings_belong_to_the_plan(connection, plans):
    sql = "SELECT v FROM t WHERE CAST(TIMESTAMPTZ '2020-01-01 00:00:00+00' AS VARCHAR) LIKE '%09:00%' AND p = 1"
    assert repeat(connection, sql) == []
    connection.sql("SET TimeZone = 'Asia/Tokyo'")
    assert repeat(connection, sql) == [(3.0,)]


def test_registered_data_that_are_replaced_are_seen(connection, plans):
    sql = "SELECT v FROM t WHERE i IN (SELECT k FROM given)"
    connection.register("given", pa.table({"k": [11]}))
    assert repeat(connection, sql) == [(3.0,)]
    connection.register("given", pa.table({"k": [31]}))
    assert repeat(connection, sql) == [(5.0,)]


def test_a_table_of_the_same_name_is_seen(connection, plans):
    assert repeat(connection, "SELECT v FROM T WHERE i = 11") == [(3.0,)]
    connection.register("T", pa.table({"i": [11], "v": [9.0]}))
    assert connection.sql("SELECT v FROM T WHERE i = 11").rows() == [(9.0,)]


def test_statements_that_ask_the_clock_are_planned_each_time(connection, plans):
    repeat(connection, "SELECT v FROM t WHERE i = 11 AND now() > TIMESTAMP '2020-01-01'")
    assert len(plans) == LEARNED + 2


# -- queries that are corrected ------------------------------------------------------------------


@pytest.fixture
def overlooking(monkeypatch) -> None:
    """Let the planner overlook that statements use ``v``."""
    use = Source.use
    monkeypatch.setattr(Source, "use", lambda self, column=None: self.values() if column == "v" else use(self, column))


def test_an_overlooked_column_costs_one_attempt(overlooking, connection, plans):
    sql = "SELECT v FROM t WHERE i = 11"
    assert connection.sql(sql).rows() == [(3.0,)]
    assert len(plans) == 2
    assert repeat(connection, sql) == [(3.0,)]
    assert len(plans) == 1 + LEARNED


def test_statements_that_are_like_a_corrected_one_need_no_other_attempt(overlooking, connection, plans):
    assert connection.sql("SELECT v FROM t WHERE i = 11").rows() == [(3.0,)]
    assert [connection.sql(f"SELECT v FROM t WHERE i = {i}").rows() for i in (21, 31)] == [[(4.0,)], [(5.0,)]]
    assert len(plans) == 4


def test_scans_of_what_was_overlooked_are_forgotten(connection):
    tables, plans = connection._session.tables(), PlanCache()
    select = parse("SELECT v FROM t WHERE i = 11")
    bound = plans.bind(select, tables, None)
    scan = connection.sql(select.text).report.scan
    for _ in range(LEARNED):
        plans.keep(bound, prune, {}, scan)
    assert plans.scan(bound, prune, {}) is scan
    corrected = bound.with_all_columns()
    plans.correct(corrected)
    assert all(o.columns is not None for o in bound.occurrences)
    for query in (corrected, plans.bind(select, tables, None)):
        assert [o.columns for o in query.occurrences] == [None]
        assert plans.scan(query, prune, {}) is None
    for _ in range(LEARNED):
        plans.keep(bound, prune, {}, scan)  # by a statement that began before
    assert plans.scan(corrected, prune, {}) is None
    for _ in range(LEARNED):
        plans.keep(corrected, prune, {}, scan)
    assert plans.scan(corrected, prune, {}) is scan


def test_what_is_bound_to_other_tables_by_now_is_not_corrected(connection):
    plans, select = PlanCache(), parse("SELECT v FROM t WHERE i = 11")
    before = plans.bind(select, connection._session.tables(), None)
    builders.append(connection.store, "t", pa.table({"p": [1], "i": [12], "v": [7.0]}))
    tables = connection._session.tables()
    now = plans.bind(select, tables, None)
    plans.correct(before.with_all_columns())
    assert plans.bind(select, tables, None) is now
