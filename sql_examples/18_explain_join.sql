-- EXPLAIN of a join: the condition on f.month is carried over to w, as the months are equal.
-- What is left to the engine is checked row by row; the reason stands beside it.
EXPLAIN
SELECT f.carrier, f.flight, w.wind_speed
FROM flights f
JOIN flights.weather w ON w.month = f.month AND w.origin = f.origin AND w.time_hour = f.time_hour
WHERE f.month = 3 AND f.tailnum LIKE 'N37%' AND w.wind_speed > 40 AND random() < 0.5;
