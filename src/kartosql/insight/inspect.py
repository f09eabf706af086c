"""The statements that look at a query or a cube instead of answering it."""

from __future__ import annotations

from dataclasses import replace

from kartosql.result import ReportQuery
from kartosql.session import Request
from kartosql.sql.statements import Advise, Explain, Inspect, ShowCoverage, Verify
from kartosql.text.report import Report


def inspect(request: Request, statement: Inspect) -> ReportQuery:
    """Return the answer of a statement; raises what its query raises."""
    if statement.query is None:
        request.refuse_parameters(statement.text)
    if isinstance(statement, Explain):
        return _explain(request, statement)
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


def _explain(request: Request, statement: Explain) -> ReportQuery:
    before = request.session.mounts.counter.to_dict()
    query = request.query(statement.query, traced=True)
    report = query.report
    content: Report = report
    if statement.kind == "analyze":
        for _ in query.reader():
            pass
        return ReportQuery(replace(query.report, actual=query.stats), "explain", statement.format, query.stats)
    if statement.kind == "cost":
        from kartosql.insight.explain import cost

        took = {name: n - before[name] for name, n in request.session.mounts.counter.to_dict().items()}
        content = cost(request.session.mounts, report, took, request.session.settings["max_bytes"])
    elif statement.kind == "why":
        from kartosql.insight.explain import why

        content = why(report, statement.file or "", request.session.mounts.display_name)
    return ReportQuery(content, "explain", statement.format)
