-- A file that belongs to nothing any more is listed now and removed by a CLEANUP a grace period later: readers that
-- run may still need it. DRY RUN only looks.
CREATE DATASET fleet PARTITION BY (engines) AS SELECT engines, tailnum, model FROM planes;
INSERT OVERWRITE fleet SELECT engines, tailnum, model FROM fleet WHERE engines = 4;

CLEANUP fleet DRY RUN;
CLEANUP fleet;
SELECT count(*) AS planes FROM fleet;
