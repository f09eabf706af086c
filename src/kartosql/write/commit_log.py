"""What each commit did, beside the dataset: ``<uuid>/.commit/log/<sequence>-<id>.json``.

The document alone does not tell what another program dropped that wrote it without looking.
An entry is written after its commit, so whatever has one was committed. It may be missing
where the writer died in between; it goes away some time after, as garbage.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kartosql.errors import KartosqlError
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER, key_problem
from kartosql.write.change import Change
from kartosql.write.document import Identity, read_identity

LOG = f"{SIDE_FOLDER}/log"


@dataclass(frozen=True)
class LogEntry:
    """One commit: ``added`` maps labels to their files by table, and ``removed`` lists labels.

    ``positions`` says of added labels whose place they took, ``origin`` which commit made the
    dataset or replaced all of it, and ``repaired`` which lost commits this one brought back.
    """

    id: str
    parent: str | None
    sequence: int
    operation: str
    time: str
    origin: str | None
    added: Mapping[str, Mapping[str, str]]
    removed: tuple[str, ...]
    positions: Mapping[str, str] = field(default_factory=dict)
    repaired: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[int, str, str]:
        """What entries are ordered by."""
        return self.sequence, self.time, self.id


def entry_key(uuid: str, sequence: int, commit_id: str) -> str:
    """Return the key of the entry of a commit."""
    return f"{uuid}/{LOG}/{sequence:012d}-{commit_id}.json"


def record(store: Store, change: Change, document: DatasetDocument, removed: Iterable[str]) -> None:
    """Write the entry of a commit that is done; silent where the store refuses, as the commit counts."""
    identity = read_identity(document.metadata)
    if identity is None:
        return
    with contextlib.suppress(KartosqlError):
        key = entry_key(change.uuid, identity.sequence, identity.id)
        # Not synced to the disk as a commit is: after a power loss one entry less is no harm.
        with store.output(key, sync_folders=False, sync_content=False) as file:
            file.write(_encode(change, identity, removed))


def _encode(change: Change, identity: Identity, removed: Iterable[str]) -> bytes:
    names = ("id", "parent", "sequence", "operation", "time", "origin")
    made = {name: getattr(identity, name) for name in names}
    made |= {"added": {label: dict(files) for label, files in change.added.items()}, "removed": sorted(removed)}
    later = {"positions": change.positions, "repaired": change.repaired}
    return json.dumps(made | {name: value for name, value in later.items() if value}).encode()


def keys(store: Store, uuid: str) -> list[str]:
    """Return the keys of all entries of a dataset."""
    return list(store.list_below(f"{uuid}/{LOG}/"))


def read(store: Store, uuid: str) -> list[LogEntry]:
    """Return all entries of a dataset, in the order of their commits; torn ones are left out."""
    found = [e for e in store.map(lambda key: _read(store, uuid, key), keys(store, uuid)) if e is not None]
    return sorted(found, key=lambda e: e.order)


def _read(store: Store, uuid: str, key: str) -> LogEntry | None:
    try:
        made = json.loads(store.read_metadata(key))
        entry = LogEntry(
            id=made["id"],
            parent=made["parent"],
            sequence=made["sequence"],
            operation=made["operation"],
            time=made["time"],
            origin=made["origin"],
            added={label: dict(files) for label, files in made["added"].items()},
            removed=tuple(made["removed"]),
            positions=dict(made.get("positions", {})),
            repaired=tuple(made.get("repaired", ())),
        )
        return entry if _is_sound(entry, uuid, key) else None
    except (KartosqlError, KeyError, ValueError, TypeError, AttributeError):
        return None


def _is_sound(entry: LogEntry, uuid: str, key: str) -> bool:
    texts: list[object] = [entry.id, entry.operation, entry.time, *entry.removed, *entry.repaired]
    texts += [text for pair in entry.positions.items() for text in pair]
    files = [file for tables in entry.added.values() for file in tables.values()]
    return (
        type(entry.sequence) is int
        and all(isinstance(text, str) for text in texts)
        and all(other is None or isinstance(other, str) for other in (entry.parent, entry.origin))
        and all(isinstance(file, str) and key_problem(file, f"{uuid}/") is None for file in files)
        and key == entry_key(uuid, entry.sequence, entry.id)
    )


# -- commits that the document does not know -----------------------------------------------------------


@dataclass(frozen=True)
class Lost:
    """A commit that another program dropped: of it ``added`` and ``removed`` are missing in the document.

    ``later`` are the labels that commits added which came after it; ``reason`` says why it cannot be
    brought back.
    """

    entry: LogEntry
    added: Mapping[str, Mapping[str, str]]
    removed: tuple[str, ...]
    later: frozenset[str]
    reason: str | None = None


def lost(entries: Sequence[LogEntry], identity: Identity | None, labels: Iterable[str]) -> list[Lost]:
    """Return the commits that the document with this identity and these labels has lost, in their order.

    Each tells what is missing of it in the end: nothing that was removed later on is. Without
    an identity nothing is known, as the other program may have seen everything.
    """
    return net(dropped(entries, identity, labels))


def dropped(entries: Sequence[LogEntry], identity: Identity | None, labels: Iterable[str]) -> list[Lost]:
    """Return the commits that a document has lost, each with what it did when the others before it are back."""
    if identity is None:
        return []
    by_id = {e.id: e for e in entries if e.origin == identity.origin}
    known = _ancestors(by_id, identity)
    oldest = min([by_id[i].sequence for i in known if i in by_id] or [identity.sequence])
    repaired = {i for k in known if k in by_id for i in by_id[k].repaired}
    state = set(labels)
    found = []
    for entry in sorted(by_id.values(), key=lambda e: e.order):
        if entry.id in known or entry.id in repaired or entry.sequence < oldest:
            continue
        one = _lost(entry, by_id, known, identity.recent, state)
        if one.added or one.removed:
            found.append(one)
            if one.reason is None:
                state = (state - set(one.removed)) | set(one.added)
    return found


def net(found: Sequence[Lost]) -> list[Lost]:
    """Leave out what one lost commit added and a later one took away again."""
    sound = [one for one in found if one.reason is None]
    both = {label for one in sound for label in one.added} & {label for one in sound for label in one.removed}
    left = []
    for one in found:
        if one.reason is None and both:
            added = {label: files for label, files in one.added.items() if label not in both}
            one = replace(one, added=added, removed=tuple(label for label in one.removed if label not in both))
        if one.added or one.removed:
            left.append(one)
    return left


def _ancestors(by_id: Mapping[str, LogEntry], identity: Identity) -> set[str]:
    known = {identity.id, *identity.recent}
    at: str | None = identity.id
    pending = [*identity.recent]
    while pending or at is not None:
        if at is None:
            at = pending.pop()
        parent = by_id[at].parent if at in by_id else None
        at = parent if parent is not None and parent not in known else None
        if at is not None:
            known.add(at)
    return known


def _lost(
    entry: LogEntry,
    by_id: Mapping[str, LogEntry],
    known: Collection[str],
    recent: Sequence[str],
    state: Collection[str],
) -> Lost:
    at: str | None = entry.parent
    while at is not None and at not in known and at in by_id:
        at = by_id[at].parent
    if at is not None and at in recent:
        later_ids: Collection[str] = recent[recent.index(at) + 1 :]
    elif at is not None and at in known and at in by_id:
        later_ids = [i for i in known if i in by_id and by_id[i].sequence > by_id[at].sequence]
    else:
        gone = {label for e in by_id.values() for label in e.removed}
        added = {label: files for label, files in entry.added.items() if label not in state and label not in gone}
        return Lost(entry, added, (), frozenset(), "its place among the other commits is not known")
    after = [by_id[i] for i in later_ids if i in by_id]
    gone = {label for e in after for label in e.removed}
    added = {label: files for label, files in entry.added.items() if label not in state and label not in gone}
    removed = tuple(label for label in entry.removed if label in state)
    later = frozenset(label for e in after for label in e.added)
    reason = None
    if added and len(removed) < len(entry.removed):
        # It took the place of rows that another commit took away, too.
        reason = "what it replaced was removed or replaced by a later commit"
    return Lost(entry, added, removed, later, reason)
