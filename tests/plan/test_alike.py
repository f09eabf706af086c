"""Statements that share a tree are planned and answered as if each were parsed by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import kartosql
import kartosql.connection
from kartosql.sql import parse
from kartosql.store import Store
from written import write_dataset

STATEMENTS = [
    "SELECT * FROM t WHERE i = {i}",
    "SELECT p, i, v FROM t WHERE i = {i} OR (p > '{p}' AND NOT v < {v}) ORDER BY ALL",
    "SELECT count(*), max(i) FROM t WHERE p BETWEEN '{p}' AND 'd'",
    "SELECT i FROM t WHERE i IN ({i}, {i}, {j}) AND s <> '{s}' ORDER BY i LIMIT 2",
    "SELECT a.i, b.v FROM t a JOIN u b ON a.i = b.i WHERE a.i = {i} AND b.p <= '{p}'",
    "SELECT x.n FROM (SELECT i AS n FROM t WHERE p = '{p}') x WHERE x.n < {j} ORDER BY 1",
    "WITH s AS (SELECT i, v FROM u WHERE v >= {v}) SELECT t.i FROM t LEFT JOIN s USING (i) WHERE t.i > {j} ORDER BY 1",
    "SELECT i FROM t WHERE i = {i} UNION ALL SELECT i FROM u WHERE p = '{p}' AND i <> -{i} ORDER BY 1",
    "SELECT i FROM t WHERE i IN (SELECT i FROM u WHERE v = {v}) AND i <> {i} ORDER BY 1",
    "SELECT i, nothing FROM t WHERE i = {i}",
    "SELECT i FROM t WHERE p = {i} AND i = '{s}'",
]


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("alike"))
    store = Store(folder)
    for name, step in (("t", 1), ("u", 3)):
        n = 120
        table = pa.table(
            {
                "p": [f"{'abcdef'[i % 6]}" for i in range(n)],
                "i": [i * step for i in range(n)],
                "v": [(i % 10) / 4 for i in range(n)],
                "s": [f"s{i % 7}" for i in range(n)],
            }
        )
        write_dataset(store, name, table, partition_on="p", index_columns=["i"])
    return folder


@pytest.fixture
def connections(url) -> Iterator[tuple[Any, Any]]:
    """One connection that knows shapes, and one that parses every text by itself."""
    with kartosql.connect(url, read_only=True) as knowing, kartosql.connect(url, read_only=True) as plain:
        plain._session.parse = parse
        yield knowing, plain


def _answer(connection: Any, sql: str) -> Any:
    try:
        report = connection.explain(sql).to_dict()
        query = connection.sql(sql)
        return report["sql"], report["scans"], query.columns, query.rows()
    except kartosql.KartosqlError as e:
        return e.to_dict()


@pytest.mark.parametrize("statement", STATEMENTS)
def test_plans_and_answers_are_those_of_statements_parsed_by_themselves(connections, statement):
    knowing, plain = connections
    rng = random.Random(statement)
    for _ in range(12):
        sql = statement.format(
            i=rng.randint(0, 130),
            j=rng.randint(10, 99),
            p=rng.choice("abcdefg"),
            v=rng.choice(["0.25", "1.50", "2.0"]),
            s=rng.choice(["s1", "s5", "it", "--", "; "]),
        )
        assert _answer(knowing, sql) == _answer(plain, sql)


def test_a_known_tree_is_used_again(connections, monkeypatch):
    knowing, _ = connections
    bound: list[str] = []
    bind = kartosql.plan.bind.bind  # type: ignore[attr-defined]
    monkeypatch.setattr("kartosql.plan.bind.bind", lambda s, *a: bound.append(s.text) or bind(s, *a))
    answers = [knowing.sql(f"SELECT v FROM t WHERE i = {n}").rows() for n in range(10, 99)]
    assert answers == [[((n % 10) / 4,)] for n in range(10, 99)]
    assert len(bound) == 1


def test_a_condition_is_shown_with_its_own_constants(connections):
    knowing, _ = connections
    for n in (11, 22, 33):
        report = knowing.explain(f"SELECT v FROM t WHERE i = {n} AND random() < {n}")
        shown = str(report.to_dict()["scans"])
        assert f"i = {n}" in shown
        assert not any(f"i = {other}" in shown for other in (11, 22, 33) if other != n)
