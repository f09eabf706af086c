"""Measure data-skipping metadata: planning with 10,000 indexed files, and collecting from TPC-H in 1,000 files.

    python -m tests.benchmarks.xskipper [--data FOLDER] [--scale 1] [--runs 5] [--files 10000]

Times are CPU seconds of all threads: what else the machine does touches them less. Without ``--data`` nothing is
collected.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa

from kartosql.formats.xskipper.kinds import IndexSpec
from kartosql.formats.xskipper.layout import layout_for
from kartosql.formats.xskipper.refreshing import Sources, drop, refresh
from kartosql.formats.xskipper.scans import DataFile, parquet_scan
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.store import Store
from tests.benchmarks.lineitem import Data, prepare
from tests.benchmarks.ratios import HEAD, Figure, row, within

TABLE = "/lake/t"
TYPES = {"i": pa.int64(), "s": pa.string(), "v": pa.string()}
QUERIES = (
    "i BETWEEN 50000 AND 50100",
    "s >= 'name-005000' AND s < 'name-005010'",
    "v = 'value-7'",
    "v IN ('value-7', 'value-9') AND i > 3000",
    "v <> 'value-1' AND s LIKE 'name-0050%'",
)
COLLECTED = {
    "l_orderkey": pa.int64(),
    "l_partkey": pa.int64(),
    "l_extendedprice": pa.decimal128(15, 2),
    "l_shipdate": pa.date32(),
    "l_shipmode": pa.string(),
}


def cpu(call: Callable[[], object], runs: int) -> float:
    """Return the median of the CPU seconds of some calls."""
    found = []
    for _ in range(runs):
        before = time.process_time()
        call()
        found.append(time.process_time() - before)
    return statistics.median(found)


def in_turns(calls: Sequence[Callable[[], object]], runs: int, before: int = 1) -> list[tuple[float, float]]:
    """Return the median CPU and elapsed seconds of calls that take turns; some turns before are not counted."""
    found: list[list[tuple[float, float]]] = [[] for _ in calls]
    for turn in range(before + runs):
        for times, call in zip(found, calls, strict=True):
            used, started = time.process_time(), time.perf_counter()
            call()
            if turn >= before:
                times.append((time.process_time() - used, time.perf_counter() - started))
    return [(statistics.median(t[0] for t in times), statistics.median(t[1] for t in times)) for times in found]


def few_values(keys: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield twenty rows for each file; the value of one column occurs in many of them."""
    for number, key in enumerate(keys):
        n = int(key)
        rows = {
            "i": pa.array([n * 10 + j for j in range(20)]),
            "s": pa.array([f"name-{n:06d}-{j}" for j in range(20)]),
            "v": pa.array([f"value-{(n * 7 + j) % 500}" for j in range(20)]),
        }
        yield number, pa.RecordBatch.from_pydict({c: rows[c] for c in columns})


def many_values(keys: Sequence[str], columns: Sequence[str], *, each: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield some random numbers for each file."""
    rng = random.Random(1)
    for number in range(len(keys)):
        yield number, pa.RecordBatch.from_pydict({"i": pa.array([rng.getrandbits(40) for _ in range(each)])})


def anew(base: Store, query: str, listing: list[tuple[str, int]]) -> list[str]:
    """Open the metadata and select by them."""
    return MetadataStore.below(base, "bounds").select(query, listing)


def planning(base: Store, count: int, runs: int) -> Iterator[Figure]:
    """Yield the figures of planning with many indexed files."""
    files = [DataFile(f"{TABLE}/part-{n:05d}.parquet", 1_700_000_000_000 + n, str(n)) for n in range(count)]
    listing = [(f.path, f.modified_ms) for f in files]
    specs = [IndexSpec("minmax", "i"), IndexSpec("minmax", "s"), IndexSpec("valuelist", "v")]
    refresh(base, "bounds", files, layout_for(TABLE, specs, TYPES), Sources(few_values))
    MetadataStore.below(base, "bounds").select("i = 1", listing[:1])  # the parser is imported
    for query in QUERIES:
        first = cpu(partial(anew, base, query, listing), runs)
        store = MetadataStore.below(base, "bounds")
        read = len(store.select(query, listing))
        again = cpu(partial(store.select, query, listing), runs)
        yield within(f"{count:,} files: `{query}`", 0.05, first, f"opened before {again * 1000:.0f} ms; reads {read:,}")
    for each in (50, 600):
        layout = layout_for(TABLE, [IndexSpec("bloomfilter", "i")], TYPES)
        refresh(base, "filters", files, layout, Sources(partial(many_values, each=each)))
        store = MetadataStore.below(base, "filters")
        times = [in_turns([partial(store.select, f"i = {n}", listing)], 1, 0)[0] for n in range(2 + runs)]
        first, second = (f"{cpu * 1000:.0f} ms (elapsed {elapsed * 1000:.0f})" for cpu, elapsed in times[:2])
        details = f"the first time {first}, the second {second}"
        name = f"{count:,} filters of the default size with {each} values, looked into repeatedly"
        yield within(name, 0.5, statistics.median(cpu for cpu, _ in times[2:]), details)
        drop(base, "filters")


def collecting(base: Store, data: Data, runs: int) -> Iterator[Figure]:
    """Yield the figures of collecting metadata of lineitem in about 1,000 files."""
    store = Store(data.root)
    paths = data.files["lineitem_few"]
    files = [DataFile(p, os.stat(p).st_mtime_ns // 1_000_000, os.path.relpath(p, data.root)) for p in paths]

    def collect(specs: list[IndexSpec]) -> Callable[[], object]:
        layout = layout_for(TABLE, specs, COLLECTED)

        def call() -> None:
            done = refresh(base, "lines", files, layout, Sources(parquet_scan(store)))
            assert done.added == len(files)
            drop(base, "lines")

        return call

    bounds = [IndexSpec("minmax", c) for c in ("l_orderkey", "l_extendedprice", "l_shipdate")]
    yield within(f"MinMax of three columns of {len(files):,} files, from footers", 2.0, cpu(collect(bounds), runs))
    con: Any = duckdb.connect(config={"threads": 2})
    text = "SELECT l_shipdate, l_shipmode, l_partkey FROM read_parquet(?)"
    for ndv in (100_000, 10_000):
        specs = [
            IndexSpec("minmax", "l_shipdate"),
            IndexSpec("valuelist", "l_shipmode"),
            IndexSpec("bloomfilter", "l_partkey", ndv=ndv),
        ]
        ours, scan = in_turns([collect(specs), lambda: con.sql(text, params=[paths]).to_arrow_table()], runs)
        ratio = ours[0] / scan[0]
        details = f"{ours[0] * 1000:,.0f} ms / {scan[0] * 1000:,.0f} ms, elapsed {ours[1] / scan[1]:.1f} x"
        name = f"MinMax, ValueList and BloomFilter (ndv = {ndv:,}) of {len(files):,} files"
        yield Figure(name, "<= 1.3 x one scan", f"{ratio:.1f} x", ratio <= 1.3, details)


def main() -> int:
    """Print the figures as they are known; return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--files", type=int, default=10_000)
    given = parser.parse_args()
    print(HEAD, flush=True)
    ok = True
    with tempfile.TemporaryDirectory() as folder:
        base = Store(folder)
        figures = list[Iterator[Figure]]([planning(base, given.files, given.runs)])
        if given.data:
            figures.append(collecting(base, prepare(given.data, given.scale), given.runs))
        for part in figures:
            for figure in part:
                ok = ok and figure.ok
                print(row(figure), flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
