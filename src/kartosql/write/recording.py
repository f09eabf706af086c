"""RECORD SCHEMA: the schema of a dataset as it is now, added to its history."""

from __future__ import annotations

from typing import Any

from kartosql.errors import FormatError, UsageError
from kartosql.formats.kartothek.history import DAMAGED, SchemaHistory, history_of, is_sealed, plain
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.kartothek.resolve import HISTORY
from kartosql.write.change import Change
from kartosql.write.operation import Operation
from kartosql.write.schema import read_known


def record_schema(operation: Operation, uuid: str) -> list[dict[str, Any]]:
    """Add the schema of each table to the history, where it is not there yet, and seal it.

    A history that is broken is put aside, and a new one begun. Returns for each table its name,
    version and block, and whether something was recorded. Raises ``unknown-table``.
    """
    operation.begin_at([uuid])
    document = operation.document(uuid)
    if document is None:
        raise UsageError(f"There is no dataset {uuid!r}.", code="unknown-table")
    try:
        before = _checked(document)
        is_broken = False
    except FormatError:
        before, is_broken = None, True
    if before is not None and _is_up_to_date(operation, document, before):
        return [_row(uuid, t.name, t.chain.schemas[-1].number, t.head, False) for t in before.tables.values()]
    metadata = {DAMAGED: document.metadata[HISTORY]} if is_broken else {}
    done = operation.commit([Change(uuid, operation.name, metadata=metadata, restart_history=is_broken)])
    old = {name: table.head for name, table in before.tables.items()} if before is not None else {}
    after = done[uuid].document
    history = history_of(after) if after is not None else None
    tables = history.tables.values() if history is not None else ()
    return [_row(uuid, t.name, t.chain.schemas[-1].number, t.head, old.get(t.name) != t.head) for t in tables]


def _checked(document: DatasetDocument) -> SchemaHistory | None:
    history = history_of(document)
    for table in history.tables.values() if history is not None else ():
        _ = table.chain
    return history


def _is_up_to_date(operation: Operation, document: DatasetDocument, history: SchemaHistory) -> bool:
    if not is_sealed(history, document):
        return False
    known = read_known(operation.store, document)
    return all(name in history.tables and history.tables[name].newest.equals(plain(s)) for name, s in known.items())


def _row(uuid: str, table: str, version: int, block: str, is_new: bool) -> dict[str, Any]:
    return {"dataset": uuid, "table": table, "version": version, "block": block, "recorded": is_new}
