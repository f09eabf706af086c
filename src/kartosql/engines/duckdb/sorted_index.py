"""Index files as value and file numbers, read without making a text of each label, and kept in ascending order."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql import stopping
from kartosql.engines.duckdb.replay import INDEX, cache_key
from kartosql.errors import KartosqlError
from kartosql.formats.arrays import array_of
from kartosql.formats.kartothek.snapshot import SETTLED_NS
from kartosql.formats.sorted_values import Collected, SortedValues, Span
from kartosql.parquet import lows
from kartosql.plan.evaluate import HOLD_PAIR, HOLD_VALUE, VALUE_PAIRS
from kartosql.predicate.tree import Comparison, In, Predicate, Value

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from kartosql.formats.kartothek.dataset import InvertedIndex
    from kartosql.store import Files
    from kartosql.tables.table import FileTable
    from kartosql.user_cache import UserCache

LABELS = "partition"
BATCH_PAIRS = 500_000
_BROKEN = (pa.ArrowException, OSError, ValueError)
_KINDS = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_date32)
LABELS_AT_ONCE = 10_000
# Lookups in an index file of so many bytes for which row groups of it are read; a smaller one is soon read as a whole.
FIRST_LOOKS, LARGE_BYTES = 2, 500_000
WANTED = "wanted1"  # the kind of entries for values that a process asked for


class Ordered:
    """The values of an index in ascending order: those that are kept beside the user, or collected some at a time.

    What is kept is known by the stamp of the index file and the labels of the table. ``values`` are None until they are
    there, and ``may_come`` says whether they may ever be.
    """

    def __init__(self, store: Files, table: FileTable, index: InvertedIndex, cache: UserCache | None) -> None:
        self.values: SortedValues | None = None
        self.is_kept = self.may_come = False
        self.identity: list[str] = []
        self._store, self._index, self._cache = store, index, cache
        self._labels, self._files = table.labels, len(table.files)  # not the table, which is kept as long as it is used
        self._coming: tuple[Portions, Collected] | None = None
        self._looked, self._is_new = 0, False  # new to all processes, as far as this one looked into it
        is_searched = pa.types.is_integer(index.type) or pa.types.is_string(index.type)
        if index.key is None or not store.is_local or not is_searched:
            return
        with contextlib.suppress(KeyError, KartosqlError):  # which whoever reads the file tells better
            store.admit([index.key])
            self._stamp = store.stamp(index.key)
            self._path, self.may_come = store.local_path(index.key), True
        if self.may_come and cache is not None and cache.folder is not None:
            labels = [table.labels[at : at + LABELS_AT_ONCE] for at in range(0, len(table.labels), LABELS_AT_ONCE)]
            about = [self._path, *map(str, self._stamp or ()), index.column, str(index.type)]
            self.identity = [*about, *map(cache_key, labels)]
            self._recall()

    def _recall(self) -> None:
        assert self._cache is not None
        buffers = self._cache.get(INDEX, self.identity)
        self.may_come = buffers != []
        with contextlib.suppress(ValueError):  # of an entry that is none
            if buffers:
                self.values, self.is_kept = SortedValues.of(buffers, self._files), True

    def near(self, values: Sequence[int | str]) -> frozenset[int] | None:
        """Return the files of some values, read from the row groups that may hold them; None unless it pays.

        That is where the file is new, as after a commit, and Arrow's reader is there, which takes long to import.
        """
        if not self.may_come or self._looked >= FIRST_LOOKS or "pyarrow.parquet" not in sys.modules:
            return None
        if self._stamp is None or self._stamp.size < LARGE_BYTES:
            return None
        self._is_new = self._is_new or not self.was_wanted()
        if not self._is_new:
            return None
        self._looked += 1
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        column, type_ = self._index.column, self._index.type
        try:
            data = Path(self._path).read_bytes()
            lowest = lows(data, column, type_)
            if lowest is None:
                return None
            with pq.ParquetFile(pa.BufferReader(data)) as file:
                _leaf_of_labels(file, column, type_)
                numbers = sorted({bisect_right(lowest, value) - 1 for value in values} - {-1})
                table = file.read_row_groups(numbers, [column, LABELS])
            found = table.filter(pc.is_in(table.column(0), array_of(list(values), table.schema.types[0])))
        except (*_BROKEN, OverflowError):
            return None
        labels = set(pc.list_flatten(found.column(1)).to_pylist())
        self._store.counter.add("reads", self._index.key or "", len(data))
        return frozenset(n for n, label in enumerate(self._labels) if label in labels)

    def was_wanted(self) -> bool:
        """Return whether an earlier process asked for the values; note that this one does."""
        if self._cache is None or self._cache.get(WANTED, self.identity) is not None:
            return self._cache is not None
        self._cache.put(WANTED, self.identity, [])
        return False

    def collect(self, pairs: float = 1.0, seconds: float = math.inf) -> None:
        """Go on reading the file for about so many seconds; each value has about so many ``pairs``.

        It is read to its end where an earlier process began as well: a third one finds the values.
        """
        coming, self._coming = self._coming, None  # whoever is stopped in the middle begins anew
        if coming is None and seconds < math.inf and not self._is_new and self.was_wanted():
            seconds = math.inf
        try:
            if coming is None:
                numbers = {label: n for n, label in enumerate(self._labels)}
                portions = Portions(self._path, self._index.column, self._index.type, numbers, pairs)
                coming = portions, Collected(self._index.type, self._files)
            portions, collected = coming
            for table in portions.some(seconds):
                for batch in table.to_batches():
                    collected.add(*batch.columns)
            if portions.is_broken:
                raise ValueError(self._path)
            if portions.is_whole:
                self.values = collected.all_values()
                self._keep(self.values.buffers)
            else:
                self._coming = coming
        except ValueError:
            self.may_come = False
            self._keep([])  # nobody need try again

    def _keep(self, buffers: list[memoryview]) -> None:
        """Let later processes have the values, unless the file may have changed since it was known; map them."""
        stamp, key = self._stamp, self._index.key
        if self._cache is None or not self.identity or stamp is None or key is None:
            return
        with contextlib.suppress(KeyError, KartosqlError):
            is_settled = max(stamp.mtime_ns, stamp.ctime_ns) < time.time_ns() - SETTLED_NS
            if is_settled and self._store.stamp(key) == stamp:
                self._cache.put(INDEX, self.identity, buffers)
                self._recall()


class Portions:
    """The pairs (v, files) of an index file, some at a time.

    ``labels`` maps labels to numbers of files, ``pairs`` about how many of them each
    value has. Raises ``ValueError`` for files that DuckDB has to read. ``is_broken`` and
    ``is_whole`` says how reading has ended.
    """

    def __init__(self, path: str, column: str, type_: pa.DataType, labels: Mapping[str, int], pairs: float) -> None:
        import pyarrow.parquet as pq  # takes long to import

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

    def some(self, seconds: float) -> Iterator[pa.Table]:
        """Return the next of them, those that are dealt with in about so many seconds."""
        end = time.perf_counter() + seconds
        try:
            # Small batches are joined, as each table costs DuckDB a statement.
            while batches := list(self._until_enough()):
                table = pa.Table.from_batches(batches)
                yield table
                pairs = sum(len(chunk.values) for chunk in table.column(1).chunks)
                seconds -= HOLD_VALUE * table.num_rows + HOLD_PAIR * pairs
                if seconds <= 0 or time.perf_counter() >= end:
                    return
            self.is_whole = True
        except _BROKEN:
            self.is_broken = True

    def _until_enough(self) -> Iterator[pa.RecordBatch]:
        room = BATCH_PAIRS
        for batch in self._batches:
            yield batch
            room -= len(batch.column(1).values) + VALUE_PAIRS * batch.num_rows
            if room <= 0:
                return

    def _read(self) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

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


def _plainly(value: Value, type_: pa.DataType) -> Any:
    """Return an integer of up to 18 digits beside integers, or a text beside texts; None for all other constants."""
    if pa.types.is_string(type_):
        return value.value if value.kind in ("string", "text") else None
    found = value.value if pa.types.is_integer(type_) and value.kind == "integer" else None
    return found if isinstance(found, int) and abs(found) < 10**18 else None


def compared(predicate: Predicate, type_: pa.DataType) -> tuple[str, Any]:
    """Return how a predicate like ``v < 5`` compares a column of integers or texts with such a constant, and that.

    Integers have up to 18 digits. The operator is empty for all other predicates.
    """
    if isinstance(predicate, Comparison) and len(predicate.path) == 1:
        value = _plainly(predicate.value, type_)
        if value is not None:
            return predicate.op, value
    return "", None


def listed(predicate: Predicate, type_: pa.DataType) -> list[Any]:
    """Return the integers or texts of which a value has to be one for the predicate to be TRUE; none for others."""
    if isinstance(predicate, In) and len(predicate.path) == 1 and not predicate.negated:
        values = [_plainly(v, type_) for v in predicate.values or ()]
        return [] if None in values else values
    op, value = compared(predicate, type_)
    return [value] if op == "=" else []


def in_order(predicate: Predicate, type_: pa.DataType) -> Callable[[SortedValues], list[Span]] | None:
    """Return what tells where values stand for which a predicate is TRUE; None for all that only the engine evaluates.

    ``type_`` is that of the values, integers or texts.
    """
    if values := listed(predicate, type_):
        return lambda index: index.among(values)
    op, value = compared(predicate, type_)
    if op in ("<", "<="):
        return lambda index: index.between(None, value, without_high=op == "<")
    return (lambda index: index.between(value, without_low=op == ">")) if op in (">", ">=") else None
