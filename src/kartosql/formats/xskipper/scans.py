"""What indexes keep of the rows of each file; columns of Parquet files by Arrow alone, for them."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby, islice
from mmap import ACCESS_READ, mmap
from operator import itemgetter
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import reraise
from kartosql.formats.arrays import array_of
from kartosql.formats.parquet_pages import distinct_values
from kartosql.formats.xskipper.kinds import stored
from kartosql.formats.xskipper.layout import IndexLayout
from kartosql.formats.xskipper.naming import OBJECT_COLUMN, object_id, parts_of
from kartosql.parquet import DAMAGE, MAX_FOOTER, TAIL, FooterCache, footer_of, read_footer
from kartosql.store import Store

# Values of columns, by their names; they need not be of as many rows.
Values: TypeAlias = Mapping[str, pa.Array] | pa.RecordBatch
# Which columns (with dots between members of structs) of which files, by their keys: pairs of the number of the
# file and the values of some of its rows. All of a file come one after the other; files without rows may be left out.
# Of a column that has a type, the least and the greatest value of it are enough.
Scan = Callable[[Sequence[str], Mapping[str, pa.DataType | None]], Iterable[tuple[int, Values]]]
# Files in a store, by their numbers and keys, and columns by what these call them; None for their own names.
Place: TypeAlias = tuple[Store, Sequence[tuple[int, str]], Any]
_Found: TypeAlias = tuple[int, list[Any]]  # the number of a file, and its cells in the order of the indexes

_BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class DataFile:
    """A file of data: its path and time as metadata name it, the key under which it is read, and its partition.

    The time, and the size if it is given, have to be taken before the file is read. ``partition`` are the typed
    values of its partition columns.
    """

    path: str
    modified_ms: int
    key: str
    partition: Mapping[str, Any] = field(default_factory=dict)
    size: int | None = None

    @property
    def id(self) -> str:
        """The name of the indexed object."""
        return object_id(self.path, self.modified_ms)


def collect(files: Sequence[DataFile], layout: IndexLayout, scan: Scan) -> Iterator[pa.RecordBatch]:
    """Yield metadata rows of files, in the columns of ``layout.arrow_schema``.

    A file of which a column cannot be read, or not in the type of its index, gets no row: it
    stays unindexed, which is always right.
    """
    columns: dict[str, pa.DataType | None] = {}
    for spec, type_ in layout.indexes:
        columns[spec.column] = type_ if spec.kind.is_of_bounds and spec.column not in columns else None
    if not columns:
        yield from _rows(((n, []) for n in range(len(files))), files, layout)
    elif files:
        yield from _rows(_scanned(len(files), layout, scan([f.key for f in files], columns)), files, layout)


def _scanned(count: int, layout: IndexLayout, batches: Iterable[tuple[int, Values]]) -> Iterator[_Found]:
    """Yield the cells of each file; files that cannot be read are left out."""
    seen: set[int] = set()
    for number, of_file in groupby(batches, itemgetter(0)):
        if number in seen or not 0 <= number < count:
            continue
        seen.add(number)
        collectors = [spec.kind.collector(spec, type_) for spec, type_ in layout.indexes]
        try:
            if not all(_add(batch, collectors, layout) for _, batch in of_file):
                continue
            cells = [c.cell() for c in collectors]
        except (pa.ArrowInvalid, UnicodeDecodeError):
            continue  # texts that are none
        yield number, cells


def _add(batch: Values, collectors: Sequence[Any], layout: IndexLayout) -> bool:
    """Add rows to what is collected, False if a column is not of the type of its index."""
    arrays: dict[tuple[str, pa.DataType], pa.Array | None] = {}
    for (spec, type_), collector in zip(layout.indexes, collectors, strict=True):
        where = spec.column, type_
        if where not in arrays:
            arrays[where] = _cast(batch[spec.column], type_)
        values = arrays[where]
        if values is None:
            return False
        collector.add(values)
    return True


_FAMILIES = (
    lambda t: pa.types.is_integer(t) or pa.types.is_decimal128(t),
    lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t),
    pa.types.is_floating,
    pa.types.is_date,
    pa.types.is_timestamp,
)


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Return values in the type in which an index keeps them, None if that is not exact."""
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), type_)
    if pa.types.is_dictionary(values.type):
        # Values in the dictionary that no row has are left out.
        values = values.dictionary.take(pc.unique(values.indices).drop_null())
    if values.type == type_:
        return values
    if not any(is_a(values.type) and is_a(type_) for is_a in _FAMILIES):
        return None
    try:
        if pa.types.is_timestamp(values.type) and values.type.tz is None:
            values = values.cast(pa.timestamp("us"))
            return values.view(pa.int64()).view(type_)
        return values.cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _rows(cells: Iterable[_Found], files: Sequence[DataFile], layout: IndexLayout) -> Iterator[pa.RecordBatch]:
    held: list[_Found] = []
    size = 0
    for found in cells:
        held.append(found)
        size += sum(spec.kind.size(cell, spec) for (spec, _), cell in zip(layout.indexes, found[1], strict=True))
        if size > _BATCH_BYTES or len(held) >= 25_000:
            yield _batch(held, files, layout)
            held, size = [], 0
    if held:
        yield _batch(held, files, layout)


def partition_values(files: Sequence[DataFile], name: str, type_: pa.DataType) -> pa.Array:
    """Return the values that files have of a partition column."""
    values = [f.partition.get(name) for f in files]
    return pa.array(values, type_) if pa.types.is_timestamp(type_) else array_of(values, type_)


def _batch(held: Sequence[_Found], files: Sequence[DataFile], layout: IndexLayout) -> pa.RecordBatch:
    schema = layout.arrow_schema
    arrays = [array_of([files[n].id for n, _ in held], pa.string())]
    for name, type_ in layout.partitions.items():
        arrays.append(partition_values([files[n] for n, _ in held], name, type_))
    for at, (spec, type_) in enumerate(layout.indexes):
        arrays.append(spec.kind.encode([c[at] for _, c in held], spec, type_))
    assert schema.names[0] == OBJECT_COLUMN
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_BATCH = 1 << 17
_WHOLE = 1 << 20  # bytes of files that are read at once: that takes less time than to map them, or to read bit by bit
THREADS = min(4, os.cpu_count() or 1)
_AHEAD = 8 * THREADS  # files that are read before they are asked for


def parquet_scan(store: Store) -> Scan:
    """Return a scan of the Parquet files of a store; files that cannot be read yield nothing, or not all rows twice.

    What the footer or the pages of a file say of a column is not read from its rows.
    """

    def scan(keys: Sequence[str], columns: Mapping[str, pa.DataType | None]) -> Iterator[tuple[int, Values]]:
        reader, waiting = _ColumnReader(store, columns), iter(keys)
        with ThreadPoolExecutor(THREADS) as pool:
            ahead = deque(pool.submit(reader.read, key) for key in islice(waiting, _AHEAD))
            for number in range(len(keys)):
                found = ahead.popleft().result()
                ahead.extend(pool.submit(reader.read, key) for key in islice(waiting, 1))
                yield from ((number, values) for values in found or ())

    return scan


def renamed(scan: Scan, there: Mapping[str, str]) -> Scan:
    """Return a scan of files that call columns otherwise: ``there`` has these by their names, others are NULL."""

    def read(keys: Sequence[str], columns: Mapping[str, pa.DataType | None]) -> Iterator[tuple[int, Values]]:
        absent = {c: pa.nulls(1) for c in columns if c not in there.values()}
        for at, values in scan(keys, {own: columns[c] for own, c in there.items()}):
            yield at, {**absent, **{c: values[own] for own, c in there.items()}}

    return read


class _ColumnReader:
    """Reads columns of files, from footers and pages where these are enough, and by Arrow."""

    def __init__(self, store: Store, columns: Mapping[str, pa.DataType | None]) -> None:
        self._store, self._columns, self._footers = store, columns, FooterCache()

    def read(self, key: str) -> list[Values] | None:
        """Return columns of a file, or None; a file of which a part cannot be read has no rows at all."""
        try:
            content = _content(self._store, key) if None in self._columns.values() else None
            told = self._collect(key, content)
            rest = [c for c in self._columns if c not in told]
            if not rest:
                return [told]
            batches = self._by_arrow(_content(self._store, key) if content is None else content, rest)
        except (pa.ArrowException, OSError, KeyError, ValueError) as e:
            reraise(e, f"Cannot read {key!r}")
            return None
        if not told or batches is None:
            return batches
        nothing = {column: values[:0] for column, values in told.items()}
        return [{**(nothing if at else told), **{c: b[c] for c in rest}} for at, b in enumerate(batches)]

    def _collect(self, key: str, content: bytes | mmap | None) -> dict[str, pa.Array]:
        """Return columns with bounds, or all values, from the footer or the pages."""
        found: dict[str, pa.Array] = {}
        if content is None:
            footer = read_footer(self._store, key, self._store.size(key) or 0, 2 * TAIL, MAX_FOOTER)
        else:
            footer = footer_of(content[-2 * TAIL :])
        with contextlib.suppress(*DAMAGE):
            self._footers.recognise(footer or b"")
            layout = self._footers.layout(footer or b"")
            for column, type_ in self._columns.items():
                name, *members = parts_of(column)
                with contextlib.suppress(*DAMAGE, pa.ArrowException, OSError):
                    if type_ is None and not members:
                        found[column] = distinct_values(content or b"", footer or b"", layout, name)
                    elif not members and (bounds := layout.bounds(footer or b"", name, type_)) is not None:
                        found[column] = stored(bounds, type_)
        return found

    def _by_arrow(self, content: bytes | mmap, columns: Sequence[str]) -> list[Values] | None:
        with _opened(pa.BufferReader(content), columns) as file:
            schema = file.schema_arrow
            lower = {name.lower() for name in schema.names}
            # Readers take a column that a file lacks for one of NULLs.
            paths = [_path(schema, c) if parts_of(c)[0].lower() in lower else [] for c in columns]
            known = [path for path in paths if path is not None]
            if len(known) < len(columns):
                return None
            names = sorted({".".join(p) for p in known if p})
            batches = file.iter_batches(_BATCH, columns=names, use_threads=False)
            found: list[Values] = [_flat(b, known, columns) for b in batches]
        # Nothing of a file without rows can match, and that is known.
        return found or [_flat(pa.RecordBatch.from_pylist([], schema), known, columns)]


def _content(store: Store, key: str) -> bytes | mmap:
    """Return the bytes of a file, which are mapped if they are many."""
    if not store.is_local:
        return store.read(key)
    with open(store.local_path(key), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return mmap(file.fileno(), size, access=ACCESS_READ) if size > _WHOLE else file.read()


def _opened(source: Any, columns: Sequence[str]) -> pq.ParquetFile:
    options = {"coerce_int96_timestamp_unit": "us", "pre_buffer": False}
    try:
        # Distinct values are then known by their numbers.
        return pq.ParquetFile(source, read_dictionary=[c for c in columns if "." not in c], **options)
    except KeyError:  # a name in another case
        return pq.ParquetFile(source, **options)


def _path(schema: pa.Schema, column: str) -> list[str] | None:
    """Return the exact names of a column and members of structs below it, None if they are not certain."""
    found: list[str] = []
    fields: Any = schema
    for part in parts_of(column):
        names = [name for name in fields.names if name.lower() == part.lower()] if fields is not None else []
        if len(names) != 1:
            return None
        found.append(names[0])
        type_ = fields.field(names[0]).type
        fields = type_ if pa.types.is_struct(type_) else None
    return found


def _flat(batch: pa.RecordBatch, paths: Sequence[Sequence[str]], columns: Sequence[str]) -> pa.RecordBatch:
    """Return columns, by their names in ``columns``; those of the file may be in another case, or be structs."""
    if all([column] == path for column, path in zip(columns, paths, strict=True)):
        return batch
    arrays = []
    for path in paths:
        array = batch.column(path[0]) if path else pa.nulls(batch.num_rows)
        arrays.append(pc.struct_field(array, list(path[1:])) if len(path) > 1 else array)
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
