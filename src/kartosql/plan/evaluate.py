"""Conditions against the indexes of a table: which files may hold a match.

Nothing here knows SQL's semantics. An Evaluator, the engine, evaluates the user's own
predicates over the distinct partition values and index values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from kartosql.indexes.index import FileIndex, Files, IndexEvaluator, Subject
from kartosql.indexes.inverted import INVERTED_INDEX, InvertedIndices
from kartosql.indexes.partition_values import PARTITION_KEY, PartitionValues
from kartosql.indexes.row_groups import ROW_GROUPS, RowGroups
from kartosql.plan.scan import Alternative, OccurrenceScan
from kartosql.plan.table_refs import Occurrence
from kartosql.predicate.tree import (
    ColumnRef,
    Condition,
    Group,
    Pieces,
    is_evaluable,
    joined,
    parameters_for,
    substitute,
)
from kartosql.tables.table import FileTable


@dataclass(frozen=True)
class RowSelection:
    """The rows for which a predicate is TRUE; ``names`` are the names by which it calls the columns."""

    names: Mapping[str, str]
    predicate: str
    parameters: Mapping[str, Any]


class Cells(Protocol):
    """Tells which files hold the same values and cells."""

    def index_bytes(self, table: FileTable, column: str) -> int | None:
        """Return how much of an index a lookup would have to read, or None if it cannot be read."""

    def data_bytes(self, table: FileTable, files: Files) -> int:
        """Return the size of files, estimated from a few of them."""

    def ranges(self, table: FileTable, column: str, files: Files) -> Mapping[int, tuple[Any, Any]]:
        """Return the smallest and largest value of ``column`` per file; files are left out where it is not known.

        A file that is told about holds no NULL there.
        """

    def share_values(self, table: FileTable, column: str, groups: Mapping[int, int]) -> set[tuple[int, int]]:
        """Return the pairs (earlier, later) of files of one group with a value of an indexed column in common.

        ``groups`` are files with the number of their group.
        """

    def files_sharing(
        self,
        source: FileTable,
        files: Files,
        target: FileTable,
        column: str,
        rows: RowSelection | None,
    ) -> Files:
        """Return the files of ``target`` with a value of ``column`` that one of the ``files`` of ``source`` has.

        In ``target`` the column is a partition key or indexed. The values of the source come
        from the same structures, or, given ``rows``, out of those rows of the files.
        """

    def holding_cells(
        self, table: FileTable, early: int, late: Files, dimensions: Sequence[str], rows: RowSelection
    ) -> Files:
        """Return those ``late`` files that may hold a cell of ``rows`` of the file ``early``.

        ``dimensions`` are indexed columns of the cell, which ``rows`` also names.
        """

    def share_cells(self, table: FileTable, early: int, late: int, key: Sequence[str], rows: RowSelection) -> bool:
        """Return whether one of ``rows`` of the file ``early`` may have its cell in ``late`` too."""


def is_exact(type_: pa.DataType) -> bool:
    """Return whether an index holds the values of a type as they are.

    Indices merge the two zeros of floats and know no NaN, and the originals cut binary values.
    """
    t = pa.types
    tests = (t.is_integer, t.is_string, t.is_boolean, t.is_date32, t.is_timestamp)
    return any(test(type_) for test in tests)


MAX_PROBES = 16  # files that may be looked into while planning
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


class Evaluator(IndexEvaluator, Protocol):
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

    def type_name(self, type_: Any) -> str | None:
        """Return the engine's name of an Arrow type, None for columns that are all NULL."""

    def type_of(self, expression: str) -> str | None:
        """Return the type of an expression without columns, None if it has none."""

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
    """Asks the indexes of one table about conditions of one occurrence, the cheapest first."""

    def __init__(self, subject: Subject, never_null: Set[str], *, never_nan: bool) -> None:
        self._values = PartitionValues(subject)
        self._inverted = InvertedIndices(subject, never_null, never_nan)
        self._row_groups = RowGroups(subject)
        self._asks_statistics = True
        self._among = self.all_files = subject.table.all_files
        self._notes: list[str] = []
        self._answers: list[tuple[str, Files]] = []  # what answered parts of the last condition, and the files it left
        self.alternatives: tuple[Alternative, ...] = ()  # of the last condition, if it is an OR of parts

    def files(self, condition: Condition, among: Files | None = None) -> Files | None:
        """Return the files that may hold a row for which ``condition`` is TRUE; None is all of them.

        Only files ``among`` the given ones matter.
        """
        self._among = self.all_files if among is None else among
        self._asks_statistics = among is None or len(among) >= MIN_FOR_STATISTICS
        self._notes, self._answers, self.alternatives = [], [], ()
        return self._files(condition)

    def account(self, condition: Condition) -> str:
        """Return the text of a condition, with the reason if the last call of ``files`` kept more than it had to."""
        notes = "; ".join(dict.fromkeys(self._notes))
        return f"{condition.text} ({notes})" if notes else condition.text

    def by(self) -> str:
        """Return the name of what answered the condition of the last call of ``files``."""
        return _decided_by(self._answers, self.all_files)

    def _index(self, condition: Condition) -> FileIndex | None:
        """Return the first index that covers a condition as a whole, None if none does."""
        if self._values.covers(condition):
            return self._values
        if self._inverted.covers(condition):
            return self._inverted
        return self._row_groups if self._asks_statistics and self._row_groups.covers(condition) else None

    def _files(self, condition: Condition) -> Files | None:
        index = self._index(condition)
        if index is not None:
            return self._asked(index, condition)
        if not isinstance(condition, Group) or not self._can_prune(condition):
            return None
        if condition.op == "OR":
            return self._any_of(condition.items)
        result: Files | None = None
        for item in self.groups(list(condition.items)):
            found = self._files(item)
            if found is not None:
                result = found if result is None else result & found
        return result

    def _any_of(self, items: Sequence[Condition]) -> Files:
        """Return the files that may hold a match of one of several conditions, and note what each of them left."""
        before, left, found = self._answers, frozenset[int](), []
        answers: list[tuple[str, Files]] = []
        for item in items:
            self._answers = []
            files = self._files(item)
            files = self.all_files if files is None else files
            found.append(Alternative(item.text, _decided_by(self._answers, self.all_files), len(self._among & files)))
            answers += self._answers
            left |= files
        self._answers, self.alternatives = [*before, *answers], tuple(found)
        return left

    def _can_prune(self, condition: Condition) -> bool:
        """Return whether evaluating ``condition`` may leave out a file, before an index is read for it."""
        if self._index(condition) is not None:
            return True
        if not isinstance(condition, Group):
            return False
        # All of them are looked at, as asking for statistics is remembered.
        found = [self._can_prune(item) for item in condition.items]
        return all(found) if condition.op == "OR" else any(found)

    def groups(self, items: list[Condition]) -> list[Condition]:
        """Join those of ``items`` that are evaluated together; partition keys come first.

        ``i > 3 AND i < 5`` must hold for one and the same value of i.
        """
        together: dict[str, list[Condition]] = {"": []}
        alone: list[Condition] = []
        for item in items:
            column = "" if self._values.covers(item) else self._inverted.column(item)
            (alone if column is None else together.setdefault(column, [])).append(item)
        return [*(joined("AND", group) for group in together.values() if group), *alone]

    def _asked(self, index: FileIndex, condition: Condition) -> Files | None:
        """Return the files that an index leaves, and note what it says."""
        left: Files | None = None
        for found in index.candidates(condition, self._among):
            if found.note:
                self._notes.append(found.note)
            if found.by:
                self._answers.append((found.by, found.files))
            left = found.files if left is None else left & found.files
        return left


def _decided_by(answers: Sequence[tuple[str, Files]], everything: Files) -> str:
    """Return which of several kinds of answers left out files; if none did, which of them was asked."""
    narrowed = {by for by, files in answers if len(files) < len(everything)} or {by for by, _ in answers}
    return next((by for by in (INVERTED_INDEX, PARTITION_KEY, ROW_GROUPS) if by in narrowed), PARTITION_KEY)
