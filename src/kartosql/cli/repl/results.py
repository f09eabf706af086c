"""A result as the shell keeps and shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.screen import Screen
from kartosql.errors import KartosqlError
from kartosql.plan.report import ScanReport
from kartosql.query import SelectQuery
from kartosql.render.tables import Summary, summary
from kartosql.render.terminal import Look, box, vertical
from kartosql.result import Query

KEPT_BYTES = 256_000_000  # of a result that is kept for .last


@dataclass
class Result:
    """The rows of a statement as they come: all are counted, and kept as long as there is room."""

    text: str
    schema: pa.Schema | None = None
    types: list[str] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    kept: int = 0
    is_complete: bool = False
    summary: Summary | None = None
    report: ScanReport | None = None
    _bytes: int = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Count a batch, and keep it if there is room."""
        self.rows += batch.num_rows
        if self.kept + batch.num_rows == self.rows and self._bytes + batch.nbytes <= KEPT_BYTES:
            self.batches.append(batch)
            self.kept += batch.num_rows
            self._bytes += batch.nbytes

    @property
    def table(self) -> pa.Table:
        """The rows that are kept."""
        assert self.schema is not None
        return pa.Table.from_batches(self.batches, self.schema)

    @property
    def has_all(self) -> bool:
        """Whether every row is kept."""
        return self.is_complete and self.kept == self.rows


def gather(query: Query, result: Result, write: Callable[[pa.RecordBatchReader], None] | None = None) -> None:
    """Run a query to its end and take its rows, which pass through ``write``."""
    started = time.perf_counter()
    reader = query.reader()
    try:
        result.schema = reader.schema
        result.types = type_names(query, reader.schema)
        if write is not None:
            write(pa.RecordBatchReader.from_batches(reader.schema, _taken(reader, result)))
        else:
            for _ in _taken(reader, result):
                pass
        result.is_complete = True
    finally:
        reader.close()
        result.summary = account(query, result.rows, time.perf_counter() - started)
        result.report = query.report if query.stats else None


def _taken(reader: pa.RecordBatchReader, result: Result) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        result.take(batch)
        yield batch


def account(query: Query, rows: int, seconds: float) -> Summary:
    """Return what a query took."""
    stats = query.stats
    if stats and isinstance(query, SelectQuery):
        with suppress(KartosqlError):  # then the total is not told
            query.learn_sizes()
    return summary(rows, seconds, stats, query.report if stats else None)


def type_names(query: Query, schema: pa.Schema) -> list[str]:
    """Return the types of a result's columns as the engine calls them, else as Arrow does."""
    return list(query._types) if query._types else [str(type_) for type_ in schema.types]


def look_of(screen: Screen, options: ShellOptions) -> Look:
    """Return how tables look on a screen."""
    columns = None if options["wide"] == "box" else screen.columns
    return Look(columns, screen.paint, options["grouping"], options["types"])


def table_lines(table: pa.Table, types: Sequence[str], mode: str, look: Look) -> list[str]:
    """Return a table in one of the formats for people; a box that is too wide becomes vertical."""
    if mode == "markdown":
        from kartosql.render import tables

        lines = tables.markdown_head(table.schema)
        return lines + [line for batch in table.to_batches() for line in tables.markdown_lines(batch)]
    if mode == "box":
        lines_of_box = box(table, types, look)
        if lines_of_box is not None:
            return lines_of_box
    return list(vertical(table, look))


def footer(shown: int, result: Result) -> str | None:
    """Return the line that says that not all rows are shown, None if they are."""
    if shown >= result.rows:
        return None
    how = ".last shows all of them" if result.has_all else ".once FILE and the statement again give all of them"
    return f"{shown:,} of {result.rows:,} shown · {how}"
