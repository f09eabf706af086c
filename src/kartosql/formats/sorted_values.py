"""The values of an index in ascending order, with the files that hold each: plain buffers, searched without an engine.

Integers stand for whole numbers, dates (days), timestamps (in the unit of their type) and truth values; texts are
their UTF-8 bytes, which ascend as DuckDB's texts do without a collation. NULL stands in none.
"""

from __future__ import annotations

import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING, Any

from kartosql.memo import memoized

if TYPE_CHECKING:
    import pyarrow as pa

Span = tuple[int, int]  # positions of values: from the first one up to, without it, the second


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
        if len(values if ends is None else ends) != self.count + (ends is not None) or self.count < 0:
            raise ValueError("another number of values")

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


class _Texts(Sequence[bytes]):
    """Texts by position, made when they are looked at."""

    def __init__(self, values: SortedValues) -> None:
        self._of = values

    def __len__(self) -> int:
        return self._of.count

    def __getitem__(self, at: Any) -> Any:
        return self._of.value(at)


# -- building ----------------------------------------------------------------------------------------


def sorted_values(
    batches: Iterable[tuple[pa.Array, pa.ListArray]], type_: pa.DataType, file_count: int
) -> SortedValues:
    """Return the values of an index: of each batch the values, and with each of them the numbers of its files.

    The numbers may be dictionaries of Arrow; NULL and negative ones are left out. Raises ``ValueError`` for types that
    only an engine compares, and for values or lists that are broken.
    """
    texts = _is_text(type_)
    keys: list[Any] = []
    files: list[int] = []
    counts: list[int] = []
    for values, lists in batches:
        keys += _texts(values) if texts else _integers(values, type_)
        found, each = _numbers(lists)
        files += found
        counts += each
    if len(keys) != len(counts):
        raise ValueError("values without a list of files")
    if None in keys or not all(map(operator.le, keys, islice(keys, 1, None))):
        ends = list(accumulate(counts, initial=0))
        order = sorted((n for n, key in enumerate(keys) if key is not None), key=keys.__getitem__)
        keys, counts = list(map(keys.__getitem__, order)), list(map(counts.__getitem__, order))
        files = list(chain.from_iterable(files[ends[n] : ends[n + 1]] for n in order))
    return _packed(keys, files, counts, texts, file_count)


def ascending_integers(values: pa.Array, lists: pa.ListArray, file_count: int) -> SortedValues:
    """Return integers of 64 bits that ascend, with lists of the numbers of their files, which is all that it takes.

    Raises ``ValueError`` for all others.
    """
    numbers = lists.values
    if values.null_count or lists.null_count or numbers.null_count or values.offset or lists.offset or numbers.offset:
        raise ValueError("NULL, or a part of an array")
    keys, starts, files = (memoryview(part.buffers()[1]).cast("B") for part in (values, lists, numbers))
    ascending = keys[: 8 * len(values)].cast("q")
    if not all(map(operator.le, ascending, islice(ascending, 1, None))):
        raise ValueError("in no order")
    return SortedValues(
        ascending, None, starts[: 4 * len(values) + 4].cast("I"), files[: 4 * len(numbers)].cast("i"), file_count
    )


def _packed(
    keys: Sequence[Any], files: Sequence[int], counts: Sequence[int], texts: bool, file_count: int
) -> SortedValues:
    try:
        numbers = memoryview(array("i", files))
        starts = memoryview(array("I", accumulate(counts, initial=0)))
        if not texts:
            return SortedValues(memoryview(array("q", keys)), None, starts, numbers, file_count)
        ends = memoryview(array("I", accumulate(map(len, keys), initial=0)))
    except OverflowError:
        raise ValueError("too large") from None
    return SortedValues(memoryview(b"".join(keys)), ends, starts, numbers, file_count)


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


def _numbers(lists: pa.ListArray) -> tuple[Sequence[int], Sequence[int]]:
    """Return the numbers of the files in all lists, one list behind the other, and how many each has."""
    numbers = lists.values
    codes = numbers.dictionary.to_pylist() if hasattr(numbers, "dictionary") else numbers.to_pylist()
    places = _plain(numbers.indices) if hasattr(numbers, "dictionary") else range(len(codes))
    found = [-1 if i is None or codes[i] is None else codes[i] for i in places]
    ends: list[Any] = _plain(lists.offsets)
    if not lists.null_count and -1 not in found and ends[0] == 0 and ends[-1] == len(found):
        return found, list(map(operator.sub, islice(ends, 1, None), ends))
    each: list[Sequence[int]] = [found[a:b] for a, b in pairwise(ends)]
    if lists.null_count:
        each = [files if valid else () for files, valid in zip(each, lists.is_valid().to_pylist(), strict=True)]
    each = [[file for file in files if file >= 0] for files in each]
    return list(chain.from_iterable(each)), list(map(len, each))
