"""One DuckDB instance for one statement: plans it, then runs it locked up."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from kartosql.engines.duckdb.errors import translate
from kartosql.engines.duckdb.evaluator import DuckEvaluator, index_columns
from kartosql.engines.duckdb.files import FileAccess
from kartosql.engines.duckdb.predicates import base_tables
from kartosql.engines.duckdb.relations import Relations, parquet_schema_argument
from kartosql.engines.duckdb.types import fits, quote
from kartosql.errors import ExecutionError, FormatError, KartosqlError, SqlError, UsageError
from kartosql.formats.arrays import array_of
from kartosql.plan.bind import BoundQuery
from kartosql.plan.scan import Scan
from kartosql.plan.tables import TableSource
from kartosql.settings import Settings
from kartosql.store import Store

FOOTER_CACHE_FILES = 2_000  # a cached footer takes about 30 kB
BATCH_ROWS = 100_000
MAX_BLAMED = 1_000  # files that are read again to find the one that made a statement fail


class Session:
    """A private in-memory DuckDB with the settings of the connection.

    Before the user's text runs, the instance loses access to everything but the
    files of the scan, and its settings are locked.
    """

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.files = FileAccess(store)
        self._registered: dict[int, str] = {}
        self._opened: list[str] = []
        self._data_keys: list[str] = []
        self._closed = False
        # Private, as DuckDB may always read and write it; made when something is spilled.
        self._temporary = os.path.join(tempfile.gettempdir(), f"kartosql-{uuid.uuid4().hex}")
        config = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        self._connection = duckdb.connect(":memory:", config=config)
        try:
            self.files.register(self._connection)
            self.run("SET python_enable_replacements = false")
            self._set("temp_directory", self._temporary)
            for name, value in settings.engine_settings().items():
                self._set(name, value)
            if settings["timeout"] is not None:
                self.run(f"SET max_execution_time = {max(1, int(settings['timeout'] * 1000))}")
            self.run("PRAGMA enable_profiling = 'no_output'")
        except BaseException:
            self.close()
            raise
        self.evaluator = DuckEvaluator(self)
        self.relations = Relations(self)

    def _set(self, name: str, value: Any) -> None:
        text = str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
        try:
            self.run(f"SET {name} = {text}")
        except duckdb.Error as e:
            reason = str(e).splitlines()[0]
            raise UsageError(
                f"{value!r} is no value for the setting {name}: {reason}", code="invalid-setting"
            ) from None

    def close(self) -> None:
        """Stop whatever runs and free the instance."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(duckdb.Error):
                self._connection.interrupt()
            self._connection.close()
            shutil.rmtree(self._temporary, ignore_errors=True)

    def bytes_read(self) -> int | None:
        """Return how many bytes of files the last statement read, as far as DuckDB tells."""
        try:
            found = json.loads(self._connection.get_profiling_information())
            return int(found["io"]["total_bytes_read"])
        except (duckdb.Error, ValueError, KeyError, TypeError):
            return None

    def interrupt(self) -> None:
        """Stop a running statement, from any thread."""
        if not self._closed:
            self._connection.interrupt()

    # -- plumbing ------------------------------------------------------------------------------

    def run(self, sql: str) -> None:
        """Execute our own statement."""
        self._connection.execute(sql)

    def rows(self, sql: str, parameters: Any = None) -> list[Any]:
        """Execute our own query and return its rows."""
        result = self._connection.execute(sql, parameters) if parameters else self._connection.execute(sql)
        rows: list[Any] = result.fetchall()
        return rows

    def register(self, name: str, table: Any) -> None:
        """Make an Arrow table known under ``name``."""
        self._connection.register(name, table)

    def set_list(self, variable: str, values: pa.Array) -> None:
        """Set a variable to a list of values, typed as the array is."""
        positions = array_of(range(len(values)), pa.int64())
        self.register(variable, pa.table({"i": positions, "v": values}))
        self.run(f"SET VARIABLE {variable} = (SELECT list(v ORDER BY i) FROM {variable})")

    def registered_name(self, source: TableSource) -> str:
        """Return the relation of data that the user registered."""
        name = self._registered.get(id(source))
        if name is None:
            name = self._registered[id(source)] = f"kartosql_data_{len(self._registered)}"
            table = source.registered
            self.register(name, table.rename_columns([source.exposed.get(c, c) for c in table.column_names]))
        return name

    @contextlib.contextmanager
    def errors(self, sql: str) -> Iterator[None]:
        """Turn DuckDB's errors into ours."""
        try:
            yield
        except KartosqlError:
            raise
        except duckdb.Error as e:
            raise self._translate(e, sql) from None

    def _translate(self, error: Exception, sql: str) -> KartosqlError:
        """Return our error; where DuckDB does not say which file it cannot read, find it."""
        found = translate(error, sql, self.files.key_in)
        if type(found) is ExecutionError and found.code == "query-failed":
            return self._damaged() or found
        return found

    def _damaged(self) -> FormatError | None:
        """Return the error about the first data file of the statement that cannot be read, if there is one."""
        import pyarrow.parquet as pq

        for key in self._data_keys[:MAX_BLAMED]:
            try:
                pq.read_table(pa.BufferReader(self.store.read(key)), partitioning=None)
            except (pa.ArrowException, OSError, ValueError, KeyError) as e:
                reason = str(e).splitlines()[0] if str(e) else type(e).__name__
                return FormatError(
                    f"{key}: {reason}",
                    code="corrupt-file",
                    hint="The file is damaged, or not one that the dataset's writer wrote.",
                )
        return None

    # -- files ---------------------------------------------------------------------------------

    def parquet_files(self, variable: str, keys: Sequence[str], declared: dict[str, str]) -> str:
        """Return a reader over Parquet files whose columns are exposed as c0, c1, ...

        Raises ``missing-file``, ``corrupt-file`` and ``schema-mismatch``.
        """
        self.files.stat(keys)
        paths = self.files.paths(keys)
        self._opened += paths
        self._data_keys += keys
        self._connection.execute(f"SET VARIABLE {variable} = ?", [paths])
        if len(keys) <= FOOTER_CACHE_FILES:
            self.run("SET parquet_metadata_cache = true")
        self._check_types(variable, keys, declared)
        if not declared:
            reader = f"read_parquet(getvariable('{variable}'), hive_partitioning = false)"
            return f"(SELECT file_index, file_row_number FROM {reader})"
        size = sum(self.files.sizes.get(k) or 0 for k in keys)
        return (
            f"read_parquet(getvariable('{variable}'), schema = {parquet_schema_argument(declared)}, "
            f"hive_partitioning = false, can_have_nan = true, explicit_cardinality = {max(1, size // 50)})"
        )

    def types_in_files(self, keys: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
        """Return the DuckDB type that files give to columns; those that hold only NULL are left out.

        Raises ``schema-mismatch`` where files disagree.
        """
        variable = f"kartosql_untyped_{len(self._data_keys)}"
        self._connection.execute(f"SET VARIABLE {variable} = ?", [self.files.paths(keys)])
        rows = self.rows(
            f"SELECT name, list(DISTINCT duckdb_type) FROM parquet_schema(getvariable('{variable}')) "
            "WHERE list_contains(?, name) AND duckdb_type <> '\"NULL\"' GROUP BY name",
            [list(columns)],
        )
        for name, types in rows:
            if len(types) > 1:
                raise FormatError(
                    f"{keys[0]} and others: the column {name!r} is {' and '.join(sorted(types))} in different files",
                    code="schema-mismatch",
                    hint="The schema of the table gives no type to choose; write the files again with one type.",
                )
        return {name: types[0] for name, types in rows}

    def _check_types(self, variable: str, keys: Sequence[str], declared: dict[str, str]) -> None:
        rows = self.rows(
            f"SELECT name, duckdb_type, count(DISTINCT file_name), any_value(file_name) "
            f"FROM parquet_schema(getvariable('{variable}')) GROUP BY ALL"
        )
        count: dict[str, int] = {}
        for name, type_, files, path in rows:
            count[name] = count.get(name, 0) + files
            if name in declared and type_ is not None and not fits(type_, declared[name]):
                self._check_file(path, name, declared[name])
        for name in declared:
            if count.get(name, 0) < len(keys):
                self._find_missing(variable, keys, name)

    def _check_file(self, path: str, column: str, declared: str) -> None:
        """Look at the top-level columns of one file, as a nested one may have the same name."""
        described = self.rows("SELECT column_name, column_type FROM (DESCRIBE FROM read_parquet(?))", [path])
        type_ = dict(described).get(column)
        if type_ is None or not fits(type_, declared):
            key = self.files.key_in(f"'{path}'") or path
            raise FormatError(
                f"{key}: the column {column!r} is {type_}, but {declared} in the schema of its table",
                code="schema-mismatch",
                hint="The file was written with another schema; kartothek would refuse it too.",
            )

    def _find_missing(self, variable: str, keys: Sequence[str], column: str) -> None:
        rows = self.rows(
            f"SELECT file_name FROM parquet_schema(getvariable('{variable}')) "
            "GROUP BY 1 HAVING NOT bool_or(name = ?) LIMIT 1",
            [column],
        )
        if rows:
            key = self.files.key_in(f"'{rows[0][0]}'") or rows[0][0]
            raise FormatError(
                f"{key}: the column {column!r} is missing",
                code="schema-mismatch",
                hint="The file was written with another schema; kartothek would refuse it too.",
            )

    def arrow_files(
        self, name: str, keys: Sequence[str], columns: Sequence[str], types: Mapping[str, pa.DataType]
    ) -> str:
        """Read files with pyarrow, exposed like parquet_files does it."""
        import pyarrow.parquet as pq

        self.files.stat(keys)
        tables = []
        for at, key in enumerate(keys):
            try:
                table = pq.read_table(pa.BufferReader(self.store.read(key)), columns=list(columns))
                arrays = [table.column(c).cast(types[c]) for c in columns]
            except (pa.ArrowException, OSError, KeyError) as e:
                raise FormatError(f"{key}: {e}", code="corrupt-file") from None
            arrays += [pa.array([at] * table.num_rows, pa.uint64()), pa.array(range(table.num_rows), pa.int64())]
            tables.append(pa.table(arrays, [f"c{i}" for i in range(len(columns))] + ["file_index", "file_row_number"]))
        self.register(name, pa.concat_tables(tables))
        return name

    def index_view(self, name: str, key: str, column: str, declared: str) -> None:
        """Create a view (v, labels) over an index file; raises ``missing-file`` and ``invalid-index``."""
        self.files.stat([key])
        if self.store.is_local:
            self.store.counter.add("reads", key, self.files.sizes[key] or 0)
        path = self.files.paths([key])[0].replace("'", "''")
        reader = f"read_parquet('{path}', hive_partitioning = false)"
        try:
            described = self.rows(f"SELECT column_name, column_type FROM (DESCRIBE FROM {reader})")
        except duckdb.Error as e:
            raise FormatError(
                f"{key}: {str(e).splitlines()[0]}", code="invalid-index", hint="Build the index again."
            ) from None
        index_columns(described, key, column, declared)
        self.run(
            f"CREATE VIEW {name} AS SELECT {quote(column)} AS v, partition AS labels "
            f"FROM read_parquet('{path}', hive_partitioning = false)"
        )

    # -- statements ------------------------------------------------------------------------------

    def describe(self, query: BoundQuery) -> pa.Schema:
        """Return the Arrow schema of a query's output, without opening a file."""
        with self.errors(query.select.text):
            for occurrence in query.occurrences:
                if occurrence.source.registered is not None:
                    self.relations.create_registered(occurrence)
                else:
                    self.relations.create_empty(occurrence)
            self._lock()
            schema = self._query(query.text, query.parameters).to_arrow_reader(BATCH_ROWS).schema
            return _restored(schema, query)

    def prepare(self, query: BoundQuery, scan: Scan) -> None:
        """Create the views of the statement and lock the instance up."""
        with self.errors(query.select.text):
            for occurrence in query.occurrences:
                if occurrence.source.registered is not None:
                    self.relations.create_registered(occurrence)
            for occurrence_scan in scan.occurrences:
                self.relations.create(occurrence_scan)
            self._lock()

    def _lock(self) -> None:
        self._connection.execute("SET VARIABLE kartosql_opened = ?", [self._opened])
        self.run("SET allowed_paths = getvariable('kartosql_opened')")
        self.run("SET enable_external_access = false")
        self.run("SET lock_configuration = true")

    def stream(self, query: BoundQuery) -> tuple[pa.RecordBatchReader, list[str]]:
        """Run the prepared statement; returns its batches and the DuckDB types of its columns."""
        with self.errors(query.select.text):
            relation = self._query(query.text, query.parameters)
            types = [str(t) for t in relation.types]
            reader = relation.to_arrow_reader(BATCH_ROWS)
            schema = _restored(reader.schema, query)
            return pa.RecordBatchReader.from_batches(schema, self._batches(reader, schema, query.select.text)), types

    def _batches(self, reader: pa.RecordBatchReader, schema: pa.Schema, sql: str) -> Iterator[pa.RecordBatch]:
        with self.errors(sql):
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                except (OSError, pa.ArrowException, RuntimeError) as e:
                    raise self._translate(_duckdb_error(e), sql) from None
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def _query(self, text: str, parameters: Any) -> Any:
        statements = self._connection.extract_statements(text)
        kinds = [s.type for s in statements]
        if len(kinds) != 1 or kinds[0] not in (duckdb.StatementType.SELECT, duckdb.StatementType.MULTI):
            raise SqlError("Only queries can be run.", code="not-allowed", sql=text)
        return self._connection.sql(text, params=parameters) if parameters else self._connection.sql(text)


def _restored(schema: pa.Schema, query: BoundQuery) -> pa.Schema:
    return pa.schema([f.with_name(query.restore(f.name)) for f in schema])


def table_names(text: str) -> list[tuple[str, ...]]:
    """Return the tables that DuckDB finds in a query; raises ``syntax-error`` and ``not-allowed``."""
    connection = duckdb.connect(":memory:")
    try:
        connection.execute("SET enable_external_access = false")
        connection.execute("SET python_enable_replacements = false")
        kinds = [s.type for s in connection.extract_statements(text)]
        if len(kinds) != 1:
            raise SqlError("One statement at a time, please.", code="several-statements", sql=text)
        if kinds[0] != duckdb.StatementType.SELECT:
            raise SqlError(
                "This form of statement is not supported.",
                code="not-supported",
                hint="Write SELECT * FROM ..., for instance SELECT * FROM t PIVOT (...).",
                sql=text,
            )
        rows = connection.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
        document = json.loads(rows[0][0])
        if document.get("error"):
            raise SqlError(str(document.get("error_message")), code="syntax-error", sql=text)
        return sorted(base_tables(document))
    except duckdb.Error as e:
        raise translate(e, text, lambda message: None) from None
    finally:
        connection.close()


def _duckdb_error(error: Exception) -> Exception:
    """Return the DuckDB error whose text came through Arrow's stream interface."""
    text = str(error)
    for cls in (
        duckdb.InterruptException,
        duckdb.OutOfMemoryException,
        duckdb.ConversionException,
        duckdb.OutOfRangeException,
        duckdb.BinderException,
        duckdb.PermissionException,
    ):
        label = {"InterruptException": "INTERRUPT", "OutOfMemoryException": "Out of Memory"}.get(cls.__name__)
        if (label or cls.__name__.removesuffix("Exception")) in text:
            return cls(text)  # type: ignore[no-any-return]
    return error
