-- What the store holds, what a table is made of, and how it is partitioned.
SHOW TABLES;
DESCRIBE planes;
SHOW PARTITIONS FROM flights.weather;
