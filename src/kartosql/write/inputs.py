"""Data of any origin -> rows with one schema, read piece by piece."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.failures import reraise
from kartosql.formats.kartothek.schema import normalise
from kartosql.write.convert import may_become
from kartosql.write.frames import (
    arrow_table,
    carries_arrow,
    check_origin,
    invalid_data,
    reading,
    storage_schema,
    to_storage,
    without_index,
)

PIECE_BYTES = 16 << 20
FILE_BATCH_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class _Part:
    """One origin of rows: its schema as given, and its rows, in memory or as a stream."""

    schema: pa.Schema
    table: pa.Table | None = None
    stream: Callable[[], Iterator[pa.Table]] | None = None

    def pieces(self) -> Iterator[pa.Table]:
        if self.table is None:
            assert self.stream is not None
            yield from self.stream()
            return
        count = max(1, -(-self.table.nbytes // PIECE_BYTES))
        size = max(1, -(-self.table.num_rows // count))
        for start in range(0, self.table.num_rows, size):
            yield self.table.slice(start, size)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to be written: the types they are stored in, and where they come from.

    ``num_rows`` and ``nbytes`` are None for rows that are not in memory. A stream can be read once.
    ``given`` are the types that all pieces have, but for their width; None where pieces cannot differ.
    """

    name: str
    schema: pa.Schema
    parts: tuple[_Part, ...]
    given: pa.Schema | None = dataclasses.field(default=None, kw_only=True)

    @property
    def num_rows(self) -> int | None:
        """The number of rows, if it is known before they are read."""
        tables = self._tables
        return None if tables is None else sum(t.num_rows for t in tables)

    @property
    def nbytes(self) -> int | None:
        """The bytes of memory that the rows take already."""
        tables = self._tables
        return None if tables is None else sum(t.nbytes for t in tables)

    @property
    def _tables(self) -> list[pa.Table] | None:
        tables = [p.table for p in self.parts if p.table is not None]
        return tables if len(tables) == len(self.parts) else None

    def pieces(self) -> Iterator[pa.Table]:
        """Yield the rows as tables of ``schema``; raises ``invalid-data`` for what cannot be read or stored."""
        for part in self.parts:
            for piece in part.pieces():
                if piece.num_rows:
                    if self.given is not None:
                        _check_piece(piece, self.given, self.name)
                    yield to_storage(piece, self.schema, self.name)

    def columns(self, names: Sequence[str]) -> pa.Table | None:
        """Return some columns of all rows, or None for rows that are not in memory."""
        tables = self._tables
        if tables is None:
            return None
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.concat_tables([to_storage(t.select(list(names)), schema, self.name) for t in tables])

    def typed(self, schema: pa.Schema, *, convert: bool = False) -> Rows:
        """Return the rows with the types of ``schema``, a table that they join, where these are to be taken.

        That is for columns in which all values are missing; with ``convert`` for all whose values may become such.
        """
        stored = {f.name: normalise(f.type) for f in schema}
        own = [*self.schema, *self._index_in(schema)]
        filled = [f.with_type(stored.get(f.name, f.type)) if pa.types.is_null(f.type) else f for f in own]
        fields = [f.with_type(self._type_in(f.type, stored.get(f.name))) if convert else f for f in filled]
        given = None if self.given is None else storage_schema(pa.schema(filled), self.name)
        return replace(self, schema=storage_schema(pa.schema(fields), self.name), given=given)

    def _index_in(self, schema: pa.Schema) -> list[pa.Field]:
        """Return the columns of an index of pandas that a table has nevertheless, as all of the data do."""
        kept = set(schema.names).difference(without_index(schema).names, self.schema.names)
        common = kept.intersection(*(part.schema.names for part in self.parts)) if self.parts else ()
        return [storage_schema(self.parts[0].schema, self.name).field(name) for name in sorted(common)]

    def _type_in(self, own: pa.DataType, stored: pa.DataType | None) -> pa.DataType:
        """Return the type in which values of type ``own`` are written to a column of type ``stored``."""
        keeps = stored is None or normalise(own).equals(stored) or not may_become(own, stored)
        return own if keeps else stored


def open_rows(data: Any, name: str) -> Rows:
    """Return the rows of ``data`` for the dataset ``name``; streams and files are not read yet.

    ``data`` is anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``, the path of a local
    Parquet file, a dataset of pyarrow, a DataFrame of Spark, a list of these, or an iterable of record
    batches or tables. Parts of one list are read one after the other; they have the same columns, in any
    order and of types that differ at most in their width. Raises ``invalid-data``.
    """
    if isinstance(data, Rows):
        return data
    if type(data).__module__.split(".")[0] == "pyspark":
        from kartosql.write.spark.frames import open_frame

        return open_frame(data, name)
    if isinstance(data, (list, tuple)):
        rows = [open_rows(item, name) for item in data]
        if not rows:
            raise invalid_data(name, "it is an empty list", "Pass a table, also if it has no rows.")
        if any(type(r) is not Rows for r in rows):
            from kartosql.write.spark.frames import joined

            return joined(rows, _common(rows, name), name)
        schema = _common(rows, name)
        return Rows(name, schema, tuple(part for r in rows for part in r.parts), given=schema)
    part = _part(data, name)
    schema = storage_schema(without_index(part.schema), name)
    return Rows(name, schema, (part,), given=schema)


def rows_of(batches: Iterator[pa.RecordBatch], schema: pa.Schema, name: str) -> Rows:
    """Return batches as rows of ``schema``, which is one that can be stored; what they raise is raised as it is."""
    return Rows(name, schema, (_Part(schema, stream=lambda: _gathered(batches)),))


def _part(data: Any, name: str) -> _Part:
    if isinstance(data, (str, os.PathLike)):
        return _file(os.fspath(data), name)
    if isinstance(data, pa.RecordBatchReader):
        return _reader(data, name)
    if type(data).__module__ == "pyarrow._dataset" and hasattr(data, "scanner"):
        with reading(name):
            return _reader(data.scanner().to_reader(), name)
    if not carries_arrow(data):
        if isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray, memoryview, Mapping)):
            return _iterable(data, name)
        arrow_table(data, name)  # which raises the error
    if _is_stream(data):
        with reading(name):
            # Through the reader of our own results errors keep their codes.
            origin = type(data).__module__.split(".")[0]
            reader = data.reader() if origin == "kartosql" else pa.RecordBatchReader.from_stream(data)
            if origin in ("kartosql", "duckdb", "_duckdb"):
                check_origin(dict(zip(reader.schema.names, data.types or (), strict=False)), name)
        return _reader(reader, name)
    table = arrow_table(data, name)
    return _Part(table.schema, table)


def _is_stream(data: Any) -> bool:
    # Frames are in memory already, and pandas needs a look at its index.
    in_memory = isinstance(data, (pa.Table, pa.RecordBatch)) or hasattr(data, "__dataframe__")
    return hasattr(data, "__arrow_c_stream__") and not in_memory and type(data).__module__.split(".")[0] != "pandas"


def _reader(reader: pa.RecordBatchReader, name: str) -> _Part:
    return _Part(reader.schema, stream=lambda: _tables(iter(reader), name))


def _file(path: str, name: str) -> _Part:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, ValueError) as e:
        reraise(e, f"Cannot read {path!r}")
        hint = "Pass the paths of its files as a list." if os.path.isdir(path) else None
        raise invalid_data(name, f"{path!r} cannot be read as a Parquet file: {e}", hint) from None

    def batches() -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            yield from file.iter_batches(FILE_BATCH_ROWS)

    return _Part(schema, stream=lambda: _tables(batches(), name))


def _iterable(data: Iterable[Any], name: str) -> _Part:
    with reading(name):
        items = iter(data)
        first = next(items, None)
    if first is None:
        raise invalid_data(name, "it yields nothing", "Yield a table, also if it has no rows.")
    table = arrow_table(first, name)

    def tables() -> Iterator[pa.Table]:
        yield table
        for item in guarded(items, name):
            yield arrow_table(item, name)

    return _Part(table.schema, stream=tables)


def _tables(batches: Iterator[pa.RecordBatch], name: str) -> Iterator[pa.Table]:
    return _gathered(guarded(batches, name))


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join small batches to tables of a good size."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in chain(batches, (None,)):
        if batch is not None:
            pending.append(batch)
            size += batch.nbytes
        if pending and (batch is None or size >= PIECE_BYTES):
            yield pa.Table.from_batches(pending)
            pending, size = [], 0


def guarded(items: Iterator[Any], name: str) -> Iterator[Any]:
    """Yield items; what goes wrong in reading one is ``invalid-data``."""
    while True:
        with reading(name):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def _common(rows: Sequence[Rows], name: str) -> pa.Schema:
    """Return the schema that holds the rows of all."""
    fields = {f.name: f for f in rows[0].schema}
    for other in rows[1:]:
        _check_columns(other.schema.names, fields, name)
        for field in other.schema:
            known = fields[field.name].type
            type_ = _wider(known, field.type)
            if type_ is None:
                raise _disagree(name, field.name, known, field.type)
            fields[field.name] = pa.field(field.name, type_)
    return pa.schema(list(fields.values()))


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if left.equals(right) or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    return normalise(left) if normalise(left).equals(normalise(right)) else None


def _check_piece(piece: pa.Table, schema: pa.Schema, name: str) -> None:
    """Raise ``invalid-data`` unless the columns are those of ``schema``; later pieces of an iterable may differ."""
    if piece.schema.equals(schema):
        return
    given = storage_schema(without_index(piece.schema), name)
    _check_columns(given.names, schema.names, name)
    for field in given:
        known = schema.field(field.name).type
        if _wider(known, field.type) is None or (pa.types.is_null(known) and not pa.types.is_null(field.type)):
            raise _disagree(name, field.name, known, field.type)


def _check_columns(given: Sequence[str], known: Iterable[str], name: str) -> None:
    for column in sorted(set(known).symmetric_difference(given)):
        where = "is missing in a later part" if column in known else "is missing in an earlier part"
        raise invalid_data(name, f"the column {column!r} {where} of the data", "All parts have the same columns.")


def _disagree(name: str, column: str, left: pa.DataType, right: pa.DataType) -> Exception:
    return invalid_data(
        name, f"the column {column!r} is {right}, but {left} in an earlier part of the data", "Cast one of the two."
    )
