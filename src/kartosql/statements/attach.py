"""ATTACH, DETACH and VERIFY of what is attached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import SqlError, UsageError
from kartosql.result import Query
from kartosql.session import Request, Session
from kartosql.sql import Attach, Detach
from kartosql.sql.statements import VerifyData
from kartosql.statements import catalog

if TYPE_CHECKING:
    from kartosql.sources.indexing import FolderIndexes


def attach(request: Request, statement: Attach | Detach | VerifyData) -> Query:
    """Attach, detach or verify, and return what is attached, detached or was checked."""
    request.refuse_parameters()
    if isinstance(statement, VerifyData):
        return Query(_checks(_verified(request.session, statement)))
    if isinstance(statement, Detach):
        return Query(_detach(request.session, statement))
    session, options = request.session, dict(statement.options)
    session.attachments.attach(
        statement.url,
        statement.name,
        options.pop("type"),
        options,
        is_taken=session.tables().is_taken,
        replace=statement.replace,
        if_not_exists=statement.if_not_exists,
    )
    return Query(catalog.attached([e for n, e in session.attachments.entries.items() if n == statement.name]))


def _detach(session: Session, statement: Detach) -> pa.Table:
    if not session.settings["attach"]:
        raise SqlError("Statements of this connection may not detach.", code="not-allowed", sql=statement.text)
    try:
        done = session.attachments.detach(statement.name, if_exists=statement.if_exists)
    except SqlError as e:
        e.span, e.sql = statement.span, statement.text
        raise
    return pa.table({"name": [statement.name], "detached": [done]})


def _verified(session: Session, statement: VerifyData) -> Iterable[Any]:
    found = session.attachments.find(statement.target) if session.attached is not None else None
    checks = getattr(found, "verify", None)
    if checks is None:
        session.tables().find(statement.target, statement.span, statement.text)
        raise SqlError(
            f"{'.'.join(statement.target)!r} has no hashes to verify.",
            code="not-supported",
            hint="VERIFY name checks ODF datasets that are attached, VERIFY SELECT ... the answer of a query.",
            span=statement.span,
            sql=statement.text,
        )
    found_checks: Iterable[Any] = checks()
    return found_checks


def _checks(found: Iterable[Any]) -> pa.Table:
    """Return what VERIFY of a dataset checked: block, kind, name, check, result, note."""
    names = ("kind", "name", "check", "result", "note")
    rows = list(found)
    columns = {name: pa.array([getattr(c, name) for c in rows], pa.string()) for name in names}
    return pa.table({"block": pa.array([c.number for c in rows], pa.int64()), **columns})


def indexes_of_folder(session: Session, name: str, spark: Any = None) -> FolderIndexes | None:
    """Return the skipping indexes of what is attached as ``name``, None if that is nothing."""
    found = session.attachments.find((name,)) if session.attached is not None and isinstance(name, str) else None
    if found is None:
        return None
    if spark:
        raise UsageError(f"{name!r} is attached: Spark indexes the files of datasets only.", hint="Leave out spark=.")
    indexes = getattr(found, "skipping_indexes", None)
    if indexes is None:
        raise UsageError(
            f"{name!r} is attached, and what is attached can only be read.",
            code="unknown-table",
            hint="Skipping indexes are for folders of Parquet and CSV files, and for datasets of the store.",
        )
    made: FolderIndexes = indexes()
    return made
