"""Measurements in the data that ADVISE counts with: which files hold a match, and how many."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.formats.kartothek.dataset import InvertedIndex
from kartosql.insight.footers import Sample, sample
from kartosql.insight.inspect import Session
from kartosql.parquet.metadata import column_bytes, extremes
from kartosql.plan.conditions import Condition
from kartosql.plan.scan import PartScan
from kartosql.query import SelectQuery
from kartosql.sql import Select, parse
from kartosql.tables.names import Tables, quote_identifier
from kartosql.tables.table import FileTable, Table, arrow_table, file_table

MAX_FILES = 32  # into which is looked for one condition
MAX_BYTES = 256_000_000  # of the columns of a condition


@dataclass(frozen=True)
class Matches:
    """In how many rows of each file of a sample a condition holds."""

    sample: Sample
    rows: tuple[int, ...]

    @property
    def files(self) -> int:
        """About how many of all files hold a match; all that hold one if all were looked into."""
        return self.sample.scaled(sum(n > 0 for n in self.rows))

    @property
    def share(self) -> float:
        """The share of the rows for which the condition holds."""
        whole = sum(f.num_rows for f in self.sample.footers)
        return sum(self.rows) / whole if whole else 0.0


class Measure:
    """Runs the small queries of one ADVISE."""

    def __init__(self, session: Session, parameters: Mapping[str, Any]) -> None:
        self._session = session
        self.parameters = parameters

    def matches(self, part: PartScan, condition: Condition, columns: Sequence[str]) -> Matches | None:
        """Count the matches of a condition in files of a dataset; None if that would read too much."""
        table = part.part.table
        found = sample(self._session.store, table.files, part.files, MAX_FILES)
        if sum(column_bytes(f, columns) for f in found.footers) > MAX_BYTES:
            return None
        counts = [self._count("measured", condition, _alone(table, at)) for at in found.files]
        return Matches(found, tuple(counts))

    def distinct(self, part: PartScan, found: Sample, column: str) -> list[int]:
        """Return how many different values the files of a sample have of a column."""
        counts = []
        for at in found.files:
            head = f"SELECT count(DISTINCT {quote_identifier(column)}) AS n FROM measured WHERE "
            ((count,),) = self._ask(head, "true", _alone(part.part.table, at)).rows()
            counts.append(int(count))
        return counts

    def may_hold_for_null(self, table: FileTable, condition: Condition, column: str) -> bool:
        """Return whether a condition may hold where a column is NULL, which no index tells about."""
        row = {}
        for _, name in condition.columns:
            type_ = table.types[name]
            row[name] = pa.nulls(1, type_)
        source = arrow_table("measured", pa.table(row))
        return self._count("measured", condition, {"measured": source}) > 0

    def in_range(self, found: Sample, table: FileTable, column: str, predicate: str) -> list[bool] | None:
        """Return for each file of a sample whether a predicate over ``low`` and ``high`` holds for its extremes.

        None, if a file does not tell its extremes.
        """
        bounds = []
        for footer in found.footers:
            groups = [extremes(footer.row_group(at), column) for at in range(footer.num_row_groups)]
            known = [g for g in groups if g is not None]
            if len(known) < len(groups) or not known:
                return None
            bounds.append((min(g[0] for g in known), max(g[1] for g in known)))
        type_ = table.types[column]
        low, high = (pa.array([b[i] for b in bounds], type_) for i in (0, 1))
        rows = pa.table({"n": pa.array(range(len(bounds)), pa.int64()), "low": low, "high": high})
        answer = self._ask("SELECT n FROM measured WHERE ", predicate, {"measured": arrow_table("measured", rows)})
        kept = {n for (n,) in answer.rows()}
        return [n in kept for n in range(len(bounds))]

    def _count(self, name: str, condition: Condition, tables: Mapping[str, Table]) -> int:
        predicate = condition.render(lambda ref: quote_identifier(ref[1]))
        ((count,),) = self._ask(f"SELECT count(*) AS n FROM {name} WHERE ", predicate, tables).rows()
        return int(count)

    def _ask(self, head: str, predicate: str, tables: Mapping[str, Table]) -> SelectQuery:
        given: dict[str, Any] = {}
        for planned, value in sorted(self.parameters.items(), reverse=True):
            # Names that the planner gives to parameters cannot be handed over.
            if f"${planned}" in predicate:
                name = f"advise_{len(given)}"
                given[name] = value
                predicate = predicate.replace(f"${planned}", f"${name}")
        statement = parse(head + predicate)
        assert isinstance(statement, Select)
        session = self._session
        known = Tables(session.tables().snapshot, tables)
        return SelectQuery(statement, known, session.runtime, session.settings, given or None, pruned=False)


def _alone(table: FileTable, at: int) -> dict[str, Table]:
    """Return one file of a dataset as a table to ask."""
    return {"measured": file_table("measured", table.only(at), "measured")}


def is_excluded(group: Any, column: str, low: Any, high: Any) -> bool:
    """Return whether the extremes of a column in a row group say that no value is from ``low`` to below ``high``."""
    found = extremes(group, column)
    if found is None:
        return False
    least, most = (v.date() if isinstance(v, dt.datetime) else v for v in found)
    return bool(most < low or least >= high)


def is_ordered(footers: Sequence[Any], column: str) -> bool:
    """Return whether the row groups of each file have ranges of a column that follow each other."""
    for footer in footers:
        ranges = [extremes(footer.row_group(at), column) for at in range(footer.num_row_groups)]
        if None in ranges or any(a[1] > b[0] for a, b in itertools.pairwise(ranges)):  # type: ignore[index]
            return False
    return True


def index_share(session: Session, index: InvertedIndex, files: int) -> tuple[float, int] | None:
    """Return in what share of the files a value of an index stands on average, and the bytes of the index."""
    if index.key is None or not files:
        return None
    data = session.main.read(index.key)
    labels = pq.read_table(pa.BufferReader(data), columns=["partition"]).column("partition")
    if not len(labels):
        return None
    pairs = sum(len(chunk.flatten()) for chunk in labels.chunks)
    return pairs / (len(labels) * files), len(data)
