-- UPDATE, DELETE and MERGE change rows of a dataset, or cells of a whole cube: files that hold such a row are written anew.
UPDATE planes SET seats = seats + 1 WHERE tailnum = 'N10156';
SELECT tailnum, seats FROM planes WHERE tailnum = 'N10156';

DELETE FROM flights.weather WHERE origin = 'JFK' AND temp < 20;
SELECT count(*) AS cold FROM flights.weather WHERE origin = 'JFK' AND temp < 20;

MERGE INTO planes USING (SELECT 'N10156' AS tailnum, 60 AS seats UNION ALL SELECT 'N00000', 2) AS new ON (tailnum)
WHEN MATCHED AND new.seats > planes.seats THEN UPDATE SET seats = new.seats
WHEN NOT MATCHED THEN INSERT (tailnum, seats) VALUES (new.tailnum, new.seats);
SELECT tailnum, seats FROM planes WHERE tailnum IN ('N10156', 'N00000') ORDER BY tailnum;

UPDATE flights SET dep_delay = 0, temp = temp + 1 WHERE origin = 'JFK' AND month = 2;
DELETE FROM flights WHERE carrier = 'HA' AND arr_delay > 60 AND wind_speed IS NOT NULL;
SELECT count(*) FILTER (carrier = 'HA') AS hawaii, max(dep_delay) AS most FROM flights WHERE origin = 'JFK' AND month = 2;
