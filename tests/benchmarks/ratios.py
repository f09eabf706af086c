"""Ratios measured in one run: the ways are timed in turns, so that what else the machine does hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Way = Callable[[int], object]  # called with the number of the turn


@dataclass
class Cost:
    """What one way takes, turn by turn: elapsed seconds, and CPU seconds of all threads."""

    elapsed: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the elapsed seconds."""
        return statistics.median(self.elapsed)

    def ratio(self, other: Cost) -> float:
        """Return the median of the ratios of each turn, which what slows a whole turn down does not touch."""
        return statistics.median(a / b for a, b in zip(self.elapsed, other.elapsed, strict=True))


@dataclass(frozen=True)
class Figure:
    """One line of the table of results: what was asked of a figure and what came out."""

    name: str
    asked: str
    measured: str
    ok: bool
    details: str = ""


def in_turns(ways: Mapping[str, Way], runs: int, warm: int = 1, *, settle: bool = False) -> dict[str, Cost]:
    """Return what each way costs; who begins changes from turn to turn.

    The first ``warm`` turns fill caches and are not counted. With ``settle``, each way begins when threads that
    another one has left at work are at rest, as their time would count as its own.
    """
    costs = {name: Cost() for name in ways}
    order = list(ways)
    for turn in range(warm + runs):
        for name in order if turn % 2 else order[::-1]:
            if settle:
                _wait_for_threads()
            before, started = time.process_time(), time.perf_counter()
            ways[name](turn)
            ended = time.perf_counter()
            if turn >= warm:
                costs[name].elapsed.append(ended - started)
                costs[name].cpu.append(time.process_time() - before)
    return costs


def _wait_for_threads() -> None:
    for _ in range(200):
        before = time.process_time()
        time.sleep(0.005)
        if time.process_time() - before < 0.0005:
            return


def at_most(name: str, limit: float, ours: Cost, other: Cost, what: str = "ideal") -> Figure:
    """Return the figure of our time as multiple of another one."""
    ratio = ours.ratio(other)
    fastest = min(ours.elapsed) / min(other.elapsed)
    cpu = statistics.median(ours.cpu) / max(statistics.median(other.cpu), 1e-9)
    details = f"{ms(ours.median)} / {ms(other.median)}; fastest turns {fastest:.2f} x, CPU {cpu:.2f} x"
    return Figure(name, f"<= {limit:g} x {what}", f"{ratio:.2f} x", ratio <= limit, details)


def at_least(name: str, limit: float, ours: Cost, other: Cost) -> Figure:
    """Return the figure of how many times faster we are than another way."""
    ratio = 1 / ours.ratio(other)
    details = f"{ms(ours.median)} / {ms(other.median)}"
    return Figure(name, f">= {limit:g} x faster", f"{ratio:.0f} x", ratio >= limit, details)


def within(name: str, limit: float, seconds: float, details: str = "") -> Figure:
    """Return the figure of a time that has a limit of its own."""
    return Figure(name, f"<= {ms(limit)}", ms(seconds), seconds <= limit, details)


def ms(seconds: float) -> str:
    """Return a time in milliseconds."""
    return f"{seconds * 1000:,.2f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"


def row(figure: Figure) -> str:
    """Return a figure as a line of a Markdown table."""
    cells = (figure.name, figure.asked, figure.measured, "yes" if figure.ok else "NO", figure.details)
    return "| " + " | ".join(cells) + " |"


HEAD = "| figure | asked | measured | ok | times |\n|---|---|---|---|---|"


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a Markdown table."""
    return "\n".join([HEAD, *map(row, figures)])
