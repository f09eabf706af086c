"""Tables of text, aligned for terminals."""

from __future__ import annotations

from collections.abc import Container, Sequence

from kartosql.text.escape import escaped, width

CELL = 60  # columns of a terminal that a cell takes at most


def grid(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = (), indent: str = "  "
) -> list[str]:
    """Return the lines of a table: a head, a rule, and a line per row; columns in ``right`` are aligned there.

    Cells are put on one line and made safe to print; long ones are cut. Columns that are empty
    in all rows are left out.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    shown = [i for i in range(len(head)) if any(row[i] for row in cells)]
    widths = {i: max(width(head[i]), *(width(row[i]) for row in cells)) for i in shown}

    def line(row: Sequence[str]) -> str:
        padded = [
            " " * (widths[i] - width(row[i])) + row[i]
            if i in right and row is not head
            else row[i] + " " * (widths[i] - width(row[i]))
            for i in shown
        ]
        return (indent + "  ".join(padded)).rstrip()

    rule = indent + "  ".join("─" * widths[i] for i in shown)
    return [line(head), rule, *map(line, cells)] if shown else []


def one_line(text: str, limit: int = CELL) -> str:
    """Return a text on one line, safe to print, with an ellipsis where it was cut."""
    flat = escaped(" ".join(text.split()) if not text.isprintable() else text)
    if width(flat) <= limit:
        return flat
    while flat and width(flat) >= limit:
        flat = flat[: min(len(flat) - 1, limit - 1)]
    return flat + "…"
