-- EXPLAIN shows which files a query reads and why. No month holds this tail number,
-- so nothing is opened at all.
EXPLAIN SELECT dest, dep_delay FROM flights WHERE tailnum = 'N00000' AND month = 3;
