"""``kartosql serve``: the servers of all protocols over one store, until a signal ends them."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from kartosql.connection import connect
from kartosql.errors import UsageError
from kartosql.serve.service import Service, read_tokens


def parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments behind ``serve``."""
    found = argparse.ArgumentParser(prog="kartosql serve", description="Serve SQL over a store, read-only.")
    add = found.add_argument
    add("url", metavar="URL", help="store of cubes and datasets")
    add("--host", default="127.0.0.1", help="address to listen on; others than loopback need tokens")
    add("--port", type=int, default=0, metavar="N", help="of Arrow Flight SQL; 0 is a free one")
    add("--http-port", type=int, default=0, metavar="N", help="of HTTP and MCP; 0 is a free one")
    add("--token-file", metavar="F", help="a token in each line, or TOML with budgets")
    add("--tls-cert", metavar="F", help="certificate chain in PEM")
    add("--tls-key", metavar="F", help="its private key in PEM")
    add("--stdio", action="store_true", help="MCP over standard input and output, and nothing else")
    add("--workers", type=int, default=4, metavar="N", help="statements that run at a time")
    add("--timeout", type=float, default=30.0, metavar="S", help="seconds of a statement")
    add("--memory-limit", default="1GB", metavar="SIZE", help="memory of each worker")
    add("--max-bytes", metavar="SIZE", help="bytes of the files that a statement may select")
    add("--audit-log", metavar="F", help="a line of JSON for each statement, without its constants; - is stderr")
    add("--storage-option", action="append", default=[], metavar="K=V", help="of the filesystem, repeatable")
    return found


def serve(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C; raises ``invalid-argument`` and what opening the store raises."""
    given = parser().parse_args(arguments)
    tokens = None if given.token_file is None else read_tokens(given.token_file)
    if tokens is None and not _is_loopback(given.host) and not given.stdio:
        raise UsageError(f"{given.host} can be reached by others.", hint="Give --token-file, or listen on 127.0.0.1.")
    if (given.tls_cert is None) != (given.tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together.")
    options = dict(option.partition("=")[::2] for option in given.storage_option)
    limits: dict[str, Any] = {"timeout": given.timeout, "memory_limit": given.memory_limit}
    limits |= {} if given.max_bytes is None else {"max_bytes": given.max_bytes}
    with contextlib.ExitStack() as stack:
        connection = connect(
            given.url,
            storage_options=options or None,
            untrusted=True,
            workers=1 if given.stdio else given.workers,
            **limits,
        )
        stack.enter_context(connection)
        log = stack.enter_context(_log(given.audit_log))
        if given.stdio:
            from kartosql.serve.mcp import serve_stdio

            serve_stdio(Service(connection, None, log), sys.stdin, sys.stdout)
            return 0
        service = Service(connection, tokens, log)
        if tokens is not None:
            signal.signal(signal.SIGHUP, lambda *_: _read_again(service, given.token_file))
        certificates = None if given.tls_cert is None else (given.tls_cert, given.tls_key)
        _serve(given.host, given.port, given.http_port, service, certificates)
    return 0


def _serve(host: str, port: int, http_port: int, service: Service, certificates: tuple[str, str] | None) -> None:
    from kartosql.serve.http import HttpServer

    sys.tracebacklimit = 0  # pyarrow shows clients the whole traceback of what is raised for them
    end = threading.Event()
    before = {number: signal.signal(number, lambda *_: end.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    shown = f"[{host}]" if ":" in host else host
    scheme, grpc = ("https", "grpc+tls") if certificates else ("http", "grpc")
    try:
        http = HttpServer((host, http_port), service, certificates)
    except OSError as e:
        raise UsageError(f"HTTP cannot listen on {host}:{http_port}: {e}") from None
    try:
        flight = _flight(f"{grpc}://{shown}:{port}", service, certificates)
        print(f"flight {grpc}://{shown}:{flight.port}")
        threading.Thread(target=http.serve_forever, daemon=True).start()
        print(f"http {scheme}://{shown}:{http.server_address[1]}")
        print(f"mcp {scheme}://{shown}:{http.server_address[1]}/mcp")
        print("ready", flush=True)
        end.wait()
        http.shutdown()
        threading.Thread(target=flight.shutdown, daemon=True).start()
    finally:
        http.server_close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _read_again(service: Service, path: str) -> None:
    """Let the tokens of a file be those that it has now, or leave them as they are where it cannot be read."""
    try:
        service.tokens = read_tokens(path)
    except UsageError as e:
        print(f"The tokens stay as they are: {e}", file=sys.stderr)


def _flight(location: str, service: Service, certificates: tuple[str, str] | None) -> Any:
    try:
        from kartosql.serve.flight import FlightServer
    except ImportError:
        hint = "pip install 'kartosql[serve]'"
        raise UsageError("This pyarrow has no Flight.", code="missing-extra", hint=hint) from None
    try:
        return FlightServer(location, service, certificates)
    except OSError as e:
        raise UsageError(f"Flight SQL cannot listen on {location}: {e}") from None


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _log(path: str | None) -> Iterator[TextIO | None]:
    if path is None or path == "-":
        yield sys.stderr if path else None
        return
    try:
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115
    except OSError as e:
        raise UsageError(f"The log cannot be written: {e}") from None
    with file:
        yield file
