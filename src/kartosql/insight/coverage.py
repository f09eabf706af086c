"""SHOW COVERAGE: which cells of a cube its datasets hold, by one or two columns."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import Span, SqlError
from kartosql.session import Request
from kartosql.sql import Select, parse
from kartosql.tables.names import quote_identifier, quote_if_needed
from kartosql.tables.table import Part, Table
from kartosql.text import markup
from kartosql.text.escape import width
from kartosql.text.grid import grid, one_line
from kartosql.text.report import Report
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


Name = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class DatasetCoverage:
    """The cells of one dataset: a table of the BY columns, ``cells`` and ``unknown``.

    ``cells`` are those of the seed that the dataset knows too, ``unknown`` those that it holds
    and the seed does not: no query sees them. Their BY columns are NULL where the dataset does
    not have them.
    """

    dataset: str
    found: pa.Table

    @property
    def cells(self) -> int:
        """The number of cells that the seed knows too."""
        return int(pc.sum(self.found["cells"]).as_py() or 0)

    @property
    def unknown(self) -> int:
        """The number of cells that the seed does not know."""
        return int(pc.sum(self.found["unknown"]).as_py() or 0)


@dataclass(frozen=True, eq=False, repr=False)
class Coverage(Report):
    """Which cells the datasets of a cube hold; ``datasets[0]`` is the seed, which says what cells there are.

    Of a plain dataset its rows are counted, as ``noun`` says.
    """

    name: str
    by: tuple[str, ...]
    datasets: tuple[DatasetCoverage, ...]
    noun: str = "cell"

    def table(self) -> pa.Table:
        """Return one row per dataset and combination of BY values: these, ``cells``, ``seed_cells`` and ``unknown``."""
        seed = dict(zip(self._keys(self.datasets[0].found), self.datasets[0].found["cells"].to_pylist(), strict=True))
        pieces = []
        for d in self.datasets:
            known = pa.array([seed.get(key, 0) for key in self._keys(d.found)], pa.int64())
            names = pa.array([d.dataset] * d.found.num_rows, pa.string())
            columns = [*d.found.columns[: len(self.by)], names, d.found["cells"], known, d.found["unknown"]]
            pieces.append(pa.table(columns, names=[*self.by, "dataset", "cells", "seed_cells", "unknown"]))
        places = range(len(self.by))
        return pa.concat_tables(_sorted(piece, places) for piece in pieces)

    def _keys(self, found: pa.Table) -> list[tuple[Any, ...]]:
        columns = [found.column(i).to_pylist() for i in range(len(self.by))]
        return list(zip(*columns, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return totals and all combinations as JSON-able dictionary; BY values as text."""
        seed = self.datasets[0].cells
        return {
            "table": self.name,
            "by": list(self.by),
            "datasets": [
                {
                    "dataset": d.dataset,
                    "cells": d.cells,
                    "seed_cells": seed,
                    "unknown": d.unknown,
                    "found": [
                        {"values": values, "cells": cells, "unknown": unknown}
                        for values, cells, unknown in zip(
                            self._texts(d), d.found["cells"].to_pylist(), d.found["unknown"].to_pylist(), strict=True
                        )
                    ],
                }
                for d in self.datasets
            ],
        }

    def _texts(self, d: DatasetCoverage) -> list[list[str | None]]:
        from kartosql.render.values import texts

        columns = [texts(d.found.column(i).combine_chunks()) for i in range(len(self.by))]
        return [list(row) for row in zip(*columns, strict=True)]

    def panels(self) -> list[Panel]:
        """Return one heat map per dataset, all with the same axes."""
        from kartosql.render.values import texts

        axes = []
        for i in range(len(self.by)):
            chunks = [c for d in self.datasets for c in d.found.column(i).chunks]
            distinct = pc.unique(pa.chunked_array(chunks, self.datasets[0].found.schema.types[i]))
            order = pc.sort_indices(distinct)
            axes.append(texts(distinct.take(order)))
        if len(axes) == 1:
            axes.append([""])
        at = [{value: number for number, value in enumerate(axis)} for axis in axes]
        panels = []
        for d in self.datasets:
            shape = [[[0, 0] for _ in axes[1]] for _ in axes[0]]
            counts = zip(d.found["cells"].to_pylist(), d.found["unknown"].to_pylist(), strict=True)
            for values, (cells, unknown) in zip(self._texts(d), counts, strict=True):
                place = shape[at[0][values[0]]][at[1][values[1]] if len(self.by) == 2 else 0]
                place[0] += cells
                place[1] += unknown
            panels.append(Panel(d.dataset, self.by, (tuple(axes[0]), tuple(axes[1])), shape, self.noun))
        return panels

    def __str__(self) -> str:
        return "\n".join([f"{self.name} by {', '.join(self.by)}", *text_map(self.panels())])

    def svg(self) -> str:
        """Return the heat maps as an SVG image that needs nothing but itself."""
        return svg(f"{self.name} by {', '.join(self.by)}", self.panels())

    def html(self) -> str:
        """Return the heat maps as a piece of HTML."""
        return markup.fragment(self.svg())


def coverage(
    request: Request,
    name: Name,
    by: Sequence[tuple[str, Span | None]],
    sql: str | None = None,
    span: Span | None = None,
) -> Coverage:
    """Count the cells of each dataset of a cube, or the rows of another table, by one or two columns.

    Without ``by`` the partition columns are taken, the first two of them. Reads the columns of
    the cells' keys, of all files. Raises ``unknown-table``, ``unknown-column`` for what is no
    column of the seed, and ``invalid-argument`` where there are no columns to go by.
    """
    source = request.session.tables().find(name, span, sql)
    if source.data is not None:
        raise SqlError(
            f"{source.name!r} is registered data, it has no datasets.", code="unknown-table", sql=sql, span=span
        )
    parts = source.parts
    columns = _columns(source, by, sql)
    if not columns:
        raise SqlError(
            f"{source.name!r} has no partition column to go by.",
            code="invalid-argument",
            hint="Add BY and a column.",
            sql=sql,
        )
    is_cube = source.cube is not None and source.name == source.cube.uuid_prefix
    table = ".".join(map(quote_identifier, name))
    seed = f"{table}.{quote_identifier(parts[0].name)}" if is_cube else table
    counts = [DatasetCoverage(parts[0].name, _run(request, _seed_query(seed, columns)))]
    for part in parts[1:]:
        of = f"{table}.{quote_identifier(part.name)}"
        types = counts[0].found.schema
        known = _run(request, _known_query(seed, of, part, columns))
        unknown = _run(request, _unknown_query(seed, of, part, columns))
        counts.append(DatasetCoverage(part.name, pa.concat_tables([known.cast(types), unknown.cast(types)])))
    return Coverage(source.name, tuple(columns), tuple(counts), "cell" if parts[0].join_key else "row")


def _sorted(table: pa.Table, columns: Sequence[int]) -> pa.Table:
    """Return the rows ascending by some columns, whatever their names."""
    keys = pa.table([table.column(i) for i in columns], names=[f"c{i}" for i in columns])
    return table.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names]))


def _columns(source: Table, by: Sequence[tuple[str, Span | None]], sql: str | None) -> list[str]:
    seed = source.parts[0]
    has = [c for c in source.columns if c in seed.columns or c in seed.join_key]
    if not by:
        of_cube = source.cube.partition_columns if source.cube is not None else seed.table.partition_keys
        return [c for c in of_cube if c in has][:2]
    found = []
    for column, span in by:
        name = source.find(column)
        if name not in has:
            close = difflib.get_close_matches(column.lower(), {c.lower(): c for c in has}, 1, cutoff=0.6)
            hint = next((f"Did you mean {quote_if_needed(c)}?" for c in has if close and c.lower() == close[0]), None)
            of = f"the seed {seed.name!r}" if source.cube is not None else repr(source.name)
            raise SqlError(
                f"There is no column {column!r} in {of}.",
                code="unknown-column",
                hint=hint or f"Columns: {', '.join(has[:20])}{', ...' if len(has) > 20 else ''}.",
                span=span,
                sql=sql,
            )
        found.append(name)
    return list(dict.fromkeys(found))


def _run(request: Request, sql: str) -> pa.Table:
    statement = parse(sql)
    assert isinstance(statement, Select)
    return request.query(statement).arrow()


def _seed_query(seed: str, columns: Sequence[str]) -> str:
    shown = ", ".join(f"s.{quote_identifier(c)}" for c in columns)
    return f"SELECT {shown}, count(*) AS cells, 0::BIGINT AS unknown FROM {seed} s GROUP BY ALL"


def _known_query(seed: str, of: str, part: Part, columns: Sequence[str]) -> str:
    """Return the query for the cells of the seed that a dataset has too; a key stands in it once."""
    shown = ", ".join(f"s.{quote_identifier(c)}" for c in columns)
    return (
        f"SELECT {shown}, count(*) AS cells, 0::BIGINT AS unknown FROM {seed} s "
        f"JOIN {of} d ON {_same_cell(part)} GROUP BY ALL"
    )


def _unknown_query(seed: str, of: str, part: Part, columns: Sequence[str]) -> str:
    """Return the query for the cells that only the dataset has."""
    shown = ", ".join(
        (f"d.{quote_identifier(c)}" if c in part.join_key else "NULL") + f" AS {quote_identifier(c)}" for c in columns
    )
    return (
        f"SELECT {shown}, 0::BIGINT AS cells, count(*) AS unknown FROM {of} d "
        f"ANTI JOIN {seed} s ON {_same_cell(part)} GROUP BY ALL"
    )


def _same_cell(part: Part) -> str:
    return " AND ".join(f"s.{quote_identifier(c)} = d.{quote_identifier(c)}" for c in part.join_key)
