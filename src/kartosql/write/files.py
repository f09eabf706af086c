"""Partitions -> Parquet files: how they look, are read, copied and counted."""

from __future__ import annotations

import base64
import datetime as dt
import inspect
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import missing_file
from kartosql.parquet.metadata import file_metadata
from kartosql.store import Files, Store
from kartosql.tables.table import FileTable
from kartosql.write.layout import Layout

# Small enough that a point query reads little, and a multiple of DuckDB's vectors.
ROW_GROUP_ROWS = 24_576
BLOOM_FALSE_POSITIVES = 0.01

_HAS_BLOOM_FILTERS = "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters
_OPTIONS: dict[str, Any] = {
    "version": "2.6",
    "compression": "zstd",
    "coerce_timestamps": "us",
    "use_compliant_nested_type": False,
    "write_page_checksum": True,
}


def value_texts(column: pa.ChunkedArray) -> list[str]:
    """Return the text of each partition value, as it stands in paths before quoting.

    Raises ValueError or OverflowError for moments that Python cannot represent.
    """
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", "UTC"))
    return [_text(value) for value in column.to_pylist()]


def _text(value: Any) -> str:
    return value.isoformat(sep=" ") if isinstance(value, dt.datetime) else str(value)


def open_key(store: Store, key: str) -> Any:
    """Return a file object to read ``key`` by ranges; reading it raises as ``Store.read`` does."""
    return pa.OSFile(store.local_path(key)) if store.is_local else pa.PythonFile(_RemoteFile(store, key), "r")


class _RemoteFile(io.RawIOBase):
    """The part of a file that pyarrow needs to read Parquet, over ranged reads."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key, self._at = store, key, 0
        size = store.size(key)
        self._size = len(store.read(key)) if size is None else size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        data = self._store.read(self._key, start=self._at, end=end)
        self._at += len(data)
        return data


def file_columns(schema: pa.Schema, partition_on: tuple[str, ...]) -> list[str]:
    """Return the columns that stand in the data files, those with structs last.

    Kartothek counts leaves where it should count columns, so a struct in front of a column
    would make it filter by the wrong one.
    """
    names = [f.name for f in schema if f.name not in partition_on]
    return sorted(names, key=lambda n: _has_struct(schema.field(n).type))


def _has_struct(type_: pa.DataType) -> bool:
    return bool(pa.types.is_struct(type_)) or (bool(pa.types.is_list(type_)) and _has_struct(type_.value_type))


class Counted(io.RawIOBase):
    """A file object that counts what is written to it."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self.count = 0

    def writable(self) -> bool:
        """Return True, as pyarrow asks for it."""
        return True

    def write(self, data: Any) -> int:
        """Write all of ``data``."""
        self._out.write(data)
        self.count += len(data)
        return len(data)


def parquet_bytes(rows: pa.Table, row_group_rows: int = ROW_GROUP_ROWS) -> bytes:
    """Return ``rows`` as a Parquet file: ZSTD, format 2.6, checksummed pages.

    Dictionaries, also those in lists, become what they hold.
    """
    sink = pa.BufferOutputStream()
    write_parquet(sink, rows.schema, [rows], row_group_rows)
    return bytes(sink.getvalue().to_pybytes())


def write_parquet(sink: Any, schema: pa.Schema, pieces: Iterable[pa.Table], row_group_rows: int) -> None:
    """Write tables of ``schema`` as one Parquet file as of ``parquet_bytes``; each begins a row group."""
    plain = pa.schema([field.with_type(_without_dictionaries(field.type)) for field in schema])
    is_plain = plain.equals(schema)
    with pq.ParquetWriter(sink, schema, store_schema=is_plain, **_OPTIONS) as writer:
        if not is_plain:
            # Readers would otherwise be told to make dictionaries, which the originals do not expect.
            writer.add_key_value_metadata({"ARROW:schema": base64.b64encode(plain.serialize()).decode()})
        for piece in pieces:
            writer.write_table(piece, row_group_size=row_group_rows)


def _without_dictionaries(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_without_dictionaries(type_.value_type)))
    return type_.value_type if pa.types.is_dictionary(type_) else type_


@dataclass(frozen=True)
class FileFormat:
    """How the data files of a layout are written, so that a query for one cell or value reads little.

    Rows stand in small row groups with a page index; where a file has several of them, the
    columns with an inverted index get bloom filters, as their values stand in any order.
    Dictionaries are made for columns whose values repeat within a row group.
    """

    layout: Layout
    row_group_rows: int = ROW_GROUP_ROWS
    _repeating: dict[int, list[str]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def encode(self, rows: pa.Table, distinct: Mapping[str, int]) -> bytes:
        """Return ``rows`` as a file; ``distinct`` is the number of values of each index column."""
        if rows.num_rows <= self.row_group_rows:
            distinct = {}
        sink = pa.BufferOutputStream()
        with self.writer(sink, rows, distinct) as writer:
            writer.write_table(rows, row_group_size=self.row_group_rows)
        return bytes(sink.getvalue().to_pybytes())

    def writer(self, sink: Any, rows: pa.Table, distinct: Mapping[str, int]) -> pq.ParquetWriter:
        """Return a writer of row groups for rows like ``rows``; ``distinct`` as for ``encode``."""
        schema = rows.schema
        options = _OPTIONS | {"write_page_index": True, "use_dictionary": self._dictionaries(rows)}
        order = [c for c in self.layout.order if c in schema.names] if self.layout.cell else []
        if order:
            options["sorting_columns"] = pq.SortingColumn.from_ordering(schema, [(c, "ascending") for c in order])
        if _HAS_BLOOM_FILTERS:
            # Values of the first column that rows are sorted by are found by the bounds of row groups.
            options["bloom_filter_options"] = {
                column: {"ndv": min(count, self.row_group_rows), "fpp": BLOOM_FALSE_POSITIVES}
                for column, count in distinct.items()
                if count and column not in order[:1] and not pa.types.is_boolean(schema.field(column).type)
            } or None
        return pq.ParquetWriter(sink, schema, **options)

    def _dictionaries(self, rows: pa.Table) -> bool | list[str]:
        """Return the columns that are worth a dictionary; files of one call are taken to be alike."""
        if any(pa.types.is_nested(type_) for type_ in rows.schema.types):
            return True  # leaves would have to be named
        # Looked at again for files twice as large as those before.
        size = min(rows.num_rows, self.row_group_rows).bit_length()
        known = next((found for seen, found in list(self._repeating.items()) if seen >= size), None)
        if known is None:
            sample = rows.slice(0, self.row_group_rows)
            known = [c for c in rows.column_names if 2 * len(pc.unique(sample[c])) <= sample.num_rows]
            self._repeating[size] = known
        return known


CHUNK_BYTES = 4 << 20


def copy_file(source: Store, target: Store, keys: tuple[str, str]) -> None:
    """Copy the first of two keys to the second; raises ``missing-file``."""
    old, new = keys
    try:
        size = source.size(old)
        with target.output(new, sync_folders=False) as out:
            if size is None:
                out.write(source.read(old))
                return
            for start in range(0, size, CHUNK_BYTES):
                out.write(source.read(old, start=start, end=min(size, start + CHUNK_BYTES)))
    except KeyError:
        raise missing_file(old) from None


def collect_stats(store: Files, table: FileTable) -> dict[str, int]:
    """Return how much the files of a table hold, by the names of the original; ``missing-file``, ``corrupt-file``.

    Rows that were overwritten are counted, as they still stand there.
    """
    found = list(store.map(partial(footer, store), table.files))
    return {
        "blobsize": sum(size for _, size in found),
        "files": len(found),
        "partitions": len(set(table.partitions.part_of_file)),
        "rows": sum(rows for rows, _ in found),
    }


def footer(store: Files, key: str) -> tuple[int, int]:
    """Return rows and bytes of a data file, as ``file_metadata`` reads them."""
    found, size = file_metadata(store, key)
    return found.num_rows, size
