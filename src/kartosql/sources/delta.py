"""Delta tables: the live files of a version, pruned by the statistics in the log, without the rows deleted."""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import FormatError
from kartosql.formats.arrays import constant
from kartosql.formats.delta.log import FILES, Log, Snapshot, broken, partition_texts
from kartosql.formats.delta.schema import PHYSICAL, columns_of, in_files, value_reader
from kartosql.formats.delta.statistics import FileStatistics
from kartosql.formats.delta.vectors import positions_of
from kartosql.formats.folder import ParquetSchemas, unescape
from kartosql.formats.odf import times
from kartosql.formats.partition_table import PartitionTable, Variant, numbered
from kartosql.formats.type_promotion import plain
from kartosql.memo import memoized
from kartosql.sources.attachments import AttachLocation, AttachOptions
from kartosql.sources.file_indexes import FileIndexes
from kartosql.sources.folder import OneTable
from kartosql.sources.folder_table import FolderTable, FooterShapes
from kartosql.store import Store
from kartosql.store.keys import check_key
from kartosql.store.urls import is_below
from kartosql.tables.statistics import ColumnBounds
from kartosql.tables.table import Deletes, Part, Plain, Table, exposed
from kartosql.text.types import type_name

MAX_PAST = 4  # versions of the past that are remembered
# Paths that are looked at one by one: encoded, absolute or with dots.
_ODD = r"%|:|^/|(^|/)\.{0,2}(/|$)|[\x00-\x1f]"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/{1,3}")
_MILLISECOND = 1_000  # to which writers cut moments
_EXACT_DIGITS = 15  # of decimals that writers may have turned into DOUBLE


@dataclass(frozen=True, eq=False)
class LogStatistics:
    """Statistics of columns in the log."""

    told: FileStatistics
    types: Mapping[str, pa.DataType]
    kind = "log statistics"
    _found: dict[str, ColumnBounds] = field(default_factory=dict)

    @memoized
    def rows(self) -> Sequence[int]:
        """How many rows each file has, -1 where the log does not tell it."""
        count = self.told.of("")["rows"].combine_chunks()
        found: list[int] = pc.if_else(_true(pc.greater_equal(count, _ZERO)), count, _UNKNOWN).to_pylist()
        return found

    def column(self, name: str) -> ColumnBounds | None:
        """Return the bounds of a column in those files that have them in the log."""
        if name in self.told and name not in self._found:
            self._found[name] = self._bounds(name, self.types[name])
        return self._found.get(name)

    def _bounds(self, name: str, type_: pa.DataType) -> ColumnBounds:
        count, tight, low, high, nulls = (c.combine_chunks() for c in self.told.of(name).columns)
        is_rough = _true(pc.invert(tight))
        is_vague = pc.and_(is_rough, _true(pc.and_(pc.greater(nulls, _ZERO), pc.less(nulls, count))))
        is_sound = pc.and_(pc.greater_equal(nulls, _ZERO), pc.less_equal(nulls, count))
        is_sound = pc.or_(_true(is_sound), pc.is_null(nulls))
        nulls = pc.fill_null(pc.if_else(is_vague, _UNKNOWN, nulls), _UNKNOWN)
        is_empty = _true(pc.equal(nulls, count))
        is_told = pc.or_(is_empty, _true(pc.less_equal(low, high)))
        kept = pc.and_(pc.and_(is_told, is_sound), _true(pc.greater_equal(count, _ZERO)))
        is_exact = pc.invert(is_rough)
        for bound in (low, high) if pa.types.is_string(type_) else ():
            is_exact = pc.and_(is_exact, pc.less(pc.binary_length(bound), _SHORT_TEXT))
        is_exact = pc.or_(is_empty, _true(is_exact) if _is_exact(type_) else constant(False, pa.bool_()))
        whole, counted, exact = (c.filter(kept).to_pylist() for c in (nulls, count, is_exact))
        bounds = [_stored(b.filter(kept), type_, is_empty.filter(kept), sign) for b, sign in ((low, -1), (high, 1))]
        files = pc.indices_nonzero(kept).to_pylist()
        numbers = array("i", files), array("q", whole), array("q", counted), array("b", exact)
        told = frozenset(files)
        return ColumnBounds(type_, *numbers, bounds[0], bounds[1], told, told)


_ZERO, _UNKNOWN, _SHORT_TEXT = (constant(n, pa.int64()) for n in (0, -1, 32))  # bytes; longer texts may be cut


def _true(mask: pa.Array) -> pa.Array:
    return pc.fill_null(mask, constant(False, pa.bool_()))


def _is_exact(type_: pa.DataType) -> bool:
    """Return whether bounds in the log are values of the column; moments are cut, and long numbers rounded."""
    t = pa.types
    is_long = t.is_decimal(type_) and type_.precision > _EXACT_DIGITS
    return not (t.is_timestamp(type_) or t.is_floating(type_) or is_long)


def _stored(bounds: pa.Array, type_: pa.DataType, is_empty: pa.Array, sign: int) -> Any:
    """Return bounds as ColumnBounds holds them, moved in the direction of ``sign`` by what writers may cut."""
    t = pa.types
    if t.is_string(type_):
        return [text or "" for text in bounds.to_pylist()]
    if t.is_decimal(type_):
        data = pa.concat_arrays([bounds]).buffers()[1] or b""
        found = [int.from_bytes(data[16 * at : 16 * at + 16], "little", signed=True) for at in range(len(bounds))]
        more = [0 if _is_exact(type_) else sign * ((abs(v) >> 50) + 1) for v in found]
        values = [0 if is_null else v + m for v, m, is_null in zip(found, more, is_empty.to_pylist(), strict=True)]
        return values if type_.precision > 18 else array("q", values)
    wide = bounds.cast(pa.int32()) if t.is_date32(type_) else bounds
    wide = wide.cast(pa.float64() if t.is_floating(type_) else pa.int64())
    if t.is_timestamp(type_):
        wide = pc.add(wide, constant(sign * _MILLISECOND, pa.int64()))
    wide = pc.if_else(is_empty, constant(0, wide.type), wide)
    return array("d" if t.is_floating(type_) else "q", wide.to_pylist())


@dataclass(frozen=True, eq=False)
class _Shapes(FooterShapes):
    columns: Sequence[pa.Field]  # those in files
    mode: str  # how files name columns
    _known: dict[int, tuple[pa.Schema, Variant]] = field(default_factory=dict)

    def _shape(self, key: str, name: str, schema: pa.Schema) -> Variant:
        if id(schema) not in self._known:
            fields = in_files(self.columns, schema, self.mode, name)
            types, names = {c: f.type for c, f in fields.items()}, {c: f.name for c, f in fields.items() if f.name != c}
            self._known[id(schema)] = schema, Variant((), types, names=names)
        return self._known[id(schema)][1]


class DeltaSource(OneTable):
    """A Delta table that each statement reads as of its newest version, unless it was attached with one."""

    described = "Delta table"

    def __init__(self, location: AttachLocation, options: AttachOptions) -> None:
        self._location = location
        (version, moment), source = options.version("version", "a number from 0"), options.text("clone_of")
        self.store = Store(location.url, location.storage_options)
        self._clone = None if source is None else (source, Store(source, location.options_for(source)))
        self._log = Log(self.store)
        self._lock = threading.Lock()
        self._newest: Snapshot | None = None
        self._made: dict[int, tuple[Table, FileStatistics, object]] = {}
        self.file_indexes = FileIndexes(location, options.text("metadata"), self._present)
        self._mount()
        self._version = version if moment is None else self._log.version_at(moment)
        self._at()

    def _mount(self) -> None:
        """Give the files keys of their own; what was remembered of others is about another table."""
        mounts, stores = self._location.mounts, [self.store, *(() if self._clone is None else self._clone[1:])]
        self._prefixes = [mounts.mount(store) for store in stores]
        self._schemas: dict[tuple[str, bool], ParquetSchemas] = {}
        self._vectors: dict[tuple[Any, ...], pa.Array] = {}
        self._made.clear()

    def _at(self, as_of: str | int | None = None) -> Table:
        with self._lock:
            version = self._version if as_of is None else as_of
            if isinstance(version, str):
                version = self._log.version_at(times.statement_time(version))
            if version is None:
                return self._following()
            if version not in self._made:
                snapshot = self._log.at(version)
                while len(self._made) > MAX_PAST:
                    del self._made[next(v for v in self._made if self._newest is None or v != self._newest.version)]
                self._made[version] = (*self._table(snapshot, None), None)
            return self._indexed(version)

    def _indexed(self, version: int) -> Table:
        """Return a version with the indices as they are now."""
        table, told, seen = self._made[version]
        table, seen = self.file_indexes.applied(table, seen)
        self._made[version] = table, told, seen
        return table

    def _following(self) -> Table:
        """Return the newest version, made of the one before it as far as that goes."""
        known = self._newest
        snapshot = self._log.newest(known)
        if snapshot is not known or snapshot.version not in self._made:
            before = None if known is None else self._made.pop(known.version, None)
            if known is not None and snapshot is not known and snapshot.kept is None:
                self._mount()  # the log was begun anew
                self._location.runtime.forget()
            self._made[snapshot.version] = (*self._table(snapshot, None if before is None else before[1]), None)
            self._newest = snapshot
        return self._indexed(snapshot.version)

    # -- one version -----------------------------------------------------------------------------

    def _table(self, snapshot: Snapshot, before: FileStatistics | None) -> tuple[Table, FileStatistics]:
        url, name, files = self.store.url, self._location.name, snapshot.files
        fields, keys, mode = columns_of(snapshot.metadata, url)
        types = {f.name: plain(f.type) for f in fields}
        physical = {f.name: f.metadata[PHYSICAL].decode() for f in fields}
        stored = [f for f in fields if f.name not in keys]
        told = FileStatistics(files, stored, before, snapshot.kept)
        labels = [self._key(path) for path in files["path"].to_pylist()] if self._are_odd(files) else None
        named = files["path"].to_pylist() if labels is None else [label for label, _ in labels]
        begin = self._prefixes[0]
        places = [begin + p for p in named] if labels is None else [self._prefixes[at] + p for p, at in labels]
        if len({*places}) < len(places):
            raise broken(url, f"the version {snapshot.version} has a file twice")
        sizes = dict(zip(places, files["size"].to_pylist(), strict=True))
        table = FolderTable(
            uuid=name,
            schema=pa.schema(list(types.items())),
            labels=tuple(named),
            files=tuple(places),
            partitions=_partitions(files, {key: types[key] for key in keys}, physical, url),
            shapes=_Shapes(self._location.mounts, sizes, self._schemas, mode == "id", stored, mode),
            has_footers=True,
            keeper=self,
            renames=mode != "none",
            identities=physical,
            stamps=tuple(map("{}-{}".format, files["size"].to_pylist(), files["modificationTime"].to_pylist())),
            stored_bounds=LogStatistics(told, types),
        )
        positions = self._positions(table, files)
        part = Part(name, table, tuple(types), Deletes(positions) if positions else Plain())
        owner = dict.fromkeys(types, name)
        return Table(name, types, (part,), owner, exposed=exposed(types), is_attached=True), told

    def _are_odd(self, files: pa.Table) -> bool:
        if files["path"].null_count or files["size"].null_count:
            raise broken(self.store.url, "a file has no path or no size")
        return bool(pc.any(pc.match_substring_regex(files["path"], _ODD)).as_py())

    def _key(self, path: str) -> tuple[str, int]:
        """Return the name of a file in one of the stores, and the number of that; raises ``unsafe-key``."""
        path = unescape(path)
        roots = [self._location.url, *(() if self._clone is None else self._clone[:1])]
        if path.startswith("/") or _URL.match(path):
            path = path.replace("file:/", "/", 1).replace("///", "/", 1) if path.startswith("file:") else path
            at = next((at for at, root in enumerate(roots) if is_below(path, root)), None)
            if at is None:
                raise FormatError(
                    f"{self.store.url}: the file {path[:200]!r} lies outside of the table",
                    code="unsafe-key",
                    hint="If the table is a shallow clone, the option CLONE_OF names the folder of its source.",
                )
            store = (self.store, *(() if self._clone is None else self._clone[1:]))[at]
            begin = store.root if store.is_local else store.address[0].rstrip("/")
            return check_key(path.removeprefix(begin).lstrip("/"), source=self.store.url), at
        return check_key(path, source=self.store.url), 0

    def _positions(self, table: FolderTable, files: pa.Table) -> Mapping[int, pa.Array]:
        """Return the deleted rows of those files that have some, read when they are asked for."""
        kinds = files["dv.storageType"].combine_chunks()
        names = [n.removeprefix("dv.") for n in FILES.names if n.startswith("dv.")]
        marked = pc.indices_nonzero(pc.is_valid(kinds))
        rows = files.take(marked).select([f"dv.{n}" for n in names]).rename_columns(names).to_pylist()
        vectors = {file: row for file, row in zip(marked.to_pylist(), rows, strict=True) if row["cardinality"] != 0}
        live = {tuple(v.values()) for v in vectors.values()}
        self._vectors = {key: found for key, found in self._vectors.items() if key in live}
        return _Positions(vectors, table.labels, self._vectors, self._vector)

    def _vector(self, path: str, start: int, end: int) -> bytes:
        name, at = self._key(path)
        return (self.store if at == 0 or self._clone is None else self._clone[1]).read(name, start=start, end=end)


@dataclass(frozen=True)
class _Positions(Mapping[int, pa.Array]):
    vectors: Mapping[int, Mapping[str, Any]]
    labels: Sequence[str]
    read: dict[tuple[Any, ...], pa.Array]
    reading: Any

    def __getitem__(self, file: int) -> pa.Array:
        vector = self.vectors[file]
        key = tuple(vector.values())
        if key not in self.read:
            self.read[key] = positions_of(vector, self.reading, self.labels[file])
        return self.read[key]

    def __contains__(self, file: object) -> bool:
        return file in self.vectors

    def __iter__(self) -> Iterator[int]:
        return iter(self.vectors)

    def __len__(self) -> int:
        return len(self.vectors)


def _partitions(
    files: pa.Table, keys: Mapping[str, pa.DataType], physical: Mapping[str, str], name: str
) -> PartitionTable:
    """Return the partition values of the files; raises ``delta-invalid-log`` for texts that are no such values."""
    if not keys:
        return PartitionTable((), (), (), min(1, files.num_rows), (0,) * files.num_rows)
    texts = [partition_texts(files, physical[key]).combine_chunks().dictionary_encode("encode") for key in keys]
    codes: list[Any] = [encoded.indices.to_pylist() for encoded in texts]
    different, part_of_file = numbered(codes[0] if len(codes) == 1 else list(zip(*codes, strict=True)))
    columns = []
    for at, (key, type_) in enumerate(keys.items()):
        read, named = value_reader(type_), texts[at].dictionary.to_pylist()
        values = [named[code if len(codes) == 1 else code[at]] for code in different]
        try:
            known = {text: read(text) for text in {*values} - {None}}
        except (ValueError, KeyError, ArithmeticError) as e:
            raise broken(
                name, f"a partition of {key!r} has the value {str(e)[:80]}, which is no {type_name(type_)}"
            ) from None
        columns.append([None if text is None else known[text] for text in values])
    return PartitionTable(tuple(keys), tuple(keys.values()), tuple(columns), len(different), part_of_file)
