"""Folders of files as tables, and those of Parquet files."""

from __future__ import annotations

import os
import re
import threading
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from kartosql.errors import FormatError
from kartosql.formats.folder import ParquetSchemas, partitions_of
from kartosql.formats.kartothek.naming import METADATA_JSON, METADATA_MSGPACK
from kartosql.formats.partition_table import PartitionTable, Variant
from kartosql.formats.type_promotion import united
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.sources.attachments import ICEBERG_METADATA, MARKS, AttachLocation, Attachment, AttachOptions
from kartosql.sources.file_indexes import FileIndexes
from kartosql.sources.folder_metadata import FolderSkipping, metadata_of
from kartosql.sources.folder_table import FolderTable, shapes_of
from kartosql.sql.attach_parse import TYPES
from kartosql.store import Store
from kartosql.store.listing import ListedFile, list_files, settle, times_of
from kartosql.tables.names import Attached, Name, no_versions
from kartosql.tables.table import Table, file_table

if TYPE_CHECKING:
    from kartosql.formats.xskipper.refreshing import Sources
    from kartosql.formats.xskipper.scans import DataFile
    from kartosql.write.skipping import SkippingIndexWriter


class OneTable(Attachment):
    """An attachment that is one table of files, under the name that it was attached as."""

    described: ClassVar[str]  # what it is, in listings
    file_indexes: FileIndexes
    _location: AttachLocation

    def now(self) -> Mapping[str, Attached]:
        """Return the table by its name."""
        return {self._location.name: self}

    def tables(self) -> Sequence[tuple[Name, str]]:
        """Return its name and what it is."""
        return [((self._location.name,), self.described)]

    def find(self, rest: Name, as_of: str | int | None = None) -> Table | None:
        """Return the table as of now, as a version or at a time; it has no tables below it."""
        return None if rest else self._at(as_of)

    @abstractmethod
    def _at(self, as_of: str | int | None = None) -> Table:
        """Return the table as of now, as a version or at a time; raises what is wrong with it."""

    def skipping_indexes(self, spark: Any = None) -> SkippingIndexWriter[Any]:
        """Return the skipping indexes of the table as of now; executors of ``spark`` read the files, if it is given."""
        from kartosql.sources.indexing import TableIndexes

        return TableIndexes(self._location.name, self._present(), self.file_indexes, spark=spark)

    def _present(self) -> FolderTable:
        return files_of(self._at())


def files_of(source: Table) -> FolderTable:
    """Return the files that a table is made of."""
    table = source.parts[0].table
    assert isinstance(table, FolderTable)
    return table


class Folder(OneTable):
    """A folder that each statement lists anew; what did not change is the same table as before.

    ``reading`` says how the texts of files are read, None where there is but one way.
    """

    has_footers = True
    reading: str | None = None

    def __init__(self, location: AttachLocation, options: AttachOptions) -> None:
        self._location = location
        self._store, self._only = open_folder(location)
        self._begin(options)
        self._hive = options.truth("hive_partitioning")
        self._typed = options.truth("hive_types_autocast")
        self._metadata = metadata_of(location, options)
        if self._metadata is not None:
            self._metadata.is_file, self._metadata.reading = self._only is not None, self.reading
        self._skipping: MetadataStore | None = None
        self._indexed: object = None
        self.file_indexes = FileIndexes(
            location, None if self._metadata is None else self._metadata.place, self._present, self._settle
        )
        self._lock = threading.Lock()
        self._listed: list[ListedFile] = []
        self._source: Table | None = None
        self._prefix = location.mounts.mount(self._store)
        try:
            if self._only is None and (error := _foreign_above(self._store)) is not None:
                raise error
            self._at()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _begin(self, options: AttachOptions) -> None:
        """Take the options of the kind of files."""

    @abstractmethod
    def _columns(self, files: Sequence[ListedFile]) -> tuple[dict[str, pa.DataType], list[Variant]]:
        """Return the columns of all files together, and how each file is read, without files."""

    @abstractmethod
    def _sources(self, files: Sequence[ListedFile], table: FolderTable) -> Sources:
        """Return how the rows of files are read for indexes."""

    def _times(self, files: Sequence[DataFile]) -> list[int | None]:
        return times_of(self._store, [f.key for f in files])

    def skipping_indexes(self, spark: Any = None) -> SkippingIndexWriter[Any]:
        """Return the skipping indexes of the folder as of now, where METADATA says, or beside its inverted ones."""
        from kartosql.sources.indexing import FolderIndexes, TableIndexes

        table = self._present()
        with self._lock:
            files = self._listed
            sources = self._sources(files, table)
        if self._metadata is not None:
            return FolderIndexes(self._location.name, table, files, self._metadata, sources, spark)
        then = {f.name: f.stamp for f in files}

        def still(those: Sequence[DataFile]) -> list[int | None]:
            now = {f.name: f.stamp for f in list_files(self._store, self._only)}
            return [f.modified_ms if now.get(f.key) == then[f.key] else None for f in those]

        return TableIndexes(self._location.name, table, self.file_indexes, replace(sources, still=still), spark)

    def _settle(self) -> None:
        settle(self._listed)

    def _at(self, as_of: str | int | None = None) -> Table:
        if as_of is not None:
            raise no_versions(self._location.name)
        with self._lock:
            hidden: set[str] = set()
            listed = list_files(self._store, self._only, hidden)
            self._check_free(hidden)
            if self._source is None or listed != self._listed:
                self._source = self._build_table(listed)
                self._listed, self._skipping, self._indexed = listed, None, None
            if self._metadata is not None and (found := self._metadata.now()) is not self._skipping:
                self._skipping, table = found, files_of(self._source)
                known = found and FolderSkipping(self._metadata, found, listed, is_text=not table.has_footers)
                self._source = _folder_table(self._source.name, replace(table, skipping=known))
            self._source, self._indexed = self.file_indexes.applied(self._source, self._indexed)
            return self._source

    def _check_free(self, names: Iterable[str]) -> None:
        """Raise ``foreign-table`` if names in the folder show that a table format decides which rows count."""
        if self._only is None and (error := _foreign_within(self._store.url, names)) is not None:
            raise error

    def _build_table(self, listed: list[ListedFile]) -> Table:
        if not listed:
            hint = "Names that begin with . or _ and empty files do not count; check the path."
            raise FormatError(f"{self._store.url}: there are no files", code="no-files", hint=hint)
        names = [f.name for f in listed]
        self._check_free(names)
        before = {f.name: f.state for f in self._listed}
        if any(before.get(f.name, f.state) != f.state for f in listed):
            # Whatever is remembered of the keys was about other contents.
            self._prefix = self._location.mounts.mount(self._store)
            self._location.runtime.forget()
        columns, shapes = self._columns(listed)
        none = PartitionTable((), (), (), 1, (0,) * len(names))
        values = partitions_of(names, self._store.url, typed=self._typed) if self._hive else none
        keys = {key.lower() for key in values.keys}
        types = {c: t for c, t in columns.items() if c.lower() not in keys}
        reading = "" if self.reading is None else f"-{zlib.crc32(self.reading.encode())}"
        fields = [*types.items(), *zip(values.keys, values.types, strict=True)]
        table = FolderTable(
            uuid=self._location.name,
            schema=pa.schema(fields),
            labels=tuple(names),
            files=tuple(self._prefix + name for name in names),
            partitions=values,
            shapes=tuple(shapes),
            has_footers=self.has_footers,
            keeper=self._store,
            stamps=tuple(f"{f.stamp}{reading}" if f.stamp else "" for f in listed),
        )
        return _folder_table(self._location.name, table)


class ParquetFolder(Folder):
    """A folder of Parquet files, with columns from their footers."""

    described = "parquet files"

    def _begin(self, options: AttachOptions) -> None:
        self._schemas = ParquetSchemas(self._store)

    def _columns(self, files: Sequence[ListedFile]) -> tuple[dict[str, pa.DataType], list[Variant]]:
        schemas = self._schemas.read(files)
        return united(schemas, [f.name for f in files], self._store.url), shapes_of(schemas)

    def _sources(self, files: Sequence[ListedFile], table: FolderTable) -> Sources:
        # By Arrow, from footers where these tell enough.
        from kartosql.formats.xskipper.refreshing import Sources
        from kartosql.formats.xskipper.scans import parquet_scan

        return Sources(parquet_scan(self._store), self._times)


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


def _folder_table(name: str, table: FolderTable) -> Table:
    return file_table(name, table, name, is_attached=True)


_READER = (
    "Its files hold rows, too, that were deleted or replaced. Read it with a reader of that format, such as {reader}, "
    "and keep the rows that count: con.create_dataset('t', rows)."
)
_ATTACH = "ATTACH '{root}' AS name (TYPE {type}) reads the rows that count."
# What a folder belongs to, who reads its rows where we do not, and what lies there: at the root of the table, or below.
_FORMATS = {
    "delta": ("a Delta table", ""),
    "hudi": ("a Hudi table", "hudi or Spark"),
    "iceberg": ("an Iceberg table", ""),
    "stream": ("a stream that Spark writes", "Spark"),
    "kartothek": ("a Kartothek dataset", ""),
    "odf": ("a dataset of Open Data Fabric", ""),
}
_WITHIN = re.compile(
    r"(?:(?P<root>.*)/)?(?:(?P<delta>_delta_log)|(?P<hudi>\.hoodie[^/]*)|(?P<stream>_spark_metadata)|(?P<odf>refs/head)"
    rf"|(?P<iceberg>metadata/{ICEBERG_METADATA})"
    rf"|(?P<kartothek>[^/]+(?:{re.escape(METADATA_JSON)}|{re.escape(METADATA_MSGPACK)})))",
    re.DOTALL,
)
_DATA = (".parquet", ".csv")


def _foreign(url: str, kind: str, root: str, mark: str) -> FormatError:
    """Return the error about attaching files that belong to a table format, given its mark."""
    name, reader = _FORMATS[kind]
    hint = _ATTACH if kind in TYPES else _READER
    return FormatError(
        f"{url}: the files belong to {name}, as {mark} tells",
        code="foreign-table",
        hint=hint.format(root=root, type=kind, reader=reader),
    )


def _foreign_within(url: str, names: Iterable[str]) -> FormatError | None:
    """Return the error about files of a table format, if the ``names`` of a listing, hidden ones included, show one."""
    folder = url.rstrip("/")
    for name in names:
        if not name.endswith(_DATA) and (found := _WITHIN.fullmatch(name)):
            assert found.lastgroup is not None
            root = f"{folder}/{found['root']}" if found["root"] else folder
            return _foreign(url, found.lastgroup, root, f"{folder}/{name}")
    return None


def _foreign_above(store: Store) -> FormatError | None:
    """Return the error about a folder that a table beside it or above owns, as far as the store can be asked."""
    # A few questions for each folder above, all at once; nothing is listed but folders called metadata.
    path = os.path.realpath(store.root or "/") if store.is_local else store.root
    url = path if store.is_local else store.url.rstrip("/")
    asked: list[tuple[str, str, str]] = []
    while "/" in path:
        path, _, name = path.rpartition("/")
        if path.endswith(("/", ":")):
            break  # what is left is the protocol
        url = url.rpartition("/")[0]
        asked += [(kind, url, f"{path}/{mark}") for kind, mark in MARKS.items()]
        asked += [("kartothek", url, f"{path}/{name}{suffix}") for suffix in (METADATA_JSON, METADATA_MSGPACK)]
        asked.append(("iceberg", url, f"{path}/metadata"))
    look = partial(_mark, store)
    found = map(look, asked) if store.is_local else store.map(look, asked)
    return next((error for error in found if error is not None), None)


def _mark(store: Store, asked: tuple[str, str, str]) -> FormatError | None:
    """Return the error if the mark of a table is there; what cannot be asked is no mark."""
    kind, root, path = asked
    try:
        if kind == "iceberg":
            names = (e["name"].rstrip("/").rpartition("/")[2] for e in store.fs.ls(path, detail=True))
            path = f"{path}/{next(name for name in names if re.fullmatch(ICEBERG_METADATA, name))}"
        elif not (os.path.lexists(path) if store.is_local else store.fs.exists(path)):
            return None
    except Exception:  # noqa: BLE001 - folders above may not be open to whoever reads this one
        return None
    return _foreign(store.url, kind, root, path)
