"""Parquet files made of row groups of others, which are copied as bytes: nothing is read of what stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import pyarrow as pa

from kartosql.parquet import END, GROUPS_FOLLOW, MAGIC, MAX_DEPTH, ROWS_FOLLOW, Reader, footer_of, schema_bytes, varint

# Fields of a row group by the depth of their struct: where something lies, what is not copied, namely the places of
# page indexes and Bloom filters, and keys, and what else is read.
_OFFSETS = {0: (5,), 2: (2,), 3: (9, 11)}
_UNMOVED = {2: (4, 6, 8, 9), 3: (10, 14)}
_WANTED = {0: (1, 3, 6, 7), 2: (3,), 3: (7,)}
_ORDINAL = 7
_SIZES = {0: 6, 3: 7}  # of a row group, and of its columns
_DATA, _DICTIONARY = 0, 2  # kinds of pages
_PLAIN, _BY_DICTIONARY = (0, 2), (2, 8)  # encodings; 2 is both of old
_MOST_TEXT = 1 << 24  # bytes of a dictionary
_BINARY, _LIST, _STRUCT = 8, 9, 12


class _Size(int):
    """The bytes of a column or a row group."""


@dataclass(frozen=True)
class RowGroup:
    """A row group: its bytes, from ``start`` on, and its entry in the footer.

    The entry is cut where it has an offset, a size, or (None) the number of the row group.
    """

    rows: int
    start: int
    data: memoryview
    entry: tuple[bytes | int | None, ...]


@dataclass(frozen=True)
class Cut:
    """A Parquet file in parts: what its footer has before the number of rows, row groups, and what follows these."""

    head: bytes
    groups: Sequence[RowGroup]
    tail: bytes


class _EntryReader(Reader):
    """Reads entries of row groups, and notes where they have offsets and numbers; it goes behind all else."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.places: list[tuple[int, int, int | None]] = []

    def struct(self, depth: int = 0, field: int = 0, last: int = 0) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise IndexError
        found: dict[int, Any] = {}
        offsets, unmoved, wanted = _OFFSETS.get(depth, ()), _UNMOVED.get(depth, ()), _WANTED.get(depth, ())
        while self.data[self.at]:
            field, kind = self.field(field)
            start = self.at
            if field in offsets or field in wanted:
                found[field] = value = self.value(kind, depth)
                if 4 <= kind <= 6 and (field in offsets or (depth == 0 and field == _ORDINAL)):
                    self.places.append((start, self.at, value if field in offsets else None))
                elif 4 <= kind <= 6 and _SIZES.get(depth) == field:
                    self.places.append((start, self.at, _Size(value)))
            elif field in unmoved:
                raise ValueError("something else belongs to it")
            else:
                self.skip(kind, depth)
        self.at += 1
        return found

    def skip(self, kind: int, depth: int) -> None:
        """Go behind a value; one that is too long is noticed where the next one is read."""
        data = self.data
        if 4 <= kind <= 6:
            at = self.at
            while data[at] & 0x80:
                at += 1
            self.at = at + 1
        elif kind == _BINARY:
            length = self.number()
            self.at += length
        elif kind == _STRUCT and depth < MAX_DEPTH:
            while head := data[self.at]:
                self.at += 1
                if head < 16:
                    self.signed()
                self.skip(head & 15, depth + 1)
            self.at += 1
        elif kind == _LIST and depth < MAX_DEPTH and 4 <= (head := data[self.at]) & 15 <= _STRUCT and head < 0xF0:
            self.at += 1
            for _ in range(head >> 4):
                self.skip(head & 15, depth + 1)
        else:
            self.value(kind, depth)

    def group(self) -> _Group:
        """Return the next row group of a file."""
        self.places.clear()
        at = self.at
        found = self.struct()
        spans = [(min(m[9], m.get(11) or m[9]), m[7]) for m in (chunk[3] for chunk in found[1])]
        start = stop = spans[0][0]
        for begin, size in spans:
            if begin != stop or size < 0:
                raise ValueError("it does not lie together")
            stop += size
        entry: list[bytes | int | None] = []
        for first, last, value in self.places:
            entry += [self.data[at:first], value]
            at = last
        return found[3], start, stop, (*entry, self.data[at : self.at])


_Group = tuple[int, int, int, tuple[bytes | int | None, ...]]  # rows, start, stop and entry
_recent: dict[bytes, tuple[bytes, list[_Group], bytes]] = {}  # parts of the footers that were read or written last
_MOST_RECENT = 4  # footers: who changes a file often wrote it himself as a rule


def _note(footer: bytes, parts: tuple[bytes, list[_Group], bytes]) -> tuple[bytes, list[_Group], bytes]:
    for older in list(_recent)[: 1 - _MOST_RECENT]:
        _recent.pop(older, None)
    _recent[footer] = parts
    return parts


def cut(data: bytes) -> Cut:
    """Return the parts of a file; raises what is in ``DAMAGE`` where its row groups cannot be copied."""
    footer = footer_of(data)
    if footer is None:
        raise ValueError("it is unusual")
    head, groups, tail = _recent.get(footer) or _note(footer, _parts(footer))
    end = len(data) - len(footer) - END
    if not all(len(MAGIC) <= start <= stop <= end for _, start, stop, _ in groups):
        raise ValueError("it lies elsewhere")
    whole = memoryview(data)
    return Cut(head, [RowGroup(rows, start, whole[start:stop], entry) for rows, start, stop, entry in groups], tail)


def _parts(footer: bytes) -> tuple[bytes, list[_Group], bytes]:
    head = schema_bytes(footer)
    if head is None:
        raise ValueError("it is unusual")
    reader = _EntryReader(footer)
    reader.at = len(head)
    reader.signed()
    if footer[reader.at] != GROUPS_FOLLOW:
        raise ValueError("it is unusual")
    kind = footer[reader.at + 1]
    reader.at += 2
    count = kind >> 4 if kind >> 4 != 15 else reader.number()
    if count and kind & 15 != _STRUCT:
        raise ValueError("it is damaged")
    return head, [reader.group() for _ in range(count)], footer[reader.at :]


def exchanged(group: RowGroup, old: str, new: str) -> RowGroup:
    """Return a row group with another text in the dictionary of its last column, wherever it was the one before.

    Raises what is in ``DAMAGE``, and OSError, where that cannot be done.
    """
    column, whole = [at for at, part in enumerate(group.entry) if isinstance(part, _Size)][-2:]
    data, before, after = bytes(group.data), old.encode(), new.encode()
    reader = Reader(data)
    reader.at = begin = len(data) - int(group.entry[column] or 0)
    head = reader.struct()
    middle, end = reader.at, reader.at + head[3]
    known, packed = _dictionary_head(head[2], head[3], head[4]), data[middle:end]
    if not data.startswith(known, begin) or head[7][2] not in _PLAIN or not 0 <= head[2] <= _MOST_TEXT:
        raise ValueError("it has no dictionary")
    reader.at = end
    while reader.at < len(data):
        page = reader.struct()
        if (page[5][2] if page[1] == _DATA else page[8][4]) not in _BY_DICTIONARY or page[3] < 0:
            raise ValueError("it has values of its own")
        reader.at += page[3]
    codec, length = pa.Codec("zstd"), len(before).to_bytes(4, "little")
    texts = codec.decompress(packed, head[2], asbytes=True)
    is_fit = len(before) == len(after) and texts.count(length + before) == 1 and length + after not in texts
    if not is_fit or reader.at != len(data) or crc32(packed) != head[4] & 0xFFFFFFFF:
        raise ValueError("it has other texts")
    packed = codec.compress(texts.replace(length + before, length + after), asbytes=True)
    made = _dictionary_head(head[2], len(packed), crc32(packed)) + data[begin + len(known) : middle] + packed
    more, entry = len(made) - (end - begin), list(group.entry)
    for at, part in enumerate(entry):
        if at in (column, whole):
            entry[at] = _Size(int(part or 0) + more)
        elif type(part) is int and part > group.start + begin:
            if part != group.start + end:
                raise ValueError("it lies elsewhere")
            entry[at] = part + more
    return replace(group, data=memoryview(data[:begin] + made + data[end:]), entry=tuple(entry))


def _dictionary_head(size: int, packed: int, checksum: int) -> bytes:
    """Return how a page with a dictionary begins: its kind, sizes and a checksum of 32 bits with a sign."""
    signed = checksum - (checksum >> 31 << 32) if checksum >= 0 else checksum
    numbers = (2 * _DICTIONARY, 2 * size, 2 * packed, signed << 1 ^ signed >> 31)
    return b"".join(b"\x15" + varint(number) for number in numbers)


def joined(parts: Cut) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file of some row groups, which may be those of several files with the same head."""
    yield MAGIC
    at, groups = len(MAGIC), list[_Group]()
    for group in parts.groups:
        yield group.data
        # Some writers leave out an offset with a zero.
        moved = at - group.start
        entry = tuple([part + moved if type(part) is int and part else part for part in group.entry])
        groups.append((group.rows, at, at + len(group.data), entry))
        at += len(group.data)
    assert parts.head[-1] == ROWS_FOLLOW
    count = len(groups)
    listed = bytes([count << 4 | _STRUCT]) if count < 15 else bytes([15 << 4 | _STRUCT]) + varint(count)
    rows = varint(2 * sum(group.rows for group in parts.groups))
    entries = (
        part if isinstance(part, bytes) else varint(2 * (number if part is None else part))
        for number, (*_, entry) in enumerate(groups)
        for part in entry
    )
    footer = b"".join([parts.head, rows, bytes([GROUPS_FOLLOW]), listed, *entries, parts.tail])
    _note(footer, (parts.head, groups, parts.tail))
    yield footer + len(footer).to_bytes(4, "little") + MAGIC
