"""The choice between DuckDB and Spark, for a statement that is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from kartosql.engines.duckdb.files import FileAccess
from kartosql.errors import FormatError, StoreError
from kartosql.plan.report import ScanReport
from kartosql.settings import Settings, machine_memory
from kartosql.text.sizes import counted, human_bytes

MEMORIES = 4  # DuckDB spills what does not fit; that much of compressed data one machine reads without haste


@dataclass(frozen=True)
class Choice:
    """The engine of a statement, and the reason for it in words."""

    engine: str
    reason: str


@dataclass(frozen=True)
class ReadVolume:
    """What a statement reads after pruning: the number of its files and their size in bytes, if that is known."""

    files: int
    size: int | None

    def __str__(self) -> str:
        return counted(self.files, "file") + ("" if self.size is None else f", {human_bytes(self.size)}")


def choose(
    wish: str,
    work: ReadVolume,
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
        work = ReadVolume(work.files, measure())
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


def choose_engine(
    settings: Settings,
    report: ScanReport,
    files: FileAccess,
    not_spark: str | None,
    untranslatable: Callable[[ScanReport], str | None],
) -> Choice:
    """Return the engine for what a report selects, by the settings.

    ``not_spark`` tells why Spark cannot run the statement, if that is known. ``untranslatable``
    tells why Spark would answer it differently; it is asked only where Spark would be chosen.
    """
    wish, limit = settings["engine"], settings["spark_threshold"]

    def measure() -> int:
        files.stat(report.selected)
        return report.bytes_selected or 0

    choice = choose(
        wish,
        ReadVolume(report.files_selected, report.bytes_selected),
        default_limit(settings["memory_limit"]) if limit is None else limit,
        measure=measure,
        used=lambda enough: _bytes_used(report, files, enough),
        obstacle=lambda: _obstacle(report, files) if not_spark is None else not_spark,
    )
    if choice.engine == "duckdb" or wish == "spark":
        return choice
    reason = untranslatable(report)
    return choice if reason is None else refused(choice, reason)


def _obstacle(report: ScanReport, files: FileAccess) -> str | None:
    """Return why Spark cannot read the files of a report, None if it can."""
    from kartosql.engines.spark.session import obstacle
    from kartosql.engines.spark.stores import Places

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


def started(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the same batches, the first of which was fetched."""
    first = next(batches, None)
    return iter(()) if first is None else chain([first], batches)
