"""The values of an index in ascending order, with the files that hold each: plain buffers, searched without an engine.

Integers are those of 64 bits; texts are their UTF-8 bytes, which ascend as DuckDB's texts do without a collation. NULL
stands in none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Span = tuple[int, int]  # positions of values: from the first one up to, without it, the second


class SortedValues:
    """Values in ascending order, and the files that hold each; one may be at several positions.

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
        if len(values if ends is None else ends) != self.count + (ends is not None) or self.count < 0:
            raise ValueError("another number of values")

    @classmethod
    def of(cls, buffers: Sequence[memoryview], file_count: int) -> SortedValues:
        """Return the values in ``buffers``, as bytes."""
        *ends, values, starts, files = buffers
        index = values if ends else values.cast("q")
        return cls(index, ends[0].cast("I") if ends else None, starts.cast("I"), files.cast("i"), file_count)

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

    def _raw(self, value: int | str | bytes) -> Any:
        if isinstance(value, int) is not (self._ends is None):
            raise ValueError(f"{type(value).__name__} among values of another kind")
        return value.encode() if isinstance(value, str) else value

    # -- searching -----------------------------------------------------------------------------

    def equal(self, value: int | str | bytes) -> list[Span]:
        """Return the positions of a value; raises ``ValueError`` for one of another kind, as all searches do."""
        return self.between(value, value)

    def among(self, values: Iterable[int | str | bytes]) -> list[Span]:
        """Return the positions of some values."""
        return [span for raw in sorted({self._raw(v) for v in values}) for span in self.equal(raw)]

    def between(
        self,
        low: int | str | bytes | None = None,
        high: int | str | bytes | None = None,
        *,
        without_low: bool = False,
        without_high: bool = False,
    ) -> list[Span]:
        """Return the positions of values from ``low`` to ``high``; None is no bound."""
        positions = range(self.count)
        first, end = 0, self.count
        if low is not None:
            first = (bisect_right if without_low else bisect_left)(positions, self._raw(low), key=self.value)
        if high is not None:
            end = (bisect_left if without_high else bisect_right)(positions, self._raw(high), first, key=self.value)
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


# -- building ----------------------------------------------------------------------------------------


class Collected:
    """The values of an index as they come: of each batch the values, and with each of them the numbers of its files.

    These are integers or texts, the numbers may be dictionaries of Arrow, and NULL is left out. ``ValueError`` means
    integers of more than 63 bits.
    """

    def __init__(self, type_: pa.DataType, file_count: int) -> None:
        from pyarrow import types as t

        self._type, self._file_count, self._are_texts = type_, file_count, not t.is_integer(type_)
        # Not as Arrow has them, which keeps what it frees.
        self._values, self._files = bytearray(), bytearray()
        self._ends, self._starts = bytearray(4), bytearray(4)

    def add(self, values: pa.Array, lists: pa.ListArray) -> None:
        """Take one more batch."""
        import pyarrow as pa

        if values.null_count:
            values, lists = values.filter(values.is_valid()), lists.filter(values.is_valid())
        if not len(values):
            return
        self._starts += _moved(lists.offsets, len(self._files) // 4)
        self._files += _bytes(lists.flatten().cast(pa.int32()), 4)
        values = values.cast(pa.binary() if self._are_texts else pa.int64())
        if not self._are_texts:
            self._values += _bytes(values, 8)
            return
        _, places, texts = values.buffers()
        ends = pa.Array.from_buffers(pa.int32(), len(values) + 1, [None, places], offset=values.offset)
        self._ends += _moved(ends, len(self._values))
        self._values += memoryview(texts or b"")[ends[0].as_py() : ends[-1].as_py()]

    def all_values(self) -> SortedValues:
        """Return all of them in order."""
        import pyarrow as pa
        import pyarrow.compute as pc  # takes long to import

        ends, count = [self._ends] if self._are_texts else [], len(self._starts) // 4 - 1
        buffers = [memoryview(part) for part in (*ends, self._values, self._starts, self._files)]
        *of_values, starts, files = map(pa.py_buffer, buffers)
        values = pa.Array.from_buffers(pa.binary() if ends else pa.int64(), count, [None, *of_values])
        if pc.all(pc.less_equal(values[:-1], values[1:]), min_count=0).as_py():
            return SortedValues.of(buffers, self._file_count)
        order, again = pc.sort_indices(values), Collected(self._type, self._file_count)
        numbers = pa.Array.from_buffers(pa.int32(), len(files) // 4, [None, files])
        lists = pa.Array.from_buffers(pa.list_(pa.int32()), count, [None, starts], children=[numbers])
        again.add(values.take(order), lists.take(order))
        return again.all_values()


def _bytes(array: pa.Array, width: int) -> memoryview:
    """Return the values of an array without NULL, each of so many bytes."""
    found = memoryview(array.buffers()[1] or b"").cast("B")
    return found[width * array.offset : width * (array.offset + len(array))]


def _moved(offsets: pa.Array, start: int) -> memoryview:
    """Return where parts end that are put at ``start``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from kartosql.formats.arrays import array_of

    distance = array_of([start - offsets[0].as_py()], pa.int32())[0]  # ``pa.scalar`` imports pandas
    return _bytes(pc.add_checked(offsets[1:], distance), 4)
