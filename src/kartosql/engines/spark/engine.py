"""One statement on Spark: views over its scan, DuckDB's plan as Spark SQL, Arrow batches."""

from __future__ import annotations

import re
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa

from kartosql import stopping
from kartosql.engines.base import JoinOrder, Measured
from kartosql.engines.duckdb.logical import Logical
from kartosql.engines.duckdb.statement import DuckStatement, FileAccess
from kartosql.engines.spark.connect import configured, queried, register_view
from kartosql.engines.spark.listing import Places, moved
from kartosql.engines.spark.profile import SparkProfile
from kartosql.engines.spark.scan import READS, FileShapes, ScanFrames, check_types, stored_columns
from kartosql.engines.spark.session import check_session, is_connect, isolated, keeping_active, quiet, session
from kartosql.engines.spark.session import translate as error_of
from kartosql.engines.spark.translate import Translation, translate
from kartosql.errors import ExecutionError, NotPortable, Span
from kartosql.plan.bind import BoundQuery, PivotValues
from kartosql.plan.scan import OccurrenceScan, Scan
from kartosql.settings import Settings
from kartosql.sql.tree import Edit
from kartosql.store import Files
from kartosql.text.constants import quote as duckdb_quote
from kartosql.text.report import human_bytes

BATCH_ROWS = 100_000
MAX_TEXT = 1 << 30  # bytes of CSV files whose rows go through the memory of the driver
# What translated statements rely on, besides the settings that reading has.
SETTINGS: Mapping[str, str] = {
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.orderByOrdinal": "false",
    "spark.sql.groupByOrdinal": "false",
    "spark.sql.crossJoin.enabled": "true",
    "spark.sql.cteRecursionLevelLimit": "-1",
    "spark.sql.cteRecursionRowLimit": "-1",
    # Statistics of floats inside of structs leave NaN out.
    "spark.sql.optimizer.nestedPredicatePushdown.supportedFileSources": "",
}
_shapes: weakref.WeakKeyDictionary[Files, FileShapes] = weakref.WeakKeyDictionary()


class SparkStatement:
    """A statement that DuckDB binds and Spark runs; see ``engines.base``.

    ``statement`` is a statement of DuckDB without files, which lives as long as this one: it
    holds the clock, and ``reading`` begins one that reads the files of a scan. A Spark session is
    taken, or started, when views are made.
    """

    def __init__(
        self, statement: DuckStatement, files: FileAccess, settings: Settings, reading: Callable[[Scan], DuckStatement]
    ) -> None:
        self._statement = statement
        self._reading = reading
        self._files = files
        self._settings = settings
        self._zone = str(settings["TimeZone"])
        self._tag = f"kartosql-{uuid.uuid4().hex}"
        self._spark: Any = None
        self._frame: Any = None  # the answer, in a session of Spark Connect
        self._share: float | None = None
        self._profile = SparkProfile()
        self._logical = Logical(statement)
        self._translation: Translation | None = None
        self._pivot: PivotValues | None = None
        self._schema: pa.Schema | None = None
        self._interrupted = self._timed_out = False
        self._open = ExitStack()

    def clock(self, function: str) -> str | None:
        """Return the literal that a function of the clock stands for, as DuckDB's statement has it."""
        return self._statement.clock(function)

    def describe(self, query: BoundQuery) -> pa.Schema:
        """Return the Arrow schema of the output, which DuckDB tells without Spark."""
        return self._statement.describe(query)

    def prepare(self, query: BoundQuery, scan: Scan) -> None:
        """Translate the statement and create its views; raises ``not-portable`` before a session is started."""
        self.check(query, scan)
        with self._errors():
            outer = session()
            if is_connect(outer):
                self._frame = self._moved(query, scan, outer)
            else:
                self._create_views(query, scan, outer)

    def translate(self, query: BoundQuery, scan: Scan) -> tuple[Translation, pa.Schema]:
        """Translate the statement to Spark SQL; raises ``not-portable`` and what DuckDB says of the statement."""
        collation = self._settings["default_collation"]
        if collation is not None and str(collation).lower() not in ("binary", "c", "posix"):
            raise NotPortable(f"Spark does not compare texts by the collation {collation!r} as DuckDB does.")
        self._check_texts(query, scan)
        self._pivot = query.pivot_values() if query.is_pivot else None
        if query.is_pivot and self._pivot is None:
            raise NotPortable(
                "Spark does not answer PIVOT as DuckDB does unless it lists the values.",
                sql=query.select.text,
                hint="Write SELECT * FROM t PIVOT (... FOR column IN (...)), or use engine='duckdb' or 'auto'.",
            )
        if self._pivot is None:
            return self._translated(query, scan)
        self._translated(query, scan, self._pivot.listed([None]))  # what Spark refuses of it hangs on no value
        return self._translated(query, scan, *self._pivot.query)

    def _translated(self, query: BoundQuery, scan: Scan, *edits: Edit) -> tuple[Translation, pa.Schema]:
        if edits:
            query = replace(query.edited(edits), edits=(*query.edits, *edits))
        plan = self._logical.plan(query, scan)
        try:
            found = translate(
                plan.tree,
                {key: _view(id_) for key, id_ in plan.occurrences.items()},
                self._logical.fold,
                is_volatile=plan.volatile.__contains__,
                zone=self._zone,
                span_of=plan.span_of,
            )
        except NotPortable as e:
            e.sql = query.select.text
            e.span = e.span or _named(e.message, e.sql)
            e.hint = e.hint or "Use engine='duckdb' or 'auto', which gives it to DuckDB."
            raise
        self._translation, self._schema = found, plan.schema
        return found, plan.schema

    def check(self, query: BoundQuery, scan: Scan) -> None:
        """Raise what ``prepare`` would refuse, without a session; files are not opened."""
        self.translate(query, scan)
        check_reach(scan, self._files.store)
        for found in scan.occurrences:
            check_types(found)
        for data in (o.source.data for o in query.occurrences if o.source.data is not None):
            stored_columns(data, {})

    def frame(self, query: BoundQuery, scan: Scan, spark: Any) -> Any:
        """Return the result as a DataFrame of the session ``spark``, which runs it when it is asked for rows."""
        self.translate(query, scan)
        return self._moved(query, scan, spark)

    def _moved(self, query: BoundQuery, scan: Scan, spark: Any) -> Any:
        # What reading depends on comes with it, so that one change is enough; names are written as they are.
        settings = {**READS, **self._spark_settings, "spark.sql.caseSensitive": "true"}
        with self._errors(), configured(spark, settings):
            self._create_views(query, scan, spark)
            assert self._translation is not None
            assert self._schema is not None
            return moved(queried(self._spark, self._translation.sql).toDF(*self._schema.names), spark)

    @property
    def _spark_settings(self) -> Mapping[str, str]:
        found = {**SETTINGS, "spark.sql.session.timeZone": self._zone}
        if self._is_recursive:  # filters that Spark derives from joins are not resolved there
            found["spark.sql.optimizer.dynamicPartitionPruning.enabled"] = "false"
        return found

    @property
    def _is_recursive(self) -> bool:
        return self._translation is not None and self._translation.sql.startswith("WITH RECURSIVE ")

    def _create_views(self, query: BoundQuery, scan: Scan, outer: Any) -> None:
        assert self._translation is not None
        if self._is_recursive and str(outer.version) < "4.1":
            raise NotPortable("Spark has recursive queries from 4.1 on.")
        self._open.enter_context(keeping_active(outer))
        self._spark = isolated(outer, self._spark_settings)
        store = self._files.store
        frames = ScanFrames(self._spark, store, _shapes.setdefault(store, FileShapes()))
        for found in scan.occurrences:
            frame = frames.registered(self._rows(query, found), {}) if _is_text(found) else frames.frame(found)
            register_view(frame, _view(found.occurrence.id))
        for occurrence in query.occurrences:
            if (data := occurrence.source.data) is not None:
                register_view(frames.registered(data, occurrence.source.exposed), _view(occurrence.id))
        if self._pivot is not None:
            values = self._values(self._translation.sql)
            if not values:
                raise NotPortable("Spark does not answer a PIVOT without values as DuckDB does.")
            self._translated(query, scan, self._pivot.listed(values))

    def _check_texts(self, query: BoundQuery, scan: Scan) -> None:
        for found in filter(_is_text, scan.occurrences):
            size = sum(self._files.sizes.get(key) or 0 for part in found.parts for key in part.opened)
            if self._settings["engine"] == "auto" or size > MAX_TEXT:
                raise NotPortable(
                    f"Spark reads CSV in another way than DuckDB, which would read {found.occurrence.source.name!r} "
                    f"for it: {human_bytes(size)}, where at most {human_bytes(MAX_TEXT)} are handed over.",
                    span=found.occurrence.span,
                    sql=query.select.text,
                    hint="Make a dataset of it: CREATE DATASET ... AS SELECT ...; or use engine='duckdb' or 'auto'.",
                )

    def _rows(self, query: BoundQuery, found: OccurrenceScan) -> pa.Table:
        """Return the rows of a table occurrence as DuckDB reads them."""
        scan = Scan((found,))
        with closing(self._reading(scan)) as statement, statement.errors(query.select.text):
            statement.prepare(query, scan)
            return statement.table(f"SELECT * FROM {'.'.join(map(duckdb_quote, found.occurrence.view))}")

    def _values(self, text: str) -> list[Any]:
        """Return the values of the only column of a query."""
        over_connect = is_connect(self._spark)
        self._frame = queried(self._spark, text) if over_connect else None
        with stopping.running(self.interrupt), self._limited():
            return list((self._over_connect() if over_connect else self._in_classic(text)).column(0).to_pylist())

    def stream(
        self, query: BoundQuery, *, joins: JoinOrder = JoinOrder.COMPARED
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch], list[str]]:
        """Run the prepared statement as a job; returns schema, batches and DuckDB types of the output."""
        # ``joins`` is for DuckDB's statements; Spark always chooses the order of joins.
        assert self._translation is not None
        assert self._schema is not None
        types = [t.sql() for t in self._translation.types]
        return self._schema, self._batches(self._translation.sql, self._schema), types

    def _batches(self, text: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with stopping.running(self.interrupt), self._errors(), self._limited():
            table = self._over_connect() if self._frame is not None else self._in_classic(text)
        # In the Arrow types and with the names that DuckDB's result has.
        columns = [_fitted(column, field.type) for column, field in zip(table.columns, schema, strict=True)]
        yield from pa.Table.from_arrays(columns, schema=schema).to_batches(BATCH_ROWS)

    def _in_classic(self, text: str) -> pa.Table:
        self._spark.sparkContext.addJobTag(self._tag)
        try:
            frame = self._spark.sql(text)
            found = frame.toArrow()
            self._profile.plan = frame._jdf.queryExecution().executedPlan()
            return found
        finally:
            self._spark.sparkContext.removeJobTag(self._tag)

    def _over_connect(self) -> pa.Table:
        def noted(stages: Any, *_: Any, **__: Any) -> None:
            tasks = sum(stage.num_tasks for stage in stages or ())
            self._share = sum(stage.num_completed_tasks for stage in stages) / tasks if tasks else None
            if self._interrupted or self._timed_out:
                self._stop()  # once more: what was stopped before it began knows nothing of that

        self._spark.addTag(self._tag)
        self._spark.registerProgressHandler(noted)
        try:
            # Not ``toArrow``, which asks for the schema before.
            return self._frame._to_table()[0]
        finally:
            self._spark.removeProgressHandler(noted)
            self._spark.removeTag(self._tag)

    # -- control ---------------------------------------------------------------------------------

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with stopping.interrupts(), quiet():
                yield
        except Exception as e:  # noqa: BLE001 - whatever comes out of the JVM
            raise error_of(e, interrupted=self._interrupted, timed_out=self._timed_out) from None

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """Stop the jobs of the statement when its time is over."""
        if self._interrupted:
            raise ExecutionError("The statement was interrupted.", code="interrupted")
        seconds = self._settings["timeout"]
        if seconds is None:
            yield
            return

        def time_out() -> None:
            self._timed_out = True
            self._stop()

        timer = threading.Timer(seconds, time_out)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def interrupt(self) -> None:
        """Stop planning and the jobs of the run, from any thread."""
        self._interrupted = True
        self._statement.interrupt()
        self._stop()

    def _stop(self) -> None:
        if self._frame is not None:
            self._spark.interruptTag(self._tag)
        elif self._spark is not None and not is_connect(self._spark):
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def fraction(self) -> float | None:
        """Return the share of the tasks of active stages that is done, from any thread; None if nobody knows.

        Stages of other statements in the session count as well: a session of our own has none.
        """
        if self._spark is None or is_connect(self._spark):
            return self._share
        try:
            tracker = self._spark.sparkContext.statusTracker()
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # noqa: BLE001 - whatever comes out of the JVM; a statement goes on without its progress
            return None
        tasks = sum(stage.numTasks for stage in stages if stage is not None)
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        return done / tasks if tasks else None

    def measured(self) -> Measured:
        """Return what tells about the run."""
        return self._profile

    def rest(self, kept: bool) -> None:
        """End the statement; nothing of it is used again."""
        self.close()

    def close(self) -> None:
        """Free the engine that bound the statement."""
        try:
            self._open.close()
        finally:
            self._statement.close()


def check_reach(scan: Scan, store: Files) -> None:
    """Raise what keeps Spark from the files of a scan, whatever the statement: their stores, no Java, no PySpark."""
    places = Places(store)
    for part in (part for occurrence in scan.occurrences for part in occurrence.parts):
        for file in part.files[:1]:  # all files of a table are in one store
            places.of(part.part.table.files[file])
    check_session()


def _named(message: str, text: str) -> Span | None:
    """Return the place of the function that a message names; plans do not keep those of aggregates."""
    named = re.search(r"answer (\w+)", message)
    found = re.search(rf"\b{named[1]}\s*\(", text, re.IGNORECASE) if named else None
    return found.span() if found else None


def _view(occurrence: int) -> str:
    return f"__kartosql_occurrence_{occurrence}"


def _fitted(column: pa.ChunkedArray, type_: pa.DataType) -> Any:
    if pa.types.is_null(type_):
        return pa.nulls(len(column), type_)
    if pa.types.is_interval(type_):
        return pa.chunked_array([_intervals(chunk) for chunk in column.chunks], type_)
    try:
        return column.cast(type_)
    except pa.ArrowNotImplementedError:  # lists of nothing but NULL, of which no type is known
        return pa.array(column.to_pylist(), type_)


def _intervals(structs: pa.StructArray) -> pa.Array:
    """Return intervals of months, days and microseconds as Arrow has them: two numbers of 32 bits and one of 64."""
    import numpy as np

    made = np.zeros(len(structs), [("months", "i4"), ("days", "i4"), ("nanos", "i8")])
    for name, part in zip(made.dtype.names or (), structs.flatten(), strict=True):
        made[name] = part.fill_null(0).to_numpy() * (1000 if name == "nanos" else 1)
    mask = pa.array(structs.is_valid().to_numpy(zero_copy_only=False)).buffers()[1]
    return pa.Array.from_buffers(pa.month_day_nano_interval(), len(made), [mask, pa.py_buffer(made)])


def _is_text(scan: OccurrenceScan) -> bool:
    """Return whether rows of a table occurrence are those of CSV files, as readers of these differ."""
    return not all(part.part.table.has_footers for part in scan.parts)
