"""Conditions against partition values and inverted indices: which files may hold a match.

Nothing here knows SQL's semantics. An Evaluator, the engine, evaluates the user's own
predicates over the distinct partition values and index values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.plan.conditions import ColumnRef, Condition, Group, conjunction, is_evaluable, parameters_for

Files = frozenset[int]  # positions in DatasetTable.files
MAX_PROBES = 16  # files that may be looked into while planning


class Evaluator(Protocol):
    """What the planner asks of an engine."""

    def is_pure(self, predicate: str) -> bool:
        """Return whether a predicate depends on nothing but its columns and parameters."""

    def same_meaning(self, left: str, right: str) -> bool:
        """Return whether two predicates are parsed to the same tree."""

    def constant(self, predicate: str, parameters: Mapping[str, Any]) -> bool:
        """Return whether a predicate without columns may be TRUE."""

    def null(self, type_: Any) -> str:
        """Return the SQL text of a NULL of an Arrow type."""

    def partitions(self, table: DatasetTable, predicate: str, parameters: Mapping[str, Any]) -> frozenset[int]:
        """Return the partitions (positions in ``tuples``) for which a predicate may be TRUE.

        The predicate names the i-th partition key ``k<i>``.
        """

    def index(
        self,
        table: DatasetTable,
        column: str,
        predicate: str,
        parameters: Mapping[str, Any],
        *,
        with_keys: bool,
        never_null: bool,
        never_nan: bool,
    ) -> Files:
        """Return the files with a value of ``column`` for which a predicate may be TRUE.

        The predicate names the column ``v`` and, if ``with_keys``, the i-th partition key
        ``k<i>``. NULL and NaN are in no index; they count as possible in every file unless
        ``never_null`` and ``never_nan`` rule them out.
        """

    def holding_cells(
        self,
        table: DatasetTable,
        early: int,
        late: Files,
        dimensions: Sequence[str],
        names: Mapping[str, str],
        predicate: str,
        parameters: Mapping[str, Any],
    ) -> Files:
        """Return those ``late`` files that may hold a cell of the rows of ``early`` for which a predicate is TRUE.

        ``dimensions`` are indexed columns of the cell; ``names`` are the names by which the
        predicate calls its columns and those of the cell.
        """

    def share_cells(
        self,
        table: DatasetTable,
        early: int,
        late: int,
        key: Sequence[str],
        names: Mapping[str, str],
        predicate: str,
        parameters: Mapping[str, Any],
    ) -> bool:
        """Return whether a row of ``early`` for which a predicate is TRUE may have its cell in ``late`` too."""

    def shares_values(self, table: DatasetTable, column: str, files: Files) -> set[tuple[int, int]]:
        """Return the pairs (earlier, later) of ``files`` that have a value of ``column`` in common."""


class FileFilter:
    """Evaluates conditions over the files of one table of one occurrence."""

    def __init__(
        self,
        table: DatasetTable,
        occurrence_id: int,
        evaluator: Evaluator,
        parameters: Mapping[str, Any],
        usable: Set[str],
        never_null: Set[str],
        never_nan: bool,
    ) -> None:
        self._table = table
        self._occurrence_id = occurrence_id
        self._evaluator = evaluator
        self._parameters = parameters
        self._usable = usable  # columns of the occurrence that conditions may be evaluated on here
        self._never_null = never_null
        self._never_nan = never_nan
        self._keys = {name: i for i, name in enumerate(table.partition_keys)}
        self.all_files: Files = frozenset(range(len(table.files)))

    def structures(self, condition: Condition) -> frozenset[str] | None:
        """Return the indexed columns a condition needs besides partition keys, or None if it cannot be evaluated.

        Only conditions over partition keys and at most one indexed column are evaluated
        jointly: of two columns the index does not know which values stand in one row.
        """
        if not is_evaluable(condition):
            return None
        indexed = set()
        for occurrence_id, column in condition.columns:
            if occurrence_id != self._occurrence_id or column not in self._usable:
                return None
            if column not in self._keys:
                if column not in self._table.indices:
                    return None
                indexed.add(column)
        return frozenset(indexed) if len(indexed) <= 1 else None

    def files(self, condition: Condition) -> Files | None:
        """Return the files that may hold a row for which ``condition`` is TRUE; None is all of them."""
        indexed = self.structures(condition)
        if indexed is not None:
            return self._evaluate(condition, indexed)
        if not isinstance(condition, Group) or not self._can_prune(condition):
            return None
        if condition.op == "OR":
            parts = [self.files(item) for item in condition.items]
            return frozenset().union(*(self.all_files if p is None else p for p in parts))
        result: Files | None = None
        for item, indexed in self.groups(list(condition.items)):
            files = self._evaluate(item, indexed) if indexed is not None else self.files(item)
            if files is not None:
                result = files if result is None else result & files
        return result

    def _can_prune(self, condition: Condition) -> bool:
        """Return whether evaluating ``condition`` may leave out a file, before an index is read for it."""
        if self.structures(condition) is not None:
            return True
        if not isinstance(condition, Group):
            return False
        return (all if condition.op == "OR" else any)(self._can_prune(i) for i in condition.items)

    def groups(self, items: list[Condition]) -> list[tuple[Condition, frozenset[str] | None]]:
        """Join those of ``items`` that are evaluated together; partition keys come first.

        ``i > 3 AND i < 5`` must hold for one and the same value of i.
        """
        together: dict[frozenset[str], list[Condition]] = {frozenset(): []}
        alone: list[tuple[Condition, frozenset[str] | None]] = []
        for item in items:
            indexed = self.structures(item)
            if indexed is None:
                alone.append((item, None))
            else:
                together.setdefault(indexed, []).append(item)
        joined = [(conjunction(group), indexed) for indexed, group in together.items() if group]
        return [*joined, *alone]

    def _evaluate(self, condition: Condition, indexed: frozenset[str]) -> Files:
        parameters = parameters_for(condition, self._parameters)
        predicate = condition.render(self._name)
        if not condition.columns:
            return self.all_files if self._evaluator.constant(predicate, parameters) else frozenset()
        if not indexed:
            parts = self._evaluator.partitions(self._table, predicate, parameters)
            return frozenset(i for i, part in enumerate(self._table.partitions.part_of_file) if part in parts)
        (column,) = indexed
        return self._evaluator.index(
            self._table,
            column,
            predicate,
            parameters,
            with_keys=any(name in self._keys for _, name in condition.columns),
            never_null=column in self._never_null,
            never_nan=self._never_nan,
        )

    def _name(self, column: ColumnRef) -> str:
        key = self._keys.get(column[1])
        return "v" if key is None else f"k{key}"
