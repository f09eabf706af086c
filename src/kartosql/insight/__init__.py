"""What statements read and could read: EXPLAIN, ADVISE, VERIFY, SHOW COVERAGE."""

from kartosql.insight.inspect import Session, inspect

__all__ = ["Session", "inspect"]
