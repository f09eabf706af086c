-- A cube of a query: rain per airport and day. A second dataset adds the wind; both are one table then.
CREATE CUBE daily DIMENSIONS (origin, day) PARTITION BY (month) SEED rain INDEX (wet_hours) AS
SELECT origin, month, dayofmonth(time_hour) AS day, round(sum(precip), 2) AS rain, count(*) FILTER (precip > 0) AS wet_hours
FROM flights.weather
WHERE month <= 6
GROUP BY ALL;

ALTER CUBE daily ADD DATASET wind AS
SELECT origin, month, dayofmonth(time_hour) AS day, round(max(wind_gust), 1) AS gust
FROM flights.weather
WHERE month <= 6
GROUP BY ALL;

SELECT origin, month, day, rain, gust
FROM daily
WHERE wet_hours >= 18
ORDER BY rain DESC, origin;
