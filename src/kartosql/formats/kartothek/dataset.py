"""A dataset as it stands in one snapshot: its tables, files, partition values and indices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import pyarrow as pa

from kartosql.errors import FormatError, shorten
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.kartothek.partitions import parse_partitions, partition_type
from kartosql.formats.kartothek.places import Place, place_in
from kartosql.formats.partition_table import PartitionTable, Variant
from kartosql.memo import memoized
from kartosql.store import Store

Listed = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]  # labels and file keys by table


@dataclass(frozen=True)
class InvertedIndex:
    """Where the inverted index of one column is: a storage key, or the document itself."""

    column: str
    type: pa.DataType
    key: str | None
    embedded: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class DatasetTable:
    """One table of a dataset: its schema and its files, in the order of the document.

    What is derived from them is computed once and kept. Two of them are only equal if they are
    the same object, which a MetadataCache returns as long as the dataset did not change.
    """

    uuid: str
    table: str
    schema: pa.Schema
    partition_keys: tuple[str, ...]
    labels: tuple[str, ...]
    files: tuple[str, ...]
    indices: Mapping[str, InvertedIndex]
    metadata: Mapping[str, Any]

    @memoized
    def partitions(self) -> PartitionTable:
        """Partition values of all files, parsed at first use."""
        types = [self.schema.field(name).type for name in self.partition_keys]
        return parse_partitions(self.files, self.uuid, self.table, self.partition_keys, types)

    @property
    def skipping(self) -> Any:
        """Data-skipping metadata of the files (``tables.table.Skipping``), None if there are none."""
        return None

    @property
    def has_footers(self) -> bool:
        """Whether the files are Parquet files."""
        return True

    def variants(self, files: Sequence[int]) -> Iterable[Variant]:
        """Return files that are read alike."""
        return (Variant(files),)

    def only(self, file: int) -> DatasetTable:
        """Return the table of one of the files, without indices."""
        return replace(self, labels=(self.labels[file],), files=(self.files[file],), indices={})

    def display_name(self, file: int) -> str:
        """Return the name of a file as messages and reports have it."""
        return self.files[file]

    @memoized
    def all_files(self) -> frozenset[int]:
        """The positions of all files."""
        return frozenset(range(len(self.files)))

    @memoized
    def writes(self) -> Sequence[int]:
        """A number for each file, the same for files of one write, as far as their names tell."""
        if not self.files:
            return ()
        last = self.files[0][self.files[0].rfind("/") :]
        if naming.write_id(last) is not None and all(map(str.endswith, self.files, repeat(last))):
            return (0,) * len(self.files)
        number: dict[str, int] = {}
        ids = naming.write_ids(self.files)
        # A file with a name of another kind may be of any write; it gets a number of its own.
        return [at if write is None else number.setdefault(write, at) for at, write in enumerate(ids)]

    @memoized
    def types(self) -> dict[str, pa.DataType]:
        """Arrow type of every column, partition keys included."""
        types = {f.name: f.type for f in self.schema}
        if self.files:
            types |= {name: partition_type(types[name]) for name in self.partition_keys}
        return types


@dataclass(frozen=True, eq=False)
class SkippingTable(DatasetTable):
    """A table that has data-skipping metadata."""

    store: Store
    place: Place

    @memoized
    def skipping(self) -> Any:
        """Data-skipping metadata of the files."""
        from kartosql.formats.kartothek.skipping import DatasetSkipping

        return DatasetSkipping(self.store, self.place, f"{self.uuid}/{self.table}/", self.files)


@dataclass(frozen=True, eq=False)
class Dataset:
    """One dataset: its checked metadata document and the schema of each table."""

    document: DatasetDocument
    schemas: Mapping[str, pa.Schema]
    # Tables, labels and file keys found by listing, for documents without ``partitions``.
    listed: Listed | None = None
    # Where data-skipping metadata are read from.
    store: Store | None = None

    @property
    def uuid(self) -> str:
        """The dataset's uuid."""
        return self.document.uuid

    @memoized
    def tables(self) -> dict[str, DatasetTable]:
        """The tables by name."""
        return {name: self._table(name, schema) for name, schema in self.schemas.items()}

    def _files(self, table: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.listed is not None:
            return self.listed.get(table, ((), ()))
        column = self.document.files.get(table, ())
        labels = self.document.labels or ()
        if None not in column:
            return labels[: len(column)], column  # type: ignore[return-value]
        pairs = [(label, key) for label, key in zip(labels, column, strict=True) if key is not None]
        return tuple(label for label, _ in pairs), tuple(key for _, key in pairs)

    def _table(self, table: str, schema: pa.Schema) -> DatasetTable:
        labels, files = self._files(table)
        keys = self.document.partition_keys
        if keys is None:
            folder = naming.folder_of(files[0], self.uuid, table) if files else ""
            keys = naming.derive_partition_keys(folder)
        missing = [name for name in keys if name not in schema.names]
        if missing:
            key = naming.schema_key(self.uuid, table)
            raise FormatError(
                f"{key}: the partition key {shorten(missing[0])!r} is not in the schema", code="invalid-schema"
            )
        indices = {}
        for column, where in self.document.indices.items():
            if column in schema.names and column not in keys and not pa.types.is_null(schema.field(column).type):
                type_ = schema.field(column).type
                stored = isinstance(where, str)
                indices[column] = InvertedIndex(column, type_, where if stored else None, None if stored else where)
        place = place_in(self.document.metadata, self.uuid)
        made: Any = DatasetTable
        if place is not None and self.store is not None:
            made = partial(SkippingTable, store=self.store, place=place)
        table_: DatasetTable = made(
            uuid=self.uuid,
            table=table,
            schema=schema,
            partition_keys=keys,
            labels=labels,
            files=files,
            indices=indices,
            metadata=self.document.metadata,
        )
        return table_


def group_listed(uuid: str, keys: list[str]) -> Listed:
    """Return labels and file keys per table for a dataset whose document lists no partitions.

    ``keys`` are all keys below ``<uuid>/``, sorted. A label is the partition folders and the
    file name without its suffix.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for key in keys:
        parts = key.split("/")
        if len(parts) >= 3 and parts[1] != "indices" and key.endswith(".parquet"):
            found.setdefault(parts[1], []).append(("/".join(parts[2:]).removesuffix(".parquet"), key))
    return {t: (tuple(label for label, _ in rows), tuple(k for _, k in rows)) for t, rows in found.items()}
