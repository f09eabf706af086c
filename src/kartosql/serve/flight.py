"""Arrow Flight SQL: statements, prepared statements with parameters, and the catalog, for ADBC and JDBC.

The messages are those of ``FlightSql.proto`` of Apache Arrow; of the format of
protobuf they need texts, bytes and numbers.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as flight

from kartosql.errors import ExecutionError, KartosqlError, LimitError, StoreError, UsageError
from kartosql.serve.service import MAX_BODY, Client, Refused, Service
from kartosql.serve.unread import SECONDS, Unread
from kartosql.tables.names import CATALOG, MAIN
from kartosql.text.constants import quote
from kartosql.untrusted import MAX_STATEMENT, Cancelled

PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
MAX_KEPT = 1_000  # statements of a client
MAX_FIELDS = 1_000  # of a message
MAX_LISTING = 10_000  # bytes of a command that asks for no statement
EAGER = 2.0  # seconds in which the rows of a statement tell its columns, then they are asked for beside it ...
DESCRIBING = 10.0  # ... which takes as long as this where all workers are busy; later the rows alone tell them
LOOK = 0.2  # seconds between two looks whether a client that waits is still there
_ASKING = ("CommandStatementQuery", "CommandPreparedStatementQuery")
_TICKET = "TicketStatementQuery"
_ACTIONS = {
    "CreatePreparedStatement": "prepare a statement",
    "ClosePreparedStatement": "forget one",
    "CancelFlightInfo": "stop the statement of a FlightInfo",
}
_UNKNOWN = 2**64 - 1  # -1 as protobuf writes it
_TEXT, _INFO = pa.string(), pa.uint32()


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Return the fields of a message of protobuf by number; raises ``invalid-request``."""
    found: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while shift < 70:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
        raise ValueError

    try:
        for _ in range(MAX_FIELDS):
            if at == len(data):
                return found
            key = varint()
            if key & 7 == 0:
                value: Any = varint()
            elif key & 7 == 2:
                size = varint()
                value, at = data[at : at + size], at + size
                if at > len(data):
                    raise ValueError
            else:
                raise ValueError
            found.setdefault(key >> 3, []).append(value)
    except (IndexError, ValueError):
        raise UsageError("The message is no protobuf of Flight SQL.", code="invalid-request") from None
    raise UsageError(f"The message has {MAX_FIELDS:,} fields or more.", code="invalid-request")


def _text(fields: Mapping[int, list[Any]], number: int) -> str | None:
    try:
        return _bytes(fields[number][-1]).decode() if number in fields else None
    except ValueError:
        raise UsageError("A text of the message is no UTF-8.", code="invalid-request") from None


def _bytes(value: Any) -> bytes:
    """Return what a field of bytes holds; raises ``invalid-request`` for a number."""
    if isinstance(value, bytes):
        return value
    raise UsageError("A field of the message is a number.", code="invalid-request")


def _message(**fields: bytes | int) -> bytes:
    """Return a message of fields ``f1``, ``f2``, ... of bytes and numbers."""
    found = b""
    for name, value in fields.items():
        kind, rest = (0, _varint(value)) if isinstance(value, int) else (2, _varint(len(value)) + value)
        found += bytes([int(name[1:]) << 3 | kind]) + rest
    return found


def _any(name: str, content: bytes) -> bytes:
    """Return a message of Flight SQL in an Any."""
    return _message(f1=(PREFIX + name).encode(), f2=content)


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def _check_size(size: int, most: int) -> None:
    """Raise ``request-too-large`` for more bytes than there may be."""
    if size > most:
        raise LimitError(f"The message has {size:,} bytes, the limit is {most:,}.", code="request-too-large")


def _command(data: bytes) -> tuple[str, dict[int, list[Any]]]:
    """Return the name and the fields of a message in an Any."""
    _check_size(len(data), MAX_BODY)
    outer = _fields(data)
    name = _text(outer, 1) or ""
    if not name.startswith(PREFIX):
        raise UsageError("The command is none of Flight SQL.", code="invalid-request")
    return name.removeprefix(PREFIX), _fields(_bytes(outer.get(2, [b""])[-1]))


class _Statement:
    """A statement that is kept for a client: prepared, or begun, and then its rows or its error."""

    def __init__(self, sql: str, parameters: pa.RecordBatch | None = None, size: int = 0) -> None:
        self.sql, self.parameters, self.size = sql, parameters, len(sql) + size
        self.stopped = threading.Event()
        self._wanted = time.monotonic()  # when someone waited for it
        self._rows: Future[Any] = Future()

    def begin(self, ask: Callable[[_Statement, Cancelled], Any]) -> None:
        """Run it in a thread of its own, until it is stopped or nobody has waited for it for long."""

        def is_stopped() -> bool:
            return self.stopped.is_set() or time.monotonic() > self._wanted + SECONDS

        def run() -> None:
            try:
                self._rows.set_result(ask(self, is_stopped))
            except BaseException as e:  # noqa: BLE001
                self._rows.set_exception(e.with_traceback(None))

        threading.Thread(target=run, daemon=True).start()

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._rows.done()

    def rows(self, is_gone: Cancelled, seconds: float = math.inf) -> Any:
        """Return its rows, None if they are not there in time; raises its error. It ends with the client that waits."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._wanted = time.monotonic()
            if is_gone():
                self.stopped.set()
            with suppress(TimeoutError):
                return self._rows.result(min(LOOK, left))
        return None


class _ClientStatements:
    """The statements of clients by their handles: of each client those that came last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: defaultdict[str, OrderedDict[bytes, _Statement]] = defaultdict(OrderedDict)

    def keep(self, client: Client, statement: _Statement, handle: bytes | None = None) -> bytes:
        """Keep a statement, in the place of another if there is a handle; returns its handle."""
        _check_size(statement.size, MAX_STATEMENT)
        handle = handle or secrets.token_bytes(16)
        with self._lock:
            kept = self._of[client.name]
            kept[handle] = statement
            while len(kept) > MAX_KEPT or sum(s.size for s in kept.values()) > MAX_STATEMENT:
                kept.popitem(last=False)[1].stopped.set()
        return handle

    def get(self, client: Client, handle: bytes) -> _Statement:
        """Return a statement; raises ``invalid-request`` where it is not kept."""
        with self._lock:
            found = self._of[client.name].get(handle)
        if found is None:
            raise UsageError("There is no such statement any more.", code="invalid-request", hint="Ask it again.")
        return found

    def drop(self, client: Client, handle: bytes) -> None:
        """Keep a statement no longer."""
        with self._lock:
            self._of[client.name].pop(handle, None)


class _Middleware(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, client: Client) -> None:
        self.client = client


class _Factory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, service: Service) -> None:
        self._service = service

    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> _Middleware:
        given = {name.lower(): values for name, values in headers.items()}.get("authorization", [None])
        try:
            return _Middleware(self._service.client(given[0]))
        except Refused as e:
            raise flight.FlightUnauthenticatedError(str(e)) from None


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Answers Flight SQL over a service."""

    def __init__(self, location: str, service: Service, certificates: tuple[str, str] | None = None) -> None:
        pairs = None
        if certificates is not None:
            chain, key = (open(path, "rb").read() for path in certificates)  # noqa: SIM115
            pairs = [(chain, key)]
        super().__init__(location, middleware={"client": _Factory(service)}, tls_certificates=pairs)
        self._service = service
        self._kept = _ClientStatements()
        self._ended = threading.Event()
        self._unread = Unread()
        threading.Thread(target=self._unread.watch, args=(self._ended,), daemon=True).start()

    def shutdown(self) -> None:
        """Take no more calls, and wait until those that run have ended."""
        self._ended.set()
        super().shutdown()

    # -- calls of Flight ----------------------------------------------------------------------------

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Begin the statement of a command; return its ticket, and its columns unless it takes long."""
        with _translated():
            client, name, fields = self._request(context, descriptor.command or b"")
            if name in _ASKING:
                statement = self._begin(client, name, fields)
                rows = statement.rows(context.is_cancelled, EAGER)
                schema = None if rows else self._described(client, statement)
                if statement.is_done:
                    schema = statement.rows(context.is_cancelled).schema
                ticket = _any(_TICKET, _message(f1=self._kept.keep(client, statement)))
            else:
                schema, ticket = self._listing(client, name, fields).schema, descriptor.command
            known = {} if schema is None else {"f1": schema.serialize().to_pybytes()}
            endpoint = flight.FlightEndpoint(ticket, []).serialize()
            told = _message(**known, f2=descriptor.serialize(), f3=endpoint, f4=_UNKNOWN, f5=_UNKNOWN)
            return flight.FlightInfo.deserialize(told)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Return the columns of what a command asks for, and run nothing."""
        with _translated():
            client, name, fields = self._request(context, descriptor.command or b"")
            if name not in _ASKING:
                return flight.SchemaResult(self._listing(client, name, fields).schema)
            asked = self._statement(client, name, fields)
            return flight.SchemaResult(self._service.describe(client, asked.sql, asked.parameters).schema)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Return the rows that a ticket stands for, once."""
        with _translated():
            client, name, fields = self._request(context, ticket.ticket)
            if name == _TICKET:
                handle = _bytes(fields.get(1, [b""])[-1])
                try:
                    rows = self._kept.get(client, handle).rows(context.is_cancelled)
                finally:
                    self._kept.drop(client, handle)
            elif name in _ASKING:
                rows = self._begin(client, name, fields).rows(context.is_cancelled)
            else:
                rows = self._unread.pieces(self._listing(client, name, fields), client)
            return flight.GeneratorStream(rows.schema, _typed_errors(rows))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Bind the parameters of a prepared statement: the one row that is sent."""
        with _translated():
            client, name, fields = self._request(context, descriptor.command or b"")
            if name != "CommandPreparedStatementQuery":
                raise UsageError("Statements that change something are not allowed here.", code="not-allowed")
            handle = _bytes(fields.get(1, [b""])[-1])
            row = _row(reader)
            size = row.nbytes if row else 0
            self._kept.keep(client, _Statement(self._kept.get(client, handle).sql, row, size), handle)
            writer.write(pa.py_buffer(_message(f1=handle)))

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Prepare a statement, forget one, or stop one that runs."""
        with _translated():
            client = self._client(context)
            _check_size(action.body.size, MAX_BODY)
            body = action.body.to_pybytes()
            if action.type == "CreatePreparedStatement":
                sql = _text(_command(body)[1], 1) or ""
                handle = self._kept.keep(client, _Statement(sql))
                schema = b""
                if "?" not in sql and "$" not in sql and ":" not in sql:  # else the columns may depend on values
                    schema = self._service.describe(client, sql).schema.serialize().to_pybytes()
                empty = pa.schema([]).serialize().to_pybytes()
                result = _any("ActionCreatePreparedStatementResult", _message(f1=handle, f2=schema, f3=empty))
                return iter([flight.Result(pa.py_buffer(result))])
            if action.type == "ClosePreparedStatement":
                self._kept.drop(client, _bytes(_command(body)[1].get(1, [b""])[-1]))
                return iter([])
            if action.type == "CancelFlightInfo":
                return iter([flight.Result(pa.py_buffer(_message(f1=self._cancel(client, body))))])
            raise UsageError(f"There is no action {action.type[:100]!r}.", code="not-supported")

    def _refused(self, *_: Any) -> Any:
        with _translated():
            raise UsageError("Flight SQL asks for statements and listings by commands.", code="not-supported")

    do_exchange = list_flights = _refused

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Return the actions that there are."""
        return list(_ACTIONS.items())

    # -- what they ask for --------------------------------------------------------------------------

    def _client(self, context: Any) -> Client:
        client: Client = context.get_middleware("client").client
        return client

    def _request(self, context: Any, data: bytes) -> tuple[Client, str, dict[int, list[Any]]]:
        return (self._client(context), *_command(data))

    def _statement(self, client: Client, name: str, fields: Mapping[int, list[Any]]) -> _Statement:
        if name == "CommandStatementQuery":
            return _Statement(_text(fields, 1) or "")
        prepared = self._kept.get(client, _bytes(fields.get(1, [b""])[-1]))
        return _Statement(prepared.sql, prepared.parameters, prepared.size - len(prepared.sql))

    def _begin(self, client: Client, name: str, fields: Mapping[int, list[Any]]) -> _Statement:
        """Return the statement of a command, which runs from now on."""

        def ask(of: _Statement, is_stopped: Cancelled) -> Any:
            return self._unread.pieces(self._service.query(client, of.sql, of.parameters, is_stopped).arrow(), client)

        statement = self._statement(client, name, fields)
        statement.begin(ask)
        return statement

    def _described(self, client: Client, of: _Statement) -> Any:
        """Return the columns of a statement that runs, None if it ends meanwhile or no worker is free."""
        end = time.monotonic() + DESCRIBING
        with suppress(LimitError, ExecutionError):
            is_late: Cancelled = lambda: of.is_done or time.monotonic() > end  # noqa: E731
            return self._service.describe(client, of.sql, of.parameters, is_late).schema
        return None

    def _cancel(self, client: Client, request: bytes) -> int:
        """Stop what runs for the tickets of a FlightInfo; return 2, cancelling, or 3 if there is none."""
        found = 3
        for info in _fields(request).get(1, []):
            for endpoint in _fields(_bytes(info)).get(3, []):
                ticket = _bytes(_fields(_bytes(_fields(_bytes(endpoint)).get(1, [b""])[-1])).get(1, [b""])[-1])
                with suppress(UsageError):
                    self._kept.get(client, _bytes(_command(ticket)[1].get(1, [b""])[-1])).stopped.set()
                    found = 2
        return found

    def _listing(self, client: Client, name: str, fields: Mapping[int, list[Any]]) -> pa.Table:
        listings: dict[str, Callable[[], pa.Table]] = {
            "CommandGetCatalogs": lambda: _listed([("catalog_name", _TEXT, False)], [(CATALOG,)]),
            "CommandGetDbSchemas": lambda: self._schemas(client, fields),
            "CommandGetTables": lambda: self._tables(client, fields),
            "CommandGetTableTypes": lambda: _listed([("table_type", _TEXT, False)], [("TABLE",), ("VIEW",)]),
            "CommandGetSqlInfo": lambda: _sql_info(fields),
        }
        if name not in listings:
            raise UsageError(f"{name[:100]} is not supported.", code="not-supported")
        _check_size(sum(len(_message(f1=value)) for values in fields.values() for value in values), MAX_LISTING)
        return listings[name]()

    def _names(self, client: Client, fields: Mapping[int, list[Any]]) -> list[tuple[str, str, str]]:
        """Return schema, name and type of the tables whose schema a filter passes."""
        if _text(fields, 1) not in (None, "", CATALOG):
            return []
        found = []
        for shown, kind in self._service.tables(client):
            schema, _, table = shown.rpartition(".")
            names = schema.strip('"') or MAIN, table.strip('"')  # a name has no quotes and no dots
            found.append((*names, "VIEW" if kind == "view" else "TABLE"))
        return _like(found, 0, _text(fields, 2))

    def _schemas(self, client: Client, fields: Mapping[int, list[Any]]) -> pa.Table:
        names = sorted({schema for schema, _, _ in self._names(client, fields)})
        columns = [("catalog_name", _TEXT, True), ("db_schema_name", _TEXT, False)]
        return _listed(columns, [(CATALOG, name) for name in names])

    def _tables(self, client: Client, fields: Mapping[int, list[Any]]) -> pa.Table:
        types = {_bytes(t).decode(errors="replace") for t in fields.get(4, [])}
        rows = _like(self._names(client, fields), 1, _text(fields, 3))
        rows = [row for row in rows if not types or row[2] in types]
        columns = [("catalog_name", _TEXT, True), ("db_schema_name", _TEXT, True)]
        columns += [("table_name", _TEXT, False), ("table_type", _TEXT, False)]
        if not fields.get(5, [0])[-1]:
            return _listed(columns, [(CATALOG, *row) for row in rows])
        columns.append(("table_schema", pa.binary(), False))
        return _listed(columns, [(CATALOG, *row, self._schema_of(client, row)) for row in rows])

    def _schema_of(self, client: Client, row: tuple[str, str, str]) -> bytes:
        name = ".".join(quote(part) for part in row[:2] if part != MAIN or part == row[1])
        try:
            schema = self._service.describe(client, f"SELECT * FROM {name}").schema
        except KartosqlError:
            schema = pa.schema([])  # of a table that cannot be read
        return bytes(schema.serialize().to_pybytes())


def _row(reader: Any) -> pa.RecordBatch | None:
    """Return the row that a client sends, as it came: its values may take more memory than its bytes.

    Raises ``invalid-parameters``, also for buffers that do not hold what they say, which no one may look into.
    """
    row: pa.RecordBatch | None = None
    try:
        for batch in (chunk.data for chunk in reader if chunk.data is not None and chunk.data.num_rows):
            if row is not None or batch.num_rows > 1:
                hint = "Ask once for each row of parameters."
                raise UsageError("A statement has one row of parameters.", code="invalid-parameters", hint=hint)
            batch.validate(full=True)
            row = batch
    except (pa.ArrowException, OSError) as e:
        raise UsageError(f"The parameters are no valid Arrow: {e}", code="invalid-parameters") from None
    return row


def _listed(columns: Sequence[tuple[str, pa.DataType, bool]], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    arrays = [pa.array([row[at] for row in rows], type_) for at, (_, type_, _) in enumerate(columns)]
    return pa.Table.from_arrays(arrays, schema=pa.schema([pa.field(*column) for column in columns]))


def _like(rows: list[tuple[str, str, str]], at: int, pattern: str | None) -> list[tuple[str, str, str]]:
    """Return the rows whose text at a place is like a pattern of SQL, in time that the pattern cannot blow up."""
    return [row for row in rows if pattern is None or pc.match_like(row[at], pattern).as_py()]


def _sql_info(fields: Mapping[int, list[Any]]) -> pa.Table:
    """Return name, version and Arrow's version of the server, and that it only reads."""
    from kartosql import __version__

    asked = [number for value in fields.get(1, []) for number in ([value] if isinstance(value, int) else value)]
    numbers = range(4)
    texts, truths = pa.array(["kartosql", __version__, pa.__version__]), pa.array([True])
    others = (pa.int64(), pa.int32(), pa.list_(_TEXT), pa.map_(pa.int32(), pa.list_(pa.int32())))
    parts = [texts, truths, *(pa.array([], type_) for type_ in others)]
    names = ["string_value", "bool_value", "bigint_value", "int32_bitmask", "string_list", "int32_to_int32_list_map"]
    kinds, places = pa.array([0, 0, 0, 1], pa.int8()), pa.array([0, 1, 2, 0], pa.int32())
    values = pa.UnionArray.from_dense(kinds, places, parts, names)
    known = pa.table({"info_name": pa.array(numbers, _INFO), "value": values})
    return known.filter(pa.array([not asked or number in asked for number in numbers]))


def _typed_errors(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    with _translated():
        yield from pieces


@contextmanager
def _translated() -> Iterator[None]:
    """Make an error of ours one of Flight, with its code and hint as JSON in the detail."""
    try:
        yield
    except KartosqlError as e:
        e.__traceback__ = None  # whose frames have the statement, which has the error: it would stay until a collection
        detail, message = json.dumps(e.to_dict()).encode(), f"[{e.code}] {e}"
        if e.code == "timeout":
            raise flight.FlightTimedOutError(message, detail) from None
        if isinstance(e, Refused):
            raise flight.FlightUnauthenticatedError(message, detail) from None
        if isinstance(e, LimitError | StoreError):
            raise flight.FlightUnavailableError(message, detail) from None
        raise pa.ArrowInvalid(message) from None
