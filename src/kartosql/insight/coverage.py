"""SHOW COVERAGE: which cells of a cube its datasets hold, by one or two columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import Span, SqlError
from kartosql.session import Request
from kartosql.sql import parse_select
from kartosql.sql.statements import ShowCoverage
from kartosql.tables.names import similar
from kartosql.tables.table import Table
from kartosql.text import markup
from kartosql.text.constants import quote
from kartosql.text.escape import width
from kartosql.text.report import Page, Report, counted, elided, one_line, percent

SHADES = " ░▒▓█"
UNKNOWN = "!"
MAX_ROWS, MAX_COLUMNS = 40, 30
LABEL = 20  # columns of a terminal that a label takes at most
CELL, LETTER = 18, 7  # pixels: a place of the map, and at most a letter
WIDTH, LEGEND = 900, 650  # pixels: of maps beside each other, and at least

Place = tuple[int, int]  # cells, and those of them that the seed does not know


@dataclass(frozen=True)
class HeatMap:
    """The cells of each dataset by the places of two axes; the first dataset is the seed."""

    title: str
    by: tuple[str, ...]
    noun: str
    axes: tuple[tuple[str, ...], tuple[str, ...]]
    datasets: tuple[tuple[str, list[list[Place]]], ...]

    def binned(self, most: int = MAX_COLUMNS) -> HeatMap:
        """Return the map with neighbours put together, if there are too many rows, or columns than ``most``."""
        rows, columns = _bins(len(self.axes[0]), MAX_ROWS), _bins(len(self.axes[1]), most)
        axes = (_labels(self.axes[0], rows), _labels(self.axes[1], columns))
        datasets = [
            (name, [[_sum([places[r][c] for r in rs for c in cs]) for cs in columns] for rs in rows])
            for name, places in self.datasets
        ]
        return replace(self, axes=axes, datasets=tuple(datasets))

    def totals(self) -> list[Place]:
        """Return all cells and all unknown ones of each dataset."""
        return [_sum([place for row in places for place in row]) for _, places in self.datasets]

    def summaries(self) -> list[str]:
        """Return a line about each dataset."""
        totals = self.totals()
        whole = totals[0][0]
        lines = [f"{one_line(self.datasets[0][0])}: {counted(whole, self.noun)}"]
        for (name, _), (cells, unknown) in zip(self.datasets[1:], totals[1:], strict=True):
            line = f"{one_line(name)}: {cells:,} of them ({percent(cells, whole)})"
            lines.append(line + (f", {counted(unknown, 'cell')} unknown to the seed" if unknown else ""))
        return lines

    def compared(self) -> list[list[list[tuple[int, int, int]]]]:
        """Return per dataset the rows of places, each with what all of it would be.

        That is what the seed has there, and for the seed what its busiest place has.
        """
        seed = self.datasets[0][1]
        most = max((cells for row in seed for cells, _ in row), default=0)
        found = [[[(cells, unknown, most) for cells, unknown in row] for row in seed]]
        for _, places in self.datasets[1:]:
            pairs = (zip(row, of, strict=True) for row, of in zip(places, seed, strict=True))
            found.append([[(cells, unknown, of) for (cells, unknown), (of, _) in row] for row in pairs])
        return found


def _sum(places: Sequence[Place]) -> Place:
    return sum(cells for cells, _ in places), sum(unknown for _, unknown in places)


def _bins(count: int, most: int) -> list[range]:
    size = -(-count // most) if count > most else 1
    return [range(at, min(count, at + size)) for at in range(0, count, size)]


def _labels(axis: Sequence[str], bins: Sequence[range]) -> tuple[str, ...]:
    return tuple(axis[b[0]] if len(b) == 1 else f"{axis[b[0]]} … {axis[b[-1]]}" for b in bins)


# -- text ----------------------------------------------------------------------------------------


def text_map(full: HeatMap, page: Page) -> list[str]:
    """Return the lines of all maps; the first one is the seed's."""
    shown, summaries = full.binned(), full.summaries()
    told = [page.text(summary, style="name") for summary in summaries]
    if len(shown.by) == 1:
        return [*chain.from_iterable(told), *_bars(shown, page)]
    if not shown.axes[0]:
        return [*chain.from_iterable(told)]
    left = max(width(one_line(label, LABEL)) for label in (shown.by[0], *shown.axes[0]))
    room = 1000 if page.columns is None else page.columns - left - 3
    shown = full.binned(min(MAX_COLUMNS, room // 2))
    lines = list[str]()
    for summary, rows in zip(told, shown.compared(), strict=True):
        lines += ["", *summary, *_map(shown, rows, left, room)]
    legend = f"· none, {SHADES[1:]} up to all of the busiest place"
    if len(summaries) > 1:
        legend += f", in the other maps of the seed's {full.noun}s"
    marked = [f"{UNKNOWN} some {full.noun}s that the seed does not know"] if any(u for _, u in full.totals()) else []
    return [*lines, "", *(line for text in (legend, *marked) for line in page.text(text, style="note"))]


def _map(shown: HeatMap, rows: list[list[tuple[int, int, int]]], left: int, room: int) -> list[str]:
    labels = [one_line(label, LABEL) for label in shown.axes[0]]
    first, last = (elided(one_line(shown.axes[1][at], LABEL), (room - 5) // 2) for at in (0, -1))
    # The labels of the columns: the first and the last one, with a line between them.
    between = 2 * len(shown.axes[1]) - 3 - width(first) - width(last)
    span = first if len(shown.axes[1]) == 1 else f"{first} {'─' * max(3, between)} {last}"
    head, tail = one_line(shown.by[0], LABEL), f"({one_line(shown.by[1], LABEL)})"
    is_beside = width(span) + 3 + width(tail) <= room
    lines = [] if is_beside else [f"  {' ' * left} {tail}"]
    lines.append(f"  {head}{' ' * (left - width(head))} {span}{f'   {tail}' if is_beside else ''}")
    for label, row in zip(labels, rows, strict=True):
        places = "".join(shade(cells, of) + (UNKNOWN if unknown else " ") for cells, unknown, of in row)
        lines.append(f"  {label}{' ' * (left - width(label))} {places}".rstrip())
    return lines


def shade(part: int, whole: int) -> str:
    """Return the character for a share; only nothing is blank, and only all is full."""
    if part <= 0:
        return "·" if whole > 0 else SHADES[0]
    if part >= whole:
        return SHADES[-1]
    return SHADES[1 + min(2, 3 * part // whole)]


def _bars(shown: HeatMap, page: Page) -> list[str]:
    head = [one_line(shown.by[0], LABEL), f"{shown.noun}s", ""]
    for name, _ in shown.datasets[1:]:
        head += [one_line(name, LABEL), "unknown"]
    seed, *others = shown.compared()
    rows = []
    for at, value in enumerate(shown.axes[0]):
        cells, _, most = seed[at][0]
        line = [value, f"{cells:,}", "█" * round(20 * cells / most) if most else ""]
        for places in others:
            known, unknown, _ = places[at][0]
            share = f" ({percent(known, cells)})" if cells else ""
            line += [f"{known:,}{share}", f"{unknown:,}" if unknown else ""]
        rows.append(line)
    return page.grid(head, rows, right={1, *range(3, len(head))})


# -- SVG -----------------------------------------------------------------------------------------


def svg(full: HeatMap) -> str:
    """Return the maps as one SVG image with a legend; all text is escaped, nothing comes from elsewhere."""
    shown, summaries = full.binned(), full.summaries()
    labels, tops = [one_line(v, LABEL) for v in shown.axes[0]], [one_line(v, 12) for v in shown.axes[1]]
    left = 20 + LETTER * max(map(width, [shown.by[0], *labels]))
    top = 54 + LETTER * max(map(width, ["", *tops]))
    lines = [line for summary in summaries for line in summary.split(", ")]
    wide = max(left + CELL * len(tops) + LETTER * width(shown.by[-1]), *(16 + LETTER * width(t) for t in lines))
    across, high = max(1, WIDTH // wide), top + CELL * len(labels) + 20
    down = -(-len(summaries) // across)
    legend = list(_svg_legend(shown, 30 + high * down))
    full_width = max(wide * min(across, len(summaries)), LEGEND)
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{full_width}" height="{60 + high * down}" '
        f'viewBox="0 0 {full_width} {60 + high * down}" style="max-width:100%;height:auto" '
        'font-family="system-ui,sans-serif" font-size="11" fill="currentColor">',
        f"<title>{markup.text(full.title)}</title>",
        _svg_text(8, 18, full.title, 'font-size="13" font-weight="bold"'),
    ]
    for number, (summary, places) in enumerate(zip(summaries, shown.compared(), strict=True)):
        pieces.append(f'<g transform="translate({wide * (number % across)} {30 + high * (number // across)})">')
        pieces += [_svg_text(8, 14 + 14 * at, line) for at, line in enumerate(summary.split(", "))]
        pieces.append(_svg_text(left - 6, top - 6, shown.by[0], 'text-anchor="end" font-style="italic"'))
        pieces += [_svg_text(left - 6, top + CELL * i + 13, v, 'text-anchor="end"') for i, v in enumerate(labels)]
        turned = (f'transform="translate({left + CELL * i + 12} {top - 6}) rotate(-60)"' for i in range(len(tops)))
        pieces += [_svg_text(0, 0, value, turn) for value, turn in zip(tops, turned, strict=True)]
        if len(shown.by) > 1:
            pieces.append(_svg_text(left + CELL * len(tops) + 4, top - 6, shown.by[1], 'font-style="italic"'))
        pieces += [*_svg_places(shown, places, left, top, is_seed=number == 0), "</g>"]
    return "\n".join([*pieces, *legend, "</svg>"])


def _svg_text(x: int, y: int, value: str, more: str = "") -> str:
    return f'<text x="{x}" y="{y}" {more}>{markup.text(value)}</text>'


def _svg_legend(shown: HeatMap, y: int) -> Iterator[str]:
    """Yield squares from none to all, and one of cells that the seed does not know."""
    yield _svg_text(8, y + 13, "none")
    for at in range(5):
        yield _square(40 + CELL * at, y, at / 4)
    of = "as many as the busiest place" + (f", or all {shown.noun}s of the seed there" if shown.datasets[1:] else "")
    yield _svg_text(44 + CELL * 5, y + 13, of)
    if any(unknown for _, unknown in shown.totals()):
        yield _square(LEGEND - 130, y, 0, is_known=False)
        yield _svg_text(LEGEND - 108, y + 13, "unknown to the seed")


def _square(x: int, y: int, share: float, *, is_known: bool = True, tip: str = "") -> str:
    stroke = 'stroke="#888888" stroke-width="0.5"' if is_known else 'stroke="#d62728" stroke-width="2"'
    return (
        f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{CELL - 2}" '
        f'fill="#4c78a8" fill-opacity="{share:.2f}" {stroke}>{tip and f"<title>{markup.text(tip)}</title>"}</rect>'
    )


def _svg_places(
    shown: HeatMap, places: list[list[tuple[int, int, int]]], left: int, top: int, *, is_seed: bool
) -> Iterator[str]:
    for r, row in enumerate(places):
        for c, (cells, unknown, of) in enumerate(row):
            values = (shown.axes[0][r], shown.axes[1][c])
            tip = ", ".join(f"{name} {value}" for name, value in zip(shown.by, values, strict=False))
            tip += f": {counted(cells, shown.noun)}" + ("" if is_seed else f" of {of:,}")
            tip += f", {unknown:,} unknown to the seed" if unknown else ""
            share = min(1.0, cells / of) if of else 0.0
            yield _square(left + CELL * c, top + CELL * r, share, is_known=not unknown, tip=tip)


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
        pieces, seed = [], {}
        for at, d in enumerate(self.datasets):
            by = d.found.columns[: len(self.by)]
            keys = list(zip(*(column.to_pylist() for column in by), strict=True))
            if at == 0:
                seed = dict(zip(keys, d.found["cells"].to_pylist(), strict=True))
            known = pa.array([seed.get(key, 0) for key in keys], pa.int64())
            columns = [*by, pa.repeat(d.dataset, d.found.num_rows), d.found["cells"], known, d.found["unknown"]]
            piece = pa.table(columns, names=[*self.by, "dataset", "cells", "seed_cells", "unknown"])
            order = pa.table(by, names=[f"c{i}" for i in range(len(by))])  # whatever their names
            pieces.append(piece.take(pc.sort_indices(order, [(name, "ascending") for name in order.column_names])))
        return pa.concat_tables(pieces)

    def to_dict(self) -> dict[str, Any]:
        """Return totals and all combinations as JSON-able dictionary; BY values as text."""
        return {
            "table": self.name,
            "by": list(self.by),
            "datasets": [
                {
                    "dataset": d.dataset,
                    "cells": d.cells,
                    "seed_cells": self.datasets[0].cells,
                    "unknown": d.unknown,
                    "found": [{"values": values, "cells": cells, "unknown": un} for values, cells, un in self._rows(d)],
                }
                for d in self.datasets
            ],
        }

    def _rows(self, d: DatasetCoverage) -> Iterator[tuple[list[str | None], int, int]]:
        from kartosql.render.values import texts

        columns = [texts(d.found.column(i).combine_chunks()) for i in range(len(self.by))]
        values = map(list, zip(*columns, strict=True))
        return zip(values, d.found["cells"].to_pylist(), d.found["unknown"].to_pylist(), strict=True)

    def heat_map(self) -> HeatMap:
        """Return the heat maps of all datasets."""
        from kartosql.render.values import texts

        axes: list[list[str | None]] = []
        for i in range(len(self.by)):
            chunks = [c for d in self.datasets for c in d.found.column(i).chunks]
            distinct = pc.unique(pa.chunked_array(chunks, self.datasets[0].found.schema.types[i]))
            axes.append(texts(distinct.take(pc.sort_indices(distinct))))
        if len(axes) == 1:
            axes.append([""])
        at = [{value: number for number, value in enumerate(axis)} for axis in axes]
        datasets = []
        for d in self.datasets:
            places = [[(0, 0)] * len(axes[1]) for _ in axes[0]]
            for values, cells, unknown in self._rows(d):
                r, c = at[0][values[0]], at[1][values[1]] if len(self.by) == 2 else 0
                places[r][c] = _sum([places[r][c], (cells, unknown)])
            datasets.append((d.dataset, places))
        rows, columns = (tuple("NULL" if value is None else value for value in axis) for axis in axes)
        title = f"{self.name} by {', '.join(self.by)}"
        return HeatMap(title, self.by, self.noun, (rows, columns), tuple(datasets))

    def _laid_out(self, page: Page) -> list[str]:
        """Return the lines of its text on a page."""
        shown = self.heat_map()
        return [*page.text(shown.title), *text_map(shown, page)]

    def svg(self) -> str:
        """Return the heat maps as an SVG image that needs nothing but itself."""
        return svg(self.heat_map())

    def html(self) -> str:
        """Return the heat maps as a piece of HTML."""
        return markup.fragment(self.svg())


def show_coverage(request: Request, statement: ShowCoverage) -> Coverage:
    """Return what SHOW COVERAGE tells; raises as ``coverage`` does."""
    request.refuse_parameters(statement.text)
    return coverage(request, statement.target, statement.columns, statement.text, statement.span)


def coverage(
    request: Request,
    name: tuple[str, ...],
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
    table = ".".join(map(quote, name))
    seed = f"{table}.{quote(parts[0].name)}" if is_cube else table
    shown = ", ".join(f"s.{quote(c)}" for c in columns)
    known = f"SELECT {shown}, count(*) AS cells, 0::BIGINT AS unknown FROM {seed} s"
    counts = [DatasetCoverage(parts[0].name, request.query(parse_select(f"{known} GROUP BY ALL")).arrow())]
    types = counts[0].found.schema
    for part in parts[1:]:
        of = f"{table}.{quote(part.name)}"
        same = " AND ".join(f"s.{quote(c)} = d.{quote(c)}" for c in part.join_key)
        # What the dataset does not have is NULL.
        own = (f"d.{quote(c)}" if c in part.join_key else f"NULL AS {quote(c)}" for c in columns)
        unknown = f"SELECT {', '.join(own)}, 0::BIGINT AS cells, count(*) AS unknown FROM {of} d ANTI JOIN {seed} s"
        queries = (f"{known} JOIN {of} d ON {same} GROUP BY ALL", f"{unknown} ON {same} GROUP BY ALL")
        found = [request.query(parse_select(query)).arrow().cast(types) for query in queries]
        counts.append(DatasetCoverage(part.name, pa.concat_tables(found)))
    return Coverage(source.name, tuple(columns), tuple(counts), "cell" if parts[0].join_key else "row")


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
            close, listed = similar(column, has), ", ".join(has[:20]) + (", ..." if len(has) > 20 else "")
            of = f"the seed {seed.name!r}" if source.cube is not None else repr(source.name)
            raise SqlError(
                f"There is no column {column!r} in {of}.",
                code="unknown-column",
                hint=f"Did you mean {close}?" if close else f"Columns: {listed}.",
                span=span,
                sql=sql,
            )
        found.append(name)
    return list(dict.fromkeys(found))
