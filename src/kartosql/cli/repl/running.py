"""A statement while it runs, and its result: rows as they come and are kept, how they are shown, progress, Ctrl-C."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import pyarrow as pa

from kartosql.cli.output import interruptible
from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.screen import Bytes, Screen
from kartosql.errors import KartosqlError, StoreError, UsageError
from kartosql.plan.report import ScanReport
from kartosql.query import SelectQuery
from kartosql.render.formats import BINARY_FORMATS, format_of, replacing, write_stream
from kartosql.render.tables import Look, RunSummary, summary
from kartosql.result import Progress, Query
from kartosql.text.sizes import counted, human_bytes

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
    summary: RunSummary | None = None
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


def account(query: Query, rows: int, seconds: float) -> RunSummary:
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


def footer(shown: int, result: Result) -> str | None:
    """Return the line that says that not all rows are shown, None if they are."""
    if shown >= result.rows:
        return None
    how = ".last shows all of them" if result.has_all else ".once FILE and the statement again give all of them"
    return f"{shown:,} of {result.rows:,} shown · {how}"


@dataclass(frozen=True)
class File:
    """A file for results: replaced by one result, or with results appended to each other."""

    path: str
    format: str
    appends: bool

    def write(self, query: Query) -> int:
        """Write a result and return the number of rows; raises ``store-failed``."""
        if not self.appends:
            with replacing(self.path) as out:
                return write_stream(query.reader(), self.format, out)
        try:
            with open(self.path, "ab") as out:
                return write_stream(query.reader(), self.format, out, header=out.tell() == 0)
        except OSError as e:
            raise StoreError(f"Cannot write {self.path!r}: {e.strerror or e}") from None


class OutputTarget:
    """The files of ``.once`` and ``.output``."""

    def __init__(self) -> None:
        self._once: File | None = None
        self._all: File | None = None

    def once(self, path: str) -> None:
        """Send the next result to a file; raises ``invalid-argument`` for a suffix that names no format."""
        path = os.path.expanduser(path)
        self._once = File(path, format_of(path), False)

    def every(self, path: str | None) -> None:
        """Send all results from now on to a file, which is begun anew; None is the screen."""
        if path is None:
            self._all = None
            return
        path = os.path.expanduser(path)
        format_ = format_of(path)
        if format_ in BINARY_FORMATS or format_ == "json":
            raise UsageError(
                f"A {format_} file holds one result.", hint="Use .once FILE, or a .csv, .tsv or .jsonl file."
            )
        try:
            with open(path, "wb"):
                pass
        except OSError as e:
            raise StoreError(f"Cannot write {path!r}: {e.strerror or e}") from None
        self._all = File(path, format_, True)

    @property
    def path(self) -> str | None:
        """The file of ``.output``."""
        return self._all.path if self._all is not None else None

    def take(self) -> File | None:
        """Return the file for the result that comes, None for the screen."""
        found, self._once = self._once or self._all, None
        return found


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
    return f" of {counted(progress.files, 'file')}{size}"


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


PROGRESS_AFTER = 0.3  # seconds


class Running:
    """One statement: ``to_end`` runs it and fills ``result``.

    The rows go to the file ``out``, or to the screen as they come in the format ``stream``, or
    are kept to be shown.
    """

    def __init__(
        self, text: str, screen: Screen, *, out: File | None, stream: str | None, interrupt: Callable[[], None]
    ) -> None:
        self.result = Result(text)
        self.lines: list[str] = []  # of a report, which are no rows
        self._screen = screen
        self._out = out
        self._stream = stream
        self._interrupt = interrupt
        self._progress = ProgressLine(screen)
        self._query: Query | None = None
        self._failed: KartosqlError | None = None
        self._started = time.perf_counter()

    def to_end(self, make: Callable[[], Query], *, shows_progress: bool) -> None:
        """Run the statement; raises what it raises, and Cancelled after Ctrl-C."""

        def tick() -> None:
            is_shown = shows_progress and not (self._stream is not None and self.result.rows)
            if is_shown and self._seconds() >= PROGRESS_AFTER:
                self._progress.show(self._at())

        try:
            interruptible(lambda: self._work(make), self._stop, tick)
        except KeyboardInterrupt:
            # A commit that was under way may have come to its end, or to an error that says more.
            if not self.result.is_complete:
                if self._failed is not None and self._failed.code != "interrupted":
                    raise self._failed from None
                self._cancelled()
                raise Cancelled from None
        except KartosqlError as e:
            if e.code == "interrupted":
                self._cancelled()
                raise Cancelled from None
            raise
        finally:
            self._screen.clear_status()

    def _work(self, make: Callable[[], Query]) -> None:
        try:
            query = self._query = make()
            self.lines.extend(getattr(query, "lines", None) or ())
            if self._out is not None:
                rows = self._out.write(query)
                self.result.rows, self.result.is_complete = rows, True
                self.result.summary = account(query, rows, self._seconds())
            else:
                gather(query, self.result, self._write if self._stream is not None else None)
        except KartosqlError as e:
            self._failed = e
            raise

    def _write(self, reader: pa.RecordBatchReader) -> None:
        assert self._stream is not None
        write_stream(reader, self._stream, cast(BinaryIO, Bytes(self._screen)), terminal=self._screen.is_terminal)

    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def _at(self) -> Progress | None:
        return self._query.progress if self._query is not None else None

    def _stop(self) -> None:
        self._progress.note(self._at())
        self._interrupt()
        if isinstance(self._query, SelectQuery):
            self._query.interrupt()

    def _cancelled(self) -> None:
        self._screen.clear_status()
        found = self.result.summary
        if found is not None and found.files_total:
            # Rows came already, so there is an account of what was read.
            self._screen.say(f"Cancelled: {found}", "hint")
        else:
            self._screen.say(stopped(self._progress.last, self._seconds(), self._progress.share), "hint")


class Cancelled(Exception):
    """Ends a text after Ctrl-C, which was told already."""
