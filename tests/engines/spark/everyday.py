"""200 statements as people write them every day, over orders ``o`` and customers ``c``: how many Spark answers.

    PYTHONPATH=src:tests python -m engines.spark.everyday

prints those that are refused with the reasons, and the share of the others. No Spark is started for that.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from decimal import Decimal

import pyarrow as pa

import kartosql
from kartosql.errors import KartosqlError
from sparks import Both

STATEMENTS = r"""
SELECT * FROM o WHERE id = 7
SELECT id, amount FROM o WHERE amount > 20 ORDER BY amount DESC, id LIMIT 10
SELECT count(*) FROM o
SELECT count(DISTINCT cust) FROM o
SELECT status, count(*) AS n FROM o GROUP BY status ORDER BY n DESC, status
SELECT status, sum(amount), avg(amount), min(amount), max(amount) FROM o GROUP BY ALL
SELECT cust, sum(amount) AS total FROM o GROUP BY cust HAVING sum(amount) > 50 ORDER BY total DESC, cust
SELECT DISTINCT status FROM o
SELECT DISTINCT ON (cust) cust, id, day FROM o ORDER BY cust, day DESC, id
SELECT o.id, c.name FROM o JOIN c ON o.cust = c.id
SELECT c.name, count(o.id) FROM c LEFT JOIN o ON o.cust = c.id GROUP BY c.name
SELECT c.name FROM c WHERE NOT EXISTS (SELECT 1 FROM o WHERE o.cust = c.id)
SELECT c.name FROM c WHERE c.id IN (SELECT cust FROM o WHERE amount > 30)
SELECT c.name FROM c WHERE c.id NOT IN (SELECT cust FROM o WHERE cust IS NOT NULL)
SELECT c.name, (SELECT max(amount) FROM o WHERE o.cust = c.id) AS most FROM c
SELECT * FROM o SEMI JOIN c ON o.cust = c.id
SELECT * FROM o ANTI JOIN c ON o.cust = c.id
SELECT * FROM o FULL JOIN c ON o.cust = c.id
SELECT a.id, b.id FROM o a JOIN o b ON a.cust = b.cust AND a.id < b.id
SELECT * FROM o CROSS JOIN (VALUES (1), (2)) v(k)
WITH big AS (SELECT * FROM o WHERE amount > 10) SELECT count(*), sum(qty) FROM big
WITH a AS (SELECT cust, sum(qty) q FROM o GROUP BY cust), b AS (SELECT max(q) m FROM a) SELECT cust FROM a, b WHERE q=m
SELECT id FROM o UNION SELECT id FROM c
SELECT id FROM o UNION ALL SELECT id FROM c
SELECT id FROM o INTERSECT SELECT id FROM c
SELECT id FROM o EXCEPT SELECT id FROM c
SELECT CASE WHEN amount > 20 THEN 'big' WHEN amount > 10 THEN 'middle' ELSE 'small' END AS s, count(*) FROM o GROUP BY s
SELECT coalesce(note, 'none'), nullif(status, 'open'), ifnull(note, '') FROM o
SELECT if(active, 1, 0) FROM o
SELECT greatest(qty, 3), least(qty, 3) FROM o
SELECT id, row_number() OVER (PARTITION BY cust ORDER BY day, id) AS r FROM o
SELECT * FROM o QUALIFY row_number() OVER (PARTITION BY cust ORDER BY day DESC, id) = 1
SELECT id, sum(amount) OVER (PARTITION BY cust ORDER BY id) AS running FROM o
SELECT id, avg(price) OVER (ORDER BY id ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) FROM o
SELECT id, lag(amount) OVER (ORDER BY id), lead(amount) OVER (ORDER BY id) FROM o
SELECT id, rank() OVER (ORDER BY amount DESC), dense_rank() OVER (ORDER BY amount DESC) FROM o
SELECT id, ntile(4) OVER (ORDER BY id), percent_rank() OVER (ORDER BY amount), cume_dist() OVER (ORDER BY amount) FROM o
SELECT id, first_value(amount) OVER w, last_value(amount) OVER w FROM o WINDOW w AS (PARTITION BY cust ORDER BY id)
SELECT id, amount / sum(amount) OVER (PARTITION BY cust) AS share FROM o
SELECT id, count(*) OVER () FROM o
SELECT id, sum(qty) OVER (ORDER BY day RANGE BETWEEN INTERVAL 7 DAY PRECEDING AND CURRENT ROW) FROM o
SELECT id, max(amount) OVER w, min(amount) OVER w FROM o WINDOW w AS (PARTITION BY status)
SELECT year(day), month(day), sum(amount) FROM o GROUP BY ALL ORDER BY ALL
SELECT date_trunc('month', day) AS m, count(*) FROM o GROUP BY m ORDER BY m
SELECT date_trunc('hour', ts), count(*) FROM o GROUP BY 1
SELECT day + INTERVAL 1 DAY, day - INTERVAL 1 MONTH FROM o
SELECT date_diff('day', day, DATE '2024-06-01') FROM o
SELECT DATE '2024-06-01' - day FROM o
SELECT ts - TIMESTAMP '2024-01-01' FROM o
SELECT date_part('dow', day), extract(week FROM day), dayofyear(day), quarter(day) FROM o
SELECT strftime(day, '%Y-%m'), strftime(ts, '%d.%m.%Y %H:%M') FROM o
SELECT strptime('2024-05-06', '%Y-%m-%d')
SELECT strptime(strftime(day, '%Y/%m/%d'), '%Y/%m/%d') FROM o
SELECT day::VARCHAR, ts::DATE, id::VARCHAR FROM o
SELECT last_day(day), dayname(day), monthname(day) FROM o
SELECT epoch(ts), epoch_ms(ts) FROM o
SELECT to_timestamp(1700000000)
SELECT make_date(2024, month(day), 1) FROM o
SELECT day BETWEEN DATE '2024-01-01' AND DATE '2024-03-31' FROM o
SELECT count(*) FROM o WHERE day >= current_date - INTERVAL 30 DAY
SELECT time_bucket(INTERVAL '7 days', day), count(*) FROM o GROUP BY 1
SELECT age(TIMESTAMP '2024-06-01', ts) FROM o
SELECT hour(ts), minute(ts), second(ts) FROM o
SELECT upper(status), lower(name), length(name) FROM o JOIN c ON o.cust = c.id
SELECT status || '-' || id FROM o
SELECT concat(status, ' ', note), concat_ws('/', status, note) FROM o
SELECT substring(name, 1, 3), left(name, 2), right(name, 2) FROM c
SELECT trim(note), ltrim(note), rtrim(note) FROM o
SELECT replace(note, 'a', 'b') FROM o
SELECT name LIKE 'A%', name ILIKE '%b%', name NOT LIKE '%c' FROM c
SELECT starts_with(name, 'A'), ends_with(name, 'a'), contains(name, 'n') FROM c
SELECT position('n' IN name), instr(name, 'n') FROM c
SELECT split_part(note, ' ', 1), string_split(note, ' ') FROM o
SELECT lpad(id::VARCHAR, 5, '0'), rpad(status, 8, '.') FROM o
SELECT reverse(name), repeat('x', qty) FROM o JOIN c ON o.cust = c.id
SELECT regexp_matches(note, '^[a-z]+') FROM o
SELECT regexp_replace(note, '[0-9]+', '#', 'g') FROM o
SELECT regexp_replace(note, ' ', '_') FROM o
SELECT regexp_extract(note, '([a-z]+) ([0-9]+)', 2) FROM o
SELECT regexp_extract(note, '[0-9]+') FROM o
SELECT regexp_extract_all(note, '[0-9]+') FROM o
SELECT note SIMILAR TO '[a-z ]+' FROM o
SELECT string_agg(name, ', ' ORDER BY name) FROM c
SELECT city, string_agg(name, ', ' ORDER BY name DESC) FROM c GROUP BY city
SELECT city, string_agg(DISTINCT name, ',' ORDER BY name) FROM c GROUP BY city
SELECT md5(name), sha256(name) FROM c
SELECT ascii(name), chr(65) FROM c
SELECT upper(left(name, 1)) || lower(substring(name, 2)) FROM c
SELECT format('{}: {}', status, id) FROM o
SELECT printf('%d items', qty) FROM o
SELECT levenshtein(name, 'Anna') FROM c
SELECT translate(name, 'abc', 'xyz') FROM c
SELECT round(price, 2), ceil(price), floor(price), trunc(price) FROM o
SELECT round(amount, 1), abs(amount), sign(amount) FROM o
SELECT sqrt(price), power(price, 2), exp(1), ln(price + 1), log10(price + 1) FROM o
SELECT qty % 3, qty // 2, qty / 2, mod(qty, 5) FROM o
SELECT amount * qty, amount + 1, amount / 3, amount * 1.19 FROM o
SELECT sum(amount * qty) FROM o
SELECT sum(qty) * 1.5, sum(qty) * amount FROM o GROUP BY amount
SELECT price::INTEGER, amount::DOUBLE, qty::DECIMAL(10, 2), '12'::INTEGER FROM o
SELECT try_cast(note AS INTEGER) FROM o
SELECT 100.0 * sum(CASE WHEN active THEN 1 ELSE 0 END) / count(*) FROM o
SELECT avg(price), stddev(price), variance(price) FROM o WHERE price < 1e6
SELECT median(amount) FROM o
SELECT median(price) FROM o
SELECT status, median(qty) FROM o GROUP BY status
SELECT quantile_cont(price, 0.9) FROM o
SELECT quantile_cont(qty, [0.25, 0.5, 0.75]) FROM o
SELECT quantile_disc(amount, 0.5), quantile_disc(qty, 0.95) FROM o
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY price) FROM o
SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY qty) FROM o
SELECT mode() WITHIN GROUP (ORDER BY status) FROM o
SELECT mode(status) FROM o
SELECT corr(price, qty), covar_pop(price, qty), covar_samp(price, qty) FROM o
SELECT regr_slope(price, qty), regr_intercept(price, qty), regr_r2(price, qty), regr_count(price, qty) FROM o
SELECT arg_max(id, amount), arg_min(id, amount) FROM o
SELECT cust, max_by(status, id) FROM o GROUP BY cust
SELECT cust, arg_max(amount, id), min_by(amount, id) FROM o GROUP BY cust
SELECT list(id ORDER BY id) FROM o
SELECT cust, list(id ORDER BY day, id) FROM o GROUP BY cust
SELECT cust, array_agg(DISTINCT status ORDER BY status) FROM o GROUP BY cust
SELECT list(id) FROM o
SELECT any_value(city) FROM c
SELECT first(name ORDER BY id), last(name ORDER BY id) FROM c
SELECT cust, first(status ORDER BY id DESC) FROM o GROUP BY cust
SELECT approx_count_distinct(cust) FROM o
SELECT count(*) FILTER (WHERE active), sum(qty) FILTER (WHERE status = 'open') FROM o
SELECT count_if(active), bool_or(active), bool_and(active) FROM o
SELECT product(qty) FROM o
SELECT sum(DISTINCT qty), avg(DISTINCT qty) FROM o
SELECT histogram(qty) FROM o
SELECT skewness(price), kurtosis(price) FROM o
SELECT max(amount, 3) FROM o
SELECT status, active, sum(qty) FROM o GROUP BY ROLLUP (status, active)
SELECT status, active, sum(qty) FROM o GROUP BY CUBE (status, active)
SELECT status, active, grouping(status) FROM o GROUP BY GROUPING SETS ((status), (active), ())
SELECT * FROM (SELECT cust, status, qty FROM o) PIVOT (sum(qty) FOR status IN ('open', 'done'))
PIVOT (SELECT cust, status, qty FROM o) ON status IN ('open', 'done') USING sum(qty)
PIVOT (SELECT cust, status, qty FROM o) ON status USING sum(qty)
SELECT * FROM (SELECT id, qty, qty * 2 AS twice FROM o) UNPIVOT (v FOR k IN (qty, twice))
UNPIVOT (SELECT id, qty, qty * 2 AS twice FROM o) ON qty, twice INTO NAME k VALUE v
SELECT id, unnest(tags) FROM o
SELECT id, t.tag FROM o, unnest(o.tags) AS t(tag)
SELECT unnest([1, 2, 3])
SELECT tags[1], len(tags), tags[1:2] FROM o
SELECT list_contains(tags, 'a') FROM o
SELECT 'a' IN tags FROM o WHERE tags IS NOT NULL
SELECT array_to_string(tags, ',') FROM o
SELECT list_sort(tags), list_distinct(tags) FROM o
SELECT list_transform(tags, lambda x: upper(x)) FROM o
SELECT list_filter(tags, lambda x: x <> 'a') FROM o
SELECT [x || '!' for x in tags] FROM o
SELECT list_concat(tags, ['z']), list_append(tags, 'z') FROM o
SELECT list_sum([qty, 1]), list_max([qty, 1]) FROM o
SELECT list_aggregate(tags, 'max') FROM o
SELECT list_position(tags, 'b') FROM o
SELECT list_reverse(tags) FROM o
SELECT {'a': id, 'b': status} FROM o
SELECT struct_pack(a := id).a FROM o
SELECT map {'a': 1}['a']
SELECT range(3), generate_series(1, qty) FROM o
SELECT * FROM range(5)
SELECT * FROM generate_series(DATE '2024-01-01', DATE '2024-01-05', INTERVAL 1 DAY)
SELECT to_json({'a': id}) FROM o
SELECT note->>'$.a' FROM o WHERE false
SELECT id FROM o ORDER BY random() LIMIT 3
SELECT * FROM o USING SAMPLE 3
SELECT * FROM o ASOF JOIN c ON o.cust = c.id AND o.day >= c.since
SELECT o.id, x.n FROM o, LATERAL (SELECT count(*) AS n FROM c WHERE c.id = o.cust) x
SELECT c.name, l.id FROM c, LATERAL (SELECT o.id FROM o WHERE o.cust = c.id ORDER BY o.amount DESC, o.id LIMIT 1) l
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT * FROM n
SELECT * EXCLUDE (note, tags) FROM o
SELECT * REPLACE (upper(status) AS status) FROM o
SELECT COLUMNS('^(qty|amount)$') FROM o
SELECT min(COLUMNS(['qty', 'amount'])) FROM o
FROM o SELECT id, qty WHERE qty > 2
SELECT id FROM o WHERE (cust, status) IN (SELECT id, 'open' FROM c)
SELECT id FROM o WHERE amount > ALL (SELECT amount FROM o WHERE status = 'open')
SELECT id FROM o WHERE amount = ANY (SELECT max(amount) FROM o GROUP BY cust)
SELECT id FROM o WHERE status IN ('open', 'done') AND note IS NOT NULL
SELECT id FROM o WHERE NOT (qty > 3 OR active) ORDER BY id LIMIT 5 OFFSET 2
SELECT id FROM o WHERE amount IS DISTINCT FROM 12.50
SELECT avg(amount) AS a, count(*) FROM (SELECT cust, sum(amount) AS amount FROM o GROUP BY cust)
SELECT status, count(*) * 100.0 / sum(count(*)) OVER () AS percent FROM o GROUP BY status
SELECT cust, day, sum(sum(amount)) OVER (PARTITION BY cust ORDER BY day) FROM o GROUP BY cust, day
SELECT day, sum(amount) - lag(sum(amount)) OVER (ORDER BY day) AS change FROM o GROUP BY day ORDER BY day
SELECT cust, min(day), max(day), max(day) - min(day) FROM o GROUP BY cust
SELECT count(DISTINCT status), count(DISTINCT cust) FILTER (WHERE active) FROM o
SELECT count(*) FROM (SELECT DISTINCT cust, status FROM o)
SELECT c.city, o.status, sum(o.amount) FROM o JOIN c ON o.cust = c.id WHERE o.day >= DATE '2024-01-01' GROUP BY ALL
SELECT * FROM (SELECT DISTINCT status FROM o) JOIN (SELECT status, count(*) AS n FROM o GROUP BY status) USING (status)
SELECT id, amount FROM o ORDER BY amount DESC NULLS LAST, id FETCH FIRST 5 ROWS ONLY
SELECT bit_count(qty), qty & 3, qty | 4, xor(qty, 1), qty << 1 FROM o
SELECT hash(id) FROM o
SELECT id, amount::VARCHAR, price::VARCHAR FROM o
SELECT typeof(amount), typeof(tags) FROM o LIMIT 1
SELECT isnan(price), isinf(price), isfinite(price) FROM o
SELECT CAST(floor(price / 10) AS INTEGER) AS bucket, count(*) FROM o GROUP BY bucket
SELECT log(price + 1, 2), cbrt(price), degrees(price), pi(), sin(price), atan2(price, 2) FROM o
SUMMARIZE SELECT qty FROM o
"""


def rows() -> dict[str, pa.Table]:
    """Return the tables: some values are NULL, some are there twice."""
    n = 60
    first = dt.date(2024, 1, 1)
    days = [None if i % 17 == 5 else first + dt.timedelta(days=(i * 37) % 90) for i in range(n)]
    orders = {
        "id": range(n),
        "cust": pa.array([None if i % 13 == 4 else (i * 7) % 9 for i in range(n)], pa.int64()),
        "day": days,
        "ts": pa.array([dt.datetime(2024, 1, 1, i % 24, (i * 7) % 60, i) for i in range(n)], pa.timestamp("us")),
        "amount": pa.array([Decimal((i * 731) % 4001) / 100 for i in range(n)], pa.decimal128(10, 2)),
        "price": pa.array([None if i % 11 == 3 else ((i * 977) % 1000) / 8 for i in range(n)], pa.float64()),
        "qty": pa.array([i % 7 for i in range(n)], pa.int32()),
        "status": [("open", "done", "lost", None)[(i * i) % 4 if i % 5 else 1] for i in range(n)],
        "note": [("abc 12", " x  ", None, "7", "a1b22 333")[i % 5] for i in range(n)],
        "tags": pa.array([(["a", "b"], [], None, ["b", None, "b"])[i % 4] for i in range(n)], pa.list_(pa.string())),
        "active": [(True, False, None)[i % 3] for i in range(n)],
    }
    customers = {
        "id": range(9),
        "name": ["Anna", "Bob", "Carla", "Dan", "Ewa", "Änne", "Bob", "", "Zoé"],
        "city": ["Berlin", "Bonn", "Berlin", None, "Bonn", "Ulm", "Ulm", "Ulm", "Köln"],
        "since": [first + dt.timedelta(days=10 * i) for i in range(9)],
    }
    return {"o": pa.table(orders), "c": pa.table(customers)}


def statements() -> list[str]:
    """Return the statements."""
    return STATEMENTS.strip().splitlines()


def refused(both: Both) -> dict[str, str]:
    """Return the statements that Spark does not answer, with the reasons."""
    found = {}
    for text in statements():
        try:
            both.translation(text)
        except KartosqlError as e:
            found[text] = f"{e.code}: {e.message}"
    return found


def main() -> None:
    """Print what is refused, and the share of the rest."""
    with tempfile.TemporaryDirectory() as folder:
        with kartosql.connect(folder) as con:
            for name, table in rows().items():
                con.create_dataset(name, table)
        with Both(folder) as both:
            found = refused(both)
    for text, reason in found.items():
        print(f"{text}\n    {reason}")
    count = len(statements())
    print(f"{count - len(found)} of {count} answered")


if __name__ == "__main__":
    main()
