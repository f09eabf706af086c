"""Storage keys that stay inside the store, versions of their contents, and how a conditional write can end."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import IO, Any, NamedTuple, TypeVar

from kartosql.errors import FormatError, KartosqlError
from kartosql.memo import memoized

_T = TypeVar("_T")

MAX_KEY_LENGTH = 4096
_CONTROL = re.compile("[\0-\x1f]")
SIDE_FOLDER = ".commit"
MANY_FOLDERS = 64  # side by side, which one listing tells about faster than a look at each
MAX_COMPONENT_LENGTH = 255  # the limit of the common local filesystems


def key_problem(key: str, prefix: str = "") -> str | None:
    """Return why ``key`` may not be opened, or None when it is a plain key below ``prefix``."""
    if not key:
        return "it is empty"
    if len(key) > MAX_KEY_LENGTH:
        return f"it is longer than {MAX_KEY_LENGTH} characters"
    if _CONTROL.search(key):
        return "it holds control characters"
    if key.startswith("/") or "://" in key:
        return "it is absolute"
    if prefix and not key.startswith(prefix):
        return f"it does not start with {prefix!r}"
    for part in key.split("/"):
        if part in ("..", "."):
            return f"it holds the path component {part!r}"
        if len(part.encode("utf-8", "surrogatepass")) > MAX_COMPONENT_LENGTH:
            return f"a component is longer than {MAX_COMPONENT_LENGTH} bytes"
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return None


def check_key(key: object, prefix: str = "", *, source: str) -> str:
    """Return ``key`` if it stays below ``prefix``, else raise ``unsafe-key``.

    ``source`` names the document the key comes from, for the message.
    """
    if not isinstance(key, str):
        raise FormatError(
            f"{source}: a storage key is {type(key).__name__}, not text",
            code="invalid-metadata",
            hint="The metadata file is damaged or was not written by kartothek, plateau or kartosql.",
        )
    problem = key_problem(key, prefix)
    if problem:
        shown = key if len(key) <= 120 else key[:117] + "..."
        hint = "The metadata points outside its own dataset; it may be damaged or hostile."
        raise FormatError(f"{source}: the key {shown!r} cannot be used: {problem}", code="unsafe-key", hint=hint)
    return key


def side_folder(key: str) -> str:
    """Return the folder of temporary files of the dataset that ``key`` belongs to; empty when it names none."""
    folder, slash, _ = key.partition("/")
    if not slash:
        end = key.find(".", 1)
        folder = key[:end] if end > 0 else ""
    return f"{folder}/{SIDE_FOLDER}" if folder else ""


# Answers of a store that did not do what it was asked for. Any other failure may hide that it did, or will.
_REFUSALS = (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError, NotImplementedError)
_REFUSALS_BY_NUMBER = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENAMETOOLONG, errno.EBUSY)


_COMPARED = 1 << 20  # bytes that are read and compared at once


class Content:
    """The bytes of a document in pieces, most of which those before and after it have as well."""

    def __init__(self, *pieces: bytes | memoryview) -> None:
        self.pieces: tuple[bytes | memoryview, ...] | None = pieces
        self.size = sum(map(len, pieces))

    @memoized
    def token(self) -> str:
        """A digest of the bytes."""
        hashed = hashlib.blake2b(digest_size=20)
        for piece in self.pieces or ():
            hashed.update(piece)
        return hashed.hexdigest()

    def drop(self) -> None:
        """Keep nothing but the digest."""
        _ = self.token
        self.pieces = None

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces or ())

    def is_all_of(self, file: IO[bytes]) -> bool:
        """Return whether a file holds exactly these bytes; they are compared, which is sooner done than a digest."""
        pieces = self.pieces
        if pieces is None:
            return version_of(file.read()).token == self.token
        for piece in pieces:
            view = memoryview(piece)
            for at in range(0, len(view), _COMPARED):
                part = view[at : at + _COMPARED]
                found = file.read(len(part))
                if len(found) != len(part) or not found.startswith(part):
                    return False
        return not file.read(1)


class Version:
    """The version of an object when it was read or written; equal versions are the same content.

    The token is a digest of the content on local disks and in memory, the etag on S3 and
    Azure, the generation on Google Cloud Storage. A digest is made of ``content`` when it is first asked for.
    """

    __slots__ = ("_token", "content")

    def __init__(self, token: str | None = None, content: Content | None = None) -> None:
        assert token is not None or content is not None
        self._token = token
        self.content = content

    @property
    def token(self) -> str:
        """What two versions of a key differ in."""
        return self.content.token if self.content is not None else str(self._token)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Version):
            return NotImplemented
        return (self.content is not None and self.content is other.content) or self.token == other.token

    def __hash__(self) -> int:
        return hash(self.token)


def admit_folders(root: str, keys: Sequence[str], known: set[str], check: Callable[[str], None]) -> None:
    """Add to the folders that are known to be no links those of some keys that lie side by side: a look for them all.

    What ``check`` raises tells that the way to them leaves the dataset. Links are not added.
    """
    if len(keys) < MANY_FOLDERS:
        return
    new = {folder for key in keys if (folder := f"{root}/{key[: key.rfind('/')]}") not in known}
    for around, count in Counter(folder[: folder.rfind("/")] for folder in new).items():
        if count >= MANY_FOLDERS and around.startswith(f"{root}/"):
            check(f"{around[len(root) + 1 :]}/")
            with contextlib.suppress(OSError), os.scandir(around) as entries:
                some = islice(entries, 4 * count)  # where others lie as well, it does not pay to look at them all
                known.update(entry.path for entry in some if entry.is_dir(follow_symlinks=False))


def link_error(key: str) -> FormatError:
    """Return the error about a file that is a link, or lies behind one."""
    return FormatError(
        f"The file {key!r} is a link or lies behind one that leaves its dataset.",
        code="unsafe-key",
        hint="Replace the link by the file itself.",
    )


class Stamp(NamedTuple):
    """The identity of a local file and of its last change."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class ObjectStamp(NamedTuple):
    """What identifies the content of an object in a store.

    ``modified`` is None where ``etag`` alone proves the content, as its MD5 does.
    """

    etag: str
    modified: dt.datetime | None

    def is_same(self, other: ObjectStamp | None) -> bool:
        """Return whether an object of that other stamp has the content that this one was kept for."""
        return other is not None and self.etag == other.etag and self.modified in (None, other.modified)


# By the clock of the store. Whatever is written later than that after a write has another time.
SETTLED = dt.timedelta(seconds=3)


class Fetched(NamedTuple):
    """Bytes of an object from ``start`` on, with the size of all of it, and what the store said about its content.

    ``unchanged`` says that it still is what the caller knows, so there are no bytes.
    """

    data: bytes
    start: int
    size: int
    etag: str = ""
    modified: dt.datetime | None = None
    now: dt.datetime | None = None  # by the clock of the store
    unchanged: bool = False

    @property
    def proof(self) -> ObjectStamp | None:
        """What proves later that a whole object still is the same; None if nothing does.

        ETags that are no MD5 may be anything, so there the time has to be the same too, and so long ago that no
        later write has it.
        """
        etag = self.etag.strip('"')
        if etag and hashlib.md5(self.data, usedforsecurity=False).hexdigest() == etag:
            return ObjectStamp(etag, None)
        if etag and self.modified and self.now and self.now - self.modified > SETTLED:
            return ObjectStamp(etag, self.modified)
        return None


class Detail(NamedTuple):
    """The size of an object and when it was last written, by the clock of the store."""

    size: int
    modified: dt.datetime

    @property
    def milliseconds(self) -> int:
        """The time in milliseconds since 1970, as data-skipping metadata name it."""
        return int(self.modified.timestamp() * 1000)


class PreconditionFailed(Exception):
    """The key does not hold the expected version.

    Somebody else won, or our own answer was lost and a library sent the request again: the
    caller reads once more and looks for what it wrote. Never shown to users.
    """


class OutcomeUnknown(Exception):
    """No answer came: the write may have happened, may not, or may happen later.

    Nothing that the written content refers to may be deleted. Never shown to users.
    """


class Unsupported(Exception):
    """The store knows no such conditional write; nothing was written."""


@contextlib.contextmanager
def settling(key: str, is_unchanged: Callable[[], bool]) -> Iterator[None]:
    """Turn what a change of ``key`` raises into OutcomeUnknown, unless the store refused it and nothing has changed."""
    is_certain = False
    try:
        yield
    except (KartosqlError, PreconditionFailed, OutcomeUnknown, Unsupported):
        raise
    except Exception as e:
        if isinstance(e, _REFUSALS) or (isinstance(e, OSError) and e.errno in _REFUSALS_BY_NUMBER):
            with contextlib.suppress(Exception):
                is_certain = is_unchanged()
        if not is_certain:
            raise OutcomeUnknown(f"{key}: {e}") from e
        raise


def version_of(data: bytes) -> Version:
    """Return the version of a content where the store itself knows none."""
    return Version(Content(data).token)


LISTINGS = 20  # of a folder of which files go away meanwhile


def stable_listing(list_once: Callable[[list[str]], _T]) -> _T:
    """Return a listing to which no file was added as gone; else the last one of several.

    Whoever removes a file while it is looked at may have put its rows into one that came too late to be listed.
    """
    for _ in range(LISTINGS):
        gone: list[str] = []
        found = list_once(gone)
        if not gone:
            break
    return found


def local_files_below(path: str, gone: list[str]) -> dict[str, dict[str, Any]]:
    """Return every file below a folder of the local disk, with what its listing tells; links are not followed.

    Files and folders that go away meanwhile are added to ``gone``.
    """

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise error
        if error.filename != path:
            gone.append(error.filename)

    found = {}
    for folder, _, names in os.walk(path, onerror=note):
        for name in names:
            full = f"{folder.rstrip('/')}/{name}"
            try:
                info = os.lstat(full)
            except FileNotFoundError:
                gone.append(full)
                continue
            if not stat.S_ISLNK(info.st_mode):
                kind = "file" if stat.S_ISREG(info.st_mode) else "other"
                found[full] = {"size": info.st_size, "mtime": info.st_mtime, "type": kind}
    return found
