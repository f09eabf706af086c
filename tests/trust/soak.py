"""Hours of everything at once over one store: writers, readers, upkeep with a short grace period, and a server.

``python -m tests.trust soak --hours 1`` starts each of them as a process. Readers check that they see each row that was
acknowledged before they asked, once, and none that was gone; nobody may get an error; and what each process and the
disk hold may not grow. The store is kept at one size: writers delete what they wrote some hundred rows before.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import kartosql
from kartosql.errors import ConcurrentCommit, KartosqlError
from kartosql.write import change, document, group, removal
from serve.load import BUDGET, TOKENS, by_http

WRITERS = READERS = 4
CLIENTS = 50
GRACE = dt.timedelta(seconds=300)  # more than a statement takes, also where much else is done
VERSIONS = 40  # that stay readable
ROWS = 60  # of each writer that are there at a time
PARTITIONS = 4
GROWTH = 1.15  # of medians of the last third of the samples against the second third
LEAST = 100  # samples in a third; before that processes still get to know what they do
SLACK = {"memory": 15e6, "descriptors": 5, "threads": 3, "disk": 1e6, "files": 200, "cache": 2e6, "temporary": 1e6}
#: Rows of a writer are numbered. It has begun to write up to the first number, was told so up to the second, and has
#: begun to delete up to the third.
BEGUN, KEPT, GOING = range(3)
Actor = Callable[["Shared", int], None]


class Shared:
    """What processes tell each other: how far each writer is, when to end, and what went wrong."""

    def __init__(self, store: str, context: Any) -> None:
        self.store = store
        self.numbers = [context.Array("q", 3) for _ in range(WRITERS)]
        self.end = context.Event()
        self.failures = context.SimpleQueue()
        self.done = context.SimpleQueue()

    def connect(self, **settings: Any) -> kartosql.Connection:
        """Return a connection with a grace period that nobody may set, for an hour has to do for a soak."""
        for module in (change, document, group, removal):
            module.MIN_GRACE = GRACE
        con = kartosql.connect(self.store, history_versions=VERSIONS, threads=1, timeout=600, **settings)
        con._session.settings._values["grace_period"] = GRACE.total_seconds()
        return con


def write(shared: Shared, writer: int) -> None:
    """Append rows, change some, and delete old ones; one statement at a time."""
    chance, numbers = random.Random(writer), shared.numbers[writer]
    with shared.connect(read_only=False) as con:
        number = 0
        while not (number and shared.end.is_set()):
            number += 1
            numbers[BEGUN] = number
            values = f"{number % PARTITIONS}, {writer}, {number}, 0, 'x{writer}-{number}'"
            con.sql(f"INSERT INTO t (p, w, n, v, s) VALUES ({values})")
            numbers[KEPT] = number
            if chance.random() < 0.2:
                some = chance.randint(max(number - ROWS // 2, 1), number)
                con.sql(f"UPDATE t SET v = v + 1 WHERE w = {writer} AND n = {some}")
            if number % (ROWS // 4) == 0 and number > ROWS:
                numbers[GOING] = number - ROWS
                con.sql(f"DELETE FROM t WHERE w = {writer} AND n <= {number - ROWS}")
    shared.done.put(("statements of writers", number))


def read(shared: Shared, reader: int) -> None:
    """Ask for the rows of a writer, as they are and as they were, on new connections and on one that stays."""
    chance, count, gone = random.Random(100 + reader), 0, 0
    with shared.connect() as stays:
        while not (count and shared.end.is_set()):
            count += 1
            with contextlib.nullcontext(stays) if chance.random() < 0.7 else shared.connect() as con:
                _look(shared, con, chance.randrange(WRITERS))
                if chance.random() < 0.2:
                    gone += not _look_back(con, chance)
    shared.done.put(("versions that went meanwhile", gone))
    shared.done.put(("looks of readers", count))


def _look(shared: Shared, con: kartosql.Connection, writer: int) -> None:
    kept, going = shared.numbers[writer][KEPT], shared.numbers[writer][GOING]
    rows = [n for (n,) in con.sql(f"SELECT n FROM t WHERE w = {writer} ORDER BY n").rows()]
    begun, later = shared.numbers[writer][BEGUN], shared.numbers[writer][GOING]
    assert len(rows) == len(set(rows)), f"rows of writer {writer} are there twice: {rows}"
    missing = set(range(later + 1, kept + 1)) - set(rows)
    assert not missing, f"rows of writer {writer} are not there: {sorted(missing)} of {kept}, from {later}"
    # A DELETE that has begun may be done or not, and the one before it is done.
    most = {n for n in rows if n <= going - ROWS // 4 or n > begun}
    assert not most, f"rows of writer {writer} are there that should not be: {sorted(most)}, {going} to {begun}"


def _look_back(con: kartosql.Connection, chance: random.Random) -> bool:
    """Ask for a version twice, and return whether it was kept for so long."""
    history = con.sql("SHOW HISTORY FROM t").rows()
    version = chance.choice([row[0] for row in history[: VERSIONS // 2]])
    asked = f"SELECT count(*), sum(n), sum(v) FROM t AT (VERSION => {version})"
    try:
        assert con.sql(asked).rows() == con.sql(f"{asked} WHERE w IS NOT NULL").rows()
    except KartosqlError as e:
        if e.code != "version-gone":
            raise
        return False
    return True


def look_after(shared: Shared, _: int) -> None:
    """Merge files, bring skipping indexes up to date, and remove what belongs to nothing."""
    rounds = removed = late = 0
    with shared.connect(read_only=False) as con:
        while not (shared.end.wait(2) and rounds):
            rounds += 1
            try:
                con.compact("t")
            except ConcurrentCommit:  # an UPDATE took its files; it looks again in the next round
                late += 1
            con.refresh_skipping_index("t")
            removed += con.garbage_collect("t")["removed"]
            _check(con, "CHECK t")
    shared.done.put(("rounds of upkeep", rounds))
    shared.done.put(("compactions that came too late", late))
    shared.done.put(("files removed", removed))


def _check(con: kartosql.Connection, sql: str) -> None:
    found = [row for row in con.sql(sql).arrow().to_pylist() if row["severity"] == "error"]
    assert not found, f"{sql}: {found}"


ACTORS: dict[str, tuple[Actor, int]] = {
    "writer": (write, WRITERS),
    "reader": (read, READERS),
    "upkeep": (look_after, 1),
}


def _run(actor: str, number: int, shared: Shared) -> None:
    try:
        ACTORS[actor][0](shared, number)
    except BaseException as e:  # noqa: BLE001
        own = [
            f"{frame.name}:{frame.lineno}"
            for frame in traceback.extract_tb(e.__traceback__)
            if frame.filename == __file__
        ]
        shared.failures.put(f"{actor} {number}, {' '.join(own)}: {type(e).__name__}: {e}")
        shared.end.set()


def ask(shared: Shared, address: str, counts: Counter[str]) -> None:
    """Ask the server, as one client of many."""
    chance = random.Random(threading.get_ident())
    with by_http({"http": address}, "token-within-its-budget") as client:
        is_asked = False
        while not (is_asked and shared.end.is_set()):
            is_asked = True
            code = client("SELECT count(*), sum(n) FROM t WHERE w = ?", [chance.randrange(WRITERS)])
            counts[code] += 1
            if code != "ok" and code not in BUDGET:
                shared.failures.put(f"client: {code}")
                shared.end.set()
            time.sleep(1)


class Samples:
    """What processes and folders held, every few seconds."""

    def __init__(self, processes: dict[str, int], folders: dict[str, Path]) -> None:
        self.processes, self.folders = processes, folders
        self.taken: dict[tuple[str, str], list[float]] = {}

    def take(self) -> None:
        for name, process in self.processes.items():
            place = Path(f"/proc/{process}")
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, KeyError):  # it has ended
                status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
                self._add(name, "memory", int(status["VmRSS"].split()[0]) * 1024)
                self._add(name, "threads", int(status["Threads"]))
                self._add(name, "descriptors", len(list((place / "fd").iterdir())))
        for name, folder in self.folders.items():
            sizes = []
            for path in folder.rglob("*"):
                with contextlib.suppress(FileNotFoundError):
                    sizes.append(path.stat().st_size)
            self._add(name, name, sum(sizes))
            self._add(name, "files", len(sizes))

    def _add(self, name: str, what: str, value: float) -> None:
        self.taken.setdefault((name, what), []).append(value)

    def grown(self) -> list[str]:
        """Return what grew between the second and the last third of the time."""
        found = []
        for (name, what), values in self.taken.items():
            third = len(values) // 3
            if third < LEAST:
                continue
            before, after = statistics.median(values[third : 2 * third]), statistics.median(values[2 * third :])
            if after > before * GROWTH + SLACK[what]:
                found.append(f"{what} of {name} grew from {before:,.0f} to {after:,.0f}")
        return found

    def __str__(self) -> str:
        lines = []
        for (name, what), values in sorted(self.taken.items()):
            third = max(len(values) // 3, 1)
            first, last = statistics.median(values[third : 2 * third] or values), statistics.median(values[-third:])
            lines.append(f"{name:>12} {what:<12} {first:>14,.0f} {last:>14,.0f}")
        return "\n".join(lines)


@contextlib.contextmanager
def _server(store: str, folder: Path) -> Any:
    tokens = folder / "tokens"
    tokens.write_text(TOKENS)
    command = [sys.executable, "-m", "kartosql", "serve", store, "--timeout", "300", "--token-file", str(tokens)]
    with subprocess.Popen([*command, "--workers", "2"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = dict(line.split() for line in takewhile("ready\n".__ne__, process.stdout))
        try:
            yield process.pid, lines["http"]
        finally:
            process.terminate()
            ended = process.wait(600)
    assert ended == 0, f"the server ended with {ended}"


def soak(seconds: float, clients: int = CLIENTS, every: float = 2.0) -> tuple[list[str], Counter[str], Samples]:
    """Run all actors for some seconds; return failures, counts of what was done, and what was held."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        places = {what: folder / what for what in ("disk", "cache", "temporary")}
        for place in places.values():
            place.mkdir()
        store = str(places["disk"])
        for variable, place in (("KARTOSQL_CACHE", "cache"), ("TMPDIR", "temporary")):
            stack.callback(_set, variable, os.environ.get(variable))
            os.environ[variable] = str(places[place])
        with kartosql.connect(store, read_only=False) as con:
            con.sql(
                "CREATE DATASET t PARTITION BY (p) INDEX (w) AS "
                "SELECT 0 AS p, -1 AS w, 0 AS n, 0 AS v, 'x' AS s FROM range(1)"
            )
            con.create_skipping_index("t", minmax=["n"], bloomfilter=["s"])
        shared, counts = Shared(store, context), Counter[str]()
        server, address = stack.enter_context(_server(store, folder))
        processes = {
            f"{actor} {n}": context.Process(target=_run, args=(actor, n, shared))
            for actor, (_, count) in ACTORS.items()
            for n in range(count)
        }
        for process in processes.values():
            process.start()
        threads = [threading.Thread(target=ask, args=(shared, address, counts)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        held = Samples({"server": server, **{n: p.pid for n, p in processes.items() if p.pid}}, places)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not shared.end.wait(every):
            held.take()
        shared.end.set()
        for one in (*processes.values(), *threads):
            one.join()
        failures = [f"{n} ended with {p.exitcode}" for n, p in processes.items() if p.exitcode]
        while not shared.failures.empty():
            failures.append(shared.failures.get())
        while not shared.done.empty():
            what, number = shared.done.get()
            counts[what] += number
        with kartosql.connect(store) as con:
            _check(con, "CHECK t FULL")
        return failures + held.grown(), counts, held


def _set(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value
