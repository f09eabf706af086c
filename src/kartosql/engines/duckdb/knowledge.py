"""What DuckDB tells the planner besides which files match: types, the clock, values of small sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from kartosql.engines.duckdb.types import quote, sql_type
from kartosql.errors import FormatError
from kartosql.plan.evaluate import Held
from kartosql.plan.occurrences import Occurrence
from kartosql.plan.scan import OccurrenceScan
from kartosql.predicate.tree import Condition, parameters_for
from kartosql.tables.table import FileTable, shown_data

if TYPE_CHECKING:
    from kartosql.engines.duckdb.planner import Planner
    from kartosql.engines.duckdb.session import Session

MAX_FETCHED = 256  # more values than these are faster where they are than as a parameter
# Types whose statistics in a footer are values of the file, not bounds.
_EXACT = re.compile(
    r"U?(TINYINT|SMALLINT|INTEGER|BIGINT)|DATE|TIMESTAMP(_S|_MS|_NS| WITH TIME ZONE)?|DECIMAL.*|BOOLEAN"
)


class Knowledge:
    """Types of expressions and values of functions of the clock, as a session sees them."""

    _session: Planner

    def type_name(self, type_: pa.DataType) -> str | None:
        """Return DuckDB's name of an Arrow type, None for columns that are all NULL."""
        return None if pa.types.is_null(type_) else sql_type(type_)

    def type_of(self, expression: str) -> str | None:
        """Return the type of an expression without columns, None if it has none."""
        try:
            rows = self._session.rows(f"SELECT typeof({expression}\n)")
        except duckdb.Error:
            return None
        type_ = str(rows[0][0])
        return None if type_ == '"NULL"' else type_

    def has_collation(self) -> bool:
        """Return whether texts that differ may be equal."""
        return bool(self._session.instance.settings.get("default_collation"))

    def time_zone(self) -> str:
        """Return the time zone of the session."""
        return str(self._session.instance.settings.get("TimeZone", "UTC"))

    def freeze(self, function: str) -> str | None:
        """Return the literal that a function of the clock stands for now."""
        return clock_literal(self._session, function)

    # -- files that are not opened -------------------------------------------------------------

    def row_counts(self, table: FileTable, files: Sequence[int]) -> list[int] | None:
        """Return how many rows files have; footers that are not known are read."""
        if not table.has_footers:
            return None
        footers = self._session.footers
        try:
            footers.load(self._session, table, [table.files[f] for f in files])
        except (duckdb.Error, FormatError):
            return None  # the statement itself will tell what is wrong with a file
        known = footers.known_rows(table)
        rows = [known[f] for f in files]
        return None if None in rows else [r for r in rows if r is not None]

    def extremes(
        self, table: FileTable, column: str, files: Sequence[int]
    ) -> tuple[tuple[str | None, ...], tuple[str | None, ...]] | None:
        """Return the minimum and maximum of a column in each file as text, None unless all are known exactly."""
        type_ = self.type_name(table.types[column])
        if type_ is None or not table.has_footers or not _EXACT.fullmatch(type_):
            return None
        found = self._session.footers.statistics(table, column, type_)
        by_file = {file: (low, high) for file, low, high, _ in found.rows} if found is not None else {}
        if not by_file.keys() >= set(files):
            return None
        return tuple(by_file[f][0] for f in files), tuple(by_file[f][1] for f in files)

    # -- small sources -------------------------------------------------------------------------

    def bytes_of(self, keys: Sequence[str]) -> int:
        """Return how many bytes some files have."""
        self._session.files.stat(keys)
        return sum(self._session.files.sizes[k] or 0 for k in keys)

    def values(
        self,
        source: Occurrence,
        scan: OccurrenceScan | None,
        column: str,
        condition: Condition | None,
        parameters: Mapping[str, Any],
        limit: int,
    ) -> list[Any] | Held | None:
        """Return the distinct values but NULL that a column has in rows that satisfy a condition."""
        shown = source.source.exposed
        name = quote(shown.get(column, column))
        where = condition.render(lambda ref: quote(shown.get(ref[1], ref[1]))) if condition is not None else "true"
        used = parameters_for(condition, parameters) if condition is not None else {}
        try:
            body = self._session.relations.body(scan) if scan is not None else self._given(source)
            held = self._session.hold(
                f"SELECT DISTINCT {name} AS v FROM ({body}) WHERE {name} IS NOT NULL AND {where} LIMIT {limit + 1}",
                used,
            )
            ((count,),) = self._session.rows(f"SELECT count(*) FROM {held}")
            if count > limit:
                return None
            if count > MAX_FETCHED:
                return Held(f"FROM {held}", count)
            return [v for (v,) in self._session.rows(f"FROM {held}")]
        except (duckdb.Error, FormatError):
            return None  # the statement itself will tell whether that matters

    def _given(self, source: Occurrence) -> str:
        """Return the query over registered data."""
        self._session.register("kartosql_given", shown_data(source.source))
        return "FROM kartosql_given"


def clock_literal(session: Session, function: str) -> str:
    """Return the literal that a function of the clock stands for in a session's transaction."""
    ((type_, text),) = session.rows(f"SELECT typeof({function}), CAST({function} AS VARCHAR)")
    return f"CAST('{text}' AS {type_})"
