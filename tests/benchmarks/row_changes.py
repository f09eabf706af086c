"""Measure DELETE of one key in 10,000 files beside delta-rs: ``python -m tests.benchmarks.row_changes``.

Both tables are partitioned alike and hold the same rows, and so many files. Each delete is of another key, in an open
connection or table; delta-rs runs where ``--peer`` names a Python that has deltalake.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILES = 10_000
ROWS = 20
RUNS = 5

_PEER = """
import sys, time, pyarrow as pa, deltalake
folder, files, rows, runs = sys.argv[1], *map(int, sys.argv[2:])
numbers = range(files * rows)
keys = [n * 7919 % len(numbers) for n in numbers]
table = pa.table({"p": [n // rows for n in numbers], "key": keys, "v": [0.5] * len(numbers)})
deltalake.write_deltalake(folder, table, partition_by=["p"])
found = deltalake.DeltaTable(folder)
for run in range(runs):
    started = time.process_time()
    done = found.delete(f"key = {len(numbers) // 2 + run * 101}")
    print(time.process_time() - started)
    assert done["num_deleted_rows"] == 1, done
"""


def ours(folder: str, files: int, rows: int, runs: int) -> list[float]:
    """Return the seconds of each DELETE of a key."""
    import pyarrow as pa

    import kartosql

    numbers = range(files * rows)
    keys = [n * 7919 % len(numbers) for n in numbers]
    table = pa.table({"p": [n // rows for n in numbers], "key": keys, "v": [0.5] * len(numbers)})
    found = []
    with kartosql.connect(folder) as con:
        con.create_dataset("t", table, partition_on=["p"], index_columns=["key"])
        for run in range(runs):
            started = time.process_time()
            done = con.sql("DELETE FROM t WHERE key = ?", [len(numbers) // 2 + run * 101])
            found.append(time.process_time() - started)
            assert (done.written, done.arrow()["files"].to_pylist()) == (1, [1])
        assert con.sql("SELECT count(*) FROM t").rows() == [(len(numbers) - runs,)]
    return found


def main() -> None:
    """Print the seconds of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--peer", default=sys.executable, help="a Python that has deltalake")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "ours").mkdir()
        mine = ours(f"{folder}/ours", asked.files, ROWS, asked.runs)
        print(f"kartosql: median {statistics.median(mine):.3f} s of {', '.join(f'{s:.3f}' for s in mine)}")
        given = [f"{folder}/theirs", str(asked.files), str(ROWS), str(asked.runs)]
        done = subprocess.run([asked.peer, "-c", _PEER, *given], check=True, capture_output=True, text=True)
        theirs = list(map(float, done.stdout.split()))
        print(f"deltalake: median {statistics.median(theirs):.3f} s of {', '.join(f'{s:.3f}' for s in theirs)}")
        print(f"ratio: {statistics.median(theirs) / statistics.median(mine):.1f}")


if __name__ == "__main__":
    main()
