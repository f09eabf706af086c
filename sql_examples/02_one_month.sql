-- A condition on the partition column: one file per dataset is read.
SELECT carrier, count(*) AS flights, count(dep_time) AS departed, round(avg(arr_delay), 1) AS arr_delay
FROM flights
WHERE month = 7 AND dest = 'SFO'
GROUP BY carrier
ORDER BY flights DESC;
