"""A scheduler that owns the time and the threads of some actors: one runs at a time, until it calls the store."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from kartosql.errors import StoreError
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed

STUCK_SECONDS = 300.0  # of real time, that an actor may take from one call of the store to the next
MOST_STEPS = 60_000
DAY = 86_400.0  # seconds
# What becomes of a call of the store. Without an answer it may have been carried out before, or be carried out later;
# "twice" it is sent by a library that hears of the refusal of the second alone. From "full" on nobody's writes find
# space for a while, and at a "jump" the clock of the actor does so. After "days" the data that an actor writes next are
# committed; nobody can keep a commit itself from coming that late.
FATES = (
    *("before", "after", "late", "twice", "refused", "slow", "crash before", "crash after", "crash late"),
    *("full", "jump", "days"),
)
JUMPS = (-7200.0, -60.0, 60.0, 7200.0)


class Crashed(BaseException):
    """The process of an actor is gone: nothing in it goes on."""


class NoEnd(AssertionError):
    """Actors do not come to their end."""


@dataclass(frozen=True)
class Fault:
    """What becomes of call number ``at`` of an actor, or of its conditional write of that number."""

    actor: int
    at: int
    fate: str
    is_conditional: bool = False


class Actor:
    """A thread of control; ``skew`` is how many seconds its clock is ahead."""

    def __init__(self, number: int, act: Callable[[], None], skew: float) -> None:
        self.number, self.act, self.skew = number, act, skew
        self.calls = self.conditional_calls = 0
        self.wakes = 0.0
        self.met = 0  # faults
        self.is_over = self.has_crashed = False
        self.is_tired = False  # waits for days when data were written
        self.error: BaseException | None = None
        self.may_go = threading.Semaphore(0)


class Scheduler:
    """Chooses by a seed who goes on, and carries out faults."""

    def __init__(self, seed: object, faults: tuple[Fault, ...] = ()) -> None:
        self.random = Random(f"schedule {seed}")
        self.now = 0.0  # seconds
        self.steps = 0
        self.events: list[Any] = []  # operations of actors, which who runs them notes
        self.switches = self.random.choice([0.03, 0.1, 0.3, 1.0])  # how often another one goes on
        self.pauses = self.random.choice([0.0, 0.0, 0.01, 0.05])  # how often one stands still for long
        self.arrivals = self.random.choice([0.05, 0.05, 0.005])  # how often a write that is late comes at a call
        self._faults = {(fault.actor, fault.at): fault.fate for fault in faults if not fault.is_conditional}
        self._faults_of_writes = {(fault.actor, fault.at): fault.fate for fault in faults if fault.is_conditional}
        self._in_flight: list[Callable[[], object]] = []
        self._actors: list[Actor] = []
        self._of_thread = threading.local()
        self._stopped = threading.Semaphore(0)
        self._is_stopping = False
        self._full_until = -1.0

    def run(self, acts: list[Callable[[], None]], skews: list[float]) -> list[Actor]:
        """Let actors act until all of them have ended; raises NoEnd, and what they did not catch."""
        self._actors = [Actor(n, act, skew) for n, (act, skew) in enumerate(zip(acts, skews, strict=True))]
        threads = [threading.Thread(target=self._live, args=(actor,), daemon=True) for actor in self._actors]
        for thread in threads:
            thread.start()
        try:
            self._choose()
        finally:
            self._is_stopping = True
            for actor, thread in zip(self._actors, threads, strict=True):
                actor.may_go.release()
                thread.join(STUCK_SECONDS)
        for actor in self._actors:
            if actor.error is not None:
                raise actor.error
        return self._actors

    def _choose(self) -> None:
        going: Actor | None = None
        while alive := [actor for actor in self._actors if not actor.is_over]:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise NoEnd(f"{len(alive)} actors did not end after {MOST_STEPS} calls")
            self.now += 0.001
            if self._in_flight and self.random.random() < self.arrivals:
                self._arrive()
            ready = [actor for actor in alive if actor.wakes <= self.now]
            if not ready:
                self.now = min(actor.wakes for actor in alive)
                continue
            going = self._next(going, ready)
            if self.random.random() < self.pauses and len(ready) > 1:
                going.wakes = self.now + self.random.choice([0.1, 3.0, 15.0, 60.0])
                continue
            going.may_go.release()
            if not self._stopped.acquire(timeout=STUCK_SECONDS):
                raise NoEnd(f"actor {going.number} hangs after {going.calls} calls")

    def _next(self, going: Actor | None, ready: list[Actor]) -> Actor:
        """Return who goes on, of those that are ready."""
        if going not in ready or self.random.random() < self.switches:
            return self.random.choice(ready)
        assert going is not None
        return going

    def _live(self, actor: Actor) -> None:
        self._of_thread.actor = actor
        actor.may_go.acquire()
        try:
            if not self._is_stopping:
                actor.act()
        except Crashed:
            pass
        except BaseException as e:  # noqa: BLE001
            actor.error = e
        actor.is_over = True
        self._stopped.release()

    def arrive_all(self) -> None:
        """Carry out all that is on its way still."""
        while self._in_flight:
            self._arrive()

    def _arrive(self) -> None:
        late = self._in_flight.pop(self.random.randrange(len(self._in_flight)))
        with contextlib.suppress(PreconditionFailed, FileNotFoundError):
            late()

    # -- for actors --------------------------------------------------------------------------------

    @property
    def actor(self) -> Actor | None:
        """Who asks; None for threads that are no actors."""
        return getattr(self._of_thread, "actor", None)

    def clock(self) -> float:
        """Return the time by the clock of whoever asks."""
        return self.now + (self.actor.skew if self.actor is not None else 0.0)

    def may_wait(self, seconds: float) -> bool:
        """Return whether one may wait for so long: versions are kept for some weeks only."""
        return self.now + seconds < 9 * DAY

    def pause(self, seconds: float = 0.0) -> None:
        """Let others go on for some time."""
        actor = self.actor
        if actor is None:
            self.now += seconds
            return
        actor.wakes = self.now + seconds
        self._stopped.release()
        if not actor.may_go.acquire(timeout=2 * STUCK_SECONDS) or self._is_stopping:
            actor.has_crashed = True
        if actor.has_crashed:
            raise Crashed

    def call(self, name: str, key: str, carry_out: Callable[[], Any], *, conditional: bool = False) -> Any:
        """Carry out a call of the store for an actor, when it may go on, unless a fault meets it."""
        actor = self.actor
        if actor is None:
            return carry_out()
        if actor.has_crashed:
            raise Crashed
        self.pause()
        fate = self._faults.get((actor.number, actor.calls))
        actor.calls += 1
        if conditional:
            fate = fate or self._faults_of_writes.get((actor.number, actor.conditional_calls))
            actor.conditional_calls += 1
        puts = name in ("pipe_file", "put_if")
        if fate == "full":
            self._full_until = self.now + self.random.choice([0.0, 0.1, 30.0])
        if puts and self.now <= self._full_until:
            actor.met += 1
            raise OSError(errno.ENOSPC, f"no space for {key}")
        actor.is_tired |= fate == "days"
        if actor.is_tired and puts and "/table/" in key and self.may_wait(8 * DAY):
            actor.is_tired = False
            actor.met += 1
            done = carry_out()
            self.pause(8 * DAY)
            return done
        if fate in (None, "days"):
            return carry_out()
        actor.met += 1
        if fate == "jump":
            actor.skew += self.random.choice(JUMPS)
        if fate in ("jump", "full"):
            return carry_out()
        if fate == "slow":
            self.pause(self.random.choice([1.0, 12.0, 400.0, 4000.0]))
            return carry_out()
        writes = conditional or name in ("pipe_file", "rm_file")
        if fate == "refused":
            if conditional:
                raise StoreError(f"refused {name} {key}", code="access-denied")
            raise PermissionError(f"refused {name} {key}")
        if fate.endswith("late") and writes:
            self._in_flight.append(carry_out)
        elif fate.endswith("after") or (fate == "twice" and writes):
            with contextlib.suppress(Exception):  # of which nobody hears
                carry_out()
        if fate.startswith("crash"):
            actor.has_crashed = True
            raise Crashed
        if fate == "twice" and conditional:
            raise PreconditionFailed(key)
        self.pause(self.random.choice([0.0, 0.0, 5.0, 60.0]))  # until a library gives up
        if conditional:
            raise OutcomeUnknown(key)
        raise TimeoutError(f"no answer of {name} {key}")
