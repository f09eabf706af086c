"""The figures of the command: CPU seconds of whole processes, until the prompt of the shell, and of completions.

python -m tests.benchmarks.shell [--runs 9] [--before FOLDER]

Processes run in turns, beside a Python that imports duckdb and does nothing; with ``--before`` beside those of another
version of kartosql, too, whose sources lie in FOLDER.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.cli.repl.complete import candidates
from kartosql.cli.repl.known import Known, load
from kartosql.cli.repl.options import ShellOptions
from kartosql.cli.repl.screen import Screen
from kartosql.cli.repl.shell import Shell
from kartosql.demo import build_flights
from kartosql.formats.kartothek.cube import Cube
from kartosql.opening import connect
from kartosql.store import Store
from tests.written import build_cube, write_dataset

COLUMNS = 10_000
VALUES = 1_000_000
KEYS = tuple(f"N{number}{end}" for number in range(101, 199) for end in ("HQ", "UW", "US"))  # some fly, some do not


def prompt_seconds(folder: str, env: Mapping[str, str]) -> float:
    """Return the CPU seconds of a shell in a terminal until its prompt is there."""
    import pexpect

    process = pexpect.spawn(sys.executable, ["-m", "kartosql", folder], env=dict(env), timeout=60)
    try:
        # What follows it is drawn at once.
        process.expect("> ")
        threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")  # nanoseconds; stat counts ticks of 10 ms
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
    finally:
        with suppress(pexpect.ExceptionPexpect):
            process.close(force=True)


def process_seconds(arguments: Sequence[str], env: Mapping[str, str]) -> float:
    """Return the CPU seconds of a Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def processes(folder: str, own: str, sources: str | None) -> dict[str, Callable[[int], float]]:
    """Return what measures whole processes by name, given the number of the turn; of the version at ``sources``."""
    env = {**os.environ, "TERM": "xterm-256color", "KARTOSQL_HISTORY": f"{own}/h", "KARTOSQL_CONFIG": f"{own}/c"}
    env |= {"KARTOSQL_CACHE": f"{own}/cache"} | ({} if sources is None else {"PYTHONPATH": sources})
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    bare = {**env, "KARTOSQL_CACHE": "off"}
    point = "SELECT count(*) FROM flights WHERE tailnum = '{}'"

    def asked(sql: str, env: Mapping[str, str] = env) -> float:
        return process_seconds(["-m", "kartosql", folder, "-c", sql, "--format", "csv"], env)

    return {
        "`-c`, a point query, repeated": lambda _: asked(point.format("N14228")),
        "`-c`, a point query, another key each time": lambda turn: asked(point.format(KEYS[turn % len(KEYS)])),
        "`-c`, a point query, nothing kept": lambda _: asked(point.format("N14228"), bare),
        "`-c`, csv of 336,776 rows of 25 columns": lambda _: asked("SELECT * FROM flights"),
        "prompt of the shell": lambda _: prompt_seconds(folder, env),
    }


def show_processes(folder: str, before: str | None, runs: int) -> None:
    """Print the medians of whole processes, and of their ratios to a Python that imports duckdb."""
    ways = {("a Python that imports duckdb", ""): lambda _: process_seconds(["-c", "import duckdb"], os.environ)}
    with tempfile.TemporaryDirectory() as own, tempfile.TemporaryDirectory() as other:
        ways |= {(name, ""): way for name, way in processes(folder, own, None).items()}
        if before is not None:
            ways |= {(name, "before"): way for name, way in processes(folder, other, before).items()}
        found = {name: list[float]() for name in ways}
        for turn in range(2 + runs):  # two fill caches
            for name, way in ways.items():
                seconds = way(turn)
                found[name] += [seconds] if turn >= 2 else []
    yardstick = next(iter(found.values()))
    print("| whole process, CPU | median | / import duckdb | before |\n|---|---:|---:|---:|")
    for (name, version), seconds in found.items():
        if not version:
            told = [ratio(found[name, v], yardstick) for v in ("", "before") if (name, v) in found]
            cells = [f"{1000 * statistics.median(seconds):,.0f} ms", *told, *[""] * (2 - len(told))]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def ratio(seconds: Sequence[float], other: Sequence[float]) -> str:
    """Return the median of the ratios of each turn."""
    return f"{statistics.median(a / b for a, b in zip(seconds, other, strict=True)):.2f}"


def completing(folder: str) -> Callable[[str], Callable[[], float]]:
    """Return a function from a text to what measures its completion at its end, in CPU seconds."""
    with open(os.devnull, "w") as nowhere:
        shell = Shell(connect(folder, read_only=True), Screen(nowhere, columns=80), ShellOptions(), connect)
    known: Known = load(shell.connection)

    def prepare(text: str) -> Callable[[], float]:
        candidates(text, len(text), shell, known)
        while shell.values.coming:
            time.sleep(0.01)

        def measure() -> float:
            started = time.thread_time()
            found = candidates(text, len(text), shell, known)
            seconds = time.thread_time() - started
            assert found, text
            return seconds

        return measure

    return prepare


def wide_store(folder: str) -> None:
    """Write a dataset of many columns."""
    names = [f"{('price', 'volume', 'rate', 'level')[i % 4]}_{i:05}" for i in range(COLUMNS)]
    write_dataset(Store(folder, create=True), "wide", pa.table({name: pa.array([1]) for name in names}))


def indexed_store(folder: str) -> None:
    """Write a cube with an index of many values: each stands in one of two files."""
    cube = Cube("big", ("x",), ("p",), index_columns=["code"], suppress_index_on=["x"])
    rows = pa.table({"x": range(4), "p": [0, 0, 1, 1], "code": ["a", "b", "c", "d"]})
    store = Store(folder, create=True)
    build_cube(store, cube, rows)
    table = connect(folder).tables().find(("big",)).parts[0].table
    key = table.indices["code"].key
    assert key is not None
    codes = pa.array([f"C{(i * 7919) % VALUES:07}" for i in range(VALUES)], pa.string())
    labels = pa.array([[table.labels[i % 2]] for i in range(VALUES)], pa.list_(pa.string()))
    pq.write_table(pa.table({"code": codes, "partition": labels}), os.path.join(folder, key))


def shown(name: str, runs: int, measure: Callable[[], float], limit: float) -> None:
    """Print the median of several runs behind one that warms caches up."""
    measure()
    found = statistics.median(measure() for _ in range(runs))
    print(f"| {name} | {1000 * found:,.1f} ms | {1000 * limit:,.0f} ms |", flush=True)


def main() -> None:
    """Measure all figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--before", metavar="FOLDER")
    given = parser.parse_args()
    runs = given.runs
    with tempfile.TemporaryDirectory() as folder:
        build_flights(f"{folder}/demo")
        show_processes(f"{folder}/demo", given.before, runs)
        wide_store(f"{folder}/wide")
        indexed_store(f"{folder}/indexed")
        print("\n| figure, CPU time | median | limit |\n|---|---:|---:|")
        wide = completing(f"{folder}/wide")
        for what, text in (
            ("beginning of a name", "select price_00 from wide where vol"),
            ("part of a name", "select 1 from wide where 9999"),
            ("no letter yet", "select 1 from wide where "),
            ("before FROM", "select rate_0"),
        ):
            shown(f"completion, {COLUMNS:,} columns: {what}", runs, wide(text), 0.03)
        indexed = completing(f"{folder}/indexed")
        for what, text in (
            ("beginning of a value", "select 1 from big where code = 'C04"),
            ("part of a value", "select 1 from big where code = '123"),
            ("no letter yet", "select 1 from big where code = "),
        ):
            shown(f"completion, {VALUES:,} values: {what}", runs, indexed(text), 0.05)


if __name__ == "__main__":
    main()
