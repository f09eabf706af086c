"""Pruned scans as DuckDB views, one for each table occurrence."""

from __future__ import annotations

import contextlib
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql import stopping
from kartosql.engines.base import FILE, OP, ROW, RelationBuilder, RowRequest
from kartosql.engines.duckdb.texts import csv_reader
from kartosql.engines.duckdb.types import binding_type, sql_type
from kartosql.errors import FormatError, reraise
from kartosql.formats.arrays import array_of
from kartosql.formats.partition_table import Variant, tag_of
from kartosql.parquet import DAMAGE
from kartosql.plan.scan import FileSummary, OccurrenceScan
from kartosql.plan.scopes import Occurrence
from kartosql.predicate.tree import Condition
from kartosql.tables.table import FileTable, Table, display_rows
from kartosql.text.constants import literal, quote

if TYPE_CHECKING:
    from kartosql.engines.duckdb.statement import EngineSession
    from kartosql.store.keys import Stamp

_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def converted(value: str, given: pa.DataType, wanted: pa.DataType, depth: int = 0) -> str:
    """Return the SQL for a value of type ``given`` as one of a type to which it widens."""
    if given.equals(wanted, check_metadata=True):
        return value
    t = pa.types
    if t.is_struct(given) and t.is_struct(wanted):
        members = []
        known = {tag_of(f): f for f in given}
        for field in wanted:
            if (found := known.get(tag_of(field))) is not None:
                member = converted(f"struct_extract({value}, {literal(found.name)})", found.type, field.type, depth)
            else:
                member = f"CAST(NULL AS {sql_type(field.type)})"
            members.append(f"{quote(field.name)} := {member}")
        return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({', '.join(members)}) END"
    if t.is_list(given) and t.is_list(wanted):
        name = f"kartosql_item_{depth}"
        item = converted(name, given.value_type, wanted.value_type, depth + 1)
        return f"list_transform({value}, lambda {name}: {item})"
    if t.is_map(given) and t.is_map(wanted):
        name = f"kartosql_entry_{depth}"
        key = converted(f"{name}.key", given.key_type, wanted.key_type, depth + 1)
        item = converted(f"{name}.value", given.item_type, wanted.item_type, depth + 1)
        entry = f"lambda {name}: struct_pack(key := {key}, value := {item})"
        return f"map_from_entries(list_transform(map_entries({value}), {entry}))"
    if t.is_timestamp(given) and given.tz is None and t.is_timestamp(wanted) and wanted.tz is not None:
        return f"timezone('UTC', {value})"  # whatever the zone of the session
    return f"CAST({value} AS {sql_type(wanted)})"


MIN_SLICE = 4 << 20  # bytes of files that several threads read beside others
MAX_LISTED = 256  # files whose partition values stand in a list
EXACT_ROWS = 1 << 17  # estimates up to here are rounded
MAX_REPLACED = 64  # views that one transaction replaces; it keeps the old ones

_Made = tuple[str, frozenset[tuple[str, str]]]  # the body of a view, and what the types of its variables depend on


class Relations(RelationBuilder[str]):
    """Creates the views over which the user's text runs."""

    def __init__(self, session: EngineSession, former: Relations | None = None) -> None:
        self._session = session
        self._count = 0
        self.by_position = False  # whether rows are told apart by the position of their file
        self.stamps: dict[str, Stamp | None] = {}  # of files that are joined by position as long as these do not change
        self.has_floats = False  # whether DuckDB reads floating-point columns of Parquet files
        self._variables: dict[str, str] = {}  # with what their types depend on
        self._tables: list[str] = []
        self._asked: tuple[int, Sequence[Condition]] | None = None  # an occurrence, and what holds for its rows
        self.alone: frozenset[str] = frozenset()  # remote files that one occurrence opens, and no other one
        self._data: dict[int, str] = {}  # of those, what users registered
        self.views: dict[tuple[str, str], _Made] = {}
        # What variables were set to: "files" and their keys, a type and values of a column, or an expression alone.
        self.assigned: dict[str, tuple[str, Any, str]] = {}
        # What a former statement left behind.
        self._former_variables = {} if former is None else former._variables
        self._former_views = {} if former is None else former.views
        self._replaced: int = 0 if former is None else former._replaced

    def drop(self) -> None:
        """Drop the variables and tables that queries over the relations need."""
        for name in self._variables:
            self._session.run(f"RESET VARIABLE {name}")
        for name in self._tables:
            self._session.unregister(name)

    # -- what another statement may take over ------------------------------------------------

    @property
    def is_reusable(self) -> bool:
        """Whether the relations depend on nothing but variables, which another statement can set anew."""
        return bool(self.views) and not self._tables and self._replaced < MAX_REPLACED

    def drop_former(self) -> None:
        """Drop what the former statement left and this one did not ask for."""
        for schema, name in self._former_views:
            self._session.run(f"DROP VIEW {quote(schema)}.{quote(name)}")
            self._replaced += 1
        for name in self._former_variables.keys() - self._variables.keys():
            self._session.run(f"RESET VARIABLE {name}")
            self._session.listed.pop(name, None)
        self._former_views, self._former_variables = {}, {}

    # -- views -------------------------------------------------------------------------------

    def create(self, scan: OccurrenceScan) -> None:
        """Create the view of one occurrence over exactly the files of its scan."""
        if self.alone and len(scan.parts) == 1 and scan.parts[0].rows_are_files_rows:
            self._asked = scan.occurrence.id, scan.predicates
        self._view(scan.occurrence, self.body(scan, compares=True))
        self._asked = None

    def body(self, scan: OccurrenceScan, *, compares: bool = False) -> str:
        """Return the query over exactly the files of a scan.

        With ``compares`` files of several datasets may be compared first, to join them by position.
        """
        source, used, read = scan.occurrence.source, scan.occurrence.columns, scan.occurrence.read
        available = {c for p in scan.parts for c in p.part.columns}
        # What no part of the statement names costs time in each binding, and some types cannot be read.
        named = source.columns if used is None else [c for c in source.columns if c in used]
        columns = [c for c in named if c in available or (read is not None and c not in read)]
        refused = self._refused(source, columns, used)
        if scan.is_empty:
            return self.empty(source, columns)
        seed = scan.parts[0]
        if seed.summary is not None:
            return self._summary(source, seed.part.table, seed.summary, named)
        # Who uses all columns, maybe, may not need these: then nobody computes the error.
        errors = {c: f"CAST(error({literal(why)}) AS {binding_type(source.columns[c])})" for c, why in refused.items()}
        known, arrangement = self._session.alignments, None
        if known is not None and scan.parts[1:]:
            arrangement = known.arrange(self._session.files, scan, self._session if compares else None)
        if arrangement is None:
            return self.over_files(scan, columns, errors)
        self.stamps |= arrangement.stamps
        return " UNION ALL ".join(self.over_files(side, columns, errors, beside) for side, beside in arrangement.sides)

    def _summary(self, source: Table, table: FileTable, summary: FileSummary, named: Iterable[str]) -> str:
        """Return the query for rows with row counts and minima, and where extremes are asked for with maxima.

        What else is ``named`` is NULL.
        """
        number = self._count
        self._count += 1
        name = f"kartosql_facts_{number}"
        partitions = table.partitions
        # Each combination of partition values has a row with its row count and minima, and one with its maxima.
        times = 2 if summary.extremes else 1
        counts = [*summary.rows, *([0] * len(summary.rows) * (times - 1))]
        arrays, names, items = [array_of(counts, pa.int64())], ["n"], ["n AS kartosql_rows"]
        for at, key in enumerate(table.partition_keys if summary.is_split else ()):
            if key in source.columns:
                values = [partitions.tuples[part][at] for part in summary.parts]
                arrays.append(array_of(values * times, partitions.types[at]))
                names.append(f"k{at}")
                items.append(f"k{at} AS {quote(source.exposed.get(key, key))}")
        for at, (column, bounds) in enumerate(summary.extremes.items()):
            arrays.append(pa.concat_arrays(bounds))
            names.append(f"e{at}")
            shown, type_ = quote(source.exposed.get(column, column)), sql_type(table.types[column])
            items.append(f"CAST(e{at} AS {type_}) AS {shown}")
        known = {*summary.extremes, *(table.partition_keys if summary.is_split else ())}
        rest = [column for column in named if column not in known]
        items += [f"{self.null(source.columns[c])} AS {quote(source.exposed.get(c, c))}" for c in rest]
        self._register(name, pa.table(arrays, names=names))
        return f"SELECT {', '.join(items)} FROM {name}"

    def create_empty(self, occurrence: Occurrence) -> None:
        """Create the view of one occurrence to bind against: no row, unless its data are registered."""
        source, used = occurrence.source, occurrence.columns
        if source.data is not None:
            self.create_registered(occurrence)
            return
        refused = self._refused(source, source.columns, used)
        columns = [c for c in source.columns if used is None or c not in refused]
        self._view(occurrence, self.empty(source, columns))

    def create_table(self, occurrence: Occurrence, name: str, scan: OccurrenceScan | None) -> None:
        """Create the view of one occurrence over a table without rows in its schema.

        Columns to which only the files give a type have that of the files of ``scan``.
        """
        source, used = occurrence.source, occurrence.columns
        named = [c for c in source.columns if used is None or c in used]
        self._refused(source, named, used)
        body = self.empty(source, named)
        if source.data is not None:
            body = f"SELECT * FROM {self._arrow_name(source)} LIMIT 0"
        elif scan is not None and not scan.is_empty and any(map(pa.types.is_null, source.columns.values())):
            body = f"{self.body(replace(scan, parts=tuple(replace(p, summary=None) for p in scan.parts)))} LIMIT 0"
        table = f"{quote(occurrence.view[0])}.{quote(name)}"
        self._session.run(f"CREATE SCHEMA IF NOT EXISTS {quote(occurrence.view[0])}")
        self._session.run(f"CREATE TABLE {table} AS {body}")
        # A table gives untyped columns a type, a view does not.
        types = self._session.rows(f"DESCRIBE {body}")
        untyped = ", ".join(f"NULL AS {quote(column)}" for column, type_, *_ in types if type_ == '"NULL"')
        self._view(occurrence, f"SELECT *{f' REPLACE ({untyped})' if untyped else ''} FROM {table}")

    def create_registered(self, occurrence: Occurrence) -> None:
        """Create the view of one occurrence over registered data."""
        self._view(occurrence, f"SELECT * FROM {self._arrow_name(occurrence.source)}")

    def _arrow_name(self, source: Table) -> str:
        name = self._data.get(id(source))
        if name is None:
            name = self._data[id(source)] = f"kartosql_data_{len(self._data)}"
            self._register(name, display_rows(source))
        return name

    def _register(self, name: str, table: Any) -> None:
        self._tables.append(name)
        self._session.register(name, table)

    def _view(self, occurrence: Occurrence, body: str) -> None:
        schema, name = occurrence.view
        key = schema.translate(_LOWER), name.translate(_LOWER)  # DuckDB takes t and T for one view
        if schema not in self._session.instance.schemas:
            self._session.run(f"CREATE SCHEMA IF NOT EXISTS {quote(schema)}")
        made = (body, frozenset(self._variables.items()))
        former = self._former_views.pop(key, None)
        if former != made:
            self._replaced += former is not None
            create = "CREATE VIEW" if former is None else "CREATE OR REPLACE VIEW"
            self._session.run(f"{create} {quote(schema)}.{quote(name)} AS {body}")
        self.views[key] = made

    def _refused(self, source: Table, columns: Iterable[str], used: frozenset[str] | None) -> dict[str, str]:
        """Return why columns cannot be read; raises it for one that is certainly used."""
        found = {}
        for column in columns:
            try:
                sql_type(source.columns[column])
            except FormatError as e:
                e.message = f"{source.name}.{column}: {e.message}"
                if used is not None and column in used:
                    raise
                found[column] = e.message
        return found

    # -- the SQL of DuckDB -----------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        """Return a name as an identifier of DuckDB."""
        return quote(name)

    def null(self, type_: pa.DataType) -> str:
        """Return NULL as a value of a type."""
        return "NULL" if pa.types.is_null(type_) else f"CAST(NULL AS {binding_type(type_)})"

    def _is_collated(self, type_: pa.DataType) -> bool:
        return bool(pa.types.is_string(type_) and self._session.instance.settings.get("default_collation"))

    def as_key(self, name: str, type_: pa.DataType) -> str:
        """Return a column of a key; whatever texts are equal to the user, other values are other cells."""
        return f'{name} COLLATE "binary"' if self._is_collated(type_) else name

    def as_group(self, name: str, type_: pa.DataType) -> str:
        """Return a column that rows are counted by, with texts as bytes if others may be equal to them."""
        return f"encode({name})" if self._is_collated(type_) else name

    def raise_error(self, message: str, value: str) -> str:
        """Return an integer that fails when it is computed, with a message and a value behind it."""
        return f"CAST(error({literal(message)} || CAST({value} AS VARCHAR)) AS INTEGER)"

    def repeated(self, query: str, shown: Sequence[str]) -> str:
        """Return the query for some columns of another one, each row as often as OP of it says."""
        listed = ", ".join([*shown, f"unnest(range(CAST({OP} AS BIGINT)))"])
        return f"SELECT {', '.join(shown) or 'NULL AS nothing'} FROM (SELECT {listed} FROM ({query}) WHERE {OP} > 0)"

    # -- files -----------------------------------------------------------------------------------

    def row_counts(self, table: FileTable, files: Sequence[int]) -> Sequence[int]:
        """Return how many rows files have, by their footers; raises what is wrong with these."""
        session = self._session
        known = session.footers.statistics(session, table, files).rows(files)
        if known is not None:
            return known
        paths = session.set_files("kartosql_uncounted", [table.files[f] for f in files])
        sql = "SELECT file_name, num_rows FROM parquet_file_metadata(getvariable('kartosql_uncounted'))"
        counted = dict(session.rows(sql))
        return [counted[path] for path in paths]

    def arrow_relation(self, data: pa.Table) -> str:
        """Register Arrow data and return the name of the relation."""
        name = f"kartosql_given_{self._count}"
        self._count += 1
        self._register(name, data)
        return name

    def types_in_files(self, table: FileTable, files: Sequence[int], columns: Sequence[str]) -> dict[str, str]:
        """Return DuckDB's types that files give to columns; raises ``schema-mismatch`` where files disagree."""
        keys = [table.files[f] for f in files]
        self._session.set_files("kartosql_untyped", keys)
        rows = self._session.rows(
            "SELECT name, list(DISTINCT duckdb_type) FROM parquet_schema(getvariable('kartosql_untyped')) "
            "WHERE list_contains(?, name) AND duckdb_type <> '\"NULL\"' GROUP BY name",
            [list(columns)],
        )
        for name, types in rows:
            if len(types) > 1:
                raise FormatError(
                    f"{keys[0]} and others: the column {name!r} is {' and '.join(sorted(types))} in different files",
                    code="schema-mismatch",
                    hint="The schema of the table gives no type to choose; write the files again with one type.",
                )
        return {name: types[0] for name, types in rows}

    def rows(self, table: FileTable, files: Sequence[int], wanted: RowRequest) -> Iterator[str]:
        """Yield queries that together give the rows of files, one for each group of files that are read alike."""
        if wanted.beside:
            yield from (query for _, query in self.side_by_side(table, files, wanted))
            # DuckDB expects no rows of a positional join, and would take it for the small side of each other join. Of
            # this query without rows it expects many, whatever they are filtered by.
            keys = [t.files[f] for t, fs, _ in ((table, files, None), *wanted.beside) for f in fs]
            nulls = ["NULL"] * sum(len(w.names) + len(w.codes) for w in (wanted, *(w for _, _, w in wanted.beside)))
            yield f"SELECT * FROM (SELECT {', '.join(nulls)} FROM range({self._estimate(keys)}) LIMIT (SELECT 0))"
            return
        if wanted.ordered:
            yield self.rows_of(table, files, wanted)
            return
        for variant in table.variants(files):
            yield self.rows_of(table, variant.files, wanted, variant)

    def side_by_side(self, table: FileTable, files: Sequence[int], wanted: RowRequest) -> Iterator[tuple[int, str]]:
        """Yield queries for rows beside rows of other files, and where their files begin.

        One thread computes each of them, and each finds partition values in lists.
        """
        sizes, threads = self._session.files.sizes, self._session.instance.threads
        pays = sum(sizes.get(table.files[f]) or 0 for f in files) >= MIN_SLICE
        most = min(MAX_LISTED, -(-len(files) // threads) if pays else MAX_LISTED)
        for start in range(0, len(files), most):
            others = tuple((t, fs[start : start + most], w) for t, fs, w in wanted.beside)
            yield start, self.rows_of(table, files[start : start + most], replace(wanted, beside=others))

    def rows_of(
        self, table: FileTable, files: Sequence[int], wanted: RowRequest, variant: Variant | None = None
    ) -> str:
        """Return the query over some files of a table; ``variant`` is given for files with columns of their own."""
        reader, items, joined = self._rows(table, files, wanted, variant)
        for at, (other, its_files, its_wanted) in enumerate(wanted.beside, 1):
            its_reader, its_items, its_joined = self._rows(other, its_files, its_wanted, at=at)
            reader += f" POSITIONAL JOIN {its_reader}"
            items += its_items
            joined += its_joined
        return f"SELECT {', '.join(items) or 'NULL AS nothing'} FROM {reader}{joined}"

    def _rows(
        self, table: FileTable, files: Sequence[int], wanted: RowRequest, variant: Variant | None = None, at: int = 0
    ) -> tuple[str, list[str], str]:
        """Return what reads some files of a table, the columns of their rows, and what is joined for these."""
        alias = f"r{at or ''}"
        number = self._count
        self._count += 1
        file_keys = [table.files[f] for f in files]
        names, own = wanted.names, wanted.types
        stored = [c for c in names if c not in table.partition_keys]
        file_types = table.types if variant is None or variant.types is None else variant.types
        columns = [c for c in stored if c in own or not pa.types.is_null(file_types.get(c, pa.null()))]
        named = {c: c for c in table.schema.names} | dict(variant.names if variant is not None else ())
        twins = Counter(name.lower() for name in named.values())
        collide = any(twins[named[c].lower()] > 1 for c in columns)
        variable = f"kartosql_files_{number}"
        if variant is not None and variant.reading is not None:
            self._variables[variable] = str(variant.reading)
            self._session.set_files(variable, file_keys)
            self._session.data_keys += file_keys
            reader = csv_reader(f"getvariable('{variable}')", variant.reading)
            inner = [f"{alias}.{quote(c)}" for c in columns]
        elif collide or any(pa.types.is_duration(file_types[c]) for c in columns):
            # DuckDB cannot tell columns of a file apart whose names differ only in case, nor the unit of durations.
            reader = f"kartosql_rows_{number}"
            in_files = {named[c]: file_types[c] for c in columns}
            self._register(reader, self._arrow_rows(file_keys, [*in_files], in_files, table.may_lack))
            inner = [f"{alias}.c{i}" for i in range(len(columns))]
        else:
            declared = {named[c]: own.get(c) or sql_type(file_types[c]) for c in columns}
            self._variables[variable] = str(declared)
            self.has_floats |= any("DOUBLE" in type_ or "FLOAT" in type_ for type_ in declared.values())
            known = [] if variant is not None and variant.names else columns  # by the names of the table
            reader, inner = self._parquet_files(table, variable, file_keys, declared, alias, known)
        values = dict(zip(columns, inner, strict=True))
        if file_types is not table.types:
            values = {c: converted(v, file_types[c], table.types[c]) for c, v in values.items()} | {
                c: self.null(table.types[c]) for c in stored if c not in values and not pa.types.is_null(table.types[c])
            }
        shared = {} if variant is None else {c: v for c, v in variant.constants.items() if c in names}
        found, joined = self._partition_values(table, files, wanted, number, alias, shared)
        values |= found
        items = [f"{values[c]} AS {quote(name)}" for c, name in names.items() if c in values]
        items += [f"{found[name]} AS {quote(name)}" for name in wanted.codes]
        placed = wanted.ordered or wanted.numbered
        self.by_position |= placed or ".file_index" in "".join([*found.values(), joined])
        # Positions ascend in document order, and so does DuckDB's file index.
        items += [f"{alias}.file_index AS {FILE}{at or ''}"] if wanted.ordered else []
        items += [f"{alias}.file_row_number AS {ROW}{at or ''}"] if placed else []
        return f"{reader} {alias}", items, joined

    def _partition_values(
        self,
        table: FileTable,
        files: Sequence[int],
        wanted: RowRequest,
        number: int,
        alias: str,
        shared: Mapping[str, Any],
    ) -> tuple[dict[str, str], str]:
        """Return expressions for partition keys and codes of the rows of ``files``, and what is joined for them.

        They come with the columns of which all files have the ``shared`` values.

        A value that all files share is a constant. Else values are found by the position of the
        file: in a list, of which DuckDB touches all values for each vector of rows, or by a join.
        """
        partitions = table.partitions
        parts = [partitions.tuples[partitions.part_of_file[f]] for f in files]
        asked = [
            (key, [part[at] for part in parts], partitions.types[at])
            for at, key in enumerate(table.partition_keys)
            if key in wanted.names
        ]
        asked += [(key, [code[f] for f in files], pa.int64()) for key, code in wanted.codes.items()]
        asked += [(column, [value], table.types[column]) for column, value in shared.items()]
        values: dict[str, str] = {}
        columns: dict[str, pa.Array] = {}
        for at, (key, listed, type_) in enumerate(asked):
            name = f"kartosql_keys_{number}_{at}"
            if listed.count(listed[0]) == len(listed):
                values[key] = f"getvariable('{name}')[1]"
                listed = listed[:1]
            elif len(listed) <= MAX_LISTED:
                values[key] = f"getvariable('{name}')[CAST({alias}.file_index AS BIGINT) + 1]"
            else:
                values[key] = f"k{alias}.k{at}"
                columns[f"k{at}"] = array_of(listed, type_)
                continue
            self._variables[name] = sql_type(type_)
            self.assigned[name] = (sql_type(type_), listed, key)
            self._session.set_list(name, listed, type_)
        if not columns:
            return values, ""
        name = f"kartosql_parts_{number}"
        self._register(name, pa.table({"i": array_of(range(len(parts)), pa.uint64()), **columns}))
        return values, f" JOIN {name} k{alias} ON k{alias}.i = {alias}.file_index"

    def _set_once(self, variable: str, expression: str) -> None:
        self._variables[variable] = expression
        self.assigned[variable] = ("", expression, "")
        if self._former_variables.get(variable) != expression:
            self._former_variables.pop(variable, None)
            self._session.run(f"SET VARIABLE {variable} = {expression}")

    def _parquet_files(
        self,
        table: FileTable,
        variable: str,
        keys: Sequence[str],
        declared: dict[str, str],
        alias: str,
        known: Sequence[str],
    ) -> tuple[str, list[str]]:
        """Return a reader over Parquet files and the values of the declared columns in its rows, called ``alias``.

        Conditions on ``known`` columns may narrow what is read. Raises ``missing-file``, ``corrupt-file`` and
        ``schema-mismatch``.
        """
        session = self._session
        self.assigned[variable] = ("files", keys, "")
        session.set_files(variable, keys)
        session.data_keys += keys
        session.instance.remember_footers(table, keys)
        narrower = session.footers.check(session, table, keys, declared)
        options = f"getvariable('{variable}'), hive_partitioning = false"
        self._narrow(table, variable, keys, known)
        if not declared:
            return f"(SELECT file_index, file_row_number FROM read_parquet({options}))", []
        if narrower is not None:
            # Bound in half of the time that a schema takes; conditions still leave row groups out.
            values = [
                f"CAST({alias}.{quote(c)} AS {t})" if c in narrower else f"{alias}.{quote(c)}"
                for c, t in declared.items()
            ]
        else:
            # As a variable it is computed once, and not each time the view is bound.
            entries = [
                f"{literal(name)}: {{name: 'c{i}', type: {literal(type_)}, default_value: NULL}}"
                for i, (name, type_) in enumerate(declared.items())
            ]
            self._set_once(f"{variable}_schema", f"map {{{', '.join(entries)}}}")
            values = [f"{alias}.c{i}" for i in range(len(declared))]
            options += f", schema = getvariable('{variable}_schema')"
        return f"read_parquet({options}, can_have_nan = true, explicit_cardinality = {self._estimate(keys)})", values

    def _narrow(self, table: FileTable, variable: str, keys: Sequence[str], columns: Sequence[str]) -> None:
        """Keep the ends of large remote files, and show DuckDB of these only pages that may match, if that pays."""
        session, filesystem = self._session, self._session.instance.filesystem
        if filesystem is None:
            return
        from kartosql.engines.duckdb import large_files
        from kartosql.engines.duckdb.remote import keep_ends

        ends = keep_ends(table, session.files.begin_reading(keys))
        collated = session.instance.settings.get("default_collation")
        types = {c: table.types[c] for c in columns}
        plain = {c: t for c, t in types.items() if not (collated and pa.types.is_string(t))}
        wanted = large_files.wanted(self._asked[1], self._asked[0], plain) if self._asked is not None else None
        large = [key for key in self.alone.intersection(keys) if key in ends] if wanted is not None else []

        def note(key: str) -> None:
            with contextlib.suppress(*DAMAGE):
                part = large_files.part(ends, key, partial(filesystem.ranges, key), types, *(wanted or ("", [])))
                session.files.parts.update({} if part is None else {key: part})

        session.store.map(note, large)
        if not session.files.parts.keys().isdisjoint(large):
            session.set_files(variable, keys)

    def _estimate(self, keys: Sequence[str]) -> int:
        """Return about how many rows files have: roughly, so that many small scans have the same view."""
        sizes = self._session.files.sizes
        rows = max(1, sum(sizes.get(k) or 0 for k in keys) // 50)
        return rows if rows > EXACT_ROWS else 16 ** (rows.bit_length() // 4)

    def _arrow_rows(
        self, keys: Sequence[str], columns: Sequence[str], types: Mapping[str, pa.DataType], may_lack: frozenset[str]
    ) -> pa.Table:
        """Return rows of files as pyarrow reads them, exposed like ``_parquet_files`` does it."""
        import pyarrow.parquet as pq

        store = self._session.store
        self._session.files.stat(keys)
        tables = []
        for at, key in enumerate(keys):
            stopping.check()
            try:
                content = pa.BufferReader(store.read(key))
                lacking = may_lack.difference(pq.read_schema(content).names) if may_lack else frozenset()
                table = pq.read_table(content, columns=[c for c in columns if c not in lacking])
                arrays = [
                    pa.nulls(table.num_rows, types[c]) if c in lacking else table.column(c).cast(types[c])
                    for c in columns
                ]
            except (pa.ArrowException, OSError, KeyError) as e:
                reraise(e, f"Cannot read {store.display_name(key)!r}")
                raise FormatError(f"{store.display_name(key)}: {e}", code="corrupt-file") from None
            arrays += [array_of([at] * table.num_rows, pa.uint64()), array_of(range(table.num_rows), pa.int64())]
            tables.append(pa.table(arrays, [f"c{i}" for i in range(len(columns))] + ["file_index", "file_row_number"]))
        return pa.concat_tables(tables)
