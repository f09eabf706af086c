"""What two stores have to share that the same calls wrote, on executors and in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.formats.kartothek.naming import BASE
from kartosql.store import Store


def described(folder: Path) -> dict[str, Any]:
    """Return what datasets hold, but for ids, times and how many files a partition has."""
    found = {}
    for path in sorted(folder.glob("*.by-dataset-metadata.json")):
        document = json.loads(path.read_text())
        uuid = document["dataset_uuid"]
        folder_of = {label: label.rpartition("/")[0] for label in document["partitions"]}
        rows: dict[str, list[Any]] = {}
        for label, entry in document["partitions"].items():
            for table, key in entry["files"].items():
                file = pq.ParquetFile(folder / key)
                held = rows.setdefault(f"{table}/{folder_of[label]}", [])
                held.append((file.schema_arrow.remove_metadata(), file.read()))
        indices = {}
        for column, key in document.get("indices", {}).items():
            index = pq.read_table(folder / key)
            lists = zip(index[column].to_pylist(), index["partition"].to_pylist(), strict=True)
            indices[column] = {value: sorted({folder_of[label] for label in labels}) for value, labels in lists}
        metadata = {k: v for k, v in document["metadata"].items() if k.startswith("ktk_cube") or k == "about"}
        common = {t: pq.read_schema(folder / uuid / t / "_common_metadata") for t in {k.split("/")[0] for k in rows}}
        found[uuid] = {
            "keys": document["partition_keys"],
            "order": list(dict.fromkeys(folder_of.values())),
            "rows": {k: ([str(s) for s, _ in v], _sorted([t for _, t in v])) for k, v in rows.items()},
            "indices": indices,
            "metadata": metadata,
            "schema": {t: (str(s), sorted(s.metadata)) for t, s in common.items()},
        }
        for where in found[uuid]["rows"]:
            schemas, held_rows = found[uuid]["rows"][where]
            found[uuid]["rows"][where] = (sorted(set(schemas)), held_rows)
    return found


def _sorted(tables: list[pa.Table]) -> list[str]:
    return sorted(map(repr, pa.concat_tables(tables).to_pylist()))


def leftovers(store: Store) -> list[str]:
    """Return the keys in the store that nothing refers to, but for indices of earlier commits, and files of jobs.

    Metadata for data skipping, which stand beside all datasets, are none of them.
    """
    needed: set[str] = set()
    keys = [key for entry in store.list_root() if _is_dataset(entry) for key in store.list_below(f"{entry.name}/")]
    for entry in store.list_root():
        if not entry.is_dir and entry.name.endswith(".json"):
            document = json.loads(store.read(entry.name))
            needed |= {key for part in document["partitions"].values() for key in part["files"].values()}
    kept = ("_common_metadata", ".by-dataset-index.parquet")
    return [k for k in keys if k not in needed and not k.endswith(kept)]


def metadata(store: Store) -> dict[str, str]:
    """Return the metadata for data skipping as text, file by file; the place of the store is left out."""
    found = {}
    for key in store.list_below(BASE):
        file = pq.ParquetFile(pa.BufferReader(store.read(key)))
        footer = file.metadata.metadata
        about = footer[b"org.apache.spark.sql.parquet.row.metadata"].decode().replace(store.address[0], "STORE")
        for row in file.read().to_pylist():
            name = row.pop("obj_name").removeprefix(store.address[0])
            assert name not in found
            found[name] = repr([row, str(file.schema_arrow.remove_metadata()), about, footer[b"kartosql.bounds"]])
    return found


def _is_dataset(entry: Any) -> bool:
    return entry.is_dir and entry.name != ".kartosql"
