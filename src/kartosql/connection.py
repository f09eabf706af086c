"""The connection: one store, its settings, and the statements that run over it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from kartosql.attaching import Attaching
from kartosql.engines.duckdb import Runtime, check_setting
from kartosql.errors import SqlError, UsageError
from kartosql.failures import reraise, tells_failures
from kartosql.formats.kartothek.cache import MetadataCache
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.histories import Histories
from kartosql.plan.bind import Parameters
from kartosql.plan.cache import PlanCache
from kartosql.plan.report import ScanReport
from kartosql.query import SelectQuery
from kartosql.result import Query
from kartosql.settings import SETTINGS, Settings, find
from kartosql.sql import Attach, Describe, Detach, Inspect, Reset, Select, Set, Show, parse
from kartosql.sql.shapes import ParsedTexts
from kartosql.sql.statements import VerifyData, Write
from kartosql.store import Mounts, Store
from kartosql.tables.names import Tables
from kartosql.tables.table import Table, arrow_table
from kartosql.upkeep import Upkeep

if TYPE_CHECKING:
    from kartosql.conditions import Conjunction
    from kartosql.insight import Session
    from kartosql.insight.coverage import Coverage


def connect(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    engine: str = "auto",
    read_only: bool = False,
    attach: bool | Sequence[str | os.PathLike[str]] | None = None,
    **settings: Any,
) -> Connection:
    """Open a store of cubes and datasets.

    ``url`` is a local path or any fsspec URL, ``storage_options`` go to its filesystem.
    ``attach`` says what may be attached: all, nothing, or what lies below some URLs; without it
    all, but nothing if the connection is ``read_only``. Other keywords are settings (see
    docs/python.md). Raises ``store-not-found``, ``store-failed``, ``unknown-setting`` and
    ``invalid-setting``.
    """
    attachable = not read_only if attach is None else attach
    values = Settings({"engine": engine, "attach": attachable, **settings}, check_setting)
    return Connection(Store(url, storage_options), values, read_only=read_only, storage_options=storage_options)


def connect_as_owner(
    url: str,
    *,
    write: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    attach: Any = True,
    **settings: Any,
) -> Connection:
    """Open a store for somebody who writes the statements and may do whatever the process may, as on the command line.

    Without ``write`` it is read-only to guard against slips; SET and ATTACH are not restrained.
    """
    found = connect(url, storage_options=storage_options, read_only=not write, attach=attach, **settings)
    found.is_of_owner = True
    return found


@tells_failures
class Connection(Upkeep, Attaching, Histories):
    """A store, the session's settings and the data registered by the user.

    Each statement lists the store and reads a snapshot of its own, so it sees all that was
    committed before. What did not change since an earlier statement is kept: metadata, index
    lookups, footers of data files, and engines that are locked up for the tables they read.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        read_only: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.read_only = read_only
        self.is_of_owner = False  # whether who writes the statements may do what who opened the connection may
        self._registered: dict[str, Table] = {}
        self._mounts = Mounts(store)
        self._runtime = Runtime(self._mounts)
        self._storage_options = storage_options
        self._attached = None
        self._metadata = MetadataCache()
        self._plans = PlanCache()
        self._parse = ParsedTexts(parse).parse
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kartosql connection to {self.store.url}>"

    def close(self) -> None:
        """Close the connection; what other threads are doing is stopped, results that were made stay usable."""
        self._closed = True
        self._runtime.close()
        if self._runtime.works.is_of_this_process:
            self._registered.clear()
            if self._attached is not None:
                self._attached.close()

    def expect_one_statement(self) -> None:
        """Prepare for one statement and no more, which takes less time then; others still work."""
        self._runtime.expect_one()

    def _open(self) -> None:
        if self._closed:
            raise UsageError("The connection is closed.", code="connection-closed")

    def _snapshot(self) -> Snapshot:
        """Return what the store holds now; documents that did not change are not parsed again."""
        return Snapshot(self.store, self._metadata)

    def _tables(self) -> Tables:
        attached = None if self._attached is None else self._attached.now()
        return Tables(self._snapshot(), self._registered, attached)

    # -- statements ----------------------------------------------------------------------------

    def sql(self, text: str, parameters: Parameters = None, *, engine: str | None = None) -> Query:
        """Run a statement; a SELECT only when its rows are asked for.

        ``parameters`` is a list for ``?`` and ``$1``, a dictionary for ``$name`` and ``:name``.
        Raises SqlError for statements that are not understood (names are resolved at once),
        FormatError and StoreError for what is wrong with the data.
        """
        self._open()
        started = time.perf_counter()
        statement = self._parse(text)
        if isinstance(statement, Select):
            return self._select(statement, parameters, engine, started)
        if isinstance(statement, Inspect):
            return self._inspect(statement, parameters, engine, started)
        if isinstance(statement, Write):
            return self._write(statement, parameters, engine)
        # Imported late, as a SELECT is answered sooner without it.
        from kartosql import catalog

        if isinstance(statement, Describe) and statement.query is not None:
            query = self._select(statement.query, parameters, engine)
            return Query(catalog.describe_schema(query.schema))
        if parameters:
            raise SqlError("This statement takes no parameters.", code="invalid-parameters")
        if isinstance(statement, VerifyData):
            return self._verify_data(statement)
        if isinstance(statement, Attach | Detach):
            return self._attach_or_detach(statement)
        if isinstance(statement, Set | Reset):
            return self._set_or_reset(statement)
        if isinstance(statement, Describe) and (statement.version is not None or statement.as_of is not None):
            return Query(self._describe_past(statement))
        if isinstance(statement, Describe):
            assert statement.target is not None
            return Query(catalog.describe(self._tables().find(statement.target, statement.span, text)))
        assert isinstance(statement, Show)
        return Query(self._show(statement, text))

    def _set_or_reset(self, statement: Set | Reset) -> Query:
        from kartosql import catalog

        name, value = statement.name, statement.value if isinstance(statement, Set) else None
        if not find(name).in_sql:
            raise SqlError(f"The setting {name!r} is given to connect() only.", code="not-allowed", sql=statement.text)
        if value is None:
            self.settings.reset(name)
        elif self.read_only and not self.is_of_owner:
            self.settings.narrow(name, value)
        else:
            self.settings.set(name, value)
        return Query(catalog.settings(self.settings, [name]))

    def _select(
        self,
        select: Select,
        parameters: Parameters,
        engine: str | None,
        started: float | None = None,
        *,
        pruned: bool = True,
        traced: bool = False,
    ) -> SelectQuery:
        parsed = 0.0 if started is None else time.perf_counter() - started
        settings = self.settings.copy()
        if engine is not None:
            settings.set("engine", engine)
        return SelectQuery(
            select,
            self._tables(),
            self._runtime,
            settings,
            parameters,
            plans=self._plans,
            parse_seconds=parsed,
            pruned=pruned,
            traced=traced,
        )

    def _write(self, statement: Write, parameters: Parameters, engine: str | None) -> Query:
        from kartosql.write_sql import WriteStatements

        if self.read_only:
            raise UsageError(
                "The connection is read-only.",
                code="read-only",
                hint="Connect without read_only, on the command line with --write.",
            )
        write = WriteStatements(self, self._runtime, self.settings, self._tables)
        return write.run(statement, parameters, engine=engine)

    def tables(self) -> Tables:
        """Return what names mean now: what stands in the store, and registered data."""
        self._open()
        return self._tables()

    def watch_progress(self) -> None:
        """Let the engine keep account of how far statements are, which ``Query.progress`` tells."""
        self._runtime.watched = True

    def interrupt(self) -> None:
        """Stop all statements, calls and streams of the connection, from any thread; they raise ``interrupted``.

        A commit is not stopped. What a statement has written before is deleted, and nothing of it
        becomes visible. The connection works on.
        """
        self._runtime.works.stop()

    def _working(self) -> contextlib.AbstractContextManager[None]:
        """Be at work, which other threads can stop; raises ``other-process`` in a fork."""
        return self._runtime.works.one()

    def _session(
        self, parameters: Parameters = None, engine: str | None = None, started: float | None = None
    ) -> Session:
        from kartosql.insight import Session

        def query(select: Select, *, on: str | None = None, pruned: bool = True, traced: bool = False) -> SelectQuery:
            return self._select(select, parameters, on or engine, started, pruned=pruned, traced=traced)

        return Session(self.store, self._mounts, self.settings, self._runtime, self._tables, query)

    def _inspect(self, statement: Inspect, parameters: Parameters, engine: str | None, started: float) -> Query:
        from kartosql.insight import inspect

        if parameters and statement.query is None:
            raise SqlError("This statement takes no parameters.", code="invalid-parameters", sql=statement.text)
        return inspect(self._session(parameters, engine, started), statement)

    def _show(self, statement: Show, text: str) -> pa.Table:
        from kartosql import catalog

        what, tables = statement.what, self._tables()
        if what == "settings":
            return catalog.settings(self.settings, list(SETTINGS))
        if what == "cubes":
            return catalog.cubes(tables.snapshot)
        if what == "tables":
            return catalog.tables(tables, self._attachments.tables() if self._attached is not None else ())
        if what == "attached":
            return catalog.attached([] if self._attached is None else self._attached.entries.values())
        if what == "datasets" and statement.target is None:
            return catalog.datasets(tables.snapshot, self._attached_tables(tables))
        assert statement.target is not None
        source = tables.find(statement.target, statement.span, text)
        if what == "schema history":
            from kartosql.schema_log import history_table

            return history_table(source, tables.snapshot)
        if source.data is not None:
            raise SqlError(f"{source.name!r} is registered data, it has no {what}.", code="unknown-table", sql=text)
        show = {
            "datasets": catalog.members,
            "partitions": catalog.partitions,
            "indexes": catalog.indexes,
            "skipping": catalog.skipping,
            "files": catalog.files,
            "stats": catalog.stats,
            "metadata": catalog.metadata,
        }[what]
        return show(source, self._mounts)

    def _describe_past(self, statement: Describe) -> pa.Table:
        from kartosql import catalog
        from kartosql.schema_log import schema_at

        assert statement.target is not None
        tables = self._tables()
        source = tables.find(statement.target, statement.span, statement.text)
        schema = schema_at(source, tables.snapshot, statement.version, statement.as_of)
        return catalog.describe_schema(schema)

    def explain(self, sql: str, parameters: Parameters = None, *, engine: str | None = None) -> ScanReport:
        """Return what a SELECT would read and why, without running it."""
        self._open()
        started = time.perf_counter()
        statement = self._parse(sql)
        if isinstance(statement, Inspect) and statement.query is not None:
            statement = statement.query
        if not isinstance(statement, Select):
            raise UsageError("Only a SELECT can be explained.", code="not-explainable")
        return self._select(statement, parameters, engine, started).report

    def query_cube(
        self,
        cube: Cube | str,
        dimension_columns: str | Iterable[str] | None = None,
        partition_by: str | Iterable[str] | None = None,
        payload_columns: str | Iterable[str] | None = None,
        conditions: Any = None,
        datasets: str | Iterable[str] | None = None,
    ) -> Query | list[Query]:
        """Query a cube as kartothek's ``query_cube`` does, with the same arguments.

        ``cube`` is a Cube or the name of one. ``conditions`` are Condition objects,
        ``(column, op, value)`` tuples or the original's text form; all must hold. Columns of
        the result are sorted by name, rows by the dimension columns as given and then by the
        partition columns. With ``partition_by`` a list of results is returned, one for each
        combination of values, ascending. Raises UsageError for what the original refuses.
        """
        from kartosql.query_cube import query_cube

        self._open()
        return query_cube(
            self._runtime,
            self._snapshot(),
            self.settings,
            cube,
            dimension_columns=dimension_columns,
            partition_by=partition_by,
            payload_columns=payload_columns,
            conditions=conditions,
            datasets=datasets,
        )

    def conditions(self, sql: str, parameters: Parameters = None) -> Conjunction:
        """Return what the WHERE of a SELECT over one cube says as conditions of ``query_cube``.

        Its ``predicate`` are the tuples that kartothek takes. Functions of the clock have their
        value of now. Raises ``invalid-condition`` for what such conditions cannot say.
        """
        from kartosql.query_cube import conditions_of

        self._open()
        return conditions_of(self._runtime, self._tables(), self.settings, sql, parameters)

    def coverage(self, table: Cube | str, by: str | Iterable[str] = ()) -> Coverage:
        """Return which cells of a cube its datasets hold, by one or two columns of the seed.

        Without ``by`` the first two partition columns are taken. The key columns of all files
        are read. Raises ``unknown-table``, ``unknown-column`` and ``invalid-argument``.
        """
        from kartosql.insight.coverage import coverage

        self._open()
        name = table.uuid_prefix if isinstance(table, Cube) else table
        columns = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, Iterable) else (by,)
        if not isinstance(name, str) or len(columns) > 2 or not all(isinstance(c, str) for c in columns):
            raise UsageError("coverage() takes the name of a table, and one or two names of columns.")
        return coverage(self._session(), (name,), [(c, None) for c in columns])

    # -- catalog -------------------------------------------------------------------------------

    def cubes(self) -> dict[str, Cube]:
        """Return the cubes of the store by name."""
        self._open()
        return self._snapshot().cubes()

    def datasets(self) -> list[str]:
        """Return the uuids of all datasets of the store, members of cubes included."""
        self._open()
        return self._snapshot().uuids()

    def register(self, name: str, data: Any) -> None:
        """Make Arrow data (anything with ``__arrow_c_stream__``) a table of this connection.

        A stream that can be read only once is read into memory. Raises ``invalid-argument``.
        """
        self._open()
        if not isinstance(name, str) or not name or "\0" in name:
            raise UsageError(f"{name!r} is no table name.")
        try:
            table = data if isinstance(data, pa.Table) else pa.table(data)
        except (TypeError, ValueError, pa.ArrowException) as e:
            reraise(e)
            raise UsageError(
                f"{type(data).__name__} cannot be registered: {e}",
                hint="Hand over a table with __arrow_c_stream__: pyarrow, pandas, polars, a kartosql result.",
            ) from None
        if self._attached is not None and name in self._attached.now():
            raise UsageError(f"{name!r} is attached.", code="name-taken", hint="Choose another name, or detach it.")
        if len(set(table.column_names)) < table.num_columns:
            raise UsageError(f"{name!r} has a column name twice.")
        self._registered[name] = arrow_table(name, table)
