"""What a statement found out, in all its forms: reports, aligned tables, and numbers with their units."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kartosql.text.escape import escaped, width

if TYPE_CHECKING:
    import pyarrow as pa


class Report:
    """A report, a data class: ``str()`` is plain text, and notebooks show the HTML.

    ``listed`` names the field with its items, which are the rows of its table, and their data class.
    """

    listed: ClassVar[tuple[str, type]]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able dictionary."""
        found: dict[str, Any] = _plain(self)
        return found

    def table(self) -> pa.Table:
        """Return it as a table with a column per fact."""
        name, kind = self.listed
        return table_of(getattr(self, name), kind)

    def html(self) -> str:
        """Return it as a piece of HTML, everything escaped and without anything from elsewhere."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.html()


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value)} if is_dataclass(value) else value


def table_of(items: Iterable[Any], kind: type) -> pa.Table:
    """Return the fields of data classes of one ``kind`` as columns, whose types follow from their annotations."""
    import pyarrow as pa

    types = {
        "str": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "tuple[str, ...]": pa.list_(pa.string()),
    }
    rows = list(items)
    columns = {
        f.name: ([getattr(row, f.name) for row in rows], types[str(f.type).removesuffix(" | None")])
        for f in fields(kind)
    }
    return pa.table({name: pa.array(*column) for name, column in columns.items()})


CELL = 60  # columns of a terminal that a cell takes at most


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
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
        return ("  " + "  ".join(padded)).rstrip()

    rule = "  " + "  ".join("─" * widths[i] for i in shown)
    return [line(head), rule, *map(line, cells)] if shown else []


def one_line(text: str, limit: int = CELL) -> str:
    """Return a text on one line, safe to print, with an ellipsis where it was cut."""
    flat = escaped(" ".join(text.split()) if not text.isprintable() else text)
    if width(flat) <= limit:
        return flat
    while flat and width(flat) >= limit:
        flat = flat[: min(len(flat) - 1, limit - 1)]
    return flat + "…"


def human_bytes(size: int) -> str:
    """Format a size in units of 1024 bytes."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Format a duration: milliseconds below one second."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 file``, ``1,200 files``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(part: float, whole: float) -> str:
    """Return a share in percent, without digits that say nothing; only all of it is 100 %."""
    if not whole:
        return "0 %"
    share = 100 * part / whole
    if share == 0 or share >= 100 or 10 <= share < 99:
        return f"{share:.0f} %"
    return f"{max(0.1, min(99.9, share)):.1f} %"
