-- A window function: how the departure delay of one aircraft adds up over a day.
SELECT
    row_number() OVER legs AS leg,
    dest,
    dep_delay,
    sum(dep_delay) OVER (legs ROWS UNBOUNDED PRECEDING) AS delay_so_far
FROM flights
WHERE tailnum = 'N236JB' AND month = 7 AND day = 11
WINDOW legs AS (ORDER BY time_hour, flight)
ORDER BY leg;
