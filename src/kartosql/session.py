"""A session: what all statements and calls of one connection share."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from kartosql import session_pool
from kartosql.engines.duckdb.runtime import Runtime
from kartosql.errors import SqlError, UsageError, reraise
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.plan.bind import Parameters
from kartosql.query import SelectQuery
from kartosql.settings import Settings
from kartosql.sql import Select
from kartosql.store import Store
from kartosql.tables.names import Name, Tables, listed
from kartosql.tables.table import Table, arrow_table
from kartosql.text.constants import quote
from kartosql.text.types import in_sql_names
from kartosql.user_cache import UserCache, cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from kartosql.sources.attachments import Attachments
    from kartosql.sources.discovery import Discovery
    from kartosql.write.files import WriteProgress
    from kartosql.write.operation import Operation

    Tell = Callable[[WriteProgress], None]

Repartition = bool | Literal["range"]


@dataclass(eq=False)
class Session:
    """A store, settings, what is registered or attached, and what is kept: metadata, plans, engines.

    ``is_of_owner`` says whether who writes the statements may do what who opened the connection may.
    """

    store: Store
    settings: Settings
    read_only: bool = False
    storage_options: Mapping[str, Any] | None = None
    is_of_owner: bool = False

    def __post_init__(self) -> None:
        self.registered: dict[str, Table] = {}
        self.attached: Attachments | None = None  # made when something is attached
        self._state = state = session_pool.take(self.store, self._modes)
        self.store, self.mounts, self.metadata, self.plans = state.store, state.mounts, state.metadata, state.plans
        self.parse = state.texts.parse
        self.user_cache = self.store.proofs = UserCache(cache_folder(self.settings["cache"]))
        if not self.store.is_local and self.user_cache.folder is not None:
            from kartosql.store.kept import KeptObjects

            self.store.kept = self.mounts.kept = KeptObjects(self.user_cache, *self.store.address)
        self.runtime = Runtime(self.mounts, state.engines, self.user_cache)
        # What is called with the uuid of a dataset that published tables follow.
        self.publish: Callable[[Session, str], None] | None = None
        self._had_tables = False  # whether any was registered
        # Names, types, URLs and options of what is attached when a statement first names it.
        self.named: list[tuple[str, str, str, Mapping[str, Any]]] = []
        self._closed = False

    @property
    def _modes(self) -> dict[str, Any]:
        """What two connections must have in common, beside the store, to use the same engines and metadata."""
        return {"read_only": self.read_only, **self.settings.to_dict()}

    def close(self) -> None:
        """Stop what other threads are doing, and free the engines, or leave them to the next connection."""
        was_open, self._closed = not self._closed, True
        engines = self.runtime.close()
        if engines is None:
            return
        self.registered.clear()
        is_free = self.attached is None or not (self.attached.entries or self.attached.discovered)
        if self.attached is not None:
            self.attached.close()
        if was_open and is_free and not self._had_tables and not self.runtime.one_more:
            self._state.engines = engines
            session_pool.leave(self._state, self._modes)
        else:
            engines.close()

    def check_open(self) -> None:
        """Raise ``connection-closed`` after ``close``."""
        if self._closed:
            raise UsageError("The connection is closed.", code="connection-closed")

    def snapshot(self) -> Snapshot:
        """Return what the store holds now; documents that did not change are not parsed again."""
        self.check_open()
        return Snapshot(self.store, self.metadata)

    def tables(self) -> Tables:
        """Resolve names as of now: over the store, what is attached, and registered data."""
        attached = None if self.attached is None else self.attached.now()
        more = self._discovery if self.settings["attach"] else None
        return Tables(self.snapshot(), self.registered, attached, more, self._system_table)

    def _system_table(self, tables: Tables, name: str) -> Table:
        from kartosql.sources.information_schema import system_table

        return system_table(name, tables, self.names(tables), lambda view: Request(self).view(view).schema)

    def names(self, tables: Tables) -> list[tuple[Name, str]]:
        """Return names and kinds of all tables that a statement can name: of the store, registered, attached."""
        registered = (((name,), "registered") for name in tables.registered)
        attached = () if self.attached is None else self.attached.tables()
        return [*listed(tables.snapshot), *registered, *attached, *tables.on_demand()]

    def _discovery(self, snapshot: Snapshot) -> Discovery:
        from kartosql.sources.discovery import Discovery, Offer

        return Discovery(snapshot, self.attachments, starmap(Offer, self.named))

    def with_views(
        self, select: Select, tables: Tables, query: Callable[[Select, Parameters], SelectQuery], parameters: Parameters
    ) -> SelectQuery:
        """Return the query of a SELECT with the text of views in their places; ``query`` makes one of a SELECT."""
        try:
            return query(select, parameters)
        except SqlError:  # as it is for a name that only a view has
            from kartosql.plan.views import Views, errors_of

            expanded, edits = Views(tables, self.parse, lambda view: query(view, None)).expanded(select)
            if not edits:
                raise
        with errors_of(select, expanded, edits):
            return query(expanded, parameters)

    @property
    def attachments(self) -> Attachments:
        """What is attached, to add to it."""
        self.check_open()
        if self.attached is None:
            from kartosql.sources import SOURCES
            from kartosql.sources.attachments import Access, Attachments

            access = Access(self.store, self.storage_options, self.settings)
            self.attached = Attachments(SOURCES, self.mounts, self.runtime, access)
        return self.attached

    def register(self, name: str, data: Any) -> None:
        """Make Arrow data a table of this session; see Connection.register."""
        self.check_open()
        if not isinstance(name, str) or not name or "\0" in name:
            raise UsageError(f"{name!r} is no table name.")
        try:
            table = data if isinstance(data, pa.Table) else _as_table(data, name)
        except (TypeError, ValueError, pa.ArrowException) as e:
            reraise(e)
            raise UsageError(
                f"{type(data).__name__} cannot be registered: {in_sql_names(e)}",
                hint="Hand over a table of pyarrow, pandas or polars, a result, lists of values or rows, a path.",
            ) from None
        if self.attached is not None and name in self.attached.now():
            raise UsageError(f"{name!r} is attached.", code="name-taken", hint="Choose another name, or detach it.")
        if len(set(table.column_names)) < table.num_columns:
            raise UsageError(f"{name!r} has a column name twice.")
        self._had_tables = True
        self.registered[name] = arrow_table(name, table)

    # -- writing -------------------------------------------------------------------------------

    @property
    def grace(self) -> dt.timedelta:
        """How long files that belong to nothing stay."""
        return dt.timedelta(seconds=self.settings["grace_period"])

    def operation(
        self,
        name: str,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
        spark: Any = None,
        target: Any = None,
    ) -> Operation:
        """Begin a write, the ``name`` of which other writers will read if they lose against it.

        ``target`` is another store to write to: a URL, a Store or the session of another connection.
        """
        from kartosql.write.files import WriteOptions
        from kartosql.write.layout import SpillingSorter
        from kartosql.write.operation import Operation

        if target is not None:
            self.check_open()
            if isinstance(target, Session):
                return target.operation(name, spark=spark)
            store = target if isinstance(target, Store) else Store(target, create=True)
            return Operation(store, name, single_writer=self.settings["single_writer"], spark=_spark_session(spark))
        self.check_writable()
        sorter = SpillingSorter(self.settings["temp_directory"])
        return Operation(
            self.store,
            name,
            cache=self.metadata,
            options=WriteOptions(sorter, self.settings["write_memory"], progress, rows_per_file=rows_per_file),
            single_writer=self.settings["single_writer"],
            grace=self.grace,
            repartition=repartition,
            spark=_spark_session(spark),
            publish=None if self.publish is None else partial(self.publish, self),
        )

    def check_writable(self) -> None:
        """Raise ``read-only`` on a connection that may not write."""
        self.check_open()
        if self.read_only:
            raise UsageError(
                "The connection is read-only.",
                code="read-only",
                hint="Connect without read_only, on the command line with --write.",
            )

    def store_to_keep(self, *, only_looks: bool) -> Store:
        """Return the store to look after, which on a connection that may not write can be looked at only."""
        if only_looks:
            self.check_open()
        else:
            self.check_writable()
        self.store.single_writer = self.store.single_writer or self.settings["single_writer"]
        return self.store


@dataclass(frozen=True)
class Request:
    """A statement as it is asked over a session: its parameters, the engine if one is named, and what parsing took."""

    session: Session
    parameters: Parameters = None
    engine: str | None = None
    parse_seconds: float = 0.0

    @property
    def settings(self) -> Settings:
        """A copy of the settings, for this statement alone."""
        found = self.session.settings.copy()
        if self.engine is not None:
            found.set("engine", self.engine)
        return found

    def query(self, select: Select, *, on: str | None = None, pruned: bool = True, traced: bool = False) -> SelectQuery:
        """Return the query of a SELECT ``on`` an engine, over a snapshot of its own.

        ``pruned=False`` reads all files, ``traced`` keeps what each step of the plan left.
        """
        session, asked = self.session, self if on is None else Request(self.session, engine=on)
        tables, settings = session.tables(), asked.settings

        def query(select: Select, given: Parameters) -> SelectQuery:
            return SelectQuery(
                select,
                tables,
                session.runtime,
                settings,
                given,
                plans=session.plans,
                parse_seconds=self.parse_seconds,
                pruned=pruned,
                traced=traced,
            )

        return session.with_views(select, tables, query, self.parameters)

    def view(self, name: str) -> SelectQuery:
        """Return the query of a view."""
        select = self.session.parse(f"SELECT * FROM {quote(name)}")
        assert isinstance(select, Select)
        return self.query(select)

    def refuse_parameters(self, sql: str | None = None) -> None:
        """Raise ``invalid-parameters`` if there are any."""
        if self.parameters:
            raise SqlError("This statement takes no parameters.", code="invalid-parameters", sql=sql)


def _spark_session(spark: Any) -> Any:
    """Return the session that an argument ``spark`` means: itself, for True the active or a new one, else None."""
    if spark is None or spark is False:
        return None
    if spark is True:
        from kartosql.engines.spark.session import session

        return session()
    if not hasattr(spark, "createDataFrame"):
        raise UsageError(f"spark: {type(spark).__name__} is no SparkSession.", hint="Pass a session, or True.")
    return spark


def _as_table(data: Any, name: str) -> pa.Table:
    """Return anything with rows as a table, read into memory."""
    from kartosql.write.inputs import open_rows, plain_data

    data = plain_data(data, name)
    if isinstance(data, str | os.PathLike):
        rows = open_rows(data, name)
        return pa.concat_tables([rows.schema.empty_table(), *rows.pieces()])
    return data.to_table() if hasattr(data, "to_table") and hasattr(data, "scanner") else pa.table(data)
