-- UPDATE, DELETE and MERGE change rows of one dataset: files that hold such a row are written anew.
UPDATE planes SET seats = seats + 1 WHERE tailnum = 'N10156';
SELECT tailnum, seats FROM planes WHERE tailnum = 'N10156';

DELETE FROM flights.weather WHERE origin = 'JFK' AND temp < 20;
SELECT count(*) AS cold FROM flights.weather WHERE origin = 'JFK' AND temp < 20;

MERGE INTO planes USING (SELECT 'N10156' AS tailnum, 60 AS seats UNION ALL SELECT 'N00000', 2) AS new ON (tailnum)
WHEN MATCHED AND new.seats > planes.seats THEN UPDATE SET seats = new.seats
WHEN NOT MATCHED THEN INSERT (tailnum, seats) VALUES (new.tailnum, new.seats);
SELECT tailnum, seats FROM planes WHERE tailnum IN ('N10156', 'N00000') ORDER BY tailnum;
