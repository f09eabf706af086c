"""Partitions -> Parquet bytes and storage keys."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.formats.kartothek import naming

ROW_GROUP_ROWS = 100_000


def file_key(uuid: str, label: str) -> str:
    """Return the storage key of the data file of a partition."""
    return f"{uuid}/{naming.DEFAULT_TABLE}/{label}.parquet"


def value_texts(column: pa.ChunkedArray) -> list[str]:
    """Return the text of each partition value, as it stands in paths before quoting.

    Raises ValueError or OverflowError for moments that Python cannot represent.
    """
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    return [_text(value) for value in column.to_pylist()]


def _text(value: Any) -> str:
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else str(value)


def file_columns(schema: pa.Schema, partition_on: tuple[str, ...]) -> list[str]:
    """Return the columns that stand in the data files, structs last.

    Kartothek counts leaves where it should count columns, so a struct in front of a column
    would make it filter by the wrong one.
    """
    names = [f.name for f in schema if f.name not in partition_on]
    return sorted(names, key=lambda n: pa.types.is_struct(schema.field(n).type))


def parquet_bytes(rows: pa.Table, row_group_rows: int = ROW_GROUP_ROWS) -> bytes:
    """Return ``rows`` as a Parquet file: ZSTD, format 2.6, checksummed pages."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        row_group_size=row_group_rows,
        version="2.6",
        compression="zstd",
        coerce_timestamps="us",
        use_compliant_nested_type=False,
        write_page_checksum=True,
    )
    return bytes(sink.getvalue().to_pybytes())
