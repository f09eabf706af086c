"""Metadata documents from bytes: JSON, or msgpack compressed with zstd.

Documents name up to a million partitions, nearly always in one form: a label, one table, one
key. These are taken out without an object for each map, which halves time and memory. Whatever
is not exactly of that form is read the long way, which also finds the words for what is wrong.
"""

from __future__ import annotations

import json
import re
import uuid
from itertools import chain
from typing import Any, NamedTuple

from kartosql.errors import FormatError, shorten
from kartosql.formats.kartothek import naming
from kartosql.store.store import MAX_METADATA_BYTES

MAX_CONTAINERS = 10_000_000  # 4 million partitions; a map takes about 70 bytes of memory

_CONTROLS = bytes(range(32))
_PARTITIONS = '"partitions": {'
_FIRST_ENTRY = re.compile(r'"[^"]*": \{"files": \{"([^"]*)": "')
_CHUNK = 1 << 20


class PlainPartitions(NamedTuple):
    """The ``partitions`` of a document in which each has the same single table."""

    labels: tuple[str, ...]
    table: str
    keys: tuple[str, ...]


def decode_document(data: bytes, key: str) -> Any:
    """Return the document in ``data``, with ``partitions`` as PlainPartitions where they have that form.

    Raises ``invalid-metadata`` and ``too-large``.
    """
    return _decode_msgpack(data, key) if key.endswith(naming.METADATA_MSGPACK) else _decode_json(data, key)


# -- JSON ------------------------------------------------------------------------------------------


def _decode_json(data: bytes, key: str) -> Any:
    if data.count(b"{") + data.count(b"[") > MAX_CONTAINERS:
        raise _too_many(key)
    try:
        text = data.decode("utf-8")
        # Text may hold no control characters; where there are none, it need not be looked for them.
        if len(data.translate(None, _CONTROLS)) == len(data):
            document = _plain_json(text)
            if document is not None:
                return document
        document = json.loads(text)
        # Keys that occur twice are lost now. Counting colons behind quotes shows whether there are any; only where
        # texts look like keys, or blanks hide some, each object has to be looked at.
        if text.count('":') != _count_keys(document) or any(f'"{blank}:' in text for blank in " \t\r\n"):
            return json.loads(text, object_pairs_hook=_no_duplicates)
        return document
    except UnicodeDecodeError as e:
        raise invalid(key, f"it is not UTF-8 ({e.reason} at byte {e.start})") from None
    except RecursionError:
        raise invalid(key, "it is nested too deeply") from None
    except ValueError as e:
        raise invalid(key, f"it is torn or no JSON: {e}") from None


def _plain_json(text: str) -> dict[str, Any] | None:
    """Return a document whose partitions stand in it as the originals write them, else None."""
    start = text.find(_PARTITIONS) + len(_PARTITIONS)
    end = text.find('"}}}', start) + 3
    first = _FIRST_ENTRY.match(text, start) if start < end else None
    if first is None or text.find("\\", start, end) >= 0:
        return None
    table = first[1]
    middle = f'": {{"files": {{"{table}": "'
    found = re.compile(f'"([^"]*){re.escape(middle)}([^"]*)"}}}}(?:, |\\Z)').findall(text, start, end)
    labels, keys = zip(*found, strict=True) if found else ((), ())
    del found
    # Matches that take up every character leave no room for anything else.
    fixed = len(f'"{middle}"}}}}') * len(labels) + len(", ") * (len(labels) - 1)
    if fixed + sum(map(len, labels)) + sum(map(len, keys)) != end - start or len(set(labels)) != len(labels):
        return None
    # The mark shows whether what was taken out is the value of the document's own key.
    mark = uuid.uuid4().hex
    try:
        rest = json.loads(f'{text[: start - 1]}"{mark}"{text[end + 1 :]}', object_pairs_hook=_no_duplicates)
    except ValueError:
        return None
    if not isinstance(rest, dict) or rest.get("partitions") != mark:
        return None
    return rest | {"partitions": PlainPartitions(labels, table, keys)}


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shorten(twice)!r} occurs twice in one object")
    return result


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
            raise _too_large(key, f"would unpack to {size:,} bytes")
        self._reader = zstandard.ZstdDecompressor().stream_reader(data)
        self._key = key
        self._left = MAX_METADATA_BYTES

    def read(self, size: int) -> bytes:
        chunk: bytes = self._reader.read(min(size, _CHUNK))
        self._left -= len(chunk)
        if self._left < 0:
            raise _too_large(self._key, "unpacks to more")
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
    return FormatError(
        f"{key}: {reason}",
        code="invalid-metadata",
        hint="The metadata file is damaged or was not written by kartothek, plateau or kartosql.",
    )


def _too_many(key: str) -> FormatError:
    return FormatError(
        f"{key}: it holds more than {MAX_CONTAINERS:,} maps and lists",
        code="too-large",
        hint="No dataset's metadata are that large; the file may be damaged or hostile.",
    )


def _too_large(key: str, what: str) -> FormatError:
    return FormatError(
        f"{key}: {what}, the limit is {MAX_METADATA_BYTES:,} bytes",
        code="too-large",
        hint="No dataset's metadata are that large; the file may be damaged or hostile.",
    )
