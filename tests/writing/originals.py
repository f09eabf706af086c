"""Writers like the originals: they read a document, and some time later write it back without a look."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pyarrow as pa

import builders
from kartosql.store import Store

KNOWN = ("dataset_metadata_version", "dataset_uuid", "indices", "metadata", "partitions", "partition_keys")


def read(store: Store, name: str) -> dict[str, Any]:
    """Return the document of a dataset, with the keys that the originals know."""
    found = builders.read_document(store, name)
    return {key: found[key] for key in KNOWN if key in found}


def append(store: Store, made: dict[str, Any], rows: pa.Table) -> None:
    """Write the document ``made`` that was read before, with more rows and indices that hold them."""
    made = json.loads(json.dumps(made))
    name = made["dataset_uuid"]
    indices = {}
    for column, key in made.get("indices", {}).items():
        old = builders.read_parquet(store, key)
        indices[column] = (old.schema, {row[column]: list(row["partition"]) for row in old.to_pylist()})
    for label, part in builders.partitions(rows, made["partition_keys"]):
        label = f"{label.rpartition('/')[0]}/{uuid.uuid4().hex}".lstrip("/")
        key = f"{name}/table/{label}.parquet"
        store.put(key, builders.parquet(part))
        made["partitions"][label] = {"files": {"table": key}}
        for column, (_, labels) in indices.items():
            for value in dict.fromkeys(part[column].to_pylist()):
                if value is not None:
                    labels.setdefault(value, []).append(label)
    for column, (schema, labels) in indices.items():
        key = f"{name}/indices/{column}/{uuid.uuid4().hex}.by-dataset-index.parquet"
        entries = [{column: value, "partition": found} for value, found in labels.items()]
        store.put(key, builders.parquet(pa.Table.from_pylist(entries, schema)))
        made["indices"][column] = key
    builders.write_document(store, made)


def wipe_metadata(store: Store, name: str) -> None:
    """Write a document without its metadata, as the index builder of the originals does."""
    made = read(store, name)
    made.pop("metadata", None)
    builders.write_document(store, made)


def collect_garbage(store: Store, name: str) -> None:
    """Delete all that the document does not name, at once, as the originals do for a cube."""
    made = read(store, name)
    needed = {key for entry in made["partitions"].values() for key in entry["files"].values()}
    needed |= {*made.get("indices", {}).values(), f"{name}/table/_common_metadata"}
    store.delete([key for key in store.list_below(f"{name}/") if key not in needed])


def referenced(store: Store, name: str) -> set[str]:
    """Return the keys below a dataset that its document needs; none if there is no document."""
    try:
        made = builders.read_document(store, name)
    except KeyError:
        return set()
    needed = {key for entry in made["partitions"].values() for key in entry["files"].values()}
    return {*needed, *made.get("indices", {}).values(), f"{name}/table/_common_metadata"}


def orphans(store: Store, name: str) -> list[str]:
    """Return the files below a dataset that nothing needs; the list of garbage and the journal count as needed."""
    needed = referenced(store, name)
    own = (f"{name}/.commit/garbage.json",)
    return [key for key in store.list_below(f"{name}/") if key not in needed and not key.startswith(own)]
