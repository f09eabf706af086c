"""Every kind of SELECT that DuckDB offers, over a small cube, answered as over plain tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube, write_dataset

CUBE = Cube("c", ["x", "y"], ["p"], index_columns=["i1", "s1"])
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])


def _seed() -> pa.Table:
    n = 24
    return pa.table(
        {
            "x": [i % 8 for i in range(n)],
            "y": [f"y{i // 8}" for i in range(n)],
            "p": [i % 3 for i in range(n)],
            "i1": [i % 5 for i in range(n)],
            "s1": [["a", "b", "ä"][i % 3] for i in range(n)],
            "v": [None if i % 7 == 0 else i / 2 for i in range(n)],
            "day": pa.array([18000 + i for i in range(n)], pa.int32()).cast(pa.date32()),
            "ts": pa.array([10**15 + i * 3_600_000_000 for i in range(n)], pa.timestamp("us")),
            "st": pa.array([{"a": i, "b": f"b{i}"} for i in range(n)], STRUCT),
            "li": pa.array([list(range(i % 4)) for i in range(n)], pa.list_(pa.int64())),
        }
    )


@pytest.fixture(scope="module")
def answers() -> Iterator[tuple[Any, duckdb.DuckDBPyConnection]]:
    store = Store(f"memory://{uuid.uuid4().hex}")
    xs = [0, 1, 2, 3, 5, 9]
    one = pa.table({"x": xs, "p": [x % 3 for x in xs], "w": [x * 10 for x in xs], "V2": [f"w{x}" for x in xs]})
    build_cube(store, CUBE, {"seed": _seed(), "one": one})
    d = pa.table({"x": [1, 2, 2, None], "k": ["a", "b", "zz", None], "p": [0, 1, 1, 2], "n": [1.5, None, 3.0, 4.0]})
    write_dataset(store, "d", d, partition_on="p", index_columns=["k"])
    plain = duckdb.connect(":memory:")
    plain.execute("SET TimeZone = 'UTC'; CREATE SCHEMA c")
    for name, table in {
        "c": builders.cube_table(store, CUBE, ["seed", "one"]),
        "d": builders.dataset_table(store, "d"),
        "c.one": builders.member_table(store, CUBE, "one"),
    }.items():
        plain.register("given", table)
        plain.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        plain.unregister("given")
    with kartosql.connect(store.url) as connection:
        yield connection, plain
    plain.close()


STATEMENTS = """
SELECT * FROM c
SELECT * FROM c WHERE p = 1
SELECT c.* FROM c WHERE c.p IN (0, 2)
SELECT DISTINCT p, s1 FROM c
SELECT DISTINCT ON (p) p, x, y FROM c ORDER BY p, x DESC, y
FROM c
FROM c SELECT x, y WHERE p = 1
FROM c WHERE i1 = 3
TABLE c
SELECT x AS a, a + 1 AS b FROM c WHERE a > 3
SELECT x AS a FROM c GROUP BY a HAVING count(*) > 1
SELECT x + 1 AS x FROM c WHERE x = 3
SELECT p, count(*) FROM c GROUP BY ALL
SELECT p, s1, sum(v) FROM c GROUP BY ALL ORDER BY ALL
SELECT p, count(*) FROM c GROUP BY 1 ORDER BY 2 DESC, 1
SELECT p, s1, count(*) FROM c GROUP BY ROLLUP (p, s1)
SELECT p, s1, count(*), grouping(p) FROM c GROUP BY CUBE (p, s1)
SELECT p, s1, count(*) FROM c GROUP BY GROUPING SETS ((p), (s1), ())
SELECT p, count(*) FILTER (WHERE i1 = 1), sum(x) FILTER (i1 > 1) FROM c GROUP BY p
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY v) FROM c
SELECT mode() WITHIN GROUP (ORDER BY s1) FROM c WHERE p = 0
SELECT string_agg(s1, ',' ORDER BY x, y) FROM c WHERE p = 1
SELECT list(x ORDER BY x, y) FROM c
SELECT arg_max(x, v), arg_min(y, v) FROM c
SELECT x, row_number() OVER (PARTITION BY p ORDER BY x, y) FROM c
SELECT x, y, sum(v) OVER w FROM c WINDOW w AS (PARTITION BY s1 ORDER BY x, y ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
SELECT x, y, lag(x, 1, -1) OVER (ORDER BY y, x) FROM c
SELECT x, y, p FROM c QUALIFY row_number() OVER (PARTITION BY p ORDER BY x DESC, y) = 1
SELECT x, y, rank() OVER (ORDER BY x) AS r FROM c QUALIFY r < 3
SELECT * EXCLUDE (li, st) FROM c WHERE p = 2
SELECT * EXCLUDE v REPLACE (x * 2 AS x) FROM c
SELECT * RENAME (x AS z) FROM c WHERE i1 = 2
SELECT COLUMNS('^[xy]$') FROM c
SELECT COLUMNS(* EXCLUDE (st, li, ts, day)) FROM c
SELECT max(COLUMNS(['x', 'p'])) FROM c
SELECT COLUMNS(lambda n: n LIKE 's%') FROM c
SELECT * LIKE 'x%' FROM c
SELECT c FROM c WHERE x = 1 AND y = 'y0'
SELECT st.a, st.b FROM c WHERE st.a > 20
SELECT c.st.a FROM c WHERE c.st.b = 'b3'
SELECT st['a'], li[1], li[-1], li[1:2] FROM c
SELECT unnest(li) FROM c
SELECT x, unnest(st) FROM c
SELECT c.x, u.e FROM c, unnest(c.li) AS u(e)
SELECT x, e FROM c, LATERAL (SELECT unnest(li) AS e)
SELECT c.x, s.m FROM c LEFT JOIN LATERAL (SELECT max(d.n) AS m FROM d WHERE d.x = c.x) s ON TRUE
SELECT list_transform(li, lambda e: e + x) FROM c
SELECT list_filter(li, lambda e: e > 1), [e * 2 FOR e IN li IF e > 0] FROM c
SELECT list_reduce([1, 2, x], lambda a, b: a + b) FROM c
SELECT x, (SELECT max(n) FROM d WHERE d.x = c.x) AS m FROM c
SELECT x FROM c WHERE EXISTS (SELECT 1 FROM d WHERE d.x = c.x AND d.p = c.p)
SELECT x FROM c WHERE NOT EXISTS (FROM d WHERE d.x = c.x)
SELECT x FROM c WHERE x IN (SELECT x FROM d)
SELECT x FROM c WHERE x NOT IN (SELECT x FROM d WHERE x IS NOT NULL)
SELECT x FROM c WHERE x > ALL (SELECT x FROM d WHERE x IS NOT NULL)
SELECT x FROM c WHERE x = ANY (SELECT x FROM d)
SELECT x FROM c WHERE (x, p) IN (SELECT x, p FROM d)
SELECT x FROM c WHERE (x, y) = (1, 'y0')
SELECT x FROM c WHERE x = (SELECT min(x) FROM d)
SELECT c.x, d.k FROM c JOIN d ON c.x = d.x
SELECT c.x, k FROM c JOIN d USING (x)
SELECT x, k FROM c NATURAL JOIN d
SELECT c.x, d.k FROM c LEFT JOIN d ON c.x = d.x AND d.k = 'a' WHERE c.p = 1
SELECT c.x, d.k FROM c RIGHT JOIN d ON c.x = d.x
SELECT c.x, d.k FROM c FULL OUTER JOIN d ON c.x = d.x
SELECT c.x, d.k FROM c CROSS JOIN d WHERE c.p = d.p
SELECT c.x FROM c SEMI JOIN d USING (x)
SELECT c.x FROM c ANTI JOIN d ON c.x = d.x
SELECT c.x, y, d.n FROM c ASOF JOIN d ON c.p = d.p AND c.x >= d.n
SELECT count(*) FROM c POSITIONAL JOIN d
SELECT a.x, b.x FROM c a JOIN c b ON a.x = b.x + 1 AND a.y = b.y WHERE a.p = 1 AND b.i1 = 2
SELECT a.x FROM c AS a, c AS b, c.one o WHERE a.x = b.x AND o.x = a.x AND o.p = 1
SELECT one.w FROM c.one
SELECT c.one.w FROM c.one WHERE c.one.p = 1
SELECT one.w, c.w FROM c JOIN c.one ON one.x = c.x
SELECT x FROM c UNION SELECT x FROM d
SELECT x FROM c UNION ALL SELECT x FROM d
SELECT x FROM c EXCEPT SELECT x FROM d
SELECT x FROM c INTERSECT ALL SELECT x FROM d
SELECT x, p FROM c UNION BY NAME SELECT k, p FROM d
SELECT x FROM c UNION ALL BY NAME SELECT n, x FROM d
(SELECT x FROM c ORDER BY x LIMIT 2) UNION ALL (SELECT x FROM d ORDER BY x LIMIT 1)
WITH r AS (SELECT * FROM c WHERE p = 1) SELECT r.x FROM r WHERE r.i1 = 2
WITH r(a, b) AS (SELECT x, y FROM c) SELECT a, b FROM r WHERE a > 2
WITH r AS MATERIALIZED (SELECT x FROM c), s AS (SELECT x + 1 AS z FROM r) SELECT * FROM r JOIN s ON r.x = s.z
WITH RECURSIVE r AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT c.x FROM c JOIN r ON r.n = c.x
WITH RECURSIVE r(n) AS (SELECT min(x) FROM c UNION SELECT c.x FROM c JOIN r ON c.x = r.n + 1) SELECT n FROM r
WITH c AS (SELECT 1 AS q) SELECT q FROM c
WITH d AS (SELECT x AS q FROM d) SELECT q FROM d
WITH d AS (SELECT 7 AS q) SELECT (SELECT max(q) FROM d) AS m, x FROM c
WITH a AS (WITH c AS (SELECT 5 AS five) SELECT five FROM c) SELECT five, x FROM a, c
SELECT t.a FROM (SELECT x AS a FROM c) t WHERE t.a = 2
SELECT t.a, t.b FROM (SELECT x, p FROM c) AS t(a, b) WHERE b = 1
SELECT a FROM c AS t(a, b, d) WHERE a IS NOT NULL
SELECT * FROM (VALUES (1, 'a'), (2, 'b')) t(i, j) JOIN c ON c.x = t.i
VALUES (1), (2)
SELECT g.n, x FROM generate_series(0, 2) AS g(n), c WHERE c.x = g.n
SELECT x, r.range FROM c JOIN range(3) r ON r.range = c.x
SELECT count(*) FROM c TABLESAMPLE 100%
SELECT count(*) FROM c USING SAMPLE 100 PERCENT
SELECT count(*) FROM (FROM c USING SAMPLE reservoir(5 ROWS))
PIVOT c ON p USING count(*) GROUP BY s1
PIVOT (SELECT s1, p, x FROM c) ON p USING sum(x)
SELECT * FROM (PIVOT c ON p USING sum(x) GROUP BY s1) t
FROM (SELECT s1, p, x FROM c) PIVOT (sum(x) FOR p IN (0, 1))
UNPIVOT (SELECT x, p, i1 FROM c) ON p, i1 INTO NAME n VALUE val
FROM (SELECT x, p, i1 FROM c) UNPIVOT (val FOR n IN (p, i1))
SUMMARIZE SELECT s1, y FROM c
SUMMARIZE d
SELECT day + INTERVAL 1 DAY, day - 3, ts + INTERVAL '2 hours' FROM c WHERE day >= DATE '2019-05-01'
SELECT date_part('month', day), extract(year FROM ts), year(day), date_trunc('hour', ts) FROM c
SELECT ts::DATE, CAST(x AS VARCHAR), x::DOUBLE / 3, TRY_CAST(y AS INTEGER) FROM c
SELECT strftime(day, '%Y/%m'), age(ts, TIMESTAMP '2000-01-01') FROM c
SELECT CASE p WHEN 0 THEN 'zero' WHEN 1 THEN 'one' ELSE s1 END, CASE WHEN v IS NULL THEN 1 END FROM c
SELECT coalesce(v, -1), nullif(x, 2), ifnull(v, 0), if(x > 2, 'a', 'b') FROM c
SELECT x FROM c WHERE s1 SIMILAR TO '[ab]' OR regexp_matches(s1, 'ä') OR s1 GLOB 'b*'
SELECT x FROM c WHERE y LIKE 'y%' AND s1 ILIKE 'A' AND y NOT LIKE '%1'
SELECT x FROM c WHERE v IS DISTINCT FROM 2 AND v IS NOT NULL AND v NOT BETWEEN 1 AND 2
SELECT x, y FROM c ORDER BY v DESC NULLS FIRST, x, y LIMIT 5 OFFSET 2
SELECT x, y FROM c ORDER BY ALL LIMIT 10%
SELECT x, y FROM c ORDER BY c.x + 1, length(y), y LIMIT (SELECT count(*) FROM d)
SELECT {'a': x, 'b': y} AS s, [x, p] AS l, MAP {'k': x} AS m, row(x, y) FROM c
SELECT y[1], y[-1:], s1 || '-' || y, upper(s1), length(s1) FROM c
SELECT x.abs(), s1.upper().lower() FROM c
SELECT x // 2, x % 3, x ** 2, -x, x & 1, x << 1, xor(x, 1), @x FROM c
SELECT "x", "Y", c."P" FROM "c" WHERE "S1" = 'a'
SELECT X, C.Y FROM C WHERE c.P = 1
SELECT count(*), count(c.x), count(DISTINCT p), sum(1) FROM c
SELECT count() FROM c WHERE p = 5
SELECT min(p), first(p ORDER BY x, y), bool_and(p > -1), approx_count_distinct(p) FROM c
SELECT x FROM c WHERE true
SELECT 1
SELECT 1 FROM c LIMIT 1
SELECT current_date > DATE '2000-01-01', now() > TIMESTAMPTZ '2000-01-01' FROM c LIMIT 1
SELECT x FROM c WHERE ts < now() AND day < current_date
SELECT first.x FROM c AS first, d AS "second one" WHERE "second one".x = first.x
SELECT c.x, o.w FROM c JOIN (d JOIN c.one o ON d.x = o.x) ON c.x = d.k.length()
SELECT t.x FROM (c JOIN d USING (x)) t
SELECT t.x FROM ((SELECT x FROM c)) t
SELECT x FROM (FROM c WHERE p = 1)
SELECT (SELECT count(*) FROM (SELECT c.x UNION SELECT d.x FROM d)) FROM c
SELECT x FROM c c1 WHERE x = (SELECT max(c2.x) FROM c c2 WHERE c2.p = c1.p AND c2.y = c1.y)
SELECT p, sum(sum(x)) OVER (ORDER BY p) FROM c GROUP BY p
SELECT p AS grp, count(*) AS n FROM c GROUP BY grp HAVING n > 2 ORDER BY n, grp
SELECT struct_extract(st, 'a'), struct_pack(q := x) FROM c
SELECT array_agg(x ORDER BY x DESC)[1:3] FROM c
SELECT histogram(p) FROM c
SELECT unnest([x, p]), p FROM c
SELECT (x, y) FROM c WHERE x BETWEEN 1 AND 2
SELECT x FROM c WHERE p IN [0, 1]
SELECT x FROM c WHERE list_contains([1, 2], x) OR x IN (3,)
SELECT c.rowid >= 0 FROM (SELECT row_number() OVER () AS rowid FROM c) c
SELECT alias(x), typeof(v) FROM c
SELECT x -- a comment, with d.nothing
SELECT /* FROM nowhere */ x FROM c
SELECT 'it''s $1 ? :name' AS t, $$dollar ? $1$$ AS u, E'a\\tb' FROM c
SELECT x, k COLLATE NOCASE FROM d WHERE k COLLATE NOCASE = 'A'
SELECT x: c.x, yy: y FROM c WHERE p = 1
SELECT try_cast('x' AS INT), 1e3, 0x1F, 1_000, .5 FROM c LIMIT 1
SELECT x FROM c GROUP BY x HAVING max(v) > 2 AND x < 5
SELECT sum(x) FROM c WHERE day BETWEEN '2019-04-20' AND '2019-05-02'
SELECT d.* EXCLUDE (p), c.* FROM c JOIN d ON c.x = d.x WHERE c.y = 'y1'
DESCRIBE SELECT x, y FROM c
""".strip().splitlines()
# A statement may go over several lines.
BROKEN = {"SELECT x -- a comment, with d.nothing": "\nFROM c"}


def _rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, zip(*(c.to_pylist() for c in table.columns), strict=True)))


@pytest.mark.parametrize("sql", [s for s in STATEMENTS if not s.startswith("DESCRIBE")])
def test_a_select_gives_the_rows_of_plain_tables(answers, sql):
    connection, plain = answers
    sql += BROKEN.get(sql, "")
    expected = plain.sql(sql).to_arrow_reader().read_all()
    given = connection.sql(sql).arrow()
    assert given.column_names == expected.column_names
    assert given.schema.types == expected.schema.types
    if "ORDER BY ALL" in sql:
        assert given.to_pylist() == expected.to_pylist()
    assert _rows(given) == _rows(expected)


@pytest.mark.parametrize("sql", [s for s in STATEMENTS if not s.startswith(("DESCRIBE", "PIVOT", "SUMMARIZE"))])
def test_the_schema_is_known_before_the_run(answers, sql):
    connection, _ = answers
    sql += BROKEN.get(sql, "")
    before = connection.sql(sql).schema
    assert before == connection.sql(sql).arrow().schema
