-- A lookup: the tail numbers of one model are read from the small table planes while the query is
-- planned, and looked up in the inverted index of the cube. Two of twelve months hold such a flight.
SELECT time_hour, origin, dest, tailnum
FROM flights
WHERE tailnum IN (SELECT tailnum FROM planes WHERE model = '787-8')
ORDER BY time_hour;

EXPLAIN
SELECT time_hour, origin, dest, tailnum
FROM flights
WHERE tailnum IN (SELECT tailnum FROM planes WHERE model = '787-8');
