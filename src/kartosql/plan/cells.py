"""What the planner asks of an engine about the cells of a cube's datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from kartosql.indexes.index import Files
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
