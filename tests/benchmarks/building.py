"""Measure writing: a partitioned, indexed dataset against DuckDB's own partitioned COPY, and memory while sorting.

    python -m tests.benchmarks.building [--scale 0.5] [--runs 5]

Both write the same sorted rows (TPC-H lineitem by month) from memory to ZSTD Parquet on the same disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import duckdb
import pyarrow as pa

from kartosql.store import Store
from kartosql.write import files, indexing
from kartosql.write.inputs import open_rows
from kartosql.write.layout import Layout, SpillingSorter
from tests.benchmarks.ratios import HEAD, Figure, in_turns, row
from tests.written import write_rows

MONTH = "l_shipmonth"
DIMENSIONS = ("l_orderkey", "l_linenumber")
INDEXED = ("l_partkey",)
MEMORY_MB = 256
TIMES_MEMORY = 10


def lineitem(folder: str, scale: float) -> pa.Table:
    """Return lineitem sorted by month, order and line."""
    generator = os.path.join(os.path.dirname(sys.executable), "tpchgen-cli")
    if not os.path.exists(generator):
        sys.exit("tpchgen-cli is missing: pip install 'kartosql[benchmarks]'")
    subprocess.run([generator, "parquet", "--quiet", "-s", str(scale), "-T", "lineitem", "-o", folder], check=True)
    with duckdb.connect() as connection:
        return connection.sql(
            f"SELECT strftime(l_shipdate, '%Y-%m') AS {MONTH}, * FROM read_parquet(?)"
            f" ORDER BY 1, {', '.join(DIMENSIONS)}",
            params=[os.path.join(folder, "lineitem.parquet")],
        ).to_arrow_table()


def build(folder: str, rows: pa.Table, indexed: tuple[str, ...]) -> None:
    """Write data files and indices of a cube's dataset."""
    shutil.rmtree(folder, ignore_errors=True)
    store = Store(folder, create=True)
    layout = Layout("c++seed", "seed", (MONTH,), (MONTH, *DIMENSIONS), indexed, (MONTH, *DIMENSIONS, *indexed))
    written = write_rows(store, open_rows(rows, "seed"), layout, sorter=SpillingSorter(folder))
    store.map(lambda column: _put_index(store, layout.uuid, column, written.pairs[column]), indexed)


def _put_index(store: Store, uuid: str, column: str, pairs: pa.Table) -> None:
    index = indexing.merge(None, frozenset(), pairs, column)
    data = files.parquet_bytes(index, indexing.VALUES_PER_ROW_GROUP)
    store.put(indexing.index_key(uuid, column, "2026-01-01"), data)


def copy(folder: str, rows: pa.Table, connection: duckdb.DuckDBPyConnection) -> None:
    """Write the same rows by DuckDB."""
    shutil.rmtree(folder, ignore_errors=True)
    connection.register("lines", rows)
    connection.execute(f"COPY lines TO '{folder}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY ({MONTH}))")


def throughput(folder: str, scale: float, runs: int) -> list[Figure]:
    """Return our throughput as a share of DuckDB's, with no index, one, and one of nearly every row."""
    rows = lineitem(folder, scale)
    figures = []
    with duckdb.connect() as connection:
        for indexed in ((), INDEXED, (*INDEXED, DIMENSIONS[0])):
            costs = in_turns(
                {
                    "ours": lambda _, indexed=indexed: build(os.path.join(folder, "ours"), rows, indexed),
                    "copy": lambda _: copy(os.path.join(folder, "copy"), rows, connection),
                },
                runs,
            )
            ours, theirs = costs["ours"], costs["copy"]
            cpu = sorted(b / a for a, b in zip(ours.cpu, theirs.cpu, strict=True))[runs // 2]
            share = 1 / ours.ratio(theirs)
            details = f"by CPU time {cpu:.2f} x; {ours.median:.2f} s / {theirs.median:.2f} s"
            name = f"build {rows.num_rows:,} rows, {len(indexed)} indices: throughput of DuckDB's COPY"
            figures.append(Figure(name, ">= 0.8 x", f"{share:.2f} x", share >= 0.8, details))
    return figures


def generated(total: int) -> Iterator[pa.Table]:
    """Yield rows in no order until they take ``total`` bytes."""
    with duckdb.connect() as connection:
        seen, start = 0, 0
        while seen < total:
            piece = connection.execute(
                "SELECT hash(i) % 20 AS p, (hash(i + 1) % 1000000000000)::BIGINT AS x, i AS n,"
                " md5(i::VARCHAR) AS s, sha1(i::VARCHAR) AS t FROM range(?, ?) r(i)",
                [start, start + 100_000],
            ).to_arrow_table()
            start += 100_000
            seen += piece.nbytes
            yield piece


def build_within_memory(folder: str) -> None:
    """Build from a stream of many times the memory setting, and print by how much the process grew."""
    layout = Layout("d", "d", ("p",), ("p", "x", "n"), (), ("p", "x", "n"))
    memory = MEMORY_MB * 1_000_000
    for _ in generated(1):
        pass
    before = _peak()
    rows = open_rows(generated(TIMES_MEMORY * memory), "d")
    written = write_rows(Store(folder, create=True), rows, layout, sorter=SpillingSorter(folder), memory=memory)
    print(written.rows, (_peak() - before) // 1000)


def _peak() -> int:
    # In KB. What getrusage tells begins with the size of the process that started this one.
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))


def memory() -> Figure:
    """Return by how much a process grows that builds from many times the memory setting."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.benchmarks.building", "--within-memory", folder]
        rows, grown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    limit = 2 * MEMORY_MB
    name = f"build {int(rows):,} unsorted rows, {TIMES_MEMORY} x write_memory={MEMORY_MB}MB: the process grows by"
    return Figure(name, f"<= {limit} MB", f"{grown} MB", int(grown) <= limit)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.5, help="TPC-H scale factor")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--within-memory", metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.within_memory:
        build_within_memory(given.within_memory)
        return
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for figure in throughput(folder, given.scale, given.runs):
            print(row(figure))
    print(row(memory()))


if __name__ == "__main__":
    main()
