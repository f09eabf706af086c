"""The DuckDB engine: evaluates conditions for the planner, and runs the statement."""

from kartosql.engines.duckdb.files import FileAccess
from kartosql.engines.duckdb.instance import check_setting
from kartosql.engines.duckdb.planner import Planner
from kartosql.engines.duckdb.runtime import Runtime
from kartosql.engines.duckdb.statement import LOST_COLUMN, Measured, Statement, table_names

__all__ = ["LOST_COLUMN", "FileAccess", "Measured", "Planner", "Runtime", "Statement", "check_setting", "table_names"]
