"""Columns of Parquet files by Arrow alone, for indexes; an engine may hand over a scan of its own instead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import KartosqlError
from kartosql.failures import reraise
from kartosql.formats.xskipper.collect import Scan
from kartosql.formats.xskipper.naming import parts_of
from kartosql.store import Store

_BATCH = 1 << 17
_WHOLE = 1 << 20  # bytes of files that are read at once: that takes less time than to map them, or to read bit by bit
_AHEAD = 8 << 20  # bytes of files that are read before they are asked for
THREADS = min(4, os.cpu_count() or 1)


def parquet_scan(store: Store) -> Scan:
    """Return a scan of the Parquet files of a store; files that cannot be read yield nothing, or not all rows twice."""

    def scan(keys: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        paths_of = _Paths(columns)
        waiting = iter(keys)
        with ThreadPoolExecutor(THREADS) as pool:
            ahead: deque[tuple[int, Future[list[pa.RecordBatch] | None]]] = deque()
            held = 0
            for number in range(len(keys)):
                while len(ahead) <= THREADS or held < _AHEAD:
                    key = next(waiting, None)
                    if key is None:
                        break
                    size = _size(store, key)
                    held += size
                    ahead.append((size, pool.submit(_batches, store, key, columns, paths_of)))
                size, found = ahead.popleft()
                held -= size
                yield from ((number, batch) for batch in found.result() or ())

    return scan


class _Paths:
    """Where columns are in schemas; most files have the same one as the file before."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._last: tuple[pa.Schema, list[list[str]] | None] | None = None

    def __call__(self, schema: pa.Schema) -> list[list[str]] | None:
        last = self._last
        if last is not None and last[0].equals(schema):
            return last[1]
        paths = [_path(schema, c) for c in self._columns]
        known = [p for p in paths if p is not None]
        self._last = schema, (known if len(known) == len(paths) else None)
        return self._last[1]


def _batches(store: Store, key: str, columns: Sequence[str], paths_of: _Paths) -> list[pa.RecordBatch] | None:
    """Return the columns of a file, or None; a file of which a part cannot be read has no rows at all."""
    try:
        with _opened(_source(store, key), columns) as file:
            schema = file.schema_arrow
            known = paths_of(schema)
            if known is None:
                return None
            names = sorted({".".join(p) for p in known})
            found = [_flat(b, known, columns) for b in file.iter_batches(_BATCH, columns=names, use_threads=False)]
    except (pa.ArrowException, OSError, KeyError, ValueError) as e:
        reraise(e, f"Cannot read {key!r}")
        return None
    # Nothing of a file without rows can match, and that is known.
    return found or [_flat(pa.RecordBatch.from_pylist([], schema), known, columns)]


def _size(store: Store, key: str) -> int:
    """Return how much a file counts of what is read ahead."""
    try:
        return os.path.getsize(store.local_path(key)) if store.is_local else _AHEAD
    except (KartosqlError, OSError, KeyError):
        return 0


def _source(store: Store, key: str) -> Any:
    """Return what a file is read from: its bytes, or its path if it is large."""
    if not store.is_local:
        return pa.BufferReader(store.read(key))
    path = store.local_path(key)
    with open(path, "rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size > _WHOLE:
            return path
        return pa.BufferReader(file.read())


def _opened(source: Any, columns: Sequence[str]) -> pq.ParquetFile:
    options = {"coerce_int96_timestamp_unit": "us", "memory_map": True, "pre_buffer": False}
    try:
        # Distinct values are then known by their numbers.
        return pq.ParquetFile(source, read_dictionary=[c for c in columns if "." not in c], **options)
    except KeyError:  # a name in another case
        return pq.ParquetFile(source, **options)


def _path(schema: pa.Schema, column: str) -> list[str] | None:
    """Return the exact names of a column and members of structs below it, None if they are not certain."""
    found: list[str] = []
    fields: Any = schema
    for part in parts_of(column):
        names = [f.name for f in fields if f.name.lower() == part.lower()]
        if len(names) != 1:
            return None
        found.append(names[0])
        type_ = fields.field(names[0]).type
        fields = type_ if pa.types.is_struct(type_) else ()
    return found


def _flat(batch: pa.RecordBatch, paths: Sequence[Sequence[str]], columns: Sequence[str]) -> pa.RecordBatch:
    """Return columns, by their names in ``columns``; those of the file may be in another case, or be structs."""
    if all([column] == path for column, path in zip(columns, paths, strict=True)):
        return batch
    arrays = []
    for path in paths:
        array = batch.column(path[0])
        arrays.append(pc.struct_field(array, list(path[1:])) if len(path) > 1 else array)
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
