"""How long the phases of planning take."""

from __future__ import annotations

import time


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
