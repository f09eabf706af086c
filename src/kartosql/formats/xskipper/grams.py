"""The pieces of three bytes in texts, whatever the case of letters: sets of those in a file, and tests of them.

A set is a Bloom filter with bits for the pieces that there are, and a byte with the size of a piece behind it; one
without bytes holds nothing. Where texts have most of the pieces that their letters can make, a filter of longer
pieces follows, which are not in most files; behind both are the length of the first in four bytes, and the size of
the longer ones. Texts stand between bytes that no text has, so that pieces tell where texts begin and end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
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
LONGER = (4, 5, 6)  # bytes of longer pieces, of which a text has several,
LONGER_HASHES, LONGER_BITS = 2, 3  # so that it does that one in four is found
DENSE = 0.4  # of the pieces that letters can make
MOST = 64  # pieces of a constant that are looked for
_MASK, _FACTOR = 0xFFFFFFFF, 0x01000193
Wanted = Callable[[int], frozenset[int]]  # the pieces of a constant of a size
_HELD_BYTES = 1 << 20
# Letters of which one engine or the other takes an ASCII letter for the lower case, or the same but for the case.
_FOLDED = {"\u0130": "i", "\u017f": "s", "\u212a": "k"}
_TABLE = str.maketrans({**{chr(c): chr(c + 32) for c in range(65, 91)}, **_FOLDED})


def pieces_of(text: str, size: int = SIZE, *, begins: bool = False, ends: bool = False) -> frozenset[int]:
    """Return the pieces of a constant, with those at its ends if texts begin or end there; none if it is too short."""
    folded = text.translate(_TABLE).encode("utf-8", "surrogatepass")
    content = begins * END + folded + ends * END
    return frozenset(sorted(_pieces(content, size), key=lambda piece: _hashes(piece)[1])[:MOST])


def _pieces(content: bytes, size: int = SIZE) -> set[int]:
    factor, found = 256 if size == SIZE else _FACTOR, [0] * max(0, len(content) - size + 1)
    for at in range(size):
        found = [code * factor + byte & _MASK for code, byte in zip(found, content[at:], strict=False)]
    return set(found)


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

    def _take(self) -> bytes | None:
        """Take the pieces of the texts that are held, and return these if they are few and all that there were."""
        content = END.join((b"", *self._held, b""))
        is_all = not (self._seen or self._found or self._marks is not None) and len(content) <= _HELD_BYTES
        self._held, self._size = [], 0
        if self._numpy is None:
            self._seen |= _pieces(content)
            return content if is_all else None
        if len(content) > _HELD_BYTES and self._marks is None:
            self._marks = self._numpy.zeros(1 << 8 * SIZE, self._numpy.bool_)
        for start in range(0, len(content) - SIZE + 1, _HELD_BYTES):
            codes = _codes(self._numpy, content[start : start + _HELD_BYTES + SIZE - 1])
            if self._marks is None:
                self._found.append(codes)
            else:
                self._marks[codes] = True
        return content if is_all else None

    def cell(self) -> bytes:
        """Return the set."""
        content = self._take()
        if self._numpy is None:
            count, made = len(self._seen), _filter(self._seen)
        else:
            if self._marks is not None:
                self._found.append(self._numpy.flatnonzero(self._marks).astype(self._numpy.uint32))
            found = _distinct(self._numpy, self._found)
            count, made = len(found), _fast_filter(self._numpy, found)
        size = _longer(content, count) if content is not None else None
        if size is None or content is None:
            return made and made + bytes([SIZE])
        if self._numpy is None:
            more = _filter(_pieces(content, size), LONGER_BITS, LONGER_HASHES)
        else:
            codes = _distinct(self._numpy, [_codes(self._numpy, content, size)])
            more = _fast_filter(self._numpy, codes, LONGER_BITS, LONGER_HASHES)
        return made + more + len(made).to_bytes(4, "little") + bytes([size])


def _longer(content: bytes, count: int) -> int | None:
    """Return the size of longer pieces for texts with a ``count`` of short ones, None where these, or none, do."""
    letters = len({*content} - {*END})
    if count <= DENSE * letters**SIZE:
        return None
    return next((size for size in LONGER if 2 * len(content) < letters**size), None)


def _codes(np: Any, content: bytes, size: int = SIZE) -> Any:
    each = np.frombuffer(content, np.uint8).astype(np.uint32)
    factor, count = np.uint32(256 if size == SIZE else _FACTOR), max(0, len(each) - size + 1)
    found = each[:count]
    for at in range(1, size):
        found = found * factor + each[at : at + count]
    return found


def _distinct(np: Any, codes: Sequence[Any]) -> Any:
    found = np.concatenate([np.empty(0, np.uint32), *codes])
    found.sort()
    is_first = np.ones(len(found), np.bool_)
    np.not_equal(found[1:], found[:-1], out=is_first[1:])
    return found[is_first]


def _hashes(piece: int) -> tuple[int, int]:
    first = piece * 0x9E3779B1 & _MASK
    first = (first ^ first >> 15) * 0x85EBCA77 & _MASK
    return first ^ first >> 13, (piece ^ 0x5BD1E9) * 0xC2B2AE3D & _MASK | 1


def _filter(pieces: Iterable[int], bits: int = BITS, hashes: int = HASHES) -> bytes:
    found = bytearray(-(-len(set(pieces)) * bits // 8))
    for first, second in map(_hashes, pieces):
        for at in range(hashes):
            bit = (first + at * second & _MASK) % (8 * len(found))
            found[bit >> 3] |= 1 << (bit & 7)
    return bytes(found)


def _fast_filter(np: Any, pieces: Any, each: int = BITS, hashes: int = HASHES) -> bytes:
    bits = np.zeros(8 * -(-len(pieces) * each // 8), np.uint8)
    first = pieces * np.uint32(0x9E3779B1)
    first = (first ^ first >> 15) * np.uint32(0x85EBCA77)
    first ^= first >> 13
    second = (pieces ^ np.uint32(0x5BD1E9)) * np.uint32(0xC2B2AE3D) | np.uint32(1)
    for at in range(hashes):
        bits[(first + np.uint32(at) * second) % np.uint32(max(1, len(bits)))] = 1
    return bytes(np.packbits(bits, bitorder="little").tobytes())


def may_hold(cells: pa.Array, wanted: Sequence[Wanted], alive: Sequence[bool], *, has_sizes: bool = True) -> list[bool]:
    """Return which sets may hold all pieces of some constant; those that are not ``alive`` are not looked at.

    NULL may hold everything. Sets of the first form do not tell sizes. Raises OddCells for cells that are no sets.
    """
    if not pa.types.is_binary(cells.type):
        raise OddCells(f"cells of type {type_name(cells.type)} where pieces are expected")
    _, offsets, buffer = cells.buffers()
    places = memoryview(offsets).cast("B").cast("i")[cells.offset : cells.offset + len(cells) + 1]
    data = memoryview(buffer if buffer is not None else b"").cast("B")
    known, numbers = cells.is_valid().to_pylist(), range(len(wanted))

    @cache
    def probes(size: int) -> list[list[int]]:
        each = (map(_hashes, pieces(size)) for pieces in wanted)
        times = range(HASHES if size == SIZE else LONGER_HASHES)
        return [[first + at * second & _MASK for first, second in pairs for at in times] for pairs in each]

    found = []
    for row, is_alive in enumerate(alive):
        start, end = places[row], places[row + 1]
        filters = _filters(data, start, end) if has_sizes and end > start else [(start, end, SIZE)]
        found.append(
            not (is_alive and known[row])
            or (end > start and any(all(_holds(data, a, b, probes(k)[n]) for a, b, k in filters) for n in numbers))
        )
    return found


def _filters(data: memoryview, start: int, end: int) -> list[tuple[int, int, int]]:
    """Return where the filters of a set begin and end, with the sizes of their pieces."""
    size = data[end - 1]
    if size == SIZE and end - start > 1:
        return [(start, end - 1, SIZE)]
    between = start + int.from_bytes(data[max(start, end - 5) : end - 1], "little")
    if size not in LONGER or not start < between < end - 5:
        raise OddCells("a set of pieces does not tell their sizes")
    return [(start, between, SIZE), (between, end - 5, size)]


def _holds(data: memoryview, start: int, end: int, probe: Sequence[int]) -> bool:
    bits = 8 * (end - start)
    return all(data[start + (hash_ % bits >> 3)] >> (hash_ % bits & 7) & 1 for hash_ in probe)
