"""The DuckDB engine: evaluates conditions for the planner, and runs the statement."""
