-- A condition passes through a common table expression, through GROUP BY by a key and through a
-- window that is partitioned by it: one file per month asked for is read, not all twelve.
WITH hours AS (
    SELECT month, origin, time_hour, count(*) AS flights
    FROM flights
    GROUP BY ALL
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY month, origin ORDER BY flights DESC, time_hour) AS place
    FROM hours
)
SELECT month, origin, time_hour, flights
FROM ranked
WHERE month IN (2, 7) AND place = 1
ORDER BY month, origin;

EXPLAIN
WITH hours AS (
    SELECT month, origin, time_hour, count(*) AS flights
    FROM flights
    GROUP BY ALL
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY month, origin ORDER BY flights DESC, time_hour) AS place
    FROM hours
)
SELECT month, origin, time_hour, flights
FROM ranked
WHERE month IN (2, 7) AND place = 1;
