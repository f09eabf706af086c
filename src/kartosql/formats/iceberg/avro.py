"""Records of Avro files, by pyiceberg's readers over a decoder that stays within the bytes it was given.

Its fast decoder trusts the lengths in a file, and a damaged one lets it read outside of them, which ends the process;
it also takes a file that ends within a block for one that ends before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.schema import Schema


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
        found = shift = 0
        try:
            while (byte := self._data[self._at]) > 0x7F:
                self._at += 1
                found |= (byte & 0x7F) << shift
                shift += 7
        except IndexError:
            raise EOFError(f"a number behind {len(self._data)} bytes") from None
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
        self._at += 1
        found |= byte << shift
        return (found >> 1) ^ -(found & 1)

    def read_int_bytes_dict(self, n: int, dest: dict[int, bytes]) -> None:
        """Put numbers with their bytes into a dictionary."""
        read_int, data = self.read_int, self._data
        for _ in range(n):
            key, length, start = read_int(), read_int(), self._at
            self._at = end = start + length
            if not start <= end <= len(data):
                raise EOFError(f"{length} bytes at {start} of {len(data)}")
            dest[key] = data[start:end]

    def skip_int(self) -> None:
        """Go on behind a number."""
        self.read_int()


def records(
    data: bytes, schema: Schema, types: Mapping[int, Callable[..., Any]], enums: Mapping[int, Callable[..., Enum]]
) -> Iterator[Any]:
    """Yield the records of a file as a schema wants them; raises EOFError, ValueError, and what pyiceberg does."""
    decoder = _Decoder(data)
    header: AvroFileHeader = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    if header.magic != MAGIC:
        raise ValueError("it is no file of Avro")
    reader = resolve_reader(header.get_schema(), schema, dict(types), dict(enums))
    codec = header.compression_codec()
    while decoder.tell() < len(data):
        count, block = decoder.read_int(), decoder.read_bytes()
        block = codec.decompress(block) if codec is not None else block
        if not 0 <= count <= len(block):
            raise ValueError(f"{count} records in {len(block)} bytes")
        inner = _Decoder(block)
        for _ in range(count):
            yield reader.read(inner)
        if inner.tell() != len(block) or decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block does not end where its records do")
