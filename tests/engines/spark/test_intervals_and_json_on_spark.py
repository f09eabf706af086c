"""Intervals, numbers as texts, JSON, PIVOT without values and aggregates of several values: DuckDB's answers."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest
from test_everyday import values

from kartosql.errors import KartosqlError, NotPortable
from sparks import Both, same, unordered

# Ranges of characters, all of which are to be reversed one by one.
LETTERS = ((0x20, 0x7E), (0xA1, 0xA8), (0xAA, 0xAC), (0xAF, 0x2FF), (0x370, 0x482), (0x1E00, 0x1FFF), (0x9F00, 0x9FFF))
JSON = [
    *('{"a":1}', '{"a":"x","b":2}', '{"a":null}', '{"b":1}', '{"a":true}', None, '{ "a" : -12 , "b" : "y z" }', "{}"),
    *('{"b":"a","c":1}', '{"b":":","a":""}', '{"xa":1,"a":false}', '{"a":0}', '{"c":"é€"}'),
]
OTHER_JSON = [
    "",
    "x",
    "[1]",
    '{"a":1.50}',
    '{"a":{"b":1}}',
    '{"a":1,"a":2}',
    '{"a":"\\u0041"}',
    '{"a":01}',
    '{"a":1}\n',
]
NUMBERS = ["abc 12", " x  ", None, "7", "a1b22 333", "-5", "99999999999", "true", "e5", "b1", "$5", "\u00a05", "", "--"]


def _times() -> list[dt.datetime | None]:
    random.seed(3)
    known = [
        *(dt.datetime(2024, 2, 29, 23, 59, 59, 999999), dt.datetime(2024, 3, 31), dt.datetime(2023, 1, 31, 12), None),
        *(dt.datetime(2024, 3, 1), dt.datetime(1850, 12, 31, 0, 0, 1), dt.datetime(1970, 1, 1)),
        *(dt.datetime(2000, 2, 29, 1, 2, 3, 4), dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)),
    ]
    days = [dt.timedelta(random.randrange(2000), 0, random.randrange(86_400_000_000)) for _ in range(20)]
    return [*known, *(dt.datetime(2020, 1, 1) + d for d in days)]


def _floats() -> list[float | None]:
    """Return floats of few digits; of some others Java before 19 writes more than it takes."""
    random.seed(1)
    found = [round(random.uniform(-1e6, 1e6), random.randrange(8)) for _ in range(500)]
    edges = [0.0, -0.0, 1e15, 1e16, 1e-4, 1e-5, 9.99e-5, 123456789012345.0, 1e7, 1e-3, 9999999.0, 12345678.0, 0.00105]
    wide = [1.05, 100.5, 1.5e-5, 1.25e16, 3e17, -2.5e-7, 1e22, 1.5e100, 1e-300, 9.5e15]
    return [*found, *edges, *wide, float("nan"), float("inf"), -float("inf"), None]


@pytest.fixture(scope="module")
def both(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    times = _times()
    pairs = [(a, b) for a in times for b in times]
    letters = [chr(c) for first, last in LETTERS for c in range(first, last + 1)]
    made = {
        "v": values()["v"],
        "t": {
            "id": range(len(pairs)),
            "a": pa.array([a for a, _ in pairs], pa.timestamp("us")),
            "b": pa.array([b for _, b in pairs], pa.timestamp("us")),
            "q": [i % 40 - 20 for i in range(len(pairs))],
        },
        "d": {"id": range(len(_floats())), "x": _floats()},
        "c": {"id": range(len(letters)), "x": letters},
        "n": {"id": range(len(NUMBERS)), "x": NUMBERS},
        "j": {"id": range(len(JSON)), "x": JSON},
        "p": {"a": ["it's", "$x", "\\", None, ""] * 2, "b": [1.5, -0.0, None, 1e20, 2.0] * 2, "n": range(10)},
    }
    tables = {name: rows if isinstance(rows, pa.Table) else pa.table(rows) for name, rows in made.items()}
    with Both(str(tmp_path_factory.mktemp("store")), tables) as found:
        yield found


STATEMENTS = r"""
SELECT id, a - b, age(a, b) FROM t
SELECT id, epoch(a - b), date_part('hour', a - b), extract(day FROM a - b), minute(a - b), second(a - b) FROM t
SELECT id, year(age(a, b)), month(age(a, b)), day(age(a, b)) FROM t
SELECT id, a - b > INTERVAL 1 DAY, a - b = b - a, age(a, b) >= INTERVAL '1 month', a - b IS DISTINCT FROM b - a FROM t
SELECT id, age(a, b) BETWEEN INTERVAL '-1 month' AND INTERVAL '40 days', normalized_interval(age(a, b)) FROM t
SELECT id, a + (b - a), a - age(a, b) FROM t WHERE year(a) BETWEEN 1000 AND 5000 AND year(b) BETWEEN 1000 AND 5000
SELECT id, a + INTERVAL (q) DAY, a - INTERVAL (q) HOUR, a + to_months(q) FROM t WHERE year(a) > 1
SELECT id, a::DATE + INTERVAL (q) WEEK FROM t WHERE year(a) > 1
SELECT id, a - INTERVAL (q) MINUTE, to_years(q), to_microseconds(q), to_quarters(q) FROM t WHERE year(a) > 1
SELECT id, CASE WHEN id % 2 = 0 THEN a - b END, coalesce(a - b, INTERVAL 3 DAY), INTERVAL '1 month 2 days' FROM t
SELECT count(a - b) FROM t
SELECT id, x::VARCHAR, 'x' || x, concat(x, '') FROM d
SELECT id, x::FLOAT::VARCHAR FROM d WHERE abs(x) < 100 AND x = round(x, 3)
SELECT id, reverse('a' || x || x || 'b') FROM c
SELECT id, try_cast(x AS INTEGER) FROM n
SELECT id, x->>'$.a', x->>'b', json_extract_string(x, '$.c') FROM j
SELECT id, to_json({'a': id, 'b': x, 'c': [id, NULL], 'd': {'e': id > 3}, 'f': NULL::INT}) FROM n
SELECT id, to_json(s), to_json(id), to_json([s]), to_json([]::INT[]) FROM v WHERE s <> 'a\b'
SELECT id, to_json(CASE WHEN id > 3 THEN {'a': id} END), to_json(y), to_json(u)::VARCHAR FROM v
SELECT g, histogram(i), histogram(s), histogram(t), histogram(y) FROM v GROUP BY g
SELECT g, histogram(b), histogram(m), histogram(u) FROM v GROUP BY g
SELECT histogram(i), histogram(s) FILTER (WHERE b), arg_max(s, id, 2), max(i, 2), product(u) FROM v WHERE id < 0
SELECT skewness(d), kurtosis(d), count(*) FROM v WHERE id < 0
SELECT g, max(i, 3), min(d, 2), max(s, 100), min(t, 1), max(b, 2), min(m, 4) FILTER (WHERE b) FROM v GROUP BY g
SELECT g, arg_max(s, id, 2), arg_min(d, id, 3), max_by(m, k, 2), min_by(t, k, 4), arg_max(b, id, 100) FROM v GROUP BY g
SELECT g, product(u), product(d), product(k) FROM v WHERE abs(k) < 1e8 GROUP BY g
SELECT g, product(d) FROM v WHERE abs(d) > 1e-10 AND g <> 99 GROUP BY g
SELECT g, skewness(k), kurtosis(k) FROM v GROUP BY g
SELECT g, skewness(d), kurtosis(d), kurtosis(id % 7) FROM v WHERE d > -1e4 GROUP BY g
SELECT g, any_value(g), any_value(s) FILTER (WHERE s = 'a'), any_value(DISTINCT b) FILTER (WHERE b) FROM v GROUP BY g
SELECT g, any_value(1 / 0.0e0 * g), first(g), last(g::VARCHAR), arbitrary(g > 3), first(NULLIF(g, g)) FROM v GROUP BY g
SELECT any_value(x) FROM (VALUES (NULL), (3), (3), (NULL)) r(x)
SELECT any_value(id), first(s), last(d), arbitrary(m) FROM v WHERE id < 0
SELECT count(*) FROM (SELECT random() AS r FROM v) WHERE r >= 0 AND r < 1
SELECT count(*) FROM v WHERE CASE WHEN id > 0 THEN random() ELSE 0 END < 2
PIVOT v ON u USING sum(k) GROUP BY g
PIVOT v ON s USING count(*) GROUP BY b
PIVOT v ON y USING count(*) GROUP BY b ORDER BY b
PIVOT (SELECT g, i FROM v) ON i
PIVOT p ON a USING sum(n), max(n) GROUP BY b
PIVOT p ON b USING sum(n) GROUP BY a
PIVOT (SELECT g, m FROM v) ON m USING count(*), min(g)
PIVOT (SELECT g, b, k FROM v) ON g USING sum(k) GROUP BY b
FROM (SELECT g, u, b, k FROM v) PIVOT (sum(k) FOR g IN (1, 2, 3, 4, 5, 6, 7, 8) u IN (0, 1, 255) GROUP BY b)
WITH w AS (SELECT g, i, k FROM v) PIVOT w ON i USING max(k), min(k)
""".strip().splitlines()


@pytest.mark.parametrize("text", STATEMENTS)
def test_answers_are_those_of_duckdb(both: Both, text: str) -> None:
    wanted, found = both.con.sql(text, engine="duckdb").arrow(), both.con.sql(text, engine="spark").arrow()
    assert found.schema == wanted.schema
    rows = [unordered(both.on_duckdb(text)), unordered(both.on_spark(text))]
    different = [pair for pair in zip(*rows, strict=True) if not same(*pair, 1e-9)]
    assert not different, different[:3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT x::VARCHAR FROM (VALUES (5e-324::DOUBLE), (1e-320)) r(x)", "so small"),
        ("SELECT reverse(x) FROM (VALUES ('e\u0301')) r(x)", "in reverse"),
        ("SELECT reverse(x) FROM (VALUES ('a' || chr(13) || chr(10))) r(x)", "in reverse"),
        ("SELECT to_json(x) FROM (VALUES ('\"')) r(x)", "in JSON"),
        ("SELECT product(x) FROM (VALUES (1e300), (1e300), (1e-300)) r(x)", "product"),
        ("SELECT product(x) FROM (VALUES (1e200), (1e200), (0)) r(x)", "product"),
        ("SELECT skewness(x) FROM (VALUES (0.1e0), (0.1e0), (0.1e0), (0.1e0)) r(x)", "close to each other"),
        ("SELECT kurtosis(x) FROM (VALUES (1e200), (0), (0), (0)) r(x)", "so large"),
        ("SELECT arg_max(x, k, 2) FROM (VALUES (1, 1), (2, 1), (3, 1)) r(x, k)", "several rows"),
        ("SELECT count(DISTINCT age(a, b)) FROM t", "count"),
        ("SELECT round(random() * 6) FROM v", "random"),
        ("SELECT * FROM v WHERE random() BETWEEN 0.1 AND 0.2", "random"),
        ("SELECT [a - b] FROM t", "INTERVAL"),
        ("SELECT DISTINCT age(a, b) FROM t", "compare"),
        ("PIVOT (SELECT * FROM v WHERE false) ON i USING max(k) GROUP BY g", "without values"),
        (f"FROM v PIVOT (count(*) FOR k IN ({', '.join(map(str, range(1001)))}) GROUP BY g)", "more than 1,000 values"),
        ("SELECT g, any_value(k) FROM v GROUP BY g", "several values"),
        ("SELECT first(x), count(*) FROM (VALUES (1), (NULL)) r(x)", "several values"),
        ("SELECT last(x) FROM (VALUES (0.0e0), (-0.0e0)) r(x)", "several values"),
        ("PIVOT v ON s, i USING max(k) GROUP BY g", "lists the values"),
        ("PIVOT v ON lower(s) USING max(k) GROUP BY g", "lists the values"),
        ("PIVOT v ON i USING list(k) GROUP BY g", "list"),
    ],
)
def test_what_could_differ_is_refused(both: Both, text: str, reason: str) -> None:
    with pytest.raises(NotPortable, match=reason):
        both.on_spark(text)


@pytest.mark.parametrize("text", OTHER_JSON)
def test_json_of_other_forms_is_refused_when_it_is_met(both: Both, text: str) -> None:
    rows = pa.table({"x": [text]})
    both.con.register("other", rows)
    with pytest.raises(KartosqlError, match="JSON of another form"):
        both.on_spark("SELECT x->>'$.a' FROM other")


def test_explain_of_a_pivot_names_what_is_refused_of_it(both: Both) -> None:
    assert both.con.explain("PIVOT v ON u USING sum(k) GROUP BY g", engine="spark").to_dict()["engine"] == "spark"
    with pytest.raises(NotPortable, match="list"):
        both.con.explain("PIVOT v ON i USING list(k) GROUP BY g", engine="spark")
