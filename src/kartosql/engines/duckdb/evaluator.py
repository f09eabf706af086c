"""Evaluates predicates over partition values and index values, for the planner."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from kartosql.engines.duckdb.predicates import is_comparison, is_pure, without_places
from kartosql.engines.duckdb.types import fits, sql_type
from kartosql.errors import FormatError
from kartosql.formats.arrays import array_of
from kartosql.formats.kartothek.dataset import DatasetTable, InvertedIndex
from kartosql.formats.kartothek.partitions import value_parser
from kartosql.plan.evaluate import MAX_PROBES, Files

if TYPE_CHECKING:
    from kartosql.engines.duckdb.session import Session

_functions: frozenset[str] | None = None


class DuckEvaluator:
    """The Evaluator of a session.

    A predicate that fails for some value keeps the files with that value: the statement
    itself will tell whether the failure matters.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tables: dict[int, str] = {}
        self._indices: dict[tuple[int, str], str] = {}
        self._index_keys: dict[str, str] = {}

    # -- the text of predicates --------------------------------------------------------------

    def is_pure(self, predicate: str) -> bool:
        """Return whether a predicate depends on nothing but its columns and parameters."""
        tree = self._parse(predicate)
        return tree is not None and is_pure(tree, self._pure_functions)

    def same_meaning(self, left: str, right: str) -> bool:
        """Return whether DuckDB parses two predicates to the same tree."""
        trees = self._parse(left), self._parse(right)
        return trees[0] is not None and trees[0] == trees[1]

    def _parse(self, predicate: str) -> Any:
        try:
            rows = self._session.rows("SELECT json_serialize_sql(?)", [f"SELECT 1 WHERE ({predicate}\n)"])
            document = json.loads(rows[0][0])
        except (duckdb.Error, ValueError, RecursionError):
            return None
        if document.get("error") or len(document.get("statements", ())) != 1:
            return None
        return without_places(document["statements"][0]["node"]["where_clause"])

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
        return bool(self._select("SELECT 1 WHERE ", predicate, parameters))

    def _select(self, before: str, predicate: str, parameters: Mapping[str, Any], after: str = "") -> list[Any] | bool:
        """Run the query in which a predicate stands between two texts; True stands for everything."""
        for condition in (predicate, f"coalesce(TRY({predicate}), true)"):
            try:
                return self._session.rows(before + condition + after, parameters)
            except duckdb.Error:
                continue
        for name, key in self._index_keys.items():
            # Either the predicate fails for some value, or an index cannot be read.
            if name in before + after:
                self._check_index(name, key)
        return True

    def _check_index(self, name: str, key: str) -> None:
        try:
            self._session.rows(
                f"SELECT count(v), count(labels), sum(len(labels)), max(labels::VARCHAR) FROM {name}_values_all"
            )
        except duckdb.Error as e:
            raise FormatError(
                f"{key}: {str(e).splitlines()[0]}", code="invalid-index", hint="Build the index again."
            ) from None

    def partitions(self, table: DatasetTable, predicate: str, parameters: Mapping[str, Any]) -> frozenset[int]:
        """Return the partitions for which a predicate may be TRUE."""
        name = self._partition_table(table)
        found = self._select(f"SELECT part FROM {name} WHERE ", predicate, parameters)
        if isinstance(found, bool):
            return frozenset(range(len(table.partitions.tuples)))
        return frozenset(row[0] for row in found)

    def index(
        self,
        table: DatasetTable,
        column: str,
        predicate: str,
        parameters: Mapping[str, Any],
        *,
        with_keys: bool,
        never_null: bool,
        never_nan: bool,
    ) -> Files:
        """Return the files with a value of ``column`` for which a predicate may be TRUE."""
        values = self._index_table(table, column)
        parts = self._partition_table(table)
        type_ = table.indices[column].type
        found = self._matching(values, parts, predicate, parameters, with_keys=with_keys)
        everything = frozenset(range(len(table.files)))
        if isinstance(found, bool) or (pa.types.is_binary(type_) and not self._compares(predicate, parameters)):
            return everything
        files = {row[0] for row in found}
        if pa.types.is_binary(type_):
            longer = "v || '\\x00'::BLOB"
            more = self._matching(values, parts, predicate, parameters, with_keys=with_keys, value=longer)
            doubtful = set(everything) if isinstance(more, bool) else {row[0] for row in more}
            files |= self._really_matching(table, column, predicate, parameters, doubtful - files)
        absent = [] if never_null else [self.null(type_)]
        if pa.types.is_floating(type_) and not never_nan:
            absent.append("'nan'::DOUBLE")
        for value in absent:
            extra = self._select(
                f"SELECT part FROM (SELECT *, {value} AS v FROM {parts}) WHERE ", predicate, parameters
            )
            if isinstance(extra, bool):
                return everything
            kept = {row[0] for row in extra}
            files |= {f for f, part in enumerate(table.partitions.part_of_file) if part in kept}
        return frozenset(files)

    def _compares(self, predicate: str, parameters: Mapping[str, Any]) -> bool:
        """Return whether a predicate does no more than compare its column with values without NUL bytes."""
        clean = not any(isinstance(v, bytes) and b"\0" in v for v in parameters.values())
        return clean and is_comparison(self._parse(predicate))

    def _matching(
        self,
        values: str,
        parts: str,
        predicate: str,
        parameters: Mapping[str, Any],
        *,
        with_keys: bool,
        value: str = "v",
    ) -> list[Any] | bool:
        """Return the files with an index value, or what ``value`` makes of it, that matches."""
        if with_keys:
            spread = f"(SELECT * REPLACE ({value} AS v) FROM {values}) JOIN {parts} USING (part)"
            return self._select(f"SELECT DISTINCT file FROM {spread} WHERE ", predicate, parameters)
        # The values are filtered before their labels are spread.
        before = (
            "SELECT DISTINCT l.file FROM (SELECT DISTINCT unnest(labels) AS label "
            f"FROM (SELECT {value} AS v, labels FROM {values}_values) WHERE "
        )
        return self._select(before, predicate, parameters, f") i JOIN {values}_labels l USING (label)")

    def _really_matching(
        self,
        table: DatasetTable,
        column: str,
        predicate: str,
        parameters: Mapping[str, Any],
        doubtful: set[int],
    ) -> set[int]:
        """Return those of the ``doubtful`` files in which a value matches, found by looking into a few of them.

        The originals cut binary index values at their first NUL byte. Compared with values
        that have none, all that were cut to v stand where v and one NUL byte stands; files
        that match only there are doubtful.
        """
        if len(doubtful) > MAX_PROBES:
            return doubtful
        names = {column: "v", **{key: f"k{i}" for i, key in enumerate(table.partition_keys)}}
        found = set()
        for file in sorted(doubtful):
            rows = self._session.relations.rows_of(table, [file], names)
            if self._select(f"SELECT 1 FROM ({rows}) WHERE ", predicate, parameters, " LIMIT 1"):
                found.add(file)
        return found

    def holding_cells(
        self,
        table: DatasetTable,
        early: int,
        late: Files,
        dimensions: Sequence[str],
        names: Mapping[str, str],
        predicate: str,
        parameters: Mapping[str, Any],
    ) -> Files:
        """Return those ``late`` files that may hold a cell of the rows of ``early`` for which a predicate is TRUE."""
        rows = f"({self._session.relations.rows_of(table, [early], names)})"
        joins = ""
        for i, column in enumerate(dimensions):
            same_file = "" if i == 0 else f" AND i0.file = i{i}.file"
            joins += f" JOIN {self._index_table(table, column)} i{i} ON i{i}.v = r.{names[column]}{same_file}"
        listed = ", ".join(str(f) for f in sorted(late))
        found = self._select(
            f"SELECT DISTINCT i0.file FROM (SELECT * FROM {rows} WHERE ",
            predicate,
            parameters,
            f") r{joins} WHERE i0.file IN ({listed})",
        )
        return late if isinstance(found, bool) else frozenset(row[0] for row in found)

    def share_cells(
        self,
        table: DatasetTable,
        early: int,
        late: int,
        key: Sequence[str],
        names: Mapping[str, str],
        predicate: str,
        parameters: Mapping[str, Any],
    ) -> bool:
        """Return whether a row of ``early`` for which a predicate is TRUE may have its cell in ``late`` too."""
        rows = self._session.relations.rows_of(table, [early], names)
        cells = self._session.relations.rows_of(table, [late], {c: names[c] for c in key})
        using = ", ".join(names[c] for c in key)
        found = self._select(
            f"SELECT 1 FROM (SELECT {using} FROM ({rows}) WHERE ",
            predicate,
            parameters,
            f") SEMI JOIN ({cells}) USING ({using}) LIMIT 1",
        )
        return found is True or bool(found)

    def shares_values(self, table: DatasetTable, column: str, files: Files) -> set[tuple[int, int]]:
        """Return the pairs (earlier, later) of files that have a value of ``column`` in common."""
        values = self._index_table(table, column)
        listed = ", ".join(str(f) for f in sorted(files))
        rows = self._session.rows(
            f"WITH found AS (SELECT DISTINCT v, file FROM {values} WHERE file IN ({listed})) "
            "SELECT DISTINCT a.file, b.file FROM found a JOIN found b ON a.v = b.v AND a.file < b.file"
        )
        return {(a, b) for a, b in rows}

    # -- relations -------------------------------------------------------------------------------

    def _partition_table(self, table: DatasetTable) -> str:
        name = self._tables.get(id(table))
        if name is None:
            name = self._tables[id(table)] = f"kartosql_partitions_{len(self._tables)}"
            partitions = table.partitions
            arrays = [*partitions.to_arrow().columns, array_of(range(len(partitions.tuples)), pa.int32())]
            names = [*(f"k{i}" for i in range(len(partitions.keys))), "part"]
            self._session.register(name, pa.table(arrays, names=names))
        return name

    def _index_table(self, table: DatasetTable, column: str) -> str:
        """Make the index of a column known and return the name of its relation (v, file, part)."""
        name = self._indices.get((id(table), column))
        if name is not None:
            return name
        name = self._indices[id(table), column] = f"kartosql_index_{len(self._indices)}"
        index = table.indices[column]
        labels = pa.table(
            {
                "label": array_of(table.labels, pa.string()),
                "file": array_of(range(len(table.files)), pa.int32()),
                "part": array_of(table.partitions.part_of_file, pa.int32()),
            }
        )
        self._session.register(f"{name}_labels", labels)
        self._values_view(f"{name}_values", index)
        self._session.run(
            f"CREATE VIEW {name} AS SELECT i.v, l.file, l.part FROM "
            f"(SELECT v, unnest(labels) AS label FROM {name}_values) i JOIN {name}_labels l USING (label)"
        )
        return name

    def _values_view(self, name: str, index: InvertedIndex) -> None:
        declared = sql_type(index.type)
        if index.embedded is not None:
            self._session.register(f"{name}_all", _embedded(index))
        else:
            assert index.key is not None
            self._session.index_view(f"{name}_all", index.key, index.column, declared)
            self._index_keys[name.removesuffix("_values")] = index.key
        values = f"SELECT CAST(v AS {declared}) AS v, labels FROM {name}_all"
        if pa.types.is_floating(index.type):
            # 0.0 and -0.0 are one value of the index, but may be told apart by a predicate.
            values += f" UNION ALL SELECT -v, labels FROM {name}_all WHERE v = 0"
        self._session.run(f"CREATE VIEW {name} AS {values}")


def _embedded(index: InvertedIndex) -> pa.Table:
    """Return an index that stands in the metadata document as a table (v, labels)."""
    parse = value_parser(index.type)
    assert index.embedded is not None
    try:
        values = [parse(str(text).encode()) for text in index.embedded]
        labels = pa.array(list(index.embedded.values()), pa.list_(pa.string()))
        return pa.table({"v": array_of(values, index.type), "labels": labels})
    except (ValueError, OverflowError, KeyError, pa.ArrowException) as e:
        raise FormatError(
            f"The index of {index.column!r} in the metadata does not fit its type {index.type}: {e}",
            code="invalid-index",
        ) from None


def index_columns(rows: list[tuple[str, str]], key: str, column: str, declared: str) -> None:
    """Check the top-level columns (name, type) of an index file; raises ``invalid-index``."""
    types = dict(rows)
    problem = None
    if column not in types or "partition" not in types:
        problem = f"it has no columns {column!r} and 'partition'"
    elif not fits(types[column], declared) or types[column] == '"NULL"' != declared:
        problem = f"its values are {types[column]}, the column is {declared}"
    elif types["partition"] != "VARCHAR[]":
        problem = f"its labels are {types['partition']}"
    if problem and types.get(column) != '"NULL"':
        raise FormatError(f"{key}: {problem}", code="invalid-index", hint="Build the index again.")
