"""The metadata of a dataset, checked: its document, what kartosql writes into that for itself, and its schema files."""

from __future__ import annotations

import base64
import binascii
import gc
import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import pyarrow as pa

from kartosql.errors import FormatError, reraise, shorten
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.stored_partitions import KEPT_BYTES, StoredPartitions, Texts, are_plain, shortened
from kartosql.memo import memoized
from kartosql.store.keys import SIDE_FOLDER, Content, check_key
from kartosql.store.store import MAX_METADATA_BYTES


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause the cyclic garbage collector while objects without cycles are made by the 100,000.

    Each of its runs walks all of them again; that is a third of the time of reading the
    metadata of 100,000 partitions. Unreferenced objects are still freed at once.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


MAX_CONTAINERS = 10_000_000  # 4 million partitions; a map takes about 70 bytes of memory

_PARTITIONS = b'"partitions": {'
_FIRST_ENTRY = re.compile(rb'"[^"]*": \{"files": \{"([^"\\\x00-\x1f]*)": "')
_CHUNK = 1 << 20
_AT_ONCE = 10_000  # partitions


class PlainPartitions(NamedTuple):
    """The ``partitions`` of a document in msgpack in which each has the same single table."""

    labels: tuple[str, ...]
    table: str
    keys: tuple[str, ...]


def decode_document(data: bytes, key: str) -> Any:
    """Return the document in ``data``, with ``partitions`` as StoredPartitions or PlainPartitions where they can be.

    Raises ``invalid-metadata`` and ``too-large``.
    """
    return _decode_msgpack(data, key) if key.endswith(naming.METADATA_MSGPACK) else _decode_json(data, key)


# -- JSON ------------------------------------------------------------------------------------------


def _decode_json(data: bytes, key: str) -> Any:
    try:
        document = _plain_json(data)
        if document is not None:
            return document
        if _containers(data) > MAX_CONTAINERS:
            raise _too_many(key)
        return json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError as e:
        raise invalid(key, f"it is not UTF-8 ({e.reason} at byte {e.start})") from None
    except RecursionError:
        raise invalid(key, "it is nested too deeply") from None
    except ValueError as e:
        raise invalid(key, f"it is torn or no JSON: {e}") from None


def _containers(data: bytes) -> int:
    return data.count(b"{") + data.count(b"[")


def _plain_json(data: bytes) -> dict[str, Any] | None:
    """Return a document with partitions as the originals write them, or None."""
    start = data.find(_PARTITIONS) + len(_PARTITIONS)
    end = data.find(b'"}}}', start) + 3
    first = _FIRST_ENTRY.match(data, start) if start < end else None
    if first is None:
        return None
    # The mark shows whether what was taken out is the value of the document's own key.
    mark = uuid.uuid4().hex
    outer = b'%b"%b"%b' % (data[: start - 1], mark.encode(), data[end + 1 :])
    try:
        partitions = StoredPartitions.read(first[1].decode(), data, start, end)
        if 2 * partitions.count + 1 + _containers(outer) > MAX_CONTAINERS:
            return None
        found = json.loads(outer.decode(), object_pairs_hook=_no_duplicates)
    except ValueError:
        return None
    return found | {"partitions": partitions} if isinstance(found, dict) and found.get("partitions") == mark else None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shorten(twice)!r} occurs twice in one object")
    return result


# -- msgpack ---------------------------------------------------------------------------------------


class _Counter:
    """Counts the containers of a msgpack document, which may be far larger as objects than as bytes."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._count = 0

    def add(self, count: int) -> None:
        self._count += count
        if self._count > MAX_CONTAINERS:
            raise _too_many(self._key)

    def map(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self.add(1)
        return _no_duplicates(pairs)

    def list(self, items: list[Any]) -> list[Any]:
        self.add(1)
        return items


class _Unpacked:
    """A file over what a zstd frame unpacks to, up to the limit: the size in the frame is only a claim."""

    def __init__(self, data: bytes, key: str) -> None:
        import zstandard

        size = zstandard.get_frame_parameters(data).content_size
        if size > MAX_METADATA_BYTES and size != zstandard.CONTENTSIZE_UNKNOWN:
            raise _too_large(key, f"would unpack to {size:,} bytes, the limit is {MAX_METADATA_BYTES:,} bytes")
        self._reader = zstandard.ZstdDecompressor().stream_reader(data)
        self._key = key
        self._left = MAX_METADATA_BYTES

    def read(self, size: int) -> bytes:
        chunk: bytes = self._reader.read(min(size, _CHUNK))
        self._left -= len(chunk)
        if self._left < 0:
            raise _too_large(self._key, f"unpacks to more, the limit is {MAX_METADATA_BYTES:,} bytes")
        return chunk


def _decode_msgpack(data: bytes, key: str) -> Any:
    import msgpack
    import zstandard

    try:
        count = _Counter(key)
        document = _plain_msgpack(_unpacker(data, key, count), count)
        if document is not None:
            return document
        unpacker = _unpacker(data, key, _Counter(key))
        document = unpacker.unpack()
        if unpacker.read_bytes(1):
            raise ValueError("there is more behind the document")
        return document
    except zstandard.ZstdError as e:
        raise invalid(key, f"it is torn or no zstd: {e}") from None
    except RecursionError:
        raise invalid(key, "it is nested too deeply") from None
    except (ValueError, msgpack.exceptions.UnpackException, TypeError) as e:
        raise invalid(key, f"it is torn or no msgpack: {str(e) or type(e).__name__}") from None


def _unpacker(data: bytes, key: str, count: _Counter) -> Any:
    import msgpack

    return msgpack.Unpacker(
        _Unpacked(data, key),
        read_size=min(_CHUNK, MAX_METADATA_BYTES),
        raw=False,
        strict_map_key=True,
        object_pairs_hook=count.map,
        list_hook=count.list,
        ext_hook=_no_extensions,
        max_buffer_size=MAX_METADATA_BYTES,
        max_array_len=MAX_CONTAINERS,
        max_map_len=MAX_CONTAINERS,
    )


def _plain_msgpack(unpacker: Any, count: _Counter) -> dict[Any, Any] | None:
    """Return a document whose partitions have one and the same table, else None."""
    import msgpack

    document: dict[Any, Any] = {}
    try:
        size = unpacker.read_map_header()
        for _ in range(size):
            name = unpacker.unpack()
            value = _plain_entries(unpacker, count) if name == "partitions" else unpacker.unpack()
            if value is None:
                return None
            document[name] = value
        return document if len(document) == size and not unpacker.read_bytes(1) else None
    except (ValueError, TypeError, msgpack.exceptions.UnpackException):
        return None


def _plain_entries(unpacker: Any, count: _Counter) -> PlainPartitions | None:
    read, read_size = unpacker.unpack, unpacker.read_map_header
    size = read_size()
    count.add(2 + 2 * size)
    labels, tables, keys = [], set(), []
    for _ in range(size):
        labels.append(read())
        if read_size() != 1 or read() != "files" or read_size() != 1:
            return None
        tables.add(read())
        keys.append(read())
    if len(tables) != 1 or len(set(labels)) != size or {type(v) for v in chain(labels, tables, keys)} != {str}:
        return None
    return PlainPartitions(tuple(labels), tables.pop(), tuple(keys))


def _no_extensions(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not allowed")


# -- errors ----------------------------------------------------------------------------------------


def invalid(key: str, reason: str) -> FormatError:
    """Return the error for a document that is damaged or foreign."""
    hint = "The metadata file is damaged or was not written by kartothek, plateau or kartosql."
    return FormatError(f"{key}: {reason}", code="invalid-metadata", hint=hint)


def _too_many(key: str) -> FormatError:
    return _too_large(key, f"it holds more than {MAX_CONTAINERS:,} maps and lists")


def _too_large(key: str, what: str) -> FormatError:
    hint = "No dataset's metadata are that large; the file may be damaged or hostile."
    return FormatError(f"{key}: {what}", code="too-large", hint=hint)


@dataclass(frozen=True)
class DatasetDocument:
    """What the metadata document of one dataset says, checked.

    ``labels`` are the partition labels in document order, ``files`` maps each table to one
    file key per label (None where a partition lacks the table). ``labels`` is None when the
    document has no ``partitions``: the files are then found by listing. ``content`` are the bytes that it was
    read from or written as, None where it was made of another one.
    """

    uuid: str
    key: str
    labels: Sequence[str] | None
    files: Mapping[str, Sequence[str | None]]
    partition_keys: tuple[str, ...] | None
    indices: Mapping[str, Any]  # column -> storage key, or {value text: [labels]}
    metadata: Mapping[str, Any]
    content: Content | None = field(default=None, init=False, compare=False, repr=False)
    named: str = field(default="", compare=False, repr=False)  # what stands for the digest of one without bytes

    @property
    def version(self) -> str:
        """A digest of its bytes, where it was made of some."""
        return self.content.token if self.content is not None else self.named

    @property
    def stored(self) -> StoredPartitions | None:
        """The partitions as bytes, None if they cannot be copied unchanged."""
        labels, keys = self.labels, next(iter(self.files.values()), None)
        if not isinstance(labels, Texts) or not isinstance(keys, Texts) or not self.key.endswith(naming.METADATA_JSON):
            return None
        stored = labels.partitions
        is_whole = (labels.which, keys.which) == (0, 1) and [*self.files] == [stored.table]
        return stored if is_whole and keys.partitions is stored else None

    def release(self) -> None:
        """Give up the bytes of very many partitions where their texts are asked for: both take much memory."""
        stored = self.stored
        if stored is not None and self.content is not None and self.content.size > KEPT_BYTES:
            labels, keys = stored.columns
            object.__setattr__(self, "labels", labels)
            object.__setattr__(self, "files", {stored.table: keys})
            self.content.drop()

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that the partitions hold."""
        return tuple(self.files)

    @memoized
    def sealed_schemas(self) -> Mapping[str, pa.Schema] | None:
        """The schema of each table in the document itself, or None; raises FormatError."""
        if HISTORY not in self.metadata:
            return None
        from kartosql.formats.kartothek.history import sealed_schemas  # which knows documents

        return sealed_schemas(self)


def partitions_of(labels: Sequence[str], files: Mapping[str, Sequence[str | None]]) -> dict[str, Any]:
    """Return partitions as a document has them."""
    if len(files) == 1:
        ((table, keys),) = files.items()
        return {
            label: {"files": {table: key} if key is not None else {}} for label, key in zip(labels, keys, strict=True)
        }
    return {
        label: {"files": {table: keys[i] for table, keys in files.items() if keys[i] is not None}}
        for i, label in enumerate(labels)
    }


def partitions_digest(document: DatasetDocument) -> str:
    """Return the digest of the text that encoding the partitions of a document gives, ``shortened``."""
    stored = document.stored
    if stored is not None and stored.is_ascii:
        return stored.digest
    labels, hashed = document.labels or (), hashlib.sha256()
    for at in range(0, len(labels), _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        made = partitions_of(labels[some], {table: keys[some] for table, keys in document.files.items()})
        text = (", " * (at > 0) + json.dumps(made)[1:-1]).encode()
        for table in document.files:
            place = json.dumps({table: f"{document.uuid}/{table}/"})[1:-2]
            text = shortened(text, f'": {{"files": {{{place}'.encode())
        hashed.update(text)
    return hashed.hexdigest()


LARGE_BYTES = 1 << 18
# A write reads a document for its plan and again for its commit: what somebody still holds is not parsed twice.
_newest: WeakValueDictionary[tuple[str, str], DatasetDocument] = WeakValueDictionary()  # by store and key


def newest_document(place: str, key: str) -> DatasetDocument | None:
    """Return the document that was read or written last under a key of the store at a path or URL."""
    return _newest.get((place, key))


def written_document(document: DatasetDocument, content: Content, outer: str, place: str) -> DatasetDocument:
    """Return a document with stored partitions as reading its content gives it; ``outer`` is it without these."""
    try:
        found = json.loads(outer, object_pairs_hook=_no_duplicates) | {"partitions": document.stored}
        return _remember(checked_document(found, document.key, document.uuid), content, place)
    except (ValueError, FormatError):
        return document


def _remember(document: DatasetDocument, content: Content, place: str) -> DatasetDocument:
    object.__setattr__(document, "content", content)
    _newest[place, document.key] = document
    return document


@pause_garbage_collection()
def parse_document(data: bytes, key: str, uuid: str, place: str = "") -> DatasetDocument:
    """Parse and check the metadata document ``data`` stored under ``key`` in the store at ``place``.

    Raises ``invalid-metadata``, ``unsupported-version``, ``unsafe-key`` or ``too-large``.
    Source: kartothek 5.3 storage layout, dataset_metadata_version 4.
    """
    content = Content(data)
    known = _newest.get((place, key)) if len(data) >= LARGE_BYTES else None
    if known is not None and known.uuid == uuid and known.version == content.token:
        return known
    found = _remember(checked_document(decode_document(data, key), key, uuid), content, place)
    if found.stored is None:
        content.drop()
    return found


@pause_garbage_collection()
def checked_document(document: Any, key: str, uuid: str) -> DatasetDocument:
    """Return what a decoded document says; raises what ``parse_document`` raises."""
    if not isinstance(document, dict):
        raise invalid(key, f"the document is {_kind(document)}, not a map")
    version = document.get("dataset_metadata_version")
    if type(version) is not int:
        raise invalid(key, "dataset_metadata_version is missing or no integer")
    if version != naming.FORMAT_VERSION:
        raise FormatError(
            f"{key}: dataset_metadata_version {version} is not supported",
            code="unsupported-version",
            hint=f"kartosql reads version {naming.FORMAT_VERSION}.",
        )
    if document.get("dataset_uuid") != uuid:
        raise invalid(key, f"dataset_uuid is {shorten(document.get('dataset_uuid'))}, but the file name says {uuid!r}")
    labels, files = _partitions(document, key, uuid)
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        raise invalid(key, f"metadata is {_kind(metadata)}, not a map")
    return DatasetDocument(
        uuid=uuid,
        key=key,
        labels=labels,
        files=files,
        partition_keys=_partition_keys(document, key),
        indices=_indices(document, key, uuid),
        metadata=metadata,
    )


def _partitions(
    document: dict[str, Any], key: str, uuid: str
) -> tuple[Sequence[str] | None, dict[str, Sequence[str | None]]]:
    if "partitions" not in document:
        return None, {}
    partitions = document["partitions"]
    if isinstance(partitions, StoredPartitions):
        _check_table(partitions.table, key, uuid)
        if partitions.safe_below != f"{uuid}/":
            for _, keys in partitions.windows():
                _check_file_keys(keys, key, uuid)
            partitions.safe_below = f"{uuid}/"
        return partitions.texts[0], {partitions.table: partitions.texts[1]}
    if isinstance(partitions, PlainPartitions):
        _check_table(partitions.table, key, uuid)
        _check_labels(partitions.labels, key)
        _check_file_keys(partitions.keys, key, uuid)
        return partitions.labels, {partitions.table: partitions.keys}
    if not isinstance(partitions, dict):
        raise invalid(key, f"partitions is {_kind(partitions)}, not a map")
    labels = tuple(partitions)
    _check_labels(labels, key)
    found = _found_files(partitions, key)
    files: dict[str, Sequence[str | None]] = {}
    for table in dict.fromkeys(chain.from_iterable(found)):
        _check_table(table, key, uuid)
        column = tuple([entry.get(table) for entry in found])
        _check_file_keys(column, key, uuid)
        files[table] = column
    return labels, files


def _check_table(table: Any, key: str, uuid: str) -> None:
    if not isinstance(table, str):
        raise invalid(key, f"the table name {shorten(table)} is not text")
    check_key(f"{uuid}/{table}/x", source=key)
    if "/" in table:
        raise invalid(key, f"the table name {shorten(table)} holds a slash")


def _check_labels(labels: tuple[Any, ...], key: str) -> None:
    try:
        joined = "".join(labels)
        if not joined.isascii():
            joined.encode()
    except (TypeError, UnicodeEncodeError):
        raise invalid(key, "a partition label is no text") from None


def _found_files(partitions: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = [entry.get("files") if isinstance(entry, dict) else None for entry in partitions.values()]
    for label, files in zip(partitions, found, strict=True):
        if not isinstance(files, dict):
            raise invalid(key, f"the partition {shorten(label)} is not of the form {{'files': {{table: key}}}}")
    return found  # type: ignore[return-value]


def _check_file_keys(keys: Sequence[Any], source: str, uuid: str) -> None:
    prefix = uuid + "/"
    if not are_plain(keys, prefix):
        for key in keys:
            if key is not None:
                check_key(key, prefix, source=source)


def _partition_keys(document: dict[str, Any], key: str) -> tuple[str, ...] | None:
    if "partition_keys" not in document:
        return None
    keys = document["partition_keys"]
    if not isinstance(keys, list) or not all(isinstance(k, str) and k for k in keys) or len(set(keys)) != len(keys):
        raise invalid(key, f"partition_keys is {shorten(keys)}, not a list of different column names")
    return tuple(keys)


def _indices(document: dict[str, Any], key: str, uuid: str) -> dict[str, Any]:
    indices = document.get("indices", {})
    if not isinstance(indices, dict):
        raise invalid(key, f"indices is {_kind(indices)}, not a map")
    for column, where in indices.items():
        if not isinstance(column, str):
            raise invalid(key, f"the index column {shorten(column)} is not text")
        if isinstance(where, str):
            check_key(where, uuid + "/", source=key)
        elif not isinstance(where, dict):
            raise invalid(key, f"the index of {shorten(column)} is {_kind(where)}, neither a key nor a map")
    return indices


def _kind(value: Any) -> str:
    names = {dict: "a map", list: "a list", str: "text", type(None): "null", bool: "a truth value"}
    return names.get(type(value), f"a {type(value).__name__}")


# -- schema files ------------------------------------------------------------------------------------


def read_schema(data: bytes, key: str) -> pa.Schema:
    """Return the Arrow schema in the bytes of a ``_common_metadata`` file.

    Types are normalised as Kartothek does it; the key-value metadata is kept. Raises
    ``invalid-schema``. Source: facts of kartothek 5.3, ``core/common_metadata.py``.
    """
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError, TypeError) as e:
        reraise(e, f"Cannot read {key!r}")
        raise FormatError(
            f"{key}: it is torn or no Parquet schema file: {e}",
            code="invalid-schema",
            hint="Restore the file, or rebuild the dataset from its data.",
        ) from None
    return checked_schema(schema, key)


def checked_schema(schema: pa.Schema, key: str) -> pa.Schema:
    """Return a schema with Kartothek's types; raises ``invalid-schema`` for names that cannot be columns."""
    names = schema.names
    if len(set(names)) != len(names):
        raise FormatError(f"{key}: a column name occurs twice", code="invalid-schema")
    for name in names:
        if not name or "\0" in name or len(name) > 1024:
            raise FormatError(f"{key}: {name[:40]!r} is no usable column name", code="invalid-schema")
    return pa.schema([pa.field(f.name, normalise(f.type)) for f in schema], metadata=schema.metadata)


def normalise(type_: pa.DataType) -> pa.DataType:
    """Return the type that Kartothek records for a column of Arrow type ``type_``.

    Integers become 64 bits wide, floats double, dictionaries their value type, lists and
    large or view layouts the plain layout; timestamps are in microseconds, or nanoseconds
    where the schema says so.
    """
    t = pa.types
    if t.is_dictionary(type_):
        return normalise(type_.value_type)
    if t.is_signed_integer(type_):
        return pa.int64()
    if t.is_unsigned_integer(type_):
        return pa.uint64()
    if t.is_floating(type_):
        return pa.float64()
    if t.is_large_string(type_) or t.is_string_view(type_):
        return pa.string()
    if t.is_large_binary(type_) or t.is_binary_view(type_) or t.is_fixed_size_binary(type_):
        return pa.binary()
    if t.is_timestamp(type_):
        return pa.timestamp("ns" if type_.unit == "ns" else "us", type_.tz)
    if t.is_list(type_) or t.is_large_list(type_) or t.is_list_view(type_) or t.is_large_list_view(type_):
        return pa.list_(pa.field("item", normalise(type_.value_type)))
    return type_


def merge_types(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the common type of a column that two datasets share, or None if they do not fit.

    A column of type null fits every other type.
    """
    if left.equals(right) or pa.types.is_null(right):
        return left
    if pa.types.is_timestamp(left) and pa.types.is_timestamp(right) and left.tz == right.tz:
        return left
    return right if pa.types.is_null(left) else None


# -- marks -------------------------------------------------------------------------------------------

# The originals keep the map ``metadata`` of a document and drop everything else that they do not know, so what kartosql
# writes for itself stands there, beside the ``POINTER`` to data-skipping metadata.
IDENTITY = "kartosql_commit"  # who wrote the document last (see ``write.document``)
SCHEMA = "kartosql_schema"  # table -> schema file in base64, in place of ``_common_metadata``, which is being replaced
INTENT = "kartosql_intent"  # a change of several datasets is under way here; the seed says whether it is committed
UNFINISHED = "kartosql_unfinished"  # at the seed: committed changes of several, and where they are not carried out yet
ABSENT = "kartosql_absent"  # there is no such dataset yet, or no more
STAGED = "kartosql_staged"  # in a document that waits in ``<uuid>/.commit/``: what it was made of
HISTORY = "kartosql_schema_history"  # the schemas that the tables had, see history.py
ADDED = "kartosql_added_columns"  # columns by table that files from before they were added lack
OWN_KEYS = frozenset({IDENTITY, SCHEMA, INTENT, UNFINISHED, ABSENT, STAGED, HISTORY, ADDED})


class Intent(NamedTuple):
    """The mark of a change of several datasets: which one, where to ask for its state, and what it does here.

    ``kind`` is "change", for which ``staged`` is the key of the next document, or "delete", or
    "primary" at the seed itself.
    """

    tx: str
    seed: str
    kind: str
    time: str
    staged: str | None = None


def intent_of(document: DatasetDocument) -> Intent | None:
    """Return the mark of a change under way; marks that kartosql cannot have written are ignored."""
    found = document.metadata.get(INTENT)
    if not isinstance(found, dict) or not all(isinstance(found.get(n), str) for n in ("tx", "seed", "kind", "time")):
        return None
    intent = Intent(found["tx"], found["seed"], found["kind"], found["time"], found.get("staged"))
    if not naming.is_dataset_uuid(intent.seed) or intent.kind not in ("change", "delete", "primary"):
        return None
    if intent.kind == "change":
        check_key(intent.staged, f"{document.uuid}/{SIDE_FOLDER}/", source=document.key)
    return intent


def unfinished_of(document: DatasetDocument) -> dict[str, list[str]]:
    """Return the committed changes that are recorded at a seed: id -> uuids of the datasets to look at."""
    found = document.metadata.get(UNFINISHED)
    if not isinstance(found, dict):
        return {}
    return {
        str(tx): [u for u in members if isinstance(u, str) and naming.is_dataset_uuid(u)]
        for tx, members in found.items()
        if isinstance(members, list)
    }


def users_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a dataset but those of kartosql itself."""
    return {k: v for k, v in metadata.items() if k not in OWN_KEYS and k != naming.POINTER}


def pending_schemas(document: DatasetDocument) -> dict[str, bytes]:
    """Return by table the schema files that count instead of ``_common_metadata``; raises ``invalid-metadata``."""
    found = document.metadata.get(SCHEMA)
    if not isinstance(found, dict):
        return {}
    try:
        return {str(table): base64.b64decode(text, validate=True) for table, text in found.items()}
    except (binascii.Error, TypeError, ValueError):
        raise FormatError(f"{document.key}: {SCHEMA} is no map of schema files in base64") from None


def added_columns(metadata: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return by table the columns that files may lack, as they were added to a table with files."""
    found = metadata.get(ADDED)
    listed = found.items() if isinstance(found, dict) else ()
    return {table: frozenset(map(str, names)) for table, names in listed if isinstance(names, list)}


def fingerprint(schema: pa.Schema) -> str:
    """Return what shows whether a schema is the one that a commit knew: its names and types in order."""
    text = "\0".join(f"{field.name}\0{field.type}" for field in schema)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def fingerprints(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the fingerprints of the schemas by table in the identity of a commit."""
    identity = metadata.get(IDENTITY)
    found = identity.get("schemas") if isinstance(identity, dict) else None
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
