"""Measure an append to a dataset of 100,000 partitions with an index: ``python -m tests.benchmarks.committing``.

Each run is a process of its own that has imported everything. The first append reads and parses the metadata; the
second one of the same connection shows what is left then. With ``--writers 16 --appends 50`` so many append at
once, and each append has to be in document and index afterwards.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import uuid

from tests.benchmarks import metadata
from tests.benchmarks.ratios import HEAD, Figure, row

PARTITIONS = 100_000
LIMITS = {"json": 1e-6, "msgpack": 1.5e-5}  # seconds of CPU time for each partition
KINDS = ("json, int key", "json, string key", "msgpack, int key")


def append(folder: str, kind: str, number: int) -> dict[str, list[float]]:
    """Append twice to the dataset of ``folder``; return seconds, CPU seconds and the peak in MB for each."""
    import pyarrow as pa

    import kartosql

    with kartosql.connect(f"memory://{uuid.uuid4().hex}") as warm:
        warm.create_dataset("d", pa.table({"p": [1], "i": [1]}), partition_on=["p"], index_columns=["i"])
        warm.append_to_dataset("d", pa.table({"p": [1], "i": [1]}))
    found: dict[str, list[float]] = {"elapsed": [], "cpu": [], "peak": []}
    with kartosql.connect(folder) as con:
        for value in (-2 * number - 1, -2 * number - 2):
            rows = pa.table({"p": [f"key-{value}" if "string" in kind else value], "i": [value], "v": [0.5]})
            started, before = time.perf_counter(), time.process_time()
            con.append_to_dataset("t", rows)
            found["elapsed"].append(time.perf_counter() - started)
            found["cpu"].append(time.process_time() - before)
            found["peak"].append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return found


def append_as(folder: str, writer: int, appends: int) -> list[float]:
    """Append as one of several writers, each time to a partition of its own; return the seconds of each."""
    import pyarrow as pa

    import kartosql

    times = []
    with kartosql.connect(folder) as con:
        for number in range(appends):
            value = -1 - writer * appends - number
            started = time.perf_counter()
            con.append_to_dataset("t", pa.table({"p": [value], "i": [value], "v": [0.5]}))
            times.append(time.perf_counter() - started)
    return times


def race(writers: int, appends: int, partitions: int) -> Figure:
    """Let processes append to one dataset at once, and look whether each append is there."""
    with tempfile.TemporaryDirectory() as folder:
        metadata.child("--make", folder, KINDS[0], str(partitions))
        command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.committing", "--race", folder]
        started = time.perf_counter()
        processes = [
            subprocess.Popen([*command, str(writer), str(appends)], stdout=subprocess.PIPE, text=True)
            for writer in range(writers)
        ]
        times = sorted(seconds for process in processes for seconds in json.loads(process.communicate()[0]))
        elapsed = time.perf_counter() - started
        lost = partitions + writers * appends - check(folder)
    assert all(process.returncode == 0 for process in processes)
    name = f"{writers} processes x {appends} appends to {partitions:,} partitions: lost"
    details = f"{elapsed:.0f} s; p50 {times[len(times) // 2]:.2f} s, p99 {times[int(0.99 * len(times))]:.2f} s"
    return Figure(name, "0", str(lost), not lost, details)


def check(folder: str) -> int:
    """Return how many partitions there are; raise AssertionError unless all of them are in the index, too."""
    import pyarrow.compute as pc

    from kartosql.formats.kartothek.snapshot import Snapshot
    from kartosql.store import Store
    from kartosql.write.indexing import StoredIndex

    store = Store(folder)
    table = Snapshot(store).dataset("t").tables["table"]
    index = StoredIndex(store, table.indices["i"].key, "i").read()
    assert len({*table.labels}) == len(table.labels)
    assert pc.sum(pc.list_value_length(index["partition"])).as_py() == len(table.labels)
    return len(table.labels)


def measure(kind: str, partitions: int, runs: int) -> Figure:
    """Return the median CPU time of the first append of a process."""
    with tempfile.TemporaryDirectory() as folder:
        # A process starts with the peak memory of the one that made it.
        metadata.child("--make", folder, kind, str(partitions))
        found = []
        for number in range(runs):
            command = [sys.executable, "-W", "ignore", "-m", "tests.benchmarks.committing", "--append", folder, kind]
            answer = subprocess.run([*command, str(number)], check=True, capture_output=True, text=True).stdout
            found.append(json.loads(answer))
        code = f"from tests.benchmarks.committing import check; assert check({folder!r}) == {partitions + 2 * runs}"
        subprocess.run([sys.executable, "-c", code], check=True)
    first, second = (sorted(f["elapsed"][i] for f in found)[runs // 2] for i in (0, 1))
    cpu, next_cpu = (sorted(f["cpu"][i] for f in found)[runs // 2] for i in (0, 1))
    peak = sorted(f["peak"][1] for f in found)[runs // 2]
    name = f"append to {partitions:,} partitions ({kind})"
    details = f"{first:.2f} s; the next one of the connection {second:.2f} s, CPU {next_cpu:.3f} s; {peak:.0f} MB"
    limit = partitions * LIMITS[kind.split(",")[0]]
    return Figure(name, f"<= {limit:g} s CPU", f"{cpu:.2f} s", cpu <= limit, details)


def main() -> int:
    """Print the figures; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--append", nargs=3, metavar=("FOLDER", "KIND", "NUMBER"), help=argparse.SUPPRESS)
    parser.add_argument("--writers", type=int, default=0, help="let so many processes append at once")
    parser.add_argument("--appends", type=int, default=50, help="of each of them")
    parser.add_argument("--race", nargs=3, metavar=("FOLDER", "WRITER", "APPENDS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.race:
        print(json.dumps(append_as(given.race[0], int(given.race[1]), int(given.race[2]))))
        return 0
    if given.append:
        print(json.dumps(append(given.append[0], given.append[1], int(given.append[2]))))
        return 0
    print(HEAD)
    if given.writers:
        found = race(given.writers, given.appends, given.partitions)
        print(row(found))
        return 0 if found.ok else 1
    ok = True
    for kind in given.kinds:
        found = measure(kind, given.partitions, given.runs)
        ok = ok and found.ok
        print(row(found), flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
