"""Iceberg tables: the live files of a snapshot, pruned by the statistics in manifests, without the rows deleted."""

from __future__ import annotations

import os
import re
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from kartosql.errors import FormatError, StoreError, first_line, missing_file, reraise
from kartosql.formats.folder import ParquetSchemas
from kartosql.formats.iceberg import metadata as documents
from kartosql.formats.iceberg.columns import arrow_type, bound_reader, default_of, in_file, partition_reader
from kartosql.formats.iceberg.deletes import location, positions_of
from kartosql.formats.iceberg.metadata import invalid, unsupported
from kartosql.formats.kartothek.metadata import many_objects
from kartosql.formats.odf import times
from kartosql.formats.partition_table import PartitionTable, Variant
from kartosql.memo import memoized
from kartosql.parquet import GroupBounds
from kartosql.sources.attachments import AttachLocation, AttachOptions
from kartosql.sources.file_indexes import FileIndexes
from kartosql.sources.folder import OneTable, open_folder
from kartosql.sources.folder_table import FolderTable, FooterShapes
from kartosql.store import Store
from kartosql.store.keys import check_key
from kartosql.tables.statistics import ColumnBounds, is_told
from kartosql.tables.table import Deletes, KeyDeletes, Part, Plain, Table, exposed
from kartosql.text.secrets import harmless

MAX_PAST = 8  # tables of snapshots that are remembered
_PROPERTY = "catalog."  # storage options that begin so are properties of the catalog
_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16)  # seconds for which a writer may not be done with a file, or remove it
_METADATA_FILE = re.compile(r".*\.metadata\.json(\.gz)?", re.DOTALL)


@dataclass(frozen=True)
class _Place:
    """A folder below which files of a table lie: its name in metadata, the store, and how keys of it begin."""

    location: str
    store: Store
    prefix: str


@dataclass(frozen=True)
class _Column:
    id: int
    type: pa.DataType
    default: Any  # where files are older than it


class IcebergTable(OneTable):
    """A table of which each statement reads the newest snapshot; manifests are read once, as they never change."""

    described = "Iceberg table"

    def __init__(self, location: AttachLocation, options: AttachOptions) -> None:
        given = dict(location.given or {})
        self._properties = {k.removeprefix(_PROPERTY): given.pop(k) for k in [*given] if k.startswith(_PROPERTY)}
        self._location = replace(location, given=given) if given else replace(location, given=None)
        self._snapshot, self._moment = options.version("snapshot", "the number of a snapshot")
        self._named, self._identifier, self._data = map(options.text, ("catalog", "table", "data"))
        if self._named is not None and self._identifier is None:
            raise options.invalid("catalog", self._named, "an option TABLE 'namespace.name' with it")
        self._lock = threading.Lock()
        self._manifests: dict[str, list[ManifestEntry]] = {}
        self._schemas: dict[tuple[str, bool], ParquetSchemas] = {}
        self._tables: dict[tuple[str, int | None], tuple[Table, object]] = {}
        self._known: tuple[str, TableMetadata] | None = None
        self._places: list[_Place] = []
        self._root: _Place | None = None  # the folder above the metadata that were attached
        self._folder: Store | None = None  # of metadata files
        self._only: str | None = None  # the metadata file that was attached
        self._catalog: Any = None
        named = self._identifier and f"{location.url.rstrip('/')}/{self._identifier}"
        place = self._location if named is None else replace(self._location, url=named)
        self.file_indexes = FileIndexes(place, options.text("metadata"), self._present)
        try:
            if self._identifier is None:
                self._open(self._location.url.rstrip("/"))
            self._at()
        except BaseException:
            self.close()
            raise

    def _at(self, as_of: str | int | None = None) -> Table:
        wanted, moment = self._snapshot, self._moment
        if as_of is not None:
            wanted, moment = (as_of, None) if isinstance(as_of, int) else (None, times.asked(as_of))
        with self._lock:
            name, metadata = self._current()
            snapshot = documents.snapshot_of(metadata, wanted, moment, self._location.name)
            is_past = snapshot is not None and not (wanted is None and moment is None)
            key = name, snapshot.snapshot_id if snapshot is not None and is_past else None
            if key not in self._tables:
                while len(self._tables) >= MAX_PAST:
                    self._tables.pop(next(iter(self._tables)))
                with documents.decoding(self._location.url), many_objects():
                    schema = metadata.schema()
                    if snapshot is not None and is_past and snapshot.schema_id is not None:
                        schema = metadata.schema_by_id(snapshot.schema_id) or schema
                    self._tables[key] = self._table(metadata, snapshot, schema), None
            self._tables[key] = self.file_indexes.applied(*self._tables[key])
            return self._tables[key][0]

    def close(self) -> None:
        """Close the catalog."""
        if hasattr(self._catalog, "close"):
            self._catalog.close()

    # -- metadata ------------------------------------------------------------------------------

    def _open(self, url: str) -> None:
        """Find the folder of the metadata files, and the one above it."""
        if _METADATA_FILE.fullmatch(url):
            self._folder, self._only = open_folder(self._location)
            if self._only is None:
                raise missing_file(url, "ATTACH the root of a table, or one of its metadata files.")
            absolute = url if "://" in url else os.path.abspath(os.path.expanduser(url))
            above, _, name = absolute.rpartition("/")[0].rpartition("/")
            self._root = self._place(above) if name == "metadata" else None
        else:
            self._root = self._place(url)
            if self._root.store.is_local and not os.path.isdir(f"{self._root.store.root}/metadata"):
                documents.newest((), None, f"{url}/metadata")
            self._folder = Store(f"{url}/metadata", self._location.storage_options)

    def _asked(self) -> Any:
        """Return the table as the catalog has it, which is opened first; raises ``store-failed``."""
        from pyiceberg.catalog import load_catalog

        try:
            if self._catalog is None:
                defaults = {"uri": self._location.url, "init_catalog_tables": "false"}  # nothing is created
                self._catalog = load_catalog(self._named or "kartosql", **(defaults | self._properties))
            return self._catalog.load_table(self._identifier)
        except Exception as e:  # noqa: BLE001 - catalogs raise anything
            reraise(e, f"Cannot ask the catalog for {self._identifier!r}")
            raise StoreError(
                f"The catalog gives no table {self._identifier!r}: {first_line(harmless(e, self._properties))}",
                hint="CATALOG is its name; storage options that begin with 'catalog.' are its properties.",
            ) from None

    def _current(self) -> tuple[str, TableMetadata]:
        """Return the metadata that count now, with the name of their file."""
        if self._identifier is not None:
            table = self._asked()
            found = table.metadata_location, table.metadata
        else:
            assert self._folder is not None
            found = self._in_folder(self._folder, self._only)
        self._known, named = found, location(found[1].location)
        data = self._places[1:] or ([self._place(self._data)] if self._data is not None else [])
        root = self._root or next((p for p in self._places[:1] if p.location == named), None)
        self._places = [replace(root or self._place(found[1].location), location=named), *data]
        return found

    def _in_folder(self, folder: Store, only: str | None) -> tuple[str, TableMetadata]:
        for pause in (*_PAUSES, None):
            name = only or documents.HINT
            try:
                if only is None:
                    names = {e.name for e in folder.list_root() if not e.is_dir}
                    told = folder.read(documents.HINT, end=1024) if documents.HINT in names else b""
                    name = documents.newest(names, told.decode("utf-8", "replace").strip() or None, folder.url)
                if self._known is not None and self._known[0] == name:
                    return self._known
                return name, documents.parse(folder.read_metadata(name), f"{folder.url}/{name}")
            except KeyError:
                if pause is None:
                    raise missing_file(f"{folder.url}/{name}") from None
            except FormatError as e:
                if pause is None or e.code != "iceberg-invalid-metadata":
                    raise
            time.sleep(pause)
        raise AssertionError

    def _place(self, url: str) -> _Place:
        store = Store(url, self._location.options_for(url))
        return _Place(location(store.root if store.is_local else url), store, self._location.mounts.mount(store))

    def _key(self, path: str) -> tuple[_Place, str]:
        """Return where a path of metadata lies; raises ``unsafe-key`` for those that leave the table."""
        text = location(path)
        for place in self._places:
            own = place.store.root if place.store.is_local else location(place.store.url)
            for folder in (place.location, own):
                if text.startswith(f"{folder}/"):
                    return place, check_key(text[len(folder) + 1 :], source=place.store.url)
        raise FormatError(
            f"{self._location.url}: {path[:200]!r} lies outside of the table",
            code="unsafe-key",
            hint="The option DATA names another folder in which data files may lie.",
        )

    def _read(self, path: str, span: tuple[int, int] | None = None) -> bytes:
        place, key = self._key(path)
        try:
            return place.store.read_metadata(key) if span is None else place.store.read(key, start=span[0], end=span[1])
        except KeyError:
            raise missing_file(f"{place.store.url}/{key}", "Older snapshots may be whole.") from None

    def _live(self, snapshot: Snapshot | None) -> list[ManifestEntry]:
        """Return the live files of a snapshot, those that delete rows among them."""
        listed = documents.manifests_of(snapshot, self._read) if snapshot is not None else []
        new = [m for m in listed if m.manifest_path not in self._manifests]
        read = self._places[0].store.map(lambda manifest: documents.entries_of(manifest, self._read), new)
        known = self._manifests | {m.manifest_path: entries for m, entries in zip(new, read, strict=True)}
        self._manifests = {m.manifest_path: known[m.manifest_path] for m in listed}
        return [entry for entries in self._manifests.values() for entry in entries]

    # -- tables --------------------------------------------------------------------------------

    def _table(self, metadata: TableMetadata, snapshot: Snapshot | None, schema: Schema) -> Table:
        entries, name = self._live(snapshot), self._location.name
        specs = metadata.specs()
        if unknown := {e.data_file.spec_id for e in entries} - specs.keys():
            raise invalid(self._location.url, f"files are of the partition spec {max(unknown)}, which there is not")
        data = [e for e in entries if e.data_file.content == DataFileContent.DATA]
        deletes = [e for e in entries if e.data_file.content != DataFileContent.DATA]
        keys = {i for e in deletes for i in e.data_file.equality_ids or ()}
        visible, columns = self._columns(schema, metadata, keys)
        partitions, constants = _partitions(metadata, data, columns)
        rule = self._rule(metadata, data, deletes, columns) if deletes else Plain()
        files = self._files(data, columns, metadata, constants, partitions)
        types = {c: columns[c].type for c in visible}
        part = Part(name, files, tuple(types), rule)
        return Table(name, types, (part,), dict.fromkeys(types, name), exposed=exposed(types), is_attached=True)

    def _columns(self, schema: Schema, metadata: TableMetadata, keys: set[int]) -> tuple[list[str], dict[str, _Column]]:
        """Return the columns of a schema, and these and those of older schemas by which rows are deleted."""
        fields = {f.field_id: (f.name, f) for f in schema.fields}
        for one in reversed(metadata.schemas):
            for f in one.fields:
                if f.field_id in keys:
                    fields.setdefault(f.field_id, (f"__kartosql_field_{f.field_id}", f))
        found = {}
        for id_, (name, f) in fields.items():
            type_ = arrow_type(f.field_type, f"{self._location.url}: {name}")
            found[name] = _Column(id_, type_, default_of(f, type_, f"{self._location.url}: {name}"))
        if len(found) < len(fields):
            raise FormatError(f"{self._location.url}: a column is there twice", code="schema-conflict")
        return [f.name for f in schema.fields], found

    def _files(
        self,
        entries: Sequence[ManifestEntry],
        columns: Mapping[str, _Column],
        metadata: TableMetadata,
        constants: Sequence[Mapping[str, Any]],
        partitions: PartitionTable,
    ) -> FolderTable:
        """Return files as a table, with the values of columns that they need not hold."""
        places = [self._key(e.data_file.file_path) for e in entries]
        files = tuple(place.prefix + key for place, key in places)
        mapping = list(names.root) if (names := metadata.name_mapping()) is not None else []
        wanted = {c: known for c, known in columns.items() if c not in partitions.keys}
        sizes = {f: e.data_file.file_size_in_bytes for f, e in zip(files, entries, strict=True)}
        told = dict(zip(files, constants, strict=True))
        return FolderTable(
            uuid=self._location.name,
            schema=pa.schema([(c, known.type) for c, known in columns.items()]),
            labels=tuple(key for _, key in places),
            files=files,
            partitions=partitions,
            shapes=_ShapesById(self._location.mounts, sizes, self._schemas, True, wanted, told, mapping),
            has_footers=True,
            keeper=self,
            renames=True,
            identities={c: f"{known.id}={known.default!r}" for c, known in columns.items()},
            stamps=tuple(f"{e.data_file.file_size_in_bytes}-{e.sequence_number}" for e in entries),
            told=ManifestBounds([e.data_file for e in entries], columns),
        )

    def _rule(
        self,
        metadata: TableMetadata,
        data: Sequence[ManifestEntry],
        deletes: Sequence[ManifestEntry],
        columns: Mapping[str, _Column],
    ) -> Deletes:
        """Return which rows are deleted; raises ``unsupported-feature`` for keys that are no columns."""
        numbers: dict[tuple[Any, ...], int] = {}
        scope, scopes = ([_scope(e.data_file, numbers) for e in entries] for entries in (data, deletes))
        parted = {i: any(str(f.transform) != "void" for f in spec.fields) for i, spec in metadata.specs().items()}
        groups: dict[tuple[tuple[int, ...], bool], list[tuple[ManifestEntry, int]]] = {}
        for entry, partition in zip(deletes, scopes, strict=True):
            file = entry.data_file
            if file.content == DataFileContent.EQUALITY_DELETES:
                ids = tuple(sorted({*(file.equality_ids or ())}))
                groups.setdefault((ids, parted[file.spec_id]), []).append((entry, partition))
        named, keys = {known.id: name for name, known in columns.items()}, []
        for (ids, is_scoped), those in groups.items():
            entries = [entry for entry, _ in those]
            if not ids or not named.keys() >= {*ids}:
                raise unsupported(entries[0].data_file.file_path, "deletes by what is no column")
            own = {named[i]: columns[named[i]] for i in ids}
            none = PartitionTable((), (), (), 1, (0,) * len(entries))
            table = self._files(entries, own, metadata, [{}] * len(entries), none)
            within = [partition for _, partition in those] if is_scoped else []
            keys.append(KeyDeletes(table, tuple(own), [e.sequence_number or 0 for e in entries], within))
        positions = positions_of(data, deletes, scope, scopes, self._read)
        return Deletes(positions, tuple(keys), [e.sequence_number or 0 for e in data], scope)


def _scope(file: DataFile, numbers: dict[tuple[Any, ...], int]) -> int:
    """Return a number for the partition of a file, the same for the same one of one spec."""
    values = (file.partition[at] for at in range(len(file.partition)))
    return numbers.setdefault((file.spec_id, *("nan" if v != v else v for v in values)), len(numbers))


def _partitions(
    metadata: TableMetadata, entries: Sequence[ManifestEntry], columns: Mapping[str, _Column]
) -> tuple[PartitionTable, list[dict[str, Any]]]:
    """Return the values of columns by which all files are parted as they are, and for each file those of others."""
    identity = {
        i: {f.source_id: at for at, f in enumerate(spec.fields) if str(f.transform) == "identity"}
        for i, spec in metadata.specs().items()
    }
    found: dict[str, list[Any]] = {}
    constants: list[dict[str, Any]] = [{} for _ in entries]
    for name, column in columns.items():
        at = [identity[e.data_file.spec_id].get(column.id) for e in entries]
        parted = [
            (f, e.data_file.partition[p]) for f, (e, p) in enumerate(zip(entries, at, strict=True)) if p is not None
        ]
        read = partition_reader(column.type)
        values = {file: read(value) for file, value in parted}
        if entries and len(values) == len(entries) and _is_key(column.type) and ValueError not in values.values():
            found[name] = list(values.values())
        else:
            for file, value in values.items():
                constants[file][name] = value
    rows: dict[tuple[Any, ...], int] = {}
    parts = [rows.setdefault(row, len(rows)) for row in zip(*found.values(), strict=True)] or [0] * len(entries)
    types = tuple(columns[c].type for c in found)
    values_of = tuple(zip(*rows, strict=True)) if found else ()
    return PartitionTable(tuple(found), types, values_of, len(rows) or min(1, len(entries)), tuple(parts)), constants


def _is_key(type_: pa.DataType) -> bool:
    """Return whether values of a type are equal where they are the same: the zeros and NaN are not."""
    t = pa.types
    tests = (t.is_signed_integer, t.is_string, t.is_boolean, t.is_date32, t.is_timestamp)
    return any(test(type_) for test in tests)


@dataclass(frozen=True, eq=False)
class _ShapesById(FooterShapes):
    columns: Mapping[str, _Column]
    constants: Mapping[str, Mapping[str, Any]]
    mapping: Sequence[Any]  # of names to ids
    _known: dict[tuple[Any, ...], tuple[pa.Schema, Variant]] = field(default_factory=dict)

    def _shape(self, key: str, name: str, schema: pa.Schema) -> Variant:
        if (id(schema),) not in self._known:
            wanted = {c: (known.id, known.type) for c, known in self.columns.items()}
            self._known[id(schema),] = schema, in_file(schema, wanted, self.mapping, name)
        shape = self._known[id(schema),][1]
        given = {c: known.default for c, known in self.columns.items() if known.default is not None}
        given = {c: v for c, v in (given | dict(self.constants[key])).items() if c not in (shape.types or ())}
        if ValueError in given.values():
            raise unsupported(name, "the partition value of a column that is not in the file")
        if not given:
            return shape
        way = id(schema), *given.items()
        return self._known.setdefault(way, (schema, replace(shape, constants=given)))[1]


@dataclass(frozen=True, eq=False)
class ManifestBounds:
    """Bounds of columns in manifests; what they lack, or have in odd forms, is unknown."""

    files: Sequence[DataFile]
    columns: Mapping[str, _Column]
    kind = "manifest statistics"
    _found: dict[str, ColumnBounds | None] = field(default_factory=dict)

    @memoized
    def rows(self) -> Sequence[int]:
        """How many rows each file has, -1 where manifests do not tell it."""
        return [max(f.record_count, -1) for f in self.files]

    @many_objects()
    def column(self, name: str) -> ColumnBounds | None:
        """Return the bounds of a column, or None."""
        if name not in self._found:
            id_, type_ = self.columns[name].id, self.columns[name].type
            read = bound_reader(type_) if is_told(type_) else None
            told = [(n, _bounds(f, id_, read)) for n, f in enumerate(self.files)] if read is not None else []
            self._found[name] = ColumnBounds(type_).with_files({n: [b] for n, b in told if b}) if told else None
        return self._found[name]


def _bounds(file: DataFile, id_: int, read: Any) -> GroupBounds | None:
    rows, nulls = file.record_count, (file.null_value_counts or {}).get(id_, -1)
    low, high = ((bounds or {}).get(id_) for bounds in (file.lower_bounds, file.upper_bounds))
    try:
        if rows <= 0 or not -1 <= nulls <= rows:
            return None
        if nulls == rows:
            return GroupBounds(None, None, True, nulls, rows)
        least, most = read(low), read(high)
        return GroupBounds(least, most, False, nulls, rows) if least <= most else None
    except (ValueError, TypeError, OverflowError, struct.error):
        return None
