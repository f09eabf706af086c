"""Waiting for others who write the same document."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from kartosql.errors import StoreError

FIRST_WAIT, LONGEST_WAIT = 0.002, 1.0
LONGEST_WAIT_OF_COMMIT = 10.0
ATTEMPTS = 100


@dataclass(frozen=True)
class RetryPolicy:
    """How long, in seconds, a commit goes on after lost races, and waits for a change under way elsewhere.

    ``intent`` is the time for which a change of several datasets may stand still before others
    take it back: its writer has ended, or hangs.
    """

    race: float = 300.0
    intent: float = 10.0


class Race:
    """Counts the rounds of a commit and waits between them, longer and longer, by chance.

    A wait is about as long as the round before it took, or twice, four times as long after
    more of them, up to ``longest`` seconds.
    """

    def __init__(self, seconds: float, longest: float = LONGEST_WAIT) -> None:
        self._began = time.monotonic()
        self._until = self._began + seconds
        self._wait = FIRST_WAIT
        self._longest = longest
        self.rounds = 0

    def is_over(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() > self._until

    def wait(self) -> None:
        """Let others finish; at random, so that those who met do not meet again."""
        self.rounds += 1
        # In a fraction of a round nobody could have finished.
        self._wait = min(max(self._wait, time.monotonic() - self._began), self._longest)
        time.sleep(random.uniform(0, self._wait))
        self._wait *= 2
        self._began = time.monotonic()


def attempts(key: str) -> Iterator[int]:
    """Yield the numbers of attempts to write ``key``, with waits between them; raises ``store-failed`` at last."""
    race = Race(1e9)
    for number in range(ATTEMPTS):
        yield number
        race.wait()
    raise StoreError(f"{key} cannot be written: the store gives no answer, or others write it all the time.")
