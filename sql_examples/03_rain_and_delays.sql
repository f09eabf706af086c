-- Columns of three datasets in one table: the cube joins flights, delays and weather by itself.
SELECT origin, precip > 0 AS rain, count(*) AS flights, round(avg(dep_delay), 1) AS dep_delay
FROM flights
WHERE month IN (1, 2, 12) AND dep_delay IS NOT NULL AND precip IS NOT NULL
GROUP BY origin, rain
ORDER BY origin, rain;
