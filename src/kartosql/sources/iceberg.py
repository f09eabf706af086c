"""Iceberg tables: the live files of a snapshot, pruned by the statistics in manifests, without the rows deleted."""

from __future__ import annotations

import os
import re
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from kartosql.errors import FormatError, StoreError, first_line, missing_file, reraise
from kartosql.formats.folder import ParquetSchemas
from kartosql.formats.iceberg import metadata as documents
from kartosql.formats.iceberg.avro import BOUNDS, COUNTS, of_key
from kartosql.formats.iceberg.columns import arrow_type, bound_values, default_of, in_file, partition_reader
from kartosql.formats.iceberg.deletes import DeleteFile, delete_file, location, positions_of
from kartosql.formats.iceberg.metadata import Entries, invalid, unsupported
from kartosql.formats.kartothek.metadata import pause_garbage_collection
from kartosql.formats.odf import times
from kartosql.formats.partition_table import PartitionTable, Variant
from kartosql.memo import memoized
from kartosql.sources.attachments import AttachLocation, AttachOptions
from kartosql.sources.file_indexes import FileIndexes
from kartosql.sources.folder import OneTable, open_folder
from kartosql.sources.folder_table import FolderTable, FooterShapes
from kartosql.store import Store
from kartosql.store.keys import check_key
from kartosql.tables.statistics import ColumnBounds, has_ordered_bounds, nothing_of
from kartosql.tables.table import Deletes, KeyDeletes, Part, Plain, Table, exposed
from kartosql.text.secrets import harmless

MAX_PAST = 8  # tables of snapshots that are remembered
_PROPERTY = "catalog."  # storage options that begin so are properties of the catalog
_PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16)  # seconds for which a writer may not be done with a file, or remove it
# Paths that are looked at one by one: empty, absolute, with dots, or long.
_ODD, _LONG = r"://|^$|^/|(^|/)\.{1,2}(/|$)|/$|[\x00-\x1f]", 250
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
        self._manifests: dict[str, Entries] = {}
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
            wanted, moment = (as_of, None) if isinstance(as_of, int) else (None, times.statement_time(as_of))
        with self._lock:
            name, metadata = self._current()
            snapshot = documents.snapshot_of(metadata, wanted, moment, self._location.name)
            is_past = snapshot is not None and not (wanted is None and moment is None)
            key = name, snapshot.snapshot_id if snapshot is not None and is_past else None
            if key not in self._tables:
                while len(self._tables) >= MAX_PAST:
                    self._tables.pop(next(iter(self._tables)))
                with documents.decoding(self._location.url), pause_garbage_collection():
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

    def _load_table(self) -> Any:
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
            table = self._load_table()
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

    def _live(self, snapshot: Snapshot | None) -> tuple[Entries, Entries]:
        """Return the live data files of a snapshot, and those that delete rows."""
        listed = documents.manifests_of(snapshot, self._read) if snapshot is not None else []
        new = [m for m in listed if m.manifest_path not in self._manifests]
        cache = self._location.runtime.footers.user_cache
        read = self._places[0].store.map(lambda manifest: documents.entries_of(manifest, self._read, cache), new)
        known = self._manifests | {m.manifest_path: entries for m, entries in zip(new, read, strict=True)}
        self._manifests = {m.manifest_path: known[m.manifest_path] for m in listed}
        deleting = {m.manifest_path for m in listed if m.content}
        data, deletes = ([e for p, e in self._manifests.items() if (p in deleting) == which] for which in (False, True))
        return Entries.of(data), Entries.of(deletes)

    # -- tables --------------------------------------------------------------------------------

    def _table(self, metadata: TableMetadata, snapshot: Snapshot | None, schema: Schema) -> Table:
        (data, deleting), name = self._live(snapshot), self._location.name
        if unknown := {spec for spec, _ in (*data.partitions, *deleting.partitions)} - metadata.specs().keys():
            raise invalid(self._location.url, f"files are of the partition spec {max(unknown)}, which there is not")
        numbers: dict[tuple[Any, ...], int] = {}
        scope, deletes = data.scopes(numbers), _deletes(metadata, deleting, deleting.scopes(numbers))
        visible, columns = self._columns(schema, metadata, {id_ for one in deletes for id_ in one.keys})
        partitions, constants = _partitions(metadata, data, columns)
        rule = self._rule(metadata, data, scope, deleting, deletes, columns) if deletes else Plain()
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
        entries: Entries,
        columns: Mapping[str, _Column],
        metadata: TableMetadata,
        constants: Sequence[Mapping[str, Any]],
        partitions: PartitionTable,
    ) -> FolderTable:
        """Return files as a table, with the values of columns that they need not hold."""
        found = entries.files
        places = self._keys(found["path"], metadata)
        files = tuple([prefix + key for prefix, key in places])
        mapping = list(names.root) if (names := metadata.name_mapping()) is not None else []
        wanted = {c: known for c, known in columns.items() if c not in partitions.keys}
        sizes = dict(zip(files, found["size"].to_pylist(), strict=True))
        told = dict(zip(files, constants, strict=True))
        return FolderTable(
            uuid=self._location.name,
            schema=pa.schema([(c, known.type) for c, known in columns.items()]),
            labels=tuple([key for _, key in places]),
            files=files,
            partitions=partitions,
            shapes=_ShapesById(self._location.mounts, sizes, self._schemas, True, wanted, told, mapping),
            has_footers=True,
            keeper=self,
            renames=True,
            identities={c: f"{known.id}={known.default!r}" for c, known in columns.items()},
            stamps=tuple(map("{}-{}".format, found["size"].to_pylist(), found["sequence"].to_pylist())),
            stored_bounds=ManifestBounds(found, columns),
        )

    def _keys(self, paths: pa.ChunkedArray, metadata: TableMetadata) -> list[tuple[str, str]]:
        """Return how the keys of files begin, and their paths behind that; raises ``unsafe-key``."""
        begin, first = metadata.location.rstrip("/") + "/", self._places[0]
        if location(begin) == first.location and pc.all(pc.starts_with(paths, begin)).as_py():
            rest = pc.utf8_slice_codeunits(paths, len(begin))
            is_odd = pc.or_(pc.match_substring_regex(rest, _ODD), pc.greater(pc.binary_length(rest), _LONG))
            if not pc.any(is_odd).as_py():
                return [(first.prefix, key) for key in rest.to_pylist()]
        return [(place.prefix, key) for place, key in map(self._key, paths.to_pylist())]

    def _rule(
        self,
        metadata: TableMetadata,
        data: Entries,
        scope: Sequence[int],
        deleting: Entries,
        deletes: Sequence[DeleteFile],
        columns: Mapping[str, _Column],
    ) -> Deletes:
        """Return which rows are deleted; raises ``unsupported-feature`` for keys that are no columns."""
        groups: dict[tuple[Sequence[int], bool], list[int]] = {}
        for at, one in enumerate(deletes):
            if one.keys:
                groups.setdefault((one.keys, one.is_scoped), []).append(at)
        named, keys = {known.id: name for name, known in columns.items()}, []
        for (ids, is_scoped), those in groups.items():
            if not named.keys() >= {*ids}:
                raise unsupported(deletes[those[0]].path, "deletes by what is no column")
            own = {named[i]: columns[named[i]] for i in ids}
            none = PartitionTable((), (), (), 1, (0,) * len(those))
            table = self._files(deleting.some(those), own, metadata, [{}] * len(those), none)
            within = [deletes[at].scope for at in those] if is_scoped else []
            keys.append(KeyDeletes(table, tuple(own), [deletes[at].sequence for at in those], within))
        sequence = [number or 0 for number in data.files["sequence"].to_pylist()]
        by_position = [one for one in deletes if not one.keys]
        positions = positions_of(data.files["path"].to_pylist(), sequence, scope, by_position, self._read)
        return Deletes(positions, tuple(keys), sequence, scope)


def _deletes(metadata: TableMetadata, files: Entries, scopes: Sequence[int]) -> list[DeleteFile]:
    parted = {i: any(str(f.transform) != "void" for f in spec.fields) for i, spec in metadata.specs().items()}
    every = zip(files.files.to_pylist(), files.partition, scopes, strict=True)
    return [delete_file(row, scope, is_scoped=parted[files.partitions[at][0]]) for row, at, scope in every]


def _partitions(
    metadata: TableMetadata, files: Entries, columns: Mapping[str, _Column]
) -> tuple[PartitionTable, list[dict[str, Any]]]:
    """Return the values of columns by which all files are parted as they are, and for each file those of others."""
    identity = {
        i: {f.source_id: at for at, f in enumerate(spec.fields) if str(f.transform) == "identity"}
        for i, spec in metadata.specs().items()
    }
    found: dict[str, list[Any]] = {}
    constants: list[dict[str, Any]] = [{} for _ in files.partitions]
    for name, column in columns.items():
        read, values = partition_reader(column.type), dict[int, Any]()
        for part, (spec, parted) in enumerate(files.partitions):
            if (at := identity[spec].get(column.id)) is not None:
                values[part] = read(parted[at])
        is_whole = values and len(values) == len(files.partitions)
        if is_whole and _is_key(column.type) and ValueError not in values.values():
            found[name] = list(values.values())
        else:
            for part, value in values.items():
                constants[part][name] = value
    rows: dict[tuple[Any, ...], int] = {}
    parts = [rows.setdefault(row, len(rows)) for row in zip(*found.values(), strict=True)] or [0] * len(constants)
    types = tuple(columns[c].type for c in found)
    values_of = tuple(zip(*rows, strict=True)) if found else ()
    of_file, count = [parts[part] for part in files.partition], len(rows) or min(1, len(files.partition))
    table = PartitionTable(tuple(found), types, values_of, count, tuple(of_file))
    return table, [constants[part] for part in files.partition]


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

    files: pa.Table  # of ``Entries``
    columns: Mapping[str, _Column]
    kind = "manifest statistics"
    _found: dict[str, ColumnBounds | None] = field(default_factory=dict)

    @memoized
    def rows(self) -> Sequence[int]:
        """How many rows each file has, -1 where manifests do not tell it."""
        return [max(count, -1) for count in self.files["rows"].to_pylist()]

    @pause_garbage_collection()
    def column(self, name: str) -> ColumnBounds | None:
        """Return the bounds of a column, or None."""
        if name not in self._found:
            column = self.columns[name]
            self._found[name] = self._bounds(column.id, column.type) if has_ordered_bounds(column.type) else None
        return self._found[name]

    def _bounds(self, id_: int, type_: pa.DataType) -> ColumnBounds:
        rows, maps = self.files["rows"].to_pylist(), (("nulls", COUNTS), ("low", BOUNDS), ("high", BOUNDS))
        counted, *ends = (of_key(how, self.files[name].to_pylist(), id_) for name, how in maps)
        nulls, (low, high) = [-1 if n is None else n for n in counted], (bound_values(type_, end) for end in ends)
        told = [file for file, known in enumerate(zip(rows, nulls, low, high, strict=True)) if _is_sound(*known)]
        is_empty, nothing = [nulls[file] == rows[file] for file in told], nothing_of(type_)
        some, all_ = (array("q", [count[file] for file in told]) for count in (nulls, rows))
        found = ColumnBounds(type_, array("i", told), some, all_, array("b", is_empty))
        for held, values in ((found.low, low), (found.high, high)):
            held.extend([nothing if e else values[file] for file, e in zip(told, is_empty, strict=True)])
        found.seen = found.complete = frozenset(told)
        return found


def _is_sound(rows: int, nulls: int, low: Any, high: Any) -> bool:
    """Return whether bounds are such as a file may have; they mean nothing where all is NULL."""
    return rows > 0 and -1 <= nulls <= rows and (nulls == rows or (None not in (low, high) and low <= high))
