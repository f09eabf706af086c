"""Parsed metadata that outlive a statement, used again only while the files are certainly the same."""

from __future__ import annotations

import hashlib
import operator
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kartosql.errors import FormatError, KartosqlError, StoreError
from kartosql.formats.kartothek import naming
from kartosql.store import Stamp, Store

MAX_DATASETS = 64
MAX_PARTITIONS = 2_000_000  # in all datasets together; one partition takes about 400 bytes
# A write within the resolution of a filesystem's clock, 2 s at worst, leaves the time of a file as it is.
SETTLED_NS = 3_000_000_000

_T = TypeVar("_T")
Failure = KartosqlError | KeyError


@dataclass(frozen=True)
class Wanted:
    """A metadata file and how to read it; ``etag`` is what a listing says about its content."""

    uuid: str
    key: str
    parse: Callable[[bytes], Any]
    etag: str | None = None


@dataclass(frozen=True)
class _Kept:
    """What was read, and by what to tell that it did not change: one of stamp, etag and digest."""

    value: Any
    stamp: Stamp | None
    etag: str | None
    digest: bytes | None

    def is_same(self, stamp: Stamp | None, etag: str | None, digest: bytes | None = None) -> bool:
        """Return whether one of them proves that the content is the same."""
        known = ((self.stamp, stamp), (self.etag, etag), (self.digest, digest))
        return any(mine is not None and mine == other for mine, other in known)


class MetadataCache:
    """Holds documents and schemas by key, and what was made of them, for the datasets used last.

    A local file is the same if its inode, size and times are, and the times lie so far back
    that no later write can have left them; an object of a store if its ETag is the MD5 of what
    was read. All others are read again, and only not parsed again if their bytes are the same.
    May be used by several threads.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[str, dict[str, _Kept]] = OrderedDict()  # by uuid and key
        self._made: dict[str, tuple[tuple[object, ...], Any]] = {}
        self._lock = threading.RLock()
        self._parsing = threading.Lock()

    def load(self, store: Store, wanted: Sequence[Wanted]) -> list[Any | Failure]:
        """Return the parsed content of files, the same objects as before if nothing changed.

        Files that are read are read concurrently. Errors stand in place of values; none is kept.
        """
        results: list[Any | Failure] = [None] * len(wanted)
        missing: list[tuple[int, Stamp | None]] = []
        for at, one in enumerate(wanted):
            try:
                stamp = store.stamp(one.key)
            except (KeyError, KartosqlError) as e:
                results[at] = e
                continue
            with self._lock:
                file = self._files.get(one.uuid, {}).get(one.key)
                if file is not None and file.is_same(stamp, one.etag):
                    self._files.move_to_end(one.uuid)
                    results[at] = file.value
                else:
                    missing.append((at, stamp))
        rows = store.map(lambda item: _read(store, wanted[item[0]].key, item[1]), missing)
        for (at, _), row in zip(missing, rows, strict=True):
            results[at] = self._settle(wanted[at], *row) if isinstance(row, tuple) else row
        return results

    def _settle(self, one: Wanted, data: bytes, stamp: Stamp | None) -> Any | Failure:
        """Parse what was read unless it is what was there before."""
        etag = one.etag if one.etag and hashlib.md5(data, usedforsecurity=False).hexdigest() == one.etag else None
        with self._parsing:
            with self._lock:
                before = self._files.get(one.uuid, {}).get(one.key)
            proven = stamp is not None or etag is not None
            digest = _digest(data) if not proven or (before is not None and before.digest is not None) else None
            with self._lock:
                if before is not None and before.is_same(stamp, etag, digest):
                    self._files.setdefault(one.uuid, {})[one.key] = _Kept(before.value, stamp, etag, digest)
                    return before.value
                # The old content goes before the new one comes, as both may be large.
                del before
                self._drop(one)
            try:
                value = one.parse(data)
            except KartosqlError as e:
                return e
            with self._lock:
                self._files.setdefault(one.uuid, {})[one.key] = _Kept(value, stamp, etag, digest)
                self._files.move_to_end(one.uuid)
                self._evict()
            return value

    # -- what is made of files -------------------------------------------------------------------

    def dataset(self, uuid: str, parts: Sequence[object], make: Callable[[], _T]) -> _T:
        """Return what ``make`` made of the same objects before, else call it."""
        return self._make(f"dataset {uuid}", uuid, parts, make)

    def cube(self, prefix: str, uuid: str, parts: Sequence[object], make: Callable[[], _T]) -> _T:
        """Return what ``make`` made of the same objects before, else call it; ``uuid`` is one of the members."""
        return self._make(f"cube {prefix}", uuid, parts, make)

    def listing(self, uuid: str, value: _T) -> _T:
        """Return the listing given before if it is equal, else ``value``."""
        with self._lock:
            found: _T = self._make(f"listing {uuid}", uuid, (), lambda: value)
            if found == value:
                return found
            self._made.pop(f"listing {uuid}", None)
            return self._make(f"listing {uuid}", uuid, (), lambda: value)

    def _make(self, name: str, uuid: str, parts: Sequence[object], make: Callable[[], _T]) -> _T:
        with self._lock:
            found = self._made.pop(name, None)
            if found is None or len(found[0]) != len(parts) or not all(map(operator.is_, found[0], parts)):
                found = (tuple(parts), make())
            if uuid in self._files:
                self._made[name] = found
            return found[1]

    # -- bounds ----------------------------------------------------------------------------------

    def _drop(self, one: Wanted) -> None:
        """Forget a file that changed, and what was made of it; of documents only one is held."""
        files = self._files.get(one.uuid, {})
        is_document = naming.metadata_uuid(one.key) is not None
        for key in list(files):
            if key == one.key or (is_document and naming.metadata_uuid(key) is not None):
                del files[key]
                self._forget_made(one.uuid)

    def _forget_made(self, uuid: str) -> None:
        split = naming.split_member(uuid)
        for name in (f"dataset {uuid}", f"listing {uuid}", f"cube {split[0]}" if split else ""):
            self._made.pop(name, None)

    def _evict(self) -> None:
        while len(self._files) > MAX_DATASETS or (len(self._files) > 1 and self._partitions() > MAX_PARTITIONS):
            uuid, _ = self._files.popitem(last=False)
            self._forget_made(uuid)

    def _partitions(self) -> int:
        return sum(
            len(getattr(f.value, "labels", None) or ()) for files in self._files.values() for f in files.values()
        )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=20).digest()


def _read(store: Store, key: str, stamp: Stamp | None) -> tuple[bytes, Stamp | None] | Failure:
    settled = stamp is not None and max(stamp.mtime_ns, stamp.ctime_ns) + SETTLED_NS < time.time_ns()
    try:
        data = store.read_metadata(key)
        # A file that was replaced meanwhile may come back as it was.
        return data, stamp if settled and store.stamp(key) == stamp else None
    except (KeyError, FormatError, StoreError) as e:
        return e
