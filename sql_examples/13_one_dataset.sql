-- One dataset of the cube as a table of its own: the windiest hours of February.
-- (Newark reports a wind of 1048 mph once; that is what the data say.)
SELECT origin, time_hour, round(wind_speed, 1) AS wind_speed
FROM flights.weather
WHERE month = 2 AND wind_speed BETWEEN 30 AND 100
ORDER BY wind_speed DESC, origin, time_hour
LIMIT 5;
