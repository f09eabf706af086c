-- A cube is copied to any other store, under another name if one is given; a local folder is made if need be.
CREATE CUBE rain DIMENSIONS (origin, day) PARTITION BY (month) SEED hours INDEX (wet_hours) AS
SELECT origin, month, dayofmonth(time_hour) AS day, count(*) FILTER (precip > 0) AS wet_hours
FROM flights.weather WHERE month <= 2 GROUP BY ALL;

COPY CUBE rain TO 'copies' AS wet;
