"""What statements read and could read: EXPLAIN, ADVISE, VERIFY, SHOW COVERAGE."""
