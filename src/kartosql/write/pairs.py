"""The values of a column by file: collected while files are written, on disk if they are many."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.formats.kartothek.schema import normalise
from kartosql.write.sorting import SortedRuns, Sorter
from kartosql.write.split import changed

KEYS = ("value", "file")


def unique_values(column: pa.ChunkedArray, type_: pa.DataType | None = None) -> pa.Array:
    """Return the different values of a column of a data file in the type of its index, without NULL.

    Numbers and times are sorted.
    """
    values = _joined(column)
    type_ = normalise(column.type) if type_ is None else type_
    if not is_number(values.type) or not is_number(type_):
        values = pc.unique(values).drop_null().cast(type_)
        return pc.unique(one_zero(values)) if pa.types.is_floating(type_) else values
    if values.null_count:
        values = values.drop_null()
    count = len(values) - 1
    if count > 0 and pc.all(pc.less_equal(values.slice(0, count), values.slice(1))).as_py():
        new = pc.not_equal(values.slice(0, count), values.slice(1))
        return values.filter(pa.concat_arrays([pa.array([True]), new])).cast(type_)
    # Runs in order are merged in a third of the time.
    values = pc.unique(values).cast(type_)
    return values.take(pc.array_sort_indices(values))


def _joined(column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def is_number(type_: pa.DataType) -> bool:
    """Return whether values are compared as fast as whole numbers."""
    return bool(pa.types.is_integer(type_) or pa.types.is_temporal(type_))


def one_zero(values: pa.Array) -> pa.Array:
    """Return values in which 0.0 and -0.0 are the same, as they are in an index; hashing tells them apart."""
    return pc.add(values, pa.scalar(0.0, values.type)) if pa.types.is_floating(values.type) else values


def pairs_of(type_: pa.DataType, labels: Sequence[str], values: Sequence[pa.Array]) -> pa.Table:
    """Return the pairs (``value``, ``label``) of a column of type ``type_``; ``values`` are those of each label.

    Labels are a dictionary, so that a pair takes no more than a number for it.
    """
    ends, files, total = [], [], 0
    for file, array in enumerate(values):
        if len(array):
            total += len(array)
            ends.append(total)
            files.append(file)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int64()), pa.array(files, pa.int32()))
    codes = pc.run_end_decode(runs) if total else pa.array([], pa.int32())
    joined = pa.table({"value": pa.chunked_array(values, normalise(type_))}).combine_chunks()
    return joined.append_column("label", _labelled(codes, labels))


def _labelled(files: pa.Array, labels: Sequence[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(files, pa.array(labels, pa.string()), safe=False)


class Pairs:
    """The pairs of one column, handed in by several threads; more than ``limit`` bytes of them go to disk."""

    def __init__(self, type_: pa.DataType, sorter: Sorter | None, limit: int) -> None:
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
        files = pa.concat_arrays([pa.repeat(pa.scalar(file, pa.int32()), len(values)) for file, values in found])
        values = pa.chunked_array([values for _, values in found], self._type)
        return pa.table([values, files], names=KEYS).combine_chunks()

    def finish(self, labels: Sequence[str]) -> pa.Table:
        """Return all pairs, each once, for files numbered in the order of ``labels``.

        They are a table as of ``pairs_of``; one that stands on disk is sorted by value.
        """
        if self._runs is not None:
            if self._found:
                self._runs.add(self._taken())
            schema = pa.schema([(KEYS[0], self._type), (KEYS[1], pa.int32())])
            table = self._runs.mapped(_distinct(self._runs.merged(self._limit)), schema)
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


def _distinct(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield sorted rows without those that equal the row before."""
    last = None
    for piece in pieces:
        if last is None:
            yield piece.slice(0, 1)
            last = piece.slice(0, 1)
        rows = pa.concat_tables([last, piece])
        yield rows.slice(1).filter(changed(rows, KEYS))
        last = piece.slice(piece.num_rows - 1)
