"""The statements that look at a query or a cube instead of answering it; of them EXPLAIN COST and EXPLAIN WHY here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow.parquet as pq

from kartosql.errors import SqlError, shorten
from kartosql.parquet import column_bytes, file_metadata
from kartosql.plan.bind import Parameters
from kartosql.plan.scan import OccurrenceScan, PartScan, ScanReport
from kartosql.query import SelectQuery
from kartosql.result import ReportQuery
from kartosql.session import Request
from kartosql.sql import parse_select
from kartosql.sql.statements import Explain
from kartosql.store import Files
from kartosql.tables.names import Tables
from kartosql.tables.table import Part, Table
from kartosql.text.report import Page, Report, counted, human_bytes

MAX_FOOTERS = 200


def explain(request: Request, statement: Explain) -> Report | ReportQuery:
    """Return what a statement reads, and why; see Connection.explain."""
    before = request.session.mounts.counter.to_dict()
    query = request.query(statement.query, traced=True)
    report = query.report
    if statement.kind == "analyze":
        for _ in query.reader():
            pass
        content = replace(query.report, actual=query.stats, operators=query.operators)
        return ReportQuery(content, "explain", statement.format, query.stats)
    if statement.kind == "cost":
        took = {name: n - before[name] for name, n in request.session.mounts.counter.to_dict().items()}
        return cost(request.session.mounts, report, took, request.session.settings["max_bytes"])
    if statement.kind == "why":
        return why(report, statement.file or "", request.session.mounts.display_name)
    return report


def selected(
    request: Request, sql: str, tables: Mapping[str, Table], parameters: Parameters = None, *, pruned: bool = True
) -> SelectQuery:
    """Return a query over given tables besides those of the store."""
    session = request.session
    known = Tables(session.tables().snapshot, tables)
    return SelectQuery(parse_select(sql), known, session.runtime, session.settings, parameters, pruned=pruned)


# -- what a query will read ----------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Footers and sizes in bytes of some files of a dataset; ``files`` are the positions of those that were read."""

    of: int
    files: tuple[int, ...]
    footers: tuple[pq.FileMetaData, ...]
    sizes: tuple[int, ...]

    @property
    def is_all(self) -> bool:
        """Whether no file was left out."""
        return len(self.files) == self.of

    def scaled(self, number: float) -> int:
        """Return what a sum over the sample is for all files."""
        return round(number * self.of / len(self.files)) if self.files else 0


def sample(store: Files, keys: Sequence[str], files: Sequence[int], most: int = MAX_FOOTERS) -> Sample:
    """Read the footers of ``files``, positions in ``keys``; evenly spread ones if there are more than ``most``.

    Raises ``missing-file`` and ``corrupt-file``.
    """
    step = max(1.0, len(files) / most)
    chosen = tuple(files[int(i * step)] for i in range(min(len(files), most)))
    found = list(store.map(partial(file_metadata, store, with_columns=True), [keys[i] for i in chosen]))
    return Sample(len(files), chosen, tuple(f for f, _ in found), tuple(size for _, size in found))


def columns_read(scan: OccurrenceScan, part: PartScan) -> tuple[str, ...]:
    """Return the columns of a dataset's files that a scan reads: those used, and the key where rows are matched."""
    used, table = scan.occurrence.read, part.part.table
    columns = set(part.part.columns if used is None else used & set(part.part.columns))
    if sum(bool(p.files) for p in scan.parts) > 1 or part.overlaid:
        columns |= set(part.part.join_key)
    return tuple(sorted(columns - set(table.partition_keys)))


_HEAD = ("dataset", "files", "row groups", "rows", "bytes of files", "bytes of columns", "columns")


@dataclass(frozen=True)
class Item:
    """What is read of one dataset: files with their bytes, and the bytes of the columns needed in them.

    ``footers`` of the files were read to know; if they are fewer, the numbers are scaled up.
    """

    table: str
    dataset: str
    files: int
    row_groups: int
    rows: int
    bytes: int
    column_bytes: int
    columns: tuple[str, ...]
    footers: int


@dataclass(frozen=True, repr=False)
class Cost(Report):
    """What a query will read.

    Row groups that the engine leaves out by their statistics are counted; it reads a little more
    where columns that it needs lie close together. ``planning`` are the calls to the store and
    bytes that planning took; ``limit`` is the setting ``max_bytes``, which is held against the
    bytes of the files.
    """

    listed = "items", Item
    items: tuple[Item, ...]
    planning: dict[str, int]
    limit: int | None

    @property
    def bytes(self) -> int:
        """Bytes of all files that are opened."""
        return sum(i.bytes for i in self.items)

    @property
    def column_bytes(self) -> int:
        """Bytes of the columns that are read of these files."""
        return sum(i.column_bytes for i in self.items)

    @property
    def is_refused(self) -> bool:
        """Whether the query would end with ``byte-budget``."""
        return self.limit is not None and self.bytes > self.limit

    def to_dict(self) -> dict[str, Any]:
        """Return the cost as JSON-able dictionary."""
        return {
            "bytes": self.bytes,
            "column_bytes": self.column_bytes,
            "files": sum(i.files for i in self.items),
            "rows": sum(i.rows for i in self.items),
            "max_bytes": self.limit,
            "refused": self.is_refused,
            "planning": self.planning,
            "items": super().to_dict()["items"],
        }

    def _summary(self) -> list[str]:
        files = sum(i.files for i in self.items)
        lines = [
            f"reads {human_bytes(self.column_bytes)} of columns, out of {human_bytes(self.bytes)} "
            f"in {counted(files, 'file')}",
            f"planning: {counted(self.planning['reads'] + self.planning['lists'] + self.planning['sizes'], 'call')} "
            f"to the store, {human_bytes(self.planning['bytes_read'])}",
        ]
        if self.limit is not None:
            verdict = "refused with byte-budget" if self.is_refused else "allowed"
            lines.append(f"max_bytes: {human_bytes(self.limit)}, {verdict}")
        sampled = [i for i in self.items if i.footers < i.files]
        lines += [f"{i.table}, {i.dataset}: scaled up from {i.footers:,} of {i.files:,} files" for i in sampled]
        return lines

    def _rows(self) -> list[list[str]]:
        return [
            [
                f"{i.table}, {i.dataset}" if i.table != i.dataset else i.table,
                f"{i.files:,}",
                f"{i.row_groups:,}",
                f"{i.rows:,}",
                human_bytes(i.bytes),
                human_bytes(i.column_bytes),
                ", ".join(i.columns),
            ]
            for i in self.items
        ]

    def _laid_out(self, page: Page) -> list[str]:
        """Return the lines of its text on a page."""
        first, *others = map(page.text, self._summary())
        return [*first, *page.grid(_HEAD, self._rows(), right=range(1, 6)), *chain.from_iterable(others)]


def cost(store: Files, report: ScanReport, planning: dict[str, int], limit: int | None) -> Cost:
    """Return what a planned query will read; the footers of up to 200 files per dataset are read for it.

    Raises ``missing-file`` and ``corrupt-file``.
    """
    items = []
    for scan in report.scan.occurrences:
        for part in scan.parts:
            if part.summary is not None or not part.files or not part.part.table.has_footers:
                continue  # text files tell nothing before they are read
            found = sample(store, part.part.table.files, part.files)
            columns = columns_read(scan, part)
            items.append(
                Item(
                    scan.occurrence.source.name,
                    part.part.name,
                    len(part.files),
                    found.scaled(sum(f.num_row_groups for f in found.footers)),
                    found.scaled(sum(f.num_rows for f in found.footers)),
                    found.scaled(sum(found.sizes)),
                    found.scaled(sum(column_bytes(f, columns) for f in found.footers)),
                    columns,
                    len(found.files),
                )
            )
    return Cost(tuple(items), planning, limit)


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

    @property
    def place(self) -> str:
        """The table, and the dataset of a cube."""
        return self.table if self.table == self.dataset else f"{self.table}, {self.dataset}"


@dataclass(frozen=True, repr=False)
class Why(Report):
    """The verdicts on the files that a name stands for."""

    listed = "verdicts", Verdict
    name: str
    verdicts: tuple[Verdict, ...]

    def _laid_out(self, page: Page) -> list[str]:
        """Return the lines of its text on a page."""
        lines = []
        for v in self.verdicts:
            lines += page.text(f"{v.file}: {'read' if v.is_read else 'not read'} by {v.place}", limit=400, style="name")
            told = [f"it holds {v.partition}"] * bool(v.partition) + [*v.because]
            lines += [line for text in told for line in page.text(text, "  ", 300)]
        return lines


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
                plan, table, file = plans.get(part.name), scan.occurrence.source.name, shown(part.table.files[at])
                is_read = plan is not None and plan.summary is None and at in plan.files
                partition = part.table.partitions.text_of(part.table.partitions.part_of_file[at])
                verdicts.append(Verdict(table, part.name, file, partition, is_read, tuple(_reasons(scan, plan, at))))
    if not verdicts:
        hint = "SHOW FILES FROM t lists keys and labels."
        raise SqlError(f"The tables of the query have no file {shorten(name)!r}.", code="unknown-file", hint=hint)
    return Why(name, tuple(verdicts))


def _matching(part: Part, name: str) -> Sequence[int]:
    table = part.table
    exact = [i for i, (k, label) in enumerate(zip(table.files, table.labels, strict=True)) if name in (k, label)]
    if exact or not name:
        return exact
    return [i for i, key in enumerate(table.files) if key.endswith(name)]


def _reasons(scan: OccurrenceScan, plan: PartScan | None, at: int) -> Iterator[str]:
    """Yield what kept a file, and at last what left it out."""
    if plan is None:
        yield "no column of its dataset is used"
        return
    for step in plan.steps:
        if step.left is not None and at not in step.left:
            reason = _LEFT_OUT.get(step.by, f"{step.by} rules it out")
            yield f"{reason}: {step.condition}"
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


_LEFT_OUT = {
    "partition key": "its partition values rule it out",
    "inverted index": "the inverted index names it for no value that matches",
    "row groups": "the extremes of its columns rule it out",
    "join": "it has no partner",
    "row counts": "files before it have rows enough",
}
