"""Processes that die by kill -9 before, in or after a step that they make on the local disk."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from kartosql.store import syscalls

NAMES = ("create", "write", "fsync", "fsync_folder", "mkdir", "link", "rename", "unlink", "rmdir", "try_lock", "unlock")
PHASES = ("before", "in", "after")


def install(at: int, phase: str) -> Callable[[], int]:
    """Kill this process at step number ``at`` of those that follow; return a function that counts them.

    In a step means: half of the bytes of a write are written. Other steps are one system call,
    which is done or not.
    """
    done = 0

    def wrap(name: str) -> None:
        real = getattr(syscalls, name)

        def step(*args: Any) -> Any:
            nonlocal done
            here, done = done == at, done + 1
            if here and phase == "before":
                _die()
            if here and phase == "in" and name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
                _die()
            try:
                return real(*args)
            finally:
                if here and phase != "before":
                    _die()

        setattr(syscalls, name, step)

    for name in NAMES:
        wrap(name)
    return lambda: done


def fork() -> int:
    """Fork this process, as ``os.fork`` does, into a child that collects no garbage.

    What other tests left behind, connections of DuckDB among it, would be ended in the child,
    without the threads that it needs: a signal 11, or no end.
    """
    gc.disable()
    child = -1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests
            child = os.fork()
    finally:
        if child:
            gc.enable()
    return child


def was_killed(act: Callable[[], object], at: int, phase: str) -> bool:
    """Run ``act`` in a forked process that dies at the step; False when it ended before.

    Only for work that needs no other thread, which would not be there.
    """
    child = fork()
    if not child:
        try:
            install(at, phase)
            act()
        except BaseException:  # noqa: BLE001
            os._exit(3)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert signal.Signals(os.WTERMSIG(status)) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the work failed"
    return False


def every_crash(act: Callable[[], object], limit: int = 500) -> Iterator[tuple[int, str, bool]]:
    """Run ``act`` once for each step and phase, and yield (step, phase, killed) after each run.

    The last three runs were not killed. The caller restores the state between them.
    """
    for at in range(limit):
        killed = False
        for phase in PHASES:
            killed = was_killed(act, at, phase)
            yield at, phase, killed
        if not killed:
            return
    raise AssertionError(f"more than {limit} steps")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
