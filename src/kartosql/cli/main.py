"""Entry point of the command: it imports nearly nothing before it knows what Ctrl-C means."""

from __future__ import annotations

import contextlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

INTERRUPTED = 130  # the exit code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, by default the one of the process, and return its exit code.

    Nothing is raised: errors go to stderr. The process of the command ends here, and by Ctrl-C before anything is
    done at once.
    """
    code = _run(arguments)
    if arguments is None:
        _leave(code)
    return code


def _leave(code: int) -> None:
    """End the process when what is registered for its end is done; return if threads want to be waited for.

    To take apart all modules and what they hold is a quarter of the time of a small statement.
    """
    import atexit
    import threading

    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        try:
            atexit._run_exitfuncs()
            for stream in filter(None, (sys.stdout, sys.stderr)):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
        finally:
            os._exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    answer = None
    try:
        if arguments is None:
            import signal

            # While modules are imported, KeyboardInterrupt is lost or shown as it is; ``command.raise_on_ctrl_c``
            # ends that. Whoever has the signal ignored, as shells do behind ``&``, is not asked.
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, end_at_once)
            answer = None if sys.stdout is None else _cached_answer(sys.argv[1:])
            if answer is not None:
                with contextlib.suppress(OSError):  # which is told by whoever writes the rest
                    answer = answer[os.write(1, answer) :]
                if not answer:
                    return 0
        from kartosql.cli.command import run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return run(arguments, answer)


def _cached_answer(arguments: Sequence[str]) -> bytes | None:
    """Return what ``URL -c SQL [--format FORMAT]`` prints, if its plan is known from before."""
    if len(arguments) not in (3, 5) or arguments[1] != "-c" or arguments[0][:1] in ("", "-", "@"):
        return None
    if len(arguments) == 5 and arguments[3] != "--format":
        return None
    try:
        if not os.path.isdir(arguments[0]) or os.isatty(1):
            return None
    except (OSError, ValueError):
        return None  # which the long way tells
    from kartosql.engines.duckdb.replay import answer

    return answer(arguments[0], arguments[2], arguments[4] if len(arguments) == 5 else "csv")


def end_at_once(number: int, frame: FrameType | None) -> None:
    """End the process as interrupted."""
    # Nothing is open yet, and nothing of the interpreter can be relied on in the middle of an import.
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(INTERRUPTED)
