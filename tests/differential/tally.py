"""How often random statements use each construct, and how often conditions prune through it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from differential.answers import Outcome


@dataclass
class Tally:
    """Counts over checked statements.

    ``alone`` counts the occurrences of stored tables all of whose conditions reach them
    through a construct, ``lost`` those of them that lost files.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    occurrences: int = 0
    pruned: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.statuses[outcome.status] += 1
        if outcome.status != "checked":
            return
        self.used.update(outcome.statement.tags)
        self.occurrences += len(outcome.lost)
        self.pruned += sum(outcome.lost)
        if len(outcome.lost) != outcome.statement.occurrences:
            self.used["not planned"] += 1  # only the engine can parse it
            return
        for at, ways in outcome.statement.traces.items():
            for construct in frozenset.intersection(*ways):
                self.alone[construct] += 1
                self.lost[construct] += outcome.lost[at]

    def merge(self, other: Tally) -> None:
        for name in ("statuses", "used", "alone", "lost"):
            getattr(self, name).update(getattr(other, name))
        self.occurrences += other.occurrences
        self.pruned += other.pruned
        self.failures += other.failures

    @property
    def statements(self) -> int:
        return sum(self.statuses.values())

    @property
    def valid(self) -> float:
        return self.statuses["checked"] / max(1, self.statements)

    @property
    def power(self) -> float:
        return self.pruned / max(1, self.occurrences)

    def __str__(self) -> str:
        lines = [
            f"{self.statements:,} statements: {dict(self.statuses)}",
            f"{self.pruned:,} of {self.occurrences:,} occurrences lost files ({self.power:.0%})",
        ]
        for name in sorted({*self.used, *self.alone}):
            through = f", {self.lost[name]:,} of {self.alone[name]:,} pruned" if self.alone[name] else ""
            lines.append(f"  {name}: {self.used[name]:,}{through}")
        return "\n".join(lines)
