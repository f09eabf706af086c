"""Turns: writers who would only take work from each other come one after the other, if they can.

Nothing relies on them: commits are safe without. Processes on one machine share the lock of
a folder, threads of a process a lock in memory.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator

from kartosql.store import syscalls

TURN_SECONDS = 5.0
_LOCKS = [threading.Lock() for _ in range(64)]
_held = threading.local()


def _release_all() -> None:
    """Release what threads of the parent held when this process was forked."""
    _LOCKS[:] = [threading.Lock() for _ in _LOCKS]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_all)


@contextlib.contextmanager
def take(name: str, wait: Callable[[str], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    """Hold the turn of ``name`` that ``wait`` waits for; a thread that has one does not wait for itself."""
    if getattr(_held, "any", False):
        yield
        return
    with wait(name):
        _held.any = True
        try:
            yield
        finally:
            _held.any = False


@contextlib.contextmanager
def in_process(name: str) -> Iterator[None]:
    """Wait until no other thread holds the turn of ``name``, for some seconds at most."""
    lock = _LOCKS[hash(name) % len(_LOCKS)]
    is_held = lock.acquire(timeout=TURN_SECONDS)
    try:
        yield
    finally:
        if is_held:
            lock.release()


@contextlib.contextmanager
def of_folder(path: str) -> Iterator[None]:
    """Wait until no other process or thread holds the turn of a local folder, for some seconds at most."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except OSError:
        yield  # there is no such folder yet, or folders cannot be opened
        return
    is_held = False
    try:
        # Some network filesystems lock no folders.
        with contextlib.suppress(OSError, AttributeError):
            is_held = lock_before(fd, time.monotonic() + TURN_SECONDS)
        yield
    finally:
        if is_held:
            with contextlib.suppress(OSError):
                syscalls.unlock(fd)
        os.close(fd)


def lock_before(fd: int, until: float) -> bool:
    """Lock an open file; False if others hold its lock until that time of the monotonic clock has passed."""
    while not syscalls.try_lock(fd):
        if time.monotonic() > until:
            return False
        time.sleep(random.uniform(0.0005, 0.003))
    return True
