"""One line on what a statement took: rows, time, files and bytes, and what pruning saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kartosql.plan.report import ScanReport, human_bytes


@dataclass(frozen=True)
class Summary:
    """What a statement took. Bytes are those of data files; None is what nobody measured.

    ``bytes_total`` are the bytes of all files of the tables named.
    """

    rows: int
    seconds: float
    plan_seconds: float | None = None
    files_read: int | None = None
    files_total: int | None = None
    bytes_read: int | None = None
    bytes_total: int | None = None

    @property
    def bytes_saved(self) -> int | None:
        """Bytes of the tables that were not read."""
        if self.bytes_read is None or self.bytes_total is None:
            return None
        return max(0, self.bytes_total - self.bytes_read)

    def __str__(self) -> str:
        parts = [f"{self.rows:,} {'row' if self.rows == 1 else 'rows'} in {self.seconds:.3f} s"]
        if self.plan_seconds is not None:
            read = max(0.0, self.seconds - self.plan_seconds)
            parts[0] += f" (plan {self.plan_seconds:.3f}, read {read:.3f})"
        if self.files_total:
            parts.append(f"{self.files_read:,} of {self.files_total:,} {'file' if self.files_total == 1 else 'files'}")
            if self.bytes_read is not None:
                total = "" if self.bytes_total is None else f" of {human_bytes(self.bytes_total)}"
                parts.append(f"{human_bytes(self.bytes_read)}{total} read")
            if self.bytes_saved is not None:
                parts.append(f"{human_bytes(self.bytes_saved)} saved")
        return " · ".join(parts)


def summary(rows: int, seconds: float, stats: Mapping[str, Any] | None, report: ScanReport | None) -> Summary:
    """Return the account of a statement from its stats and its report, both None for one that scans nothing."""
    if not stats or report is None:
        return Summary(rows, seconds)
    return Summary(
        rows,
        float(stats["seconds"]),
        float(stats["plan_seconds"]),
        stats["files_read"],
        stats["files_total"],
        stats.get("bytes_read"),
        total_bytes(report),
    )


def total_bytes(report: ScanReport) -> int | None:
    """Return the bytes of all files of the tables that a report is about, None if a size is not known."""
    total = 0
    for scan in report.scan.occurrences:
        for part in scan.parts:
            for key in part.part.table.files:
                size = report.sizes.get(key)
                if size is None:
                    return None
                total += size
    return total
