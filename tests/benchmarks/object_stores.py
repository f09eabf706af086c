"""Measure object stores: ``python -m tests.benchmarks.object_stores --data FOLDER [--only TEXT] [--runs N]``.

A strict S3 server in a process of its own answers each request after 20 ms. For each question the table has the
requests, the round trips of which one follows the other, the bytes that the server sent, and the time beyond the CPU
time of the process that asks. The data are those of ``tests.benchmarks.peers``, and two datasets more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

import kartosql
from kartosql.store import Store
from tests.benchmarks.lineitem import prepare
from tests.benchmarks.ratios import HEAD, Figure, in_turns, row
from tests.s3_server import BUCKET, Answer, Object, S3Server, serve, trips
from tests.written import write_dataset

LATENCY = 0.02
POINT = "SELECT l_orderkey, l_linenumber, l_quantity, l_extendedprice FROM lineitem_many WHERE l_orderkey = {}"
JOINED = "SELECT l_quantity, l_shipmode, l_tax FROM lines WHERE l_orderkey = {} AND l_shipmonth = '{}'"
WIDE_FILES, WIDE_ROWS, WIDE_COLUMNS = 100, 5_600, 16
LARGE_ROWS = 3_500_000


class Counts(NamedTuple):
    """What a server was asked: how often, how many trips in a row, and the bytes of the answers."""

    requests: int
    trips: int
    size: int
    kinds: str


class Server:
    """A server in another process, over the files below some folders."""

    def __init__(self, folders: list[str]) -> None:
        self._pipe, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_run, args=(other, folders), daemon=True)
        self._process.start()
        self.options: dict[str, Any] = self._pipe.recv()

    def connect(self) -> kartosql.Connection:
        """Open a connection to the store."""
        return kartosql.connect(f"s3://{BUCKET}/x", storage_options=self.options)

    def take(self) -> list[Answer]:
        """Return what was answered since the last call."""
        self._pipe.send("take")
        found: list[Answer] = self._pipe.recv()
        return found

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()


def _run(pipe: Connection, folders: list[str]) -> None:
    with serve() as state:
        for folder in folders:
            _put(state, folder)
        state.latency = LATENCY
        pipe.send(state.storage_options)
        while pipe.recv() == "take":
            with state.lock:
                answers, state.answers = state.answers, []
            pipe.send(answers)


def _put(state: S3Server, root: str) -> None:
    for folder, _, names in os.walk(root):
        inner = os.path.relpath(folder, root)
        if inner.split(os.sep)[0] in ("delta", "iceberg"):
            continue
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read()
            key = os.path.normpath(os.path.join("x", inner, name))
            state.objects[BUCKET, key] = Object(data, state.etag_of(data), state.now())


def counted(answers: list[Answer]) -> Counts:
    """Return the sums of what a server was asked."""
    kinds = Counter(f"{a.method} {'range ' if a.range else ''}{a.status}" for a in answers)
    text = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    return Counts(len(answers), trips(answers), sum(a.size for a in answers), text)


def more_data(folder: str) -> str:
    """Return a folder with files of 200 KB and of 128 MB, made now unless they are there."""
    root = os.path.join(folder, "sizes")
    if os.path.isdir(root):
        return root
    os.makedirs(root)
    store = Store(root)
    columns = ", ".join(f"hash(range * {at + 7}) % 30000 AS c{at}" for at in range(WIDE_COLUMNS))
    wide = _made(f"SELECT range // {WIDE_ROWS} AS p, {columns} FROM range({WIDE_FILES * WIDE_ROWS})")
    write_dataset(store, "wide", wide, partition_on=["p"])
    large = _made(
        "SELECT range // 3500000 AS p, range AS id, hash(range) AS code, hash(range * 3) % 1000000 AS amount, "
        "hash(range * 5) AS a, hash(range * 7) AS b, hash(range * 11) AS c, 'text ' || range % 1000 AS word "
        f"FROM range({2 * LARGE_ROWS})"
    )
    write_dataset(store, "large", large, partition_on=["p"], index_columns=["id"])
    return root


def _made(sql: str) -> pa.Table:
    with duckdb.connect() as connection:
        return connection.sql(sql).to_arrow_table()


def timed(server: Server, act: Callable[[int], object], runs: int, warm: int = 2) -> tuple[Counts, float, float]:
    """Return the counts of the last of several runs, and the medians of elapsed time and of that beyond CPU time."""
    elapsed, beyond = [], []
    for turn in range(warm + runs):
        server.take()
        cpu, started = time.process_time(), time.perf_counter()
        act(turn)
        took = time.perf_counter() - started
        if turn >= warm:
            elapsed.append(took)
            beyond.append(took - (time.process_time() - cpu))
    return counted(server.take()), statistics.median(elapsed), statistics.median(beyond)


def keys_of(root: str, count: int) -> list[tuple[int, str]]:
    """Return order keys that are there, in different files, with their months."""
    with duckdb.connect() as con:
        rows = con.sql(
            "SELECT l_orderkey, min(l_shipmonth) FROM read_parquet(?, hive_partitioning = true) "
            "GROUP BY 1 ORDER BY hash(l_orderkey) LIMIT ?",
            params=[os.path.join(root, "lines++seed", "table", "**", "*.parquet"), count],
        ).fetchall()
    return [(int(key), str(month)) for key, month in rows]


def figure(name: str, asked: str, found: tuple[Counts, float, float], ok: Callable[[Counts, float], bool]) -> Figure:
    """Return the line of a question."""
    counts, elapsed, beyond = found
    measured = f"{counts.requests} requests, {counts.trips} trips, {counts.size / 1000:,.0f} KB, {beyond * 1e3:.0f} ms"
    return Figure(name, asked, measured, ok(counts, beyond), f"{elapsed * 1e3:.0f} ms elapsed; {counts.kinds}")


def figures(server: Server, root: str, only: str, runs: int) -> Iterator[Figure]:
    """Yield the lines of the table."""
    asked = {
        "warm point query, 10,000 files": _warm,
        "warm point query, cube of 3 datasets": _warm_cube,
        "new process, point query, 10,000 files": _process,
        "100 files of 200 KB, 2 of 16 columns": _wide,
        "point query, files of 128 MB": _large,
    }
    for name, measure in asked.items():
        if only in name:
            yield from measure(server, root, name, runs)


def _warm(server: Server, root: str, name: str, runs: int) -> Iterator[Figure]:
    keys = keys_of(root, runs + 2)
    with server.connect() as con:
        found = timed(server, lambda turn: con.sql(POINT.format(keys[turn][0])).rows(), runs)
    yield figure(name, "<= 2 trips, 50 ms", found, lambda c, beyond: c.trips <= 2 and beyond <= 0.05)


def _warm_cube(server: Server, root: str, name: str, runs: int) -> Iterator[Figure]:
    keys = keys_of(root, runs + 2)
    with server.connect() as con:
        found = timed(server, lambda turn: con.sql(JOINED.format(*keys[turn])).rows(), runs)
    yield figure(name, "<= 2 trips", found, lambda c, beyond: c.trips <= 2)


def _process(server: Server, root: str, name: str, runs: int) -> Iterator[Figure]:
    keys = keys_of(root, runs + 2)

    def act(turn: int) -> None:
        code = (
            f"import kartosql; con = kartosql.connect('s3://{BUCKET}/x', storage_options={server.options!r}); "
            f"con.sql({POINT.format(keys[turn][0])!r}).rows()"
        )
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)

    found = timed(server, act, min(runs, 3), 1)
    yield figure(name, "<= 4 requests, 256 KB", found, lambda c, _: c.requests <= 4 and c.size <= 256 * 1024)


def _wide(server: Server, root: str, name: str, runs: int) -> Iterator[Figure]:
    with server.connect() as con:
        found = timed(server, lambda turn: con.sql(f"SELECT sum(c3), max(c9 + {turn}) FROM wide").rows(), runs)
        files = WIDE_FILES
        yield figure(name, "one request per file", found, lambda c, _: c.kinds.count("GET") and c.requests <= files + 1)
        try:
            import polars as pl
        except ImportError:
            return
        url = f"s3://{BUCKET}/x/wide/table/**/*.parquet"
        options = {
            "aws_endpoint_url": server.options["endpoint_url"],
            "aws_access_key_id": "k",
            "aws_secret_access_key": "s",
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }

        def polars(turn: int) -> None:
            frame = pl.scan_parquet(url, storage_options=options, hive_partitioning=True)
            frame.select(pl.col("c3").sum(), (pl.col("c9") + turn).max()).collect()

        ways = {"ours": lambda turn: con.sql(f"SELECT sum(c3), max(c9 + {turn}) FROM wide").rows(), "polars": polars}
        costs = in_turns(ways, runs, 2)
        ratio = 1 / costs["ours"].ratio(costs["polars"])
        times = f"{costs['ours'].median * 1e3:.0f} / {costs['polars'].median * 1e3:.0f} ms"
        yield Figure(f"{name}, against Polars", ">= 2.5 x faster", f"{ratio:.1f} x", ratio >= 2.5, times)


def _large(server: Server, root: str, name: str, runs: int) -> Iterator[Figure]:
    with server.connect() as con:
        keys = [(turn * 7919 * 13) % (2 * LARGE_ROWS) for turn in range(runs + 2)]
        for what, warm in (("first", 0), ("next", 2)):
            count = 1 if what == "first" else runs
            found = timed(server, lambda t: con.sql(f"SELECT * FROM large WHERE id = {keys[t]}").rows(), count, warm)
            yield figure(f"{name}, {what}", "<= 300 KB", found, lambda c, _: c.size <= 300_000)


@contextmanager
def running(folder: str, scale: float) -> Iterator[tuple[Server, str]]:
    """Run a server over all data, which are made unless they are there."""
    root = prepare(folder, scale).root
    server = Server([root, more_data(os.environ.get("KARTOSQL_MORE", folder))])
    try:
        yield server, root
    finally:
        server.stop()


def main() -> int:
    """Print the figures; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder for the data; they are made once")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    print(HEAD)
    good = True
    with running(given.data, given.scale) as (server, root):
        for found in figures(server, root, given.only, given.runs):
            print(row(found), flush=True)
            good &= found.ok
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
