-- SHOW COVERAGE counts the cells of each dataset, here by origin and month. The seed says which cells there are;
-- weather has hours in which no plane left, which no query of the cube ever sees (marked with !).
SHOW COVERAGE OF flights BY origin, month;
SHOW COVERAGE (FORMAT TABLE) OF flights.weather BY origin;
