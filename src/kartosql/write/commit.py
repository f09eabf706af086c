"""A change -> one compare-and-swap of the metadata document."""

from __future__ import annotations

import contextlib
import datetime as dt
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum

from kartosql.errors import CommitUnknown, KartosqlError, KartosqlWarning, StoreError
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.store import Store
from kartosql.store.conditional import OutcomeUnknown, PreconditionFailed, Version
from kartosql.store.keys import SIDE_FOLDER
from kartosql.write.change import Change
from kartosql.write.document import Head, remove, swap
from kartosql.write.identity import RECENT, Identity, new_id
from kartosql.write.journal import record
from kartosql.write.prepare import GRACE, Prepared, check_conflicts, conflict, prepare
from kartosql.write.race import LONGEST_WAIT_OF_COMMIT, Patience, Race
from kartosql.write.schema import HeadMoved
from kartosql.write.settle import complete_schemas, open_head, read_head

MOST_UNANSWERED = 8


class Fate(Enum):
    """What a later look at the document tells about a put."""

    LANDED = "landed"
    LOST = "lost"  # and it cannot happen any more
    OPEN = "open"  # not yet, but it may
    UNKNOWN = "unknown"


def is_silent(store: Store, attempts: Collection[Attempt]) -> bool:
    """Return whether a store left so many puts without an answer that no more is to be sent.

    Of conditional puts to a server any number can be sent: at most one of them happens.
    """
    return (store.is_local or not store.is_conditional) and sum(not a.was_refused for a in attempts) >= MOST_UNANSWERED


@dataclass(frozen=True)
class Attempt:
    """A put in the place of ``head``; ``was_refused`` says that the store answered, with no.

    One that is not ``conditional`` may happen at any time, whatever stands there by then.
    """

    head: Head | None
    prepared: Prepared | None
    was_refused: bool
    is_conditional: bool = True

    @property
    def version(self) -> Version | None:
        """The version that it was to replace."""
        return self.head.version if self.head is not None else None

    def fate(self, now: Head | None, commit_id: str, labels: Collection[str]) -> Fate:
        """Return what ``now`` tells about it; ``labels`` are those that only this commit adds."""
        found = self._fate(now, commit_id, labels)
        return Fate.OPEN if found is Fate.LOST and not self.is_over else found

    @property
    def is_over(self) -> bool:
        """Whether it cannot happen any more once another version stands there."""
        return self.was_refused or self.is_conditional

    def _fate(self, now: Head | None, commit_id: str, labels: Collection[str]) -> Fate:
        if now is not None and now.identity is not None and commit_id in now.identity.recent:
            return Fate.LANDED
        if (now.version if now is not None else None) == self.version:
            # It may be on its way still; a library may have sent it twice, and only one of them was refused.
            return Fate.OPEN
        if now is None:
            return Fate.LOST if self.was_refused else Fate.UNKNOWN
        if labels and not set(labels).isdisjoint(now.document.labels or ()):
            return Fate.LANDED  # another program dropped the ids
        before = self.head.identity if self.head is not None else None
        if now.identity is None:
            return Fate.LOST
        recent = now.identity.recent
        if (before.recent[-1] in recent) if before is not None and before.recent else len(recent) < RECENT:
            return Fate.LOST
        # So many others committed since that the id may have dropped out.
        if labels and before is not None and now.identity.removal <= before.sequence:
            return Fate.LOST
        return Fate.UNKNOWN

    def discard(self, store: Store) -> None:
        """Delete the index files of a put that did not happen, as far as the store lets us."""
        if self.prepared is not None:
            with contextlib.suppress(KartosqlError):
                store.delete(self.prepared.index_keys)


__all__ = ["Committed", "Patience", "commit", "read_head"]

Clock = Callable[[], dt.datetime]


@dataclass(frozen=True)
class Committed:
    """What a commit did.

    ``rebased`` counts the rounds that were lost to others; ``foreign`` tells whether another
    program had written the dataset since the last commit of kartosql. ``document`` is what was
    committed, None after a drop.
    """

    uuid: str
    sequence: int
    id: str
    labels_added: tuple[str, ...]
    labels_removed: tuple[str, ...]
    rebased: int = 0
    foreign: bool = False
    document: DatasetDocument | None = field(default=None, compare=False, repr=False)


def utc_now() -> dt.datetime:
    """Return the time by the clock of this machine."""
    return dt.datetime.now(dt.timezone.utc)


def commit(
    store: Store,
    change: Change,
    *,
    base: Head | None = None,
    single_writer: bool = False,
    patience: Patience | None = None,
    clock: Clock = utc_now,
    grace: dt.timedelta = GRACE,
) -> Committed:
    """Commit ``change``, which was planned on the head ``base``, and return what it did.

    What others committed since is kept; raises ConcurrentCommit where that is not possible, and
    CommitUnknown where the store does not say how it ended: then nothing may be deleted that the
    change refers to. After any other error it is not committed.
    """
    store.single_writer = store.single_writer or single_writer
    store.require_conditional_put(f"{change.uuid}/{SIDE_FOLDER}")
    one = _Dropping if change.drop else _Committing
    return one(store, change, base, patience or Patience(), clock, grace).run()


class _Committing:
    """The rounds of one commit."""

    is_primary = False

    def __init__(
        self, store: Store, change: Change, base: Head | None, patience: Patience, clock: Clock, grace: dt.timedelta
    ) -> None:
        self.store = store
        self.change = change
        self.base = base
        self.patience = patience
        self.clock = clock
        self.grace = grace
        self.id = new_id()
        self.race = Race(patience.race, LONGEST_WAIT_OF_COMMIT)
        self.attempts: list[Attempt] = []  # puts that may have happened, or may happen yet
        self.winner: Head | None = None

    def run(self) -> Committed:
        """Go on until the change is committed, or cannot be."""
        while True:
            try:
                with self.store.turn(self.change.uuid):
                    done = self._round()
            except HeadMoved:
                done = None
            except StoreError as e:
                if not self.attempts:
                    raise
                self._check_time(e)  # only the document can tell, and it cannot be read now
                done = None
            except KartosqlError as e:
                if self.attempts:
                    raise self._unknown() from e
                raise
            if done is not None:
                return done
            self._check_time()
            self.race.wait()

    def _round(self) -> Committed | None:
        head = open_head(self.store, self.change.uuid, self.patience, is_primary=self.is_primary)
        done = self._judge(head)
        if done is not None:
            return done
        if self.base is None and not self.change.create:
            self.base = head
        return self._try(head)

    def _judge(self, head: Head | None) -> Committed | None:
        """Find out what became of the attempts before."""
        for attempt in list(self.attempts):
            fate = attempt.fate(head, self.id, self.change.added)
            if fate is Fate.LANDED:
                return self._landed(head, attempt)
            if fate is Fate.UNKNOWN:
                raise self._unknown()
            if fate is Fate.LOST:
                self.attempts.remove(attempt)
                attempt.discard(self.store)
        return None

    def _try(self, head: Head | None) -> Committed | None:
        prepared = prepare(
            self.store, self.change, head, self.base, commit_id=self.id, now=self.clock(), grace=self.grace
        )
        try:
            after = swap(self.store, prepared.document, head)
        except (PreconditionFailed, OutcomeUnknown) as e:
            self._doubt(head, prepared, e)
            return None
        except KartosqlError:
            Attempt(head, prepared, True).discard(self.store)
            raise
        return self._committed(head, after, prepared)

    def _doubt(self, head: Head | None, prepared: Prepared | None, error: Exception) -> None:
        was_refused = isinstance(error, PreconditionFailed)
        self.attempts.append(Attempt(head, prepared, was_refused, self.store.is_conditional))
        self.winner = head

    def _landed(self, head: Head | None, attempt: Attempt) -> Committed:
        return self._committed(attempt.head, head, attempt.prepared)

    def _committed(self, before: Head | None, after: Head | None, prepared: Prepared | None) -> Committed:
        identity = after.identity if after is not None else None
        heads = (before, self.base)
        return committed(self.store, self.change, prepared, identity, self.id, self.race.rounds, heads)

    def _check_time(self, error: Exception | None = None) -> None:
        if self.race.is_over() or is_silent(self.store, self.attempts):
            if self.attempts:
                raise self._unknown() from error
            raise conflict(self.change, self.winner, "others commit to it all the time")

    def _unknown(self) -> CommitUnknown:
        return unknown(self.change.uuid, self.change.operation, self.id)


class _Dropping(_Committing):
    """The rounds of removing a dataset."""

    is_primary = True

    def _judge(self, head: Head | None) -> Committed | None:
        if self.attempts and (head is None or head.is_absent):
            return self._committed(self.attempts[-1].head, None, None)
        if self.attempts and head is not None and head.version != self.attempts[-1].version:
            self.attempts = [a for a in self.attempts if not a.is_over]
        return None

    def _try(self, head: Head | None) -> Committed | None:
        check_conflicts(self.change, head, self.base)
        assert head is not None
        try:
            remove(self.store, head)
        except (PreconditionFailed, OutcomeUnknown) as e:
            self._doubt(head, None, e)
            return None
        return self._committed(head, None, None)


def committed(
    store: Store,
    change: Change,
    prepared: Prepared | None,
    identity: Identity | None,
    commit_id: str,
    rounds: int,
    heads: tuple[Head | None, Head | None],
) -> Committed:
    """Do what is left after a commit, and return what it did; ``heads`` are those that it met and was planned on."""
    if prepared is not None and prepared.has_pending:
        # The document says what is left to do; others do it where this fails.
        with contextlib.suppress(KartosqlError):
            complete_schemas(store, change.uuid)
    if prepared is not None:
        record(store, change, prepared.document, prepared.removed)
    return Committed(
        uuid=change.uuid,
        sequence=identity.sequence if identity is not None else 0,
        id=commit_id,
        labels_added=tuple(change.added),
        labels_removed=tuple(sorted(prepared.removed)) if prepared is not None else (),
        rebased=rounds,
        foreign=tell_foreign(*heads),
        document=prepared.document if prepared is not None else None,
    )


def unknown(uuid: str, operation: str, commit_id: str) -> CommitUnknown:
    """Return the error for a commit of which the store does not say how it ended."""
    return CommitUnknown(
        f"Dataset {uuid!r}: the store does not say whether {operation} {commit_id} was committed",
        hint="Look for this id in the metadata of the dataset before you try again. Nothing was deleted.",
    )


def tell_foreign(before: Head | None, base: Head | None) -> bool:
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
