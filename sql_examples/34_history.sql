-- Each commit is a version that stays readable. What was wrong is undone by a commit that takes up the old files again.
CREATE DATASET fleet PARTITION BY (engines) AS SELECT engines, tailnum, model FROM planes;
DELETE FROM fleet WHERE engines = 4;
INSERT INTO fleet SELECT 4 AS engines, 'N000' AS tailnum, 'A380' AS model;
SHOW HISTORY FROM fleet;
SELECT engines, count(*) AS planes FROM fleet AT (VERSION => 1) WHERE engines >= 3 GROUP BY engines ORDER BY engines;
RESTORE fleet TO VERSION 1;
SELECT count(*) AS planes FROM fleet;
