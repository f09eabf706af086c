"""The pruned scan: the files that each table occurrence reads, how its datasets join, and the time of planning."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from kartosql.errors import Span
from kartosql.plan.table_refs import Occurrence
from kartosql.predicate.tree import Condition
from kartosql.tables.table import Part


@dataclass(frozen=True)
class Alternative:
    """What one part of an OR left, and what answered it."""

    condition: str
    by: str
    files_after: int


@dataclass(frozen=True)
class Step:
    """One pruning step of one dataset.

    ``left`` are the files that it left, unless they are many and the plan was not asked to be traced.
    ``alternatives`` tell what each part of an OR left, where the parts were asked one by one.
    """

    condition: str
    by: str
    files_before: int
    files_after: int
    left: frozenset[int] | None = field(default=None, compare=False, repr=False)
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class FileSummary:
    """The rows that replace those of files that need not be opened.

    Positions of the files, their row counts, and the minimum and maximum of columns as text;
    files without rows are left out.
    """

    files: tuple[int, ...]
    rows: tuple[int, ...]
    extremes: Mapping[str, tuple[tuple[str | None, ...], tuple[str | None, ...]]]


@dataclass(frozen=True)
class PartScan:
    """The files to read of one dataset.

    ``files`` are positions in ``part.table.files``, ascending; those in ``overlaid`` may hold
    cells that another file also holds, so the last file has to win. ``join`` is seed, left or
    inner.
    """

    part: Part
    join: str
    files: tuple[int, ...]
    overlaid: frozenset[int]
    steps: tuple[Step, ...]
    # Stands for the rows, so that no file has to be opened.
    summary: FileSummary | None = None
    # Files without a row that matches, which may hold newer versions of rows that do.
    hiding: frozenset[int] = frozenset()


@dataclass(frozen=True)
class OccurrenceScan:
    """All that one table occurrence reads; ``parts[0]`` is the seed."""

    occurrence: Occurrence
    parts: tuple[PartScan, ...]
    eliminated: tuple[str, ...]
    conditions: tuple[str, ...]
    kept_because: str | None
    # Conditions that left out no file, and why they could not.
    unused: tuple[tuple[str, str], ...] = ()
    # What ``conditions`` are the texts of.
    predicates: tuple[Condition, ...] = field(default=(), compare=False, repr=False)

    @property
    def is_empty(self) -> bool:
        """Whether no row can come out."""
        return bool(self.parts) and not self.parts[0].files


@dataclass(frozen=True)
class Scan:
    """The scans of a statement's occurrences, in the order of the text.

    ``counts`` are the places of ``count(*)`` that sum the row counts of files instead, and
    whether each is a column of the result without a name.
    """

    occurrences: tuple[OccurrenceScan, ...]
    counts: tuple[tuple[Span, bool], ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds that each phase of planning took


class PhaseClock:
    """Notes the seconds that passed since the last lap, by the name of the phase."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Note that a phase ended."""
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._last
        self._last = now
