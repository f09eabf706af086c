"""All orders of the calls of some operations: a checked model of the protocol, whose steps are those of the code.

A state is what the store holds, what each actor has seen of it, and who ended before whom began. At each state every
actor may go on; one of them may crash there, or hear nothing of what it wrote, and one that waits may wake while
others are in the middle. A state that was met before is not gone on from. Actors are only held up before calls that
meet one of another actor: of the same object, or of a listing and what is below it, one of both writing. All else
commutes, as in partial order reduction; which calls meet is learnt from the runs, and exploring begins anew when it
proves to be more.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trust import simulation
from trust.files import SimFiles
from trust.scheduler import MOST_STEPS, STUCK_SECONDS, Actor, Crashed, NoEnd, Scheduler
from trust.simulation import DAY, Op, Program

_WRITES = ("pipe_file", "rm_file", "put_if", "delete_if")
_LISTS = ("find", "ls", "info")
_ROWS = (("a", "s0", 21), ("b", "s1", 22))
_SEED, _EN = (("a", 0, "s2", 31), ("b", 2, "s0", 32)), (("a", 0, 33), ("b", 0, 34))


def _own(what: Any, actor: int) -> Any:
    """Give numbers of rows to an actor, so that no two of them are alike."""
    if isinstance(what, tuple):
        return tuple(_own(one, actor) for one in what)
    return what + 10 * actor if isinstance(what, int) and what > 20 else what


def _clean(table: str) -> tuple[Op, ...]:
    """What nothing refers to is marked at first, and removed when the time of grace is over."""
    return ("clean", table), ("sleep", 8 * DAY), ("clean", table)


OPS: dict[str, dict[str, tuple[Op, ...]]] = {
    "d": {
        "append": (("append_d", _ROWS),), "replace": (("replace_d", (("a", "s2", 23),)),),
        "remove": (("delete_d", ("q", "a")),), "compact": (("compact", "d"),), "index": (("index", "create", "d"),),
        "restore": (("restore_d",),), "copy": (("copy_d",),), "CLEANUP": _clean("d"), "read": (("read_d",),),
        "old version": (("old", "d"),),
    },
    "c": {
        "append": (("append_c", _SEED, _EN),), "append to seed": (("append_c", _SEED[:1], ()),),
        "update": (("update_c", "a", (("a", 1, "s0", 35),), (("a", 1, 36),)),), "remove": (("delete_c", ("q", "b")),),
        "extend": (("extend_c", (("a", 1, 38),)),), "compact": (("compact", "c"),), "CLEANUP": _clean("c"),
        "foreign": (("foreign_c", (("a", 1, 37),)),), "read": (("read_c",),),
    },
    "l": {
        "append": (("append_l", _ROWS),), "remove": (("delete_l", ("q", "a")),), "compact": (("compact_l",),),
        "read": (("read_l",),),
    },
}  # fmt: skip
THREES = {
    "d": ("append append compact", "append compact read", "append remove read"),
    "c": ("append append read", "append update read", "append remove read"),
    "l": ("append append compact", "append remove read"),
}


class Call(NamedTuple):
    """A call of the store."""

    name: str
    key: str

    def meets(self, other: Call) -> bool:
        """Return whether it may matter which of two comes first."""
        if not {self.name, other.name}.intersection(_WRITES):
            return False
        lists = [c for c in (self, other) if c.name in _LISTS]
        return any(c.key.startswith(o.key) for c, o in ((self, other), (other, self)) if o in lists) or (
            self.key == other.key and not lists
        )


class Choice(NamedTuple):
    """Who goes on, and what becomes of the call: "wake" ends a wait early."""

    actor: int
    fate: str = ""


class Explored(NamedTuple):
    """How many states a program has, how many orders of its calls lead through them, and whether these are all."""

    states: int
    interleavings: int
    is_all: bool


class Known(Exception):
    """A state was met before."""


class Grown(Exception):
    """A call that was thought to meet none does."""


@dataclass
class Graph:
    """What is known of a program: its states, and the calls of each actor."""

    faults: int
    wakes: int
    calls: dict[int, set[Call]] = field(default_factory=lambda: defaultdict(set))
    alone: dict[int, set[Call]] = field(default_factory=lambda: defaultdict(set))  # before which nobody was held up
    states: set[int] = field(default_factory=set)
    after: dict[int, dict[Choice, int]] = field(default_factory=lambda: defaultdict(dict))  # what choices lead to
    todo: list[tuple[list[Choice], int]] = field(default_factory=list)  # choices, and the state before the last one
    has_grown: bool = False

    def note(self, actor: int, call: Call) -> None:
        """Learn of a call."""
        if call in self.calls[actor]:
            return
        self.calls[actor].add(call)
        self.has_grown |= any(call.meets(o) for n, calls in self.alone.items() if n != actor for o in calls)

    def is_met(self, actor: int, call: Call | None) -> bool:
        """Return whether it matters when an actor makes a call."""
        if call is None:
            return False
        if any(call.meets(o) for n, calls in self.calls.items() if n != actor for o in calls):
            return True
        self.alone[actor].add(call)
        return False

    def begin(self) -> None:
        """Begin anew, with the calls that are known."""
        self.has_grown, self.todo = False, [([], 0)]
        for known in (self.states, self.after, self.alone):
            known.clear()

    def interleavings(self, first: int) -> int:
        """Return in how many ways one gets from a state to those where all is over."""
        found: dict[int, int] = {}
        pending = [first]
        while pending:
            state = pending[-1]
            missing = [after for after in self.after.get(state, {}).values() if after not in found]
            if missing:
                pending += missing
                continue
            found[state] = sum(found[after] for after in self.after.get(state, {}).values()) or 1
            pending.pop()
        return found[first]


class Planned(Scheduler):
    """Makes choices that are given, then those that come first, and leaves the others for later."""

    def __init__(self, graph: Graph, plan: list[Choice], last: int) -> None:
        super().__init__("explore")
        self._graph, self._plan, self._last = graph, plan, last
        self.made: list[Choice] = []
        self._pending: dict[int, Call | None] = {}
        self._seen: dict[int, int] = defaultdict(int)

    def _choose(self) -> None:
        while True:
            if any(actor.error for actor in self._actors):
                return
            alive = [actor for actor in self._actors if not actor.is_over]
            ready = [actor for actor in alive if actor.wakes <= self.now]
            if self._graph.has_grown:
                raise Grown
            if alive and not ready:
                self.now = min(actor.wakes for actor in alive)
                continue
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise NoEnd(f"{len(alive)} actors did not end after {MOST_STEPS} calls")
            going = next((a for a in ready if not self._graph.is_met(a.number, self._pending.get(a.number))), None)
            if going is None:
                choice = self._choice(alive, ready)
                if choice is None:
                    return
                going = self._actors[choice.actor]
                self._begin(going, choice.fate)
            self.random.seed("0.0")  # so that each choice of theirs is always the same
            going.may_go.release()
            if not self._stopped.acquire(timeout=STUCK_SECONDS):
                raise NoEnd(f"actor {going.number} hangs after {going.calls} calls")

    def _begin(self, going: Actor, fate: str) -> None:
        if fate == "wake":
            self.now = going.wakes
        elif fate:
            self._faults[going.number, going.calls] = fate
            self._see(going.number, fate)

    def _choice(self, alive: list[Actor], ready: list[Actor]) -> Choice | None:
        """Return the next one; raises Known."""
        at = len(self.made)
        if at < len(self._plan):
            if at == len(self._plan) - 1 and self._state() != self._last:
                raise AssertionError("the same choices led to another state")
            self.made.append(self._plan[at])
            return self.made[-1]
        state = self._state()
        if self.made:
            self._graph.after[self._last][self.made[-1]] = state
        self._last = state
        if state in self._graph.states:
            raise Known
        self._graph.states.add(state)
        choices = list(self._choices(alive, ready))
        if not choices:
            return None
        self._graph.todo += [([*self.made, choice], state) for choice in choices[:0:-1]]
        self.made.append(choices[0])
        return choices[0]

    def _choices(self, alive: list[Actor], ready: list[Actor]) -> Iterator[Choice]:
        yield from (Choice(actor.number) for actor in ready)
        wakes, faults = self._spent()
        if wakes < self._graph.wakes:
            yield from (Choice(actor.number, "wake") for actor in alive if actor not in ready)
        if faults < self._graph.faults:
            for actor in ready:
                call = self._pending[actor.number]
                assert call is not None
                yield Choice(actor.number, "crash before")
                if call.name in _WRITES:
                    yield Choice(actor.number, "after")

    def _state(self) -> int:
        """Return what all that comes depends on."""
        objects = frozenset((key, found.etag, found.time) for key, found in SimFiles.place.objects.items())
        actors = tuple((self._seen[a.number], a.is_over, max(a.wakes, self.now)) for a in self._actors)
        orders = frozenset(
            (a.actor, a.name, a.given, a.sequence, b.actor, b.given) for a in self.events for b in self.events
            if a.ended <= b.began
        )  # fmt: skip
        ended = frozenset((e.actor, e.given, e.sequence) for e in self.events if e.ended <= self.steps)
        return hash((objects, actors, orders, ended, self.now, self._spent()))

    def _spent(self) -> tuple[int, int]:
        """Return how many waits ended early, and how many faults there were."""
        fates = [choice.fate for choice in self.made if choice.fate]
        return fates.count("wake"), len(fates) - fates.count("wake")

    # -- for actors --------------------------------------------------------------------------------

    def pause(self, seconds: float = 0.0) -> None:
        super().pause(seconds)
        if self.actor is not None:
            self._pending[self.actor.number] = None

    def call(self, name: str, key: str, carry_out: Callable[[], Any], *, conditional: bool = False) -> Any:
        actor, call = self.actor, Call(name, key)
        if actor is None or actor.has_crashed:
            return super().call(name, key, carry_out, conditional=conditional)
        self._graph.note(actor.number, call)
        self._pending[actor.number] = call

        def seen() -> Any:
            try:
                result = carry_out()
            except Exception as e:
                self._see(actor.number, (call, repr(e)))
                raise
            self._see(
                actor.number,
                (call, tuple(result) if isinstance(result, tuple) else repr(getattr(result, "token", result))),
            )
            return result

        return super().call(name, key, seen, conditional=conditional)

    def _see(self, actor: int, what: Any) -> None:
        self._seen[actor] = hash((self._seen[actor], self.now, what))


@dataclass
class Explorer:
    """Explores programs, with up to so many ``faults`` and waits that end early in each order."""

    faults: int = 1
    wakes: int = 1
    most: int = 10**9  # runs of a program, after which it is given up
    most_failures: int = 5
    until: float = float("inf")  # of the monotonic clock
    runs: int = 0
    failures: int = 0

    def goes_on(self) -> bool:
        """Return whether there is time, and not enough that failed."""
        return self.failures < self.most_failures and time.monotonic() < self.until

    def explore(self, made: Program) -> Explored:
        """Carry out all orders of a program."""
        graph, first = Graph(self.faults, self.wakes), self.runs
        graph.begin()
        while graph.todo and self.goes_on() and self.runs - first < self.most:
            self._run(made, graph, *graph.todo.pop())
            if graph.has_grown:
                graph.begin()
        return Explored(len(graph.states), graph.interleavings(next(iter(graph.after), 0)), not graph.todo)

    def _run(self, made: Program, graph: Graph, plan: list[Choice], last: int) -> None:
        scheduler = Planned(graph, plan, last)
        self.runs += 1
        try:
            simulation.run(made, scheduler)
        except (Known, Grown):
            pass
        except (Exception, Crashed):  # noqa: BLE001
            self.failures += 1
            told = " ".join(f"{choice.actor}{choice.fate and ' ' + choice.fate}" for choice in scheduler.made)
            print(f"{traceback.format_exc()[-5000:]}\norder: {told}\n{made}", flush=True)


def program(table: str, names: str) -> Program:
    """Return the program of some operations on a table, by their names with commas or spaces between them."""
    found = [name.strip() for name in (names.split(",") if "," in names else names.split())]
    actors = tuple(_own(OPS[table][name], n) for n, name in enumerate(found))
    return Program(f"{table}: {', '.join(found)}", actors, (), (0.0,) * len(actors), False, True)


def programs() -> Iterator[Program]:
    """Yield a program for each two operations on a table, and for some three."""
    for table, ops in OPS.items():
        for names in (*map(", ".join, itertools.combinations_with_replacement(ops, 2)), *THREES[table]):
            yield program(table, names)
