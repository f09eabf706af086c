-- The same cube twice: each occurrence is a scan of its own, with its own months.
SELECT a.carrier, a.flights AS january, b.flights AS july
FROM (SELECT carrier, count(*) AS flights FROM flights WHERE month = 1 GROUP BY carrier) a
JOIN (SELECT carrier, count(*) AS flights FROM flights WHERE month = 7 GROUP BY carrier) b USING (carrier)
WHERE b.flights > a.flights
ORDER BY b.flights - a.flights DESC, carrier
LIMIT 5;
