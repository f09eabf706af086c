"""Blocks of Open Data Fabric: how fast they are decoded, and what the schema history of a dataset costs.

python -m tests.benchmarks.odf
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import pyarrow as pa

import kartosql
from kartosql.formats.kartothek import history
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.odf import data_schema, hashes
from kartosql.formats.odf.blocks import Block, read_block, write_block
from kartosql.formats.odf.chain import read_chain

BLOCKS = 10_000
COLUMNS, VERSIONS, RETYPED = 500, 10, 20
PARTITIONS = 50
RUNS = 15
TIME = 1_700_000_000_000_000_000
SETTLED = 3.2  # seconds after which metadata files are taken to be unchanged


def cpu(call: Callable[[], object]) -> float:
    """Return the CPU seconds that a call takes."""
    start = time.process_time()
    call()
    return time.process_time() - start


def chain_of_data() -> dict[str, bytes]:
    """Return the files of a chain of blocks that nearly all add data."""
    schema = data_schema.to_bytes(pa.schema([("offset", pa.int64())]))
    files: dict[str, bytes] = {}
    prev = None
    for number in range(BLOCKS):
        start = 10 * (number - 2)
        event = {
            "kind": "AddData",
            "prevOffset": start - 1 if start else None,
            "newData": {
                "logicalHash": hashes.logical_hash(bytes(32)),
                "physicalHash": hashes.hash_of(b"%d" % number),
                "offsetInterval": {"start": start, "end": start + 9},
                "size": 1000,
            },
            "newWatermark": TIME + number,
            "newSourceState": {"sourceName": "a", "kind": "odf/etag", "value": str(number)},
        }
        if number == 0:
            event = {"kind": "Seed", "datasetId": bytes((0xED, 0x01)) + bytes(32), "datasetKind": "Root"}
        elif number == 1:
            event = {"kind": "SetDataSchema", "rawArrowSchema": schema}
        data = write_block(Block(3, TIME + number, prev, number, event))
        prev = hashes.hash_of(data)
        files[f"blocks/{hashes.to_text(prev)}"] = data
    assert prev is not None
    files["refs/head"] = hashes.to_text(prev).encode()
    return files


def long_history() -> int:
    """Return the bytes of a history in which some columns of many get another type again and again."""
    types = [pa.int64(), pa.float64(), pa.string(), pa.timestamp("us"), pa.bool_(), pa.date32(), pa.null()]
    pick = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(pick.choice(letters) for _ in range(pick.randrange(3, 9))) for _ in range(200)]
    columns: dict[str, pa.DataType] = {}
    while len(columns) < COLUMNS:
        columns["_".join(pick.sample(words, 3))] = pick.choice(types)
    document = DatasetDocument("d", "d.by-dataset-metadata.json", ("x",), {"table": ("f",)}, (), {}, {})
    text: str | None = None
    for number in range(VERSIONS):
        for name in pick.sample(sorted(columns), RETYPED) if number else ():
            columns[name] = pick.choice(types)
        text = history.recorded(text, {"table": pa.schema(sorted(columns.items()))}, document, TIME + number)
    return len(str(text))


def planning(columns: int) -> tuple[float, float]:
    """Return the CPU seconds of planning a query with a new connection, with and without a history."""
    with tempfile.TemporaryDirectory() as folder:
        con = kartosql.connect(folder, keep_answers=False)
        numbers = pa.array(range(PARTITIONS))
        rows = pa.table({"p": numbers, **{f"c{i:03}": numbers for i in range(columns)}})
        for name in ("with", "without"):
            con.create_dataset(name, rows, partition_on="p")
        path = os.path.join(folder, "without.by-dataset-metadata.json")
        with open(path) as file:
            document = json.load(file)
        del document["metadata"][history.HISTORY]
        with open(path, "w") as file:
            json.dump(document, file)
        time.sleep(SETTLED)

        def plan(name: str) -> float:
            fresh = kartosql.connect(folder, keep_answers=False)
            return cpu(lambda: fresh.explain(f'SELECT c001 FROM "{name}" WHERE p = 3'))

        plan("with")
        found = [(plan("with"), plan("without")) for _ in range(RUNS)]
    return statistics.median(f[0] for f in found), statistics.median(f[1] for f in found)


def main() -> None:
    """Print the figures."""
    files = chain_of_data()
    blocks = [data for key, data in files.items() if key != "refs/head"]
    decoded = min(cpu(lambda: [read_block(data) for data in blocks]) for _ in range(3))
    attached = min(cpu(lambda: read_chain(files.__getitem__)) for _ in range(3))
    print(f"decoding: {BLOCKS / decoded:,.0f} blocks/s")
    print(f"walking and checking a chain of {BLOCKS:,} blocks: {attached:.2f} s")
    print(f"history of {VERSIONS} versions of {COLUMNS} columns, {RETYPED} retyped in each: {long_history():,} bytes")
    for columns in (20, COLUMNS):
        with_history, without = planning(columns)
        print(
            f"planning over {columns} columns: {with_history * 1e3:.1f} ms with a history, "
            f"{without * 1e3:.1f} ms without ({with_history / without:.2f})"
        )


if __name__ == "__main__":
    main()
