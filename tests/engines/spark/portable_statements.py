"""Statements that Spark answers as DuckDB does: ``t`` has nasty values, ``u`` and ``v`` NULL and twins."""

STATEMENTS = r'''
SELECT * EXCLUDE (l, st) FROM t ORDER BY id
SELECT count(*), count(n), count(DISTINCT n), sum(n), min(n), max(n), avg(n) FROM t
SELECT sum(i64), avg(i64), sum(u64), sum(u8), avg(u32), sum(i8), sum(b::integer) FROM t WHERE id < 20
SELECT sum(d), avg(d), sum(e), avg(e), min(d), max(big), sum(DISTINCT d), count(DISTINCT e) FROM t
SELECT sum(r), avg(r), min(g), max(g), min(f), max(f), avg(f) FROM t WHERE NOT isnan(g) AND NOT isinf(g)
SELECT min(g), max(g), min(s), max(s), min(dt), max(ts), max(tz), min(b), max(x) FROM t
SELECT stddev(r), stddev_pop(r), var_samp(n), var_pop(k), variance(d) FROM t
SELECT stddev(n), var_samp(n), stddev_pop(n) FROM t WHERE id = 1
SELECT bool_and(b), bool_or(b), count_if(n > 0), bit_and(n), bit_or(n), bit_xor(n) FROM t
SELECT sum(n), avg(n), min(s), count(*), count(n), bool_and(b), stddev(r) FROM t WHERE false
SELECT b, count_if(b), count_if(b) FILTER (WHERE n > 0), count_if(n > 0) FROM t GROUP BY b
SELECT count_if(b) FROM t WHERE id < 0
SELECT id, lag(g * 'nan'::double) OVER (ORDER BY id), lead(f * '-inf'::float) OVER (ORDER BY id) FROM t
SELECT n, count(*) FROM t GROUP BY n
SELECT g, count(*) FROM t GROUP BY g
SELECT f, count(*) FROM t GROUP BY f
SELECT s, b, count(*), sum(n) FROM t GROUP BY s, b
SELECT d, dt, count(*) FROM t GROUP BY ALL
SELECT x, count(*) FROM t GROUP BY x
SELECT n % 3 AS m, sum(k) FROM t GROUP BY m ORDER BY m
SELECT n % 3, sum(k) FROM t GROUP BY 1 ORDER BY 1 NULLS FIRST
SELECT sum(n) FILTER (WHERE b), count(*) FILTER (WHERE n > 0), avg(r) FILTER (WHERE s IS NOT NULL) FROM t
SELECT b, sum(DISTINCT n), count(DISTINCT s) FILTER (WHERE n > 0) FROM t GROUP BY b
SELECT n, sum(k) FROM t GROUP BY n HAVING sum(k) > 3
SELECT count(*) FROM t HAVING count(*) > 1000
SELECT b, n % 2, count(*) FROM t GROUP BY ROLLUP (b, n % 2)
SELECT b, n % 2 AS m, count(*), grouping(b), grouping(b, n % 2) FROM t GROUP BY CUBE (b, n % 2)
SELECT b, count(*) FROM t WHERE id < 0 GROUP BY ROLLUP (b)
SELECT b FROM t WHERE id < 0 GROUP BY ROLLUP (b)
SELECT b, n % 2 FROM t GROUP BY ROLLUP (b, n % 2)
SELECT CAST(NULL AS BIGINT) AS k FROM t GROUP BY ROLLUP (CAST(NULL AS BIGINT))
SELECT b, n % 2, sum(n) FROM t GROUP BY GROUPING SETS ((b), (n % 2), ())
SELECT string_agg(w, '|' ORDER BY w) FROM t
SELECT b, string_agg(w, '' ORDER BY w DESC) FROM t GROUP BY b
SELECT DISTINCT n, b FROM t
SELECT DISTINCT g FROM t
SELECT DISTINCT ON (n) n, id FROM t ORDER BY n, id DESC
SELECT DISTINCT ON (b) b, id FROM t WHERE n > 0 ORDER BY b NULLS FIRST, id
SELECT id, n FROM t ORDER BY n DESC, id LIMIT 5
SELECT id, n FROM t ORDER BY n NULLS FIRST, id LIMIT 5 OFFSET 3
SELECT id FROM t ORDER BY g DESC NULLS LAST, id DESC LIMIT 12
SELECT id FROM t ORDER BY s COLLATE "C" DESC, id LIMIT 12
SELECT id FROM t ORDER BY d + n, id LIMIT 7
SELECT id, s FROM t ORDER BY ALL LIMIT 9
SELECT id FROM (SELECT id FROM t ORDER BY id DESC LIMIT 5) ORDER BY id
SELECT count(*) FROM (SELECT id FROM t LIMIT 7)
SELECT id, row_number() OVER (ORDER BY id), rank() OVER (ORDER BY n), dense_rank() OVER (ORDER BY n) FROM t
SELECT id, percent_rank() OVER (ORDER BY n), cume_dist() OVER (ORDER BY n), ntile(4) OVER (ORDER BY id) FROM t
SELECT id, lag(n) OVER (ORDER BY id), lead(n, 2) OVER (ORDER BY id) FROM t
SELECT id, lag(n, 1, 99) OVER (PARTITION BY b ORDER BY id) FROM t
SELECT id, first_value(s) OVER (PARTITION BY b ORDER BY id), last_value(s) OVER (PARTITION BY b ORDER BY id) FROM t
SELECT id, last_value(n) OVER (ORDER BY id ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) FROM t
SELECT id, nth_value(n, 3) OVER (ORDER BY id), first_value(n IGNORE NULLS) OVER (ORDER BY id) FROM t
SELECT id, lag(n IGNORE NULLS) OVER (ORDER BY id), last_value(n IGNORE NULLS) OVER (ORDER BY id) FROM t
SELECT id, sum(n) OVER (ORDER BY id), sum(n) OVER (PARTITION BY b ORDER BY id), sum(n) OVER () FROM t
SELECT id, sum(n) OVER (ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) FROM t
SELECT id, avg(n) OVER (ORDER BY id ROWS 3 PRECEDING), count(*) OVER (PARTITION BY n) FROM t
SELECT id, min(n) OVER (ORDER BY id ROWS BETWEEN 5 FOLLOWING AND 8 FOLLOWING) FROM t
SELECT id, sum(n) OVER (ORDER BY n), count(*) OVER (ORDER BY n RANGE UNBOUNDED PRECEDING) FROM t
SELECT id, sum(d) OVER (PARTITION BY b ORDER BY id), avg(d) OVER (PARTITION BY b), max(s) OVER (ORDER BY id) FROM t
SELECT id, row_number() OVER (PARTITION BY b ORDER BY id DESC) AS r FROM t QUALIFY r = 1
SELECT id, n FROM t QUALIFY rank() OVER (PARTITION BY n ORDER BY id) <= 2
SELECT b, sum(sum(n)) OVER (ORDER BY b) FROM t GROUP BY b
SELECT id, sum(n) OVER w, avg(n) OVER w FROM t WINDOW w AS (PARTITION BY b ORDER BY id)
SELECT id, stddev(r) OVER (PARTITION BY b) FROM t
SELECT u.p, v.w FROM u JOIN v ON u.p = v.p
SELECT u.p, v.w FROM u LEFT JOIN v ON u.p = v.p
SELECT u.p, v.w FROM u RIGHT JOIN v ON u.p = v.p
SELECT u.p, v.p, v.w FROM u FULL JOIN v ON u.p = v.p
SELECT p, y, w FROM u FULL JOIN v USING (p)
SELECT * FROM u NATURAL JOIN v
SELECT * FROM u NATURAL LEFT JOIN v
SELECT u.y, v.w FROM u JOIN v ON u.p < v.p
SELECT u.y, v.w FROM u LEFT JOIN v ON u.p = v.p AND v.w > 1
SELECT u.y, v.w FROM u LEFT JOIN v ON u.p = v.p AND u.y > 10
SELECT u.y, v.w FROM u FULL JOIN v ON u.p = v.p AND u.y > 10
SELECT u.y, v.w FROM u FULL JOIN v ON u.p = v.p OR v.w = 1
SELECT u.y, v.w FROM u LEFT JOIN v ON u.p = v.p OR u.y < v.w
SELECT u.p FROM u SEMI JOIN v USING (p)
SELECT u.p FROM u ANTI JOIN v USING (p)
SELECT u.p FROM u ANTI JOIN v ON u.p = v.p AND v.w > 1
SELECT count(*) FROM u, v
SELECT count(*) FROM u CROSS JOIN v CROSS JOIN u AS w
SELECT a.p, b.y FROM u a JOIN u b ON a.p = b.p AND a.y < b.y
SELECT u.p, v.w FROM u LEFT JOIN v ON u.p IS NOT DISTINCT FROM v.p
SELECT u.p FROM u LEFT JOIN v ON u.p = v.p WHERE v.p IS NULL
SELECT u.p, x.w FROM u LEFT JOIN (SELECT p, max(w) AS w FROM v GROUP BY p) x ON u.p = x.p
SELECT u.y, v.w FROM u LEFT JOIN v ON true
SELECT u.y FROM u JOIN (v JOIN u AS z ON v.p = z.p) ON u.p = v.p
SELECT p FROM u WHERE p IN (SELECT p FROM v)
SELECT p FROM u WHERE p NOT IN (SELECT p FROM v)
SELECT p FROM u WHERE p NOT IN (SELECT p FROM v WHERE p IS NOT NULL)
SELECT p FROM u WHERE p NOT IN (SELECT p FROM v WHERE false)
SELECT p, p IN (SELECT p FROM v), p NOT IN (SELECT p FROM v WHERE w > 1) FROM u
SELECT p FROM u WHERE p IN (SELECT p FROM v) OR y > 20
SELECT p FROM u WHERE (p IN (SELECT p FROM v)) IS NULL
SELECT p FROM u WHERE y IN (SELECT w * 10 FROM v WHERE v.p = u.p)
SELECT p FROM u WHERE y NOT IN (SELECT w * 10 FROM v WHERE v.p = u.p)
SELECT p, y IN (SELECT w * 10 FROM v WHERE v.p = u.p) FROM u
SELECT p FROM u WHERE (p, y) IN (SELECT p, w * 10 FROM v)
SELECT p FROM u WHERE EXISTS (SELECT 1 FROM v WHERE v.p = u.p)
SELECT p FROM u WHERE NOT EXISTS (SELECT 1 FROM v WHERE v.p = u.p)
SELECT p FROM u WHERE NOT EXISTS (SELECT 1 FROM v WHERE v.p = u.p AND v.w <> u.y)
SELECT p, EXISTS (SELECT 1 FROM v WHERE v.p = u.p) FROM u
SELECT p FROM u WHERE EXISTS (SELECT 1 FROM v WHERE v.p = u.p) OR NOT EXISTS (SELECT 1 FROM v WHERE v.w = u.y)
SELECT p FROM u WHERE EXISTS (SELECT 1 FROM v WHERE w > 100)
SELECT p FROM u WHERE EXISTS (SELECT 1 FROM v) AND y > 5
SELECT p, (SELECT max(w) FROM v) FROM u
SELECT p, (SELECT max(w) FROM v WHERE v.p = u.p) FROM u
SELECT p, (SELECT count(*) FROM v WHERE v.p = u.p) FROM u
SELECT p, (SELECT sum(w) FROM v WHERE v.p > u.p) FROM u
SELECT p, (SELECT w FROM v WHERE v.p = u.p ORDER BY w DESC LIMIT 1) FROM u
SELECT p FROM u WHERE y > (SELECT avg(w) FROM v)
SELECT p FROM u WHERE y > (SELECT max(w) * 5 FROM v WHERE v.p = u.p)
SELECT p, (SELECT w FROM v WHERE w = 7) FROM u
SELECT y FROM u WHERE y > ANY (SELECT w FROM v)
SELECT y FROM u WHERE y > ALL (SELECT w FROM v WHERE w IS NOT NULL)
SELECT y FROM u WHERE y > ALL (SELECT w FROM v)
SELECT y FROM u WHERE p = ANY (SELECT p FROM v)
SELECT y FROM u WHERE p <> ALL (SELECT p FROM v WHERE p IS NOT NULL)
SELECT u.p, x.w FROM u, LATERAL (SELECT w FROM v WHERE v.p = u.p ORDER BY w LIMIT 1) x
SELECT u.p, x.n FROM u, LATERAL (SELECT count(*) AS n FROM v WHERE v.p = u.p) x
SELECT u.p, x.w FROM u LEFT JOIN LATERAL (SELECT w FROM v WHERE v.p = u.p) x ON true
SELECT p FROM u UNION SELECT p FROM v
SELECT p FROM u UNION ALL SELECT p FROM v
SELECT p, y FROM u UNION SELECT p, w FROM v ORDER BY 1, 2
SELECT p FROM u EXCEPT SELECT p FROM v
SELECT p FROM u EXCEPT ALL SELECT p FROM v
SELECT p FROM u INTERSECT SELECT p FROM v
SELECT p FROM u INTERSECT ALL SELECT p FROM v
SELECT p AS a FROM u UNION ALL BY NAME SELECT w AS b, p AS a FROM v
SELECT n FROM t UNION SELECT k FROM t
SELECT n FROM t UNION ALL SELECT d FROM t
SELECT n::double AS q FROM t UNION SELECT g FROM t
SELECT dt FROM t UNION SELECT ts FROM t
SELECT p, NULL AS z FROM u UNION ALL SELECT NULL, w FROM v
(SELECT p FROM u ORDER BY y LIMIT 2) UNION ALL (SELECT p FROM v ORDER BY w LIMIT 1)
WITH a AS (SELECT p, sum(y) AS s FROM u GROUP BY p) SELECT a.p, a.s, b.s FROM a JOIN a AS b ON a.p = b.p
WITH a AS MATERIALIZED (SELECT * FROM u), b AS (SELECT p FROM a WHERE y > 5) SELECT * FROM b, a WHERE a.p = b.p
WITH a(k, l) AS (SELECT p, y FROM u) SELECT max(l), k FROM a GROUP BY k
WITH a AS (SELECT 1 AS x), b AS (SELECT x + 1 AS y FROM a) SELECT * FROM a, b
FROM u SELECT p, y WHERE y > 5
FROM u
SELECT u.* FROM u JOIN v USING (p)
SELECT * EXCLUDE (y) FROM u
SELECT * REPLACE (y * 2 AS y) FROM u
SELECT p + 1 AS q, q * 2 AS z FROM u WHERE q > 2
SELECT y AS p FROM u WHERE p = 1
SELECT p AS "Name with ""quotes""", y AS "p" FROM u
SELECT p AS x, y AS x FROM u
SELECT columns('^p') FROM u
SELECT 1, 'a', NULL, 2.5, true, DATE '2020-01-01', [1, 2], {'a': 1}
SELECT * FROM (VALUES (1, 'a'), (2, NULL), (NULL, 'c')) AS x(a, b)
SELECT x.a, u.y FROM (VALUES (1), (2)) AS x(a) LEFT JOIN u ON u.p = x.a
VALUES (1, 2), (3, 4)
SELECT count(*) FROM range(100)
SELECT * FROM range(3, 10, 2) AS r(i)
SELECT * FROM generate_series(1, 4) AS r(i)
SELECT unnest([3, 1, 2])
SELECT p, unnest([p, y]) FROM u
SELECT id, unnest(l) FROM t WHERE id < 12
SELECT sum(x) FROM (SELECT unnest(l) AS x FROM t)
SELECT p FROM u WHERE y IN (10, 20, NULL)
SELECT p FROM u WHERE y BETWEEN 5 AND 20 AND NOT (p = 2)
SELECT p FROM u WHERE p = '1'
SELECT id FROM t WHERE f = 0.1
SELECT id FROM t WHERE g > 5
SELECT id FROM t WHERE isnan(g) OR g = 'inf'
SELECT id FROM t WHERE NOT (n > 0)
SELECT id FROM t WHERE (n > 0) IS NOT TRUE
SELECT id FROM t WHERE n IS DISTINCT FROM 1
SELECT id FROM t WHERE s LIKE 'a%' OR s ILIKE '%B'
SELECT id FROM t WHERE i64 = 9223372036854775807 OR u64 = 18446744073709551615
SELECT id FROM t WHERE dt BETWEEN '1970-01-01' AND '2020-12-31'
SELECT id FROM t WHERE ts >= TIMESTAMP '2020-01-01' AND ts < TIMESTAMP '2020-01-01' + INTERVAL 1 YEAR
SELECT id FROM t WHERE st.a = 1
SELECT date_trunc('month', dt) AS m, count(*) FROM t GROUP BY m ORDER BY m
SELECT year(ts) AS y, sum(n) FROM t GROUP BY ALL ORDER BY ALL
SELECT CASE WHEN n > 0 THEN 'pos' WHEN n < 0 THEN 'neg' ELSE 'zero' END AS c, count(*) FROM t GROUP BY c
SELECT count(*) FROM t WHERE id IN (SELECT max(id) FROM t GROUP BY n)
SELECT t.id FROM t JOIN u ON t.n = u.p WHERE t.b AND u.y > 5
SELECT a.id, b.id FROM t a JOIN t b ON a.g = b.g AND a.id < b.id
SELECT a.id, b.id FROM t a JOIN t b ON a.s = b.w AND a.id < 10
SELECT a.id, b.id FROM t a JOIN t b ON a.d = b.r::decimal(9,2)
SELECT now() IS NOT NULL, current_date IS NOT NULL, now() = now()
SELECT max(n) - min(n), max(dt) - min(dt) FROM t
SELECT sum(n) / count(*), sum(d) / count(*), round(avg(r), 2) FROM t
SELECT 1 WHERE false
SELECT * FROM u PIVOT (sum(y) FOR p IN (1, 2))
SELECT NULL
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r
SELECT p, sum(y) OVER (ORDER BY y RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) FROM u
SELECT * FROM u UNPIVOT (val FOR name IN (y))
SELECT x FROM u, unnest([1, 2]) AS z(x)
SELECT count(*) FROM (SELECT 1 WHERE false)
SELECT EXISTS (SELECT 1 FROM u WHERE p = 1), (SELECT count(*) FROM u)
'''.strip().split("\n")
