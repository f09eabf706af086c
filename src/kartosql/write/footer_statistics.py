"""What the footer of a Parquet file says of its rows, compared with them.

Engines leave out row groups by the counts and bounds of footers, which have no checksum, while pages may have one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}


def misstatements(group: pq.RowGroupMetaData, rows: pa.Table) -> Iterator[str]:
    """Yield what the statistics of a row group say that its rows are not; bounds may be wider than the values."""
    if group.num_rows != rows.num_rows:
        yield f"{group.num_rows:,} rows in place of {rows.num_rows:,}"
    for at in range(group.num_columns):
        column = group.column(at)
        place = rows.schema.get_field_index(column.path_in_schema)  # -1 for fields of nested columns, too
        statistics = column.statistics if column.is_stats_set and place >= 0 else None
        if statistics is None or pa.types.is_nested(rows.schema.field(place).type):
            continue
        name, values = column.path_in_schema, rows.column(place)
        if statistics.has_null_count and statistics.null_count != values.null_count:
            yield f"{statistics.null_count:,} NULLs in {name!r} in place of {values.null_count:,}"
        if statistics.has_min_max and not _contains(statistics, values):
            yield f"bounds of {name!r} that leave out some of its values"


def _contains(statistics: pq.Statistics, values: pa.ChunkedArray) -> bool:
    """Return whether all values lie within the bounds, or it cannot be told."""
    try:
        low, high, comparable = _comparable(statistics, values)
        found = pc.min_max(comparable.drop_null())
        if not found["min"].is_valid:
            return True
        low, high = pa.scalar(low, comparable.type), pa.scalar(high, comparable.type)
        return bool(pc.less_equal(low, found["min"]).as_py() and pc.greater_equal(high, found["max"]).as_py())
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError):
        return True


def _comparable(statistics: pq.Statistics, values: pa.ChunkedArray) -> tuple[Any, Any, pa.ChunkedArray]:
    """Return the bounds, and the values as what these are: bytes for texts, integers for times."""
    if isinstance(values.type, pa.BaseExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    type_ = values.type
    if pa.types.is_temporal(type_):
        logical = json.loads(statistics.logical_type.to_json())
        unit = _UNITS.get(logical.get("timeUnit", ""), "")
        if pa.types.is_timestamp(type_):
            values = values.cast(pa.timestamp(unit, type_.tz)).cast(pa.int64())
        elif pa.types.is_date(type_):
            values = values.cast(pa.date32()).cast(pa.int32())
        elif pa.types.is_duration(type_):
            values = values.cast(pa.int64())
        else:
            values = values.cast(pa.time32("ms") if unit == "ms" else pa.time64(unit))
            values = values.cast(pa.int32() if unit == "ms" else pa.int64())
        return statistics.min_raw, statistics.max_raw, values
    if pa.types.is_floating(type_):
        values = values.filter(pc.invert(pc.is_nan(values)))
        if statistics.min != statistics.min or statistics.max != statistics.max:  # NaN: no bounds to any reader
            return None, None, values.slice(0, 0)
    if statistics.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and not pa.types.is_decimal(type_):
        return statistics.min_raw, statistics.max_raw, values.cast(pa.large_binary())
    return statistics.min, statistics.max, values
