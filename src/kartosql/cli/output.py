"""Where rows go: stdout, or a file that appears when all is done."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

from kartosql.cli.signals import INTERRUPTED
from kartosql.errors import StoreError

PATIENCE = 5.0  # seconds that a stopped statement gets to end
AGAIN = 0.05


@contextlib.contextmanager
def opened(path: str | None) -> Iterator[BinaryIO]:
    """Open stdout, or a file as ``render.files.replacing`` does; raises ``store-failed``."""
    if path is not None:
        from kartosql.render.formats import replacing

        with replacing(path) as out:
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
