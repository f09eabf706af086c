"""Arrow Flight SQL: statements, prepared statements with parameters, and the catalog, for ADBC and JDBC.

The messages are those of ``FlightSql.proto`` of Apache Arrow; of the format of
protobuf they need texts, bytes and numbers.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from kartosql.errors import KartosqlError, LimitError, StoreError, UsageError
from kartosql.serve.service import Client, Refused, Service
from kartosql.serve.unread import Unread
from kartosql.text.constants import quote

PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
MAX_PREPARED = 1_000
_TEXT, _INFO = pa.string(), pa.uint32()
_CATALOG = "kartosql"


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
        while at < len(data):
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
    return found


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


def _asking(sql: str) -> bytes:
    """Return a ticket of a statement, which no other has."""
    name = (PREFIX + "CommandStatementQuery").encode()
    return _message(f1=name, f2=_message(f1=sql.encode(), f15=secrets.token_bytes(16)))


def _message(**fields: bytes) -> bytes:
    """Return a message of fields ``f1``, ``f2``, ... of bytes."""
    found = b""
    for name, value in fields.items():
        found += bytes([int(name[1:]) << 3 | 2]) + _varint(len(value)) + value
    return found


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def _command(data: bytes) -> tuple[str, dict[int, list[Any]]]:
    """Return the name and the fields of a message in an Any."""
    outer = _fields(data)
    name = _text(outer, 1) or ""
    if not name.startswith(PREFIX):
        raise UsageError("The command is none of Flight SQL.", code="invalid-request")
    return name.removeprefix(PREFIX), _fields(_bytes(outer.get(2, [b""])[-1]))


@dataclass
class _Prepared:
    sql: str
    parameters: list[Any] | None = None


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
        self._prepared: OrderedDict[bytes, _Prepared] = OrderedDict()
        self._tickets: dict[bytes, threading.Event] = {}  # of what runs, set to stop it
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._unread = Unread()
        threading.Thread(target=self._unread.watch, args=(self._ended,), daemon=True).start()

    def shutdown(self) -> None:
        """Take no more calls, and wait until those that run have ended."""
        self._ended.set()
        super().shutdown()

    # -- calls of Flight ----------------------------------------------------------------------------

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Return the columns of what a command asks for, and the ticket by which it is fetched."""
        with _translated():
            client, name, fields = self._asked(context, descriptor.command or b"")
            if name in ("CommandStatementQuery", "CommandPreparedStatementQuery"):
                sql, parameters = self._statement(name, fields)
                schema = self._service.describe(client, sql, parameters).schema
                ticket = _asking(sql) if parameters is None else self._kept(sql, parameters)
            else:
                schema, ticket = self._listing(client, name, fields).schema, descriptor.command
            return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Return the columns of what a command asks for."""
        return flight.SchemaResult(self.get_flight_info(context, descriptor).schema)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Return the rows that a ticket stands for."""
        with _translated():
            client, name, fields = self._asked(context, ticket.ticket)
            if name in ("CommandStatementQuery", "CommandPreparedStatementQuery"):
                with self._running(ticket.ticket) as is_cancelled:
                    asked = (client, *self._statement(name, fields))
                    found = self._service.query(*asked, lambda: is_cancelled.is_set() or context.is_cancelled()).arrow()
            else:
                found = self._listing(client, name, fields)
            return flight.GeneratorStream(found.schema, _told(self._unread.pieces(found, client)))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Bind the parameters of a prepared statement: the one row that is sent."""
        with _translated():
            _, name, fields = self._asked(context, descriptor.command or b"")
            if name != "CommandPreparedStatementQuery":
                raise UsageError("Statements that change something are not allowed here.", code="not-allowed")
            handle = _bytes(fields.get(1, [b""])[-1])
            row: list[Any] | None = None
            for batch in (chunk.data for chunk in reader if chunk.data is not None and chunk.data.num_rows):
                if row is not None or batch.num_rows > 1:
                    hint = "Ask once for each row of parameters."
                    raise UsageError("A statement has one row of parameters.", code="invalid-parameters", hint=hint)
                row = [column[0].as_py() for column in batch.columns]
            with self._lock:
                self._known(handle).parameters = row or []
            writer.write(pa.py_buffer(_message(f1=handle)))

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Prepare a statement, forget one, or stop one that runs."""
        with _translated():
            client = self._client(context)
            body = action.body.to_pybytes()
            if action.type == "CreatePreparedStatement":
                sql = _text(_command(body)[1], 1) or ""
                handle = self._prepare(_Prepared(sql))
                schema = b""
                if "?" not in sql and "$" not in sql and ":" not in sql:  # else the columns may depend on values
                    schema = self._service.describe(client, sql).schema.serialize().to_pybytes()
                empty = pa.schema([]).serialize().to_pybytes()
                result = _message(f1=handle, f2=schema, f3=empty)
                name = PREFIX + "ActionCreatePreparedStatementResult"
                return iter([flight.Result(pa.py_buffer(_message(f1=name.encode(), f2=result)))])
            if action.type == "ClosePreparedStatement":
                with self._lock:
                    self._prepared.pop(_bytes(_command(body)[1].get(1, [b""])[-1]), None)
                return iter([])
            if action.type == "CancelFlightInfo":
                return iter([flight.Result(pa.py_buffer(b"\x08" + bytes([self._cancel(body)])))])
            raise UsageError(f"There is no action {action.type!r}.", code="not-supported")

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Return the actions that there are."""
        return [
            ("CreatePreparedStatement", "prepare a statement"),
            ("ClosePreparedStatement", "forget one"),
            ("CancelFlightInfo", "stop the statement of a FlightInfo"),
        ]

    # -- what they ask for --------------------------------------------------------------------------

    def _client(self, context: Any) -> Client:
        client: Client = context.get_middleware("client").client
        return client

    def _asked(self, context: Any, data: bytes) -> tuple[Client, str, dict[int, list[Any]]]:
        return (self._client(context), *_command(data))

    def _statement(self, name: str, fields: Mapping[int, list[Any]]) -> tuple[str, list[Any] | None]:
        if name == "CommandStatementQuery":
            return _text(fields, 1) or "", None
        with self._lock:
            found = self._known(_bytes(fields.get(1, [b""])[-1]))
            return found.sql, found.parameters

    def _known(self, handle: bytes) -> _Prepared:
        found = self._prepared.get(handle)
        if found is None:
            raise UsageError("There is no such prepared statement any more.", code="invalid-request")
        return found

    def _prepare(self, prepared: _Prepared) -> bytes:
        handle = secrets.token_bytes(16)
        with self._lock:
            self._prepared[handle] = prepared
            while len(self._prepared) > MAX_PREPARED:
                self._prepared.popitem(last=False)
        return handle

    def _kept(self, sql: str, parameters: list[Any]) -> bytes:
        """Return the ticket of a statement with the parameters of now, as others may be bound before it is fetched."""
        handle = self._prepare(_Prepared(sql, parameters))
        name = (PREFIX + "CommandPreparedStatementQuery").encode()
        return _message(f1=name, f2=_message(f1=handle))

    @contextmanager
    def _running(self, ticket: bytes) -> Iterator[threading.Event]:
        with self._lock:
            event = self._tickets.setdefault(ticket, threading.Event())
        try:
            yield event
        finally:
            with self._lock:
                self._tickets.pop(ticket, None)

    def _cancel(self, request: bytes) -> int:
        """Stop what runs for the tickets of a FlightInfo; return 2, cancelling, or 3 if there is none."""
        found = False
        for info in _fields(request).get(1, []):
            for endpoint in _fields(_bytes(info)).get(3, []):
                ticket = _fields(_bytes(_fields(_bytes(endpoint)).get(1, [b""])[-1])).get(1, [b""])[-1]
                with self._lock:
                    event = self._tickets.get(_bytes(ticket))
                if event is not None:
                    event.set()
                    found = True
        return 2 if found else 3

    def _listing(self, client: Client, name: str, fields: Mapping[int, list[Any]]) -> pa.Table:
        listings: dict[str, Callable[[], pa.Table]] = {
            "CommandGetCatalogs": lambda: _listed([("catalog_name", _TEXT, False)], [(_CATALOG,)]),
            "CommandGetDbSchemas": lambda: self._schemas(client, fields),
            "CommandGetTables": lambda: self._tables(client, fields),
            "CommandGetTableTypes": lambda: _listed([("table_type", _TEXT, False)], [("TABLE",), ("VIEW",)]),
            "CommandGetSqlInfo": lambda: _sql_info(fields),
        }
        if name not in listings:
            raise UsageError(f"{name} is not supported.", code="not-supported")
        return listings[name]()

    def _names(self, client: Client, fields: Mapping[int, list[Any]]) -> list[tuple[str, str, str]]:
        """Return schema, name and type of the tables whose schema a filter passes."""
        if _text(fields, 1) not in (None, "", _CATALOG):
            return []
        found = []
        for shown, kind in self._service.tables(client):
            schema, _, table = shown.rpartition(".")
            found.append((_plain(schema) or "main", _plain(table), "VIEW" if kind == "view" else "TABLE"))
        wanted = _text(fields, 2)
        return [row for row in found if wanted is None or _like(row[0], wanted)]

    def _schemas(self, client: Client, fields: Mapping[int, list[Any]]) -> pa.Table:
        names = sorted({schema for schema, _, _ in self._names(client, fields)})
        columns = [("catalog_name", _TEXT, True), ("db_schema_name", _TEXT, False)]
        return _listed(columns, [(_CATALOG, name) for name in names])

    def _tables(self, client: Client, fields: Mapping[int, list[Any]]) -> pa.Table:
        wanted, types = _text(fields, 3), {_bytes(t).decode(errors="replace") for t in fields.get(4, [])}
        rows = [row for row in self._names(client, fields) if wanted is None or _like(row[1], wanted)]
        rows = [row for row in rows if not types or row[2] in types]
        columns = [("catalog_name", _TEXT, True), ("db_schema_name", _TEXT, True)]
        columns += [("table_name", _TEXT, False), ("table_type", _TEXT, False)]
        if not fields.get(5, [0])[-1]:
            return _listed(columns, [(_CATALOG, *row) for row in rows])
        columns.append(("table_schema", pa.binary(), False))
        return _listed(columns, [(_CATALOG, *row, self._schema_of(client, row)) for row in rows])

    def _schema_of(self, client: Client, row: tuple[str, str, str]) -> bytes:
        name = ".".join(quote(part) for part in row[:2] if part != "main" or part == row[1])
        try:
            schema = self._service.describe(client, f"SELECT * FROM {name}").schema
        except KartosqlError:
            schema = pa.schema([])  # of a table that cannot be read
        return bytes(schema.serialize().to_pybytes())


def _listed(columns: Sequence[tuple[str, pa.DataType, bool]], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    arrays = [pa.array([row[at] for row in rows], type_) for at, (_, type_, _) in enumerate(columns)]
    return pa.Table.from_arrays(arrays, schema=pa.schema([pa.field(*column) for column in columns]))


def _plain(name: str) -> str:
    """Return a name without the quotes that SQL needs."""
    return name[1:-1].replace('""', '"') if name[:1] == '"' and name[-1:] == '"' else name


def _like(text: str, pattern: str) -> bool:
    """Return whether a text is like a pattern of SQL with % and _."""
    known = {0}
    for char in pattern:
        if char == "%":
            known = set(range(min(known), len(text) + 1)) if known else known
        else:
            known = {at + 1 for at in known if at < len(text) and char in ("_", text[at])}
    return len(text) in known


def _sql_info(fields: Mapping[int, list[Any]]) -> pa.Table:
    """Return name, version and Arrow's version of the server, and that it only reads."""
    from kartosql import __version__

    known: dict[int, Any] = {0: "kartosql", 1: __version__, 2: pa.__version__, 3: True}
    asked = [number for value in fields.get(1, []) for number in ([value] if isinstance(value, int) else value)]
    numbers = [number for number in known if not asked or number in asked]
    texts = pa.array([known[n] for n in numbers if n != 3], _TEXT)
    truths = pa.array([known[n] for n in numbers if n == 3], pa.bool_())
    kinds = pa.array([1 if n == 3 else 0 for n in numbers], pa.int8())
    places = pa.array([0 if n == 3 else at for at, n in enumerate(numbers)], pa.int32())
    others = (pa.int64(), pa.int32(), pa.list_(_TEXT), pa.map_(pa.int32(), pa.list_(pa.int32())))
    parts = [texts, truths, *(pa.array([], type_) for type_ in others)]
    names = ["string_value", "bool_value", "bigint_value", "int32_bitmask", "string_list", "int32_to_int32_list_map"]
    values = pa.UnionArray.from_dense(kinds, places, parts, names)
    return pa.table({"info_name": pa.array(numbers, _INFO), "value": values})


def _told(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    with _translated():
        yield from pieces


@contextmanager
def _translated() -> Iterator[None]:
    """Make an error of ours one of Flight, with its code and hint as JSON in the detail."""
    try:
        yield
    except KartosqlError as e:
        detail, message = json.dumps(e.to_dict()).encode(), f"[{e.code}] {e}"
        if e.code == "timeout":
            raise flight.FlightTimedOutError(message, detail) from None
        if isinstance(e, Refused):
            raise flight.FlightUnauthenticatedError(message, detail) from None
        if isinstance(e, LimitError | StoreError):
            raise flight.FlightUnavailableError(message, detail) from None
        raise pa.ArrowInvalid(message) from None
