"""Statements that are no SELECT: one handler for each, over a session; the calls of a connection are here, too."""

from __future__ import annotations

from kartosql.result import Query
from kartosql.session import Request
from kartosql.sql import Inspect, Statement
from kartosql.sql.statements import Write


def run(request: Request, statement: Statement) -> Query:
    """Run a statement, and return what it answers or did; what it does not need is not imported."""
    if isinstance(statement, Inspect):
        from kartosql.insight import inspect

        return inspect(request, statement)
    if isinstance(statement, Write):
        from kartosql.statements.write import write

        return write(request, statement)
    from kartosql.statements.catalog import answer

    return answer(request, statement)
