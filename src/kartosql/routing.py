"""The choice between DuckDB and Spark, for a statement that is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from kartosql.engines.duckdb import FileAccess
from kartosql.errors import FormatError, StoreError
from kartosql.plan.report import ScanReport, human_bytes
from kartosql.settings import Settings, machine_memory

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


# Errors of Spark after which DuckDB still has the answer, and auto asks it.
NOT_SPARK = {
    "not-portable",
    "missing-extra",
    "missing-java",
    "old-java",
    "spark-failed",
    "spark-connect",
    "store-unreachable",
}


class Router:
    """Chooses the engine by the settings; ``not_spark`` tells why Spark cannot run the statement, if that is known."""

    def __init__(self, settings: Settings, not_spark: str | None = None) -> None:
        self._settings = settings
        self._not_spark = not_spark

    def choose(
        self, report: ScanReport, files: FileAccess, untranslatable: Callable[[ScanReport, FileAccess], str | None]
    ) -> Choice:
        """Return the engine for what a report selects.

        ``untranslatable`` tells why Spark would answer a statement differently; it is asked
        only where Spark would be chosen.
        """
        wish = self._settings["engine"]

        def measure() -> int:
            files.stat(report.selected)
            return report.bytes_selected or 0

        choice = choose(
            wish,
            Work(report.files_selected, report.bytes_selected),
            self._limit(),
            measure=measure,
            used=lambda enough: _bytes_used(report, files, enough),
            obstacle=lambda: self._obstacle(report, files),
        )
        if choice.engine == "duckdb" or wish == "spark":
            return choice
        reason = untranslatable(report, files)
        return choice if reason is None else refused(choice, reason)

    def _limit(self) -> int:
        given: int | None = self._settings["spark_threshold"]
        if given is not None:
            return given
        return default_limit(self._settings["memory_limit"])

    def _obstacle(self, report: ScanReport, files: FileAccess) -> str | None:
        if self._not_spark is not None:
            return self._not_spark
        from kartosql.engines.spark.attached import Places
        from kartosql.engines.spark.session import obstacle

        try:
            places = Places(files.store)
            for occurrence in report.scan.occurrences:
                for part in occurrence.parts:
                    if part.files:
                        places.of(part.part.table.files[part.files[0]])  # all files of a table are in one store
        except StoreError as e:
            return e.message
        return obstacle()


def _bytes_used(report: ScanReport, files: FileAccess, enough: int) -> int:
    """Return how many bytes the columns used take in the files of a report, by their footers.

    Once it is more than ``enough``, no more footers are read.
    """
    from kartosql.parquet.reader import bytes_of_columns

    files.stat(report.selected)
    total = 0
    for occurrence in report.scan.occurrences:
        used = occurrence.occurrence.columns
        for part in occurrence.parts:
            if part.summary is None and total <= enough:
                table = part.part.table
                sized = [(key, files.sizes[key] or 0) for key in map(table.files.__getitem__, part.files)]
                columns = None if used is None else used | frozenset(part.part.join_key)
                try:
                    total += bytes_of_columns(files.store, sized, columns, enough - total)
                except FormatError:  # no Parquet, or damaged: the engine that reads it will say so
                    total += sum(size for _, size in sized)
    return total


def begun(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the same batches, the first of which was fetched."""
    first = next(batches, None)
    return iter(()) if first is None else chain([first], batches)
