"""Changes of several datasets of a cube -> one compare-and-swap of its seed's document.

Each dataset is marked first, with the document that it will have beside it. The seed's
document then says, in one write, that the change is committed; from then on readers take the
documents that wait, and whoever comes by puts them in their place.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kartosql.errors import CommitUnknown, KartosqlError, StoreError
from kartosql.formats.kartothek import resolve
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.store import Store
from kartosql.store.conditional import OutcomeUnknown, PreconditionFailed
from kartosql.store.keys import SIDE_FOLDER
from kartosql.write.change import CODECS, Change
from kartosql.write.commit import Attempt, Clock, Committed, Fate, committed, is_silent, unknown, utc_now
from kartosql.write.document import Head, encode, read_raw, swap, tombstone, touched, with_marks
from kartosql.write.identity import digest, new_id, read_identity
from kartosql.write.prepare import GRACE, Prepared, check_conflicts, conflict, prepare
from kartosql.write.race import Patience, Race
from kartosql.write.schema import HeadMoved
from kartosql.write.settle import abort, clear_away, finish, open_head, roll_back

CREATED = 32


class _TakenBack(Exception):
    """Others did not want to wait any longer; the change is begun again."""


@dataclass
class _Member:
    """A dataset other than the seed, ready to be marked: its next document waits under ``staged``."""

    change: Change
    head: Head | None
    prepared: Prepared | None
    staged: str | None


def commit_all(
    store: Store,
    cube_seed_uuid: str,
    changes: Sequence[Change],
    *,
    bases: Mapping[str, Head | None] | None = None,
    single_writer: bool = False,
    patience: Patience | None = None,
    clock: Clock = utc_now,
    grace: dt.timedelta = GRACE,
) -> list[Committed]:
    """Commit changes of different datasets of one cube at once, for all who read the cube.

    ``bases`` are the heads that they were planned on, by uuid. Raises as ``commit`` does; after
    ConcurrentCommit and other errors than CommitUnknown none of the changes is committed.
    """
    store.single_writer = store.single_writer or single_writer
    store.require_conditional_put(f"{cube_seed_uuid}/{SIDE_FOLDER}")
    patience = patience or Patience()
    race = Race(patience.race)
    while True:
        one = _Transaction(store, cube_seed_uuid, changes, dict(bases or {}), patience, clock, grace, race)
        try:
            return one.run()
        except _TakenBack:
            if race.is_over():
                raise conflict(one.own or changes[0], None, "others take it back all the time") from None
            race.wait()


class _Transaction:
    """One try at a change of several datasets."""

    def __init__(
        self,
        store: Store,
        seed: str,
        changes: Sequence[Change],
        bases: dict[str, Head | None],
        patience: Patience,
        clock: Clock,
        grace: dt.timedelta,
        race: Race,
    ) -> None:
        self.store = store
        self.seed = seed
        self.changes = changes
        self.bases = bases
        self.patience = patience
        self.clock = clock
        self.grace = grace
        self.race = race
        self.tx = new_id()
        self.own = next((c for c in changes if c.uuid == seed), None)
        self.members: dict[str, _Member] = {}
        self.attempts: list[Attempt] = []  # puts of the seed's document that may commit the change
        self.is_announced = False

    def run(self) -> list[Committed]:
        """Return what was committed; raises _TakenBack if it is to be tried again."""
        try:
            others = [c for c in self.changes if c.uuid != self.seed]
            # Ahead of all marks, as this is what takes time.
            self.store.map(self._stage, others)
            self._announce()
            for change in others:
                self._mark(change.uuid)
            before, prepared = self._decide()
        except _TakenBack:
            self._clear()
            raise
        except CommitUnknown:
            raise
        except KartosqlError as e:
            if self.attempts:
                raise self._unknown() from e
            self._take_back()
            raise
        with contextlib.suppress(KartosqlError):
            finish(self.store, self.seed)  # others do it where this fails
            # What others carried out, they may not have cleared away.
            clear_away(self.store, [m.staged for m in self.members.values() if m.staged is not None])
        done = {u: self._committed(m.change, m.head, m.prepared) for u, m in self.members.items()}
        if self.own is not None:
            done[self.seed] = self._committed(self.own, before, prepared)
        return [done[change.uuid] for change in self.changes]

    # -- before the commit -----------------------------------------------------------------------

    def _stage(self, change: Change) -> None:
        """Put the next document of a member where it waits."""
        while True:
            head = open_head(self.store, change.uuid, self.patience)
            base = self._base(change, head)
            if change.drop:
                check_conflicts(change, head, base)
                self.members[change.uuid] = _Member(change, head, None, None)
                return
            # The mark counts as a write of its own.
            seen = None if head is None else replace(head, document=touched(head.document))
            try:
                prepared = self._prepare(change, seen, base)
            except HeadMoved:
                continue
            made_of = {
                "base": digest(head.document if head is not None else _absent_document(change.uuid, change)),
                "operation": change.operation,
                "added": list(change.added),
                "removed": sorted(prepared.removed),
            }
            key = f"{change.uuid}/{SIDE_FOLDER}/{self.tx}-{new_id()[:8]}.json"
            staged = replace(with_marks(prepared.document, staged=made_of, intent=None), key=_json_key(change.uuid))
            self.members[change.uuid] = _Member(change, head, prepared, key)
            self.store.put(key, encode(staged))
            return

    def _base(self, change: Change, head: Head | None) -> Head | None:
        if change.uuid not in self.bases and not change.create:
            self.bases[change.uuid] = head
        return self.bases.get(change.uuid)

    def _prepare(self, change: Change, head: Head | None, base: Head | None) -> Prepared:
        return prepare(self.store, change, head, base, commit_id=self.tx, now=self.clock(), grace=self.grace)

    def _announce(self) -> None:
        """Mark the seed: from now on the change can be committed there."""
        while True:
            head = open_head(self.store, self.seed, self.patience, is_primary=True)
            if self.own is not None:
                check_conflicts(self.own, head, self._base(self.own, head))
            elif head is None or head.is_absent:
                raise conflict(Change(self.seed, self.changes[0].operation), None, "there is no such dataset")
            if self._put_mark(head, self.seed, self.own, "primary", None):
                return

    def _mark(self, uuid: str) -> None:
        """Mark a member."""
        while True:
            member = self.members[uuid]
            kind = "delete" if member.change.drop else "change"
            if self._put_mark(member.head, uuid, member.change, kind, member.staged):
                return
            self._discard(member)
            seed = read_raw(self.store, self.seed)
            if seed is None or seed.intent is None or seed.intent.tx != self.tx:
                raise _TakenBack
            self._stage(member.change)

    def _put_mark(self, head: Head | None, uuid: str, change: Change | None, kind: str, staged: str | None) -> bool:
        """Put the mark into a document; return False if the document was written meanwhile."""
        intent = resolve.Intent(self.tx, self.seed, kind, utc_now().isoformat(), staged)
        document = head.document if head is not None else _absent_document(uuid, change)
        document = touched(document, intent=intent._asdict())
        for _ in range(2):
            self.is_announced = True
            try:
                swap(self.store, document, head)
                return True
            except PreconditionFailed:
                return self._has_mark(uuid)
            except OutcomeUnknown as e:
                if self._has_mark(uuid):
                    return True
                if not self.store.is_conditional:
                    # It may arrive later and take the place of what is committed by then.
                    raise StoreError(f"Cannot write {document.key!r}: the store gives no answer.") from e
                self.race.wait()
        return self._has_mark(uuid)

    def _has_mark(self, uuid: str) -> bool:
        now = read_raw(self.store, uuid)
        return now is not None and now.intent is not None and now.intent.tx == self.tx

    # -- the commit ------------------------------------------------------------------------------

    def _decide(self) -> tuple[Head | None, Prepared | None]:
        """Commit at the seed; return the head that it was done on, and what was made of it."""
        own = self.own or Change(self.seed, self.changes[0].operation)
        while True:
            try:
                done = self._try_to_decide(own)
                if done is not None:
                    return done
            except HeadMoved:
                pass
            except StoreError:
                if not self.attempts or self.race.is_over():
                    raise
            if self.race.is_over() or is_silent(self.store, self.attempts):
                raise self._unknown() if self.attempts else conflict(own, None, "others commit to it all the time")
            self.race.wait()

    def _try_to_decide(self, own: Change) -> tuple[Head | None, Prepared | None] | None:
        head = read_raw(self.store, self.seed)
        for attempt in list(self.attempts):
            fate = self._fate(attempt, head, own)
            if fate is Fate.LANDED:
                return attempt.head, attempt.prepared
            if fate is Fate.UNKNOWN:
                raise self._unknown()
            if fate is Fate.LOST:
                self.attempts.remove(attempt)
                attempt.discard(self.store)
        if head is None or head.intent is None or head.intent.tx != self.tx:
            raise self._unknown() if self.attempts else _TakenBack
        if own.drop:
            check_conflicts(own, head, self._base(own, head))
            prepared = None
            document = tombstone(head.document)
        else:
            prepared = self._prepare(own, head, self._base(own, head) if self.own is not None else None)
            document = prepared.document
        identity = read_identity(touched(document).metadata)
        assert identity is not None
        if own.drop:
            identity = replace(identity, id=self.tx, recent=(*identity.recent, self.tx), operation=own.operation)
        # Who listed the datasets before the commit learns from the seed of those that it made.
        made = [u for u, m in self.members.items() if m.head is None or m.head.is_absent]
        identity = replace(identity, transaction=self.tx, created=(*identity.created, *made)[-CREATED:])
        unfinished = {**head.unfinished, self.tx: sorted(self.members)}
        document = with_marks(document, intent=None, unfinished=unfinished, identity=identity.to_dict())
        try:
            swap(self.store, document, head)
        except (PreconditionFailed, OutcomeUnknown) as e:
            was_refused = isinstance(e, PreconditionFailed)
            self.attempts.append(Attempt(head, prepared, was_refused, self.store.is_conditional))
            return None
        return head, prepared

    def _fate(self, attempt: Attempt, head: Head | None, own: Change) -> Fate:
        if head is not None and self.tx in head.unfinished:
            return Fate.LANDED
        if own.drop and (head is None or (head.is_absent and head.intent is None)):
            return Fate.LANDED
        return attempt.fate(head, self.tx, own.added)

    def _committed(self, change: Change, head: Head | None, prepared: Prepared | None) -> Committed:
        identity = read_identity(prepared.document.metadata) if prepared is not None else None
        heads = (head, self.bases.get(change.uuid))
        return committed(self.store, change, prepared, identity, self.tx, self.race.rounds, heads)

    # -- giving up -------------------------------------------------------------------------------

    def _take_back(self) -> None:
        """Leave everything as if nothing had been tried, as far as the store lets us; others can do the rest."""
        with contextlib.suppress(KartosqlError):
            if self.is_announced and not abort(self.store, self.seed, self.tx):
                return
            self._clear()

    def _clear(self) -> None:
        """Take the marks of a change away that is not committed."""
        with contextlib.suppress(KartosqlError):
            seed = read_raw(self.store, self.seed)
            if seed is not None and (self.tx in seed.unfinished or (seed.intent and seed.intent.tx == self.tx)):
                return
            for uuid, member in self.members.items():
                head = read_raw(self.store, uuid)
                if head is not None and head.intent is not None and head.intent.tx == self.tx:
                    with contextlib.suppress(PreconditionFailed, OutcomeUnknown):
                        roll_back(self.store, head)
                self._discard(member)

    def _discard(self, member: _Member) -> None:
        keys = [member.staged] if member.staged is not None else []
        keys += member.prepared.index_keys if member.prepared is not None else ()
        with contextlib.suppress(KartosqlError):
            self.store.delete(keys)

    def _unknown(self) -> CommitUnknown:
        return unknown(self.seed, self.changes[0].operation, self.tx)


def _json_key(uuid: str) -> str:
    return uuid + CODECS["json"]


def _absent_document(uuid: str, change: Change | None) -> DatasetDocument:
    """Return the document of a dataset that is to be made."""
    format_ = change.format if change is not None else "json"
    keys: Any = change.partition_keys if change is not None else None
    return DatasetDocument(uuid, uuid + CODECS[format_], (), {}, keys or (), {}, {resolve.ABSENT: True})
