"""COPY, COMPACT, CLEANUP and CHECK: what keeps cubes and datasets in order."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from kartosql.errors import KartosqlError, KartosqlWarning, UsageError, text_of
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.resolve import users_metadata
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.session import Session
from kartosql.sql import write_statements as ws
from kartosql.statements import results
from kartosql.statements.targets import cube_name, dataset_uuid, left_behind, need_cube, need_uuid, resolved
from kartosql.write import check as checking
from kartosql.write import garbage
from kartosql.write.compact import compact
from kartosql.write.copy import copy_cube, copy_dataset
from kartosql.write.cubes import find_cube
from kartosql.write.datasets import find_uuid
from kartosql.write.files import collect_stats
from kartosql.write.layout import columns_of
from kartosql.write.skipping import drop_forgotten

Report = dict[str, dict[str, Any]]


def run_upkeep(
    session: Session,
    statement: ws.CopyCube | ws.CopyDataset | ws.Compact | ws.Cleanup | ws.Check,
) -> pa.Table:
    """Run one of the statements and return the table of what it did, or would do."""
    snapshot, text = session.snapshot(), statement.text
    if isinstance(statement, ws.CopyCube):
        copied = need_cube(snapshot, statement.cube, text)
        name = statement.new_name.last if statement.new_name is not None else None
        datasets = None
        if statement.datasets is not None:
            datasets = resolved(statement.datasets, snapshot.members[copied], f"The cube {copied!r}", text, "dataset")
        return results.changes(
            copy_cube(snapshot, copied, session.operation_at(statement.url, "copy_cube"), name=name, datasets=datasets)
        )
    if isinstance(statement, ws.CopyDataset):
        copied = need_uuid(snapshot, statement.dataset, text)
        name = statement.new_name.last if statement.new_name is not None else None
        return results.changes(
            {
                name or copied: copy_dataset(
                    snapshot, copied, session.operation_at(statement.url, "copy_dataset"), name=name
                )
            }
        )
    # Names alone decide, as what is broken can be checked and cleaned up, too.
    cube = cube_name(snapshot, statement.target, text)
    uuid = None if cube is not None else dataset_uuid(snapshot, statement.target, text)
    if cube is None and uuid is None and not isinstance(statement, ws.Compact):
        cube, uuid = left_behind(snapshot, statement.target)
    if cube is None and uuid is None:
        uuid = need_uuid(snapshot, statement.target, text)
    if isinstance(statement, ws.Check):
        findings = check(session, cube or str(uuid), full=statement.full, repair=statement.repair)
        return results.findings(findings)
    if isinstance(statement, ws.Cleanup):
        if cube is not None:
            return results.garbage(cleanup_cube(session, cube, dry_run=statement.dry_run))
        return results.garbage({str(uuid): garbage_collect(session, str(uuid), dry_run=statement.dry_run)})
    if cube is not None:
        return results.changes(compact(session.operation("compact"), cube))
    member = naming.split_member(str(uuid))
    if member is not None and snapshot.is_cube(member[0]):
        return results.changes(compact(session.operation("compact"), member[0], [member[1]]))
    return results.changes({str(uuid): compact(session.operation("compact"), str(uuid))})


def cleanup_cube(session: Session, cube: Cube | str, *, dry_run: bool = False) -> Report:
    """Remove files of a cube that belong to nothing; see Connection.cleanup_cube."""
    prefix = prefix_of(cube)
    uuids = garbage.members_of(session.store_to_keep(only_looks=dry_run), prefix)
    found = garbage.collect(session.store, uuids.values(), session.grace, dry_run=dry_run)
    if not dry_run:
        drop_forgotten(session.store, f"{prefix}{naming.CUBE_SEPARATOR}")
    return {name: garbage.summary(g for g in found if g.uuid == uuid) for name, uuid in uuids.items()}


def garbage_collect(session: Session, uuid: str, *, dry_run: bool = False) -> dict[str, Any]:
    """Remove files of a dataset that belong to nothing; see Connection.garbage_collect."""
    uuid = garbage.dataset_of(session.store_to_keep(only_looks=dry_run), uuid)
    return garbage.summary(garbage.collect(session.store, [uuid], session.grace, dry_run=dry_run))


def stats(session: Session, cube: Cube | str, datasets: str | Iterable[str] | None) -> dict[str, dict[str, int]]:
    """Return how much datasets of a cube hold; see Connection.collect_stats."""
    members = find_cube(session.snapshot(), cube).members
    names = tuple(members) if datasets is None else columns_of(datasets, "datasets")
    for name in names:
        if name not in members:
            raise UsageError(
                f"The cube has no dataset {name!r}.",
                code="unknown-dataset",
                hint=f"Datasets: {', '.join(members)}.",
            )
    return {name: collect_stats(session.store, members[name].table) for name in names}


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
    """Return a cube, or why it is none, with the uuids of its datasets; None with that of a dataset."""
    name, snapshot = prefix_of(table), session.snapshot()
    if not isinstance(table, Cube) and (name in snapshot.keys or name not in snapshot.members):
        try:
            uuid = garbage.dataset_of(session.store, name)
        except UsageError:
            # A cube that was deleted may have left files behind.
            return None, list(garbage.members_of(session.store, name).values())
        is_member = naming.split_member(uuid)
        cube = _cube_of(snapshot, is_member[0]) if is_member and snapshot.is_cube(is_member[0]) else None
        return cube if isinstance(cube, Cube) else None, [uuid]
    return _cube_of(snapshot, name), list(garbage.members_of(session.store, name).values())


def _cube_of(snapshot: Snapshot, prefix: str) -> Cube | KartosqlError:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)  # which are findings of a dataset
        try:
            return snapshot.cube(prefix).cube
        except KartosqlError as e:
            return e


def prefix_of(cube: Any) -> str:
    """Return the name of a cube, which calls take as well as the cube itself."""
    name = cube.uuid_prefix if isinstance(cube, Cube) else cube
    if not isinstance(name, str):
        raise UsageError(f"{cube!r} is neither a Cube nor the name of one.")
    return name
