"""Tables as text: box, markdown and one value per line."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kartosql.plan.report import ScanReport
from kartosql.render.values import is_number, texts
from kartosql.text.escape import escaped, width
from kartosql.text.sizes import counted, human_bytes


@dataclass(frozen=True)
class RunSummary:
    """What a statement took. Bytes are those of data files; None is what nobody measured.

    ``bytes_total`` are the bytes of all files of the tables named.
    """

    rows: int
    seconds: float
    plan_seconds: float | None = None
    files_read: int | None = None
    files_total: int | None = None
    bytes_read: int | None = None
    bytes_total: int | None = None

    @property
    def bytes_saved(self) -> int | None:
        """Bytes of the tables that were not read."""
        if self.bytes_read is None or self.bytes_total is None:
            return None
        return max(0, self.bytes_total - self.bytes_read)

    def __str__(self) -> str:
        parts = [f"{counted(self.rows, 'row')} in {self.seconds:.3f} s"]
        if self.plan_seconds is not None:
            read = max(0.0, self.seconds - self.plan_seconds)
            parts[0] += f" (plan {self.plan_seconds:.3f}, read {read:.3f})"
        if self.files_total:
            parts.append(f"{self.files_read:,} of {counted(self.files_total, 'file')}")
            if self.bytes_read is not None:
                total = "" if self.bytes_total is None else f" of {human_bytes(self.bytes_total)}"
                parts.append(f"{human_bytes(self.bytes_read)}{total} read")
            if self.bytes_saved is not None:
                parts.append(f"{human_bytes(self.bytes_saved)} saved")
        return " · ".join(parts)


def summary(rows: int, seconds: float, stats: Mapping[str, Any] | None, report: ScanReport | None) -> RunSummary:
    """Return the account of a statement from its stats and its report, both None for one that scans nothing."""
    if not stats or report is None:
        return RunSummary(rows, seconds)
    return RunSummary(
        rows,
        float(stats["seconds"]),
        float(stats["plan_seconds"]),
        stats["files_read"],
        stats["files_total"],
        stats.get("bytes_read"),
        total_bytes(report),
    )


def total_bytes(report: ScanReport) -> int | None:
    """Return the bytes of all files of the tables that a report is about, None if a size is not known."""
    total = 0
    for scan in report.scan.occurrences:
        for part in scan.parts:
            for key in part.part.table.files:
                size = report.sizes.get(key)
                if size is None:
                    return None
                total += size
    return total


def table(table: pa.Table, rows: int) -> str:
    """Return an HTML table of at most ``rows`` rows; names and values are escaped.

    NULL is shown in italics, so that it differs from the text.
    """
    shown = table.slice(0, rows)
    lines = ["<table>", table_head(table.schema), "<tbody>"]
    for batch in shown.to_batches():
        lines += table_rows(batch)
    lines += ["</tbody>", "</table>"]
    if table.num_rows > rows:
        lines.append("<p>(more rows)</p>")
    return "\n".join(lines)


def table_head(schema: pa.Schema) -> str:
    """Return the head of a table: the names of its columns."""
    cells = (f"<th{_style(field.type)}>{_text(escaped(field.name))}</th>" for field in schema)
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def table_rows(batch: pa.RecordBatch) -> Iterator[str]:
    """Yield the rows of a table."""
    styles = [_style(type_) for type_ in batch.schema.types]
    nulls = [column.is_null().to_pylist() for column in batch.columns]
    for row, missing in zip(zip(*batch_cells(batch), strict=True), zip(*nulls, strict=True), strict=True):
        line = "".join(
            f"<td{style}>{'<i>NULL</i>' if null else _text(cell)}</td>"
            for cell, null, style in zip(row, missing, styles, strict=True)
        )
        yield f"<tr>{line}</tr>"


def _style(type_: pa.DataType) -> str:
    return ' style="text-align: right"' if is_number(type_) else ""


def _text(text: str) -> str:
    return html.escape(text)


NULL = "NULL"
PREVIEW_WIDTH = 80


def preview(table: pa.Table, rows: int) -> str:
    """Return a box of at most ``rows`` rows, with "(more rows)" below if there are more.

    Values longer than 80 characters are cut with an ellipsis.
    """
    columns = [[_cut(v) for v in column] for column in cells(table.slice(0, rows))]
    lines = list(box_lines(table.schema, columns))
    if table.num_rows > rows:
        lines.append("(more rows)")
    return "\n".join(lines)


def cells(table: pa.Table) -> list[list[str]]:
    """Return the cells of a table by column, on one line each and safe to print.

    NULL is ``NULL``, as in DuckDB: only csv and json tell it from the text NULL.
    """
    return [[cell for chunk in column.chunks for cell in _cells(chunk)] for column in table.columns]


def batch_cells(batch: pa.RecordBatch) -> list[list[str]]:
    """Return the cells of a batch by column, as ``cells`` does."""
    return [_cells(column) for column in batch.columns]


def box_lines(schema: pa.Schema, columns: list[list[str]], header: bool = True) -> Iterator[str]:
    """Yield the lines of a box; numbers stand to the right."""
    names = [escaped(name) for name in schema.names]
    right = [is_number(type_) for type_ in schema.types]
    measured = [[width(cell) for cell in column] for column in columns]
    widths = [max([*m, width(n) if header else 0], default=0) for m, n in zip(measured, names, strict=True)]
    bars = ["─" * (w + 2) for w in widths]
    yield f"┌{'┬'.join(bars)}┐"
    if header:
        yield _row(names, [width(n) for n in names], widths, right)
        yield f"├{'┼'.join(bars)}┤"
    for row, lengths in zip(zip(*columns, strict=True), zip(*measured, strict=True), strict=True):
        yield _row(row, lengths, widths, right)
    yield f"└{'┴'.join(bars)}┘"


def markdown_head(schema: pa.Schema) -> list[str]:
    """Return the head of a markdown table."""
    names = [_markdown(escaped(name)) for name in schema.names]
    rules = ["---:" if is_number(type_) else "---" for type_ in schema.types]
    return [f"| {' | '.join(names)} |", f"| {' | '.join(rules)} |"]


def markdown_lines(batch: pa.RecordBatch) -> Iterator[str]:
    """Yield the rows of a markdown table."""
    columns = [[_markdown(cell) for cell in column] for column in batch_cells(batch)]
    for row in zip(*columns, strict=True):
        yield f"| {' | '.join(row)} |"


def vertical_lines(batch: pa.RecordBatch, first: int) -> Iterator[str]:
    """Yield one line per value, below a line with the number of the row."""
    names = [escaped(name) for name in batch.schema.names]
    widest = max(map(width, names), default=0)
    heads = [f"{name}{' ' * (widest - width(name))} │ " for name in names]
    for number, row in enumerate(zip(*batch_cells(batch), strict=True), first):
        yield f"── row {number} ──"
        for head, cell in zip(heads, row, strict=True):
            yield head + cell


def _cells(array: pa.Array) -> list[str]:
    return [NULL if text is None else escaped(text) for text in texts(array)]


def _row(row: Iterable[str], lengths: Iterable[int], widths: list[int], right: list[bool]) -> str:
    padded = [
        " " * (full - length) + cell if to_right else cell + " " * (full - length)
        for cell, length, full, to_right in zip(row, lengths, widths, right, strict=True)
    ]
    return f"│ {' │ '.join(padded)} │"


def _cut(text: str) -> str:
    return text if len(text) <= PREVIEW_WIDTH else text[: PREVIEW_WIDTH - 1] + "…"


def _markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
