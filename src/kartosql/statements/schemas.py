"""RECORD SCHEMA and EXPORT: schema histories, and rows as datasets of Open Data Fabric."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from kartosql.errors import UsageError, text_of
from kartosql.failures import reraise
from kartosql.formats.kartothek import naming
from kartosql.result import Query
from kartosql.schema_log import blocks_of
from kartosql.session import Session
from kartosql.sql import write_statements as ws
from kartosql.sql.statements import Select
from kartosql.statements import results
from kartosql.statements.query_rows import QueryRows
from kartosql.statements.targets import cube_name, need_uuid, resolved
from kartosql.store import Store
from kartosql.write import datasets
from kartosql.write.commit import utc_now
from kartosql.write.layout import columns_of
from kartosql.write.odf import check_empty, write_chain, write_dataset


def run_schema(
    session: Session,
    statement: ws.RecordSchema | ws.ExportHistory | ws.ExportOdf,
    read: Callable[[Select, str], QueryRows],
) -> pa.Table:
    """Run RECORD or EXPORT, and return what was recorded or written; ``read`` gives the rows of a query."""
    tables, text = session.tables(), statement.text
    if isinstance(statement, ws.ExportOdf):
        rows = read(statement.query, statement.url)
        names = rows.given.names
        key = resolved(statement.primary_key, names, "The query", text)
        event = (statement.event_time,) if statement.event_time is not None else ()
        event_time = next(iter(resolved(event, names, "The query", text)), None)
        return results.exported(statement.url, export_odf(session, rows, statement.url, key, event_time))
    if isinstance(statement, ws.RecordSchema):
        uuid = cube_name(tables.snapshot, statement.target, text) or need_uuid(tables.snapshot, statement.target, text)
        return results.recorded(record_schema(session, uuid))
    tables.find(statement.target.parts, statement.target.span, text)
    name = ".".join(statement.target.parts)
    return results.exported(statement.url, export_history(session, name, statement.url))


def record_schema(session: Session, table: str) -> list[dict[str, Any]]:
    """Add the schemas of a dataset, or of all of a cube, to their histories where they are not there yet."""
    operation = session.operation("record_schema")
    return [row for uuid in _uuids_of(session, table) for row in datasets.record_schema(operation, uuid)]


def _uuids_of(session: Session, table: str) -> list[str]:
    snapshot = session.snapshot()
    if text_of(table) in snapshot.members and snapshot.is_cube(table):
        return [f"{table}{naming.CUBE_SEPARATOR}{name}" for name in snapshot.names(table)]
    parts = named(table)
    uuid = table if len(parts) == 1 else naming.CUBE_SEPARATOR.join(parts)
    if uuid not in snapshot.keys:
        raise UsageError(f"There is no dataset {table!r}.", code="unknown-table")
    return [uuid]


def export_history(session: Session, table: str, target: str | os.PathLike[str] | Store) -> dict[str, Any]:
    """Write the schema history of a dataset as a chain that other tools of Open Data Fabric read."""
    session.check_writable()
    tables = session.tables()
    blocks = blocks_of(tables.find(named(table), (0, 0), table), tables.snapshot)
    store = target if isinstance(target, Store) else Store(target, create=True)
    check_empty(store)
    return {"head": write_chain(store, blocks), "blocks": len(blocks)}


def export_odf(
    session: Session,
    data: Any,
    target: str | os.PathLike[str] | Store,
    primary_key: str | Iterable[str] = (),
    event_time: str | None = None,
) -> dict[str, Any]:
    """Write rows as a new root dataset of Open Data Fabric, and return its ``id``, ``head``, ``rows``, ``bytes``."""
    session.check_writable()
    keys = columns_of(primary_key, "primary_key")
    try:
        # Through the reader of our own results errors keep their codes.
        rows = data.reader() if isinstance(data, Query) else pa.RecordBatchReader.from_stream(data)
    except (TypeError, ValueError, pa.ArrowException) as e:
        reraise(e)
        raise UsageError(
            f"{type(data).__name__} is no Arrow data: {str(e)[:200]}",
            code="invalid-data",
            hint="Hand over anything with __arrow_c_stream__: pyarrow, pandas, polars, a result.",
        ) from None
    for name in [*keys, *([event_time] if event_time is not None else [])]:
        if name not in rows.schema.names:
            raise UsageError(f"The rows have no column {name!r}.", code="unknown-column")
    store = target if isinstance(target, Store) else Store(target, create=True)
    check_empty(store)
    return write_dataset(store, rows, primary_key=keys, event_time=event_time, now=utc_now())


def named(table: str) -> tuple[str, ...]:
    """Return the parts of a name as calls give it."""
    return tuple(text_of(table).split("."))
