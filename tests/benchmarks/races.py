"""Race writers that append to one dataset, and count what is lost, doubled or refused.

    python -m tests.benchmarks.races [--writers 16] [--appends 200] [--only local|memory|s3|lost|fsync|beside]

Each append is a commit of its own with one data file, in one of four partitions, and an inverted index. Processes
share a local disk or a strict S3 server, threads share memory. *fsync* compares 8 x 20 appends on a disk with the same
data files written without commits; *beside* compares them with delta-rs, if that is installed, on a machine that is
quiet and beside 8 processes that spin, and says how long single appends take.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import kartosql
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.write import files, indexing
from kartosql.write.indexing import StoredIndex
from kartosql.write.inputs import open_rows
from kartosql.write.layout import Layout
from tests.benchmarks.ratios import HEAD, Figure, row
from tests.written import write_rows

DATASET = "d"
PARTITIONS, VALUES, ROWS = 4, 10, 10
SLOWER_BY = 4.0  # seconds
SEED = 7
CHECKOUT = Path(__file__).resolve().parents[2]


class Outcome(NamedTuple):
    """The seconds of a race, its errors, and how long each of the appends took."""

    seconds: float
    errors: list[str]
    times: list[float]

    @property
    def spread(self) -> str:
        """The median of the times, and that within which 99 % of them are."""
        return f"p50 {1000 * self.within(0.5):.0f} ms, p99 {1000 * self.within(0.99):.0f} ms"

    def within(self, share: float) -> float:
        """Return the time that a share of the appends did not exceed."""
        return sorted(self.times)[min(int(share * len(self.times)), len(self.times) - 1)]


@dataclass(frozen=True)
class Tally:
    """What a race came to: appends that are missing or there twice, wrong entries of the index, and its outcome."""

    lost: int
    doubled: int
    wrong_in_index: int
    outcome: Outcome

    @property
    def faults(self) -> int:
        """How much of anything went wrong."""
        return self.lost + self.doubled + self.wrong_in_index + len(self.outcome.errors)


def rows(writer: int, number: int) -> pa.Table:
    """Return the rows of one append; ``i`` has values that other writers have as well, and one of its own."""
    values = [f"v{(number + k) % VALUES}" for k in range(ROWS - 1)] + [f"w{writer}-{number}"]
    return pa.table({"p": [number % PARTITIONS] * ROWS, "i": values, "writer": [writer] * ROWS, "n": [number] * ROWS})


def create(url: str, options: Mapping[str, Any] | None = None) -> None:
    """Write the dataset that is appended to, with one append by the writer -1."""
    with kartosql.connect(url, storage_options=options) as con:
        con.create_dataset(DATASET, rows(-1, 0), partition_on=["p"], index_columns=["i"])


def append_all(url: str, options: Mapping[str, Any] | None, writer: int, appends: int) -> Outcome:
    """Append as one of the writers."""
    with kartosql.connect(url, storage_options=options) as con:
        return _timed(lambda number: con.append_to_dataset(DATASET, rows(writer, number)), appends)


def append_to_delta(url: str, options: Mapping[str, Any] | None, writer: int, appends: int) -> Outcome:
    """Append the same rows to a Delta table."""
    from deltalake import write_deltalake

    return _timed(lambda number: write_deltalake(f"{url}/delta", rows(writer, number), mode="append"), appends)


def _timed(append: Callable[[int], object], appends: int) -> Outcome:
    errors, times, began = [], [], time.perf_counter()
    for number in range(appends):
        started = time.perf_counter()
        try:
            append(number)
        except Exception as e:  # noqa: BLE001
            errors.append(f"{type(e).__name__}: {e}")
        times.append(time.perf_counter() - started)
    return Outcome(time.perf_counter() - began, errors, times)


def write_data_only(url: str, options: Mapping[str, Any] | None, writer: int, appends: int) -> Outcome:
    """Write the files of the same appends without committing them."""
    store = Store(url, options)
    layout = Layout("data", "data", ("p",), (), ("i",), ("p",))
    for number in range(appends):
        write_rows(store, open_rows(rows(writer, number), "data"), layout)
    return Outcome(0.0, [], [])


WORK = {"append": append_all, "data": write_data_only, "delta": append_to_delta}


def race_processes(
    url: str,
    writers: int,
    appends: int,
    options: Mapping[str, Any] | None = None,
    *,
    what: str = "append",
    apart: bool = False,
) -> Outcome:
    """Let processes write at once, and return what came of all of them.

    If they are ``apart``, they do not see each other, as if each had a machine of its own.
    """
    command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.races", "--work"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": CHECKOUT}
    with contextlib.ExitStack() as stack:
        processes = []
        for _ in range(writers):
            # The queue of the writers of a machine lies in its folder for temporary files.
            own = {"TMPDIR": stack.enter_context(tempfile.TemporaryDirectory())} if apart else {}
            processes.append(stack.enter_context(subprocess.Popen(command, env=os.environ | own, **pipes)))
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
    errors, times = [], []
    for process, answer in zip(processes, answers, strict=True):
        one = (
            Outcome(*json.loads(answer))
            if process.returncode == 0
            else Outcome(0.0, [f"exit code {process.returncode}"], [])
        )
        errors += one.errors
        times += one.times
    return Outcome(seconds, errors, times)


def _tell(process: Any, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


def work() -> None:
    """Be one of the processes of a race."""
    what, url, options, writer, appends = json.loads(sys.stdin.readline())
    with contextlib.ExitStack() as stack:
        # The same in a place of its own imports whatever it needs.
        warm = f"{url}-{uuid.uuid4().hex}" if options else stack.enter_context(tempfile.TemporaryDirectory())
        create(warm, options)
        for act in {append_all, WORK[what]}:
            act(warm, options, writer, 1)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(WORK[what](url, options, writer, appends)))


def race_threads(url: str, writers: int, appends: int, options: Mapping[str, Any] | None = None) -> Outcome:
    """Let threads append at once, each with a connection."""
    started = time.perf_counter()
    with ThreadPoolExecutor(writers) as pool:
        found = list(pool.map(lambda writer: append_all(url, options, writer, appends), range(writers)))
    seconds = time.perf_counter() - started
    return Outcome(seconds, [e for one in found for e in one.errors], [t for one in found for t in one.times])


def tally(url: str, writers: int, appends: int, outcome: Outcome, options: Mapping[str, Any] | None = None) -> Tally:
    """Look at rows and index after a race: every append once, and the index as the files have it."""
    wanted = {(writer, number): ROWS for writer in range(writers) for number in range(appends)} | {(-1, 0): ROWS}
    with kartosql.connect(url, storage_options=options) as con:
        found = con.sql(f"SELECT writer, n, count(*) FROM {DATASET} GROUP BY ALL").rows()
    rows_of = {(writer, number): count for writer, number, count in found}
    store = Store(url, options)
    table = Snapshot(store).dataset(DATASET).tables["table"]
    told = indexing.flat(StoredIndex(store, table.indices["i"].key, "i").read(), "i", pa.string())
    true = files.pairs_of_files(store, table, table.labels, "i")
    in_index = Counter(zip(told["value"].to_pylist(), told["label"].to_pylist(), strict=True))
    in_files = Counter(zip(true["value"].to_pylist(), true["label"].to_pylist(), strict=True))
    return Tally(
        lost=sum(rows_of.get(append, 0) < count for append, count in wanted.items()),
        doubled=sum(count > wanted.get(append, 0) for append, count in rows_of.items()),
        wrong_in_index=((in_index - in_files) + (in_files - in_index)).total(),
        outcome=outcome,
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


def on_s3(writers: int, appends: int, lose: float = 0.0, *, apart: bool = False) -> Tally:
    """Race processes on a strict S3 server in this process, which loses a share of its answers to writes."""
    from tests.s3_server import BUCKET, serve

    with serve(seed=SEED) as server:
        url, options = f"s3://{BUCKET}/races", server.storage_options
        create(url, options)
        server.lose = lose
        outcome = race_processes(url, writers, appends, options, apart=apart)
        server.lose = 0.0
        return tally(url, writers, appends, outcome, options)


def cost_of_commits(writers: int, appends: int) -> Figure:
    """Return how much longer appends take than their data files alone."""
    with tempfile.TemporaryDirectory() as folder:
        create(folder)
        before = race_processes(folder, writers, appends, what="data").seconds
        outcome = tally(folder, writers, appends, race_processes(folder, writers, appends))
        after = race_processes(folder, writers, appends, what="data").seconds
    data = (before + after) / 2
    more = outcome.outcome.seconds - data
    details = (
        f"{outcome.outcome.seconds:.1f} s, data files alone {before:.1f} and {after:.1f} s; faults: {outcome.faults}"
    )
    name = f"{writers} processes x {appends} appends on a disk, with fsync: longer than the data files alone"
    return Figure(name, f"<= {SLOWER_BY:g} s", f"{more:.1f} s", more <= SLOWER_BY and not outcome.faults, details)


@contextlib.contextmanager
def spinning(count: int) -> Iterator[None]:
    """Keep processors busy with some processes."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.callback(stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"])).kill)
        yield


def beside_delta(writers: int, appends: int, beside: int, runs: int) -> list[Figure]:
    """Compare appends with those of delta-rs in turns, and slow ones with the median, beside processes that spin."""
    ratios, spreads, details = [], [], []
    for number in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            create(folder)
            append_to_delta(folder, None, -1, 1)
            found = {}
            with spinning(beside):
                for what in ("append", "delta") if number % 2 else ("delta", "append"):
                    found[what] = race_processes(folder, writers, appends, what=what)
            ours, theirs = found["append"], found["delta"]
            faults = tally(folder, writers, appends, ours).faults
        ratios.append(theirs.seconds / ours.seconds if not faults else 0.0)
        spreads.append(ours.within(0.99) / ours.within(0.5))
        details.append(
            f"{writers * appends / ours.seconds:.1f}/s, {ours.spread}, faults {faults}; delta-rs "
            f"{writers * appends / theirs.seconds:.1f}/s, {theirs.spread}, errors {len(theirs.errors)}"
        )
    name = f"{writers} processes x {appends} appends on a disk beside {beside} that spin"
    ratio, spread = statistics.median(ratios), statistics.median(spreads)
    return [
        Figure(f"{name}, to delta-rs", ">= 1.5 x", f"{ratio:.2f} x", ratio >= 1.5, "; ".join(details)),
        Figure(f"{name}, p99 to p50", "<= 4", f"{spread:.1f}", spread <= 4),
    ]


def spread_on_s3(writers: int, appends: int, runs: int, apart: bool) -> Figure:
    """Compare slow appends to a strict S3 server with the median."""
    found = [on_s3(writers, appends, apart=apart) for _ in range(runs)]
    spread = statistics.median(one.outcome.within(0.99) / one.outcome.within(0.5) for one in found)
    details = "; ".join(f"{one.outcome.seconds:.1f} s, {one.outcome.spread}, faults {one.faults}" for one in found)
    name = f"{writers} processes {'apart ' if apart else ''}x {appends} appends on a strict S3 server, p99 to p50"
    return Figure(name, "<= 6", f"{spread:.1f}", spread <= 6 and not any(one.faults for one in found), details)


def compare(writers: int, appends: int, runs: int) -> Iterator[Figure]:
    """Yield the figures beside delta-rs, if it is there, and the spread on S3."""
    if importlib.util.find_spec("deltalake"):
        for beside in (0, 8):
            yield from beside_delta(writers, appends, beside, runs)
    for apart in (False, True):
        yield spread_on_s3(writers, appends, runs, apart)


def figure(name: str, found: Tally) -> Figure:
    """Return a race as a line of the table."""
    measured = f"{found.lost} / {found.doubled} / {len(found.outcome.errors)}"
    details = f"{found.outcome.seconds:.1f} s; wrong entries of the index: {found.wrong_in_index}"
    if found.outcome.errors:
        details += "; " + found.outcome.errors[0].replace("|", "/")
    return Figure(f"{name}: lost / doubled / errors", "0 / 0 / 0", measured, not found.faults, details)


def main() -> int:
    """Print the figures; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--appends", type=int, default=200, help="of each writer")
    parser.add_argument("--only", choices=("local", "memory", "s3", "lost", "fsync", "beside"))
    parser.add_argument("--runs", type=int, default=3, help="of what is compared with delta-rs")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work()
        return 0
    n, k = given.writers, given.appends
    races: dict[str, Callable[[], Iterable[Figure]]] = {
        "local": lambda: [figure(f"{n} processes x {k} appends on a local disk", on_disk(n, k))],
        "memory": lambda: [figure(f"{n} threads x {k} appends in memory", in_memory(n, k))],
        "s3": lambda: [figure(f"{n} processes x {k} appends on a strict S3 server", on_s3(n, k))],
        "lost": lambda: [figure("8 processes x 20 appends on S3, 25 % of the answers lost", on_s3(8, 20, lose=0.25))],
        "fsync": lambda: [cost_of_commits(8, 20)],
        "beside": lambda: compare(8, 20, given.runs),
    }
    print(HEAD)
    ok = True
    for name, race in races.items():
        if given.only in (None, name):
            for found in race():
                ok = ok and found.ok
                print(row(found), flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
