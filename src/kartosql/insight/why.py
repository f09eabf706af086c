"""EXPLAIN WHY: why a query reads a file, or does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kartosql.errors import SqlError, shorten
from kartosql.plan.report import ScanReport
from kartosql.plan.scan import OccurrenceScan, PartScan, Step
from kartosql.tables.table import Part
from kartosql.text import markup
from kartosql.text.grid import one_line
from kartosql.text.report import Report, dict_of, table_of

MAX_FOUND = 20


@dataclass(frozen=True)
class Verdict:
    """Why one file is read, or not, by one table occurrence.

    ``because`` are the reasons, in the order in which the plan came to them; ``partition`` holds
    the partition values of the file.
    """

    table: str
    dataset: str
    file: str
    partition: str
    is_read: bool
    because: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Why(Report):
    """The verdicts on the files that a name stands for."""

    name: str
    verdicts: tuple[Verdict, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the verdicts as JSON-able dictionary."""
        return {"name": self.name, "verdicts": list(map(dict_of, self.verdicts))}

    def table(self) -> pa.Table:
        """Return one row per verdict."""
        types = {"is_read": pa.bool_(), "because": pa.list_(pa.string())}
        return table_of(self.verdicts, Verdict, types, pa.string())

    def __str__(self) -> str:
        lines = []
        for v in self.verdicts:
            lines.append(f"{one_line(v.file, 200)}: {'read' if v.is_read else 'not read'} by {one_line(_place(v))}")
            if v.partition:
                lines.append(f"  it holds {one_line(v.partition, 200)}")
            lines += [f"  {one_line(text, 300)}" for text in v.because]
        return "\n".join(lines)

    def html(self) -> str:
        """Return the verdicts as a piece of HTML."""
        pieces = []
        for v in self.verdicts:
            verdict = "read" if v.is_read else "not read"
            pieces.append(f"<p>{markup.code(v.file)}: <b>{verdict}</b> by {markup.text(_place(v))}</p>")
            reasons = [f"it holds {v.partition}"] if v.partition else []
            pieces.append("<ul>" + "".join(f"<li>{markup.text(r)}</li>" for r in [*reasons, *v.because]) + "</ul>")
        return markup.fragment(*pieces)


def _place(verdict: Verdict) -> str:
    return verdict.table if verdict.table == verdict.dataset else f"{verdict.table}, {verdict.dataset}"


def why(report: ScanReport, name: str, shown: Callable[[str], str] = str) -> Why:
    """Return why a traced plan reads the files called ``name``: a key, the end of one, or a label.

    ``shown`` makes a display name of a key.
    Raises ``unknown-file`` where the tables of the query have no such file, and
    ``ambiguous-name`` where they have more than 20.
    """
    verdicts: list[Verdict] = []
    for scan in report.scan.occurrences:
        plans = {p.part.name: p for p in scan.parts}
        for part in scan.occurrence.source.parts:
            for at in _matching(part, name):
                if len(verdicts) >= MAX_FOUND:
                    raise SqlError(
                        f"{shorten(name)!r} stands for more than {MAX_FOUND} files.",
                        code="ambiguous-name",
                        hint="Write more of the key.",
                    )
                verdicts.append(_verdict(scan, part, plans.get(part.name), at, shown))
    if not verdicts:
        raise SqlError(
            f"The tables of the query have no file {shorten(name)!r}.",
            code="unknown-file",
            hint="SHOW FILES FROM t lists keys and labels.",
        )
    return Why(name, tuple(verdicts))


def _matching(part: Part, name: str) -> Sequence[int]:
    table = part.table
    exact = [i for i, (k, label) in enumerate(zip(table.files, table.labels, strict=True)) if name in (k, label)]
    if exact or not name:
        return exact
    return [i for i, key in enumerate(table.files) if key.endswith(name)]


def _verdict(scan: OccurrenceScan, part: Part, plan: PartScan | None, at: int, shown: Callable[[str], str]) -> Verdict:
    reasons = list(_reasons(scan, plan, at))
    is_read = plan is not None and plan.summary is None and at in plan.files
    return Verdict(
        scan.occurrence.source.name,
        part.name,
        shown(part.table.files[at]),
        _partition(part, at),
        is_read,
        tuple(reasons),
    )


def _partition(part: Part, at: int) -> str:
    values = part.table.partitions
    row = values.tuples[values.part_of_file[at]]
    scalars = [pa.scalar(v, t) for v, t in zip(row, values.types, strict=True)]
    shown = [repr(s.as_py()) if pa.types.is_string(s.type) else str(s) for s in scalars]
    return ", ".join(f"{key} = {value}" for key, value in zip(values.keys, shown, strict=True))


def _reasons(scan: OccurrenceScan, plan: PartScan | None, at: int) -> Iterator[str]:
    """Yield what kept a file, and at last what left it out."""
    if plan is None:
        yield "no column of its dataset is used"
        return
    for step in plan.steps:
        if step.left is not None and at not in step.left:
            yield f"{_left_out(step)}: {step.condition}"
            return
        yield f"{step.by} does not rule it out: {step.condition}"
    if at not in plan.files:
        yield "a step of the plan left it out"
        return
    if plan.summary is not None:
        yield "it is not opened: its row count and extremes tell all that is asked"
        return
    if at in plan.hiding:
        yield "none of its rows match, but it may hold newer versions of rows in files that are read"
    if at in plan.overlaid:
        yield "it may hold the same cells as another file that is read, of which the last one counts"
    for text, reason in scan.unused:
        yield f"{text} cannot rule it out: {reason}"
    if scan.kept_because:
        yield f"all files are kept: {scan.kept_because}"
    if not plan.steps and not scan.unused and not scan.kept_because:
        yield "the query has no condition that could rule it out"


def _left_out(step: Step) -> str:
    return {
        "partition key": "its partition values rule it out",
        "inverted index": "the inverted index names it for no value that matches",
        "row groups": "the extremes of its columns rule it out",
        "join": "it has no partner",
        "row counts": "files before it have rows enough",
    }.get(step.by, f"{step.by} rules it out")
