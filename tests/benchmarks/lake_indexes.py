"""Attached tables: an inverted index and point queries by it, and opening a large Delta table, in CPU time.

python -m tests.benchmarks.lake_indexes [--files 10000] [--rows 1000] [--data FOLDER] [--type parquet|delta]
python -m tests.benchmarks.lake_indexes --checkpoint 100000
python -m tests.benchmarks.lake_indexes --manifests 100000
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import struct
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, LongType, NestedField

import kartosql
import kartosql.sources.iceberg  # which takes longer to import than a table to open

RUNS, SLOW_RUNS, PROCESSES = 41, 3, 5


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
    options.add_argument("--manifests", type=int, help="open an Iceberg table of so many files instead")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if given.checkpoint is not None:
            checkpoint(Path(place), given.checkpoint)
            return
        if given.manifests is not None:
            manifests(Path(place), given.manifests)
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


def checkpoint(place: Path, files: int) -> None:
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
    opened(place, root, "delta", files, root, caches=["off"] * PROCESSES)


def manifests(place: Path, files: int, each: int = 20_000, block: int = 500) -> None:
    """Print the same for an Iceberg table of format 2, whose manifests have blocks of many entries as those of Java."""
    root = place / "t"
    (root / "metadata").mkdir(parents=True)
    schema = Schema(NestedField(1, "k", LongType()), NestedField(2, "p", DateType()))
    spec, io = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p")), PyArrowFileIO()
    listed = []
    for first in range(0, files, each):
        output = io.new_output(str(root / f"metadata/{first}-m0.avro"))
        with write_manifest(2, spec, schema, output, 1, "deflate") as writer:
            entries = [writer.prepare_entry(_entry(root, at)) for at in range(first, min(first + each, files))]
            for at in range(0, len(entries), block):
                writer._writer.write_block(entries[at : at + block])
            writer._added_files, writer._added_rows = len(entries), 1000 * len(entries)
        listed.append(writer.to_manifest_file())
    heads = str(root / "metadata/snap-1.avro")
    with write_manifest_list(2, io.new_output(heads), 1, None, 1, "deflate") as writer:
        writer.add_manifests(listed)
    snapshot = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1, "manifest-list": heads, "schema-id": 0}
    found = {"format-version": 2, "table-uuid": str(uuid.uuid4()), "location": f"file://{root}", "last-updated-ms": 1}
    found |= {"last-sequence-number": 1, "last-column-id": 2, "schemas": [json.loads(schema.model_dump_json())]}
    found |= {"current-schema-id": 0, "partition-specs": [json.loads(spec.model_dump_json())], "default-spec-id": 0}
    found |= {"last-partition-id": 1000, "sort-orders": [{"order-id": 0, "fields": []}], "default-sort-order-id": 0}
    found |= {
        "properties": {},
        "current-snapshot-id": 1,
        "snapshots": [snapshot | {"summary": {"operation": "append"}}],
    }
    (root / "metadata/v1.metadata.json").write_text(json.dumps(found))
    new = [str(place / f"cache-{at}") for at in range(PROCESSES)]
    kinds = {"nothing kept": ["off"] * PROCESSES, "manifests not yet kept": new, "manifests kept beside the user": new}
    for what, caches in kinds.items():
        print(what, end=": ")
        opened(place, root, "iceberg", files, root / "data", caches=caches)


def _entry(root: Path, at: int) -> ManifestEntry:
    day = dt.date(2024, at % 12 + 1, at % 28 + 1)
    low, high = ({1: struct.pack("<q", at * 1000 + more)} for more in (0, 999))
    path = f"file://{root}/data/p={day}/part-{at:032}.parquet"
    told = {"column_sizes": {1: 5000}, "value_counts": {1: 1000}, "null_value_counts": {1: 0}, "nan_value_counts": {}}
    told |= {"lower_bounds": low, "upper_bounds": high, "split_offsets": [4]}
    kind = {"content": DataFileContent.DATA, "file_path": path, "file_format": FileFormat.PARQUET}
    kind |= {"partition": Record((day - dt.date(1970, 1, 1)).days)}
    file = DataFile.from_args(**kind, record_count=1000, file_size_in_bytes=1_000_000, **told)
    file.spec_id = 0
    return ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=1, data_file=file)


def opened(place: Path, root: Path, type_: str, files: int, data: Path, *, caches: Sequence[str]) -> None:
    """Print what attaching a table of files with keys takes, and planning questions for some of them.

    Each of the ``caches`` is used by a process of its own, which has written nothing; figures are medians of these.
    """
    wanted = range(files // 2, files // 2 + RUNS)
    for at in wanted:
        path = data / f"p=2024-{at % 12 + 1:02}-{at % 28 + 1:02}" / f"part-{at:032}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"only planned")
    (place / "store").mkdir(exist_ok=True)
    found = []
    for cache in caches:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            found.append(pool.submit(_opening, str(place / "store"), str(root), type_, wanted, cache).result())
    attached, first, later = map(statistics.median, zip(*found, strict=True))
    both = statistics.median(one[0] + one[1] for one in found)
    print(
        f"{files:,} files: {attached:.2f} s to attach, {first:.2f} s for the first plan ({both:.2f} s for both),",
        end=" ",
    )
    print(f"{1000 * later:.1f} ms for later ones")


def _opening(store: str, root: str, type_: str, wanted: Sequence[int], cache: str) -> tuple[float, float, float]:
    """Return the CPU seconds of attaching, of the first plan, and of later ones."""
    with kartosql.connect(store, cache=cache) as con:
        con.sql("SELECT 1").rows()
        con.attach(store, "other", type="kartothek")  # imports what all attachments need
        opening = cpu(lambda: con.attach(root, "d", type=type_))
        plans = [cpu(lambda at=at: con.explain(f"SELECT * FROM d WHERE k = {at * 1000}")) for at in wanted]
    return opening, plans[0], statistics.median(plans[1:])


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
