"""A process that runs statements of strangers, one after the other, over a read-only connection.

Messages come over a socket, pickled by the process that owns it; answers go the same way: the length of a JSON header,
the header, and ``bytes`` of an Arrow stream.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import resource
import shutil
import socket
import sys
import threading
import time
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, BinaryIO

import pyarrow as pa

from kartosql.connection import Connection
from kartosql.errors import KartosqlError, LimitError, SqlError
from kartosql.forking import LOOK, make
from kartosql.opening import connect
from kartosql.query import SelectQuery
from kartosql.result import Query
from kartosql.session import Request
from kartosql.sql.statements import Attach, Describe, Detach, Reset, Select, Set, Show, Statement, Verify, Write
from kartosql.statements import run
from kartosql.untrusted import memory_of

CORES = os.cpu_count() or 1
SLACK = 400_000_000  # bytes of address space for stacks and libraries that are loaded later


def main() -> None:
    """Make workers, until the owner ends."""
    make(work)


def spawned() -> None:
    """Be one worker, where it is not made by a fork."""
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(1, 0)
    work(channel, int(sys.argv[1]))


def work(channel: socket.socket, parent: int) -> None:
    """Serve until the other end of the channel is closed, or the parent has ended."""
    source, answers = channel.makefile("rb"), channel.makefile("wb")
    warnings.simplefilter("ignore")
    first = _message(source)
    if first is None:
        return
    folder = first["connection"]["temp_directory"]
    os.mkdir(folder)
    threading.Thread(target=_end_with, args=(parent, folder), daemon=True).start()
    try:
        with contextlib.suppress(BrokenPipeError):  # the owner has ended
            _serve(source, answers, first)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(source: BinaryIO, answers: BinaryIO, first: Mapping[str, Any]) -> None:
    """Answer statements until the input ends, or so much memory is held that another process goes on better."""
    try:
        connection = connect(read_only=True, attach=False, **first["connection"])
    except KartosqlError as e:  # as of a store that went away
        _answer(answers, _error_header(e), None)
        return
    _warm(connection)
    given = connection.settings
    _limit(first["memory"])
    idle = memory_of("self")[1]
    _answer(answers, {"pid": os.getpid()}, None)
    is_last = False
    while not is_last and (request := _message(source)) is not None:
        _limit_time(request.get("limits", {}).get("timeout", given["timeout"]))
        try:
            header, data = _run(connection, {**request, "settings": given}, first["memory"] // 4)
        except KartosqlError as e:
            header, data = _error_header(e), None
        except MemoryError:
            os._exit(1)
        is_last = memory_of("self")[1] - idle > (first["memory"] - idle) // 2
        _answer(answers, {**header, "last": is_last}, data)


def _message(source: BinaryIO) -> dict[str, Any] | None:
    size = source.read(8)
    if len(size) < 8:
        return None
    found: dict[str, Any] = pickle.loads(source.read(int.from_bytes(size, "little")))
    return found


def _error_header(error: KartosqlError) -> dict[str, Any]:
    # Of names that are not known all are told in the message of the one error.
    return {"error": {**error.to_dict(), "class": type(error).__name__, "sql": error.sql}}


def _answer(to: BinaryIO, header: Mapping[str, Any], data: pa.Buffer | None) -> None:
    text = json.dumps({**header, "bytes": 0 if data is None else data.size}, default=str).encode()
    to.write(len(text).to_bytes(8, "little") + text)
    if data is not None:
        to.write(data)
    to.flush()


def _run(connection: Connection, request: Mapping[str, Any], limit: int) -> tuple[dict[str, Any], pa.Buffer | None]:
    text, parameters = request["sql"], request["parameters"]
    if isinstance(parameters, pa.RecordBatch):
        parameters = [column[0].as_py() for column in parameters.columns]
    connection.settings = settings = request["settings"].copy()
    _, statement = connection._request(text, parameters, None)
    if isinstance(statement, Write | Set | Reset | Attach | Detach):
        raise SqlError(
            f"{statement.text.split(maxsplit=1)[0].upper()} is not allowed here.",
            code="not-allowed",
            hint="SELECT, SHOW, DESCRIBE, EXPLAIN, ADVISE and VERIFY are.",
            sql=statement.text,
        )
    tables = request.get("tables")
    if tables is not None:
        _check_tables(connection, statement, parameters, tables)
    for name, value in request.get("limits", {}).items():
        if settings[name] is None or value < settings[name]:
            settings.narrow(name, value)
    if request.get("explain"):
        report = connection.explain(text, parameters)
        return {"report": report.to_dict(), "text": str(report)}, None
    if isinstance(statement, Verify):  # Java does not start within the limits of the process
        query = run(Request(connection._session, parameters), replace(statement, engine="duckdb"))
    else:
        query = connection.sql(text, parameters)
    if request.get("describe"):
        return {}, _stream(Query(query.schema.empty_table()), limit)
    if tables is not None and isinstance(statement, Show):
        rows = query.arrow()
        query = Query(rows.filter(pa.array([_may_see(name, tables) for name in rows["table"].to_pylist()], pa.bool_())))
    data = _stream(query, limit, request.get("rows"))
    header: dict[str, Any] = {"types": query.types, "stats": query.stats}
    if query.report is not None:
        header |= {"report": query.report.to_dict(), "text": str(query.report)}
    return header, data


def _check_tables(connection: Connection, statement: Statement, parameters: Any, tables: Collection[str]) -> None:
    """Raise ``not-allowed`` for a statement that is about other tables than some; a cube stands for its datasets."""
    select = statement if isinstance(statement, Select) else getattr(statement, "query", None)
    names: list[str | None] = [None]
    if isinstance(select, Select):
        query = connection.sql(select.text, parameters)
        names = [source.name for source in query.sources] if isinstance(query, SelectQuery) else [None]
    elif isinstance(statement, Describe) and statement.target is not None:
        names = [".".join(statement.target)]
    elif isinstance(statement, Show) and statement.what == "tables":
        names = []
    if hidden := [name for name in names if name is None or not _may_see(name, tables)]:
        what = f"The table {hidden[0]!r}" if hidden[0] else "This statement"
        raise SqlError(
            f"{what} is not allowed with this token.", code="not-allowed", hint="SHOW TABLES lists those that are."
        )


def _may_see(name: str, tables: Collection[str]) -> bool:
    return any(name.lower() == t.lower() or name.lower().startswith(f"{t.lower()}.") for t in tables)


def _stream(query: Query, limit: int, rows: int | None = None) -> pa.Buffer:
    """Run a query, and return its rows as a stream of Arrow; raises ``out-of-memory`` where they are too many.

    Of more than a number of ``rows`` one more is returned than that.
    """
    left = None if rows is None else rows + 1
    sink, reader = pa.BufferOutputStream(), query.reader()
    with reader, pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            batch = batch if left is None else batch.slice(0, left)
            left = None if left is None else left - batch.num_rows
            writer.write_batch(batch)
            if left == 0:
                break
            if sink.tell() > limit:
                message = f"The result has more than {limit:,} bytes, a quarter of memory_limit."
                raise LimitError(message, code="out-of-memory", hint="Select fewer rows, or raise memory_limit.")
    return sink.getvalue()


def _warm(connection: Connection) -> None:
    """Load and start what the first statement would."""
    with contextlib.suppress(KartosqlError):
        query: Query = connection.sql("SELECT 1 AS a WHERE 1 = 1")
        query.arrow()


def _limit(memory: int) -> None:
    """Let the system hold the process to its limits, also between two looks of the one that watches it."""
    if used := memory_of("self")[0]:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (used + memory + SLACK,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_time(seconds: float) -> None:
    """Let the system end the process where all cores take longer than a statement may, and its owner does nothing."""
    most = math.ceil(time.process_time() + (seconds + 1) * CORES)
    with contextlib.suppress(OSError, ValueError):  # above a limit that is there already
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _end_with(parent: int, folder: str) -> None:
    """End the process where the one that started it ended without a word, whatever a statement does."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(folder))
    os._exit(1)
