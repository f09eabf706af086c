"""CREATE VIEW and DROP VIEW."""

from __future__ import annotations

import pyarrow as pa

from kartosql.errors import SqlError
from kartosql.formats.kartothek.naming import VIEW_SUFFIX, is_dataset_uuid
from kartosql.formats.views import View
from kartosql.plan.views import Views
from kartosql.session import Request
from kartosql.sql import Select
from kartosql.sql import write_statements as ws
from kartosql.statements.targets import TEXT, refused, table_of
from kartosql.store import PreconditionFailed
from kartosql.tables.names import similar
from kartosql.text.constants import quote

_DONE = {"view": TEXT, "done": TEXT}


def create_view(request: Request, statement: ws.CreateView) -> pa.Table:
    """Store a query under a name, after a look that it can be answered: view, done."""
    session, text, named = request.session, statement.text, statement.view
    name, tables = named.last, session.tables()
    if not is_dataset_uuid(name):
        hint = "Names of views have letters of ASCII, digits, +, - and _."
        raise refused(named, text, "invalid-argument", f"{name!r} is no name of a view.", hint)
    known = tables.view_name(name)
    if (known and not statement.replace) or (not known and tables.is_taken(name)):
        hint = "CREATE OR REPLACE VIEW replaces it." if known else "Choose another name."
        raise refused(named, text, "name-taken", f"There is a {'view' if known else 'table'} {name!r} already.", hint)
    request.refuse_parameters(text)
    query = request.query(statement.query)
    reading = session.parse(f"SELECT * FROM (\n{statement.query.text}\n) AS {quote(name)}")
    if statement.query.tree is None or not isinstance(reading, Select) or reading.tree is None:
        message = "Only the engine understands the query, so that no statement could read the view."
        raise refused(named, text, "not-supported", message, "Simplify it.")
    if known:
        Views(tables, session.parse, lambda _: None).expanded(statement.query, (known,))
    if registered := [source.name for source in query.sources if source.data is not None]:
        message = f"{registered[0]!r} is registered in this connection, and a view is for all."
        raise refused(named, text, "not-supported", message, "CREATE DATASET ... AS SELECT stores the rows.")
    columns = [column.last for column in statement.columns]
    if len(columns) > len(query.schema) or len({c.lower() for c in columns}) < len(columns):
        message = f"The query has {len(query.schema)} columns, and as many names, none of them twice, are possible."
        raise refused(named, text, "invalid-argument", message)
    view = View(known or name, statement.query.text.strip(), tuple(columns))
    _write(request, view, replace=known is not None)
    return table_of([{"view": view.name, "done": "replaced" if known else "created"}], _DONE)


def _write(request: Request, view: View, *, replace: bool) -> None:
    store, key = request.session.store, f"{view.name}{VIEW_SUFFIX}"
    if replace:
        store.put(key, view.document())
        return
    try:
        store.put_if(key, view.document(), None)
    except PreconditionFailed:
        hint = "CREATE OR REPLACE VIEW replaces it."
        raise SqlError(f"There is a view {view.name!r} already.", code="name-taken", hint=hint) from None


def drop_view(request: Request, statement: ws.Drop) -> pa.Table:
    """Remove a view: view, done."""
    tables, named = request.session.tables(), statement.target
    name = tables.view_name(named.last)
    if name is None and not statement.if_exists:
        close = similar(named.last, tables.snapshot.views)
        hint = f"Did you mean {close}?" if close else "SHOW TABLES lists them."
        raise refused(named, statement.text, "unknown-table", f"There is no view {named.last!r}.", hint)
    if name is not None:
        request.session.store.delete([f"{name}{VIEW_SUFFIX}"])
    return table_of([{"view": name, "done": "dropped"}] if name else [], _DONE)
