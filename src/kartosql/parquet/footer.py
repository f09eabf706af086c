"""The footer of a Parquet file: its schema as bytes, the sizes of its columns, and their bounds where these are exact.

Footers are read here, byte by byte. Arrow may be asked about columns of row groups only where ``column_sizes`` tells
their sizes: it ends the process over columns that are encrypted, or say that they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from kartosql.parquet.thrift import DAMAGE, Reader

MAGIC = b"PAR1"
GEO = b"geo"  # the key of GeoParquet's note
END = len(MAGIC) + 4  # behind the footer: its length, and the magic bytes
_SCHEMA, _ROWS = 2, 3  # fields of FileMetaData
_BOUNDS = (1, 2, 5, 6)  # fields of Statistics
_SHORT_TEXT = 32  # bytes; writers that cut texts in statistics keep at least so many
_BOOLEAN, _INT32, _INT64, _BYTE_ARRAY, _FIXED = 0, 1, 2, 6, 7  # physical types
_PHYSICAL = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_LENGTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8, _BYTE_ARRAY: None}  # of values, by physical type
_UTF8, _DATE, _DECIMAL, _MILLIS, _MICROS = 0, 6, 5, 9, 10  # converted types
_SIGNED = (15, 16, 17, 18)
_BAD = (*DAMAGE, struct.error)


def footer_of(tail: bytes) -> bytes | None:
    """Return the footer, given the last bytes of a file; None if they do not hold it, or it is encrypted."""
    length = length_of(tail)
    return tail[-length:-END] if length is not None and length <= len(tail) else None


def length_of(tail: bytes) -> int | None:
    """Return how many bytes the footer of a file and its end take, given at least that end; None if it has none."""
    if len(tail) < END or not tail.endswith(MAGIC):
        return None
    return int.from_bytes(tail[-END : -len(MAGIC)], "little") + END


def schema_bytes(footer: bytes) -> bytes | None:
    """Return the first bytes of a footer, up to where the number of rows begins; None for unusual footers.

    These are the version and the schema, in Thrift's compact protocol, which is read from
    the left: every footer that begins with the same bytes has the same schema.
    """
    reader, field = Reader(footer), 0
    try:
        while field < _SCHEMA:
            field, kind = reader.field(field)
            reader.value(kind)
        following, _ = reader.field(field)
    except IndexError:
        return None
    return footer[: reader.at] if (field, following) == (_SCHEMA, _ROWS) else None


def notes_of(footer: bytes, key: bytes) -> list[bytes]:
    """Return what a footer notes behind the schema under a key; raises what is in ``DAMAGE``."""
    return [pair.get(2, b"") for pair in Reader(footer).struct().get(5, ()) if pair[1] == key]


@dataclass(frozen=True)
class Leaf:
    """A column: its types, the length of its values if that is fixed, its greatest levels and its scale."""

    physical: int
    length: int | None
    definition: int
    repetition: int
    converted: int | None
    logical: dict[int, Any]
    scale: int


class Footer:
    """The footer of one file; raises ValueError if it is none that can be read."""

    def __init__(self, data: bytes) -> None:
        try:
            found = Reader(data).struct()
            self.groups: list[dict[int, Any]] = found[4]
            self.leaves: list[Leaf] = []
            self._places: dict[str, int] = {}
            self._unsure: set[str] = set()
            for place, (path, element, definition, repetition) in enumerate(_leaves_of(found[2])):
                name = path.lower()
                # Of two columns that differ in case only, it is not known which is meant.
                if name in self._places:
                    self._unsure.add(name)
                self._places[name] = place
                self.leaves.append(_leaf(element, definition, repetition))
        except _BAD:
            raise ValueError("the footer is damaged") from None

    def bounds(self, column: str, type_: pa.DataType) -> tuple[Any, Any] | None:
        """Return the least and greatest value of a column, both None if it has none but NULL.

        Dates and times are days and microseconds since 1970. None, where the footer does not tell:
        floating-point numbers may be NaN, of which statistics know nothing, and texts may be cut.
        """
        name = column.lower()
        if name not in self._places or name in self._unsure:
            return None
        place = self._places[name]
        leaf = self.leaves[place]
        try:
            decode = _decoder(leaf, type_)
            return None if decode is None else self._bounds(place, leaf, decode)
        except _BAD:
            return None

    def _bounds(self, place: int, leaf: Leaf, decode: Callable[[bytes], Any]) -> tuple[Any, Any] | None:
        lows, highs = [], []
        for group in self.groups:
            chunk = group[1][place]
            if 8 in chunk or 9 in chunk:
                return None  # encrypted
            meta = chunk[3]
            if meta[1] != leaf.physical:
                return None
            stats = meta.get(12, {})
            if stats.get(3) == meta[5]:
                continue
            # The older fields are in an order that only signed numbers have for certain.
            older = leaf.physical in (_INT32, _INT64)
            low = stats.get(6, stats.get(2) if older else None)
            high = stats.get(5, stats.get(1) if older else None)
            if low is None or high is None or stats.get(7) is False or stats.get(8) is False:
                return None
            found = decode(low), decode(high)
            if found[0] > found[1]:
                return None
            lows.append(found[0])
            highs.append(found[1])
        return (min(lows), max(highs)) if lows else (None, None)


def column_sizes(footer: bytes, schema: Any = None) -> list[list[tuple[str, int]]] | None:
    """Return the dotted path and the compressed bytes of each column in each row group.

    None if what tells about a column is encrypted, left out or damaged. Arrow must not be asked about
    such columns, as it ends the process; who wants to ask it hands over its ``schema`` of the file,
    which has to agree.
    """
    try:
        found = Footer(footer)
        groups = [group[1] for group in found.groups]
        leaves = [(leaf.physical, leaf.length, leaf.definition, leaf.repetition) for leaf in found.leaves]
        if schema is not None and leaves != [_told(schema.column(at)) for at in range(len(schema))]:
            return None
        if any(len(chunks) != len(leaves) for chunks in groups):
            return None
        return [[_column(*pair) for pair in zip(chunks, found.leaves, strict=True)] for chunks in groups]
    except DAMAGE:
        return None


def _leaves_of(elements: list[dict[int, Any]]) -> Iterator[tuple[str, dict[int, Any], int, int]]:
    """Yield the columns of a schema in order: dotted path, element, and the levels of definition and repetition.

    Raises what is in ``DAMAGE`` for what is no schema.
    """
    at = 1
    # Path, members left and levels of the groups around.
    around: list[list[Any]] = [["", elements[0].get(5, 0), 0, 0]]
    while around:
        if not around[-1][1]:
            around.pop()
            continue
        around[-1][1] -= 1
        before, _, definition, repetition = around[-1]
        element = elements[at]
        at += 1
        name = element[4].decode()
        path = f"{before}.{name}" if before else name
        definition += element.get(3) in (1, 2)
        repetition += element.get(3) == 2
        if element.get(5):
            around.append([path, element[5], definition, repetition])
        else:
            yield path, element, definition, repetition


def _leaf(element: dict[int, Any], definition: int, repetition: int) -> Leaf:
    physical, logical = element[1], element.get(10, {})
    length = element.get(2, 0) if physical == _FIXED else _LENGTHS[physical]
    scale = logical.get(5, {}).get(1, element.get(7, 0)) if 5 in logical else element.get(7, 0)
    return Leaf(physical, length, definition, repetition, element.get(6), logical, scale)


def _told(column: Any) -> tuple[int, int | None, int, int]:
    physical = _PHYSICAL.index(column.physical_type)
    length = column.length if physical == _FIXED else _LENGTHS[physical]
    return physical, length, column.max_definition_level, column.max_repetition_level


def _column(chunk: dict[int, Any], leaf: Leaf) -> tuple[str, int]:
    """Return the path and the size of a column in a row group; raises ValueError where Arrow would, for good."""
    if 8 in chunk or 9 in chunk:
        raise ValueError("encrypted")
    meta = chunk[3]
    size, sizes = meta[7], meta.get(16, {})
    if meta[1] != leaf.physical or not isinstance(size, int) or size < 0:
        raise ValueError("damaged")
    for field, level in ((2, leaf.repetition), (3, leaf.definition)):
        if len(sizes.get(field, ())) not in (0, level + 1):
            raise ValueError("damaged")
    if 1 in sizes and leaf.physical != _BYTE_ARRAY:
        raise ValueError("damaged")
    if leaf.length is not None and any(
        len(meta.get(12, {}).get(f, b" " * leaf.length)) != leaf.length for f in _BOUNDS
    ):
        raise ValueError("damaged")
    return ".".join(name.decode() for name in meta[3]), size


def _decoder(leaf: Leaf, type_: pa.DataType) -> Callable[[bytes], Any] | None:
    """Return what reads a statistic of a column as a value of a type, None for other columns and types."""
    types, logical, converted = pa.types, leaf.logical, leaf.converted
    plain = {_INT32: "<i", _INT64: "<q"}.get(leaf.physical, "")
    if leaf.repetition:
        return None
    if types.is_signed_integer(type_):
        signed = not logical or (10 in logical and logical[10].get(2) is True)
        if plain and signed and (converted is None or converted in _SIGNED):
            return lambda raw: struct.unpack(plain, raw)[0]
    elif types.is_date32(type_):
        if leaf.physical == _INT32 and (6 in logical or converted == _DATE):
            return lambda raw: struct.unpack("<i", raw)[0]
    elif types.is_timestamp(type_):
        factor = _factor(leaf)
        if factor:
            return lambda raw: struct.unpack("<q", raw)[0] * factor
    elif types.is_string(type_):
        if leaf.physical == _BYTE_ARRAY and (1 in logical or converted == _UTF8):
            return _text
    elif types.is_boolean(type_):
        if leaf.physical == _BOOLEAN:
            return lambda raw: bool(struct.unpack("<?", raw)[0])
    elif types.is_decimal128(type_) and (5 in logical or converted == _DECIMAL) and leaf.scale == type_.scale:
        if plain:
            return lambda raw: _scaled(struct.unpack(plain, raw)[0], leaf.scale)
        if leaf.physical in (_BYTE_ARRAY, _FIXED):
            return lambda raw: _decimal(raw, leaf.scale)
    return None


def _factor(leaf: Leaf) -> int:
    """Return by what times have to be multiplied to be microseconds, 0 where they cannot."""
    if leaf.physical != _INT64:
        return 0
    unit = leaf.logical.get(8, {}).get(2, {}) if 8 in leaf.logical else {}
    if 1 in unit or (not leaf.logical and leaf.converted == _MILLIS):
        return 1000
    return 1 if 2 in unit or (not leaf.logical and leaf.converted == _MICROS) else 0


def _text(raw: bytes) -> str:
    if len(raw) >= _SHORT_TEXT:
        raise ValueError
    return raw.decode()


def _decimal(raw: bytes, scale: int) -> Decimal:
    if not 0 < len(raw) <= 16:
        raise ValueError
    return _scaled(int.from_bytes(raw, "big", signed=True), scale)


def _scaled(unscaled: int, scale: int) -> Decimal:
    """Return ``unscaled`` / 10 ** ``scale`` exactly; Decimal's own arithmetic rounds to the digits of its context."""
    return Decimal(f"{unscaled}E{-scale}")
