"""Tables for people: box, markdown and one value per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from kartosql.render.values import is_number, texts
from kartosql.text.escape import escaped, width

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
