-- A set operation: destinations served in July, but not in January.
SELECT dest FROM flights WHERE month = 7
EXCEPT
SELECT dest FROM flights WHERE month = 1
ORDER BY dest;
