"""The tables ``tables`` and ``columns`` of information_schema, as tools that list what there is ask for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from kartosql.errors import KartosqlError, SqlError
from kartosql.tables.names import CATALOG, MAIN, Name, Tables
from kartosql.tables.table import Table, arrow_table
from kartosql.text.types import type_name

SCHEMA = "information_schema"
_KINDS = {"view": "VIEW", "registered": "LOCAL TEMPORARY"}
_TABLES = ("table_catalog", "table_schema", "table_name", "table_type")
_COLUMNS = (*_TABLES[:3], "column_name", "ordinal_position", "column_default", "is_nullable", "data_type")


def system_table(
    name: str, tables: Tables, known: Sequence[tuple[Name, str]], schema_of: Callable[[str], pa.Schema]
) -> Table:
    """Return a table of information_schema about ``known`` tables, which are names with their kinds.

    ``schema_of`` a view are the columns of its query. Tables that cannot be read have no columns. Raises
    ``unknown-table``.
    """
    columns: tuple[str, ...]
    rows: list[Sequence[Any]]
    if name == "tables":
        columns, rows = _TABLES, [(*_place(at), _KINDS.get(kind, "BASE TABLE")) for at, kind in known]
    elif name == "columns":
        columns, rows = _COLUMNS, [row for at, kind in known for row in _columns(at, kind, tables, schema_of)]
    else:
        hint = f"It has {SCHEMA}.tables and {SCHEMA}.columns."
        raise SqlError(f"There is no table {SCHEMA}.{name}.", code="unknown-table", hint=hint)
    fields = [pa.field(c, pa.int32() if c == "ordinal_position" else pa.string()) for c in columns]
    arrays = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(fields)]
    return arrow_table(f"{SCHEMA}.{name}", pa.Table.from_arrays(arrays, schema=pa.schema(fields)))


def _place(name: Name) -> tuple[str, str, str]:
    return CATALOG, ".".join(name[:-1]) or MAIN, name[-1]


def _columns(name: Name, kind: str, tables: Tables, schema_of: Callable[[str], pa.Schema]) -> list[Sequence[Any]]:
    try:
        if kind == "view":
            types = {field.name: field.type for field in schema_of(name[0])}
        else:
            types = dict(tables.find(name).columns)
    except KartosqlError:
        return []
    found = enumerate(types.items(), 1)
    return [(*_place(name), column, at, None, "YES", type_name(type_)) for at, (column, type_) in found]
