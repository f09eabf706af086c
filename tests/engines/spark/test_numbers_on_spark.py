"""Each function of numbers that Spark claims to answer has the values of DuckDB at the edges, zeros with their sign."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import registry

from kartosql.errors import KartosqlError, NotPortable
from sparks import Both, same, unordered

INF, NAN, MOST, LEAST = float("inf"), float("nan"), 1.7976931348623157e308, 5e-324
FLOATS = [
    *(0.0, -0.0, INF, -INF, NAN, MOST, -MOST, LEAST, -LEAST, 0.3, -0.3, 0.5, -0.5, 1.0, -1.0, 1.5, -2.5, 7.0),
    *(2.0**63, -(2.0**63), 4503599627370495.5, 0.49999999999999994),
]
FLOATS32 = [
    *(0.0, -0.0, INF, -INF, NAN, 3.4028234663852886e38, 1e-45, -1e-45, 0.3, -0.3, 0.5, -0.5, -1.0, 2.5, 16777217.0)
]
DIGITS = "12345678901234567890123456789012345678"
SIDE = len(FLOATS)


def _integers(bits: int, *, signed: bool = True) -> list[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return [low, high, low + 1, high - 1, 0, 1, 2, high // 2, *([-1, -2, -7] if signed else [7])]


def _decimals(*texts: str) -> list[Decimal]:
    return [Decimal(sign + text) for text in texts for sign in ("", "-")]


# Pairs of columns of each type, which go through all pairs of their values.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "d": (pa.float64(), FLOATS),
    "f": (pa.float32(), FLOATS32),
    "q": (pa.int64(), _integers(64)),
    "i": (pa.int32(), _integers(32)),
    "b": (pa.int8(), _integers(8)),
    "v": (pa.uint64(), _integers(64, signed=False)),
    "w": (pa.uint8(), _integers(8, signed=False)),
    "m": (pa.decimal128(18, 3), _decimals("0.000", "0.001", "0.499", "0.5", "999999999999999.999", "1.5", "7")),
    "n": (pa.decimal128(38, 0), _decimals("0", "1", "9" * 38, "5" + "0" * 37, DIGITS)),
    "p": (pa.decimal128(38, 37), _decimals("0", "9." + "9" * 37, "0.5", "1.5", "1." + DIGITS[1:])),
}
KINDS = {"d": "d", "f": "f", "q": "i", "i": "i", "b": "i", "v": "u", "w": "u", "m": "m", "n": "m", "p": "m"}
TYPES = (
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT"),
    *("DOUBLE", "DECIMAL(9,2)", "DECIMAL(38,0)", "DECIMAL(4,4)", "BOOLEAN", "VARCHAR"),
)
BATCH = 120
CONSTANTS = [
    *(
        "-0.0::DOUBLE",
        "-0e0",
        "0e0",
        "-0.0::FLOAT",
        "'-0'::DOUBLE",
        "'nan'::DOUBLE",
        "'-inf'::FLOAT",
        "1e400",
        "-1e-400",
    ),
    *(
        "1.7976931348623157e308",
        "5e-324",
        "3.4028234663852886e38::FLOAT",
        "1e-45::FLOAT",
        "[-0.0::DOUBLE]",
        "{'a': -0e0}",
    ),
    *("(-128)::TINYINT", "(-32768)::SMALLINT", "(-2147483648)::INTEGER", "(-9223372036854775808)::BIGINT"),
    *(
        "255::UTINYINT",
        "65535::USMALLINT",
        "4294967295::UINTEGER",
        "18446744073709551615::UBIGINT",
        "18446744073709551616",
    ),
    *("9" * 38, "-" + "9" * 38, "1" + "0" * 38, "-1" + "0" * 38, str(2**127 - 1), f"(-{2**127})::HUGEINT", str(2**127)),
    *(
        "1" * 39,
        "1" * 40,
        "-" + "1" * 40,
        "1" * 80,
        f"{2**128 - 1}::UHUGEINT",
        "0::UHUGEINT",
        "0." + "1" * 38,
        "0." + "1" * 60,
    ),
    *("'" + "9" * 38 + "'::DECIMAL(38,0)", "'-" + "0." + "9" * 38 + "'::DECIMAL(38,38)", "0.1::DECIMAL(1,1)"),
    *(
        "'5881580-07-10'::DATE",
        "'5877642-06-25 (BC)'::DATE",
        "'infinity'::DATE",
        "'0001-01-01'::DATE",
        "'10000-01-01'::DATE",
    ),
    *("'294247-01-10 04:00:54.775806'::TIMESTAMP", "'290309-12-22 (BC) 00:00:00'::TIMESTAMP", "'-infinity'::TIMESTAMP"),
    *("'9999-12-31 23:59:59.999999'::TIMESTAMP", "'10000-01-01 00:00:00'::TIMESTAMP", "'infinity'::TIMESTAMPTZ"),
    *(
        "'2020-01-01 00:00:00.000000001'::TIMESTAMP_NS",
        "'2020-01-01 00:00:00.5'::TIMESTAMP_MS",
        "'2020-01-01'::TIMESTAMP_S",
    ),
    *("'23:59:59.999999'::TIME", "'00:00:00+15:59'::TIMETZ", "INTERVAL '1000 years'", "''::BLOB", r"'\x00\xFF'::BLOB"),
    *(
        "'10100000-0000-0000-0000-0000000000ff'::UUID",
        "'101'::BIT",
        "chr(0)",
        "''",
        "'${x}\\'",
        "true",
        "NULL",
        "[]",
        "[NULL]",
    ),
    *("NULL::DOUBLE", "MAP {'a': -0e0}", "'x'::ENUM('x', 'y')", "[[1e0], [-0e0]]", "array_value(1, 2)", "'{}'::JSON"),
]


def table() -> pa.Table:
    """Return all pairs of values of each type."""
    made: dict[str, pa.Array] = {"id": pa.array(range(SIDE * SIDE), pa.int32())}
    for name, (type_, values) in VALUES.items():
        made[name] = pa.array([values[i // SIDE % len(values)] for i in range(SIDE * SIDE)], type_)
        made[name + "2"] = pa.array([values[i % SIDE % len(values)] for i in range(SIDE * SIDE)], type_)
    return pa.table(made)


def expressions() -> list[str]:
    """Return calls of all functions that have a rule, casts and comparisons, over numbers."""
    found: list[str] = []
    for names in (("d", "q", "v", "m", "f"), ("i", "w", "n"), ("b", "p")):
        values = {KINDS[n]: [n, f"{n}2", n] for n in names}
        found += registry.calls({**values, "h": ["q::HUGEINT", "q2::HUGEINT", "v::HUGEINT"]}, "".join(values) + "h")
        found += [f"({n} {op} {n}2)" for n in names for op in registry.comparisons()]
    found += [f"{word}({n} AS {t})" for word in ("CAST", "TRY_CAST") for n in VALUES for t in TYPES]
    found += [f"round({n}, {digits})" for n in VALUES for digits in (-2, 0, 1, 15)]
    found += ["fdiv(d, d2)", "fmod(d, d2)", "fdiv(q, q2)", "1 / d", "d / -1e0", "-d", "nullif(d, d2)", "coalesce(d, 1)"]
    found += [
        "CASE WHEN q > 0 THEN -0.0::DOUBLE ELSE d END",
        "CASE WHEN q > 0 THEN d WHEN q = 0 THEN -0e0 ELSE 0e0 END",
    ]
    return [*dict.fromkeys(found)]


def accepted(both: Both, asked: list[str]) -> Iterator[str]:
    """Yield the expressions that DuckDB binds and Spark does not refuse."""
    for expression in asked:
        try:
            both.translation(f"SELECT {expression} FROM t")
        except KartosqlError as e:
            if e.code in ("not-portable", "invalid-query", "invalid-value"):
                continue
            raise
        yield expression


def differences(both: Both, asked: list[str], form: str) -> dict[str, Any]:
    """Return the expressions that have other values on Spark, with the first rows that differ."""
    sql = form.format(", ".join(asked))
    try:
        found = unordered(both.on_spark(sql))
    except KartosqlError as e:
        if len(asked) > 1:
            half = len(asked) // 2
            return {**differences(both, asked[:half], form), **differences(both, asked[half:], form)}
        return {} if e.code == "not-portable" else {asked[0]: f"{e.code}: {e.message}"}
    wanted = unordered(both.on_duckdb(sql))
    assert [row[0] for row in found] == [row[0] for row in wanted]
    return {
        e: pairs[:3]
        for at, e in enumerate(asked, 1)
        if (pairs := [(a[0], a[at], b[at]) for a, b in zip(wanted, found, strict=True) if not signed(a[at], b[at])])
    }


def signed(a: Any, b: Any) -> bool:
    """Return whether two values are the same, zeros with their sign."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(signed, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(signed(a[k], b[k]) for k in a)
    zeros = isinstance(a, float) and isinstance(b, float) and a == b == 0
    return same(a, b) and not (zeros and math.copysign(1, a) != math.copysign(1, b))


def in_batches(both: Both, asked: list[str], form: str) -> dict[str, Any]:
    """Return what differs, many expressions at a time."""
    found: dict[str, Any] = {}
    for first in range(0, len(asked), BATCH):
        found |= differences(both, asked[first : first + BATCH], form)
    return found


@pytest.fixture(scope="module")
def both(spark, tmp_path_factory) -> Iterator[Both]:
    with Both(str(tmp_path_factory.mktemp("store")), {"t": table()}) as found:
        yield found


def test_functions_of_numbers_have_the_same_values_at_the_edges(both):
    """Rows for which DuckDB has no value, as after an overflow, are left out."""
    asked = list(accepted(both, expressions()))
    assert len(asked) > 300
    shown = []
    for first in range(0, len(asked), BATCH):
        some = asked[first : first + BATCH]
        rows = both.on_duckdb(f"SELECT id, {', '.join(f'TRY({e}) IS NULL' for e in some)} FROM t")
        for at, expression in enumerate(some, 1):
            missing = [str(row[0]) for row in rows if row[at]]
            where = f"id NOT IN ({', '.join(missing)})" if missing else "true"
            shown.append(f"CASE WHEN {where} THEN {expression} END")
    wrong = in_batches(both, shown, "SELECT id, {} FROM t")
    assert not {asked[shown.index(e)]: found for e, found in wrong.items()}


def test_zeros_keep_their_sign_in_groups_aggregates_and_windows(both):
    values = {KINDS[n]: [n] for n in ("d", "f", "q", "v", "m")}
    found = [a for a in registry.aggregated(values, "dfium") if "no_overflow" not in a]
    assert len(found) > 30
    where = "WHERE abs(d) < 1e9 AND abs(f) < 1e9 AND q BETWEEN -9 AND 9 AND v < 9"
    assert not in_batches(both, found, f"SELECT id, {{}} FROM t {where} GROUP BY id")
    values = {KINDS[n]: [f"{n}2"] for n in ("d", "f", "q", "v", "m")}
    over = [f"{w} OVER (PARTITION BY d ORDER BY id)" for w in registry.windowed(values, "dfium")]
    assert not in_batches(both, over, "SELECT id, {} FROM t")
    for sql in (
        "SELECT d, f2 FROM t WHERE id % 22 <> 0 GROUP BY ALL",
        "SELECT DISTINCT d FROM t WHERE 1 / d < 0",
        "SELECT d, count(*) FROM t WHERE 1 / d < 0 GROUP BY d",
        "SELECT d, f, count(*) FROM t WHERE 1 / d < 0 AND 1 / f < 0 GROUP BY ROLLUP (d, f)",
        "SELECT d FROM t WHERE 1 / d < 0 UNION SELECT -0e0",
        "SELECT d FROM t WHERE 1 / d < 0 INTERSECT SELECT d FROM t WHERE 1 / d < 0",
        "SELECT d FROM t WHERE 1 / d < 0 EXCEPT SELECT 1e0",
        "SELECT DISTINCT ON (d) d, id FROM t ORDER BY d, id",
        "SELECT x.d, y.d2 FROM t x JOIN t y ON x.d = y.d2 WHERE x.id % 7 = 0 AND y.id % 11 = 0",
        "SELECT min(d), max(d), greatest(min(d), -0e0) FROM t WHERE d = 0 AND 1 / d < 0",
        "SELECT d FROM t WHERE d IN (0, 1) AND 1 / d < 0",
    ):
        assert sorted(map(repr, both.on_spark(sql))) == sorted(map(repr, both.on_duckdb(sql))), sql


def test_constants_at_the_edges_are_the_same_or_refused_by_name(both):
    asked = list(accepted(both, CONSTANTS))
    assert len(asked) > 35
    assert not in_batches(both, asked, "SELECT id, {} FROM t WHERE id < 2")
    for constant in asked:  # one by one, as DuckDB takes expressions that differ in a zero's sign for the same one
        if re.search(r"-0|0e0", constant):
            form = "SELECT id, {} FROM t WHERE id < 2"
            assert not in_batches(both, [f"CASE WHEN id = 1 THEN {constant} END"], form)


@pytest.mark.parametrize("digits", [39, 40, 80])
def test_integers_beyond_spark_are_refused(both, digits):
    for number in ("1" * digits, "-" + "1" * digits):
        for sql in (f"SELECT {number}", f"SELECT id FROM t WHERE q > {number}", f"SELECT id + {number} FROM t"):
            with pytest.raises(NotPortable):
                both.on_spark(sql)


def test_huge_sums_and_products_are_refused_where_duckdb_has_them(both):
    for sql in ("SELECT (q::HUGEINT * 4611686018427387904) * 3 FROM t", "SELECT sum(n) FROM t WHERE n > 0"):
        with pytest.raises(NotPortable):
            both.on_spark(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT h, g FROM z LEFT JOIN t ON h = g WHERE 1 / h > 0",
        "SELECT h, g FROM z JOIN t ON h = g WHERE 1 / g < 0",
        "SELECT h, count(g) FROM z LEFT JOIN t ON h IS NOT DISTINCT FROM g WHERE 1 / h > 0 GROUP BY ALL",
        "SELECT h FROM z WHERE h = 0.0 AND 1 / h > 0",
        "SELECT h FROM z WHERE h IS NOT DISTINCT FROM 0.0::DOUBLE AND 1 / h < 0",
        "SELECT h FROM z WHERE h IN (SELECT g FROM t WHERE 1 / g < 0) AND 1 / h > 0",
        "SELECT h, (SELECT max(g) FROM t WHERE g = z.h AND 1 / g < 0) FROM z WHERE 1 / h > 0",
    ],
)
@pytest.mark.parametrize("type_", [pa.float64(), pa.float32()])
def test_zeros_that_are_equal_keep_their_signs_in_other_conditions(spark, tmp_path, sql, type_):
    tables = {"z": pa.table({"h": pa.array([0.0, -0.0, 2.0], type_)})}
    tables["t"] = pa.table({"g": pa.array([0.0, 0.0, -0.0, -0.0, -0.0, 2.0], type_)})
    with Both(str(tmp_path), tables) as both:
        found, expected = (sorted(map(repr, rows(sql))) for rows in (both.on_spark, both.on_duckdb))
    assert found == expected
