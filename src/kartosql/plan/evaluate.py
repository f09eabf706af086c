"""Conditions against partition values and inverted indices: which files may hold a match.

Nothing here knows SQL's semantics. An Evaluator, the engine, evaluates the user's own
predicates over the distinct partition values and index values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from kartosql.plan.cells import Cells, Files, Found
from kartosql.plan.occurrences import Occurrence
from kartosql.plan.scan import Alternative, OccurrenceScan
from kartosql.predicate.tree import (
    ColumnRef,
    Condition,
    Group,
    Opaque,
    Pieces,
    Predicate,
    is_evaluable,
    joined,
    parameters_for,
    said,
    substitute,
)
from kartosql.tables.table import FileTable

MAX_PROBES = 16  # files that may be looked into while planning
# What answers conditions, in the order in which one stands for an answer of several.
INVERTED_INDEX, PARTITION_KEY, ROW_GROUPS = "inverted index", "partition key", "row groups"
MIN_FOR_STATISTICS = 32  # fewer files are read as fast as statistics are evaluated


@dataclass(frozen=True)
class Held:
    """Values that an engine keeps while it plans a statement, as the text of a query for them."""

    query: str
    count: int


# How AND, OR and NOT join the atoms of a predicate; None is an atom. None of an AND is an AND itself, nor of an OR.
Outline = tuple[str, "tuple[Outline, ...]"] | None


@dataclass(frozen=True)
class ParsedAtom:
    """An atom as the engine's parser has it: its outermost operator, and whether it depends on nothing else."""

    operator: str
    is_pure: bool


class Evaluator(Protocol):
    """What the planner asks of an engine."""

    @property
    def cells(self) -> Cells:
        """What the engine tells about cells."""

    def is_pure(self, predicate: str) -> bool:
        """Return whether a predicate depends on nothing but its columns and parameters."""

    def atoms(self, predicate: str, composed: str, outline: Outline) -> list[ParsedAtom] | None:
        """Return what the engine's parser makes of each atom of a predicate.

        ``composed`` is the same predicate with each atom in parentheses, joined as ``outline`` says. None, unless both
        are parsed to the same tree; none of them, if it is of another outline.
        """

    def is_same(self, predicate: str, other: str) -> bool:
        """Return whether the engine's parser makes the same of two predicates."""

    def constant(self, predicate: str, parameters: Mapping[str, Any]) -> bool:
        """Return whether a predicate without columns may be TRUE."""

    def type_name(self, type_: Any) -> str | None:
        """Return the engine's name of an Arrow type, None for columns that are all NULL."""

    def type_of(self, expression: str) -> str | None:
        """Return the type of an expression without columns, None if it has none."""

    def has_collation(self) -> bool:
        """Return whether texts that differ may be equal."""

    def time_zone(self) -> str:
        """Return the time zone of the session."""

    def freeze(self, function: str) -> str | None:
        """Return the literal that a function of the clock stands for in this statement, None if it is not known."""

    def values(
        self,
        source: Occurrence,
        scan: OccurrenceScan | None,
        column: str,
        condition: Condition | None,
        parameters: Mapping[str, Any],
        limit: int,
    ) -> list[Any] | Held | None:
        """Return the distinct values but NULL that a column has in rows that satisfy a condition.

        ``scan`` is None for registered data. Many values are held until the end of the statement.
        None, if there are more than ``limit``, or if they cannot be read.
        """

    def row_counts(self, table: FileTable, files: Sequence[int]) -> list[int] | None:
        """Return how many rows files have; footers that are not known are read."""

    def extremes(
        self, table: FileTable, column: str, files: Sequence[int]
    ) -> tuple[tuple[str | None, ...], tuple[str | None, ...]] | None:
        """Return the minimum and maximum of a column in each file as text, None unless all are known exactly.

        Both are None for files in which the column is NULL everywhere.
        """

    def bytes_of(self, keys: Sequence[str]) -> int:
        """Return how many bytes some files have."""

    def null(self, type_: Any) -> str:
        """Return the SQL text of a NULL of an Arrow type."""

    def partitions(self, table: FileTable, predicate: str, parameters: Mapping[str, Any]) -> Files:
        """Return the files in partitions for which a predicate may be TRUE.

        The predicate names the i-th partition key ``k<i>``.
        """

    def index(
        self,
        table: FileTable,
        column: str,
        predicate: str,
        parameters: Mapping[str, Any],
        *,
        says: Predicate,
        with_keys: bool,
        never_null: bool,
        never_nan: bool,
        among: Files,
    ) -> Found:
        """Return the files with a value of ``column`` for which a predicate may be TRUE.

        The predicate names the column ``v`` and, if ``with_keys``, the i-th partition key
        ``k<i>``; ``says`` is what is known of it as a tree. NULL and NaN are in no index; they
        count as possible in every file unless ``never_null`` and ``never_nan`` rule them out.
        Only files ``among`` the given ones matter, and all files are returned if looking for
        them does not pay.
        """

    def statistics(
        self, table: FileTable, column: str, predicate: Predicate, parameters: Mapping[str, Any]
    ) -> Files | None:
        """Return the files in which a predicate over ``column`` may be TRUE, or None.

        Only what is remembered of the footers of files is used, no file is opened for it.
        """


def rejects_null(
    condition: Condition,
    nulls: Callable[[ColumnRef], Pieces | None],
    evaluator: Evaluator,
    parameters: Mapping[str, Any],
) -> bool:
    """Return whether a condition is not TRUE for any row that has ``nulls`` in place of columns.

    What depends on columns for which there are none may be TRUE.
    """
    left = substitute(condition, nulls)
    return is_evaluable(left) and not evaluator.constant(left.render(str), parameters_for(left, parameters))


class FileFilter:
    """Evaluates conditions over the files of one table of one occurrence."""

    def __init__(
        self,
        table: FileTable,
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
        self._statistics: dict[Opaque, Files | None] = {}
        self._among = table.all_files
        self._notes: list[str] = []
        self._answers: list[tuple[str, Files]] = []  # what answered parts of the last condition, and the files it left
        self.alternatives: tuple[Alternative, ...] = ()  # of the last condition, if it is an OR of parts
        self.all_files = table.all_files

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

    def files(self, condition: Condition, among: Files | None = None) -> Files | None:
        """Return the files that may hold a row for which ``condition`` is TRUE; None is all of them.

        Only files ``among`` the given ones matter.
        """
        self._among = self.all_files if among is None else among
        self._notes, self._answers, self.alternatives = [], [], ()
        return self._files(condition, statistics=len(self._among) >= MIN_FOR_STATISTICS or among is None)

    def account(self, condition: Condition) -> str:
        """Return the text of a condition, with the reason if the last call of ``files`` kept more than it had to."""
        notes = "; ".join(dict.fromkeys(self._notes))
        return f"{condition.text} ({notes})" if notes else condition.text

    def by(self) -> str:
        """Return the name of what answered the condition of the last call of ``files``."""
        return _decided_by(self._answers, self.all_files)

    def _files(self, condition: Condition, *, statistics: bool) -> Files | None:
        indexed = self.structures(condition)
        if indexed is not None:
            return self._evaluate(condition, indexed)
        if not self._can_prune(condition, statistics=statistics):
            return None
        if isinstance(condition, Opaque):
            found = self._by_statistics(condition)
            if found is not None:
                self._answers.append((ROW_GROUPS, found))
            return found
        assert isinstance(condition, Group)
        if condition.op == "OR":
            return self._any_of(condition.items, statistics=statistics)
        result: Files | None = None
        for item, indexed in self.groups(list(condition.items)):
            found = self._evaluate(item, indexed) if indexed is not None else self._files(item, statistics=statistics)
            if found is not None:
                result = found if result is None else result & found
        return result

    def _any_of(self, items: Sequence[Condition], *, statistics: bool) -> Files:
        """Return the files that may hold a match of one of several conditions, and note what each of them left."""
        before, left, found = self._answers, frozenset[int](), []
        answers: list[tuple[str, Files]] = []
        for item in items:
            self._answers = []
            files = self._files(item, statistics=statistics)
            files = self.all_files if files is None else files
            found.append(Alternative(item.text, _decided_by(self._answers, self.all_files), len(self._among & files)))
            answers += self._answers
            left |= files
        self._answers, self.alternatives = [*before, *answers], tuple(found)
        return left

    def _can_prune(self, condition: Condition, *, statistics: bool) -> bool:
        """Return whether evaluating ``condition`` may leave out a file, before an index is read for it."""
        if self.structures(condition) is not None:
            return True
        if isinstance(condition, Opaque):
            return statistics and self._by_statistics(condition) is not None
        if not isinstance(condition, Group):
            return False
        # All of them are looked at, as asking for statistics is remembered.
        found = [self._can_prune(item, statistics=statistics) for item in condition.items]
        return all(found) if condition.op == "OR" else any(found)

    def _by_statistics(self, atom: Opaque) -> Files | None:
        """Return the files in which a comparison of one column may be TRUE by the statistics of row groups."""
        if atom not in self._statistics:
            self._statistics[atom] = self._asked_for_statistics(atom)
        return self._statistics[atom]

    def _asked_for_statistics(self, atom: Opaque) -> Files | None:
        if len(atom.columns) != 1:
            return None
        ((occurrence_id, column),) = atom.columns
        if occurrence_id != self._occurrence_id or column not in self._usable or column in self._keys:
            return None
        if column not in self._table.types:
            return None
        parameters = parameters_for(atom, self._parameters)
        return self._evaluator.statistics(self._table, column, atom.says(), parameters)

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
        return [*((joined("AND", group), indexed) for indexed, group in together.items() if group), *alone]

    def _evaluate(self, condition: Condition, indexed: frozenset[str]) -> Files:
        parameters = parameters_for(condition, self._parameters)
        predicate = condition.render(self._name)
        if not condition.columns:
            return self.all_files if self._evaluator.constant(predicate, parameters) else frozenset()
        if not indexed:
            files = self._evaluator.partitions(self._table, predicate, parameters)
            self._answers.append((PARTITION_KEY, files))
            return files
        (column,) = indexed
        found = self._evaluator.index(
            self._table,
            column,
            predicate,
            parameters,
            says=said(condition),
            with_keys=any(name in self._keys for _, name in condition.columns),
            never_null=column in self._never_null,
            never_nan=self._never_nan,
            among=self._among,
        )
        if found.note:
            self._notes.append(found.note)
        self._answers.append((INVERTED_INDEX, found.files))
        return found.files

    def _name(self, column: ColumnRef) -> str:
        key = self._keys.get(column[1])
        return "v" if key is None else f"k{key}"


def _decided_by(answers: Sequence[tuple[str, Files]], everything: Files) -> str:
    """Return which of several kinds of answers left out files; if none did, which of them was asked."""
    narrowed = {by for by, files in answers if len(files) < len(everything)} or {by for by, _ in answers}
    return next((by for by in (INVERTED_INDEX, PARTITION_KEY, ROW_GROUPS) if by in narrowed), PARTITION_KEY)
