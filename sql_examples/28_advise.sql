-- ADVISE says what would help a query, and by how much. Here an index on a payload column of the dataset delays;
-- it is built as the advice says, and the query opens fewer files.
ADVISE SELECT dest, dep_delay FROM flights WHERE dep_delay > 1000;
CREATE INDEX ON flights.delays (dep_delay);
EXPLAIN SELECT dest, dep_delay FROM flights WHERE dep_delay > 1000;
ADVISE SELECT dest, dep_delay FROM flights WHERE dep_delay > 1000;
