"""The statements that look at a query or a cube instead of answering it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from kartosql.engines.duckdb import Runtime
from kartosql.query import SelectQuery
from kartosql.result import Content, ReportQuery
from kartosql.settings import Settings
from kartosql.sql.statements import Advise, Coverage, Explain, Inspect, Select, Verify
from kartosql.store import Files, Store
from kartosql.tables.names import Tables


class MakeQuery(Protocol):
    """Makes the query of a SELECT, over a snapshot of its own."""

    def __call__(
        self, select: Select, *, on: str | None = None, pruned: bool = True, traced: bool = False
    ) -> SelectQuery:
        """Return the query ``on`` an engine.

        ``pruned=False`` reads all files, ``traced`` keeps what each step of the plan left.
        """


@dataclass(frozen=True)
class Session:
    """What the statements of this room need of a connection.

    ``main`` is its store, ``store`` all that it reads from.
    """

    main: Store
    store: Files
    settings: Settings
    runtime: Runtime
    tables: Callable[[], Tables]
    query: MakeQuery


def inspect(session: Session, statement: Inspect) -> ReportQuery:
    """Return the answer of a statement; raises what its query raises."""
    if isinstance(statement, Explain):
        return _explain(session, statement)
    if isinstance(statement, Coverage):
        from kartosql.insight.coverage import coverage

        found = coverage(session, statement.target, statement.columns, statement.text, statement.span)
        return ReportQuery(found, "coverage", statement.format)
    if isinstance(statement, Verify):
        from kartosql.insight.verify import verify

        return ReportQuery(verify(session, statement), "verify", statement.format)
    assert isinstance(statement, Advise)
    from kartosql.insight.advise import advise

    return ReportQuery(advise(session, statement), "advise", statement.format)


def _explain(session: Session, statement: Explain) -> ReportQuery:
    before = session.store.counter.to_dict()
    query = session.query(statement.query, traced=True)
    report = query.report
    content: Content = report
    if statement.kind == "analyze":
        for _ in query.reader():
            pass
        return ReportQuery(replace(query.report, actual=query.stats), "explain", statement.format, query.stats)
    if statement.kind == "cost":
        from kartosql.insight.cost import cost

        took = {name: n - before[name] for name, n in session.store.counter.to_dict().items()}
        content = cost(session.store, report, took, session.settings["max_bytes"])
    elif statement.kind == "why":
        from kartosql.insight.why import why

        content = why(report, statement.file or "", session.store.shown)
    return ReportQuery(content, "explain", statement.format)
