"""Streams of record batches in every output format."""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import pyarrow as pa

from kartosql.errors import StoreError, UsageError, quoted, reraise
from kartosql.render import tables
from kartosql.render.values import json_names, jsons, texts
from kartosql.text.escape import escaped_csv, escaped_json

ROW_GROUP_ROWS = 122_880  # DuckDB's own; batches are gathered up to it
LARGE, LARGEST = 50_000, 1 << 22  # how many values are written at once by Arrow's kernels
_HERE = "<!-- rows -->"

Writer = Callable[[pa.RecordBatchReader, BinaryIO, bool, bool], int]


def write_stream(
    reader: pa.RecordBatchReader,
    format: str,  # noqa: A002
    out: BinaryIO,
    *,
    header: bool = True,
    terminal: bool = False,
) -> int:
    """Write all batches of ``reader`` to ``out`` and return the number of rows.

    All formats but box hold one batch at a time. ``terminal`` says that a person looks at the
    output: then csv, tsv and json escape control characters too, which box, markdown and
    vertical always do. Raises ``invalid-argument`` for an unknown format, for columns that
    the format has no type for, and for binary formats on a terminal.
    """
    writer = _writer(format)
    if terminal and format in BINARY_FORMATS:
        raise UsageError(f"The format {format} is not for terminals.", hint="Write to a file, or choose box.")
    return writer(reader, out, header, terminal)


def _writer(name: str) -> Writer:
    if not isinstance(name, str) or name not in WRITERS:
        raise UsageError(f"There is no output format {quoted(name)}.", hint=f"Formats: {', '.join(WRITERS)}.")
    return WRITERS[name]


def _write_lines(out: BinaryIO, lines: Iterable[str]) -> None:
    text = "\n".join(lines)
    if text:
        out.write(text.encode() + b"\n")


def _box(reader: pa.RecordBatchReader, out: BinaryIO, header: bool, terminal: bool) -> int:
    table = reader.read_all()
    _write_lines(out, tables.box_lines(table.schema, tables.cells(table), header))
    return int(table.num_rows)


def _markdown(reader: pa.RecordBatchReader, out: BinaryIO, header: bool, terminal: bool) -> int:
    # Without a head it would be no table, so there always is one.
    _write_lines(out, tables.markdown_head(reader.schema))
    return _by_batch(reader, out, lambda batch, first: tables.markdown_lines(batch))


def _by_batch(
    reader: pa.RecordBatchReader, out: BinaryIO, lines: Callable[[pa.RecordBatch, int], Iterator[str]]
) -> int:
    rows = 0
    for batch in reader:
        _write_lines(out, lines(batch, rows))
        rows += batch.num_rows
    return rows


def _encoded(
    reader: pa.RecordBatchReader,
    out: BinaryIO,
    terminal: bool,
    by_column: Callable[[pa.RecordBatch], memoryview],
    by_value: Callable[[pa.RecordBatch], str],
    skipped: int = 0,
) -> int:
    """Write the text of all batches, but for its first bytes, by Arrow's kernels where their import pays."""
    rows = 0
    for whole in reader:
        step = max(1, LARGEST // max(1, whole.num_columns))
        for first in range(0, whole.num_rows, step):
            batch = whole.slice(first, step)
            text = None
            if not terminal and batch.num_rows * batch.num_columns >= LARGE:
                # It may be more text than offsets of 32 bits can tell.
                with contextlib.suppress(pa.ArrowInvalid, pa.ArrowCapacityError):
                    text = by_column(batch)
            found = memoryview(by_value(batch).encode()) if text is None else text
            out.write(found if rows else found[skipped:])
            rows += batch.num_rows
    return rows


def _separated(separator: str) -> Writer:
    """Return the writer of RFC 4180 records with line feeds; NULL is empty, the empty text is ``""``."""
    quoted_for = f'"\r\n{separator}'
    special = re.compile(f"[{quoted_for}]")

    def cell(text: str | None) -> str:
        if text is None:
            return ""
        return '"' + text.replace('"', '""') + '"' if not text or special.search(text) else text

    def by_column(batch: pa.RecordBatch) -> memoryview:
        from kartosql.render.columnar import csv_rows

        return csv_rows(batch, separator, quoted_for)

    def write(reader: pa.RecordBatchReader, out: BinaryIO, header: bool, terminal: bool) -> int:
        safe: Callable[[str], str] = escaped_csv if terminal else str

        def by_value(batch: pa.RecordBatch) -> str:
            columns = [[cell(t if t is None else safe(t)) for t in texts(column)] for column in batch.columns]
            # A NULL in a single column is a line of its own, though empty.
            return "".join(separator.join(row) + "\n" for row in zip(*columns, strict=True))

        if header:
            _write_lines(out, [separator.join(cell(safe(name)) for name in reader.schema.names)])
        return _encoded(reader, out, terminal, by_column, by_value)

    return write


def _json(reader: pa.RecordBatchReader, out: BinaryIO, header: bool, terminal: bool) -> int:
    out.write(b"[")
    rows = _objects(reader, out, terminal, ",\n", "")
    out.write(b"\n]\n" if rows else b"]\n")
    return rows


def _objects(reader: pa.RecordBatchReader, out: BinaryIO, terminal: bool, before: str, after: str) -> int:
    """Write rows as objects, a text before and after each, of that before the first no comma."""

    def by_column(batch: pa.RecordBatch) -> memoryview:
        from kartosql.render.columnar import json_rows

        return json_rows(batch, before, after)

    def by_value(batch: pa.RecordBatch) -> str:
        found = jsons(pa.StructArray.from_arrays(batch.columns, names=json_names(batch.schema.names)))
        return "".join(f"{before}{escaped_json(text) if terminal else text}{after}" for text in found)

    return _encoded(reader, out, terminal, by_column, by_value, skipped=before.count(","))


class _Counted(io.RawIOBase):
    """A file object that knows how much was written, as pipes do not; to close it leaves them open.

    After an error nothing more is written: the libraries would add a footer, and a part of
    the rows would look like all of them.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._size = 0
        self._failed = False

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._failed = kind is not None

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if not self._failed:
            self._out.write(data)
            self._size += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size


def _html(reader: pa.RecordBatchReader, out: BinaryIO, header: bool, terminal: bool) -> int:
    from kartosql.text.markup import document, fragment

    before, after = document("kartosql", fragment(_HERE)).split(_HERE)
    out.write(f"{before}<table>\n{tables.table_head(reader.schema)}\n<tbody>\n".encode())
    rows = _by_batch(reader, out, lambda batch, first: tables.table_rows(batch))
    out.write(f"</tbody>\n</table>{after}\n".encode())
    return rows


def _parquet(reader: pa.RecordBatchReader, out: BinaryIO, header: bool, terminal: bool) -> int:
    import pyarrow.parquet as pq

    names = json_names(reader.schema.names)
    schema = pa.schema([f.with_name(name) for f, name in zip(reader.schema, names, strict=True)])
    rows = 0
    with _Counted(out) as sink:
        try:
            writer = pq.ParquetWriter(sink, schema, compression="zstd")
        except pa.ArrowException as e:
            reraise(e)
            raise UsageError(
                f"Parquet cannot hold the result: {str(e).splitlines()[0]}",
                hint="Cast the column, for instance to VARCHAR.",
            ) from None
        for group in _groups(reader):
            pieces = max(1, group.num_rows // ROW_GROUP_ROWS)
            writer.write_table(group.rename_columns(names), row_group_size=max(1, -(-group.num_rows // pieces)))
            rows += group.num_rows
        writer.close()
    return rows


def _groups(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield the rows in tables of about the size of a row group, as small batches make poor files."""
    batches: list[pa.RecordBatch] = []
    count = 0
    for batch in reader:
        batches.append(batch)
        count += batch.num_rows
        if count >= ROW_GROUP_ROWS:
            yield pa.Table.from_batches(batches, reader.schema)
            batches, count = [], 0
    if batches:
        yield pa.Table.from_batches(batches, reader.schema)


def _arrow(reader: pa.RecordBatchReader, out: BinaryIO, header: bool, terminal: bool) -> int:
    rows = 0
    with _Counted(out) as sink:
        writer = pa.ipc.new_file(sink, reader.schema)
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
        writer.close()
    return rows


WRITERS: Mapping[str, Writer] = {
    "box": _box,
    "markdown": _markdown,
    "vertical": lambda reader, out, *_: _by_batch(reader, out, tables.vertical_lines),
    "csv": _separated(","),
    "tsv": _separated("\t"),
    "json": _json,
    "jsonl": lambda reader, out, _, terminal: _objects(reader, out, terminal, "", "\n"),
    "html": _html,
    "parquet": _parquet,
    "arrow": _arrow,
    "none": lambda reader, *_: sum(batch.num_rows for batch in reader),
}
BINARY_FORMATS = ("parquet", "arrow")
SUFFIXES = {
    **{".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".csv": "csv", ".tsv": "tsv", ".json": "json"},
    **{".jsonl": "jsonl", ".ndjson": "jsonl", ".html": "html"},
}


def write_file(reader: pa.RecordBatchReader, path: str, format: str | None = None) -> int:  # noqa: A002
    """Write all batches of ``reader`` to the local file ``path`` and return the number of rows.

    The format follows from the suffix unless given. The file appears under its name when it
    is complete; an existing one is replaced. Raises ``invalid-argument`` for an unknown
    format and ``store-failed`` when the system refuses to write.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"{quoted(path)} is no path of a file.")
    path = os.fspath(path)
    writer = _writer(format or format_of(path))
    with replacing(path) as out:
        return writer(reader, out, True, False)


def format_of(path: str) -> str:
    """Return the format that a file name asks for, or raise ``invalid-argument``."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"{path!r}: the suffix {suffix!r} names no format." if suffix else f"{path!r} has no suffix.",
            hint=f"Name the format, or use one of {', '.join(SUFFIXES)}.",
        )
    return SUFFIXES[suffix]


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Open a file to write that takes the name ``path`` when the block ends without an error.

    A device or pipe is written to directly. Raises ``store-failed`` and ``invalid-argument``.
    """
    if "://" in path or "\0" in path:
        raise UsageError(f"{path!r} is no local file.", hint="Write to a local file, and upload that.")
    target = os.path.realpath(path)
    try:
        if os.path.exists(target) and not stat.S_ISREG(os.stat(target).st_mode):
            with open(target, "wb") as out:
                yield out
            return
        part = f"{target}.{secrets.token_hex(4)}.part"
        try:
            with open(part, "xb") as out:
                yield out
            if os.path.exists(target):
                shutil.copymode(target, part)
            os.replace(part, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
    except OSError as e:
        reraise(e, f"Cannot write {path!r}")
        raise StoreError(
            f"Cannot write {path!r}: {e.strerror or e}", hint="Check the folder, its permissions and the space left."
        ) from e
