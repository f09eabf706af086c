"""ADVISE: why a query is slow, what would help, how much, and the statement that does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from kartosql.insight import advices
from kartosql.insight.inspect import Session
from kartosql.insight.measure import Measure
from kartosql.insight.skipping import skipping_indices
from kartosql.plan.report import ScanReport
from kartosql.sql.statements import Advise
from kartosql.text import markup
from kartosql.text.grid import one_line
from kartosql.text.sizes import counted, human_bytes, percent


@dataclass(frozen=True)
class Advised:
    """What was found about a query: ``facts`` say what it reads and why, ``advice`` what would help, best first."""

    sql: str
    facts: tuple[str, ...]
    advice: tuple[advices.Advice, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able dictionary."""
        listed = [{f.name: getattr(a, f.name) for f in fields(a)} for a in self.advice]
        return {"sql": self.sql, "facts": list(self.facts), "advice": listed}

    def table(self) -> pa.Table:
        """Return one row per advice."""
        types = {"files": pa.int64(), "files_saved": pa.int64(), "bytes": pa.int64(), "bytes_saved": pa.int64()}
        columns = {f.name: [getattr(a, f.name) for a in self.advice] for f in fields(advices.Advice)}
        return pa.table({name: pa.array(values, types.get(name, pa.string())) for name, values in columns.items()})

    def __str__(self) -> str:
        lines = [one_line(fact, 300) for fact in self.facts]
        for number, a in enumerate(self.advice, 1):
            lines += ["", f"{number}. {one_line(a.title, 300)}", f"   why:   {one_line(a.why, 300)}"]
            lines.append(f"   saves: {saving(a)}")
            lines.append(f"   do:    {one_line(a.statement, 2_000)}")
            if a.note:
                lines.append(f"   note:  {one_line(a.note, 300)}")
        if not self.advice:
            lines += ["", "nothing was found that would help"]
        return "\n".join(lines)

    def html(self) -> str:
        """Return it as a piece of HTML."""
        facts = "<ul>" + "".join(f"<li>{markup.text(f)}</li>" for f in self.facts) + "</ul>"
        rows = [
            [*map(markup.text, (a.title, a.why, saving(a))), markup.code(a.statement), markup.text(a.note or "")]
            for a in self.advice
        ]
        found = markup.table(("advice", "why", "saves", "do", "note"), rows) if rows else "<p>nothing would help</p>"
        return markup.fragment(facts, found)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.html()


def saving(advice: advices.Advice) -> str:
    """Return what an advice saves, as it was measured."""
    parts = []
    if advice.files_saved:
        parts.append(f"{advice.files_saved:,} of {counted(advice.files, 'file')}")
    if advice.bytes_saved:
        share = percent(advice.bytes_saved, advice.bytes)
        parts.append(f"{human_bytes(advice.bytes_saved)} of {human_bytes(advice.bytes)} ({share})")
    return f"{', '.join(parts)}; {advice.measured}"


def advise(session: Session, statement: Advise) -> Advised:
    """Look at the plan of a query, the footers of its files and at some of the data for what would help.

    Nothing is changed. For each condition that leaves out no file, its column is read in up to
    32 files. Raises what the query raises.
    """
    query = session.query(statement.query, traced=True)
    report = query.report
    measure = Measure(session, query.parameters)
    found = list(_all(session, report, measure))
    unique = {a.statement: a for a in sorted(found, key=_worth)}
    return Advised(
        statement.query.text, tuple(_facts(report)), tuple(sorted(unique.values(), key=_worth, reverse=True))
    )


def _worth(advice: advices.Advice) -> tuple[int, int]:
    return advice.bytes_saved, advice.files_saved


def _all(session: Session, report: ScanReport, measure: Measure) -> Iterator[advices.Advice]:
    for scan in report.scan.occurrences:
        yield from advices.indices(session, scan, measure)
        yield from skipping_indices(session, scan, measure)
        yield from advices.useless_indices(session, scan)
        yield from advices.compaction(session, scan)
        yield from advices.bare_columns(session, scan, report.sql)
        yield from advices.order(session, scan, measure)


def _facts(report: ScanReport) -> Iterator[str]:
    """Yield what a query reads, and what keeps it from reading less."""
    total, size = report.files_total, report.bytes_selected
    amount = "" if size is None else f", {human_bytes(size)}"
    yield f"reads {report.files_selected:,} of {counted(total, 'file')}{amount}"
    for scan in report.scan.occurrences:
        name = scan.occurrence.source.name
        for text, reason in scan.unused:
            yield f"{name}: {text} leaves out no file: {reason}"
        for step in (s for part in scan.parts for s in part.steps if s.files_before == s.files_after > 0):
            yield f"{name}: {step.condition} leaves out no file: {step.by} was asked, and keeps all of them"
        if scan.kept_because:
            yield f"{name}: all files are kept: {scan.kept_because}"
        overlaid = sum(len(p.overlaid) for p in scan.parts)
        if overlaid:
            yield f"{name}: {counted(overlaid, 'file')} may hold newer versions of each other's rows"
