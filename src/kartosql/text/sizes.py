"""Bytes, files and seconds as readable text."""

from __future__ import annotations


def human_bytes(size: int) -> str:
    """Format a size in units of 1024 bytes."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Format a duration: milliseconds below one second."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 file``, ``1,200 files``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(part: float, whole: float) -> str:
    """Return a share in percent, without digits that say nothing; only all of it is 100 %."""
    if not whole:
        return "0 %"
    share = 100 * part / whole
    if share == 0 or share >= 100 or 10 <= share < 99:
        return f"{share:.0f} %"
    return f"{max(0.1, min(99.9, share)):.1f} %"
