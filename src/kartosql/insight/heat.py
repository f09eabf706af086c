"""Heat maps in text and SVG: how many cells there are, and how many of them a dataset has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kartosql.text import markup
from kartosql.text.escape import width
from kartosql.text.grid import grid, one_line
from kartosql.text.sizes import counted, percent

SHADES = " ░▒▓█"
UNKNOWN = "!"
MAX_ROWS, MAX_COLUMNS = 40, 30
LABEL = 20  # columns of a terminal that a label takes at most
CELL, LEFT, TOP = 18, 150, 90  # pixels: a place of the map, and the room for labels

Axis = tuple[str | None, ...]


@dataclass(frozen=True)
class Panel:
    """The heat map of one dataset: ``counts`` are [cells, unknown] by the places of both axes."""

    dataset: str
    by: tuple[str, ...]
    axes: tuple[Axis, Axis]
    counts: list[list[list[int]]]
    noun: str = "cell"

    def sums(self) -> tuple[int, int]:
        """Return all cells, and all unknown ones."""
        places = [place for row in self.counts for place in row]
        return sum(c for c, _ in places), sum(u for _, u in places)

    def binned(self) -> Panel:
        """Return the map with neighbours put together where there are too many places."""
        rows, columns = _bins(len(self.axes[0]), MAX_ROWS), _bins(len(self.axes[1]), MAX_COLUMNS)
        counts = [
            [[sum(self.counts[r][c][k] for r in rs for c in cs) for k in (0, 1)] for cs in columns] for rs in rows
        ]
        return Panel(
            self.dataset, self.by, (_labels(self.axes[0], rows), _labels(self.axes[1], columns)), counts, self.noun
        )


def _bins(count: int, most: int) -> list[range]:
    size = -(-count // most) if count > most else 1
    return [range(at, min(count, at + size)) for at in range(0, count, size)]


def _labels(axis: Axis, bins: Sequence[range]) -> Axis:
    def label(places: range) -> str:
        first, last = (_label(axis[i]) for i in (places[0], places[-1]))
        return first if len(places) == 1 else f"{first} … {last}"

    return tuple(map(label, bins))


def _label(value: str | None) -> str:
    return "NULL" if value is None else value


def text_map(panels: Sequence[Panel]) -> list[str]:
    """Return the lines of all maps; the first one is the seed's."""
    seed = panels[0].binned()
    whole, _ = seed.sums()
    if len(seed.by) == 1:
        return [*_summaries(panels, whole), *_bars([p.binned() for p in panels])]
    lines: list[str] = []
    if not seed.axes[0]:
        return _summaries(panels, whole)
    most = max((c for row in seed.counts for c, _ in row), default=0)
    for number, panel in enumerate(panels):
        lines += ["", _summary(panel, whole, seed=number == 0), *_map(panel.binned(), seed, most, is_seed=number == 0)]
    legend = f"· none, {SHADES[1:]} up to all of the busiest place"
    if len(panels) > 1:
        legend += (
            f" or, behind the first map, of the seed's {panels[0].noun}s; {UNKNOWN} some that the seed does not know"
        )
    return [*lines, "", legend]


def _summaries(panels: Sequence[Panel], whole: int) -> list[str]:
    return [_summary(panel, whole, seed=number == 0) for number, panel in enumerate(panels)]


def _summary(panel: Panel, whole: int, *, seed: bool) -> str:
    cells, unknown = panel.sums()
    if seed:
        return f"{one_line(panel.dataset)}: {counted(cells, panel.noun)}"
    text = f"{one_line(panel.dataset)}: {cells:,} of them ({percent(cells, whole)})"
    return text + (f", {counted(unknown, 'cell')} unknown to the seed" if unknown else "")


def _map(panel: Panel, seed: Panel, most: int, *, is_seed: bool) -> list[str]:
    labels = [one_line(_label(v), LABEL) for v in panel.axes[0]]
    left = max([width(panel.by[0]), *map(width, labels)], default=0)
    lines = []
    for row, label in enumerate(labels):
        places = ""
        for column, (cells, unknown) in enumerate(panel.counts[row]):
            of = most if is_seed else seed.counts[row][column][0]
            places += shade(cells, of) + (UNKNOWN if unknown else " ")
        lines.append(f"  {label}{' ' * (left - width(label))} {places}".rstrip())
    return [*_column_head(panel, left), *lines]


def _column_head(panel: Panel, left: int) -> list[str]:
    """Return the labels of the columns: the first and the last one, with a line between them."""
    labels = [one_line(_label(v), LABEL) for v in panel.axes[1]]
    room = 2 * len(labels) - 1
    between = room - width(labels[0]) - width(labels[-1]) - 2
    span = labels[0] if len(labels) == 1 else f"{labels[0]} {'─' * max(3, between)} {labels[-1]}"
    head = one_line(panel.by[0], LABEL)
    return [f"  {head}{' ' * max(0, left - width(head))} {span}   ({one_line(panel.by[1], LABEL)})"]


def shade(part: int, whole: int) -> str:
    """Return the character for a share; only nothing is blank, and only all is full."""
    if part <= 0:
        return "·" if whole > 0 else SHADES[0]
    if part >= whole:
        return SHADES[-1]
    return SHADES[1 + min(2, 3 * part // whole)]


def _bars(panels: Sequence[Panel]) -> list[str]:
    """Return a line per value: cells of the seed with a bar, and what the other datasets have of them."""
    seed, others = panels[0], panels[1:]
    most = max((row[0][0] for row in seed.counts), default=0)
    head = [one_line(seed.by[0], LABEL), f"{seed.noun}s", ""]
    for panel in others:
        head += [one_line(panel.dataset, LABEL), "unknown"]
    rows = []
    for at, value in enumerate(seed.axes[0]):
        cells = seed.counts[at][0][0]
        line = [_label(value), f"{cells:,}", "█" * round(20 * cells / most) if most else ""]
        for panel in others:
            known, unknown = panel.counts[at][0]
            share = f" ({percent(known, cells)})" if cells else ""
            line += [f"{known:,}{share}", f"{unknown:,}" if unknown else ""]
        rows.append(line)
    return grid(head, rows, right={1, *range(3, 3 + 2 * len(others))})


def svg(title: str, panels: Sequence[Panel]) -> str:
    """Return the maps below each other as one SVG image; all text is escaped, nothing comes from elsewhere."""
    binned = [p.binned() for p in panels]
    seed = binned[0]
    whole, _ = seed.sums()
    most = max((c for row in seed.counts for c, _ in row), default=0)
    rows, columns = len(seed.axes[0]), len(seed.axes[1])
    height_each = TOP + CELL * rows + 20
    wide, high = LEFT + CELL * columns + 30, 30 + height_each * len(binned)
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" font-family="system-ui,sans-serif" font-size="11" fill="currentColor">',
        f"<title>{markup.text(title)}</title>",
        f'<text x="8" y="18" font-size="13" font-weight="bold">{markup.text(title)}</text>',
    ]
    for number, panel in enumerate(binned):
        head = _summary(panels[number], whole, seed=number == 0)
        pieces.append(f'<g transform="translate(0 {30 + height_each * number})">')
        pieces.append(f'<text x="8" y="14">{markup.text(head)}</text>')
        pieces += _svg_labels(panel)
        pieces += _svg_places(panel, seed, most, is_seed=number == 0)
        pieces.append("</g>")
    return "\n".join([*pieces, "</svg>"])


def _svg_labels(panel: Panel) -> list[str]:
    pieces = []
    for at, value in enumerate(panel.axes[0]):
        label = markup.text(one_line(_label(value), LABEL))
        pieces.append(f'<text x="{LEFT - 6}" y="{TOP + CELL * at + 13}" text-anchor="end">{label}</text>')
    for at, value in enumerate(panel.axes[1]):
        x, label = LEFT + CELL * at + 12, markup.text(one_line(_label(value), 12))
        pieces.append(f'<text transform="translate({x} {TOP - 6}) rotate(-60)">{label}</text>')
    return pieces


def _svg_places(panel: Panel, seed: Panel, most: int, *, is_seed: bool) -> list[str]:
    pieces = []
    for r, row in enumerate(panel.counts):
        for c, (cells, unknown) in enumerate(row):
            of = most if is_seed else seed.counts[r][c][0]
            share = min(1.0, cells / of) if of else 0.0
            x, y = LEFT + CELL * c, TOP + CELL * r
            values = [_label(panel.axes[0][r])] + ([_label(panel.axes[1][c])] if len(panel.by) == 2 else [])
            tip = ", ".join(f"{name} {value}" for name, value in zip(panel.by, values, strict=True))
            tip += f": {counted(cells, panel.noun)}" + ("" if is_seed else f" of {of:,}")
            tip += f", {unknown:,} unknown to the seed" if unknown else ""
            stroke = "#d62728" if unknown else "#888888"
            pieces.append(
                f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" fill="#4c78a8" '
                f'fill-opacity="{share:.2f}" stroke="{stroke}" stroke-width="{2 if unknown else 0.5}">'
                f"<title>{markup.text(tip)}</title></rect>"
            )
    return pieces
