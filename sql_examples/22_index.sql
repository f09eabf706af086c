-- An index of a dataset that exists: conditions on its column then open fewer files.
CREATE DATASET fleet PARTITION BY (engines) AS SELECT engines, tailnum, model, year FROM planes;
CREATE INDEX ON fleet (model);

EXPLAIN SELECT tailnum FROM fleet WHERE model = 'A340-313';
DROP INDEX ON fleet (model);
