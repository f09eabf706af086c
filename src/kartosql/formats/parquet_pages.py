"""Distinct values of columns by the pages of Parquet files: of dictionaries, to which most rows are numbers."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import mmap
from typing import Any

import pyarrow as pa

from kartosql.formats.arrays import array_of
from kartosql.parquet import FooterLayout, Leaf, Reader, decoder

_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_TYPES = {1: (pa.int32(), pa.date32()), 2: (pa.int64(),), 6: (pa.string(),)}  # by physical type
_DICTIONARY_PAGE = 2
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8  # encodings
_MAX_PAGE = 64 << 20  # bytes
_MAX_TEXTS = 256  # in a dictionary, all of which are expected in so many rows:
_ROWS = 1024


def distinct_values(file: bytes | mmap, footer: bytes, layout: FooterLayout, column: str) -> pa.Array:
    """Return the values of a top-level column other than NULL, some of them repeatedly.

    A dictionary of numbers is taken as it is: none is known to be written with what no row has. Raises what is in
    ``DAMAGE``, pyarrow.ArrowException and OSError where Arrow has to read the rows: of nested columns, of other types
    and encodings, of many texts, and of dictionaries of texts that the first rows do not use up.
    """
    name, leaf = layout.column(column) or (b"", None)
    types = _TYPES.get(leaf.physical, ()) if leaf is not None and leaf.definition <= 1 else ()
    type_ = next((t for t in types if leaf is not None and decoder(leaf, t) is not None), None)
    if leaf is None or type_ is None:
        raise ValueError("a column of another kind")
    chunks = layout.chunks(footer, name) or ()
    return pa.concat_arrays([values for chunk in chunks for values in _of_chunk(file, chunk, leaf, type_)])


def _of_chunk(file: bytes | mmap, chunk: dict[int, Any], leaf: Leaf, type_: pa.DataType) -> Iterator[pa.Array]:
    codec, size = _CODECS[chunk[4]], 0  # values of the dictionary
    for head, page in _pages(file, chunk):
        if head[1] == _DICTIONARY_PAGE:
            if size or head[7][2] not in (_PLAIN, _PLAIN_DICTIONARY):
                raise ValueError("a dictionary of another kind")
            size = head[7][1]
            yield _plain(_inflated(page, codec, head[2]), leaf, type_, size)
        elif head[5][2] in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) and size:
            # Arrow writes dictionaries of texts as they were given, whichever of them the rows have.
            if type_ == pa.string() and not _uses_all(_behind_levels(head, page, codec, leaf), size):
                raise ValueError("texts that no row may have")
        elif head[5][2] == _PLAIN:
            yield _plain(_behind_levels(head, page, codec, leaf), leaf, type_)
        else:
            raise ValueError("rows of another encoding")


def _pages(file: bytes | mmap, chunk: dict[int, Any]) -> Iterator[tuple[dict[int, Any], bytes]]:
    """Yield the header and the bytes of each page of a column chunk."""
    reader = Reader(file)
    reader.at = min(chunk[9], chunk.get(11) or chunk[9])
    rows, end = chunk[5], reader.at + chunk[7]
    while rows > 0:
        head = reader.struct()
        start = reader.at
        reader.at += head[3]
        if not 4 < start <= reader.at <= end or not 0 <= head[2] <= _MAX_PAGE:
            raise ValueError("a page is damaged")
        rows -= 0 if head[1] == _DICTIONARY_PAGE else head[5][1]
        yield head, file[start : reader.at]


def _inflated(page: bytes, codec: str | None, size: int) -> bytes:
    return page if codec is None else pa.decompress(page, size, codec, asbytes=True)


def _behind_levels(head: dict[int, Any], page: bytes, codec: str | None, leaf: Leaf) -> bytes:
    """Return what follows the levels of a data page, which say where NULL is."""
    body = _inflated(page, codec, head[2])
    if leaf.definition and head[5][3] != _RLE:
        raise ValueError("levels of another kind")
    return body[4 + int.from_bytes(body[:4], "little") :] if leaf.definition else body


def _plain(body: bytes, leaf: Leaf, type_: pa.DataType, count: int | None = None) -> pa.Array:
    """Return plain values, ``count`` of them if that is known."""
    if leaf.length is not None:
        found, rest = divmod(len(body), leaf.length)
        if rest or count not in (None, found):
            raise ValueError("a page is damaged")
        return pa.Array.from_buffers(type_, found, [None, pa.py_buffer(body)])
    if count is None or count > _MAX_TEXTS:
        raise ValueError("too many texts")
    texts, at = [], 0
    for _ in range(count):
        start = at + 4
        at = start + int.from_bytes(body[at:start], "little")
        texts.append(body[start:at].decode())
    if at != len(body):
        raise ValueError("a page is damaged")
    return array_of(texts, type_)


def _uses_all(body: bytes, size: int) -> bool:
    """Return whether the first rows of a page have all values of a dictionary, of which it holds the numbers."""
    width, reader = body[0], Reader(body)
    reader.at, rows = 1, 0
    used: set[int] = set()
    # A dictionary of one value has numbers without a bit.
    while 1 < size != len(used) and rows < _ROWS and reader.at < len(body):
        head = reader.number()
        count = 8 * (head >> 1) if head & 1 else 1
        length = count * width // 8 if head & 1 else (width + 7) // 8
        run = int.from_bytes(body[reader.at : reader.at + min(length, _ROWS * width // 8)], "little")
        reader.at += length
        rows += count if head & 1 else head >> 1
        for place in range(0, min(count, _ROWS) * width, width):
            used.add(run >> place & (1 << width) - 1)
            if len(used) == size:
                break
    return size <= 1 or len(used) == size
