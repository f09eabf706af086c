"""What became of a put whose answer was no, or did not come."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from kartosql.errors import KartosqlError
from kartosql.store import Store
from kartosql.store.conditional import Version
from kartosql.write.document import Head
from kartosql.write.identity import RECENT
from kartosql.write.prepare import Prepared

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
