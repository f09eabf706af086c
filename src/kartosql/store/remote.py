"""Writing to object stores through fsspec, as far as all of them do it the same way."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, cast

from kartosql.store.conditional import (
    Detail,
    OutcomeUnknown,
    PreconditionFailed,
    Unsupported,
    Version,
    settling,
    version_of,
)

SPOOL_BYTES = 32 << 20
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated")
_PROBE_ATTEMPTS = 6
_memory_lock = threading.RLock()


def _release() -> None:
    """Release what a thread of the parent held when this process was forked."""
    global _memory_lock
    _memory_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release)


class RemoteWriter:
    """The writing side of a store on any fsspec filesystem; it offers no conditional writes."""

    def __init__(self, fs: Any, root: str) -> None:
        self.fs = fs
        self.root = root
        self.checks_by_reading = False

    def path(self, key: str) -> str:
        """Return the path of ``key`` in the filesystem."""
        return f"{self.root}/{key}"

    # -- whole objects ---------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self.fs.pipe_file(self.path(key), data)

    @contextlib.contextmanager
    def output(self, key: str, *, sync_folders: bool = True, sync_content: bool = True) -> Iterator[IO[bytes]]:
        """Collect an object bit by bit, on disk when it grows, and upload it at the end."""
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
            yield cast("IO[bytes]", spool)
            size = spool.seek(0, 2)
            spool.seek(0)
            if size <= SPOOL_BYTES:
                self.put(key, spool.read())
                return
            try:
                with self.fs.open(self.path(key), "wb") as target:
                    shutil.copyfileobj(spool, target, SPOOL_BYTES)
            except BaseException:
                with contextlib.suppress(Exception):
                    self.fs.rm_file(self.path(key))
                raise

    def sync(self, keys: Iterable[str]) -> None:
        """Do nothing: what an object store acknowledged is durable."""

    def delete(self, keys: Sequence[str], call_all: Callable[[Any, Sequence[Any]], Any]) -> None:
        """Remove objects, those that are not there silently."""
        call_all(self._delete_one, keys)

    def _delete_one(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.path(key))

    # -- compare and swap ------------------------------------------------------------------

    def read_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return an object and its version."""
        data: bytes = self.fs.cat_file(self.path(key))
        return data, version_of(data)

    def put_if(self, key: str, data: bytes, expected: Version | None) -> Version:
        """Write ``data`` where the expected version stands, or nothing where it is None."""
        if not self.checks_by_reading:
            return self.put_atomically(key, data, expected)
        if self._version(key) != expected:
            raise PreconditionFailed(key)
        with settling(key, lambda: self._version(key) == expected):
            self.put(key, data)
        try:
            found, version = self.read_versioned(key)
        except Exception as e:
            raise OutcomeUnknown(f"{key} is written, but cannot be read: {e}") from e
        if found != data:
            raise OutcomeUnknown(f"{key} is not what was written")
        return version

    def delete_if(self, key: str, expected: Version) -> None:
        """Remove the object if it has the expected version; silent when there is none."""
        self.delete_checked(key, expected)

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
        """Write as one step of the store."""
        raise Unsupported(key)

    def delete_checked(self, key: str, expected: Version) -> None:
        """Remove the object after a look at its version; only for a single writer."""
        version = self._version(key)
        if version is None:
            return
        if version != expected:
            raise PreconditionFailed(key)
        with settling(key, lambda: self._version(key) == expected):
            self._delete_one(key)

    def _version(self, key: str) -> Version | None:
        try:
            return self.read_versioned(key)[1]
        except FileNotFoundError:
            return None

    def probe(self, key: str) -> tuple[bool, bool]:
        """Return whether writes and deletes heed their condition, tried on an object of its own."""
        try:
            first = _insist(self, key, b"1", None)
            second = _insist(self, key, b"22", first)
            puts = _refuses(self, key, b"22", lambda: self.put_atomically(key, b"3", None))
            puts = puts and _refuses(self, key, b"22", lambda: self.put_atomically(key, b"3", first))
            return puts, puts and _refuses(self, key, b"22", lambda: self.delete_if(key, first)) and second != first
        except Unsupported:
            return False, False
        finally:
            with contextlib.suppress(Exception):
                self._delete_one(key)

    # -- current state ----------------------------------------------------------------------

    def details(self, prefix: str) -> dict[str, Detail]:
        """Return size and time of every object whose key starts with ``prefix``."""
        folder = prefix.rpartition("/")[0]
        try:
            self.fs.invalidate_cache()
            rows: dict[str, Any] = self.fs.find(self.path(folder) if folder else self.root or "/", detail=True)
        except FileNotFoundError:
            return {}
        found = {}
        for path, info in sorted(rows.items()):
            key = path[len(self.root) + 1 :]
            if not key.startswith(prefix):
                continue
            with contextlib.suppress(FileNotFoundError):
                found[key] = Detail(int(info.get("size") or 0), self._modified(path, info))
        return found

    def _modified(self, path: str, info: dict[str, Any]) -> dt.datetime:
        times = (info.get(name) for name in _TIMES)
        time: dt.datetime = next((t for t in times if isinstance(t, dt.datetime)), None) or self.fs.modified(path)
        return time if time.tzinfo else time.replace(tzinfo=dt.timezone.utc)

    def now(self) -> dt.datetime:
        """Return the time by the clock of the store: that of an object written for it."""
        path = self.path(f".kartosql-clock-{uuid.uuid4().hex}")
        self.fs.pipe_file(path, b"x")
        try:
            return self._modified(path, {})
        finally:
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(path)


class MemoryWriter(RemoteWriter):
    """The writing side of fsspec's memory, which all threads of a process share."""

    def put_atomically(self, key: str, data: bytes, expected: Version | None) -> Version:
        """Write ``data`` where the expected version stands, or nothing where it is None."""
        with _memory_lock:
            if self._version(key) != expected:
                raise PreconditionFailed(key)
            self.put(key, data)
        return version_of(data)

    def probe(self, key: str) -> tuple[bool, bool]:
        """Return True twice: the lock of the process heeds all conditions."""
        return True, True

    def delete_if(self, key: str, expected: Version) -> None:
        """Remove the object if it has the expected version; silent when there is none."""
        with _memory_lock:
            self.delete_checked(key, expected)

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        with _memory_lock:
            super().put(key, data)

    def delete(self, keys: Sequence[str], call_all: Callable[[Any, Sequence[Any]], Any]) -> None:
        """Remove objects, those that are not there silently."""
        for key in keys:
            with _memory_lock:
                self._delete_one(key)

    def details(self, prefix: str) -> dict[str, Detail]:
        """Return size and time of every object whose key starts with ``prefix``."""
        with _memory_lock:  # no dictionary can be listed while others change it
            return super().details(prefix)

    def now(self) -> dt.datetime:
        """Return the time of this machine."""
        return dt.datetime.now(dt.timezone.utc)


def _insist(writer: RemoteWriter, key: str, data: bytes, expected: Version | None) -> Version:
    """Write the object of a probe, also where answers are lost."""
    for _ in range(_PROBE_ATTEMPTS):
        try:
            return writer.put_atomically(key, data, expected)
        except (PreconditionFailed, OutcomeUnknown) as e:
            lost = e
            with contextlib.suppress(FileNotFoundError):
                found, version = writer.read_versioned(key)
                if found == data:
                    return version
    raise lost


def _refuses(writer: RemoteWriter, key: str, unchanged: bytes, write: Callable[[], object]) -> bool:
    """Return whether a write with a wrong condition is refused, and the object as it was."""
    for _ in range(_PROBE_ATTEMPTS):
        try:
            write()
        except PreconditionFailed:
            break
        except OutcomeUnknown:
            continue
        return False
    try:
        return writer.read_versioned(key)[0] == unchanged
    except FileNotFoundError:
        return False
