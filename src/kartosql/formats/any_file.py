"""Files of Parquet, Arrow, CSV or JSON, told apart by their first bytes, as record batches."""

from __future__ import annotations

import glob
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import IO, Any

import pyarrow as pa

from kartosql.store.urls import filesystem_of, is_local_url, path_of

_BLOCK = 16 << 20  # of a text file: types are those of the first one
_HEAD = 1 << 16
_TEXT = re.compile(r"^stdin$|\.(csv|tsv|txt|json|jsonl|ndjson)(\.(gz|zst|bz2))?$", re.IGNORECASE)
_DELIMITERS = ",;\t|"
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd", b"BZ": "bz2"}


def paths_of(path: str) -> list[tuple[Any, str]]:
    """Return the files that a path, URL or pattern names, each with its filesystem, None for the local disk.

    Raises FileNotFoundError for a pattern that no file matches, and what filesystems raise.
    """
    is_pattern = any(c in path for c in "*?[")
    if is_local_url(path):
        path = path_of(path)
        found, fs = (sorted(glob.glob(path, recursive=True)) or [path]) if is_pattern else [path], None
    else:
        fs, root = filesystem_of(path, {})
        found = sorted(fs.glob(root)) if is_pattern else [root]
    if not found:
        raise FileNotFoundError(f"no file matches {path!r}")
    return [(fs, name) for name in found]


def opened(fs: Any, path: str) -> IO[bytes]:
    """Open a file to read."""
    file: IO[bytes] = pa.OSFile(path) if fs is None else fs.open(path, "rb")
    return file


def reader_of(file: IO[bytes], name: str = "stdin") -> pa.RecordBatchReader:
    """Return the rows of a file, which may be a pipe; one that is called so is text, CSV unless JSON begins it.

    Of CSV nothing between two separators is NULL, and ``""`` the empty text. Raises what pyarrow raises.
    """
    if not file.seekable():
        file = io.BytesIO(file.read())
    head = file.read(_HEAD)
    file.seek(0)
    if head[:4] == b"PAR1":
        import pyarrow.parquet as pq

        parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
        return pa.RecordBatchReader.from_batches(parquet.schema_arrow, parquet.iter_batches())
    if head[:6] == b"ARROW1":
        arrow = pa.ipc.open_file(file)
        return pa.RecordBatchReader.from_batches(arrow.schema, map(arrow.get_batch, range(arrow.num_record_batches)))
    if head[:4] == b"\xff\xff\xff\xff":
        return pa.ipc.open_stream(file)
    if (kind := _COMPRESSED.get(head[:2])) is not None:
        return reader_of(io.BytesIO(pa.CompressedInputStream(file, kind).read()), name)
    if not _TEXT.search(name):
        raise ValueError("it begins as neither Parquet nor Arrow, and its name ends in neither .csv nor .json")
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if begin in (b"[", b"{"):
        return _json(file, begin == b"[")
    return _csv(file, head)


def _json(file: IO[bytes], is_list: bool) -> pa.RecordBatchReader:
    if is_list:
        return table_of(json.loads(file.read().decode("utf-8-sig"))).to_reader()
    from pyarrow import json as arrow_json

    return arrow_json.read_json(file, arrow_json.ReadOptions(block_size=_BLOCK)).to_reader()


def _csv(file: IO[bytes], head: bytes) -> pa.RecordBatchReader:
    from pyarrow import csv

    first = head.partition(b"\n")[0].decode("utf-8-sig", "replace")
    delimiter = max(_DELIMITERS, key=first.count)
    convert = csv.ConvertOptions(null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False)
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    return csv.open_csv(file, csv.ReadOptions(block_size=_BLOCK), parse, convert)


def table_of(rows: Any) -> pa.Table:
    """Return a dictionary of lists, or a list of dictionaries, which may lack keys, as a table."""
    if not isinstance(rows, Mapping):
        names = dict.fromkeys(name for row in rows for name in row)
        rows = {name: [row.get(name) for row in rows] for name in names}
    return pa.table({str(name): pa.array(values) for name, values in rows.items()})


def cursor_rows(cursor: Any) -> pa.RecordBatchReader | pa.Table:
    """Return the rows of a DB-API cursor that ran a query, as Arrow where it can."""
    for name in ("fetch_record_batch", "fetch_arrow_reader"):
        if hasattr(cursor, name):
            reader: pa.RecordBatchReader = getattr(cursor, name)()
            return reader
    columns = [str(column[0]) for column in cursor.description]
    values = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(columns)
    return pa.table([pa.array(v) for v in values], names=columns)


def batches_of(fs: Any, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, and close it."""
    with opened(fs, path) as file:
        yield from reader_of(file, path)
