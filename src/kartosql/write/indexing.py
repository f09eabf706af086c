"""Files -> inverted indices: which partitions hold which value."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import FormatError, reraise
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.metadata import normalise
from kartosql.parquet import lows
from kartosql.store import Store
from kartosql.text.types import in_sql_names
from kartosql.write.layout import SortedRuns, SpillingSorter, changed

KEYS = ("value", "file")
LABELS = pa.dictionary(pa.int32(), pa.string())


def unique_values(column: pa.ChunkedArray, type_: pa.DataType | None = None) -> pa.Array:
    """Return the different values of a column of a data file in the type of its index, without NULL.

    Numbers and times are sorted.
    """
    values = _joined(column)
    type_ = normalise(column.type) if type_ is None else type_
    if not _is_number(values.type) or not _is_number(type_):
        values = pc.unique(values).drop_null().cast(type_)
        return pc.unique(_one_zero(values)) if pa.types.is_floating(type_) else values
    if values.null_count:
        values = values.drop_null()
    if len(values) > 1 and _is_ascending(values):
        return values.filter(pa.concat_arrays([pa.array([True]), _is_new(values)])).cast(type_)
    # Runs in order are sorted in a third of the time.
    values = pc.unique(values).cast(type_)
    return values.take(pc.array_sort_indices(values))


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_number(type_: pa.DataType) -> bool:
    """Return whether values are compared as fast as whole numbers."""
    return bool(pa.types.is_integer(type_) or pa.types.is_temporal(type_))


def _is_ascending(values: pa.Array | pa.ChunkedArray) -> bool:
    count = len(values) - 1
    return count < 1 or bool(pc.all(pc.less_equal(values.slice(0, count), values.slice(1))).as_py())


def _is_new(values: pa.Array | pa.ChunkedArray) -> Any:
    """Return for each value but the first whether it differs from the one before."""
    return pc.not_equal(values.slice(1), values.slice(0, len(values) - 1))


def _one_zero(values: pa.Array) -> pa.Array:
    """Return values in which 0.0 and -0.0 are the same, as they are in an index; hashing distinguishes them."""
    return pc.add(values, pa.scalar(0.0, values.type)) if pa.types.is_floating(values.type) else values


def pairs_of(type_: pa.DataType, labels: Sequence[str], values: Sequence[pa.Array]) -> pa.Table:
    """Return the pairs (``value``, ``label``) of a column of type ``type_``; ``values`` are those of each label.

    Labels are a dictionary, so that a pair takes no more than a number for it.
    """
    joined = pa.table({"value": pa.chunked_array(values, normalise(type_))}).combine_chunks()
    return joined.append_column("label", _labelled(_numbers(enumerate(values)), labels))


def _numbers(found: Iterable[tuple[int, pa.Array]]) -> pa.Array:
    """Return for each value of some files the number of its file."""
    runs = [pa.repeat(pa.scalar(file, pa.int32()), len(values)) for file, values in found]
    return pa.concat_arrays([pa.array([], pa.int32()), *runs])


def _labelled(files: pa.Array, labels: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(files, pa.array(labels, pa.string()), safe=False)


class Postings:
    """The pairs of one column, handed in by several threads; more than ``limit`` bytes of them go to disk."""

    def __init__(self, type_: pa.DataType, sorter: SpillingSorter | None, limit: int) -> None:
        self._type = normalise(type_)
        self._sorter, self._limit = sorter, limit
        self._found: list[tuple[int, pa.Array]] = []
        self._bytes = 0
        self._runs: SortedRuns | None = None
        self._lock = threading.Lock()

    def add(self, file: int, values: pa.Array) -> None:
        """Take different values of a file; raises ``disk-full`` and ``store-failed``."""
        with self._lock:
            self._found.append((file, values))
            self._bytes += values.nbytes
            if self._sorter is not None and self._bytes > self._limit:
                if self._runs is None:
                    self._runs = self._sorter.runs(KEYS)
                self._runs.add(self._taken())

    def _taken(self) -> pa.Table:
        found, self._found, self._bytes = self._found, [], 0
        values = pa.chunked_array([values for _, values in found], self._type)
        return pa.table([values, _numbers(found)], names=KEYS).combine_chunks()

    def finish(self, labels: Sequence[str]) -> pa.Table:
        """Return all pairs, each once, for files numbered in the order of ``labels``.

        They are a table as of ``pairs_of``; one on disk is sorted by value.
        """
        if self._runs is not None:
            if self._found:
                self._runs.add(self._taken())
            schema = pa.schema([(KEYS[0], self._type), (KEYS[1], pa.int32())])
            table = self._runs.mapped(distinct(self._runs.merged(self._limit)), schema)
            chunks = [_labelled(files, labels) for files in table["file"].chunks]
            return pa.table({"value": table["value"], "label": pa.chunked_array(chunks)})
        by_file: dict[int, list[pa.Array]] = {}
        for file, values in self._found:
            by_file.setdefault(file, []).append(values)
        arrays = [by_file.get(file, [pa.array([], self._type)]) for file in range(len(labels))]
        values = [a[0] if len(a) == 1 else unique_values(pa.chunked_array(a), self._type) for a in arrays]
        return pairs_of(self._type, labels, values)

    def close(self) -> None:
        """Remove what is on disk."""
        if self._runs is not None:
            self._runs.close()


def distinct(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield sorted pairs (``KEYS``) without those that are there already."""
    last = None
    for piece in pieces:
        if last is None:
            yield piece.slice(0, 1)
            last = piece.slice(0, 1)
        rows = pa.concat_tables([last, piece])
        yield rows.slice(1).filter(changed(rows, KEYS))
        last = piece.slice(piece.num_rows - 1)


RANGE_PAIRS = 1 << 15  # small enough for caches

# A label, and the one in its place.
Exchange = tuple[str, str]

# Values ascending, how many numbers each has, and these numbers one after the other.
Grouped = tuple[pa.Array, pa.Array, pa.Array]


def ranges(values: pa.ChunkedArray, codes: pa.ChunkedArray) -> Iterator[Grouped]:
    """Yield the pairs (``values[i]``, ``codes[i]``) in ranges of values, each pair once.

    Numbers of one value stay in their order. Values that ascend are read piece by piece.
    """
    has_nan = pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py()
    if not has_nan and _is_ascending(values):
        yield from _cut(values, codes)
    elif _is_number(values.type):
        numbers = _joined(values)
        order = pc.array_sort_indices(numbers)
        yield from _cut(*(pa.chunked_array([column.take(order)]) for column in (numbers, _joined(codes))))
    else:
        # Ranks are sorted sooner than texts.
        texts, numbers = encode(values)
        ordered = texts.take(pc.sort_indices(texts))
        ranks = pc.rank(texts, "ascending", tiebreaker="first").cast(pa.int64())
        for found, counts, some in ranges(pa.chunked_array([ranks.take(numbers)]), codes):
            yield ordered.take(pc.subtract(found, 1)), counts, some


def encode(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return the different values of a column, and for each row which of them it is."""
    # In one chunk, unless text is too long for it: each chunk would bring all values along.
    found = pa.table([column], names=["c"]).combine_chunks()["c"].dictionary_encode().unify_dictionaries()
    if not found.num_chunks:
        return pa.array([], column.type), pa.array([], pa.int32())
    return found.chunk(0).dictionary, pa.concat_arrays([chunk.indices for chunk in found.chunks])


def _cut(values: pa.ChunkedArray, codes: pa.ChunkedArray) -> Iterator[Grouped]:
    start, size = 0, RANGE_PAIRS
    while start < len(values):
        some = _joined(values.slice(start, size))
        end = len(some)
        if start + end < len(values):
            # The last value may go on behind.
            end = pc.index(pc.equal(some, some[-1]), True).as_py()
            if not end:
                size *= 2
                continue
        yield _grouped(some.slice(0, end), _joined(codes.slice(start, end)))
        start, size = start + end, RANGE_PAIRS


def _grouped(values: pa.Array, codes: pa.Array) -> Grouped:
    """Return the different values of some in order, how many codes each has, and the codes, none twice for a value."""
    new = _is_new(values)
    again = pc.and_not(pc.less_equal(codes.slice(1), codes.slice(0, len(codes) - 1)), new)
    if pc.any(again).as_py():
        # An older index may hold a pair twice. Of the numbers of a value the first ones stay, in their order.
        ranks = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(new.cast(pa.int64()))])
        width = pa.scalar(pc.max(codes).as_py() + 1, pa.int64())
        starts = _starts(new)
        keys = pc.unique(pc.add(pc.multiply(ranks, width), codes.cast(pa.int64())))
        ranks = pc.divide(keys, width)
        found = values.take(starts)
        codes = pc.subtract(keys, pc.multiply(ranks, width)).cast(pa.int32())
        starts = _starts(_is_new(ranks))
    else:
        starts = _starts(new)
        found = values.take(starts)
    ends = pa.concat_arrays([starts.slice(1), pa.array([len(codes)], pa.int64())])
    return found, pc.subtract(ends, starts), codes


def _starts(new: pa.Array) -> pa.Array:
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.add(pc.indices_nonzero(new).cast(pa.int64()), 1)])


# A change makes those row groups anew that have one of its values, and copies all others; but each has an entry in the
# footer, which whoever changes or asks the index reads first.
VALUES_PER_ROW_GROUP, MOST_VALUES = 2_000, 1 << 19  # Arrow makes two of more than 1 << 20
MOST_ROW_GROUPS = 256  # but for MOST_VALUES, and until row groups of an older index are made anew
MOST_PATCHED = 1000  # pairs, up to which most of an index stays as it is
_PATCHED = (pa.types.is_integer, pa.types.is_date32, pa.types.is_string, pa.types.is_timestamp)


def index_key(uuid: str, column: str, created: str) -> str:
    """Return the storage key of the index of ``column`` written at the ISO time ``created``."""
    return f"{uuid}/indices/{naming.quote(column)}/{naming.quote(created)}{naming.INDEX_SUFFIX}"


def index_schema(added: pa.Table, column: str) -> pa.Schema:
    """Return the schema of the index of ``column`` in memory, where labels are a dictionary."""
    return pa.schema([(column, added.schema.field("value").type), ("partition", pa.list_(pa.field("item", LABELS)))])


def merged(old: pa.Table | None, removed: Set[str], added: pa.Table, column: str) -> Iterator[pa.Table]:
    """Yield the inverted index of ``column`` with the pairs of ``added`` and without the labels ``removed``.

    ``old`` is the index  in its file, ``added`` a table of pairs; of both, what is in ``removed`` goes.
    There is one row per value, ascending: ``column`` and ``partition``, the list of labels, those of ``old`` first. The
    tables yielded have as many rows as row groups shall have, but for the last one. Many pairs that ascend by value are
    never in memory all at once. Raises ``invalid-index`` for a foreign ``old``.
    """
    schema = index_schema(added, column)
    values, codes, labels = _merged(old, removed, added, column)
    pairs = ranges(values, codes)
    for first in pairs:
        # As if all other values were in as many files.
        size = _values_per_row_group(len(values) * len(first[0]) // len(first[2]))
        yield from _lists(chain([first], pairs), labels, schema, size)


def _values_per_row_group(count: int) -> int:
    return min(max(VALUES_PER_ROW_GROUP, -(-count // MOST_ROW_GROUPS)), MOST_VALUES)


def _merged(
    old: pa.Table | None, removed: Set[str], added: pa.Table, column: str
) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.Array]:
    """Return the pairs of values and numbers of labels, and these labels."""
    type_ = added.schema.field("value").type
    pairs = [added] if old is None else [flat(old, column, type_), added]
    values = pa.chunked_array([chunk for p in pairs for chunk in p["value"].chunks], type_)
    labels, codes = _encoded([p["label"] for p in pairs])
    if removed:
        gone = pc.is_in(labels, value_set=pa.array(sorted(removed), pa.string()))
        keep = pc.invert(gone.take(codes))
        values, codes = values.filter(keep), codes.filter(keep)
    return values, codes, labels


def patched(
    old: StoredIndex,
    removed: Set[str],
    gone: pa.Table | None,
    added: pa.Table,
    column: str,
    *,
    exchanging: bool = False,
) -> dict[int, list[pa.Table] | Exchange] | None:
    """Return what takes the place of some row groups of an index, by number; None if all of it is to be made anew.

    ``gone`` are the pairs of the labels ``removed``, if they are known. With ``exchanging``, row groups in which a new
    label has all values of the one that goes have an Exchange.
    """
    schema = index_schema(added, column)
    plain = pa.schema([schema.field(0), (schema.names[1], pa.list_(pa.field("item", pa.string())))])
    known = [added, gone] if removed and gone is not None else [added]
    few = sum(pairs.num_rows for pairs in known) <= MOST_PATCHED and (not removed or gone is not None)
    lows = old.lows() if few and old.schema.equals(plain) and any(test(plain.types[0]) for test in _PATCHED) else None
    if lows is None:
        return None
    came, *went = [_raw(v.cast(plain.types[0])).to_pylist() for v in (pairs["value"] for pairs in known)]
    places = {value: max(bisect_right(lows, value) - 1, 0) for value in chain(came, *went)}
    labels = [*removed, *added["label"].unique().to_pylist()]
    alike = exchanging and len(removed) == 1 and len(labels) == 2 and len({len(text.encode()) for text in labels}) == 1
    differ = {places[value] for value in (set(came).symmetric_difference(*went) if alike else places)}
    numbers = sorted(differ)
    if 2 * len(numbers) > len(lows):
        return None
    made: dict[int, list[pa.Table] | Exchange] = {}
    if alike:
        made.update(dict.fromkeys({*places.values()} - differ, (labels[0], labels[1])))
        sides = zip(known, (came, *went), strict=True)
        added, gone = (t.filter(pa.array([places[v] in differ for v in vs], pa.bool_())) for t, vs in sides)
    touched = old.some(numbers)
    if removed and gone is not None:
        # Where another number of pairs goes, some stand elsewhere.
        is_gone = pc.is_in(pc.list_flatten(touched[1]), value_set=pa.array(sorted(removed), pa.string()))
        if (pc.sum(is_gone).as_py() or 0) != gone.num_rows:
            return None
    found, codes, texts = _merged(touched, removed, added, column)
    pairs, size = list(ranges(found, codes)), _values_per_row_group(old.count)
    made.update(_at_places(pairs, texts, schema, {n: lows[n + 1 : n + 2] for n in numbers}, size))
    return made


def _at_places(
    pairs: list[Grouped], labels: pa.Array, schema: pa.Schema, ends: Mapping[int, list[Any]], size: int
) -> dict[int, list[pa.Table]]:
    """Return tables of some size by numbers of row groups, of which each has values below an end, if there is one."""
    if not pairs:
        return {number: [] for number in ends}
    values, counts, codes = (pa.concat_arrays(parts) for parts in zip(*pairs, strict=True))
    raw, sums = _raw(values), pc.cumulative_sum(counts)
    made: dict[int, list[pa.Table]] = {}
    start = first = 0
    for number, end in ends.items():
        stop = bisect_left(range(len(raw)), end[0], key=lambda at: raw[at].as_py()) if end else len(raw)
        last = sums[stop - 1].as_py() if stop else 0
        some = (values[start:stop], counts[start:stop], codes[first:last])
        parts = max(1, round((stop - start) / size))
        made[number] = list(_lists([some], labels, schema, -(-(stop - start) // parts))) if stop > start else []
        start, first = stop, last
    return made


def _raw(values: pa.Array | pa.ChunkedArray) -> Any:
    """Return values as statistics of row groups have them."""
    types = {True: pa.int32(), False: pa.int64()}
    return values.cast(types[pa.types.is_date32(values.type)]) if pa.types.is_temporal(values.type) else values


def flat(old: pa.Table, column: str, value_type: pa.DataType) -> pa.Table:
    """Return the pairs of an index file, labels as ``LABELS``; others write other string and timestamp types."""
    try:
        pieces = []
        for batch in old.select([column, "partition"]).to_batches():
            lists = batch.column(1)
            values = _one_zero(batch.column(0).cast(value_type)).take(pc.list_parent_indices(lists))
            labels = pc.list_flatten(lists)
            pieces.append([values, labels if labels.type == LABELS else labels.cast(pa.string()).dictionary_encode()])
        schema = pa.schema([("value", value_type), ("label", LABELS)])
        table = pa.concat_tables([schema.empty_table(), *(pa.table(p, schema=schema) for p in pieces)])
        return table.filter(pc.and_(pc.is_valid(table["value"]), pc.is_valid(table["label"])))
    except (pa.ArrowException, KeyError) as e:
        reraise(e)
        raise FormatError(
            f"The index of {column!r} cannot be brought forward: {in_sql_names(e)}",
            code="invalid-index",
            hint="Build the index again.",
        ) from None


def _encoded(columns: Sequence[pa.ChunkedArray]) -> tuple[pa.Array, pa.ChunkedArray]:
    """Return the different labels of pairs, and for each row which of them it is."""
    encoded = [c if pa.types.is_dictionary(c.type) else c.dictionary_encode() for c in columns]
    labels = pa.chunked_array([chunk for c in encoded for chunk in c.chunks], LABELS).unify_dictionaries()
    if not labels.num_chunks:
        return pa.array([], pa.string()), pa.chunked_array([], pa.int32())
    return labels.chunk(0).dictionary, pa.chunked_array([chunk.indices for chunk in labels.chunks])


def _lists(pairs: Iterable[Grouped], labels: pa.Array, schema: pa.Schema, size: int) -> Iterator[pa.Table]:
    """Yield values with their lists of labels in tables of one size.

    ``pairs`` are values, the number of labels of each, and these labels one after the other.
    """
    values, counts, codes = (pa.array([], t) for t in (schema.field(0).type, pa.int64(), pa.int32()))
    for given in chain(pairs, [None]):
        if given is not None:
            values, counts, codes = (
                pa.concat_arrays([a, b]) if len(a) else b for a, b in zip((values, counts, codes), given, strict=True)
            )
        while len(values) >= size or (given is None and len(values)):
            some = counts.slice(0, size)
            offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(some).cast(pa.int32())])
            end = offsets[-1].as_py()
            # Parquet takes a dictionary as it is, so it holds what the row group needs and no more.
            used = codes.slice(0, end).dictionary_encode()
            texts = pa.DictionaryArray.from_arrays(used.indices, labels.take(used.dictionary), safe=False)
            lists = pa.ListArray.from_arrays(offsets, texts)
            yield pa.table([values.slice(0, len(some)), lists], schema=schema)
            values, counts, codes = values.slice(len(some)), counts.slice(len(some)), codes.slice(end)


class StoredIndex:
    """The index of a column  in its file, read as a whole or by row group; raises ``invalid-index``."""

    def __init__(self, store: Store, key: str, column: str) -> None:
        self._key, self._column = key, column
        self.data = self._read(lambda: store.read_metadata(key))
        self._file = self._read(lambda: pq.ParquetFile(pa.BufferReader(self.data)))
        self.count = self._file.metadata.num_rows
        self.schema: pa.Schema = self._file.schema_arrow.remove_metadata()
        if self.schema.names != [column, "partition"]:
            raise self._invalid(f"its columns are {', '.join(self.schema.names)}")

    def read(self) -> pa.Table:
        """Return all of it."""
        return self._read(self._file.read)

    def values(self) -> pa.ChunkedArray:
        """Return its values."""
        return self._read(lambda: self._file.read([self._column]).column(0))

    def some(self, numbers: Sequence[int]) -> pa.Table:
        """Return the rows of some row groups."""
        return self._read(lambda: self._file.read_row_groups(numbers)).replace_schema_metadata()

    def lows(self) -> list[Any] | None:
        """Return the least value of each row group, see ``parquet.lows``."""
        return lows(self.data, self._column, self.schema.types[0])

    def _read(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KeyError:
            raise self._invalid("it is missing") from None
        except (pa.ArrowException, OSError, UnicodeDecodeError) as e:
            reraise(e, f"Cannot read {self._key!r}")
            raise self._invalid(f"it is torn or no Parquet file: {e}") from None

    def _invalid(self, reason: str) -> FormatError:
        return FormatError(f"{self._key}: {reason}", code="invalid-index", hint="Build the index again.")
