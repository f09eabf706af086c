-- What the schema of a dataset was, and how it changed: a column without values gets its type with the first one.
CREATE DATASET notes AS SELECT tailnum, NULL AS note FROM planes WHERE year = 2013;

INSERT INTO notes SELECT 'N0' AS tailnum, 'sold' AS note;

SHOW SCHEMA HISTORY FROM notes;

DESCRIBE notes VERSION 1;

DESCRIBE notes VERSION 2;
