"""Records of Avro files, within the bytes they were given: whole, by pyiceberg's readers, or as columns of bytes.

Its fast decoder trusts the lengths in a file, and a damaged one lets it read outside of them, which ends the process;
it also takes a file that ends within a block for one that ends before it.

Of many records only some fields are wanted. Where these begin and end is found by one pattern for a whole record, made
of the lengths that were met in records before it. A record with other lengths is walked value by value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import (
    BinaryReader,
    IntegerReader,
    ListReader,
    MapReader,
    OptionReader,
    Reader,
    StringReader,
    StructReader,
)
from pyiceberg.avro.resolver import EnumReader, construct_reader, resolve_reader
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, LongType, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

_INTEGER, _BINARY = construct_reader(LongType()), construct_reader(BinaryType())
COUNTS, BOUNDS = (OptionReader(MapReader(_INTEGER, value)) for value in (_INTEGER, _BINARY))
LISTS = OptionReader(ListReader(_INTEGER))
# In front of what may be NULL; the last one for maps that no pattern finds, which readers take for the one before.
NOTHING, _SOMETHING, _ODD = b"\x00", b"\x02", b"\x04"


class _Decoder(BinaryDecoder):  # type: ignore[misc, unused-ignore]
    """Decodes bytes; raises EOFError where they end too early."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self._at = data, at

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def read(self, n: int) -> bytes:
        """Return the next bytes."""
        start, self._at = self._at, self._at + n
        if not start <= self._at <= len(self._data):
            raise EOFError(f"{n} bytes at {start} of {len(self._data)}")
        return self._data[start : self._at]

    def skip(self, n: int) -> None:
        """Go on behind the next bytes."""
        self.read(n)

    def read_int(self) -> int:
        """Return a number of up to 64 bits."""
        try:
            found, self._at = _number(self._data, self._at)
        except IndexError:
            raise EOFError(f"a number behind {len(self._data)} bytes") from None
        return found

    def read_int_bytes_dict(self, n: int, dest: dict[int, bytes]) -> None:
        """Put numbers with their bytes into a dictionary."""
        read_int, data = self.read_int, self._data
        for _ in range(n):
            key, length, start = read_int(), read_int(), self._at
            self._at = end = start + length
            if not start <= end <= len(data):
                raise EOFError(f"{length} bytes at {start} of {len(data)}")
            dest[key] = data[start:end]


class Records:
    """Reads records of files as a schema wants them."""

    def __init__(
        self, schema: Schema, types: Mapping[int, Callable[..., Any]], enums: Mapping[int, Callable[..., Enum]]
    ) -> None:
        self._wanted = schema, dict(types), dict(enums)
        self.reader = lru_cache(maxsize=32)(self._reader)
        self._walk = lru_cache(maxsize=32)(lambda written: _Walk(self.reader(written), schema.as_struct()))

    def field(self, written: str, id_: int) -> Reader:
        """Return what reads one of ``columns``."""
        walk = self._walk(written)
        return walk.readers[walk.wanted.index(id_)]

    def _reader(self, written: str) -> StructReader:
        """Return what reads records of the schema that a file has."""
        found = resolve_reader(AvroSchemaConversion().avro_to_iceberg(json.loads(written)), *self._wanted)
        assert isinstance(found, StructReader)
        return found

    def __call__(self, data: bytes) -> Iterator[Any]:
        """Yield the records of a file; raises EOFError, ValueError, and what pyiceberg does."""
        written, whole, ends = _opened(data)
        reader, decoder, at = self.reader(written), _Decoder(whole), 0
        for count, end in ends:
            yield from (reader.read(decoder) for _ in range(count - at))
            at = count
            _check_end(decoder.tell(), end)

    def columns(self, data: bytes) -> tuple[str, dict[int, tuple[Reader, Sequence[bytes]]]]:
        """Return the schema that a file has, and the bytes of fields of all records by their ids; raises as above.

        Members of structs of which the schema names some are fields as well.
        """
        written, whole, ends = _opened(data)
        walk = self._walk(written)
        rows, stops = walk(whole, ends[-1][0])
        if len(rows) != ends[-1][0]:
            raise ValueError(f"{ends[-1][0]} records are {len(rows)}")
        for count, end in ends:
            _check_end(stops[count], end)
        columns = [*zip(*rows, strict=True)] or [()] * len(walk.wanted)
        return written, dict(zip(walk.wanted, zip(walk.readers, columns, strict=True), strict=True))


def _check_end(found: int, end: int) -> None:
    if found != end:
        raise ValueError("a block does not end where its records do")


def _opened(data: bytes) -> tuple[str, bytes, list[tuple[int, int]]]:
    """Return the schema of a file, the bytes of its records, and of each block the records and bytes up to its end."""
    decoder, blocks, ends, size = _Decoder(data), list[bytes](), [(0, 0)], 0
    header: AvroFileHeader = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    if header.magic != MAGIC:
        raise ValueError("it is no file of Avro")
    codec, sync = header.compression_codec(), header.sync
    while decoder.tell() < len(data):
        count, block = decoder.read_int(), decoder.read_bytes()
        block = codec.decompress(block) if codec is not None else block
        if not 0 <= count <= len(block):
            raise ValueError(f"{count} records in {len(block)} bytes")
        if decoder.read(SYNC_SIZE) != sync:
            raise ValueError("a block does not end where it says")
        blocks.append(block)
        size += len(block)
        ends.append((ends[-1][0] + count, size))
    return header.meta["avro.schema"], b"".join(blocks), ends


_MANY = 512  # items
_MOST_SHAPES = 48  # of records of one schema that are learned
_NEAR = 16  # lengths of texts that are learned together


class _Walk:
    """Finds the fields of records of one schema."""

    def __init__(self, reader: StructReader, wanted: StructType) -> None:
        fields = [*_fields(reader, wanted)]
        known = {id_: own for id_, own in fields if id_ is not None}
        self.wanted, self.readers = [*known], [*known.values()]
        self._fields = [(id_ is not None, [*_leaves(own)]) for id_, own in fields]
        # Of each value the patterns that were learned. Threads may lose some of each other, and learn them again.
        self._shapes: tuple[frozenset[bytes], ...] = (frozenset(),) * sum(len(leaves) for _, leaves in self._fields)
        self._pattern: Any = None
        self._left = _MOST_SHAPES

    def __call__(self, data: bytes, count: int) -> tuple[list[Sequence[bytes]], list[int]]:
        """Return the wanted fields of records, and the place behind each, after that of the first."""
        rows, stops = list[Sequence[bytes]](), [0]
        while len(rows) < count:
            if self._pattern is not None:
                # One match behind the other, as ``re.Scanner`` has it; a search would look behind what is odd.
                found = [*iter(self._pattern.scanner(data, stops[-1]).match, None)]
                rows += [match.groups() for match in found]
                stops += [match.end() for match in found]
            if len(rows) < count:
                row, end = self._carefully(data, stops[-1])
                rows.append(row)
                stops.append(end)
        return rows, stops

    def _carefully(self, data: bytes, at: int) -> tuple[list[bytes], int]:
        """Return the wanted fields of a record and the place behind it, and learn its lengths."""
        decoder, row, learned = _Decoder(data, at), list[bytes](), list[bytes | None]()
        for is_wanted, leaves in self._fields:
            begin = decoder.tell()
            for leaf in leaves:
                start = decoder.tell()
                leaf.read(decoder)
                learned.append(_shape(leaf, data[start : decoder.tell()]))
            if is_wanted:
                is_odd = leaves in ([COUNTS], [BOUNDS]) and learned[-1] is None
                row.append((_ODD if is_odd else data[begin : begin + 1]) + data[begin + 1 : decoder.tell()])
        if self._left > 0 and None not in learned:
            self._left -= 1
            self._learn([shape or b"" for shape in learned])
        return row, decoder.tell()

    def _learn(self, learned: Sequence[bytes]) -> None:
        self._shapes = known = tuple(own | {new} for own, new in zip(self._shapes, learned, strict=True))
        values, found = iter(known), list[bytes]()
        for is_wanted, leaves in self._fields:
            text = b"".join(b"(?:%b)" % b"|".join(sorted(next(values))) for _ in leaves)
            found.append(b"(%b)" % text if is_wanted else text)
        self._pattern = re.compile(b"".join(found), re.DOTALL)


def _fields(reader: StructReader, wanted: StructType) -> Iterator[tuple[int | None, Reader]]:
    """Yield the fields of a record as a file has them, with their ids, None for those that nobody wants."""
    for place, member in reader.field_readers:
        field = None if place is None else wanted.fields[place]
        if field is not None and isinstance(field.field_type, StructType) and field.field_type.fields:
            assert isinstance(member, StructReader)
            yield from _fields(member, field.field_type)
        else:
            yield None if field is None else field.field_id, member


def _leaves(reader: Reader) -> Iterator[Reader]:
    """Yield what reads the values that a field consists of, one behind the other."""
    if isinstance(reader, StructReader):
        for _, member in reader.field_readers:
            yield from _leaves(member)
    else:
        yield reader.reader if isinstance(reader, EnumReader) else reader


def _shape(reader: Reader, data: bytes) -> bytes | None:
    """Return a pattern of values with the lengths of one, None if there is none, or it would not find this one."""
    if isinstance(reader, OptionReader):
        if data == NOTHING:
            return NOTHING
        inner = _shape(reader.option, data[1:]) if data[:1] == _SOMETHING else None
        return None if inner is None else _SOMETHING + inner
    if isinstance(reader, IntegerReader):
        return _NUMBER
    if isinstance(reader, BinaryReader | StringReader):
        size = (len(data) - _number(data, 0)[1]) & -_NEAR
        return _sized(range(size, size + _NEAR))
    if isinstance(reader, ListReader | MapReader):
        return _repeated(reader, data)
    return b".{%d}" % len(data) if not isinstance(reader, StructReader) else None


def _encoded(number: int) -> bytes:
    found, left = bytearray(), number << 1
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def _sized(sizes: Iterable[int]) -> bytes:
    """Return the pattern of texts of some lengths."""
    return b"(?:%b)" % b"|".join(re.escape(_encoded(size)) + b".{%d}" % size for size in sizes)


_NUMBER = rb"[\x80-\xff]{0,8}[\x00-\x7f]"
_SIZES = (8, 4, 16, *range(4), 5, 6, 7, *range(9, 16), *range(17, 64))  # of bounds, those that are met often first
_SHORT, _LONGER = _sized(_SIZES), _sized(range(300))


def _repeated(reader: ListReader | MapReader, data: bytes) -> bytes | None:
    """Return the pattern of lists or maps with as many items, in one piece."""
    (items, at), value = _number(data, 0), reader.element if isinstance(reader, ListReader) else reader.value
    if items == 0:
        return NOTHING
    is_known = isinstance(reader, ListReader) or isinstance(reader.key, IntegerReader)
    if not is_known or not isinstance(value, IntegerReader | BinaryReader) or abs(items) >= _MANY:
        return None
    head = re.escape(data[:at]) + (_NUMBER if items < 0 else b"")
    key = b"" if isinstance(reader, ListReader) else _NUMBER
    for inner in (_NUMBER,) if isinstance(value, IntegerReader) else (_SHORT, _LONGER):
        found = b"%b(?:%b%b){%d}\x00" % (head, key, inner, abs(items))
        if re.fullmatch(found, data, re.DOTALL):
            return found
    return None


_SMALL = [(byte >> 1) ^ -(byte & 1) for byte in range(128)]


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and the place behind it; raises IndexError behind the end."""
    found, shift = 0, 0
    while (byte := data[at]) > 0x7F:
        found |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    if shift > 63:
        raise ValueError("a number of more than 64 bits")
    found |= byte << shift
    return (found >> 1) ^ -(found & 1), at + 1


def values(reader: Reader, pieces: Sequence[bytes]) -> list[Any]:
    """Return the values of a field of which the bytes are given."""
    if isinstance(reader, StringReader):
        return [piece[_number(piece, 0)[1] :].decode() for piece in pieces]
    is_int = isinstance(reader, IntegerReader)
    known = {p: _number(p, 0)[0] if is_int else reader.read(_Decoder(p)) for p in {*pieces}}
    return [known[piece] for piece in pieces]


def alike(reader: Reader, pieces: Sequence[bytes], wanted: OptionReader) -> Sequence[bytes]:
    """Return a field as ``wanted`` reads it, with NULL for what is of another form."""
    if reader == wanted:
        return pieces
    return [_ODD + piece if reader == wanted.option else NOTHING for piece in pieces]


# How many items there are; maps with a negative number, after which their bytes are told, are read by readers.
_HEAD = b"(?:[%b]|[%b][\x80-\xff]{0,7}[\x00-\x7f])"
_HEAD %= tuple(b"".join(re.escape(bytes([n])) for n in range(begin, begin + 128, 2)) for begin in (0, 128))


def of_key(reader: OptionReader, pieces: Sequence[bytes], key: int) -> list[Any]:
    """Return the values that maps as ``COUNTS`` or ``BOUNDS`` reads them have for a key, None for those without one."""
    value, own = _NUMBER if reader == COUNTS else _SHORT, re.escape(_encoded(key))
    rest = b"(?:(?!%b)%b%b)*" % (own, _NUMBER, value)
    text = b"\x02%b(?:%b%b)*?(?:%b(%b)%b)?\x00" % (_HEAD, _NUMBER, value, own, value, rest)
    match, found, last, own_value = re.compile(text, re.DOTALL).fullmatch, list[Any](), b"", None
    for piece in pieces:
        if piece != last:  # as of many counts
            if (one := match(piece)) is None:
                own_value = (reader.read(_Decoder(piece)) or {}).get(key)
            else:
                own_value = (raw := one[1]) and (raw[1:] if value is _SHORT else _number(raw, 0)[0])
            last = piece
        found.append(own_value)
    return found
