"""What all protocols ask: who may ask, with which budget; statements, and what they took."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import re
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from kartosql.errors import KartosqlError, LimitError, UsageError
from kartosql.plan.bind import Parameters
from kartosql.render.values import jsons
from kartosql.result import Query
from kartosql.settings import parse_size
from kartosql.untrusted import Cancelled, UntrustedConnection, WorkerReport

MAX_TOKENS = 10_000
MAX_BODY = 8_000_000  # bytes of a request
MAX_SHOWN = 1_000  # characters of a statement in the log
# Comments, texts of all forms, names, and numbers. What is not closed goes up to the end of the statement, as does what
# may or may not be: comments in comments, and a quote behind a backslash, which ends a text unless that is E'...'.
_CONSTANT = re.compile(
    r"""--[^\n]*|/\*(?:(?!\*/|/\*).)*(?:\*/|.*)|\$(\w*)\$.*?(?:\$\1\$|\Z)|\b[eE]'(?:[^'\\]|\\.|'')*(?:'|.*)|"""
    r"""(?:\b[xXbB])?'(?:[^'\\]|\\(?!')|'')*(?:'|.*)|("(?:[^"]|"")*"|[^\W\d]\w*)|\d[\w.]*""",
    re.DOTALL,
)


class Refused(KartosqlError, code="not-allowed"):
    """A request without a token, or with one that is not known."""


@dataclass
class Client:
    """Who asks, and the budget of each of its statements; None is no limit but that of the server."""

    name: str
    max_bytes: int | None = None
    seconds: float | None = None
    rows: int | None = None
    concurrency: int | None = None
    tables: tuple[str, ...] | None = None
    active: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def request(self, sql: str, parameters: Parameters = None) -> dict[str, Any]:
        """Return the request for a worker, with the limits of the budget."""
        limits = {"max_bytes": self.max_bytes, "timeout": self.seconds}
        return {
            "sql": sql,
            "parameters": parameters,
            "limits": {name: value for name, value in limits.items() if value is not None},
            "tables": self.tables,
        }

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Count a statement; raises ``too-many-statements`` above the budget."""
        with self.lock:
            if self.concurrency is not None and self.active >= self.concurrency:
                raise LimitError(
                    f"{self.concurrency} statements of this token are running.",
                    code="too-many-statements",
                    hint="Wait for one of them to end.",
                )
            self.active += 1
        try:
            yield
        finally:
            with self.lock:
                self.active -= 1


def read_tokens(path: str) -> dict[str, Client]:
    """Return clients by token from a file: a token in each line, or TOML with a table for each client.

    A table has ``token``, and of ``max_bytes``, ``seconds``, ``rows``, ``concurrency`` and ``tables`` what is limited.
    Raises ``invalid-argument``.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError) as e:
        raise UsageError(f"The token file cannot be read: {e}") from None
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        lines = [line.strip() for line in text.splitlines()]
        parsed = {f"client-{at}": {"token": t} for at, t in enumerate(lines, 1) if t and not t.startswith("#")}
    found: dict[str, Client] = {}
    for name, content in parsed.items():
        given = {"token": content} if isinstance(content, str) else content
        token = given.pop("token", None) if isinstance(given, dict) else None
        if not isinstance(token, str) or len(token) < 8 or any(c.isspace() for c in token) or token in found:
            hint = "A token is a text of 8 characters or more, without blanks, and belongs to one client."
            raise UsageError(f"The token of {name!r} cannot be used.", hint=hint)
        found[token] = _client(name, given)
    if not found or len(found) > MAX_TOKENS:
        raise UsageError(f"The token file has {len(found)} tokens; from 1 to {MAX_TOKENS:,} are possible.")
    return found


def _client(name: str, given: Mapping[str, Any]) -> Client:
    checks: dict[str, Any] = {
        "max_bytes": parse_size,
        "seconds": lambda v: float(v) if 0 < float(v) < 1e9 else _fail(),
        "rows": lambda v: int(v) if int(v) >= 0 else _fail(),
        "concurrency": lambda v: int(v) if int(v) >= 1 else _fail(),
        "tables": lambda v: tuple(v) if isinstance(v, list) and all(isinstance(t, str) for t in v) else _fail(),
    }
    values = {}
    for key, value in given.items():
        if key not in checks:
            raise UsageError(f"The client {name!r} has no budget {key!r}.", hint=f"Budgets: {', '.join(checks)}.")
        try:
            values[key] = checks[key](value)
        except (ValueError, TypeError, OverflowError):
            raise UsageError(f"The budget {key!r} of the client {name!r} cannot be {value!r}.") from None
    return Client(name, **values)


def _fail() -> Any:
    raise ValueError


def is_loopback(host: str | None) -> bool:
    """Return whether a host is this machine, which no other reaches by it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


class Service:
    """Statements of clients over one store, ``workers`` at a time.

    ``log`` gets a line of JSON for each, without its constants.
    """

    def __init__(
        self, connection: UntrustedConnection, tokens: Mapping[str, Client] | None = None, log: TextIO | None = None
    ) -> None:
        self._connection, self.tokens, self._log = connection, tokens, log
        self._anyone = Client("anyone")
        self._lock = threading.Lock()
        self._results: Counter[str] = Counter()
        self._totals: dict[str, float] = dict.fromkeys(("seconds", "rows", "files_read", "bytes_read"), 0)
        self._active = 0

    def client(self, authorization: str | None) -> Client:
        """Return who sent a header ``Authorization: Bearer TOKEN``; raises Refused."""
        if self.tokens is None:
            return self._anyone
        kind, _, token = (authorization or "").partition(" ")
        given = token.strip().encode()
        found = None
        for known, client in self.tokens.items():  # all of them, so that the time tells nothing
            if hmac.compare_digest(known.encode(), given) and kind.lower() == "bearer":
                found = client
        if found is None:
            raise Refused("A valid token is needed.", hint="Send the header Authorization: Bearer TOKEN.")
        return found

    def query(
        self,
        client: Client,
        sql: str,
        parameters: Parameters = None,
        is_cancelled: Cancelled = lambda: False,
        most: int | None = None,
        asked: str = "rows",
    ) -> Query:
        """Return the rows of a statement; raises what it raises, and ``limit-exceeded`` above the budget of rows.

        It ends when ``is_cancelled`` says so, and after one row more than ``most``. Lines of a report count as no rows.
        """
        request, budget = client.request(sql, parameters), client.rows if asked == "rows" else None
        request["rows"] = min((rows for rows in (budget, most) if rows is not None), default=None)
        with self._account(client, sql, asked) as done:
            found = self._connection.answer(request, is_cancelled)
            done |= {"rows": len(found), **selected(found.report)}
            if budget is not None and len(found) > budget:
                message = f"The statement has more than {budget:,} rows, the budget of this token."
                raise LimitError(message, hint="Narrow the conditions, or say LIMIT.")
            return found

    def describe(
        self, client: Client, sql: str, parameters: Parameters = None, is_cancelled: Cancelled = lambda: False
    ) -> Query:
        """Return the columns of a statement, and no row."""
        with self._account(client, sql, "columns"):
            return self._connection.answer({**client.request(sql, parameters), "describe": True}, is_cancelled)

    def explain(self, client: Client, sql: str, parameters: Parameters = None) -> WorkerReport:
        """Return what a SELECT would read and why."""
        with self._account(client, sql, "report") as done:
            report = self._connection.report(client.request(sql, parameters))
            done |= selected(report)
            return report

    def tables(self, client: Client) -> list[tuple[str, str]]:
        """Return names and kinds of the tables that a client may see."""
        return [(str(name), str(kind)) for name, kind in self.query(client, "SHOW TABLES").rows()]

    @contextlib.contextmanager
    def _account(self, client: Client, sql: str, asked: str = "rows") -> Iterator[dict[str, Any]]:
        done: dict[str, Any] = {"asked": asked}
        started, code = time.monotonic(), "ok"
        with self._lock:
            self._active += 1
        try:
            with client.at_work():
                yield done
        except KartosqlError as e:
            code = e.code
            raise
        finally:
            self._note(client, sql, code, time.monotonic() - started, done)

    def _note(self, client: Client, sql: str, code: str, seconds: float, done: Mapping[str, Any]) -> None:
        with self._lock:
            self._active -= 1
            self._results[code] += 1
            self._totals["seconds"] += seconds
            if done["asked"] == "rows":
                for name, what in (("rows", "rows"), ("files_read", "files"), ("bytes_read", "bytes")):
                    self._totals[name] += done.get(what) or 0
            if self._log is not None:
                text = without_constants(sql[: 10 * MAX_SHOWN])[:MAX_SHOWN] if isinstance(sql, str) else ""
                line = {"time": round(time.time(), 3), "who": client.name, "statement": text, "result": code}
                print(json.dumps({**line, "seconds": round(seconds, 4), **done}), file=self._log, flush=True)

    def metrics(self) -> str:
        """Return counters in the text format of Prometheus."""
        with self._lock:
            results, totals, active = sorted(self._results.items()), dict(self._totals), self._active
        lines = ["# TYPE kartosql_statements_total counter"]
        lines += [f'kartosql_statements_total{{result="{code}"}} {count}' for code, count in results]
        for name, total in totals.items():
            lines += [f"# TYPE kartosql_{name}_total counter", f"kartosql_{name}_total {round(total, 3)}"]
        return "\n".join([*lines, "# TYPE kartosql_active gauge", f"kartosql_active {active}", ""])


def selected(report: Any) -> dict[str, Any]:
    """Return how many files a statement selected, and their bytes; nothing where it has no report."""
    if report is None:
        return {}
    parts = [part for scan in report["scans"] for part in scan["datasets"]]
    return {"files": report.files_selected, "bytes": sum(part["bytes_selected"] or 0 for part in parts)}


def without_constants(sql: str) -> str:
    """Return a statement with ? in the place of each constant and comment; rather too much goes than too little."""
    return _CONSTANT.sub(lambda match: match[2] or "?", sql)


def json_rows(table: pa.Table) -> str:
    """Return the rows of a table as a JSON array of arrays; values as the format json of the command has them."""
    columns = [jsons(column.combine_chunks()) for column in table.columns]
    rows = zip(*columns, strict=True) if columns else [()] * table.num_rows
    return "[" + ",".join("[" + ",".join(row) + "]" for row in rows) + "]"


def parameters_of(given: Any) -> Parameters:
    """Return the parameters that a request gives: a list, an object, or none."""
    if given is None or isinstance(given, dict) or (isinstance(given, Sequence) and not isinstance(given, str)):
        return given
    raise UsageError("Parameters are a list or an object.", code="invalid-parameters")


def parsed(text: bytes | str) -> Any:
    """Return what a message says, None where it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
