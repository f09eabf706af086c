"""Rows of files that Spark's own reader cannot read right: decoded by Arrow, in the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kartosql.engines.spark.types import stored_type

ROW = "__kartosql_row"  # the position of a row in its file
Batches = Iterator[Any]


def decoder(columns: Mapping[str, pa.DataType], constants: Sequence[str]) -> Callable[[Batches], Batches]:
    """Return a function for ``mapInArrow``: from files, one per row, to the rows in them.

    It takes ``path`` and ``content`` of each file, and ``constants``, columns that all rows of a
    file share. It returns the columns as c0, c1, ..., then the constants, then ``ROW``. All that
    it needs is in it, so workers need pyarrow and nothing else.
    """
    names, shared = list(columns), list(constants)
    # Arrow's nanoseconds end in 2262, and old timestamps of 12 bytes do not.
    coerce = None if any(pa.types.is_timestamp(t) and t.unit == "ns" for t in columns.values()) else "us"
    declared = pa.schema([pa.field(f"c{i}", t) for i, t in enumerate(columns.values())]).serialize().to_pybytes()
    stored = pa.schema([pa.field(f"c{i}", stored_type(t)) for i, t in enumerate(columns.values())])
    stored_bytes, row_name = stored.serialize().to_pybytes(), ROW

    def decode(batches: Batches) -> Batches:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = pa.ipc.read_schema(pa.BufferReader(declared)).types
        targets = pa.ipc.read_schema(pa.BufferReader(stored_bytes)).types
        for batch in batches:
            for at in range(batch.num_rows):
                path = batch.column("path")[at].as_py()
                try:
                    content = pa.py_buffer(batch.column("content")[at].as_buffer())
                    table = pq.read_table(
                        pa.BufferReader(content),
                        columns=names,
                        partitioning=None,
                        coerce_int96_timestamp_unit=coerce,
                    )
                    found = [table.column(n).combine_chunks() for n in names]
                    arrays = [v.cast(t) for v, t in zip(found, types, strict=True)]
                except (pa.ArrowException, OSError, KeyError, ValueError) as e:
                    raise RuntimeError(f"kartosql:corrupt-file:{path}: {str(e).splitlines()[0]}") from None
                try:
                    arrays = [v.cast(t) for v, t in zip(arrays, targets, strict=True)]
                except pa.ArrowException:
                    raise RuntimeError("kartosql:nanoseconds") from None
                count = table.num_rows
                repeated = pa.array([at], pa.int64()).take(pa.array([0] * count, pa.int64()))
                arrays += [batch.column(n).take(repeated) for n in shared]
                arrays.append(pa.array(range(count), pa.int64()))
                arrays = [a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in arrays]
                yield pa.RecordBatch.from_arrays(arrays, [*(f"c{i}" for i in range(len(names))), *shared, row_name])

    return decode
