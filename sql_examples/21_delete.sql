-- DELETE removes whole partitions, from each dataset that has the partition columns of the condition.
DELETE FROM flights WHERE month NOT IN (2, 3);
DELETE FROM flights DATASETS (weather) WHERE month % 3 = 0;

SELECT month, count(*) AS planned, count(dep_time) AS departed, count(temp) AS with_weather
FROM flights
GROUP BY month
ORDER BY month;

DROP CUBE flights;
SHOW TABLES;
