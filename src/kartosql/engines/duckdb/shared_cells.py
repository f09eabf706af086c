"""Which files of a dataset hold the same values and cells, for the planner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from kartosql.engines.base import FILE, ROW, RowRequest
from kartosql.errors import FormatError, StoreError
from kartosql.formats.arrays import array_of
from kartosql.indexes.index import Files
from kartosql.plan.evaluate import RowSelection
from kartosql.tables.table import FileTable, Part

if TYPE_CHECKING:
    from kartosql.engines.duckdb.evaluator import Planner
    from kartosql.engines.duckdb.lookups import IndexTables

HELD_FACTOR = 4  # how much faster an index is scanned that the planner holds
SAMPLED = 4  # files whose sizes stand for those of all
REMOTE_BYTES = 1 << 20  # of a remote file, until one of its table was opened: to ask takes as long as to read it


class DuckCells:
    """The Cells of a planner."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._structures = planner.structures

    # -- what a lookup costs -------------------------------------------------------------------

    def index_bytes(self, table: FileTable, column: str) -> int | None:
        """Return how much of an index a lookup would read, less of one that is held; None if it cannot be read."""
        try:
            index = self._structures.index(table, column)
        except (duckdb.Error, FormatError, StoreError):
            return None  # only an index that is needed may be missed
        return index.size if index.held is None else index.size // HELD_FACTOR

    def data_bytes(self, table: FileTable, files: Files) -> int:
        """Return the size of files, estimated from a few of them, of remote ones from those that were opened."""
        order = sorted(files)
        sample = [table.files[f] for f in order[:: max(1, -(-len(order) // SAMPLED))]]
        if all(map(self._planner.store.is_on_disk, sample)):
            with contextlib.suppress(FormatError, StoreError):  # only a file that is read may be missed
                self._planner.files.stat(sample)
            sizes = [self._planner.files.sizes.get(key) or 0 for key in sample]
        else:
            sizes = self._planner.footers.some_sizes(table, SAMPLED) or [REMOTE_BYTES]
        return sum(sizes) * len(order) // max(1, len(sizes))

    # -- values ----------------------------------------------------------------------------------

    def ranges(self, table: FileTable, column: str, files: Files) -> Mapping[int, tuple[Any, Any]]:
        """Return the smallest and largest value of a column per file, from footers that are known or read."""
        type_ = table.types[column]
        t = pa.types
        naive = t.is_timestamp(type_) and type_.tz is None
        plain = t.is_signed_integer(type_) or t.is_date32(type_) or naive
        if column in table.partition_keys or not plain or not self._planner.store.is_local:
            return {}  # where the store is remote a footer is a request of its own
        found = self._planner.bounds(table, [column], sorted(files))
        return found[0].ranges(files) if found is not None else {}

    def share_values(self, table: FileTable, column: str, groups: Mapping[int, int]) -> set[tuple[int, int]]:
        """Return the pairs (earlier, later) of files of one group with a value of an indexed column in common."""
        index = self._structures.index(table, column)
        if index.held is not None:
            lists, files = f"SELECT files AS list FROM {index.held}", ""
        else:
            lists = f"SELECT labels AS list FROM {index.values}"
            if self._repeats(index):
                lists = f"SELECT flatten(list(labels)) AS list FROM {index.values} GROUP BY v"
            files = f"JOIN (SELECT label AS item, file FROM {self._structures.files(table)}) USING (item)"
        numbers = self._numbers(file=groups.keys(), grp=groups.values())
        before = (
            f"WITH lists AS (SELECT DISTINCT list FROM ({lists}) WHERE len(list) > 1), "
            "numbered AS (SELECT row_number() OVER () AS number, list FROM lists), "
            f"spread AS (SELECT number, unnest(list) AS {'item' if files else 'file'} FROM numbered), "
            f"found AS (SELECT number, grp, file FROM spread {files} JOIN {numbers} USING (file)) "
            "SELECT DISTINCT a.file, b.file FROM found a JOIN found b "
            "ON a.number = b.number AND a.grp = b.grp AND a.file < b.file WHERE "
        )
        index.uses += 1
        with index.timed():
            found = self._planner.select(before, "TRUE", {})
        if isinstance(found, bool):
            return {(a, b) for a, b in combinations(sorted(groups), 2) if groups[a] == groups[b]}
        return {(a, b) for a, b in found}

    def _repeats(self, index: IndexTables) -> bool:
        """Return whether a value may occur in several rows of an index that is not held."""
        # Values that differ on disk may be one in the type of the column.
        if index.repeats is None:
            with index.timed():
                found = self._planner.select(
                    f"SELECT count(*) > count(DISTINCT v) FROM {index.values} WHERE ", "TRUE", {}
                )
            index.repeats = found is True or found == [(True,)]
        return index.repeats

    def files_sharing(
        self, source: FileTable, files: Files, target: FileTable, column: str, rows: RowSelection | None
    ) -> Files:
        """Return the files of ``target`` with a value of a column that one of the files of ``source`` has."""
        if rows is None:
            values, rows = self._values(source, files, column), RowSelection({}, "TRUE", {})
        else:
            inner = self._planner.relations.rows_of(source, sorted(files), RowRequest(rows.names))
            values = f"SELECT DISTINCT {rows.names[column]} AS v FROM ({inner}) WHERE "
        wanted = "IN (SELECT v FROM wanted)"
        if column in target.partition_keys:
            key = f"k{target.partition_keys.index(column)}"
            after = f"SELECT part FROM {self._structures.partitions(target)} WHERE {key} {wanted}"
        else:
            index = self._structures.index(target, column)
            if index.held is not None:
                after = f"SELECT DISTINCT unnest(files) FROM {index.held} WHERE v {wanted}"
            else:
                after = (
                    f"SELECT DISTINCT l.file FROM (SELECT DISTINCT unnest(labels) AS label FROM {index.values} "
                    f"WHERE v {wanted}) JOIN {self._structures.files(target)} l USING (label)"
                )
        found = self._planner.select(f"WITH wanted AS ({values}", rows.predicate, rows.parameters, f") {after}")
        if isinstance(found, bool):
            return target.all_files
        numbers = frozenset(row[0] for row in found)
        return target.partitions.files_of(numbers) if column in target.partition_keys else numbers

    def _values(self, table: FileTable, files: Files, column: str) -> str:
        """Return the query for the values of a partition key or indexed column in some files, open at its WHERE."""
        if column in table.partition_keys:
            parts = self._numbers(part={table.partitions.part_of_file[f] for f in files})
            key = f"k{table.partition_keys.index(column)}"
            return (
                f"SELECT DISTINCT {key} AS v FROM {self._structures.partitions(table)} JOIN {parts} USING (part) WHERE "
            )
        index = self._structures.index(table, column)
        return f"SELECT DISTINCT v FROM {index.name} JOIN {self._numbers(file=files)} USING (file) WHERE "

    # -- cells -----------------------------------------------------------------------------------

    def holding_cells(
        self, table: FileTable, early: int, late: Files, dimensions: Sequence[str], rows: RowSelection
    ) -> Files:
        """Return those ``late`` files of which an index has the values of some cell of ``early``."""
        found_rows = f"({self._planner.relations.rows_of(table, [early], RowRequest(rows.names))})"
        joins = ""
        for i, column in enumerate(dimensions):
            same_file = "" if i == 0 else f" AND i0.file = i{i}.file"
            joins += (
                f" JOIN {self._structures.index(table, column).name} i{i} ON i{i}.v = r.{rows.names[column]}{same_file}"
            )
        found = self._planner.select(
            f"SELECT DISTINCT i0.file FROM (SELECT * FROM {found_rows} WHERE ",
            rows.predicate,
            rows.parameters,
            f") r{joins} WHERE i0.file IN (SELECT file FROM {self._numbers(file=late)})",
        )
        return late if isinstance(found, bool) else frozenset(row[0] for row in found)

    def share_cells(self, table: FileTable, early: int, late: int, key: Sequence[str], rows: RowSelection) -> bool:
        """Return whether one of the rows of a file may have its cell in a later one too, by reading both."""
        early_rows = self._planner.relations.rows_of(table, [early], RowRequest(rows.names))
        cells = self._planner.relations.rows_of(table, [late], RowRequest({c: rows.names[c] for c in key}))
        using = ", ".join(rows.names[c] for c in key)
        found = self._planner.select(
            f"SELECT 1 FROM (SELECT {using} FROM ({early_rows}) WHERE ",
            rows.predicate,
            rows.parameters,
            f") SEMI JOIN ({cells}) USING ({using}) LIMIT 1",
        )
        return found is True or bool(found)

    def hidden_rows(self, part: Part, files: Files) -> dict[int, list[int]]:
        """Return the numbers of the rows of some files, from 0, that a later row with the same cell hides."""
        relations, types, order = self._planner.relations, part.table.types, sorted(files)
        names = {column: f"k{at}" for at, column in enumerate(part.join_key)}
        cell = ", ".join(relations.as_key(name, types[column]) for column, name in names.items())
        rows = relations.rows(
            part.table, order, RowRequest(names, codes={FILE: range(len(part.table.files))}, numbered=True)
        )
        found = self._planner.rows(
            f"SELECT {FILE}, list({ROW} ORDER BY {ROW}) FROM (SELECT *, row_number() OVER (PARTITION BY {cell} "
            f"ORDER BY {FILE} DESC, {ROW} DESC) AS later FROM ({' UNION ALL '.join(rows)})) WHERE later > 1 GROUP BY 1"
        )
        return dict(found)

    # -- plumbing --------------------------------------------------------------------------------

    def _numbers(self, **columns: Iterable[int]) -> str:
        name = "kartosql_numbers"
        self._planner.register(name, pa.table({c: array_of(list(v), pa.int32()) for c, v in columns.items()}))
        return name
