"""Statements on both engines over registered data, for the tests of Spark."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

import kartosql
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.engines.spark.engine import SparkStatement


class Both:
    """Statements on both engines over a store, and over tables that are registered."""

    def __init__(self, url: str, tables: dict[str, pa.Table] | None = None, **settings: Any) -> None:
        self.con = kartosql.connect(url, **settings)
        for name, table in (tables or {}).items():
            self.con.register(name, table)

    def __enter__(self) -> Both:
        return self

    def __exit__(self, *_: object) -> None:
        self.con.close()

    def translation(self, sql: str, parameters: Any = None) -> str:
        """Return a statement in Spark SQL, without a session of Spark; raises as the engine does."""
        query = self.con.sql(sql, parameters, engine="duckdb")
        statement = self.con._session.runtime.statement(
            self.con.settings, FileAccess(self.con._session.runtime.store), keys=()
        )
        files = FileAccess(self.con._session.runtime.store)
        found = SparkStatement(statement, files, self.con.settings, lambda scan: statement)
        try:
            return found.translate(query._attempt.bound, query.report.scan)[0].sql
        finally:
            found.close()

    def on_spark(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Return the rows that Spark gives."""
        return rows_of(self.con.sql(sql, parameters, engine="spark").arrow())

    def on_duckdb(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Return the rows that DuckDB gives."""
        return rows_of(self.con.sql(sql, parameters, engine="duckdb").arrow())


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of a table as tuples."""
    # Python has fewer years than the engines.
    plain = [c if _plain(c.type) == c.type else c.cast(_plain(c.type)) for c in table.columns]
    columns = [column.to_pylist() for column in plain]
    return list(zip(*columns, strict=True)) if columns else []


def _plain(type_: pa.DataType) -> pa.DataType:
    """Return a type with numbers in the place of dates and times."""
    t = pa.types
    if t.is_timestamp(type_) or t.is_date(type_):
        return pa.int64() if t.is_timestamp(type_) else pa.int32()
    if t.is_list(type_):
        return pa.list_(_plain(type_.value_type))
    return pa.struct([pa.field(f.name, _plain(f.type)) for f in type_]) if t.is_struct(type_) else type_


def same(a: Any, b: Any, tolerance: float = 1e-12) -> bool:
    """Return whether two values are the same, floats up to a relative tolerance."""
    if isinstance(a, float) and isinstance(b, float):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b or math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-300)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k], tolerance) for k in a)
    return type(a) is type(b) and bool(a == b)


def unordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows in an order that hangs on their values only."""
    return sorted(rows, key=lambda row: [_key(v) for v in row])


def _key(value: Any) -> tuple[str, Any]:
    if isinstance(value, float):
        return ("float", (1, 0.0) if math.isnan(value) else (0, float(f"{value:.9g}")))
    return (type(value).__name__, repr(value))
