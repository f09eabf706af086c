"""The pruned scan: the files that each table occurrence reads, how its datasets join, and the account of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kartosql.plan import operators
from kartosql.plan.operators import Operator
from kartosql.plan.scopes import Occurrence
from kartosql.predicate.tree import Condition
from kartosql.sql.tree import Edit
from kartosql.tables.table import Changelog, Deletes, Part
from kartosql.text.report import WIDE, Bar, Code, Page, Report, counted, human_bytes, milliseconds, table_of

if TYPE_CHECKING:
    import pyarrow as pa

    from kartosql.store.keys import Stamp
    from kartosql.typing import DatasetDict, ScanDict, ScanReportDict, StepDict


@dataclass(frozen=True)
class Alternative:
    """What one part of an OR left, and what answered it."""

    condition: str
    by: str
    files_after: int


@dataclass(frozen=True)
class Step:
    """One pruning step of one dataset.

    ``left`` are the files that it left, unless they are many and the plan was not asked to be traced.
    ``alternatives`` are what each part of an OR left, where the parts were asked one by one.
    """

    condition: str
    by: str
    files_before: int
    files_after: int
    left: frozenset[int] | None = field(default=None, compare=False, repr=False)
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class FileSummary:
    """The rows that replace those of files that need not be opened.

    One for each combination of partition values, by its position, or, where these are not asked for, one for all: how
    many rows there are, and the minimum and maximum of columns. Combinations without rows are left out.
    """

    parts: tuple[int, ...]
    is_split: bool  # by partition values
    rows: tuple[int, ...]
    extremes: Mapping[str, tuple[pa.Array, pa.Array]]


@dataclass(frozen=True)
class PartScan:
    """The files to read of one dataset.

    ``files`` are positions in ``part.table.files``, ascending; those in ``overlaid`` may hold
    cells that another file also holds, so the last file has to win. ``join`` is seed, left or
    inner.
    """

    part: Part
    join: str
    files: tuple[int, ...]
    overlaid: frozenset[int]
    steps: tuple[Step, ...]
    # Stands for the rows, so that no file has to be opened.
    summary: FileSummary | None = None
    # Files without a row that matches, which may hold newer versions of rows that do.
    hiding: frozenset[int] = frozenset()

    @property
    def opened(self) -> list[str]:
        """The keys of the files to read, and of those that delete rows of them."""
        table, rows = self.part.table, self.part.rows
        found = [table.files[i] for i in self.files]
        if isinstance(rows, Deletes):
            found += [k.table.files[i] for k in rows.keys for i in rows.reaching(k, self.files)]
        return found

    @property
    def whole_files(self) -> frozenset[int]:
        """The files each of whose rows is a row of the table: what is known of the rows of a file holds for these."""
        rows, files = self.part.rows, frozenset(self.files)
        if isinstance(rows, Deletes):
            return files.difference(rows.touched(files))
        return frozenset() if isinstance(rows, Changelog) else files - self.overlaid

    @property
    def rows_are_files_rows(self) -> bool:
        """Whether the rows are those of the files: counts and extremes of files are those of the table then."""
        rows = self.part.rows
        if isinstance(rows, Deletes):
            return not rows.touched(self.files)
        return not self.overlaid and not isinstance(rows, Changelog)


@dataclass(frozen=True)
class OccurrenceScan:
    """All that one table occurrence reads; ``parts[0]`` is the seed."""

    occurrence: Occurrence
    parts: tuple[PartScan, ...]
    eliminated: tuple[str, ...]
    predicates: tuple[Condition, ...] = field(compare=False, repr=False)
    kept_because: str | None
    # Conditions that left out no file, and why they could not.
    unused: tuple[tuple[str, str], ...] = ()

    @property
    def conditions(self) -> tuple[str, ...]:
        """The texts of the conditions on the rows."""
        return tuple(c.text for c in self.predicates)

    @property
    def is_empty(self) -> bool:
        """Whether no row can come out."""
        return bool(self.parts) and not self.parts[0].files


@dataclass(frozen=True)
class Answer:
    """A small result that is kept with its plan, and the files that it was read from as they were then."""

    schema: pa.Schema
    batches: Sequence[pa.RecordBatch]
    types: list[str]  # DuckDB's names of the types of its columns
    stamps: Mapping[str, Stamp]


@dataclass(frozen=True)
class Scan:
    """The scans of a statement's occurrences, in the order of the text.

    ``edits`` of the statement's text make its ``count(*)`` sum the row counts of files that are not opened.
    """

    occurrences: tuple[OccurrenceScan, ...]
    edits: tuple[Edit, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds that each phase of planning took
    answer: Answer | None = field(default=None, repr=False)  # that an earlier run gave

    @property
    def is_summary(self) -> bool:
        """Whether the rows of a single table are replaced by counts and bounds of its files."""
        parts = self.occurrences[0].parts if len(self.occurrences) == 1 else ()
        return bool(parts) and parts[0].summary is not None

    @property
    def opened(self) -> list[PartScan]:
        """The parts of which files are opened."""
        return [p for o in self.occurrences for p in o.parts if p.summary is None]

    @property
    def selected(self) -> list[str]:
        """Keys of the files that will be opened, those of deletes too; what two occurrences read is there twice."""
        return [key for part in self.opened for key in part.opened]


class PhaseClock:
    """Notes the seconds that passed since the last lap, by the name of the phase."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Note that a phase ended."""
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._last
        self._last = now


Sizes = MutableMapping[str, int | None]

PART_OF_OR = "or: "  # stands before each part of an OR
BAR = 120  # pixels of the bar that stands for all files
_ENGINES = {"duckdb": "DuckDB", "spark": "Spark"}
_HEAD = ("dataset", "condition", "decided by", "files", "", "bytes")


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

    @property
    def is_alternative(self) -> bool:
        """Whether it is about a part of an OR."""
        return self.condition is not None and self.dataset is not None and self.step is None


@dataclass(frozen=True, repr=False)
class ScanReport(Report):
    """What a statement will read, and why no more.

    ``phases`` are the seconds that each phase of planning took.

    ``str()`` is text to read, ``to_dict()`` is for programs; ``actual`` holds what was really read, once the statement
    ran (EXPLAIN ANALYZE), and ``operators`` what the engine did for that, as far as it tells.
    """

    sql: str
    engine: str
    engine_reason: str
    scan: Scan
    sizes: Sizes
    residual: Callable[[int], str | None]
    _by_position: Callable[[OccurrenceScan], str | None]
    actual: Mapping[str, Any] | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    operators: tuple[Operator, ...] = ()

    @property
    def files_total(self) -> int:
        """Files of all datasets of all tables named."""
        return sum(len(p.part.table.files) for o in self.scan.occurrences for p in o.parts)

    @property
    def files_selected(self) -> int:
        """Files that will be opened, counted once per table occurrence."""
        return sum(len(p.files) for p in self.scan.opened)

    @property
    def selected(self) -> list[str]:
        """Keys of the files that will be opened, as ``Scan.selected``."""
        return self.scan.selected

    @property
    def bytes_selected(self) -> int | None:
        """Bytes of the selected files, None if a size is not known."""
        return self._bytes(self.selected)

    def to_dict(self) -> ScanReportDict:  # type: ignore[override]
        """Return the report as JSON-able dictionary."""
        result: ScanReportDict = {
            "engine": self.engine,
            "engine_reason": self.engine_reason,
            "sql": self.sql,
            "scans": [self._occurrence(o) for o in self.scan.occurrences],
            "phases": {name: round(seconds, 6) for name, seconds in self.phases.items()},
        }
        if self.actual is not None:
            result["actual"] = dict(self.actual)
            result["operators"] = [operator.to_dict() for operator in self.operators]
        return result

    def _occurrence(self, scan: OccurrenceScan) -> ScanDict:
        source = scan.occurrence.source
        return {
            "table": source.name,
            "cube": source.cube.uuid_prefix if source.cube else None,
            "datasets": [self._part(p) for p in scan.parts],
            "eliminated": list(scan.eliminated),
            "conditions": list(scan.conditions),
            "residual": self.residual(scan.occurrence.id),
            "by_position": self._by_position(scan),
            "kept_because": scan.kept_because,
            "not_used": [{"condition": text, "reason": reason} for text, reason in scan.unused],
            "at": scan.occurrence.moment,
        }

    def lines(self, scan: OccurrenceScan) -> Iterator[ReportLine]:
        """Yield the lines about one table occurrence: its datasets and steps, then all else."""
        source = scan.occurrence.source
        name, is_joined = source.name, source.cube is not None or len(source.parts) > 1
        for part in scan.parts:
            yield from self._part_lines(name, part, part.join if is_joined else None)
        for dataset in scan.eliminated:
            files = next(p.table.files for p in scan.occurrence.source.parts if p.name == dataset)
            size = self._bytes(files)
            yield ReportLine(
                name, dataset, None, None, None, "not opened", len(files), 0, size, size and 0, "no column is used"
            )
        for text, reason in scan.unused:
            yield ReportLine(name, condition=text, decided_by="engine", note=reason)
        if scan.kept_because and not any(part.steps for part in scan.parts):
            yield ReportLine(name, decided_by="all files kept", note=scan.kept_because)
        if (told := self._by_position(scan)) is not None:
            yield ReportLine(name, decided_by="joined", note=told)

    def _part_lines(self, name: str, part: PartScan, join: str | None) -> Iterator[ReportLine]:
        files = part.part.table.files
        notes = []
        if part.summary is not None:
            notes.append("answered from row counts and extremes without opening them")
        elif self.scan.answer is not None:
            notes.append("answered from memory, as they are what they were")
        if part.overlaid:
            notes.append(f"{len(part.overlaid):,} may overlay each other")
        if isinstance(part.part.rows, Deletes) and (touched := len(part.part.rows.touched(part.files))):
            notes.append(f"rows of {touched:,} may be deleted")
        line = partial(ReportLine, name, part.part.name)
        sizes = self._bytes(files), self._bytes(files[i] for i in part.files)
        yield line(join, 0, None, None, len(files), len(part.files), *sizes, "; ".join(notes) or None)
        for at, (step, before, after) in enumerate(self._sized(part), 1):
            yield line(join, at, step.condition, step.by, step.files_before, step.files_after, before, after)
            for one in step.alternatives:
                yield line(None, None, one.condition, one.by, step.files_before, one.files_after)

    def _sized(self, part: PartScan) -> Iterator[tuple[Step, int | None, int | None]]:
        """Yield the steps with the bytes before and after each."""
        before = self._bytes(part.part.table.files)
        for step in part.steps:
            after = None if step.left is None else self._bytes(part.part.table.files[i] for i in step.left)
            yield step, before, after
            before = after

    def _part(self, part: PartScan) -> DatasetDict:
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
            "answered_from": "metadata" if part.summary is not None else "memory" if self.scan.answer else "files",
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

    def _took(self) -> str:
        return "planning, ms: " + ", ".join(f"{name} {1000 * took:.1f}" for name, took in self.phases.items())

    def _really_read(self) -> list[tuple[str, str]]:
        """Return what the run took, and the name of each number; none before it ran."""
        if (took := self.actual) is None:
            return []
        unknown = f"{_ENGINES[self.engine]} does not count them"
        opened, groups, read = took["files_opened"], took["row_groups_read"], took["bytes_read"]
        phases = [
            f"{name} {milliseconds(took[f'{key}_seconds'])}" for name, key in (("planning", "plan"), ("running", "run"))
        ]
        calls = [
            counted(took["store"][f"{name}s"], name)
            for name in ("list", "size", "read", "write")
            if took["store"][f"{name}s"]
        ]
        selected = took["bytes_selected"]
        facts = {
            "rows": f"{took['rows']:,}",
            "time": f"{milliseconds(took['seconds'])}: {', '.join(phases)}",
            "files": f"{took['files_read']:,} of {took['files_total']:,}"
            + ("" if opened is None else f", {opened:,} opened"),
            "row groups": unknown if groups is None else f"{groups:,}",
            "bytes": unknown
            if read is None
            else human_bytes(read) + ("" if selected is None else f" of {human_bytes(selected)} in these files"),
            "store": ", ".join([*calls, human_bytes(took["store"]["bytes_read"])]) if calls else "not asked",
        }
        return list(facts.items())

    def _laid_out(self, page: Page) -> list[str]:
        """Return the lines of its text on a page."""
        found = page.facts([("engine", f"{self.engine} ({self.engine_reason})")], "")
        for scan in self.scan.occurrences:
            found += page.text(f"{_title(scan)}: {self.summary(scan)}", style="name")
            rows, notes = [], list[str]()
            for line in self.lines(scan):
                if line.dataset is not None:
                    part_of = PART_OF_OR if line.is_alternative else ""
                    name, files, size = _cells(line)
                    told = line.note or "" if line.condition is None else Code(part_of + line.condition)
                    bar = Bar(BAR * (line.files_after or 0) // line.files_before) if line.files_before else ""
                    rows.append([name, told, line.decided_by or "", files, bar, size])
                elif line.condition is not None:
                    notes += page.text(f"left to the engine: {line.condition} ({line.note})", "  ", 2 * WIDE)
                else:
                    notes += page.text(f"{line.decided_by}: {line.note or ''}", "  ")
            found += [*page.grid(_HEAD, rows, right=(3, 5)), *notes]
        if self.phases:
            found += page.text(self._took(), style="note")
        if self.actual is None:
            return found
        untold = f"operators: {_ENGINES[self.engine]} does not tell what they took"
        tree = operators.tree(self.operators, page) or page.text(untold)
        return [*found, *page.text("really read", style="name"), *page.facts(self._really_read()), *tree]

    def table(self) -> pa.Table:
        """Return the lines of all table occurrences, and one about the engine, as an Arrow table."""
        lines = [ReportLine("", decided_by="engine", note=f"{self.engine} ({self.engine_reason})")]
        lines += [line for scan in self.scan.occurrences for line in self.lines(scan)]
        return table_of(lines, ReportLine)

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


def _step(step: Step) -> StepDict:
    found: StepDict = {
        "condition": step.condition,
        "by": step.by,
        "files_before": step.files_before,
        "files_after": step.files_after,
    }
    if step.alternatives:
        found["alternatives"] = [asdict(a) for a in step.alternatives]
    return found


def _title(scan: OccurrenceScan) -> str:
    """Return the name of a table, with the version or the time at which it is read."""
    name, at = scan.occurrence.source.name, scan.occurrence.moment
    if at is None:
        return name
    return f"{name} AT ({'VERSION' if isinstance(at, int) else 'TIMESTAMP'} => {at!r})"


def _cells(line: ReportLine) -> tuple[str, str, str]:
    """Return the dataset, files and bytes of a line; of steps the numbers before and after."""
    files = [f"{line.files_before or 0:,}", f"{line.files_after or 0:,}"]
    sizes = [human_bytes(n) for n in (line.bytes_before, line.bytes_after) if n is not None]
    if line.condition is not None:
        return "", " -> ".join(files), " -> ".join(sizes) if len(sizes) == 2 else ""
    name = f"{line.dataset} ({line.join})" if line.join else str(line.dataset)
    return name, " of ".join(files[::-1]), " of ".join(sizes[::-1])
