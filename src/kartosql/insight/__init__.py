"""What statements read and could read: EXPLAIN, ADVISE, VERIFY, SHOW COVERAGE."""

from kartosql.insight.inspect import inspect

__all__ = ["inspect"]
