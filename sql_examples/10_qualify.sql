-- QUALIFY: the longest delay of each airport in March.
SELECT origin, time_hour, carrier, flight, dep_delay
FROM flights
WHERE month = 3 AND dep_delay IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY origin ORDER BY dep_delay DESC, time_hour, carrier, flight) = 1
ORDER BY origin;
