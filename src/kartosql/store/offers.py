"""Offers: what a writer who waits for his turn hands to the one who has it, who may do it along with his own.

An offer is a file in a folder of the user, locked for as long as its writer lives and waits. It is taken by renaming
it, and withdrawn by removing it, so one of the two fails. Correctness rests on that alone: who finds his offer taken,
but not done, does not know what became of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kartosql.store import syscalls
from kartosql.store.turns import close, opened

_TAKEN = ".taken"
_BEGUN, _DONE = b"once", b"done"
_SAID = len(_DONE) + 20


class OfferState(NamedTuple):
    """What became of an offer that was taken: whether it is done for sure, and the number that was said, 0 if none."""

    is_done: bool
    number: int


def _begin(folder: str) -> str:
    """Return what the paths of offers for a folder begin with; raises OSError where there is no place for them."""
    place = f"{tempfile.gettempdir()}/kartosql-{os.getuid()}.offers"
    with contextlib.suppress(FileExistsError):
        os.mkdir(place, 0o700)
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


def take(folder: str, most: int) -> Iterator[Taken]:
    """Take offers for a folder, the oldest first; those of writers that are dead are removed."""
    with contextlib.suppress(OSError, AttributeError):
        begin = _begin(folder)
        place, _, start = begin.rpartition("/")
        for name in sorted(n for n in os.listdir(place) if n.startswith(start)):
            path = f"{place}/{name}"
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    if syscalls.try_lock(fd):
                        os.unlink(path)
                    elif "." not in name and most > 0:
                        content = os.read(fd, os.fstat(fd).st_size)
                        os.rename(path, path + _TAKEN)
                        most -= 1
                        yield Taken(path, content)
                finally:
                    os.close(fd)
