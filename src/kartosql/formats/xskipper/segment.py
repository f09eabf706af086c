"""One part file of metadata: its schema, and its columns as they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import FormatError
from kartosql.failures import reraise
from kartosql.formats.xskipper import crypto
from kartosql.formats.xskipper.cells import Bounds, OddCells, Values, Vanished, bounds_of, single_values, values_of
from kartosql.formats.xskipper.domain import ColumnType
from kartosql.formats.xskipper.java import old_bounds, old_values
from kartosql.formats.xskipper.naming import OBJECT_COLUMN, VIRTUAL
from kartosql.formats.xskipper.schema import BLOOM, FileSchema, Index, read_schema
from kartosql.store import Store

MAX_ROWS = 10_000_000
MAX_COLUMN_BYTES = 2 << 30  # of one column but filters in memory
_BATCH = 4_096
_BAD = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, MemoryError, RecursionError)
_T = TypeVar("_T")


class Segment:
    """A part file. What is read of it stays in memory, but for filters."""

    def __init__(self, store: Store, key: str, keys: Mapping[str, bytes], report: Callable[[str], None]) -> None:
        """Read the footer; raises ``invalid-metadata``, ``unsupported-version`` and what the store raises.

        That is a KeyError for a file that is not there any more.
        """
        self.source = key
        self._keys = keys
        self.report = report
        self.is_gone = False  # somebody removed the file meanwhile
        self._lock = threading.RLock()
        self._known: dict[tuple[str, str], Any] = {}
        self._data: Any = store.local_path(key) if store.is_local else pa.BufferReader(store.read_metadata(key))
        try:
            with self._open() as file:
                metadata = file.metadata
                self.rows: int = metadata.num_rows
                groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
                self.row_groups: list[int] = [group.num_rows for group in groups]
                self.bytes: int = sum(group.total_byte_size for group in groups)  # before compression
                self.schema: FileSchema = read_schema(metadata.metadata, key)
                # What a footer says of columns is not asked for: for damaged ones Arrow ends the process.
                self._texts = _texts(metadata.schema, {i.column for i in self.schema.indexes if i.name == BLOOM})
        except FileNotFoundError:
            raise KeyError(key) from None
        except _BAD as e:
            _reraise(e, key)
            raise FormatError(
                f"{key}: the file cannot be opened: {_first_line(e)}",
                code="invalid-metadata",
                hint="If the metadata are encrypted, hand over the keys. Nothing is skipped by it.",
            ) from None
        if self.rows > MAX_ROWS:
            raise FormatError(f"{key}: {self.rows:,} rows are more than {MAX_ROWS:,}.", code="too-large")
        if self.schema.sizes is not None and len(self.schema.sizes) != self.rows:
            raise FormatError(
                f"{key}: its footer has sizes of {len(self.schema.sizes):,} files for {self.rows:,} rows.",
                code="invalid-metadata",
                hint="The file is damaged. Nothing is skipped by it.",
            )

    def _open(self, texts: Sequence[str] = ()) -> pq.ParquetFile:
        secrets = crypto.decryption(self._keys)
        if isinstance(self._data, pa.BufferReader):
            self._data.seek(0)
        file = pq.ParquetFile(
            self._data,
            memory_map=isinstance(self._data, str),
            # As nanoseconds, times outside of 1677 to 2262 would be others, silently.
            coerce_int96_timestamp_unit="us",
            decryption_properties=secrets[1] if secrets else None,
            arrow_extensions_enabled=False,
            # A value that a page has once may stand in all rows: it is counted before it is repeated.
            read_dictionary=texts or None,
        )
        file.kartosql_secrets = secrets
        return file

    # -- columns ---------------------------------------------------------------------------

    def batches(self, column: str, size: int = _BATCH, groups: list[int] | None = None) -> Iterator[pa.Array]:
        """Yield the cells of a column bit by bit; raises OddCells."""
        try:
            with self._open(self._texts.get(column, ())) as file:
                for batch in file.iter_batches(size, columns=[column], row_groups=groups, use_threads=False):
                    if batch.schema.names != [column]:
                        raise OddCells(f"there is no one column {column}")
                    yield _repeated(batch.column(0))
        except OddCells:
            raise
        except FileNotFoundError as e:
            self.is_gone = True
            raise Vanished(str(e)) from None
        except _BAD as e:
            _reraise(e, self.source)
            raise OddCells(_first_line(e)) from None

    def column(self, column: str) -> pa.Array:
        """Return a column; raises OddCells."""
        found, size = [], 0
        for array in self.batches(column):
            size += array.nbytes
            if size > MAX_COLUMN_BYTES:
                raise OddCells(f"it has more than {MAX_COLUMN_BYTES:,} bytes")
            found.append(array)
        if not found:
            raise OddCells("it has no rows")
        joined = found[0] if len(found) == 1 else pa.concat_arrays(found)
        if len(joined) != self.rows:
            raise OddCells("it has another number of rows than its file says")
        return joined

    def _once(self, kind: str, column: str, make: Callable[[], _T]) -> _T | None:
        """Return what ``make`` returns, remembered; None for columns that cannot be used, which is reported."""
        with self._lock:
            if (kind, column) not in self._known:
                try:
                    self._known[kind, column] = make()
                except Vanished:
                    self._known[kind, column] = None
                except _BAD as e:
                    _reraise(e, self.source)
                    self._known[kind, column] = None
                    self.report(f"{self.source}: the column {column} is not used: {_first_line(e)}")
            found: _T | None = self._known[kind, column]
            return found

    def ids(self) -> list[str]:
        """Return the names of the indexed objects; none where they cannot be read."""
        return (self._once("ids", OBJECT_COLUMN, self._ids) if self.rows else None) or []

    def sizes(self) -> Sequence[int | None]:
        """Return the bytes of the indexed objects in the order of their names, None for those not known."""
        ids, sizes = self.ids(), self.schema.sizes
        return sizes if ids and sizes is not None else [None] * len(ids)

    def _ids(self) -> list[str]:
        array = self.column(OBJECT_COLUMN)
        if not pa.types.is_string(array.type) or array.null_count:
            raise OddCells("it does not hold the names of objects")
        found: list[str] = array.to_pylist()
        return found

    def bounds(self, index: Index) -> tuple[Bounds, ColumnType] | None:
        """Return the bounds of a MinMax index with their type, None where they cannot be used."""
        return self._once("bounds", index.column, lambda: self._bounds(index))

    def _bounds(self, index: Index) -> tuple[Bounds, ColumnType]:
        array = self.column(index.column)
        if index.is_object:
            return old_bounds(_bytes_of(array))
        type_ = index.value_type
        if type_ is None or not pa.types.is_struct(array.type):
            raise OddCells("its type is not that of bounds")
        places = [array.type.get_field_index(n) for n in ("min", "max")]
        if -1 in places:
            raise OddCells("it has no one least and greatest value")
        low, high = (array.flatten()[place] for place in places)
        return bounds_of(low, high, type_, is_legacy=self.schema.is_legacy), type_

    def values(self, index: Index) -> tuple[Values, ColumnType] | None:
        """Return the values of a list with their type, None where they cannot be used."""
        return self._once("values", index.column, lambda: self._values(index))

    def _values(self, index: Index) -> tuple[Values, ColumnType]:
        array = self.column(index.column)
        if index.is_object:
            return old_values(_bytes_of(array))
        if index.value_type is None:
            raise OddCells("its type is not that of values")
        return values_of(array, index.value_type, is_legacy=self.schema.is_legacy), index.value_type

    def partition(self, name: str) -> tuple[Values, ColumnType] | None:
        """Return the values of a partition column with their type, None where they cannot be used."""
        type_ = self.schema.virtual[name]
        if type_ is None:
            return None
        return self._once("partition", name, lambda: (single_values(self.column(VIRTUAL + name), type_), type_))


def _texts(schema: Any, without: set[str]) -> dict[str, list[str]]:
    """Return the paths of the leaves of bytes by the columns that they are in, but for some columns."""
    found: dict[str, list[str]] = {}
    for name, leaf in ((leaf.path.split(".")[0], leaf) for leaf in map(schema.column, range(len(schema)))):
        for column in {name, leaf.path} - without:
            if leaf.physical_type == "BYTE_ARRAY":
                found.setdefault(column, []).append(leaf.path)
    return found


def _repeated(array: pa.Array) -> pa.Array:
    """Return cells whose values are no references any more; raises OddCells if these are too many bytes."""
    if pa.types.is_string(array.type) or pa.types.is_primitive(array.type):
        return array
    size, pending = 0, [array]
    while pending:
        part = pending.pop()
        if pa.types.is_dictionary(part.type):
            if part.dictionary.nbytes * len(part) < MAX_COLUMN_BYTES >> 8:
                continue  # which is the rule, and sooner known
            lengths = pc.binary_length(part.dictionary).cast(pa.int64())
            size += pc.sum(lengths.take(part.indices)).as_py() or 0
        elif pa.types.is_nested(part.type):
            pending += part.flatten() if pa.types.is_struct(part.type) else [part.flatten()]
    if size > MAX_COLUMN_BYTES:
        raise OddCells(f"it has more than {MAX_COLUMN_BYTES:,} bytes")
    type_ = _plain(array.type)
    return array if type_ == array.type else array.cast(type_)


def _plain(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(type_):
        return type_.value_type
    if pa.types.is_struct(type_):
        return pa.struct([f.with_type(_plain(f.type)) for f in type_])
    return pa.list_(type_.value_field.with_type(_plain(type_.value_type))) if pa.types.is_list(type_) else type_


def _bytes_of(array: pa.Array) -> list[bytes | None]:
    if pa.types.is_struct(array.type) and array.type.num_fields == 1:
        array = array.flatten()[0]
    if not pa.types.is_binary(array.type):
        raise OddCells(f"cells of type {array.type} where objects are expected")
    found: list[bytes | None] = array.to_pylist()
    return found


def _reraise(error: BaseException, source: str) -> None:
    """Raise what the machine refused; memory that runs out may be due to what stands in the file."""
    if not isinstance(error, MemoryError):
        reraise(error, f"Cannot read {source!r}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
