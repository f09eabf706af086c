"""A semaphore that is first come, first served: who waits for it keeps the place, however long that takes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kartosql.errors import ExecutionError

LOOK = 0.5  # seconds between two looks whether who waits still wants to


class FairSemaphore:
    """A semaphore that ``count`` threads hold at a time, in the order in which they asked for it."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def held(self, is_cancelled: Callable[[], bool]) -> Iterator[None]:
        """Wait for a turn and hold it in a block; raises ``interrupted`` for one who does not want it any more."""
        turn = threading.Event()
        with self._lock:
            if self._left:
                self._left -= 1
                turn.set()
            else:
                self._waiting.append(turn)
        try:
            while not turn.wait(LOOK):
                if is_cancelled():
                    raise ExecutionError("The statement was interrupted.", code="interrupted")
            yield
        finally:
            with self._lock:
                if not turn.is_set():
                    self._waiting.remove(turn)
                elif self._waiting:
                    self._waiting.popleft().set()
                else:
                    self._left += 1
