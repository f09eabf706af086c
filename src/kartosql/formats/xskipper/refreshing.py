"""Metadata made, brought up to date and removed; version 4 is written, so that the original finds and refreshes it."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import FormatError, UsageError
from kartosql.formats.arrays import array_of
from kartosql.formats.xskipper.domain import OddCells
from kartosql.formats.xskipper.java import JavaStreamError
from kartosql.formats.xskipper.kinds import KINDS, MIN_MAX, IndexSpec, spark_name
from kartosql.formats.xskipper.layout import IndexLayout
from kartosql.formats.xskipper.naming import OBJECT_COLUMN, OWN, VIRTUAL
from kartosql.formats.xskipper.scans import DataFile, Scan, collect, partition_values
from kartosql.formats.xskipper.segment import (
    NEWEST,
    READING,
    ROW_BOUNDS,
    ROW_METADATA,
    SIZES,
    SPARK_VERSION,
    Index,
    Segment,
    encryption_factory,
)
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER

_WRITTEN_AS = "4.0.0"  # of Spark: dates and times are of the calendar that Spark 3 brought
_GROUP_BYTES = 16 << 20


def part_file(
    rows: pa.Table,
    layout: IndexLayout,
    *,
    bounds_are_exact: bool,
    reading: str | None = None,
    sizes: Sequence[int | None] = (),
) -> bytes:
    """Return a part file with rows in the columns of ``layout.arrow_schema``.

    ``bounds_are_exact`` says that the bounds are those of all rows, NaN included; the original
    cannot say so, and its bounds of floating-point numbers are trusted less. ``reading`` is how texts
    were read for these rows, if that is known. ``sizes`` are the bytes of the files that the rows are about;
    the original knows their times alone.
    """
    sink = io.BytesIO()
    properties = None
    if layout.secrets is not None:
        import pyarrow.parquet.encryption as pe

        made, connection = encryption_factory(layout.secrets.keys)
        configuration = pe.EncryptionConfiguration(
            footer_key=layout.secrets.footer,
            column_keys=layout.column_keys(layout.secrets),
            plaintext_footer=layout.secrets.plaintext_footer,
        )
        properties = made.file_encryption_properties(connection, configuration)
    large = [spec.metadata_column for spec, _ in layout.indexes if spec.kind.has_large_cells]
    with pq.ParquetWriter(
        sink,
        layout.arrow_schema,
        compression="zstd",  # filters are large, and mostly zeros
        compression_level=1,
        store_schema=False,
        use_dictionary=[n for n in layout.arrow_schema.names if n not in large],
        write_statistics=False,
        encryption_properties=properties,
        # The names of the lists' elements are those of the format's own rules.
        use_compliant_nested_type=True,
    ) as writer:
        about = {ROW_METADATA: json.dumps(layout.described(), separators=(",", ":")), SPARK_VERSION: _WRITTEN_AS}
        if bounds_are_exact:
            about[ROW_BOUNDS] = "rows"
        if reading is not None:
            about[READING] = reading
        if any(size is not None for size in sizes):
            about[SIZES] = json.dumps(list(sizes), separators=(",", ":"))
        writer.add_key_value_metadata(about)
        # Readers that look for filters of some files leave out row groups of others.
        writer.write_table(rows, max(1, _GROUP_BYTES * rows.num_rows // max(1, rows.nbytes)))
    return sink.getvalue()


ABANDONED = dt.timedelta(hours=1)  # no file is written for so long
PART_BYTES = 32 << 20
PART_ROWS = 50_000
MAX_PARTS = 16  # more of them that are not half full are merged


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did: files that were indexed, entries of files that are gone or changed, and entries kept.

    ``unindexed`` are the paths of files that have no entry, because a column of them could not be read.
    """

    added: int
    removed: int
    kept: int
    unindexed: tuple[str, ...] = ()


class Collecting(Protocol):
    """What collects the metadata of files; where that happens is its own affair."""

    def rows(self, files: Sequence[DataFile], layout: IndexLayout) -> Generator[pa.Table]:
        """Yield metadata rows of files in the columns of ``layout``, some megabytes at a time.

        Bounds are those of all rows of a file. Files that cannot be indexed get no row.
        """
        ...


class Current(Protocol):
    """The files that there are, by the names of entries about them; a dictionary is one."""

    def __contains__(self, name: object, /) -> bool:
        """Return whether an entry is about one of them."""
        ...

    def __getitem__(self, name: str, /) -> DataFile:
        """Return the file that an entry is about."""
        ...


@dataclass(frozen=True)
class Sources:
    """How data are read for indexes in this process.

    ``still`` returns the modification times of files in milliseconds now, None for those that are gone; files
    that changed while they were read are not indexed.
    """

    scan: Scan
    still: Callable[[Sequence[DataFile]], Sequence[int | None]] | None = None

    def rows(self, files: Sequence[DataFile], layout: IndexLayout) -> Generator[pa.Table]:
        """Yield metadata rows of files, see ``Collecting``."""
        current = {f.id: f for f in files}
        for batch in collect(files, layout, self.scan):
            yield self.unchanged(pa.Table.from_batches([batch]), current)

    def unchanged(self, rows: pa.Table, files: Mapping[str, DataFile]) -> pa.Table:
        """Return the metadata rows of those files, given by the names of entries, that did not change meanwhile."""
        if self.still is None:
            return rows
        indexed = [files[i] for i in rows.column(OBJECT_COLUMN).to_pylist()]
        now = zip(self.still(indexed), indexed, strict=True)
        return rows.filter(array_of([time == f.modified_ms for time, f in now], pa.bool_()))


def specs_of(indexes: Iterable[Index]) -> list[IndexSpec]:
    """Return what indexes that exist were made from; raises ``unsupported-index`` for those of plugins."""
    found = []
    for index in indexes:
        kind = KINDS.get(index.name)
        parameters = kind.parameters_of(index) if kind is not None and len(index.cols) == 1 else None
        if parameters is None:
            raise UsageError(
                f"Indexes of the kind {index.name!r} are read, but not written.",
                code="unsupported-index",
                hint="Drop the metadata and make them anew, or refresh them with the program that made them.",
            )
        found.append(IndexSpec(index.name, index.columns_text, key=index.key_metadata, **parameters))
    return found


def refresh(
    store: Store,
    folder: str,
    files: Sequence[DataFile],
    layout: IndexLayout,
    sources: Collecting,
    existing: MetadataStore | None = None,
    current: Current | None = None,
) -> Refreshed:
    """Bring the metadata below ``folder`` up to date: entries for ``files``, with the indexes of ``layout``.

    Metadata that do not exist yet are made; those of older versions become version 4. Entries of
    files that did not change are kept as they are. New part files are written first, then old
    ones removed: a crash leaves entries twice, which does no harm. ``existing`` are the metadata
    below ``folder``, if they are open already. With ``current``, which has other files as well,
    ``files`` are those that may lack entries. Raises ``invalid-argument`` for metadata of another table, and for
    encrypted ones without their keys, and ``unsupported-version`` for versions that are not known.
    """
    if existing is None:
        existing = MetadataStore.below(store, folder, layout.secrets.keys if layout.secrets else {})
    _check_own(existing, folder, layout)
    done: list[Refreshed] = []
    stale = list(existing.unreadable)
    current = {f.id: f for f in files} if current is None else current
    # Part files with kinds that the original does not know stand beside those that it reads.
    for is_own in (False, True):
        segments = [s for s in existing.segments if s.is_own == is_own]
        indexes = [i for i in layout.indexes if i[0].kind.is_own == is_own]
        is_locked = any(spec.key is not None for spec, _ in indexes)
        own = replace(layout, indexes=indexes, secrets=layout.secrets if is_locked else None)
        if not own.indexes and (layout.indexes or (is_own and done)):
            stale += [s.source for s in segments]
            continue
        writer = _Parts(store, f"{folder}/{OWN * is_own}", own, {f.id: f.size for f in files})
        try:
            with writer.thread:  # which ends when all is written
                found, replaced = _written(segments, files, current, own, sources, writer)
        except BaseException:
            with contextlib.suppress(Exception):
                store.delete(writer.keys)
            raise
        done.append(found)
        stale += replaced
    store.delete(stale)
    return Refreshed(
        max(d.added for d in done),
        max(d.removed for d in done),
        min(d.kept for d in done),
        tuple(dict.fromkeys(path for d in done for path in d.unindexed)),
    )


def _written(
    segments: Sequence[Segment],
    files: Sequence[DataFile],
    current: Current,
    layout: IndexLayout,
    sources: Collecting,
    writer: _Parts,
) -> tuple[Refreshed, list[str]]:
    """Write new part files, and return what they are with the keys of those whose place they take."""
    seen: set[str] = set()
    stale: list[str] = []
    removed = 0
    # Part files that are not half full are merged, if there are many.
    merging = {s.source for s in segments if 2 * s.rows < PART_ROWS and 2 * s.bytes < PART_BYTES}
    merging = merging if len(merging) > MAX_PARTS else set()
    for segment in segments:
        ids, sizes = segment.ids(), segment.sizes()
        valid = [(at, name) for at, name in enumerate(ids) if _is_about(name, sizes[at], current)]
        removed += len(ids) - len(valid)
        wanted = [(at, name) for at, name in valid if name not in seen]
        if segment.source not in merging and len(wanted) == len(ids) and ids and _is_as_wanted(segment, layout):
            seen.update(name for _, name in wanted)
            continue
        first = {name: at for at, name in reversed(wanted)}
        kept = _converted(segment, layout, current, sorted(first.values()))
        if kept is not None and kept.num_rows:
            seen.update(first)
            writer.sizes.update((name, sizes[at]) for name, at in first.items())
            writer.add(kept, bounds_are_exact=MIN_MAX.are_exact(segment.schema), reading=segment.schema.reading)
        stale.append(segment.source)
    kept_count = len(seen)
    with contextlib.closing(sources.rows([f for f in files if f.id not in seen], layout)) as collected:
        for rows in collected:
            seen.update(rows.column(OBJECT_COLUMN).to_pylist())
            writer.add(rows, bounds_are_exact=True, reading=layout.reading)
    writer.end()
    if layout.indexes and not writer.keys and len(stale) == len(segments):
        writer.hold()
    left = tuple(f.path for f in files if f.id not in seen)
    return Refreshed(len(seen) - kept_count, removed, kept_count, left), stale


def _is_about(name: str, size: int | None, current: Current) -> bool:
    """Return whether an entry is about one of the current files as it is now; most metadata have no sizes."""
    return name in current and (size is None or current[name].size in (None, size))


def drop(store: Store, folder: str) -> int:
    """Remove the metadata below ``folder``, and return how many files that were.

    What somebody else writes just now stays; what a crash left of such is removed.
    """
    found = store.details(f"{folder}/")
    begun = dt.datetime.now(dt.timezone.utc) - ABANDONED
    keys = [key for key, detail in found.items() if f"/{SIDE_FOLDER}/" not in key or detail.modified < begun]
    store.delete(keys)
    return len(keys)


def _check_own(existing: MetadataStore, folder: str, layout: IndexLayout) -> None:
    """Raise unless the metadata may be replaced."""
    if existing.newer:
        raise FormatError(
            f"{existing.newer[0]}: metadata of an unknown version are not replaced.",
            code="unsupported-version",
            hint="A newer Xskipper wrote them; drop them to make them anew.",
        )
    others = [t for t in existing.table_identifiers if t != layout.table]
    if others:
        raise UsageError(
            f"The metadata in {folder!r} are about the table {others[0]!r}, not about {layout.table!r}.",
            hint="Keep the metadata of each table in a folder of its own.",
        )
    encrypted = [s for s in existing.segments if s.schema.encryption]
    if existing.locked or any(not layout.secrets or (s.rows and not s.ids()) for s in encrypted):
        raise UsageError(
            f"The metadata in {folder!r} are encrypted, and the keys are not given.",
            code="encrypted-metadata",
            hint="Hand over the keys, or drop the metadata to make them anew.",
        )


class _Parts:
    """Part files that are written when they have some megabytes, one of them while rows of the next are collected."""

    def __init__(self, store: Store, begin: str, layout: IndexLayout, sizes: dict[str, int | None]) -> None:
        self._store, self._begin, self._layout = store, begin, layout
        self.sizes = sizes  # of indexed objects as they were when their entries were made
        self._held: dict[tuple[bool, str | None], list[pa.Table]] = {}
        self.thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self.keys: list[str] = []

    def add(self, rows: pa.Table, *, bounds_are_exact: bool, reading: str | None) -> None:
        how = bounds_are_exact, reading
        held = self._held.setdefault(how, [])
        held.append(rows)
        if sum(t.nbytes for t in held) > PART_BYTES or sum(t.num_rows for t in held) > PART_ROWS:
            self._wait()
            self._writing = self.thread.submit(self._put, pa.concat_tables(self._held.pop(how)), *how)

    def end(self) -> None:
        self._wait()
        for how, held in self._held.items():
            if any(t.num_rows for t in held):
                self._put(pa.concat_tables(held), *how)

    def hold(self) -> None:
        """Write a part file without rows, so that indexes outlast that there is no file to index."""
        self._put(self._layout.arrow_schema.empty_table(), True, self._layout.reading)

    def _wait(self) -> None:
        """Raise what went wrong with the part that was written meanwhile."""
        if self._writing is not None:
            self._writing.result()

    def _put(self, rows: pa.Table, exact: bool, reading: str | None) -> None:
        self.keys.append(f"{self._begin}part-00000-{uuid.uuid4()}-c000.zstd.parquet")  # as Spark names them
        sizes = [self.sizes.get(name) for name in rows.column(OBJECT_COLUMN).to_pylist()]
        made = part_file(rows, self._layout, bounds_are_exact=exact, reading=reading, sizes=sizes)
        self._store.put(self.keys[-1], made)


# -- what is there already -----------------------------------------------------------------------


def _is_as_wanted(segment: Segment, layout: IndexLayout) -> bool:
    """Return whether a part file has just the columns that are wanted, in the newest version."""
    schema = segment.schema
    if schema.version != NEWEST or bool(schema.encryption) or schema.reading not in (None, layout.reading):
        return False
    if not _has_partitions(segment, layout):
        return False
    wanted = {(s.name, s.path, s.metadata_column): s for s, _ in layout.indexes}
    found = {(i.name, i.path, i.column): i for i in schema.indexes}
    if layout.secrets is not None or wanted.keys() != found.keys():
        return False
    described = {f["name"]: f for f in layout.described()["fields"]}
    for key, index in found.items():
        field = described[key[2]]
        if field["type"] != index.spark_type or specs_of([index])[0].described() != field["metadata"]["index"]:
            return False
    return True


def _has_partitions(segment: Segment, layout: IndexLayout) -> bool:
    return segment.schema.spark_virtual == {name: spark_name(type_) for name, type_ in layout.partitions.items()}


def _converted(segment: Segment, layout: IndexLayout, current: Current, places: Sequence[int]) -> pa.Table | None:
    """Return entries of a part file in the columns that are wanted, None if it has not all of them."""
    if not segment.schema.version or segment.schema.is_legacy or not places:
        return None  # version 0, and times in another calendar, are read anew
    if segment.schema.reading not in (None, layout.reading):
        return None
    schema, names, numbers = layout.arrow_schema, segment.ids(), array_of(places, pa.int64())
    ids = [names[p] for p in places]
    arrays: list[pa.Array] = [array_of(ids, pa.string())]
    is_same = _has_partitions(segment, layout) and not any(map(pa.types.is_timestamp, layout.partitions.values()))
    files = [] if is_same else [current[i] for i in ids]
    try:
        for name, type_ in layout.partitions.items():
            values = segment.column(VIRTUAL + name).take(numbers).cast(type_) if is_same else None
            arrays.append(partition_values(files, name, type_) if values is None else values)
        for spec, _ in layout.indexes:
            index = _matching(segment, spec, layout)
            if index is None:
                return None
            cells = segment.column(index.column, is_large=spec.kind.has_large_cells)
            cells = spec.kind.recoded(cells.take(numbers), index)
            arrays.append(cells.cast(schema.field(spec.metadata_column).type))
    except (OddCells, JavaStreamError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return pa.Table.from_arrays(arrays, schema=schema)


def _matching(segment: Segment, spec: IndexSpec, layout: IndexLayout) -> Index | None:
    described = {f["name"]: f["type"] for f in layout.described()["fields"]}
    for index in segment.schema.indexes:
        if index.name == spec.name and index.path == spec.path:
            own = replace(specs_of([index])[0], column=spec.column, key=spec.key, is_twin=spec.is_twin)
            is_typed = index.is_object or index.spark_type == described[spec.metadata_column]
            return index if is_typed and own == spec else None
    return None
