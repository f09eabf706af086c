"""A SELECT: planned, carried out, and what that took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import pyarrow as pa

from kartosql.engines.base import EngineStatement, JoinOrder, Measured
from kartosql.engines.duckdb.evaluator import Planner
from kartosql.engines.duckdb.optimizers import LOST
from kartosql.engines.duckdb.runtime import Runtime
from kartosql.engines.duckdb.statement import DuckStatement, FileAccess, checked, table_names
from kartosql.engines.duckdb.types import sql_type
from kartosql.errors import FormatError, KartosqlError, LimitError, SqlError, UnknownNameError
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.snapshot import SETTLED_NS
from kartosql.plan.bind import BoundQuery, Parameters, PlanCache, bind_unplanned
from kartosql.plan.operators import Operator, TableFiles
from kartosql.plan.prune import prune
from kartosql.plan.reader import may_tell_time
from kartosql.plan.scan import Answer, Scan, ScanReport
from kartosql.plan.small_reads import small_read
from kartosql.result import Progress, Query
from kartosql.settings import Settings, machine_memory
from kartosql.sql.statements import Select
from kartosql.sql.tree import span_of
from kartosql.stopping import Work, translated_errors, translates_errors
from kartosql.store.keys import Stamp
from kartosql.tables.names import Tables
from kartosql.tables.table import Table, arrow_table
from kartosql.text.report import counted, human_bytes

STAT_LIMIT = 10_000  # files whose sizes are asked for a report
REMOTE_STAT_LIMIT = 200
MAX_ANSWER = 1_000_000  # bytes of an answer that is kept with its plan
NOTHING_READ = {"bytes_read": 0, "files_opened": 0, "row_groups_read": 0}
MEMORIES = 4  # DuckDB spills what does not fit; that much of compressed data one machine reads without haste
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
_NAME_ERRORS = ("unknown-column", "unknown-table", "invalid-query")
_T = TypeVar("_T")


@dataclass(frozen=True)
class QueryContext:
    """What a query is carried out with: engines, settings, plans that are kept, and what happened before.

    ``phases`` are the seconds that each phase took so far; ``calls`` and ``data_bytes`` are what was asked of the
    store before the query. ``traced`` says that each step of the plan holds its files.
    """

    runtime: Runtime
    settings: Settings
    plans: PlanCache
    pruned: bool
    traced: bool
    phases: Mapping[str, float]
    calls: Mapping[str, int]
    data_bytes: int


@dataclass(frozen=True)
class Attempt:
    """What one attempt to answer a query assumes: its names as they are bound, the order of joins, the engine."""

    bound: BoundQuery
    joins: JoinOrder = JoinOrder.COMPARED
    not_spark: str | None = None  # why Spark cannot run the query, though it was chosen

    def fallback(self, error: KartosqlError, *, chose_spark: bool) -> Attempt | None:
        """Return the attempt to make after this one ended with an error, or None.

        ``chose_spark`` says whether it ran on Spark without being asked to. Each attempt gives up one
        assumption more than the one before, so they come to an end.
        """
        occurrences = self.bound.occurrences
        if error.code in ("unknown-column", "unknown-table") and any(o.columns is not None for o in occurrences):
            # A reference was overlooked; with every column there the engine can find it.
            return replace(self, bound=self.bound.with_all_columns())
        if chose_spark and error.code in NOT_SPARK:
            return replace(self, not_spark=error.message)
        if (joins := self.joins.following) and any(words in error.message for words in LOST):
            return replace(self, joins=joins)
        return None


@dataclass(frozen=True)
class Account:
    """What a run took, as far as it is known by now, and what its engine measured."""

    scan: Scan
    files: FileAccess
    measured: Measured | None  # None if no engine ran
    known: Mapping[str, Any]
    fetched: Mapping[str, int | None]  # known better than by the engine
    read: Mapping[str, int | None]  # without an engine

    @property
    def stats(self) -> dict[str, Any]:
        """How much was read, and what that took."""
        return {**self.known, **(self.read if self.measured is None else self.measured.settle()), **self.fetched}

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The operators of the engine, as far as it tells."""
        return () if self.measured is None else self.measured.operators(self._sources)

    def _sources(self) -> dict[str, TableFiles]:
        found = dict[str, TableFiles]()
        for scan in self.scan.occurrences:
            for part in scan.parts:
                name, table = scan.occurrence.source.name, part.part.table
                name = name if len(scan.occurrence.source.parts) == 1 else f"{name}.{part.part.name}"
                of_deletes = set(part.opened).difference(table.files[i] for i in part.files)
                for key, file in zip(part.opened, self.files.names(part.opened), strict=True):
                    is_own = key not in of_deletes
                    found[file] = (
                        TableFiles(name, len(table.files))
                        if is_own
                        else TableFiles(f"deletes of {name}", len(of_deletes))
                    )
        return found


class Execution:
    """One attempt carried out: the query planned, prepared on its engine, and streamed."""

    def __init__(self, context: QueryContext, attempt: Attempt) -> None:
        self.attempt = attempt
        self.report: ScanReport | None = None  # once it is planned
        self._is_kept = False  # whether the plan is an earlier one
        self._context = context
        self._store = context.runtime.store
        self._files = FileAccess(self._store)
        self._started = self._prepared = time.perf_counter()
        self.statement: EngineStatement | None = None  # what runs in an engine, as long as it does
        self._running: Planner | EngineStatement | None = None
        self._read: dict[str, int | None] = dict(NOTHING_READ)  # without an engine

    @property
    def chose_spark(self) -> bool:
        """Whether the query was given to Spark without being asked to."""
        is_spark = self.report is not None and self.report.engine == "spark"
        return is_spark and self._context.settings["engine"] == "auto"

    @property
    def progress(self) -> Progress | None:
        """How far it is, from any thread; None if it does not run."""
        running, report = self._running, self.report
        if running is None:
            return None
        if report is None or isinstance(running, Planner):
            return Progress("plan")
        of_stage = report.engine == "spark"
        return Progress("read", report.files_selected, report.bytes_selected, running.fraction(), of_stage)

    # -- planning ------------------------------------------------------------------------------

    def plan(self, statement: EngineStatement | None = None, *, traced: bool = False) -> ScanReport:
        """Plan the query; functions of the clock have the values that they have in ``statement``."""
        context, bound = self._context, self.attempt.bound
        traced = traced or context.traced
        found = None
        if statement is None and context.pruned and not traced:
            found = context.plans.scan(bound, prune, context.settings.engine_settings())
        scan = replace(found, phases={}) if found is not None else self._pruned(statement, traced)
        self._is_kept = found is not None
        self.report = report = self._report_on(scan, traced)
        return report

    def _pruned(self, statement: EngineStatement | None, traced: bool) -> Scan:
        bound, context = self.attempt.bound, self._context
        options: dict[str, Any] = {"freeze": statement.clock if statement is not None else None, "trace": traced}
        options |= {} if context.pruned else {"enabled": False}
        with context.runtime.planner(context.settings, self._files) as planner:
            self._running = planner
            try:
                with planner.errors(bound.select.text):
                    return prune(bound, planner, **options)
            finally:
                self._running = None

    def _report_on(self, scan: Scan, traced: bool) -> ScanReport:
        files = self._files
        phases = {**self._context.phases, **scan.phases}
        residual = partial(_residual, self.attempt.bound)
        aligned = partial(self._context.runtime.alignments.describe, files)
        report = ScanReport(
            self.attempt.bound.select.text, "duckdb", "", scan, files.sizes, residual, aligned, phases=phases
        )
        settings, most = self._context.settings, STAT_LIMIT if self._store.is_local else REMOTE_STAT_LIMIT
        is_known = self._store.is_local or traced or settings["max_bytes"] is not None or settings["engine"] == "spark"
        if not self._store.is_local:
            files.recall(part.part.table for occurrence in scan.occurrences for part in occurrence.parts)
        if report.files_selected <= most and not is_known:
            self._store.admit(report.selected)
            files.begin_reading(report.selected)  # which DuckDB needs as well, and tells their sizes
        elif report.files_selected <= most or settings["max_bytes"] is not None:
            files.stat(report.selected)
        engine, reason = self._chosen_engine(report)
        if (answer := scan.answer) is not None:
            is_right = engine == "duckdb" and all(files.stamps.get(k) == s for k, s in answer.stamps.items())
            if not (is_right and settings["keep_answers"]):
                report = replace(report, scan=replace(scan, answer=None))
        if engine != "duckdb":
            report = replace(report, _by_position=lambda _: None)
        return replace(report, engine=engine, engine_reason=reason)

    def _chosen_engine(self, report: ScanReport) -> tuple[str, str]:
        """Return the engine for what a report selects, and the reason in words; what costs more is asked last."""
        settings, files = self._context.settings, self._files
        wish, limit, size = settings["engine"], settings["spark_threshold"], report.bytes_selected
        if limit is None:
            limit = MEMORIES * (settings["memory_limit"] or machine_memory())
        volume = counted(report.files_selected, "file") + ("" if size is None else f", {human_bytes(size)}")
        if wish not in ("auto", "duckdb"):
            return wish, f"{volume}: the setting engine asks for {wish.title()}"
        enough = "duckdb", f"{volume}: one machine is enough"
        if wish == "duckdb" or not report.files_selected or (size is not None and size <= limit):
            return enough
        obstacle = self.attempt.not_spark or _obstacle(report, files)
        if size is None:
            if obstacle is not None:
                return enough
            files.stat(report.selected)
            size = report.bytes_selected or 0
            volume += f", {human_bytes(size)}"
            if size <= limit:
                return "duckdb", f"{volume}: one machine is enough"
        if obstacle is not None:
            return "duckdb", f"{volume}, more than spark_threshold ({human_bytes(limit)}), but {obstacle}"
        used = _bytes_used(report, files, limit)
        if used <= limit:
            return "duckdb", f"{volume}, of which columns used take {human_bytes(used)}: one machine is enough"
        reason = f"{volume}, and the columns used take more than spark_threshold ({human_bytes(limit)})"
        try:
            self.check_spark(report)
        except KartosqlError as e:
            if e.code not in NOT_SPARK:
                raise
            return "duckdb", f"{reason}, but Spark does not run it: {e.message}"
        return "spark", reason

    def check_spark(self, report: ScanReport) -> None:
        """Raise what Spark would refuse; no session is started."""
        statement: Any = self._start("spark", report)
        try:
            statement.check(self.attempt.bound, report.scan)
        finally:
            statement.close()

    def _check_budget(self, report: ScanReport) -> None:
        limit = self._context.settings["max_bytes"]
        if limit is None:
            return
        total = sum(report.sizes.get(key) or 0 for key in report.selected)
        if total > limit:
            raise LimitError(
                f"The scan would read up to {human_bytes(total)}, the limit is {human_bytes(limit)}.",
                code="byte-budget",
                hint="Narrow the conditions, see EXPLAIN COST, or raise max_bytes.",
            )

    # -- running -------------------------------------------------------------------------------

    def begin(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch], list[str]]:
        """Plan the query and start it; returns what ``EngineStatement.stream`` does."""
        settings, bound = self._context.settings, self.attempt.bound
        statement = self._early("duckdb" if settings["engine"] == "auto" else settings["engine"])
        try:
            report = self.plan(statement)
            self._check_budget(report)
            if (answer := report.scan.answer) is not None:
                self._prepared = time.perf_counter()
                return answer.schema, iter(answer.batches), answer.types
            if statement is None and (small := self._read_small(report)) is not None:
                return small
            if statement is None or self.chose_spark:
                statement = self._start(report.engine, report, statement)
            self.statement = self._running = statement
            # Other engines do not read metadata in place of rows.
            run = bound.edited(report.scan.edits) if report.scan.edits and report.engine == "duckdb" else bound
            statement.prepare(run, report.scan)
            stamps = self._proof(statement, run, report)
            self._prepared = time.perf_counter()
            schema, batches, types = statement.stream(run, joins=self.attempt.joins)
            if report.engine != "duckdb":
                # All rows come at once, and whether the engine has them is known before any is passed on.
                batches = chain(list(islice(batches, 1)), batches)
        except BaseException:
            self._close(statement)
            raise
        self._keep(report.scan)
        if stamps is not None:
            batches = self._noted(schema, batches, types, stamps)
        return schema, batches, types

    def _read_small(self, report: ScanReport) -> tuple[pa.Schema, Iterator[pa.RecordBatch], list[str]] | None:
        """Return the rows of few small files, if DuckDB answered such a statement before and needs not read them."""
        context, bound, settings = self._context, self.attempt.bound, self._context.settings
        # What is kept of a run is kept of the engine's: an answer, or the plan of a command.
        is_noted = (self._is_kept and settings["keep_answers"]) or context.runtime.one_more
        if is_noted or context.traced or not context.pruned or report.engine != "duckdb" or not self._store.is_local:
            return None
        passed = checked.get(bound.shape or bound.text)
        if passed is None or not bound.occurrences or settings["engine"] != "auto" or settings["default_collation"]:
            return None
        wanted = small_read(bound, report.scan, report.sizes)
        if wanted is None or [sql_type(item.type) for item in wanted.shape.items] != passed.types:
            return None
        if (found := wanted.run(self._store)) is None:
            return None
        rows, self._read = found
        self._prepared = time.perf_counter()
        self._keep(report.scan)
        self.report = replace(report, engine_reason=f"{report.engine_reason}, and so little is read without it")
        return rows.schema, iter(rows.to_batches()), passed.types

    def _proof(self, statement: EngineStatement, run: BoundQuery, report: ScanReport) -> dict[str, Stamp] | None:
        """Return the stamps of files by which the answer of a run can be given again, None if it may be another one."""
        scan, stamps = report.scan, self._files.stamps
        if report.engine != "duckdb" or not self._context.settings["keep_answers"]:
            return None
        if scan.is_summary and len(run.walked.scopes) == 1:  # it follows from what is known of the files
            return {}
        # That of data in memory is not kept, as their owner may still change them.
        if not self._is_kept or any(o.source.data is not None for o in run.occurrences):
            return None
        assert isinstance(statement, DuckStatement)
        latest = time.time_ns() - SETTLED_NS
        found = {key: stamps[key] for key in report.selected if key in stamps}
        is_proven = found.keys() == {*report.selected} and all(max(s[3:]) < latest for s in found.values())
        return found if is_proven and statement.is_determined(run) else None

    def _noted(
        self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], types: list[str], stamps: dict[str, Stamp]
    ) -> Iterator[pa.RecordBatch]:
        """Pass on the batches of an answer that can be given again, and keep a copy if it is small."""
        known, size = list[pa.RecordBatch](), 0
        for batch in batches:
            size += batch.get_total_buffer_size()
            known = [*known, batch] if size <= MAX_ANSWER else []
            yield batch
        if self.report is not None and size <= MAX_ANSWER:
            with contextlib.suppress(pa.ArrowException):  # not all types can be copied
                # The engine's buffers are larger than what it says of them.
                copy = [pa.concat_batches(known)] if known else []
                self._keep(replace(self.report.scan, answer=Answer(schema, copy, types, stamps)))

    def frame(self, spark: Any) -> Any:
        """Plan the query and return it as a DataFrame of a Spark session."""
        statement: Any = self._early("spark")
        try:
            report = self.plan(statement)
            self._check_budget(report)
            if statement is None:
                statement = self._start("spark", report)
            return statement.frame(self.attempt.bound, report.scan, spark)
        finally:
            self._close(statement)

    def end(self, rows: int) -> Account:
        """Free the engine, and return what tells how much was read and what that took."""
        ended, store, context = time.perf_counter(), self._store, self._context
        statement, self.statement, self._running = self.statement, None, None
        report = self.report
        assert report is not None
        measured = statement.measured() if statement is not None else None
        stats = {
            "rows": rows,
            "seconds": round(ended - self._started, 6),
            "plan_seconds": round(self._prepared - self._started, 6),
            "run_seconds": round(ended - self._prepared, 6),
            "engine": report.engine,
            "files_total": report.files_total,
            "files_read": report.files_selected,
            "bytes_selected": report.bytes_selected,
            "store": {k: n - context.calls[k] for k, n in store.counter.to_dict().items()},
        }
        fetched: dict[str, int | None] = {}
        if not store.is_local:  # DuckDB finds its bytes in memory
            local = any(store.is_on_disk(key) for key in report.selected)
            fetched["bytes_read"] = None if local else store.counter.data_bytes - context.data_bytes
        if statement is not None:
            statement.rest(context.plans.is_kept(report.scan))
        return Account(report.scan, self._files, measured, stats, fetched, self._read)

    def _keep(self, scan: Scan) -> None:
        context, bound = self._context, self.attempt.bound
        if (self._is_kept and scan.answer is None) or not context.pruned or context.traced:
            return
        if not may_tell_time(bound.select.text):
            context.plans.keep(bound, prune, context.settings.engine_settings(), scan)

    def _early(self, engine: str) -> EngineStatement | None:
        """Start a statement that asks the clock before it is planned, as now() has to be the same in both."""
        return self._start(engine) if may_tell_time(self.attempt.bound.select.text) else None

    def _start(
        self, engine: str, report: ScanReport | None = None, former: EngineStatement | None = None
    ) -> EngineStatement:
        """Return a statement over a report's files, or those to be chosen; ``former`` has begun and holds the clock."""
        runtime, settings, files = self._context.runtime, self._context.settings, self._files
        every = [t for o in self.attempt.bound.occurrences for p in o.source.parts for t in p.tables]

        def reading(scan: Scan) -> DuckStatement:
            tables = [t for o in scan.occurrences for p in o.parts for t in p.part.tables]
            return runtime.statement(settings, files, tables, scan.selected, scan)

        if engine == "spark":
            from kartosql.engines.spark.engine import SparkStatement

            if isinstance(former, DuckStatement):
                return SparkStatement(former, files, settings, reading)
            # DuckDB opens files only where nothing else gives a column its type.
            untyped = any(pa.types.is_null(t) for table in every for t in table.types.values())
            keys = () if not untyped else None if report is None else report.selected
            bound = runtime.statement(settings, files, every if untyped else (), keys)
            return SparkStatement(bound, files, settings, reading)
        return runtime.statement(settings, files, every) if report is None else reading(report.scan)

    def _close(self, statement: EngineStatement | None) -> None:
        self.statement = self._running = None
        if statement is not None:
            statement.close()


@translates_errors
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
        counter = runtime.store.counter
        calls, data_bytes = counter.to_dict(), counter.data_bytes
        plans = plans or PlanCache()
        started = time.perf_counter()
        if select.tree is None:
            bound = bind_unplanned(select, table_names(select.text), known, parameters)
        else:
            bound = plans.bind(select, known, parameters)
        phases = {"parse": parse_seconds, "bind": time.perf_counter() - started}
        self._context = QueryContext(runtime, settings, plans, pruned, traced, phases, calls, data_bytes)
        self._attempt = Attempt(bound)
        self.execution: Execution | None = None  # what goes on, or went on last
        self._account: Account | None = None
        self._work: Work | None = None
        self._schema: pa.Schema | None = None
        if bound.suspects:
            # The engine judges names that nothing explains; if it agrees, all of them are reported.
            try:
                self._describe()
            except SqlError as e:
                raise self._unknown_names() if e.code in _NAME_ERRORS else e from None

    def _unknown_names(self) -> UnknownNameError:
        from kartosql.plan.unquoted import with_hints

        bound, context = self._attempt.bound, self._context
        files = FileAccess(context.runtime.store)
        with contextlib.suppress(KartosqlError), context.runtime.planner(context.settings, files) as p:
            bound = replace(bound, suspects=with_hints(bound.suspects, bound.walked, p))
        return bound.unknown_names()

    def _describe(self) -> pa.Schema:
        with contextlib.closing(self._without_files()) as statement:
            return statement.describe(self._attempt.bound)

    def _without_files(self) -> DuckStatement:
        runtime = self._context.runtime
        return runtime.statement(self._context.settings, FileAccess(runtime.store), keys=())

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result, from binding alone: no data file is opened, except for PIVOT."""
        if self._table is not None or self._attempt.bound.has_dynamic_columns:
            return self.arrow().schema
        if self._schema is None:
            self._schema = self._describe()
        return self._schema

    @property
    def report(self) -> ScanReport:
        """What the query reads and why, planned at first use; raises what running it on Spark would refuse."""
        if self._report is None:
            self._report = self._with_fallbacks(self._plan_to_explain)[1]
        report, runtime = self._report, self._context.runtime
        # Sizes of files that are not selected; only a report shows them, no run needs them.
        tables = [t for o in report.scan.occurrences for p in o.occurrence.source.parts for t in p.tables]
        if runtime.store.is_local and sum(len(t.files) for t in tables) <= STAT_LIMIT:
            report.sizes.update({**runtime.sizes_of(tables), **report.sizes})
        return report

    @property
    def scan(self) -> Scan:
        """What the query would read, planned each time."""
        return self._with_fallbacks(Execution.plan)[1].scan

    def _plan_to_explain(self, execution: Execution) -> ScanReport:
        # Who asks for a report before the run wants to know about each step.
        report = execution.plan(traced=True)
        if self._context.settings["engine"] == "spark":
            execution.check_spark(report)
        return report

    @property
    def stats(self) -> dict[str, Any] | None:
        """What was really read; None until the query ran to its end."""
        return None if self._account is None else self._account.stats

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The operators of the engine in the last run, as far as it tells; none until that came to its end."""
        return () if self._account is None else self._account.operators

    @property
    def progress(self) -> Progress | None:
        """How far the query is, from any thread; None if it does not run."""
        return None if self.execution is None else self.execution.progress

    def learn_sizes(self) -> None:
        """Learn the sizes of all files of the tables, for an account of what was not read.

        Of a remote store this lists each dataset once, as long as it does not change. Raises ``store-failed``.
        """
        runtime, report = self._context.runtime, self._report
        if report is not None and not runtime.store.is_local:
            tables = [t for o in report.scan.occurrences for p in o.parts for t in p.part.tables]
            report.sizes.update({**runtime.sizes_of(tables), **report.sizes})

    def interrupt(self) -> None:
        """Stop the query if it runs, from any thread."""
        if self._work is not None:
            self._work.stop()

    def _working(self) -> contextlib.AbstractContextManager[None]:
        """Be at work, which other threads can stop; what is in memory needs nothing."""
        return contextlib.nullcontext() if self._table is not None else self._context.runtime.works.one()

    def _with_fallbacks(self, carry_out: Callable[[Execution], _T]) -> tuple[Execution, _T]:
        """Return the first execution that does not fail and what comes of it; raises what ended the last one."""
        attempt = self._attempt
        while True:
            self.execution = execution = Execution(self._context, attempt)
            try:
                return execution, carry_out(execution)
            except KartosqlError as e:
                following = attempt.fallback(e, chose_spark=execution.chose_spark)
                if following is None:
                    raise self._told(e) from None
                if following.bound is not attempt.bound:
                    self._context.plans.correct(following.bound)
                self._attempt = attempt = following

    def _told(self, error: KartosqlError) -> KartosqlError:
        """Return an error; where a file of an earlier version is missing, one about the version.

        It was there when the statement was planned, so a cleanup has removed it: versions that are not kept go.
        """
        if not isinstance(error, FormatError) or error.code != "missing-file":
            return error
        for at in self._attempt.bound.occurrences:
            tables = [part.table for part in at.source.parts if at.as_of is not None]
            for table in (t for t in tables if isinstance(t, DatasetTable)):
                keys = [*table.files, *(index.key for index in table.indices.values() if index.key is not None)]
                if any(f"{key.rpartition('/')[2]}'" in error.message for key in keys):
                    from kartosql.formats.kartothek.versions import gone

                    version = at.as_of[1] if isinstance(at.as_of, tuple) else at.moment or 0
                    why = f"it is not kept any more. {error.message[:-1]}"
                    return gone(table.uuid.rpartition("/")[2], version, why)
        return error

    def reader(self) -> pa.RecordBatchReader:
        """Run the query and return its stream of record batches."""
        if self._table is not None:
            return self._table.to_reader()
        self._work = work = self._context.runtime.works.begin()
        try:
            with work:
                execution, (schema, batches, types) = self._with_fallbacks(Execution.begin)
        except BaseException:
            work.end()
            raise
        self._report, self._schema, self._types = execution.report, schema, types
        return pa.RecordBatchReader.from_batches(schema, self._passed_on(batches, execution, work))

    def _passed_on(
        self, batches: Iterator[pa.RecordBatch], execution: Execution, work: Work
    ) -> Iterator[pa.RecordBatch]:
        """Pass the batches on; afterwards note what was read and free the engine."""
        rows = 0
        try:
            while True:
                with translated_errors(), work:
                    batch = next(batches, None)
                if batch is None:
                    break
                rows += batch.num_rows
                yield batch
        except FormatError as e:
            raise self._told(e) from None
        finally:
            work.end()
            self._account = execution.end(rows)

    def spark_frame(self, spark: Any) -> Any:
        """Return the result as a DataFrame of a Spark session, index-pruned, which runs when rows are asked for.

        The setting ``engine`` has to be ``spark``. Raises ``not-portable`` where Spark's answer
        would not be DuckDB's.
        """
        execution = Execution(self._context, self._attempt)
        try:
            return execution.frame(spark)
        finally:
            self._report = execution.report or self._report

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The values of the parameters, by the names that conditions of the plan give them."""
        parameters = self._attempt.bound.parameters
        return parameters if isinstance(parameters, Mapping) else {}

    @property
    def sources(self) -> tuple[Table, ...]:
        """The tables of the statement, one per place that names one."""
        return self._attempt.bound.sources

    def answer_over(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the answer over other data, one table in memory for each of ``sources``."""
        bound = self._attempt.bound
        sources = [arrow_table(s.name, t) for s, t in zip(self.sources, tables, strict=True)]
        pairs = zip(bound.occurrences, sources, strict=True)
        bound = replace(bound, occurrences=tuple(replace(o, source=source) for o, source in pairs))
        with contextlib.closing(self._without_files()) as statement:
            statement.prepare(bound, Scan(()))
            schema, batches, _ = statement.stream(bound)
            return pa.Table.from_batches(list(batches), schema)


def _residual(bound: BoundQuery, occurrence_id: int) -> str | None:
    """Return the WHERE that rows of an occurrence are still checked for."""
    for scope in bound.walked.scopes:
        where = scope.select.args.get("where")
        if where is not None and any(s.id == occurrence_id for s in scope.sources):
            span = span_of(where.this)
            return str(where.this.sql("duckdb")) if span is None else bound.select.text[span[0] : span[1]]
    return None


def _obstacle(report: ScanReport, files: FileAccess) -> str | None:
    """Return why Spark cannot read the files of a report, None if it can."""
    from kartosql.engines.spark.engine import check_reach

    try:
        check_reach(report.scan, files.store)
    except KartosqlError as e:
        return e.message
    return None


def _bytes_used(report: ScanReport, files: FileAccess, enough: int) -> int:
    """Return how many bytes the columns used take in the files of a report, by their footers."""
    # Once it is more than ``enough``, no more footers are read.
    from kartosql.parquet import bytes_of_columns

    files.stat(report.selected)
    total = 0
    for occurrence in report.scan.occurrences:
        used = occurrence.occurrence.read
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
