"""Data of any origin -> rows with one schema, read piece by piece, in types that can be stored."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import KartosqlError, UsageError, reraise
from kartosql.formats import any_file
from kartosql.formats.any_file import cursor_rows, paths_of, table_of
from kartosql.formats.kartothek.metadata import normalise
from kartosql.text.types import in_sql_names, type_name, type_names

_DIGITS = 38  # of the widest decimals that every reader has
_SHOWN = 60
MAX_COLUMN_NAME = 1024
PIECE_BYTES = 16 << 20
FILE_BATCH_ROWS = 65_536
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
# Types of DuckDB whose values are others in Arrow: bytes of their own, less digits, no offset.
_CHANGING = re.compile(r"(?<!['\"\w])(BIT|BIGNUM|VARIANT|UHUGEINT|TIME WITH TIME ZONE)(?=$|[],)[])")


def may_become(given: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether a statement converts columns of one type to another, as far as no value changes.

    That is between numbers, between dates and times of the same kind, from text to dates and
    times, and from NULL to anything.
    """
    t = pa.types
    if t.is_null(given) or t.is_null(stored):
        return bool(t.is_null(given))
    if t.is_timestamp(given) and t.is_timestamp(stored):
        return (given.tz is None) == (stored.tz is None)
    if t.is_date(stored) or (t.is_timestamp(stored) and stored.tz is None):
        return bool(t.is_date(given) or (t.is_timestamp(given) and given.tz is None) or t.is_string(given))
    return _is_number(given) and _is_number(stored)


def converted(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the values of a column as ``type_``; raises ValueError, which names the first that would change.

    Each value is converted, converted back, and compared: with the sign of zero, and one NaN
    like another. Text is only read, as it writes one value in several ways.
    """
    if pa.types.is_dictionary(column.type):
        return _decoded(column, type_)
    found = _unchanged(column, type_)
    if found is None:
        raise ValueError(_text(column, _first_change(column, type_)))
    return found


def _decoded(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the values of a dictionary, converted before they are taken, which those of views cannot be."""
    chunks = []
    for chunk in column.chunks:
        values = converted(pa.chunked_array([chunk.dictionary]), type_).combine_chunks()
        chunks.append(values.take(chunk.indices))
    return pa.chunked_array(chunks, type_)


def _unchanged(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray | None:
    """Return the values as ``type_``, None if one of them is another then."""
    given = column.type
    if given.equals(type_):
        return column
    try:
        found = _cast(column, type_)
        # Arrow itself sees to the others: text, times, and layouts.
        compared = _is_number(given) or pa.types.is_timestamp(given)
        return found if not compared or _same(column, _cast(found, given)) else None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _first_change(column: pa.ChunkedArray, type_: pa.DataType) -> int:
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        if _unchanged(column.slice(low, middle - low), type_) is None:
            high = middle
        else:
            low = middle
    return low


def _text(column: pa.ChunkedArray, at: int) -> str:
    try:
        text = column.slice(at, 1).cast(pa.string())[0].as_py()
    except pa.ArrowNotImplementedError:
        try:
            text = str(column[at])
        except (ValueError, OverflowError):  # of a time that Python does not have
            text = f"a value in row {at + 1:,}"
    return str(text)[:_SHOWN]


def _is_number(type_: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_decimal(type_))


# -- one way -----------------------------------------------------------------------------------


def _cast(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the nearest values of ``type_``; where Arrow checks for itself what changes, it raises."""
    t = pa.types
    given = column.type
    if t.is_floating(given):
        if t.is_decimal(type_):
            return _float_to_decimal(column, type_)
        if t.is_integer(type_):
            return _float_to_decimal(column, pa.decimal128(_DIGITS, 0)).cast(type_)
        return column.cast(type_, safe=False) if t.is_floating(type_) else column.cast(type_)
    if t.is_integer(given) and (t.is_decimal(type_) or t.is_floating(type_)):
        # Arrow looks at the widths of the types, not at the values.
        column = column.cast(pa.decimal128(20, 0))
    if t.is_decimal(column.type) and t.is_floating(type_):
        # Its own conversion misses the nearest double now and then.
        return column.cast(pa.string()).cast(type_)
    return column.cast(type_)


def _float_to_decimal(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the decimals of the shortest texts, 0.1 of 0.1; whole numbers beyond all fractions are exact."""
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    beyond = pc.greater_equal(pc.abs(column), 2.0 ** (24 if pa.types.is_float32(column.type) else 53))
    none = pa.scalar(None, column.type)
    short = pc.if_else(beyond, none, column).cast(pa.string()).cast(type_)
    if not pc.any(beyond).as_py():
        return short
    return pc.coalesce(pc.if_else(beyond, column, none).cast(pa.decimal128(_DIGITS, 0)).cast(type_), short)


# -- and back ----------------------------------------------------------------------------------


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    if not pa.types.is_floating(left.type):
        return bool(left.equals(right))
    equal = pc.or_(pc.equal(_bits(left), _bits(right)), pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return pc.all(equal).as_py() is not False


def _bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    return pa.chunked_array([chunk.view(type_) for chunk in column.chunks], type_)


def invalid_data(name: str, reason: str, hint: str | None = None, code: str = "invalid-data") -> UsageError:
    """Return the error for rows of the dataset ``name`` that cannot be written."""
    return UsageError(f"Dataset {name!r}: {reason}", code=code, hint=hint)


def keys_for(values: pa.Array, column: str, type_: Any) -> pa.Array:
    """Return the keys that an index of an attached table, of a ``ColumnType``, has for values but NULL and NaN.

    Raises ``invalid-data``.
    """
    from kartosql.formats.xskipper.domain import OddCells, keys_of  # most writes do without

    try:
        if pa.types.is_unsigned_integer(values.type):
            values = values.cast(pa.decimal128(20, 0) if values.type.bit_width == 64 else pa.int64())
        elif pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us", values.type.tz))
        elif pa.types.is_floating(values.type):
            values = values.filter(pc.invert(pc.is_nan(values)))
        return keys_of(values, type_)
    except (OddCells, pa.ArrowException) as e:
        reraise(e)
        raise invalid_data(column, f"it has values that cannot be indexed: {in_sql_names(e)}") from None


def arrow_table(data: Any, name: str) -> pa.Table:
    """Return ``data`` as a table whose types may be any; raises ``invalid-data`` for what carries no Arrow data."""
    if not carries_arrow(data):
        raise invalid_data(
            name,
            f"{type(data).__name__} carries no Arrow data",
            "Pass a pyarrow Table, a DataFrame or another object with __arrow_c_stream__.",
        )
    is_pandas = type(data).__module__.split(".")[0] == "pandas"
    if is_pandas and not all(isinstance(label, str) for label in getattr(data, "columns", ())):
        raise invalid_data(name, "a column label is not text", "Rename the columns of the frame.")
    with reading(name):
        # A table is taken as it is: on the way through the C interface names would end at a NUL.
        return data if isinstance(data, pa.Table) else pa.table(data)


def carries_arrow(data: Any) -> bool:
    """Return whether ``data`` hands out Arrow data by the protocol for it."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Report what a foreign producer of data raises as an error of ours."""
    try:
        yield
    except KartosqlError:
        raise
    except Exception as e:  # the producer is foreign code and may raise anything
        reraise(e)
        raise invalid_data(name, f"its Arrow data cannot be read: {in_sql_names(e)}") from e


def without_index(schema: pa.Schema) -> pa.Schema:
    """Return the columns that are no unnamed index of pandas, which goes by its name where its metadata are lost."""
    return pa.schema([f for f in schema if not _UNNAMED_INDEX.fullmatch(f.name)])


def storage_schema(schema: pa.Schema, name: str) -> pa.Schema:
    """Return the columns of ``schema`` with the types they are stored in; raises ``invalid-data``."""
    _check_names(schema.names, name)
    fields = []
    for field in schema:
        type_ = storage_type(field.type)
        if type_ is None:
            message = f"the column {field.name!r} is {type_name(field.type)}, which cannot be stored"
            raise invalid_data(name, message, "Cast it to another type.")
        fields.append(pa.field(field.name, type_))
    return pa.schema(fields)


def check_origin(types: Mapping[str, Any], dataset: str) -> None:
    """Raise ``invalid-data`` for columns of a query of DuckDB whose values are others in Arrow."""
    for name, type_ in types.items():
        found = _CHANGING.search(str(type_))
        if found:
            raise invalid_data(
                dataset,
                f"the column {name!r} is {type_}, which cannot be stored",
                f"Cast {found[1]} to another type, such as VARCHAR.",
            )


def to_storage(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    """Return the columns of ``schema`` in its types; raises ``invalid-data`` for values that do not fit or are torn."""
    with reading(name):
        table.validate(full=True)
    columns = []
    for field in schema:
        if field.name not in table.column_names:  # a column that ``Rows.filled`` added
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        try:
            columns.append(converted(table[field.name], field.type))
        except ValueError as e:
            raise invalid_data(
                name,
                f"the column {field.name!r} does not fit into {type_name(field.type)}: a value would change, "
                f"first {in_sql_names(e)}",
                "Round or cast it first.",
            ) from None
    return pa.table(columns, schema=schema)


def _check_names(names: list[str], dataset: str) -> None:
    if not names:
        raise invalid_data(dataset, "it has no columns")
    seen = set()
    for name in names:
        if not name or "\0" in name or len(name) > MAX_COLUMN_NAME:
            raise invalid_data(dataset, f"{name[:40]!r} is no usable column name")
        if name in seen:
            raise invalid_data(dataset, f"the column {name!r} occurs twice")
        seen.add(name)


def storage_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type of a column of ``type_`` in data files, None if it cannot be stored.

    Numbers keep their width; layouts (dictionary, large, view, fixed size) become the plain
    ones and timestamps are in microseconds.
    """
    t = pa.types
    if t.is_dictionary(type_) or t.is_run_end_encoded(type_):
        return storage_type(type_.value_type)
    if t.is_string(type_) or t.is_large_string(type_) or t.is_string_view(type_):
        return pa.string()
    if t.is_binary(type_) or t.is_large_binary(type_) or t.is_binary_view(type_) or t.is_fixed_size_binary(type_):
        return pa.binary()
    if t.is_float16(type_):
        return pa.float32()
    if t.is_date(type_):
        return pa.date32()
    if t.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    if t.is_time(type_):
        return pa.time64("us")
    if t.is_decimal(type_):
        if not 0 <= type_.scale <= type_.precision:
            return None  # Parquet has no such decimals
        wide = type_.precision > 38
        return (pa.decimal256 if wide else pa.decimal128)(type_.precision, type_.scale)
    if _is_list(type_):
        item = storage_type(type_.value_type)
        return None if item is None else pa.list_(pa.field("item", item))
    if t.is_struct(type_):
        fields = [(f.name, storage_type(f.type)) for f in type_]
        return pa.struct(fields) if fields and all(s is not None for _, s in fields) else None
    plain = t.is_boolean(type_) or t.is_integer(type_) or t.is_floating(type_) or t.is_null(type_)
    return type_ if plain else None


def _is_list(type_: pa.DataType) -> bool:
    t = pa.types
    plain = t.is_list(type_) or t.is_large_list(type_) or t.is_fixed_size_list(type_)
    return bool(plain or t.is_list_view(type_) or t.is_large_list_view(type_))


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
        count = max(1, -(-_bytes(self.table) // PIECE_BYTES))
        size = max(1, -(-self.table.num_rows // count))
        for start in range(0, self.table.num_rows, size):
            yield self.table.slice(start, size)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows to be written: the types they are stored in, and where they come from.

    ``num_rows`` is None for rows that are not in memory. A stream can be read once.
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
        return pa.concat_tables(
            [to_storage(t.select([n for n in names if n in t.column_names]), schema, self.name) for t in tables]
        )

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

    def filled(self, schema: pa.Schema) -> Rows:
        """Return the rows with NULL in those columns of ``schema`` that they lack."""
        lacking = [pa.field(f.name, f.type) for f in schema if f.name not in self.schema.names]
        return replace(self, schema=pa.schema([*self.schema, *lacking])) if lacking else self

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

    ``data`` is anything with ``__arrow_c_stream__`` or ``__arrow_c_array__``, a path, URL or pattern of files of
    Parquet, Arrow, CSV or JSON, a dictionary of lists, a list of dictionaries, a cursor of a database, a dataset of
    pyarrow, a lazy frame of Polars, a DataFrame of Spark, a list of these, or an iterable of record batches or tables.
    Parts of one list are read one after the other; they have the same columns, in any
    order and of types that differ at most in their width. Raises ``invalid-data``.
    """
    if isinstance(data, Rows):
        return data
    if type(data).__module__.split(".")[0] == "pyspark":
        from kartosql.write.spark.rows import open_frame

        return open_frame(data, name)
    data = plain_data(data, name)
    if isinstance(data, (list, tuple)):
        rows = [open_rows(item, name) for item in data]
        if not rows:
            raise invalid_data(name, "it is an empty list", "Pass a table, also if it has no rows.")
        if any(type(r) is not Rows for r in rows):
            from kartosql.write.spark.rows import joined

            return joined(rows, _common(rows, name), name)
        schema = _common(rows, name)
        return Rows(name, schema, tuple(part for r in rows for part in r.parts), given=schema)
    if isinstance(data, str | os.PathLike):
        parts = _files(os.fspath(data), name)
        if len(parts) > 1:
            return open_rows([_one(part, name) for part in parts], name)
        return _one(parts[0], name)
    return _one(_part(data, name), name)


def is_columns(data: Mapping[Any, Any]) -> bool:
    """Return whether a dictionary has the values of columns, not the data of tables, such as lists of files."""
    lists = [list(v) if type(v).__name__ in ("ndarray", "Series") else v for v in data.values()]
    if not lists or not all(isinstance(v, list | tuple | range) for v in lists):
        return False
    values = [value for column in lists for value in column]
    if any(isinstance(value, Mapping | os.PathLike) or carries_arrow(value) for value in values):
        return False
    return bool(values) and not all(isinstance(value, str) and os.path.splitext(value)[1] for value in values)


def plain_data(data: Any, name: str) -> Any:
    """Return what has rows of its own kind, such as lists of dictionaries, cursors and lazy frames, as Arrow data."""
    if isinstance(data, Mapping) or (isinstance(data, list) and data and all(isinstance(d, Mapping) for d in data)):
        with reading(name):
            return table_of(data)
    if type(data).__name__ == "LazyFrame" and hasattr(data, "collect"):
        with reading(name):
            return data.collect()
    if hasattr(data, "description") and hasattr(data, "fetchmany"):
        if data.description is None:
            raise invalid_data(name, "the cursor has no rows", "Let it execute a query first.")
        with reading(name):
            return cursor_rows(data)
    return data


def _one(part: _Part, name: str) -> Rows:
    schema = storage_schema(without_index(part.schema), name)
    return Rows(name, schema, (part,), given=schema)


def rows_of(batches: Iterator[pa.RecordBatch], schema: pa.Schema, name: str) -> Rows:
    """Return batches as rows of ``schema``, which is one that can be stored; what they raise is raised as it is."""
    return Rows(name, schema, (_Part(schema, stream=lambda: _tables(batches)),))


def _part(data: Any, name: str) -> _Part:
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
    return _Part(reader.schema, stream=lambda: _tables(guarded(iter(reader), name)))


def _files(path: str, name: str) -> list[_Part]:
    """Return the files that a path, URL or pattern names, each as a part."""
    try:
        return [_file(fs, found, name) for fs, found in paths_of(path)]
    except (pa.ArrowException, OSError, ValueError) as e:
        reraise(e, f"Cannot read {path!r}")
        hint = f"Name its files with a pattern, such as {path.rstrip('/')}/*.parquet." if os.path.isdir(path) else None
        raise invalid_data(name, f"{path!r} cannot be read as Parquet, Arrow, CSV or JSON: {e}", hint) from None


def _file(fs: Any, path: str, name: str) -> _Part:
    with any_file.opened(fs, path) as file:
        schema = any_file.reader_of(file, path).schema
    return _Part(schema, stream=lambda: _tables(guarded(any_file.batches_of(fs, path), name)))


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


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    return map(pa.Table.from_batches, gathered(batches, PIECE_BYTES))


def gathered(pieces: Iterable[Any], limit: int) -> Iterator[list[Any]]:
    """Yield batches or tables in lists of at most ``limit`` bytes, or of a single one; what was yielded is let go."""
    found: list[list[Any]] = [[]]
    size = 0
    for piece in pieces:
        if size and size + _bytes(piece) > limit:
            yield found.pop()
            found, size = [[]], 0
        found[0].append(piece)
        size += _bytes(piece)
        del piece
    if found[0]:
        yield found.pop()


def _bytes(rows: Any) -> int:
    try:
        return int(rows.nbytes)
    except pa.ArrowTypeError:  # of views, for Arrow up to version 23; slices of a table then count as all of it
        return int(rows.get_total_buffer_size())


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
    known, given = type_names(left, right)
    problem = f"the column {column!r} is {given}, but {known} in an earlier part of the data"
    return invalid_data(name, problem, "Cast one of the two.")
