"""Changes of several datasets that are under way: waited for, carried out, or taken back.

The document of the cube's seed says which of them are committed. Whoever meets the mark of
one in the document of a dataset asks there, and leaves the dataset without the mark.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from dataclasses import replace

from kartosql.errors import CommitError, FormatError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.metadata import STAGED, Intent, parse_document
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed
from kartosql.write.change import Change, HeadMoved, heal, rebase
from kartosql.write.document import Backoff, Head, attempts, discard, read_raw, remove, swap, touched, with_marks
from kartosql.write.history import record

STALE = dt.timedelta(hours=1)  # clocks may differ, but not by as much
# For which a change of several datasets may stand still before others take it back: its writer has ended, or hangs.
INTENT_SECONDS = 10.0


def read_head(store: Store, uuid: str) -> Head | None:
    """Return the head of a dataset with no change under way in it, None if there is no dataset.

    Changes of several datasets that were left behind are carried out or taken back first.
    Raises what reading the document raises.
    """
    head = open_head(store, uuid)
    return None if head is None or head.is_absent else head


def open_head(store: Store, uuid: str, *, is_primary: bool = False) -> Head | None:
    """Return the head of a dataset after changes that were under way in it, also that of an absent one.

    A change that is only announced at a seed stays, unless the caller ``is_primary`` in one of his own.
    """
    backoff = Backoff()
    since: dict[str, float] = {}
    while True:
        head = read_raw(store, uuid)
        if head is None or backoff.is_over():
            if head is not None and (head.unfinished or head.intent is not None):
                raise CommitError(
                    f"Dataset {head.uuid!r}: a change of several datasets does not come to an end",
                    hint="Other writers are busy with it, or the store fails. Try again.",
                )
            return head
        intent = head.intent
        if head.unfinished:
            finish(store, uuid)
        elif intent is None or not (is_primary or intent.seed != uuid or head.is_absent or _is_stale(intent)):
            return head
        else:
            first = since.setdefault(intent.tx, time.monotonic())
            is_late = _is_stale(intent) or time.monotonic() - first > INTENT_SECONDS
            if not _settle(store, head, intent, is_late):
                backoff.wait()


def _is_stale(intent: Intent) -> bool:
    try:
        return dt.datetime.now(dt.timezone.utc) - dt.datetime.fromisoformat(intent.time) > STALE
    except (TypeError, ValueError):
        return True


def _settle(store: Store, head: Head, intent: Intent, is_late: bool) -> bool:
    """Take one step towards a document without the mark; return False if there is only waiting left."""
    seed = head if intent.seed == head.uuid else read_raw(store, intent.seed)
    with contextlib.suppress(PreconditionFailed, OutcomeUnknown, HeadMoved):
        if seed is not None and intent.tx in seed.unfinished:
            _roll_forward(store, head, intent)
        elif is_open(seed, intent.tx):
            if not is_late:
                return False
            abort(store, intent.seed, intent.tx)
        else:
            roll_back(store, head)
    return True


def is_open(seed: Head | None, tx: str) -> bool:
    """Return whether a document has the mark of the change ``tx``: at the seed, it may still be committed."""
    return seed is not None and seed.intent is not None and seed.intent.tx == tx


def abort(store: Store, seed_uuid: str, tx: str) -> bool:
    """Take care that ``tx`` is not committed any more; return False if it is."""
    for _ in attempts(seed_uuid):
        seed = read_raw(store, seed_uuid)
        if seed is not None and tx in seed.unfinished:
            return False
        if seed is None or not is_open(seed, tx):
            return True
        with contextlib.suppress(PreconditionFailed, OutcomeUnknown):
            roll_back(store, seed)
            return True
    return False


def roll_back(store: Store, head: Head) -> None:
    """Take the mark out of a document; a dataset that was to be made is gone then."""
    if head.is_absent and not head.unfinished:
        remove(store, head)
    else:
        swap(store, touched(head.document, intent=None), head)
    if head.intent is not None and head.intent.staged is not None:
        discard(store, [head.intent.staged])


def _roll_forward(store: Store, head: Head, intent: Intent) -> None:
    """Carry out a committed change at one dataset."""
    if intent.kind == "delete":
        remove(store, head)
        return
    try:
        data = store.read_metadata(str(intent.staged))
    except KeyError:
        now = read_raw(store, head.uuid)
        if now is not None and now.version == head.version:
            raise FormatError(
                f"Dataset {head.uuid!r}: {intent.staged} is missing, the document that a committed change waits in",
                code="missing-metadata",
                hint="Restore the file.",
            ) from None
        raise HeadMoved from None  # carried out and cleared away
    staged = parse_document(data, f"{head.uuid}{naming.METADATA_JSON}", head.uuid)
    made_of = staged.metadata.get(STAGED, {})
    if head.has_digest(made_of["base"]):
        swap(store, replace(with_marks(staged, staged=None), key=head.key), head)
        return
    # Another program wrote the dataset although the mark stood there: what it wrote stays.
    added: dict[str, dict[str, str]] = {label: {} for label in made_of["added"]}
    for table, keys in staged.files.items():
        for label, key in zip(staged.labels or (), keys, strict=True):
            if label in added and key is not None:
                added[label][table] = key
    change = Change(
        uuid=head.uuid,
        operation=made_of["operation"],
        added=added,
        removed=frozenset(made_of["removed"]).intersection(head.document.labels or ()),
        metadata=staged.metadata,
    )
    live = Head(with_marks(head.document, absent=None), head.version)
    time_ = dt.datetime.now(dt.timezone.utc)
    prepared = rebase(store, change, live, None, commit_id=intent.tx, now=time_)
    swap(store, with_marks(prepared.document, intent=None), head)
    record(store, change, live, prepared)  # comes after the entry of its writer, which tells of no other program


def finish(store: Store, seed_uuid: str) -> None:
    """Carry out the committed changes of several datasets that are recorded at a seed."""
    staged: list[str] = []
    for _ in attempts(seed_uuid):
        seed = read_raw(store, seed_uuid)
        if seed is None or not seed.unfinished:
            break
        tx, members = next(iter(seed.unfinished.items()))
        staged += [key for member in members for key in _finish_member(store, member, tx)]
        rest = {k: v for k, v in seed.unfinished.items() if k != tx}
        with contextlib.suppress(PreconditionFailed, OutcomeUnknown):
            if seed.is_absent and not rest and seed.intent is None:
                remove(store, seed)
            else:
                swap(store, touched(seed.document, unfinished=rest), seed)
            if not rest:
                break
    discard(store, staged)


def _finish_member(store: Store, uuid: str, tx: str) -> list[str]:
    """Carry out ``tx`` at a dataset and return the keys of documents that waited for it."""
    staged = set()
    for _ in attempts(uuid):
        head = read_raw(store, uuid)
        if head is None or head.intent is None or head.intent.tx != tx:
            break
        if head.intent.staged is not None:
            staged.add(head.intent.staged)
        with contextlib.suppress(PreconditionFailed, OutcomeUnknown, HeadMoved):
            _roll_forward(store, head, head.intent)
            break
    return sorted(staged)


def complete_schemas(store: Store, uuid: str) -> None:
    """Put the schema files that a commit of this dataset left pending, and say so in the document."""
    for _ in attempts(uuid):
        head = read_raw(store, uuid)
        if head is None or not head.pending_schemas:
            return
        with contextlib.suppress(PreconditionFailed, OutcomeUnknown, HeadMoved):
            heal(store, head)
            swap(store, touched(head.document, schema=None), head)
            return
