"""Tables for notebooks."""

from __future__ import annotations

import html

import pyarrow as pa

from kartosql.render.tables import cells
from kartosql.render.values import is_number
from kartosql.text.escape import escaped


def table(table: pa.Table, rows: int) -> str:
    """Return an HTML table of at most ``rows`` rows; names and values are escaped.

    NULL is shown in italics, so that it differs from the text.
    """
    shown = table.slice(0, rows)
    styles = [' style="text-align: right"' if is_number(type_) else "" for type_ in table.schema.types]
    nulls = [column.is_null().to_pylist() for column in shown.columns]
    head = "".join(
        f"<th{style}>{_text(escaped(name))}</th>" for name, style in zip(table.column_names, styles, strict=True)
    )
    lines = ["<table>", f"<thead><tr>{head}</tr></thead>", "<tbody>"]
    for row, missing in zip(zip(*cells(shown), strict=True), zip(*nulls, strict=True), strict=True):
        line = "".join(
            f"<td{style}>{'<i>NULL</i>' if null else _text(cell)}</td>"
            for cell, null, style in zip(row, missing, styles, strict=True)
        )
        lines.append(f"<tr>{line}</tr>")
    lines += ["</tbody>", "</table>"]
    if table.num_rows > rows:
        lines.append("<p>(more rows)</p>")
    return "\n".join(lines)


def _text(text: str) -> str:
    return html.escape(text)
