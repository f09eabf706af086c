"""Turns: writers of one dataset on this machine commit one after the other, first come, first served.

Correctness does not depend on them. Each writer holds the lock of one byte, its ticket, in a file of the user, and
waits for the locks of all bytes before it. The kernel releases those of a process that died. The first writer also
takes the lock of the folder of the dataset, which other users see.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from kartosql.store import syscalls

TURN_SECONDS = 5.0  # without progress of the writers in front, after which a writer goes on without a turn
QUEUES = 512  # datasets may share one
FARTHEST = 1 << 40  # ticket of a queue
_LOCKS = [threading.Lock() for _ in range(64)]
_held = threading.local()
_open: set[int] = set()


class Waiting(Protocol):
    """What a writer who waits hands to others, who may do it in their turn."""

    def make(self) -> None:
        """Let others see it."""

    def is_done(self) -> bool:
        """Return whether somebody did it."""


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
def turn(name: str, *, is_folder: bool, offer: Waiting | None = None) -> Iterator[None]:
    """Wait until all earlier writers have had their turn at ``name``, some seconds at most for one that hangs.

    A thread that already has a turn does not wait. Who waits makes his ``offer`` before, and waits no longer
    once that is done.
    """
    if getattr(_held, "any", False):
        yield
        return
    with _in_queue(name, offer) as is_done, _of_folder(name) if is_folder and not is_done else contextlib.nullcontext():
        _held.any = not is_done
        try:
            yield
        finally:
            _held.any = False


@contextlib.contextmanager
def _in_queue(name: str, offer: Waiting | None) -> Iterator[bool]:
    is_done = False
    with contextlib.ExitStack() as stack:
        try:
            fd = opened(_path(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            stack.callback(close, fd)
            found = os.fstat(fd)
            if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
                raise OSError("not ours")
            start, ticket = _draw(fd, zlib.crc32(name.encode(errors="surrogateescape")) % QUEUES)
            stack.callback(_release, syscalls.unlock_byte, fd, ticket)
            is_done = _wait_behind(fd, start, ticket, offer)
        except (OSError, AttributeError):  # no such locks here
            lock = _LOCKS[hash(name) % len(_LOCKS)]
            if lock.acquire(timeout=TURN_SECONDS):
                stack.callback(lock.release)
        yield is_done


def _path() -> str:
    return f"{tempfile.gettempdir()}/kartosql-{os.getuid()}.turns"


def _draw(fd: int, queue: int) -> tuple[int, int]:
    """Return the start of a queue and a ticket: a byte behind those of all waiting writers, locked."""
    # The file has the last ticket of each queue. Two writers that read the same one get different bytes.
    start = queue * FARTHEST
    last = int.from_bytes(os.pread(fd, 8, 8 * queue), "little")
    ticket = start + last % (FARTHEST - 1) + 1
    while not syscalls.try_lock_byte(fd, ticket):
        ticket += 1
    os.pwrite(fd, (ticket - start).to_bytes(8, "little"), 8 * queue)
    return start, ticket


def _front(fd: int, start: int, ticket: int) -> int | None:
    """Return the first byte before a ticket that somebody has locked."""
    found, end = None, ticket
    while end > start and (at := syscalls.front_of_range(fd, start, end - start)) is not None:
        found = end = at
    return found


def _wait_behind(fd: int, start: int, ticket: int, offer: Waiting | None) -> bool:
    """Wait until the locks of all bytes from ``start`` to ``ticket`` are released, or none is for some seconds.

    Return whether the ``offer`` was done before.
    """
    seen = [_front(fd, start, ticket)]
    done = []

    def wait(fd: int) -> None:
        # Who has the turn may do what all others wait for, so all of them look when it ends.
        while (front := _front(fd, start, ticket)) is not None:
            syscalls.await_range(fd, front, 1)
            if offer is not None and offer.is_done():
                done.append(True)
                syscalls.unlock_byte(fd, ticket)
                return

    def is_moving() -> bool:
        seen.append(_front(fd, start, ticket))
        return seen[-1] != seen[-2]

    if seen[0] is not None:
        if offer is not None:
            offer.make()
        blocking(fd, wait, TURN_SECONDS, is_moving)
    return bool(done)


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
