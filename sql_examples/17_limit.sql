-- LIMIT without ORDER BY: any ten rows will do, so the first file with ten rows is enough.
-- With ORDER BY all files of the month range have to be read.
SELECT count(*) AS rows FROM (SELECT carrier, flight, dest FROM flights WHERE month > 6 LIMIT 10);

EXPLAIN SELECT carrier, flight, dest FROM flights WHERE month > 6 LIMIT 10;

EXPLAIN SELECT carrier, flight, dest FROM flights WHERE month > 6 ORDER BY time_hour LIMIT 10;
