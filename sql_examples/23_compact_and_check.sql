-- Small files and rows that were overwritten pile up with each append. CHECK counts them, COMPACT merges them.
CREATE CUBE gusts DIMENSIONS (origin, day) PARTITION BY (month) AS
SELECT origin, month, dayofmonth(time_hour) AS day, max(wind_gust) AS gust FROM flights.weather WHERE month <= 2 GROUP BY ALL;

INSERT INTO gusts SELECT origin, month, day, gust + 1 AS gust FROM gusts WHERE month = 1 AND day <= 3;
INSERT INTO gusts VALUES (31, 99.5, 1, 'JFK');

SELECT count(*) AS cells, max(gust) AS most FROM gusts;
CHECK gusts;
COMPACT gusts;
CHECK gusts FULL;
SELECT count(*) AS cells, max(gust) AS most FROM gusts;
