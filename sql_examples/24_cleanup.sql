-- A file that belongs to nothing any more is listed now and removed by a CLEANUP a grace period later: readers that
-- run may still need it. Earlier versions need their files, too, unless none is kept. DRY RUN only looks.
SET history_versions = 0;
CREATE DATASET fleet PARTITION BY (engines) AS SELECT engines, tailnum, model FROM planes;
INSERT OVERWRITE fleet SELECT engines, tailnum, model FROM fleet WHERE engines = 4;

CLEANUP fleet DRY RUN;
CLEANUP fleet;
SELECT count(*) AS planes FROM fleet;
