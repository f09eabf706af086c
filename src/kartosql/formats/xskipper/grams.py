"""The pieces of three bytes in texts, whatever the case of letters: sets of those in a file, and tests of them.

A set is a Bloom filter with bits for the pieces that there are, and no header; one without bytes holds nothing. Texts
stand between bytes that no text has, so that pieces tell where texts begin and end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.arrays import array_of, constant
from kartosql.formats.xskipper.bloom import numpy_or_none
from kartosql.formats.xskipper.domain import OddCells
from kartosql.text.types import type_name

SIZE = 3  # bytes of a piece
END = b"\xff"
HASHES, BITS = 7, 10  # for each piece: about one in 120 that are not there is found
MOST = 64  # pieces of a constant that are looked for
_MASK = 0xFFFFFFFF
_HELD_BYTES = 1 << 20
# Letters of which one engine or the other takes an ASCII letter for the lower case, or the same but for the case.
_FOLDED = {"\u0130": "i", "\u017f": "s", "\u212a": "k"}
_TABLE = str.maketrans({**{chr(c): chr(c + 32) for c in range(65, 91)}, **_FOLDED})


def pieces_of(text: str, *, begins: bool = False, ends: bool = False) -> frozenset[int]:
    """Return the pieces of a constant, with those at its ends if texts begin or end there; none if it is too short."""
    folded = text.translate(_TABLE).encode("utf-8", "surrogatepass")
    content = begins * END + folded + ends * END
    return frozenset(sorted(_pieces(content), key=lambda piece: _hashes(piece)[1])[:MOST])


def _pieces(content: bytes) -> set[int]:
    return {a << 16 | b << 8 | c for a, b, c in zip(content, content[1:], content[2:], strict=False)}


class PieceSet:
    """The pieces in the texts of a file."""

    def __init__(self) -> None:
        """Begin with no texts."""
        self._numpy = numpy_or_none()
        self._held: list[bytes] = []
        self._size = 0
        self._seen: set[int] = set()
        self._found: list[Any] = []
        self._marks: Any = None

    def add(self, values: pa.Array) -> None:
        """Put the pieces of texts into the set."""
        values = pc.unique(values).drop_null()
        if not len(values):
            return
        folded = pc.ascii_lower(values)
        if not pc.all(pc.string_is_ascii(folded)).as_py():
            for letter, plain in _FOLDED.items():
                folded = pc.replace_substring(folded, letter, plain)
        texts = pa.LargeListArray.from_arrays(array_of([0, len(folded)], pa.int64()), folded.cast(pa.large_binary()))
        self._held.append(pc.binary_join(texts, constant(END, pa.large_binary()))[0].as_py())
        self._size += len(self._held[-1])
        if self._size > _HELD_BYTES:
            self._take()

    def _take(self) -> None:
        content = END.join((b"", *self._held, b""))
        self._held, self._size = [], 0
        if self._numpy is None:
            self._seen |= _pieces(content)
            return
        if len(content) > _HELD_BYTES and self._marks is None:
            self._marks = self._numpy.zeros(1 << 8 * SIZE, self._numpy.bool_)
        for start in range(0, len(content) - SIZE + 1, _HELD_BYTES):
            codes = _codes(self._numpy, content[start : start + _HELD_BYTES + SIZE - 1])
            if self._marks is None:
                self._found.append(codes)
            else:
                self._marks[codes] = True

    def cell(self) -> bytes:
        """Return the set."""
        self._take()
        if self._numpy is None:
            return _filter(self._seen)
        if self._marks is not None:
            self._found.append(self._numpy.flatnonzero(self._marks).astype(self._numpy.uint32))
        found = self._numpy.concatenate([self._numpy.empty(0, self._numpy.uint32), *self._found])
        found.sort()
        is_first = self._numpy.ones(len(found), self._numpy.bool_)
        self._numpy.not_equal(found[1:], found[:-1], out=is_first[1:])
        return _fast_filter(self._numpy, found[is_first])


def _codes(np: Any, content: bytes) -> Any:
    each = np.frombuffer(content, np.uint8).astype(np.uint32)
    return each[:-2] << 16 | each[1:-1] << 8 | each[2:]


def _length(count: int) -> int:
    """Return the bytes of a set of so many pieces."""
    return -(-count * BITS // 8)


def _hashes(piece: int) -> tuple[int, int]:
    first = piece * 0x9E3779B1 & _MASK
    first = (first ^ first >> 15) * 0x85EBCA77 & _MASK
    return first ^ first >> 13, (piece ^ 0x5BD1E9) * 0xC2B2AE3D & _MASK | 1


def _filter(pieces: Iterable[int]) -> bytes:
    found = bytearray(_length(len(set(pieces))))
    for first, second in map(_hashes, pieces):
        for at in range(HASHES):
            bit = (first + at * second & _MASK) % (8 * len(found))
            found[bit >> 3] |= 1 << (bit & 7)
    return bytes(found)


def _fast_filter(np: Any, pieces: Any) -> bytes:
    bits = np.zeros(8 * _length(len(pieces)), np.uint8)
    first = pieces * np.uint32(0x9E3779B1)
    first = (first ^ first >> 15) * np.uint32(0x85EBCA77)
    first ^= first >> 13
    second = (pieces ^ np.uint32(0x5BD1E9)) * np.uint32(0xC2B2AE3D) | np.uint32(1)
    for at in range(HASHES):
        bits[(first + np.uint32(at) * second) % np.uint32(max(1, len(bits)))] = 1
    return bytes(np.packbits(bits, bitorder="little").tobytes())


def may_hold(cells: pa.Array, wanted: Sequence[frozenset[int]], alive: Sequence[bool]) -> list[bool]:
    """Return which sets may hold all pieces of some constant; those that are not ``alive`` are not looked at.

    NULL may hold everything. Raises OddCells for cells that are no sets.
    """
    if not pa.types.is_binary(cells.type):
        raise OddCells(f"cells of type {type_name(cells.type)} where pieces are expected")
    _, offsets, buffer = cells.buffers()
    places = memoryview(offsets).cast("B").cast("i")[cells.offset : cells.offset + len(cells) + 1]
    data = memoryview(buffer if buffer is not None else b"").cast("B")
    known = cells.is_valid().to_pylist()
    probes = [
        [first + at * second & _MASK for first, second in map(_hashes, pieces) for at in range(HASHES)]
        for pieces in wanted
    ]
    found = []
    for row, is_alive in enumerate(alive):
        start, bits = places[row], 8 * (places[row + 1] - places[row])
        found.append(
            not (is_alive and known[row])
            or bool(bits and any(all(_has(data, start, hash_ % bits) for hash_ in probe) for probe in probes))
        )
    return found


def _has(data: memoryview, start: int, bit: int) -> int:
    return data[start + (bit >> 3)] >> (bit & 7) & 1
