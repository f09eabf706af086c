"""Every change that is made to a local disk, one function per system call.

Tests replace these functions to stop a writer before, in and after each of them, and to
record what a power loss may leave behind.
"""

from __future__ import annotations

import errno
import os
import struct

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

write, mkdir, link, unlink, rmdir = os.write, os.mkdir, os.link, os.unlink, os.rmdir
rename = os.replace  # also in place of a file that has the name


def create(path: str) -> int:
    """Make a new file for writing and return its descriptor; FileExistsError when there is one."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)


def fsync(fd: int) -> None:
    """Bring the content of a file to the disk."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        # On macOS fsync leaves the bytes in the cache of the drive.
        fcntl.fcntl(fd, full)
    else:
        os.fsync(fd)


def fsync_folder(path: str) -> None:
    """Bring the names in a folder to the disk."""
    if os.name == "nt":
        return  # folders cannot be opened there
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as e:
        # Some network filesystems know no fsync of folders; their names are durable at once.
        if e.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def try_lock(fd: int) -> bool:
    """Lock an open file against other holders of this lock, or return False."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(fd: int) -> None:
    """Lock an open file as soon as nobody else holds this lock."""
    fcntl.flock(fd, fcntl.LOCK_EX)


def unlock(fd: int) -> None:
    """Release the lock, also where a child process holds a copy of the descriptor."""
    fcntl.flock(fd, fcntl.LOCK_UN)


# Locks of ranges that belong to an open file, so that threads have them against each other, too; of bytes that there
# need not be. AttributeError where there are no such locks.
_FLOCK = struct.Struct("hhqqi4x")


def _call(fd: int, command: int, kind: int, start: int, count: int) -> tuple[int, int]:
    """Return kind and start that the kernel answers."""
    answer = fcntl.fcntl(fd, command, _FLOCK.pack(kind, os.SEEK_SET, start, count, 0))
    return _FLOCK.unpack(answer)[::2][:2]


def try_lock_byte(fd: int, at: int) -> bool:
    """Lock a byte of an open file against others, or return False."""
    try:
        _call(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, at, 1)
    except BlockingIOError:
        return False
    return True


def unlock_byte(fd: int, at: int) -> None:
    """Release the lock of a byte."""
    _call(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, at, 1)


def await_range(fd: int, start: int, count: int) -> None:
    """Wait until nobody else holds a lock of these bytes."""
    _call(fd, fcntl.F_OFD_SETLKW, fcntl.F_RDLCK, start, count)


def front_of_range(fd: int, start: int, count: int) -> int | None:
    """Return where somebody else holds a lock among these bytes, None if nobody does."""
    kind, found = _call(fd, fcntl.F_OFD_GETLK, fcntl.F_RDLCK, start, count)
    return found if kind == fcntl.F_WRLCK else None
