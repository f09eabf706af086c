"""SHOW COVERAGE: which cells of a cube its datasets hold, by one or two columns."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import Span, SqlError
from kartosql.insight.heat import Panel, svg, text_map
from kartosql.insight.inspect import Session
from kartosql.sql import Select, parse
from kartosql.tables.names import quote_identifier, quote_if_needed
from kartosql.tables.table import Part, Table
from kartosql.text import markup

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


@dataclass(frozen=True, eq=False)
class Coverage:
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

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return str(self)


def coverage(
    session: Session,
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
    source = session.tables().find(name, span, sql)
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
    counts = [DatasetCoverage(parts[0].name, _run(session, _seed_query(seed, columns)))]
    for part in parts[1:]:
        of = f"{table}.{quote_identifier(part.name)}"
        types = counts[0].found.schema
        known = _run(session, _known_query(seed, of, part, columns))
        unknown = _run(session, _unknown_query(seed, of, part, columns))
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


def _run(session: Session, sql: str) -> pa.Table:
    statement = parse(sql)
    assert isinstance(statement, Select)
    return session.query(statement).arrow()


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
