"""Tables read without the library's reader and planner: a second opinion.

Nothing of ``formats`` and ``plan`` has a part in it: documents are parsed, paths taken apart and
files read here, in the plainest way, and all of them. What is unusual is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import KartosqlError, LimitError, StoreError
from kartosql.failures import reraise
from kartosql.store import Store
from kartosql.tables.names import quote_identifier
from kartosql.tables.table import Table

FILE = "__kartosql_file"
MARKS = ("kartosql_intent", "kartosql_unfinished", "kartosql_schema", "kartosql_absent")
MAX_BYTES = 1 << 30

Run = Callable[[str, Mapping[str, pa.Table]], pa.Table]


class CannotRead(Exception):
    """Something that the reader does not know; the message says what."""


def read(store: Store, source: Table, run: Run) -> pa.Table:
    """Return all rows of a table of a statement.

    ``run`` answers a query over given tables. Raises CannotRead for what is not understood, and
    where all files together hold more than 1 GiB.
    """
    if source.is_attached:
        raise CannotRead("it stands in another store, which was attached")
    try:
        tables = {f"t{i}": _dataset(store, p.table.uuid, p.table.table) for i, p in enumerate(source.parts)}
        if not tables:
            raise CannotRead("it is no dataset")
        return run(_query(source, tables), tables)
    except (KeyError, ValueError, TypeError, AttributeError, OSError, pa.ArrowException) as e:
        reraise(e)
        raise CannotRead(f"{type(e).__name__}: {e}".splitlines()[0]) from None
    except (StoreError, LimitError):
        raise
    except KartosqlError as e:
        raise CannotRead(e.message) from None


def _query(source: Table, tables: Mapping[str, pa.Table]) -> str:
    """Return the query that makes the table: the last file wins by cell, then the seed is joined with all others."""
    cube = source.cube
    shown = ", ".join(map(quote_identifier, source.columns))
    if cube is None:
        return f"SELECT {shown} FROM t0"
    keys = {}
    for name, table in tables.items():
        shared = [*cube.dimension_columns, *cube.partition_columns]
        keys[name] = ", ".join(quote_identifier(c) for c in shared if c in table.column_names)
    last = "QUALIFY rank() OVER (PARTITION BY {} ORDER BY {} DESC) = 1"
    own = [f"(SELECT * EXCLUDE ({FILE}) FROM {n} {last.format(key, FILE)}) AS p{n}" for n, key in keys.items()]
    joined = [f" LEFT JOIN {part} USING ({key})" for part, key in zip(own[1:], list(keys.values())[1:], strict=True)]
    return f"SELECT {shown} FROM {own[0]}{''.join(joined)}"


def _dataset(store: Store, uuid: str, table: str) -> pa.Table:
    """Return all rows of one table of a dataset, with the number of the file each stands in."""
    document = _document(store, uuid)
    metadata = document.get("metadata", {})
    if any(mark in metadata for mark in MARKS):
        raise CannotRead("a change of the dataset is under way")
    schema = pq.read_schema(pa.BufferReader(store.read(f"{uuid}/{table}/_common_metadata")))
    if "partitions" in document:
        keys = [entry["files"][table] for entry in document["partitions"].values() if table in entry["files"]]
    else:
        below = f"{uuid}/{table}/"
        keys = [k for k in sorted(store.list_below(uuid)) if k.startswith(below) and k.endswith(".parquet")]
    partition_keys = document.get("partition_keys")
    if partition_keys is None:
        partition_keys = [name for name, _ in _values(keys[0], uuid, table)] if keys else []
    if sum(n or 0 for n in store.sizes(keys).values()) > MAX_BYTES:
        raise CannotRead("there is more than 1 GiB of it")
    pieces = [
        _file(store, key, dict(_values(key, uuid, table)), schema, partition_keys, at) for at, key in enumerate(keys)
    ]
    if not pieces:
        fields = [f if not pa.types.is_null(f.type) else pa.field(f.name, pa.string()) for f in schema]
        return pa.schema([*fields, pa.field(FILE, pa.int64())]).empty_table()
    return pa.concat_tables(pieces, promote_options="permissive")


def _document(store: Store, uuid: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(store.read(f"{uuid}.by-dataset-metadata.json"))
    except KeyError:
        import msgpack
        import zstandard

        packed = store.read(f"{uuid}.by-dataset-metadata.msgpack.zstd")
        with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            found = msgpack.unpackb(stream.read(), raw=False, strict_map_key=False)
    return found


def _values(key: str, uuid: str, table: str) -> list[tuple[str, str]]:
    """Return the partition values in the path of a file."""
    folders = key.removeprefix(f"{uuid}/{table}/").split("/")[:-1]
    pairs = [folder.partition("=") for folder in folders]
    if not all(separator for _, separator, _ in pairs):
        raise CannotRead(f"a folder is no partition value in {key!r}")
    return [(unquote(name), unquote(value, errors="strict")) for name, _, value in pairs]


def _file(
    store: Store, key: str, values: Mapping[str, str], schema: pa.Schema, partition_keys: list[str], at: int
) -> pa.Table:
    table = pq.read_table(pa.BufferReader(store.read(key)), partitioning=None)
    columns, names = [], []
    for field in schema:
        untyped = pa.types.is_null(field.type)
        if field.name in partition_keys:
            type_ = pa.string() if untyped else field.type
            text = pa.array([values[field.name]])
            if pa.types.is_boolean(type_):
                text = pa.array([values[field.name].lower()])
            column = pa.repeat(text.cast(type_)[0], table.num_rows)
        else:
            column = table.column(field.name)
            column = column if untyped else column.cast(field.type)
        columns.append(column)
        names.append(field.name)
    return pa.table([*columns, pa.array([at] * table.num_rows, pa.int64())], names=[*names, FILE])
