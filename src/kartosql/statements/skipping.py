"""CREATE, REFRESH and DROP SKIPPING INDEX: of datasets, of cubes and of folders that are attached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.formats.xskipper.naming import spelled
from kartosql.session import Request, Session
from kartosql.sql import write_statements as ws
from kartosql.statements import results
from kartosql.statements.attach import indexes_of_folder
from kartosql.statements.targets import dataset_target
from kartosql.write.skipping import (
    create_skipping,
    drop_skipping,
    indexed_datasets,
    of_datasets,
    refresh_skipping,
    specs,
)

if TYPE_CHECKING:
    from kartosql.formats.xskipper.writer import IndexSpec

Report = Mapping[str, Any]


def run_skipping(request: Request, statement: ws.CreateSkipping | ws.RefreshSkipping | ws.DropSkipping) -> pa.Table:
    """Run a statement about skipping indexes and return the table of what it did."""
    session, tables = request.session, request.session.tables()
    source = tables.find(statement.target.parts, statement.target.span, statement.text)
    is_cube = source.cube is not None and len(source.parts) > 1
    if source.is_indexable:
        shown = table = source.name
    elif is_cube and source.cube is not None:
        shown = table = source.cube.uuid_prefix
    else:
        target = dataset_target(tables, statement.target, statement.text)
        shown, table = target.dataset, target.uuid

    def reports(made: Report) -> dict[str, Report]:
        return dict(made) if is_cube else {shown: made}

    if isinstance(statement, ws.DropSkipping):
        return results.dropped(reports(drop_index(session, table)))
    if isinstance(statement, ws.RefreshSkipping):
        return results.skipping(reports(refresh_index(session, table)))
    columns: dict[str, Any] = {"MINMAX": [], "VALUELIST": [], "BLOOMFILTER": {}, "REGEXVALUELIST": {}}
    for one in statement.indexes:
        name = spelled(one.column)
        if one.kind == "BLOOMFILTER":
            columns[one.kind][name] = {k.lower(): float(v) if k == "FPP" else v for k, v in one.parameters}
        elif one.kind == "REGEXVALUELIST":
            columns[one.kind][name] = [pattern for _, pattern in one.parameters]
        else:
            columns[one.kind].append(name)
    return results.skipping(reports(create_index(session, table, specs(*columns.values()))))


def create_index(session: Session, table: str, indexes: Sequence[IndexSpec], spark: Any = None) -> dict[str, Any]:
    """Make skipping indexes; see Connection.create_skipping_index."""
    operation = session.operation("create_skipping_index", spark=spark)
    if (folder := indexes_of_folder(session, table, spark)) is not None:
        return folder.create(indexes)
    if datasets := of_datasets(operation.snapshot, table, indexes):
        return {
            name: create_skipping(session.operation("create_skipping_index", spark=spark), uuid, own)
            for name, (uuid, own) in datasets.items()
        }
    return create_skipping(operation, table, indexes)


def refresh_index(session: Session, table: str, spark: Any = None) -> dict[str, Any]:
    """Bring skipping indexes up to date; see Connection.refresh_skipping_index."""
    operation = session.operation("refresh_skipping_index", spark=spark)
    if (folder := indexes_of_folder(session, table, spark)) is not None:
        return folder.refresh()
    if datasets := indexed_datasets(operation.snapshot, table):
        return {name: refresh_index(session, uuid, spark) for name, uuid in datasets.items()}
    return refresh_skipping(operation, table)


def drop_index(session: Session, table: str) -> dict[str, Any]:
    """Drop all skipping indexes; see Connection.drop_skipping_index."""
    operation = session.operation("drop_skipping_index")
    if (folder := indexes_of_folder(session, table)) is not None:
        return folder.drop()
    if datasets := indexed_datasets(operation.snapshot, table):
        return {name: drop_index(session, uuid) for name, uuid in datasets.items()}
    return drop_skipping(operation, table)
