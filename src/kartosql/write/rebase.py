"""A change and the head that it meets -> the next document, with its index files in place."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import Any

from kartosql.errors import ConcurrentCommit, UsageError
from kartosql.formats.kartothek import resolve
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.store import Store
from kartosql.write.change import Change, apply, partition_keys_of
from kartosql.write.document import Head, check_writable, digest, succeed, with_marks
from kartosql.write.indexing import IndexWork
from kartosql.write.marks import MIN_GRACE, expired, keep
from kartosql.write.schema import Schemas, heal, read_known, replaced, widened, with_history

GRACE = dt.timedelta(days=7)


@dataclass(frozen=True)
class Prepared:
    """The document that a change leads to; ``index_keys`` are the files that were written for it alone."""

    document: DatasetDocument
    index_keys: tuple[str, ...]
    removed: frozenset[str]
    has_pending: bool


def rebase(
    store: Store,
    change: Change,
    head: Head | None,
    base: Head | None,
    *,
    commit_id: str,
    now: dt.datetime,
    grace: dt.timedelta = GRACE,
) -> Prepared:
    """Return what ``change``, planned on ``base``, makes of ``head``; marks of changes under way are kept.

    Raises ConcurrentCommit where the two do not go together, ``incompatible-schema``,
    ``implicit-partitions`` and ``commit-expired``; HeadMoved where the head is out of date.
    """
    check_conflicts(change, head, base)
    live = None if head is None or head.is_absent else head
    anew = live is None or change.starts_anew
    if live is not None and not anew:
        check_writable(live.document)
    _check_files(store, change, now, grace)
    keys = _partition_keys(change, live)
    if live is None or anew:
        schemas = replaced(store, change.uuid, change, keys)
    elif change.schemas:
        schemas = widened(store, live, change, keys)
    else:
        heal(store, live)
        schemas = Schemas(read_known(store, live.document))
    removed = removed_labels(change, live, base, schemas)
    created = now.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds")
    document = apply(live.document if live is not None else None, change, removed, {}, created)
    if head is not None:
        document = replace(document, key=head.key)
    old = {} if live is None or anew else dict(live.document.indices)
    seen = base or live
    planned = frozenset(seen.document.labels or ()) if seen is not None else frozenset()
    work = IndexWork(store, change, old, planned, anew, schemas, removed, document)
    indices, index_keys = work.write(created)
    document = _carry_marks(replace(document, indices=indices), head, schemas)
    document = with_history(document, _history_before(change, live), schemas.known, now)
    identity = succeed(
        head.identity if head is not None else None,
        commit_id=commit_id,
        digest=digest(document),
        operation=change.operation,
        time=now,
        schemas={table: resolve.fingerprint(schema) for table, schema in schemas.known.items()},
        anew=anew,
        removes=bool(removed),
    )
    return Prepared(with_marks(document, identity=identity.to_dict()), index_keys, removed, bool(schemas.pending))


def _history_before(change: Change, live: Head | None) -> object:
    """Return the schema history that goes on with a change: that of the dataset, or of the one it is copied from."""
    source = change.metadata if live is None or change.create else live.document.metadata
    return None if change.restart_history else source.get(resolve.HISTORY)


def _carry_marks(document: DatasetDocument, head: Head | None, schemas: Schemas) -> DatasetDocument:
    intent = head.intent._asdict() if head is not None and head.intent is not None else None
    unfinished = head.unfinished if head is not None else None
    return with_marks(document, intent=intent, unfinished=unfinished, schema=schemas.mark())


def _partition_keys(change: Change, head: Head | None) -> tuple[str, ...]:
    if head is None or change.starts_anew:
        return change.partition_keys or ()
    keys = partition_keys_of(head.document)
    if change.partition_keys is not None and change.added and change.partition_keys != keys:
        raise UsageError(
            f"Dataset {change.uuid!r}: it is partitioned by {', '.join(keys) or 'nothing'}, the new files "
            f"by {', '.join(change.partition_keys) or 'nothing'}",
            code="incompatible-schema",
        )
    return keys


def _check_files(store: Store, change: Change, now: dt.datetime, grace: dt.timedelta) -> None:
    """Make sure of files that were written long ago: what nothing refers to is removed some day."""
    # A cleanup elsewhere may have a shorter grace period than this one.
    if change.started is None or now - change.started <= min(grace, MIN_GRACE) / 2:
        return
    keys = {key for entry in change.added.values() for key in entry.values()}
    keep(store, change.uuid, keys)
    try:
        store.sizes(sorted(keys))
    except KeyError as e:
        raise expired(change.uuid, e.args[0]) from None


# -- conflicts ---------------------------------------------------------------------------------------


def check_conflicts(change: Change, head: Head | None, base: Head | None) -> None:
    """Raise ConcurrentCommit if the dataset is not, or no more, what ``change`` needs to find."""
    exists = head is not None and not head.is_absent
    if base is None:
        if change.create and exists:
            raise conflict(change, head, "the dataset exists by now")
        if not change.create and not exists:
            raise conflict(change, None, "there is no such dataset")
        return
    if head is None or not exists:
        raise conflict(change, None, "the dataset was dropped")
    if head.version == base.version:
        return
    if _is_another(head, base):
        raise conflict(change, head, "the dataset was replaced")
    if (change.replace_all or change.drop) and _content(head) != _content(base):
        raise conflict(change, head, "the dataset was changed")


def _is_another(head: Head, base: Head) -> bool:
    """Return whether the dataset was made anew, or all of it replaced."""
    if head.identity is None and base.identity is not None:
        # Another program wiped the metadata; if it kept files, it did no more.
        labels = base.document.labels or ()
        return bool(labels) and set(labels).isdisjoint(head.document.labels or ())
    origins = [h.identity.origin if h.identity is not None else None for h in (head, base)]
    return origins[0] != origins[1]


def _content(head: Head) -> tuple[str, dict[str, Any]]:
    return head.digest, {k: v for k, v in head.document.metadata.items() if k not in resolve.OWN_KEYS}


def removed_labels(change: Change, head: Head | None, base: Head | None, schemas: Schemas) -> frozenset[str]:
    """Return the labels that ``change`` takes away from ``head``; raises ConcurrentCommit."""
    if head is None:
        return frozenset()
    labels = head.document.labels or ()
    if change.starts_anew:
        return frozenset(labels)
    if change.removed is None:
        return frozenset()
    if not callable(change.removed):
        gone = change.removed.difference(labels)
        if gone:
            raise conflict(change, head, f"the partition {min(gone)!r} is gone")
        return change.removed
    found = frozenset(change.removed(schemas.table(head.document)))
    if base is not None and base.version != head.version:
        # Whoever wrote these did not see the removal, and the removal did not see them.
        late = found.difference(base.document.labels or ())
        if late:
            raise conflict(change, head, f"the partition {min(late)!r}, which it would remove, was added")
    return found


def conflict(change: Change, head: Head | None, what: str) -> ConcurrentCommit:
    """Return the error for a change that somebody else was faster than."""
    winner: dict[str, Any] = {}
    by = ""
    if head is not None and head.identity is not None and not head.is_foreign:
        identity = head.identity
        winner = {"operation": identity.operation, "id": identity.id, "time": identity.time}
        by = f", last by {identity.operation} {identity.id} at {identity.time}"
    elif head is not None:
        winner = {"operation": "unknown", "id": None, "time": None}
        by = ", last by another program"
    return ConcurrentCommit(
        f"Dataset {change.uuid!r}: {change.operation} cannot be committed, as {what}{by}",
        winner=winner,
        hint="Nothing was changed. Look at the dataset as it stands now and try again.",
    )
