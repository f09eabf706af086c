-- A column comes without a file being written: rows from before have NULL in it, and new ones may bring others.
ALTER DATASET planes ADD COLUMN checked DATE;
INSERT INTO planes (EVOLVE) SELECT 'N000KS' AS tailnum, 2 AS seats, DATE '2013-05-01' AS checked, 0.5 AS rating;
SELECT count(*) AS planes, count(checked) AS checked, count(rating) AS rated FROM planes;
SELECT tailnum, seats, rating FROM planes WHERE checked >= DATE '2013-01-01';
