"""Bounds of columns in the footers of Parquet files, where these tell them exactly.

Footers are read here, byte by byte, and not by Arrow: it ends the process over columns that are
encrypted, or say that they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from kartosql.errors import KartosqlError
from kartosql.formats.arrays import decimal_of
from kartosql.formats.footer import footer_of, leaves_of
from kartosql.formats.thrift import DAMAGE, Reader
from kartosql.store import Store

MAX_FOOTER = 64 << 20
TAIL = 64 << 10
_SHORT_TEXT = 32  # bytes; writers that cut texts in statistics keep at least so many
_BOOLEAN, _INT32, _INT64, _BYTE_ARRAY, _FIXED = 0, 1, 2, 6, 7  # physical types
_UTF8, _DATE, _DECIMAL, _MILLIS, _MICROS = 0, 6, 5, 9, 10  # converted types
_SIGNED = (15, 16, 17, 18)
_BAD = (*DAMAGE, struct.error)


@dataclass(frozen=True)
class _Leaf:
    """A column: its physical and converted type, the kind of its logical type, scale, and whether it repeats."""

    physical: int
    converted: int | None
    logical: dict[int, Any]
    scale: int
    repeats: bool


class Footer:
    """The footer of one file; raises ValueError if it is none that can be read."""

    def __init__(self, data: bytes) -> None:
        try:
            found = Reader(data).struct()
            self._groups: list[dict[int, Any]] = found[4]
            self._leaves: dict[str, tuple[int, _Leaf]] = {}
            self._unsure: set[str] = set()
            for place, (path, element, _, repetition) in enumerate(leaves_of(found[2])):
                name = path.lower()
                # Of two columns that differ in case only, it is not known which is meant.
                if name in self._leaves:
                    self._unsure.add(name)
                self._leaves[name] = place, _leaf(element, repetition)
        except _BAD:
            raise ValueError("the footer is damaged") from None

    def bounds(self, column: str, type_: pa.DataType) -> tuple[Any, Any] | None:
        """Return the least and greatest value of a column, both None if it has none but NULL.

        Dates and times are days and microseconds since 1970. None, where the footer does not tell:
        floating-point numbers may be NaN, of which statistics know nothing, and texts may be cut.
        """
        name = column.lower()
        if name not in self._leaves or name in self._unsure:
            return None
        place, leaf = self._leaves[name]
        try:
            decode = _decoder(leaf, type_)
            return None if decode is None else self._bounds(place, leaf, decode)
        except _BAD:
            return None

    def _bounds(self, place: int, leaf: _Leaf, decode: Callable[[bytes], Any]) -> tuple[Any, Any] | None:
        lows, highs = [], []
        for group in self._groups:
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


def _leaf(element: dict[int, Any], repetition: int) -> _Leaf:
    logical = element.get(10, {})
    scale = logical.get(5, {}).get(1, element.get(7, 0)) if 5 in logical else element.get(7, 0)
    return _Leaf(element[1], element.get(6), logical, scale, repetition > 0)


def _decoder(leaf: _Leaf, type_: pa.DataType) -> Callable[[bytes], Any] | None:
    """Return what reads a statistic of a column as a value of a type, None for other columns and types."""
    types, logical, converted = pa.types, leaf.logical, leaf.converted
    plain = {_INT32: "<i", _INT64: "<q"}.get(leaf.physical, "")
    if leaf.repeats:
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
            return lambda raw: decimal_of(struct.unpack(plain, raw)[0], leaf.scale)
        if leaf.physical in (_BYTE_ARRAY, _FIXED):
            return lambda raw: _decimal(raw, leaf.scale)
    return None


def _factor(leaf: _Leaf) -> int:
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
    return decimal_of(int.from_bytes(raw, "big", signed=True), scale)


def parquet_footers(store: Store) -> Callable[[str], Footer | None]:
    """Return what reads footers of the Parquet files of a store by their keys; None for files that are none."""

    def read(key: str) -> Footer | None:
        try:
            size = store.size(key) or 0
            footer, length = None, TAIL
            while footer is None and length < min(2 * size + 2 * TAIL, MAX_FOOTER):
                footer = footer_of(store.read(key, start=max(0, size - length), end=size))
                length *= 16
            return Footer(footer) if footer is not None else None
        except (KartosqlError, KeyError, ValueError):
            return None

    return read
