"""Mending what a check found, each kind of it with one normal commit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.write import journal
from kartosql.write.change import Change
from kartosql.write.check import Finding, repaired
from kartosql.write.commit import commit
from kartosql.write.document import Head, read_raw
from kartosql.write.garbage import collect
from kartosql.write.indexing import pairs_of_files
from kartosql.write.prepare import GRACE
from kartosql.write.race import Patience
from kartosql.write.settle import complete_schemas, read_head

OPERATION = "repair"
# Long ago, so that a commit makes sure that no cleanup takes the files.
_LONG_AGO = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


def repair(
    store: Store,
    uuid: str,
    findings: Sequence[Finding],
    grace: dt.timedelta = GRACE,
    *,
    patience: Patience | None = None,
) -> list[Finding]:
    """Mend what can be mended of the ``findings`` about one dataset, and return them with what was done.

    Changes of several datasets are carried out or taken back, wrong indices are built again, commits
    that another program dropped are brought back, and what it wrote itself becomes part of the history.
    Files without a document are marked for a cleanup.
    Raises what commits raise.
    """
    done: set[str] = set()
    wanted = {f.check for f in findings if f.repairable}
    if "transaction" in wanted:
        read_head(store, uuid, patience)
        complete_schemas(store, uuid)
        after = read_raw(store, uuid)
        if after is None or (after.intent is None and not after.unfinished):
            done.add("transaction")
    if "metadata" in wanted:
        collect(store, [uuid], grace)
        done.add("metadata")
    steps: tuple[tuple[str, Callable[[Head], Change | None]], ...] = (
        ("index", lambda head: _indices(store, head, {f.detail for f in findings if f.check == "index"})),
        ("lost-commit", lambda head: lost_change(store, head)),
        ("foreign-write", lambda head: Change(uuid, OPERATION) if _is_foreign(head) else None),
    )
    for check_, planned in steps:
        if check_ not in wanted:
            continue
        head = read_head(store, uuid, patience)
        change = planned(head) if head is not None else None
        if change is not None:
            commit(store, change, base=head, patience=patience)
        done.add(check_)
    return [repaired(f) if f.repairable and f.check in done else f for f in findings]


def _is_foreign(head: Head) -> bool:
    return head.identity is None or head.is_foreign


def _indices(store: Store, head: Head, columns: set[str]) -> Change | None:
    """Return the change that builds indices again."""
    dataset = Snapshot(store).dataset(head.uuid)
    pairs = {}
    for column in sorted(columns.intersection(head.document.indices)):
        tables = [t for t in dataset.tables.values() if column in t.schema.names]
        pairs[column] = pa.concat_tables([pairs_of_files(store, t, t.labels, column) for t in tables])
    return Change(head.uuid, OPERATION, indices=pairs) if pairs else None


def lost_change(store: Store, head: Head) -> Change | None:
    """Return the change that brings the lost commits of a dataset back, in their order; None for none.

    What they added comes before what was committed after them, so that newer rows stay the newer ones.
    """
    labels = head.document.labels or ()
    all_ = journal.dropped(journal.read(store, head.uuid), head.identity, labels)
    missing = [one for one in journal.net(all_) if one.reason is None]
    found = [one for one in missing if _has_files(store, one)]
    left = {one.entry.id for one in missing} - {one.entry.id for one in found}
    added: dict[str, Mapping[str, str]] = {}
    removed: set[str] = set()
    positions: dict[str, str] = {}
    for one in found:
        place = next((label for label in labels if label in one.later), None)
        removed.update(one.removed)
        for label, files in one.added.items():
            added[label] = files
            taken = one.entry.positions.get(label, "")
            if taken in removed or place is not None:
                positions[label] = taken if taken in removed else str(place)
    if not added and not removed:
        return None
    return Change(
        head.uuid,
        OPERATION,
        added=added,
        removed=frozenset(removed),
        positions=positions,
        started=_LONG_AGO,
        repaired=tuple(one.entry.id for one in all_ if one.reason is None and one.entry.id not in left),
    )


def _has_files(store: Store, one: journal.Lost) -> bool:
    try:
        store.sizes([key for files in one.added.values() for key in files.values()])
    except KeyError:
        return False
    return True
