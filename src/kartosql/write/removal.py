"""What is removed: partitions, by conditions over their values or all of them, and whole datasets.

Of whole datasets the documents go first, at once, and then the files.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from kartosql.errors import KartosqlError, StoreError, UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import DatasetTable, parse_partitions
from kartosql.formats.kartothek.metadata import DatasetDocument, parse_document
from kartosql.formats.kartothek.naming import BASE
from kartosql.formats.kartothek.snapshot import unknown_dataset
from kartosql.formats.kartothek.versions import listed, read_entries
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER, Detail, OutcomeUnknown, PreconditionFailed, key_problem
from kartosql.write.change import Change, Select
from kartosql.write.document import (
    MIN_GRACE,
    GarbageMarks,
    Head,
    attempts,
    garbage_key,
    is_there,
    put_garbage,
    read_garbage,
    read_raw,
)
from kartosql.write.history import KEPT, Retention, needed_keys, repack
from kartosql.write.operation import Operation, report
from kartosql.write.recovery import read_head


def everything(table: DatasetTable) -> Sequence[str]:
    """Select all partitions."""
    return table.labels


@dataclass(frozen=True)
class Removal:
    """Partitions to remove: those for which conditions over some partition columns hold.

    ``select`` returns their labels in the present table, going by those of ``columns`` that
    the table is partitioned by. Without ``columns`` there is no condition, and all partitions go.
    A table that lacks one of them keeps its rows where it ``needs_all``.
    """

    columns: frozenset[str] = frozenset()
    select: Select = everything
    needs_all: bool = False

    def of(self, partition_keys: Collection[str], *, named: bool) -> Select | None:
        """Return what is removed from a dataset with these partition keys, None for nothing.

        A dataset that none of the conditions is about keeps its rows, unless it was ``named``.
        """
        if not self.columns:
            return everything
        if self.needs_all:
            return self.select if self.columns <= set(partition_keys) else None
        if self.columns.isdisjoint(partition_keys):
            return everything if named else None
        return self.select


def same_partitions(keys: Sequence[str], table: str) -> Select:
    """Return the selection of all partitions whose values occur in the paths of the file ``keys``."""

    def select(found: DatasetTable) -> Sequence[str]:
        if not found.partition_keys or not keys:
            return found.labels if keys else ()
        types = [found.types[name] for name in found.partition_keys]
        places = range(len(types))
        new = set(parse_partitions(keys, found.uuid, table, found.partition_keys, types).comparables(places))
        old = found.partitions.comparables(places)
        return [
            label for label, part in zip(found.labels, found.partitions.part_of_file, strict=True) if old[part] in new
        ]

    return select


def delete_datasets(
    operation: Operation, uuids: Sequence[str], primary: str | None = None
) -> dict[str, dict[str, Any]]:
    """Delete datasets with their files and versions, all or none, and return by uuid how many files were theirs.

    ``primary`` is the uuid of the seed of their cube. A file that cannot be deleted stays
    behind without meaning, for a cleanup to find.
    """
    if not uuids:
        return {}
    operation.begin_at(uuids)
    documents = []
    for uuid in uuids:
        document = operation.document(uuid)
        if document is None:
            raise unknown_dataset(uuid)
        documents.append((document, _past_files(operation.store, uuid)))
    done = operation.commit([Change(uuid, operation.name, drop=True) for uuid in uuids], primary=primary)
    reports = {}
    for uuid, (document, past) in zip(uuids, documents, strict=True):
        with contextlib.suppress(KartosqlError):
            _delete_files(operation.store, document, past)
            operation.store.delete(list(operation.store.list_below(f"{BASE}/{uuid}")))
        files = [key for column in document.files.values() for key in column if key is not None]
        reports[uuid] = {**report((), done.get(uuid)), "removed": len(document.labels or ()), "files": len(files)}
    return reports


def _past_files(store: Store, uuid: str) -> set[str]:
    """Return the keys of the files of all versions that the history of a dataset tells of."""
    with contextlib.suppress(KartosqlError):
        return {key for entry in read_entries(store, uuid) for key in entry.named_keys() if key.startswith(f"{uuid}/")}
    return set()


def _delete_files(store: Store, document: DatasetDocument, past: set[str]) -> None:
    tables = document.tables or (naming.DEFAULT_TABLE,)
    keys = [key for column in document.files.values() for key in column if key is not None]
    if document.labels is None:
        below = store.list_below(f"{document.uuid}/")
        keys = [key for key in below if not key.endswith(f"/{naming.COMMON_METADATA}")]
        tables = tuple({key.split("/")[1] for key in keys})
    keys += [key for key in document.indices.values() if isinstance(key, str)]
    store.delete(sorted(past.union(keys)))
    store.delete([key for *_, key in listed(store, document.uuid)])
    for table in tables:
        _delete_schema(store, document.uuid, naming.schema_key(document.uuid, table))


def _delete_schema(store: Store, uuid: str, key: str) -> None:
    """Delete a schema file, unless somebody makes the dataset anew.

    Its name is the only one that a new dataset shares with the old one. Who makes it looks for the file after the
    commit and we look for the document after the deletion, so that one of the two puts it back.
    """
    with contextlib.suppress(KeyError, PreconditionFailed, OutcomeUnknown):
        data, version = store.read_versioned(key)
        store.delete_if(key, version)
        if exists(store, uuid):
            store.put_if(key, data, None)


def exists(store: Store, uuid: str) -> bool:
    """Return whether a dataset has a document."""
    return any(is_there(store, f"{uuid}{suffix}") for suffix in (naming.METADATA_JSON, naming.METADATA_MSGPACK))


@dataclass(frozen=True)
class Garbage:
    """A file that belongs to nothing: ``since`` when that is known, and ``due`` to be removed; both by the store."""

    uuid: str
    key: str
    bytes: int
    since: dt.datetime
    due: dt.datetime
    removed: bool


def collect(
    store: Store, uuids: Iterable[str], grace: dt.timedelta, *, kept: Retention = KEPT, dry_run: bool = False
) -> list[Garbage]:
    """Mark what belongs to nothing below datasets and remove what was marked a grace period ago.

    Files of versions that are ``kept`` belong to the dataset; the history of others is forgotten.

    Changes of several datasets that were left behind are carried out or taken back first. A
    ``dry_run`` changes nothing. Datasets whose metadata cannot be read are left alone, and the
    first such error is raised when the others are done.
    """
    if grace < MIN_GRACE:
        raise UsageError(
            f"A grace period of {grace} is too short for readers and writers that are at work.",
            code="invalid-setting",
            hint="Set grace_period to an hour (3600) at least.",
        )
    found: list[Garbage] = []
    errors: list[KartosqlError] = []
    uuids = list(dict.fromkeys(uuids))
    for uuid in [] if dry_run else uuids:
        with contextlib.suppress(KartosqlError):  # which the collection of this dataset will say
            read_head(store, uuid)
    for uuid in uuids:
        try:
            found += _collect(store, uuid, grace, kept, dry_run)
        except KartosqlError as e:
            errors.append(e)
    if errors:
        raise errors[0]
    return found


def is_known(store: Store, uuid: str) -> bool:
    """Return whether all files below a dataset are marked."""
    marks = read_garbage(store, uuid)
    known = {*marks.since, *marks.removing, garbage_key(uuid)}
    return all(key in known for key in store.list_below(f"{uuid}/"))


def _collect(store: Store, uuid: str, grace: dt.timedelta, kept: Retention, dry_run: bool) -> list[Garbage]:
    for _ in attempts(garbage_key(uuid)):
        now = store.now()
        marks = read_garbage(store, uuid)
        # Listed before the document is read: what is committed in between is referred to then.
        below = store.details(f"{uuid}/")
        head = read_raw(store, uuid)
        past = needed_keys(store, uuid, kept, now)
        found = unreferenced(store, uuid, head, below, marks, now, grace, past)
        if dry_run:
            return found
        with contextlib.suppress(PreconditionFailed, OutcomeUnknown):
            removed = _remove(store, uuid, found, marks, now, past)
            if head is not None:
                repack(store, uuid, kept, now - grace)
            else:
                store.delete([key for *_, key in listed(store, uuid)])
            return removed
    raise AssertionError


def unreferenced(
    store: Store,
    uuid: str,
    head: Head | None,
    below: Mapping[str, Detail],
    marks: GarbageMarks,
    now: dt.datetime,
    grace: dt.timedelta,
    past: Set[str],
) -> list[Garbage]:
    """Return what neither a dataset nor its ``past`` refers to of the files ``below`` it."""
    needed = _referenced(store, head, below, past)
    found = []
    for key, detail in below.items():
        if key in needed or key == garbage_key(uuid) or key_problem(key):
            continue
        since = marks.since.get(key, now)
        found.append(Garbage(uuid, key, detail.size, since, max(since, detail.modified) + grace, False))
    return found


def _remove(
    store: Store, uuid: str, found: list[Garbage], marks: GarbageMarks, now: dt.datetime, past: Set[str]
) -> list[Garbage]:
    ready = {g.key for g in found if g.due <= now or g.key in marks.removing}
    since = {g.key: g.since for g in found if g.key not in ready}
    if ready or since != marks.since or marks.removing:
        # From here on nobody can commit what is ready without noticing.
        marks = put_garbage(store, uuid, GarbageMarks(since, frozenset(ready), marks.version))
    head = read_raw(store, uuid)
    needed = _referenced(store, head, ready, past)
    keys = sorted(ready - needed)
    schemas = [key for key in keys if key.endswith(f"/{naming.COMMON_METADATA}")]
    store.delete([key for key in keys if key not in schemas])
    for key in schemas:
        try:
            _delete_schema(store, uuid, key)
        except StoreError as e:
            if e.code != "no-conditional-delete":
                raise
            # It stays: one that is written for a new dataset meanwhile would go with it.
            keys.remove(key)
    if marks.removing:
        marks = put_garbage(store, uuid, GarbageMarks(marks.since, frozenset(), marks.version))
    if head is None and not marks.since and marks.version is not None and set(schemas) <= set(keys):
        store.delete_if(garbage_key(uuid), marks.version)
        # Deleting, even of nothing, takes the folders with it that are empty now.
        store.delete([f"{key.rpartition('/')[0]}/.nothing" for key in [*schemas, garbage_key(uuid)]])
    return [replace(g, removed=g.key in keys) for g in found if g.key not in needed]


def _referenced(store: Store, head: Head | None, below: Collection[str], past: Set[str]) -> set[str]:
    """Return the keys that a dataset and its ``past`` need, of those ``below`` it and others."""
    if head is None:
        return set()
    keys = set(past) if not head.is_absent else set()
    documents = [head.document]
    staged = head.intent.staged if head.intent is not None else None
    if staged is not None:
        keys.add(staged)
        with contextlib.suppress(KeyError):  # carried out and cleared away
            data = store.read_metadata(staged)
            documents.append(parse_document(data, f"{head.uuid}{naming.METADATA_JSON}", head.uuid))
    side, indices = f"{head.uuid}/{SIDE_FOLDER}/", f"{head.uuid}/indices/"
    for document in documents:
        keys |= {key for column in document.files.values() for key in column if key is not None}
        keys |= {key for key in document.indices.values() if isinstance(key, str)}
        if document.labels is None:
            keys |= {k for k in below if k.endswith(".parquet") and not k.startswith((side, indices))}
    if not head.is_absent or staged is not None:
        # Their names are those that a later write takes, so they stay as long as there is a dataset.
        schemas = (key for key in below if key.endswith(f"/{naming.COMMON_METADATA}") and key.count("/") == 2)
        keys |= {key for key in schemas if not key.startswith(side)}
        published = (f"{head.uuid}/_delta_log/", f"{head.uuid}/metadata/")
        keys |= {key for key in below if key.startswith(published)}
    return keys


def summary(found: Iterable[Garbage]) -> dict[str, Any]:
    """Return how many files of a dataset wait (``marked``), are ``removed``, their ``bytes``, and the ``files``."""
    files = list(found)
    removed = sum(g.removed for g in files)
    return {"marked": len(files) - removed, "removed": removed, "bytes": sum(g.bytes for g in files), "files": files}
