"""Finding and removing files that belong to nothing, in two steps that lie a grace period apart.

A file that nothing refers to is marked first and removed by a later run, so that readers who
know it still, and writers who have not committed it yet, have the time in between.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kartosql.errors import KartosqlError, StoreError, UsageError, text_of
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.metadata import DatasetDocument, parse_document
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER, Detail, OutcomeUnknown, PreconditionFailed, key_problem
from kartosql.write.commit_log import LOG
from kartosql.write.document import Head, read_raw
from kartosql.write.marks import MIN_GRACE, Marks, marks_key, put_marks, read_marks
from kartosql.write.recovery import read_head
from kartosql.write.removal import delete_schema
from kartosql.write.retry import RetryPolicy, attempts


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
    store: Store,
    uuids: Iterable[str],
    grace: dt.timedelta,
    *,
    dry_run: bool = False,
    patience: RetryPolicy | None = None,
) -> list[Garbage]:
    """Mark what belongs to nothing below datasets and remove what was marked a grace period ago.

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
            read_head(store, uuid, patience)
    for uuid in uuids:
        try:
            found += _collect(store, uuid, grace, dry_run)
        except KartosqlError as e:
            errors.append(e)
    if errors:
        raise errors[0]
    return found


def is_known(store: Store, uuid: str) -> bool:
    """Return whether all files below a dataset are marked."""
    marks = read_marks(store, uuid)
    known = {*marks.since, *marks.removing, marks_key(uuid)}
    return all(key in known or key.startswith(f"{uuid}/{LOG}/") for key in store.list_below(f"{uuid}/"))


def _collect(store: Store, uuid: str, grace: dt.timedelta, dry_run: bool) -> list[Garbage]:
    for _ in attempts(marks_key(uuid)):
        now = store.now()
        marks = read_marks(store, uuid)
        # Listed before the document is read: what is committed in between is referred to then.
        below = store.details(f"{uuid}/")
        head = read_raw(store, uuid)
        found = unreferenced(store, uuid, head, below, marks, now, grace)
        if dry_run:
            return found
        try:
            return _remove(store, uuid, found, marks, now)
        except (PreconditionFailed, OutcomeUnknown):
            continue
    raise AssertionError


def unreferenced(
    store: Store,
    uuid: str,
    head: Head | None,
    below: Mapping[str, Detail],
    marks: Marks,
    now: dt.datetime,
    grace: dt.timedelta,
) -> list[Garbage]:
    """Return what nothing refers to of the files ``below`` a dataset, and entries of the journal that are due."""
    needed = referenced(store, head, below)
    found = []
    for key, detail in below.items():
        if key in needed or key == marks_key(uuid) or key_problem(key):
            continue
        if key.startswith(f"{uuid}/{LOG}/"):
            # The journal is of use for as long as the files that it names are kept.
            if detail.modified + grace <= now:
                found.append(Garbage(uuid, key, detail.size, detail.modified, detail.modified + grace, False))
            continue
        since = marks.since.get(key, now)
        found.append(Garbage(uuid, key, detail.size, since, max(since, detail.modified) + grace, False))
    return found


def _remove(store: Store, uuid: str, found: list[Garbage], marks: Marks, now: dt.datetime) -> list[Garbage]:
    """Remove what is due and mark the rest."""
    ready = {g.key for g in found if g.due <= now or g.key in marks.removing}
    since = {g.key: g.since for g in found if g.key not in ready}
    if ready or since != marks.since or marks.removing:
        # From here on nobody can commit what is ready without noticing.
        marks = put_marks(store, uuid, Marks(since, frozenset(ready), marks.version))
    head = read_raw(store, uuid)
    needed = referenced(store, head, ready)
    keys = sorted(ready - needed)
    schemas = [key for key in keys if key.endswith(f"/{naming.COMMON_METADATA}")]
    store.delete([key for key in keys if key not in schemas])
    for key in schemas:
        try:
            delete_schema(store, uuid, key)
        except StoreError as e:
            if e.code != "no-conditional-delete":
                raise
            # It stays: one that is written for a new dataset meanwhile would go with it.
            keys.remove(key)
    if marks.removing:
        marks = put_marks(store, uuid, Marks(marks.since, frozenset(), marks.version))
    if head is None and not marks.since and marks.version is not None and set(schemas) <= set(keys):
        store.delete_if(marks_key(uuid), marks.version)
        # Deleting, even of nothing, takes the folders with it that are empty now.
        store.delete([f"{key.rpartition('/')[0]}/.nothing" for key in [*schemas, marks_key(uuid)]])
    return [replace(g, removed=g.key in keys) for g in found if g.key not in needed]


def referenced(store: Store, head: Head | None, below: Collection[str]) -> set[str]:
    """Return the keys that a dataset needs, of those ``below`` it and others."""
    if head is None:
        return set()
    keys: set[str] = set()
    documents = [head.document]
    staged = head.intent.staged if head.intent is not None else None
    if staged is not None:
        keys.add(staged)
        with contextlib.suppress(KeyError):  # carried out and cleared away
            data = store.read_metadata(staged)
            documents.append(parse_document(data, f"{head.uuid}{naming.METADATA_JSON}", head.uuid))
    for document in documents:
        keys |= _named(document, below)
    if not head.is_absent or staged is not None:
        # Their names are those that a later write takes, so they stay as long as there is a dataset.
        keys |= {key for key in below if _is_schema(key)}
    return keys


def _named(document: DatasetDocument, below: Collection[str]) -> set[str]:
    keys = {key for column in document.files.values() for key in column if key is not None}
    keys |= {key for key in document.indices.values() if isinstance(key, str)}
    if document.labels is None:
        side, indices = f"{document.uuid}/{SIDE_FOLDER}/", f"{document.uuid}/indices/"
        keys |= {k for k in below if k.endswith(".parquet") and not k.startswith((side, indices))}
    return keys


def _is_schema(key: str) -> bool:
    parts = key.split("/")
    return len(parts) == 3 and parts[2] == naming.COMMON_METADATA and parts[1] != SIDE_FOLDER


def members_of(store: Store, cube: str) -> dict[str, str]:
    """Return the uuids of the datasets below a cube's name, also of what a crash left of one.

    Raises ``unknown-table``.
    """
    found = {}
    for entry in store.list_root():
        uuid = entry.name if entry.is_dir else naming.metadata_uuid(entry.name)
        split = naming.split_member(uuid) if uuid is not None and naming.is_dataset_uuid(uuid) else None
        if uuid is not None and split is not None and split[0] == cube:
            found[split[1]] = uuid
    if not found:
        raise UsageError(f"There is no cube {cube!r}.", code="unknown-table", hint="con.cubes() lists the cubes.")
    return found


def dataset_of(store: Store, name: str) -> str:
    """Return the uuid of the dataset ``name`` or ``cube.dataset``, or of what a crash left of it.

    Raises ``unknown-table``.
    """
    prefix, dot, member = text_of(name).partition(".")
    known = {e.name if e.is_dir else naming.metadata_uuid(e.name) for e in store.list_root()}
    for uuid in (name, f"{prefix}{naming.CUBE_SEPARATOR}{member}" if dot else name):
        if uuid in known and naming.is_dataset_uuid(uuid):
            return uuid
    raise UsageError(
        f"There is no dataset {name!r}.",
        code="unknown-table",
        hint="con.datasets() lists them; those of a cube are cube.dataset.",
    )


def summary(found: Iterable[Garbage]) -> dict[str, Any]:
    """Return how many files of a dataset wait (``marked``), are ``removed``, their ``bytes``, and the ``files``."""
    files = list(found)
    removed = sum(g.removed for g in files)
    return {
        "marked": len(files) - removed,
        "removed": removed,
        "bytes": sum(g.bytes for g in files),
        "files": files,
    }
