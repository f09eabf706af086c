-- A common table expression: the five busiest destinations, and their share of long delays.
WITH busiest AS (
    SELECT dest, count(*) AS flights
    FROM flights
    WHERE month = 5
    GROUP BY dest
    ORDER BY flights DESC, dest
    LIMIT 5
)
SELECT dest, busiest.flights, round(100.0 * count(*) FILTER (WHERE arr_delay > 60) / count(*), 1) AS percent_late
FROM flights JOIN busiest USING (dest)
WHERE month = 5
GROUP BY dest, busiest.flights
ORDER BY percent_late DESC, dest;
