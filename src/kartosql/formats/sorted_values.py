"""The values of an index in ascending order, with the files that hold each: plain buffers, searched without an engine.

Integers stand for whole numbers, dates (days), timestamps (in the unit of their type) and truth values; texts are
their UTF-8 bytes, which ascend as DuckDB's texts do without a collation. NULL stands in none.
"""

from __future__ import annotations

import operator
import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING, Any

from kartosql.memo import memoized

if TYPE_CHECKING:
    from typing import Literal

    import pyarrow as pa

    Letter = Literal["B", "i", "I", "q"]

Span = tuple[int, int]  # positions of values: from the first one up to, without it, the second
INTEGERS, TEXTS = b"i", b"t"
# What stands before the buffers: kind, numbers of values, of bytes of texts, of pairs of value and file, of files,
# and behind them a checksum of all but itself. A machine with another order of bytes does not know the first word.
_HEAD = struct.Struct("=Q8s4Q")
_SUM = struct.Struct("=Q")
_BODY = _HEAD.size + _SUM.size
_WORD = 0x6B73716C76616C31


class SortedValues:
    """Values in ascending order, and the files that hold each; one may stand at several positions.

    ``values`` are integers of 64 bits or, where there are ``ends``, the bytes of texts, of which the n-th goes from
    ``ends[n]`` to ``ends[n + 1]``. Its files are ``files[starts[n]:starts[n + 1]]``, numbers below ``file_count``.
    Whatever the buffers hold, a search ends with positions and files in range, or with ``ValueError``.
    """

    def __init__(
        self, values: memoryview, ends: memoryview | None, starts: memoryview, files: memoryview, file_count: int
    ) -> None:
        self._values, self._ends, self._starts, self._files = values, ends, starts, files
        self.file_count = file_count
        self.count = len(starts) - 1

    @property
    def kind(self) -> bytes:
        """INTEGERS or TEXTS."""
        return INTEGERS if self._ends is None else TEXTS

    @property
    def buffers(self) -> list[memoryview]:
        """The values, of texts with their ends before them, where their files start, and the files."""
        return [*([] if self._ends is None else [self._ends]), self._values, self._starts, self._files]

    @property
    def pairs(self) -> int:
        """How many pairs of value and file there are."""
        return len(self._files)

    def value(self, at: int) -> int | bytes:
        """Return the value at a position, of texts the bytes."""
        if self._ends is None:
            return self._values[at]
        return bytes(self._values[self._ends[at] : self._ends[at + 1]])

    @memoized
    def _sequence(self) -> Sequence[Any]:
        return self._values if self._ends is None else _Texts(self)

    def _raw(self, value: int | str | bytes) -> Any:
        if isinstance(value, int) is not (self._ends is None):
            raise ValueError(f"{type(value).__name__} among values of another kind")
        return value.encode() if isinstance(value, str) else value

    # -- searching -----------------------------------------------------------------------------

    def equal(self, value: int | str | bytes) -> list[Span]:
        """Return where a value stands; raises ``ValueError`` for one of another kind, as all searches do."""
        raw, ascending = self._raw(value), self._sequence
        first = bisect_left(ascending, raw)
        if first == self.count or ascending[first] != raw:
            return []
        return [(first, bisect_right(ascending, raw, first))]

    def among(self, values: Iterable[int | str | bytes]) -> list[Span]:
        """Return where one of some values stands."""
        return [span for raw in sorted({self._raw(v) for v in values}) for span in self.equal(raw)]

    def between(
        self,
        low: int | str | bytes | None = None,
        high: int | str | bytes | None = None,
        *,
        without_low: bool = False,
        without_high: bool = False,
    ) -> list[Span]:
        """Return where values from ``low`` to ``high`` stand; None is no bound."""
        ascending = self._sequence
        first, end = 0, self.count
        if low is not None:
            first = (bisect_right if without_low else bisect_left)(ascending, self._raw(low))
        if high is not None:
            end = (bisect_left if without_high else bisect_right)(ascending, self._raw(high))
        return [(first, end)] if first < end else []

    def pairs_of(self, spans: Iterable[Span]) -> int:
        """Return how many pairs of value and file there are in spans, which is what it takes to tell the files."""
        return sum(self._starts[end] - self._starts[first] for first, end in spans)

    def files(self, spans: Iterable[Span]) -> frozenset[int]:
        """Return the files that hold one of the values in spans."""
        ranges = [(self._starts[first], self._starts[end]) for first, end in spans]
        if any(not 0 <= first <= end <= len(self._files) for first, end in ranges):
            raise ValueError("files of no value")
        found = frozenset(chain.from_iterable(self._files[first:end] for first, end in ranges))
        if found and not 0 <= min(found) <= max(found) < self.file_count:
            raise ValueError("no such file")
        return found

    # -- as bytes ------------------------------------------------------------------------------

    def to_buffers(self) -> list[bytes | memoryview]:
        """Return bytes that, one after the other, ``from_buffer`` makes the same of; a multiple of 8 in all."""
        body: list[bytes | memoryview] = []
        for buffer in (self._values, self._ends, self._starts, self._files):
            if buffer is not None:
                body += [buffer.cast("B"), bytes(-buffer.nbytes % 8)]
        size = len(self._values) if self._ends is not None else 0
        head = _HEAD.pack(_WORD, self.kind, self.count, size, self.pairs, self.file_count)
        return [head, _SUM.pack(_checksum([head, *body])), *body]

    @classmethod
    def from_buffer(cls, data: memoryview, file_count: int) -> SortedValues:
        """Return the values that stand in ``data``, which is not copied; raises ``ValueError`` for all other bytes.

        ``file_count`` is how many files the table has.
        """
        if data.nbytes < _BODY:
            raise ValueError("too short")
        data = data.cast("B")
        word, kind, count, size, pairs, files = _HEAD.unpack_from(data)
        (checksum,) = _SUM.unpack_from(data, _HEAD.size)
        kind = kind.rstrip(b"\0")
        if word != _WORD or kind not in (INTEGERS, TEXTS) or files != file_count:
            raise ValueError("other values")
        lengths: list[tuple[Letter, int]] = [("B", size), ("I", count + 1)] if kind == TEXTS else [("q", count)]
        lengths += [("I", count + 1), ("i", pairs)]
        sizes = [length * struct.calcsize(letter) for letter, length in lengths]
        places = list(accumulate([_BODY, *(n + -n % 8 for n in sizes)]))
        if places[-1] != data.nbytes or _checksum([data[: _HEAD.size], data[_BODY:]]) != checksum:
            raise ValueError("damaged")
        found = [data[a : a + n].cast(f[0]) for a, n, f in zip(places[:-1], sizes, lengths, strict=True)]
        return cls(found[0], found[1] if kind == TEXTS else None, found[-2], found[-1], file_count)


class _Texts(Sequence[bytes]):
    """Texts by position, made when they are looked at."""

    def __init__(self, values: SortedValues) -> None:
        self._of = values

    def __len__(self) -> int:
        return self._of.count

    def __getitem__(self, at: Any) -> Any:
        return self._of.value(at)


def _checksum(buffers: Iterable[bytes | memoryview]) -> int:
    found = 0
    for buffer in buffers:
        found = zlib.crc32(buffer, found)
    return found


# -- spans of one index ------------------------------------------------------------------------------


def united(spans: Iterable[Span]) -> list[Span]:
    """Return the positions that lie in one of some spans, as spans in their order that do not touch."""
    found: list[Span] = []
    for first, end in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return found


def common(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the positions that lie in spans of both kinds; those of one kind ascend and do not overlap."""
    found: list[Span] = []
    at = other = 0
    while at < len(spans) and other < len(others):
        first, end = max(spans[at][0], others[other][0]), min(spans[at][1], others[other][1])
        if first < end:
            found.append((first, end))
        if spans[at][1] < others[other][1]:
            at += 1
        else:
            other += 1
    return found


# -- building ----------------------------------------------------------------------------------------


def sorted_values(
    batches: Iterable[tuple[pa.Array, pa.ListArray]],
    type_: pa.DataType,
    numbers: Mapping[str, int] | None,
    file_count: int,
) -> SortedValues:
    """Return the values of an index: of each batch the values, and with each of them the labels of its files.

    ``numbers`` are those of files by label; other labels are left out, as are NULLs. Without them the numbers stand in
    place of labels. Both may be dictionaries of Arrow. Raises ``ValueError`` for types that only an engine compares,
    and for values or lists that are broken.
    """
    texts = _is_text(type_)
    keys: list[Any] = []
    lists: list[Sequence[int]] = []
    for values, labels in batches:
        keys += _texts(values) if texts else _integers(values, type_)
        lists += _numbers(labels, numbers)
    if len(keys) != len(lists):
        raise ValueError("values without a list of files")
    if None in keys:
        lists = [files for key, files in zip(keys, lists, strict=True) if key is not None]
        keys = [key for key in keys if key is not None]
    if not all(map(operator.le, keys, islice(keys, 1, None))):
        order = sorted(range(len(keys)), key=keys.__getitem__)
        keys, lists = list(map(keys.__getitem__, order)), list(map(lists.__getitem__, order))
    return _packed(keys, lists, texts, file_count)


def _packed(keys: Sequence[Any], lists: Sequence[Sequence[int]], texts: bool, file_count: int) -> SortedValues:
    try:
        files = memoryview(array("i", chain.from_iterable(lists)))
        starts = memoryview(array("I", chain([0], accumulate(map(len, lists)))))
        if not texts:
            return SortedValues(memoryview(array("q", keys)), None, starts, files, file_count)
        ends = memoryview(array("I", chain([0], accumulate(map(len, keys)))))
    except OverflowError:
        raise ValueError("too large") from None
    return SortedValues(memoryview(b"".join(keys)), ends, starts, files, file_count)


def _is_text(type_: pa.DataType) -> bool:
    """Return whether values are texts, and not integers; raises ``ValueError`` for all other types."""
    from pyarrow import types as t

    if t.is_string(type_) or t.is_large_string(type_):
        return True
    if t.is_integer(type_) or t.is_boolean(type_) or t.is_date32(type_) or t.is_timestamp(type_):
        return False
    raise ValueError(f"{type_} is compared by engines alone")


def _texts(values: pa.Array) -> list[bytes | None]:
    return [v if v is None else v.encode() for v in values.to_pylist()]


def _integers(values: pa.Array, type_: pa.DataType) -> list[int | None]:
    """Return the integers that values are stored as, timestamps in the unit of ``type_``."""
    from pyarrow import types as t

    if t.is_timestamp(type_):
        if not values.type.equals(type_):
            raise ValueError(f"{values.type}, not {type_}")
    elif not any(is_kind(type_) and is_kind(values.type) for is_kind in (t.is_integer, t.is_boolean, t.is_date32)):
        raise ValueError(f"{values.type}, not {type_}")
    return _plain(values)


def _plain(values: pa.Array) -> list[int | None]:
    """Return integers and all that is stored as such, by way of their buffer where no NULL is among them."""
    from kartosql.formats.arrays import letter_of

    letter: Any = letter_of(values.type)
    if letter is None or not len(values):
        return [v if v is None else int(v) for v in values.to_pylist()]
    found = memoryview(values.buffers()[1]).cast("B").cast(letter)[values.offset :][: len(values)].tolist()
    if values.null_count:
        return [v if valid else None for v, valid in zip(found, values.is_valid().to_pylist(), strict=True)]
    return list(found)


def _numbers(lists: pa.ListArray, numbers: Mapping[str, int] | None) -> list[Sequence[int]]:
    """Return the numbers of the files in each list of labels."""
    labels = lists.values
    names = labels.dictionary.to_pylist() if hasattr(labels, "dictionary") else labels.to_pylist()
    places = _plain(labels.indices) if hasattr(labels, "dictionary") else range(len(names))
    codes = names if numbers is None else [numbers.get(name, -1) for name in names]
    found = [-1 if i is None else codes[i] for i in places]
    ends = lists.offsets.to_pylist()
    each: list[Sequence[int]] = [found[a:b] for a, b in pairwise(ends)]
    if lists.null_count:
        each = [files if valid else () for files, valid in zip(each, lists.is_valid().to_pylist(), strict=True)]
    if -1 in found:
        each = [[file for file in files if file >= 0] for files in each]
    return each
