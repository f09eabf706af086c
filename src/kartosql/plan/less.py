"""Scans of SELECTs that need less than all rows: the files of the first ones, or none at all."""

from __future__ import annotations

from dataclasses import replace

from kartosql.errors import Span
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator
from kartosql.plan.scan import FileSummary, OccurrenceScan, PartScan, Scan, Step
from kartosql.plan.shapes import Head, Shapes, Summary
from kartosql.predicate.tree import is_evaluable, parameters_for
from kartosql.tables.table import Changelog

FIRST_FILES = 4  # whose row counts are read at once for a LIMIT; then four times as many, and so on


def read_less(
    query: BoundQuery, evaluator: Evaluator, shapes: Shapes, scans: dict[int, OccurrenceScan]
) -> tuple[tuple[Span, bool], ...]:
    """Replace the scans that need fewer files, and return the places of ``count(*)`` that sum row counts then."""
    counts: list[tuple[Span, bool]] = []
    for summary in shapes.summaries():
        part = _only_part(scans.get(summary.occurrence))
        less = _summarised(part, summary, evaluator) if part is not None else None
        if less is not None:
            scans[summary.occurrence] = replace(scans[summary.occurrence], parts=(less,))
            counts += summary.counts
    for head in shapes.heads():
        part = _only_part(scans.get(head.occurrence))
        if part is not None and len(part.files) > 1:
            less = _first(part, head, query, evaluator)
            scans[head.occurrence] = replace(scans[head.occurrence], parts=(less,))
    return tuple(counts)


def counted(query: BoundQuery, scan: Scan) -> BoundQuery:
    """Return the query whose ``count(*)`` over files that are not opened sums their row counts."""
    total = "CAST(coalesce(sum(kartosql_rows), 0) AS BIGINT)"
    edits = [(span, f'{total} AS "count_star()"' if unnamed else total) for span, unnamed in scan.counts]
    return query.edited(edits) if edits else query


def _only_part(scan: OccurrenceScan | None) -> PartScan | None:
    """Return the dataset of a scan whose rows are the rows of its files."""
    if scan is None or len(scan.parts) != 1 or scan.parts[0].overlaid or scan.parts[0].summary is not None:
        return None
    if isinstance(scan.parts[0].part.rows, Changelog):
        return None
    return scan.parts[0] if scan.parts[0].files else None


def _summarised(part: PartScan, summary: Summary, evaluator: Evaluator) -> PartScan | None:
    table, files = part.part.table, part.files
    extremes = {}
    for column in sorted(summary.extremes):
        found = evaluator.extremes(table, column, files)
        if found is None:
            return None
        extremes[column] = found
    rows = evaluator.row_counts(table, files)
    if rows is None:
        return None
    kept = [i for i, count in enumerate(rows) if count]
    facts = FileSummary(
        tuple(files[i] for i in kept),
        tuple(rows[i] for i in kept),
        {
            column: (tuple(low[i] for i in kept), tuple(high[i] for i in kept))
            for column, (low, high) in extremes.items()
        },
    )
    return replace(part, summary=facts)


def _first(part: PartScan, head: Head, query: BoundQuery, evaluator: Evaluator) -> PartScan:
    """Return the scan of the first files with rows enough that satisfy the condition of a SELECT."""
    table = part.part.table
    sure = _sure_files(part, head, query, evaluator)
    if not sure:
        return part
    found, at, size = 0, 0, FIRST_FILES
    while at < len(part.files) and (found < head.rows or at == 0):
        chunk = part.files[at : at + size]
        rows = evaluator.row_counts(table, chunk)
        if rows is None:
            return part
        for file, count in zip(chunk, rows, strict=True):
            at += 1
            found += count if file in sure else 0
            if found >= head.rows:
                break
        size *= 4
    if at == len(part.files):
        return part
    step = Step(f"the first {head.rows:,} rows suffice", "row counts", len(part.files), at, frozenset(part.files[:at]))
    return replace(part, files=part.files[:at], steps=(*part.steps, step))


def _sure_files(part: PartScan, head: Head, query: BoundQuery, evaluator: Evaluator) -> frozenset[int] | set[int]:
    """Return the files of whose rows all satisfy a condition."""
    table, condition = part.part.table, head.condition
    if condition is None:
        return frozenset(part.files)
    keys = {name: f"k{i}" for i, name in enumerate(table.partition_keys)}
    if not is_evaluable(condition) or not condition.columns:
        return frozenset()
    if not all(o == head.occurrence and c in keys for o, c in condition.columns):
        return frozenset()
    predicate = f"({condition.render(lambda ref: keys[ref[1]])}) IS NOT TRUE"
    doubtful = evaluator.partitions(table, predicate, parameters_for(condition, query.parameters))
    return set(part.files) - set(doubtful)
