"""Folders of files as tables, and those of Parquet files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from kartosql.errors import FormatError, UsageError
from kartosql.formats.folder.hive import partitions_of
from kartosql.formats.folder.parquet import ParquetSchemas
from kartosql.formats.partition_table import PartitionTable
from kartosql.formats.type_promotion import united
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.parquet.reader import open_footer
from kartosql.sources.folder_table import FileColumns, FolderTable
from kartosql.sources.owners import owner_above, owner_within
from kartosql.sources.skipping import FolderSkipping, metadata_of
from kartosql.sources.source import AttachLocation, AttachOptions
from kartosql.store import Store
from kartosql.store.listing import ListedFile, list_files, times_of
from kartosql.tables.names import Attached, Name, no_versions
from kartosql.tables.table import Table, file_table

if TYPE_CHECKING:
    from kartosql.formats.xskipper.refreshing import Sources
    from kartosql.formats.xskipper.scans import DataFile
    from kartosql.sources.indexing import FolderIndexes


class FolderReader(Protocol):
    """Tells the columns of files. ``reading`` tells how their texts are read, None where there is but one way."""

    kind: str
    reading: str | None

    def columns(self, files: Sequence[ListedFile], prefix: str) -> tuple[dict[str, pa.DataType], list[FileColumns]]:
        """Return the columns of all files together, and what each file is like."""

    def sources(self, files: Sequence[ListedFile], table: FolderTable, prefix: str) -> Sources:
        """Return how the rows of files are read for indexes."""

    def close(self) -> None:
        """Free what it holds."""


def parquet_folder(location: AttachLocation, options: AttachOptions) -> Folder:
    """Return a folder of Parquet files."""
    store, only = open_folder(location)
    return Folder(location, store, only, ParquetReader(store), options)


def open_folder(location: AttachLocation) -> tuple[Store, str | None]:
    """Return the store of a folder; for the URL of a file that of its folder, and its name."""
    url = location.url
    path = url.removeprefix("file://")
    if "://" not in path and os.path.isfile(os.path.expanduser(path)):
        folder, name = os.path.split(os.path.abspath(os.path.expanduser(path)))
        return Store(folder), name
    store = Store(url, location.storage_options)
    if not store.is_local and store.is_file():
        folder, _, name = url.rstrip("/").rpartition("/")
        return Store(folder, location.storage_options), name
    return store, None


class ParquetReader:
    """Columns of Parquet files, from their footers."""

    kind = "parquet"
    reading: str | None = None

    def __init__(self, store: Store) -> None:
        self._store = store
        self._url = store.url
        self._schemas = ParquetSchemas(store)

    def columns(self, files: Sequence[ListedFile], prefix: str) -> tuple[dict[str, pa.DataType], list[FileColumns]]:
        """Return the columns of all files together, and those of each."""
        schemas = self._schemas.read(files)
        shapes = {id(s): FileColumns({f.name: f.type for f in s}) for s in schemas}
        return united(schemas, [f.name for f in files], self._url), [shapes[id(s)] for s in schemas]

    def sources(self, files: Sequence[ListedFile], table: FolderTable, prefix: str) -> Sources:
        """Return how the rows of files are read for indexes: by Arrow, from footers where these tell enough."""
        from kartosql.formats.xskipper.refreshing import Sources
        from kartosql.formats.xskipper.scans import parquet_scan

        def still(files: Sequence[DataFile]) -> list[int | None]:
            return times_of(self._store, [f.key for f in files])

        return Sources(parquet_scan(self._store), partial(open_footer, self._store), still)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class Folder:
    """A folder that each statement lists anew; what did not change is the same table as before."""

    def __init__(
        self, location: AttachLocation, store: Store, only: str | None, reader: FolderReader, options: AttachOptions
    ) -> None:
        self._location = location
        self._store = store
        self._only = only
        self._reader = reader
        self._hive = options.truth("hive_partitioning", True)
        self._typed = options.truth("hive_types_autocast", True)
        self._metadata = metadata_of(location, options)
        if self._metadata is not None:
            self._metadata.is_file, self._metadata.reading = only is not None, reader.reading
        self._skipping: MetadataStore | None = None
        self._lock = threading.Lock()
        self._listed: list[ListedFile] = []
        self._source: Table | None = None
        self._prefix = location.mounts.mount(store)
        try:
            if only is None and (owner := owner_above(store)) is not None:
                raise owner.error(store.url)
            self.find(())
        except BaseException:
            self.close()
            raise

    def now(self) -> Mapping[str, Attached]:
        """Return the table by its name."""
        return {self._location.name: self}

    def tables(self) -> Sequence[tuple[Name, str]]:
        """Return name and kind of the table."""
        return [((self._location.name,), f"{self._reader.kind} files")]

    def close(self) -> None:
        """Forget the files; statements that were made may still read them."""
        self._reader.close()

    def skipping_indexes(self) -> FolderIndexes:
        """Return the skipping indexes of the folder as it stands now; raises ``no-metadata-folder`` without one."""
        from kartosql.sources.indexing import FolderIndexes

        name = self._location.name
        if self._metadata is None:
            raise UsageError(
                f"{name!r} was attached without a place for its data-skipping metadata.",
                code="no-metadata-folder",
                hint="ATTACH OR REPLACE '...' AS t (TYPE ..., METADATA 'folder') gives one.",
            )
        source = self.find(())
        assert source is not None
        table = source.parts[0].table
        assert isinstance(table, FolderTable)
        with self._lock:
            files = self._listed
            sources = self._reader.sources(files, table, self._prefix)
        return FolderIndexes(name, table, files, self._metadata, sources)

    def find(self, rest: Name, as_of: str | None = None) -> Table | None:
        """Return the table as it stands now; raises ``no-files`` and what is wrong with the files."""
        if rest:
            return None
        if as_of is not None:
            raise no_versions(self._location.name)
        with self._lock:
            listed = self._list()
            if self._source is None or listed != self._listed:
                self._source = self._made(listed)
                self._listed, self._skipping = listed, None
            if self._metadata is not None and (found := self._metadata.now()) is not self._skipping:
                self._source = self._with_metadata(self._source, found)
                self._skipping = found
            return self._source

    def _with_metadata(self, source: Table, metadata: MetadataStore | None) -> Table:
        """Return a table whose files are known to data-skipping metadata."""
        table = source.parts[0].table
        assert isinstance(table, FolderTable)
        skipping = None
        if metadata is not None and self._metadata is not None:
            skipping = FolderSkipping(self._metadata, metadata, self._listed, is_text=not table.has_footers)
        return _folder_table(source.name, replace(table, skipping=skipping))

    def _list(self) -> list[ListedFile]:
        """Return the files whose rows count."""
        left_out: set[str] = set()
        listed = list_files(self._store, self._only, left_out)
        self._check_free(left_out)
        return listed

    def _check_free(self, names: Iterable[str]) -> None:
        """Raise ``foreign-table`` if names in the folder tell that a table format decides which rows count."""
        owner = owner_within(self._store.url.rstrip("/"), names) if self._only is None else None
        if owner is not None:
            raise owner.error(self._store.url)

    def _made(self, listed: list[ListedFile]) -> Table:
        if not listed:
            raise FormatError(
                f"{self._store.url}: there are no files",
                code="no-files",
                hint="Names that begin with . or _ and empty files do not count; check the path.",
            )
        names = [f.name for f in listed]
        self._check_free(names)
        before = {f.name: f.state for f in self._listed}
        if any(before.get(f.name, f.state) != f.state for f in listed):
            # Whatever is remembered of the keys was about other contents.
            self._prefix = self._location.mounts.mount(self._store)
            self._location.runtime.forget()
        columns, shapes = self._reader.columns(listed, self._prefix)
        none = PartitionTable((), (), (), 1, (0,) * len(names))
        values = partitions_of(names, self._store.url, typed=self._typed) if self._hive else none
        keys = {key.lower() for key in values.keys}
        types = {c: t for c, t in columns.items() if c.lower() not in keys}
        different = list({id(s): s for s in shapes}.values())
        position = {id(s): at for at, s in enumerate(different)}
        fields = [*types.items(), *zip(values.keys, values.types, strict=True)]
        table = FolderTable(
            uuid=self._location.name,
            schema=pa.schema(fields),
            labels=tuple(names),
            files=tuple(self._prefix + name for name in names),
            partitions=values,
            shapes=tuple(different),
            shape_of=tuple(position[id(s)] for s in shapes),
            has_footers=self._reader.kind != "csv",
            keeper=self._store,
        )
        return _folder_table(self._location.name, table)


def _folder_table(name: str, table: FolderTable) -> Table:
    return file_table(name, table, name, is_attached=True, is_indexable=True)
