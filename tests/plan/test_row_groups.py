"""Conditions on columns without index, answered by the statistics of row groups that earlier statements saw."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube, write_dataset

FILES = 48
NAN = float("nan")


def _rows() -> pa.Table:
    """Rows of 48 files ``n`` with three rows each, whose values ascend with n."""
    rows = [(n, 3 * n + k) for n in range(FILES) for k in range(3)]
    odd = [v % 7 == 0 for _, v in rows]
    columns: dict[str, Any] = {
        "n": [n for n, _ in rows],
        "i": pa.array([None if o else v for (_, v), o in zip(rows, odd, strict=True)], pa.int64()),
        "f": pa.array([NAN if o else v / 2 for (_, v), o in zip(rows, odd, strict=True)], from_pandas=False),
        "s": [f"s{v:03}" for _, v in rows],
        "d": [dt.date(2020, 1, 1) + dt.timedelta(days=v) for _, v in rows],
        "e": pa.array([v if n > 40 else None for n, v in rows], pa.int64()),
    }
    return pa.table(columns)


@pytest.fixture
def connection(local: Store) -> kartosql.Connection:
    """A connection over dataset ``t``, which has no index, of which all files were opened before."""
    write_dataset(local, "t", _rows(), partition_on="n")
    document = builders.read_document(local, "t")
    document["indices"] = {}
    builders.write_document(local, document)
    connection = kartosql.connect(local.url)
    for _ in range(2):
        connection.sql(
            "SELECT count(*) FROM t WHERE i + 0 > 0 AND i > -1 AND f = -1 OR s > 'z' OR d < '1999-01-01'"
        ).rows()
        connection.sql("SELECT count(*) FROM t WHERE e IS NOT NULL OR i IS NULL OR f IS NULL").rows()
    return connection


def _part(connection: kartosql.Connection, sql: str) -> dict[str, Any]:
    (scan,) = connection.explain(sql).to_dict()["scans"]
    return dict(scan["datasets"][0])


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("i = 50", 1),
        ("i BETWEEN 50 AND 55", 3),
        ("i > 140 OR s = 's004'", 2),
        ("i > 10 AND s < 's134'", 42),
        ("i IN (1, 2, 100)", 2),
        ("NOT (i < 140)", 1),
        ("i IS NULL", 21),
        ("e IS NOT NULL", 7),
        ("e IS NULL", 41),
        ("e > 0", 7),
        ("f = 10.5", 0),
        ("f = 11", 1),
        ("f < 3", 2),
        ("f > 60", FILES),  # NaN is larger than all numbers
        ("s LIKE 's00%'", 4),
        ("d >= DATE '2020-05-20'", 2),
        ("d = '2020-01-05'", 1),
        ("(n = 4 AND i = 13) OR (n = 5 AND i = 99)", 1),
        ("i + 0 = 50", FILES),
        ("coalesce(i, 50) = 50", FILES),
    ],
)
def test_files_are_left_out_by_their_statistics(connection, where, files):
    sql = f"SELECT n, i, s FROM t WHERE {where} ORDER BY ALL"
    part = _part(connection, sql)
    assert part["files_selected"] == files, part
    if files < FILES and "n =" not in where:
        assert {step["by"] for step in part["steps"]} == {"row groups"}
    rows = _rows()
    assert (
        connection.sql(sql).rows()
        == duckdb.connect().sql(f"SELECT n, i, s FROM rows WHERE {where} ORDER BY ALL").fetchall()
    )
    assert rows.num_rows == 3 * FILES


def test_parameters_are_compared_as_well(connection):
    sql = "SELECT i FROM t WHERE i >= $low AND i < $high ORDER BY i"
    query = connection.sql(sql, {"low": 50, "high": 52})
    assert query.explain().files_selected == 2
    assert query.rows() == [(50,), (51,)]


def test_the_first_statement_reads_the_footers_that_it_needs(local):
    write_dataset(local, "t", _rows(), partition_on="n")
    document = builders.read_document(local, "t")
    document["indices"] = {}
    builders.write_document(local, document)
    connection = kartosql.connect(local.url)
    selected = []
    for _ in range(3):
        query = connection.sql("SELECT count(*) FROM t WHERE i = 50")
        assert query.rows() == [(1,)]
        selected.append(query.explain().files_selected)
    assert selected == [1, 1, 1]


def test_random_conditions_have_the_same_rows_with_and_without_statistics(connection):
    random_ = random.Random(7)
    rows = _rows()
    assert rows.num_rows
    literals = {
        "i": lambda: str(random_.randrange(-1, 146)),
        "f": lambda: random_.choice([f"{random_.randrange(140)}.5", "'nan'", "7", "1e300"]),
        "s": lambda: f"'s{random_.randrange(150):03}'",
        "d": lambda: f"'{dt.date(2020, 1, 1) + dt.timedelta(days=random_.randrange(150))}'",
        "e": lambda: str(random_.randrange(120, 146)),
        "n": lambda: str(random_.randrange(50)),
    }

    def condition(depth: int) -> str:
        if depth and random_.random() < 0.6:
            joined = f" {random_.choice(['AND', 'OR'])} ".join(condition(depth - 1) for _ in range(2))
            return f"{random_.choice(['', 'NOT '])}({joined})"
        column = random_.choice(list(literals))
        value = literals[column]
        return random_.choice(
            [
                f"{column} {random_.choice(['=', '<>', '<', '<=', '>', '>='])} {value()}",
                f"{value()} {random_.choice(['=', '<', '>='])} {column}",
                f"{column} {random_.choice(['', 'NOT '])}BETWEEN {value()} AND {value()}",
                f"{column} {random_.choice(['', 'NOT '])}IN ({value()}, {value()})",
                f"{column} IS {random_.choice(['', 'NOT '])}NULL",
                f"{column} IS {random_.choice(['', 'NOT '])}DISTINCT FROM {value()}",
            ]
        )

    pruned = 0
    for _ in range(120):
        where = condition(2)
        query = connection.sql(f"SELECT n, s FROM t WHERE {where} ORDER BY ALL")
        expected = duckdb.connect().sql(f"SELECT n, s FROM rows WHERE {where} ORDER BY ALL").fetchall()
        assert query.rows() == expected, (where, str(query.explain()))
        pruned += query.explain().files_selected < FILES
    assert pruned > 40


def test_an_overwritten_row_does_not_come_back(local):
    cells = {"x": list(range(FILES * 2)), "p": [x // 2 for x in range(FILES * 2)]}
    build_cube(local, Cube("c", ["x"], ["p"], suppress_index_on=["x"]), pa.table({**cells, "v": [1] * FILES * 2}))
    builders.append(local, "c++seed", pa.table({**cells, "v": [1 + x % 4 // 2 for x in range(FILES * 2)]}))
    connection = kartosql.connect(local.url)
    for _ in range(4):
        ones = connection.sql("SELECT x FROM c WHERE v = 1 ORDER BY x")
        assert ones.rows() == [(x,) for x in range(FILES * 2) if x % 4 < 2]
        twos = connection.sql("SELECT x FROM c WHERE v = 2 ORDER BY x")
        assert twos.rows() == [(x,) for x in range(FILES * 2) if x % 4 >= 2]
    assert ones.explain().files_selected == FILES * 2
    assert twos.explain().files_selected < FILES * 2
