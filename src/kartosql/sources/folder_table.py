"""Files without metadata of their own as a table, whatever they are attached as."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from kartosql.formats.folder import ParquetSchemas
from kartosql.formats.kartothek.dataset import InvertedIndex
from kartosql.formats.partition_table import PartitionTable, Variant
from kartosql.memo import memoized
from kartosql.store import Mounts
from kartosql.store.listing import ListedFile


@dataclass(frozen=True, eq=False)
class FolderTable:
    """Files without metadata of their own, typed by themselves; ``labels`` are their paths in the folder."""

    uuid: str
    schema: pa.Schema
    labels: tuple[str, ...]
    files: tuple[str, ...]
    partitions: PartitionTable
    # How each file is read, without files; one object for those that are alike. Or a function of keys that tells it.
    shapes: Any
    has_footers: bool
    keeper: Any  # what the files are reached by, as long as a statement may read them
    skipping: Any = None
    indices: Mapping[str, InvertedIndex] = field(default_factory=dict)
    # Of each file the size, a hyphen, and what else tells that it was written again; empty, if nothing does.
    stamps: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

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
        """A number for each file, as it is not known which came with which write."""
        return range(len(self.files))

    may_lack: ClassVar[frozenset[str]] = frozenset()  # ``variants`` tell which columns files have
    renames: bool = False
    identities: Mapping[str, str] = field(default_factory=dict)
    stored_bounds: Any = None

    @memoized
    def types(self) -> dict[str, pa.DataType]:
        """Arrow type of every column, partition keys included."""
        return {f.name: f.type for f in self.schema}

    @memoized
    def all_files(self) -> frozenset[int]:
        """The positions of all files."""
        return frozenset(range(len(self.files)))

    def some(self, files: Sequence[int]) -> FolderTable:
        """Return the table of some of the files, which nothing is known about but their rows."""
        parts = [self.partitions.part_of_file[f] for f in files]
        return replace(
            self,
            labels=tuple(self.labels[f] for f in files),
            files=tuple(self.files[f] for f in files),
            partitions=replace(self.partitions, part_of_file=parts),
            shapes=self.shapes if callable(self.shapes) else self._shapes(files),
            skipping=None,
            indices={},
            stamps=(),
            stored_bounds=None,
        )

    def only(self, file: int) -> FolderTable:
        """Return the table of one of the files."""
        return self.some([file])

    def identity(self, column: str) -> str | None:
        """Return what distinguishes a column from others of its name in other versions, or None if unknown."""
        return self.identities.get(column) if self.renames else ""

    def display_name(self, file: int) -> str:
        """Return the path of a file in the folder."""
        return self.labels[file]

    def variants(self, files: Sequence[int]) -> Iterator[Variant]:
        """Yield groups of files that have the same columns and types."""
        groups: dict[int, tuple[Variant, list[int]]] = {}
        for file, shape in zip(files, self._shapes(files), strict=True):
            groups.setdefault(id(shape), (shape, []))[1].append(file)
        for shape, group in groups.values():
            yield replace(shape, files=group)

    def _shapes(self, files: Sequence[int]) -> Sequence[Variant]:
        if callable(self.shapes):
            return self.shapes([self.files[f] for f in files])  # type: ignore[no-any-return]
        return [self.shapes[f] for f in files]


@dataclass(frozen=True, eq=False)
class FooterShapes(ABC):
    """How files are read: the columns of a file and their names in it come from its footer, read when needed."""

    mounts: Mounts
    sizes: Mapping[str, int]  # by key
    schemas: dict[tuple[str, bool], ParquetSchemas]  # of all versions, by the beginning of keys, without or with ids
    with_ids: bool

    def __call__(self, keys: Sequence[str]) -> list[Variant]:
        """Return how each file is read; raises ``missing-file``, ``corrupt-file`` and ``schema-mismatch``."""
        groups: dict[str, list[str]] = {}
        for key in keys:
            groups.setdefault(key[: key.index("/") + 1], []).append(key)
        found: dict[str, pa.Schema] = {}
        for prefix, own in groups.items():
            where = prefix, self.with_ids
            if where not in self.schemas:
                self.schemas[where] = ParquetSchemas(self.mounts.place(prefix)[0], with_ids=self.with_ids)
            listed = [ListedFile(key[len(prefix) :], self.sizes[key], None, self.sizes[key]) for key in own]
            found.update(zip(own, self.schemas[where].read(listed, some=True), strict=True))
        return [self._shape(key, key.partition("/")[2], found[key]) for key in keys]

    @abstractmethod
    def _shape(self, key: str, name: str, schema: pa.Schema) -> Variant:
        """Return how a file of a schema is read, the same object for those that are read alike."""


def shapes_of(schemas: Sequence[pa.Schema]) -> list[Variant]:
    """Return how Parquet files with some schemas are read, the same object for the same schema."""
    shapes = {id(s): Variant((), {f.name: f.type for f in s}) for s in schemas}
    return [shapes[id(s)] for s in schemas]
