"""Overlays: files that hold cells which an earlier file also holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from kartosql.formats.kartothek import naming
from kartosql.plan.conditions import Condition, conjunction, parameters_for
from kartosql.plan.evaluate import MAX_PROBES, Evaluator, Files
from kartosql.plan.tables import Part


class Overlays:
    """Finds the files of a cube's dataset that may hold the same cells.

    Cells differ where a partition column of the join key differs. Files of one write hold
    different cells: every write to a cube is checked for that, and its files share one id.
    """

    def __init__(self, part: Part, evaluator: Evaluator) -> None:
        self._part = part
        self._evaluator = evaluator

    def within(self, files: Files) -> frozenset[int]:
        """Return those of ``files`` for which the last file has to win."""
        found: set[int] = set()
        for group in self._groups(files):
            writes = {self._write(f) for f in group}
            if len(writes) > 1 or None in writes:
                found.update(group)
        return frozenset(found)

    def hiding(self, kept: Files, candidates: Files, conditions: Sequence[Condition], parameters: Any) -> Files:
        """Return the candidates that may hide rows of ``kept`` files, because they stand later.

        Only rows for which all ``conditions`` are TRUE matter.
        """
        hiding: set[int] = set()
        for group in self._groups(candidates):
            early = [f for f in group if f in kept]
            late = [f for f in group if f not in kept and early and f > early[0]]
            pairs = {(e, f) for f in late for e in early if e < f and self._may_overlay(e, f)}
            if pairs:
                hiding.update(f for _, f in self._by_dimensions(pairs, conditions, parameters))
        return frozenset(hiding)

    def _by_dimensions(
        self, pairs: set[tuple[int, int]], conditions: Sequence[Condition], parameters: Any
    ) -> set[tuple[int, int]]:
        """Drop the pairs of files that have no cell in common, as far as the dimensions' indices tell."""
        table = self._part.table
        dimensions = [c for c in self._part.join_key if c in table.indices]
        for column in dimensions:
            if pairs:
                involved = frozenset(f for pair in pairs for f in pair)
                pairs &= self._evaluator.shares_values(table, column, involved)
        early = {e for e, _ in pairs}
        if not conditions or len(early) > MAX_PROBES:
            return pairs
        # The earlier file is read anyway: which of its rows match decides which cells matter.
        condition = conjunction(list(conditions))
        key = self._part.join_key
        # Names of their own: those of columns may differ only in case.
        columns = dict.fromkeys([*key, *(name for _, name in sorted(condition.columns))])
        names = {column: f"x{i}" for i, column in enumerate(columns)}
        predicate = condition.render(lambda column: names[column[1]])
        values = parameters_for(condition, parameters)
        found: set[tuple[int, int]] = set()
        for e in early:
            late = frozenset(f for one, f in pairs if one == e)
            if dimensions:
                late = self._evaluator.holding_cells(table, e, late, dimensions, names, predicate, values)
            found.update((e, f) for f in late)
        if len(found) > MAX_PROBES:
            return found
        # What the indices cannot tell, the key columns of the two files do.
        return {(e, f) for e, f in found if self._evaluator.share_cells(table, e, f, key, names, predicate, values)}

    def _may_overlay(self, one: int, other: int) -> bool:
        return self._write(one) != self._write(other) or self._write(one) is None

    def _write(self, file: int) -> str | None:
        return naming.write_id(self._part.table.files[file])

    def _groups(self, files: Files) -> list[list[int]]:
        """Group files by the partition values in the join key; each group ascends."""
        if not self._part.join_key:
            return []
        partitions = self._part.table.partitions
        used = [i for i, key in enumerate(partitions.keys) if key in self._part.join_key]
        groups: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
        for file in sorted(files):
            groups[partitions.comparable(file, used)].append(file)
        return [g for g in groups.values() if len(g) > 1]
