"""HTTP: statements as JSON or Arrow, reports, tables, health, metrics, a page to try it, and MCP."""

from __future__ import annotations

import contextlib
import json
import select
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

from kartosql.errors import KartosqlError, LimitError, StoreError, UsageError
from kartosql.serve import mcp
from kartosql.serve.service import MAX_BODY, Client, Refused, Service, is_loopback, json_rows, parameters_of, parsed

SLOW = 30.0  # seconds in which a client has to send the rest of a request, or take a part of the answer ...
CHUNK = 1_000_000  # ... of so many bytes
HELD = 1_000_000_000  # bytes of all answers that wait to be taken; one alone may have more
ARROW, JSON = "application/vnd.apache.arrow.stream", "application/json"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'",
}
_STATUS = {
    **dict.fromkeys(("timeout", "worker-lost"), 504),
    **dict.fromkeys(("statement-too-long", "request-too-large"), 413),
    "too-many-statements": 429,
    **dict.fromkeys(("interrupted", "result-dropped"), 503),
}


class HttpServer(ThreadingHTTPServer):
    """Answers requests over a service, each connection in a thread of its own."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], service: Service, certificates: tuple[str, str] | None = None) -> None:
        super().__init__(address, _Handler)
        self.service = service
        self.answering: set[object] = set()  # the requests that are not answered to their end
        self._held, self._lock = 0, threading.Lock()
        self._is_ending = False
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificates)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def shutdown(self) -> None:
        """Take no more connections, and no more requests on those that there are."""
        self._is_ending = True
        super().shutdown()

    @contextlib.contextmanager
    def answers(self, request: Any) -> Iterator[None]:
        """Count a request while it is answered."""
        self.answering.add(request)
        try:
            yield
        finally:
            self.answering.discard(request)
            request.close_connection = request.close_connection or self._is_ending

    @contextlib.contextmanager
    def holds(self, size: int) -> Iterator[None]:
        """Count the bytes of an answer until it is taken; raises ``result-dropped`` for a large one above too many."""
        with self._lock:
            if size > CHUNK and self._held and self._held + size > HELD:
                message = f"More than {HELD:,} bytes of answers wait to be read. This one was dropped."
                raise LimitError(message, code="result-dropped", hint="Ask for fewer rows, or again later.")
            self._held += size
        try:
            yield
        finally:
            with self._lock:
                self._held -= size

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "kartosql"
    sys_version = ""
    timeout = SLOW
    server: HttpServer

    def do_POST(self) -> None:
        with self.server.answers(self):
            self._answer("GET" if self.command == "HEAD" else self.command)

    do_GET = do_HEAD = do_POST  # noqa: N815

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is no HTTP, or of a method that there is not, as any other error."""
        self.close_connection = True
        self._error(UsageError(message or "This is no request of HTTP.", code="invalid-request"), code)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Say nothing, as the log of the service has the statements."""

    def _answer(self, method: str) -> None:
        url = urlsplit(self.path)
        try:
            if self._is_foreign():
                self.close_connection = True
                hint = "Ask by the address that it printed, or give it --token-file."
                self._error(UsageError("Only this machine may ask the server.", code="not-allowed", hint=hint), 403)
                return
            body = self._body() if method == "POST" else b""
            if method == "GET" and url.path == "/health":
                self._send_json({"status": "ok"})
                return
            if method == "GET" and url.path == "/":
                page = resources.files("kartosql.serve").joinpath("page.html").read_bytes()
                self._send(200, page, "text/html; charset=utf-8")
                return
            client = self.server.service.client(self.headers.get("Authorization"))
            self._ask(method, url.path, {k: v[0] for k, v in parse_qs(url.query).items()}, body, client)
        except KartosqlError as e:
            self._error(e)
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _is_foreign(self) -> bool:
        """Return whether a page of another host asks, which a browser lets it where a server needs no token."""
        if self.server.service.tokens is not None:
            return False
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        asked = ([] if host is None else [f"//{host}"]) + ([] if origin is None else [origin])
        try:
            return not all(is_loopback(urlsplit(url).hostname) for url in asked)
        except ValueError:  # no URL
            return True

    def _ask(self, method: str, path: str, query: dict[str, str], body: bytes, client: Client) -> None:
        service = self.server.service
        match method, path:
            case "POST", "/sql":
                self._send(200, *self._sql(service, client, parsed(body)))
            case "POST", "/mcp":
                answer = mcp.respond(service, client, parsed(body))
                self._send(202 if answer is None else 200, b"" if answer is None else json.dumps(answer).encode())
            case "GET", "/mcp":  # a stream of messages, which the protocol lets a server not have
                self._error(UsageError("Messages are sent by POST.", code="unknown-path"), 405)
            case "GET", "/explain":
                self._send_json(service.explain(client, query.get("sql", "")).to_dict())
            case "GET", "/tables":
                self._send_json({"tables": [{"table": t, "kind": k} for t, k in service.tables(client)]})
            case "GET", "/metrics":
                self._send(200, service.metrics().encode(), "text/plain; version=0.0.4")
            case _:
                known = "POST /sql, POST /mcp, GET /explain, /tables, /health, /metrics"
                self._error(UsageError(f"There is no {method} {path[:200]}.", code="unknown-path", hint=known), 404)

    def _sql(self, service: Service, client: Client, given: Any) -> tuple[Any, str]:
        """Return the answer to a statement and its type, after which its rows are not held any more."""
        if not isinstance(given, dict) or not isinstance(given.get("sql"), str) or given.keys() - {"sql", "parameters"}:
            raise UsageError("The body is an object with sql, a text, and parameters.", code="invalid-request")
        found = service.query(client, given["sql"], parameters_of(given.get("parameters")), self._is_gone)
        if ARROW in self.headers.get("Accept", ""):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, found.schema) as writer:
                writer.write_table(found.arrow())
            return sink.getvalue(), ARROW
        types = found._display_types(found.schema)
        columns = [{"name": n, "type": t} for n, t in zip(found.columns, types, strict=True)]
        report = None if found.report is None else found.report.to_dict()
        rest = json.dumps({"columns": columns, "report": report, "stats": found.stats}, default=str)
        return f'{{"rows": {json_rows(found.arrow())}, {rest[1:]}'.encode(), JSON

    def _is_gone(self) -> bool:
        """Return whether the client has closed the connection, where the system tells."""
        poll = select.poll()
        poll.register(self.connection, getattr(select, "POLLRDHUP", 0))
        return bool(poll.poll(0))

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY:
            self.close_connection = True
            message = f"A body needs a Content-Length of {MAX_BODY:,} at most."
            raise LimitError(message, code="request-too-large")
        return self.rfile.read(int(length))

    def _error(self, error: KartosqlError, status: int | None = None) -> None:
        if status is None:
            of_class = 401 if isinstance(error, Refused) else 503 if isinstance(error, StoreError) else 400
            status = _STATUS.get(error.code, of_class)
        self._send_json({"error": error.to_dict()}, status)

    def _send_json(self, content: Any, status: int = 200) -> None:
        self._send(status, json.dumps(content, default=str).encode())

    def _send(self, status: int, content: Any, type_: str = JSON) -> None:
        with self.server.holds(len(content)):
            self.send_response(status)
            for name, value in {**_HEADERS, "Content-Type": type_, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            for at in range(0, len(content) if self.command != "HEAD" else 0, CHUNK):  # each within the time
                self.wfile.write(memoryview(content)[at : at + CHUNK])
