"""Pruned scans as temporary views of Spark, one for each table occurrence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from kartosql.engines.duckdb.changelog import record_names
from kartosql.engines.duckdb.files import FileAccess
from kartosql.engines.duckdb.shared import shared_partitions
from kartosql.engines.spark.attached import Places, converted, state, with_validity
from kartosql.engines.spark.listing import FileColumn, moved, relation
from kartosql.engines.spark.rows import ROW, decoder
from kartosql.engines.spark.session import is_connect, isolated
from kartosql.engines.spark.shapes import Reading, Shapes, corrupt, is_void, reading
from kartosql.engines.spark.types import is_supported, quote, spark_type, stored_type
from kartosql.errors import ExecutionError, FormatError, NotPortable
from kartosql.formats.kartothek.dataset import DatasetTable, Variant
from kartosql.plan.scan import OccurrenceScan, PartScan, Scan
from kartosql.plan.tables import Changelog, TableSource
from kartosql.store import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE = "__kartosql_file"  # the position of a file in its table
MAX_GROUPS = 8  # differently written files of one table that are read each in their own way
# Only what reading depends on; the plan of a scan keeps the session that made it.
READING = {
    "spark.sql.caseSensitive": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
}
_numbers = count()

Codes = Mapping[str, Sequence[int]]  # a number for each file of a table, by the name of the column that it becomes


class Views:
    """Makes temporary views in a session, with the rows and types of table occurrences.

    A view has the columns that the occurrence uses, under the names that DuckDB's relations give
    them (``TableSource.exposed``), and exactly the rows of that relation. Types are those of
    ``stored_type``. Spark opens the files of the scan, and no others, when rows are asked for;
    nothing is listed. ``shapes`` remembers schemas of files over several statements.

    Views must be read with conditions that hold for the planned statement, so not for other
    statements. What a scan tells from metadata alone (``PartScan.summary``, ``Scan.counts``) is
    not used: the statement runs as it stands.

    With ``leave_out`` columns of types that Spark does not have are left out, and noted in
    ``left_out``; else they are an error if they are used.
    """

    def __init__(
        self, spark: SparkSession, store: Files, shapes: Shapes | None = None, *, leave_out: bool = False
    ) -> None:
        if is_connect(spark):
            raise ExecutionError(
                "Lists of files cannot be handed to Spark Connect.",
                code="spark-connect",
                hint="Use a classic session, or engine='duckdb'.",
            )
        self._spark = spark
        self._store = store
        self._shapes = shapes or Shapes(store)
        self._access = FileAccess(store)
        self._places = Places(store)
        self._reading = isolated(spark, READING)
        self._names: list[str] = []
        self._leave_out = leave_out
        self.left_out: set[str] = set()

    def create(self, scan: Scan) -> dict[int, str]:
        """Create a view per table occurrence; returns their names by ``Occurrence.id``.

        Registered data have no scan and are created by ``create_registered``. Raises
        ``missing-file``, ``corrupt-file`` and ``schema-mismatch`` for files that cannot be read,
        ``not-portable`` for types that Spark does not have, ``store-unreachable``.
        """
        return {o.occurrence.id: self._view(self.frame(o)) for o in scan.occurrences}

    def create_registered(self, source: TableSource) -> str:
        """Create the view of registered Arrow data and return its name."""
        table: pa.Table = source.registered
        arrays, names = [], []
        for column in table.column_names:
            if is_supported(table.schema.field(column).type):
                values = table.column(column)
                arrays.append(_stored(values, column))
                names.append(source.exposed.get(column, column))
        frame = self._reading.createDataFrame(pa.table(arrays, names=names))
        return self._view(moved(frame, self._spark))

    def frame(self, scan: OccurrenceScan) -> DataFrame:
        """Return the rows of one table occurrence as a DataFrame of the session; raises as ``create``."""
        return moved(self._reading.sql(self._body(scan)), self._spark)

    def close(self) -> None:
        """Drop the views; DataFrames made of them stay."""
        while self._names:
            self._spark.catalog.dropTempView(self._names.pop())

    def _view(self, frame: DataFrame) -> str:
        name = f"__kartosql_{next(_numbers)}"
        frame.createOrReplaceTempView(name)
        self._names.append(name)
        return name

    # -- one occurrence --------------------------------------------------------------------------

    def _body(self, scan: OccurrenceScan) -> str:
        """Return the query over exactly the files of a scan, as ``engines.duckdb.relations`` has it."""
        source, used = scan.occurrence.source, scan.occurrence.columns
        available = {c for p in scan.parts for c in p.part.columns}
        columns = [c for c in source.columns if c in available and self._is_wanted(source, c, used)]
        if scan.is_empty:
            return _empty(source, columns)
        seed = scan.parts[0]
        shown = {c: source.exposed.get(c, c) for c in source.columns}
        typed: dict[tuple[str, str], pa.DataType] = {}
        names = {p.part.name: f"p{i}" for i, p in enumerate(scan.parts) if p.files}
        shared = {p.part.name: shared_partitions(seed.part, p.part) for p in scan.parts[1:] if p.files}
        codes = {name: found for name, found in shared.items() if found is not None}
        of_seed = {f"__kartosql_{name}": found.of_seed for name, found in codes.items()}
        body = f"({self._part(seed, columns, shown, typed, of_seed)}) p0"
        for part in scan.parts[1:]:
            if part.files:
                alias, code = names[part.part.name], codes.get(part.part.name)
                coded = code.columns if code is not None else ()
                on = [quote(shown[c]) for c in part.part.join_key if c not in coded]
                of_part = {} if code is None else {f"__kartosql_{part.part.name}": code.of_part}
                on += map(quote, of_part)
                join = "INNER JOIN" if part.join == "inner" else "LEFT JOIN"
                query = self._part(part, columns, shown, typed, of_part)
                equal = " AND ".join(f"p0.{name} = {alias}.{name}" for name in on)
                body += f" {join} ({query}) {alias} ON {equal}"
        items = []
        for column in columns:
            owner = names.get(source.owner[column])
            type_ = source.columns[column]
            if pa.types.is_null(type_):
                type_ = typed.get((source.owner[column], column), type_)
            read = owner is not None and not pa.types.is_null(type_)
            value = f"{owner}.{quote(shown[column])}" if read else f"CAST(NULL AS {spark_type(type_)})"
            items.append(f"{value} AS {quote(shown[column])}")
        return f"SELECT {', '.join(items) or 'NULL AS nothing'} FROM {body}"

    def _is_wanted(self, source: TableSource, column: str, used: frozenset[str] | None) -> bool:
        if used is not None and column not in used:
            return False
        try:
            stored_type(source.columns[column])
        except (FormatError, NotPortable) as e:
            if self._leave_out:
                self.left_out.add(column)
                return False
            e.message = f"{source.name}.{column}: {e.message}"
            raise
        return True

    def _part(
        self,
        scan: PartScan,
        wanted: Sequence[str],
        shown: Mapping[str, str],
        typed: dict[tuple[str, str], pa.DataType],
        codes: Codes,
    ) -> str:
        """Return the query over the files of one dataset, overlays resolved.

        Types that only the files give are added to ``typed``; ``codes`` are numbers of files that
        become columns.
        """
        part, table = scan.part, scan.part.table
        if part.changelog is not None:
            return self._state(scan, part.changelog, wanted, shown)
        own = set(part.columns) & set(wanted) | set(part.join_key)
        untyped = [c for c in table.schema.names if c in own and pa.types.is_null(table.types[c])]
        types = self._types_in_files(table, scan.files, untyped) if untyped else {}
        typed |= {(part.name, c): t for c, t in types.items()}
        names = {c: shown[c] for c in table.schema.names if c in own and (c not in untyped or c in types)}
        plain = [f for f in scan.files if f not in scan.overlaid]
        overlaid = [f for f in scan.files if f in scan.overlaid]
        queries = [*self._rows(table, plain, names, types, codes)] if plain else []
        if overlaid:
            outer = ", ".join(map(quote, [*names.values(), *codes])) or "NULL AS nothing"
            cell = ", ".join(quote(shown[c]) for c in part.join_key)
            inner = " UNION ALL ".join(self._rows(table, overlaid, names, types, codes, ordered=True))
            queries.append(
                f"SELECT {outer} FROM (SELECT *, row_number() OVER (PARTITION BY {cell} "
                f"ORDER BY {FILE} DESC, {ROW} DESC) AS __kartosql_rank FROM ({inner})) WHERE __kartosql_rank = 1"
            )
        return " UNION ALL ".join(queries)

    def _state(self, scan: PartScan, log: Changelog, wanted: Sequence[str], shown: Mapping[str, str]) -> str:
        """Return the query over the rows that hold after all records of some files."""
        table = scan.part.table
        columns = [c for c in table.schema.names if c in set(log.compared) & set(wanted)]
        names = record_names(log, columns, shown, table.schema.names)
        records = " UNION ALL ".join(self._rows(table, scan.files, names, {}, {}))
        return state(log, columns, names, table.types, records)

    # -- files -------------------------------------------------------------------------------------

    def _rows(
        self,
        table: DatasetTable,
        files: Sequence[int],
        names: Mapping[str, str],
        types: Mapping[str, pa.DataType],
        codes: Codes,
        *,
        ordered: bool = False,
    ) -> Iterator[str]:
        """Yield queries that together give the rows of some files; ``names`` maps columns to the names they get."""
        for variant in table.variants(files):
            yield from self._variant(table, variant, names, types, codes, ordered=ordered)

    def _variant(
        self,
        table: DatasetTable,
        variant: Variant,
        names: Mapping[str, str],
        types: Mapping[str, pa.DataType],
        codes: Codes,
        *,
        ordered: bool,
    ) -> Iterator[str]:
        own = table.types if variant.types is None else variant.types
        stored_in = [c for c in names if c not in table.partition_keys]
        # Columns that files with columns of their own lack are NULL, and so are those without a type.
        missing = [c for c in stored_in if variant.types is not None and pa.types.is_null(own.get(c, pa.null()))]
        declared = {c: types.get(c, own[c]) for c in stored_in if c not in missing}
        for group, readings in self._groups(table, variant.files, declared):
            shared, nullable = with_validity(self._file_columns(table, group, names, codes, ordered))
            if readings is None:
                view = self._decoded(table, group, declared, shared)
                values = {c: f"c{i}" for i, c in enumerate(declared)}
            else:
                stored = {c: r.type for c, r in readings.items() if r is not None}
                view = self._native(table, group, stored, shared, ordered=ordered)
                values = {
                    c: f"CAST(NULL AS {spark_type(declared[c])})" if r is None else r.of(c) for c, r in readings.items()
                }
            if variant.types is not None:
                values = {c: converted(v, own[c], table.types[c]) for c, v in values.items()}
                values |= {c: f"CAST(NULL AS {spark_type(table.types[c])})" for c in missing}
            values |= {**{c.name: quote(c.name) for c in shared}, **nullable}
            items = [f"{values[c]} AS {quote(name)}" for c, name in names.items()]
            items += [quote(name) for name in codes]
            items += [FILE, ROW] if ordered else []
            yield f"SELECT {', '.join(items) or 'NULL AS nothing'} FROM {view}"

    def _file_columns(
        self, table: DatasetTable, files: Sequence[int], names: Mapping[str, str], codes: Codes, ordered: bool
    ) -> list[FileColumn]:
        partitions = table.partitions
        folders = [partitions.part_of_file[f] for f in files]
        found = [
            FileColumn(key, partitions.types[at], [partitions.columns[at][folder] for folder in folders])
            for at, key in enumerate(table.partition_keys)
            if key in names
        ]
        found += [FileColumn(name, pa.int64(), [numbers[f] for f in files]) for name, numbers in codes.items()]
        return [*found, FileColumn(FILE, pa.int64(), files)] if ordered else found

    def _native(
        self,
        table: DatasetTable,
        files: Sequence[int],
        stored: Mapping[str, str],
        shared: Sequence[FileColumn],
        *,
        ordered: bool,
    ) -> str:
        """Return a view over files that Spark's own reader reads."""
        frame = self._relation("parquet", table, files, stored, shared)
        return self._over(frame.selectExpr("*", f"_metadata.row_index AS {ROW}") if ordered else frame)

    def _decoded(
        self,
        table: DatasetTable,
        files: Sequence[int],
        declared: Mapping[str, pa.DataType],
        shared: Sequence[FileColumn],
    ) -> str:
        """Return a view over files that workers decode with Arrow."""
        frame = self._relation("binary", table, files, {}, shared)
        types = [f"c{i} {spark_type(t)}" for i, t in enumerate(declared.values())]
        types += [f"{quote(c.name)} {spark_type(c.type)}" for c in shared]
        function = decoder(declared, [c.name for c in shared])
        return self._over(frame.mapInArrow(function, ", ".join([*types, f"{ROW} BIGINT"])))

    def _over(self, frame: DataFrame) -> str:
        name = f"kartosql_rows_{next(_numbers)}"
        frame.createOrReplaceTempView(name)
        return name

    def _relation(
        self,
        format_: str,
        table: DatasetTable,
        files: Sequence[int],
        stored: Mapping[str, str],
        shared: Sequence[FileColumn],
    ) -> DataFrame:
        keys = [table.files[f] for f in files]
        sizes = [self._access.sizes[k] or 0 for k in keys]
        places = [self._places.of(k) for k in keys]
        paths = [place.path(key) for place, key in places]
        root, options = places[0][0].root, places[0][0].options
        return relation(self._reading, format_, root, paths, sizes, stored, shared, options)

    def _shapes_of(self, table: DatasetTable, files: Sequence[int]) -> list[int]:
        keys = [table.files[f] for f in files]
        self._access.stat(keys)
        self._store.admit(keys)
        sizes = [self._access.sizes[k] or 0 for k in keys]
        for key, size in zip(keys, sizes, strict=True):
            if size == 0:
                raise corrupt(key, "it is empty")  # Spark would leave it out
        return self._shapes.of(list(zip(keys, sizes, strict=True)))

    def _groups(
        self, table: DatasetTable, files: Sequence[int], declared: Mapping[str, pa.DataType]
    ) -> list[tuple[list[int], dict[str, Reading | None] | None]]:
        """Return files that are read in the same way, and how.

        That is: a reading per column, None for one that is NULL in all of them; or None as a
        whole where only Arrow reads them right.
        """
        shapes = self._shapes_of(table, files)
        lower = [c.lower() for c in table.schema.names]
        if any(lower.count(c.lower()) > 1 for c in declared):
            return [(list(files), None)]  # Spark finds columns by name again when it runs, whatever their case
        by_shape: dict[int, list[int]] = {}
        for file, number in zip(files, shapes, strict=True):
            by_shape.setdefault(number, []).append(file)
        found: dict[object, tuple[list[int], dict[str, Reading | None] | None]] = {}
        for number, listed in sorted(by_shape.items(), key=lambda item: -len(item[1])):
            way = self._way(number, table.files[listed[0]], declared)
            name = None if way is None else tuple(way.items())
            if name not in found and len(found) >= MAX_GROUPS:
                name, way = None, None
            found.setdefault(name, ([], way))[0].extend(listed)
        return list(found.values())

    def _way(self, number: int, key: str, declared: Mapping[str, pa.DataType]) -> dict[str, Reading | None] | None:
        shape = self._shapes.shape(number)
        found: dict[str, Reading | None] = {}
        arrow = False
        for name, type_ in declared.items():
            column = shape.get(name)
            if column is None:
                raise _mismatch(f"{key}: the column {name!r} is missing")
            if is_void(column):
                found[name] = None
                continue
            try:
                found[name] = reading(column, type_)
            except ValueError:
                raise _mismatch(
                    f"{key}: the column {name!r} is {column.arrow}, but {type_} in the schema of its table"
                ) from None
            arrow |= found[name] is None
        return None if arrow else found

    def _types_in_files(
        self, table: DatasetTable, files: Sequence[int], columns: Sequence[str]
    ) -> dict[str, pa.DataType]:
        """Return the type that files give to columns; those that hold only NULL are left out.

        Raises ``schema-mismatch`` where files disagree.
        """
        found: dict[str, pa.DataType] = {}
        for number in set(self._shapes_of(table, files)):
            shape = self._shapes.shape(number)
            for name in columns:
                column = shape.get(name)
                if column is None or is_void(column):
                    continue
                type_ = stored_type(column.arrow)
                if not found.setdefault(name, type_).equals(type_):
                    raise _mismatch(
                        f"{table.files[files[0]]} and others: the column {name!r} is {found[name]} and {type_} "
                        "in different files"
                    )
        return found


def _empty(source: TableSource, columns: Sequence[str]) -> str:
    items = [f"CAST(NULL AS {spark_type(source.columns[c])}) AS {quote(source.exposed.get(c, c))}" for c in columns]
    return f"SELECT {', '.join(items) or 'NULL AS nothing'} WHERE false"


def _stored(values: pa.ChunkedArray, column: str) -> pa.ChunkedArray:
    try:
        return values.cast(stored_type(values.type))
    except pa.ArrowInvalid as e:
        raise NotPortable(
            f"{column!r} holds values that Spark does not have: {e}", hint="Use engine='duckdb'."
        ) from None


def _mismatch(message: str) -> FormatError:
    return FormatError(
        message,
        code="schema-mismatch",
        hint="The file was written with another schema; kartothek would refuse it too.",
    )
