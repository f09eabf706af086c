"""A folder of files as a table: listed, typed by the files themselves and by their paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from kartosql.formats.kartothek.dataset import InvertedIndex
from kartosql.formats.partition_table import PartitionTable, Variant
from kartosql.memo import memoized


@dataclass(frozen=True)
class FileColumns:
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
    shapes: tuple[FileColumns, ...]
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
    def writes(self) -> Sequence[int]:
        """A number for each file, as nothing tells which came with which write."""
        return range(len(self.files))

    @property
    def indices(self) -> dict[str, InvertedIndex]:
        """The inverted indices: there are none."""
        return {}

    @property
    def metadata(self) -> dict[str, Any]:
        """What was noted about the table: nothing."""
        return {}

    @memoized
    def types(self) -> dict[str, pa.DataType]:
        """Arrow type of every column, partition keys included."""
        return {f.name: f.type for f in self.schema}

    @memoized
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

    def display_name(self, file: int) -> str:
        """Return the path of a file in the folder."""
        return self.labels[file]

    def variants(self, files: Sequence[int]) -> Iterator[Variant]:
        """Yield files that are read alike."""
        groups: dict[int, list[int]] = {}
        for file in files:
            groups.setdefault(self.shape_of[file], []).append(file)
        for shape, group in groups.items():
            yield Variant(group, self.shapes[shape].types, self.shapes[shape].reading)
