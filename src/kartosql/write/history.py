"""Write the history of a dataset: one entry for each commit, packs of many entries, and less after a retention."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError
from kartosql.formats.kartothek import versions
from kartosql.formats.kartothek.history import history_of
from kartosql.formats.kartothek.metadata import DatasetDocument, fingerprints
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.kartothek.versions import FOREIGN, Entry, Link, files_of, listed, pack, read_file
from kartosql.store import Store
from kartosql.write.change import Change, Prepared
from kartosql.write.document import Head, Identity, new_id, read_identity

PACKED = 128  # files of single entries before they are packed
PACK_BYTES = 256 << 10  # a pack that is as large stays as it is


@dataclass(frozen=True)
class Retention:
    """How many versions before the present one are kept, and for how long after a newer one replaced them."""

    versions: int = 1000
    time: dt.timedelta = dt.timedelta(days=30)


KEPT = Retention()


def record(
    store: Store, change: Change, before: Head | None, prepared: Prepared, along: Sequence[tuple[str, Change]] = ()
) -> None:
    """Write the entry of a commit beside the dataset; ignore refusals of the store, as the commit has succeeded.

    Changes that it took ``along``, with the ids of their commits, have entries of their own.
    """
    identity = read_identity(prepared.document.metadata)
    if identity is None:
        return
    with contextlib.suppress(KartosqlError):
        last = identity.sequence
        if along and before is not None and before.identity is not None:
            own = identity.recent[-len(along) - 1]
            identity = replace(identity, sequence=last - len(along), id=own, parent=before.identity.id)
        entry = _entry(change, before if before is not None and not before.is_absent else None, prepared, identity)
        entries = [entry, *_entries_after(entry, along)]
        # Not synced to the disk as a commit is: after a power loss one entry less is no harm.
        with store.output(entry.key(change.uuid, last), sync_folders=False, sync_content=False) as file:
            file.write(pack(entries))
        if identity.sequence // PACKED < last // PACKED or identity.sequence % PACKED == 0:
            repack(store, change.uuid)


def _entries_after(entry: Entry, along: Sequence[tuple[str, Change]]) -> Iterable[Entry]:
    """Yield the entries of changes that only add files behind those of an entry before, and change no more facts."""
    for commit_id, change in along:
        link = Link(entry.sequence, entry.id, entry.operation, entry.time)
        entry = replace(
            entry,
            id=commit_id,
            parent=entry.id,
            sequence=entry.sequence + 1,
            added=change.added,
            rows=change.rows,
            changed={},
            before=link,
            older=([entry.before.id] if entry.before is not None else []) + list(entry.older[:2]),
            base=None,
        )
        yield entry


def _entry(change: Change, head: Head | None, prepared: Prepared, identity: Identity) -> Entry:
    document, before = prepared.document, head.document if head is not None else None
    gone = prepared.removed if before is not None else frozenset()
    gaps = [at for at, label in enumerate(before.labels or ()) if label in gone] if before is not None and gone else []
    # Without positions, what is added comes last.
    labels = document.labels or () if change.positions else ()
    where = {label: at for at, label in enumerate(labels) if label in change.added}
    entry = Entry(
        **{name: getattr(identity, name) for name in ("id", "parent", "sequence", "operation", "time", "origin")},
        added={label: dict(files) for label, files in change.added.items()},
        removed=dict(files_of(before, gone)) if before is not None and gone else {},
        rows=change.rows,
        positions=change.positions,
        repaired=change.repaired,
        places=[where[label] for label in change.added] if where else (),
        gaps=gaps,
        changed=_changed(before, document, anew=change.starts_anew),
    )
    if head is None:
        return entry
    known = head.identity
    # Where the entries of several commits are lost together, one of those before them leads on.
    recent = known.recent[::-1] if known is not None else ()
    ids = [*recent[:4], *recent[7::8]]
    if known is not None and head.is_own:
        link = Link(known.sequence, known.id, known.operation, known.time)
        return replace(entry, before=link, older=[i for i in ids if i != known.id])
    facts = versions.facts_of(head.document, _schemas(head.document, None if change.starts_anew else document))
    link = Link(entry.sequence - 1, new_id(), FOREIGN, entry.time)
    return replace(entry, before=link, older=ids, base=(files_of(head.document), facts))


def _schemas(document: DatasetDocument, after: DatasetDocument | None = None) -> Mapping[str, pa.Schema]:
    """Return the schemas of a document: its own, else those of the document ``after`` it, else the newest ones."""
    with contextlib.suppress(FormatError):
        if (own := document.sealed_schemas) is not None:
            return own
        if after is not None and (wider := after.sealed_schemas) is not None:
            return wider
        if (history := history_of(document)) is not None:
            return {name: table.newest for name, table in history.tables.items()}
    return {}


def _changed(before: DatasetDocument | None, after: DatasetDocument, *, anew: bool) -> dict[str, list[Any]]:
    """Return the facts that changed, each as it was and as it became."""
    if before is None:
        return {name: [None, value] for name, value in versions.facts_of(after, _schemas(after)).items()}
    # Finding the schemas needs a pass over all labels.
    is_same = fingerprints(before.metadata) == fingerprints(after.metadata)
    new = versions.facts_of(after, None if is_same else _schemas(after))
    old = versions.facts_of(before, None if is_same else _schemas(before, None if anew else after))
    return {name: [old[name], new[name]] for name in new if old[name] != new[name]}


def repack(store: Store, uuid: str, kept: Retention | None = None, since: dt.datetime | None = None) -> None:
    """Pack the entries of many files into one file; with a retention, drop entries that no kept version needs.

    Entries of commits ``since`` are kept then, too, as another program may have dropped them.
    """
    files = listed(store, uuid)
    if kept is None:
        large = [i for i, (a, b, key) in enumerate(files) if b > a and (store.size(key) or 0) >= PACK_BYTES]
        files = files[large[-1] + 1 :] if large else files
    found = {e.id: e for _, _, key in files for e in read_file(store, uuid, key)}
    entries = sorted(found.values(), key=lambda e: e.order)
    if kept is not None and since is not None:
        wanted = {e.id for e in needed(entries, kept, store.now())}
        left = [e for e in entries if e.id in wanted or versions.moment(e.time) > since]
        if len(left) == len(entries):
            return
        entries = _based(store, uuid, left)
    if entries:
        with store.output(entries[0].key(uuid, entries[-1].sequence, new_id())) as file:
            file.write(pack(entries, 15))
    store.delete([key for *_, key in files])


def _based(store: Store, uuid: str, entries: list[Entry]) -> list[Entry]:
    """Return the entries with the state before the first one in it, as the entries before it are deleted."""
    chain = versions.read(Snapshot(store), uuid)
    ids = {e.id for e in entries}
    place = next((at for at, v in enumerate(chain.entries) if v.commit in ids), 0)
    with contextlib.suppress(KartosqlError):
        if place > 0 and (first := chain.entries[place].entry) is not None and first.base is None:
            based = replace(first, base=chain.state(place - 1))
            return [based if e.id == first.id else e for e in entries]
    return entries


def needed(entries: Iterable[Entry], kept: Retention, now: dt.datetime) -> list[Entry]:
    """Return the entries that are needed to read the kept versions, in their order."""
    found = [e for e in entries if now - versions.moment(e.time) < kept.time]
    return found[-kept.versions :] if kept.versions else []


def needed_keys(store: Store, uuid: str, kept: Retention, now: dt.datetime) -> set[str]:
    """Return the keys of the files that the kept versions need."""
    return {key for e in needed(versions.read_entries(store, uuid), kept, now) for key in e.named_keys()}
