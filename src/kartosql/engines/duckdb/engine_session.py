"""What planner and statements share: our own SQL over a DuckDB connection, and Parquet files as relations."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from kartosql import stopping
from kartosql.engines.base import corrupt_file
from kartosql.engines.duckdb.files import FileAccess
from kartosql.engines.duckdb.footers import Footers
from kartosql.engines.duckdb.instance import SMALL_LIST, Instance, of_process, set_files
from kartosql.engines.duckdb.relations import Relations, parquet_schema_argument
from kartosql.engines.duckdb.texts import reading_literal
from kartosql.engines.duckdb.types import quote, sql_type
from kartosql.errors import (
    ExecutionError,
    FormatError,
    KartosqlError,
    LimitError,
    Span,
    SqlError,
    StoreError,
    failure_of,
    reraise,
)
from kartosql.formats.arrays import array_of
from kartosql.sql.tree import Edit, edited, original_span
from kartosql.tables.table import FileTable, Table, shown_data

_UNKNOWN_COLUMN = re.compile(r'Referenced column "([^"]+)" (?:was )?not found|does not have a column named "([^"]+)"')
_UNKNOWN_TABLE = re.compile(r'(?:Table with name|Referenced table) "?([^"\s]+)"? (?:does not exist|not found)')
_UNKNOWN_FUNCTION = re.compile(r"[Ff]unction with name \"?([^\"\s]+)\"? does not exist")
_UNREADABLE = re.compile(r": Columns (?:of type|that hold) .+ cannot be queried$")  # of our views, see relations.py
_LINE = re.compile(r"\n+LINE \d+: .*\Z", re.DOTALL)
_PLACE = re.compile(r"^LINE (\d+): (.*)\n( *)(\^+)", re.MULTILINE)
_PIVOT_PARAMETERS = ("for a statement that expands into several", "cannot have parameters in their source")
_SIGNATURE = re.compile(r"^\t(\w+)\((.*)\)(?: -> .*)?$", re.MULTILINE)
_CALL = re.compile(r"""['"]\w+\((.*)\)['"]""")
_PARAMETER = re.compile(r'(?:"[^"]*"|\w+) (.+)')
MAX_SIGNATURES = 4
_SCHEMA = re.compile(r'"?__kartosql_\d*"?\.')


def translate(
    error: Exception, sql: str, key_in: Callable[[str], str | None], edits: Sequence[Edit] = ()
) -> KartosqlError:
    """Return the error of ours that an error of DuckDB means.

    ``key_in`` finds the storage key of a file that a message names, ``edits`` made the text that
    was run of the user's ``sql``.
    """
    raw = str(error)
    message = _SCHEMA.sub("", _LINE.sub("", raw)).strip()
    message = re.sub(r"^[A-Z][A-Za-z ]+ Error: ", "", message).split("\n")[0].strip()
    hint = next((line for line in raw.splitlines() if line.startswith(("Did you mean", "Candidate"))), None)
    hint = hint and re.sub(r'^Did you mean "([^"]+)"\??$', r"Did you mean \1?", hint)
    if isinstance(error, duckdb.InterruptException):
        return _stopped(raw)
    if "Max expression depth limit" in raw:
        hint = "Compute parts of it in WITH, or split the statement."
        return SqlError("Expressions are nested too deeply.", code="statement-too-deep", hint=hint, sql=sql)
    if any(text in raw for text in _PIVOT_PARAMETERS):
        return SqlError(
            "A PIVOT that finds its values itself takes no parameters.",
            code="not-supported",
            hint="Name the values, as in PIVOT t ON x IN ('a', 'b'), or write the constants.",
            sql=sql,
        )
    if isinstance(error, duckdb.ParserException):
        from kartosql.sql.diagnosis import diagnosed  # not at the top: most statements are right

        return diagnosed(sql, message, hint, _place(raw, sql, edits))
    key = key_in(raw)
    failure = failure_of(error, f"Cannot read {key!r}" if key is not None else None)
    if failure is not None:
        return failure
    if isinstance(error, duckdb.PermissionException) or "disabled by configuration" in raw:
        return SqlError(
            "The statement may read nothing but the tables of the connection.",
            code="not-allowed",
            hint="Functions that read files, ATTACH and settings of the engine are switched off.",
            sql=sql,
        )
    if isinstance(error, (duckdb.BinderException, duckdb.CatalogException, duckdb.NotImplementedException)):
        return _bind_error(message, raw, hint, sql, edits)
    if "Traceback (most recent call last)" in raw:
        # What our own filesystem raised while DuckDB read through it.
        reason = raw.strip().splitlines()[-1]
        return StoreError(f"Cannot read the data: {reason}")
    if _UNREADABLE.search(message):
        return FormatError(message, code="unsupported-type", hint="Leave the column out of the statement.", sql=sql)
    if key is not None:
        error_of_file = corrupt_file(f"{key}: {message}")
        if "failed to cast column" in raw:
            error_of_file.code = "schema-mismatch"
        return error_of_file
    if isinstance(error, (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException)):
        if isinstance(error, duckdb.ConversionException) and hint is None:
            hint = "TRY_CAST gives NULL where a value does not fit."
        return ExecutionError(message, code="invalid-value", hint=hint, sql=sql, span=_place(raw, sql, edits))
    return ExecutionError(message or type(error).__name__, hint=hint)


def _stopped(raw: str) -> KartosqlError:
    """Return why a statement was stopped: its timeout, or somebody's wish."""
    if "timeout" in raw.lower() or "execution time" in raw.lower():
        return LimitError("The statement ran longer than its timeout.", code="timeout", hint="Raise timeout.")
    return ExecutionError("The statement was interrupted.", code="interrupted")


def _place(raw: str, sql: str, edits: Sequence[Edit] = ()) -> Span | None:
    """Return the place in ``sql`` that the caret of a message points at, if its line is the user's."""
    match = _PLACE.search(raw)
    run = edited(sql, edits)
    lines = run.split("\n")
    if match is None or int(match[1]) > len(lines):
        return None
    number, shown = int(match[1]) - 1, match[2]
    column = len(match[3]) - len(f"LINE {match[1]}: ")
    cut = shown.removeprefix("...").removesuffix("...")
    # Long lines are shown in part.
    at = lines[number].find(cut)
    if at < 0 or column < 0:
        return None
    start = sum(len(line) + 1 for line in lines[:number]) + at + column - (3 if shown.startswith("...") else 0)
    if not 0 <= start <= len(run):
        return None
    first, last = (original_span(sql, edits, at) for at in (start, start + len(match[4]) - 1))
    return first[0], max(first[1], last[1])


def _bind_error(message: str, raw: str, hint: str | None, sql: str, edits: Sequence[Edit] = ()) -> SqlError:
    span = _place(raw, sql, edits)
    match = _UNKNOWN_COLUMN.search(raw)
    if match:
        name = match[1] or match[2]
        return SqlError(f"There is no column {name!r}.", code="unknown-column", hint=hint, sql=sql, span=span)
    match = _UNKNOWN_TABLE.search(raw)
    if match:
        return SqlError(f"There is no table {match[1]!r}.", code="unknown-table", hint=hint, sql=sql)
    code = "not-grouped" if "GROUP BY" in raw and "must appear" in raw else "invalid-query"
    match = _UNKNOWN_FUNCTION.search(raw)
    if match:
        message = f"There is no function {match[1]!r}."
    elif code == "not-grouped" and hint is None:
        hint = "Add it to GROUP BY, write any_value(...) around it, or use GROUP BY ALL."
    elif "No function matches" in raw or "Could not choose a best candidate" in raw:
        message = message.replace(" You might need to add explicit type casts.", "")
        hint = _signatures(raw)
    return SqlError(message, code=code, hint=hint, sql=sql, span=span)


def _signatures(raw: str) -> str:
    """Return how a function is called, by the candidates that a message lists, and whether a cast may help."""
    cast = "Write a cast to the type that is meant, such as CAST(x AS DOUBLE)."
    found = [
        (name, [_PARAMETER.sub(r"\1", p) for p in _split(parameters)]) for name, parameters in _SIGNATURE.findall(raw)
    ]
    if not found:
        return cast
    listed = [f"{name}({', '.join(types)})" for name, types in found[:MAX_SIGNATURES]]
    hint = f"It is called as {', '.join(listed)}{' and others' if len(found) > MAX_SIGNATURES else ''}."
    given = _CALL.search(raw)
    count = None if given is None else len(_split(given[1]))
    return f"{hint} {cast}" if count is None or any(len(types) == count for _, types in found) else hint


def _split(parameters: str) -> list[str]:
    """Return the parameters of a call; commas in brackets belong to types."""
    return [p for p in re.split(r",\s*(?![^()]*\))", parameters) if p and p != "/"]


MAX_BLAMED = 1_000  # files that are read again to find the one that made a statement fail
EXACT_ROWS = 1 << 17  # estimates up to here are rounded


class EngineSession:
    """A connection of its own to an instance, with the files of one statement.

    It takes the connection over from ``former``, with the views and variables that are there.
    """

    def __init__(
        self, instance: Instance, files: FileAccess, footers: Footers, former: EngineSession | None = None
    ) -> None:
        self.instance = instance
        self.files = files
        self.footers = footers
        self.store = files.store
        self._registered: dict[int, str] = {}
        self._data_keys: list[str] = []
        self._connection: Any = instance.cursor() if former is None else former._connection
        of_process.add(self)
        self.relations: Relations = Relations(self, None if former is None else former.relations)

    def close(self) -> None:
        """Free the connection and all that was made for it; whatever runs is stopped."""
        if not self.instance.is_of_this_process:
            return
        self.interrupt()
        self._connection.close()

    def interrupt(self) -> None:
        """Stop a running statement, from any thread."""
        if not self.instance.is_of_this_process:
            return
        with contextlib.suppress(duckdb.Error):
            self._connection.interrupt()

    # -- plumbing ------------------------------------------------------------------------------

    def run(self, sql: str) -> None:
        """Execute our own statement."""
        with stopping.running(self.interrupt):
            self._connection.execute(sql)

    def rows(self, sql: str, parameters: Any = None) -> list[Any]:
        """Execute our own query and return its rows."""
        with stopping.running(self.interrupt):
            result = self._connection.execute(sql, parameters) if parameters else self._connection.execute(sql)
            rows: list[Any] = result.fetchall()
            return rows

    def clock(self, function: str) -> str:
        """Return the literal that a function of the clock stands for in the session's transaction."""
        ((type_, text),) = self.rows(f"SELECT typeof({function}), CAST({function} AS VARCHAR)")
        return f"CAST('{text}' AS {type_})"

    def register(self, name: str, table: Any) -> None:
        """Make an Arrow table known under ``name``."""
        self._connection.register(name, table)

    def unregister(self, name: str) -> None:
        """Forget an Arrow table."""
        self._connection.unregister(name)

    def set_list(self, variable: str, values: Sequence[Any], type_: pa.DataType) -> None:
        """Set a variable to a list of values of a type, given as for ``array_of``."""
        t = pa.types
        if len(values) < SMALL_LIST and (t.is_signed_integer(type_) or t.is_string(type_) or t.is_boolean(type_)):
            self._connection.execute(f"SET VARIABLE {variable} = CAST(? AS {sql_type(type_)}[])", [list(values)])
            return
        positions = array_of(range(len(values)), pa.int64())
        self.register(variable, pa.table({"i": positions, "v": array_of(values, type_)}))
        self.run(f"SET VARIABLE {variable} = (SELECT list(v ORDER BY i) FROM {variable})")
        self.unregister(variable)

    def set_files(self, variable: str, keys: Sequence[str]) -> list[str]:
        """Set a variable to a list of files and return their paths; raises ``missing-file`` and ``unsafe-key``."""
        paths = self.files.paths(keys, self.instance.filesystem)
        set_files(self._connection, variable, paths, [self.files.sizes[k] for k in keys])
        return paths

    def registered_name(self, source: Table) -> str:
        """Return the relation of data that the user registered."""
        name = self._registered.get(id(source))
        if name is None:
            name = self._registered[id(source)] = f"kartosql_data_{len(self._registered)}"
            self.register(name, shown_data(source))
        return name

    @contextlib.contextmanager
    def errors(self, sql: str, edits: Sequence[Edit] = ()) -> Iterator[None]:
        """Turn DuckDB's errors into ours; ``edits`` made what is run of the user's ``sql``."""
        try:
            yield
        except KartosqlError as e:
            e.message = self.files.shown_in(e.message)
            raise
        except duckdb.Error as e:
            raise self._translate(e, sql, edits) from None

    def _translate(self, error: Exception, sql: str, edits: Sequence[Edit] = ()) -> KartosqlError:
        """Return our error; where DuckDB does not say which file it cannot read, find it."""
        filesystem = self.instance.filesystem
        if filesystem is not None and filesystem.failure is not None and "Traceback" in str(error):
            return filesystem.failure
        found = translate(error, sql, self.files.key_in, edits)
        if type(found) is ExecutionError and found.code == "query-failed":
            return self._damaged() or found
        return found

    def _damaged(self) -> FormatError | None:
        """Return the error about the first data file of the statement that cannot be read, if there is one."""
        import pyarrow.parquet as pq

        for key in self._data_keys[:MAX_BLAMED]:
            stopping.check()
            try:
                pq.read_table(pa.BufferReader(self.store.read(key)), partitioning=None)
            except (pa.ArrowException, OSError, ValueError, KeyError) as e:
                reraise(e, f"Cannot read {self.store.display_name(key)!r}")
                reason = str(e).splitlines()[0] if str(e) else type(e).__name__
                return corrupt_file(f"{self.store.display_name(key)}: {reason}")
        return None

    # -- files ---------------------------------------------------------------------------------

    def parquet_files(
        self, table: FileTable, variable: str, keys: Sequence[str], declared: dict[str, str]
    ) -> tuple[str, list[str]]:
        """Return a reader over Parquet files and the values of the declared columns in its rows ``r``.

        Raises ``missing-file``, ``corrupt-file`` and ``schema-mismatch``.
        """
        paths = self.set_files(variable, keys)
        self._data_keys += keys
        self.instance.remember_footers(table, keys)
        self.footers.check(self, table, keys, paths, declared)
        if not declared:
            reader = f"read_parquet(getvariable('{variable}'), hive_partitioning = false)"
            return f"(SELECT file_index, file_row_number FROM {reader})", []
        size = sum(self.files.sizes.get(k) or 0 for k in keys)
        narrower = self.footers.narrower(table, keys, self.files.sizes, declared)
        values, schema = [f"r.{quote(c)}" for c in declared], ""
        if narrower is not None:
            # Bound in half of the time that a schema takes; conditions still leave row groups out.
            values = [
                f"CAST({v} AS {declared[c]})" if c in narrower else v for c, v in zip(declared, values, strict=True)
            ]
        else:
            # As a variable it is computed once, and not each time the view is bound.
            self.relations.set_once(f"{variable}_schema", parquet_schema_argument(declared))
            values = [f"r.c{i}" for i in range(len(declared))]
            schema = f"schema = getvariable('{variable}_schema'), "
        reader = (
            f"read_parquet(getvariable('{variable}'), {schema}"
            f"hive_partitioning = false, can_have_nan = true, explicit_cardinality = {_estimated_rows(size)})"
        )
        return reader, values

    def types_in_files(self, keys: Sequence[str], columns: Sequence[str]) -> dict[str, str]:
        """Return the DuckDB type that files give to columns; those that hold only NULL are left out.

        Raises ``schema-mismatch`` where files disagree.
        """
        self.set_files("kartosql_untyped", keys)
        rows = self.rows(
            "SELECT name, list(DISTINCT duckdb_type) FROM parquet_schema(getvariable('kartosql_untyped')) "
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

    def arrow_files(
        self, name: str, keys: Sequence[str], columns: Sequence[str], types: Mapping[str, pa.DataType]
    ) -> str:
        """Read files with pyarrow, exposed like parquet_files does it."""
        import pyarrow.parquet as pq

        self.files.stat(keys)
        tables = []
        for at, key in enumerate(keys):
            stopping.check()
            try:
                table = pq.read_table(pa.BufferReader(self.store.read(key)), columns=list(columns))
                arrays = [table.column(c).cast(types[c]) for c in columns]
            except (pa.ArrowException, OSError, KeyError) as e:
                reraise(e, f"Cannot read {self.store.display_name(key)!r}")
                raise FormatError(f"{self.store.display_name(key)}: {e}", code="corrupt-file") from None
            arrays += [pa.array([at] * table.num_rows, pa.uint64()), pa.array(range(table.num_rows), pa.int64())]
            tables.append(pa.table(arrays, [f"c{i}" for i in range(len(columns))] + ["file_index", "file_row_number"]))
        self.register(name, pa.concat_tables(tables))
        return name

    def text_files(
        self, variable: str, keys: Sequence[str], reading: Mapping[str, Any], columns: Sequence[str]
    ) -> tuple[str, list[str]]:
        """Return a reader over text files, which ``reading`` describes, and the values of columns in its rows ``r``."""
        self.set_files(variable, keys)
        self._data_keys += keys
        options = ", ".join(f"{name} = {reading_literal(value)}" for name, value in reading.items())
        reader = f"read_csv(getvariable('{variable}'), auto_detect = false, hive_partitioning = false, {options})"
        return reader, [f"r.{quote(c)}" for c in columns]


def _estimated_rows(size: int) -> int:
    """Return how many rows files of ``size`` bytes may have; roughly, so that many small scans have the same view."""
    rows = max(1, size // 50)
    return rows if rows > EXACT_ROWS else 4 ** (rows.bit_length() // 2)
