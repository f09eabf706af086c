"""The load of a server: many clients ask one for some minutes, by HTTP and by Flight SQL.

``python -m tests.serve.load`` runs 200 clients for five minutes and prints what they got: errors other than those of
budgets, waiting times, and how memory, descriptors and threads of the server went. It fails where a figure is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.flight as flight

import kartosql
from kartosql.serve.flight import PREFIX, _message

ROWS = 200_000
BUDGET = {"byte-budget", "limit-exceeded", "too-many-statements", "timeout"}  # the errors that a budget makes
#: Clients whose statements are within their budget, and one in ten whose statements often are not.
TOKENS = """
within = "token-within-its-budget"
[above]
token = "token-above-its-budget"
concurrency = 2
max_bytes = 200000
rows = 50
"""
STATEMENTS = (
    ("SELECT s, v FROM t WHERE k = ?", lambda r: [r.randrange(ROWS)]),
    ("SELECT count(*), sum(v) FROM t WHERE p = ?", lambda r: [r.randrange(20)]),
    ("SELECT p, count(*) FROM t WHERE v < ? GROUP BY p ORDER BY p", lambda r: [r.randrange(1000)]),
    ("SELECT k, s FROM t WHERE p = ? ORDER BY k LIMIT 200", lambda r: [r.randrange(20)]),
)
Ask = Callable[[str, list[int]], str]  # asks a statement and returns "ok" or the code of its error


@contextlib.contextmanager
def by_http(lines: dict[str, str], token: str) -> Iterator[Ask]:
    connection = http.client.HTTPConnection(lines["http"].removeprefix("http://"), timeout=300)

    def ask(sql: str, values: list[int]) -> str:
        body = json.dumps({"sql": sql, "parameters": values})
        connection.request("POST", "/sql", body, {"Authorization": f"Bearer {token}"})
        answer = json.loads(connection.getresponse().read())
        return str(answer["error"]["code"]) if "error" in answer else "ok"

    with contextlib.closing(connection):
        yield ask


@contextlib.contextmanager
def by_flight(lines: dict[str, str], token: str) -> Iterator[Ask]:
    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])

    def ask(sql: str, values: list[int]) -> str:
        text = sql.replace("?", str(values[0]))
        command = _message(f1=(PREFIX + "CommandStatementQuery").encode(), f2=_message(f1=text.encode()))
        try:
            info = client.get_flight_info(flight.FlightDescriptor.for_command(command), options)
            client.do_get(info.endpoints[0].ticket, options).read_all()
        except Exception as e:  # noqa: BLE001
            return str(e).split("]")[0].split("[")[-1]
        return "ok"

    with flight.connect(lines["flight"]) as client:
        yield ask


class Load:
    """What the clients got, and what the server took meanwhile."""

    def __init__(self, process: int) -> None:
        self._process = Path(f"/proc/{process}")
        self.codes: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.taken: list[tuple[int, int, int]] = []  # resident bytes, descriptors, threads
        self._lock = threading.Lock()

    def client(self, number: int, asked: contextlib.AbstractContextManager[Ask], end: float) -> None:
        """Ask until a time, and once at least."""
        random_, is_asked = random.Random(number), False
        with asked as ask:
            while not is_asked or time.monotonic() < end:
                is_asked = True
                sql, values = random_.choice(STATEMENTS)
                started = time.monotonic()
                try:
                    code = ask(sql, values(random_))
                except Exception as e:  # noqa: BLE001
                    code = type(e).__name__
                if code == "too-many-statements":
                    time.sleep(1)  # as its hint says
                with self._lock:
                    self.codes[code] += 1
                    if code == "ok":
                        self.seconds.append(time.monotonic() - started)

    def sample(self) -> None:
        """Note what the server holds at this moment; its workers are looked at by their own limits."""
        status = dict(line.split(":", 1) for line in (self._process / "status").read_text().splitlines())
        descriptors = len(list((self._process / "fd").iterdir()))
        self.taken.append((int(status["VmRSS"].split()[0]) * 1024, descriptors, int(status["Threads"])))

    @property
    def errors(self) -> int:
        """How many statements failed for another reason than a budget."""
        return sum(count for code, count in self.codes.items() if code != "ok" and code not in BUDGET)

    def within(self, share: float) -> float:
        """Return in how many seconds a share of the statements was answered."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    def growth(self, at: int) -> float:
        """Return the median of the last third of the samples as a multiple of the second third's."""
        third = len(self.taken) // 3
        values = [sample[at] for sample in self.taken]
        return statistics.median(values[2 * third :]) / statistics.median(values[third : 2 * third])


def run(protocol: str, clients: int, seconds: float, workers: int = 2, every: float = 2.0) -> Load:
    """Serve a new store, and let clients ask it."""
    by = {"http": by_http, "flight": by_flight}[protocol]
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder, "store")
        store.mkdir()
        with kartosql.connect(store) as con:
            con.sql(
                "CREATE DATASET t PARTITION BY (p) INDEX (k) AS "
                f"SELECT i % 20 AS p, i AS k, i % 1000 AS v, 'x' || i AS s FROM range({ROWS}) r(i)"
            )
        tokens = Path(folder, "tokens")
        tokens.write_text(TOKENS)
        command = [sys.executable, "-m", "kartosql", "serve", str(store), "--timeout", "300"]
        command += ["--token-file", str(tokens), "--workers", str(workers)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = dict(line.split() for line in iter(process.stdout.readline, "ready\n") if line)
            load, end = Load(process.pid), time.monotonic() + seconds
            token = [f"token-{'above' if number % 10 == 0 else 'within'}-its-budget" for number in range(clients)]
            threads = [threading.Thread(target=load.client, args=(n, by(lines, token[n]), end)) for n in range(clients)]
            for thread in threads:
                thread.start()
            while time.monotonic() < end:
                time.sleep(every)
                load.sample()
            for thread in threads:
                thread.join()
            process.terminate()
            assert process.wait(600) == 0
    return load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.serve.load", description=__doc__)
    parser.add_argument("--protocol", choices=["http", "flight"], action="append")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300)
    given = parser.parse_args()
    is_missed = False
    for protocol in given.protocol or ["http", "flight"]:
        load = run(protocol, given.clients, given.seconds)
        spread = load.within(0.99) / load.within(0.5)
        memory, descriptors, threads = (load.growth(at) for at in range(3))
        is_missed |= bool(load.errors) or spread > 20 or max(memory, descriptors, threads) > 1.1
        print(f"{protocol}: {given.clients} clients, {given.seconds:g} s, {os.cpu_count()} cores")
        print(f"  statements: {dict(load.codes)}; errors but those of budgets: {load.errors}")
        print(f"  p50 {load.within(0.5):.2f} s, p99 {load.within(0.99):.2f} s: {spread:.1f} times")
        last = load.taken[-1]
        print(f"  at the end {last[0] / 1e6:.0f} MB, {last[1]} descriptors, {last[2]} threads; last to second third:")
        print(f"  memory {memory:.3f}, descriptors {descriptors:.3f}, threads {threads:.3f}", flush=True)
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
