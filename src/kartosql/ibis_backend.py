"""A backend of ibis: ``ibis.kartosql.connect(url)`` and ``ibis.connect("kartosql:///folder")``, over a connection.

Expressions become SQL by ibis' compiler for DuckDB. Tables are cubes, datasets and views, with a cube as ``database``
its datasets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import ibis
import ibis.common.exceptions as exceptions
import ibis.expr.operations as operations
import ibis.expr.schema as schemas
import ibis.expr.types as expressions
import pyarrow as pa
from ibis.backends import NoExampleLoader
from ibis.backends.sql import SQLBackend
from ibis.backends.sql.compilers import DuckDBCompiler

import kartosql
from kartosql.connection import Connection
from kartosql.errors import SqlError
from kartosql.result import Query
from kartosql.text.constants import quote


class Backend(SQLBackend, NoExampleLoader):  # type: ignore[misc]
    """A store of cubes and datasets; ``con`` is the connection of kartosql."""

    name = "kartosql"
    compiler = DuckDBCompiler()
    supports_python_udfs = False
    con: Connection

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._of_memory: set[str] = set()

    # -- connections -----------------------------------------------------------------------------------

    def do_connect(self, url: str, **options: Any) -> None:
        """Open a store, with the arguments of ``kartosql.connect``."""
        self.con = kartosql.connect(url, **options)

    @classmethod
    def from_connection(cls, con: Connection, /) -> Backend:
        """Return a backend over a connection that is open."""
        found = cls()
        found._can_reconnect = False
        found.con = con
        return found

    def _from_url(self, url: Any, **options: Any) -> Backend:
        """Open ``kartosql:///folder``, ``kartosql:////absolute/folder`` or ``kartosql:///s3://bucket/prefix``."""
        if url.netloc or len(url.path) < 2:
            raise ValueError("Write kartosql:///folder, kartosql:////absolute/folder or kartosql:///s3://bucket.")
        found: Backend = self.connect(unquote(url.path[1:]), **options)
        return found

    @property
    def version(self) -> str:
        """The version of kartosql."""
        return kartosql.__version__

    # -- tables ----------------------------------------------------------------------------------------

    def list_tables(self, *, like: str | None = None, database: str | None = None) -> list[str]:
        """Return the names of tables and views, or those of the datasets of a cube."""
        sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = ?"
        names = [name for (name,) in self.con.sql(sql, [database or "main"]).rows() if name not in self._of_memory]
        found: list[str] = self._filter_with_like(names, like)
        return found

    def get_schema(self, name: str, *, catalog: str | None = None, database: str | None = None) -> Any:
        """Return the columns of a table; raises TableNotFound."""
        try:
            return self._get_schema_using_query(f"SELECT * FROM {_named(name, database)}")
        except SqlError as e:
            raise (exceptions.TableNotFound(name) if e.code == "unknown-table" else e) from None

    def _get_schema_using_query(self, query: str) -> Any:
        return schemas.Schema.from_pyarrow(self.con.sql(query).schema)

    def create_table(
        self, name: str, /, obj: Any = None, *, schema: Any = None, database: str | None = None, overwrite: bool = False
    ) -> Any:
        """Make a dataset of the rows of an expression or of data, or an empty one of a schema."""
        rows = obj if isinstance(obj, expressions.Expr) else ibis.memtable([] if obj is None else obj, schema=schema)
        if overwrite and name in self.list_tables():
            self.drop_table(name)
        self._run_pre_execute_hooks(rows)
        self.con.sql(f"CREATE DATASET {_named(name, database)} AS {self.compile(rows)}")
        return self.table(name, database=database)

    def drop_table(self, name: str, /, *, database: str | None = None, force: bool = False) -> None:
        """Drop a dataset; with ``force`` there may be none."""
        self.con.sql(f"DROP DATASET {'IF EXISTS ' if force else ''}{_named(name, database)}")

    def drop_view(self, name: str, /, *, database: str | None = None, force: bool = False) -> None:
        """Drop a view; with ``force`` there may be none."""
        self.con.sql(f"DROP VIEW {'IF EXISTS ' if force else ''}{_named(name, database)}")

    def _register_in_memory_table(self, op: operations.InMemoryTable) -> None:
        self._of_memory.add(op.name)
        self.con.register(op.name, op.data.to_pyarrow(op.schema))

    def _make_memtable_finalizer(self, name: str) -> None:
        """Return nothing, as the rows go with the connection."""

    # -- statements ------------------------------------------------------------------------------------

    def raw_sql(self, query: Any, **_: Any) -> Query:
        """Run a statement."""
        return self.con.sql(query if isinstance(query, str) else query.sql(self.dialect))

    @contextmanager
    def _safe_raw_sql(self, query: Any, **_: Any) -> Iterator[Query]:
        yield self.raw_sql(query)

    def explain(self, expr: Any, /, **options: Any) -> Any:
        """Return the report on what an expression would read and why."""
        self._run_pre_execute_hooks(expr)
        return self.con.explain(self.compile(expr.as_table(), **options))

    def to_pyarrow_batches(self, expr: Any, /, *, chunk_size: int = 1_000_000, **options: Any) -> pa.RecordBatchReader:
        """Return the rows of an expression as a stream."""
        self._run_pre_execute_hooks(expr)
        table = expr.as_table()
        reader = self.con.sql(self.compile(table, **options)).reader()
        return reader.cast(table.schema().to_pyarrow())

    def execute(self, expr: Any, /, **options: Any) -> Any:
        """Return the rows of an expression as pandas DataFrame, of a column as Series, of a scalar as value."""
        found = self.to_pyarrow(expr.as_table(), **options).to_pandas(date_as_object=True)
        return expr.__pandas_result__(found)


def _named(name: str, database: str | None) -> str:
    parts = [name] if database in (None, "main") else [str(database), name]
    return ".".join(map(quote, parts))
