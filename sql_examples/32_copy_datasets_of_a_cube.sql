-- Some datasets of a cube are copied, here the flights without their delays; others can join the copy later.
COPY CUBE flights DATASETS (flights) TO 'offsite' AS year;
COPY CUBE flights DATASETS (delays) TO 'offsite' AS year;
ATTACH 'offsite' AS offsite (TYPE kartothek);
SELECT month, count(*) AS flights, round(avg(dep_delay), 1) AS delay
FROM offsite.year WHERE month <= 2 GROUP BY month ORDER BY month;
