-- A folder of Parquet files as a table beside a cube, pruned by the partition values in its paths.
-- docs/attach.md tells how to make the folder weather of the demo.
ATTACH 'weather' AS raw (TYPE parquet);
SELECT month, count(*) AS hours FROM raw WHERE month <= 2 GROUP BY month ORDER BY month;
SELECT f.origin, count(*) AS flights, round(avg(r.temp), 1) AS temp
FROM flights f JOIN raw r ON r.month = f.month AND r.origin = f.origin AND r.time_hour = f.time_hour
WHERE f.month = 1 AND r.month = 1 GROUP BY f.origin ORDER BY f.origin;
DETACH raw;
