"""Race writers that append to one dataset, and count what is lost, doubled or refused.

    python -m tests.benchmarks.races [--writers 16] [--appends 200] [--only local|memory|s3|lost|fsync]

Each append is a commit of its own with one data file, in one of four partitions, and an inverted index. Processes
share a local disk or a strict S3 server, threads share memory. The last figure compares 8 x 20 appends on a disk with
the same data files written without commits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import kartosql
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.write import files, indexing
from kartosql.write.indexing import read_index
from kartosql.write.inputs import open_rows
from kartosql.write.layout import Layout
from tests.benchmarks.ratios import HEAD, Figure, row
from tests.written import write_rows

DATASET = "d"
PARTITIONS, VALUES, ROWS = 4, 10, 10
SLOWER_BY = 4.0  # seconds
SEED = 7
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Tally:
    """What a race came to: appends that are missing or there twice, wrong entries of the index, errors, seconds."""

    lost: int
    doubled: int
    wrong_in_index: int
    errors: tuple[str, ...]
    seconds: float

    @property
    def faults(self) -> int:
        """How much of anything went wrong."""
        return self.lost + self.doubled + self.wrong_in_index + len(self.errors)


def rows(writer: int, number: int) -> pa.Table:
    """Return the rows of one append; ``i`` has values that other writers have as well, and one of its own."""
    values = [f"v{(number + k) % VALUES}" for k in range(ROWS - 1)] + [f"w{writer}-{number}"]
    return pa.table({"p": [number % PARTITIONS] * ROWS, "i": values, "writer": [writer] * ROWS, "n": [number] * ROWS})


def create(url: str, options: Mapping[str, Any] | None = None) -> None:
    """Write the dataset that is appended to, with one append by the writer -1."""
    with kartosql.connect(url, storage_options=options) as con:
        con.create_dataset(DATASET, rows(-1, 0), partition_on=["p"], index_columns=["i"])


def append_all(url: str, options: Mapping[str, Any] | None, writer: int, appends: int) -> list[str]:
    """Append as one of the writers and return the errors."""
    errors = []
    with kartosql.connect(url, storage_options=options) as con:
        for number in range(appends):
            try:
                con.append_to_dataset(DATASET, rows(writer, number))
            except Exception as e:  # noqa: BLE001
                errors.append(f"{type(e).__name__}: {e}")
    return errors


def write_data_only(url: str, options: Mapping[str, Any] | None, writer: int, appends: int) -> list[str]:
    """Write the files of the same appends without committing them."""
    store = Store(url, options)
    layout = Layout("data", "data", ("p",), (), ("i",), ("p",))
    for number in range(appends):
        write_rows(store, open_rows(rows(writer, number), "data"), layout)
    return []


def race_processes(
    url: str, writers: int, appends: int, options: Mapping[str, Any] | None = None, *, what: str = "append"
) -> tuple[float, list[str]]:
    """Let processes write at once; return the seconds until the last one is done, and all errors."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.races", "--work"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": CHECKOUT}
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(subprocess.Popen(command, **pipes)) for _ in range(writers)]
        for writer, process in enumerate(processes):
            stack.callback(process.kill)
            _tell(process, json.dumps([what, url, options, writer, appends]))
        for process in processes:
            process.stdout.readline()  # it is warm
        started = time.perf_counter()
        for process in processes:
            _tell(process, "go")
        answers = [process.communicate()[0] for process in processes]
        seconds = time.perf_counter() - started
    errors = []
    for process, answer in zip(processes, answers, strict=True):
        errors += json.loads(answer) if process.returncode == 0 else [f"exit code {process.returncode}"]
    return seconds, errors


def _tell(process: Any, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


def work() -> None:
    """Be one of the processes of a race."""
    what, url, options, writer, appends = json.loads(sys.stdin.readline())
    create(warm := f"memory://{uuid.uuid4().hex}")  # which imports whatever it needs
    append_all(warm, None, writer, 1)
    print("ready", flush=True)
    sys.stdin.readline()
    act = append_all if what == "append" else write_data_only
    print(json.dumps(act(url, options, writer, appends)))


def race_threads(
    url: str, writers: int, appends: int, options: Mapping[str, Any] | None = None
) -> tuple[float, list[str]]:
    """Let threads append at once, each with a connection; return the seconds and all errors."""
    started = time.perf_counter()
    with ThreadPoolExecutor(writers) as pool:
        found = list(pool.map(lambda writer: append_all(url, options, writer, appends), range(writers)))
    return time.perf_counter() - started, [error for errors in found for error in errors]


def tally(
    url: str, writers: int, appends: int, outcome: tuple[float, list[str]], options: Mapping[str, Any] | None = None
) -> Tally:
    """Look at rows and index after a race: every append once, and the index as the files have it."""
    wanted = {(writer, number): ROWS for writer in range(writers) for number in range(appends)} | {(-1, 0): ROWS}
    with kartosql.connect(url, storage_options=options) as con:
        found = con.sql(f"SELECT writer, n, count(*) FROM {DATASET} GROUP BY ALL").rows()
    rows_of = {(writer, number): count for writer, number, count in found}
    store = Store(url, options)
    table = Snapshot(store).dataset(DATASET).tables["table"]
    told = indexing.flat(read_index(store, table.indices["i"].key, "i"), "i", pa.string())
    true = files.pairs_of_files(store, table, table.labels, "i")
    in_index = Counter(zip(told["value"].to_pylist(), told["label"].to_pylist(), strict=True))
    in_files = Counter(zip(true["value"].to_pylist(), true["label"].to_pylist(), strict=True))
    return Tally(
        lost=sum(rows_of.get(append, 0) < count for append, count in wanted.items()),
        doubled=sum(count > wanted.get(append, 0) for append, count in rows_of.items()),
        wrong_in_index=((in_index - in_files) + (in_files - in_index)).total(),
        errors=tuple(outcome[1]),
        seconds=outcome[0],
    )


# -- figures ---------------------------------------------------------------------------------------


def on_disk(writers: int, appends: int) -> Tally:
    """Race processes on a local disk."""
    with tempfile.TemporaryDirectory() as folder:
        create(folder)
        return tally(folder, writers, appends, race_processes(folder, writers, appends))


def in_memory(writers: int, appends: int) -> Tally:
    """Race threads in memory."""
    url = f"memory://{uuid.uuid4().hex}"
    create(url)
    return tally(url, writers, appends, race_threads(url, writers, appends))


def on_s3(writers: int, appends: int, lose: float = 0.0) -> Tally:
    """Race processes on a strict S3 server in this process, which loses a share of its answers to writes."""
    from tests.s3_server import BUCKET, serve

    with serve(seed=SEED) as server:
        url, options = f"s3://{BUCKET}/races", server.storage_options
        create(url, options)
        server.lose = lose
        outcome = race_processes(url, writers, appends, options)
        server.lose = 0.0
        return tally(url, writers, appends, outcome, options)


def cost_of_commits(writers: int, appends: int) -> Figure:
    """Return how much longer appends take than their data files alone."""
    with tempfile.TemporaryDirectory() as folder:
        create(folder)
        before = race_processes(folder, writers, appends, what="data")[0]
        outcome = tally(folder, writers, appends, race_processes(folder, writers, appends))
        after = race_processes(folder, writers, appends, what="data")[0]
    data = (before + after) / 2
    more = outcome.seconds - data
    details = f"{outcome.seconds:.1f} s, data files alone {before:.1f} and {after:.1f} s; faults: {outcome.faults}"
    name = f"{writers} processes x {appends} appends on a disk, with fsync: longer than the data files alone"
    return Figure(name, f"<= {SLOWER_BY:g} s", f"{more:.1f} s", more <= SLOWER_BY and not outcome.faults, details)


def figure(name: str, found: Tally) -> Figure:
    """Return a race as a line of the table."""
    measured = f"{found.lost} / {found.doubled} / {len(found.errors)}"
    details = f"{found.seconds:.1f} s; wrong entries of the index: {found.wrong_in_index}"
    if found.errors:
        details += "; " + found.errors[0].replace("|", "/")
    return Figure(f"{name}: lost / doubled / errors", "0 / 0 / 0", measured, not found.faults, details)


def main() -> int:
    """Print the figures; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--appends", type=int, default=200, help="of each writer")
    parser.add_argument("--only", choices=("local", "memory", "s3", "lost", "fsync"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work()
        return 0
    n, k = given.writers, given.appends
    races: dict[str, Callable[[], Figure]] = {
        "local": lambda: figure(f"{n} processes x {k} appends on a local disk", on_disk(n, k)),
        "memory": lambda: figure(f"{n} threads x {k} appends in memory", in_memory(n, k)),
        "s3": lambda: figure(f"{n} processes x {k} appends on a strict S3 server", on_s3(n, k)),
        "lost": lambda: figure("8 processes x 20 appends on S3, 25 % of the answers lost", on_s3(8, 20, lose=0.25)),
        "fsync": lambda: cost_of_commits(8, 20),
    }
    print(HEAD)
    ok = True
    for name, race in races.items():
        if given.only in (None, name):
            found = race()
            ok = ok and found.ok
            print(row(found), flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
