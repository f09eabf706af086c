"""The account of how a scan came about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from kartosql.plan.scan import OccurrenceScan, PartScan, Scan

Sizes = MutableMapping[str, int | None]


@dataclass(frozen=True)
class ScanReport:
    """What a statement will read, and why no more.

    ``phases`` are the seconds that each phase of planning took.

    ``str()`` is for people, ``to_dict()`` for programs; ``actual`` holds what was really
    read, once the statement ran (EXPLAIN ANALYZE).
    """

    sql: str
    engine: str
    engine_reason: str
    scan: Scan
    sizes: Sizes
    residual: Callable[[int], str | None]
    actual: Mapping[str, Any] | None = None
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def files_total(self) -> int:
        """Files of all datasets of all tables named."""
        return sum(len(p.part.table.files) for o in self.scan.occurrences for p in o.parts)

    @property
    def files_selected(self) -> int:
        """Files that will be opened, counted once per table occurrence."""
        return sum(len(p.files) for p in self._opened())

    def _opened(self) -> list[PartScan]:
        return [p for o in self.scan.occurrences for p in o.parts if p.summary is None]

    @property
    def selected(self) -> list[str]:
        """Keys of the files that will be opened; a file that two table occurrences read stands twice."""
        return [p.part.table.files[i] for p in self._opened() for i in p.files]

    @property
    def bytes_selected(self) -> int | None:
        """Bytes of the selected files, None if a size is not known."""
        return self._bytes(self.selected)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able dictionary."""
        result: dict[str, Any] = {
            "engine": self.engine,
            "engine_reason": self.engine_reason,
            "sql": self.sql,
            "scans": [self._occurrence(o) for o in self.scan.occurrences],
            "phases": {name: round(seconds, 6) for name, seconds in self.phases.items()},
        }
        if self.actual is not None:
            result["actual"] = dict(self.actual)
        return result

    def _occurrence(self, scan: OccurrenceScan) -> dict[str, Any]:
        source = scan.occurrence.source
        return {
            "table": source.name,
            "cube": source.cube.cube.uuid_prefix if source.cube else None,
            "datasets": [self._part(p) for p in scan.parts],
            "eliminated": list(scan.eliminated),
            "conditions": list(scan.conditions),
            "residual": self.residual(scan.occurrence.id),
            "kept_because": scan.kept_because,
            "not_used": [{"condition": text, "reason": reason} for text, reason in scan.unused],
        }

    def _part(self, part: PartScan) -> dict[str, Any]:
        files = part.part.table.files
        selected = [files[i] for i in part.files]
        return {
            "dataset": part.part.name,
            "join": part.join,
            "files_total": len(files),
            "files_selected": len(selected),
            "bytes_total": self._bytes(list(files)),
            "bytes_selected": self._bytes(selected),
            "files": selected,
            "answered_from": "files" if part.summary is None else "metadata",
            "steps": [
                {
                    "condition": s.condition,
                    "by": s.by,
                    "files_before": s.files_before,
                    "files_after": s.files_after,
                }
                for s in part.steps
            ],
        }

    def _bytes(self, keys: list[str]) -> int | None:
        total = 0
        for key in keys:
            size = self.sizes.get(key)
            if size is None:
                return None
            total += size
        return total

    def __str__(self) -> str:
        lines = [f"engine: {self.engine} ({self.engine_reason})"]
        for scan in self.scan.occurrences:
            lines.append(f"{scan.occurrence.source.name}: {self._summary(scan)}")
            for part in scan.parts:
                lines.append(self._line(part))
                for s in part.steps:
                    lines.append(f"    {s.by}: {_short(s.condition)}  {s.files_before} -> {s.files_after}")
            if scan.eliminated:
                lines.append(f"  not opened, no column is used: {', '.join(scan.eliminated)}")
            for text, reason in scan.unused:
                lines.append(f"  left to the engine: {_short(text)} ({reason})")
            if scan.kept_because:
                lines.append(f"  all files kept: {scan.kept_because}")
        if self.phases:
            took = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in self.phases.items())
            lines.append(f"planning, ms: {took}")
        if self.actual is not None:
            lines += [f"{name}: {value}" for name, value in self.actual.items()]
        return "\n".join(lines)

    def _summary(self, scan: OccurrenceScan) -> str:
        total = sum(len(p.part.table.files) for p in scan.parts)
        selected = sum(len(p.files) for p in scan.parts)
        return f"{selected:,} of {total:,} {'file' if total == 1 else 'files'}"

    def _line(self, part: PartScan) -> str:
        files = part.part.table.files
        size = self._bytes([files[i] for i in part.files])
        text = f"  {part.part.name} ({part.join}): {len(part.files):,} of {len(files):,} files"
        if size is not None:
            text += f", {human_bytes(size)}"
        if part.summary is not None:
            text += ", answered from row counts and extremes without opening them"
        if part.overlaid:
            text += f", {len(part.overlaid):,} may overlay each other"
        return text


def human_bytes(size: int) -> str:
    """Return a size for people, in units of 1024 bytes."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _short(text: str, width: int = 100) -> str:
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."
