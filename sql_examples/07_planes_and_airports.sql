-- Several tables: the cube together with the plain datasets planes and airports.
SELECT p.manufacturer, a.name AS airport, count(*) AS flights
FROM flights f
JOIN planes p ON p.tailnum = f.tailnum
JOIN airports a ON a.faa = f.dest
WHERE f.month = 12 AND f.dest IN ('ANC', 'SFO', 'BDL') AND p.seats > 150
GROUP BY ALL
ORDER BY flights DESC, p.manufacturer, airport
LIMIT 6;
