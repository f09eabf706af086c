"""Dialects of SQLAlchemy: ``kartosql:///folder`` or ``kartosql:///s3://bucket/prefix``, over the DB-API module.

``kartosql+flight://:TOKEN@host:port`` asks a server by ADBC, with ``?tls=true`` over TLS, where
``tls_root_certs=cert.pem`` may name the certificates of who signed.

Statements commit by themselves (isolation level AUTOCOMMIT): commit and rollback do nothing. Options of
``kartosql.connect`` stand behind a question mark: ``kartosql:///folder?read_only=true&memory_limit=1GB``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sqlalchemy import types
from sqlalchemy.dialects.postgresql import base as postgresql
from sqlalchemy.engine import URL, reflection
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import ArgumentError, NoSuchTableError

_TYPES: dict[str, Any] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "UTINYINT"), types.SmallInteger()),
    **dict.fromkeys(("INTEGER", "USMALLINT"), types.Integer()),
    **dict.fromkeys(("BIGINT", "UINTEGER"), types.BigInteger()),
    **dict.fromkeys(("UBIGINT", "HUGEINT", "UHUGEINT"), types.Numeric(39, 0)),
    **dict.fromkeys(("FLOAT", "DOUBLE"), types.Double()),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), types.DateTime()),
    **dict.fromkeys(("TIME", "TIME_NS"), types.Time()),
    "TIMESTAMP WITH TIME ZONE": types.DateTime(timezone=True),
    "BOOLEAN": types.Boolean(),
    "VARCHAR": types.String(),
    "BLOB": types.LargeBinary(),
    "DATE": types.Date(),
    "INTERVAL": types.Interval(),
    "JSON": types.JSON(),
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_MAIN = "main"
_WORDS = {"true": True, "false": False, "none": None}


class _Compiler(postgresql.PGCompiler):
    """kartosql asks of what is about all rows to say so."""

    def visit_delete(self, delete_stmt: Any, *args: Any, **kw: Any) -> str:
        return _of_all(super().visit_delete(delete_stmt, *args, **kw), delete_stmt)  # type: ignore[no-untyped-call]

    def visit_update(self, update_stmt: Any, *args: Any, **kw: Any) -> str:
        return _of_all(super().visit_update(update_stmt, *args, **kw), update_stmt)


def _of_all(text: str, statement: Any) -> str:
    return text if statement._where_criteria else f"{text} WHERE true"


class _Ddl(postgresql.PGDDLCompiler):
    """A table is a dataset without rows; keys, constraints and names of indices are left out."""

    def visit_create_table(self, create: Any, **kw: Any) -> str:
        columns = [
            f"NULL::{self.dialect.type_compiler_instance.process(column.type)} AS {self.preparer.format_column(column)}"
            for column in create.element.columns
        ]
        return f"CREATE DATASET {self.preparer.format_table(create.element)} AS SELECT {', '.join(columns)} LIMIT 0"

    def visit_drop_table(self, drop: Any, **kw: Any) -> str:
        exists = "IF EXISTS " if drop.if_exists else ""
        return f"DROP DATASET {exists}{self.preparer.format_table(drop.element)}"

    def visit_create_index(self, create: Any, *args: Any, **kw: Any) -> str:
        return f"CREATE INDEX {self._on(create.element)}"

    def visit_drop_index(self, drop: Any, **kw: Any) -> str:
        return f"DROP INDEX {self._on(drop.element)}"

    def _on(self, index: Any) -> str:
        columns = ", ".join(map(self.preparer.format_column, index.columns))
        return f"ON {self.preparer.format_table(index.table)} ({columns})"


class KartosqlDialect(DefaultDialect):
    """SQL of PostgreSQL, which DuckDB reads; tables and columns are those of information_schema."""

    name = "kartosql"
    driver = "kartosql"
    default_schema_name = _MAIN
    default_paramstyle = "qmark"
    supports_statement_cache = True
    supports_alter = False
    supports_native_boolean = True
    supports_native_decimal = True
    div_is_floordiv = False
    supports_multivalues_insert = True
    supports_default_values = False
    supports_empty_insert = False
    supports_comments = False
    _backslash_escapes = False  # which the compiler of PostgreSQL asks for
    insert_returning = update_returning = delete_returning = False
    postfetch_lastrowid = False
    preexecute_autoincrement_sequences = False
    statement_compiler = _Compiler
    ddl_compiler = _Ddl
    use_insertmanyvalues = use_insertmanyvalues_wo_returning = True  # one commit for many rows
    type_compiler_cls = postgresql.PGTypeCompiler
    preparer = postgresql.PGIdentifierPreparer

    @classmethod
    def import_dbapi(cls) -> Any:
        """Return the DB-API module."""
        from kartosql import dbapi

        return dbapi

    def create_connect_args(self, url: URL) -> Any:
        """Return the arguments of ``dbapi.connect``; raises ArgumentError for a URL without a store, or with a host."""
        if not url.database or url.host:
            raise ArgumentError("Write kartosql:///folder, kartosql:////absolute/folder or kartosql:///s3://bucket.")
        return [url.database], {name: _option(str(value)) for name, value in url.query.items()}

    # -- transactions: each statement is one --------------------------------------------------------

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Do nothing, as what was written is committed already."""

    def get_isolation_level_values(self, dbapi_conn: Any) -> Any:
        """Return the one level that there is."""
        return ["AUTOCOMMIT"]

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        """Return the one level that there is."""
        return "AUTOCOMMIT"

    get_default_isolation_level = get_isolation_level

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        """Do nothing, as there is one level only."""

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        import kartosql

        return tuple(int(part) for part in kartosql.__version__.split(".")[:2])

    def _get_default_schema_name(self, connection: Any) -> str:
        return _MAIN

    # -- reflection ----------------------------------------------------------------------------------

    def _rows(self, connection: Any, sql: str, *values: str) -> list[Any]:
        return list(connection.exec_driver_sql(sql, values).fetchall())

    @reflection.cache
    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        """Return ``main``, and the cubes."""
        sql = "SELECT DISTINCT table_schema FROM information_schema.tables ORDER BY 1"
        return sorted({_MAIN, *(name for (name,) in self._rows(connection, sql))})

    def _names(self, connection: Any, schema: str | None, condition: str) -> list[str]:
        sql = f"SELECT table_name FROM information_schema.tables WHERE table_schema = ? AND {condition} ORDER BY 1"
        return [name for (name,) in self._rows(connection, sql, schema or _MAIN)]

    @reflection.cache
    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Return cubes and datasets, with a cube as ``schema`` its datasets."""
        return self._names(connection, schema, "table_type <> 'VIEW'")

    @reflection.cache
    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Return the views."""
        return self._names(connection, schema, "table_type = 'VIEW'")

    @reflection.cache
    def has_table(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> bool:
        """Return whether there is a table or a view of a name."""
        return table_name in self._names(connection, schema, "true")

    @reflection.cache
    def get_columns(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """Return the columns of a table; raises NoSuchTableError."""
        sql = (
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = ? AND table_name = ? ORDER BY ordinal_position"
        )
        rows = self._rows(connection, sql, schema or _MAIN, table_name)
        if not rows:
            raise NoSuchTableError(table_name)
        return [{"name": name, "type": _type_of(type_), "nullable": True, "default": None} for name, type_ in rows]

    def get_pk_constraint(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """Return that there is none."""
        return {"constrained_columns": [], "name": None}

    def get_foreign_keys(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """Return that there are none."""
        return []

    get_indexes = get_unique_constraints = get_check_constraints = get_foreign_keys


class KartosqlFlightDialect(KartosqlDialect):
    """The same over ``kartosql serve``, by ADBC's driver of Flight SQL."""

    driver = "flight"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> Any:
        """Return ADBC's DB-API module."""
        from adbc_driver_flightsql import dbapi

        return dbapi

    def create_connect_args(self, url: URL) -> Any:
        """Return the arguments of ADBC's ``connect``; raises ArgumentError for a URL without a host and a port."""
        options = {name: _option(str(value)) for name, value in url.query.items()}
        if not (url.host and url.port) or url.database or not options.keys() <= {"tls", "tls_root_certs"}:
            raise ArgumentError("Write kartosql+flight://:TOKEN@host:port, with ?tls=true for TLS.")
        given = {"adbc.flight.sql.authorization_header": f"Bearer {url.password}"} if url.password else {}
        if (path := options.get("tls_root_certs")) is not None:
            given["adbc.flight.sql.client_option.tls_root_certs"] = Path(path).read_text("ascii")
        scheme = "grpc+tls" if options.get("tls") else "grpc"
        host = f"[{url.host}]" if ":" in url.host else url.host
        return [f"{scheme}://{host}:{url.port}"], {"db_kwargs": given, "autocommit": True}

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        """Run a statement, as a prepared one where it has parameters."""
        cursor.execute(statement, parameters or None)


def _type_of(text: str) -> Any:
    if (match := _DECIMAL.fullmatch(text)) is not None:
        return types.Numeric(int(match[1]), int(match[2]))
    return types.ARRAY(_type_of(text[:-2])) if text.endswith("[]") else _TYPES.get(text, types.NullType())


def _option(text: str) -> Any:
    """Return the value of an option in a URL: a truth, a number, else a text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    return int(text) if text.isdecimal() else text
