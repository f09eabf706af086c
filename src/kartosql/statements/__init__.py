"""Statements that are no SELECT: one handler for each, over a session; the calls of a connection are here, too."""

from __future__ import annotations

from importlib import import_module

import pyarrow as pa

from kartosql.result import Query, ReportQuery
from kartosql.session import Request
from kartosql.sql import Attach, Describe, Detach, Reset, Set, Show, Statement
from kartosql.sql.statements import Advise, Explain, Inspect, ShowCoverage, Verify, VerifyData, Write
from kartosql.text.report import Report

# The modules and functions of the other handlers, by kinds of statements; a statement imports only its own.
_HANDLERS: dict[type[Statement], tuple[str, str]] = {
    Explain: ("insight.explain", "explain"),
    Advise: ("insight.advise", "advise"),
    Verify: ("insight.verify", "verify"),
    ShowCoverage: ("insight.coverage", "show_coverage"),
    VerifyData: ("statements.catalog", "verify_data"),
    Show: ("statements.catalog", "show"),
    Describe: ("statements.catalog", "describe"),
    Set: ("statements.catalog", "set_or_reset"),
    Reset: ("statements.catalog", "set_or_reset"),
    Attach: ("statements.catalog", "attach"),
    Detach: ("statements.catalog", "detach"),
}


def run(request: Request, statement: Statement) -> Query:
    """Run a statement, and return what it answers or did: a table, or a report in the format that is asked for."""
    if isinstance(statement, Write):
        from kartosql.statements.write import write

        return write(request, statement)
    module, name = next(handler for kind, handler in _HANDLERS.items() if isinstance(statement, kind))
    found = getattr(import_module(f"kartosql.{module}"), name)(request, statement)
    if isinstance(found, Report) and isinstance(statement, Inspect):
        return ReportQuery(found, type(statement).__name__.lower().removeprefix("show"), statement.format)
    return Query(found) if isinstance(found, pa.Table) else found
