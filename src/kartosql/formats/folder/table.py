"""A folder of files as a table: listed, typed by the files themselves and by their paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.formats.files import PartitionTable, Variant
from kartosql.formats.kartothek.dataset import InvertedIndex
from kartosql.formats.widening import widened


@dataclass(frozen=True)
class Shape:
    """What some files of a folder have in common: their columns, and for CSV how they are written."""

    types: Mapping[str, pa.DataType]
    reading: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class FolderTable:
    """Files without metadata of their own, typed by themselves; ``labels`` are their paths in the folder."""

    uuid: str
    schema: pa.Schema
    labels: tuple[str, ...]
    files: tuple[str, ...]
    partitions: PartitionTable
    shapes: tuple[Shape, ...]
    shape_of: tuple[int, ...]
    has_footers: bool
    keeper: Any  # what the files are reached by, as long as a statement may read them
    skipping: Any = None

    @property
    def table(self) -> str:
        """The name of the table."""
        return self.uuid

    @property
    def partition_keys(self) -> tuple[str, ...]:
        """The columns that folders name."""
        return self.partitions.keys

    @property
    def indices(self) -> dict[str, InvertedIndex]:
        """The inverted indices: there are none."""
        return {}

    @property
    def metadata(self) -> dict[str, Any]:
        """What was noted about the table: nothing."""
        return {}

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """Arrow type of every column, partition keys included."""
        return {f.name: f.type for f in self.schema}

    @cached_property
    def all_files(self) -> frozenset[int]:
        """The positions of all files."""
        return frozenset(range(len(self.files)))

    def only(self, file: int) -> FolderTable:
        """Return the table of one of the files."""
        values = self.partitions
        part = values.part_of_file[file]
        one = PartitionTable(values.keys, values.types, tuple((c[part],) for c in values.columns), 1, (0,))
        shapes = (self.shapes[self.shape_of[file]],)
        return replace(
            self,
            labels=(self.labels[file],),
            files=(self.files[file],),
            partitions=one,
            shapes=shapes,
            shape_of=(0,),
            skipping=None,
        )

    def shown(self, file: int) -> str:
        """Return the path of a file in the folder."""
        return self.labels[file]

    def variants(self, files: Sequence[int]) -> Iterator[Variant]:
        """Yield files that are read alike."""
        groups: dict[int, list[int]] = {}
        for file in files:
            groups.setdefault(self.shape_of[file], []).append(file)
        for shape, group in groups.items():
            yield Variant(group, self.shapes[shape].types, self.shapes[shape].reading)


def united(schemas: Sequence[pa.Schema], names: Sequence[str], source: str) -> dict[str, pa.DataType]:
    """Return the columns of files by name, in the order in which they first occur.

    ``schemas`` are those of the files ``names``. Types widen exactly, else ``schema-conflict``
    names the column, both types and a file of each.
    """
    found: dict[str, tuple[pa.DataType, str]] = {}
    spelled: dict[str, tuple[str, str]] = {}
    first: dict[int, tuple[pa.Schema, str]] = {}
    for schema, name in zip(schemas, names, strict=True):
        first.setdefault(id(schema), (schema, name))
    for schema, name in first.values():
        seen = set(schema.names)
        for field in schema:
            known = found.get(field.name)
            if known is None:
                other = spelled.setdefault(field.name.lower(), (field.name, name))
                if other[0] != field.name and other[0] not in seen:
                    raise _conflict(source, field.name, f"spelled {other[0]!r} in {other[1]}", f"not in {name}")
                found[field.name] = (field.type, name)
                continue
            type_ = widened(known[0], field.type)
            if type_ is None:
                raise _conflict(source, field.name, f"{known[0]} in {known[1]}", f"{field.type} in {name}")
            if not type_.equals(known[0]):
                found[field.name] = (type_, name)
    return {name: type_ for name, (type_, _) in found.items()}


def _conflict(source: str, column: str, one: str, other: str) -> FormatError:
    return FormatError(
        f"{source}: the column {column!r} is {one}, but {other}",
        code="schema-conflict",
        hint="No type holds the values of both exactly; write the files again with one type.",
    )
