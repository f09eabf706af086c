-- A view is a query that the store holds under a name; conditions prune through it.
CREATE VIEW long_delays AS SELECT origin, dest, month, dep_delay FROM flights WHERE dep_delay > 1000;
SELECT origin, dest, dep_delay FROM long_delays WHERE month = 1 ORDER BY dep_delay;
SELECT table_name, table_type FROM information_schema.tables WHERE table_name LIKE '%delays' ORDER BY 1;
SHOW COLUMNS FROM long_delays;
DROP VIEW long_delays;
