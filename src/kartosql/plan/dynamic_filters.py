"""Dynamic filters: values of small sources, looked up in the indexes of large ones that they are joined with.

What ``IN (subquery)``, ``EXISTS`` and joins ask for is that a column has a value that a column
of another source has, too. Where the other source is small, these values are read while
planning, and are a condition like any other then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kartosql.plan.bind import BoundQuery
from kartosql.plan.evaluate import Evaluator, Held
from kartosql.plan.names import Occurrence
from kartosql.plan.scan import OccurrenceScan
from kartosql.predicate.tree import (
    ColumnRef,
    Condition,
    Constant,
    DynamicFilter,
    Opaque,
    Parameter,
    is_evaluable,
    joined,
    substitute,
)

MAX_VALUES = 100_000
MIN_FILES = 8  # fewer are read as fast as values are looked up
MAX_SHARE = 0.05  # of the bytes that may be saved; the source is read twice
ROUNDS = 3

Origin = Callable[[ColumnRef], "ColumnRef | None"]
Rescan = Callable[[BoundQuery, Occurrence, list[Condition]], OccurrenceScan]


class DynamicFilterPlanner:
    """Evaluates the dynamic filters of one statement that pay."""

    def __init__(self, query: BoundQuery, evaluator: Evaluator, conditions: Mapping[int, list[Condition]]) -> None:
        self._query = query
        self._evaluator = evaluator
        self._conditions = {o.id: list(conditions.get(o.id, [])) for o in query.occurrences}
        self._parameters: dict[str, Any] = {}
        self._tried: set[tuple[ColumnRef, ColumnRef]] = set()

    def run(
        self,
        scans: dict[int, OccurrenceScan],
        filters: Mapping[int, Sequence[DynamicFilter]],
        origin: Origin,
        rescan: Rescan,
    ) -> dict[int, OccurrenceScan]:
        """Return the scans of the occurrences after all filters that pay."""
        for _ in range(ROUNDS):
            before = len(self._tried)
            for target, filter_ in ((target, one) for target, wanted in filters.items() for one in wanted):
                of = origin(filter_.of)
                if of is None or target not in scans or (filter_.column, of) in self._tried:
                    continue
                condition = self._condition(filter_, of, scans)
                if condition is not None:
                    self._tried.add((filter_.column, of))
                    self._conditions[target].append(condition)
                    query = replace(self._query, parameters={**self._query.parameters, **self._parameters})
                    scans[target] = rescan(query, self._query.occurrences[target], self._conditions[target])
            if len(self._tried) == before:
                break
        return scans

    def _condition(
        self, filter_: DynamicFilter, of: ColumnRef, scans: Mapping[int, OccurrenceScan]
    ) -> Condition | None:
        """Return the condition that a column has one of the values of another, if it pays to read them."""
        target, source = scans[filter_.column[0]], self._query.occurrences[of[0]]
        if of[0] == filter_.column[0] or not _has_index(target, filter_.column[1]):
            return None
        if source.source.data is not None:
            if source.source.data.num_rows > MAX_VALUES:
                return None
        elif self._bytes(scans[of[0]]) > MAX_SHARE * self._bytes(target):
            return None
        values = self._values(source, scans.get(of[0]), of[1])
        if values is None:
            return None
        count = values.count if isinstance(values, Held) else len(values)
        text = f"{filter_.column[1]} is one of {count:,} values of {source.name[-1]}.{of[1]}"
        if not count:
            return Opaque(text, ("FALSE",), says=lambda: Constant(False))
        if isinstance(values, Held):
            return Opaque(text, (filter_.column, f" IN ({values.query})"))
        name = f"kartosql_values_{len(self._parameters)}"
        self._parameters[name] = values
        return Opaque(text, (filter_.column, " IN (SELECT unnest(", Parameter(name), "))"))

    def _values(self, source: Occurrence, scan: OccurrenceScan | None, column: str) -> list[Any] | Held | None:
        """Return the values of a column in the rows that satisfy what is known of them; None if there are too many."""
        if scan is not None and scan.is_empty:
            return []
        found = (
            substitute(c, lambda ref: (ref,) if ref[0] == source.id else None) for c in self._conditions[source.id]
        )
        known = [c for c in found if is_evaluable(c)]
        own = {**self._query.parameters, **self._parameters}
        if scan is not None:
            # Also of rows that are overwritten: the values may come back to this source as a condition, and must
            # not leave out the file that overwrites a row of one that is kept.
            scan = replace(scan, parts=tuple(replace(p, overlaid=frozenset()) for p in scan.parts))
        return self._evaluator.values(source, scan, column, joined("AND", known) if known else None, own, MAX_VALUES)

    def _bytes(self, scan: OccurrenceScan) -> int:
        return sum(self._evaluator.cells.data_bytes(p.part.table, frozenset(p.files)) for p in scan.parts)


def _has_index(scan: OccurrenceScan, column: str) -> bool:
    """Return whether values of a column can be looked up, in files enough."""
    for part in scan.parts:
        table = part.part.table
        if len(part.files) >= MIN_FILES and (column in table.partition_keys or column in table.indices):
            return column in part.part.columns or column in part.part.join_key
    return False
