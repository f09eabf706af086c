"""All orders of the calls of two actors that differ, up to a number of places where one is held up for the other.

Most errors of programs that run at once need few such places (Musuvathi and Qadeer, Iterative context bounding). An
actor is held up only before a call that meets one of the other: of the same object, or of a listing and what is below
it, one of both writing. All else could come in another order without a difference, as in partial order reduction. An
actor also dies before and after each of its calls, and the other one then goes on with what is left.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trust import simulation
from trust.scheduler import Actor, Crashed, Fault, Scheduler
from trust.simulation import Op, Program

_WRITES = ("pipe_file", "rm_file", "put_if", "delete_if")
_LISTS = ("find", "ls")
_ROWS = (("a", "s0", 21), ("b", "s1", 22))
_SEED, _EN = (("a", 0, "s2", 31), ("b", 2, "s0", 32)), (("a", 0, 33), ("b", 0, 34))
OPS: dict[str, tuple[Op, ...]] = {
    "d": (
        ("append_d", _ROWS), ("replace_d", (("a", "s2", 23),)), ("delete_d", ("q", "a")), ("compact", "d"),
        ("index", "create", "d"), ("clean", "d"), ("read_d",),
    ),
    "l": (("append_l", _ROWS), ("delete_l", ("q", "a")), ("compact_l",), ("read_l",)),
    "c": (
        ("append_c", _SEED, _EN), ("append_c", _SEED[:1], ()),
        ("update_c", "a", (("a", 1, "s0", 35),), (("a", 1, 36),)),
        ("delete_c", ("q", "b")), ("compact", "c"), ("clean", "c"), ("foreign_c", (("a", 1, 37),)), ("read_c",),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A call of the store: at which step it was made, and by whom."""

    step: int
    actor: int
    name: str
    key: str

    def meets(self, other: Call) -> bool:
        """Return whether it matters which of two comes first."""
        if self.actor == other.actor or not {self.name, other.name}.intersection(_WRITES):
            return False
        lists = [c for c in (self, other) if c.name in _LISTS]
        return any(c.key.startswith(o.key) for c, o in ((self, other), (other, self)) if o in lists) or (
            self.key == other.key and not lists
        )


class Planned(Scheduler):
    """Lets an actor go on until it ends or waits; at the steps ``held`` it is held up for the other one."""

    def __init__(self, seed: object, faults: tuple[Fault, ...], held: tuple[int, ...]) -> None:
        super().__init__(seed, faults)
        self.pauses, self._held = 0.0, held
        self.calls: list[Call] = []

    def _next(self, going: Actor | None, ready: list[Actor]) -> Actor:
        others = [actor for actor in ready if actor is not going]
        if going in ready and (self.steps not in self._held or not others):
            assert going is not None
            return going
        return others[0]

    def call(self, name: str, key: str, carry_out: Callable[[], Any], *, conditional: bool = False) -> Any:
        def noted() -> Any:
            assert self.actor is not None
            self.calls.append(Call(self.steps, self.actor.number, name, key))
            return carry_out()

        return super().call(name, key, noted if self.actor is not None else carry_out, conditional=conditional)


@dataclass
class Explorer:
    """Explores programs, ``depth`` being the greatest number of places where an actor is held up."""

    depth: int
    goes_on: Callable[[], bool]
    runs: int = 0
    failures: int = 0

    def explore(self, made: Program) -> None:
        """Carry out all orders of a program, and with each crash of the first actor."""
        calls = self._run(made, ())
        self._hold(made, (), calls)
        for at in range(sum(call.actor == 0 for call in calls)):
            for fate in ("crash before", "crash after"):
                dying = replace(made, faults=(Fault(0, at, fate),))
                self._hold(dying, (), self._run(dying, ()), self.depth - 1)

    def _hold(self, made: Program, held: tuple[int, ...], calls: list[Call], depth: int | None = None) -> None:
        depth = self.depth if depth is None else depth
        if not depth:
            return
        for call in calls:
            if call.step > max(held, default=0) and any(call.meets(other) for other in calls):
                if not self.goes_on():
                    return
                more = (*held, call.step)
                self._hold(made, more, self._run(made, more), depth - 1)

    def _run(self, made: Program, held: tuple[int, ...]) -> list[Call]:
        scheduler = Planned(made.seed, made.faults, held)
        self.runs += 1
        try:
            simulation.run(made, scheduler)
        except (Exception, Crashed):  # noqa: BLE001
            self.failures += 1
            print(f"{traceback.format_exc()[-5000:]}\nheld up at {held}\n{made}", flush=True)
        return scheduler.calls


def programs() -> Iterator[Program]:
    """Yield a program for each two operations on a table, in both orders."""
    for ops in OPS.values():
        for first in ops:
            for second in ops:
                yield Program(f"{first[0]}, {second[0]}", ((first,), (second,)), (), (0.0, 0.0), False, True)
