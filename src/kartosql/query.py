"""A query and its result: Arrow first; rows, data frames and files on top."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.engines.duckdb import FileAccess, Planner, Runtime, Statement, table_names
from kartosql.errors import ExecutionError, LimitError, SqlError, UsageError
from kartosql.plan.bind import BoundQuery, Parameters, bind, bind_unplanned
from kartosql.plan.less import counted
from kartosql.plan.prune import prune
from kartosql.plan.report import ScanReport, human_bytes
from kartosql.plan.scan import Scan
from kartosql.plan.tables import Tables
from kartosql.settings import Settings
from kartosql.sql.statements import Select

if TYPE_CHECKING:
    import pandas
    import polars

STAT_LIMIT = 10_000  # files whose sizes are asked for a report
REMOTE_STAT_LIMIT = 200
PREVIEW_ROWS = 20
_NAME_ERRORS = ("unknown-column", "unknown-table", "invalid-query")


class Query:
    """The result of a statement.

    A SELECT is lazy: it runs when rows are asked for, and ``arrow()`` and what builds on it
    keeps them. ``stats`` tells afterwards what was really read.
    """

    def __init__(self, table: pa.Table | None = None, types: list[str] | None = None) -> None:
        self._table = table
        self._types = types
        self.stats: dict[str, Any] | None = None

    # -- what it looks like ------------------------------------------------------------------

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self.schema.names)

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the result; for a SELECT known without running it."""
        return self.arrow().schema

    @property
    def report(self) -> ScanReport | None:
        """The ScanReport of a SELECT, None for other statements."""
        return None

    def explain(self) -> ScanReport:
        """Return what the query will read and why; raises ``not-explainable`` for statements that scan nothing."""
        report = self.report
        if report is None:
            raise UsageError("Only a SELECT can be explained.", code="not-explainable")
        return report

    def __repr__(self) -> str:
        from kartosql.render import tables

        return tables.preview(self._preview(PREVIEW_ROWS + 1), PREVIEW_ROWS)

    def _repr_html_(self) -> str:
        from kartosql.render import html

        return html.table(self._preview(PREVIEW_ROWS + 1), PREVIEW_ROWS)

    def _preview(self, rows: int) -> pa.Table:
        """Return the first rows; a query that did not run yet is stopped behind them."""
        if self._table is not None:
            return self._table.slice(0, rows)
        reader = self.reader()
        batches, count = [], 0
        for batch in reader:
            batches.append(batch)
            count += batch.num_rows
            if count >= rows:
                break
        preview = pa.Table.from_batches(batches, reader.schema).slice(0, rows)
        reader.close()
        return preview

    # -- what it holds -----------------------------------------------------------------------

    def arrow(self) -> pa.Table:
        """Return the result as an Arrow table; the query runs once."""
        if self._table is None:
            self._table = self.reader().read_all()
        return self._table

    def reader(self) -> pa.RecordBatchReader:
        """Return the result as a stream of record batches; each call of a SELECT runs it."""
        return self.arrow().to_reader()

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the result as Python tuples.

        128-bit integers are int, decimals Decimal; dates and timestamps beyond what Python's
        datetime holds (years after 9999, nanoseconds, infinity) are text.
        """
        return list(self)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        table = self.arrow()
        types = self._types or [""] * table.num_columns
        columns = [_python_values(c, t) for c, t in zip(table.columns, types, strict=True)]
        return iter(list(zip(*columns, strict=True)) if columns else [()] * table.num_rows)

    def __len__(self) -> int:
        return int(self.arrow().num_rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def df(self) -> pandas.DataFrame:
        """Return the result as pandas DataFrame; raises ``missing-extra`` without pandas."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise UsageError(
                "pandas is not installed.", code="missing-extra", hint="pip install 'kartosql[pandas]'"
            ) from None
        frame: pandas.DataFrame = self.arrow().to_pandas()
        return frame

    def pl(self) -> polars.DataFrame:
        """Return the result as polars DataFrame; raises ``missing-extra`` without polars."""
        try:
            import polars
        except ImportError:
            raise UsageError(
                "polars is not installed.", code="missing-extra", hint="pip install 'kartosql[polars]'"
            ) from None
        frame = polars.from_arrow(self.arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def write(self, path: str, format: str | None = None) -> int:  # noqa: A002
        """Write the result to a file and return the number of rows.

        The format follows from the suffix (parquet, arrow, csv, tsv, json, jsonl) unless
        given. Raises ``invalid-argument`` and ``store-failed``.
        """
        from kartosql.render import write_file

        return write_file(self.reader(), path, format)


def _python_values(column: pa.ChunkedArray, type_: str) -> list[Any]:
    try:
        if type_ in ("HUGEINT", "UHUGEINT"):
            return [None if v is None else int(v) for v in column.to_pylist()]
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = column.cast(pa.timestamp("us", column.type.tz))
        if pa.types.is_interval(column.type):
            return [_timedelta(v) for v in column.to_pylist()]
        return list(column.to_pylist())
    except (OverflowError, ValueError, pa.ArrowException):
        return [_python_value(v) for v in column]


def _timedelta(value: Any) -> Any:
    """Return an interval as timedelta, unless it has months, whose length differs, or parts of microseconds."""
    if value is None or value.months or value.nanoseconds % 1000:
        return value
    return dt.timedelta(days=value.days, microseconds=value.nanoseconds // 1000)


def _python_value(scalar: pa.Scalar) -> Any:
    """Return one value; dates and timestamps that Python's datetime cannot hold are text."""
    if not scalar.is_valid:
        return None
    type_ = scalar.type
    if pa.types.is_list(type_):
        return [_python_value(v) for v in scalar]
    if pa.types.is_struct(type_):
        return {name: _python_value(value) for name, value in scalar.items()}
    try:
        if not (pa.types.is_timestamp(type_) and type_.unit == "ns"):
            return scalar.as_py()
    except (OverflowError, ValueError):
        pass
    from kartosql.render import temporal

    texts = temporal.dates if pa.types.is_date(type_) else temporal.timestamps
    return texts(pa.array([scalar], type_))[0]


class SelectQuery(Query):
    """A SELECT: bound to a snapshot when it is made, planned and run when rows are asked for."""

    def __init__(
        self, select: Select, known: Tables, runtime: Runtime, settings: Settings, parameters: Parameters = None
    ) -> None:
        super().__init__()
        self._before = runtime.store.counter.to_dict()
        self._runtime = runtime
        self._store = runtime.store
        self._settings = settings
        if select.tree is None:
            self._bound = bind_unplanned(select, table_names(select.text), known, parameters)
        else:
            self._bound = bind(select, known, parameters)
        self._report: ScanReport | None = None
        self._schema: pa.Schema | None = None
        self._running: Planner | Statement | None = None
        self._interrupted = False
        if self._bound.suspects:
            self._check_suspects()

    def _check_suspects(self) -> None:
        """Let the engine judge names that nothing explains, and report all of them if it agrees."""
        try:
            self._describe()
        except SqlError as e:
            raise self._bound.unknown_names() if e.code in _NAME_ERRORS else e from None

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
        """What the query reads and why; planned at first use."""
        if self._report is None:
            self._report = self._plan(FileAccess(self._store))
        self._add_totals(self._report)
        return self._report

    def _add_totals(self, report: ScanReport) -> None:
        """Note the sizes of the files that are not selected; only a report shows them, no run needs them."""
        every = [key for o in report.scan.occurrences for p in o.parts for key in p.part.table.files]
        if self._store.is_local and len(every) <= STAT_LIMIT:
            report.sizes.update({**self._runtime.sizes_of(every), **report.sizes})

    def interrupt(self) -> None:
        """Stop the query if it runs, from any thread."""
        self._interrupted = True
        if self._running is not None:
            self._running.interrupt()

    # -- planning and running ------------------------------------------------------------------

    def _plan(self, files: FileAccess) -> ScanReport:
        with self._runtime.planner(self._settings, files) as planner:
            self._running = planner
            try:
                with planner.errors(self._bound.select.text):
                    scan = prune(self._bound, planner.evaluator)
            finally:
                self._running = None
        return self._account(scan, files)

    def _account(self, scan: Scan, files: FileAccess) -> ScanReport:
        residuals = {o.occurrence.id: w for o in scan.occurrences if (w := _residual(self._bound, o.occurrence.id))}
        report = ScanReport(self._bound.select.text, "duckdb", "", scan, files.sizes, residuals)
        count = report.files_selected
        if (
            count <= (STAT_LIMIT if self._store.is_local else REMOTE_STAT_LIMIT)
            or self._settings["max_bytes"] is not None
        ):
            files.stat(report.selected)
        total = report.bytes_selected
        size = "" if total is None else f", {human_bytes(total)}"
        reason = f"{count:,} {'file' if count == 1 else 'files'}{size}: one machine is enough"
        return replace(report, engine_reason=reason)

    def _check_budget(self, report: ScanReport) -> None:
        limit = self._settings["max_bytes"]
        if limit is None:
            return
        total = sum(report.sizes.get(key) or 0 for key in report.selected)
        if total > limit:
            raise LimitError(
                f"The scan would read up to {human_bytes(total)}, the limit is {human_bytes(limit)}.",
                code="byte-budget",
                hint="Narrow the conditions, see EXPLAIN, or raise max_bytes.",
            )

    def reader(self) -> pa.RecordBatchReader:
        """Run the query and return its stream of record batches."""
        if self._table is not None:
            return self._table.to_reader()
        started = time.perf_counter()
        self._interrupted = False
        files = FileAccess(self._store)
        report = self._plan(files)
        self._check_budget(report)
        statement = self._start(report, files)
        try:
            bound = counted(self._bound, report.scan)
            statement.prepare(bound, report.scan)
            planned = time.perf_counter()
            if self._interrupted:
                raise ExecutionError("The statement was interrupted.", code="interrupted")
            schema, batches, self._types = statement.stream(bound)
        except SqlError as e:
            self._end(statement)
            if e.code == "unknown-column" and any(o.columns is not None for o in self._bound.occurrences):
                # A reference was overlooked; with every column there the engine can find it.
                for occurrence in self._bound.occurrences:
                    occurrence.all_used = True
                return self.reader()
            raise
        except BaseException:
            self._end(statement)
            raise
        self._report = report
        self._schema = schema
        return pa.RecordBatchReader.from_batches(schema, self._finish(batches, statement, report, started, planned))

    def _start(self, report: ScanReport, files: FileAccess) -> Statement:
        tables = [p.part.table for o in report.scan.occurrences for p in o.parts]
        statement = self._runtime.statement(self._settings, files, tables, report.selected)
        self._running = statement
        return statement

    def _end(self, statement: Statement) -> None:
        self._running = None
        statement.close()

    def _finish(
        self,
        batches: Iterator[pa.RecordBatch],
        statement: Statement,
        report: ScanReport,
        started: float,
        planned: float,
    ) -> Iterator[pa.RecordBatch]:
        """Pass the batches on; afterwards note what was read and free the engine."""
        rows = 0
        try:
            for batch in batches:
                rows += batch.num_rows
                yield batch
        finally:
            ended = time.perf_counter()
            self.stats = {
                "rows": rows,
                "seconds": round(ended - started, 6),
                "plan_seconds": round(planned - started, 6),
                "run_seconds": round(ended - planned, 6),
                "engine": report.engine,
                "files_total": report.files_total,
                "files_read": report.files_selected,
                "bytes_selected": report.bytes_selected,
                **statement.measured(),
                "store": {k: n - self._before[k] for k, n in self._store.counter.to_dict().items()},
            }
            self._end(statement)


def _residual(bound: BoundQuery, occurrence_id: int) -> str | None:
    """Return the WHERE that rows of an occurrence are still checked for."""
    for scope in bound.walked.scopes:
        where = scope.select.args.get("where")
        if where is not None and any(
            s.occurrence is not None and s.occurrence.id == occurrence_id for s in scope.sources
        ):
            return str(where.this.sql("duckdb"))
    return None
