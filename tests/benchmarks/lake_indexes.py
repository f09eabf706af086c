"""Attached tables: an inverted index and point queries by it, and opening a large Delta table, in CPU time.

python -m tests.benchmarks.lake_indexes [--files 10000] [--rows 1000] [--data FOLDER] [--type parquet|delta]
python -m tests.benchmarks.lake_indexes --checkpoint 100000
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import deltalake
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
    options.add_argument("--type", choices=["parquet", "delta"], default="parquet")
    options.add_argument("--checkpoint", type=int, help="open a Delta table of so many files instead")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if given.checkpoint is not None:
            open_checkpoint(Path(place), given.checkpoint)
            return
        root = given.data or Path(place)
        folder = root / f"{given.type}-{given.files}-{given.rows}"
        if not folder.exists():
            write_files(folder, given.files, given.rows)
            if given.type == "delta":
                deltalake.convert_to_deltalake(str(folder))
        with kartosql.connect(Path(place), keep_answers=False, cache=False) as con, duckdb.connect() as peer:
            con.attach(folder, "d", type=given.type)
            measure(con, peer, Path(place), folder, given.files * given.rows)


def open_checkpoint(place: Path, files: int) -> None:
    """Print what opening a Delta table takes, of which a checkpoint names all files, and planning over it."""
    root = place / "t"
    (root / "_delta_log").mkdir(parents=True)
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in (("k", "long"), ("p", "date"))]
    schema = json.dumps({"type": "struct", "fields": fields})
    meta = {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    meta |= {"partitionColumns": ["p"], "configuration": {}, "createdTime": 1}
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": meta}]
    for at in range(files):
        day = f"2024-{at % 12 + 1:02}-{at % 28 + 1:02}"
        told = {"minValues": {"k": at * 1000}, "maxValues": {"k": at * 1000 + 999}, "nullCount": {"k": 0}}
        add = {"path": f"p={day}/part-{at:032}.parquet", "partitionValues": {"p": day}, "size": 1_000_000}
        add |= {"modificationTime": 1, "dataChange": True, "stats": json.dumps({"numRecords": 1000, **told})}
        actions.append({"add": add})
    (root / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    deltalake.DeltaTable(str(root)).create_checkpoint()
    wanted = range(files // 2, files // 2 + RUNS)
    for at in wanted:
        path = root / f"p=2024-{at % 12 + 1:02}-{at % 28 + 1:02}" / f"part-{at:032}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"only planned")
    (place / "store").mkdir()
    with kartosql.connect(place / "store", cache=False) as con:
        con.sql("SELECT 1").rows()
        con.attach(place / "store", "other", type="kartothek")  # imports what all attachments need
        opening = cpu(lambda: con.attach(root, "d", type="delta"))
        plans = [cpu(lambda at=at: con.explain(f"SELECT * FROM d WHERE k = {at * 1000}")) for at in wanted]
    print(f"{files:,} files of a checkpoint: {opening:.2f} s to attach, {plans[0]:.2f} s for the first plan")
    print(f"later plans: {1000 * statistics.median(plans[1:]):.1f} ms")


def measure(con: kartosql.Connection, peer: duckdb.DuckDBPyConnection, store: Path, folder: Path, total: int) -> None:
    """Print what building takes, and then queries in turn with DuckDB over the same files, and with delta-rs."""
    size = sum(path.stat().st_size for path in folder.glob("*.parquet"))
    files = f"'{folder}/*.parquet'"
    scan = statistics.median(cpu(lambda: scanned(peer, f"SELECT * FROM {files}")) for _ in range(SLOW_RUNS))
    building = cpu(lambda: con.create_index("d", "k"))
    print(f"CREATE INDEX: {building:.2f} s, DuckDB's scan of all columns {scan:.2f} s: {building / scan:.2f} scans")
    index = sum(path.stat().st_size for path in (store / ".kartosql").rglob("*.parquet"))
    print(f"the index: {index:,} bytes, {100 * index / size:.2f} % of {size:,}")
    lake = None
    if (folder / "_delta_log").exists():
        lake = deltalake.QueryBuilder().register("d", deltalake.DeltaTable(str(folder)))
    ours, theirs, lakes, opened = [], [], [], 0
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
            if lake is not None:
                lakes.append(cpu(lambda sql=sql: lake.execute(f"SELECT * FROM d {sql}").read_all()))
    mine, peers = statistics.median(ours), statistics.median(theirs)
    print(f"point query: {1000 * mine:.1f} ms, DuckDB {1000 * peers:.0f} ms: {peers / mine:.0f} x faster")
    if lakes:
        print(f"delta-rs: {1000 * statistics.median(lakes):.0f} ms: {statistics.median(lakes) / mine:.0f} x faster")
    print(f"files opened: {opened / RUNS:.2f} for each with a match")


if __name__ == "__main__":
    main()
