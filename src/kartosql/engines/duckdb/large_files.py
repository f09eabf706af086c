"""Files made of those pages of large remote files that may hold a match."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kartosql import parquet
from kartosql.parquet import INDEXES, FooterLayout, decoder, varint
from kartosql.predicate.tree import Comparison, Condition, In, alternatives, as_type, said
from kartosql.store import Fetched

MOST_GROUPS, MOST_BYTES = 8, 4 << 20  # of which a file is made; of more DuckDB reads what it needs
MOST_INDEXES = 4 << 20  # bytes
_Span = tuple[int, int]


def wanted(conditions: Iterable[Condition], of: int, types: Mapping[str, pa.DataType]) -> tuple[str, list[Any]] | None:
    """Return a column that an occurrence of a table compares with integers or texts, and these values, or None."""
    for leaf in map(said, conditions):
        if not isinstance(leaf, Comparison | In) or not (values := alternatives(leaf)):
            continue
        (occurrence, column), *members = leaf.path
        type_ = pa.null() if members or occurrence != of else types.get(column, pa.null())
        if pa.types.is_integer(type_) or pa.types.is_string(type_):
            found = [as_type(value, type_) for value in values]
            if None not in found:
                return column, found
    return None


def part(
    ends: dict[str, Fetched],
    key: str,
    read: Callable[[Sequence[_Span]], Iterable[bytes]],
    types: Mapping[str, pa.DataType],
    column: str,
    values: Sequence[Any],
) -> Fetched | None:
    """Return the end of a file that begins like another one, with only those of its pages that may hold the values.

    None where it does not pay; raises what is in ``DAMAGE``. The indexes of pages are read once, and kept with the end.
    """
    end = ends[key]
    footer = parquet.footer_of(end.data) or b""
    layout = FooterLayout(parquet.schema_bytes(footer) or b"")
    decode: Any = decoder(layout.leaf(column), types[column])

    def may_hold(low: Any, high: Any) -> bool:
        return low is not None and any(low <= value <= high for value in values)

    bounds = layout.groups(footer, column.encode(), layout.leaf(column), decode) or ()
    chosen = [at for at, group in enumerate(bounds) if may_hold(group.low, group.high)]
    if not 0 < len(chosen) <= MOST_GROUPS or parquet.GEO in footer:
        return None
    metas = {c: layout.chunks(footer, c.encode(), {0, *chosen}) or [] for c in types}
    first = min(found[0][INDEXES][at] for found in metas.values() for at in (4, 6))
    if end.start - first > MOST_INDEXES:
        return None
    if first < end.start:
        (data,) = read([(first, end.start)])
        ends[key] = end = end._replace(data=data + end.data, start=first)
    groups = []
    for at in range(-len(chosen), 0):
        chunks = {c: _Chunk(layout.leaf(c).physical, found[at], end) for c, found in metas.items()}
        (count,) = {chunk.meta[5] for chunk in chunks.values()}
        borders = [*sorted(frozenset.intersection(*(frozenset(c.pages) for c in chunks.values()))), count]
        index = chunks[column].index(6)
        pages = zip(chunks[column].pages, index[1], index[2], index[3], strict=True)
        hits = [row for row, is_null, a, b in pages if is_null != 1 and may_hold(decode(a), decode(b))]
        if hits:  # all columns have pages that begin at borders
            start, stop = borders[bisect_right(borders, hits[0]) - 1], borders[bisect_right(borders, hits[-1])]
            groups.append((stop - start, {c: (chunk, chunk.spans(start, stop)) for c, chunk in chunks.items()}))
    spans = [span for _, columns in groups for _, own in columns.values() for span in own]
    if not spans or sum(stop - start for start, stop in spans) > MOST_BYTES:
        return None
    data = _written(layout, groups, dict(zip(spans, read(spans), strict=True)), end.size)
    return end._replace(data=data, start=end.size, size=end.size + len(data))


class _Chunk:
    """A column in a row group, with its pages by their first rows; raises an error of ``DAMAGE`` if it is damaged."""

    def __init__(self, physical: int, meta: dict[int, Any], end: Fetched) -> None:
        self.physical, self.meta, self._end = physical, meta, end
        begin = min(meta[9], meta.get(11) or meta[9])
        self.pages = {page[3]: (page[1], page[1] + page[2]) for page in self.index(4)[1]}
        places = [begin, *(place for page in self.pages.values() for place in page), begin + meta[7]]
        rows = [*self.pages, meta[5]]
        if rows[0] or rows != sorted({*rows}) or places != sorted(places):
            raise ValueError("the index of pages is damaged")
        self._dictionary = begin, places[1]

    def index(self, field: int) -> dict[int, Any]:
        """Return one of the indexes of pages."""
        start, length = self.meta[INDEXES][field] - self._end.start, self.meta[INDEXES][field + 1]
        if not 0 <= start <= start + length <= len(self._end.data):
            raise ValueError("the index of pages is damaged")
        return parquet.Reader(self._end.data[start : start + length]).struct()

    def spans(self, first: int, end: int) -> list[_Span]:
        """Return the places of the dictionary, if there is one, and of the pages with some of the rows."""
        pages = [page for row, page in self.pages.items() if first <= row < end]
        return [span for span in (self._dictionary, (pages[0][0], pages[-1][1])) if span[0] < span[1]]


_Columns = Mapping[str, tuple[_Chunk, list[_Span]]]


def _written(
    layout: FooterLayout, groups: Sequence[tuple[int, _Columns]], fetched: Mapping[_Span, bytes], size: int
) -> bytes:
    """Return pages to append to a file, and a footer that lists these pages and no other columns."""
    data, listed = b"", b""
    for rows, columns in groups:
        listed += b"\x19\xfc" + varint(len(layout.paths))  # the columns of a row group
        for path in layout.paths:
            listed += b"\x26" + (start := varint(size + len(data) << 1))
            if path in columns:
                chunk, spans = columns[path]
                dictionary, pages = [b"", *map(fetched.__getitem__, spans)][-2:]
                listed += b"\x1c\x15" + varint(chunk.physical << 1) + b"\x19\x05"
                listed += parquet.path_field(path.encode()) + b"\x15" + varint(chunk.meta[4] << 1)
                for number in (rows, chunk.meta[6], len(dictionary) + len(pages)):
                    listed += b"\x16" + varint(number << 1)
                listed += b"\x26" + varint(size + len(data) + len(dictionary) << 1)
                listed += (b"\x26" + start if dictionary else b"") + b"\0"
                data += dictionary + pages
            listed += b"\0"
        listed += b"\x16" + varint(len(data) << 1) + b"\x16" + varint(rows << 1) + b"\0"
    total = varint(sum(rows for rows, _ in groups) << 1)
    footer = layout.schema + total + b"\x19\xfc" + varint(len(groups)) + listed + b"\0"
    return data + footer + len(footer).to_bytes(4, "little") + parquet.MAGIC
