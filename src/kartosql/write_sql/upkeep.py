"""COPY, COMPACT, CLEANUP and CHECK: what keeps cubes and datasets in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import pyarrow as pa

from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.xskipper.naming import spelled
from kartosql.sql import write_statements as ws
from kartosql.tables.names import Tables
from kartosql.write_sql import results
from kartosql.write_sql.targets import (
    cube_name,
    dataset_target,
    dataset_uuid,
    left_behind,
    need_cube,
    need_uuid,
    resolved,
)

Report = Mapping[str, Any]


class _Upkeep(Protocol):
    """The calls of a connection that these statements stand for; tables are named by cube or uuid."""

    def copy_cube(
        self, cube: str, target: str, *, name: str | None = None, datasets: Iterable[str] | None = None
    ) -> Report: ...
    def copy_dataset(self, dataset: str, target: str, *, name: str | None = None) -> Report: ...
    def compact(self, cube: str, datasets: str | Iterable[str] | None = None) -> Report: ...
    def cleanup_cube(self, cube: str, *, dry_run: bool = False) -> Report: ...
    def garbage_collect(self, uuid: str, *, dry_run: bool = False) -> Report: ...
    def check(self, table: str, *, full: bool = False, repair: bool = False) -> Iterable[Any]: ...


class _Skipping(Protocol):
    """The calls of a connection that statements about skipping indexes stand for."""

    def create_skipping_index(
        self, table: str, *, minmax: Any = (), valuelist: Any = (), bloomfilter: Any = (), regexvaluelist: Any = ...
    ) -> Report: ...
    def refresh_skipping_index(self, table: str) -> Report: ...
    def drop_skipping_index(self, table: str) -> Report: ...


def skip(
    calls: _Skipping, tables: Tables, statement: ws.CreateSkipping | ws.RefreshSkipping | ws.DropSkipping
) -> pa.Table:
    """Run a statement about skipping indexes and return the table of what it did."""
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
        return results.dropped(reports(calls.drop_skipping_index(table)))
    if isinstance(statement, ws.RefreshSkipping):
        return results.skipping(reports(calls.refresh_skipping_index(table)))
    columns: dict[str, Any] = {"MINMAX": [], "VALUELIST": [], "BLOOMFILTER": {}, "REGEXVALUELIST": {}}
    for one in statement.indexes:
        name = spelled(one.column)
        if one.kind == "BLOOMFILTER":
            columns[one.kind][name] = {k.lower(): float(v) if k == "FPP" else v for k, v in one.parameters}
        elif one.kind == "REGEXVALUELIST":
            columns[one.kind][name] = [pattern for _, pattern in one.parameters]
        else:
            columns[one.kind].append(name)
    made = calls.create_skipping_index(table, **{kind.lower(): named for kind, named in columns.items()})
    return results.skipping(reports(made))


def run(
    upkeep: _Upkeep,
    snapshot: Snapshot,
    statement: ws.CopyCube | ws.CopyDataset | ws.Compact | ws.Cleanup | ws.Check,
) -> pa.Table:
    """Run one of the statements and return the table of what it did, or would do."""
    text = statement.text
    if isinstance(statement, ws.CopyCube):
        copied = need_cube(snapshot, statement.cube, text)
        name = statement.new_name.last if statement.new_name is not None else None
        datasets = None
        if statement.datasets is not None:
            datasets = resolved(statement.datasets, snapshot.members[copied], f"The cube {copied!r}", text, "dataset")
        return results.changes(upkeep.copy_cube(copied, statement.url, name=name, datasets=datasets))
    if isinstance(statement, ws.CopyDataset):
        copied = need_uuid(snapshot, statement.dataset, text)
        name = statement.new_name.last if statement.new_name is not None else None
        return results.changes({name or copied: upkeep.copy_dataset(copied, statement.url, name=name)})
    # Names alone decide, as what is broken can be checked and cleaned up, too.
    cube = cube_name(snapshot, statement.target, text)
    uuid = None if cube is not None else dataset_uuid(snapshot, statement.target, text)
    if cube is None and uuid is None and not isinstance(statement, ws.Compact):
        cube, uuid = left_behind(snapshot, statement.target)
    if cube is None and uuid is None:
        uuid = need_uuid(snapshot, statement.target, text)
    if isinstance(statement, ws.Check):
        findings = upkeep.check(cube or str(uuid), full=statement.full, repair=statement.repair)
        return results.findings(findings)
    if isinstance(statement, ws.Cleanup):
        if cube is not None:
            return results.garbage(upkeep.cleanup_cube(cube, dry_run=statement.dry_run))
        return results.garbage({str(uuid): upkeep.garbage_collect(str(uuid), dry_run=statement.dry_run)})
    if cube is not None:
        return results.changes(upkeep.compact(cube))
    member = naming.split_member(str(uuid))
    if member is not None and snapshot.is_cube(member[0]):
        return results.changes(upkeep.compact(member[0], [member[1]]))
    return results.changes({str(uuid): upkeep.compact(str(uuid))})
