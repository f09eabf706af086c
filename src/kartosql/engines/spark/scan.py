"""Pruned scans as DataFrames of Spark, one for each table occurrence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from kartosql.engines.spark.file_queries import FileQueries, check_comparable
from kartosql.engines.spark.file_shapes import FileShapes
from kartosql.engines.spark.listing import moved
from kartosql.engines.spark.session import isolated, refuse_connect
from kartosql.engines.spark.types import is_supported, stored_type
from kartosql.errors import FormatError, NotPortable
from kartosql.plan.scan import OccurrenceScan
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


class ScanFrames:
    """Makes DataFrames of a session, with the rows and types of table occurrences.

    One has the columns that the occurrence uses, under the names that DuckDB's relations give
    them (``Table.exposed``), and exactly the rows of that relation. Types are those of
    ``stored_type``. Spark opens the files of the scan, and no others, when rows are asked for;
    nothing is listed. ``shapes`` remembers schemas of files over several statements.

    They must be read with conditions that hold for the planned statement, so not for other
    statements. What a scan tells from metadata alone (``PartScan.summary``, ``Scan.counts``) is
    not used: the statement runs as it stands.

    With ``leave_out`` columns of types that Spark does not have are left out, and noted in
    ``left_out``; else they are an error if they are used.
    """

    def __init__(
        self, spark: SparkSession, store: Files, shapes: FileShapes | None = None, *, leave_out: bool = False
    ) -> None:
        refuse_connect(spark)
        self._spark = spark
        self._reading = isolated(spark, READING)
        self._files = FileQueries(self._reading, store, shapes or FileShapes(store))
        self._leave_out = leave_out
        self.left_out: set[str] = set()

    def registered(self, source: Table) -> DataFrame:
        """Return registered Arrow data as a DataFrame of the session."""
        return moved(self._reading.createDataFrame(stored_columns(source)), self._spark)

    def frame(self, scan: OccurrenceScan) -> DataFrame:
        """Return the rows of one table occurrence as a DataFrame of the session.

        Raises ``missing-file``, ``corrupt-file`` and ``schema-mismatch`` for files that cannot be
        read, ``not-portable`` for types that Spark does not have, ``store-unreachable``.
        """
        return moved(self._reading.sql(self._body(scan)), self._spark)

    def _body(self, scan: OccurrenceScan) -> str:
        """Return the query over exactly the files of a scan, as ``engines.duckdb.relations`` has it."""
        source, used = scan.occurrence.source, scan.occurrence.columns
        available = {c for p in scan.parts for c in p.part.columns}
        columns = [c for c in source.columns if c in available and self._is_wanted(source, c, used)]
        return self._files.empty(source, columns) if scan.is_empty else self._files.over_files(scan, columns, {})

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


def check_types(scan: OccurrenceScan) -> None:
    """Raise what the DataFrame of a table occurrence would raise for the types of its columns."""
    source, used = scan.occurrence.source, scan.occurrence.columns
    available = {c for p in scan.parts for c in p.part.columns}
    for column in source.columns:
        if column in available and (used is None or column in used):
            _check_type(source, column)
    for part in scan.parts:
        if isinstance(part.part.rows, Changelog) and not scan.is_empty:
            for column in () if part.part.rows.key else part.part.rows.compared:
                check_comparable(part.part.table.types[column])


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


def _stored(values: pa.ChunkedArray, column: str) -> pa.ChunkedArray:
    try:
        return values.cast(stored_type(values.type))
    except pa.ArrowInvalid as e:
        raise NotPortable(
            f"{column!r} holds values that Spark does not have: {e}", hint="Use engine='duckdb'."
        ) from None
