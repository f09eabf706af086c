"""Tables for somebody at a terminal: as wide as it is, with types, grouped digits, and NULL unlike any text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kartosql.render.values import is_number, texts
from kartosql.text.escape import escaped, width

NULL = "NULL"
MAX_CELL = 10_000  # characters of a value; what is left out is counted
MAX_TYPE = 24
_GROUPED = re.compile(r"(-?)(\d{5,})(\.\d+)?")

Paint = Callable[[str, str], str]  # a style and a text -> the text in that style


def plain(style: str, text: str) -> str:
    """Return a text as it is, for terminals without colours."""
    return text


@dataclass(frozen=True)
class Look:
    """How a table looks: the columns of the terminal (None is any), its colours, and whether digits are grouped."""

    columns: int | None = None
    paint: Paint = plain
    grouped: bool = True
    types: bool = True


class _NullCell(str):
    """The text of NULL, which no value is, whatever its text."""

    __slots__ = ()


NULL_CELL = _NullCell(NULL)


def box(table: pa.Table, types: Sequence[str], look: Look) -> list[str] | None:
    """Return the lines of a box, None if it is wider than the terminal.

    ``types`` are the types of the columns, shown under their names.
    """
    names = [escaped(name) for name in table.column_names]
    kinds = [_type(text) for text in types] if look.types else [""] * len(names)
    columns = _cells(table, look)
    right = [is_number(type_) for type_ in table.schema.types]
    widths = [
        max([width(name), width(kind), *map(width, column)])
        for name, kind, column in zip(names, kinds, columns, strict=True)
    ]
    if look.columns is not None and sum(widths) + 3 * len(widths) + 1 > look.columns:
        return None
    return list(_box_lines(names, kinds, columns, widths, right, look))


def _box_lines(
    names: list[str], kinds: list[str], columns: list[list[str]], widths: list[int], right: list[bool], look: Look
) -> Iterator[str]:
    paint = look.paint
    bar = paint("line", "│")

    def rule(left: str, middle: str, end: str) -> str:
        return paint("line", left + middle.join("─" * (w + 2) for w in widths) + end)

    def row(cells: Sequence[str], styles: Sequence[str]) -> str:
        padded = []
        for cell, style, full, to_right in zip(cells, styles, widths, right, strict=True):
            space = " " * (full - width(cell))
            if cell is NULL_CELL:
                style = "null"
            shown = paint(style, cell) if style else cell
            padded.append(f" {space}{shown} " if to_right else f" {shown}{space} ")
        return f"{bar}{bar.join(padded)}{bar}"

    yield rule("┌", "┬", "┐")
    yield row(names, ["name"] * len(names))
    if look.types:
        yield row(kinds, ["type"] * len(kinds))
    yield rule("├", "┼", "┤")
    styles = ["number" if number else "" for number in right]
    for cells in zip(*columns, strict=True):
        yield row(cells, styles)
    yield rule("└", "┴", "┘")


def vertical(table: pa.Table, look: Look, first: int = 1) -> Iterator[str]:
    """Yield one line per value, below a line with the number of the row, of which the first is ``first``."""
    names = [escaped(name) for name in table.column_names]
    widest = max(map(width, names), default=0)
    bar = look.paint("line", "│")
    for number, cells in enumerate(zip(*_cells(table, look), strict=True), first):
        yield look.paint("line", f"── row {number:,} ──")
        for name, cell in zip(names, cells, strict=True):
            shown = look.paint("null", cell) if cell is NULL_CELL else cell
            yield f"{look.paint('name', name)}{' ' * (widest - width(name))} {bar} {shown}"


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


def _cells(table: pa.Table, look: Look) -> list[list[str]]:
    return [_column(column, look) for column in table.columns]


def _column(column: pa.ChunkedArray, look: Look) -> list[str]:
    """Return the text of each value, safe to print; NULL_CELL for NULL."""
    found: Iterable[str | None] = (text for chunk in column.chunks for text in texts(chunk))
    if is_number(column.type):
        shown = grouped if look.grouped else str
        return [NULL_CELL if text is None else shown(text) for text in found]
    # A text NULL stands in quotes, so that it differs without colours, too.
    return [NULL_CELL if text is None else "'NULL'" if text == NULL else _bounded(text) for text in found]


def _bounded(text: str) -> str:
    if len(text) <= MAX_CELL:
        return escaped(text)
    return f"{escaped(text[:MAX_CELL])}… ({len(text):,} characters)"


def _type(text: str) -> str:
    text = escaped(text).lower()
    return text if len(text) <= MAX_TYPE else text[: MAX_TYPE - 1] + "…"
