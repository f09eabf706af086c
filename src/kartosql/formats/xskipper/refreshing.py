"""Metadata made, brought up to date and removed; version 4 is written, so that the original finds and refreshes it."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import FormatError, UsageError
from kartosql.formats.arrays import array_of
from kartosql.formats.xskipper.bloom import DEFAULT_FPP, DEFAULT_NDV, MAX_WORDS, Shape, cell_of, shape_for, words_of
from kartosql.formats.xskipper.domain import OddCells
from kartosql.formats.xskipper.java import JavaStreamError
from kartosql.formats.xskipper.naming import OBJECT_COLUMN, VIRTUAL, column_name, parts_of, spelled
from kartosql.formats.xskipper.scans import DataFile, ReadFooter, Scan, collect, of_java, partition_values
from kartosql.formats.xskipper.segment import (
    BLOOM,
    FPP,
    MINMAX,
    NDV,
    NEWEST,
    PARTS,
    PATTERN,
    READING,
    REGEX,
    ROW_BOUNDS,
    ROW_METADATA,
    SIZES,
    SPARK_VERSION,
    VALUE_LIST,
    Index,
    Segment,
    encryption_factory,
)
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER

UDT = "io.xskipper.metadatastore.parquet.ParquetBaseClauseTranslator$BloomFilterMetaDataTypeUDT"
WRITTEN = (MINMAX, VALUE_LIST, BLOOM, REGEX)
_PREFIX = "io.xskipper."
_WRITTEN_AS = "4.0.0"  # of Spark: dates and times are of the calendar that Spark 3 brought
_SPARK_NAMES = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    **{pa.type_for_alias(name): name for name in ("float", "double", "string", "binary")},
}
_KEPT_AS = {
    **{pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)},
    **{pa.large_string(): pa.string(), pa.string_view(): pa.string(), pa.date64(): pa.date32()},
}
TIME = pa.timestamp("us", "UTC")
_GROUP_BYTES = 16 << 20


@dataclass(frozen=True)
class IndexSpec:
    """An index to be: its kind, the column it is over, and its parameters.

    ``column`` has dots between members of structs; a name that holds dots itself stands in double
    quotes. ``fpp`` and ``ndv`` are the share of false positives and the number of distinct values that
    a Bloom filter is made for. ``key`` is the label of the key that encrypts it. ``is_twin`` tells that
    other names of the table read the same when dots join them. ``patterns`` are the regular
    expressions of which a list keeps the first groups.
    """

    name: str
    column: str
    fpp: float = DEFAULT_FPP
    ndv: int = DEFAULT_NDV
    key: str | None = None
    is_twin: bool = False
    patterns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be; raises ``invalid-argument``."""
        if self.name not in WRITTEN:
            raise UsageError(f"{self.name!r} is no kind of skipping index.", hint=f"There are {', '.join(WRITTEN)}.")
        if bool(self.patterns) != (self.name == REGEX):
            raise UsageError(f"An index of the kind {REGEX} has patterns, and no other one.")
        for pattern in self.patterns:
            of_java(pattern)
        if not self.column or "\0" in self.column:
            raise UsageError(f"{self.column!r} is no column.")
        if self.name == BLOOM:
            usable = isinstance(self.fpp, float) and 0 < self.fpp < 1
            usable = usable and isinstance(self.ndv, int) and 0 < self.ndv < 1 << 40
            if not usable or self.shape.bits > 64 * MAX_WORDS:
                raise UsageError(
                    f"A Bloom filter with fpp = {self.fpp} and ndv = {self.ndv} is not possible.",
                    hint="fpp lies between 0 and 1, ndv is the number of distinct values of a file.",
                )

    @property
    def shape(self) -> Shape:
        """The shape of the Bloom filters."""
        return shape_for(self.fpp, self.ndv)

    @property
    def path(self) -> tuple[str, ...]:
        """The column and the members of structs below it, in lower case."""
        return parts_of(self.column.lower())

    @property
    def metadata_column(self) -> str:
        """The name of the metadata column."""
        return column_name([spelled(self.path) if self.is_twin else ".".join(self.path)], self.name)

    def described(self) -> dict[str, Any]:
        """Return the index as it stands in the schema."""
        found: dict[str, Any] = {"cols": [".".join(self.path)], "name": self.name}
        if self.name == BLOOM:
            found["params"] = {_PREFIX + FPP: _java_double(self.fpp), _PREFIX + NDV: str(self.ndv)}
        if self.name == REGEX:
            found["params"] = {f"{_PREFIX}{PATTERN}r{at}": pattern for at, pattern in enumerate(self.patterns)}
        if self.key is not None:
            found["key_metadata"] = self.key
        return found


def _java_double(number: float) -> str:
    """Return a positive number as Java writes it."""
    if 1e-3 <= number < 1e7:
        return repr(float(number))
    _, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    text = "".join(map(str, digits))
    return f"{text[0]}.{text[1:] or '0'}E{int(exponent) + len(text) - 1}"


@dataclass(frozen=True)
class Secrets:
    """What metadata are encrypted with: master keys by their labels, and the label of the footer's key."""

    keys: Mapping[str, bytes]
    footer: str
    plaintext_footer: bool = False


@dataclass(frozen=True)
class IndexLayout:
    """The columns of metadata to be: the table, the indexes with the types of their columns, and partition columns.

    Types are those of the values as they are written; ``value_type`` tells them. ``reading`` tells how
    texts are read, where the files are text.
    """

    table: str
    indexes: Sequence[tuple[IndexSpec, pa.DataType]]
    partitions: Mapping[str, pa.DataType]
    secrets: Secrets | None = None
    reading: str | None = None

    def __post_init__(self) -> None:
        """Refuse indexes that are there twice, and keys that are not given; raises ``invalid-argument``."""
        names = [spec.metadata_column for spec, _ in self.indexes]
        if len(set(names)) < len(names):
            raise UsageError("An index is there twice.", hint="One index of a kind for each column.")
        labels = {spec.key for spec, _ in self.indexes if spec.key is not None}
        if bool(labels) != (self.secrets is not None):
            raise UsageError("Encrypted indexes need a key for the footer, and the other way round.")
        if self.secrets is not None and not {*labels, self.secrets.footer} <= set(self.secrets.keys):
            raise UsageError("A key that is named is not given.")

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns as Arrow writes them."""
        fields = [pa.field(OBJECT_COLUMN, pa.string())]
        fields += [pa.field(VIRTUAL + name, type_) for name, type_ in self.partitions.items()]
        fields += [pa.field(spec.metadata_column, _cell(spec, type_)[0]) for spec, type_ in self.indexes]
        return pa.schema(fields)

    def described(self) -> dict[str, Any]:
        """Return the schema that Spark keeps in the footer, as JSON values."""
        head: dict[str, Any] = {"version": NEWEST, "tableIdentifier": self.table}
        if self.secrets is not None:
            columns = self.column_keys(self.secrets).items()
            keys = ";".join(f"{label}:{','.join(names)}" for label, names in columns)
            head["encryption"] = {"encryption.column.keys": keys, "encryption.footer.key": self.secrets.footer}
            if self.secrets.plaintext_footer:
                head["encryption"]["encryption.plaintext.footer"] = "true"
        fields = [_field(OBJECT_COLUMN, "string", head)]
        fields += [_field(VIRTUAL + name, spark_name(type_), {}) for name, type_ in self.partitions.items()]
        for spec, type_ in self.indexes:
            about: dict[str, Any] = {"index": spec.described()}
            if any("." in part for part in spec.path):
                about[PARTS] = list(spec.path)
            fields.append(_field(spec.metadata_column, _cell(spec, type_)[1], about))
        return {"type": "struct", "fields": fields}

    def column_keys(self, secrets: Secrets) -> dict[str, list[str]]:
        """Return the encrypted Parquet columns by the label of their key."""
        found: dict[str, list[str]] = {}
        for spec, _ in self.indexes:
            if spec.key is not None:
                tails = {MINMAX: (".min", ".max"), BLOOM: ("",)}.get(spec.name, (".list.element",))
                found.setdefault(spec.key, []).extend(spec.metadata_column + tail for tail in tails)
        found.setdefault(secrets.footer, []).extend([OBJECT_COLUMN, *(VIRTUAL + n for n in self.partitions)])
        return found


def layout_for(
    table: str,
    specs: Sequence[IndexSpec],
    columns: Mapping[str, pa.DataType],
    partitions: Mapping[str, pa.DataType] | None = None,
    secrets: Secrets | None = None,
    existing: Iterable[Index] = (),
) -> IndexLayout:
    """Return the layout of indexes over columns of known types, by names as ``IndexSpec`` has them.

    ``existing`` are the indexes that there are already; among them those of bytes are kept. Raises
    ``unknown-column``, and ``unsupported-type`` for columns that a kind of index cannot be over.
    """
    typed = []
    known = {(index.name, index.path) for index in existing}
    by_name = {name.lower(): type_ for name, type_ in columns.items()}
    joined = Counter(".".join(parts_of(name)) for name in by_name)
    for spec in resolved(specs, columns):
        spec = replace(spec, is_twin=joined[".".join(spec.path)] > 1 and spelled(spec.path) != ".".join(spec.path))
        type_ = by_name.get(spec.column.lower())
        if type_ is None:
            raise UsageError(
                f"There is no column {spec.column!r} to index.",
                code="unknown-column",
                hint="Columns of partitions need no index; members of structs are named with dots, "
                "names that hold dots stand in double quotes. Names that differ in case alone cannot be indexed.",
            )
        kept = value_type(type_, spec.name)
        if kept is None and type_ == pa.binary() and (spec.name, spec.path) in known:
            kept = type_
        if kept is None:
            raise UsageError(
                f"A {spec.name} index cannot be over {spec.column!r}, which is of the type {type_}.",
                code="unsupported-type",
                hint="MinMax and ValueList take numbers, text, booleans, dates, times; filters integers and text; "
                "lists of what patterns find text.",
            )
        typed.append((spec, kept))
    kinds = {name: value_type(type_, MINMAX) for name, type_ in (partitions or {}).items()}
    return IndexLayout(table, typed, {name: type_ for name, type_ in kinds.items() if type_ is not None}, secrets)


def resolved(specs: Iterable[IndexSpec], columns: Iterable[str]) -> list[IndexSpec]:
    """Return indexes over columns as they are spelled in ``columns``: a dot may be between names, or within one."""
    by_text: dict[str, list[str]] = {}
    known = [name.lower() for name in columns]
    for name in known:
        by_text.setdefault(".".join(parts_of(name)), []).append(name)
    found = []
    for spec in specs:
        column = spec.column.lower()
        meant = by_text.get(column, [])
        found.append(spec if column in known or len(meant) != 1 else replace(spec, column=meant[0]))
    return found


def value_type(type_: pa.DataType, index: str) -> pa.DataType | None:
    """Return the type in which an index keeps values of a column, None where it cannot be over such a column."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    type_ = TIME if pa.types.is_timestamp(type_) else _KEPT_AS.get(type_, type_)
    if index == REGEX:
        return type_ if type_ == pa.string() else None
    if index == BLOOM:
        return pa.int64() if pa.types.is_integer(type_) else type_ if type_ == pa.string() else None
    if type_ == pa.binary():
        return None  # the original has no order for bytes
    return type_ if spark_name(type_) else None


def spark_name(type_: pa.DataType) -> str:
    """Return Spark's name of a type, empty for types that have none."""
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})" if 0 <= type_.scale <= type_.precision else ""
    return "timestamp" if type_ == TIME else _SPARK_NAMES.get(type_, "")


def _cell(spec: IndexSpec, type_: pa.DataType) -> tuple[pa.DataType, Any]:
    """Return the type of the cells of an index as Arrow and as Spark's JSON have it."""
    name = spark_name(type_)
    if spec.name == MINMAX:
        described = {"type": "struct", "fields": [_field(end, name, {}) for end in ("min", "max")]}
        return pa.struct([pa.field("min", type_), pa.field("max", type_)]), described
    if spec.name in (VALUE_LIST, REGEX):
        return pa.list_(pa.field("element", type_)), {"type": "array", "elementType": name, "containsNull": True}
    return pa.binary(), {"type": "udt", "class": UDT, "pyClass": None, "sqlType": "binary"}


def _field(name: str, type_: Any, metadata: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": True, "metadata": metadata}


def part_file(
    rows: pa.Table,
    layout: IndexLayout,
    *,
    bounds_are_exact: bool,
    reading: str | None = None,
    sizes: Sequence[int | None] = (),
) -> bytes:
    """Return a part file with rows in the columns of ``layout.arrow_schema``.

    ``bounds_are_exact`` tells that the bounds are those of all rows, NaN included; the original
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
    filters = [spec.metadata_column for spec, _ in layout.indexes if spec.name == BLOOM]
    with pq.ParquetWriter(
        sink,
        layout.arrow_schema,
        compression="zstd",  # filters are large, and mostly zeros
        compression_level=1,
        store_schema=False,
        use_dictionary=[n for n in layout.arrow_schema.names if n not in filters],
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


@dataclass(frozen=True)
class Sources:
    """How data are read for indexes in this process.

    ``still`` returns the modification times of files in milliseconds now, None for those that are gone; files
    that changed while they were read are not indexed.
    """

    scan: Scan
    read_footer: ReadFooter | None = None
    still: Callable[[Sequence[DataFile]], Sequence[int | None]] | None = None

    def rows(self, files: Sequence[DataFile], layout: IndexLayout) -> Generator[pa.Table]:
        """Yield metadata rows of files, see ``Collecting``."""
        current = {f.id: f for f in files}
        for batch in collect(files, layout, self.scan, self.read_footer):
            found = pa.Table.from_batches([batch])
            if self.still is not None:
                indexed = [current[i] for i in found.column(OBJECT_COLUMN).to_pylist()]
                now = zip(self.still(indexed), indexed, strict=True)
                found = found.filter(array_of([time == f.modified_ms for time, f in now], pa.bool_()))
            yield found


def specs_of(indexes: Iterable[Index]) -> list[IndexSpec]:
    """Return what indexes that exist were made from; raises ``unsupported-index`` for those of plugins."""
    found = []
    for index in indexes:
        patterns = _patterns(index) if index.name == REGEX else ()
        if index.name not in WRITTEN or len(index.cols) != 1 or (index.name == REGEX and not patterns):
            raise UsageError(
                f"Indexes of the kind {index.name!r} are read, but not written.",
                code="unsupported-index",
                hint="Drop the metadata and make them anew, or refresh them with the program that made them.",
            )
        spec = IndexSpec(index.name, index.shown, key=index.key_metadata, patterns=patterns)
        if index.name == BLOOM:
            spec = replace(spec, fpp=_number(index, FPP, spec.fpp), ndv=int(_number(index, NDV, spec.ndv)))
        found.append(spec)
    return found


def _patterns(index: Index) -> tuple[str, ...]:
    """Return the patterns of an index in their order, none if some are not those of every engine."""
    named = [(k.removeprefix(PATTERN), v) for k, v in index.params.items() if k.startswith(PATTERN)]
    try:
        for _, pattern in named:
            of_java(pattern)
    except UsageError:
        return ()
    return tuple(v for _, v in sorted(named, key=lambda n: (len(n[0]), n[0])))


def _number(index: Index, name: str, default: float) -> float:
    try:
        return float(index.params[name]) if name in index.params else default
    except ValueError:
        raise FormatError(
            f"{index.column}: the parameter {name} is {index.params[name]!r}.", code="invalid-metadata"
        ) from None


def refresh(
    store: Store,
    folder: str,
    files: Sequence[DataFile],
    layout: IndexLayout,
    sources: Collecting,
    existing: MetadataStore | None = None,
) -> Refreshed:
    """Bring the metadata below ``folder`` up to date: entries for ``files``, with the indexes of ``layout``.

    Metadata that do not exist yet are made; those of older versions become version 4. Entries of
    files that did not change are kept as they are. New part files are written first, then old
    ones removed: a crash leaves entries twice, which does no harm. ``existing`` are the metadata
    below ``folder``, if they are open already. Raises ``invalid-argument`` for
    metadata of another table, and for encrypted ones without their keys, and
    ``unsupported-version`` for versions that are not known.
    """
    if existing is None:
        existing = MetadataStore.below(store, folder, layout.secrets.keys if layout.secrets else {})
    _check_own(existing, folder, layout)
    writer = _Parts(store, folder, layout, {f.id: f.size for f in files})
    try:
        with writer.thread:  # which ends when all is written
            done, stale = _written(existing, files, layout, sources, writer)
    except BaseException:
        with contextlib.suppress(Exception):
            store.delete(writer.keys)
        raise
    store.delete([*stale, *existing.unreadable])
    return done


def _written(
    existing: MetadataStore, files: Sequence[DataFile], layout: IndexLayout, sources: Collecting, writer: _Parts
) -> tuple[Refreshed, list[str]]:
    """Write new part files, and return what they are with the keys of those whose place they take."""
    current = {f.id: f for f in files}
    seen: set[str] = set()
    stale: list[str] = []
    removed = 0
    # Part files that are not half full are merged, if there are many.
    merging = {s.source for s in existing.segments if 2 * s.rows < PART_ROWS and 2 * s.bytes < PART_BYTES}
    merging = merging if len(merging) > MAX_PARTS else set()
    for segment in existing.segments:
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
            writer.add(kept, bounds_are_exact=segment.schema.bounds_are_exact, reading=segment.schema.reading)
        stale.append(segment.source)
    kept_count = len(seen)
    with contextlib.closing(sources.rows([f for i, f in current.items() if i not in seen], layout)) as collected:
        for rows in collected:
            seen.update(rows.column(OBJECT_COLUMN).to_pylist())
            writer.add(rows, bounds_are_exact=True, reading=layout.reading)
    writer.end()
    if layout.indexes and not writer.keys and len(stale) == len(existing.segments):
        writer.hold()
    left = tuple(f.path for f in files if f.id not in seen)
    return Refreshed(len(seen) - kept_count, removed, kept_count, left), stale


def _is_about(name: str, size: int | None, current: Mapping[str, DataFile]) -> bool:
    """Return whether an entry is about one of the current files as it is now; most metadata tell no sizes."""
    file = current.get(name)
    return file is not None and (size is None or file.size is None or size == file.size)


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

    def __init__(self, store: Store, folder: str, layout: IndexLayout, sizes: dict[str, int | None]) -> None:
        self._store, self._folder, self._layout = store, folder, layout
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
        self.keys.append(f"{self._folder}/part-00000-{uuid.uuid4()}-c000.zstd.parquet")  # as Spark names them
        sizes = [self.sizes.get(name) for name in rows.column(OBJECT_COLUMN).to_pylist()]
        made = part_file(rows, self._layout, bounds_are_exact=exact, reading=reading, sizes=sizes)
        self._store.put(self.keys[-1], made)


# -- what is there already -----------------------------------------------------------------------


def _is_as_wanted(segment: Segment, layout: IndexLayout) -> bool:
    """Return whether a part file has just the columns that are wanted, in the newest version."""
    schema = segment.schema
    if schema.version != NEWEST or bool(schema.encryption) or schema.reading not in (None, layout.reading):
        return False
    if schema.spark_virtual != {name: spark_name(type_) for name, type_ in layout.partitions.items()}:
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


def _converted(
    segment: Segment, layout: IndexLayout, current: Mapping[str, DataFile], places: Sequence[int]
) -> pa.Table | None:
    """Return entries of a part file in the columns that are wanted, None if it has not all of them."""
    if not segment.schema.version or segment.schema.is_legacy or not places:
        return None  # version 0, and times in another calendar, are read anew
    if segment.schema.reading not in (None, layout.reading):
        return None
    schema = layout.arrow_schema
    ids = [segment.ids()[p] for p in places]
    arrays: list[pa.Array] = [array_of(ids, pa.string())]
    for name in layout.partitions:
        arrays.append(partition_values([current[i] for i in ids], name, schema.field(VIRTUAL + name).type))
    try:
        for spec, _ in layout.indexes:
            index = _matching(segment, spec, layout)
            if index is None:
                return None
            cells = segment.column(index.column).take(array_of(places, pa.int64()))
            if spec.name == BLOOM:
                cells = _rewrapped(cells, spec)
            arrays.append(cells.cast(schema.field(spec.metadata_column).type))
    except (OddCells, JavaStreamError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return pa.Table.from_arrays(arrays, schema=schema)


def _matching(segment: Segment, spec: IndexSpec, layout: IndexLayout) -> Index | None:
    described = {f["name"]: f["type"] for f in layout.described()["fields"]}
    for index in segment.schema.indexes:
        if index.name == spec.name and index.path == spec.path:
            if spec.name in (BLOOM, REGEX):
                same = replace(specs_of([index])[0], column=spec.column, key=spec.key, is_twin=spec.is_twin) == spec
            else:
                same = index.spark_type == described[spec.metadata_column]
            return index if same else None
    return None


def _rewrapped(cells: pa.Array, spec: IndexSpec) -> pa.Array:
    """Return filters in the class of version 4; raises JavaStreamError for what is no such filter."""
    found = []
    for cell in cells.to_pylist():
        shape, words = words_of(cell or b"")
        if shape.version != 1:
            raise JavaStreamError("a filter of another version is made anew")
        found.append(cell_of(shape, words))
    return array_of(found, pa.binary())
