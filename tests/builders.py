"""Small datasets, made of exactly the files a test needs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.store import Store

WRITE_ID = "0123456789abcdef" * 2
SEED_FLAGS = {
    "ktk_cube_is_seed": True,
    "ktk_cube_dimension_columns": ["x"],
    "ktk_cube_partition_columns": ["p"],
    "ktk_cube_suppress_index_on": [],
}


def schema_bytes(schema: pa.Schema | Mapping[str, pa.DataType]) -> bytes:
    """Return the bytes of a ``_common_metadata`` file."""
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema if isinstance(schema, pa.Schema) else pa.schema(dict(schema)), sink)
    return bytes(sink.getvalue())


def document(uuid: str, folders: Iterable[str] = (), **changes: Any) -> dict[str, Any]:
    """Return a metadata document with one file per folder; ``changes`` replace top-level keys.

    A change to ``...`` removes the key.
    """
    labels = [f"{folder}/{WRITE_ID}".lstrip("/") for folder in folders]
    made = {
        "dataset_metadata_version": 4,
        "dataset_uuid": uuid,
        "metadata": {"creation_time": "2026-01-12T08:00:14.604941"},
        "partitions": {label: {"files": {"table": f"{uuid}/table/{label}.parquet"}} for label in labels},
        "partition_keys": [],
        **changes,
    }
    return {key: value for key, value in made.items() if value is not ...}


def write_dataset(
    store: Store,
    uuid: str,
    schema: Mapping[str, pa.DataType],
    folders: Iterable[str] = (),
    table: str = "table",
    **changes: Any,
) -> None:
    """Write metadata and schema of a dataset, without data files."""
    store.put(f"{uuid}.by-dataset-metadata.json", json.dumps(document(uuid, folders, **changes)).encode())
    store.put(f"{uuid}/{table}/_common_metadata", schema_bytes(schema))


def write_cube(store: Store, prefix: str, members: Mapping[str, Mapping[str, pa.DataType]]) -> None:
    """Write a cube over dimension ``x`` and partition column ``p``; ``seed`` is its seed."""
    for name, schema in members.items():
        keys = ["p"] if "p" in schema else []
        write_dataset(
            store,
            f"{prefix}++{name}",
            schema,
            ["p=0", "p=1"] if keys else [""],
            partition_keys=keys,
            metadata=SEED_FLAGS if name == "seed" else {"ktk_cube_is_seed": False},
        )
