"""What a statement leaves behind, so that the next command does not plan it again; see ``replay`` for its use."""

from __future__ import annotations

import contextlib
import json
import re
from array import array
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from kartosql.cli import output
from kartosql.engines.base import JoinOrder
from kartosql.engines.duckdb import replay
from kartosql.engines.duckdb.sorted_index import Ordered
from kartosql.engines.duckdb.statement import DuckStatement
from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.dataset import DatasetTable, InvertedIndex
from kartosql.formats.kartothek.naming import metadata_uuid
from kartosql.indexes.index import INVERTED_INDEX
from kartosql.parquet import local_footer, schema_bytes
from kartosql.plan.lookups import lookups_of
from kartosql.plan.reader import may_tell_time
from kartosql.query import Execution, SelectQuery
from kartosql.session import Session
from kartosql.settings import SETTINGS
from kartosql.store import Store
from kartosql.tables.table import Plain
from kartosql.text.constants import masked, quote

MAX_SECONDS = 1.0  # of what is answered without a way to stop it
MAX_INDEX_BYTES = 64 << 20
Given = Mapping[str, tuple[str, Any, str]]  # see ``Relations.assigned``
_VARIABLE = re.compile(r"getvariable\('(\w+)'\)")


class Remembered:
    """What is known of a statement that runs, to be kept once it has run to its end.

    ``text`` is the statement as it was given. Made before its rows are read, as its relations are gone afterwards.
    """

    def __init__(self, session: Session, query: SelectQuery, text: str) -> None:
        self._session = session
        self._query = query
        self._given: Given = {}
        self._plan: dict[str, Any] | None = None
        if query.execution is not None and isinstance(query.execution.statement, DuckStatement):
            relations = query.execution.statement.relations
            self._given = dict(relations.assigned)
            with contextlib.suppress(OSError, replay.NoAnswer):  # of index files that nobody needed to read
                self._plan = _plan(session, query, query.execution.statement, text) if relations.is_reusable else None

    def keep(self, rows: int) -> None:
        """Keep the plan, unless it had many rows or took long."""
        stats, execution = self._query.stats, self._query.execution
        if self._plan is None or stats is None or execution is None or output.warned or rows > replay.MAX_ROWS:
            return
        if stats["run_seconds"] > MAX_SECONDS:
            return
        cache, root = self._session.user_cache, self._session.store.address[0]
        with contextlib.suppress(KartosqlError, OSError, KeyError):  # of files that nobody needed to read
            plan, schema = _with_lookups(self._session, execution, self._plan, self._given) or (self._plan, b"")
            shape = masked(plan["text"]) if plan["lookups"] else plan["text"]
            cache.put(replay.PLAN, [root, shape], [json.dumps(plan).encode(), schema])


def _plan(session: Session, query: SelectQuery, statement: DuckStatement, text: str) -> dict[str, Any] | None:
    """Return a plan as ``replay`` reads it, None if the statement is not to be replayed."""
    execution, types, stamps = query.execution, query.types, _stamps(session)
    if execution is None or types is None or execution.report is None or stamps is None:
        return None
    scan, bound, given = execution.report.scan, execution.attempt.bound, statement.relations.assigned
    parts = [part for o in scan.occurrences for part in o.parts]
    keys = {name: values for name, (kind, values, _) in given.items() if kind == "files"}
    lists = {name: (kind, values) for name, (kind, values, _) in given.items() if kind != "files"}
    sizes = {key: statement.files.sizes.get(key) for of in keys.values() for key in of}
    if (
        bound.select.text != text
        or bound.parameters
        or bound.has_dynamic_columns
        or execution.attempt.joins is JoinOrder.OF_TEXT
        or scan.edits
        or may_tell_time(text)
        or any(type_.partition("(")[0] not in replay.TEXTS for type_ in types)
        or len({*query.columns}) < len(types)
        or any(p.summary is not None or not _is_plain(p.part.table) for p in parts)
        or any(kind not in (*replay.SIGNED, "VARCHAR", "BOOLEAN", "") for kind, _ in lists.values())
        or not given.keys()
        >= {name for body, _ in statement.relations.views.values() for name in _VARIABLE.findall(body)}
        or None in sizes.values()
        or len(sizes) > replay.MAX_FILES
    ):
        return None
    root = session.store.address[0]
    indices = {i.key for p in parts for i in p.part.table.indices.values() if i.key is not None}
    return {
        "text": text,
        "constants": [],
        "edits": sorted(bound.edits),
        "names": replay.cache_key(session.metadata.listed or ()),
        "stamps": stamps | {key: replay.stamp_of(f"{root}/{key}") for key in indices},
        "columns": query.columns,
        "types": types,
        "duckdb": replay.engine().__version__,
        "optimizers": statement.instance.setting("disabled_optimizers"),
        "views": [
            (quote(schema), quote(name), body) for (schema, name), (body, _) in statement.relations.views.items()
        ],
        "files": {name: {key: sizes[key] for key in of} for name, of in keys.items()},
        "lists": lists,
        "lookups": [],
    }


def _is_usual(session: Session) -> bool:
    """Return whether a command without options has the same store, settings and names."""
    settings = session.settings
    is_default = all(settings[name] == setting.default for name, setting in SETTINGS.items())
    return session.store.is_local and is_default and not session.registered and session.attached is None


def _is_plain(table: object) -> bool:
    """Return whether nothing but the document of a dataset says which files a table has, and what may rule them out."""
    return isinstance(table, DatasetTable) and table.skipping is None


def _stamps(session: Session) -> dict[str, Any] | None:
    """Return the stamps of what a statement read of a store; None where they prove too little."""
    found = session.metadata.stamps() if _is_usual(session) else None
    names = session.metadata.listed
    if not found or not names:
        return None
    # Where a document of both kinds stands there, it is the JSON that was read.
    documents = {key for key in found if metadata_uuid(key) is not None}
    msgpack = {key for key in documents if key.endswith(replay.METADATA[1])}
    both = {f"{key.removesuffix(replay.METADATA[1])}{replay.METADATA[0]}" for key in msgpack}
    return None if both & {*names} or not documents <= {*names} else {key: list(stamp) for key, stamp in found.items()}


# -- other constants -----------------------------------------------------------------------------------


def _with_lookups(
    session: Session, execution: Execution, plan: dict[str, Any], given: Given
) -> tuple[dict[str, Any], bytes] | None:
    """Return the plan for all constants that an index can be asked for in place of those of a statement."""
    assert execution.report is not None
    bound, scan = execution.attempt.bound, execution.report.scan
    if len(scan.occurrences) != 1 or len(scan.occurrences[0].parts) != 1 or len(plan["files"]) != 1:
        return None
    (part,) = scan.occurrences[0].parts
    table = part.part.table
    used = {step.condition for step in part.steps if step.by == INVERTED_INDEX}
    lookups = [(column, spans) for column, spans in lookups_of(bound, used) if column in table.indices]
    if not lookups or not isinstance(part.part.rows, Plain) or not isinstance(table, DatasetTable):
        return None
    store, cache = session.store, session.user_cache
    root = store.address[0]
    stamps = [v for key, stamp in plan["stamps"].items() if metadata_uuid(key) == table.uuid for v in stamp]
    of_table = [root, table.uuid, table.table, *map(str, stamps)]
    asked = []
    for column, spans in lookups:
        ordered = Ordered(store, table, table.indices[column], cache)
        if not _is_kept(store, ordered, table.indices[column]):
            return None
        asked.append((ordered.identity, spans))
    if cache.get(replay.FILES, of_table) is None:
        keys = [key.encode() for key in table.files]
        cache.put(replay.FILES, of_table, [array("Q", accumulate(map(len, keys), initial=0)).tobytes(), b"".join(keys)])
    ((variable, sizes),) = plan["files"].items()
    schemas = {_schema_of(f"{root}/{key}", size) for key, size in sizes.items()}
    lists = {name: (type_, key) for name, (type_, _, key) in given.items() if key}
    if len(schemas) != 1 or None in schemas or any(key not in table.partition_keys for _, key in lists.values()):
        return None
    ((_, _, body),) = plan["views"]
    return {
        **plan,
        "constants": bound.select.constants,
        "lookups": asked,
        "count": len(table.files),
        "table": of_table,
        "files": variable,
        "lists": {name: value for name, value in plan["lists"].items() if name not in lists},
        "partition_keys": table.partition_keys,
        "keys": [
            (name, table.partition_keys.index(key), type_, f"getvariable('{name}')[1]" in body)
            for name, (type_, key) in lists.items()
        ],
    }, schemas.pop() or b""


def _is_kept(store: Store, ordered: Ordered, index: InvertedIndex) -> bool:
    """Return whether the values of an index are kept; they are made when they are asked for a second time."""
    if ordered.is_kept or not ordered.may_come or index.key is None or (store.size(index.key) or 0) > MAX_INDEX_BYTES:
        return ordered.is_kept
    if ordered.was_wanted():
        ordered.collect()
    return ordered.is_kept


def _schema_of(path: str, size: int | None) -> bytes | None:
    """Return the bytes at the start of a footer that hold the schema; None if later ones add to it."""
    footer = local_footer(path, size) if size is not None else None
    return None if footer is None or b"geo" in footer else schema_bytes(footer)
