"""The output of the command: rows on stdout or in a file, all else on stderr; what Ctrl-C stops; the exit codes."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

from kartosql.cli.main import INTERRUPTED
from kartosql.errors import KartosqlError, KartosqlWarning, LimitError, StoreError, UsageError, excerpt

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


# -- stderr --------------------------------------------------------------------------------------

warned = 0  # how many warnings were told
_asked = False  # for tracebacks, by the option of the command line that runs


def debug(asked: bool) -> None:
    """Show tracebacks from now on, or only if the environment asks for them."""
    global _asked
    _asked = asked


def say(text: str) -> None:
    """Write a line to stderr without credentials, whatever its encoding, and even if nobody listens."""
    from kartosql.text.escape import escaped_lines
    from kartosql.text.secrets import redacted

    with contextlib.suppress(OSError):
        print(escaped_lines(redacted(text)), file=sys.stderr, flush=True)


def translated(error: Exception) -> Exception:
    """Return the corresponding error of ours, if there is one; any other is a bug."""
    if isinstance(error, KartosqlError):
        return error
    from kartosql.errors import failure_of

    return failure_of(error) or error


def traced(error: Exception) -> list[str]:
    """Return the traceback of an error, if tracebacks are shown."""
    is_shown = _asked or bool(os.environ.get(DEBUG))
    return ["".join(traceback.format_exception(error)).rstrip()] if is_shown else []


def described(error: Exception, columns: int = 140, more: str = 'kartosql . -c ".help {}"') -> list[str]:
    """Return what an error says: its code and message, places in the text, notes, the hint, and what tells more."""
    if not isinstance(error, KartosqlError):
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return [f"error[internal]: {what} (a bug of kartosql: please report it with what --debug shows)"]
    lines = [f"error[{error.code}]: {error.message}"]
    lines += [excerpt(error.sql or "", span, columns) for span in error.places]
    lines += getattr(error, "__notes__", [])
    if error.hint:
        lines.append(f"hint: {error.hint}")
    lines.append(f"see: {more.format(error.code)}")
    return lines


def exit_code(error: Exception) -> int:
    """Return the exit code that an error means."""
    if not isinstance(error, KartosqlError):
        return BUG
    if error.code == "interrupted":
        return INTERRUPTED
    if isinstance(error, UsageError) or error.code == "missing-extra":
        return USAGE
    if isinstance(error, StoreError):
        return STORE
    return LIMIT if isinstance(error, LimitError) else FAILED


@contextlib.contextmanager
def telling_warnings(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell Python's warnings as one line each."""
    global warned
    warned = 0

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        global warned
        warned += 1
        if threading.current_thread().name != BEHIND:
            tell("warning: " + " ".join(str(message).split()))

    with warnings.catch_warnings():
        warnings.simplefilter("always", KartosqlWarning)
        warnings.showwarning = show
        yield


# -- stdout, and what writes to it ---------------------------------------------------------------

PATIENCE = 5.0  # seconds that a stopped statement gets to end
AGAIN = 0.05


@contextlib.contextmanager
def opened(path: str | None, storage_options: Mapping[str, Any] | None = None) -> Iterator[BinaryIO]:
    """Open stdout, or a file as ``render.formats.replacing`` does; raises ``store-failed``."""
    if path is not None:
        from kartosql.render.formats import replacing

        with replacing(path, storage_options) as out:
            yield out
        return
    try:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as e:
        drop_stdout()
        raise StoreError(f"Cannot write to stdout: {e.strerror or e}") from e


def drop_stdout() -> None:
    """Let nothing more reach stdout, or the interpreter complains when it flushes at its end."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


def interruptible(
    work: Callable[[], object], stop: Callable[[], None], tick: Callable[[], None] | None = None, every: float = 0.1
) -> None:
    """Do ``work`` in a thread, and let Ctrl-C call ``stop``; meanwhile call ``tick``, if given, all ``every`` seconds.

    The engine looks for signals only now and then, but obeys another thread at once.
    """
    raised: list[BaseException] = []
    done = threading.Event()

    def guarded() -> None:
        try:
            work()
        except BaseException as e:  # noqa: BLE001
            raised.append(e)
        finally:
            done.set()

    thread = threading.Thread(target=guarded, daemon=True)
    try:
        thread.start()
        # Not Thread.join: when that is interrupted, it takes the thread for ended. Not without a limit: a signal that
        # comes just before Python begins to wait does not wake it.
        while not done.wait(every):
            if tick is not None:
                tick()
        thread.join()
    except KeyboardInterrupt:
        try:
            # Told again, as an engine that is about to start does not hear it.
            for _ in range(int(PATIENCE / AGAIN)):
                stop()
                if done.wait(AGAIN):
                    break
        finally:
            if done.is_set():
                # It still lets go of the engine, which the interpreter must not end in the middle of.
                thread.join()
            else:
                # The interpreter cannot end around a thread that is inside of the engine.
                atexit.register(os._exit, INTERRUPTED)
        raise
    if raised:
        # Popped, as an error that stays in the list is a cycle that keeps the engine alive at exit.
        raise raised.pop()
