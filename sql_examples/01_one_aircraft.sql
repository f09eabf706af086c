-- A point query: the inverted index on tailnum says which months hold this aircraft,
-- and only their files are opened.
SELECT time_hour, origin, dest, carrier, flight, dep_delay
FROM flights
WHERE tailnum = 'N375JB' AND dep_delay > 20
ORDER BY time_hour;
