"""The kinds of advice: each is measured before it is given."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kartosql.insight.footers import columns_read, sample
from kartosql.insight.inspect import Session
from kartosql.insight.measure import Matches, Measure, index_share, is_excluded, is_ordered
from kartosql.parquet.metadata import column_bytes, group_bytes, may_hold_null
from kartosql.plan.conditions import Atom, Condition, is_evaluable
from kartosql.plan.scan import OccurrenceScan, PartScan
from kartosql.sql import Select, parse
from kartosql.sql.rewrites import Rewrite, rewrites
from kartosql.tables.names import quote_if_needed
from kartosql.write.compact import TARGET_BYTES
from kartosql.write.files import ROW_GROUP_ROWS
from kartosql.write.indices import ORIGINALS_REFUSE
from kartosql.write.split import is_index_type

LEAST_SHARE = 0.1  # of the files or bytes that have to be saved
USELESS = 0.9  # the share of files in which a value of a useless index stands
SMALL_BYTES = 8_000_000  # files below are merged
_COMPARISON = re.compile(r"\s*(=|<|>|IN\b|BETWEEN\b)", re.IGNORECASE)


@dataclass(frozen=True)
class Advice:
    """One thing that would help a query.

    ``statement`` does it. It saves ``files_saved`` of the ``files`` and ``bytes_saved`` of the
    ``bytes`` that the query reads of one dataset now; ``measured`` says from what that is known.
    """

    kind: str
    title: str
    why: str
    statement: str
    files: int
    files_saved: int
    bytes: int
    bytes_saved: int
    measured: str
    note: str | None = None


def target_of(scan: OccurrenceScan, part: PartScan) -> str:
    """Return a dataset as statements that write name it."""
    cube = scan.occurrence.source.cube
    if cube is not None:
        return f"{quote_if_needed(cube.uuid_prefix)}.{quote_if_needed(part.part.name)}"
    return quote_if_needed(part.part.table.uuid)


def sizes(session: Session, part: PartScan) -> tuple[int, int]:
    """Return the bytes of the files that are read of a dataset, and their mean."""
    keys = [part.part.table.files[i] for i in part.files]
    total = sum(n or 0 for n in session.store.sizes(keys).values())
    return total, total // max(1, len(keys))


def alone(scan: OccurrenceScan, part: PartScan, condition: Condition) -> str | None:
    """Return the one column without index that a condition is about, besides partition keys of a dataset."""
    table, source = part.part.table, scan.occurrence.source
    names = {name for o, name in condition.columns if o == scan.occurrence.id}
    if not is_evaluable(condition) or len(names) != len(condition.columns):
        return None
    rest = names - set(table.partition_keys)
    if len(rest) != 1:
        return None
    (column,) = rest
    owned = source.owner.get(column) == part.part.name or column in part.part.join_key
    return column if owned and column in table.types and column not in table.indices else None


def unused(scan: OccurrenceScan) -> list[Condition]:
    """Return the conditions that leave out no file, asked of an index or not."""
    steps = [s.condition for part in scan.parts for s in part.steps if s.files_after < s.files_before]
    return [c for c in dict.fromkeys(scan.predicates) if not any(c.text in step for step in steps)]


def unhelped(scan: OccurrenceScan) -> Iterator[tuple[PartScan, Condition, str]]:
    """Yield the conditions that leave out no file, with the dataset and its column that an index could be over."""
    for part in scan.parts:
        if len(part.files) < 2 or part.summary is not None or scan.occurrence.source.is_attached:
            continue
        for condition in unused(scan):
            column = alone(scan, part, condition)
            if column is not None:
                yield part, condition, column


def indices(session: Session, scan: OccurrenceScan, measure: Measure) -> Iterator[Advice]:
    """Yield the indices that would leave out files."""
    for part, condition, column in unhelped(scan):
        table = part.part.table
        if not is_index_type(table.types[column]) or measure.may_hold_for_null(table, condition, column):
            continue
        found = measure.matches(part, condition, [column])
        if found is not None:
            yield from _index(session, scan, part, condition, column, found)


def _index(
    session: Session, scan: OccurrenceScan, part: PartScan, condition: Condition, column: str, found: Matches
) -> Iterator[Advice]:
    saved = len(part.files) - found.files
    if saved < max(1, LEAST_SHARE * len(part.files)):
        return
    total, _ = sizes(session, part)
    missing = sum(size for size, rows in zip(found.sample.sizes, found.rows, strict=True) if not rows)
    target = target_of(scan, part)
    yield Advice(
        "index",
        f"an index on {column} of {target}",
        f"{condition.text} holds in {counted_files(found.files)} of the {len(part.files):,} that are read, "
        "and nothing tells in which",
        f"CREATE INDEX ON {target} ({quote_if_needed(column)})",
        len(part.files),
        saved,
        total,
        found.sample.scaled(missing),
        looked(found),
        "writes to the dataset then keep the index up to date" + _about_nulls(scan, column, found),
    )


def _about_nulls(scan: OccurrenceScan, column: str, found: Matches) -> str:
    if scan.occurrence.source.cube is None or not any(may_hold_null(f, column) for f in found.sample.footers):
        return ""
    return f"; {column} holds NULL, which the index leaves out: {ORIGINALS_REFUSE.removesuffix('.')}"


def counted_files(count: int) -> str:
    """Return a number of files."""
    return f"{count:,} file" if count == 1 else f"{count:,} files"


def looked(found: Matches) -> str:
    """Return in how many files matches were counted."""
    of = found.sample
    if of.is_all:
        return f"counted in all {counted_files(of.of)}"
    return f"estimated from {len(of.files):,} of {of.of:,} files"


def useless_indices(session: Session, scan: OccurrenceScan) -> Iterator[Advice]:
    """Yield the indices that were read in vain, and in which most values stand in most files."""
    cube = scan.occurrence.source.cube
    kept = set(cube.dimension_columns) if cube is not None else set()
    for part in scan.parts:
        table = part.part.table
        if scan.occurrence.source.is_attached:
            continue
        vain = {s.condition for s in part.steps if s.by == "inverted index" and s.files_before == s.files_after}
        for condition in dict.fromkeys(scan.predicates):
            if not any(condition.text in text for text in vain):
                continue
            for _, column in sorted(condition.columns):
                index = table.indices.get(column)
                measured = index_share(session, index, len(table.files)) if index and column not in kept else None
                if measured is None or measured[0] < USELESS:
                    continue
                share, size = measured
                target = target_of(scan, part)
                yield Advice(
                    "useless index",
                    f"no index on {column} of {target}",
                    f"{condition.text} was looked up and left out no file: on average a value stands in "
                    f"{100 * share:.0f} % of all files",
                    f"DROP INDEX ON {target} ({quote_if_needed(column)})",
                    0,
                    0,
                    size,
                    size,
                    "the bytes of the index file, which planning reads",
                    "queries for rare values of this column may still gain from it",
                )


def compaction(session: Session, scan: OccurrenceScan) -> Iterator[Advice]:
    """Yield the datasets of which many small files of the same partition are read."""
    for part in scan.parts:
        table = part.part.table
        if len(part.files) < 2 or part.summary is not None or scan.occurrence.source.is_attached:
            continue
        total, mean = sizes(session, part)
        folders = Counter(table.partitions.part_of_file[i] for i in part.files)
        merged = sum(max(1, -(-count * mean // TARGET_BYTES)) for count in folders.values())
        saved = len(part.files) - merged
        if mean > SMALL_BYTES or saved < max(1, LEAST_SHARE * len(part.files)):
            continue
        target = target_of(scan, part)
        why = f"{counted_files(len(part.files))} of {mean:,} bytes on average stand in {len(folders):,} partitions"
        if part.overlaid:
            why += f", and {len(part.overlaid):,} may hold newer versions of each other's rows"
        yield Advice(
            "compact",
            f"larger files in {target}",
            why,
            f"COMPACT {target}",
            len(part.files),
            saved,
            total,
            0,
            "by the sizes of the files and their partitions",
        )


def bare_columns(session: Session, scan: OccurrenceScan, text: str) -> Iterator[Advice]:
    """Yield predicates that row groups could be left out by if they were said of the column itself."""
    statement = parse(text)
    conditions = {c.text: c for c in scan.predicates}
    for found in rewrites(statement.tree if isinstance(statement, Select) else None, text):
        condition = conditions.get(found.old)
        if condition is None or len(condition.columns) != 1:
            continue
        ((occurrence, column),) = condition.columns
        for part in scan.parts if occurrence == scan.occurrence.id else ():
            table = part.part.table
            structures = (*table.partition_keys, *table.indices)
            if scan.occurrence.source.owner.get(column) != part.part.name or column in structures:
                continue
            if part.summary is None and _is_of(table.types[column], found.types):
                yield from _bare(session, scan, part, column, found, text)


def _is_of(type_: pa.DataType, types: tuple[str, ...]) -> bool:
    t = pa.types
    # A time zone may move a day.
    timestamp = t.is_timestamp(type_) and type_.tz is None
    tests = {"date": t.is_date32(type_), "integer": t.is_integer(type_), "timestamp": timestamp}
    return any(tests[name] for name in types)


def _bare(
    session: Session, scan: OccurrenceScan, part: PartScan, column: str, found: Rewrite, text: str
) -> Iterator[Advice]:
    footers = sample(session.store, part.part.table.files, part.files)
    columns = columns_read(scan, part)
    groups = [f.row_group(at) for f in footers.footers for at in range(f.num_row_groups)]
    sizes = [group_bytes(group, columns) for group in groups]
    skipped = [is_excluded(group, column, found.low, found.high) for group in groups]
    total, saved = sum(sizes), sum(size for size, skip in zip(sizes, skipped, strict=True) if skip)
    if not saved or saved < LEAST_SHARE * total:
        return
    yield Advice(
        "rewrite",
        f"{found.new} instead of {found.old}",
        f"a function stands around {column}, so the extremes of row groups cannot be compared with it",
        text[: found.span[0]] + found.new + text[found.span[1] :],
        len(part.files),
        0,
        footers.scaled(total),
        footers.scaled(saved),
        f"by the extremes of {column} in {sum(skipped):,} of {len(groups):,} row groups",
    )


def order(session: Session, scan: OccurrenceScan, measure: Measure) -> Iterator[Advice]:
    """Yield the plain datasets whose matching rows would stand together if they were sorted."""
    part, source = scan.parts[0], scan.occurrence.source
    table = part.part.table
    if source.cube is not None or source.is_attached or part.summary is not None or not part.files:
        return
    for condition in unused(scan):
        column = alone(scan, part, condition)
        if column is None or not is_index_type(table.types[column]) or not compares(condition):
            continue
        found = measure.matches(part, condition, [column])
        if found is None or not found.sample.is_all:
            continue
        groups = sum(f.num_row_groups for f in found.sample.footers)
        # In each file the matches stand together then, and may begin in the middle of a row group.
        needed = sum(min(-(-f.num_rows // ROW_GROUP_ROWS), rows // ROW_GROUP_ROWS + 2) for f, rows in _with_rows(found))
        columns = columns_read(scan, part)
        total = sum(column_bytes(f, columns) for f in found.sample.footers)
        saved = total * (groups - needed) // groups if groups else 0
        if is_ordered(found.sample.footers, column) or needed >= groups or saved < LEAST_SHARE * total:
            continue
        target, keys = target_of(scan, part), ", ".join(map(quote_if_needed, table.partition_keys))
        by = f" PARTITION BY ({keys})" if keys else ""
        indexed = ", ".join(map(quote_if_needed, sorted(table.indices)))
        by += f" INDEX ({indexed})" if indexed else ""
        yield Advice(
            "sort",
            f"rows of {target} in the order of {column}",
            f"{condition.text} holds for {100 * found.share:.1f} % of the rows, which stand in all row groups",
            f"CREATE OR REPLACE DATASET {target}{by} AS SELECT * FROM {target} ORDER BY {quote_if_needed(column)}",
            len(part.files),
            0,
            total,
            saved,
            f"by {groups:,} row groups, of which {needed:,} would be left",
            "only for conditions that compare the column with values; later writes are not sorted",
        )


def compares(condition: Condition) -> bool:
    """Return whether a condition compares a column with values."""
    if not isinstance(condition, Atom) or condition.negated:
        return False
    column, then, *_ = *(p for p in condition.pieces if p != ""), None, None
    return isinstance(column, tuple) and isinstance(then, str) and _COMPARISON.match(then) is not None


def _with_rows(found: Matches) -> Iterator[tuple[Any, int]]:
    return ((f, n) for f, n in zip(found.sample.footers, found.rows, strict=True) if n)
