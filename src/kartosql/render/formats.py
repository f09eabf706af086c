"""Streams of record batches in every output format."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, cast

import pyarrow as pa

from kartosql.errors import StoreError, UsageError, quoted, reraise
from kartosql.render import tables
from kartosql.render.values import json_names, jsons, texts
from kartosql.store import Store
from kartosql.store.streams import CountedOutput
from kartosql.store.urls import is_local_url, path_of
from kartosql.text.escape import escaped_csv, escaped_json
from kartosql.text.types import in_sql_names

ROW_GROUP_ROWS = 122_880  # DuckDB's own; batches are gathered up to it
LARGE, LARGEST = 50_000, 1 << 22  # how many values are written at once by Arrow's kernels
_HERE = "<!-- rows -->"


@dataclass(frozen=True)
class Style:
    """How rows look as text; ``null`` stands for NULL and ``separator`` between values, None is that of the format.

    ``terminal`` says that a person looks at the output: then csv, tsv and json escape control characters too, which
    box, markdown and vertical always do.
    """

    header: bool = True
    terminal: bool = False
    null: str | None = None
    separator: str | None = None


Writer = Callable[[pa.RecordBatchReader, BinaryIO, Style], int]


def write_stream(
    reader: pa.RecordBatchReader,
    format: str,  # noqa: A002
    out: BinaryIO,
    style: Style = Style(),
) -> int:
    """Write all batches of ``reader`` to ``out`` and return the number of rows.

    All formats but box hold one batch at a time. Raises ``invalid-argument`` for an unknown format, for columns that
    the format has no type for, and for binary formats on a terminal.
    """
    writer = _writer(format)
    if style.terminal and format in BINARY_FORMATS:
        raise UsageError(f"The format {format} is not for terminals.", hint="Write to a file, or choose box.")
    return writer(reader, out, style)


def _writer(name: str) -> Writer:
    if not isinstance(name, str) or name not in WRITERS:
        raise UsageError(f"There is no output format {quoted(name)}.", hint=f"Formats: {', '.join(WRITERS)}.")
    return WRITERS[name]


def _write_lines(out: BinaryIO, lines: Iterable[str]) -> None:
    text = "\n".join(lines)
    if text:
        out.write(text.encode() + b"\n")


def _box(reader: pa.RecordBatchReader, out: BinaryIO, style: Style) -> int:
    table = reader.read_all()
    _write_lines(out, tables.box_lines(table.schema, tables.cells(table, style.null), style.header))
    return int(table.num_rows)


def _markdown(reader: pa.RecordBatchReader, out: BinaryIO, style: Style) -> int:
    # Without a head it would be no table, so there always is one.
    _write_lines(out, tables.markdown_head(reader.schema))
    return _by_batch(reader, out, lambda batch, first: tables.markdown_lines(batch, style.null))


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


def _separated(standard: str, *, quotes: bool = True) -> Writer:
    """Return the writer of RFC 4180 records with line feeds, or without ``quotes`` of lines of bare values.

    NULL is empty, the empty text and one that reads as NULL does stand in quotes.
    """

    def write(reader: pa.RecordBatchReader, out: BinaryIO, style: Style) -> int:
        separator, null = standard if style.separator is None else style.separator, style.null or ""
        quoted_for = "".join({*'"\r\n', *separator}) if quotes else ""
        special = re.compile(f"[{re.escape(quoted_for)}]") if quotes else None
        safe: Callable[[str], str] = escaped_csv if style.terminal else str

        def cell(text: str | None) -> str:
            if text is None:
                return null
            is_plain = special is None or not (text in ("", null) or special.search(text))
            return text if is_plain else '"' + text.replace('"', '""') + '"'

        def by_column(batch: pa.RecordBatch) -> memoryview:
            from kartosql.render.columnar import csv_rows

            return csv_rows(batch, separator, quoted_for, null)

        def by_value(batch: pa.RecordBatch) -> str:
            columns = [[cell(t if t is None else safe(t)) for t in texts(column)] for column in batch.columns]
            # A NULL in a single column is a line of its own, though empty.
            return "".join(separator.join(row) + "\n" for row in zip(*columns, strict=True))

        if style.header:
            _write_lines(out, [separator.join(cell(safe(name)) for name in reader.schema.names)])
        return _encoded(reader, out, style.terminal, by_column, by_value)

    return write


def _json(reader: pa.RecordBatchReader, out: BinaryIO, style: Style) -> int:
    out.write(b"[")
    rows = _objects(reader, out, style.terminal, ",\n", "")
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


def _html(reader: pa.RecordBatchReader, out: BinaryIO, style: Style) -> int:
    from kartosql.text.markup import document, fragment

    before, after = document("kartosql", fragment(_HERE)).split(_HERE)
    out.write(f"{before}<table>\n{tables.table_head(reader.schema)}\n<tbody>\n".encode())
    rows = _by_batch(reader, out, lambda batch, first: tables.table_rows(batch, style.null))
    out.write(f"</tbody>\n</table>{after}\n".encode())
    return rows


def _parquet(reader: pa.RecordBatchReader, out: BinaryIO, style: Style) -> int:
    import pyarrow.parquet as pq

    names = json_names(reader.schema.names)
    schema = pa.schema([f.with_name(name) for f, name in zip(reader.schema, names, strict=True)])
    rows = 0
    with CountedOutput(out) as sink:
        try:
            writer = pq.ParquetWriter(sink, schema, compression="zstd")
        except pa.ArrowException as e:
            reraise(e)
            raise UsageError(
                f"Parquet cannot hold the result: {in_sql_names(e).splitlines()[0]}",
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


def _arrow(reader: pa.RecordBatchReader, out: BinaryIO, style: Style) -> int:
    rows = 0
    with CountedOutput(out) as sink:
        writer = pa.ipc.new_file(sink, reader.schema)
        for batch in reader:
            writer.write_batch(batch)
            rows += batch.num_rows
        writer.close()
    return rows


WRITERS: Mapping[str, Writer] = {
    "box": _box,
    "markdown": _markdown,
    "vertical": lambda reader, out, style: _by_batch(reader, out, partial(tables.vertical_lines, null=style.null)),
    "csv": _separated(","),
    "tsv": _separated("\t"),
    "unaligned": _separated("|", quotes=False),
    "json": _json,
    "jsonl": lambda reader, out, style: _objects(reader, out, style.terminal, "", "\n"),
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


def write_file(reader: pa.RecordBatchReader, path: str | os.PathLike[str], format: str | None = None) -> int:  # noqa: A002
    """Write all batches of ``reader`` to a file, given as path or URL, and return the number of rows.

    The format follows from the suffix unless given. The file appears under its name when it
    is complete; an existing one is replaced. Raises ``invalid-argument`` for an unknown
    format and ``store-failed`` when the system refuses to write.
    """
    if not isinstance(path, str | os.PathLike):
        raise UsageError(f"{quoted(path)} is no path of a file.")
    path = os.fspath(path)
    writer = _writer(format or format_of(path))
    with replacing(path) as out:
        return writer(reader, out, Style())


def write_folder(
    reader: pa.RecordBatchReader,
    url: str,
    format: str,  # noqa: A002
    columns: Sequence[str],
    storage_options: Mapping[str, Any] | None = None,
) -> int:
    """Write all batches of ``reader`` to a new folder of files in folders ``column=value``; return the number of rows.

    Raises ``invalid-argument``, ``dataset-exists`` for a folder that holds something and ``store-failed``.
    """
    import pyarrow.dataset as ds

    names, by = reader.schema.names, dict.fromkeys(columns)
    if format not in BINARY_FORMATS:
        raise UsageError(f"Partitioned folders hold parquet or arrow files, not {quoted(format)}.")
    if unknown := [c for c in by if names.count(c) != 1]:
        raise UsageError(f"The rows have no column {unknown[0]!r}.", hint=f"Columns: {', '.join(names)}.")
    if len(by) == len(names):
        raise UsageError("No column would be left in the files.", hint="Partition by fewer columns.")
    store = Store(url, storage_options, create=True)
    if store.list_root():
        raise UsageError(f"{store.url!r} is not empty.", code="dataset-exists", hint="Name a new folder.")
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in reader:
            rows += batch.num_rows
            yield batch

    try:
        ds.write_dataset(
            counted(),
            store.root,
            schema=reader.schema,
            format="ipc" if format == "arrow" else format,
            filesystem=None if store.is_local else store.fs,
            partitioning=ds.partitioning(pa.schema([reader.schema.field(c) for c in by]), flavor="hive"),
            basename_template=f"part-{{i}}.{format}",
            max_partitions=1 << 16,
            existing_data_behavior="overwrite_or_ignore",
        )
    except (pa.ArrowException, OSError) as e:
        reraise(e, f"Cannot write {store.url!r}")
        raise StoreError(f"Cannot write {store.url!r}: {str(e).splitlines()[0]}") from e
    return rows


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
def replacing(path: str, storage_options: Mapping[str, Any] | None = None) -> Iterator[BinaryIO]:
    """Open a file to write that takes the name ``path``, which may be a URL, when the block ends without an error.

    A device or pipe is written to directly. Raises ``store-failed`` and ``invalid-argument``.
    """
    if "\0" in path:
        raise UsageError(f"{path!r} is no path of a file.")
    if not is_local_url(path):
        folder, _, name = path.rpartition("/")
        if "://" not in folder or not name:
            raise UsageError(f"{path!r} names no file.", hint="Name one in a folder or bucket: s3://bucket/rows.csv.")
        with Store(folder, storage_options).output(name) as file:
            yield cast(BinaryIO, file)
        return
    target = os.path.realpath(path_of(path))
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
