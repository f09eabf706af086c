"""Which engine runs a statement, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kartosql.plan.report import human_bytes
from kartosql.settings import machine_memory

MEMORIES = 4  # DuckDB spills what does not fit; that much of compressed data one machine reads without haste


@dataclass(frozen=True)
class Choice:
    """The engine of a statement, and the reason for it in words."""

    engine: str
    reason: str


@dataclass(frozen=True)
class Work:
    """What a statement reads after pruning: the number of its files and their size in bytes, if that is known."""

    files: int
    size: int | None

    def __str__(self) -> str:
        size = "" if self.size is None else f", {human_bytes(self.size)}"
        return f"{self.files:,} {'file' if self.files == 1 else 'files'}{size}"


def choose(
    wish: str,
    work: Work,
    limit: int,
    *,
    measure: Callable[[], int],
    used: Callable[[int], int],
    obstacle: Callable[[], str | None],
) -> Choice:
    """Return the engine that reads ``work``.

    ``wish`` is the setting ``engine``, ``limit`` the bytes up to which one machine is enough. The
    rest is asked only where it matters: ``measure`` returns the size of files of which it is not
    known, ``used`` how many bytes of them the columns used take, or anything above its argument
    once they are more than that; ``obstacle`` tells why Spark cannot be used, None if it can.
    """
    if wish == "spark":
        return Choice("spark", f"{work}: the setting engine asks for Spark")
    enough = f"{work}: one machine is enough"
    if wish == "duckdb" or work.files == 0 or (work.size is not None and work.size <= limit):
        return Choice("duckdb", enough)
    found = obstacle()
    if work.size is None:
        if found is not None:
            return Choice("duckdb", enough)
        work = Work(work.files, measure())
        assert work.size is not None
        if work.size <= limit:
            return Choice("duckdb", f"{work}: one machine is enough")
    if found is not None:
        return Choice("duckdb", f"{work}, more than spark_threshold ({human_bytes(limit)}), but {found}")
    size = used(limit)
    if size <= limit:
        return Choice("duckdb", f"{work}, of which columns used take {human_bytes(size)}: one machine is enough")
    return Choice("spark", f"{work}, and the columns used take more than spark_threshold ({human_bytes(limit)})")


def refused(choice: Choice, reason: str) -> Choice:
    """Return the choice for DuckDB after Spark turned a statement down."""
    return Choice("duckdb", f"{choice.reason}, but Spark does not run it: {reason}")


def default_limit(memory: int | None) -> int:
    """Return the bytes up to which one machine is enough: a few times the memory that the engine may take."""
    return MEMORIES * (memory if memory is not None else machine_memory())
