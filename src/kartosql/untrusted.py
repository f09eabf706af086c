"""SQL of strangers: statements run in a worker process that is ended at its limits, and replaced.

The worker is a read-only connection (``kartosql.worker``). What it says comes as JSON and Arrow, never as objects of
Python, so that nothing that took over a worker gets into this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from kartosql import errors
from kartosql.errors import ExecutionError, KartosqlError, LimitError, UsageError
from kartosql.fair_semaphore import FairSemaphore
from kartosql.forking import Template, is_open
from kartosql.plan.bind import Parameters
from kartosql.result import Query
from kartosql.settings import Settings, machine_memory
from kartosql.stopping import Works
from kartosql.store import Store

if TYPE_CHECKING:
    from kartosql.typing import Engine

TIMEOUT = 30.0  # seconds, where none is given
MEMORY = 1_000_000_000
CAPS = {"max_columns": 5_000, "max_conditions": 10_000, "max_subqueries": 200, "max_constants": 100_000}
MIN_MEMORY = 250_000_000  # an idle worker takes half of that
MAX_STATEMENT = 64_000_000  # bytes of a statement with its parameters
MAX_HEADER = 16_000_000
START_SECONDS = 60.0
OVERTIME = 0.5  # after which a worker that does not stop by itself is ended
_NEVER = 2**62  # bytes
TICK = 0.01  # between two looks at the memory of a worker
_PAGE = os.sysconf("SC_PAGE_SIZE")
Cancelled = Callable[[], bool]  # whether who asked wants no answer any more


class WorkerReport(dict[str, Any]):
    """What a statement read and why, as ``ScanReport.to_dict`` has it, with the report as text."""

    def __init__(self, content: Mapping[str, Any], text: str) -> None:
        super().__init__(content)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able dictionary."""
        return dict(self)

    @property
    def files_selected(self) -> int:
        """How many files are read."""
        return sum(part["files_selected"] for scan in self["scans"] for part in scan["datasets"])

    @property
    def files_total(self) -> int:
        """How many files the tables have."""
        return sum(part["files_total"] for scan in self["scans"] for part in scan["datasets"])


class Limits:
    """What a statement may take: seconds, bytes of memory, bytes of files that it selects."""

    def __init__(self, timeout: Any = None, memory_limit: Any = None, **settings: Any) -> None:
        given = {**CAPS, "timeout": timeout or TIMEOUT, "memory_limit": memory_limit or MEMORY, **settings}
        values = Settings({"engine": "duckdb", **given})
        self.seconds, self.memory = float(values["timeout"]), int(values["memory_limit"])
        if not MIN_MEMORY <= self.memory <= machine_memory():
            raise UsageError(
                f"memory_limit: {self.memory:,} bytes are too few or too many for a worker.",
                code="invalid-setting",
                hint=f"Give between {MIN_MEMORY:,} bytes and what the machine has.",
            )
        # The engine has half of it and gives up first; rows, text and what the planner holds take the rest.
        kept = {"cache": "off", "keep_answers": False, "spark_threshold": _NEVER}
        self.settings = {**given, **kept, "memory_limit": self.memory // 2}


class Worker:
    """One worker process, which runs one statement at a time."""

    def __init__(self, template: Template, connection: Mapping[str, Any], limits: Limits) -> None:
        self._template, self._limits = template, limits
        self._number, self._channel = template.start()
        self._channel.settimeout(limits.seconds + OVERTIME)  # of a worker that does not listen
        self._folder = os.path.join(template.folder, str(self._number))
        self._is_ready = False
        self.is_stopped = False
        self._is_cancelled: Cancelled = _never
        self._seconds = limits.seconds  # of the statement that it runs
        self.pid = 0  # until it is ready
        settings = {**limits.settings, "temp_directory": self._folder}
        with contextlib.suppress(LimitError):  # it is gone already, which the first statement finds
            self._send({"connection": {**connection, **settings}, "memory": limits.memory})

    @property
    def is_alive(self) -> bool:
        """Whether it can run a statement."""
        return is_open(self._channel)

    def run(self, request: Mapping[str, Any], is_cancelled: Cancelled) -> tuple[dict[str, Any], pa.Table | None]:
        """Return what the worker answers: a header, and rows if there are any.

        Raises ``timeout``, ``out-of-memory``, ``limit-exceeded``, ``interrupted`` and ``worker-lost``, after which
        the worker is gone.
        """
        self._is_cancelled = is_cancelled
        if not self._is_ready:
            if (header := self._header(time.monotonic() + START_SECONDS)).get("error"):
                self.close()
                return header, None
            self._is_ready, self.pid = True, int(header["pid"])
        self._seconds = request.get("limits", {}).get("timeout", self._limits.seconds)
        end = time.monotonic() + self._seconds + OVERTIME
        self._send(request)
        header = self._header(end)
        try:
            size = int(header.get("bytes", 0))
            if size > self._limits.memory:
                raise self._ended(LimitError("The result is larger than memory_limit.", code="out-of-memory"))
            table = pa.ipc.open_stream(pa.py_buffer(self._read(size, end))).read_all() if size else None
        except (ValueError, TypeError, OSError, pa.ArrowException):  # of a worker that says what none does
            raise self._ended(self._lost()) from None
        if header.get("last"):
            self.close()
        return header, table

    def stop(self) -> None:
        """End what it does, from any thread."""
        self.is_stopped = True
        self.close()

    def close(self) -> None:
        """End the process."""
        self._template.end(self._number)
        self._channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            data = pickle.dumps(message)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError, ImportError) as e:
            raise UsageError(f"The parameters cannot be handed to a worker: {e}", code="invalid-parameters") from None
        if len(data) > MAX_STATEMENT:
            message_ = f"The statement with its parameters has {len(data):,} bytes, the limit is {MAX_STATEMENT:,}."
            raise LimitError(message_, code="statement-too-long")
        try:
            self._channel.sendall(len(data).to_bytes(8, "little") + data)
        except OSError:
            raise self._ended(self._lost()) from None

    def _header(self, end: float) -> dict[str, Any]:
        size = int.from_bytes(self._read(8, end), "little")
        try:
            header = json.loads(self._read(size, end)) if size <= MAX_HEADER else None
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict) or not isinstance(header.get("error", {}), dict):
            raise self._ended(self._lost())
        return header

    def _read(self, size: int, end: float) -> bytearray:
        """Read bytes of what the worker says, and end it where it takes more time or memory than it may."""
        found, look, count = bytearray(size), time.monotonic() + TICK, 0
        ready = select.poll()
        while count < size:
            try:
                ready.register(self._channel, select.POLLIN)
                got = self._channel.recv_into(memoryview(found)[count:]) if ready.poll(TICK * 1000) else None
            except (OSError, ValueError):
                raise self._ended(self._lost()) from None
            if got == 0:
                raise self._ended(self._lost())
            count += got or 0
            if time.monotonic() >= look:
                self._check(end)
                look = time.monotonic() + TICK
        return found

    def _check(self, end: float) -> None:
        limits = self._limits
        if self._is_cancelled():
            self.is_stopped = True
            raise self._ended(self._lost())
        if time.monotonic() > end:
            message = f"The statement took longer than the limit of {self._seconds:g} s."
            raise self._ended(LimitError(message, code="timeout", hint="Narrow the conditions, or raise timeout."))
        if memory_of(self.pid)[1] > limits.memory:
            hint = "Select fewer rows and columns, or raise memory_limit."
            raise self._ended(LimitError("The statement took more than memory_limit.", code="out-of-memory", hint=hint))
        if _spilled(self._folder) > limits.memory:
            hint = "Sort and join fewer rows, or raise memory_limit."
            raise self._ended(LimitError("The statement spilled more than memory_limit to disk.", hint=hint))

    def _lost(self) -> KartosqlError:
        if self.is_stopped:
            return ExecutionError("The statement was interrupted.", code="interrupted")
        hint = "The next statement has a new worker. Select fewer rows and columns, or raise memory_limit."
        return LimitError("The worker ended while it ran the statement.", code="worker-lost", hint=hint)

    def _ended(self, error: KartosqlError) -> KartosqlError:
        self.close()
        return error


def _never() -> bool:
    return False


def memory_of(process: int | str) -> tuple[int, int]:
    """Return the address space and the memory of a process, 0 of one that has ended and where there is no /proc."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            space, resident = file.read().split()[:2]
    except (OSError, ValueError):
        return 0, 0
    return int(space) * _PAGE, int(resident) * _PAGE


def _spilled(folder: str) -> int:
    """Return the bytes of the files in a folder, 0 of one that goes away meanwhile."""
    try:
        return sum(os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(folder) for name in names)
    except OSError:
        return 0


class UntrustedConnection:
    """A store for SQL of strangers: SELECT, SHOW, DESCRIBE, EXPLAIN, ADVISE and VERIFY, nothing else.

    It may be used by several threads; ``workers`` statements run at a time, others wait for a worker.
    """

    read_only = True

    def __init__(self, connection: Mapping[str, Any], limits: Limits, workers: int = 1) -> None:
        if not isinstance(workers, int) or not 1 <= workers <= 64:
            raise UsageError(f"workers: {workers!r} is no number from 1 to 64.")
        self._connection, self._limits = connection, limits
        self._works = Works()  # which know whose process they are of
        self._free = FairSemaphore(workers)
        self._lock = threading.Lock()
        self._is_closed = False
        # One more than run at a time, so that a statement behind one whose worker was ended does not wait; they start
        # while the caller goes on. Those that were used last, and know the store, come last.
        self._template = Template()
        self._idle = [Worker(self._template, connection, limits) for _ in range(workers + 1)]
        self._busy: set[Worker] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UsageError(
            f"A connection for untrusted SQL has no {name!r}.",
            code="not-allowed",
            hint="It has sql, sql_async, explain, interrupt and close. Connect without untrusted=True for all else.",
        )

    def sql(self, text: str, parameters: Parameters = None, *, engine: Engine | None = None) -> Query:
        """Run a statement in a worker and return its result, with all rows.

        Raises what ``Connection.sql`` raises, ``not-allowed`` for statements that change something, also settings,
        and what ends a worker: ``timeout``, ``out-of-memory``, ``limit-exceeded``, ``worker-lost``.
        """
        if engine not in (None, "auto", "duckdb"):
            raise UsageError("Untrusted SQL runs on DuckDB.", code="not-allowed")
        return self.answer({"sql": text, "parameters": parameters})

    async def sql_async(self, text: str, parameters: Parameters = None) -> Query:
        """Run a statement as ``sql`` does; a task that is cancelled stops it."""
        import asyncio

        is_cancelled = threading.Event()
        try:
            return await asyncio.to_thread(self.answer, {"sql": text, "parameters": parameters}, is_cancelled.is_set)
        except asyncio.CancelledError:
            is_cancelled.set()
            raise

    def answer(self, request: Mapping[str, Any], is_cancelled: Cancelled = _never) -> Query:
        """Return the result of a statement ``sql`` with ``parameters``; it is stopped when ``is_cancelled`` says so.

        ``limits`` are narrower ones, ``rows`` how many are wanted, of which one more may come, ``tables`` those that
        it may be about, and ``describe`` asks for the columns alone.
        """
        header, table = self._run(request, is_cancelled)
        report = header.get("report")
        known: Any = WorkerReport(report, str(header.get("text", ""))) if isinstance(report, dict) else None
        return Query(table, header.get("types"), report=known, stats=header.get("stats"))

    def explain(self, sql: str, parameters: Parameters = None) -> WorkerReport:
        """Return what a SELECT would read and why, without running it."""
        return self.report({"sql": sql, "parameters": parameters})

    def report(self, request: Mapping[str, Any]) -> WorkerReport:
        """Return what the statement of a request would read and why; see ``answer``."""
        header, _ = self._run({**request, "explain": True})
        return WorkerReport(header["report"], str(header["text"]))

    def interrupt(self) -> None:
        """Stop all statements, from any thread; they raise ``interrupted``."""
        with self._lock:
            busy = list(self._busy)
        for worker in busy:
            worker.stop()

    def close(self) -> None:
        """End the workers; statements that run raise ``interrupted``. A fork of the process leaves them alone."""
        if not self._works.is_of_this_process:
            return
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for worker in self._busy:
                worker.is_stopped = True
        self._template.close()  # before it is asked to end one by one, as it may still load
        for worker in idle:
            worker.close()

    def _run(
        self, request: Mapping[str, Any], is_cancelled: Cancelled = _never
    ) -> tuple[dict[str, Any], pa.Table | None]:
        if not isinstance(request["sql"], str):
            raise errors.SqlError(f"A statement is text, not {type(request['sql']).__name__}.", code="invalid-argument")
        self._works.check_process()
        with self._free.held(is_cancelled), self._taken() as worker:
            # Columns are told soon: a worker that would have to be replaced is not ended for them.
            header, table = worker.run(request, _never if request.get("describe") else is_cancelled)
        if (error := header.get("error")) is not None:
            raise _error(error)
        return header, table

    def _new(self) -> Worker:
        if not self._template.is_alive:  # as after the system took its memory
            self._template.close()
            self._template = Template()
        return Worker(self._template, self._connection, self._limits)

    @contextlib.contextmanager
    def _taken(self) -> Iterator[Worker]:
        with self._lock:
            if self._is_closed:
                raise UsageError("The connection is closed.", code="connection-closed")
            worker = self._idle.pop() if self._idle else self._new()
            if not worker.is_alive:
                worker.close()
                worker = self._new()
            self._busy.add(worker)
        try:
            yield worker
        finally:
            with self._lock:
                self._busy.discard(worker)
                if worker.is_alive and not self._is_closed:
                    self._idle.append(worker)
                elif not self._is_closed:
                    self._idle.insert(0, self._new())
            if self._is_closed:
                worker.close()


def connect_untrusted(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    engine: Engine = "auto",
    workers: int = 1,
    **settings: Any,
) -> UntrustedConnection:
    """Open a store for SQL of strangers; see ``kartosql.connect``."""
    if engine not in ("auto", "duckdb"):
        raise UsageError("Untrusted SQL runs on DuckDB.", code="not-allowed")
    limits = Limits(**settings)
    store = Store(url, storage_options)  # what is wrong with it is said here, not by the first statement
    # Few small files of a local store are read without an engine, where none is asked for; Spark is never chosen.
    engine = "auto" if store.is_local else "duckdb"
    connection = {"url": store.url, "storage_options": storage_options, "engine": engine}
    return UntrustedConnection(connection, limits, workers)


_ERRORS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, KartosqlError) and kind is not errors.UnknownNameError
}


def _error(found: Any) -> KartosqlError:
    """Return the error that a worker tells of."""
    span = found.get("span")
    return _ERRORS.get(str(found.get("class")), errors.SqlError)(
        str(found.get("message")),
        code=str(found.get("code")),
        hint=None if found.get("hint") is None else str(found["hint"]),
        span=(int(span[0]), int(span[1])) if isinstance(span, list) and len(span) == 2 else None,
        sql=None if found.get("sql") is None else str(found["sql"]),
    )
