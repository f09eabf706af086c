"""A statement while it runs: its rows as they come, its progress, Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import BinaryIO, cast

import pyarrow as pa

from kartosql.cli.output import interruptible
from kartosql.cli.repl.progress import ProgressLine, stopped
from kartosql.cli.repl.results import Result, account, gather
from kartosql.cli.repl.screen import Bytes, Screen
from kartosql.cli.repl.target import File
from kartosql.errors import KartosqlError
from kartosql.query import SelectQuery
from kartosql.render.formats import write_stream
from kartosql.result import Progress, Query

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
