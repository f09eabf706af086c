-- Rows are appended by the names of their columns; a row with the same cell takes the place of the older one.
-- OVERWRITE replaces exactly the partitions that occur.
CREATE CUBE seats DIMENSIONS (model) PARTITION BY (engines) AS
SELECT model, engines, max(seats) AS seats FROM planes WHERE manufacturer = 'EMBRAER' GROUP BY ALL;

INSERT INTO seats (model, engines, seats) VALUES ('ERJ 190-100 IGW', 2, 21), ('new', 4, 500);
INSERT OVERWRITE seats SELECT 'newer' AS model, 4 AS engines, 600 AS seats;

SELECT engines, model, seats FROM seats WHERE seats > 20 ORDER BY engines, model;
