"""What Spark answers as DuckDB does: types, constants, functions and operators of a bound plan."""
