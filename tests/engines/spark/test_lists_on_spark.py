"""Lists, lambdas, frames, ASOF and recursion on Spark: DuckDB's answers over NULL, empty lists, NaN and far places."""

from __future__ import annotations

from typing import Any

import everyday
import pyarrow as pa
import pytest

from kartosql.errors import NotPortable
from sparks import Both, same, unordered

NAN, INF = float("nan"), float("inf")
INTEGERS: list[Any] = [
    None,
    [],
    [None],
    [1],
    [3, 1, 2],
    [1, None, 1],
    [5, 5, 4, None, -7],
    [2**62, -(2**62)],
    [None] * 2,
]
FLOATS = [None, [], [NAN], [1.5, NAN, None], [INF, -INF], [-0.0, 0.0, 1e300], [NAN, NAN, 1.0], [None], [2.5]]
TEXTS = [
    None,
    [],
    ["a", "b"],
    ["b", None, "b"],
    ["", "é", "日本"],
    [None],
    ["Z", "a", "A"],
    ["x"],
    ["b", "a", "c", "a"],
]
# Statements over ``v``: expressions in groups, so that Spark is asked few times.
EXPRESSIONS = """
list_sum(m[1:2]); list_sum(f); list_avg(l); list_avg(f); list_min(l); list_max(s); list_min(f)
list_count(l); list_first(l); list_last(l)
list_any_value(l); array_to_string(s, ','); list_aggregate(s, 'max'); list_bool_and([b > 1 for b in l])
l[i]; l[j]; l[2]; l[-1]; l[0]; l[c]; l[i:j]; l[j:i]; l[2:]; l[:-2]; s[-2:]; s[i:]; list_reverse(s)
list_slice(l, 1, 2); list_sort(l); list_sort(s, 'DESC')
list_sort(l, 'ASC', 'NULLS FIRST'); list_sort(l, 'DESC', 'NULLS FIRST'); list_sort(f)
list_sort(list_distinct(s)); len(list_distinct(s)); list_unique(l); list_position(l, i); list_position(f, d)
list_concat(l, m); l || m; list_append(l, i); list_prepend(i, l); list_has_any(l, m); list_has_all(s, t); flatten(ll)
generate_series(1, k); range(k); range(i, k); range(k, i, -2); generate_series(i, j); range(1, k, 0)
list_transform(l[2:], lambda q, n: q + n + k); list_filter(l, lambda q: q > k); list_filter(l, lambda q, n: n > 1)
[q || '!' for q in s if q <> 'a']; list_transform(s, lambda q: list_transform(l, lambda r: concat(q, r)))
list_transform(ll, lambda q: list_filter(q, lambda w: w > len(l))); list_transform(f, lambda q: round(q * 2))
list_reduce(l, lambda a, b: a // 3 + b // 2, 7); list_reduce(list_append(m, 3), lambda a, b: greatest(a, b))
""".strip().splitlines()
STATEMENTS = """
SELECT id, t.tag FROM (SELECT * FROM o LIMIT 100), unnest(list_append(tags, note)) AS t(tag) WHERE tag > 'a'
SELECT id, unnest(tags), unnest([id, 2, 3]) FROM o
SELECT * FROM unnest([1, 2, NULL])
SELECT * FROM (SELECT id, qty, nullif(qty, 3) AS n FROM o) UNPIVOT INCLUDE NULLS (v FOR k IN (qty, n))
PIVOT (SELECT cust, status, qty FROM o) ON status IN ('open', 'done') USING sum(qty)
SELECT sum(qty) OVER (ORDER BY day DESC RANGE BETWEEN INTERVAL 1 MONTH PRECEDING AND INTERVAL 2 MONTH FOLLOWING) FROM o
SELECT count(*) OVER (PARTITION BY cust ORDER BY ts RANGE BETWEEN '3:10:00'::INTERVAL PRECEDING AND CURRENT ROW) FROM o
SELECT id, sum(qty) OVER (ORDER BY cust DESC NULLS FIRST RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING) FROM o
SELECT id, avg(id) OVER (ORDER BY amount DESC RANGE BETWEEN 2.5 PRECEDING AND CURRENT ROW) FROM o
SELECT o.id, c.name FROM o ASOF LEFT JOIN c ON o.day > c.since
SELECT o.id, c.name FROM o ASOF LEFT JOIN c ON o.day <= c.since AND c.id = o.cust
SELECT o.id, c.name FROM o ASOF JOIN c ON o.day < c.since
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT id FROM n, c WHERE id = i * 2 OR id = i + 3) FROM n
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4) SELECT max(i) FROM n JOIN n b USING (i)
SELECT count(*) FROM generate_series(TIMESTAMP '2024-01-01', TIMESTAMP '2024-03-01', INTERVAL '1 hour')
SELECT count(*) FROM (SELECT * FROM o USING SAMPLE 3)
""".strip().splitlines()
REFUSED = {
    "SELECT r, tag FROM (SELECT *, row_number() OVER () AS r FROM o), unnest(tags) AS t(tag)": "without ORDER BY",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i % 3 FROM n) SELECT * FROM n": "recursive",
    "SELECT id FROM o USING SAMPLE reservoir(3 ROWS) REPEATABLE (4)": "same seed",
    "SELECT sum(qty) OVER (ORDER BY ts RANGE BETWEEN INTERVAL 1 MONTH PRECEDING AND INTERVAL 2 DAY FOLLOWING) FROM o": (
        "between months"
    ),
    "PIVOT o ON upper(status) USING sum(qty)": "lists the values",
}


def table() -> pa.Table:
    """Return each list beside each other one."""
    n = range(81)
    columns = {
        "id": pa.array(n),
        "l": pa.array([INTEGERS[i % 9] for i in n], pa.list_(pa.int64())),
        "m": pa.array([INTEGERS[i // 9] for i in n], pa.list_(pa.int64())),
        "f": pa.array([FLOATS[i % 9] for i in n], pa.list_(pa.float64())),
        "s": pa.array([TEXTS[i % 9] for i in n], pa.list_(pa.string())),
        "t": pa.array([TEXTS[i // 9] for i in n], pa.list_(pa.string())),
        "i": pa.array([[None, -5, -3, -2, -1, 0, 1, 2, 9][i // 9] for i in n], pa.int64()),
        "j": pa.array([[None, -4, -1, 0, 1, 2, 3, 100, -2][i % 9] for i in n], pa.int64()),
        "k": pa.array([i % 4 for i in n], pa.int32()),
        "c": pa.array([i % 5 if i % 7 else None for i in n], pa.int32()),
        "d": pa.array([[NAN, 1.5, INF, None][i % 4] for i in n], pa.float64()),
        "ll": pa.array([[[1], None, [2, None]] if i % 2 else [[], [i]] for i in n], pa.list_(pa.list_(pa.int64()))),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def both(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Both(str(tmp_path_factory.mktemp("store")), {"v": table(), **everyday.rows()}) as found:
        yield found


@pytest.mark.parametrize("expressions", EXPRESSIONS)
def test_functions_of_lists_are_those_of_duckdb(both: Both, expressions: str) -> None:
    asked = expressions.split("; ")
    text = f"SELECT id, {', '.join(asked)} FROM v ORDER BY id"
    for wanted, found in zip(both.on_duckdb(text), both.on_spark(text), strict=True):
        for name, a, b in zip(["id", *asked], wanted, found, strict=True):
            assert same(a, b, 1e-9), (name, wanted[0])


def test_relations_are_those_of_duckdb(both: Both) -> None:
    for text in STATEMENTS:
        wanted, found = unordered(both.on_duckdb(text)), unordered(both.on_spark(text))
        assert len(wanted) == len(found), text
        assert all(same(a, b, 1e-9) for a, b in zip(wanted, found, strict=True)), text


def test_what_has_no_like_is_refused(both: Both) -> None:
    for text, reason in REFUSED.items():
        with pytest.raises(NotPortable, match=reason):
            both.translation(text)


def test_what_hangs_on_an_order_is_refused_where_it_is_met(both: Both) -> None:
    assert both.on_spark("SELECT list_distinct(['a', x, NULL]) FROM (VALUES ('a')) r(x)") == [(["a"],)]
    for text in (
        "SELECT list_distinct(s) FROM v",
        "SELECT o.id, c.day FROM o ASOF JOIN (SELECT DATE '2024-01-01' AS day UNION ALL SELECT DATE '2024-01-01') c "
        "ON o.day >= c.day",
    ):
        with pytest.raises(NotPortable):
            both.on_spark(text)
