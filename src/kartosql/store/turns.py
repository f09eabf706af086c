"""Turns: writers of one dataset on this machine commit one after the other, first come, first served.

Correctness does not depend on them. Each writer holds the lock of one byte, its ticket, in a file of the user, and
waits for the locks of all bytes before it. The kernel releases those of a process that died. The first writer also
takes the lock of the folder of the dataset, which other users see.

Who waits may offer what he writes to the one whose turn it is, who may do it along with his own. An offer is a file in
a folder of the user, locked for as long as its writer lives and waits. It is taken by renaming it, and withdrawn by
removing it, so one of the two fails. Correctness rests on that alone: who finds his offer taken, but not done, does not
know what became of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kartosql.store import syscalls

TURN_SECONDS = 5.0  # without progress of the writers in front, after which a writer goes on without a turn
QUEUES = 512  # datasets may share one
FARTHEST = 1 << 40  # ticket of a queue
_LOCKS = [threading.Lock() for _ in range(64)]
_held = threading.local()
_open: set[int] = set()


def _release_all() -> None:
    """Drop in a fork of this process the locks of the threads of its parent, which keeps them."""
    _LOCKS[:] = [threading.Lock() for _ in _LOCKS]
    for fd in _open:
        with contextlib.suppress(OSError):
            os.close(fd)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)


@contextlib.contextmanager
def turn(
    name: str, *, is_folder: bool, offer: Callable[[], OfferedWrite | None] = lambda: None
) -> Iterator[OfferedWrite | None]:
    """Wait until all earlier writers have had their turn at ``name``, some seconds at most for one that hangs.

    A thread that already has a turn does not wait. Who waits makes an ``offer`` before, if there is one, and waits no
    longer once that is done; the offer is the value, and ends with the turn.
    """
    if getattr(_held, "any", False):
        yield None
        return
    with _in_queue(name, offer) as offered:
        is_done = offered is not None and offered.is_done()
        with _of_folder(name) if is_folder and not is_done else contextlib.nullcontext():
            _held.any = not is_done
            try:
                yield offered
            finally:
                _held.any = False


@contextlib.contextmanager
def _in_queue(name: str, offer: Callable[[], OfferedWrite | None]) -> Iterator[OfferedWrite | None]:
    offered = None
    with contextlib.ExitStack() as stack:
        try:
            fd = opened(_path(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            stack.callback(close, fd)
            found = os.fstat(fd)
            if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
                raise OSError("not ours")
            start, ticket = _draw(fd, zlib.crc32(name.encode(errors="surrogateescape")) % QUEUES)
            stack.callback(_release, syscalls.unlock_byte, fd, ticket)
            front = _front(fd, start, ticket)
            # Known before the wait can fail: its writer has to ask what became of it.
            offered = offer() if front is not None else None
            if offered is not None:
                stack.callback(offered.withdrawn)
                offered.make()
            _wait_behind(fd, start, ticket, front, offered)
        except (OSError, AttributeError):  # no such locks here
            lock = _LOCKS[hash(name) % len(_LOCKS)]
            if lock.acquire(timeout=TURN_SECONDS):
                stack.callback(lock.release)
        yield offered


def _path() -> str:
    return f"{tempfile.gettempdir()}/kartosql-{os.getuid()}.turns"


def _draw(fd: int, queue: int) -> tuple[int, int]:
    """Return the start of a queue and a ticket: a byte behind those of all waiting writers, locked."""
    # The file has the last ticket of each queue. Two writers that read the same one get different bytes.
    start = queue * FARTHEST
    last = int.from_bytes(os.pread(fd, 8, 8 * queue), "little")
    ticket = start + last % (FARTHEST - 1) + 1
    while True:
        while not syscalls.try_lock_byte(fd, ticket):
            ticket += 1
        # A writer that was slow to note its ticket may have noted it over later ones, whose bytes come after this one.
        behind = syscalls.front_of_range(fd, ticket + 1, start + FARTHEST - ticket - 1)
        if behind is None:
            break
        syscalls.unlock_byte(fd, ticket)
        ticket = behind + 1
    os.pwrite(fd, (ticket - start).to_bytes(8, "little"), 8 * queue)
    return start, ticket


def _front(fd: int, start: int, ticket: int) -> int | None:
    """Return the first byte before a ticket that somebody has locked."""
    found, end = None, ticket
    while end > start and (at := syscalls.front_of_range(fd, start, end - start)) is not None:
        found = end = at
    return found


def _wait_behind(fd: int, start: int, ticket: int, front: int | None, offered: OfferedWrite | None) -> None:
    """Wait until the locks of all bytes from ``start`` to ``ticket`` are released, or none is for some seconds.

    The first of them is the ``front``, None for none. Who sees what he ``offered`` done waits no longer.
    """
    seen = [front]

    def wait(fd: int) -> None:
        # Who has the turn may do what all others wait for, so all of them look when it ends.
        while (front := _front(fd, start, ticket)) is not None:
            syscalls.await_range(fd, front, 1)
            if offered is not None and offered.is_done():
                syscalls.unlock_byte(fd, ticket)
                return

    def is_moving() -> bool:
        seen.append(_front(fd, start, ticket))
        return seen[-1] != seen[-2]

    if front is not None:
        blocking(fd, wait, TURN_SECONDS, is_moving)


@contextlib.contextmanager
def _of_folder(path: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        # There may be no such folder yet, folders that cannot be opened, and network filesystems that lock none.
        with contextlib.suppress(OSError, AttributeError):
            fd = opened(path, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(close, fd)
            if lock_within(fd, TURN_SECONDS):
                stack.callback(_release, syscalls.unlock, fd)
        yield


def lock_within(fd: int, seconds: float) -> bool:
    """Lock an open file; return False if others hold its lock longer than that."""
    return syscalls.try_lock(fd) or blocking(fd, syscalls.lock, seconds, lambda: False)


def blocking(fd: int, lock: Callable[[int], None], seconds: float, goes_on: Callable[[], bool]) -> bool:
    """Take a lock with a call that blocks; return False after ``seconds`` without it in which nothing ``goes_on``.

    The call runs in a thread, as it knows no timeout and no Ctrl-C; a lock that comes too late ends with the file.
    """
    copy = os.dup(fd)
    _open.add(copy)
    done = threading.Event()
    errors: list[OSError] = []

    def wait() -> None:
        try:
            lock(copy)
        except OSError as e:
            errors.append(e)
        finally:
            done.set()
            close(copy)

    try:
        threading.Thread(target=wait, name="kartosql-turn", daemon=True).start()
    except RuntimeError:  # no thread can be started
        close(copy)
        return False
    while not done.wait(seconds):
        if not goes_on():
            return False
    if errors:
        raise errors[0]
    return True


def opened(path: str, flags: int) -> int:
    """Open a file that a fork of this process does not keep open."""
    fd = os.open(path, flags, 0o600)
    _open.add(fd)
    return fd


def _release(unlock: Callable[..., None], fd: int, *given: int) -> None:
    if fd in _open:
        with contextlib.suppress(OSError):
            unlock(fd, *given)


def close(fd: int) -> None:
    """Close such a file."""
    if fd in _open:  # not in a fork, where the number may be that of another file
        _open.discard(fd)
        os.close(fd)


# -- offers ----------------------------------------------------------------------------------------

_TAKEN = ".taken"
_BEGUN, _DONE = b"once", b"done"
_SAID = len(_DONE) + 20


class OfferState(NamedTuple):
    """What became of an offer that was taken: whether it is done for sure, and the number that was said, 0 if none."""

    is_done: bool
    number: int


def _offers_folder() -> str:
    return f"{tempfile.gettempdir()}/kartosql-{os.getuid()}.offers"


def _begin(folder: str) -> str:
    """Return what the paths of offers for a folder begin with; raises OSError where there is no place for them."""
    place = _offers_folder()
    found = os.lstat(place)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise OSError("not ours")
    of = os.stat(folder)
    return f"{place}/{of.st_dev:x}-{of.st_ino:x}-"


class OfferedWrite:
    """An offer of this writer for a folder; it is not made where the system has no place for it."""

    def __init__(self, folder: str, content: bytes) -> None:
        self._folder, self._content = folder, content
        self._path: str | None = None

    def make(self) -> None:
        """Let others see it, until it is ``withdrawn``."""
        with contextlib.suppress(OSError, AttributeError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(_offers_folder(), 0o700)
            path = f"{_begin(self._folder)}{time.time_ns():020d}-{uuid.uuid4().hex}"
            self._fd = opened(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                if not syscalls.try_lock(self._fd) or os.write(self._fd, self._content) < len(self._content):
                    raise OSError("no space")
                os.rename(f"{path}.new", path)
                self._path = path
            except OSError:
                self._end(f"{path}.new")
                raise

    def is_done(self) -> bool:
        """Return whether somebody took it, and did it."""
        return self._path is not None and os.pread(self._fd, len(_DONE), 0) == _DONE

    def withdrawn(self) -> OfferState | None:
        """Take it back; return what was said if somebody else took it before."""
        if self._path is None:
            return None
        path, self._path = self._path, None
        try:
            os.unlink(path)
            said = None
        except OSError:
            said = os.pread(self._fd, _SAID, 0)
        self._end(path + _TAKEN)
        if said is None:
            return None
        return OfferState(
            said.startswith(_DONE), int(said[len(_DONE) :]) if said[: len(_DONE)] in (_DONE, _BEGUN) else 0
        )

    def _end(self, path: str) -> None:
        close(self._fd)
        with contextlib.suppress(OSError):
            os.unlink(path)


@dataclass(frozen=True)
class Taken:
    """An offer of another writer that this one took."""

    path: str
    content: bytes

    def say(self, number: int, *, is_done: bool) -> None:
        """Tell its writer a number, before it is begun and once it is done."""
        with contextlib.suppress(OSError):
            fd = os.open(self.path + _TAKEN, os.O_WRONLY | os.O_NOFOLLOW)
            try:
                os.pwrite(fd, (_DONE if is_done else _BEGUN) + b"%020d" % number, 0)
            finally:
                os.close(fd)

    def give_back(self) -> None:
        """Leave it to others, as if it had not been taken."""
        with contextlib.suppress(OSError):
            os.rename(self.path + _TAKEN, self.path)


def offers(folder: str | None) -> list[str]:
    """Return the paths of what is offered for a folder on a local disk, and what is left there, the oldest first."""
    if folder is not None:
        with contextlib.suppress(OSError, AttributeError):
            place, _, start = _begin(folder).rpartition("/")
            return sorted(f"{place}/{name}" for name in os.listdir(place) if name.startswith(start))
    return []


def take(paths: Sequence[str], most: int) -> Iterator[Taken]:
    """Take offers in their order; those of writers that are dead are removed."""
    for path in paths:
        with contextlib.suppress(OSError, AttributeError):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if syscalls.try_lock(fd):
                    os.unlink(path)
                elif "." not in os.path.basename(path) and most > 0:
                    content = os.read(fd, os.fstat(fd).st_size)
                    os.rename(path, path + _TAKEN)
                    most -= 1
                    yield Taken(path, content)
            finally:
                os.close(fd)
