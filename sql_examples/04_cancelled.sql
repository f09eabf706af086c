-- IS NULL on an enrichment: the dataset delays has no row for a flight that never departed.
-- The join stays a LEFT JOIN, so these flights are there, with NULL.
SELECT month, count(*) AS planned, count(*) FILTER (WHERE dep_time IS NULL) AS cancelled
FROM flights
WHERE month BETWEEN 1 AND 3
GROUP BY month
ORDER BY month;

SELECT origin, count(*) AS cancelled
FROM flights
WHERE month = 2 AND day = 8 AND dep_time IS NULL
GROUP BY origin
ORDER BY origin;
