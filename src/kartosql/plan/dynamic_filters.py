"""Dynamic filters: values of small sources, looked up in the indexes of large ones that they are joined with.

What ``IN (subquery)``, ``EXISTS`` and joins ask for is that a column has a value that a column
of another source has, too. Where the other source is small, these values are read while
planning, and are a condition like any other then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa

from kartosql.formats.arrays import array_of
from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator, Held, is_exact
from kartosql.plan.scan import OccurrenceScan
from kartosql.plan.scopes import Occurrence, Origin
from kartosql.predicate.tree import (
    UNKNOWN,
    ColumnRef,
    Condition,
    Constant,
    DynamicFilter,
    In,
    Opaque,
    Parameter,
    Predicate,
    is_evaluable,
    joined,
    substitute,
    value_of,
)

MAX_VALUES = 100_000
MIN_FILES = 8  # fewer are read as fast as values are looked up
MAX_SHARE = 0.05  # of the bytes that may be saved; the source is read twice
ROUNDS = 3

Rescan = Callable[[BoundQuery, Occurrence, list[Condition]], OccurrenceScan]


class DynamicFilterPlanner:
    """Evaluates the dynamic filters of one statement that pay."""

    def __init__(self, query: BoundQuery, evaluator: Evaluator, conditions: Mapping[int, list[Condition]]) -> None:
        self._query = query
        self._evaluator = evaluator
        self._conditions = {o.id: list(conditions.get(o.id, [])) for o in query.occurrences}
        self._parameters: dict[str, Any] = {}
        self._tried: set[tuple[ColumnRef | None, ColumnRef]] = set()

    def run(
        self,
        scans: dict[int, OccurrenceScan],
        filters: Mapping[int, Sequence[DynamicFilter]],
        origin: Origin,
        rescan: Rescan,
    ) -> dict[int, OccurrenceScan]:
        """Return the scans of the occurrences after all filters that pay."""
        wanted = [
            (target, one, of)
            for target, listed in filters.items()
            for one in dict.fromkeys(listed)
            if target in scans and (of := one.of if one.column is None else origin(one.of)) is not None
            if of[0] != target
        ]
        for _ in range(max(ROUNDS, len(scans))):
            changed = False
            for target, filter_, of in wanted:
                source = scans.get(of[0])
                if source is not None and filter_.given and filter_.of[0] == of[0]:
                    source = rescan(self._full, source.occurrence, [*self._conditions[of[0]], *filter_.given])
                condition = self._by_bounds(scans[target], filter_, of, source)
                if condition is None and (filter_.column, of) not in self._tried:
                    condition = self._by_values(scans[target], filter_, of, source)
                    if condition is not None:
                        self._tried.add((filter_.column, of))
                if condition is not None:
                    changed = True
                    self._conditions[target].append(condition)
                    scans[target] = rescan(self._full, self._query.occurrences[target], self._conditions[target])
            if not changed:
                break
        return scans

    @property
    def _full(self) -> BoundQuery:
        """The statement with the values that were found as parameters."""
        return replace(self._query, parameters={**self._query.parameters, **self._parameters})

    def _by_bounds(
        self, target: OccurrenceScan, filter_: DynamicFilter, of: ColumnRef, scan: OccurrenceScan | None
    ) -> Condition | None:
        """Return what is known of the remaining files of a source without a look into them, if it leaves out files."""
        source = self._query.occurrences[of[0]]
        if not any(part.files for part in target.parts):
            return None
        if scan.is_empty if scan is not None else source.source.data is not None and not source.source.data.num_rows:
            return Opaque(f"no row of {source.name[-1]} is left", ("FALSE",), says=lambda: Constant(False))
        if filter_.column is None or scan is None:
            return None
        is_whole = all(len(part.files) == len(part.part.table.files) for part in scan.parts)
        if is_whole and all(len(part.files) < MIN_FILES for part in target.parts):
            return None
        theirs, mine = _partition_values(scan, of[1]), _partition_values(target, filter_.column[1])
        if theirs is None or mine is None or not _is_comparable(theirs[0], mine[0]) or mine[1] <= theirs[1]:
            return None
        values = mine[1] & theirs[1]
        return self._one_of(filter_.column, of, array_of(list(values), mine[0]).to_pylist())

    def _by_values(
        self, target: OccurrenceScan, filter_: DynamicFilter, of: ColumnRef, scan: OccurrenceScan | None
    ) -> Condition | None:
        """Return the condition that a column has one of the values of another, if it pays to read them."""
        source = self._query.occurrences[of[0]]
        if filter_.column is None or not _has_index(target, filter_.column[1]):
            return None
        if scan is not None:
            if self._bytes(scan) > MAX_SHARE * self._bytes(target):
                return None
        elif source.source.data is None or source.source.data.num_rows > MAX_VALUES:
            return None
        values = self._values(source, scan, of[1])
        return None if values is None else self._one_of(filter_.column, of, values)

    def _one_of(self, column: ColumnRef, of: ColumnRef, values: list[Any] | Held) -> Condition:
        count = values.count if isinstance(values, Held) else len(values)
        text = f"{column[1]} is one of {count:,} values of {self._query.occurrences[of[0]].name[-1]}.{of[1]}"
        if not count:
            return Opaque(text, ("FALSE",), says=lambda: Constant(False))

        @cache
        def says() -> Predicate:
            found = values.fetch() if isinstance(values, Held) else values
            known = [v for v in map(value_of, found or ()) if v is not None]
            return In((column,), tuple(known)) if len(known) == count else UNKNOWN

        if isinstance(values, Held):
            return Opaque(text, (column, f" IN ({values.query})"), says=says)
        name = f"kartosql_values_{len(self._parameters)}"
        self._parameters[name] = values
        return Opaque(text, (column, " IN (SELECT unnest(", Parameter(name), "))"), says=says)

    def _values(self, source: Occurrence, scan: OccurrenceScan | None, column: str) -> list[Any] | Held | None:
        """Return the values of a column in the rows that satisfy what is known of them; None if there are too many."""
        if scan is not None and scan.is_empty:
            return []
        found = (
            substitute(c, lambda ref: (ref,) if ref[0] == source.id else None) for c in self._conditions[source.id]
        )
        known = [c for c in found if is_evaluable(c)]
        if scan is not None:
            # Also of rows that are overwritten: the values may come back to this source as a condition, and must
            # not leave out the file that overwrites a row of one that is kept.
            scan = replace(scan, parts=tuple(replace(p, overlaid=frozenset()) for p in scan.parts))
        condition = joined("AND", known) if known else None
        return self._evaluator.values(source, scan, column, condition, self._full.parameters, MAX_VALUES)

    def _bytes(self, scan: OccurrenceScan) -> int:
        return sum(self._evaluator.cells.data_bytes(p.part.table, frozenset(p.files)) for p in scan.parts)


def _has_index(scan: OccurrenceScan, column: str) -> bool:
    """Return whether values of a column can be looked up, in files enough."""
    for part in scan.parts:
        table = part.part.table
        if len(part.files) >= MIN_FILES and (column in table.partition_keys or column in table.indices):
            return column in part.part.columns or column in part.part.join_key
    return False


def _partition_values(scan: OccurrenceScan, column: str) -> tuple[pa.DataType, Set[Any]] | None:
    """Return the type and the values of a partition key in the files that are left, None for other columns."""
    owner = scan.occurrence.source.owner.get(column)
    part = next((p for p in scan.parts if p.part.name == owner and column in p.part.table.partition_keys), None)
    if part is None:
        return None
    partitions = part.part.table.partitions
    key = partitions.keys.index(column)
    values = partitions.columns[key]
    if len(part.files) < len(part.part.table.files):
        values = [values[folder] for folder in {partitions.part_of_file[file] for file in part.files}]
    return partitions.types[key], set(values)


def _is_comparable(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether Python's equality of partition values is that of an engine."""
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return True
    return one.equals(other) and is_exact(one) and not (pa.types.is_timestamp(one) and one.unit == "ns")
