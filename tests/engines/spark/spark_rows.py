"""Rows of DuckDB and Spark, made comparable."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import kartosql
from kartosql.engines.spark.scan import ScanFrames
from kartosql.engines.spark.types import stored_type


def on_spark(spark: Any, con: kartosql.Connection, text: str) -> pa.Table:
    """Return the rows of the first table occurrence of a statement, as Spark reads them."""
    query: Any = con.sql(text)
    views = ScanFrames(spark, con.store)
    table: pa.Table = views.frame(query.report.scan.occurrences[0]).toArrow()
    return table


def on_duckdb(con: kartosql.Connection, text: str) -> pa.Table:
    """Return the rows of a statement in the types that Spark stores them in."""
    table = con.sql(text).arrow()
    return table.cast(pa.schema([pa.field(f.name, stored_type(f.type)) for f in table.schema]))


def comparable(table: pa.Table) -> tuple[dict[str, pa.DataType], list[str]]:
    """Return types by column, and rows as text in an order of their own."""
    names = sorted(table.column_names)
    types = {name: table.schema.field(name).type for name in names}
    return types, sorted(repr(tuple(row.values())) for row in table.select(names).to_pylist())
