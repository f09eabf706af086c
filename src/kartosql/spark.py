"""Cubes and datasets inside of a Spark session: temporary views, and SQL that opens only the files it needs."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kartosql.connection import Connection
from kartosql.engines.spark.connect import drop_unused
from kartosql.engines.spark.listing import warming
from kartosql.engines.spark.scan import FileShapes, ScanFrames
from kartosql.engines.spark.session import keeping_active, quiet
from kartosql.engines.spark.types import quote
from kartosql.errors import KartosqlError, KartosqlWarning, UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.opening import connect
from kartosql.plan.bind import Parameters
from kartosql.query import SelectQuery
from kartosql.text.constants import quote as duckdb_quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["RegisteredViews", "register", "sql"]


class RegisteredViews:
    """The temporary views of a store in a session, by name; ``refresh`` shows what was committed since.

    ``names`` maps each view to the table of kartosql that it is, as in SQL.
    """

    def __init__(self, spark: SparkSession, connection: Connection, cubes: Iterable[str] | None) -> None:
        self._spark = spark
        self._connection = connection
        self._cubes = None if cubes is None else [cubes] if isinstance(cubes, str) else list(cubes)
        self._shapes = FileShapes()
        self.names: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<views of {self._connection.store.url}: {', '.join(self.names) or 'none'}>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def refresh(self) -> None:
        """Replace all views by ones of what the store holds now: files, columns, cubes that came or went.

        Views that cannot be made stay as they were, and the error is raised.
        """
        wanted = self._wanted()
        made = {}
        with keeping_active(self._spark), quiet():
            for name, table in wanted.items():
                try:
                    made[name] = self._frame(table)
                except KartosqlError as e:
                    if self._cubes is not None or name in self.names:
                        raise
                    warnings.warn(f"{table} gets no view: {e.message}", KartosqlWarning, stacklevel=3)
            self._check_names(made)
            names = list(made)
            for name in names:
                made.pop(name).createOrReplaceTempView(quote(name))
        for name in self.names.keys() - set(names):
            self._spark.catalog.dropTempView(name)
        self.names = {name: wanted[name] for name in names}
        drop_unused()

    def close(self) -> None:
        """Drop the views."""
        for name in self.names:
            self._spark.catalog.dropTempView(name)
        self.names = {}
        self._connection.close()

    def _wanted(self) -> dict[str, str]:
        cubes = self._connection.cubes()
        if self._cubes is None:
            chosen = list(cubes)
            plain = [u for u in self._connection.datasets() if (naming.split_member(u) or ("",))[0] not in cubes]
        else:
            chosen = [c for c in self._cubes if c in cubes]
            plain = [c for c in self._cubes if c not in cubes]
        found: dict[str, str] = {}
        snapshot = Snapshot(self._connection.store)
        for name in [*chosen, *plain]:
            found |= _tables(snapshot, name, is_cube=name in cubes)
        return found

    def _check_names(self, made: Mapping[str, Any]) -> None:
        seen: dict[str, str] = {}
        for name in made:
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise UsageError(
                    f"The views {other!r} and {name!r} would be the same to Spark.",
                    code="ambiguous-name",
                    hint="Register them one by one: cubes=[...].",
                )
            if name not in self.names and self._spark.catalog.tableExists(quote(name)):
                hint = f"Drop it first: spark.catalog.dropTempView({name!r})."
                raise UsageError(f"The session has a view or table {name!r} already.", code="view-exists", hint=hint)

    def _frame(self, table: str) -> Any:
        query = self._connection.sql(f"SELECT * FROM {table}")
        assert isinstance(query, SelectQuery)
        frames = ScanFrames(self._spark, self._connection.store, self._shapes, leave_out=True)
        frame = frames.frame(query.report.scan.occurrences[0])
        if frames.left_out:
            names = ", ".join(sorted(frames.left_out))
            warnings.warn(
                f"The view of {table} lacks columns of types that Spark does not have: {names}",
                KartosqlWarning,
                stacklevel=4,
            )
        return frame


def register(
    spark: SparkSession,
    url: str | os.PathLike[str],
    cubes: Iterable[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RegisteredViews:
    """Make cubes and datasets of a store temporary views of a session, and return a handle to them.

    A cube ``sales`` becomes the view ``sales``, each of its datasets a view such as
    ``sales__weather``, a plain dataset one of its own name. ``cubes`` are the cubes and datasets
    to register, all of the store if it is None. Views hold what the store held at this moment;
    ``refresh()`` of the handle renews them. Conditions on partition columns choose files, others
    row groups; inverted indices are used by ``kartosql.spark.sql``.

    Raises ``store-unreachable`` for stores that executors cannot read, ``view-exists``,
    ``unknown-table``, and what is wrong with the data.
    """
    with warming(spark):
        connection = connect(url, storage_options=storage_options, engine="duckdb", read_only=True, **settings)
        views = RegisteredViews(spark, connection, cubes)
        views.refresh()
    return views


def sql(
    spark: SparkSession,
    url: str | os.PathLike[str] | Connection,
    text: str,
    parameters: Parameters = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> DataFrame:
    """Return the answer of a SELECT as a DataFrame of a session; files are opened when rows are asked for.

    The statement is that of ``Connection.sql``: it is planned now, with partition keys, indices
    and statistics, each table occurrence by itself, and Spark reads the files that are left. A
    Connection in the place of ``url`` keeps metadata and indices from one statement to the next.

    Unsigned 64-bit integers are DECIMAL(20,0), sums of integers DECIMAL(38,0). Raises
    ``not-portable`` for what Spark would answer differently, ``store-unreachable``, and what
    ``Connection.sql`` raises.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(url, Connection):
            connection = url
        else:
            made = connect(url, storage_options=storage_options, engine="spark", read_only=True, **settings)
            connection = stack.enter_context(made)
            connection.expect_one_statement()
        stack.enter_context(warming(spark))
        query = connection.sql(text, parameters, engine="spark")
        if not isinstance(query, SelectQuery):
            raise UsageError("Only a SELECT becomes a DataFrame.", code="not-a-select", hint="Use Connection.sql.")
        return query.spark_frame(spark)


def _tables(snapshot: Snapshot, name: str, *, is_cube: bool) -> dict[str, str]:
    """Return the tables of a cube or dataset by the name of their view."""
    quoted = duckdb_quote(name)
    try:
        if is_cube:
            inner: Iterable[str] = snapshot.cube(name).members
        else:
            inner = snapshot.dataset(name).tables if name in snapshot.keys else ()
    except KartosqlError:
        return {name: quoted}  # which is what is wrong with it, once it is read
    parts = {f"{name}__{part}": f"{quoted}.{duckdb_quote(part)}" for part in sorted(inner)}
    return {name: quoted, **parts} if is_cube else parts if len(parts) > 1 else {name: quoted}
