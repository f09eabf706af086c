"""What the footer of a Parquet file says of its rows, compared with them.

Engines leave out row groups by the counts and bounds of footers, which have no checksum, while pages may have one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.memo import memoized
from kartosql.parquet import DAMAGE, FooterLayout, Leaf, Reader, decoder, has_older_bounds, schema_bytes

_ROWS, _GROUPS = 3, 4  # fields of FileMetaData


class FooterStatistics:
    """The statistics of one footer, each count and bound by itself: some readers take one without the other."""

    def __init__(self, footer: bytes) -> None:
        self._footer = footer

    @memoized
    def _layout(self) -> FooterLayout:
        return FooterLayout(schema_bytes(self._footer) or b"")

    @memoized
    def _found(self) -> dict[int, Any]:
        return Reader(self._footer).struct()

    @memoized
    def _is_sum(self) -> bool:
        """Whether the number of all rows is that of the rows of all groups."""
        return bool(sum(group[3] for group in self._found[_GROUPS]) == self._found[_ROWS])

    def misstatements(self, number: int, rows: pa.Table) -> Iterator[str]:
        """Yield what is said of a row group that its rows are not; bounds may be wider than the values.

        What cannot be read, which other readers may read in some way, is one as well.
        """
        try:
            group = self._found[_GROUPS][number]
            if group[3] != rows.num_rows or not self._is_sum:
                yield "another number of rows"
            for chunk in group[1]:
                meta = chunk[3]
                place = rows.schema.get_field_index(meta[3][0].decode()) if len(meta[3]) == 1 else -1
                leaf = self._leaf(rows.column_names[place]) if place >= 0 and 12 in meta else None
                for said in _of_column(meta[12], leaf, rows.column(place)) if leaf is not None else ():
                    yield f"{said} of {rows.column_names[place]!r}"
        except DAMAGE:
            yield "what cannot be read"

    def _leaf(self, column: str) -> Leaf | None:
        """Return the leaf of a column, None for nested ones and those of which another one differs in case only."""
        try:
            return self._layout.leaf(column)
        except ValueError:
            return None


def _of_column(statistics: dict[int, Any], leaf: Leaf, values: pa.ChunkedArray) -> Iterator[str]:
    nulls = values.null_count
    if leaf.definition and statistics.get(3, nulls) != nulls:
        yield f"{statistics[3]:,} NULLs in place of {nulls:,}"
    read, comparable = _comparable(leaf, values)
    if read is None or len(comparable) == comparable.null_count:
        return
    ends = pc.min_max(comparable).as_py()
    older = has_older_bounds(leaf)
    for field, is_low in ((6, True), (2, True), (5, False), (1, False)):
        raw = statistics.get(field) if field > 2 or older else None
        with contextlib.suppress(ValueError):  # NaN, and times that engines do not know: no bounds to them
            if isinstance(raw, bytes) and (read(raw) > ends["min"] if is_low else read(raw) < ends["max"]):
                yield "a least value above one" if is_low else "a greatest value below one"


def _comparable(leaf: Leaf, values: pa.ChunkedArray) -> tuple[Callable[[bytes], Any] | None, pa.ChunkedArray]:
    """Return what reads bounds, None if nothing does, and the values as what these are: integers for times."""
    types = pa.types
    if isinstance(values.type, pa.BaseExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    type_ = values.type
    if types.is_binary(type_) or types.is_large_binary(type_) or types.is_fixed_size_binary(type_):
        return bytes, values.cast(pa.large_binary())
    if types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_):
        return bytes, values.cast(pa.large_binary())
    if types.is_integer(type_):  # any number of the width that is stored
        return decoder(leaf, pa.uint64() if types.is_unsigned_integer(type_) else pa.int64()), values
    read = decoder(leaf, type_, clock=None)
    if read is None:
        return None, values
    if types.is_temporal(type_):
        values = values.cast(pa.int32() if type_.bit_width == 32 else pa.int64())
    elif types.is_floating(type_):
        values = values.filter(pc.invert(pc.is_nan(values)))
    elif types.is_decimal(type_):  # exactly: arithmetic of decimals rounds
        return lambda raw: Decimal(f"{read(raw)}E{-type_.scale}"), values
    return read, values
