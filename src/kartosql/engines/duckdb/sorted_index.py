"""Index files as value and file numbers, read without making a text of each label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql import stopping
from kartosql.formats.arrays import array_of
from kartosql.plan.evaluate import HOLD_PAIR, HOLD_VALUE, VALUE_PAIRS

LABELS = "partition"
BATCH_PAIRS = 500_000
_BROKEN = (pa.ArrowException, OSError, ValueError)
_KINDS = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)


class Portions:
    """The pairs (v, files) of an index file, some at a time.

    ``labels`` tells the number of the file with a label, ``pairs`` about how many of them each
    value has. Raises ``ValueError`` for files that DuckDB has to read. ``is_broken`` and
    ``is_whole`` tell how reading has ended.
    """

    def __init__(self, path: str, column: str, type_: pa.DataType, labels: Mapping[str, int], pairs: float) -> None:
        try:
            with pq.ParquetFile(path) as file:
                self._leaf = _leaf_of_labels(file, column, type_)
        except _BROKEN as e:
            raise ValueError(str(e)) from None
        self._path = path
        self._column = column
        self._labels = labels
        self._rows = max(256, int(BATCH_PAIRS / max(1.0, pairs)))
        self._batches = self._read()
        self.is_whole = self.is_broken = False
        self.passed: list[pa.Table] | None = None  # those that were handed out, if they are to be kept

    def some(self, seconds: float) -> Iterator[pa.Table]:
        """Return the next of them, those that are dealt with in about so many seconds."""
        try:
            for table in self._tables():
                if self.passed is not None:
                    self.passed.append(table)
                yield table
                pairs = sum(len(chunk.values) for chunk in table.column(1).chunks)
                seconds -= HOLD_VALUE * table.num_rows + HOLD_PAIR * pairs
                if seconds <= 0:
                    return
            self.is_whole = True
        except _BROKEN:
            self.is_broken = True

    def _tables(self) -> Iterator[pa.Table]:
        """Join small batches, as each table costs DuckDB a statement."""
        while batches := list(self._until_enough()):
            yield pa.Table.from_batches(batches)

    def _until_enough(self) -> Iterator[pa.RecordBatch]:
        room = BATCH_PAIRS
        for batch in self._batches:
            yield batch
            room -= len(batch.column(1).values) + VALUE_PAIRS * batch.num_rows
            if room <= 0:
                return

    def _read(self) -> Iterator[pa.RecordBatch]:
        last = codes = unknown = None
        with pq.ParquetFile(self._path, read_dictionary=[self._leaf]) as file:
            # Arrow makes no dictionaries of labels across row groups.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(self._rows, row_groups=[group], columns=[self._column, LABELS]):
                    stopping.check()
                    values, lists = batch.column(self._column), batch.column(LABELS)
                    values.validate(full=True)
                    labels = lists.values
                    if not isinstance(labels, pa.DictionaryArray):
                        raise ValueError("no dictionary")
                    if codes is None or not labels.dictionary.equals(last):
                        last = labels.dictionary
                        codes = array_of([self._labels.get(label, -1) for label in last.to_pylist()], pa.int32())
                        unknown = -1 in codes.to_pylist()
                    if unknown or lists.null_count or labels.null_count:
                        raise ValueError("labels of no file")
                    # DuckDB looks the numbers up, as Arrow's functions take long to import.
                    numbers = pa.DictionaryArray.from_arrays(labels.indices, codes)
                    files = pa.ListArray.from_arrays(lists.offsets, numbers)
                    yield pa.RecordBatch.from_arrays([values, files], ["v", "files"])


def _leaf_of_labels(file: pq.ParquetFile, column: str, type_: pa.DataType) -> str:
    """Return the path of the labels; raises ``ValueError`` if a file is no plain index."""
    leaves = [c.path for c in map(file.schema.column, range(len(file.schema.names)))]
    found = [path for path in leaves if path.split(".")[0] == LABELS]
    schema = file.schema_arrow
    if len(leaves) != 2 or len(found) != 1 or schema.names.count(column) != 1 or column == LABELS:
        raise ValueError("other columns")
    stored = schema.field(column).type
    both_text = pa.types.is_string(type_) and (pa.types.is_string(stored) or pa.types.is_large_string(stored))
    if not (both_text or any(kind(type_) and kind(stored) for kind in _KINDS)):
        raise ValueError("another type")
    return str(found[0])
