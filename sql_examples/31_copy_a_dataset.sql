-- One dataset is copied to another store, plain or of a cube; ATTACH shows what is there.
COPY DATASET planes TO 'backup' AS planes_2013;
ATTACH 'backup' AS backup (TYPE kartothek);
SELECT count(*) AS planes FROM backup.planes_2013;
