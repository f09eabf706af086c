"""PIVOT and UNPIVOT in the forms of DuckDB's own, which are statements by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import SqlError
from kartosql.store import Store
from written import write_dataset


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Any]:
    table = pa.table({"p": [0, 0, 1, 1, 2], "k": ["b", "a", "b", "a", "b"], "v": [1, 2, 3, 4, 5]})
    write_dataset(Store(str(tmp_path / "store"), create=True), "t", table, partition_on="p")
    with kartosql.connect(tmp_path / "store") as made:
        yield made


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("PIVOT t ON k USING sum(v) ORDER BY p DESC", [(2, None, 5), (1, 4, 3), (0, 2, 1)]),
        ("PIVOT t ON k USING sum(v) GROUP BY p ORDER BY p LIMIT 1 OFFSET 1", [(1, 4, 3)]),
        ("PIVOT (SELECT * FROM t WHERE p < 2) ON k USING sum(v) ORDER BY ALL LIMIT 1", [(0, 2, 1)]),
        ("PIVOT t ON k IN ('a') USING sum(v) GROUP BY p ORDER BY a DESC NULLS LAST LIMIT 2", [(1, 4), (0, 2)]),
        ("UNPIVOT (SELECT p, v FROM t) ON p, v INTO NAME n VALUE x ORDER BY x DESC LIMIT 1", [("v", 5)]),
        ("FROM (PIVOT t ON k USING sum(v) GROUP BY p ORDER BY p LIMIT 1)", [(0, 2, 1)]),
        ("WITH a AS (PIVOT t ON k USING sum(v) GROUP BY p ORDER BY p LIMIT 2) SELECT max(p), sum(b) FROM a", [(1, 4)]),
    ],
)
def test_order_and_limit_may_follow(connection, sql, rows):
    assert [tuple(map(_plain, row)) for row in connection.sql(sql).rows()] == rows


def _plain(value: Any) -> Any:
    return int(value) if value is not None and not isinstance(value, str) else value


@pytest.mark.parametrize(
    "sql",
    [
        "PIVOT t ON k USING sum(nope)",
        "PIVOT t ON nope USING sum(v)",
        "PIVOT t ON k USING sum(v) ORDER BY nope",
        "PIVOT t ON k IN ('a') USING sum(nope)",
    ],
)
def test_a_column_that_is_not_there_is_told_by_its_name(connection, sql):
    with pytest.raises(SqlError, match="nope") as e:
        connection.sql(sql).rows()
    assert e.value.code == "unknown-column"
    assert connection.sql("SELECT count(*) FROM t").rows() == [(5,)]


@pytest.mark.parametrize(
    "sql", ["PIVOT (SELECT * FROM t WHERE p < ?) ON k USING sum(v)", "PIVOT t ON k USING sum(v) LIMIT ?"]
)
def test_parameters_need_named_values(connection, sql):
    with pytest.raises(SqlError) as e:
        connection.sql(sql, [2]).rows()
    assert e.value.code == "not-supported"
    assert "IN (" in str(e.value.hint)


def test_parameters_beside_named_values(connection):
    named = connection.sql("PIVOT (SELECT * FROM t WHERE p < ?) ON k IN ('a') USING sum(v) GROUP BY p ORDER BY p", [2])
    assert named.rows() == [(0, 2), (1, 4)]
