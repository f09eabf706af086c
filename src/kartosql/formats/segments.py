"""Inverted indices of files that no document names: segments, each with the values of some files in ascending order.

A segment is a Parquet file of pairs of a key, as tests compare them, and the number of a file; neither NULL nor NaN is
in one. Its footer holds the names of the files and the stamps that they had; the list of segments has its digest.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial, reduce
from itertools import groupby
from math import nan
from typing import Any

import pyarrow as pa

from kartosql.errors import FormatError, reraise
from kartosql.formats.arrays import array_of
from kartosql.formats.xskipper.domain import NEVER, Bounds, ColumnType, Test, as_tests, filter_keys, order_key, repeated
from kartosql.memo import memoized
from kartosql.parquet import MAX_FOOTER, arrow_metadata, extremes, read_footer
from kartosql.predicate.tree import Constant, Group, Leaf, Opaque, Predicate, may_hold_for_null
from kartosql.store import Store
from kartosql.text.report import counted

FILES = b"kartosql.files"
MOST_NAMES = 1 << 30  # bytes of names and stamps in a segment
GROUPS_AT_ONCE = 32
# Seconds to look at a pair, and those to read a file instead, on a disk and over a network.
PAIR_SECONDS, FILE_SECONDS, REMOTE_FILE_SECONDS, NEGLIGIBLE = 2e-8, 7e-5, 0.02, 0.002
_BROKEN = (pa.ArrowException, OSError, KeyError, ValueError, TypeError, IndexError, zlib.error)


def key_type(type_: ColumnType) -> pa.DataType:
    """Return the type of the keys of a column."""
    if type_.family == "decimal":
        return pa.decimal128(type_.precision, type_.scale)
    return pa.binary() if type_.family in ("string", "binary") else pa.int64()


def digest_of(footer: bytes) -> str:
    """Return what a segment is recognised by; its pages have checksums of their own."""
    return hashlib.sha256(footer).hexdigest()


def stamps_as_bytes(stamps: Mapping[str, str]) -> bytes:
    """Return the stamps of the files of a segment by their names as its footer has them."""
    return base64.b85encode(zlib.compress(json.dumps(list(stamps.items())).encode()))


class _Window(io.BytesIO):
    """Some bytes of a file, at their places in it."""

    start = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return super().seek(offset if whence else offset - self.start, whence) + self.start

    def tell(self) -> int:
        return super().tell() + self.start


class SegmentGone(FormatError):
    """A segment that is not there, as those of an index are that somebody replaced."""


@dataclass(frozen=True)
class Segment:
    """One segment, as the list names it; whatever is read of it raises ``invalid-index``."""

    store: Store = field(compare=False, repr=False)
    key: str
    size: int
    digest: str
    pairs: int
    type: ColumnType

    @memoized
    def _metadata(self) -> Any:
        footer = read_footer(self.store, self.key, self.size, most=MAX_FOOTER)
        if footer is None or digest_of(footer) != self.digest:
            raise ValueError("it is not the file that was written")
        return arrow_metadata(footer)

    @memoized
    def stamps(self) -> dict[str, str]:
        """The stamps of its files by their names, in the order of their numbers."""
        with self._reading():
            unpacked = zlib.decompressobj().decompress(base64.b85decode(self._metadata.metadata[FILES]), MOST_NAMES)
            return {str(name): str(stamp) for name, stamp in json.loads(unpacked)}

    @memoized
    def _groups(self) -> list[Any]:
        return [self._metadata.row_group(at) for at in range(self._metadata.num_row_groups)]

    @memoized
    def bounds(self) -> Bounds:
        """The least and greatest key of each row group."""
        with self._reading():
            ends = [extremes(group, "value") or (None, None) for group in self._groups]
            low, high = (array_of([end[i] for end in ends], key_type(self.type)) for i in (0, 1))
            return Bounds(low, high, repeated(False, len(ends)))

    def rows(self, groups: Sequence[int]) -> int:
        """Return how many pairs stand in some row groups."""
        return sum(self._groups[at].num_rows for at in groups)

    def read(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield the pairs in some row groups, those side by side by one request."""
        for _, beside in groupby(enumerate(groups), lambda item: (item[1] - item[0], item[0] // GROUPS_AT_ONCE)):
            with self._reading():
                found = self._read([group for _, group in beside])
            yield from found.to_batches()

    def _read(self, groups: list[int]) -> pa.Table:
        import pyarrow.parquet as pq  # takes long to import

        chunks = [self._groups[g].column(at) for g in (groups[0], groups[-1]) for at in (0, 1)]
        begins = [c.dictionary_page_offset or c.data_page_offset for c in chunks]
        end = max(begin + c.total_compressed_size for begin, c in zip(begins, chunks, strict=True))
        if not 0 <= min(begins) <= end <= self.size:
            raise ValueError("its pages lie elsewhere")
        window = _Window(self.store.read(self.key, start=min(begins), end=end))
        window.start = min(begins)
        with pq.ParquetFile(window, metadata=self._metadata, page_checksum_verification=True) as file:
            found = file.read_row_groups(groups, use_threads=False)
        is_as_written = found.schema.types == [key_type(self.type), pa.int32()] and not found.column(1).null_count
        if not is_as_written or found.num_rows != self.rows(groups):
            raise ValueError("other pairs than were written")
        return found

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except _BROKEN as e:
            reraise(e, f"Cannot read {self.key!r}")
            kind, reason = FormatError, f"it is torn, or another file: {e}"
            if isinstance(e, KeyError | FileNotFoundError):
                kind, reason = SegmentGone, "it is missing"
            raise kind(f"{self.key}: {reason}", code="invalid-index", hint="Build the index again.") from None


Holds = Callable[[Test], pa.BooleanArray]


def holding(predicate: Predicate, tests: Callable[[Leaf], tuple[Test, ...] | None], holds: Holds) -> Any:
    """Return where a predicate over one column may hold, given where tests do; None where nothing is known."""
    import pyarrow.compute as pc  # takes long to import

    if isinstance(predicate, Group):
        parts = [holding(item, tests, holds) for item in predicate.items]
        known = [part for part in parts if part is not None]
        is_or = predicate.op == "OR"
        return reduce(pc.or_ if is_or else pc.and_, known) if known and not (is_or and None in parts) else None
    if isinstance(predicate, Constant):
        return None if predicate.holds else holds(NEVER)
    found = None if isinstance(predicate, Opaque) else tests(predicate)
    return None if found is None else reduce(pc.or_, map(holds, found or (NEVER,)))


@dataclass(frozen=True, eq=False)
class SegmentedIndex:
    """The inverted index of one column: its segments, and the ``files`` of its table by name, as they are now.

    Of each file the position and the stamp are given, ``count`` files in all. Errors of segments are reported, and
    nothing is left out for it. ``again`` returns what is asked instead if segments are gone; without it that is
    reported as well.
    """

    type: ColumnType
    segments: Sequence[Segment]
    files: Mapping[str, tuple[int, str]]
    count: int
    is_local: bool
    tell: Callable[[str], None]
    again: Callable[[], SegmentedIndex] | None = None

    def _odd(self, error: Exception, key: str = "") -> None:
        if isinstance(error, SegmentGone) and self.again is not None:
            raise error
        self.tell(error.message if isinstance(error, FormatError) else f"{key}: {error}")

    @memoized
    def readable(self) -> list[tuple[Segment, pa.Array]]:
        """The segments that can be read, and the position of each of their files in the table: -1 for none."""
        found = []
        for segment in self.segments:
            try:
                places = [self._place(name, stamp) for name, stamp in segment.stamps.items()]
                found.append((segment, array_of(places, pa.int32())))
            except FormatError as e:
                self._odd(e)
        return found

    def _place(self, name: str, stamp: str) -> int:
        at, now = self.files.get(name, (-1, ""))
        return at if now and now == stamp else -1

    @memoized
    def unseen(self) -> frozenset[int]:
        """The files of which no segment knows what they hold now: they came or changed since."""
        return frozenset(range(self.count)).difference(*(places.to_pylist() for _, places in self.readable))

    def candidates(self, says: Predicate, zone: str, among: frozenset[int]) -> tuple[frozenset[int], str] | None:
        """Return the files that may hold a value for which a predicate over the column is TRUE, or why these are all.

        None, if nothing is known. Only files ``among`` the given ones matter; ``zone`` is the session's time zone.
        """
        try:
            return self._candidates(says, zone, among)
        except SegmentGone:
            assert self.again is not None
            return self.again().candidates(says, zone, among)

    def _candidates(self, says: Predicate, zone: str, among: frozenset[int]) -> tuple[frozenset[int], str] | None:
        import pyarrow.compute as pc

        holds = partial(holding, says, cache(lambda leaf: as_tests(leaf, self.type, zone)))
        nans = array_of([order_key(nan)] if self.type.family in ("float", "double") else [], key_type(self.type))
        if may_hold_for_null(says) or not self.readable or (found := holds(partial(filter_keys, nans))) is None:
            return None
        if any(found.to_pylist()):
            return None
        everything, most = frozenset(range(self.count)), len(among - self.unseen)
        try:
            wanted = [(s, at, pc.indices_nonzero(holds(s.bounds.may_pass)).to_pylist()) for s, at in self.readable]
        except FormatError as e:
            self._odd(e)
            return None
        price = PAIR_SECONDS * sum(segment.rows(groups) for segment, _, groups in wanted)
        if price > max(NEGLIGIBLE, most * (FILE_SECONDS if self.is_local else REMOTE_FILE_SECONDS)):
            return everything, f"not looked up, at most {counted(most, 'file')} could be left out"
        left = set(self.unseen)
        for segment, places, groups in wanted:
            try:
                for batch in segment.read(groups):
                    passes = holds(partial(filter_keys, batch.column(0)))
                    left.update(places.take(pc.unique(batch.column(1).filter(passes))).to_pylist())
                    if among <= left:
                        return everything, ""
            except (FormatError, pa.ArrowException) as e:
                reraise(e)
                self._odd(e, segment.key)
                left.update(places.to_pylist())
        return frozenset(left - {-1}), ""
