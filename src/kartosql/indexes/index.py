"""The indexes of a table: the conditions that each kind covers, and the files that may hold a match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from kartosql.memo import memoized
from kartosql.predicate.tree import UNKNOWN, ColumnRef, Condition, Opaque, Predicate, is_evaluable, parameters_for, said
from kartosql.tables.statistics import ColumnBounds
from kartosql.tables.table import FileTable

Files = frozenset[int]  # positions in FileTable.files


@dataclass(frozen=True)
class ValueCondition:
    """A condition on the values of an indexed column, and on partition keys, perhaps.

    The ``predicate`` names the column ``v`` and, if it is about partition keys (``with_keys``), the i-th of them
    ``k<i>``; ``says`` is what is known of it as a tree. NULL and NaN are in no index; they count as possible in every
    file unless ``never_null`` and ``never_nan`` rule them out. Only files ``among`` the given ones matter.
    """

    table: FileTable
    column: str
    predicate: str
    parameters: Mapping[str, Any]
    says: Predicate
    with_keys: bool
    never_null: bool
    never_nan: bool
    among: Files


@dataclass(frozen=True)
class Candidates:
    """The files that may hold a match, why it was not looked up if these are all files, and the index that says so.

    An engine leaves the kind to the index that asks it.
    """

    files: Files
    note: str = ""
    by: str = ""


class IndexEvaluator(Protocol):
    """What indexes ask of an engine."""

    def constant(self, predicate: str, parameters: Mapping[str, Any]) -> bool:
        """Return whether a predicate without columns may be TRUE."""

    def has_collation(self) -> bool:
        """Return whether texts that differ may be equal."""

    def time_zone(self) -> str:
        """Return the time zone of the session."""

    def partitions(self, table: FileTable, predicate: str, parameters: Mapping[str, Any]) -> Files:
        """Return the files in partitions for which a predicate may be TRUE.

        The predicate names the i-th partition key ``k<i>``.
        """

    def index(self, asked: ValueCondition) -> Candidates:
        """Return the files with a value for which a condition may be TRUE; all files where it does not pay to look."""

    def has_bounds(self, table: FileTable, column: str, predicate: Predicate) -> bool:
        """Return whether footers may show in which files a predicate over ``column`` is TRUE; reads none."""

    def statistics(
        self, table: FileTable, column: str, predicate: Predicate, parameters: Mapping[str, Any], among: Files
    ) -> Files | None:
        """Return the files in which a predicate over ``column`` may be TRUE, or None.

        Footers of the files ``among`` which it is asked are read, if a few of them show that this pays.
        """

    def files_by_bounds(
        self, table: FileTable, column: str, predicate: Predicate, parameters: Mapping[str, Any], known: ColumnBounds
    ) -> Files | None:
        """Return the files in which a predicate over ``column`` may be TRUE by bounds of it that are known, or None."""


@dataclass(frozen=True)
class Subject:
    """The table that conditions are about, as one occurrence of a statement: ``usable`` columns may be asked here.

    Those that are ``never_null`` were checked; if there are any, no indexed column holds NaN either.
    """

    table: FileTable
    occurrence_id: int
    evaluator: IndexEvaluator
    parameters: Mapping[str, Any]
    usable: Set[str]
    never_null: Set[str] = frozenset()
    _columns: dict[int, tuple[Condition, frozenset[str] | None]] = field(default_factory=dict)  # by identity

    @memoized
    def keys(self) -> Mapping[str, int]:
        """The numbers of the partition keys."""
        return {name: i for i, name in enumerate(self.table.partition_keys)}

    def columns(self, condition: Condition) -> frozenset[str] | None:
        """Return the columns of a condition; None if it cannot be evaluated, or some of them are not usable here."""
        known = self._columns.get(id(condition))
        if known is None:
            own = frozenset(name for of, name in condition.columns if of == self.occurrence_id and name in self.usable)
            is_whole = len(own) == len(condition.columns) and is_evaluable(condition)
            known = self._columns[id(condition)] = (condition, own if is_whole else None)
        return known[1]

    def name(self, column: ColumnRef) -> str:
        """Return the name of a column in predicates that an engine evaluates."""
        key = self.keys.get(column[1])
        return "v" if key is None else f"k{key}"


@dataclass(frozen=True)
class FileIndex:
    """Something that is known of the files of one table, asked about conditions of one statement."""

    subject: Subject
    kind: ClassVar[str]  # its name in reports
    # Asked about whole conditions, AND and OR in them included, not about the parts.
    takes_whole: ClassVar[bool] = False

    @property
    def min_files(self) -> int:
        """The number of files from which on asking pays, as fewer are read as fast."""
        return 0

    def group(self, condition: Condition) -> str | None:
        """Return a name that conditions share which have to be asked about together; None for one that is alone."""
        return None

    def covers(self, condition: Condition) -> bool:
        """Return whether the index may leave out files for a condition; it is not read for that."""
        raise NotImplementedError

    def candidates(self, condition: Condition, among: Files) -> Sequence[Candidates]:
        """Return the files that may hold a match of a condition that is covered, of each kind of evidence for itself.

        Only files ``among`` the given ones matter. There is no answer if nothing is known.
        """
        raise NotImplementedError


PARTITION_KEY = "partition key"


@dataclass(frozen=True)
class PartitionValues(FileIndex):
    """The partition values of the files of a table."""

    kind: ClassVar[str] = PARTITION_KEY

    def group(self, condition: Condition) -> str | None:
        """Return one name for all: values of a partition are in one row."""
        return "" if self.covers(condition) else None

    def covers(self, condition: Condition) -> bool:
        """Return whether a condition is about partition keys alone, or about no column at all."""
        columns = self.subject.columns(condition)
        return columns is not None and columns <= self.subject.keys.keys()

    def candidates(self, condition: Condition, among: Files) -> Sequence[Candidates]:
        """Return the files in partitions for which a condition may be TRUE."""
        subject = self.subject
        predicate = condition.render(subject.name)
        parameters = parameters_for(condition, subject.parameters)
        if not condition.columns:
            holds = subject.evaluator.constant(predicate, parameters)
            return [Candidates(subject.table.all_files if holds else frozenset())]
        return [Candidates(subject.evaluator.partitions(subject.table, predicate, parameters), by=self.kind)]


INVERTED_INDEX = "inverted index"


@dataclass(frozen=True)
class InvertedIndices(FileIndex):
    """The inverted indices of a table; neither NULL nor NaN is in one."""

    kind: ClassVar[str] = INVERTED_INDEX

    def group(self, condition: Condition) -> str | None:
        """Return the indexed column that a condition is about beside partition keys, None unless it is one.

        ``i > 3 AND i < 5`` must hold for one and the same value of i. Of two columns indices do not know which values
        stand in one row.
        """
        columns = self.subject.columns(condition)
        indexed, known = (columns or frozenset()) - self.subject.keys.keys(), self.subject.table.indices
        column = next(iter(indexed)) if len(indexed) == 1 and indexed <= known.keys() else None
        if column is None or (segments := known[column].segments) is None:
            return column
        # Segments are asked what a condition says, not its text.
        is_collated = segments.type.family == "string" and self.subject.evaluator.has_collation()
        return None if is_collated or self._says(condition, column) == UNKNOWN else column

    def covers(self, condition: Condition) -> bool:
        """Return whether a condition is about one indexed column, and partition keys perhaps."""
        return self.group(condition) is not None

    def candidates(self, condition: Condition, among: Files) -> Sequence[Candidates]:
        """Return the files with a value for which a condition may be TRUE."""
        subject, column = self.subject, self.group(condition)
        assert column is not None
        if (segments := subject.table.indices[column].segments) is not None:
            told = segments.candidates(self._says(condition, column), subject.evaluator.time_zone(), among)
            return [] if told is None else [Candidates(*told, by=self.kind)]
        asked = ValueCondition(
            subject.table,
            column,
            condition.render(subject.name),
            parameters_for(condition, subject.parameters),
            said(condition),
            any(name in subject.keys for _, name in condition.columns),
            column in subject.never_null,
            bool(subject.never_null),
            among,
        )
        return [replace(subject.evaluator.index(asked), by=self.kind)]

    def _says(self, condition: Condition, column: str) -> Predicate:
        from kartosql.indexes.metadata_terms import in_metadata_terms  # few statements need it

        return in_metadata_terms(condition, self.subject.occurrence_id, {column})


@dataclass(frozen=True)
class BoundsIndex(FileIndex):
    """Bounds of columns, asked about each predicate over one column of the files once."""

    _found: dict[Condition, Files | None] = field(default_factory=dict)

    def _column(self, condition: Condition) -> str | None:
        """Return the column of the files that a predicate is about, None unless it is one."""
        columns = self.subject.columns(condition) if isinstance(condition, Opaque) else None
        if columns is None or len(columns) != 1:
            return None
        (column,) = columns
        return column if column not in self.subject.keys and column in self.subject.table.types else None

    def _ask(self, condition: Condition, ask: Callable[..., Files | None], *more: Any) -> Files | None:
        """Return what an evaluator answers to ``ask`` about a predicate, and ``more``."""
        if condition not in self._found:
            subject, parameters = self.subject, parameters_for(condition, self.subject.parameters)
            self._found[condition] = ask(subject.table, self._column(condition), said(condition), parameters, *more)
        return self._found[condition]


class MetadataBounds(BoundsIndex):
    """The bounds of files in the metadata of a table: no footer has to be read for them."""

    kind: ClassVar[str] = "metadata statistics"  # where the table has no name for them

    def covers(self, condition: Condition) -> bool:
        """Return whether a condition is one predicate over a column of which bounds leave out some file."""
        return any(
            len(found.files) < len(self.subject.table.files) for found in self.candidates(condition, frozenset())
        )

    def candidates(self, condition: Condition, among: Files) -> Sequence[Candidates]:
        """Return the files in which a predicate may be TRUE."""
        told = self.subject.table.stored_bounds
        column = self._column(condition) if told is not None else None
        known = told.column(column) if told is not None and column is not None else None
        files = None if known is None else self._ask(condition, self.subject.evaluator.files_by_bounds, known)
        return [] if files is None or told is None else [Candidates(files, by=told.kind)]


ROW_GROUPS = "row groups"
MIN_FOR_STATISTICS = 32  # fewer files are read as fast as statistics are evaluated


class RowGroups(BoundsIndex):
    """The bounds of row groups in the footers of a table."""

    kind: ClassVar[str] = ROW_GROUPS

    @property
    def min_files(self) -> int:
        """The number of files from which on asking pays."""
        return MIN_FOR_STATISTICS

    def covers(self, condition: Condition) -> bool:
        """Return whether a condition is one predicate over one column with bounds in footers."""
        subject, column = self.subject, self._column(condition)
        return column is not None and subject.evaluator.has_bounds(subject.table, column, said(condition))

    def candidates(self, condition: Condition, among: Files) -> Sequence[Candidates]:
        """Return the files in which a predicate may be TRUE."""
        files = self._ask(condition, self.subject.evaluator.statistics, among)
        return [] if files is None else [Candidates(files, by=self.kind)]
