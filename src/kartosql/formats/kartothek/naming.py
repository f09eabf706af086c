"""Keys, labels and percent-encoding of Kartothek datasets (format version 4)."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote as _quote
from urllib.parse import unquote_to_bytes

from kartosql.formats.xskipper.naming import folder_name, table_identifier
from kartosql.store import Store
from kartosql.store.keys import key_problem

METADATA_JSON = ".by-dataset-metadata.json"
METADATA_MSGPACK = ".by-dataset-metadata.msgpack.zstd"
INDEX_SUFFIX = ".by-dataset-index.parquet"
VIEW_SUFFIX = ".kartosql-view.json"  # beside the documents of datasets, so that one listing tells of both
COMMON_METADATA = "_common_metadata"
DEFAULT_TABLE = "table"
CUBE_SEPARATOR = "++"
FORMAT_VERSION = 4

_UUID = re.compile(r"[a-zA-Z0-9+\-_]+")
# The file-level part of the labels that kartothek, plateau and kartosql give: a uuid4 per written frame.
# Where a write makes several files of one partition, a second number tells these apart.
_WRITE_ID = re.compile(r"([0-9a-f]{32})(-[0-9a-f]{16})?")


def is_dataset_uuid(name: str) -> bool:
    """Return whether ``name`` is a legal dataset uuid."""
    return _UUID.fullmatch(name) is not None


def metadata_uuid(file_name: str) -> str | None:
    """Return the dataset uuid of a metadata file name, or None for other files."""
    for suffix in (METADATA_JSON, METADATA_MSGPACK):
        if file_name.endswith(suffix):
            return file_name[: -len(suffix)] or None
    return None


def split_member(uuid: str) -> tuple[str, str] | None:
    """Return (cube prefix, dataset id) of a cube member's uuid, or None for other datasets."""
    prefix, separator, dataset = uuid.partition(CUBE_SEPARATOR)
    if not separator or not prefix or not dataset or CUBE_SEPARATOR in dataset:
        return None
    return prefix, dataset


def schema_key(uuid: str, table: str) -> str:
    """Return the key of a table's schema file."""
    return f"{uuid}/{table}/{COMMON_METADATA}"


def quote(text: str | bytes) -> str:
    """Percent-encode a column name or value for a path; unlike the original also ``/``."""
    return _quote(text, safe="~")


def unquote(text: str) -> bytes:
    """Return the bytes that a percent-encoded path component stands for."""
    return unquote_to_bytes(text)


def folder_of(key: str, uuid: str, table: str) -> str:
    """Return the part of a file key between table and file name (``k1=v1/k2=v2`` or empty)."""
    head = len(uuid) + len(table) + 2
    tail = key.rfind("/")
    return key[head:tail] if tail > head else ""


def write_id(key: str) -> str | None:
    """Return the uuid that all files of one written frame share, or None for other names."""
    found = _WRITE_ID.fullmatch(key[key.rfind("/") + 1 :].removesuffix(".parquet"))
    return found[1] if found else None


def write_ids(keys: Iterable[str]) -> list[str | None]:
    """Return ``write_id`` of each key; names that many of them share are looked at once."""
    names = [key[key.rfind("/") + 1 :] for key in keys]
    known = {name: write_id(name) for name in {*names}}
    return [known[name] for name in names]


def file_id(write: str) -> str:
    """Return a file name for one of several files of a partition that belong to the write with this id."""
    return f"{write}-{uuid.uuid4().hex[:16]}"


def split_folder(folder: str, partition_keys: tuple[str, ...]) -> dict[str, bytes]:
    """Return the raw value of each partition key in ``folder``.

    Components that are not ``key=value`` of the next expected key belong to the value before
    them: older writers did not encode a slash inside of a value.
    """
    values: dict[str, bytes] = {}
    current: str | None = None
    expected = list(partition_keys)
    for part in folder.split("/") if folder else ():
        name, separator, value = part.partition("=")
        column = unquote(name).decode("utf-8", "replace") if separator and "=" not in value else None
        if column is not None and column in expected:
            # Keys before the one found are missing; the caller reports them.
            expected = expected[expected.index(column) + 1 :]
            current = column
            values[column] = unquote(value)
        elif current is not None:
            values[current] += b"/" + unquote(part)
    return values


def derive_partition_keys(folder: str) -> tuple[str, ...]:
    """Return the partition keys that a file's folder shows, for documents that do not list them."""
    keys = []
    for part in folder.split("/") if folder else ():
        name, separator, value = part.partition("=")
        if separator and "=" not in value:
            keys.append(unquote(name).decode("utf-8", "replace"))
    return tuple(keys)


BASE = ".kartosql/skipping"
POINTER = "kartosql_skipping"  # in the document's map ``metadata``
FOLLOWED = "kartosql_published:"  # there, before the type and the folder in the store of a table that follows commits


class Place(NamedTuple):
    """Where the metadata of a table lie, and the identifier of the table in them."""

    folder: str
    table: str

    def text(self) -> str:
        """Return the entry of the document."""
        return json.dumps(self._asdict())


def place_for(store: Store, uuid: str, table: str) -> Place:
    """Return where new metadata of a table go: where Xskipper looks, given ``BASE/<uuid>`` as base folder."""
    url = store.url if "://" in store.url else os.path.abspath(store.url)
    identifier = table_identifier(f"{url.removeprefix('file://').rstrip('/')}/{uuid}/{table}")
    return Place(f"{BASE}/{uuid}/{folder_name(identifier)}", identifier)


def place_in(metadata: Mapping[str, Any], uuid: str) -> Place | None:
    """Return where the metadata of a dataset lie, None if it has none; what others wrote there leads nowhere else."""
    text = metadata.get(POINTER)
    if not isinstance(text, str):
        return None
    try:
        found = json.loads(text)
        place = Place(str(found["folder"]), str(found["table"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return None if key_problem(place.folder, f"{BASE}/{uuid}/") else place
