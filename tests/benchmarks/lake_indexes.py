"""Inverted indices of an attached folder: building one, and point queries by an unclustered key, in CPU time.

python -m tests.benchmarks.lake_indexes [--files 10000] [--rows 1000] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import kartosql

RUNS, SLOW_RUNS = 41, 3


def cpu(call: Callable[[], object]) -> float:
    """Return the CPU seconds that a call takes."""
    start = time.process_time()
    call()
    return time.process_time() - start


def scanned(peer: duckdb.DuckDBPyConnection, sql: str) -> int:
    """Return how many rows DuckDB streams for a query."""
    return sum(batch.num_rows for batch in peer.sql(sql).to_arrow_reader(100_000))


def write_files(folder: Path, files: int, rows: int) -> None:
    """Write files like those of TPC-H's lineitem, with a unique key in no order."""
    folder.mkdir(parents=True)
    keys = pc.sort_indices(pc.random(files * rows, initializer=0)).cast(pa.int64())
    for number in range(files):
        noise = [pc.random(rows, initializer=16 * number + n) for n in range(12)]
        ranged = [pc.cast(pc.multiply(column, 200_000), pa.int32(), safe=False) for column in noise[:4]]
        texts = [
            pc.binary_join_element_wise(*(c.cast(pa.string()) for c in some), " ") for some in (noise[4:6], ranged[:2])
        ]
        days = [column.cast(pa.date32()) for column in ranged[2:]]
        columns = [keys.slice(number * rows, rows), *ranged[:2], *days, *noise[6:], *texts]
        table = pa.table(columns, ["k", *(f"c{n}" for n in range(len(columns) - 1))])
        pq.write_table(table, folder / f"{number:05}.parquet", compression="zstd")


def main() -> None:
    """Print the figures."""
    options = argparse.ArgumentParser()
    options.add_argument("--files", type=int, default=10_000)
    options.add_argument("--rows", type=int, default=1_000)
    options.add_argument("--data", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = given.data or Path(place)
        folder = root / f"files-{given.files}-{given.rows}"
        if not folder.exists():
            write_files(folder, given.files, given.rows)
        with kartosql.connect(Path(place), keep_answers=False, cache=False) as con, duckdb.connect() as peer:
            measure(con, peer, Path(place), folder, given.files * given.rows)


def measure(con: kartosql.Connection, peer: duckdb.DuckDBPyConnection, store: Path, folder: Path, total: int) -> None:
    """Print what building takes, and then queries in turn with DuckDB over the same files."""
    con.attach(folder, "d", type="parquet")
    size = sum(path.stat().st_size for path in folder.iterdir())
    files = f"'{folder}/*.parquet'"
    scan = statistics.median(cpu(lambda: scanned(peer, f"SELECT * FROM {files}")) for _ in range(SLOW_RUNS))
    building = cpu(lambda: con.create_index("d", "k"))
    print(f"CREATE INDEX: {building:.2f} s, DuckDB's scan of all columns {scan:.2f} s: {building / scan:.2f} scans")
    index = sum(path.stat().st_size for path in store.rglob("*.parquet"))
    print(f"the index: {index:,} bytes, {100 * index / size:.2f} % of {size:,}")
    ours, theirs, opened = [], [], 0
    con.sql("SELECT * FROM d WHERE k = 0").rows()
    for run in range(RUNS):
        sql = f"WHERE k = {(run * 104_729 + 1) % total}"
        start = time.process_time()
        query = con.sql(f"SELECT * FROM d {sql}")
        assert len(query.rows()) == 1
        ours.append(time.process_time() - start)
        opened += query.stats["files_opened"]
        if run < SLOW_RUNS:
            theirs.append(cpu(lambda sql=sql: scanned(peer, f"SELECT * FROM {files} {sql}")))
    mine, peers = statistics.median(ours), statistics.median(theirs)
    print(f"point query: {1000 * mine:.1f} ms, DuckDB {1000 * peers:.0f} ms: {peers / mine:.0f} x faster")
    print(f"files opened: {opened / RUNS:.2f} for each with a match")


if __name__ == "__main__":
    main()
