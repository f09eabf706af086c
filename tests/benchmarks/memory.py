"""Measure the peak memory of the questions of the peers: ``python -m tests.benchmarks.memory --data FOLDER``.

Each question is asked in processes of its own, of kartosql and of a bare DuckDB that is handed the right files, three
times over. What a process takes is the most that was resident, less what is resident once its libraries are imported.
Two processes of kartosql come first, with an empty cache beside the user, whose larger figure is a column of its own:
what they read of an index the others find there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

GOAL = 1.3
OURS, IDEAL = "kartosql", "ideal"
_CHILD = """
import json, resource, sys
way, root, text, files = json.load(sys.stdin)
import duckdb, pyarrow
if way == "kartosql":
    import kartosql
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
before = peak()
if way == "kartosql":
    with kartosql.connect(root, read_only=True) as con:
        for _ in range(3):
            rows = con.sql(text).arrow().num_rows
else:
    con = duckdb.connect()
    con.execute("SET parquet_metadata_cache = true")
    for _ in range(3):
        rows = con.sql(text, params=files).to_arrow_table().num_rows
print(json.dumps([before, peak()]))
"""


def peak(way: str, root: str, text: str, files: dict[str, Sequence[str]], cache: str = "off") -> tuple[float, float]:
    """Return the MB that are resident after the imports, and at most, of a process that asks one question."""
    given = os.environ | {"KARTOSQL_CACHE": cache}
    asked = json.dumps([way, root, text, files])
    # A process starts with the peak of the one that made it, so that is a small one.
    command = ["sh", "-c", 'exec "$0" -c "$1"', sys.executable, _CHILD]
    done = subprocess.run(command, input=asked, check=True, capture_output=True, text=True, env=given)
    before, most = json.loads(done.stdout.splitlines()[-1])  # behind bars of progress
    return before / 1024, most / 1024


def main() -> int:
    """Print a line for each question; return 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the data of the peers")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only what has this text in its name")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    from tests.benchmarks.ideal import Ideal
    from tests.benchmarks.lineitem import prepare
    from tests.benchmarks.peers import at_scale, questions

    data = prepare(given.data, 1)
    print("| question | ideal, MB | kartosql, MB | ratio | more than after the imports, MB | first processes, MB |")
    print("|---|--:|--:|--:|--:|--:|")
    ok = True
    with Ideal() as ideal:
        asked = [*questions(data, ideal, 13), *at_scale(given.data, 100_000, 13)]
    for question in asked:
        if given.only not in question.name or not question.opened:
            continue
        names = [f"read_parquet(${at + 1}, hive_partitioning = false)" for at in range(len(question.files[0]))]
        files = {str(at + 1): list(some) for at, some in enumerate(question.files[0])}
        by_hand = (question.by_hand or question.text(0)).format(*(f"{name} r{at}" for at, name in enumerate(names)))
        ours = question.text(0).format(question.dataset)
        root = question.root or data.root
        bare = [peak(IDEAL, root, by_hand, files) for _ in range(given.runs)]
        with tempfile.TemporaryDirectory() as cache:
            anew = max(peak(OURS, root, ours, {}, cache)[1] for _ in range(2))
            mine = [peak(OURS, root, ours, {}, cache) for _ in range(given.runs)]
        least, most = (statistics.median(m for _, m in some) for some in (bare, mine))
        more = [statistics.median(m - b for b, m in some) for some in (bare, mine)]
        ok = ok and most <= GOAL * least
        print(
            f"| {question.name} | {least:.0f} | {most:.0f} | {most / least:.2f} | {more[0]:.0f}, {more[1]:.0f} "
            f"| {anew:.0f} |",
            flush=True,
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
