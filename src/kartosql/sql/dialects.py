"""What people write as in other databases, in DuckDB's SQL: for hints about what it lacks."""

from __future__ import annotations

import logging

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

# Those that come first are read first: a call may mean something else in the next one.
_DIALECTS = ("spark", "postgres", "snowflake", "tsql", "bigquery", "mysql", "oracle")
MAX_LENGTH = 500  # of a text and of its answer: longer ones are no hint
logging.getLogger("sqlglot").addHandler(logging.NullHandler())  # else what it warns of goes to the terminal


def in_duckdb(text: str, function: str | None = None) -> str | None:
    """Return how a query, or a call of ``function``, of another dialect is written for DuckDB.

    None where no dialect reads it, or none knows more of the function than its name.
    """
    if len(text) > MAX_LENGTH or not "".join(text.split()).isprintable():
        return None
    for dialect in _DIALECTS:
        try:
            (tree,) = sqlglot.parse(text, read=dialect, error_level=ErrorLevel.IMMEDIATE)
            found = "" if tree is None else tree.sql("duckdb", unsupported_level=ErrorLevel.RAISE)
            meant = sqlglot.parse_one(found, read="duckdb", error_level=ErrorLevel.IMMEDIATE)
        except (SqlglotError, RecursionError, ValueError):
            continue
        known = isinstance(tree, exp.Query) if function is None else f"{function}(".lower() not in found.lower()
        # Several names for one item are written as they came, and DuckDB does not read them.
        if known and len(found) <= MAX_LENGTH and meant.find(exp.Aliases) is None:
            return f"In DuckDB's SQL: {found}"
    return None
