"""Blocks and chains for tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from kartosql.formats.odf import data_schema, hashes
from kartosql.formats.odf.blocks import Block, write_block
from kartosql.formats.odf.chain import Read

DID = bytes((0xED, 0x01)) + bytes(range(32))
SEED = {"kind": "Seed", "datasetId": DID, "datasetKind": "Root"}
SCHEMA = {"kind": "SetDataSchema", "rawArrowSchema": data_schema.to_bytes(pa.schema([("offset", pa.int64())]))}
TIME = 1_700_000_000_000_000_000


def slice_of(start: int, end: int, **more: Any) -> dict[str, Any]:
    """Return an AddData event with a slice of offsets."""
    return {
        "kind": "AddData",
        **({"prevOffset": start - 1} if start else {}),
        "newData": {
            "logicalHash": hashes.logical_hash(bytes(32)),
            "physicalHash": hashes.hash_of(b"%d" % start),
            "offsetInterval": {"start": start, "end": end},
            "size": 10,
        },
        **more,
    }


def store_of(
    events: Iterable[Mapping[str, Any]], *, change: Callable[[int, Block], Block] | None = None
) -> dict[str, bytes]:
    """Return the files of a dataset with these events; ``change`` may alter blocks before they are written."""
    files: dict[str, bytes] = {}
    prev = None
    for number, event in enumerate(events):
        block = Block(3, TIME + number, prev, number, dict(event))
        data = write_block(block if change is None else change(number, block))
        prev = hashes.hash_of(data)
        files[f"blocks/{hashes.to_text(prev)}"] = data
    assert prev is not None
    files["refs/head"] = hashes.to_text(prev).encode()
    return files


def reader_of(folder: Path) -> Read:
    """Return the function that reads the files of a folder."""

    def read(key: str) -> bytes:
        path = folder / key
        if not os.path.isfile(path):
            raise KeyError(key)
        return path.read_bytes()

    return read
