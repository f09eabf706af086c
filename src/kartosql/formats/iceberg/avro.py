"""Records of Avro files, by functions made of pyiceberg's readers, which stay within the bytes they were given.

Its fast decoder trusts the lengths in a file, and a damaged one lets it read outside of them, which ends the process;
it also takes a file that ends within a block for one that ends before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache, lru_cache
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import (
    BinaryReader,
    IntegerReader,
    MapReader,
    NoneReader,
    OptionReader,
    Reader,
    StringReader,
    StructReader,
)
from pyiceberg.avro.resolver import EnumReader, construct_reader, resolve_reader
from pyiceberg.schema import Schema
from pyiceberg.utils.schema_conversion import AvroSchemaConversion


class _Decoder(BinaryDecoder):  # type: ignore[misc, unused-ignore]
    """Decodes bytes; raises EOFError where they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

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
    """Reads records of files as a schema wants them, with a function that is made for how a file has them."""

    def __init__(
        self, schema: Schema, types: Mapping[int, Callable[..., Any]], enums: Mapping[int, Callable[..., Enum]]
    ) -> None:
        self._wanted = schema, dict(types), dict(enums)
        self._made = lru_cache(maxsize=32)(self._make)

    def _make(self, written: str) -> _Block:
        reader = resolve_reader(AvroSchemaConversion().avro_to_iceberg(json.loads(written)), *self._wanted)
        return _Source().block(reader)

    def __call__(self, data: bytes) -> Iterator[Any]:
        """Yield the records of a file; raises EOFError, ValueError, and what pyiceberg does."""
        decoder = _Decoder(data)
        header: AvroFileHeader = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
        if header.magic != MAGIC:
            raise ValueError("it is no file of Avro")
        read, codec = self._made(header.meta["avro.schema"]), header.compression_codec()
        while decoder.tell() < len(data):
            count, block = decoder.read_int(), decoder.read_bytes()
            block = codec.decompress(block) if codec is not None else block
            if not 0 <= count <= len(block):
                raise ValueError(f"{count} records in {len(block)} bytes")
            try:
                found, end = read(block, count, _Decoder(block))
            except IndexError:
                raise EOFError(f"records behind {len(block)} bytes") from None
            yield from found
            if end != len(block) or decoder.read(SYNC_SIZE) != header.sync:
                raise ValueError("a block does not end where its records do")


class _Source:
    """The Python of a function that reads a block: text of our own alone, what files say is in its values."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._values: dict[str, Any] = {"number": _number, "slice": _slice, "small": _SMALL}

    def block(self, reader: Reader) -> _Block:
        """Return the function."""
        found = self._read(reader, "  ")
        head = "def read(data, count, decoder):\n at, found = 0, []\n for _ in range(count):\n"
        text = f"{head}{''.join(self._lines)}  found.append({found})\n return found, at"
        exec(text, self._values)
        made: _Block = self._values["read"]
        return made

    def _value(self, value: Any) -> str:
        name = f"v{len(self._values)}"
        self._values[name] = value
        return name

    def _add(self, indent: str, *lines: str) -> None:
        self._lines += [f"{indent}{line}\n" for line in lines]

    def _read(self, reader: Reader, indent: str) -> str:
        """Add what reads a value, and return what it is then called."""
        found = f"x{len(self._lines)}"
        if isinstance(reader, StructReader):
            return self._struct(reader, found, indent)
        if isinstance(reader, NoneReader):
            return "None"
        if isinstance(reader, EnumReader):
            self._add(indent, f"{found} = {self._value(cache(reader.enum))}({self._read(reader.reader, indent)})")
        elif isinstance(reader, OptionReader):
            self._number(found, indent)
            self._add(indent, f"if {found} > 0:")
            self._add(f"{indent} ", f"{found} = {self._read(reader.option, f'{indent} ')}")
            self._add(indent, "else:", f" {found} = None")
        elif isinstance(reader, IntegerReader):
            self._number(found, indent)
        elif isinstance(reader, BinaryReader | StringReader):
            self._add(indent, f"{found}, at = slice(data, at)")
            if isinstance(reader, StringReader):
                self._add(indent, f"{found} = {found}.decode()")
        elif (
            isinstance(reader, MapReader)
            and isinstance(reader.key, IntegerReader)
            and isinstance(reader.value, IntegerReader | BinaryReader)
        ):
            self._add(indent, f"{found}, at = {self._value(_maps(reader))}(data, at, decoder)")
        else:
            self._careful(reader.read, found, indent)
        return found

    def _number(self, found: str, indent: str) -> None:
        self._add(indent, f"{found} = data[at]", f"if {found} < 128:", f" {found} = small[{found}]; at += 1")
        self._add(indent, "else:", f" {found}, at = number(data, at)")

    def _struct(self, reader: StructReader, found: str, indent: str) -> str:
        members = ["None"] * (1 + max((place for place, _ in reader.field_readers if place is not None), default=-1))
        for place, member in reader.field_readers:
            if place is None:
                self._careful(member.skip, "_", indent)
            else:
                members[place] = self._read(member, indent)
        self._add(indent, f"{found} = {self._value(reader.create_struct)}({', '.join(members)})")
        return found

    def _careful(self, read: Callable[[BinaryDecoder], Any], found: str, indent: str) -> None:
        self._add(indent, "decoder._at = at", f"{found} = {self._value(read)}(decoder)", "at = decoder._at")


_Block = Callable[[bytes, int, _Decoder], tuple[list[Any], int]]
_SMALL = [(byte >> 1) ^ -(byte & 1) for byte in range(128)]
_NUMBER = rb"[\x80-\xff]{0,8}[\x00-\x7f]"
# Bounds have few bytes; what has more, and long lists, are read with care.
_SHORT = b"|".join(re.escape(bytes([2 * size])) + b".{%d}" % size for size in (8, 4, *range(4), 5, 6, 7, *range(9, 33)))
_MANY = 1024


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


def _slice(data: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes that stand behind their number, and the place behind them."""
    size, at = _number(data, at)
    if not at <= (end := at + size) <= len(data):
        raise EOFError(f"{size} bytes at {at} of {len(data)}")
    return data[at:end], end


@cache
def _step(value: bytes, many: int) -> Callable[[bytes, int], re.Match[bytes] | None]:
    return re.compile(b"(?:%b(?:%b)){%d}" % (_NUMBER, value, many), re.DOTALL).match


@lru_cache(maxsize=2 * _MANY)
def _steps(value: bytes, items: int) -> list[Callable[[bytes, int], re.Match[bytes] | None]]:
    """Return what finds the end of so many items: powers of two, so that a few patterns do for all lengths."""
    return [_step(value, 1 << bit) for bit in range(items.bit_length()) if items >> bit & 1]


def _maps(reader: MapReader) -> Callable[[bytes, int, _Decoder], tuple[Mapping[int, Any], int]]:
    """Return what reads maps of numbers: it looks where one ends, and leaves what it holds for when it is asked for."""
    is_int = isinstance(reader.value, IntegerReader)
    value, decode = (_NUMBER, _number) if is_int else (_SHORT, _slice)

    def read(data: bytes, at: int, decoder: _Decoder) -> tuple[Mapping[int, Any], int]:
        items, start = (_SMALL[byte], at + 1) if (byte := data[at]) < 128 else _number(data, at)
        if 0 < items < _MANY:
            end = start
            for match in _steps(value, items):
                if (found := match(data, end)) is None:
                    break
                end = found.end()
            else:
                if data[end] == 0:
                    return _Map(data[start:end], decode), end + 1
        decoder._at = at
        return reader.read(decoder), decoder._at

    return read


class _Map(Mapping[int, Any]):
    """A map whose bytes are decoded when it is asked for a value; they are known to hold one."""

    __slots__ = ("_found", "_read")

    def __init__(self, data: bytes, read: Callable[[bytes, int], tuple[Any, int]]) -> None:
        self._found: bytes | dict[int, Any] = data
        self._read = read

    def _all(self) -> dict[int, Any]:
        if not isinstance(data := self._found, bytes):
            return data
        at, found, read = 0, dict[int, Any](), self._read
        while at < len(data):
            key, at = (_SMALL[byte], at + 1) if (byte := data[at]) < 128 else _number(data, at)
            found[key], at = read(data, at)
        self._found = found
        return found

    def __getitem__(self, key: int) -> Any:
        return self._all()[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
