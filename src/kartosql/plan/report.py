"""The account of how a scan came about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kartosql.plan.scan import OccurrenceScan, PartScan, Scan, Step
from kartosql.text import markup
from kartosql.text.grid import grid, one_line
from kartosql.text.report import Report, table_of
from kartosql.text.sizes import counted, human_bytes

if TYPE_CHECKING:
    import pyarrow as pa


Sizes = MutableMapping[str, int | None]

WIDE = 200
PART_OF_OR = "or: "  # stands before each part of an OR
_HEAD = ("dataset", "condition", "decided by", "files", "bytes")


@dataclass(frozen=True)
class ReportLine:
    """One line of a scan report.

    ``step`` is 0 for a dataset as a whole, its steps are counted from 1; None for what is no
    step: parts of an OR, datasets that are not opened, and conditions that left out no file.
    Bytes are None where they are not known.
    """

    table: str
    dataset: str | None = None
    join: str | None = None
    step: int | None = None
    condition: str | None = None
    decided_by: str | None = None
    files_before: int | None = None
    files_after: int | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None
    note: str | None = None


@dataclass(frozen=True, repr=False)
class ScanReport(Report):
    """What a statement will read, and why no more.

    ``phases`` are the seconds that each phase of planning took.

    ``str()`` is text to read, ``to_dict()`` is for programs; ``actual`` holds what was really
    read, once the statement ran (EXPLAIN ANALYZE).
    """

    sql: str
    engine: str
    engine_reason: str
    scan: Scan
    sizes: Sizes
    residual: Callable[[int], str | None]
    actual: Mapping[str, Any] | None = None
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def files_total(self) -> int:
        """Files of all datasets of all tables named."""
        return sum(len(p.part.table.files) for o in self.scan.occurrences for p in o.parts)

    @property
    def files_selected(self) -> int:
        """Files that will be opened, counted once per table occurrence."""
        return sum(len(p.files) for p in self._opened())

    def _opened(self) -> list[PartScan]:
        return [p for o in self.scan.occurrences for p in o.parts if p.summary is None]

    @property
    def selected(self) -> list[str]:
        """Keys of the files that will be opened; a file that two table occurrences read stands twice."""
        return [p.part.table.files[i] for p in self._opened() for i in p.files]

    @property
    def bytes_selected(self) -> int | None:
        """Bytes of the selected files, None if a size is not known."""
        return self._bytes(self.selected)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able dictionary."""
        result: dict[str, Any] = {
            "engine": self.engine,
            "engine_reason": self.engine_reason,
            "sql": self.sql,
            "scans": [self._occurrence(o) for o in self.scan.occurrences],
            "phases": {name: round(seconds, 6) for name, seconds in self.phases.items()},
        }
        if self.actual is not None:
            result["actual"] = dict(self.actual)
        return result

    def _occurrence(self, scan: OccurrenceScan) -> dict[str, Any]:
        source = scan.occurrence.source
        return {
            "table": source.name,
            "cube": source.cube.uuid_prefix if source.cube else None,
            "datasets": [self._part(p) for p in scan.parts],
            "eliminated": list(scan.eliminated),
            "conditions": list(scan.conditions),
            "residual": self.residual(scan.occurrence.id),
            "kept_because": scan.kept_because,
            "not_used": [{"condition": text, "reason": reason} for text, reason in scan.unused],
        }

    def lines(self, scan: OccurrenceScan) -> Iterator[ReportLine]:
        """Yield the lines about one table occurrence: its datasets and steps, then all else."""
        name = scan.occurrence.source.name
        for part in scan.parts:
            yield from self._part_lines(name, part)
        for dataset in scan.eliminated:
            files = next(p.table.files for p in scan.occurrence.source.parts if p.name == dataset)
            size = self._bytes(files)
            none = None if size is None else 0
            yield ReportLine(
                name, dataset, None, None, None, "not opened", len(files), 0, size, none, "no column is used"
            )
        for text, reason in scan.unused:
            yield ReportLine(name, condition=text, decided_by="engine", note=reason)
        if scan.kept_because:
            yield ReportLine(name, decided_by="all files kept", note=scan.kept_because)

    def _part_lines(self, name: str, part: PartScan) -> Iterator[ReportLine]:
        files = part.part.table.files
        notes = []
        if part.summary is not None:
            notes.append("answered from row counts and extremes without opening them")
        if part.overlaid:
            notes.append(f"{len(part.overlaid):,} may overlay each other")
        yield ReportLine(
            name,
            part.part.name,
            part.join,
            0,
            None,
            None,
            len(files),
            len(part.files),
            self._bytes(files),
            self._bytes(files[i] for i in part.files),
            "; ".join(notes) or None,
        )
        for at, (step, before, after) in enumerate(self._sized(part), 1):
            yield ReportLine(
                name,
                part.part.name,
                part.join,
                at,
                step.condition,
                step.by,
                step.files_before,
                step.files_after,
                before,
                after,
            )
            for part_of in step.alternatives:
                yield ReportLine(
                    name,
                    part.part.name,
                    None,
                    None,
                    part_of.condition,
                    part_of.by,
                    step.files_before,
                    part_of.files_after,
                )

    def _sized(self, part: PartScan) -> Iterator[tuple[Step, int | None, int | None]]:
        """Yield the steps with the bytes before and after each."""
        before = self._bytes(part.part.table.files)
        for step in part.steps:
            after = None if step.left is None else self._bytes(part.part.table.files[i] for i in step.left)
            yield step, before, after
            before = after

    def _part(self, part: PartScan) -> dict[str, Any]:
        table = part.part.table
        files = table.files
        selected = [files[i] for i in part.files]
        return {
            "dataset": part.part.name,
            "join": part.join,
            "files_total": len(files),
            "files_selected": len(selected),
            "bytes_total": self._bytes(files),
            "bytes_selected": self._bytes(selected),
            "files": [table.display_name(i) for i in part.files],
            "answered_from": "files" if part.summary is None else "metadata",
            "steps": [_step(s) for s in part.steps],
            "bytes_after_steps": [after for _, _, after in self._sized(part)],
        }

    def _bytes(self, keys: Iterable[str]) -> int | None:
        total = 0
        for key in keys:
            size = self.sizes.get(key)
            if size is None:
                return None
            total += size
        return total

    def __str__(self) -> str:
        found = [f"engine: {one_line(self.engine)} ({one_line(self.engine_reason, WIDE)})"]
        for scan in self.scan.occurrences:
            found.append(f"{one_line(scan.occurrence.source.name)}: {self.summary(scan)}")
            lines = list(self.lines(scan))
            found += grid(_HEAD, [_cells(line) for line in lines if line.dataset is not None], right=(3, 4))
            for line in lines:
                if line.dataset is None and line.condition is not None:
                    found.append(f"  left to the engine: {one_line(line.condition, WIDE)} ({line.note})")
                elif line.dataset is None:
                    found.append(f"  {line.decided_by}: {one_line(line.note or '', WIDE)}")
        if self.phases:
            took = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in self.phases.items())
            found.append(f"planning, ms: {took}")
        if self.actual is not None:
            found += [f"{name}: {one_line(str(value), WIDE)}" for name, value in self.actual.items()]
        return "\n".join(found)

    def table(self) -> pa.Table:
        """Return the lines of all table occurrences, and one about the engine, as an Arrow table."""
        lines = [ReportLine("", decided_by="engine", note=f"{self.engine} ({self.engine_reason})")]
        lines += [line for scan in self.scan.occurrences for line in self.lines(scan)]
        return table_of(lines, ReportLine)

    def html(self) -> str:
        """Return the report as a piece of HTML; all text is escaped."""
        return _html(self)

    def summary(self, scan: OccurrenceScan) -> str:
        """Return how many files and bytes of a table occurrence are left."""
        files = [p.part.table.files for p in scan.parts]
        total = sum(map(len, files))
        text = f"{sum(len(p.files) for p in scan.parts):,} of {counted(total, 'file')}"
        size = self._bytes(p.part.table.files[i] for p in scan.parts for i in p.files)
        whole = self._bytes(key for keys in files for key in keys)
        if size is not None:
            text += f", {human_bytes(size)}" + ("" if whole is None else f" of {human_bytes(whole)}")
        return text


def _step(step: Step) -> dict[str, Any]:
    found = {name: getattr(step, name) for name in ("condition", "by", "files_before", "files_after")}
    if step.alternatives:
        found["alternatives"] = [asdict(a) for a in step.alternatives]
    return found


def _cells(line: ReportLine) -> list[str]:
    files, size = "", ""
    is_step = line.condition is not None
    between = " -> " if is_step else " of "
    if line.files_before is not None and line.files_after is not None:
        counts = [f"{line.files_before:,}", f"{line.files_after:,}"]
        files = between.join(counts if is_step else counts[::-1])
    sizes = ["" if n is None else human_bytes(n) for n in (line.bytes_before, line.bytes_after)]
    known = [s for s in (sizes if is_step else sizes[::-1]) if s]
    size = between.join(known) if len(known) == 2 or not is_step else ""
    name = "" if is_step else f"{line.dataset} ({line.join})" if line.join else str(line.dataset)
    condition = f"{PART_OF_OR}{line.condition}" if is_step and line.step is None else line.condition
    return [name, condition or line.note or "", line.decided_by or "", files, size]


_HTML_HEAD = ("dataset", "condition", "decided by", "files", "", "bytes")
BAR = 120  # pixels of the bar that stands for all files


def _html(report: ScanReport) -> str:
    """Return the report as a piece of HTML: a table per table occurrence, with a bar for the files that are left."""
    pieces = [f"<p><b>engine</b> {markup.text(report.engine)} ({markup.text(report.engine_reason)})</p>"]
    for scan in report.scan.occurrences:
        lines = list(report.lines(scan))
        name = markup.text(scan.occurrence.source.name)
        pieces.append(f"<p><b>{name}</b> {markup.text(report.summary(scan))}</p>")
        rows = [_row(line) for line in lines if line.dataset is not None]
        pieces.append(markup.table(_HTML_HEAD, rows, right=(3, 5)))
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
