"""The statements that few sessions run, and the calls that do the same: upkeep, skipping indexes, schemas, exports."""

from __future__ import annotations

import datetime as dt
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from kartosql.errors import KartosqlError, KartosqlWarning, SqlError, UsageError, reraise, text_of
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.metadata import users_metadata
from kartosql.formats.kartothek.snapshot import Snapshot, prefix_of
from kartosql.formats.xskipper.kinds import KINDS, IndexSpec
from kartosql.formats.xskipper.naming import spelled
from kartosql.query import SelectQuery
from kartosql.result import Query
from kartosql.schema_log import blocks_of
from kartosql.session import Request, Session
from kartosql.sql import parse
from kartosql.sql import write_statements as ws
from kartosql.sql.statements import Select
from kartosql.statements import targets
from kartosql.statements.targets import COUNT, TEXT, Report, Reports, by_dataset, changes, dropped, table_of
from kartosql.store import Store
from kartosql.tables.names import Tables
from kartosql.tables.table import Table
from kartosql.text.secrets import redacted
from kartosql.text.types import in_sql_names
from kartosql.write import check as checking
from kartosql.write import datasets, removal, skipping
from kartosql.write.commit import utc_now
from kartosql.write.compact import compact
from kartosql.write.copy import copy_cube, copy_dataset
from kartosql.write.cubes import chosen_members, find_cube
from kartosql.write.datasets import dataset_of, find_uuid, members_of
from kartosql.write.files import collect_stats
from kartosql.write.history import Retention
from kartosql.write.layout import columns_of
from kartosql.write.odf import check_empty, write_chain, write_dataset
from kartosql.write.operation import Operation

_TIME, _FLAG = pa.timestamp("us", "UTC"), pa.bool_()
_GARBAGE = {"key": TEXT, "bytes": COUNT, "since": _TIME, "due": _TIME, "removed": _FLAG}
_FINDING = {"dataset": TEXT, "check": TEXT, "severity": TEXT, "key": TEXT, "message": TEXT, "repairable": _FLAG}
_SKIPPING = dict.fromkeys(("indexes", "added", "removed", "kept", "unindexed"), COUNT)
MIN_SORT_MEMORY = 128 * 10**6  # with which DuckDB sorts on disk
_RECORDED = {"dataset": TEXT, "table": TEXT, "version": COUNT, "block": TEXT, "recorded": _FLAG}
_EXPORTED = {"target": TEXT, "id": TEXT, "head": TEXT, "blocks": COUNT, "rows": COUNT, "bytes": COUNT}


# -- COPY, COMPACT, CLEANUP and CHECK ------------------------------------------------------------


def run_upkeep(session: Session, statement: ws.Copy | ws.Compact | ws.Cleanup | ws.Check) -> pa.Table:
    """Run one of the statements and return the table of what it did, or would do."""
    snapshot, text = session.snapshot(), statement.text
    if isinstance(statement, ws.Copy):
        return changes(_copied(session, snapshot, statement))
    # Names alone decide, as what is broken can be checked and cleaned up, too.
    cube = targets.cube_name(snapshot, statement.target)
    uuid = None if cube is not None else targets.dataset_uuid(snapshot, statement.target, text)
    if cube is None and uuid is None and not isinstance(statement, ws.Compact):
        cube, uuid = targets.left_behind(snapshot, statement.target)
    if cube is None and uuid is None:
        uuid = targets.need_uuid(snapshot, statement.target, text)
    name = cube or str(uuid)
    if isinstance(statement, ws.Check):
        found = check(session, name, full=statement.full, repair=statement.repair)
        return table_of((_fields(one, _FINDING) for one in found), _FINDING)
    if isinstance(statement, ws.Cleanup):
        dry_run = statement.dry_run
        if cube is not None:
            done = cleanup_cube(session, cube, dry_run=dry_run)
        else:
            done = {name: garbage_collect(session, name, dry_run=dry_run)}
        rows = ({"dataset": name, **_fields(file, _GARBAGE)} for name, one in done.items() for file in one["files"])
        return table_of(rows, {"dataset": TEXT, **_GARBAGE})
    operation, member = session.operation("compact"), naming.split_member(name)
    if cube is None and member is not None and snapshot.is_cube(member[0]):
        return changes(compact(operation, member[0], [member[1]]))
    merged = compact(operation, name)
    return changes(merged if cube is not None else {name: merged})


def _fields(found: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names}


def _copied(session: Session, snapshot: Snapshot, statement: ws.Copy) -> Reports:
    name = statement.new_name.last if statement.new_name is not None else None
    if not statement.is_cube:
        copied = targets.need_uuid(snapshot, statement.target, statement.text)
        target = session.operation("copy_dataset", target=statement.url)
        return {name or copied: copy_dataset(snapshot, copied, target, name=name)}
    copied, only = targets.need_cube(snapshot, statement.target, statement.text), None
    if statement.datasets is not None:
        known = snapshot.members[copied]
        only = targets.resolved(statement.datasets, known, f"The cube {copied!r}", statement.text, "dataset")
    return copy_cube(snapshot, copied, session.operation("copy_cube", target=statement.url), name=name, datasets=only)


def cleanup_cube(session: Session, cube: Cube | str, *, dry_run: bool = False) -> dict[str, dict[str, Any]]:
    """Remove files of a cube that belong to nothing; see Connection.cleanup_cube."""
    prefix = prefix_of(cube)
    uuids = members_of(session.store_to_keep(only_looks=dry_run), prefix)
    found = removal.collect(session.store, uuids.values(), session.grace, kept=_retention(session), dry_run=dry_run)
    if not dry_run:
        skipping.drop_forgotten(session.store, f"{prefix}{naming.CUBE_SEPARATOR}")
    return {name: removal.summary(g for g in found if g.uuid == uuid) for name, uuid in uuids.items()}


def garbage_collect(session: Session, uuid: str, *, dry_run: bool = False) -> dict[str, Any]:
    """Remove files of a dataset that belong to nothing; see Connection.garbage_collect."""
    uuid = dataset_of(session.store_to_keep(only_looks=dry_run), uuid)
    return removal.summary(
        removal.collect(session.store, [uuid], session.grace, kept=_retention(session), dry_run=dry_run)
    )


def _retention(session: Session) -> Retention:
    return Retention(session.settings["history_versions"], dt.timedelta(days=session.settings["history_days"]))


def stats(session: Session, cube: Cube | str, datasets: str | Iterable[str] | None) -> dict[str, dict[str, int]]:
    """Return how much datasets of a cube hold; see Connection.collect_stats."""
    state = find_cube(session.snapshot(), cube)
    names = chosen_members(state, datasets)
    return {name: collect_stats(session.store, state.members[name].table) for name in names}


def metadata(session: Session, table: Cube | str) -> dict[str, Any]:
    """Return the metadata of a dataset, or of those of a cube; see Connection.metadata."""
    snapshot = session.snapshot()
    if isinstance(table, Cube) or (text_of(table) not in snapshot.keys and table in snapshot.members):
        tables = {name: member.table.uuid for name, member in find_cube(snapshot, table).members.items()}
        return {name: users_metadata(snapshot.dataset(uuid).document.metadata) for name, uuid in tables.items()}
    return users_metadata(snapshot.dataset(find_uuid(snapshot, table)).document.metadata)


def check(session: Session, table: Cube | str, *, full: bool = False, repair: bool = False) -> list[checking.Finding]:
    """Look for what is wrong with a cube or a dataset; see Connection.check."""
    store = session.store_to_keep(only_looks=not repair)
    cube, uuids = _to_check(session, table)
    findings = []
    if isinstance(cube, KartosqlError):
        findings.append(checking.Finding(prefix_of(table), "cube", "error", None, cube.message))
    for uuid in uuids:
        found = checking.check(store, [uuid], cube if isinstance(cube, Cube) else None, session.grace, full=full)
        if repair and any(f.repairable for f in found):
            found = checking.repair(store, uuid, found, session.grace)
        findings += found
    return findings


def _to_check(session: Session, table: Cube | str) -> tuple[Cube | KartosqlError | None, list[str]]:
    """Return a cube, or the error about it, with the uuids of its datasets; None with that of a dataset."""
    name, snapshot = prefix_of(table), session.snapshot()
    if not isinstance(table, Cube) and (name in snapshot.keys or name not in snapshot.members):
        try:
            uuid = dataset_of(session.store, name)
        except UsageError:
            # A cube that was deleted may have left files behind.
            return None, list(members_of(session.store, name).values())
        is_member = naming.split_member(uuid)
        cube = _cube_of(snapshot, is_member[0]) if is_member and snapshot.is_cube(is_member[0]) else None
        return cube if isinstance(cube, Cube) else None, [uuid]
    return _cube_of(snapshot, name), list(members_of(session.store, name).values())


def _cube_of(snapshot: Snapshot, prefix: str) -> Cube | KartosqlError:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)  # which are findings of a dataset
        try:
            return snapshot.cube(prefix).cube
        except KartosqlError as e:
            return e


# -- inverted indices ----------------------------------------------------------------------------


def change_index(
    session: Session, table: str, columns: str | Iterable[str], spark: Any = None, *, drop: bool = False
) -> dict[str, Any]:
    """Build or drop inverted indices of a dataset or of what is attached; see Connection.create_index."""
    operation = session.operation("drop_index" if drop else "create_index", spark=spark)
    hint = "Inverted indices are for datasets, and for folders and lake tables that are attached."
    if (indexes := _part_of_attached(session, table, "file_indexes", hint, operation)) is None:
        if drop:
            return datasets.drop_index(operation, table, columns)
        return datasets.create_index(operation, table, columns)
    names = columns_of(columns, "columns")
    if drop:
        indexes.drop(names)
        return {"columns": list(names)}
    settings, memory = session.settings.copy(), session.settings["write_memory"]
    for name in ("default_collation", "TimeZone", "max_bytes"):
        settings.set(name, None)
    settings.set("engine", "duckdb")
    least = max(memory, MIN_SORT_MEMORY)
    settings.set("memory_limit", min(least, settings["memory_limit"] or least))

    def rows(sql: str, source: Table) -> pa.RecordBatchReader:
        known, select = Tables(session.snapshot(), {source.name: source}), parse(sql)
        assert isinstance(select, Select)
        return SelectQuery(select, known, session.runtime, settings, None, pruned=False).reader()

    return {"columns": list(names), "files": indexes.create(names, rows, operation, session.grace)}


# -- skipping indexes of datasets, of cubes and of folders that are attached -----------------------


def run_skipping(request: Request, statement: ws.CreateSkipping | ws.RefreshSkipping | ws.DropSkipping) -> pa.Table:
    """Run a statement about skipping indexes and return the table of what it did."""
    session, tables = request.session, request.session.tables()
    source = tables.find(statement.target.parts, statement.target.span, statement.text)
    is_cube = source.cube is not None and len(source.parts) > 1
    if source.is_attached and len(statement.target.parts) == 1:
        shown = table = source.name
    elif is_cube and source.cube is not None:
        shown = table = source.cube.uuid_prefix
    else:
        target = targets.dataset_target(tables, statement.target, statement.text)
        shown, table = target.dataset, target.table.uuid

    change, specs = "drop" if isinstance(statement, ws.DropSkipping) else "refresh", None
    if isinstance(statement, ws.CreateSkipping):
        change, specs = "create", [_spec(index, statement.text) for index in statement.indexes]
        columns_of([f"{s.name}({s.column})" for s in specs], "indexes")  # each of them once
    made = change_skipping_index(session, change, table, specs)
    reports = made if is_cube else {shown: made}
    return dropped(reports) if change == "drop" else by_dataset(reports, _SKIPPING)


def _spec(index: ws.Skip, text: str) -> IndexSpec:
    """Return an index as its kind has it; raises ``syntax-error`` and ``invalid-argument``."""
    shown, kind = index.kind.upper(), KINDS.get(index.kind)

    def wrong(message: str) -> SqlError:
        hint = f"There are: {', '.join(KINDS if kind is None else kind.parameters) or 'none'}."
        return SqlError(message, code="syntax-error", hint=hint, span=index.span, sql=text)

    if kind is None:
        raise wrong("Expected a kind of skipping index.")
    found: dict[str, Any] = {f"{name}s": () for name, type_ in kind.parameters.items() if type_ is str}
    for name, value in index.parameters:
        type_ = kind.parameters.get(name)
        if type_ is None or isinstance(value, str) != (type_ is str) or name in found:
            raise wrong(f"Expected a parameter of {shown}, numbers once.")
        if type_ is str:
            found[f"{name}s"] += (value,)
        else:
            found[name] = float(value) if type_ is float else value
    if () in found.values():
        raise wrong(f"Expected WITH ({next(iter(kind.parameters))} = '...'), once or several times.")
    return IndexSpec(kind.name, spelled(index.column), **found)


def _part_of_attached(session: Session, name: str, part: str, hint: str, operation: Operation) -> Any:
    """Return what an attachment has of indexes, as its attribute ``part``; None if nothing is attached as ``name``.

    Executors have no part in an ``operation`` on CSV: readers of CSV differ, so DuckDB reads it here, as for SELECT.
    """
    found = session.attachments.find((name,)) if session.attached is not None and isinstance(name, str) else None
    if found is None:
        return None
    if not getattr(found, "has_footers", True):
        operation.spark = None
    if (indexes := getattr(found, part, None)) is None:
        message = f"{name!r} is attached, and what is attached can only be read."
        raise UsageError(message, code="unknown-table", hint=hint)
    return indexes


def change_skipping_index(
    session: Session, change: str, table: str, specs: Sequence[IndexSpec] | None = None, spark: Any = None
) -> dict[str, Any]:
    """Create, refresh or drop skipping indexes of what is attached, of a dataset, or of the datasets of a cube."""
    name, given = f"{change}_skipping_index", () if specs is None else (specs,)
    operation = session.operation(name, spark=spark)
    hint = "Skipping indexes are for datasets, and for folders and lake tables that are attached."
    if (attached := _part_of_attached(session, table, "skipping_indexes", hint, operation)) is not None:
        return getattr(attached(operation.spark), change)(*given)  # type: ignore[no-any-return]
    if datasets := skipping.of_datasets(operation.snapshot, table, specs):
        return {
            n: change_skipping_index(session, change, uuid, specs and own, spark) for n, (uuid, own) in datasets.items()
        }
    return getattr(skipping.DatasetIndexes(operation, table), change)(*given)  # type: ignore[no-any-return]


# -- schema histories, and rows as datasets of Open Data Fabric ------------------------------------


def run_schema(
    session: Session, statement: ws.RecordSchema | ws.ExportHistory | ws.ExportOdf, read: Callable[[Select, str], Query]
) -> pa.Table:
    """Run RECORD or EXPORT, and return what was recorded or written; ``read`` gives the rows of a query."""
    tables, text = session.tables(), statement.text
    if isinstance(statement, ws.ExportOdf):
        rows = read(statement.query, statement.url)
        known = rows.schema.names
        key = targets.resolved(statement.primary_key, known, "The query", text)
        event = (statement.event_time,) if statement.event_time is not None else ()
        event_time = next(iter(targets.resolved(event, known, "The query", text)), None)
        return _exported(statement.url, export_odf(session, rows, statement.url, key, event_time))
    if isinstance(statement, ws.RecordSchema):
        snapshot, target = tables.snapshot, statement.target
        uuid = targets.cube_name(snapshot, target) or targets.need_uuid(snapshot, target, text)
        return table_of(record_schema(session, uuid), _RECORDED)
    tables.find(statement.target.parts, statement.target.span, text)
    name = ".".join(statement.target.parts)
    return _exported(statement.url, export_history(session, name, statement.url))


def _exported(url: str, found: Report) -> pa.Table:
    given = {"target": redacted(url), **found}
    return table_of([given], {name: type_ for name, type_ in _EXPORTED.items() if name in given})


def record_schema(session: Session, table: str) -> list[dict[str, Any]]:
    """Add the schemas of a dataset, or of all of a cube, to their histories where they are not there yet."""
    operation, snapshot = session.operation("record_schema"), session.snapshot()
    if text_of(table) in snapshot.members and snapshot.is_cube(table):
        uuids = [f"{table}{naming.CUBE_SEPARATOR}{name}" for name in snapshot.names(table)]
    else:
        uuids = [find_uuid(snapshot, table)]
    return [row for uuid in uuids for row in datasets.record_schema(operation, uuid)]


def export_history(session: Session, table: str, target: str | os.PathLike[str] | Store) -> dict[str, Any]:
    """Write the schema history of a dataset as a chain that other tools of Open Data Fabric read."""
    session.check_writable()
    tables = session.tables()
    blocks = blocks_of(tables.find(tuple(text_of(table).split(".")), (0, 0), table), tables.snapshot)
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
            f"{type(data).__name__} is no Arrow data: {in_sql_names(e)[:200]}",
            code="invalid-data",
            hint="Hand over anything with __arrow_c_stream__: pyarrow, pandas, polars, a result.",
        ) from None
    for name in [*keys, *([event_time] if event_time is not None else [])]:
        if name not in rows.schema.names:
            raise UsageError(f"The rows have no column {name!r}.", code="unknown-column")
    store = target if isinstance(target, Store) else Store(target, create=True)
    check_empty(store)
    return write_dataset(store, rows, primary_key=keys, event_time=event_time, now=utc_now())
