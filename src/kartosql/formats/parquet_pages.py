"""Values of columns by the pages of Parquet files: distinct ones, and those of few rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from mmap import mmap
from typing import Any

import pyarrow as pa

from kartosql.formats.arrays import array_of
from kartosql.parquet import FooterLayout, Leaf, Reader, decoder, varint

_CODECS = {0: None, 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_TYPES = {1: (pa.int32(), pa.date32()), 2: (pa.int64(),), 6: (pa.string(),)}  # by physical type
_DICTIONARY_PAGE = 2
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8  # encodings
_BY_NUMBER = (_PLAIN_DICTIONARY, _RLE_DICTIONARY)
_MAX_PAGE = 64 << 20  # bytes
_MAX_TEXTS = 256  # in a dictionary, all of which are expected in so many rows:
_ROWS = 1024
_MAX_INFLATED = 4 << 20  # bytes of a column of which few rows are wanted
_MAX_FOUND = 256  # rows that are taken one by one
_MAX_NUMBERED = 2048  # rows of a page of which each number is looked at


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
    chunks = layout.chunks(footer, name, places_only=True) or ()
    return pa.concat_arrays([values for chunk in chunks for values in _of_chunk(file, chunk, leaf, type_)])


def _of_chunk(file: bytes | mmap, chunk: dict[int, Any], leaf: Leaf, type_: pa.DataType) -> Iterator[pa.Array]:
    codec, size = _CODECS[chunk[4]], 0  # values of the dictionary
    for head, page in _pages(file, chunk):
        if head[1] == _DICTIONARY_PAGE:
            if size or head[7][2] not in (_PLAIN, _PLAIN_DICTIONARY):
                raise ValueError("a dictionary of another kind")
            size = head[7][1]
            yield _plain(_inflated(page, codec, head[2]), leaf, type_, size)
        elif head[5][2] in _BY_NUMBER and size:
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


def _behind_levels(
    head: dict[int, Any], page: bytes, codec: str | None, leaf: Leaf, levels: bytes | None = None
) -> bytes:
    """Return what follows the levels of a data page, which say where NULL is; these have to be ``levels``, if given."""
    body = _inflated(page, codec, head[2])
    if not leaf.definition:
        return body
    end = 4 + int.from_bytes(body[:4], "little")
    if head[5][3] != _RLE or levels not in (None, body[4:end]):
        raise ValueError("levels of another kind")
    return body[end:]


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
    used: set[int] = set()
    # A dictionary of one value has numbers without a bit.
    for first, count, at, is_packed in _runs(body) if size > 1 else ():
        for place in range(min(count, _ROWS - first) if is_packed else 1):
            used.add(_number(body, at, place))
            if len(used) == size:
                return True
        if first + count >= _ROWS:
            break
    return size <= 1


def _runs(body: bytes) -> Iterator[tuple[int, int, int, bool]]:
    """Yield the runs of a page of numbers: its first row, its rows, where it is, and whether these have one each."""
    width, reader, first = body[0], Reader(body), 0
    reader.at = 1
    while reader.at < len(body):
        head = reader.number()
        count, start = 8 * (head >> 1) if head & 1 else head >> 1, reader.at
        reader.at += count * width // 8 if head & 1 else (width + 7) // 8
        if not count or reader.at > len(body):
            raise ValueError("a page is damaged")
        yield first, count, start, bool(head & 1)
        first += count


def _number(body: bytes, at: int, place: int) -> int:
    width = body[0]
    start = 8 * at + place * width
    return int.from_bytes(body[start >> 3 : start + width + 7 >> 3], "little") >> (start & 7) & (1 << width) - 1


def rows_with(
    file: bytes, footer: bytes, layout: FooterLayout, types: Mapping[str, pa.DataType], wanted: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], int]:
    """Return columns of the rows in which those of ``wanted``, of whole numbers, have these values, and the row groups.

    Values are integers and floats as ``decoder`` returns them. Raises what ``distinct_values`` does where Arrow has to
    read the rows: if there are many, or if a column has NULL or texts, or is of another type or encoding.
    """
    leaves = {name: layout.leaf(name) for name in types}
    decoders = [decoder(leaf, types[name]) for name, leaf in leaves.items()]
    chunks = [layout.chunks(footer, name.encode(), places_only=True) or () for name in types]
    if None in decoders or () in chunks:
        raise ValueError("a column of another kind, or no rows")
    found: dict[str, list[Any]] = {name: [] for name in types}
    for group in zip(*chunks, strict=True):
        parts = {name: _FixedColumn(file, chunk, leaves[name]) for name, chunk in zip(types, group, strict=True)}
        places: list[int] | None = None
        for name, value in wanted.items():
            places = parts[name].places(value, places)
        for (name, part), decode in zip(parts.items(), decoders, strict=True) if places else ():
            found[name].extend(map(decode, part.values(places or ())))  # type: ignore[arg-type]
        if len({part.rows for part in parts.values()}) > 1:
            raise ValueError("columns of different lengths")
    return found, len(chunks[0])


class _FixedColumn:
    """A column of values of one length in a row group, without NULL."""

    def __init__(self, file: bytes, chunk: dict[int, Any], leaf: Leaf) -> None:
        # Neither bits nor times of 96 bits.
        if leaf.length is None or leaf.definition > 1 or leaf.physical in (0, 3) or chunk[6] > _MAX_INFLATED:
            raise ValueError("a column of another kind, or many rows")
        self._length, self._leaf, self._codec = leaf.length, leaf, _CODECS[chunk[4]]
        self._dictionary, self.rows = b"", 0
        self._pages: list[tuple[int, int, dict[int, Any], bytes]] = []  # each with its first row and rows
        self._bodies: dict[int, tuple[bool, bytes]] = {}  # of pages, by their first rows
        for head, page in _pages(file, chunk):
            if head[1] != _DICTIONARY_PAGE:
                self._pages.append((self.rows, head[5][1], head, page))
                self.rows += head[5][1]
            elif self._dictionary or head[7][2] not in (_PLAIN, _PLAIN_DICTIONARY):
                raise ValueError("a dictionary of another kind")
            else:
                self._dictionary = _inflated(page, self._codec, head[2])

    def _body(self, first: int, rows: int, head: dict[int, Any], page: bytes) -> tuple[bool, bytes]:
        """Return whether a page holds values, not numbers of them, and what follows its levels."""
        if first not in self._bodies:
            kind = head[5][2]
            body = _behind_levels(head, page, self._codec, self._leaf, varint(2 * rows) + b"\1")
            if (kind == _PLAIN and len(body) != rows * self._length) or kind not in (_PLAIN, *_BY_NUMBER):
                raise ValueError("rows of another encoding")
            self._bodies[first] = kind == _PLAIN, body
        return self._bodies[first]

    def places(self, value: int, among: Sequence[int] | None) -> list[int]:
        """Return the rows with a value, by default among all; raises OverflowError if it is beyond the type."""
        raw, found = value.to_bytes(self._length, "little", signed=True), list[int]()
        if among is not None:
            return [at for at, has in zip(among, self.values(among), strict=True) if has == raw]
        numbers = {*_places(self._dictionary, raw)}
        for first, rows, head, page in self._pages:
            is_plain, data = self._body(first, rows, head, page)
            if is_plain:
                found += [first + at for at in _places(data, raw)]
            elif numbers:
                numbered = enumerate(_numbers(data, range(min(rows, _MAX_NUMBERED))), first)
                found += [at for at, number in numbered if number in numbers]
            if len(found) > _MAX_FOUND or (numbers and not is_plain and rows > _MAX_NUMBERED):
                raise ValueError("many rows")
        return found

    def values(self, places: Sequence[int]) -> list[bytes]:
        """Return the values of rows, which are in order."""
        length, found = self._length, list[bytes]()
        for first, rows, head, page in self._pages:
            if some := [at - first for at in places if first <= at < first + rows]:
                is_plain, data = self._body(first, rows, head, page)
                if not is_plain:
                    some, data = _numbers(data, some), self._dictionary
                found += [data[at * length : (at + 1) * length] for at in some]
        if any(len(value) < length for value in found):
            raise ValueError("a page is damaged")
        return found


def _places(values: bytes, raw: bytes) -> Iterator[int]:
    """Yield where a value is among others of its length."""
    at = values.find(raw)
    while at >= 0:
        if at % len(raw) == 0:
            yield at // len(raw)
        at = values.find(raw, at + 1)


def _numbers(body: bytes, places: Sequence[int]) -> list[int]:
    """Return the numbers that rows of a page have, which are in order."""
    found = list[int]()
    for first, count, at, is_packed in _runs(body):
        some = places[len(found) : bisect_left(places, first + count)]
        found += [_number(body, at, place - first if is_packed else 0) for place in some]
        if len(found) == len(places):
            return found
    raise ValueError("a page is damaged")
