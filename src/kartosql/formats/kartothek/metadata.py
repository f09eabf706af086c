"""The metadata document of a dataset, checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa

from kartosql.errors import FormatError, shorten
from kartosql.formats.bulk import many_objects
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.decode import PlainPartitions, decode_document, invalid
from kartosql.store.keys import check_key

_CONTROLS = bytes(c for c in range(32) if c != ord("\n"))


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

    @cached_property
    def sealed_schemas(self) -> Mapping[str, pa.Schema] | None:
        """The schema of each table if the document itself tells it, else None; raises FormatError."""
        if naming.HISTORY not in self.metadata:
            return None
        from kartosql.formats.kartothek.history import sealed_schemas  # which knows documents

        return sealed_schemas(self)


LARGE_BYTES = 1 << 18
# A write reads a document for its plan and again for its commit: what somebody still holds is not parsed twice.
_large: WeakValueDictionary[tuple[str, str, bytes], DatasetDocument] = WeakValueDictionary()


def parse_document(data: bytes, key: str, uuid: str) -> DatasetDocument:
    """Parse and check the metadata document ``data`` stored under ``key``.

    Raises ``invalid-metadata``, ``unsupported-version``, ``unsafe-key`` or ``too-large``.
    Source: kartothek 5.3 storage layout, dataset_metadata_version 4.
    """
    if len(data) < LARGE_BYTES:
        return _parsed(data, key, uuid)
    name = (key, uuid, hashlib.blake2b(data, digest_size=20).digest())
    found = _large.get(name)
    if found is None:
        found = _large[name] = _parsed(data, key, uuid)
    return found


def _parsed(data: bytes, key: str, uuid: str) -> DatasetDocument:
    with many_objects():
        return _checked(decode_document(data, key), key, uuid)


def _checked(document: Any, key: str, uuid: str) -> DatasetDocument:
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
) -> tuple[tuple[str, ...] | None, dict[str, tuple[str | None, ...]]]:
    if "partitions" not in document:
        return None, {}
    partitions = document["partitions"]
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
    files: dict[str, tuple[str | None, ...]] = {}
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
    """Return the ``files`` map of each partition."""
    try:
        found = [entry["files"] for entry in partitions.values()]
    except (TypeError, KeyError, IndexError):
        found = []
    if len(found) < len(partitions) or not {type(f) for f in found} <= {dict}:
        for label, entry in partitions.items():
            if not isinstance(entry, dict) or not isinstance(entry.get("files"), dict):
                raise invalid(key, f"the partition {shorten(label)} is not of the form {{'files': {{table: key}}}}")
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
        and len(joined.encode().translate(None, _CONTROLS)) == len(joined)
        and not any(bad in joined for bad in ("..", "/./", "/.\n", "://"))
        and max(map(len, keys), default=0) < 256
    )


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
