-- One dataset is copied to another store, plain or of a cube; ATTACH shows what is there. In memory it ends with the process.
COPY DATASET planes TO 'memory://backup' AS planes_2013;
ATTACH 'memory://backup' AS backup (TYPE kartothek);
SELECT count(*) AS planes FROM backup.planes_2013;
