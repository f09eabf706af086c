"""The metadata document of a dataset: JSON, or msgpack compressed with zstd."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kartosql.errors import FormatError, shorten
from kartosql.formats.bulk import many_objects
from kartosql.formats.kartothek import naming
from kartosql.store.keys import check_key
from kartosql.store.store import MAX_METADATA_BYTES

MAX_CONTAINERS = 10_000_000  # 4 million partitions; a map takes about 70 bytes of memory


@dataclass(frozen=True)
class DatasetDocument:
    """What the metadata document of one dataset says, checked.

    ``labels`` are the partition labels in document order, ``files`` maps each table to one
    file key per label (None where a partition lacks the table). ``labels`` is None when the
    document has no ``partitions``: the files are then found by listing.
    """

    uuid: str
    key: str
    labels: tuple[str, ...] | None
    files: Mapping[str, tuple[str | None, ...]]
    partition_keys: tuple[str, ...] | None
    indices: Mapping[str, Any]  # column -> storage key, or {value text: [labels]}
    metadata: Mapping[str, Any]

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that the partitions hold."""
        return tuple(self.files)


def parse_document(data: bytes, key: str, uuid: str) -> DatasetDocument:
    """Parse and check the metadata document ``data`` stored under ``key``.

    Raises ``invalid-metadata``, ``unsupported-version``, ``unsafe-key`` or ``too-large``.
    Source: kartothek 5.3 storage layout, dataset_metadata_version 4.
    """
    decode = _decode_msgpack if key.endswith(naming.METADATA_MSGPACK) else _decode_json
    with many_objects():
        return _checked(decode(data, key), key, uuid)


def _checked(document: Any, key: str, uuid: str) -> DatasetDocument:
    if not isinstance(document, dict):
        raise _invalid(key, f"the document is {_kind(document)}, not a map")
    version = document.get("dataset_metadata_version")
    if type(version) is not int:
        raise _invalid(key, "dataset_metadata_version is missing or no integer")
    if version != naming.FORMAT_VERSION:
        raise FormatError(
            f"{key}: dataset_metadata_version {version} is not supported",
            code="unsupported-version",
            hint=f"kartosql reads version {naming.FORMAT_VERSION}.",
        )
    if document.get("dataset_uuid") != uuid:
        raise _invalid(key, f"dataset_uuid is {shorten(document.get('dataset_uuid'))}, but the file name says {uuid!r}")
    labels, files = _partitions(document, key, uuid)
    metadata = document.get("metadata", {})
    if not isinstance(metadata, dict):
        raise _invalid(key, f"metadata is {_kind(metadata)}, not a map")
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
) -> tuple[tuple[str, ...] | None, dict[str, tuple[str | None, ...]]]:
    if "partitions" not in document:
        return None, {}
    partitions = document["partitions"]
    if not isinstance(partitions, dict):
        raise _invalid(key, f"partitions is {_kind(partitions)}, not a map")
    found = _found_files(partitions, key)
    files: dict[str, tuple[str | None, ...]] = {}
    for table in dict.fromkeys(chain.from_iterable(found)):
        if not isinstance(table, str):
            raise _invalid(key, f"the table name {shorten(table)} is not text")
        check_key(f"{uuid}/{table}/x", source=key)
        if "/" in table:
            raise _invalid(key, f"the table name {shorten(table)} holds a slash")
        column = tuple([entry.get(table) for entry in found])
        _check_file_keys(column, key, uuid)
        files[table] = column
    return tuple(partitions), files


def _found_files(partitions: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the ``files`` map of each partition."""
    try:
        found = [entry["files"] for entry in partitions.values()]
    except (TypeError, KeyError, IndexError):
        found = []
    if len(found) < len(partitions) or not {type(f) for f in found} <= {dict}:
        for label, entry in partitions.items():
            if not isinstance(entry, dict) or not isinstance(entry.get("files"), dict):
                raise _invalid(key, f"the partition {shorten(label)} is not of the form {{'files': {{table: key}}}}")
    return found


def _check_file_keys(keys: tuple[Any, ...], source: str, uuid: str) -> None:
    prefix = uuid + "/"
    if not _are_plain(keys, prefix):
        for key in keys:
            if key is not None:
                check_key(key, prefix, source=source)


def _are_plain(keys: tuple[Any, ...], prefix: str) -> bool:
    """Return whether a few tests over all keys at once already show that each is safe."""
    try:
        joined = "\n" + "\n".join(keys)
    except TypeError:
        return False
    return (
        joined.isascii()
        and joined.count("\n") == joined.count("\n" + prefix) == len(keys)
        and joined.replace("\n", "").isprintable()
        and not any(bad in joined for bad in ("..", "/./", "/.\n", "://"))
        and max(map(len, keys), default=0) < 256
    )


def _partition_keys(document: dict[str, Any], key: str) -> tuple[str, ...] | None:
    if "partition_keys" not in document:
        return None
    keys = document["partition_keys"]
    if not isinstance(keys, list) or not all(isinstance(k, str) and k for k in keys) or len(set(keys)) != len(keys):
        raise _invalid(key, f"partition_keys is {shorten(keys)}, not a list of different column names")
    return tuple(keys)


def _indices(document: dict[str, Any], key: str, uuid: str) -> dict[str, Any]:
    indices = document.get("indices", {})
    if not isinstance(indices, dict):
        raise _invalid(key, f"indices is {_kind(indices)}, not a map")
    for column, where in indices.items():
        if not isinstance(column, str):
            raise _invalid(key, f"the index column {shorten(column)} is not text")
        if isinstance(where, str):
            check_key(where, uuid + "/", source=key)
        elif not isinstance(where, dict):
            raise _invalid(key, f"the index of {shorten(column)} is {_kind(where)}, neither a key nor a map")
    return indices


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shorten(twice)!r} occurs twice in one object")
    return result


class _Counter:
    """Counts the containers of a msgpack document, which may be far larger as objects than as bytes."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._count = 0

    def _one_more(self) -> None:
        self._count += 1
        if self._count > MAX_CONTAINERS:
            raise _too_many(self._key)

    def map(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._one_more()
        return _no_duplicates(pairs)

    def list(self, items: list[Any]) -> list[Any]:
        self._one_more()
        return items


def _too_many(key: str) -> FormatError:
    return FormatError(
        f"{key}: it holds more than {MAX_CONTAINERS:,} maps and lists",
        code="too-large",
        hint="No dataset's metadata are that large; the file may be damaged or hostile.",
    )


def _decode_json(data: bytes, key: str) -> Any:
    if data.count(b"{") + data.count(b"[") > MAX_CONTAINERS:
        raise _too_many(key)
    try:
        text = data.decode("utf-8")
        document = json.loads(text)
        # Keys that occur twice are lost now. Counting colons behind quotes shows whether there are any; only where
        # texts look like keys, or blanks hide some, each object has to be looked at.
        if text.count('":') != _count_keys(document) or any(f'"{blank}:' in text for blank in " \t\r\n"):
            return json.loads(text, object_pairs_hook=_no_duplicates)
        return document
    except UnicodeDecodeError as e:
        raise _invalid(key, f"it is not UTF-8 ({e.reason} at byte {e.start})") from None
    except RecursionError:
        raise _invalid(key, "it is nested too deeply") from None
    except ValueError as e:
        raise _invalid(key, f"it is torn or no JSON: {e}") from None


def _count_keys(document: Any) -> int:
    """Return the number of keys of all objects in a JSON document."""
    count, level = 0, [document]
    while level:
        maps = [v for v in level if type(v) is dict]
        lists = [v for v in level if type(v) is list]
        count += sum(map(len, maps))
        below = chain(chain.from_iterable(m.values() for m in maps), chain.from_iterable(lists))
        level = [v for v in below if type(v) is dict or type(v) is list]
    return count


def _decode_msgpack(data: bytes, key: str) -> Any:
    import msgpack
    import zstandard

    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > MAX_METADATA_BYTES and size != zstandard.CONTENTSIZE_UNKNOWN:
            raise FormatError(
                f"{key}: would unpack to {size:,} bytes, the limit is {MAX_METADATA_BYTES:,}", code="too-large"
            )
        # Streamed, because the size in the frame is only a claim of whoever wrote it.
        reader = zstandard.ZstdDecompressor().stream_reader(data)
        raw = bytearray()
        while chunk := reader.read(1 << 20):
            raw += chunk
            if len(raw) > MAX_METADATA_BYTES:
                raise FormatError(f"{key}: unpacks to more than {MAX_METADATA_BYTES:,} bytes", code="too-large")
        count = _Counter(key)
        return msgpack.unpackb(
            raw,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=count.map,
            list_hook=count.list,
            ext_hook=_no_extensions,
            max_array_len=MAX_CONTAINERS,
            max_map_len=MAX_CONTAINERS,
        )
    except zstandard.ZstdError as e:
        raise _invalid(key, f"it is torn or no zstd: {e}") from None
    except RecursionError:
        raise _invalid(key, "it is nested too deeply") from None
    except (ValueError, msgpack.exceptions.UnpackException, TypeError) as e:
        raise _invalid(key, f"it is torn or no msgpack: {e}") from None


def _no_extensions(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not allowed")


def _kind(value: Any) -> str:
    names = {dict: "a map", list: "a list", str: "text", type(None): "null", bool: "a truth value"}
    return names.get(type(value), f"a {type(value).__name__}")


def _invalid(key: str, reason: str) -> FormatError:
    return FormatError(
        f"{key}: {reason}",
        code="invalid-metadata",
        hint="The metadata file is damaged or was not written by kartothek, plateau or kartosql.",
    )
