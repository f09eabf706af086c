"""A dataset of any number of files that hold one key each, with an index on it as the originals write it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

FOLDERS, ROWS = 100, 1_000


def label(key: int) -> str:
    """Return the label of the file that holds a key."""
    return f"p={key % FOLDERS}/{key:032x}"


def write_metadata(root: str, labels: Sequence[str], schema: pa.Schema, kind: str = "json") -> None:
    """Write all but the data files of a dataset ``t``, of which the n-th file holds the value n of ``i``.

    ``kind`` begins with that of the document: json, or msgpack.
    """
    index = "t/indices/i/2026-01-12T08%3A00%3A14.604941.by-dataset-index.parquet"
    document = {
        "dataset_metadata_version": 4,
        "dataset_uuid": "t",
        "indices": {"i": index},
        "metadata": {"creation_time": "2026-01-12T08:00:14.604941"},
        "partitions": {label: {"files": {"table": f"t/table/{label}.parquet"}} for label in labels},
        "partition_keys": ["p"],
    }
    os.makedirs(os.path.join(root, "t", "table"), exist_ok=True)
    os.makedirs(os.path.dirname(os.path.join(root, index)))
    if kind.startswith("json"):
        with open(os.path.join(root, "t.by-dataset-metadata.json"), "w") as f:
            json.dump(document, f)
    else:
        import msgpack
        import zstandard

        with open(os.path.join(root, "t.by-dataset-metadata.msgpack.zstd"), "wb") as packed:
            packed.write(zstandard.compress(msgpack.packb(document)))
    pq.write_metadata(schema, os.path.join(root, "t/table/_common_metadata"))
    # The originals write values in no order, here spread by a factor without common divisor.
    order = [k * 7_919 % len(labels) for k in range(len(labels))]
    table = pa.table({"i": order, "partition": pa.array([[labels[k]] for k in order], pa.list_(pa.string()))})
    pq.write_table(table, os.path.join(root, index), row_group_size=10_000)


def keyed_files(root: str, size: int, keys: Sequence[int]) -> list[str]:
    """Write a dataset ``t`` and return its files of ``keys``; of more than 10,000 files only these exist."""
    labels = list(map(label, range(size)))
    write_metadata(root, labels, pa.schema({"i": pa.int64(), "p": pa.int64(), "v": pa.float64()}))
    for folder in range(FOLDERS):
        os.makedirs(os.path.join(root, f"t/table/p={folder}"))
    wanted, values = set(keys), pa.array([x / 7 for x in range(ROWS)])
    other = os.path.join(root, "other")
    _write_rows(other, -1, values)
    for key in range(size) if size <= 10_000 else keys:
        path = os.path.join(root, f"t/table/{labels[key]}.parquet")
        if key in wanted:
            _write_rows(path, key, values)
        else:
            os.link(other, path)
    return [os.path.join(root, f"t/table/{labels[key]}.parquet") for key in keys]


def _write_rows(path: str, key: int, values: pa.Array) -> None:
    pq.write_table(pa.table({"i": pa.array([key] * len(values), pa.int64()), "v": values}), path)
