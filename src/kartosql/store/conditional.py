"""Versions of what a store holds, and how a conditional write can end."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from kartosql.errors import KartosqlError

# Answers of a store that did not do what it was asked for. Any other failure may hide that it did, or will.
_REFUSALS = (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError, NotImplementedError)
_REFUSALS_BY_NUMBER = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENAMETOOLONG, errno.EBUSY)


@dataclass(frozen=True, slots=True)
class Version:
    """What stood under a key when it was read or written; equal versions are the same content.

    The token is a digest of the content on local disks and in memory, the etag on S3 and
    Azure, the generation on Google Cloud Storage.
    """

    token: str


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
        if _is_refusal(e):
            with contextlib.suppress(Exception):
                is_certain = is_unchanged()
        if not is_certain:
            raise OutcomeUnknown(f"{key}: {e}") from e
        raise


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, _REFUSALS) or (isinstance(error, OSError) and error.errno in _REFUSALS_BY_NUMBER)


def version_of(data: bytes) -> Version:
    """Return the version of a content where the store itself knows none."""
    return Version(hashlib.blake2b(data, digest_size=20).hexdigest())
