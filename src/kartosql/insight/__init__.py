"""What statements read and could read: EXPLAIN, ADVISE, VERIFY, SHOW COVERAGE."""

from __future__ import annotations

from kartosql.result import ReportQuery
from kartosql.session import Request
from kartosql.sql.statements import Advise, Explain, Inspect, ShowCoverage, Verify


def inspect(request: Request, statement: Inspect) -> ReportQuery:
    """Return the answer of a statement; raises what its query raises."""
    if statement.query is None:
        request.refuse_parameters(statement.text)
    if isinstance(statement, Explain):
        from kartosql.insight.explain import explain

        return explain(request, statement)
    if isinstance(statement, ShowCoverage):
        from kartosql.insight.coverage import coverage

        found = coverage(request, statement.target, statement.columns, statement.text, statement.span)
        return ReportQuery(found, "coverage", statement.format)
    if isinstance(statement, Verify):
        from kartosql.insight.verify import verify

        return ReportQuery(verify(request, statement), "verify", statement.format)
    assert isinstance(statement, Advise)
    from kartosql.insight.advise import advise

    return ReportQuery(advise(request, statement), "advise", statement.format)
