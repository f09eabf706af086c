"""Tables as text and HTML, for streams, notebooks and terminals; the line on what a statement took."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pyarrow as pa

from kartosql.plan.scan import ScanReport
from kartosql.render.values import is_number, texts
from kartosql.text.escape import escaped, width
from kartosql.text.report import Paint, counted, human_bytes, plain


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
                if self.bytes_total is not None:
                    parts.append(f"{human_bytes(max(0, self.bytes_total - self.bytes_read))} saved")
        return " · ".join(parts)


def summary(rows: int, seconds: float, stats: Mapping[str, Any] | None, report: ScanReport | None) -> RunSummary:
    """Return the account of a statement from its stats and its report, both None for one that scans nothing."""
    if not stats or report is None:
        return RunSummary(rows, seconds)
    parts = [part.part for scan in report.scan.occurrences for part in scan.parts]
    sizes = [report.sizes.get(key) for part in parts for key in part.table.files]
    return RunSummary(
        rows,
        float(stats["seconds"]),
        float(stats["plan_seconds"]),
        stats["files_read"],
        stats["files_total"],
        stats.get("bytes_read"),
        None if None in sizes else sum(filter(None, sizes)),
    )


# -- HTML ----------------------------------------------------------------------------------------


# Notebooks take styles from nowhere else, and are light or dark: colours are those around, lines are grey.
_FRAME = "max-height: 32em; max-width: 100%; overflow: auto"
_CELL = "padding: 2px 8px; border: 1px solid rgba(128, 128, 128, 0.35); white-space: pre; text-align: "


def table(table: pa.Table, rows: int, types: Sequence[str]) -> str:
    """Return an HTML table of at most ``rows`` rows, with all columns, which scrolls; names and values are escaped.

    NULL is shown in italics, so that it differs from the text.
    """
    shown, schema = table.slice(0, rows), table.schema
    styles = [f' style="{_CELL}{"right" if is_number(type_) else "left"}"' for type_ in schema.types]
    small = '<br><span style="font-weight: normal; opacity: 0.65">'
    heads = (
        f"<th{style}>{html.escape(escaped(name))}{small}{html.escape(_short(type_))}</span></th>"
        for style, name, type_ in zip(styles, schema.names, types, strict=True)
    )
    lines = [
        f'<div style="{_FRAME}"><table style="border-collapse: collapse">',
        f"<thead><tr>{''.join(heads)}</tr></thead>",
    ]
    lines += ["<tbody>", *_html_rows(_cell_texts(shown, Look(), _as_preview), styles), "</tbody>", "</table></div>"]
    if table.num_rows > rows:
        lines.append("<p>(more rows)</p>")
    return "\n".join(lines)


def table_head(schema: pa.Schema) -> str:
    """Return the head of a table: the names of its columns."""
    cells = (f"<th{_style(field.type)}>{html.escape(escaped(field.name))}</th>" for field in schema)
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def table_rows(batch: pa.RecordBatch, null: str | None = None) -> Iterator[str]:
    """Yield the rows of a table."""
    return _html_rows(cells(batch, null), [_style(type_) for type_ in batch.schema.types])


def _html_rows(columns: list[list[str]], styles: list[str]) -> Iterator[str]:
    for row in zip(*columns, strict=True):
        line = "".join(
            f"<td{style}>{f'<i>{html.escape(cell)}</i>' if isinstance(cell, NullCell) else html.escape(cell)}</td>"
            for cell, style in zip(row, styles, strict=True)
        )
        yield f"<tr>{line}</tr>"


def _style(type_: pa.DataType) -> str:
    return ' style="text-align: right"' if is_number(type_) else ""


# -- text of streams and notebooks ---------------------------------------------------------------


class NullCell(str):
    """The text of NULL, which no value is, whatever its text."""

    __slots__ = ()


NULL = "NULL"
PREVIEW_WIDTH = 80


def preview(table: pa.Table, rows: int, types: Sequence[str]) -> str:
    """Return a box of at most ``rows`` rows, with "(more rows)" below if there are more.

    It looks as in the shell, except that it never becomes vertical and that values longer than 80 characters are cut
    with an ellipsis. A box has 120 characters where there is no terminal.
    """
    look = Look(shutil.get_terminal_size((120, 24)).columns)
    columns, heads = _cell_texts(table.slice(0, rows), look, _as_preview), _heads(table, types)
    lines = _fitted(table.schema, heads, columns, look)
    if lines is None:
        lines = list(_box(table.schema, heads, columns, _widths(table.schema, heads, columns), plain))
    if table.num_rows > rows:
        lines.append("(more rows)")
    return "\n".join(lines)


def _as_preview(text: str) -> str:
    return "'NULL'" if text == NULL else _cut(escaped(text[: PREVIEW_WIDTH + 1]), PREVIEW_WIDTH)


def _heads(table: pa.Table, types: Sequence[str]) -> dict[str, list[str]]:
    return {"name": [escaped(name) for name in table.column_names], "type": [*map(_short, types)]}


def _short(type_: str) -> str:
    return _cut(escaped(type_), MAX_TYPE)


def cells(rows: pa.Table | pa.RecordBatch, null: str | None = None) -> list[list[str]]:
    """Return the cells of a table or batch by column, on one line each and safe to print.

    NULL is a ``NullCell``, which reads ``NULL`` unless told, as in DuckDB: csv and json distinguish it from the text.
    """
    nothing = NullCell(NULL if null is None else escaped(null))
    return [[nothing if text is None else escaped(text) for text in _texts(column)] for column in rows.columns]


def _texts(column: pa.Array | pa.ChunkedArray) -> Iterable[str | None]:
    return texts(column) if isinstance(column, pa.Array) else (t for chunk in column.chunks for t in texts(chunk))


def box_lines(schema: pa.Schema, columns: list[list[str]], header: bool = True) -> Iterator[str]:
    """Yield the lines of a box; numbers are aligned to the right."""
    heads = {"name": [escaped(name) for name in schema.names]} if header else {}
    return _box(schema, heads, columns, _widths(schema, heads, columns), plain)


def _widths(schema: pa.Schema, heads: Mapping[str, list[str]], columns: list[list[str]]) -> list[int]:
    above = zip(*heads.values(), strict=True) if heads else ((),) * len(schema)
    return [max(map(width, (*texts, *column)), default=0) for texts, column in zip(above, columns, strict=True)]


def _box(
    schema: pa.Schema, heads: Mapping[str, list[str]], columns: list[list[str]], widths: list[int], paint: Paint
) -> Iterator[str]:
    """Yield the lines of a box: above its rows ``heads``, by their styles."""
    bar = paint("line", "│")
    right = [is_number(type_) for type_ in schema.types]

    def rule(left: str, middle: str, end: str) -> str:
        return paint("line", left + middle.join("─" * (w + 2) for w in widths) + end)

    def row(cells: Sequence[str], styles: Sequence[str]) -> str:
        padded = []
        for cell, style, full, to_right in zip(cells, styles, widths, right, strict=True):
            space = " " * (full - width(cell))
            shown = paint("null" if isinstance(cell, NullCell) else style, cell) if paint is not plain else cell
            padded.append(f" {space}{shown} " if to_right else f" {shown}{space} ")
        return f"{bar}{bar.join(padded)}{bar}"

    yield rule("┌", "┬", "┐")
    for style, head in heads.items():
        yield row(head, [style] * len(head))
    if heads:
        yield rule("├", "┼", "┤")
    styles = ["number" if number else "" for number in right]
    for cells in zip(*columns, strict=True):
        yield row(cells, styles)
    yield rule("└", "┴", "┘")


def markdown_head(schema: pa.Schema) -> list[str]:
    """Return the head of a markdown table."""
    names = [_markdown(escaped(name)) for name in schema.names]
    rules = ["---:" if is_number(type_) else "---" for type_ in schema.types]
    return [f"| {' | '.join(names)} |", f"| {' | '.join(rules)} |"]


def markdown_lines(batch: pa.RecordBatch, null: str | None = None) -> Iterator[str]:
    """Yield the rows of a markdown table."""
    columns = [[_markdown(cell) for cell in column] for column in cells(batch, null)]
    for row in zip(*columns, strict=True):
        yield f"| {' | '.join(row)} |"


def vertical_lines(batch: pa.RecordBatch, before: int, null: str | None = None) -> Iterator[str]:
    """Yield one line per value, below a line with the number of the row; there are so many before the first."""
    return _vertical(batch.schema.names, cells(batch, null), map(str, count(before + 1)), plain)


def _vertical(names: list[str], columns: list[list[str]], numbers: Iterable[str], paint: Paint) -> Iterator[str]:
    names = [escaped(name) for name in names]
    widest = max(map(width, names), default=0)
    heads = [f"{paint('name', name)}{' ' * (widest - width(name))} {paint('line', '│')} " for name in names]
    for number, row in zip(numbers, zip(*columns, strict=True), strict=False):
        yield paint("line", f"── row {number} ──")
        for head, cell in zip(heads, row, strict=True):
            yield head + (paint("null", cell) if isinstance(cell, NullCell) else cell)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


# -- text for somebody at a terminal -------------------------------------------------------------

READABLE = ("box", "vertical", "markdown")  # formats of which some rows are shown, and the others counted
MAX_CELL = 10_000  # characters of a value; what is left out is counted
MAX_TYPE = 24
VERTICAL_LINES = 40
_GROUPED = re.compile(r"(-?)(\d{5,})(\.\d+)?")


@dataclass(frozen=True)
class Look:
    """How a table looks: columns of the terminal (None is any), its colours, whether digits are grouped, and NULL.

    A box that is too wide becomes vertical; one that is long then, too, is ``elided`` in the middle instead.
    """

    columns: int | None = None
    paint: Paint = plain
    grouped: bool = True
    types: bool = True
    null: str = NULL
    elided: bool = True


def readable(table: pa.Table, types: Sequence[str], mode: str, look: Look) -> list[str]:
    """Return a table in one of the readable formats; see ``Look`` for a box that is too wide.

    ``types`` are the types of the columns, shown under their names in a box.
    """
    if mode == "markdown":
        lines = markdown_head(table.schema)
        return lines + [line for batch in table.to_batches() for line in markdown_lines(batch)]
    columns = _cell_texts(table, look)
    if mode == "box":
        heads = _heads(table, types)
        if not look.types:
            del heads["type"]
        is_long = table.num_rows * (table.num_columns + 1) > VERTICAL_LINES
        if (box := _fitted(table.schema, heads, columns, replace(look, elided=look.elided and is_long))) is not None:
            return box
    numbers = (f"{number:,}" for number in count(1))
    return list(_vertical(table.column_names, columns, numbers, look.paint))


def _fitted(
    schema: pa.Schema, heads: Mapping[str, list[str]], columns: list[list[str]], look: Look
) -> list[str] | None:
    """Return the lines of a box that fits, of its first and last columns if need be; None if not two of them fit."""
    widths = _widths(schema, heads, columns)
    if look.columns is None or sum(widths) + 3 * len(widths) + 1 <= look.columns:
        return list(_box(schema, heads, columns, widths, look.paint))
    room, left, right = look.columns - 5, 0, len(widths)
    while left < right:
        is_left = left <= len(widths) - right
        room -= widths[left if is_left else right - 1] + 3
        if room < 0:
            break
        left, right = left + is_left, right - (not is_left)
    if not look.elided or (shown := left + len(widths) - right) < 2:
        return None

    def around(items: Iterable[Any], middle: Any) -> list[Any]:
        return [*(found := list(items))[:left], middle, *found[right:]]

    heads = {style: around(texts, "…" if style == "name" else "") for style, texts in heads.items()}
    columns = around(columns, ["…"] * len(columns[0]))
    box = _box(pa.schema(around(schema, pa.field("…", pa.string()))), heads, columns, around(widths, 1), look.paint)
    return [*box, f"{len(widths)} columns ({shown} shown)"]


def bars(labels: Sequence[str], values: Sequence[float], shown: Sequence[str], look: Look) -> list[str]:
    """Return one bar per value, as long as the value is large; negative ones are drawn with another sign.

    ``shown`` are the values as text.
    """
    labels = [escaped(label) for label in labels]
    widest = max(map(width, labels), default=0)
    numbers = max(map(width, shown), default=0)
    most = max([abs(v) for v in values if v == v and abs(v) != float("inf")], default=0.0)
    room = max(8, (look.columns or 80) - widest - numbers - 4)
    lines = []
    for label, value, text in zip(labels, values, shown, strict=True):
        eighths = round(8 * room * min(1.0, abs(value) / most)) if most and value == value else 0
        drawn = "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]
        if value < 0:
            drawn = "░" * max(1, eighths // 8)
        head = f"{label}{' ' * (widest - width(label))} {' ' * (numbers - width(text))}{text}"
        lines.append(f"{head} {look.paint('number', drawn)}".rstrip())
    return lines


def grouped(text: str) -> str:
    """Return the text of a number with its digits in groups of three, from five digits on."""
    if len(text) < 5:
        return text
    match = _GROUPED.fullmatch(text)
    return f"{match[1]}{int(match[2]):,}{match[3] or ''}" if match and match[2][0] != "0" else text


def _cell_texts(table: pa.Table, look: Look, written: Callable[[str], str] | None = None) -> list[list[str]]:
    """Return the text of each value by column, safe to print; a NullCell for NULL."""
    shown, nothing = [], NullCell(escaped(look.null))
    for column in table.columns:
        text_of = (written or _text) if not is_number(column.type) else grouped if look.grouped else str
        shown.append([nothing if text is None else text_of(text) for text in _texts(column)])
    return shown


def _text(text: str) -> str:
    if text == NULL:
        return "'NULL'"  # in quotes, so that it differs from the other one without colours, too
    return escaped(text) if len(text) <= MAX_CELL else f"{escaped(text[:MAX_CELL])}… ({len(text):,} characters)"
