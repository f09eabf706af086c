"""Bounds of columns in the footers of Parquet files, where these tell them exactly."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.store import Store

_SHORT_TEXT = 32  # bytes; writers that cut texts in statistics keep at least so many


class Footer:
    """The footer of one file."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata
        self._places: dict[str, int] = {}
        self._types: Any = None
        for place in range(metadata.num_columns):
            name = metadata.schema.column(place).path.lower()
            # Of two columns that differ in case only, it is not known which is meant.
            self._places[name] = -1 if name in self._places else place

    def bounds(self, column: str, type_: pa.DataType) -> tuple[Any, Any] | None:
        """Return the least and greatest value of a column, both None if it has none but NULL.

        None, where the footer does not tell: floating-point numbers may be NaN, of which
        statistics know nothing, and texts may be cut.
        """
        place = self._places.get(column.lower(), -1)
        if place < 0 or not _is_told(type_):
            return None
        described = self._metadata.schema.column(place)
        # Statistics of unsigned numbers are shown as if these were signed.
        if described.max_repetition_level or "isSigned=false" in str(described.logical_type):
            return None
        lows, highs = [], []
        for number in range(self._metadata.num_row_groups):
            chunk = self._metadata.row_group(number).column(place)
            found = chunk.statistics
            if found is not None and found.has_null_count and found.null_count == chunk.num_values:
                continue
            if found is None or not found.has_min_max:
                return None
            low, high = _value(found.min, type_), _value(found.max, type_)
            if low is None or high is None or low > high:
                return None
            lows.append(low)
            highs.append(high)
        return (min(lows), max(highs)) if lows else (None, None)


def _is_told(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_signed_integer(type_)
        or types.is_date32(type_)
        or types.is_decimal128(type_)
        or types.is_string(type_)
        or types.is_boolean(type_)
    )


def _value(raw: Any, type_: pa.DataType) -> Any:
    """Return a statistic as a value of a type, None if it is of another one, or may be cut."""
    if pa.types.is_string(type_):
        if not isinstance(raw, str) or len(raw.encode("utf-8", "surrogatepass")) >= _SHORT_TEXT:
            return None
        return raw
    if pa.types.is_boolean(type_):
        return raw if isinstance(raw, bool) else None
    if pa.types.is_date32(type_):
        return raw if type(raw) is dt.date else None
    if pa.types.is_decimal128(type_):
        scale = raw.as_tuple().exponent if isinstance(raw, Decimal) else None
        return raw if isinstance(scale, int) and -scale <= type_.scale else None
    return raw if type(raw) is int else None


def parquet_footers(store: Store) -> Callable[[str], Footer | None]:
    """Return what reads footers of the Parquet files of a store by their keys; None for files that are none."""

    def read(key: str) -> Footer | None:
        try:
            source = store.local_path(key) if store.is_local else pa.BufferReader(store.read(key))
            return Footer(pq.read_metadata(source))
        except (pa.ArrowException, OSError, KeyError):
            return None

    return read
