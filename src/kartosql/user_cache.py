"""A cache beside the user: buffers that one process made and later ones map into memory.

It knows bytes only. An entry has a kind, an identity and buffers. The identity names what the buffers were made of and
proves its content, so an entry that nobody asks for any more is never stale, only old. Whoever changes how buffers are
laid out changes the kind; other versions of kartosql have entries of their own in any case.

What goes in must be readable by whoever could read what it was made of. Nothing whose owner encrypts it goes in: no
encrypted skipping metadata, nothing of encrypted Parquet files.

No failure of the cache is an error: a folder that cannot be used, or that somebody else could write to, is no cache, a
full disk keeps nothing. Entries get their name when they are complete, and are never changed, so deleting them is
always safe, also while they are used.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import struct
import sys
import time

try:
    from _blake2 import blake2b as blake2b  # without OpenSSL, which takes longer to load than an entry
except ImportError:
    from hashlib import blake2b as blake2b

from kartosql.text.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Bytes = bytes | bytearray | memoryview

VARIABLE = "KARTOSQL_CACHE"
OFF = "off"
MAX_BYTES = 2 << 30  # of all entries; those used longest ago go first
_MAX_ENTRIES = 20_000
_LOOKS = 64  # a look at all entries is due for that part of the bytes that they may have, or after as many of them
_MAGIC = b"kartosql"
_LAYOUT = 1
_HEAD = struct.Struct("<8sII32s")  # magic, layout, number of buffers, digest of kind and identity; then sizes, checksum
_ALIGNMENT = 64
_CHECKSUM_BYTES = 16
_SMALL = 1 << 18  # bytes of all buffers up to which the checksum in the head is that of them, too
_MAX_BUFFERS = 10_000
_TOUCHED_SECONDS = 600  # how exactly the time of the last use is known
_WRITTEN_AT_ONCE = 1 << 16  # Linux keeps together what was, and a look at one byte of it maps all
_ABANDONED_SECONDS = 3600  # after which an entry that was never completed goes
_SUFFIX = ".kartosql"
_PART = f"{_SUFFIX}-part"
_PRIVATE = 0o700
_OF_OTHERS = 0o022  # may write


def cache_folder(given: str | None = None) -> str | None:
    """Return the folder that is given, else what ``KARTOSQL_CACHE`` names, else the user's; None for no cache."""
    given = given or os.environ.get(VARIABLE)
    if given:
        return None if given.lower() == OFF else os.path.abspath(os.path.expanduser(given))
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return None
    if sys.platform == "darwin":
        return os.path.join(home, "Library", "Caches", "kartosql")
    base = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.join(home, ".cache"), "kartosql")


class UserCache:
    """Entries in a folder of the user, shared by processes; without a folder it holds nothing.

    It has no state but its folder, so threads and forked processes may use one object.
    """

    def __init__(self, folder: str | None, max_bytes: int = MAX_BYTES) -> None:
        # Without these there is no telling whose folder it is.
        self.folder = folder if hasattr(os, "geteuid") and os.open in os.supports_dir_fd else None
        self._max_bytes = max_bytes

    def get(self, kind: str, identity: Sequence[str | bytes]) -> list[memoryview] | None:
        """Return the buffers of an entry as they were put, mapped into memory, or None."""
        if self.folder is None:
            return None
        folder = _opened(self.folder)
        if folder is None:
            return None
        digest = _digest(kind, identity)
        try:
            return _mapped(folder, _name(kind, digest), digest)
        except (OSError, ValueError, struct.error):
            return None
        finally:
            os.close(folder)

    def put(self, kind: str, identity: Sequence[str | bytes], buffers: Sequence[Bytes]) -> None:
        """Keep buffers as an entry, in place of an earlier one; what cannot be kept is not."""
        if self.folder is None:
            return
        views = [memoryview(b).cast("B") for b in buffers]
        size = sum(v.nbytes + _ALIGNMENT for v in views)
        if len(views) > _MAX_BUFFERS or size > self._max_bytes // 2:
            return
        digest = _digest(kind, identity)
        folder = None
        try:
            os.makedirs(self.folder, mode=_PRIVATE, exist_ok=True)
            folder = _opened(self.folder)
            if folder is not None:
                if _is_look_due(size, self._max_bytes):
                    _evict(folder, self._max_bytes - size)
                _write(folder, _name(kind, digest), _head(digest, views), views)
        except OSError:
            return
        finally:
            if folder is not None:
                os.close(folder)


def _digest(kind: str, identity: Sequence[str | bytes]) -> bytes:
    """Return a digest of what an entry is about; bytes of other machines and versions are about something else."""
    digest = blake2b(digest_size=32)
    for part in (VERSION, sys.byteorder, kind, *identity):
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


def _name(kind: str, digest: bytes) -> str:
    return f"{kind}-{digest.hex()[:40]}{_SUFFIX}"


def _opened(path: str) -> int | None:
    """Return a folder that is open, None unless it is the user's own, and nobody else may write to it."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & _OF_OTHERS:
        os.close(folder)
        return None
    return folder


def _mapped(folder: int, name: str, digest: bytes) -> list[memoryview] | None:
    """Return the buffers of an entry whose head is right, and whose size is what the head says."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OF_OTHERS:
            return None
        data = memoryview(mmap.mmap(file, found.st_size, prot=mmap.PROT_READ))
        magic, layout, count, about = _HEAD.unpack_from(data)
        if (magic, layout, about) != (_MAGIC, _LAYOUT, digest) or count > _MAX_BUFFERS:
            return None
        end = _HEAD.size + 8 * count
        buffers = []
        at = _aligned(end + _CHECKSUM_BYTES)
        for size in struct.unpack_from(f"<{count}Q", data, _HEAD.size):
            buffers.append(data[at : at + size])
            at = _aligned(at + size)
        if at != len(data) or _checksum(data[:end], buffers) != data[end : end + _CHECKSUM_BYTES]:
            return None
        if time.time() - found.st_mtime > _TOUCHED_SECONDS:
            os.utime(name, dir_fd=folder, follow_symlinks=False)
        return buffers
    finally:
        os.close(file)


def _write(folder: int, name: str, head: bytes, views: Sequence[memoryview]) -> None:
    """Write an entry that has its name only once all of it is on the disk."""
    part = f"{name}.{os.urandom(8).hex()}{_PART}"
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with open(file, "wb") as out:
            for piece in (memoryview(head), *views):
                for at in range(0, len(piece), _WRITTEN_AT_ONCE):
                    out.write(piece[at : at + _WRITTEN_AT_ONCE])
                out.write(b"\0" * (_aligned(len(piece)) - len(piece)))
            out.flush()
            if sum(view.nbytes for view in views) > _SMALL:  # else the checksum tells what a power loss did to it
                os.fsync(file)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(part, dir_fd=folder)
        raise


def _head(digest: bytes, views: Sequence[memoryview]) -> bytes:
    head = _HEAD.pack(_MAGIC, _LAYOUT, len(views), digest) + struct.pack(f"<{len(views)}Q", *(v.nbytes for v in views))
    return head + _checksum(head, views)


def _checksum(head: Bytes, views: Sequence[memoryview]) -> bytes:
    digest = blake2b(head, digest_size=_CHECKSUM_BYTES)
    for view in views if sum(v.nbytes for v in views) <= _SMALL else ():
        digest.update(view)
    return digest.digest()


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _is_look_due(size: int, max_bytes: int) -> bool:
    """Return whether to look at all entries before one of some bytes is added, by chance, as nobody counts them.

    A look takes as long as there are entries, and new ones are small beside the bytes that all may have.
    """
    return int.from_bytes(os.urandom(4), "little") / 2**32 < max(size * _LOOKS / max_bytes, 1 / _LOOKS)


def _evict(folder: int, most: int) -> None:
    """Remove the entries used longest ago until the rest has ``most`` bytes, and what was never completed."""
    entries = []
    with os.scandir(folder) as found:
        for entry in found:
            if not entry.name.endswith((_SUFFIX, _PART)):
                continue  # whoever named the folder keeps other things there
            about = entry.stat(follow_symlinks=False)
            entries.append((about.st_mtime, about.st_size, entry.name))
    total, count = sum(size for _, size, _ in entries), len(entries)
    for used, size, name in sorted(entries):
        abandoned = name.endswith(_PART) and time.time() - used > _ABANDONED_SECONDS
        if abandoned or total > most or count > _MAX_ENTRIES:
            total, count = total - size, count - 1
            with contextlib.suppress(FileNotFoundError):  # another process did it
                os.unlink(name, dir_fd=folder)
