"""The line that tells how far a statement is."""

from __future__ import annotations

import time

from kartosql.cli.repl.screen import Screen
from kartosql.plan.report import human_bytes
from kartosql.result import Progress

BAR = 20
LEAST = 0.02  # below this share nobody can tell how long it takes


class ProgressLine:
    """Writes the progress of one statement over itself."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._started = time.perf_counter()
        self._reading: float | None = None
        self.share = 0.0
        self.last: Progress | None = None

    def note(self, progress: Progress | None) -> None:
        """Remember how far it is; the share only grows, as a statement may have several stages."""
        if progress is not None:
            self.last = progress
            self.share = max(self.share, progress.fraction or 0.0)

    def show(self, progress: Progress | None) -> None:
        """Write the line anew."""
        self.note(progress)
        now = time.perf_counter()
        if progress is not None and progress.phase == "read" and self._reading is None:
            self._reading = now
        since = 0.0 if self._reading is None else now - self._reading
        self._screen.status(line(progress, now - self._started, since, self.share))


def stopped(progress: Progress | None, seconds: float, share: float) -> str:
    """Return what is told of a statement that was cancelled: how much of its files the engine had read."""
    text = f"Cancelled after {seconds:.1f} s"
    if progress is None:
        return text
    if progress.phase == "plan":
        return f"{text}, while it was planned; no data file was read"
    if progress.fraction is None:
        return f"{text}, at the beginning{_totals(progress)}"
    return f"{text}, at {100 * share:.0f} %{_totals(progress)}"


def _totals(progress: Progress) -> str:
    if progress.files is None:
        return ""
    size = f", {human_bytes(progress.bytes)}" if progress.bytes is not None else ""
    return f" of {progress.files:,} {'file' if progress.files == 1 else 'files'}{size}"


def line(progress: Progress | None, seconds: float, reading: float, share: float) -> str:
    """Return the text: totals are those of the plan, share and speed what the engine says it has done."""
    if progress is None or progress.phase == "plan":
        return f"planning … {seconds:.1f} s · Ctrl-C cancels"
    if progress.fraction is not None:
        full = round(BAR * share)
        parts = [f"{'█' * full}{'░' * (BAR - full)} {100 * share:.0f} %{_totals(progress)}"]
    else:
        parts = [f"reading … {seconds:.1f} s{_totals(progress)}"]
    if progress.fraction is not None and share >= LEAST and reading > 0.2:
        if progress.bytes:
            parts.append(f"{human_bytes(int(share * progress.bytes / reading))}/s")
        parts.append(f"{reading / share - reading:.0f} s left")
    return " · ".join(parts)
