"""Columns of Parquet files by Arrow alone, for indexes; an engine may hand over a scan of its own instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.formats.xskipper.collect import Scan
from kartosql.store import Store

_BATCH = 1 << 17


def parquet_scan(store: Store) -> Scan:
    """Return a scan of the Parquet files of a store; files that cannot be read yield nothing, or not all rows twice."""

    def scan(keys: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        for number, key in enumerate(keys):
            batches = _batches(store, key, columns)
            if batches is not None:
                yield from ((number, batch) for batch in batches)

    return scan


def _batches(store: Store, key: str, columns: Sequence[str]) -> list[pa.RecordBatch] | None:
    """Return the columns of a file, or None; a file of which a part cannot be read has no rows at all."""
    try:
        source = store.local_path(key) if store.is_local else pa.BufferReader(store.read(key))
        with pq.ParquetFile(source, coerce_int96_timestamp_unit="us", memory_map=store.is_local) as file:
            schema = file.schema_arrow
            paths = [_path(schema, c) for c in columns]
            if any(p is None for p in paths):
                return None
            known = [p for p in paths if p is not None]
            names = sorted({".".join(p) for p in known})
            found = [_flat(b, known, columns) for b in file.iter_batches(_BATCH, columns=names, use_threads=False)]
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None
    # Nothing of a file without rows can match, and that is known.
    return found or [_flat(pa.RecordBatch.from_pylist([], schema), known, columns)]


def _path(schema: pa.Schema, column: str) -> list[str] | None:
    """Return the exact names of a column and members of structs below it, None if they are not certain."""
    found: list[str] = []
    fields: Any = schema
    for part in column.split("."):
        names = [f.name for f in fields if f.name.lower() == part.lower()]
        if len(names) != 1 or "." in names[0]:
            return None
        found.append(names[0])
        type_ = fields.field(names[0]).type
        fields = type_ if pa.types.is_struct(type_) else ()
    return found


def _flat(batch: pa.RecordBatch, paths: Sequence[Sequence[str]], columns: Sequence[str]) -> pa.RecordBatch:
    arrays = []
    for path in paths:
        array = batch.column(path[0])
        arrays.append(pc.struct_field(array, list(path[1:])) if len(path) > 1 else array)
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
