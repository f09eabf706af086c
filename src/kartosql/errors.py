"""One error base class, stable codes, and what to do next; and what the machine refuses, as such errors."""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from kartosql.text.secrets import masked, redacted

Span = tuple[int, int]
MAX_MESSAGE = 1_000


class KartosqlError(Exception):
    """The base of every error that kartosql raises on purpose.

    ``code`` is a stable kebab-case name with a section in docs/errors.md, ``hint`` says what
    to do next, ``span`` is the (start, end) character range in the SQL text, if there is one.
    """

    default_code = "error"

    def __init_subclass__(cls, *, code: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.default_code = code or cls.default_code

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        span: Span | None = None,
        sql: str | None = None,
    ) -> None:
        message = redacted(message)
        if len(message) > MAX_MESSAGE:
            # Names and values may come from strangers; a message stays readable whatever they hold.
            message = message[: MAX_MESSAGE - 3] + "..."
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = None if hint is None else redacted(hint)
        self.span = span
        self.sql = sql

    @property
    def docs(self) -> str:
        """Where the documentation says more: a page and the heading of the code."""
        return f"docs/errors.md#{self.code}"

    @property
    def places(self) -> list[Span]:
        """The places in ``sql`` that the error is about."""
        return [self.span] if self.sql is not None and self.span is not None else []

    def __str__(self) -> str:
        text = "\n".join([self.message, *(excerpt(self.sql or "", span) for span in self.places)])
        if self.hint:
            text += f"\nHint: {self.hint}"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Return the error as a JSON-able dictionary."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "span": list(self.span) if self.span else None,
            "docs": self.docs,
        }


class UsageError(KartosqlError, code="invalid-argument"):
    """A call or a command line that cannot be carried out as given."""


class SqlError(KartosqlError, code="invalid-query"):
    """A statement that cannot be understood or is not allowed."""


class UnknownNameError(SqlError, code="unknown-name"):
    """One or more names that the snapshot does not know, all reported at once.

    ``errors`` holds one SqlError per name, in the order of the text.
    """

    def __init__(self, errors: list[SqlError], sql: str) -> None:
        codes = {e.code for e in errors}
        message = errors[0].message
        if len(errors) > 1:
            message = f"{len(errors)} names are unknown: " + "; ".join(e.message.rstrip(".") for e in errors) + "."
        hint = " ".join(dict.fromkeys(e.hint for e in errors if e.hint)) or None
        code = codes.pop() if len(codes) == 1 else None
        super().__init__(message, code=code, hint=hint, span=errors[0].span, sql=sql)
        self.errors = errors

    @property
    def places(self) -> list[Span]:
        """The places of all names."""
        found = [e.span for e in self.errors if e.span is not None] if self.sql is not None else []
        return list(dict.fromkeys(found))

    def to_dict(self) -> dict[str, Any]:
        """Return the error and all the names it is about."""
        return {**super().to_dict(), "errors": [e.to_dict() for e in self.errors]}


class NotPortable(SqlError, code="not-portable"):
    """A statement that one engine cannot answer as DuckDB does, so that it refuses it."""


class StoreError(KartosqlError, code="store-failed"):
    """The store cannot be reached, read or written."""


class CommitError(KartosqlError, code="commit-failed"):
    """A change that could not be committed; the store is unchanged."""


class ConcurrentCommit(CommitError, code="concurrent-commit"):
    """Somebody else committed something that this change does not go together with.

    ``winner`` says who: the ``operation``, ``id`` and ``time`` of the other commit, where known.
    """

    def __init__(self, message: str, *, winner: Mapping[str, Any] | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.winner = dict(winner or {})

    def to_dict(self) -> dict[str, Any]:
        """Return the error and who won."""
        return {**super().to_dict(), "winner": self.winner}


class CommitUnknown(CommitError, code="commit-unknown"):
    """The store gave no answer: the change may be committed or not; nothing was deleted."""


class FormatError(KartosqlError, code="invalid-metadata"):
    """The store holds something that its format does not allow."""


def missing_file(name: str, hint: str = "CHECK lists such files.") -> FormatError:
    """Return the error about a file that metadata or a listing name and nobody finds."""
    return FormatError(f"The file {name!r} is missing.", code="missing-file", hint=hint)


class ExecutionError(KartosqlError, code="query-failed"):
    """The engine failed while it ran a valid statement."""


class LimitError(KartosqlError, code="limit-exceeded"):
    """A limit set by the user or the settings was reached."""


class KartosqlWarning(UserWarning):
    """Something was left out or ignored, and the answer is still right."""

    def __init__(self, message: object) -> None:
        super().__init__(redacted(str(message)))


def text_of(value: object, what: str = "The name of a table") -> str:
    """Return an argument that is text; raises ``invalid-argument``."""
    if not isinstance(value, str):
        raise UsageError(f"{what} is text, not {type(value).__name__}.")
    return value


def quoted(value: object, width: int = 160) -> str:
    """Return the repr of a value for a message, cut in the middle if it is long."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - numbers of 5,000 digits have none, and objects of strangers may have a bad one
        text = f"this {type(value).__name__}"
    return shorten(text, width)


def shorten(value: object, width: int = 160) -> str:
    """Return a value for a message: text as it is, else its repr; long ones cut in the middle."""
    text = value if isinstance(value, str) else repr(value)
    half = width // 2 - 2
    return text if len(text) <= width else f"{text[:half]}...{text[-half:]}"


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that a name is most like, whatever their case; None if none is like it."""
    import difflib  # not at the top: hardly any name is misspelt

    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_lower, 1, cutoff)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str | None:
    """Return the hint for a name that is not known, ``otherwise`` where no other name is like it."""
    close = closest(name, known)
    return otherwise if close is None else f"Did you mean {close}?"


def without(owner: object, name: str, habits: Mapping[str, str]) -> AttributeError:
    """Return the error for an attribute that there is none of, with what other libraries' name of it is here."""
    told = f". Here it is {habits[name]}" if name in habits else ""
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}{told}", name=name, obj=owner)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says; some go on for pages."""
    text = error.message if isinstance(error, KartosqlError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


_PYTHON = "No module named '(?:pyarrow|numpy|pandas)|PACKAGE_NOT_INSTALLED|PYTHON_VERSION_MISMATCH|Cannot run program"


def python_error(text: str, code: str) -> ExecutionError | None:
    """Return the error about Python on executors that a message of Spark tells of, if it does."""
    if (found := re.search(f"[^\n]*(?:{_PYTHON})[^\n]*", text)) is None:
        return None
    hint = (
        f"Executors need Python {sys.version_info[0]}.{sys.version_info[1]} with pyarrow: let PYSPARK_PYTHON, or "
        "spark.pyspark.python, name one that all machines have, before the session is made."
    )
    return ExecutionError(f"Python does not work on the executors: {found[0].strip()}", code=code, hint=hint)


def excerpt(sql: str, span: Span, columns: int = 140) -> str:
    """Return the line of ``sql`` that holds ``span`` with a caret line below it, both within so many columns."""
    start = max(0, min(span[0], len(sql)))
    line_start = sql.rfind("\n", 0, start) + 1
    line_end = sql.find("\n", start)
    line_end = len(sql) if line_end < 0 else line_end
    number = sql.count("\n", 0, start) + 1
    # Long lines are cut around the place so that the caret stays in view.
    head = f"LINE {number}: "
    room = min(120, columns - len(head) - 3)
    left = max(line_start, start - room // 2)
    right = min(line_end, left + room)
    head += "..." if left > line_start else ""
    text = "".join(c if c.isprintable() else " " for c in masked(sql)[left:right])
    width = max(1, min(span[1], right) - start)
    return f"{head}{text}\n{' ' * (len(head) + start - left)}{'^' * width}"


# -- what the machine refuses ------------------------------------------------------------------------

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


def failure_of(error: BaseException, action: str | None = None) -> KartosqlError | None:
    """Return the error that says what the machine refused, or None for any other ``error``.

    ``action`` says what could not be done, such as ``Cannot read 'a.parquet'``. Knows errors of Python, of
    Arrow and, by their texts, of DuckDB.
    """
    if isinstance(error, KartosqlError):
        return None
    text = _PREFIX.sub("", str(error)).strip()
    if isinstance(error, ValueError) and _TOO_LONG in text:
        return UsageError(_message(action, "a number has more digits than any type of a column holds"))
    if isinstance(error, MemoryError) or _is_memory(error, text.lower()):
        return _out_of_memory(action, text)
    # Errors of Arrow without a class of their own are of its base class.
    is_general = isinstance(error, RuntimeError | ImportError) or type(error).__name__ == "ArrowException"
    if is_general and _NO_THREAD.search(text.lower()):
        hint = "Raise the limit (ulimit -u, or memory: each thread takes some), set threads, or close connections."
        return LimitError(_message(action, "no more threads can be started"), code="too-many-threads", hint=hint)
    number = _number_of(error, text)
    if number is not None:
        return _of_number(number, action, text)
    if isinstance(error, PermissionError):
        return _of_number(errno.EACCES, action, text)
    if isinstance(error, TimeoutError | ConnectionError):
        return StoreError(_message(action, text or type(error).__name__))
    return None


def reraise(error: BaseException, action: str | None = None) -> None:
    """Raise what the machine refused, if that is what ``error`` says; nothing is damaged then."""
    found = failure_of(error, action)
    if found is not None:
        raise found from error


def _out_of_memory(action: str | None, text: str) -> LimitError:
    hint = "Raise memory_limit or the limit of the process, or select fewer columns and rows."
    return LimitError(_message(action, text or "the memory ran out"), code="out-of-memory", hint=hint)


def _of_number(number: int, action: str | None, text: str) -> KartosqlError | None:
    if number in _NOT_OURS:
        return None
    reason = _message(action, os.strerror(number) if action is not None else text or os.strerror(number))
    if number in _DENIED:
        return StoreError(reason, code="access-denied", hint="Check what the user of this process may read and write.")
    if number in _DESCRIPTORS:
        hint = "Raise the limit, as with ulimit -n 4096, or close connections and results."
        return StoreError(reason, code="too-many-open-files", hint=hint)
    if number in FULL:
        return StoreError(reason, code="disk-full", hint="Free space, then try again.")
    if number == errno.ENOMEM:
        return _out_of_memory(action, text)
    return StoreError(reason)


def _message(action: str | None, reason: str) -> str:
    reason = reason.split("\n")[0].strip()
    return f"{action}: {reason}" if action is not None else reason[:1].upper() + reason[1:]


def _is_memory(error: BaseException, text: str) -> bool:
    if _kind(error) == "OutOfMemoryException" or (_kind(error) and text.endswith("failed: memoryerror:")):
        return True
    return _kind(error) is None and isinstance(error, RuntimeError | ImportError) and bool(_NO_MEMORY.search(text))


def _kind(error: BaseException) -> str | None:
    """Return the name of the class of an error of DuckDB, which this room does not import."""
    return type(error).__name__ if type(error).__module__.lstrip("_") == "duckdb" else None


def _number_of(error: BaseException, text: str) -> int | None:
    if isinstance(error, OSError):
        if error.errno is not None:
            return error.errno
        found = _NUMBER.search(text)
        return int(found[1]) if found else None
    if isinstance(error, ImportError) or _kind(error) in ("IOException", "FatalException", "HTTPException"):
        # The words of the system end a part of the text.
        ends = (line[m.end() :].strip().rstrip('."') for line in text.splitlines() for m in re.finditer(": ", line))
        return next((_words()[end] for end in ends if end in _words()), None)
    return None


@functools.cache
def _words() -> dict[str, int]:
    return {os.strerror(number): number for number in errno.errorcode}
