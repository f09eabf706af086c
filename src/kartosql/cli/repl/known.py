"""What the store holds, as completion needs it: tables, columns, and which of them have values at hand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kartosql.connection import Connection
from kartosql.errors import KartosqlError
from kartosql.memo import memoized
from kartosql.statements import catalog
from kartosql.tables.table import Table


@dataclass(frozen=True)
class KnownColumn:
    """A column: its name, its type, its role in the table, and where its values stand without opening a file."""

    name: str
    type: str
    role: str
    source: Table = field(repr=False)

    @property
    def has_values(self) -> bool:
        """Whether a partition key or an inverted index tells its values."""
        return self.role in ("partition", "index", "dimension") and any(
            self.name in part.table.partition_keys or self.name in part.table.indices for part in self.source.parts
        )


@dataclass(frozen=True, eq=False)
class KnownTable:
    """A table as it is written in SQL; ``kind`` is cube, dataset of a cube, dataset or registered."""

    name: str
    kind: str
    source: Table = field(repr=False)

    @memoized
    def columns(self) -> tuple[KnownColumn, ...]:
        """Its columns in the order of ``SELECT *``."""
        return tuple(
            KnownColumn(name, str(type_), catalog._role(self.source, name), self.source)
            for name, type_ in self.source.columns.items()
        )

    @memoized
    def by_name(self) -> dict[str, KnownColumn]:
        """Its columns by their names in lower case."""
        return {column.name.lower(): column for column in self.columns}

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The dimension columns of a cube, in order."""
        return self.source.cube.dimension_columns if self.source.cube else ()


class Names:
    """Names in order, to find those that begin with a text."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted({(name.lower(), name) for name in names})

    def beginning(self, text: str, most: int) -> Iterator[str]:
        """Yield at most so many names that begin with a text, whatever their case."""
        lower = text.lower()
        at = bisect_left(self._names, (lower, ""))
        for low, name in self._names[at : at + most]:
            if not low.startswith(lower):
                return
            yield name

    def holding(self, text: str, most: int) -> Iterator[str]:
        """Yield at most so many names that have a text somewhere, but not at their beginning."""
        lower = text.lower()
        for low, name in self._names:
            if most <= 0:
                return
            if low.find(lower) > 0:
                most -= 1
                yield name


@dataclass(frozen=True, eq=False)
class Known:
    """The tables of a store at one moment, in order, cubes first."""

    tables: tuple[KnownTable, ...] = ()

    @memoized
    def by_name(self) -> dict[str, KnownTable]:
        """The tables by their names in lower case, as they are written."""
        return {table.name.lower(): table for table in self.tables}

    @memoized
    def table_names(self) -> Names:
        """Their names."""
        return Names(table.name for table in self.tables)

    @memoized
    def column_tables(self) -> dict[str, tuple[KnownTable, ...]]:
        """The tables that have a column, by the name of the column."""
        found: dict[str, list[KnownTable]] = {}
        for table in self.tables:
            for column in table.columns:
                found.setdefault(column.name, []).append(table)
        return {name: tuple(tables) for name, tables in found.items()}

    @memoized
    def column_names(self) -> Names:
        """The names of all columns of all tables."""
        return Names(self.column_tables)

    def table(self, name: str) -> KnownTable | None:
        """Return the table that a name as it is written means."""
        return self.by_name.get(name.lower().replace('"', "")) or self.by_name.get(name.lower())


NOTHING = Known()


def load(connection: Connection) -> Known:
    """Return what the store of a connection holds; what is damaged is left out."""
    tables = connection.tables()
    listed = connection.sql("SHOW TABLES").arrow()
    found = []
    for name, kind in zip(listed["table"].to_pylist(), listed["kind"].to_pylist(), strict=True):
        try:
            source = tables.find(_parts(name))
        except KartosqlError:
            continue
        found.append(KnownTable(name, kind, source))
    return Known(tuple(found))


def _parts(name: str) -> tuple[str, ...]:
    """Return the parts of a name as it is written."""
    parts: list[str] = []
    at = 0
    while at < len(name):
        if name[at] == '"':
            end = name.index('"', at + 1)
            while name.startswith('"', end + 1):
                end = name.index('"', end + 2)
            parts.append(name[at + 1 : end].replace('""', '"'))
            at = end + 2
        else:
            end = name.find(".", at)
            end = len(name) if end < 0 else end
            parts.append(name[at:end])
            at = end + 1
    return tuple(parts)
