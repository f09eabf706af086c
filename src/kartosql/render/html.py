"""Tables for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterator

import pyarrow as pa

from kartosql.render.tables import batch_cells
from kartosql.render.values import is_number
from kartosql.text.escape import escaped


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
