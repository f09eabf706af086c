"""Small datasets, made of exactly the files a test needs."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from kartosql.write.files import file_columns
from kartosql.write.layout import Layout, arranged, folders, run_starts

WRITE_ID = "0123456789abcdef" * 2
SEED_FLAGS = {
    "ktk_cube_is_seed": True,
    "ktk_cube_dimension_columns": ["x"],
    "ktk_cube_partition_columns": ["p"],
    "ktk_cube_suppress_index_on": [],
}


def forget_memory_stores() -> None:
    """Forget all stores in memory: those of a process are one dictionary, which each listing goes through."""
    if "fsspec.implementations.memory" in sys.modules:
        memory = sys.modules["fsspec.implementations.memory"].MemoryFileSystem
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]


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


# -- data: a second write, and the table that a cube is by definition ---------------------------


def read_document(store: Store, uuid: str) -> dict[str, Any]:
    return dict(json.loads(store.read(f"{uuid}.by-dataset-metadata.json")))


def write_document(store: Store, document: Mapping[str, Any]) -> None:
    store.put(f"{document['dataset_uuid']}.by-dataset-metadata.json", json.dumps(document).encode())


def forget_history(store: Store, *uuids: str) -> None:
    """Take the schema history out of documents, as in those of the originals: then schema files count."""
    for uuid in uuids:
        document = read_document(store, uuid)
        document["metadata"].pop("kartosql_schema_history")
        write_document(store, document)


def parquet(table: pa.Table | Mapping[str, Any], **options: Any) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(dict(table)), sink, **options)
    return bytes(sink.getvalue())


def change_footer(store: Store, key: str, old: bytes, new: bytes) -> None:
    """Replace bytes in the footer of a Parquet file, of which there are as many, and not in its pages."""
    data = store.read(key)
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert old in data[end:]
    store.put(key, data[:end] + data[end:].replace(old, new))


def read_parquet(store: Store, key: str) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(store.read(key))).read()


def partitions(rows: pa.Table, keys: Iterable[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield label and rows of each partition, without its partition columns, sorted by them."""
    layout = Layout("d", "d", tuple(keys))
    rows = arranged(rows, layout)
    starts = run_starts(rows, layout.partition_on)
    tail = uuid4().hex
    columns = file_columns(rows.schema, layout.partition_on)
    for folder, (start, end) in zip(folders(rows, layout, starts), pairwise([*starts, rows.num_rows]), strict=True):
        yield "/".join((*folder, tail)), rows.select(columns).slice(start, end - start)


def append(store: Store, uuid: str, rows: pa.Table, tail: str | None = None) -> list[str]:
    """Append a write to a dataset as the original does, indices included, and return its file keys.

    ``tail`` replaces the id that all files of one write share.
    """
    made = read_document(store, uuid)
    indices = {column: _labels(read_parquet(store, key)) for column, key in made.get("indices", {}).items()}
    keys = []
    for label, part in partitions(rows, made["partition_keys"]):
        label = label if tail is None else f"{label.rpartition('/')[0]}/{tail}".lstrip("/")
        keys.append(f"{uuid}/table/{label}.parquet")
        store.put(keys[-1], parquet(part))
        made["partitions"][label] = {"files": {"table": keys[-1]}}
        for column, labels in indices.items():
            for value in part[column].to_pylist():
                if value is not None and value == value:
                    labels.setdefault(value, {})[label] = None
    for column, labels in indices.items():
        old = read_parquet(store, made["indices"][column]).schema
        rows_ = [{column: value, "partition": list(found)} for value, found in labels.items()]
        made["indices"][column] += ".by-dataset-index.parquet"
        store.put(made["indices"][column], parquet(pa.Table.from_pylist(rows_, old)))
    write_document(store, made)
    return keys


def _labels(index: pa.Table) -> dict[Any, dict[str, None]]:
    return {row[index.column_names[0]]: dict.fromkeys(row["partition"]) for row in index.to_pylist()}


def _value(raw: str, type_: pa.DataType) -> Any:
    if pa.types.is_boolean(type_):
        return {"True": True, "False": False}[raw]
    if pa.types.is_integer(type_):
        return int(raw)
    if pa.types.is_floating(type_):
        return float(raw)
    if pa.types.is_date(type_):
        return dt.date.fromisoformat(raw)
    return dt.datetime.fromisoformat(raw) if pa.types.is_timestamp(type_) else raw


def dataset_rows(store: Store, uuid: str) -> tuple[pa.Schema, list[dict[str, Any]]]:
    """Return schema and rows of a dataset, all files in the order of the document."""
    schema = pq.read_schema(pa.BufferReader(store.read(f"{uuid}/table/_common_metadata")))
    rows = []
    for entry in read_document(store, uuid)["partitions"].values():
        key = entry["files"]["table"]
        pairs = [unquote(part).partition("=") for part in key.split("/")[2:-1]]
        values = {name: _value(value, schema.field(name).type) for name, _, value in pairs}
        rows += [{**row, **values} for row in read_parquet(store, key).to_pylist()]
    return pa.schema(list(schema)), rows


def dataset_table(store: Store, uuid: str) -> pa.Table:
    """Return a plain dataset as one table."""
    schema, rows = dataset_rows(store, uuid)
    return pa.Table.from_pylist(rows, schema)


def _cell(row: Mapping[str, Any], key: Iterable[str]) -> tuple[Any, ...]:
    return tuple("nan" if row[c] != row[c] else row[c] for c in key)


def _last_rows(store: Store, uuid: str, shared: Iterable[str]) -> tuple[pa.Schema, list[str], dict[Any, Any]]:
    schema, rows = dataset_rows(store, uuid)
    key = [c for c in shared if c in schema.names]
    return schema, key, {_cell(row, key): row for row in rows}


def member_table(store: Store, cube: Cube, name: str) -> pa.Table:
    """Return one dataset of a cube as a table: of several rows with one key the last one counts."""
    schema, _, rows = _last_rows(store, cube.uuid(name), cube.dimension_columns + cube.partition_columns)
    names = sorted(schema.names)
    return pa.Table.from_pylist(list(rows.values()), pa.schema([schema.field(n) for n in names]))


def cube_table(store: Store, cube: Cube, members: Iterable[str]) -> pa.Table:
    """Return a cube as a table by definition: last rows per key, then the seed left joined with the others."""
    shared = cube.dimension_columns + cube.partition_columns
    schema, _, cells = _last_rows(store, cube.uuid(cube.seed_dataset), shared)
    rows = [dict(row) for row in cells.values()]
    fields = {f.name: f for f in schema}
    for name in members:
        if name != cube.seed_dataset:
            other, key, found = _last_rows(store, cube.uuid(name), shared)
            fields |= {f.name: f for f in other if f.name not in fields}
            payload = [n for n in other.names if n not in key]
            for row in rows:
                match = found.get(_cell(row, key), {})
                row.update({n: match.get(n) for n in payload})
    return pa.Table.from_pylist(rows, pa.schema([fields[n] for n in sorted(fields)]))
