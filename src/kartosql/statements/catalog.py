"""SHOW, DESCRIBE, SET and RESET; ATTACH, DETACH and VERIFY of what is attached."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kartosql.errors import KartosqlError, SqlError
from kartosql.formats.kartothek.dataset import Dataset
from kartosql.formats.kartothek.metadata import users_metadata
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.session import Request, Session
from kartosql.settings import SETTINGS, Settings, find
from kartosql.sql import Attach, Describe, Detach, Reset, Set, Show
from kartosql.sql.statements import VerifyData
from kartosql.store import Files
from kartosql.tables.names import Tables, quote_if_needed
from kartosql.tables.table import FileTable, Part, Table
from kartosql.text.secrets import HIDDEN, redacted
from kartosql.text.types import type_name

_TEXT, _TEXTS, _COUNT = pa.string(), pa.list_(pa.string()), pa.int64()
_INDEXES = {"partition": "partition key", "index": "inverted index", None: None}


def describe(request: Request, statement: Describe) -> pa.Table:
    """Return the columns of a table, of what it was, or of a query."""
    if statement.query is not None:
        return describe_schema(request.query(statement.query).schema)
    request.refuse_parameters()
    assert statement.target is not None
    known = request.session.tables()
    name = known.without_schema(statement.target)
    if len(name) == 1 and (view := known.view_name(name[0])) is not None:
        return describe_schema(request.view(view).schema)
    source = known.find(statement.target, statement.span, statement.text)
    if statement.version is None and statement.as_of is None:
        return describe_table(source)
    from kartosql.schema_log import schema_at

    return describe_schema(schema_at(source, known.snapshot, statement.version, statement.as_of))


def show(request: Request, statement: Show) -> pa.Table:
    """Return what SHOW lists."""
    request.refuse_parameters()
    session, what, text = request.session, statement.what, statement.text
    known = session.tables()
    if what == "settings":
        return settings(session.settings, list(SETTINGS))
    if what == "cubes":
        return cubes(known.snapshot)
    if what == "tables":
        rows = ((".".join(map(quote_if_needed, name)), kind) for name, kind in session.names(known))
        return _table(rows, table=_TEXT, kind=_TEXT)
    if what == "attached":
        return attached([] if session.attached is None else session.attached.entries.values())
    if what == "datasets" and statement.target is None:
        return datasets(known.snapshot, _attached_tables(session, known))
    assert statement.target is not None
    source = known.find(statement.target, statement.span, text)
    if what in ("history", "schema history"):
        from kartosql.schema_log import history_table, versions_table

        return (versions_table if what == "history" else history_table)(source, known.snapshot)
    if source.data is not None:
        raise SqlError(f"{source.name!r} is registered data, it has no {what}.", code="unknown-table", sql=text)
    shown = {
        "datasets": members,
        "partitions": partitions,
        "indexes": indexes,
        "skipping": skipping,
        "files": files,
        "stats": stats,
        "metadata": metadata,
    }[what]
    return shown(source, session.mounts)


def _attached_tables(session: Session, known: Tables) -> list[tuple[str, Table | KartosqlError]]:
    """Return the tables that are attached with what is wrong with them, but for those of attached stores."""
    found: list[tuple[str, Table | KartosqlError]] = []
    for name, _ in () if session.attached is None else session.attached.tables():
        if len(name) == 1:
            try:
                found.append((name[0], known.find(name)))
            except KartosqlError as e:
                found.append((name[0], e))
    return found


def set_or_reset(request: Request, statement: Set | Reset) -> pa.Table:
    """Set a setting, or give it back the value that the owner gave it; on a read-only connection only narrower."""
    request.refuse_parameters()
    session, name = request.session, statement.name
    value = statement.value if isinstance(statement, Set) else None
    if not find(name).in_sql:
        raise SqlError(f"The setting {name!r} is given to connect() only.", code="not-allowed", sql=statement.text)
    if value is None:
        session.settings.reset(name)
    elif session.read_only and not session.is_of_owner:
        session.settings.narrow(name, value)
    else:
        session.settings.set(name, value)
    return settings(session.settings, [name])


def _url(request: Request, statement: Attach) -> str:
    given = request.parameters or ()
    known = given if isinstance(given, Mapping) else {str(at): value for at, value in enumerate(given, 1)}
    url = known.get(statement.parameter or "")
    if len(known) != 1 or not isinstance(url, str | os.PathLike):
        message = f"ATTACH has one parameter, {statement.parameter!r}: a path or URL."
        raise SqlError(message, code="invalid-parameters", sql=statement.text)
    return os.fspath(url)


def attach(request: Request, statement: Attach) -> pa.Table:
    """Attach a folder or another store, and return it."""
    if statement.parameter is None:
        request.refuse_parameters()
    session, options = request.session, dict(statement.options)
    session.attachments.attach(
        statement.url if statement.parameter is None else _url(request, statement),
        statement.name,
        options.pop("type"),
        options,
        is_taken=session.tables().is_taken,
        replace=statement.replace,
        if_not_exists=statement.if_not_exists,
    )
    return attached([e for n, e in session.attachments.entries.items() if n == statement.name])


def detach(request: Request, statement: Detach) -> pa.Table:
    """Forget what was attached."""
    request.refuse_parameters()
    session = request.session
    if not session.settings["attach"]:
        raise SqlError("Statements of this connection may not detach.", code="not-allowed", sql=statement.text)
    try:
        done = session.attachments.detach(statement.name, if_exists=statement.if_exists)
    except SqlError as e:
        e.span, e.sql = statement.span, statement.text
        raise
    return pa.table({"name": [statement.name], "detached": [done]})


def verify_data(request: Request, statement: VerifyData) -> pa.Table:
    """Return what was checked of what is attached, or which files hold rows that were to be erased."""
    if statement.where:
        from kartosql.statements.erased import erased

        return erased(request, statement)
    request.refuse_parameters()
    session = request.session
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
    rows = [(c.number, c.kind, c.name, c.check, c.result, c.note) for c in checks()]
    return _table(rows, block=_COUNT, kind=_TEXT, name=_TEXT, check=_TEXT, result=_TEXT, note=_TEXT)


def _table(rows: Iterable[Sequence[Any]], /, **columns: pa.DataType) -> pa.Table:
    rows = list(rows)
    arrays = [pa.array([row[i] for row in rows], type_) for i, type_ in enumerate(columns.values())]
    return pa.table(arrays, names=list(columns))


def settings(values: Settings, names: Iterable[str]) -> pa.Table:
    """Return settings with their values: name, value, about."""
    found = [find(n) for n in names]
    rows = [(s.name, None if values[s.name] is None else redacted(str(values[s.name])), s.about) for s in found]
    return _table(rows, name=_TEXT, value=_TEXT, about=_TEXT)


def cubes(snapshot: Snapshot) -> pa.Table:
    """Return the cubes of a store, one row each."""
    rows = []
    for name, cube in snapshot.cubes().items():
        columns = (list(cube.dimension_columns), list(cube.partition_columns), sorted(cube.index_columns))
        rows.append((name, cube.seed_dataset, *columns, snapshot.names(name)))
    lists = dict.fromkeys(("dimension_columns", "partition_columns", "index_columns", "datasets"), _TEXTS)
    return _table(rows, cube=_TEXT, seed_dataset=_TEXT, **lists)


def attached(entries: Iterable[Any]) -> pa.Table:
    """Return what is attached: name, type, url, options."""
    rows = []
    for entry in entries:
        shown = ((n, dict.fromkeys(v, HIDDEN) if n.lower() == "metadata_keys" else v) for n, v in entry.options.items())
        options = redacted(", ".join(f"{name.upper()} {value!r}" for name, value in sorted(shown)))
        rows.append((entry.name, entry.type, redacted(entry.url), options or None))
    return _table(rows, name=_TEXT, type=_TEXT, url=_TEXT, options=_TEXT)


def datasets(snapshot: Snapshot, attached: Iterable[tuple[str, Table | KartosqlError]] = ()) -> pa.Table:
    """Return the datasets of a store and what is attached, one row each; broken ones with what is wrong."""
    rows: list[tuple[Any, ...]] = []
    for uuid, found in sorted(snapshot.datasets(snapshot.uuids()).items()):
        if isinstance(found, Dataset):
            try:
                every = list(found.tables.values())
                names: list[str] = [t.table for t in every]
                first = every[0]
                rows.append((uuid, names, list(first.partition_keys), len(first.files), sorted(first.indices), None))
            except KartosqlError as e:
                rows.append((uuid, None, None, None, None, e.message))
        else:
            message = found.message if isinstance(found, KartosqlError) else f"{found.args[0]} is missing"
            rows.append((uuid, None, None, None, None, message))
    for name, source in attached:
        if isinstance(source, KartosqlError):
            rows.append((name, None, None, None, None, source.message))
        else:
            table = source.parts[0].table
            rows.append((name, [name], list(table.partition_keys), len(table.files), sorted(table.indices), None))
    return _table(
        rows, dataset=_TEXT, tables=_TEXTS, partition_keys=_TEXTS, files=_COUNT, indexes=_TEXTS, problem=_TEXT
    )


def members(source: Table, store: Files) -> pa.Table:
    """Return the datasets of a cube with their role, keys and size."""
    rows = []
    for part in source.parts:
        table = part.table
        role = "seed" if source.cube and part.name == source.cube.seed_dataset else "enrichment"
        payload = [c for c in part.columns if c not in part.join_key]
        columns = (list(part.join_key), list(table.partition_keys), payload, sorted(table.indices))
        rows.append((part.name, role if part.join_key else "dataset", *columns, len(table.files)))
    lists = dict.fromkeys(("join_key", "partition_keys", "payload_columns", "indexes"), _TEXTS)
    return _table(rows, dataset=_TEXT, role=_TEXT, **lists, files=_COUNT)


def describe_table(source: Table) -> pa.Table:
    """Return the columns of a table: name, type, role, dataset, index."""
    rows = []
    by_name = {p.name: p for p in source.parts}
    skipping = {p.name: _skipping_of(p) for p in source.parts}
    for column, type_ in source.columns.items():
        part = by_name.get(source.owner.get(column, ""))
        kinds = [
            _INDEXES.get(_held_as(source, column)),
            *skipping.get(part.name if part else "", {}).get(column.lower(), ()),
        ]
        index = ", ".join(k for k in kinds if k is not None) or None
        rows.append((column, type_name(type_), _role(source, column), part.name if part else None, index))
    return _table(rows, column=_TEXT, type=_TEXT, role=_TEXT, dataset=_TEXT, index=_TEXT)


def _skipping_of(part: Part) -> dict[str, list[str]]:
    """Return the kinds of skipping indexes by column in lower case; none if their metadata cannot be read."""
    found: dict[str, list[str]] = {}
    if part.table.skipping is not None:
        with contextlib.suppress(KartosqlError):
            for index in part.table.skipping.indexed()[0]:
                if len(index.path) == 1 and index.path[0] not in map(str.lower, part.table.partition_keys):
                    found.setdefault(index.path[0], []).append(index.name)
    return found


def _role(source: Table, column: str) -> str:
    is_dimension = source.cube is not None and column in source.cube.dimension_columns
    return "dimension" if is_dimension else _held_as(source, column) or "payload"


def _held_as(source: Table, column: str) -> str | None:
    if any(column in p.table.partition_keys for p in source.parts):
        return "partition"
    return "index" if any(column in p.table.indices for p in source.parts) else None


def describe_schema(schema: pa.Schema) -> pa.Table:
    """Return the columns of a query: name and type."""
    return _table([(f.name, type_name(f.type)) for f in schema], column=_TEXT, type=_TEXT)


def partitions(source: Table, store: Files) -> pa.Table:
    """Return each combination of partition values with its number of files, per dataset."""
    rows = []
    for part in source.parts:
        values = part.table.partitions
        counts = Counter(values.part_of_file)
        rows += [(part.name, values.text_of(at) or None, counts[at]) for at in range(values.count)]
    return _table(rows, dataset=_TEXT, partition=_TEXT, files=_COUNT)


def indexes(source: Table, store: Files) -> pa.Table:
    """Return the inverted indices of a table, one row each."""
    rows = [
        (part.name, column, type_name(index.type), index.key)
        for part in source.parts
        for column, index in sorted(part.table.indices.items())
    ]
    return _table(rows, dataset=_TEXT, column=_TEXT, type=_TEXT, key=_TEXT)


def skipping(source: Table, store: Files) -> pa.Table:
    """Return the skipping indexes of a table, one row each, with how many of its files they know."""
    rows = []
    for part in source.parts:
        if part.table.skipping is not None:
            indexes, known = part.table.skipping.indexed()
            for index in indexes:
                parameters = ", ".join(f"{k.rpartition('.')[2]} = {v}" for k, v in sorted(index.params.items()))
                rows.append((part.name, index.name, index.columns_text, parameters, known, len(part.table.files)))
    types = dict.fromkeys(("dataset", "index", "column", "parameters"), _TEXT)
    return _table(rows, **types, indexed_files=_COUNT, files=_COUNT)


def metadata(source: Table, store: Files) -> pa.Table:
    """Return the metadata of a dataset: key and value, as text or JSON; of a cube with the dataset in front."""
    rows = [
        (part.name, key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
        for part in source.parts
        for key, value in sorted(users_metadata(part.table.metadata).items())
    ]
    found = _table(rows, dataset=_TEXT, key=_TEXT, value=_TEXT)
    return found if len(source.parts) > 1 else found.drop_columns("dataset")


def files(source: Table, store: Files) -> pa.Table:
    """Return the files of a table in the order of the metadata document, with their sizes."""

    def size_of(key: str) -> int | None:
        with contextlib.suppress(KeyError):
            return store.size(key)
        return None

    rows = []
    for part in source.parts:
        sizes = store.map(size_of, part.table.files)
        for at, (label, size) in enumerate(zip(part.table.labels, sizes, strict=True)):
            rows.append((part.name, label, part.table.display_name(at), size))
    return _table(rows, dataset=_TEXT, label=_TEXT, key=_TEXT, bytes=_COUNT)


def stats(source: Table, store: Files) -> pa.Table:
    """Return partitions, files, physical rows and bytes per dataset, from the files' footers.

    Rows that were overwritten are counted, as they are still in the files.
    """
    from kartosql.write.files import collect_stats

    rows: list[tuple[Any, ...]] = []
    for part in source.parts:
        if not part.table.has_footers:  # text files do not tell how many rows they have
            size = sum(n or 0 for n in store.sizes(part.table.files).values())
            count = len(set(part.table.partitions.part_of_file))
            rows.append((part.name, count, len(part.table.files), None, size, None))
            continue
        found = collect_stats(store, part.table)
        numbers = (found[name] for name in ("partitions", "files", "rows", "blobsize"))
        rows.append((part.name, *numbers, _created(part.table)))
    return _table(rows, dataset=_TEXT, partitions=_COUNT, files=_COUNT, rows=_COUNT, bytes=_COUNT, created=_TEXT)


def _created(table: FileTable) -> str | None:
    created = table.metadata.get("creation_time")
    try:
        return None if created is None else str(dt.datetime.fromisoformat(created))
    except (TypeError, ValueError):
        return str(created)
