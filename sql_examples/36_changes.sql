-- What came and went between two versions of a dataset: rows that are equal before and after are no change.
INSERT INTO planes (EVOLVE) SELECT 'N000KS' AS tailnum, 2 AS seats;
INSERT OVERWRITE planes SELECT * REPLACE (seats + 1 AS seats) FROM planes WHERE seats < 4;
SELECT _version, _change, count(*) AS rows, min(seats) AS fewest FROM changes('planes', 1) GROUP BY ALL ORDER BY ALL;
SELECT tailnum, seats, _change FROM changes('planes', 1, 2);
