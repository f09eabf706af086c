"""What a WHERE says as conditions of ``query_cube``: the same rows, or an error."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import kartosql
from kartosql import C
from kartosql.conditions import Conjunction
from kartosql.errors import KartosqlError, UsageError
from kartosql.formats.kartothek.cube import Cube
from written import build_cube

CUBE = Cube("c", ["x"], ["p"], index_columns=["i"])
ROWS = 60
UTC = dt.timezone.utc
# For each column constants of SQL: those that conditions take, and those that they do not.
CONSTANTS = {
    "x": (["5", "-1", "5.0", "CAST('7' AS BIGINT)"], ["5.5", "1e1", "'5'", "12345678901234567890", "NULL", "p"]),
    "i": (["0", "3", "127"], ["9223372036854775808", "1.5"]),
    "d": (["1.5", "2", "0.1", "1e0", "CAST('inf' AS DOUBLE)"], ["12345678901234567.1", "CAST('nan' AS DOUBLE)"]),
    "f": (["1.5", "0.1", "CAST(0.1 AS FLOAT)"], ["'1.5'"]),
    "s": (["'a'", "'it''s'", "'b' :: VARCHAR", "''"], ["5", "upper('a')"]),
    "b": (["TRUE", "FALSE"], ["1", "'t'"]),
    "day": (
        ["DATE '2020-01-03'", "DATE '2020-01-05'", "'2020-01-05'"],
        ["TIMESTAMP '2020-01-03 00:00:00'", "'2020-1-3'"],
    ),
    "clock": (
        ["TIMESTAMP '2020-01-03 01:00:00.5'", "TIMESTAMP '2020-01-04 00:00:00'", "'2020-01-04'", "DATE '2020-01-05'"],
        ["now()", "'x'"],
    ),
    "zoned": (
        ["TIMESTAMPTZ '2020-01-03 00:00:00+00'", "TIMESTAMPTZ '2020-01-04 08:00:00+00'", "'2020-01-04 00:00:00Z'"],
        ["TIMESTAMP '2020-01-04 00:00:00'"],
    ),
    "n": ([], ["1.5", "2"]),
}


@pytest.fixture(scope="module")
def connection() -> Iterator[Any]:
    rng = random.Random(7)

    def some(values: list[Any], type_: pa.DataType) -> pa.Array:
        return pa.array([rng.choice([*values, None]) for _ in range(ROWS)], type_)

    hours = [dt.datetime(2020, 1, 3) + dt.timedelta(hours=n) for n in range(0, 72, 8)]
    seed = {
        "x": list(range(ROWS)),
        "p": [n % 3 for n in range(ROWS)],
        "i": [n % 5 for n in range(ROWS)],
        "d": some([0.1, 1.0, 1.5, 2.0, float("nan"), float("inf"), -0.0], pa.float64()),
        "f": some([0.1, 0.5, 1.5], pa.float32()),
        "s": some(["a", "b", "", "it's", "A", "%"], pa.string()),
        "b": some([True, False], pa.bool_()),
        "day": some([dt.date(2020, 1, n) for n in range(2, 7)], pa.date32()),
        "clock": some([*hours, dt.datetime(2020, 1, 3, 1, 0, 0, 500_000)], pa.timestamp("us")),
        "zoned": some([h.replace(tzinfo=UTC) for h in hours], pa.timestamp("us", "UTC")),
    }
    more = pa.table({"x": list(range(0, ROWS, 2)), "p": [n % 3 for n in range(0, ROWS, 2)]})
    more = more.append_column("n", pa.array([Decimal(n % 4) for n in range(ROWS // 2)], pa.decimal128(5, 2)))
    with kartosql.connect(f"memory://{uuid.uuid4().hex}", TimeZone="Europe/Berlin") as made:
        build_cube(made.store, CUBE, {"seed": pa.table(seed), "e": more})
        yield made


def agree(connection: Any, where: str, parameters: Any = None) -> bool:
    """Compare the rows of SQL with those of ``query_cube``; return whether there are conditions at all."""
    sql = f"SELECT x FROM c WHERE {where}"
    try:
        found = connection.conditions(sql, parameters)
    except UsageError as e:
        if e.code != "invalid-condition":
            raise
        return False
    expected = sorted(connection.sql(sql, parameters).rows())
    for conditions in (found, found.predicate):
        given = connection.query_cube("c", payload_columns=["x"], conditions=conditions)
        assert sorted((row[given.columns.index("x")],) for row in given.rows()) == expected, (where, str(found))
    return True


def test_comparisons_are_the_same_or_refused(connection):
    for column, (usable, others) in CONSTANTS.items():
        for op in ("=", "<>", "<", ">="):
            for constant in usable:
                assert agree(connection, f"{column} {op} {constant}"), (column, op, constant)
                assert agree(connection, f"NOT {constant} {op} {column}")
            for constant in others:
                assert not agree(connection, f"{column} {op} {constant}"), (column, op, constant)
        if len(usable) > 1:
            one, two = usable[:2]
            for where in ("{0} IN ({1}, {2}, {1})", "{0} NOT IN ({1}, {2})", "{0} BETWEEN {1} AND {2}"):
                assert agree(connection, where.format(column, one, two)), (column, where)
            assert agree(connection, f"({column} = {one} OR {column} IN ({two})) AND p < 2")


def test_random_conjunctions_are_the_same(connection):
    rng = random.Random(11)
    said = 0
    for _ in range(60):
        parts = []
        for _ in range(rng.randint(1, 4)):
            column = rng.choice(list(CONSTANTS))
            constants = CONSTANTS[column][0] + CONSTANTS[column][1] * (rng.random() < 0.2) or ["1"]
            part = f"{column} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {rng.choice(constants)}"
            parts.append(part if rng.random() < 0.7 else f"NOT ({part} OR x = {rng.randint(0, 60)})")
        said += agree(connection, " AND ".join(parts))
    assert said > 20


def test_other_forms_are_the_same_or_refused(connection):
    for where in (
        "b",
        "NOT b",
        "b IS TRUE",
        "TRUE",
        "s LIKE 'a'",
        "d IS NOT DISTINCT FROM 1.5",
        'X = 5 AND c."P" = 2',
        "((x > 1)) AND ((x < 9 AND (p = 1)))",
        "day <= current_date",
    ):
        assert agree(connection, where), where
    for where in (
        "s IS NULL",
        "s IS NOT NULL",
        "FALSE",
        "x = 1 OR p = 2",
        "x = 1 OR x > 5",
        "s LIKE 'a%'",
        "day LIKE '2020-01-03'",
        "clock LIKE '2020-01-03'",
        "x + 1 = 2",
        "NOT (b IS TRUE)",
        "random() > 2",
        "x IN (SELECT 1)",
        "x < 3 -> '$' AND p = 1",
    ):
        assert not agree(connection, where), where


def test_parameters_are_values(connection):
    assert agree(connection, "x = $x AND s IN ($s, 'b')", {"x": 5, "s": "a"})
    assert agree(connection, "clock >= ? AND zoned < ?", [dt.datetime(2020, 1, 3), dt.datetime(2020, 1, 5, tzinfo=UTC)])
    assert not agree(connection, "x = ?", [5.0])


def test_conditions_are_objects_and_tuples(connection):
    found = connection.conditions("SELECT * FROM c WHERE p = 1 AND x BETWEEN 2 AND 5 AND s IN ('a', 'b')")
    assert isinstance(found, Conjunction)
    assert str(found) == str((C("p") == 1) & (C("x") >= 2) & (C("x") <= 5) & C("s").isin(["a", "b"]))
    assert found.predicate == [("p", "==", 1), ("x", ">=", 2), ("x", "<=", 5), ("s", "in", ["a", "b"])]
    interval = (C("x").in_interval(1, 3) & C("x").in_interval(None, 2)).predicate
    assert interval == [("x", ">=", 1), ("x", "<", 3), ("x", "<", 2)]
    assert connection.conditions("SELECT count(*) FROM c").predicate == []


def test_only_one_cube_has_conditions(connection):
    for sql in (
        "SELECT * FROM c JOIN c AS d USING (x) WHERE x = 1",
        'SELECT * FROM "c.e" WHERE x = 1',
        "SELECT * FROM c.e WHERE x = 1",
        "SELECT * FROM (SELECT * FROM c WHERE x = 1)",
        "SELECT 1",
        "SHOW TABLES",
    ):
        with pytest.raises(KartosqlError) as caught:
            connection.conditions(sql)
        assert caught.value.code in ("invalid-condition", "unknown-table"), sql
    with pytest.raises(KartosqlError) as caught:
        connection.conditions("SELECT * FROM c WHERE nope = 1")
    assert caught.value.code == "unknown-column"


def test_texts_under_a_collation_have_no_conditions(connection):
    with kartosql.connect(connection.store.url, default_collation="nocase") as other:
        assert other.conditions("SELECT * FROM c WHERE x = 1").predicate == [("x", "==", 1)]
        with pytest.raises(UsageError):
            other.conditions("SELECT * FROM c WHERE s = 'a'")
