"""What the machine refused or ran out of, told as such: no file and no statement is to blame for it."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from kartosql.errors import KartosqlError, LimitError, StoreError, UsageError

# These may well follow from what a file or a path holds.
_NOT_OURS = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EINVAL, errno.ESPIPE)
_DENIED = (errno.EACCES, errno.EPERM)
_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PREFIX = re.compile(r"^[A-Z][A-Za-z ]+ Error: ")  # of DuckDB
_NUMBER = re.compile(r"\[errno (\d+)\]", re.IGNORECASE)
_TOO_LONG = "for integer string conversion"  # what Python says of numbers of thousands of digits
_NO_THREAD = re.compile(r"can't start new thread|resource temporarily unavailable|thread constructor failed")
_NO_MEMORY = re.compile(
    r"out of memory error|cannot allocate memory|failed to map segment|malloc of size|bad_alloc|bad allocation|"
    r"failed to allocate|allocation failure|unable to allocate|out of java heap"
)
_CALLED = ("__repr__", "_repr_html_", "__iter__", "__len__", "__next__", "__arrow_c_stream__", "__arrow_c_schema__")
_ALWAYS = ("close", "interrupt", "progress", "settings")  # whatever goes on
_C = TypeVar("_C")


def failure_of(error: BaseException, action: str | None = None) -> KartosqlError | None:
    """Return the error that says what the machine refused, or None if ``error`` tells of something else.

    ``action`` says what could not be done, such as ``Cannot read 'a.parquet'``. Knows errors of Python, of
    Arrow and, by their texts, of DuckDB.
    """
    if isinstance(error, KartosqlError):
        return None
    text = _PREFIX.sub("", str(error)).strip()
    if isinstance(error, ValueError) and _TOO_LONG in text:
        return UsageError(_message(action, "a number has more digits than any type of a column holds"))
    if isinstance(error, MemoryError) or _is_memory(error, text.lower()):
        return out_of_memory(action, text)
    if isinstance(error, RuntimeError | ImportError) and _NO_THREAD.search(text.lower()):
        return _no_thread(action)
    number = _number_of(error, text)
    if number is not None:
        return _of_number(number, action, text)
    if isinstance(error, PermissionError):
        return _of_number(errno.EACCES, action, text)
    if isinstance(error, TimeoutError | ConnectionError):
        return StoreError(_message(action, text or type(error).__name__))
    return None


def reraise(error: BaseException, action: str | None = None) -> None:
    """Raise what the machine refused, if that is what ``error`` tells; nothing is damaged then."""
    found = failure_of(error, action)
    if found is not None:
        raise found from error


@contextlib.contextmanager
def translated_errors(action: str | None = None) -> Iterator[None]:
    """Raise errors of ours where the machine refuses something within the block."""
    try:
        yield
    except KartosqlError:
        raise
    except Exception as e:
        reraise(e, action)
        raise


def translates_errors(cls: type[_C]) -> type[_C]:
    """Let all that users call of a class raise errors of ours where the machine refuses something."""
    for name, found in vars(cls).copy().items():
        if (name.startswith("_") and name not in _CALLED) or name in _ALWAYS:
            continue
        if isinstance(found, property) and found.fget is not None:
            setattr(cls, name, property(_translating(found.fget), doc=found.__doc__))
        elif inspect.isfunction(found):
            setattr(cls, name, _translating(found))
    return cls


def _translating(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        with translated_errors(), _working(args[0]):
            return function(*args, **keywords)

    return call


def _working(of: Any) -> contextlib.AbstractContextManager[None]:
    """Return what calls of an object are done in: connections can be stopped."""
    found = getattr(of, "_working", None)
    return contextlib.nullcontext() if found is None else found()


def out_of_memory(action: str | None, text: str) -> LimitError:
    """Return the error that memory ran out."""
    return LimitError(
        _message(action, text or "the memory ran out"),
        code="out-of-memory",
        hint="Raise memory_limit or the limit of the process, or select fewer columns and rows.",
    )


def _no_thread(action: str | None) -> LimitError:
    return LimitError(
        _message(action, "no more threads can be started"),
        code="too-many-threads",
        hint="Raise the limit (ulimit -u, or memory: each thread takes some), set threads, or close connections.",
    )


def _of_number(number: int, action: str | None, text: str) -> KartosqlError | None:
    if number in _NOT_OURS:
        return None
    reason = _message(action, os.strerror(number) if action is not None else text or os.strerror(number))
    if number in _DENIED:
        return StoreError(reason, code="access-denied", hint="Check what the user of this process may read and write.")
    if number in _DESCRIPTORS:
        return StoreError(
            reason,
            code="too-many-open-files",
            hint="Raise the limit, as with ulimit -n 4096, or close connections and results.",
        )
    if number in FULL:
        return StoreError(reason, code="disk-full", hint="Free space, then try again.")
    if number == errno.ENOMEM:
        return out_of_memory(action, text)
    return StoreError(reason)


def _message(action: str | None, reason: str) -> str:
    reason = reason.split("\n")[0].strip()
    return f"{action}: {reason}" if action is not None else reason[:1].upper() + reason[1:]


def _is_memory(error: BaseException, text: str) -> bool:
    if _kind(error) == "OutOfMemoryException":
        return True
    return _kind(error) is None and isinstance(error, RuntimeError | ImportError) and bool(_NO_MEMORY.search(text))


def _kind(error: BaseException) -> str | None:
    """Return the name of the class of an error of DuckDB, which this room does not import."""
    return type(error).__name__ if type(error).__module__.lstrip("_") == "duckdb" else None


def _number_of(error: BaseException, text: str) -> int | None:
    """Return the number that the system gave an error, if it comes from there."""
    if isinstance(error, OSError):
        if error.errno is not None:
            return error.errno
        found = _NUMBER.search(text)
        return int(found[1]) if found else None
    if isinstance(error, ImportError) or _kind(error) in ("IOException", "FatalException", "HTTPException"):
        return _by_text(text)
    return None


def _by_text(text: str) -> int | None:
    """Return the number of the error whose words of the system end a part of a text."""
    known = _words()
    for line in text.splitlines():
        for start in (m.end() for m in re.finditer(": ", line)):
            number = known.get(line[start:].strip().rstrip('."'))
            if number is not None:
                return number
    return None


@functools.cache
def _words() -> dict[str, int]:
    return {os.strerror(number): number for number in errno.errorcode}
