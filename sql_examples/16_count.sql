-- Answers from metadata: row counts stand in the footers of the files, months in their paths.
-- No row is read.
SELECT month, count(*) AS flights
FROM flights
WHERE month BETWEEN 6 AND 8
GROUP BY month
ORDER BY month;

SELECT min(month) AS first, max(month) AS last, count(*) AS flights FROM flights;

EXPLAIN SELECT min(month) AS first, max(month) AS last, count(*) AS flights FROM flights;
