"""Pairs of values and numbers -> the same pairs ascending by value, range by range."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.write.pairs import is_number

# Small enough for caches; whole numbers that are as dense are sorted by counting.
RANGE_PAIRS = 1 << 15
# Shorter runs are sorted all at once.
RUN_PAIRS = 1 << 10

# Values ascending, how many numbers each has, and these numbers one after the other.
Grouped = tuple[pa.Array, pa.Array, pa.Array]


def ranges(values: pa.ChunkedArray, codes: pa.ChunkedArray) -> Iterator[Grouped]:
    """Yield the pairs (``values[i]``, ``codes[i]``) in ranges of values, each pair once.

    Numbers of one value stay in their order. Values that ascend are read piece by piece;
    otherwise runs of ascending numbers are merged by several threads.
    """
    if not len(values):
        return
    if _is_ascending(values):
        yield from _cut(values, codes)
        return
    if is_number(values.type):
        yield from _merged(_one(values), _one(codes))
        return
    texts, numbers = encode(values)
    ordered = texts.take(pc.sort_indices(texts))
    ranks = pc.subtract(pc.rank(texts, "ascending", tiebreaker="first").cast(pa.int64()), 1)
    for found, counts, some in _merged(ranks.take(numbers), _one(codes)):
        yield ordered.take(found), counts, some


def encode(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return the different values of a column, and for each row which of them it is."""
    # In one chunk, unless text is too long for it: each chunk would bring all values along.
    found = pa.table([column], names=["c"]).combine_chunks()["c"].dictionary_encode().unify_dictionaries()
    if not found.num_chunks:
        return pa.array([], column.type), pa.array([], pa.int32())
    return found.chunk(0).dictionary, pa.concat_arrays([chunk.indices for chunk in found.chunks])


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _is_ascending(values: pa.ChunkedArray) -> bool:
    if pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py():
        return False
    count = len(values) - 1
    return count < 1 or bool(pc.all(pc.less_equal(values.slice(0, count), values.slice(1))).as_py())


def _cut(values: pa.ChunkedArray, codes: pa.ChunkedArray) -> Iterator[Grouped]:
    """Yield the groups of ascending values."""
    start, size = 0, RANGE_PAIRS
    while start < len(values):
        some = _one(values.slice(start, size))
        end = len(some)
        if start + end < len(values):
            # The last value may go on behind.
            end = pc.index(pc.equal(some, some[-1]), True).as_py()
            if not end:
                size *= 2
                continue
        yield _grouped(some.slice(0, end), _one(codes.slice(start, end)))
        start, size = start + end, RANGE_PAIRS


def _merged(values: pa.Array, codes: pa.Array) -> Iterator[Grouped]:
    """Yield the groups of whole numbers or times that stand in ascending runs."""
    breaks = pc.indices_nonzero(pc.less(values.slice(1), values.slice(0, len(values) - 1))).cast(pa.int64())
    if len(breaks) >= len(values) // RUN_PAIRS or len(values) <= RANGE_PAIRS:
        yield _sorted([values], [codes])
        return
    runs = list(pairwise([0, *pc.add(breaks, 1).to_pylist(), len(values)]))
    bounds = _bounds(values)
    cuts = [[start, *_places(values.slice(start, end - start), bounds, start), end] for start, end in runs]
    work = [[(cut[at], cut[at + 1]) for cut in cuts if cut[at] < cut[at + 1]] for at in range(len(bounds) + 1)]

    def done(pieces: Sequence[tuple[int, int]]) -> Grouped:
        return _sorted([values.slice(a, b - a) for a, b in pieces], [codes.slice(a, b - a) for a, b in pieces])

    yield from _in_threads(done, [pieces for pieces in work if pieces])


def _bounds(values: pa.Array) -> pa.Array:
    """Return values that cut all into ranges of about RANGE_PAIRS."""
    step = RANGE_PAIRS // 64
    sample = values.take(pa.array(range(0, len(values), step), pa.int64()))
    sample = sample.take(pc.array_sort_indices(sample))
    return pc.unique(sample.take(pa.array(range(64, len(sample), 64), pa.int64())))


def _places(run: pa.Array, bounds: pa.Array, start: int) -> list[int]:
    """Return where ``bounds`` begin in a run that begins at ``start``."""
    if hasattr(pc, "search_sorted"):
        return [start + place for place in pc.search_sorted(run, bounds, side="left").to_pylist()]
    numbers = run.view(pa.int64()) if pa.types.is_temporal(run.type) and run.type.bit_width == 64 else run
    wanted = bounds.view(numbers.type).to_pylist()
    return [start + bisect_left(range(len(run)), bound, key=lambda i: numbers[i].as_py()) for bound in wanted]


def _in_threads(
    work: Callable[[Sequence[tuple[int, int]]], Grouped], items: Sequence[Sequence[tuple[int, int]]]
) -> Iterator[Grouped]:
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers, thread_name_prefix="kartosql-index") as pool:
        waiting: deque[Future[Grouped]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _sorted(values: Sequence[pa.Array], codes: Sequence[pa.Array]) -> Grouped:
    some, numbers = pa.concat_arrays(values), pa.concat_arrays(codes)
    if len(values) > 1 or len(some) > 1:
        places = pc.array_sort_indices(some)
        some, numbers = some.take(places), numbers.take(places)
    return _grouped(some, numbers)


def _grouped(values: pa.Array, codes: pa.Array) -> Grouped:
    """Return the different values of some in order, how many codes each has, and the codes, none twice for a value."""
    count = len(values)
    new = pc.not_equal(values.slice(1), values.slice(0, count - 1))
    again = pc.and_not(pc.less_equal(codes.slice(1), codes.slice(0, count - 1)), new)
    if pc.any(again).as_py():
        # An older index may hold a pair twice. Of the numbers of a value the first ones stay, in their order.
        ranks = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(new.cast(pa.int64()))])
        width = pa.scalar(pc.max(codes).as_py() + 1, pa.int64())
        starts = _starts(new)
        keys = pc.unique(pc.add(pc.multiply(ranks, width), codes.cast(pa.int64())))
        ranks = pc.divide(keys, width)
        found = values.take(starts)
        codes = pc.subtract(keys, pc.multiply(ranks, width)).cast(pa.int32())
        starts = _starts(pc.not_equal(ranks.slice(1), ranks.slice(0, len(ranks) - 1)))
    else:
        starts = _starts(new)
        found = values.take(starts)
    ends = pa.concat_arrays([starts.slice(1), pa.array([len(codes)], pa.int64())])
    return found, pc.subtract(ends, starts), codes


def _starts(new: pa.Array) -> pa.Array:
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.add(pc.indices_nonzero(new).cast(pa.int64()), 1)])
