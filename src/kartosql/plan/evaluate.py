"""What the planner asks of an engine, which alone knows SQL's semantics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from kartosql.indexes.index import Files, IndexEvaluator
from kartosql.plan.scan import OccurrenceScan
from kartosql.plan.scopes import Occurrence
from kartosql.predicate.tree import Condition, joined, parameters_for
from kartosql.tables.statistics import ColumnBounds
from kartosql.tables.table import FileTable


@dataclass(frozen=True)
class RowSelection:
    """The rows for which a predicate is TRUE; ``names`` are the names by which it calls the columns."""

    names: Mapping[str, str]
    predicate: str
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, columns: Iterable[str], conditions: Sequence[Condition], parameters: Mapping[str, Any]) -> RowSelection:
        """Return the rows that satisfy conditions, with names for some columns and those of the conditions."""
        condition = joined("AND", conditions) if conditions else None
        known = dict.fromkeys([*columns, *(name for _, name in sorted(condition.columns if condition else ()))])
        # Names of their own: those of columns may differ only in case.
        names = {column: f"x{i}" for i, column in enumerate(known)}
        if condition is None:
            return cls(names, "TRUE", {})
        return cls(names, condition.render(lambda ref: names[ref[1]]), parameters_for(condition, parameters))


class Cells(Protocol):
    """Tells which files hold the same values and cells."""

    def index_bytes(self, table: FileTable, column: str) -> int | None:
        """Return how much of an index a lookup would have to read, or None if it cannot be read."""

    def data_bytes(self, table: FileTable, files: Files) -> int:
        """Return the size of files, estimated from a few of them."""

    def ranges(self, table: FileTable, column: str, files: Files) -> Mapping[int, tuple[Any, Any]]:
        """Return the smallest and largest value of ``column`` per file; files are left out where it is not known.

        A file in the answer holds no NULL there.
        """

    def share_values(self, table: FileTable, column: str, groups: Mapping[int, int]) -> set[tuple[int, int]]:
        """Return the pairs (earlier, later) of files of one group with a value of an indexed column in common.

        ``groups`` are files with the number of their group.
        """

    def files_sharing(
        self, source: FileTable, files: Files, target: FileTable, column: str, rows: RowSelection | None
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
# Seconds that one core takes, per value, and pair of value and file, to hold an index. Roughly, as they depend on types
# and on the machine.
HOLD_VALUE, HOLD_PAIR = 5e-8, 2e-8
VALUE_PAIRS = 4  # a value takes as much memory as this many pairs


@dataclass(frozen=True)
class Held:
    """Values that an engine keeps while it plans a statement, as the text of a query for them.

    ``fetch`` returns them, None if they are many or Python has no such values.
    """

    query: str
    count: int
    fetch: Callable[[], list[Any] | None]


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
        """What the engine knows about cells."""

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

    def clock(self, function: str) -> str | None:
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

    def bounds(self, table: FileTable, columns: Sequence[str], files: Sequence[int]) -> list[ColumnBounds] | None:
        """Return the bounds of columns in files, after reading the footers that are not known.

        None for types without bounds, and where texts that differ may be equal.
        """

    def null(self, type_: Any) -> str:
        """Return the SQL text of a NULL of an Arrow type."""
