-- Skipping indexes tell of each file what its columns hold: bounds, lists of values, or a Bloom filter.
CREATE SKIPPING INDEX ON flights.delays (MINMAX(dep_delay), BLOOMFILTER(dep_delay) WITH (fpp = 0.01, ndv = 1000));
SHOW SKIPPING INDEXES FROM flights.delays;
SELECT origin, dest, dep_delay FROM flights WHERE dep_delay > 1200 ORDER BY dep_delay;
DROP SKIPPING INDEX ON flights.delays;
