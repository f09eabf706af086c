"""The core of the shell: text in, results out. It needs no terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, cast

import pyarrow as pa

from kartosql.cli.output import described, interruptible, telling_warnings, traced, translated
from kartosql.cli.repl import registry
from kartosql.cli.repl.known import ColumnValues
from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.screen import Bytes, Screen, chosen
from kartosql.connection import Connection
from kartosql.errors import KartosqlError, StoreError, UsageError
from kartosql.plan.scan import ScanReport
from kartosql.query import SelectQuery
from kartosql.render.formats import BINARY_FORMATS, Style, format_of, replacing, write_stream
from kartosql.render.tables import NULL, READABLE, Look, RunSummary, readable, summary
from kartosql.result import Progress, Query, ReportQuery
from kartosql.sql import Describe, Inspect, Reset, Select, Set, Show, parse
from kartosql.sql.statements import Write
from kartosql.text.escape import escaped_lines
from kartosql.text.report import counted, human_bytes


class Shell:
    """A session: a connection, options, the last result. ``feed`` takes lines, ``execute`` whole texts.

    ``execute`` raises nothing but what leaves the shell: SystemExit.
    """

    def __init__(
        self, connection: Connection, screen: Screen, options: ShellOptions, opener: Callable[[str], Connection]
    ) -> None:
        registry.load()
        self.connection = connection
        self.screen = screen
        self.options = options
        self.opener = opener
        self.target = _OutputTarget()
        self.values = ColumnValues()
        self.parameters: dict[str, Any] = {}
        self.last: Result | None = None
        self.statement: str | None = None  # the last one that ran
        self.draft: str | None = None  # what the next prompt begins with
        self.style = Style()
        self.raises = False  # errors of ``execute``, instead of telling them
        self.cube = ""  # which commands mean if they name none
        self.tour_at = 0
        self.read_depth = 0  # of files that read files
        self.ask: Callable[[], str] = input
        self.on_change: Callable[[], None] = lambda: None  # called after what may have changed the catalog
        self.pending = ""  # lines of a statement that goes on
        connection.watch_progress()

    # -- input ---------------------------------------------------------------------------------------

    def feed(self, line: str) -> bool:
        """Take one line; return whether a statement goes on in the next one."""
        self.pending += line.rstrip("\n") + "\n"
        if not self.pending.strip():
            self.pending = ""
        elif registry.is_ready(self.pending):
            text, self.pending = self.pending, ""
            self.execute(text)
        return bool(self.pending.strip())

    def execute(self, text: str) -> bool:
        """Run the commands and statements of a text; return whether all went well. The first that fails ends it."""
        for unit in registry.units(text):
            run = self.run_command if unit.kind == "command" else self.run_statement
            if self.raises:
                run(unit.text)
            elif not self._guarded(run, unit.text):
                return False
        return True

    def _guarded(self, run: Callable[[str], None], text: str) -> bool:
        warned: list[str] = []
        try:
            with telling_warnings(warned.append):
                try:
                    run(text)
                finally:
                    for warning in warned:
                        self.screen.say(warning, "hint")
            return True
        except Cancelled:
            pass  # which was told
        except KeyboardInterrupt:
            self.screen.say("Interrupted.", "hint")
        except BrokenPipeError:
            raise SystemExit(0) from None
        except Exception as e:  # noqa: BLE001
            error = translated(e)
            for text in traced(error):
                self.screen.say(text)
            first, *others = described(error, self.screen.columns if self.screen.is_terminal else 140, ".help {}")
            self.screen.say(first, "error")
            for line in others:
                self.screen.say(line, "hint" if line.startswith("hint: ") else "")
        return False

    def run_command(self, line: str) -> None:
        """Run a command; raises what it raises."""
        word, _, rest = line.strip().partition(" ")
        found = registry.find(word.rstrip(";"))
        takes_sql = found.takes[-1:] == ("sql",)
        sql = found.run(self, rest.strip() if takes_sql else rest.strip().rstrip(";").strip())
        if sql is not None:
            self.run_sql(sql, quiet=found.quiet)

    # -- statements ----------------------------------------------------------------------------------

    def run_statement(self, text: str) -> None:
        """Run a statement of the user's own, which commands such as ``.explain`` take up."""
        self.statement = text.strip()
        self.run_sql(text)

    def run_sql(self, text: str, *, parameters: dict[str, Any] | None = None, quiet: bool = False) -> None:
        """Run a statement and show its result; raises KartosqlError. ``quiet`` leaves ``.last`` as it is."""
        statement = parse(text)
        given = self.parameters if parameters is None else parameters
        values = None
        if isinstance(statement, Select | Inspect | Write) and given:
            from kartosql.cli.batch import parameters_of

            values = parameters_of(statement, given)
        shows = not isinstance(statement, Set | Reset)
        self.run_query(lambda: self.connection.sql(text, values), shows=shows, quiet=quiet)
        if not isinstance(statement, Select | Inspect | Set | Reset | Show | Describe):
            self.on_change()

    def run_query(self, make: Callable[[], Query], *, shows: bool = True, quiet: bool = False) -> None:
        """Run what gives a result, and show that."""
        running = Running(self)
        running.to_end(make)
        result, out = running.result, running.out
        if not quiet and out is None:
            self.last = result
        if not shows:
            return
        if out is not None:
            self.screen.say(f"{counted(result.rows, 'row')} written to {out.path}", "note")
        elif running.report is not None and self.options["mode"] == "box":
            self.screen.show(running.report)
            return
        elif running.stream is None:  # else it was written as it came
            self.show(result)
        if self.options["timing"] and result.summary is not None:
            self.screen.say(str(result.summary), "note")

    def show(self, result: Result, *, every_row: bool = False, mode: str | None = None) -> None:
        """Show a result, some rows of it or every row that is kept; in the pager where the screen is too low."""
        table = result.table
        if not every_row and self.options["rows"]:
            table = table.slice(0, self.options["rows"])
        mode = mode or self.options["mode"]
        lines = readable(table, result.types, mode if mode in READABLE else "box", self.look)
        if table.num_rows < result.rows:
            has_all = result.is_complete and result.kept == result.rows
            how = ".last shows all of them" if has_all else ".once FILE and the statement again give all of them"
            lines += self.screen.page.text(f"{table.num_rows:,} of {result.rows:,} shown · {how}", style="hint")
        self.screen.show(lines, page=True)

    @property
    def look(self) -> Look:
        """How tables look on the screen."""
        options = self.options
        columns = None if options["wide"] == "box" else self.screen.columns
        null, elided = options["nullvalue"] or NULL, options["wide"] == "elided"
        return Look(columns, self.screen.paint, options["grouping"], options["types"], null, elided)

    def confirm(self, question: str) -> bool:
        """Ask a question; only ``y`` or ``yes`` is a yes."""
        self.screen.write(escaped_lines(question))
        try:
            return self.ask().strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            self.screen.line()
            return False

    def set_option(self, name: str, value: object) -> None:
        """Set an option and let the screen follow it; raises ``invalid-setting``."""
        self.options.set(name, value)
        if name in ("pager", "theme"):
            self.screen.pager = self.options["pager"]
            self.screen.theme = chosen(self.options["theme"], is_terminal=self.screen.is_terminal)

    def open(self, place: str) -> None:
        """Open another store; the one that is open stays if that fails."""
        connection = self.opener(place)
        self.connection.close()
        self.connection = connection
        connection.watch_progress()
        self.cube = ""
        self.last = None
        self.on_change()


# -- results and their files -------------------------------------------------------------------------

KEPT_BYTES = 256_000_000  # of a result that is kept for .last


@dataclass
class Result:
    """The rows of a statement as they come: all are counted, and kept as long as there is room."""

    schema: pa.Schema | None = None
    types: list[str] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    kept: int = 0
    is_complete: bool = False
    summary: RunSummary | None = None
    report: ScanReport | None = None
    _bytes: int = 0

    def taken(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """Yield batches, which are counted, and kept if there is room."""
        for batch in reader:
            self.rows += batch.num_rows
            if self.kept + batch.num_rows == self.rows and self._bytes + batch.nbytes <= KEPT_BYTES:
                self.batches.append(batch)
                self.kept += batch.num_rows
                self._bytes += batch.nbytes
            yield batch

    @property
    def table(self) -> pa.Table:
        """The rows that are kept."""
        assert self.schema is not None
        return pa.Table.from_batches(self.batches, self.schema)


@dataclass(frozen=True)
class _ResultFile:
    """A file for results: replaced by one result, or with results appended to each other."""

    path: str
    appends: bool

    def write(self, query: Query) -> int:
        """Write a result and return the number of rows; raises ``store-failed``."""
        if not self.appends:
            with replacing(self.path) as out:
                return write_stream(query.reader(), format_of(self.path), out)
        try:
            with open(self.path, "ab") as out:
                return write_stream(query.reader(), format_of(self.path), out, Style(header=out.tell() == 0))
        except OSError as e:
            raise StoreError(f"Cannot write {self.path!r}: {e.strerror or e}") from None


class _OutputTarget:
    """The files of ``.once`` and ``.output``."""

    def __init__(self) -> None:
        self._once: str | None = None
        self.path: str | None = None  # of ``.output``

    def once(self, path: str) -> None:
        """Send the next result to a file; raises ``invalid-argument`` for a suffix that names no format."""
        path = os.path.expanduser(path)
        format_of(path)
        self._once = path

    def every(self, path: str | None) -> None:
        """Send all results from now on to a file, which is begun anew; None is the screen."""
        if path is not None:
            path = os.path.expanduser(path)
            format_ = format_of(path)
            if format_ in BINARY_FORMATS or format_ == "json":
                raise UsageError(
                    f"A {format_} file holds one result.", hint="Use .once FILE, or a .csv, .tsv or .jsonl file."
                )
            with replacing(path):
                pass
        self.path = path

    def take(self) -> _ResultFile | None:
        """Return the file for the result that comes, None for the screen."""
        once, self._once = self._once, None
        path = once or self.path
        return None if path is None else _ResultFile(path, once is None)


# -- a statement while it runs -----------------------------------------------------------------------

PROGRESS_AFTER = 0.3  # seconds
BAR = 20
LEAST, MOST = 0.02, 0.99  # below and above these shares nobody can tell how long it takes


class Cancelled(Exception):
    """End a text after Ctrl-C, which was reported already."""


class Running:
    """One statement: ``to_end`` runs it and fills ``result``.

    The rows go to the file ``out``, or to the screen as they come in the format ``stream``, or
    are kept to be shown. ``share`` is how far it is; it only grows, as a statement may have several stages.
    """

    def __init__(self, shell: Shell) -> None:
        mode = shell.options["mode"]
        self.result = Result()
        self.report: list[str] | None = None  # the lines of one, which are no rows
        self.out = shell.target.take()
        self.stream = mode if self.out is None and mode not in READABLE else None
        self.share = 0.0
        self._shell = shell
        self._screen = shell.screen
        self._query: Query | None = None
        self._failed: KartosqlError | None = None
        self._started = time.perf_counter()
        self._reading: float | None = None  # since when
        self._last: Progress | None = None

    def to_end(self, make: Callable[[], Query]) -> None:
        """Run the statement; raises what it raises, and Cancelled after Ctrl-C."""

        def tick() -> None:
            is_shown = self._shell.options["progress"] and not (self.stream is not None and self.result.rows)
            now = time.perf_counter()
            if not is_shown or now < self._started + PROGRESS_AFTER:
                return
            progress = self._query.progress if self._query is not None else None
            self.note(progress)
            if progress is not None and progress.phase == "read" and self._reading is None:
                self._reading = now
            since = 0.0 if self._reading is None else now - self._reading
            line = progress_line(progress, now - self._started, since, self.share, self.result.rows)
            self._screen.status(line)

        try:
            interruptible(lambda: self._work(make), self._stop, tick)
        except KeyboardInterrupt:
            # A commit that was under way may have come to its end, or to an error that says more.
            if not self.result.is_complete:
                if self._failed is not None and self._failed.code != "interrupted":
                    raise self._failed from None
                raise self._cancelled() from None
        except KartosqlError as e:
            if e.code == "interrupted":
                raise self._cancelled() from None
            raise
        finally:
            self._screen.clear_status()

    def _work(self, make: Callable[[], Query]) -> None:
        try:
            query = self._query = make()
            if isinstance(query, ReportQuery):
                self.report = query._laid_out(self._screen.page)
            if self.out is not None:
                self.result.rows, self.result.is_complete = self.out.write(query), True
                self.result.summary = self._account(query, self._started)
            else:
                self._gather(query)
        except KartosqlError as e:
            self._failed = e
            raise

    def _gather(self, query: Query) -> None:
        started = time.perf_counter()
        result, screen, reader = self.result, self._screen, query.reader()
        try:
            result.schema = reader.schema
            result.types = query._display_types(reader.schema)
            batches = result.taken(reader)
            if self.stream is not None:
                rows = pa.RecordBatchReader.from_batches(reader.schema, batches)
                null = self._shell.options["nullvalue"] or None
                style = replace(self._shell.style, terminal=screen.is_terminal, null=null)
                write_stream(rows, self.stream, cast(BinaryIO, Bytes(screen)), style)
            for _ in batches:
                pass
            result.is_complete = True
        finally:
            reader.close()
            result.summary = self._account(query, started)
            result.report = query.report if query.stats else None

    def _account(self, query: Query, started: float) -> RunSummary:
        seconds, stats = time.perf_counter() - started, query.stats
        if stats and isinstance(query, SelectQuery):
            with suppress(KartosqlError):  # then the total is not told
                query.learn_sizes()
        return summary(self.result.rows, seconds, stats, query.report if stats else None)

    def note(self, progress: Progress | None) -> None:
        """Remember how far it is."""
        if progress is not None:
            self._last = progress
            self.share = 0.0 if progress.of_stage else max(self.share, progress.fraction or 0.0)

    def _stop(self) -> None:
        self.note(self._query.progress if self._query is not None else None)
        self._shell.connection.interrupt()

    def _cancelled(self) -> Cancelled:
        """Tell that it was stopped, and return what says so."""
        self._screen.clear_status()
        found = self.result.summary
        # If rows came already, there is an account of what was read.
        has_read = found is not None and found.files_total
        seconds = time.perf_counter() - self._started
        self._screen.say(f"Cancelled: {found}" if has_read else stopped(self._last, seconds, self.share), "hint")
        return Cancelled()


def stopped(progress: Progress | None, seconds: float, share: float) -> str:
    """Return the message about a statement that was cancelled: how far the engine was."""
    text = f"Cancelled after {seconds:.1f} s"
    if progress is None:
        return text
    if progress.phase == "plan":
        return f"{text}, while it was planned; no data file was read"
    where = "at the beginning" if progress.fraction is None or progress.of_stage else f"at {100 * share:.0f} %"
    return f"{text}, {where}{_reads(progress, '; it reads')}"


def progress_line(progress: Progress | None, seconds: float, reading: float, share: float, rows: int = 0) -> str:
    """Return how far a statement is as a whole: the share that the engine has done, and what is left by that.

    ``seconds`` are those of the statement, ``reading`` those since the engine began; ``rows`` came so far.
    """
    if progress is None:
        return f"working … {seconds:.1f} s · Ctrl-C cancels"
    if progress.phase == "plan":
        return f"planning … {seconds:.1f} s · Ctrl-C cancels"
    so_far = [f"{counted(rows, 'row')} so far"] if rows else []
    if progress.fraction is None and share < LEAST:
        parts = [f"running … {seconds:.1f} s", *so_far]
    elif progress.of_stage:
        parts = [
            f"running … {seconds:.1f} s",
            f"{100 * (progress.fraction or 0):.0f} % of the stages that run",
            *so_far,
        ]
    else:
        share = min(share, MOST)  # there is always something left to do, such as to pass rows on
        full = round(BAR * share)
        parts = [f"{'█' * full}{'░' * (BAR - full)} {100 * share:.0f} %"]
        if progress.fraction is None or share >= MOST:
            parts.append(f"{seconds:.1f} s")
        elif share >= LEAST and reading > 0.2:
            parts.append(f"{_rounded(reading / share - reading)} left")
        parts += so_far
    return " · ".join(parts) + _reads(progress, " · reads")


def _rounded(seconds: float) -> str:
    """Return a time of which nobody knows more than its seconds or minutes."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _reads(progress: Progress, word: str) -> str:
    if progress.files is None:
        return ""
    size = f", {human_bytes(progress.bytes)}" if progress.bytes is not None else ""
    return f"{word} {counted(progress.files, 'file')}{size}"
