"""The DuckDB engine: evaluates conditions for the planner, and runs the statement."""

from kartosql.engines.duckdb.session import Session, table_names

__all__ = ["Session", "table_names"]
