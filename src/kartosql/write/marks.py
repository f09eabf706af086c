"""Files that were seen to belong to nothing, and since when: ``<uuid>/.commit/garbage.json``.

A cleanup removes only what was marked long before. Whoever is about to commit files that he
wrote long ago takes them off the list first; both do it by compare-and-swap, so that a file is
either committed or removed.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from kartosql.errors import CommitError, FormatError
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed, Version, side_folder
from kartosql.write.retry import attempts

# No file is removed sooner after it was marked, whatever the settings say.
MIN_GRACE = dt.timedelta(hours=1)


@dataclass(frozen=True)
class Marks:
    """The list of a dataset: ``since`` when files were seen, and those that are about to be removed."""

    since: Mapping[str, dt.datetime] = field(default_factory=dict)
    removing: frozenset[str] = frozenset()
    version: Version | None = None

    def encode(self) -> bytes:
        """Return the list as it stands in its file."""
        marked = {key: time.isoformat() for key, time in sorted(self.since.items())}
        return json.dumps({"marked": marked, "removing": sorted(self.removing)}).encode()


def marks_key(uuid: str) -> str:
    """Return the key of the list of a dataset."""
    return f"{side_folder(f'{uuid}/')}/garbage.json"


def read_marks(store: Store, uuid: str) -> Marks:
    """Return the list of a dataset, empty if there is none; raises ``invalid-metadata`` for a damaged one."""
    key = marks_key(uuid)
    try:
        data, version = store.read_versioned(key)
    except KeyError:
        return Marks()
    try:
        found = json.loads(data)
        since = {str(k): dt.datetime.fromisoformat(v) for k, v in found["marked"].items()}
        if any(time.tzinfo is None for time in since.values()):
            raise ValueError("a time has no zone")
        return Marks(since, frozenset(map(str, found["removing"])), version)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise FormatError(
            f"{key}: the list of files to be removed is damaged: {e}",
            code="invalid-metadata",
            hint="Delete it; a cleanup then begins anew.",
        ) from None


def put_marks(store: Store, uuid: str, marks: Marks) -> Marks:
    """Put a list in the place of the one that it was made of; raises PreconditionFailed and OutcomeUnknown."""
    version = store.put_if(marks_key(uuid), marks.encode(), marks.version)
    return Marks(marks.since, marks.removing, version)


def keep(store: Store, uuid: str, keys: Collection[str]) -> None:
    """Take files that are about to be committed off the list; raises ``commit-expired`` if it is too late."""
    for _ in attempts(marks_key(uuid)):
        marks = read_marks(store, uuid)
        lost = marks.removing.intersection(keys)
        if lost:
            raise expired(uuid, min(lost))
        if marks.since.keys().isdisjoint(keys):
            return
        since = {key: time for key, time in marks.since.items() if key not in keys}
        try:
            put_marks(store, uuid, Marks(since, marks.removing, marks.version))
        except (PreconditionFailed, OutcomeUnknown):
            continue
        return


def expired(uuid: str, key: str) -> CommitError:
    """Return the error for a commit whose files were written so long ago that a cleanup removed them."""
    return CommitError(
        f"Dataset {uuid!r}: {key} is gone; it was written long before the commit",
        code="commit-expired",
        hint="Files that belong to no dataset are removed after the grace period. Write the data again.",
    )
