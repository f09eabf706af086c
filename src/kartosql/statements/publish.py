"""PUBLISH: a dataset as a table of another format, over the same files."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa

from kartosql.engines.duckdb.statement import FileAccess
from kartosql.errors import ConcurrentCommit, FormatError, KartosqlError, KartosqlWarning, UsageError, quoted
from kartosql.formats.kartothek.metadata import pause_garbage_collection
from kartosql.formats.kartothek.naming import CUBE_SEPARATOR, FOLLOWED
from kartosql.plan.overlays import Overlays
from kartosql.session import Session
from kartosql.sql import write_statements as ws
from kartosql.statements.targets import COUNT, TEXT, dataset_target
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed, key_problem
from kartosql.store.urls import is_below, is_encodable
from kartosql.tables.names import Tables
from kartosql.tables.statistics import has_ordered_bounds
from kartosql.tables.table import Overlay, Table
from kartosql.write.change import Change
from kartosql.write.publish.delta import DeltaTarget
from kartosql.write.publish.live import LiveFiles, per_file

ATTEMPTS = 20
PUBLISHED = {"dataset": TEXT, "target": TEXT, "type": TEXT, "version": COUNT, "files": COUNT}
PUBLISHED |= dict.fromkeys(("added", "removed", "hidden_rows"), COUNT)


def _iceberg(store: Store) -> Any:
    try:
        from kartosql.write.publish.iceberg import IcebergTarget
    except ImportError:
        hint = "pip install 'kartosql[iceberg]'"
        raise UsageError("pyiceberg is not installed.", code="missing-extra", hint=hint) from None
    return IcebergTarget(store)


TARGETS: dict[str, Callable[[Store], Any]] = {"delta": DeltaTarget, "iceberg": _iceberg}


def publish(session: Session, named: ws.Named, url: Any, type_: str, follow: bool | None, text: str) -> dict[str, Any]:
    """Publish a dataset as of now; see Connection.publish."""
    session.check_writable()
    if not isinstance(type_, str) or type_.lower() not in TARGETS:
        raise UsageError(f"type: {quoted(type_)} is none of {', '.join(TARGETS)}.", code="invalid-argument")
    if follow not in (True, False, None):
        raise UsageError(f"follow: {quoted(follow)} is neither True nor False.", code="invalid-argument")
    uuid = dataset_target(session.tables(), named, text).table.uuid
    store = _target(session, url, uuid, inside=follow is not None)
    done = _publish(session, uuid, store, type_.lower(), lambda: dataset_target(session.tables(), named, text).source)
    if follow is not None:
        folder = store.address[0].removeprefix(session.store.address[0]).strip("/")
        key = f"{FOLLOWED}{type_.lower()}:{folder}"
        entry = {"metadata": {key: uuid}} if follow else {"forgotten": frozenset({key})}
        session.operation("publish").commit([Change(uuid, "publish", **entry)])  # and publish what came meanwhile
    return done


def publish_again(session: Session, uuid: str) -> None:
    """Publish a dataset to the folders that follow its commits; the commit stands, so what fails is a warning."""
    try:
        tables = Tables(session.snapshot(), {})
        metadata = tables.snapshot.dataset(uuid).document.metadata
        # A copy, or what strangers wrote, publishes nothing in the name of another dataset.
        asked = [key.removeprefix(FOLLOWED) for key, of in metadata.items() if key.startswith(FOLLOWED) and of == uuid]
    except Exception as e:  # noqa: BLE001
        return _warn(uuid, e)
    name = tuple(uuid.split(CUBE_SEPARATOR, 1))  # of a dataset, or of one of a cube
    for entry in asked:
        type_, _, folder = entry.partition(":")
        try:
            if type_ not in TARGETS or (folder and key_problem(folder)):
                raise UsageError(f"{quoted(entry)} is no folder of the store.")
            store = _target(session, f"{session.store.address[0]}/{folder}".rstrip("/"), uuid, inside=True)
            _publish(session, uuid, store, type_, lambda: Tables(session.snapshot(), {}).find(name))
        except Exception as e:  # noqa: BLE001
            _warn(uuid, e, f" in {entry}")
    return None


def _warn(uuid: str, error: Exception, where: str = "") -> None:
    told = error.message if isinstance(error, KartosqlError) else f"{type(error).__name__}: {error}"
    text = f"Dataset {uuid!r}: this commit stands, and is not published{where}: {told}"
    warnings.warn(text, KartosqlWarning, stacklevel=2)


def _publish(session: Session, uuid: str, store: Store, type_: str, find: Callable[[], Table]) -> dict[str, Any]:
    target = TARGETS[type_](store)
    for _ in range(ATTEMPTS):
        try:
            with pause_garbage_collection():
                try:
                    target.read(uuid)  # before the dataset: what others publish meanwhile is newer
                except FormatError as e:
                    e.hint = f"PUBLISH elsewhere. What nothing else wrote begins anew without its {target.folder!r}."
                    raise
                source = find()
                name, files = source.name, source.parts[0].table.files
                paths = target.paths(session.store, files)
                known = target.kept(paths)
                live = _live(session, source, paths, known)
                done = target.write(live, paths, known)
        except (PreconditionFailed, OutcomeUnknown):
            continue
        hidden = sum(map(len, live.deleted.values()))
        told = {"dataset": name, "target": store.url, "type": target.type, "files": len(files)}
        return {**told, **done, "hidden_rows": hidden}
    raise ConcurrentCommit(
        f"{store.url}: others publish there all the time.", hint="Nothing was published by this call. Try again."
    )


def _target(session: Session, url: Any, uuid: str, *, inside: bool) -> Store:
    """Return the folder to publish to, which may be that of the dataset, but no other one below it or another one.

    With ``inside``, it lies in the store.
    """
    if not isinstance(url, str | os.PathLike):
        raise UsageError(f"url: {quoted(url)} is no path or URL.", code="invalid-argument")
    text = os.fspath(url)
    own, store = session.store.address[0], session.store
    is_inside = is_encodable(text) and is_below(text, own)
    if inside and not is_inside:
        raise UsageError(
            f"{text!r} does not lie in the store, so that it cannot follow commits.",
            code="invalid-argument",
            hint="With FOLLOW, publish to a folder in the store, or without it after each change.",
        )
    if is_inside:
        inner = text if not store.is_local else os.path.realpath(os.path.expanduser(text.removeprefix("file://")))
        first, _, rest = inner.removeprefix(own).strip("/").partition("/")
        if (first in session.snapshot().keys or first == uuid) and (first != uuid or rest):
            raise UsageError(
                f"{text!r} lies in the folder of the dataset {first!r}, whose files are looked after.",
                code="invalid-argument",
                hint=f"Publish beside it, above it, or to the folder of {uuid!r} itself.",
            )
    is_alike = "://" in text and text.partition("://")[0] == own.partition("://")[0]
    return Store(text, store.address[1] if is_alike else None, create=True)


def _live(session: Session, source: Table, paths: Collection[str], known: Collection[str]) -> LiveFiles:
    """Return what is known of the files of a table; what is not known of new ones is read from their footers."""
    part = source.parts[0]
    table, order = part.table, list(paths)
    new = [f for f, path in enumerate(order) if path not in known]
    stored = [f for f in pa.schema([*source.columns.items()]) if f.name not in table.partition_keys]
    told = [f.name for f in stored if has_ordered_bounds(f.type)]
    deleted: dict[int, list[int]] = {}
    access = FileAccess(session.runtime.store)
    with session.runtime.planner(session.settings, access) as planner, planner.errors(""):
        if isinstance(part.rows, Overlay) and (overlaid := Overlays(part, planner.cells).within(table.all_files)):
            deleted = planner.cells.hidden_rows(part, overlaid)
            new = sorted({*new, *deleted})
        statistics = planner.footers.statistics(planner, table, new, told) if new else None
        rows = None if statistics is None else statistics.rows(new)
        if new and rows is None:
            planner.footers.statistics(planner, table, new)
            rows = statistics.rows(new) if statistics is not None else None
    bounds = {c: per_file(b, new) for c in told if statistics is not None and (b := statistics.column(c)) is not None}
    schema = pa.schema([(name, type_) for name, type_ in source.columns.items()])
    sizes = _sizes(session.store, access, table, new)
    return LiveFiles(source.name, schema, table.partitions, new, sizes, rows or [], bounds, deleted)


def _sizes(store: Store, access: FileAccess, table: Any, files: list[int]) -> list[tuple[int, int]]:
    """Return size and time of files, of remote ones by one listing."""
    keys = [table.files[f] for f in files]
    if store.is_local:
        access.stat(keys)  # of those whose footers were looked for it is known
        return [(stamp.size, stamp.mtime_ns // 10**6) for stamp in map(access.stamps.__getitem__, keys)]
    found = store.details(f"{table.uuid}/{table.table}/") if keys else {}
    return [(info.size, int(info.modified.timestamp() * 1000)) for info in map(found.__getitem__, keys)]
