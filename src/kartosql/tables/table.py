"""Tables as the planner and the engines know them, whatever they were made from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from kartosql.formats.partition_table import PartitionTable, Variant
from kartosql.memo import memoized

if TYPE_CHECKING:
    from kartosql.formats.kartothek.cube import Cube
    from kartosql.formats.kartothek.dataset import InvertedIndex
    from kartosql.formats.odf.chain import Chain
    from kartosql.formats.xskipper.store import MetadataSkipping
    from kartosql.tables.statistics import ColumnBounds


class FileTable(Protocol):
    """Files with one schema: where they are, their partition values, and what may rule them out.

    Files are known by their position in ``files``. An object stands for one state of the files:
    whatever is derived from them is kept as long as the object is.
    """

    @property
    def uuid(self) -> str:
        """The uuid of the dataset, or the name of what is attached."""

    @property
    def table(self) -> str:
        """The name of the table in its dataset."""

    @property
    def schema(self) -> pa.Schema:
        """The columns with partition keys; a type is null where only the files have it."""

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """The type of each column as queries see it."""

    @property
    def files(self) -> tuple[str, ...]:
        """The keys of the files, in the order in which later ones replace rows of earlier ones."""

    @property
    def all_files(self) -> frozenset[int]:
        """The positions of all files."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names by which the metadata or the folder know the files."""

    @property
    def writes(self) -> Sequence[int]:
        """A number for each file, the same for files of one write."""

    @property
    def partition_keys(self) -> tuple[str, ...]:
        """The columns whose values are not in the files."""

    @property
    def partitions(self) -> PartitionTable:
        """The partition values of all files."""

    @property
    def indices(self) -> Mapping[str, InvertedIndex]:
        """The inverted indices by column."""

    @property
    def skipping(self) -> MetadataSkipping | None:
        """The data-skipping metadata of the files, or None."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What was noted about the table, by key."""

    @property
    def stored_bounds(self) -> StoredBounds | None:
        """The bounds of the files in metadata, or None."""

    @property
    def may_lack(self) -> frozenset[str]:
        """The columns that some files may not have; they are NULL there, and what else files lack is an error."""

    @property
    def has_footers(self) -> bool:
        """Whether the files are Parquet files."""

    @property
    def renames(self) -> bool:
        """Whether files may call columns otherwise, or lack some that are not NULL; ``variants`` says which."""

    def variants(self, files: Sequence[int]) -> Iterable[Variant]:
        """Return groups of files that are read alike."""

    def only(self, file: int) -> FileTable:
        """Return the table of one of the files, which nothing is known about but its rows."""

    def display_name(self, file: int) -> str:
        """Return the name of a file as messages and reports have it."""


class StoredBounds(Protocol):
    """Bounds of columns of files in the metadata of a table."""

    kind: str  # its name in reports

    @property
    def rows(self) -> Sequence[int]:
        """How many rows each file has, those deleted included; -1 where that is not told."""

    def column(self, name: str) -> ColumnBounds | None:
        """Return the bounds of a column, the same object each time; or None if unknown."""


@dataclass(frozen=True)
class Plain:
    """Each row of the files is a row of the table."""


@dataclass(frozen=True)
class Overlay:
    """Of several rows with the same ``key`` the one of the last file counts.

    Columns that ``never_null`` names were checked with each write to hold no NULL; if there are
    any, no indexed column holds NaN either.
    """

    key: tuple[str, ...]
    never_null: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Changelog:
    """The rows follow from records of which each adds, retracts or corrects one.

    ``op`` is 0 for a new record, 1 for one that is retracted, 2 and 3 for one before and after a
    correction. With a ``key`` the record with the highest ``offset`` counts, else records that
    are equal in the columns ``compared`` cancel each other.
    """

    offset: str
    op: str
    key: tuple[str, ...]
    compared: tuple[str, ...]

    @property
    def stable(self) -> frozenset[str]:
        """The columns that all records about one row have in common: conditions on them may leave out files."""
        return frozenset(self.key or self.compared)


STEP, CHANGE = "__kartosql_step", "_change"


@dataclass(frozen=True, eq=False)
class Changes(Changelog):
    """The rows are the differences between those of some files before and after each of some steps.

    ``steps`` and ``signs`` say of each file to which step it belongs, and if it is of before it (-1) or after (1),
    ``facts`` of each STEP its version and time. With a ``key`` only the row of the last file counts, on each side.
    """

    steps: Sequence[int]
    signs: Sequence[int]
    facts: pa.Table


@dataclass(frozen=True, eq=False)
class KeyDeletes:
    """The rows of some files that delete those that are equal to them in ``key``, where NULL equals NULL.

    Each file deletes rows of files with a lower number in ``sequence``; given a ``scope``, only of those with the same.
    """

    table: FileTable
    key: tuple[str, ...]
    sequence: Sequence[int]
    scope: Sequence[int] = ()

    @memoized
    def latest(self) -> dict[int, int]:
        """The highest number in ``sequence`` by scope, or 0."""
        scope = self.scope or [0] * len(self.sequence)
        found: dict[int, int] = {}
        for number, of in zip(self.sequence, scope, strict=True):
            found[of] = max(number, found.get(of, number))
        return found


@dataclass(frozen=True, eq=False)
class Deletes:
    """Each row of the files is a row of the table, unless it is deleted by its position or by a key.

    ``positions`` has the numbers of deleted rows, ascending from 0, of each file that has some. ``keys`` say the
    ``sequence`` and the ``scope`` of each data file which rows they delete of it.
    """

    positions: Mapping[int, pa.Array]
    keys: tuple[KeyDeletes, ...] = ()
    sequence: Sequence[int] = ()
    scope: Sequence[int] = ()

    def reaching(self, keys: KeyDeletes, files: Iterable[int]) -> list[int]:
        """Return the files of ``keys`` that may delete rows of some data files."""
        oldest: dict[int, int] = {}
        for file in files:
            scope = self.scope[file] if keys.scope else 0
            oldest[scope] = min(self.sequence[file], oldest.get(scope, self.sequence[file]))
        scopes = keys.scope or [0] * len(keys.sequence)
        numbered = enumerate(zip(keys.sequence, scopes, strict=True))
        return [at for at, (number, scope) in numbered if number > oldest.get(scope, number)]

    def touched(self, files: Iterable[int]) -> list[int]:
        """Return those of some files of which rows may be deleted."""
        return [f for f in files if f in self.positions or any(self._is_before(f, k) for k in self.keys)]

    def _is_before(self, file: int, keys: KeyDeletes) -> bool:
        number = self.sequence[file]
        return keys.latest.get(self.scope[file] if keys.scope else 0, number) > number


RowRule = Plain | Overlay | Changelog | Deletes


@dataclass(frozen=True)
class Part:
    """Files of a table, the ``columns`` that are taken from them, and which of their rows count."""

    name: str
    table: FileTable
    columns: tuple[str, ...]
    rows: RowRule = Plain()

    @property
    def join_key(self) -> tuple[str, ...]:
        """The columns by which the part joins the others; they identify the cell of a row."""
        return self.rows.key if isinstance(self.rows, Overlay) else ()

    @property
    def tables(self) -> Iterator[FileTable]:
        """The tables whose files may be read: its own, and those that delete rows of it."""
        yield self.table
        if isinstance(self.rows, Deletes):
            yield from (keys.table for keys in self.rows.keys)


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a statement: parts made of files, or ``data`` in memory.

    ``parts[0]`` says which rows exist, the others are joined to it. ``columns`` are the visible
    columns in the order of ``SELECT *``; ``owner`` names the part that each column is taken from.
    ``exposed`` gives columns whose names differ only in case a name of their own inside of the engine.
    """

    name: str
    columns: Mapping[str, pa.DataType]
    parts: tuple[Part, ...] = ()
    owner: Mapping[str, str] = field(default_factory=dict)
    data: pa.Table | None = None
    cube: Cube | None = None  # which the table is, or belongs to
    chain: Chain | None = None  # the blocks that tell its schemas, where they are not those of a dataset
    is_attached: bool = False  # it can only be read
    exposed: Mapping[str, str] = field(default_factory=dict)

    def find(self, column: str) -> str | None:
        """Return the column that ``column`` means: exactly, else by case if that is unique."""
        return by_case(column, self.columns)

    def is_never_null(self, column: str) -> bool:
        """Return whether no row has NULL in a column: a dimension of a cube, or a partition key without it."""
        if not self.parts or self.owner.get(column) != self.parts[0].name:
            return False
        rows, partitions = self.parts[0].rows, self.parts[0].table.partitions
        if column in partitions.keys:
            return None not in partitions.columns[partitions.keys.index(column)]
        return isinstance(rows, Overlay) and column in rows.never_null


def by_case(name: str, known: Collection[str]) -> str | None:
    """Return the name that is meant: the same one, else the only one that differs in case alone."""
    if name in known:
        return name
    lower = name.lower()
    found = [k for k in known if k.lower() == lower]
    return found[0] if len(found) == 1 else None


def display_rows(table: Table) -> pa.Table:
    """Return the rows of a table in memory, with the names of columns inside of the engine."""
    assert table.data is not None
    return table.data.rename_columns([table.exposed.get(c, c) for c in table.data.column_names])


def file_table(name: str, table: FileTable, part: str, **more: Any) -> Table:
    """Return the table whose rows are those of some files."""
    columns = dict(table.types)
    owner = dict.fromkeys(columns, part)
    return Table(name, columns, (Part(part, table, tuple(columns)),), owner, exposed=exposed(columns), **more)


def arrow_table(name: str, data: pa.Table) -> Table:
    """Return the table that Arrow data in memory are."""
    columns = {f.name: f.type for f in data.schema}
    return Table(name, columns, data=data, exposed=exposed(columns))


def exposed(columns: Iterable[str]) -> dict[str, str]:
    """Return the names inside of the engine of columns that differ only in case."""
    groups: dict[str, list[str]] = {}
    for column in columns:
        groups.setdefault(column.lower(), []).append(column)
    found = {}
    for group in groups.values():
        for column in group if len(group) > 1 else ():
            # All of them are renamed, so that a reference which is overlooked finds none instead of another.
            cases = "".join("1" if c != c.lower() else "0" for c in column)
            found[column] = f"{column}__kartosql_{int(cases, 2):x}"
    return found
