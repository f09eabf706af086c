"""A scan report as HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kartosql.plan.report import PART_OF_OR
from kartosql.text import markup
from kartosql.text.sizes import human_bytes

if TYPE_CHECKING:
    from kartosql.plan.report import ReportLine, ScanReport

_HEAD = ("dataset", "condition", "decided by", "files", "", "bytes")
BAR = 120  # pixels of the bar that stands for all files


def html(report: ScanReport) -> str:
    """Return the report as a piece of HTML: a table per table occurrence, with a bar for the files that are left."""
    pieces = [f"<p><b>engine</b> {markup.text(report.engine)} ({markup.text(report.engine_reason)})</p>"]
    for scan in report.scan.occurrences:
        lines = list(report.lines(scan))
        name = markup.text(scan.occurrence.source.name)
        pieces.append(f"<p><b>{name}</b> {markup.text(report.summary(scan))}</p>")
        rows = [_row(line) for line in lines if line.dataset is not None]
        pieces.append(markup.table(_HEAD, rows, right=(3, 5)))
        notes = [_note(line) for line in lines if line.dataset is None]
        if notes:
            pieces.append("<ul>" + "".join(f"<li>{note}</li>" for note in notes) + "</ul>")
    if report.actual is not None:
        facts = [(markup.text(name), markup.text(value)) for name, value in report.actual.items()]
        pieces.append(markup.table(("really read", ""), facts))
    if report.phases:
        took = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in report.phases.items())
        pieces.append(f'<p class="d">planning, ms: {markup.text(took)}</p>')
    return markup.fragment(*pieces)


def _row(line: ReportLine) -> list[str]:
    is_step = line.condition is not None
    name = "" if is_step else markup.text(f"{line.dataset} ({line.join})" if line.join else line.dataset)
    condition = markup.code(line.condition) if line.condition else markup.text(line.note or "")
    if is_step and line.step is None:
        condition = markup.text(PART_OF_OR) + condition
    before, after = line.files_before or 0, line.files_after or 0
    arrow = " → " if is_step else " of "
    files = arrow.join([f"{before:,}", f"{after:,}"] if is_step else [f"{after:,}", f"{before:,}"])
    bar = f'<span class="b" style="width:{BAR * after // before if before else 0}px"></span>'
    sizes = [None if n is None else human_bytes(n) for n in (line.bytes_before, line.bytes_after)]
    known = [s for s in (sizes if is_step else sizes[::-1]) if s is not None]
    return [name, condition, markup.text(line.decided_by or ""), files, bar, arrow.join(known)]


def _note(line: ReportLine) -> str:
    if line.condition is None:
        return f"{markup.text(line.decided_by)}: {markup.text(line.note)}"
    return f"left to the engine: {markup.code(line.condition)} ({markup.text(line.note)})"
