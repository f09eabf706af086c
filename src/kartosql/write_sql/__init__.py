"""The statements that write, from the statement to the table of what it did."""

from kartosql.write_sql.dispatch import WriteStatements

__all__ = ["WriteStatements"]
