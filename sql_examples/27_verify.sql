-- VERIFY answers a query with and without pruning and over files read in another way, and compares the rows.
-- (DUCKDB) leaves Spark out. The digest is the same for the same rows, whatever their order.
VERIFY (DUCKDB) SELECT dest, dep_delay FROM flights WHERE tailnum = 'N375JB';
