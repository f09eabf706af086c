"""Splits -> puts, in the order that shows nothing before all of it is there."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

from kartosql.formats.kartothek import naming
from kartosql.store import Store
from kartosql.write import files, indexing
from kartosql.write.layout import Layout
from kartosql.write.schema import common_schema, schema_bytes
from kartosql.write.split import Split


def publish(
    store: Store, splits: Sequence[Split], *, row_group_rows: int = files.ROW_GROUP_ROWS
) -> list[dict[str, int]]:
    """Write data files, schemas and indices of all ``splits``, then their metadata documents.

    Documents are put in the order given, so the dataset that makes the others visible stands
    last. Returns number of files, rows and bytes of data files per split. When a put fails,
    documents not yet put are not written; files without a document are orphans nobody reads.
    """
    created = dt.datetime.now(dt.timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds")
    sizes = [_put_files(store, s, row_group_rows) for s in splits]
    for s in splits:
        schema = common_schema(s.rows.schema, s.layout.partition_on)
        store.put(naming.schema_key(s.layout.uuid, naming.DEFAULT_TABLE), schema_bytes(schema))
    indices = [_put_indices(store, s, created) for s in splits]
    for s, keys in zip(splits, indices, strict=True):
        store.put(f"{s.layout.uuid}{naming.METADATA_JSON}", document_bytes(s.layout, s.labels, keys, created))
    return [
        {"files": len(s.labels), "rows": s.rows.num_rows, "bytes": size} for s, size in zip(splits, sizes, strict=True)
    ]


def document_bytes(layout: Layout, labels: Sequence[str], indices: dict[str, str], created: str) -> bytes:
    """Return the metadata document of a dataset as JSON.

    ``created`` is the naive UTC time that is recorded unless the user's metadata have one.
    """
    document: dict[str, Any] = {
        "dataset_metadata_version": naming.FORMAT_VERSION,
        "dataset_uuid": layout.uuid,
    }
    if indices:
        document["indices"] = indices
    document["metadata"] = {"creation_time": created} | dict(layout.metadata)
    document["partitions"] = {
        label: {"files": {naming.DEFAULT_TABLE: files.file_key(layout.uuid, label)}} for label in labels
    }
    document["partition_keys"] = list(layout.partition_on)
    return json.dumps(document).encode()


def _put_files(store: Store, split: Split, row_group_rows: int) -> int:
    def put(partition: tuple[str, Any]) -> int:
        label, rows = partition
        data = files.parquet_bytes(rows, row_group_rows)
        store.put(files.file_key(split.layout.uuid, label), data)
        return len(data)

    return sum(store.map(put, list(split.partitions())))


def _put_indices(store: Store, split: Split, created: str) -> dict[str, str]:
    keys = {}
    for column in split.layout.index_columns:
        keys[column] = indexing.index_key(split.layout.uuid, column, created)
        table = indexing.index_table(split, column)
        store.put(keys[column], files.parquet_bytes(table, indexing.VALUES_PER_ROW_GROUP))
    return keys
