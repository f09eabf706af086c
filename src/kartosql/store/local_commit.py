"""Writing to local folders: durable files, and a compare-and-swap of one of them.

A commit writes a temporary file into the side folder ``<uuid>/.commit/`` and then gives it
its name in one step: a link where nothing may be, else a rename while the inode that it
replaces is locked and holds the expected content.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import io
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TypeVar, cast

from kartosql.errors import StoreError
from kartosql.store import syscalls
from kartosql.store.keys import (
    SIDE_FOLDER,
    Content,
    Detail,
    OutcomeUnknown,
    PreconditionFailed,
    Version,
    settling,
    side_folder,
    version_of,
)
from kartosql.store.turns import lock_within

LOCK_SECONDS = 60.0
BUFFER_BYTES = 1 << 20
_T = TypeVar("_T")
_SETTLED_NS = 2_000_000_000
_ATTEMPTS = 100  # of making a folder that others keep removing while it is empty


class LocalWriter:
    """The writing side of a store in a local folder.

    ``locate`` returns the path of a key, and refuses links out of its dataset.
    """

    def __init__(self, root: str, locate: Callable[[str], str]) -> None:
        self.root = root
        self.locate = locate
        self.checks_by_reading = False
        self._durable: dict[str, tuple[int, ...]] = {}  # folders of which all names were brought to the disk

    # -- whole files -----------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> None:
        """Write a file; readers see all of it, the former file, or nothing."""
        path = self.locate(key)
        with self._temporary(key, Content(data)) as temp:
            self._name(syscalls.rename, temp, path)
        self.sync([key])

    @contextlib.contextmanager
    def output(
        self, key: str, *, sync_folders: bool = True, sync_content: bool = True, whole: bool = False
    ) -> Iterator[IO[bytes]]:
        """Write a new file bit by bit; it is durable at the end, and removed after an error.

        An existing file is refused, and the file can be seen while it grows; a ``whole`` one has its name only when it
        is durable. Many files of one folder are faster with ``sync_folders=False`` and one ``sync`` for all. What may
        be missing or torn after a power loss needs neither.
        """
        name = self.locate(key)
        path = f"{name}.tmp" if whole else name
        fd = self._create(path)
        raw = _Descriptor(fd)
        try:
            try:
                with io.BufferedWriter(raw, BUFFER_BYTES) as file:
                    try:
                        yield cast("IO[bytes]", file)
                        file.flush()
                        if sync_content:
                            syscalls.fsync(fd)
                    finally:
                        raw.ended = True
            finally:
                os.close(fd)
            if whole:
                syscalls.rename(path, name)
                path = name
            if sync_folders:
                self.sync([key])
        except BaseException:
            with contextlib.suppress(OSError):
                syscalls.unlink(path)
            raise

    def duplicate(self, old: str, new: str) -> None:
        """Give a file another name."""
        self._name(syscalls.link, self.locate(old), self.locate(new))

    def sync(self, keys: Iterable[str]) -> None:
        """Make the names of ``keys`` durable: each folder up to the root, the innermost first.

        Also those that were there already: whoever made them may not have come that far. A folder above that is as it
        was when this process brought it to the disk has no name to lose, nor have those above it.
        """
        folders = {os.path.dirname(self.locate(key)) for key in keys}
        for folder in [*folders]:
            while folder != self.root and folder.startswith(self.root):
                folder = os.path.dirname(folder)
                if folder in folders or self._durable.get(folder) == _mark(folder):
                    break
                folders.add(folder)
        marks = {folder: _mark(folder) for folder in folders}
        for folder in sorted(folders, key=len, reverse=True):
            syscalls.fsync_folder(folder)
        # Two changes within one tick of the clock leave one time.
        latest = time.time_ns() - _SETTLED_NS
        self._durable |= {folder: mark for folder, mark in marks.items() if mark is not None and mark[-1] < latest}

    def delete(self, keys: Sequence[str], call_all: Callable[[Any, Sequence[Any]], Any]) -> None:
        """Remove files, those that are not there silently, and the folders that are empty then."""
        call_all(self._delete_some, [keys[i : i + 1000] for i in range(0, len(keys), 1000)])
        self._remove_empty({os.path.dirname(self.locate(key)) for key in keys})

    def _remove_empty(self, folders: set[str]) -> None:
        while folders:
            outer = set()
            for folder in folders:
                if folder != self.root and self._remove_folder(folder):
                    outer.add(os.path.dirname(folder))
            folders = outer

    def _delete_some(self, keys: Sequence[str]) -> None:
        for key in keys:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                syscalls.unlink(self.locate(key))

    def _remove_folder(self, folder: str) -> bool:
        if os.path.dirname(folder) == self.root:
            with contextlib.suppress(OSError):
                syscalls.rmdir(f"{folder}/{SIDE_FOLDER}")
        try:
            syscalls.rmdir(folder)
        except OSError:
            return False  # not empty, or somebody else was faster
        return True

    # -- compare and swap ------------------------------------------------------------------

    def put_if(self, key: str, content: bytes | Content, expected: Version | None) -> Version:
        """Write ``content`` if the file has the expected version, None for no file."""
        path = self.locate(key)
        content = content if isinstance(content, Content) else Content(content)
        # A look before the work; what counts is looked at again under the lock.
        if not _stands(path, expected):
            raise PreconditionFailed(key)
        settled = settling(key, lambda: _stands(path, expected))
        with self._temporary(key, content) as temp:
            if self.checks_by_reading or expected is None:
                with settled:
                    try:
                        self._name(syscalls.rename if self.checks_by_reading else syscalls.link, temp, path)
                    except FileExistsError:
                        raise PreconditionFailed(key) from None
                self._sync_committed(key)
            else:
                with self._locked(key, path) as fd:
                    if not _is_content(fd, expected):
                        raise PreconditionFailed(key)
                    with settled:
                        syscalls.rename(temp, path)
                    self._sync_committed(key)
        return Version(content=content)

    def delete_if(self, key: str, expected: Version) -> None:
        """Remove the file if it has the expected version; do nothing if it is missing."""
        path = self.locate(key)
        if not os.path.lexists(path):
            return
        try:
            with self._locked(key, path) as fd:
                if not _is_content(fd, expected):
                    raise PreconditionFailed(key)
                self._unlink(key, path, expected)
        except PreconditionFailed:
            if os.path.lexists(path):
                raise
        self._remove_empty({os.path.dirname(path)})

    def delete_checked(self, key: str, expected: Version) -> None:
        """Remove the file after a look at its version; only for a single writer."""
        path = self.locate(key)
        if _stands(path, None):
            return
        if not _stands(path, expected):
            raise PreconditionFailed(key)
        self._unlink(key, path, expected)
        self._remove_empty({os.path.dirname(path)})

    def _unlink(self, key: str, path: str, expected: Version) -> None:
        with settling(key, lambda: _stands(path, expected)):
            syscalls.unlink(path)
        self._sync_committed(key)

    def _sync_committed(self, key: str) -> None:
        try:
            self.sync([key])
        except OSError as e:
            raise OutcomeUnknown(f"{key} is written, but may not outlast a power loss: {e}") from e

    @contextlib.contextmanager
    def _locked(self, key: str, path: str) -> Iterator[int]:
        """Hold the lock of the inode at ``path``."""
        while True:
            try:
                fd = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                raise PreconditionFailed(key) from None
            try:
                if not lock_within(fd, LOCK_SECONDS):
                    raise StoreError(
                        f"{key}: another process has held the lock of this file for {LOCK_SECONDS:.0f} seconds.",
                        code="store-locked",
                        hint="A writer may be stopped or hang; end it, then try again. Nothing was changed.",
                    )
                try:
                    if _stands_at(fd, path):
                        yield fd
                        return
                finally:
                    syscalls.unlock(fd)
            finally:
                os.close(fd)

    # -- files and folders -----------------------------------------------------------------

    @contextlib.contextmanager
    def _temporary(self, key: str, content: Content) -> Iterator[str]:
        """Yield the path of a durable file with ``content`` in the side folder of the dataset."""
        folder = side_folder(key)
        path = f"{self.root}/{folder}{'/' if folder else '.'}{uuid.uuid4().hex}.tmp"
        fd = self._create(path)
        try:
            try:
                for piece in content.pieces or ():
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[syscalls.write(fd, rest) :]
                syscalls.fsync(fd)
            finally:
                os.close(fd)
            yield path
        finally:
            with contextlib.suppress(OSError):
                if os.path.lexists(path):
                    syscalls.unlink(path)

    def _create(self, path: str) -> int:
        return self._in_folder(path, lambda: syscalls.create(path))

    def _name(self, step: Callable[[str, str], None], temp: str, path: str) -> None:
        """Link or rename ``temp`` to ``path``."""
        self._in_folder(path, lambda: step(temp, path), temp)

    def _in_folder(self, path: str, step: Callable[[], _T], source: str | None = None) -> _T:
        """Take a step in the folder of a path, which somebody else may remove while it is empty."""
        for _ in range(_ATTEMPTS):
            self._make_folders(path)
            try:
                return step()
            except FileNotFoundError:
                if source is not None and not os.path.lexists(source):
                    raise
        raise StoreError(f"The folder of {path!r} is removed again and again.")

    def _make_folders(self, path: str) -> None:
        folder = os.path.dirname(path)
        if os.path.isdir(folder):
            return
        for _ in range(_ATTEMPTS):
            try:
                syscalls.mkdir(folder)
                return
            except FileExistsError:
                if os.path.isdir(folder):
                    return
                if not os.path.lexists(folder):
                    continue
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from None
            except FileNotFoundError:
                self._make_folders(folder)

    # -- current state ----------------------------------------------------------------------

    def detail(self, key: str, info: dict[str, Any]) -> Detail:
        """Return size and time of a file, given its entry ``info`` in a listing."""
        return Detail(info["size"], _time(info["mtime"]))

    def now(self) -> dt.datetime:
        """Return the time by the clock of the disk, which may be that of a file server."""
        with tempfile.TemporaryFile(dir=self.root) as f:
            f.write(b"x")
            f.flush()
            return _time(os.fstat(f.fileno()).st_mtime)

    def probe(self, key: str) -> tuple[bool, bool]:
        """Return whether the folder has the links and locks that commits need, for puts and deletes."""
        with self._temporary(key, Content(b"x")) as temp:
            try:
                os.link(temp, f"{temp}.link")
                os.unlink(f"{temp}.link")
                fd = os.open(temp, os.O_RDONLY)
                try:
                    syscalls.try_lock(fd)
                finally:
                    os.close(fd)
            except (OSError, AttributeError):
                return False, False
        return True, True


class _Descriptor(io.RawIOBase):
    """A descriptor to write to; closing it is left to its owner."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.ended = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        # A buffer writes what it still holds when it is closed after an error; by then the
        # number of the descriptor may be that of another file.
        return len(data) if self.ended else syscalls.write(self._fd, data)


def _mark(folder: str) -> tuple[int, ...] | None:
    """Return what is another one after a name came into a folder or went."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _stands_at(fd: int, path: str) -> bool:
    # Opened, not looked at: network filesystems ask the server for names only then.
    try:
        other = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return os.path.samestat(os.fstat(fd), os.fstat(other))
    finally:
        os.close(other)


def _stands(path: str, expected: Version | None) -> bool:
    """Return whether a path has the expected version, None for no file."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return expected is None
    try:
        return _is_content(fd, expected)
    finally:
        os.close(fd)


def _is_content(fd: int, expected: Version | None) -> bool:
    if expected is None:
        return False
    with open(fd, "rb", buffering=0, closefd=False) as f:
        return expected.content.is_all_of(f) if expected.content is not None else version_of(f.read()) == expected


def _time(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.timezone.utc)
