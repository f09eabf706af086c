"""kartosql as a database of Python's DB-API 2.0 (PEP 249).

Statements commit by themselves, each as a whole: ``commit`` has nothing to do, and what was written cannot be
rolled back. Errors are the classes that PEP 249 names; they carry code, hint and span of kartosql's own.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn, Self

import pyarrow as pa

import kartosql.opening
from kartosql import errors
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.render.values import is_binary, is_number
from kartosql.result import Query, python_rows
from kartosql.stopping import translated_errors

__all__ = [
    *("BINARY", "DATETIME", "NUMBER", "ROWID", "STRING"),
    *("Binary", "Date", "DateFromTicks", "Time", "TimeFromTicks", "Timestamp", "TimestampFromTicks"),
    *("Connection", "Cursor", "apilevel", "connect", "paramstyle", "threadsafety"),
    *("DataError", "DatabaseError", "Error", "IntegrityError", "InterfaceError", "InternalError"),
    *("NotSupportedError", "OperationalError", "ProgrammingError", "Warning"),
]

apilevel = "2.0"
threadsafety = 1  # threads may share the module; a connection of theirs is cheap
paramstyle = "qmark"

Parameters = Sequence[Any] | Mapping[str, Any] | None
Warning = KartosqlWarning  # noqa: A001 - the name that PEP 249 gives


class Error(KartosqlError):
    """The base of all errors of this module."""


class InterfaceError(Error):
    """The module was not used as it has to be: a cursor that is closed, rows of a statement without rows."""


class DatabaseError(Error):
    """A statement failed."""


class DataError(DatabaseError):
    """Stored data, or a value, is not what it has to be."""


class OperationalError(DatabaseError):
    """The store or the engine failed, or a limit was reached."""


class IntegrityError(DatabaseError):
    """A change conflicts with what the store holds."""


class InternalError(DatabaseError):
    """kartosql itself failed."""


class ProgrammingError(DatabaseError):
    """A statement that is not understood, or names that are not known."""


class NotSupportedError(DatabaseError):
    """Something that kartosql does not do, such as to roll back."""


# The first class that fits counts.
_CLASSES: tuple[tuple[tuple[type[KartosqlError], ...], type[Error]], ...] = (
    ((errors.NotPortable,), NotSupportedError),
    ((errors.SqlError, errors.UsageError), ProgrammingError),
    ((errors.CommitError,), IntegrityError),
    ((errors.FormatError,), DataError),
    ((errors.StoreError, errors.ExecutionError, errors.LimitError), OperationalError),
)
_DATA = ("null-in-key", "duplicate-cells", "invalid-data", "incompatible-schema", "type-mismatch")


class _Type:
    """A group of types, equal to the type code of each of them."""

    def __init__(self, name: str, holds: Callable[[pa.DataType], bool]) -> None:
        self._name = name
        self._holds = holds

    def __eq__(self, other: object) -> bool:
        return self._holds(other) if isinstance(other, pa.DataType) else self is other

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return self._name


_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
STRING = _Type("STRING", lambda type_: any(test(type_) for test in _TEXTS))
BINARY = _Type("BINARY", is_binary)
NUMBER = _Type("NUMBER", is_number)
DATETIME = _Type("DATETIME", lambda type_: bool(pa.types.is_temporal(type_)))
ROWID = _Type("ROWID", lambda _: False)

Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> dt.date:  # noqa: N802 - the name that PEP 249 gives
    """Return the local date of a moment, given in seconds since 1970."""
    return dt.date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> dt.time:  # noqa: N802
    """Return the local time of day of a moment, given in seconds since 1970."""
    return dt.time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> dt.datetime:  # noqa: N802
    """Return the local date and time of a moment, given in seconds since 1970."""
    return dt.datetime(*time.localtime(ticks)[:6])


def connect(url: str | os.PathLike[str], **options: Any) -> Connection:
    """Open a store as a DB-API connection; options are those of ``kartosql.connect``.

    Raises what that raises, as the errors of this module.
    """
    try:
        return Connection(kartosql.opening.connect(url, **options))
    except KartosqlError as e:
        _raise(e)


class Connection:
    """A DB-API connection; ``native`` is the connection of kartosql below it."""

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, native: kartosql.connection.Connection) -> None:
        self.native = native
        self._closed = False
        self._written = False  # since the last commit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        if self._closed:
            raise InterfaceError("The connection is closed.", code="connection-closed")

    def cursor(self) -> Cursor:
        """Return a new cursor; cursors of one connection do not disturb each other."""
        self._open()
        return Cursor(self)

    def execute(self, operation: str, parameters: Parameters = None) -> Cursor:
        """Run a statement on a new cursor and return that."""
        return self.cursor().execute(operation, parameters)

    def commit(self) -> None:
        """Do nothing: each statement is committed when it ends."""
        self._open()
        self._written = False

    def rollback(self) -> None:
        """Raise NotSupportedError if anything was written since the last commit, as that stays."""
        self._open()
        if self._written:
            self._written = False
            raise NotSupportedError(
                "What a statement has written is committed with it and cannot be rolled back.",
                code="not-allowed",
                hint="DELETE or INSERT OVERWRITE changes it back.",
            )

    def close(self) -> None:
        """Close the connection; raises InterfaceError if it is closed already."""
        self._open()
        self._closed = True
        self.native.close()


class Cursor:
    """A DB-API cursor: one statement at a time, whose rows are streamed as they are fetched.

    ``query`` is the result of the last statement, also of those without rows for DB-API: for a
    statement that writes, the table of what it did.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1
        self.lastrowid = None
        self.query: Query | None = None
        self._reader: pa.RecordBatchReader | None = None
        self._rows: Iterator[tuple[Any, ...]] | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self

    def __next__(self) -> tuple[Any, ...]:
        return next(self._fetched())

    def _open(self) -> None:
        if self._closed:
            raise InterfaceError("The cursor is closed.", code="connection-closed")
        self.connection._open()

    def close(self) -> None:
        """Close the cursor; what it still runs is stopped."""
        self._forget()
        self._closed = True

    def _forget(self) -> None:
        reader, self._reader, self._rows, self.description, self.rowcount = self._reader, None, None, None, -1
        if reader is not None:
            reader.close()

    # -- statements ----------------------------------------------------------------------------------

    def execute(self, operation: str, parameters: Parameters = None) -> Self:
        """Run a statement; parameters stand for ``?`` and ``$1``, or by name for ``$name`` and ``:name``."""
        self._open()
        self._forget()
        try:
            query = self.connection.native.sql(operation, parameters or None)
            self.query = query
            if query.written is not None:
                self.connection._written = True
                self.rowcount = query.written
                return self
            self._reader = query.reader()
            self.description = [(f.name, f.type, None, None, None, None, f.nullable) for f in self._reader.schema]
            self._rows = self._stream(self._reader)
        except KartosqlError as e:
            self._forget()
            _raise(e)
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Parameters]) -> Self:
        """Run a statement once for each set of parameters; each run is a commit of its own."""
        self._open()
        total = 0
        if not isinstance(seq_of_parameters, Iterable):
            raise ProgrammingError("executemany() takes a list of parameters.", code="invalid-parameters")
        for parameters in seq_of_parameters:
            self.execute(operation, parameters)
            if self._rows is not None:
                self._forget()
                raise ProgrammingError("executemany() is for statements without rows.", code="invalid-argument")
            total += self.rowcount
        self.rowcount = total
        return self

    def _stream(self, reader: pa.RecordBatchReader) -> Iterator[tuple[Any, ...]]:
        try:
            with translated_errors():
                for batch in reader:
                    assert self.query is not None
                    yield from python_rows(pa.Table.from_batches([batch]), self.query.types)
        except KartosqlError as e:
            _raise(e)

    # -- rows ----------------------------------------------------------------------------------------

    def _fetched(self) -> Iterator[tuple[Any, ...]]:
        self._open()
        if self._rows is None:
            raise InterfaceError("There is no statement with rows to fetch.", code="no-rows")
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, None behind the last one."""
        return next(self._fetched(), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return the next rows, at most ``size`` (``arraysize``) of them."""
        return list(islice(self._fetched(), self.arraysize if size is None else max(0, size)))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows that are left."""
        return list(self._fetched())

    def setinputsizes(self, sizes: Any) -> None:
        """Do nothing, as nothing has to be known of parameters before."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing, as values of any size are fetched."""


def _raise(error: KartosqlError) -> NoReturn:
    """Raise an error of kartosql as the one that PEP 249 has for it."""
    kind: type[Error] = next((to for of, to in _CLASSES if isinstance(error, of)), DatabaseError)
    if error.code in _DATA:
        kind = DataError
    raise kind(error.message, code=error.code, hint=error.hint, span=error.span, sql=error.sql) from error
