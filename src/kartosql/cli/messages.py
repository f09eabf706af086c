"""Errors and warnings on stderr, and the exit codes."""

from __future__ import annotations

import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kartosql.cli.signals import INTERRUPTED
from kartosql.errors import (
    KartosqlError,
    KartosqlWarning,
    LimitError,
    StoreError,
    UsageError,
    excerpt,
)

FINE, FAILED, USAGE, STORE, LIMIT, BUG = 0, 1, 2, 3, 4, 70
EXIT_CODES = {
    FINE: "fine, also when the reader of a pipe has enough",
    FAILED: "a statement failed, or the data are damaged",
    USAGE: "the command line or a setting is wrong, or a package is missing",
    STORE: "the store cannot be reached, read or written",
    LIMIT: "timeout, budget or memory limit",
    BUG: "a bug of ours",
    INTERRUPTED: "interrupted by Ctrl-C",
}
DEBUG = "KARTOSQL_DEBUG"
BEHIND = "kartosql-behind"  # the thread that looks at the store unasked; nobody wants its warnings


_asked = False  # for tracebacks, by the option of the command line that runs


def debug(asked: bool) -> None:
    """Show tracebacks from now on, or only if the environment asks for them."""
    global _asked
    _asked = asked


def is_debugging() -> bool:
    """Return whether tracebacks are shown."""
    return _asked or bool(os.environ.get(DEBUG))


def say(text: str) -> None:
    """Write a line to stderr without credentials, whatever its encoding, and even if nobody listens."""
    from kartosql.text.escape import escaped_lines
    from kartosql.text.secrets import redacted

    with suppress(OSError):
        print(escaped_lines(redacted(text)), file=sys.stderr, flush=True)


def report(error: KartosqlError) -> int:
    """Tell about an error and return the exit code."""
    if is_debugging():
        say("".join(traceback.format_exception(error)).rstrip())
    say("\n".join(described(error)))
    return exit_code(error)


def described(error: KartosqlError) -> list[str]:
    """Return what an error says: its code and message, places in the text, notes, and the hint."""
    lines = [f"error[{error.code}]: {error.message}"]
    lines += [excerpt(error.sql or "", span) for span in error.places]
    lines += getattr(error, "__notes__", [])
    if error.hint:
        lines.append(f"hint: {error.hint}")
    lines.append(f"see: {error.docs}")
    return lines


def report_bug(error: Exception) -> int:
    """Tell about an exception that should not have come here."""
    if is_debugging():
        say("".join(traceback.format_exception(error)).rstrip())
    what = " ".join(f"{type(error).__name__}: {error}".split())
    say(f"error[internal]: {what} (a bug of kartosql: please report it with what --debug shows)")
    return BUG


def exit_code(error: KartosqlError) -> int:
    """Return the exit code that an error means."""
    if error.code == "interrupted":
        return INTERRUPTED
    if isinstance(error, UsageError) or error.code == "missing-extra":
        return USAGE
    if isinstance(error, StoreError):
        return STORE
    return LIMIT if isinstance(error, LimitError) else FAILED


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Show Python's warnings as one line each."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if threading.current_thread().name != BEHIND:
            say("warning: " + " ".join(str(message).split()))

    with warnings.catch_warnings():
        warnings.simplefilter("always", KartosqlWarning)
        warnings.showwarning = show
        yield
