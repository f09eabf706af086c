"""Text to statement: the DuckDB dialect with positions, parameters, and kartosql's own statements."""

from kartosql.sql.parse import parse, parse_select, split_statements
from kartosql.sql.statements import Attach, Describe, Detach, Explain, Inspect, Reset, Select, Set, Show, Statement

__all__ = ["Attach", "Describe", "Detach", "Explain", "Inspect", "Reset", "Select", "Set", "Show", "Statement"]
__all__ += ["parse", "parse_select", "split_statements"]
