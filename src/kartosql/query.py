"""A SELECT, from its text to the stream of its rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from kartosql.engines.base import EngineStatement, RunStats
from kartosql.engines.duckdb import LOST_COLUMN, FileAccess, Planner, Runtime, Statement, table_names
from kartosql.errors import KartosqlError, LimitError, SqlError, UnknownNameError
from kartosql.failures import tells_failures, told
from kartosql.plan.bind import BoundQuery, Parameters, bind_unplanned
from kartosql.plan.cache import PlanCache
from kartosql.plan.less import counted
from kartosql.plan.prune import prune
from kartosql.plan.reader import may_tell_time
from kartosql.plan.report import ScanReport, human_bytes
from kartosql.plan.scan import Scan
from kartosql.result import Progress, Query
from kartosql.routing import NOT_SPARK, Router, begun
from kartosql.settings import Settings
from kartosql.sql.statements import Select
from kartosql.sql.tree import span_of
from kartosql.stopping import Work
from kartosql.tables.names import Tables
from kartosql.tables.table import Table, arrow_table

STAT_LIMIT = 10_000  # files whose sizes are asked for a report
REMOTE_STAT_LIMIT = 200
_NAME_ERRORS = ("unknown-column", "unknown-table", "invalid-query")


@tells_failures
class SelectQuery(Query):
    """A SELECT: bound to a snapshot when it is made, planned and run when rows are asked for."""

    def __init__(
        self,
        select: Select,
        known: Tables,
        runtime: Runtime,
        settings: Settings,
        parameters: Parameters = None,
        *,
        plans: PlanCache | None = None,
        parse_seconds: float = 0.0,
        pruned: bool = True,
        traced: bool = False,
    ) -> None:
        super().__init__()
        self._before = runtime.store.counter.to_dict()
        self._data_before = runtime.store.counter.data_bytes
        self._runtime = runtime
        self._store = runtime.store
        self._settings = settings
        self._plans = plans or PlanCache()
        started = time.perf_counter()
        if select.tree is None:
            self._bound = bind_unplanned(select, table_names(select.text), known, parameters)
        else:
            self._bound = self._plans.bind(select, known, parameters)
        self._phases = {"parse": parse_seconds, "bind": time.perf_counter() - started}
        self._report: ScanReport | None = None
        self._schema: pa.Schema | None = None
        self._running: Planner | EngineStatement | None = None
        self._reading: ScanReport | None = None  # what the run that goes on reads
        self._kept = False  # whether the scan is one that was kept
        self._measured: RunStats | None = None
        # Of a remote store, whose bytes DuckDB finds in memory: what was fetched counts.
        self._fetched: dict[str, int | None] = {}
        self._work: Work | None = None  # what goes on
        self._ordered = True  # whether the engine may choose the order of joins
        self._engine = "spark" if settings["engine"] == "spark" else "duckdb"  # as far as it is known
        self._not_spark: str | None = None  # why Spark cannot run the query, though it was chosen
        self._pruned = pruned
        self._traced = traced  # whether each step of the plan holds its files
        if self._bound.suspects:
            self._check_suspects()

    def _check_suspects(self) -> None:
        """Let the engine judge names that nothing explains, and report all of them if it agrees."""
        try:
            self._describe()
        except SqlError as e:
            raise self._unknown_names() if e.code in _NAME_ERRORS else e from None

    def _unknown_names(self) -> UnknownNameError:
        """Return the error about the names that nothing explains, with what is known of them as values."""
        from kartosql.plan.unquoted import with_hints

        bound = self._bound
        with contextlib.suppress(KartosqlError), self._runtime.planner(self._settings, FileAccess(self._store)) as p:
            bound = replace(bound, suspects=with_hints(bound.suspects, bound.walked, bound.occurrences, p.evaluator))
        return bound.unknown_names()

    def _describe(self) -> pa.Schema:
        statement = self._runtime.statement(self._settings, FileAccess(self._store), keys=())
        try:
            return statement.describe(self._bound)
        finally:
            statement.close()

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result, from binding alone: no data file is opened, except for PIVOT."""
        if self._table is not None or self._bound.has_dynamic_columns:
            return self.arrow().schema
        if self._schema is None:
            self._schema = self._describe()
        return self._schema

    @property
    def report(self) -> ScanReport:
        """What the query reads and why, planned at first use; raises what running it on Spark would refuse."""
        while self._report is None:
            files = FileAccess(self._store)
            try:
                # Who asks for a report before the run wants to know about each step.
                report = self._plan(files, traced=True)
                if self._settings["engine"] == "spark":
                    self._check_spark(report, files)
                self._report = report
            except KartosqlError as e:
                if not self._may_work_otherwise(e):
                    raise
        self._add_totals(self._report)
        return self._report

    @property
    def stats(self) -> dict[str, Any] | None:
        """What was really read; None until the query ran to its end."""
        if self._stats is None or self._measured is None:
            return None
        # A dictionary of its own for whoever asks; what DuckDB counted is asked for now.
        return {**self._stats, **self._measured.settle(), **self._fetched}

    @property
    def progress(self) -> Progress | None:
        """How far the query is, from any thread; None if it does not run."""
        running, report = self._running, self._reading
        if running is None:
            return None
        if report is None:
            return Progress("plan")
        fraction = getattr(running, "fraction", None)
        return Progress(
            "read", report.files_selected, report.bytes_selected, fraction() if fraction is not None else None
        )

    def _fetched_bytes(self, report: ScanReport) -> int | None:
        """Return the bytes of data files that were fetched, None if some of the files were read from the disk."""
        if any(self._store.is_on_disk(key) for key in report.selected):
            return None
        return self._store.counter.data_bytes - self._data_before

    def learn_sizes(self) -> None:
        """Learn the sizes of all files of the tables, for an account of what was not read.

        Of a remote store this lists each dataset once, as long as it does not change. Raises ``store-failed``.
        """
        if self._report is not None and not self._store.is_local:
            tables = [p.part.table for o in self._report.scan.occurrences for p in o.parts]
            self._report.sizes.update({**self._runtime.sizes_of(tables), **self._report.sizes})

    def _add_totals(self, report: ScanReport) -> None:
        """Note the sizes of the files that are not selected; only a report shows them, no run needs them."""
        tables = [p.table for o in report.scan.occurrences for p in o.occurrence.source.parts]
        if self._store.is_local and sum(len(t.files) for t in tables) <= STAT_LIMIT:
            report.sizes.update({**self._runtime.sizes_of(tables), **report.sizes})

    def interrupt(self) -> None:
        """Stop the query if it runs, from any thread."""
        work = self._work
        if work is not None:
            work.stop()

    def _working(self) -> contextlib.AbstractContextManager[None]:
        """Be at work, which other threads can stop; what is in memory needs nothing."""
        return contextlib.nullcontext() if self._table is not None else self._runtime.works.one()

    # -- planning and running ------------------------------------------------------------------

    def _plan(self, files: FileAccess, statement: EngineStatement | None = None, *, traced: bool = False) -> ScanReport:
        """Plan the query; functions of the clock have the values that they have in ``statement``."""
        freeze = statement.clock if statement is not None else None
        traced = traced or self._traced
        unpruned = {} if self._pruned else {"enabled": False}
        found = None
        if statement is None and self._pruned and not traced:
            found = self._plans.scan(self._bound, prune, self._settings.engine_settings())
        self._kept = found is not None
        if found is not None:
            return self._account(replace(found, phases={}), files)
        with self._runtime.planner(self._settings, files) as planner:
            self._running = planner
            try:
                with planner.errors(self._bound.select.text):
                    scan = prune(self._bound, planner.evaluator, trace=traced, freeze=freeze, **unpruned)
            finally:
                self._running = None
        return self._account(scan, files)

    def _account(self, scan: Scan, files: FileAccess) -> ScanReport:
        phases = {**self._phases, **scan.phases}
        report = ScanReport(
            self._bound.select.text, "duckdb", "", scan, files.sizes, partial(_residual, self._bound), phases=phases
        )
        count = report.files_selected
        if (
            count <= (STAT_LIMIT if self._store.is_local else REMOTE_STAT_LIMIT)
            or self._settings["max_bytes"] is not None
        ):
            files.stat(report.selected)
        choice = Router(self._settings, self._not_spark).choose(report, files, self._untranslatable)
        self._engine = choice.engine
        return replace(report, engine=choice.engine, engine_reason=choice.reason)

    def _untranslatable(self, report: ScanReport, files: FileAccess) -> str | None:
        """Return why Spark would not give DuckDB's answer, None if it does."""
        self._engine = "spark"
        try:
            self._check_spark(report, files)
        except KartosqlError as e:
            if e.code not in NOT_SPARK:
                raise
            return e.message
        return None

    def _check_spark(self, report: ScanReport, files: FileAccess) -> None:
        """Raise what Spark would refuse; no session is started."""
        statement: Any = self._start(files, report)
        try:
            statement.check(self._bound, report.scan)
        finally:
            statement.close()

    def _check_budget(self, report: ScanReport) -> None:
        limit = self._settings["max_bytes"]
        if limit is None:
            return
        total = sum(report.sizes.get(key) or 0 for key in report.selected)
        if total > limit:
            raise LimitError(
                f"The scan would read up to {human_bytes(total)}, the limit is {human_bytes(limit)}.",
                code="byte-budget",
                hint="Narrow the conditions, see EXPLAIN COST, or raise max_bytes.",
            )

    def reader(self) -> pa.RecordBatchReader:
        """Run the query and return its stream of record batches."""
        if self._table is not None:
            return self._table.to_reader()
        self._work = work = self._runtime.works.begin()
        try:
            with work:
                while True:
                    try:
                        return self._run(work)
                    except KartosqlError as e:
                        if not self._may_work_otherwise(e):
                            raise
        except BaseException:
            work.end()
            raise

    def _run(self, work: Work) -> pa.RecordBatchReader:
        """Run the query once, in the way that is known to be open; ``work`` goes on until the stream ends."""
        started = time.perf_counter()
        self._reading = None
        files = FileAccess(self._store)
        # Begun before planning, as now() has to be the same in both.
        statement: EngineStatement | None = self._start(files) if may_tell_time(self._bound.select.text) else None
        try:
            report = self._plan(files, statement)
            self._check_budget(report)
            if statement is None or (report.engine == "spark" and self._settings["engine"] == "auto"):
                statement = self._start(files, report, statement)
            self._running, self._reading = statement, report
            # Spark does not read metadata in place of rows.
            bound = counted(self._bound, report.scan) if report.engine == "duckdb" else self._bound
            statement.prepare(bound, report.scan)
            planned = time.perf_counter()
            schema, batches, self._types = statement.stream(bound, ordered=self._ordered)
            if report.engine == "spark":
                # All rows come at once, and whether Spark has them is known before any is passed on.
                batches = begun(batches)
        except BaseException:
            self._end(statement)
            raise
        self._report = report
        self._schema = schema
        if self._pruned and not self._traced and not self._kept and not may_tell_time(self._bound.select.text):
            self._plans.keep(self._bound, prune, self._settings.engine_settings(), report.scan)
        return pa.RecordBatchReader.from_batches(
            schema, self._finish(batches, statement, report, started, planned, work)
        )

    def spark_frame(self, spark: Any) -> Any:
        """Return the result as a DataFrame of a Spark session, index-pruned, which runs when rows are asked for.

        The setting ``engine`` has to be ``spark``. Raises ``not-portable`` where Spark's answer
        would not be DuckDB's.
        """
        files = FileAccess(self._store)
        statement: Any = self._start(files) if may_tell_time(self._bound.select.text) else None
        try:
            report = self._plan(files, statement)
            self._check_budget(report)
            if statement is None:
                statement = self._start(files, report)
            self._report = report
            return statement.frame(self._bound, report.scan, spark)
        finally:
            self._end(statement)

    def _may_work_otherwise(self, error: KartosqlError) -> bool:
        """Return whether to run the query once more, and prepare for that."""
        occurrences = self._bound.occurrences
        if error.code in ("unknown-column", "unknown-table") and any(o.columns is not None for o in occurrences):
            # A reference was overlooked; with every column there the engine can find it.
            for occurrence in occurrences:
                occurrence.all_used = True
            return True
        if self._engine == "spark" and self._settings["engine"] == "auto" and error.code in NOT_SPARK:
            self._not_spark = error.message
            self._engine = "duckdb"
            return True
        if self._ordered and LOST_COLUMN in error.message:
            self._ordered = False
            return True
        return False

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The values of the parameters, by the names that conditions of the plan give them."""
        return self._bound.parameters if isinstance(self._bound.parameters, Mapping) else {}

    @property
    def sources(self) -> tuple[Table, ...]:
        """The tables of the statement, one per place that names one."""
        return self._bound.sources

    def answer_over(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the answer over other data, one table in memory for each of ``sources``."""
        sources = [arrow_table(s.name, t) for s, t in zip(self.sources, tables, strict=True)]
        pairs = zip(self._bound.occurrences, sources, strict=True)
        bound = replace(self._bound, occurrences=tuple(replace(o, source=source) for o, source in pairs))
        statement = self._runtime.statement(self._settings, FileAccess(self._store), keys=())
        try:
            statement.prepare(bound, Scan(()))
            schema, batches, _ = statement.stream(bound)
            return pa.Table.from_batches(list(batches), schema)
        finally:
            statement.close()

    def _start(
        self, files: FileAccess, report: ScanReport | None = None, former: EngineStatement | None = None
    ) -> EngineStatement:
        """Return a statement over the files of a report, or over files that are still to be chosen.

        ``former`` is one of DuckDB that was begun before the engine was known, and holds the clock.
        """
        every = [p.table for o in self._bound.occurrences for p in o.source.parts]
        if self._engine == "spark":
            from kartosql.engines.spark.engine import SparkStatement

            if isinstance(former, Statement):
                return SparkStatement(former, files, self._settings)
            # DuckDB opens files only where nothing else gives a column its type.
            untyped = any(pa.types.is_null(t) for table in every for t in table.types.values())
            keys = () if not untyped else None if report is None else report.selected
            bound = self._runtime.statement(self._settings, files, every if untyped else (), keys)
            return SparkStatement(bound, files, self._settings)
        if report is None:
            return self._runtime.statement(self._settings, files, every)
        tables = [p.part.table for o in report.scan.occurrences for p in o.parts]
        return self._runtime.statement(self._settings, files, tables, report.selected, report.scan)

    def _end(self, statement: EngineStatement | None) -> None:
        self._running = None
        if statement is not None:
            statement.close()

    def _finish(
        self,
        batches: Iterator[pa.RecordBatch],
        statement: EngineStatement,
        report: ScanReport,
        started: float,
        planned: float,
        work: Work,
    ) -> Iterator[pa.RecordBatch]:
        """Pass the batches on; afterwards note what was read and free the engine."""
        rows = 0
        try:
            while True:
                with told(), work:
                    batch = next(batches, None)
                if batch is None:
                    break
                rows += batch.num_rows
                yield batch
        finally:
            work.end()
            ended = time.perf_counter()
            self._measured = statement.measured()
            self._stats = {
                "rows": rows,
                "seconds": round(ended - started, 6),
                "plan_seconds": round(planned - started, 6),
                "run_seconds": round(ended - planned, 6),
                "engine": report.engine,
                "files_total": report.files_total,
                "files_read": report.files_selected,
                "bytes_selected": report.bytes_selected,
                "store": {k: n - self._before[k] for k, n in self._store.counter.to_dict().items()},
            }
            if not self._store.is_local:
                self._fetched = {"bytes_read": self._fetched_bytes(report)}
            self._running = None
            statement.rest(self._plans.is_kept(report.scan))


def _residual(bound: BoundQuery, occurrence_id: int) -> str | None:
    """Return the WHERE that rows of an occurrence are still checked for."""
    for scope in bound.walked.scopes:
        where = scope.select.args.get("where")
        if where is not None and any(
            s.occurrence is not None and s.occurrence.id == occurrence_id for s in scope.sources
        ):
            span = span_of(where.this)
            return str(where.this.sql("duckdb")) if span is None else bound.select.text[span[0] : span[1]]
    return None
