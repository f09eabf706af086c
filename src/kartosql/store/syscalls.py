"""Every change that is made to a local disk, one function per system call.

Tests replace these functions to stop a writer before, in and after each of them, and to
record what a power loss may leave behind.
"""

from __future__ import annotations

import errno
import os

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


def unlock(fd: int) -> None:
    """Release the lock, also where a child process holds a copy of the descriptor."""
    fcntl.flock(fd, fcntl.LOCK_UN)
