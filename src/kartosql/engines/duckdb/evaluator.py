"""The planner's instance: predicates over partition values, index values and statistics, and values of small tables."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import duckdb
import pyarrow as pa

from kartosql.engines.duckdb.bounds import Bounded, bounded
from kartosql.engines.duckdb.engine_session import EngineSession
from kartosql.engines.duckdb.files import FileAccess
from kartosql.engines.duckdb.instance import LATE, Instance
from kartosql.engines.duckdb.lookups import Lookups
from kartosql.engines.duckdb.planner_tables import IndexTables, PlannerTables
from kartosql.engines.duckdb.predicates import (
    atoms_of,
    is_pure,
    literals,
    masked,
    operator_of,
    shortened,
    with_lists,
    without_places,
)
from kartosql.engines.duckdb.shared_cells import DuckCells
from kartosql.engines.duckdb.types import quote, sql_type
from kartosql.errors import FormatError
from kartosql.indexes.index import Candidates, Files
from kartosql.plan.evaluate import Held, Outline, ParsedAtom
from kartosql.plan.names import Occurrence
from kartosql.plan.scan import OccurrenceScan
from kartosql.predicate.tree import Condition, Predicate, may_hold_for_null, parameters_for
from kartosql.tables.table import FileTable, shown_data

MAX_FETCHED = 256  # more values than these are faster where they are than as a parameter
# Types whose statistics in a footer are values of the file, not bounds.
_EXACT = re.compile(
    r"U?(TINYINT|SMALLINT|INTEGER|BIGINT)|DATE|TIMESTAMP(_S|_MS|_NS| WITH TIME ZONE)?|DECIMAL.*|BOOLEAN"
)
MAX_TEXTS = 512  # predicates of which the parse is kept
MAX_LENGTH = 5_000  # of their texts
_NULL = r"CAST\(NULL AS [^()']+(?:\([\d, ]+\))?\)"
_functions: frozenset[str] | None = None


class DuckEvaluator:
    """The Evaluator of a planner, over many statements.

    A predicate that fails for some value keeps the files with that value: the statement
    itself will tell whether the failure matters. The planner has one evaluator per settings of
    a session, so that answers can be kept.
    """

    def __init__(self, session: Planner) -> None:
        self._session = session
        self._structures = PlannerTables(session)
        self._lookups = Lookups(self, session, self._structures)
        self.cells = DuckCells(session, self.select, self._structures)
        self._short_parse = lru_cache(MAX_TEXTS)(self._parsed)
        self._short_constant = lru_cache(MAX_TEXTS)(self._constant)

    # -- the text of predicates --------------------------------------------------------------

    def is_pure(self, predicate: str) -> bool:
        """Return whether a predicate depends on nothing but its columns and parameters."""
        tree, _ = self._shape(predicate)
        return tree is not None and is_pure(tree, self._pure_functions)

    def atoms(self, predicate: str, composed: str, outline: Outline) -> list[ParsedAtom] | None:
        """Return what DuckDB's parser makes of each atom of a predicate; see Evaluator."""
        parsed = self._shape(composed)
        if parsed[0] is None or (outline is not None and parsed != self._shape(predicate)):
            return None
        found = atoms_of(parsed[0], outline) or []
        return [ParsedAtom(operator_of(atom), is_pure(atom, self._pure_functions)) for atom in found]

    def is_same(self, predicate: str, other: str) -> bool:
        """Return whether DuckDB's parser makes the same of two predicates."""
        parsed = self._shape(predicate)
        return parsed[0] is not None and parsed == self._shape(other)

    def _shape(self, predicate: str) -> tuple[Any, tuple[str, ...]]:
        """Return the tree of a predicate with other literals, which is found again for other values, and its own."""
        shape = masked(predicate) if len(predicate) <= MAX_LENGTH else None
        tree = self._short_parse(shape[0]) if shape is not None else None
        return self.parse(predicate) if tree is None or shape is None else (tree, shape[1])

    def parse(self, predicate: str) -> tuple[Any, tuple[str, ...]]:
        """Return the tree of a predicate without its long lists, and these; the tree is None for what is none."""
        short, lists = shortened(predicate)
        return self._cached(self._short_parse, self._parsed, short), lists

    def _cached(self, cached: Callable[[str], Any], function: Callable[[str], Any], text: str) -> Any:
        return cached(text) if len(text) <= MAX_LENGTH else function(text)

    def _parsed(self, predicate: str) -> Any:
        document = self._serialized(f"SELECT 1 WHERE ({predicate}\n)")
        return None if document is None else document["statements"][0]["node"]["where_clause"]

    def _serialized(self, sql: str) -> Any:
        try:
            document = json.loads(self._session.rows("SELECT json_serialize_sql(?)", [sql])[0][0])
        except (duckdb.Error, ValueError, RecursionError):
            return None
        if document.get("error") or len(document.get("statements", ())) != 1:
            return None
        return without_places(document)

    def _pure_functions(self) -> frozenset[str]:
        global _functions
        if _functions is None:
            rows = self._session.rows(
                "SELECT function_name FROM duckdb_functions() WHERE function_type = 'scalar' "
                "GROUP BY 1 HAVING bool_and(stability = 'CONSISTENT' AND internal)"
            )
            _functions = frozenset(r[0] for r in rows)
        return _functions

    # -- evaluation ----------------------------------------------------------------------------

    def null(self, type_: pa.DataType) -> str:
        """Return a NULL of an Arrow type as SQL."""
        return "NULL" if pa.types.is_null(type_) else f"CAST(NULL AS {sql_type(type_)})"

    def constant(self, predicate: str, parameters: Mapping[str, Any]) -> bool:
        """Return whether a predicate without columns may be TRUE."""
        if len(predicate) > MAX_LENGTH:
            # NULL is in one list as in the other.
            predicate = with_lists(predicate, _NULL, lambda items: items[0])
        if parameters or len(predicate) > MAX_LENGTH:
            return bool(self.select("SELECT 1 WHERE ", predicate, parameters))
        return self._short_constant(predicate)

    def _constant(self, predicate: str) -> bool:
        return bool(self.select("SELECT 1 WHERE ", predicate, {}))

    def select(
        self,
        before: str,
        predicate: str,
        parameters: Mapping[str, Any],
        after: str = "",
        reading: IndexTables | None = None,
    ) -> list[Any] | bool:
        """Run the query in which a predicate stands between two texts; True stands for everything."""
        for condition in (predicate, f"coalesce(TRY({predicate}), true)"):
            try:
                return self._session.rows(before + condition + after, parameters)
            except duckdb.Error:
                continue
        if reading is not None:
            # Either the predicate fails for some value, or the index cannot be read.
            self._lookups.check(reading)
        return True

    def partitions(self, table: FileTable, predicate: str, parameters: Mapping[str, Any]) -> Files:
        """Return the files in partitions for which a predicate may be TRUE."""
        name = self._structures.partitions(table)
        types = {f"k{i}": type_ for i, type_ in enumerate(table.partitions.types)}
        predicate, parameters = self._without_lists(predicate, parameters, types)
        found = self.select(f"SELECT part FROM {name} WHERE ", predicate, parameters)
        if isinstance(found, bool):
            return table.all_files
        return table.partitions.files_of([part for (part,) in found])

    def index(
        self,
        table: FileTable,
        column: str,
        predicate: str,
        parameters: Mapping[str, Any],
        *,
        says: Predicate,
        with_keys: bool,
        never_null: bool,
        never_nan: bool,
        among: Files,
    ) -> Candidates:
        """Return the files with a value of ``column`` for which a predicate may be TRUE."""
        type_ = table.indices[column].type
        predicate, parameters = self._without_lists(predicate, parameters, {"v": type_})
        skips_null = never_null or (not with_keys and not may_hold_for_null(says))
        absent = [] if skips_null else [self.null(type_)]
        if pa.types.is_floating(type_) and not never_nan:
            absent.append("'nan'::DOUBLE")
        if not with_keys:
            if any(self._holds_for(value, predicate, parameters) for value in absent):
                return Candidates(table.all_files)
            return self._lookups.files(table, column, predicate, says, parameters, among, "")
        parts = self._structures.partitions(table)
        files: Files = frozenset()
        for value in absent:
            extra = self.select(f"SELECT part FROM (SELECT *, {value} AS v FROM {parts}) WHERE ", predicate, parameters)
            if isinstance(extra, bool):
                return Candidates(table.all_files)
            files |= table.partitions.files_of([part for (part,) in extra])
        found = self._lookups.files(table, column, predicate, says, parameters, among, parts)
        return Candidates(found.files | files, found.note)

    def _holds_for(self, value: str, predicate: str, parameters: Mapping[str, Any]) -> bool:
        """Return whether a predicate over ``v`` may be TRUE for a value."""
        return bool(self.select(f"SELECT 1 FROM (SELECT {value} AS v) WHERE ", predicate, parameters))

    def _without_lists(
        self, predicate: str, parameters: Mapping[str, Any], types: Mapping[str, pa.DataType]
    ) -> tuple[str, Mapping[str, Any]]:
        """Hand long lists of literals over as parameters, as DuckDB takes long to read their text."""
        if len(predicate) <= MAX_LENGTH:
            return predicate, parameters
        added = dict(parameters)

        def replace(items: list[str]) -> str | None:
            found = literals(items, texts=texts, integers=integers)
            if found is None:
                return None
            # DuckDB does not take names and numbers together.
            number = 1 + max([int(n) for n in added if n.isdigit()], default=0)
            name = str(number) if any(n.isdigit() for n in added) else f"kartosql_list_{len(added)}"
            added[name] = found
            return f"SELECT unnest(${name})"

        for column, type_ in types.items():
            # Of one type with the column, so that the comparison stays the same.
            texts = pa.types.is_string(type_) and not self.has_collation()
            integers = pa.types.is_integer(type_)
            predicate = with_lists(predicate, column, replace)
        return predicate, added

    # -- statistics ------------------------------------------------------------------------------

    def statistics(
        self, table: FileTable, column: str, predicate: Predicate, parameters: Mapping[str, Any]
    ) -> Files | None:
        """Return the files in which a predicate over a column may be TRUE by what is remembered of footers."""
        type_ = table.types[column]
        asked = bounded(predicate) if table.has_footers and not pa.types.is_null(type_) else None
        if asked is None:
            return None
        try:
            declared = sql_type(type_)
        except FormatError:
            return None
        found = self._session.footers.statistics(table, column, declared)
        if found is None:
            return None
        try:
            condition = asked.over(declared, self._types(asked, parameters))
            if condition is None or (declared == "VARCHAR" and self.has_collation()):
                return None
            given = _used(parameters, condition)
            nan = f"CAST('nan' AS {declared})"
            number = f"SELECT 1 FROM (SELECT {nan} AS low, {nan} AS high, true AS has_values, 0 AS nulls) WHERE "
            if pa.types.is_floating(type_) and self._session.rows(number + condition, given):
                return None
            name = self._structures.statistics(table, found)
            rows = self._session.rows(f"SELECT file FROM {name} WHERE NOT ({condition})", given)
        except duckdb.Error:
            return None
        return table.all_files.difference([row[0] for row in rows])

    def _types(self, asked: Bounded, parameters: Mapping[str, Any]) -> list[str]:
        """Return the types of the constants that decide whether a condition over bounds holds good."""
        typed = [t for t in asked.typed if t is not None]
        if not typed:
            return []
        sql = f"SELECT {', '.join(f'typeof({t})' for t in typed)}"
        return list(self._session.rows(sql, _used(parameters, sql))[0])

    # -- types and the clock, as the session has them -----------------------------------------

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
        return self._session.clock(function)

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


def _used(parameters: Mapping[str, Any], sql: str) -> dict[str, Any]:
    """Return the parameters that may occur in a query, as DuckDB refuses others."""
    return {name: value for name, value in parameters.items() if re.search(rf"\${re.escape(name)}(?!\w)", sql)}


SCHEMA = "kartosql_planner"


class Planner(EngineSession):
    """A session that is never locked: only our own statements and pure predicates run in it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.run(f"CREATE SCHEMA {SCHEMA}")
        self.run(f"USE {SCHEMA}")
        self.instance.change("disabled_optimizers", f"'{LATE}'")
        self.evaluator = DuckEvaluator(self)
        self._held: list[str] = []

    def begin(self, files: FileAccess, timeout: int) -> None:
        """Start on the files of another statement, whose conditions may take ``timeout`` ms (0 is no limit)."""
        self.files = files
        if self.instance.filesystem is not None:
            self.instance.filesystem.forget()
        self.instance.change("max_execution_time", timeout)

    def hold(self, query: str, parameters: Mapping[str, Any]) -> str:
        """Keep the rows of a query until the end of the statement; returns the name of their table."""
        # No text can guess it: predicates may read these tables, and no other.
        name = f"kartosql_values_{uuid.uuid4().hex}"
        self.rows(f"CREATE TABLE {name} AS {query}", parameters)
        self._held.append(name)
        return name

    def end(self) -> None:
        """Forget what was made for one statement."""
        for name in self._held:
            self.run(f"DROP TABLE {name}")
        self._held.clear()
        self.relations.forget()
        self._data_keys.clear()

    def end_for_good(self) -> Instance:
        """Free the planner and return its instance, in which nothing of it is left."""
        super().close()
        self.instance.drop_schema(SCHEMA)
        return self.instance

    def close(self) -> None:
        """Free the planner with its instance."""
        super().close()
        self.instance.close()
