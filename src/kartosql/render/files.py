"""Results as local files, complete or not there at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from kartosql.errors import StoreError, UsageError, quoted
from kartosql.failures import reraise
from kartosql.render.formats import FORMATS, write_stream

SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".html": "html",
}


def write_file(reader: pa.RecordBatchReader, path: str, format: str | None = None) -> int:  # noqa: A002
    """Write all batches of ``reader`` to the local file ``path`` and return the number of rows.

    The format follows from the suffix unless given. The file appears under its name when it
    is complete; an existing one is replaced. Raises ``invalid-argument`` for an unknown
    format and ``store-failed`` when the system refuses to write.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"{quoted(path)} is no path of a file.")
    path = os.fspath(path)
    format = format or format_of(path)  # noqa: A001
    if format not in FORMATS:
        raise UsageError(f"There is no output format {format!r}.", hint=f"Formats: {', '.join(FORMATS)}.")
    with replacing(path) as out:
        return write_stream(reader, format, out)


def format_of(path: str) -> str:
    """Return the format that a file name asks for, or raise ``invalid-argument``."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"{path!r}: the suffix {suffix!r} names no format." if suffix else f"{path!r} has no suffix.",
            hint=f"Name the format, or use one of {', '.join(SUFFIXES)}.",
        )
    return SUFFIXES[suffix]


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Open a file to write that takes the name ``path`` when the block ends without an error.

    A device or pipe is written to directly. Raises ``store-failed`` and ``invalid-argument``.
    """
    if "://" in path or "\0" in path:
        raise UsageError(f"{path!r} is no local file.", hint="Write to a local file, and upload that.")
    target = os.path.realpath(path)
    try:
        if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
            with open(target, "wb") as out:
                yield out
            return
        part = f"{target}.{secrets.token_hex(4)}.part"
        try:
            with open(part, "xb") as out:
                yield out
            if os.path.exists(target):
                shutil.copymode(target, part)
            os.replace(part, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
    except OSError as e:
        reraise(e, f"Cannot write {path!r}")
        raise StoreError(
            f"Cannot write {path!r}: {e.strerror or e}", hint="Check the folder, its permissions and the space left."
        ) from e
