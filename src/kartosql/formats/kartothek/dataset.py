"""A dataset  in one snapshot: its tables, files, partition values and indices."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import FormatError, shorten
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.metadata import (
    DatasetDocument,
    added_columns,
    fingerprint,
    fingerprints,
    pause_garbage_collection,
    pending_schemas,
)
from kartosql.formats.kartothek.stored_partitions import as_tuple
from kartosql.formats.partition_table import PartitionTable, Variant, numbered
from kartosql.formats.type_promotion import widened
from kartosql.memo import memoized
from kartosql.store import Store
from kartosql.text.types import type_name

if TYPE_CHECKING:
    from kartosql.formats.segments import SegmentedIndex

Listed = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]  # labels and file keys by table


@dataclass(frozen=True)
class InvertedIndex:
    """Where the inverted index of one column is: a storage key, or the document itself; or ``segments`` that answer."""

    column: str
    type: pa.DataType
    key: str | None
    embedded: Mapping[str, Any] | None = None
    version: str = ""  # of the document that names it
    segments: SegmentedIndex | None = None


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
    # Where data-skipping metadata are read from.
    store: Store | None = field(default=None, kw_only=True)
    may_lack: frozenset[str] = field(default=frozenset(), kw_only=True)
    has_footers = True  # the files are Parquet files ...
    renames = False  # ... with the columns of the table
    stored_bounds = None

    @memoized
    def partitions(self) -> PartitionTable:
        """Partition values of all files, parsed at first use."""
        types = [self.schema.field(name).type for name in self.partition_keys]
        return parse_partitions(self.files, self.uuid, self.table, self.partition_keys, types)

    @memoized
    def skipping(self) -> Any:
        """The Xskipper metadata of the dataset, or None."""
        place = naming.place_in(self.metadata, self.uuid)
        if place is None or self.store is None:
            return None
        from kartosql.formats.kartothek.dataset_skipping import DatasetSkipping

        return DatasetSkipping(self.store, place, f"{self.uuid}/{self.table}/", self.files)

    def extends(self, older: DatasetTable) -> bool:
        """Return whether the files of an older state of the table can be read as those of this one."""
        known = {f.name: f.type for f in self.schema}
        fits = (f.name in known and widened(f.type, known[f.name]) == known[f.name] for f in older.schema)
        return not older.files or (older.partition_keys == self.partition_keys and all(fits))

    def variants(self, files: Sequence[int]) -> Iterable[Variant]:
        """Return the files as one group: the schema of a dataset holds for all of them."""
        return (Variant(files),)

    def only(self, file: int) -> DatasetTable:
        """Return the table of one of the files, without indices."""
        return replace(self, labels=(self.labels[file],), files=(self.files[file],), indices={})

    def display_name(self, file: int) -> str:
        """Return the key of a file."""
        return self.files[file]

    @memoized
    def all_files(self) -> frozenset[int]:
        """The positions of all files."""
        return frozenset(range(len(self.files)))

    @memoized
    def writes(self) -> Sequence[int]:
        """A number for each file, the same for files of one write."""
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
    def is_proven(self) -> bool:
        """Whether document and schemas are known to go together: by their fingerprints, or by a snapshot's word."""
        known = fingerprints(self.document.metadata)
        pending = pending_schemas(self.document)
        return all(t in pending or known.get(t) == fingerprint(schema) for t, schema in self.schemas.items())

    @memoized
    def tables(self) -> dict[str, DatasetTable]:
        """The tables by name."""
        return {name: self._table(name, schema) for name, schema in self.schemas.items()}

    def _files(self, table: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.listed is not None:
            return self.listed.get(table, ((), ()))
        self.document.release()
        labels, column = as_tuple(self.document.labels or ()), as_tuple(self.document.files.get(table, ()))
        if None not in column:
            return labels[: len(column)], column  # type: ignore[return-value]
        pairs = [(str(label), key) for label, key in zip(labels, column, strict=True) if key is not None]
        return tuple(label for label, _ in pairs), tuple(key for _, key in pairs)

    def partition_keys(self, table: str) -> tuple[str, ...]:
        """Return the partition keys of a table; raises ``invalid-schema``."""
        keys = self.document.partition_keys
        if keys is None:
            files = self._files(table)[1]
            folder = naming.folder_of(files[0], self.uuid, table) if files else ""
            keys = naming.derive_partition_keys(folder)
        missing = [name for name in keys if name not in self.schemas[table].names]
        if missing:
            key = naming.schema_key(self.uuid, table)
            raise FormatError(
                f"{key}: the partition key {shorten(missing[0])!r} is not in the schema", code="invalid-schema"
            )
        return keys

    def _table(self, table: str, schema: pa.Schema) -> DatasetTable:
        keys = self.partition_keys(table)
        labels, files = self._files(table)
        indices = {}
        for column, where in self.document.indices.items():
            if column in schema.names and column not in keys and not pa.types.is_null(schema.field(column).type):
                type_ = schema.field(column).type
                stored = isinstance(where, str)
                file, embedded = (where, None) if stored else (None, where)
                indices[column] = InvertedIndex(column, type_, file, embedded, self.document.version)
        metadata = self.document.metadata
        lacking = added_columns(metadata).get(table, frozenset()).intersection(schema.names)
        return DatasetTable(
            self.uuid, table, schema, keys, labels, files, indices, metadata, store=self.store, may_lack=lacking
        )


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


# -- partition values ----------------------------------------------------------------------------------

_INT = re.compile(rb"[+-]?[0-9]+")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:?\d\d)?")
_TRUTH = {"True": True, "False": False, "true": True, "false": False, "1": True, "0": False}


def partition_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which values of a partition key of schema type ``type_`` are exposed."""
    return pa.string() if pa.types.is_null(type_) else type_


def parse_partitions(
    file_keys: Sequence[str], uuid: str, table: str, partition_keys: tuple[str, ...], types: Sequence[pa.DataType]
) -> PartitionTable:
    """Read the partition values of ``file_keys`` from their paths.

    Raises ``invalid-partition-value`` for a file whose path lacks a key or holds a value that
    is not of the key's type.
    """
    exposed = tuple(partition_type(t) for t in types)
    if not partition_keys:
        return PartitionTable((), (), (), min(1, len(file_keys)), (0,) * len(file_keys))
    with pause_garbage_collection():
        head = len(uuid) + len(table) + 2
        folders = [key[head : key.rfind("/")] for key in file_keys]
        different, part_of_file = numbered(folders)
        columns = _plain_columns(different, partition_keys, exposed)
        if columns is None:
            first = dict(zip(reversed(folders), reversed(file_keys), strict=True))  # file of each folder, for errors
            parsers = [value_parser(t) for t in exposed]
            rows = [_parse_folder(folder, first[folder], partition_keys, parsers, exposed) for folder in different]
            columns = list(zip(*rows, strict=True)) if rows else [()] * len(partition_keys)
    return PartitionTable(partition_keys, exposed, tuple(columns), len(different), part_of_file)


def _plain_columns(
    folders: list[str], partition_keys: tuple[str, ...], types: tuple[pa.DataType, ...]
) -> list[Sequence[Any]] | None:
    """Return the values per partition key if all folders are plainly ``k1=v1/k2=v2``, else None.

    This is the short way for datasets with many partitions; whatever it does not take, such
    as percent-encoded names, is read folder by folder.
    """
    each = len(partition_keys)
    if {folder.count("/") for folder in folders} != {each - 1}:
        return None
    joined = "/".join(folders)
    # With each key at its place, as many equal signs as keys: no value holds one.
    if joined.count("=") != each * len(folders):
        return None
    components = joined.split("/")
    columns = []
    for at, (key, type_) in enumerate(zip(partition_keys, types, strict=True)):
        prefix = f"{key}="
        texts = components[at::each]
        if not all(map(str.startswith, texts, repeat(prefix))):
            return None
        column = _plain_values([text[len(prefix) :] for text in texts], type_)
        if column is None:
            return None
        columns.append(column)
    return columns


def _plain_values(texts: list[str], type_: pa.DataType) -> Sequence[Any] | None:
    joined = "".join(texts)
    if "%" not in joined:
        if pa.types.is_string(type_):
            return texts
        shortest, longest = min(map(len, texts), default=0), max(map(len, texts), default=0)
        if pa.types.is_integer(type_) and 0 < shortest <= longest <= 18 and joined.isascii() and joined.isdigit():
            return list(map(int, texts))
    parse = value_parser(type_)
    try:
        known = {text: parse(naming.unquote(text) if "%" in text else text.encode()) for text in set(texts)}
    except (ValueError, OverflowError, KeyError):
        return None
    return [known[text] for text in texts]


def _parse_folder(
    folder: str,
    key: str,
    partition_keys: tuple[str, ...],
    parsers: Sequence[Callable[[bytes], Any]],
    types: Sequence[pa.DataType],
) -> tuple[Any, ...]:
    raw = naming.split_folder(folder, partition_keys)
    row = []
    for name, parse, type_ in zip(partition_keys, parsers, types, strict=True):
        if name not in raw:
            raise FormatError(
                f"{shorten(key)}: the path has no value for the partition key {name!r}", code="invalid-partition-value"
            )
        try:
            row.append(parse(raw[name]))
        except (ValueError, OverflowError, KeyError):
            shown = raw[name][:60].decode("utf-8", "backslashreplace")
            raise FormatError(
                f"{shorten(key)}: the value {shown!r} of the partition key {name!r} is no {type_name(type_)}",
                code="invalid-partition-value",
                hint="Partition values are read from the path and typed by _common_metadata.",
            ) from None
    return tuple(row)


def value_parser(type_: pa.DataType) -> Callable[[bytes], Any]:
    """Return the function that turns the decoded bytes of a path component into a value."""
    t = pa.types
    if t.is_string(type_):
        return lambda raw: raw.decode("utf-8")
    if t.is_binary(type_):
        return lambda raw: raw
    if t.is_integer(type_):
        low, high = (0, 2**64 - 1) if t.is_unsigned_integer(type_) else (-(2**63), 2**63 - 1)
        return lambda raw: _parse_int(raw, low, high)
    if t.is_floating(type_):
        return _parse_float
    if t.is_boolean(type_):
        return lambda raw: _TRUTH[raw.decode("ascii")]
    if t.is_date32(type_):
        return _parse_date
    if t.is_timestamp(type_):
        return lambda raw: _parse_timestamp(raw, type_.unit, type_.tz is not None)
    return _unsupported


def _parse_int(raw: bytes, low: int, high: int) -> int:
    if len(raw) > 40 or not (raw.isdigit() or _INT.fullmatch(raw)) or not low <= (value := int(raw)) <= high:
        raise ValueError(raw)
    return value


def _parse_float(raw: bytes) -> float:
    text = raw.decode("ascii")
    if "_" in text or text != text.strip():
        raise ValueError(text)
    return float(text)


def _parse_date(raw: bytes) -> dt.date:
    match = _TIMESTAMP.fullmatch(raw.decode("ascii"))
    if not match or match[2] not in (None, "00:00", "00:00:00") or match[4]:
        raise ValueError(raw)
    return dt.date.fromisoformat(match[1])


def _parse_timestamp(raw: bytes, unit: str, has_zone: bool) -> int:
    match = _TIMESTAMP.fullmatch(raw.decode("ascii"))
    if not match or (match[4] and not has_zone):
        raise ValueError(raw)
    zone = match[4] or "+00:00"
    moment = dt.datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00:00'}{'+00:00' if zone == 'Z' else zone}")
    delta = moment - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    nanoseconds = (delta.days * 86400 + delta.seconds) * 10**9 + int((match[3] or "0").ljust(9, "0"))
    value = nanoseconds if unit == "ns" else nanoseconds // 1000
    if not -(2**63) <= value < 2**63:
        raise OverflowError(raw)
    return value


def _unsupported(raw: bytes) -> Any:
    raise ValueError(raw)
