"""Indices of what is attached: where they lie, how they are built file by file, and what is known of them."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError, SqlError, UsageError
from kartosql.formats.arrays import array_of
from kartosql.formats.kartothek.dataset import InvertedIndex
from kartosql.formats.partition_table import PartitionTable, Variant
from kartosql.formats.segments import FILES, Segment, SegmentedIndex, digest_of, key_type, stamps_as_bytes
from kartosql.formats.xskipper.domain import ColumnType
from kartosql.formats.xskipper.store import MetadataSkipping, MetadataStore, Warned
from kartosql.indexes.metadata_terms import column_type
from kartosql.parquet import MAX_FOOTER, read_footer
from kartosql.sources.attachments import AttachLocation
from kartosql.sources.folder_table import FolderTable
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER, OutcomeUnknown, PreconditionFailed
from kartosql.store.urls import is_local_url, path_of
from kartosql.tables.table import Table, file_table
from kartosql.text.constants import quote
from kartosql.text.secrets import redacted
from kartosql.text.types import type_name
from kartosql.write.document import attempts
from kartosql.write.indexing import KEYS, distinct
from kartosql.write.inputs import invalid_data, keys_for
from kartosql.write.layout import is_index_type

if TYPE_CHECKING:
    from kartosql.write.operation import Operation

VERSION = 1
GROUP_ROWS = 1 << 14  # pairs in a row group, which is what a lookup reads
BATCHES = 16  # times the memory of a write that the files of a segment have, as they are sorted on disk
SMALL, MOST_SMALL = 1_000_000, 8  # segments of fewer pairs, of which more are made one
TRIES = 2  # to read an index that others replace meanwhile
ROUNDS = 5  # to index files while somebody else removes some of them
_NAME = re.compile(r"[0-9a-f]{32}\.parquet")
Rows = Callable[[str, Table], Iterable[pa.RecordBatch]]  # those of a query over a table
# Of a column of some files of a table: keys with the numbers of the files, sorted.
Pairs = Callable[[FolderTable, str, ColumnType, Sequence[int]], Iterator[pa.Table]]


class Listed(NamedTuple):
    """An index as the list of a table has it."""

    type: ColumnType
    segments: tuple[Segment, ...]


class IndexLists(NamedTuple):
    """The list of a table: its inverted indices by column, and what each change of its skipping indexes changes."""

    indexes: Mapping[str, Listed]
    skipping: str | None = None


class FileIndexes:
    """The indices of one table that is attached, in a folder below ``metadata``, or in the connection's store.

    ``current`` returns the table as of now; ``settle`` waits until files that are written from then on have
    other stamps.
    """

    def __init__(
        self,
        location: AttachLocation,
        metadata: str | None,
        current: Callable[[], FolderTable],
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        url = os.path.realpath(path_of(location.url)) if is_local_url(location.url) else location.url.rstrip("/")
        name = re.sub(r"[^A-Za-z0-9-]+", "-", url.rpartition("/")[2])[:40]
        self._folder = f".kartosql/{name}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
        self._url, self._location, self._metadata = redacted(url), location, metadata
        self._current, self.settle = current, settle
        self._opened: Store | None = location.access.store if metadata is None else None
        self._tell = Warned("Indices")
        self._data: bytes | None = None
        self._known = IndexLists({})
        self._skipping: tuple[str | None, MetadataStore] | None = None

    @property
    def key(self) -> str:
        """The key of the list of indices."""
        return f"{self._folder}/indexes.json"

    @property
    def skipping_folder(self) -> str:
        """The folder of skipping indexes in the store of indices."""
        return f"{self._folder}/skipping"

    def store(self, *, create: bool = False) -> Store:
        """Return the store of the indices; raises ``store-not-found`` and its like."""
        if self._opened is None:
            assert self._metadata is not None
            self._opened = Store(self._metadata, self._location.options_for(self._metadata), create=create)
        return self._opened

    # -- what is known -----------------------------------------------------------------------

    def now(self) -> IndexLists:
        """Return what the list says, the same object as long as it does not change; all that is wrong only warns."""
        data = None
        try:
            with contextlib.suppress(KeyError):
                data = self.store().read_metadata(self.key)
            if data != self._data:
                self._data, known, self._known = data, self._known, IndexLists({})
                self._known = self._parsed(data, known.indexes)
        except KartosqlError as e:
            if e.code != "store-not-found":
                self._tell(e.message)
        return self._known

    def _parsed(self, data: bytes | None, known: Mapping[str, Listed]) -> IndexLists:
        """Return what a list of indices says; raises ``invalid-index`` and ``unsupported-version``."""
        if data is None:
            return IndexLists({})
        same = {s: s for listed in known.values() for s in listed.segments}  # whose footers were read
        found = {}
        try:
            told = json.loads(data)
            if told["version"] != VERSION:
                raise FormatError(f"{self.key}: it is of a newer version", code="unsupported-version")
            for column, (type_, segments) in told["indexes"].items():
                own = ColumnType(*type_)
                key_type(own)
                made = [
                    Segment(self.store(), self._key_of(name), int(size), str(digest), int(pairs), own)
                    for name, size, digest, pairs in segments
                ]
                found[str(column)] = Listed(own, tuple(same.get(s, s) for s in made))
            skipping = told.get("skipping")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as e:
            raise FormatError(f"{self.key}: it is no list of indices: {e}", code="invalid-index") from None
        return IndexLists(found, None if skipping is None else str(skipping))

    def _key_of(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no segment")
        return f"{self._folder}/{name}"

    def indices(self, table: FolderTable) -> dict[str, InvertedIndex]:
        """Return the indices that can be used for a state of the table."""
        found = {}
        for column, (type_, segments) in self.now().indexes.items():
            own = table.types.get(column)
            if own is not None and column not in table.partition_keys and column_type(own) == type_:
                index = self._index(table, type_, segments, _stamps(table, column))
                again = partial(self._again, column, index, TRIES)
                found[column] = InvertedIndex(column, own, self.key, segments=replace(index, again=again))
        return found

    def _index(
        self, table: FolderTable, type_: ColumnType, segments: Sequence[Segment], stamps: Sequence[str]
    ) -> SegmentedIndex:
        files = dict(zip(table.labels, enumerate(stamps), strict=False))
        return SegmentedIndex(type_, segments, files, len(table.files), self._location.mounts.is_local, self._tell)

    def _again(self, column: str, index: SegmentedIndex, left: int) -> SegmentedIndex:
        """Return an index of which segments are gone as the list has it now; the last one reports what is gone."""
        listed = self.now().indexes.get(column)
        segments = listed.segments if listed is not None and listed.type == index.type else ()
        newer = replace(index, segments=segments, again=None)
        is_last = segments == index.segments or left < 1
        return newer if is_last else replace(newer, again=partial(self._again, column, newer, left - 1))

    def applied(self, source: Table, seen: object) -> tuple[Table, object]:
        """Return a table with the indices as they are now, and these; the same if they are those ``seen`` before."""
        known = self.now()
        if known is seen or not (any(known) or seen):
            return source, seen
        part, *others = source.parts
        table: Any = part.table
        files = replace(table, indices=self.indices(table))
        if table.skipping is None or isinstance(table.skipping, FileSkipping):  # else they lie where somebody said
            skipping = None if known.skipping is None else FileSkipping(self, table, known.skipping, self._tell)
            files = replace(files, skipping=skipping)
        return replace(source, parts=(replace(part, table=files), *others)), known

    def places(
        self, table: FolderTable, files: Sequence[int]
    ) -> Iterator[tuple[Variant, Store, list[tuple[int, str]]]]:
        """Yield files, by their positions, that are read alike and are in one store, with their keys there."""
        for variant in table.variants(files):
            found: dict[int, tuple[Store, list[tuple[int, str]]]] = {}
            for file in variant.files:
                store, key = self._location.mounts.place(table.files[file])
                found.setdefault(id(store), (store, []))[1].append((file, key))
            yield from ((variant, *own) for own in found.values())

    def skipping(self, seen: str | None) -> MetadataStore:
        """Return the metadata of skipping indexes as of a change that was ``seen``; None opens them anew."""
        if seen is None or self._skipping is None or self._skipping[0] != seen:
            self._skipping = seen, MetadataStore.below(self.store(), self.skipping_folder)
        return self._skipping[1]

    # -- what is built -----------------------------------------------------------------------

    def create(
        self, columns: Sequence[str], rows: Rows, operation: Operation, grace: dt.timedelta
    ) -> list[dict[str, Any]]:
        """Index the files that indices of some columns have not seen, and return what was done by column.

        What was indexed stays, whatever happens later. Segments that nothing names go after a ``grace`` period. Files
        are read by ``rows``, or by executors if the ``operation`` has a session of Spark.
        """
        read = partial(_pairs, rows) if operation.spark is None else partial(self._by_executors, operation)
        done, store = [self._create(c, read, BATCHES * operation.options.memory) for c in columns], self.store()
        known = {s.key for listed in self.now().indexes.values() for s in listed.segments}
        found, before = store.details(f"{self._folder}/"), store.now() - grace
        old = (k for k in found if k not in known and found[k].modified < before)
        ours = (k for k in old if k.endswith(".parquet") or f"/{SIDE_FOLDER}/" in k)
        store.delete([k for k in ours if not k.startswith(f"{self.skipping_folder}/")])
        return done

    def _create(self, column: str, read: Pairs, most: int) -> dict[str, Any]:
        added = removed = 0
        for at in range(ROUNDS):
            table = self._current()
            type_ = _checked_type(table, column)
            self.settle()
            self.store(create=True)
            listed = self.now().indexes.get(column)
            stamps = _stamps(table, column)
            index = self._index(table, type_, listed.segments if listed and listed.type == type_ else (), stamps)
            stays, seen, missing = _retained(index)
            removed += missing
            todo = [f for f, stamp in enumerate(stamps) if stamp and f not in seen]
            gone = {s.key for s in listed.segments} - stays if listed else set()
            try:
                for some in _batches(todo, stamps, most) or [[]]:
                    made = [self._segment(table, column, type_, {f: stamps[f] for f in some}, read)] if some else []
                    self._swap(column, Listed(type_, tuple(made)), gone)
                    added += len(some)
                break
            except FormatError:
                if at == ROUNDS - 1 or self._current().stamps == table.stamps:
                    raise  # else somebody removed files meanwhile
        kept, size = len(table.files) - len(todo), sum(s.size for s in self.now().indexes[column].segments)
        unindexed = len(table.files) - len(seen) - len(todo)
        counts = {"added": added, "removed": removed, "kept": kept - unindexed, "unindexed": unindexed, "bytes": size}
        return {"column": column, **counts}

    def _segment(
        self, table: FolderTable, column: str, type_: ColumnType, stamps: Mapping[int, str], read: Pairs
    ) -> Segment:
        """Write the segment of files with some stamps, which nothing names yet."""
        import pyarrow.parquet as pq  # takes long to import

        store, key, pairs = self.store(), f"{self._folder}/{uuid.uuid4().hex}.parquet", 0
        schema = _schema(type_)
        encodings = {pa.int64(): "DELTA_BINARY_PACKED", pa.binary(): "DELTA_BYTE_ARRAY"}
        options: dict[str, Any] = {
            "column_encoding": {KEYS[0]: encodings.get(schema.types[0], "PLAIN"), KEYS[1]: "DELTA_BINARY_PACKED"},
            **{"compression": "zstd", "use_dictionary": False, "write_page_checksum": True, "store_schema": False},
        }
        with store.output(key) as sink, pq.ParquetWriter(sink, schema, **options) as writer:
            for piece in _even(distinct(read(table, column, type_, [*stamps]))):
                writer.write_table(piece, row_group_size=GROUP_ROWS)
                pairs += piece.num_rows
            writer.add_key_value_metadata({FILES: stamps_as_bytes({table.labels[f]: s for f, s in stamps.items()})})
        size = store.size(key) or 0
        footer = read_footer(store, key, size, most=MAX_FOOTER)
        if footer is None:
            raise FormatError(f"{key}: it is of too many files", code="too-large", hint="Attach less of the folder.")
        return Segment(store, key, size, digest_of(footer), pairs, type_)

    def _by_executors(
        self, operation: Operation, table: FolderTable, column: str, type_: ColumnType, files: Sequence[int]
    ) -> Iterator[pa.Table]:
        """Yield keys of files with the numbers of these, sorted."""
        from kartosql.write.spark.upkeep import keys_of_files

        places, given, numbers = [], [], {file: number for number, file in enumerate(files)}
        schema = _schema(type_)
        for variant, store, own in self.places(table, files):
            if column in variant.constants:
                value = array_of([variant.constants[column]], table.types[column]).drop_null()
                keys = keys_for(value, column, type_)
                ids = [numbers[file] for file, _ in own for _ in keys]
                given.append(pa.table([keys.take(pa.array([0] * len(ids), pa.int64())), ids], schema=schema))
            elif (name := variant.stored(column)) is not None:
                places.append((store, [(numbers[file], key) for file, key in own], name))
        read = keys_of_files(operation.spark, self.store(), self._folder, places, table.types[column], type_)
        assert operation.options.sorter is not None
        return operation.options.sorter.sort(chain(given, read), schema, KEYS, operation.options.memory)

    def _swap(self, column: str, added: Listed | None, gone: Iterable[str]) -> None:
        """Change the index of a column in the list, or drop it; of others the latest state stays."""

        def changed(known: IndexLists) -> IndexLists:
            indexes = dict(known.indexes)
            former = indexes.pop(column, None)
            if added is not None:
                old = former.segments if former is not None and former.type == added.type else ()
                stays = [s for s in old if s.key not in gone and s not in added.segments]
                indexes[column] = Listed(added.type, (*stays, *added.segments))
            return known._replace(indexes=indexes)

        self._change(changed)

    def note_skipping(self, *, is_there: bool = True) -> None:
        """Note in the list that skipping indexes changed, or that there are none any more."""
        self._change(lambda known: known._replace(skipping=uuid.uuid4().hex if is_there else None))

    def _change(self, changed: Callable[[IndexLists], IndexLists]) -> None:
        store = self.store()
        for _ in attempts(self.key):
            data, version, known = None, None, IndexLists({})
            with contextlib.suppress(KeyError):
                data, version = store.read_versioned(self.key)
            try:
                known = self._parsed(data, {})
            except FormatError as e:
                if e.code == "unsupported-version":
                    raise  # what is damaged is built again
            known = changed(known)
            listed = {
                name: (astuple(type_), [(s.key.rpartition("/")[2], s.size, s.digest, s.pairs) for s in segments])
                for name, (type_, segments) in known.indexes.items()
            }
            told = {"version": VERSION, "table": self._url, "indexes": listed, "skipping": known.skipping}
            made = json.dumps(told).encode()
            with contextlib.suppress(PreconditionFailed, OutcomeUnknown):  # to be looked at again
                store.put_if(self.key, made, version)
                return

    def drop(self, columns: Sequence[str]) -> None:
        """Drop the indices of some columns; raises ``not-indexed``."""
        listed = self.now().indexes
        for column in columns:
            if column not in listed:
                message, known = f"{self._location.name!r}: {column!r} has no index.", ", ".join(listed) or "none"
                raise UsageError(message, code="not-indexed", hint=f"Indices: {known}.")
        for column in columns:
            self._swap(column, None, ())
            self.store().delete([s.key for s in listed[column].segments])


class FileSkipping(MetadataSkipping):
    """What skipping indexes beside the inverted ones say about the files of a table, read when they are first asked."""

    def __init__(self, indexes: FileIndexes, table: FolderTable, seen: str, tell: Warned) -> None:
        self._indexes, self._seen, self._tell = indexes, seen, tell
        self._names, self._identities = object_names(table), identities(table)
        self._shown = indexes.skipping_folder

    def _look(self) -> None:
        found = self._indexes.skipping(self._seen)
        if found is self._metadata:
            return
        # Of another column with the name of one that was indexed, nothing is known.
        is_same = all(self._is_same(segment.schema.reading) for segment in found.segments)
        self._metadata, self._files = found, [(name if is_same else "", 0) for name in self._names]

    def _is_same(self, reading: str | None) -> bool:
        return reading is not None and json.loads(reading).items() <= self._identities.items()

    def _look_again(self) -> bool:
        self._indexes.skipping(None)
        return True


def object_names(table: FolderTable) -> list[str]:
    """Return the files of a table as skipping indexes name them, by what changes with them; empty names if unknown."""
    twins = {label for label, count in Counter(table.labels).items() if count > 1}
    return [
        f"{label}#{stamp}" if stamp and label not in twins else ""
        for label, stamp in zip(table.labels, table.stamps, strict=True)
    ]


def identities(table: FolderTable) -> dict[str, str]:
    """Return what distinguishes columns from others of their names, by those in lower case; none of twins."""
    twins = Counter(map(str.lower, table.types))
    own = {name: type_ for name, type_ in table.types.items() if twins[name.lower()] == 1}
    known = {name: table.identity(name) for name in own if name not in table.partition_keys}
    return {name.lower(): f"{identity}={own[name]}" for name, identity in known.items() if identity is not None}


def _retained(index: SegmentedIndex) -> tuple[set[str], set[int], int]:
    """Return the segments that stay, the files that they have seen, and how many they have that are gone."""
    # Many small ones, and those of which few files are left, do not stay: their files are indexed anew.
    stays: set[str] = set()
    seen: set[int] = set()
    missing = 0
    few = sum(s.pairs < SMALL for s, _ in index.readable) <= MOST_SMALL
    for segment, places in index.readable:
        there = set(places.to_pylist()) - {-1} - seen
        missing += len(places) - len(there)
        if 2 * len(there) >= len(places) and (few or segment.pairs >= SMALL):
            seen |= there
            stays.add(segment.key)
    return stays, seen, missing


def _checked_type(table: FolderTable, column: str) -> ColumnType:
    """Return what an index knows of a column; raises ``unknown-column`` and ``invalid-data``."""
    type_ = table.types.get(column)
    if type_ is None:
        message = f"{table.uuid!r} has no column {column!r}."
        raise SqlError(message, code="unknown-column", hint=f"Columns: {', '.join(table.types)}.")
    if column in table.partition_keys:
        raise invalid_data(table.uuid, f"{column!r} is a partition column, which needs no index")
    found = column_type(type_)
    if found is None or not (is_index_type(type_) or pa.types.is_decimal(type_)):
        raise invalid_data(table.uuid, f"{column!r} is {type_name(type_)}, which cannot be indexed")
    return found


def _stamps(table: FolderTable, column: str) -> Sequence[str]:
    """Return the stamps of files with what identifies the column; empty ones if unknown."""
    identity = table.identity(column)
    if identity is None:
        return [""] * len(table.stamps)
    return [stamp and f"{stamp}-{identity}" for stamp in table.stamps] if identity else table.stamps


def _batches(files: Sequence[int], stamps: Sequence[str], most: int) -> list[list[int]]:
    """Cut files into those that are indexed at once."""
    found: list[list[int]] = []
    room = 0
    for file in files:
        size = int(stamps[file].lstrip("-").partition("-")[0])
        if not found or size > room:
            found.append([])
            room = most
        found[-1].append(file)
        room -= size
    return found


def _numbered(table: FolderTable, files: Sequence[int]) -> tuple[Table, str]:
    """Return some files of a table with one more column, their numbers, and its name."""
    number = "kartosql_file"
    while any(name.lower() == number for name in table.types):
        number += "_"
    some, count = table.some(files), len(files)
    values = some.partitions
    columns = (*([c[p] for p in values.part_of_file] for c in values.columns), range(count))
    keys, types = (*values.keys, number), (*values.types, pa.int32())
    schema = some.schema.append(pa.field(number, pa.int32()))
    found = replace(some, schema=schema, partitions=PartitionTable(keys, types, columns, count, range(count)))
    return file_table("indexed", found, "indexed"), number


def _schema(type_: ColumnType) -> pa.Schema:
    return pa.schema([(KEYS[0], key_type(type_)), (KEYS[1], pa.int32())])


def _pairs(rows: Rows, table: FolderTable, column: str, type_: ColumnType, files: Sequence[int]) -> Iterator[pa.Table]:
    """Yield values of files as keys with the numbers of these, sorted by DuckDB; raises ``invalid-data``."""
    source, number = _numbered(table, files)
    name = quote(source.exposed.get(column, column))
    no_nan = f" AND NOT isnan({name})" if type_.family in ("float", "double") else ""
    sql = f"SELECT {name}, {number} FROM indexed WHERE {name} IS NOT NULL{no_nan} ORDER BY 1, 2"
    for batch in rows(sql, source):
        if batch.num_rows:
            yield pa.table([keys_for(batch.column(0), column, type_), batch.column(1)], schema=_schema(type_))


def _even(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of whole row groups, but for the last one."""
    rest: pa.Table | None = None
    for table in tables:
        rest = table if rest is None else pa.concat_tables([rest, table])
        whole = rest.num_rows - rest.num_rows % GROUP_ROWS
        if whole:
            yield rest.slice(0, whole)
            rest = rest.slice(whole)
    if rest is not None and rest.num_rows:
        yield rest
