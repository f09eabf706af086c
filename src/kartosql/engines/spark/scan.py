"""Pruned scans as temporary views of Spark, one for each table occurrence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa

from kartosql.engines.duckdb.changelog import record_names
from kartosql.engines.joining import SEED, Codes, joins_of
from kartosql.engines.spark.attached import check_compared, state
from kartosql.engines.spark.files import FILE, ROW, FileQueries
from kartosql.engines.spark.listing import moved
from kartosql.engines.spark.session import isolated, refuse_connect
from kartosql.engines.spark.shapes import Shapes
from kartosql.engines.spark.types import is_supported, quote, spark_type, stored_type
from kartosql.errors import FormatError, NotPortable
from kartosql.plan.scan import OccurrenceScan, PartScan, Scan
from kartosql.store import Files
from kartosql.tables.table import Changelog, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Only what reading depends on; the plan of a scan keeps the session that made it.
READING = {
    "spark.sql.caseSensitive": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.variable.substitute": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
}
_numbers = count()


class Views:
    """Makes temporary views in a session, with the rows and types of table occurrences.

    A view has the columns that the occurrence uses, under the names that DuckDB's relations give
    them (``Table.exposed``), and exactly the rows of that relation. Types are those of
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
        refuse_connect(spark)
        self._spark = spark
        self._reading = isolated(spark, READING)
        self._files = FileQueries(self._reading, store, shapes or Shapes(store))
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

    def create_registered(self, source: Table) -> str:
        """Create the view of registered Arrow data and return its name."""
        frame = self._reading.createDataFrame(stored_columns(source))
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
        of_seed, joins = joins_of(scan)
        names = {seed.part.name: SEED, **{join.scan.part.name: join.alias for join in joins}}
        body = f"({self._part(seed, columns, shown, typed, of_seed)}) {SEED}"
        for join in joins:
            on = [*(quote(shown[c]) for c in join.columns), *map(quote, join.codes)]
            query = self._part(join.scan, columns, shown, typed, join.codes)
            equal = " AND ".join(f"{SEED}.{name} = {join.alias}.{name}" for name in on)
            body += f" {join.keyword} ({query}) {join.alias} ON {equal}"
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

    def _is_wanted(self, source: Table, column: str, used: frozenset[str] | None) -> bool:
        if used is not None and column not in used:
            return False
        try:
            _check_type(source, column)
        except (FormatError, NotPortable):
            if not self._leave_out:
                raise
            self.left_out.add(column)
            return False
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
        if isinstance(part.rows, Changelog):
            return self._state(scan, part.rows, wanted, shown)
        own = set(part.columns) & set(wanted) | set(part.join_key)
        untyped = [c for c in table.schema.names if c in own and pa.types.is_null(table.types[c])]
        types = self._files.types_in_files(table, scan.files, untyped) if untyped else {}
        typed |= {(part.name, c): t for c, t in types.items()}
        names = {c: shown[c] for c in table.schema.names if c in own and (c not in untyped or c in types)}
        plain = [f for f in scan.files if f not in scan.overlaid]
        overlaid = [f for f in scan.files if f in scan.overlaid]
        queries = [*self._files.rows(table, plain, names, types, codes)] if plain else []
        if overlaid:
            outer = ", ".join(map(quote, [*names.values(), *codes])) or "NULL AS nothing"
            cell = ", ".join(quote(shown[c]) for c in part.join_key)
            inner = " UNION ALL ".join(self._files.rows(table, overlaid, names, types, codes, ordered=True))
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
        records = " UNION ALL ".join(self._files.rows(table, scan.files, names, {}, {}))
        return state(log, columns, names, table.types, records)


def check_types(scan: OccurrenceScan) -> None:
    """Raise what a view of a table occurrence would raise for the types of its columns."""
    source, used = scan.occurrence.source, scan.occurrence.columns
    available = {c for p in scan.parts for c in p.part.columns}
    for column in source.columns:
        if column in available and (used is None or column in used):
            _check_type(source, column)
    for part in scan.parts:
        if isinstance(part.part.rows, Changelog) and not scan.is_empty:
            check_compared(part.part.rows, part.part.table.types)


def _check_type(source: Table, column: str) -> None:
    try:
        stored_type(source.columns[column])
    except (FormatError, NotPortable) as e:
        e.message = f"{source.name}.{column}: {e.message}"
        raise


def stored_columns(source: Table) -> pa.Table:
    """Return registered data as Spark holds them, without columns of types that it does not have."""
    table: pa.Table = source.data
    known = [c for c in table.column_names if is_supported(table.schema.field(c).type)]
    return pa.table([_stored(table.column(c), c) for c in known], names=[source.exposed.get(c, c) for c in known])


def _empty(source: Table, columns: Sequence[str]) -> str:
    items = [f"CAST(NULL AS {spark_type(source.columns[c])}) AS {quote(source.exposed.get(c, c))}" for c in columns]
    return f"SELECT {', '.join(items) or 'NULL AS nothing'} WHERE false"


def _stored(values: pa.ChunkedArray, column: str) -> pa.ChunkedArray:
    try:
        return values.cast(stored_type(values.type))
    except pa.ArrowInvalid as e:
        raise NotPortable(
            f"{column!r} holds values that Spark does not have: {e}", hint="Use engine='duckdb'."
        ) from None
