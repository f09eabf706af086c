-- Pieces and beginnings of texts leave out the files that cannot hold what is searched for.
CREATE SKIPPING INDEX ON planes (NGRAM(model), PREFIX(manufacturer) WITH (length = 4));
SHOW SKIPPING INDEXES FROM planes;
SELECT count(*) AS planes FROM planes WHERE model LIKE '%320-2%';
DROP SKIPPING INDEX ON planes;
