"""Attaching folders and ODF datasets of many files, and planning over them, in CPU time.

python -m tests.benchmarks.attached
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import kartosql
from kartosql.formats.odf import data_schema, hashes
from kartosql.formats.odf.blocks import Block, write_block

FILES = 10_000
FOLDERS = 100
RUNS = 7
TIME = 1_700_000_000_000_000_000


def cpu(call: Callable[[], object]) -> float:
    """Return the CPU seconds that a call takes."""
    start = time.process_time()
    call()
    return time.process_time() - start


def folder_of_files(root: Path) -> None:
    """Write small Parquet files below folders of one partition column."""
    for number in range(FILES):
        path = root / f"p={number % FOLDERS}" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": [number], "b": [str(number)]}), path)


def chain_of_files(root: Path) -> None:
    """Write an ODF dataset of one record per block."""
    for name in ("refs", "blocks", "data"):
        (root / name).mkdir(parents=True)
    moment = pa.timestamp("ms", "UTC")
    types = {"offset": pa.int64(), "op": pa.int32(), "system_time": moment, "event_time": moment, "k": pa.int64()}
    merge = {"kind": "ChangelogStream", "primaryKey": ["k"]}
    events: list[dict[str, object]] = [
        {"kind": "Seed", "datasetId": bytes((0xED, 0x01)) + bytes(32), "datasetKind": "Root"},
        {"kind": "AddPushSource", "sourceName": "default", "read": {"kind": "NdJson"}, "merge": merge},
        {"kind": "SetDataSchema", "rawArrowSchema": data_schema.to_bytes(pa.schema(list(types.items())))},
    ]
    prev = None
    for number in range(FILES):
        event = events[number] if number < len(events) else _slice(root, number - len(events), types)
        data = write_block(Block(3, TIME + number, prev, number, event))
        prev = hashes.hash_of(data)
        (root / "blocks" / hashes.to_text(prev)).write_bytes(data)
    assert prev is not None
    (root / "refs" / "head").write_text(hashes.to_text(prev))


def _slice(root: Path, offset: int, types: dict[str, pa.DataType]) -> dict[str, object]:
    sink = pa.BufferOutputStream()
    row = {"offset": [offset], "op": [0], "system_time": [0], "event_time": [0], "k": [offset]}
    pq.write_table(pa.table({n: pa.array(row[n], t) for n, t in types.items()}), sink, store_schema=False)
    data = sink.getvalue().to_pybytes()
    (root / "data" / hashes.to_text(hashes.hash_of(data))).write_bytes(data)
    return {
        "kind": "AddData",
        **({"prevOffset": offset - 1} if offset else {}),
        "newData": {
            "logicalHash": hashes.logical_hash(bytes(32)),
            "physicalHash": hashes.hash_of(data),
            "offsetInterval": {"start": offset, "end": offset},
            "size": len(data),
        },
    }


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "store").mkdir()
        folder_of_files(root / "folder")
        chain_of_files(root / "chain")
        con = kartosql.connect(root / "store", keep_answers=False)

        def attach(name: str, type_: str) -> float:
            con.detach("t", if_exists=True)
            return cpu(lambda: con.attach(root / name, "t", type=type_))

        def planned(sql: str) -> float:
            return statistics.median(cpu(lambda: con.explain(sql)) for _ in range(RUNS))

        chain = statistics.median(attach("chain", "odf") for _ in range(RUNS))
        print(f"attach an ODF dataset of {FILES:,} blocks: {chain:.2f} s")
        folder = statistics.median(attach("folder", "parquet") for _ in range(RUNS))
        print(f"attach a folder of {FILES:,} files: {folder:.2f} s")
        print(f"list and plan, one of {FOLDERS} partitions: {planned('SELECT a FROM t WHERE p = 3') * 1000:.0f} ms")
        con.close()


if __name__ == "__main__":
    main()
