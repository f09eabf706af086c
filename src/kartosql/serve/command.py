"""``kartosql serve``: the servers of all protocols over one store, until a signal ends them."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from kartosql.errors import UsageError
from kartosql.opening import connect
from kartosql.serve.service import Service, is_loopback, parsed, read_tokens


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
    add("--storage-option", action="append", default=[], metavar="K=V", help="of the filesystem; V may be JSON")
    return found


def serve(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C; raises ``invalid-argument`` and what opening the store raises."""
    given = parser().parse_args(arguments)
    tokens = None if given.token_file is None else read_tokens(given.token_file)
    if tokens is None and not is_loopback(given.host) and not given.stdio:
        raise UsageError(f"{given.host} can be reached by others.", hint="Give --token-file, or listen on 127.0.0.1.")
    if (given.tls_cert is None) != (given.tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together.")
    options = {name: _value(text) for name, _, text in (one.partition("=") for one in given.storage_option)}
    with contextlib.ExitStack() as stack:
        opened = connect(
            given.url,
            storage_options=options or None,
            untrusted=True,
            workers=1 if given.stdio else given.workers,
            timeout=given.timeout,
            memory_limit=given.memory_limit,
            max_bytes=given.max_bytes,
        )
        connection = stack.enter_context(opened)
        log = stack.enter_context(_log(given.audit_log))
        if given.stdio:
            from kartosql.serve.mcp import serve_stdio

            serve_stdio(Service(connection, None, log), sys.stdin, sys.stdout)
            return 0
        service = Service(connection, tokens, log)
        certificates = None if given.tls_cert is None else (given.tls_cert, given.tls_key)
        ends = [signal.SIGTERM, signal.SIGINT, *([] if tokens is None else [signal.SIGHUP])]
        signals = stack.enter_context(_signals(ends))
        with _serving(given.host, given.port, given.http_port, service, certificates) as end:
            while os.read(signals, 1)[0] == signal.SIGHUP:
                _read_again(service, given.token_file)
            end(signals, given.timeout)
    return 0


def _value(text: str) -> Any:
    if text[:1] not in ("{", "[") and text not in ("true", "false"):
        return text
    if (found := parsed(text)) is None:  # of the text itself nothing is said, as it may be a credential
        raise UsageError("The value of a --storage-option begins as JSON, and is none.")
    return found


@contextlib.contextmanager
def _signals(numbers: Sequence[int]) -> Iterator[int]:
    """Yield a pipe from which the signals that come are read.

    A handler of Python's runs in the main thread, and for a signal that comes while that thread is about to wait for a
    lock, only when it has the lock.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    before_writer = signal.set_wakeup_fd(writer)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(before_writer)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def _serving(
    host: str, port: int, http_port: int, service: Service, certificates: tuple[str, str] | None
) -> Iterator[Callable[[int, float], None]]:
    """Answer until the block ends; yields what ends it in order, by ``_end``."""
    from kartosql.serve.http import HttpServer

    sys.tracebacklimit = 0  # pyarrow shows clients the whole traceback of what is raised for them
    shown = f"[{host}]" if ":" in host else host
    scheme, grpc = ("https", "grpc+tls") if certificates else ("http", "grpc")
    try:
        http = HttpServer((host, http_port), service, certificates)
    except OSError as e:
        raise UsageError(f"HTTP cannot listen on {host}:{http_port}: {e}") from None
    with http:
        location = f"{grpc}://{shown}:{port}"
        try:
            from kartosql.serve.flight import FlightServer

            flight = FlightServer(location, service, certificates)
        except ImportError:
            hint = "pip install 'kartosql[serve]'"
            raise UsageError("This pyarrow has no Flight.", code="missing-extra", hint=hint) from None
        except OSError as e:
            raise UsageError(f"Flight SQL cannot listen on {location}: {e}") from None
        print(f"flight {grpc}://{shown}:{flight.port}")
        threading.Thread(target=http.serve_forever, daemon=True).start()
        print(f"http {scheme}://{shown}:{http.server_address[1]}")
        print(f"mcp {scheme}://{shown}:{http.server_address[1]}/mcp")
        print("ready", flush=True)
        yield lambda signals, seconds: _end(http, flight, signals, seconds)


def _end(http: Any, flight: Any, signals: int, seconds: float) -> None:
    """Take nothing new, and answer what runs within some seconds, or until another signal comes."""
    ending = [threading.Thread(target=server.shutdown, daemon=True) for server in (http, flight)]
    for thread in ending:
        thread.start()
    end = time.monotonic() + seconds
    while any(thread.is_alive() for thread in ending) or http.answering:
        if time.monotonic() > end or select.select([signals], [], [], 0.02)[0]:
            atexit.register(os._exit, 0)  # pyarrow would wait for ever at the exit for a client that reads nothing
            return


def _read_again(service: Service, path: str) -> None:
    """Let the tokens of a file be those that it has now, or leave them as they are where it cannot be read."""
    try:
        service.tokens = read_tokens(path)
    except UsageError as e:
        print(f"The tokens stay as they are: {e}", file=sys.stderr)


def _log(path: str | None) -> contextlib.AbstractContextManager[TextIO | None]:
    if path is None or path == "-":
        return contextlib.nullcontext(sys.stderr if path else None)
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as e:
        raise UsageError(f"The log cannot be written: {e}") from None
