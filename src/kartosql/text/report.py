"""What a statement found out, in all its forms: reports, aligned tables, and numbers with their units."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain, repeat, zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

from kartosql.text import markup
from kartosql.text.escape import escaped, width

if TYPE_CHECKING:
    import pyarrow as pa


class Report:
    """A report, a data class: ``str()`` is plain text for the terminal, and notebooks show the HTML.

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
        return markup.fragment(*self._laid_out(HtmlPage()))

    def _laid_out(self, page: Page) -> list[str]:
        """Return the lines of its text on a page, or its pieces of HTML on one of that."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(self._laid_out(Page.of_stdout()))

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
    columns = {f.name: types[str(f.type).removesuffix(" | None")] for f in fields(kind)}
    rows = [{name: getattr(item, name) for name in columns} for item in items]
    return pa.Table.from_pylist(rows, schema=pa.schema(columns))


CELL, WIDE = 60, 200  # columns of a terminal that a cell and another text take at most
_BREAKS = re.compile(r"(?<=/)(?=.)|(?<=,)(?=\D)| ")  # where a text may go on in another line
NARROW, LONG_WORD = 40, 24  # columns of the narrowest page, and of words that a table has to have a place for
Paint = Callable[[str, str], str]  # a style and a text -> the text in that style


def plain(style: str, text: str) -> str:
    """Return a text as it is, for terminals without colours."""
    return text


class Branch(str):
    """A cell with the lines of a tree before it: ``first`` before its first line, ``then`` before others."""

    __slots__ = ("first", "then")
    first: str
    then: str

    def __new__(cls, text: str, first: str = "", then: str = "") -> Branch:
        """Return the cell."""
        made = super().__new__(cls, one_line(text, WIDE))
        made.first, made.then = first, then
        return made


class Code(str):
    """A text of SQL, which HTML shows as such."""

    __slots__ = ()


class Bar(str):
    """A bar of so many pixels, which only HTML shows: its number stands beside it."""

    __slots__ = ("pixels",)
    pixels: int

    def __new__(cls, pixels: int) -> Bar:
        """Return the cell."""
        made = super().__new__(cls, "")
        made.pixels = pixels
        return made


class Page:
    """What lays a report out: for so many columns, None is any, and in the colours of a terminal.

    Words are not broken: one that is longer than its line goes on in the next one behind a slash or a comma, and what
    is longer even so is elided in the middle. All that comes out is safe to print.
    """

    def __init__(self, columns: int | None = None, paint: Paint = plain) -> None:
        self.columns = None if columns is None else max(NARROW, columns)
        self.paint = paint

    @classmethod
    def of_stdout(cls) -> Page:
        """Return the page of the terminal that stdout is, of any width if it is none."""
        try:
            return cls(os.get_terminal_size(sys.stdout.fileno()).columns or None)
        except (AttributeError, OSError, ValueError):
            return cls()

    def text(self, text: str, lead: str = "", limit: int = WIDE, style: str = "") -> list[str]:
        """Return the lines of a text behind a ``lead``; those below the first are as far to the right."""
        room = None if self.columns is None else self.columns - width(lead)
        first, *others = (self.paint(style, line) for line in _wrapped(one_line(text, limit), room))
        return [lead + first, *(" " * width(lead) + line for line in others)]

    def facts(self, facts: Sequence[tuple[str, str]], lead: str = "  ", limit: int = WIDE) -> list[str]:
        """Return names with a text behind each, all of which begin in the same column."""
        widest = max((width(name) for name, _ in facts), default=0)
        heads = [f"{lead}{name}: {' ' * (widest - width(name))}" for name, _ in facts]
        return [line for head, (_, text) in zip(heads, facts, strict=True) for line in self.text(text, head, limit)]

    def grid(self, head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
        """Return the lines of a table: a head, a rule, and the rows; columns in ``right`` are aligned there.

        Long cells are cut. Columns that are empty in all rows are left out. Cells that have no place beside each other
        stand below each other.
        """
        head, most = [*map(one_line, head)], CELL if self.columns is None else WIDE
        cells = [[cell if isinstance(cell, Branch) else one_line(cell, most) for cell in row] for row in rows]
        shown = [i for i in range(len(head)) if any(row[i] for row in cells)]
        columns = [_TextColumn(head[i], [row[i] for row in cells], i in right) for i in shown]
        if not columns:
            return []
        if self.columns is not None and not _fit(columns, self.columns - 2):
            named = [i for i in shown if head[i]]  # a bar has no name, and its number stands beside it
            return [line for row in cells for line in self._record([(head[i], row[i]) for i in named if row[i]])]
        rule = "  ".join("─" * column.width for column in columns)
        lines = [*self._row(columns, [column.head for column in columns], "name"), "  " + self.paint("line", rule)]
        return lines + [line for row in cells for line in self._row(columns, [row[i] for i in shown], "number")]

    def _row(self, columns: Sequence[_TextColumn], cells: Sequence[str], style: str) -> list[str]:
        """Return the lines of a row, its numbers in a style, and so all of a head."""
        wrapped = [column.wrapped(cell) for column, cell in zip(columns, cells, strict=True)]
        lines = []
        for texts in zip_longest(*wrapped, fillvalue=("", "")):
            line = ""
            for column, (lead, text) in zip(columns, texts, strict=True):
                space = " " * (column.width - width(lead) - width(text))
                shown = self.paint(style if column.is_right or style == "name" else "", text)
                to_right = column.is_right and style != "name"
                line += "  " + (space + shown if to_right else self.paint("line", lead) + shown + space)
            lines.append(line.rstrip())
        return lines

    def _record(self, cells: Sequence[tuple[str, str]]) -> list[str]:
        """Return the cells of a row below each other, with their names, behind the first one."""
        (_, title), *others = cells
        first, then = (title.first, title.then) if isinstance(title, Branch) else ("", "")
        assert self.columns is not None
        found = _wrapped(title, self.columns - 2 - width(then))
        lines = [f"  {lead}{line}" for lead, line in zip(chain([first], repeat(then)), found, strict=False)]
        return lines + self.facts(others, f"  {then}  ")


class HtmlPage(Page):
    """What lays a report out as pieces of HTML: a paragraph for each text, and tables; nothing is cut."""

    def text(self, text: str, lead: str = "", limit: int = WIDE, style: str = "") -> list[str]:
        """Return a paragraph, in bold if it has a style; one behind blanks stands further to the right."""
        shown = f"<b>{_html(text)}</b>" if style not in ("", "note") else _html(text)
        kind = ' class="d"' if style == "note" else ' class="i"' if lead.isspace() else ""
        return [f"<p{kind}>{markup.text(lead.lstrip())}{shown}</p>"]

    def facts(self, facts: Sequence[tuple[str, str]], lead: str = "  ", limit: int = WIDE) -> list[str]:
        """Return a table of names, with a text behind each."""
        return [markup.table(("", ""), [[_html(name), _html(text)] for name, text in facts])] if facts else []

    def grid(self, head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = ()) -> list[str]:
        """Return a table without the columns that are empty in all rows."""
        shown = [i for i in range(len(head)) if any(row[i] or isinstance(row[i], Bar) for row in rows)]
        cells = [[_html(row[i]) for i in shown] for row in rows]
        to_right = [n for n, i in enumerate(shown) if i in right]
        return [markup.table([head[i] for i in shown], cells, right=to_right)] if shown else []


def _html(cell: str) -> str:
    if isinstance(cell, Bar):
        return f'<span class="b" style="width:{cell.pixels}px"></span>'
    lead = f'<span style="white-space:pre">{markup.text(cell.first)}</span>' if isinstance(cell, Branch) else ""
    return lead + (markup.code(cell) if isinstance(cell, Code) else markup.text(cell))


class _TextColumn:
    """A column of a table: how wide it is, and ``least`` how wide it has to be."""

    def __init__(self, head: str, cells: Sequence[str], is_right: bool) -> None:
        self.head, self.is_right = head, is_right
        leads = [max(width(c.first), width(c.then)) if isinstance(c, Branch) else 0 for c in cells]
        self.width = max(width(head), *(lead + width(c) for lead, c in zip(leads, cells, strict=True)))
        words = [lead + min(LONG_WORD, _longest(c)) for lead, c in zip(leads, cells, strict=True)]
        self.least = max(_longest(head), *(map(width, cells) if is_right else words))

    def wrapped(self, cell: str) -> list[tuple[str, str]]:
        """Return the lines of a cell, with what stands before each."""
        if not isinstance(cell, Branch):
            return [("", line) for line in _wrapped(cell, self.width)]
        lines = _wrapped(cell, self.width - max(width(cell.first), width(cell.then)))
        return list(zip(chain([cell.first], repeat(cell.then)), lines, strict=False))


def _fit(columns: Sequence[_TextColumn], room: int) -> bool:
    """Take from the widest columns until all of them have their place; return whether they have."""
    over = sum(column.width + 2 for column in columns) - 2 - room
    while over > 0:
        widest = max(columns, key=lambda column: (column.width > column.least, column.width))
        if widest.width <= widest.least:
            return False
        widest.width -= 1
        over -= 1
    return True


def _longest(text: str) -> int:
    return max(map(width, _BREAKS.split(text)))


def _wrapped(text: str, room: int | None) -> list[str]:
    """Return the lines of a text of one line, with as many words as there is room for on each."""
    if room is None or width(text) <= room:
        return [text]
    lines, line = [], ""
    for word in text.split(" "):
        if not line or width(line) + 1 + width(word) > room:
            lines += [line] if line else []
            line = ""
            for piece in [word] if width(word) <= room else _BREAKS.split(word):
                if line and width(line + piece) > room:
                    lines.append(line)
                    line = ""
                line += elided(piece, room)
        else:
            line += f" {word}"
    return [*lines, line]


def elided(text: str, room: int) -> str:
    """Return a text with an ellipsis in its middle if there is no room for it."""
    if width(text) <= room:
        return text
    half = min(room, -(-len(text) // 2))
    left, right = text[:half], text[-half:]
    while left and width(left) + 1 + width(right) > room:
        left, right = (left[:-1], right) if width(left) >= width(right) else (left, right[1:])
    return f"{left}…{right}"


def one_line(text: str, limit: int = CELL) -> str:
    """Return a text on one line, safe to print, with an ellipsis behind the last word that fits, or in a long one."""
    flat = escaped(" ".join(text.split()) if not text.isprintable() else text)
    if width(flat) <= limit:
        return flat
    head = flat[: limit - 2]
    while width(head) > limit - 2:
        head = head[:-1]
    at = len(head) if flat[len(head)] == " " else head.rfind(" ")
    return f"{head[:at]} …" if at > len(head) // 2 else elided(flat, limit)


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


def milliseconds(seconds: float) -> str:
    """Format a duration, below one second in milliseconds with a tenth."""
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else human_seconds(seconds)


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
