"""Changes -> one compare-and-swap of a metadata document.

A change of one dataset swaps its document. Of several datasets of a cube each is marked first, with the document
that it will have beside it. The seed's document then says, in one write, that the change is committed; from then on
readers take the documents that wait, and whoever comes by puts them in their place.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

from kartosql.errors import CommitUnknown, KartosqlError, KartosqlWarning, StoreError
from kartosql.formats.kartothek.metadata import ABSENT, DatasetDocument, Intent
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER, OutcomeUnknown, PreconditionFailed, Version
from kartosql.store.turns import OfferedWrite, offers
from kartosql.write.change import CODECS, GRACE, Change, HeadMoved, Prepared, check_conflicts, conflict, rebase
from kartosql.write.document import (
    LONGEST_WAIT_OF_COMMIT,
    RECENT,
    Backoff,
    Head,
    digest,
    discard,
    encode,
    new_id,
    read_identity,
    read_raw,
    remove,
    swap,
    tombstone,
    touched,
    with_marks,
)
from kartosql.write.group import Companion, companions, offer_of, together
from kartosql.write.history import record
from kartosql.write.recovery import abort, complete_schemas, finish, is_open, open_head, roll_back

CREATED = 32
SLACKENS = 0.8  # what is left of the wait for others when they were not met any more
MOST_UNANSWERED = 8  # puts, after which no more are sent
_T = TypeVar("_T")


class Fate(Enum):
    """What a later look at the document shows about a put."""

    LANDED = "landed"
    LOST = "lost"  # and it cannot happen any more
    OPEN = "open"  # not yet, but it may
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class CommitAttempt:
    """A put in the place of ``head``; ``was_refused`` says that the store answered, with no.

    One that is not ``conditional`` may happen at any time, whatever is there by then.
    """

    head: Head | None
    prepared: Prepared | None
    was_refused: bool
    is_conditional: bool = True
    others: Sequence[Companion] = ()  # appends that it takes along
    sequence: int | None = None  # where another writer took it along, the number that it would get, 0 if unknown

    @property
    def version(self) -> Version | None:
        """The version that it was to replace."""
        return self.head.version if self.head is not None else None

    @property
    def is_over(self) -> bool:
        """Whether it cannot happen any more once there is another version."""
        return self.was_refused or self.is_conditional

    def fate(self, now: Head | None, commit_id: str, labels: Collection[str]) -> Fate:
        """Return what ``now`` shows about it; ``labels`` are those that only this commit adds."""
        lost = Fate.LOST if self.is_over else Fate.OPEN
        if now is not None and now.identity is not None and commit_id in now.identity.recent:
            return Fate.LANDED
        if (now.version if now is not None else None) == self.version:
            # It may be on its way still; a library may have sent it twice, and only one of them was refused.
            return Fate.OPEN
        if now is None:
            return lost if self.was_refused else Fate.UNKNOWN
        if labels and not set(labels).isdisjoint(now.document.labels or ()):
            return Fate.LANDED  # another program dropped the ids
        before = self.head.identity if self.head is not None else None
        if now.identity is None:
            return lost
        recent = now.identity.recent
        if (before.recent[-1] in recent) if before is not None and before.recent else len(recent) < RECENT:
            return lost
        # So many others committed since that the id may have dropped out.
        if labels and before is not None and now.identity.removal <= before.sequence:
            return lost
        return Fate.UNKNOWN


@dataclass(frozen=True)
class Committed:
    """What a commit did.

    ``rebased`` counts the rounds that were lost to others; ``foreign`` says whether another program had written the
    dataset since the last commit of kartosql. ``document`` is what was committed, None after a drop.
    """

    uuid: str
    sequence: int
    id: str
    labels_removed: tuple[str, ...]
    rebased: int = 0
    foreign: bool = False
    document: DatasetDocument | None = field(default=None, compare=False, repr=False)


def utc_now() -> dt.datetime:
    """Return the time by the clock of this machine."""
    return dt.datetime.now(dt.timezone.utc)


def commit(store: Store, change: Change, *, base: Head | None = None, grace: dt.timedelta = GRACE) -> Committed:
    """Commit ``change``, which was planned on the head ``base``, and return what it did.

    What others committed since is kept; raises ConcurrentCommit where that is not possible, and
    CommitUnknown where the store does not say how it ended: then nothing may be deleted that the
    change refers to. After any other error it is not committed.
    """
    store.require_conditional_put(f"{change.uuid}/{SIDE_FOLDER}")
    one = _Dropping if change.drop else _Committing
    bases: dict[str, Head | None] = {} if base is None else {change.uuid: base}
    backoff, pace = Backoff(LONGEST_WAIT_OF_COMMIT), store.paces.get(change.uuid, 0.0)
    # Who lost races to writers elsewhere before he had his turn lets them have theirs before the next one.
    time.sleep(pace * random.uniform(0.5, 1))
    done = one(store, change, bases, grace, backoff).run()
    store.paces[change.uuid] = min(pace + backoff.lost if backoff.lost else pace * SLACKENS, LONGEST_WAIT_OF_COMMIT)
    return done


def commit_all(
    store: Store,
    cube_seed_uuid: str,
    changes: Sequence[Change],
    *,
    bases: Mapping[str, Head | None] | None = None,
    grace: dt.timedelta = GRACE,
) -> list[Committed]:
    """Commit changes of different datasets of one cube at once, for all who read the cube.

    ``bases`` are the heads that they were planned on, by uuid. Raises as ``commit`` does; after
    ConcurrentCommit and other errors than CommitUnknown none of the changes is committed.
    """
    store.require_conditional_put(f"{cube_seed_uuid}/{SIDE_FOLDER}")
    own = next((c for c in changes if c.uuid == cube_seed_uuid), None)
    seed = own or Change(cube_seed_uuid, changes[0].operation)
    # Changes of one cube that meet take each other back, or wait to.
    with store.turn(cube_seed_uuid):
        backoff = Backoff()
        while True:
            one = _Transaction(store, seed, dict(bases or {}), grace, backoff)
            try:
                return one.run_all(changes)
            except _TakenBack:
                if backoff.is_over():
                    raise conflict(own or changes[0], None, "others take it back all the time") from None
                backoff.wait()


@dataclass
class _Committing:
    """The rounds of one commit: ``change`` is that of the document that is swapped."""

    is_primary = False

    store: Store
    change: Change
    bases: dict[str, Head | None]
    grace: dt.timedelta
    backoff: Backoff
    id: str = field(default_factory=new_id)
    attempts: list[CommitAttempt] = field(default_factory=list)  # puts that may have happened, or may happen yet
    winner: Head | None = None

    def run(self) -> Committed:
        """Go on until the change is committed, or cannot be."""
        return self._rounds(self._round)

    def _round(self) -> Committed | None:
        uuid, base = self.change.uuid, self.bases.get(self.change.uuid)

        def offer() -> OfferedWrite | None:
            # What may have been committed already is not for others to commit.
            return None if self.attempts else offer_of(self.store, self.change, base, self.id)

        with self.store.turn(uuid, offer) as offered:
            self.backoff.began = time.monotonic()  # what was before was waiting
            answer = offered.withdrawn() if offered is not None else None
            if answer is not None and answer.is_done:
                return Committed(uuid, answer.number, self.id, ())
            head = open_head(self.store, uuid, is_primary=self.is_primary)
            if answer is not None:
                # Who took it may yet commit it upon what is there now, unless somebody is faster.
                seen = [CommitAttempt(at, None, was_refused=False, sequence=answer.number) for at in (base, head)]
                self.attempts = seen[:1] if self._fate(seen[0], head) is Fate.LANDED else seen[1:]
            landed = self._landed(head)
            if landed is None:
                return self._try(head)
            if landed.sequence is not None:
                return Committed(uuid, landed.sequence or _sequence_of(head, self.id), self.id, ())
            return self._committed(self.change, landed.head, landed.prepared, head, landed.others)

    def _rounds(self, step: Callable[[], _T | None]) -> _T:
        """Take a step again until something comes of it, or nothing can any more."""
        while True:
            done = None
            try:
                done = step()
            except HeadMoved:
                pass
            except StoreError as e:
                if not self.attempts:
                    raise
                self._check_time(e)  # only the document can tell, and it cannot be read now
                self.backoff.wait()
                continue
            except KartosqlError as e:
                if self.attempts:
                    raise self._unknown() from e
                raise
            if done is not None:
                return done
            self._check_time()
            self.backoff.wait(is_race=all(a.was_refused for a in self.attempts))

    def _landed(self, head: Head | None) -> CommitAttempt | None:
        """Return the attempt that the document shows, and forget those that cannot happen any more."""
        landed = None
        for attempt in list(self.attempts):
            fate = self._fate(attempt, head)
            if fate is Fate.LANDED:
                ids, recent = [self.id, *(o.id for o in attempt.others)], _recent(head)
                at = recent.index(self.id) if self.id in recent else len(recent)
                if not attempt.others or list(recent[at : at + len(ids)]) == ids:
                    return attempt
                # A later put without the others happened; what the first one wrote for all counts for none of them.
                landed = replace(attempt, sequence=0, others=())
                continue
            if fate is Fate.UNKNOWN:
                raise self._unknown()
            if fate is Fate.LOST:
                self.attempts.remove(attempt)
                discard(self.store, attempt.prepared.index_keys if attempt.prepared is not None else ())
        return landed

    def _fate(self, attempt: CommitAttempt, head: Head | None) -> Fate:
        # What goes back to an older state adds labels that others may bring back as well.
        return attempt.fate(head, self.id, () if self.change.exact else self.change.added)

    def _base(self, change: Change, head: Head | None) -> Head | None:
        """Return the head that a change was planned on: the first one seen, if none is given."""
        if change.uuid not in self.bases and not change.create:
            self.bases[change.uuid] = head
        return self.bases.get(change.uuid)

    def _prepare(self, change: Change, head: Head | None, base: Head | None, along: Sequence[str] = ()) -> Prepared:
        return rebase(self.store, change, head, base, commit_id=self.id, now=utc_now(), grace=self.grace, along=along)

    def _try(self, head: Head | None) -> Committed | None:
        base = self._base(self.change, head)
        waiting = offers(self.store.folder_path(self.change.uuid)) if not self.attempts else []
        others = companions(waiting, self.change, head, base) if waiting else []
        change = together(self.change, others) if others else self.change
        with _give_back(others):
            prepared = self._prepare(change, head, base, [o.id for o in others])
            _tell(others, _sequence(prepared.document) - len(others) + 1, is_done=False)
        try:
            with _give_back(others, (PreconditionFailed, KartosqlError)):
                now = swap(self.store, prepared.document, head)
        except (PreconditionFailed, OutcomeUnknown) as e:
            self._doubt(head, prepared, e, others)
            self.winner = head
            return None
        except KartosqlError:
            discard(self.store, prepared.index_keys)
            raise
        return self._committed(self.change, head, replace(prepared, document=now.document), None, others)

    def _doubt(
        self, head: Head | None, prepared: Prepared | None, error: Exception, others: Sequence[Companion] = ()
    ) -> None:
        was_refused = isinstance(error, PreconditionFailed)
        self.attempts.append(CommitAttempt(head, prepared, was_refused, self.store.is_conditional, others))

    def _committed(
        self,
        change: Change,
        before: Head | None,
        prepared: Prepared | None,
        found: Head | None = None,
        others: Sequence[Companion] = (),
    ) -> Committed:
        """Do what is left after a commit, and return what it did to the head ``before``.

        ``found`` is the document that showed it, where the store gave no answer.
        """
        if prepared is not None and prepared.has_pending:
            # The document says what is left to do; others do it where this fails.
            with contextlib.suppress(KartosqlError):
                complete_schemas(self.store, change.uuid)
        if prepared is not None:
            record(self.store, change, before, prepared, [(o.id, o.change) for o in others])
        document = prepared.document if prepared is not None else None
        # Of several puts without an answer this one happened; later commits are of others.
        own = found.identity if found is not None and found.identity is not None else None
        sequence = own.sequence if own is not None and own.id == self.id else _sequence(document) - len(others)
        _tell(others, sequence + 1, is_done=True)
        return Committed(
            uuid=change.uuid,
            sequence=sequence,
            id=self.id,
            labels_removed=tuple(sorted(prepared.removed)) if prepared is not None else (),
            rebased=self.backoff.rounds,
            foreign=_tell_foreign(before, self.bases.get(change.uuid)),
            document=document,
        )

    def _check_time(self, error: Exception | None = None) -> None:
        # Of conditional puts to a server any number can be sent: at most one of them happens.
        counts = self.store.is_local or not self.store.is_conditional
        is_silent = counts and sum(not a.was_refused for a in self.attempts) >= MOST_UNANSWERED
        if self.backoff.is_over() or is_silent:
            if self.attempts:
                raise self._unknown() from error
            raise conflict(self.change, self.winner, "others commit to it all the time")

    def _unknown(self) -> CommitUnknown:
        return CommitUnknown(
            f"Dataset {self.change.uuid!r}: the store does not say whether {self.change.operation} {self.id} was "
            "committed",
            hint="Look for this id in the metadata of the dataset before you try again. Nothing was deleted.",
        )


def _tell(others: Sequence[Companion], first: int, *, is_done: bool) -> None:
    """Tell those whose appends were taken their sequence, the first of which is given."""
    for sequence, other in enumerate(others, first):
        other.taken.say(sequence, is_done=is_done)


@contextlib.contextmanager
def _give_back(
    others: Sequence[Companion], errors: tuple[type[BaseException], ...] = (BaseException,)
) -> Iterator[None]:
    """Give taken appends back if one of these errors is raised, after which they are not committed."""
    try:
        yield
    except errors:
        for other in others:
            other.taken.give_back()
        raise


def _sequence(document: DatasetDocument | None) -> int:
    """Return the number of a version, 0 where the document has none."""
    identity = read_identity(document.metadata) if document is not None else None
    return identity.sequence if identity is not None else 0


def _recent(head: Head | None) -> tuple[str, ...]:
    return head.identity.recent if head is not None and head.identity is not None else ()


def _sequence_of(head: Head | None, commit_id: str) -> int:
    """Return the number of a version by its place among the last ones of a document, 0 if it is not there."""
    recent = _recent(head)
    return _sequence(head.document if head else None) - recent[::-1].index(commit_id) if commit_id in recent else 0


class _Dropping(_Committing):
    """The rounds of removing a dataset."""

    is_primary = True

    def _landed(self, head: Head | None) -> CommitAttempt | None:
        if self.attempts and (head is None or head.is_absent):
            return self.attempts[-1]
        if self.attempts and head is not None and head.version != self.attempts[-1].version:
            self.attempts = [a for a in self.attempts if not a.is_over]
        return None

    def _try(self, head: Head | None) -> Committed | None:
        check_conflicts(self.change, head, self._base(self.change, head))
        assert head is not None
        try:
            remove(self.store, head)
        except (PreconditionFailed, OutcomeUnknown) as e:
            self._doubt(head, None, e)
            self.winner = head
            return None
        return self._committed(self.change, head, None)


class _TakenBack(Exception):
    """Others did not want to wait any longer; the change is begun again."""


@dataclass
class _Member:
    """A dataset other than the seed, ready to be marked: its next document waits under ``staged``."""

    change: Change
    head: Head | None
    prepared: Prepared | None
    staged: str | None


@dataclass
class _Transaction(_Committing):
    """One try at a change of several datasets, of which ``change`` is that of the seed."""

    members: dict[str, _Member] = field(default_factory=dict)
    is_own: bool = True
    is_announced: bool = False

    @property
    def seed(self) -> str:
        """The uuid of the seed."""
        return self.change.uuid

    def run_all(self, changes: Sequence[Change]) -> list[Committed]:
        """Return what was committed; raises _TakenBack if it is to be tried again."""
        others = [c for c in changes if c.uuid != self.seed]
        self.is_own = len(others) < len(changes)
        try:
            # Ahead of all marks, as this is what takes time.
            self.store.map(self._stage, others)
            self._announce()
            for change in others:
                self._mark(change.uuid)
            before, prepared = self._rounds(self._decide)
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
            discard(self.store, [m.staged for m in self.members.values() if m.staged is not None])
        done = {u: self._committed(m.change, m.head, m.prepared) for u, m in self.members.items()}
        if self.is_own:
            done[self.seed] = self._committed(self.change, before, prepared)
        return [done[change.uuid] for change in changes]

    # -- before the commit -----------------------------------------------------------------------

    def _stage(self, change: Change) -> None:
        """Put the next document of a member where it waits."""
        while True:
            head = open_head(self.store, change.uuid)
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
                "base": digest(head.document if head is not None else _absent_document(change)),
                "operation": change.operation,
                "added": list(change.added),
                "removed": sorted(prepared.removed),
            }
            key = f"{change.uuid}/{SIDE_FOLDER}/{self.id}-{new_id()[:8]}.json"
            staged = replace(
                with_marks(prepared.document, staged=made_of, intent=None), key=change.uuid + CODECS["json"]
            )
            self.members[change.uuid] = _Member(change, head, prepared, key)
            self.store.put(key, encode(staged))
            return

    def _announce(self) -> None:
        """Mark the seed: from now on the change can be committed there."""
        while True:
            head = open_head(self.store, self.seed, is_primary=True)
            if self.is_own:
                check_conflicts(self.change, head, self._base(self.change, head))
            elif head is None or head.is_absent:
                raise conflict(self.change, None, "there is no such dataset")
            if self._put_mark(head, self.change, "primary", None):
                return

    def _mark(self, uuid: str) -> None:
        while True:
            member = self.members[uuid]
            kind = "delete" if member.change.drop else "change"
            if self._put_mark(member.head, member.change, kind, member.staged):
                return
            self._discard(member)
            if not is_open(read_raw(self.store, self.seed), self.id):
                raise _TakenBack
            self._stage(member.change)

    def _put_mark(self, head: Head | None, change: Change, kind: str, staged: str | None) -> bool:
        """Put the mark into a document; return False if the document was written meanwhile."""
        intent = Intent(self.id, self.seed, kind, utc_now().isoformat(), staged)
        document = head.document if head is not None else _absent_document(change)
        document = touched(document, intent=intent._asdict())
        for _ in range(2):
            self.is_announced = True
            try:
                swap(self.store, document, head)
                return True
            except PreconditionFailed:
                return self._has_mark(change.uuid)
            except OutcomeUnknown as e:
                if self._has_mark(change.uuid):
                    return True
                if not self.store.is_conditional:
                    # It may arrive later and take the place of what is committed by then.
                    raise StoreError(f"Cannot write {document.key!r}: the store gives no answer.") from e
                self.backoff.wait()
        return self._has_mark(change.uuid)

    def _has_mark(self, uuid: str) -> bool:
        return is_open(read_raw(self.store, uuid), self.id)

    # -- the commit ------------------------------------------------------------------------------

    def _decide(self) -> tuple[Head | None, Prepared | None] | None:
        """Commit at the seed; return the head that it was done on, and what was made of it, None if it was not done."""
        own, head = self.change, read_raw(self.store, self.seed)
        landed = self._landed(head)
        if landed is not None:
            return landed.head, landed.prepared
        if head is None or head.intent is None or head.intent.tx != self.id:
            raise self._unknown() if self.attempts else _TakenBack
        if own.drop:
            check_conflicts(own, head, self._base(own, head))
            prepared = None
            document = tombstone(head.document)
        else:
            prepared = self._prepare(own, head, self._base(own, head) if self.is_own else None)
            document = prepared.document
        identity = read_identity(touched(document).metadata)
        assert identity is not None
        if own.drop:
            identity = replace(identity, id=self.id, recent=(*identity.recent, self.id), operation=own.operation)
        # Who listed the datasets before the commit learns from the seed of those that it made.
        made = [u for u, m in self.members.items() if m.head is None or m.head.is_absent]
        identity = replace(identity, transaction=self.id, created=(*identity.created, *made)[-CREATED:])
        unfinished = {**head.unfinished, self.id: sorted(self.members)}
        document = with_marks(document, intent=None, unfinished=unfinished, commit=identity.to_dict())
        try:
            swap(self.store, document, head)
        except (PreconditionFailed, OutcomeUnknown) as e:
            self._doubt(head, prepared, e)
            return None
        return head, prepared

    def _fate(self, attempt: CommitAttempt, head: Head | None) -> Fate:
        if head is not None and self.id in head.unfinished:
            return Fate.LANDED
        if self.change.drop and (head is None or (head.is_absent and head.intent is None)):
            return Fate.LANDED
        return super()._fate(attempt, head)

    # -- giving up -------------------------------------------------------------------------------

    def _take_back(self) -> None:
        """Leave everything as if nothing had been tried, as far as the store lets us; others can do the rest."""
        with contextlib.suppress(KartosqlError):
            if self.is_announced and not abort(self.store, self.seed, self.id):
                return
            self._clear()

    def _clear(self) -> None:
        with contextlib.suppress(KartosqlError):
            seed = read_raw(self.store, self.seed)
            if seed is not None and (self.id in seed.unfinished or (seed.intent and seed.intent.tx == self.id)):
                return
            for uuid, member in self.members.items():
                head = read_raw(self.store, uuid)
                if head is not None and is_open(head, self.id):
                    with contextlib.suppress(PreconditionFailed, OutcomeUnknown):
                        roll_back(self.store, head)
                self._discard(member)

    def _discard(self, member: _Member) -> None:
        keys = [member.staged] if member.staged is not None else []
        keys += member.prepared.index_keys if member.prepared is not None else ()
        discard(self.store, keys)


def _absent_document(change: Change) -> DatasetDocument:
    keys = change.partition_keys or ()
    return DatasetDocument(change.uuid, change.uuid + CODECS[change.format], (), {}, keys, {}, {ABSENT: True})


def _tell_foreign(before: Head | None, base: Head | None) -> bool:
    """Return whether another program wrote the dataset that a commit met, and warn of it."""
    if before is None or before.is_absent:
        return False
    known = before.identity or (base.identity if base is not None else None)
    if known is None or not (before.is_foreign or before.identity is None):
        return False
    warnings.warn(
        f"Dataset {before.uuid!r}: another program wrote it after {known.operation} {known.id} of {known.time}. "
        "What it dropped unseen is brought back by CHECK ... REPAIR.",
        KartosqlWarning,
        stacklevel=2,
    )
    return True
