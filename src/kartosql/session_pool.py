"""What closed connections leave to the next ones of the process: engines, metadata and plans, for the same store.

A connection that finds them goes on as if the one before had stayed open: metadata are proven again by the stamps of
their files, engines are locked for the very same tables. It gets them only with the same URL, options, filesystem and
settings, and only from one that registered and attached nothing. At any time each of them has one connection at most.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kartosql.engines.duckdb.runtime import Engines
from kartosql.formats.kartothek.snapshot import MetadataCache
from kartosql.plan.bind import PlanCache
from kartosql.sql import parse
from kartosql.sql.tree import ParsedTexts
from kartosql.store import Mounts, Store

MAX_SESSIONS = 4
MAX_SECONDS = 60.0  # after which nobody seems to open such a connection again
MAX_PARTITIONS = 300_000  # of all metadata that are left
MAX_BYTES = 128_000_000  # of each engine that is left


@dataclass
class SessionState:
    """What a connection keeps between its statements, beside its settings and what it registered or attached."""

    store: Store
    engines: Engines = field(default_factory=Engines)
    metadata: MetadataCache = field(default_factory=MetadataCache)
    plans: PlanCache = field(default_factory=PlanCache)
    texts: ParsedTexts = field(default_factory=lambda: ParsedTexts(parse))
    mounts: Mounts = field(init=False)

    def __post_init__(self) -> None:
        self.mounts = Mounts(self.store)

    def begin_as(self, store: Store) -> None:
        """Go on for a connection with a store of its own that is the same."""
        self.store.begin_as(store)
        self.mounts.counter = store.counter


@dataclass(frozen=True)
class _Idle:
    state: SessionState
    modes: Mapping[str, Any]
    since: float


_idle: list[_Idle] = []  # those that were used last come last
_guard = threading.Lock()
_waits = False  # whether a thread waits for the oldest to be too old
_wake = threading.Event()


def take(store: Store, modes: Mapping[str, Any]) -> SessionState:
    """Return what a closed connection left that had the same store and ``modes``, else a new state."""
    with _guard:
        for at in reversed(range(len(_idle))):
            found = _idle[at]
            if found.modes == modes and found.state.store.is_same(store):
                del _idle[at]
                break
        else:
            return SessionState(store)
    found.state.begin_as(store)
    return found.state


def leave(state: SessionState, modes: Mapping[str, Any]) -> None:
    """Keep a state for the next connection; what is too large, or too much, is freed."""
    state.engines.shrink(MAX_BYTES)
    with _guard:
        _idle.append(_Idle(state, modes, time.monotonic()))
        surplus = _surplus()
        _expect_end()
    for old in surplus:
        old.state.engines.close()


def _surplus() -> list[_Idle]:
    """Take out what exceeds a limit."""
    found: list[_Idle] = []
    oldest = time.monotonic() - MAX_SECONDS
    while _idle and (
        len(_idle) > MAX_SESSIONS
        or _idle[0].since <= oldest
        or sum(i.state.metadata.partitions for i in _idle) > MAX_PARTITIONS
    ):
        found.append(_idle.pop(0))
    return found


def _expect_end() -> None:
    """Let a thread free what nobody takes; one at a time waits."""
    global _waits
    if _waits or not _idle:
        return
    # A Thread of ``threading`` hangs in start() if there is no memory for its first steps.
    with contextlib.suppress(RuntimeError):  # no thread can be started: the next connection that is closed looks
        _thread.start_new_thread(_end_old, (max(0.0, _idle[0].since + MAX_SECONDS - time.monotonic()), _wake))
        _waits = True


def _end_old(seconds: float, wake: threading.Event) -> None:
    global _waits
    if wake.wait(seconds):
        return
    with _guard:
        if wake.is_set():
            return
        _waits = False
        surplus = _surplus()
        _expect_end()
    for old in surplus:
        old.state.engines.close()


def clear() -> None:
    """Free all that is kept."""
    global _waits, _wake
    with _guard:
        _wake.set()
        _waits, _wake = False, threading.Event()
        surplus, _idle[:] = [*_idle], []
    for old in surplus:
        old.state.engines.close()


def _forget_parents() -> None:
    global _guard, _waits, _wake
    _guard, _waits, _wake = threading.Lock(), False, threading.Event()
    _idle.clear()


atexit.register(clear)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
