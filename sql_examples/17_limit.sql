-- LIMIT without ORDER BY: any ten rows will do, so the first file with ten rows is enough.
-- With ORDER BY those files are read that may hold the first rows, by the bounds in their footers.
SELECT count(*) AS rows FROM (SELECT carrier, flight, dest FROM flights WHERE month > 6 LIMIT 10);

EXPLAIN SELECT carrier, flight, dest FROM flights WHERE month > 6 LIMIT 10;

EXPLAIN SELECT carrier, flight, dest FROM flights ORDER BY time_hour LIMIT 10;
