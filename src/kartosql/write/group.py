"""Appends that wait for their turn at one dataset, committed together by the writer whose turn it is.

Who waits offers his append. Whoever has the turn takes those that are like his own, and writes one document and one
file of each index for all, with a version for each: only what the last one left is ever a document.
Who finds his own taken but not done, as the other writer ended or got no answer, asks the document for it.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pyarrow as pa

from kartosql.formats.kartothek import naming
from kartosql.store import Store
from kartosql.store.turns import OfferedWrite, Taken, take
from kartosql.write.change import Change, joined_pairs
from kartosql.write.document import MIN_GRACE, Head

MOST = 31  # appends that one writer takes along; their ids fit into a document
MOST_PAIRS = 10_000  # values with labels of an append that is offered
# What an append consists of; one that asks for anything else is committed by itself.
_OWN = ("uuid", "operation", "added", "pairs", "schemas", "partition_keys", "metadata", "started", "rows")


@dataclass(frozen=True)
class Companion:
    """An append of another writer: the id of its commit and what it adds."""

    id: str
    change: Change
    taken: Taken


def offer_of(store: Store, change: Change, base: Head | None, commit_id: str) -> OfferedWrite | None:
    """Return the offer of a change that was planned on ``base``, None if only its own writer can commit it."""
    folder, alike = store.folder_path(change.uuid), _alike(change, base)
    if folder is None or alike is None or sum(p.num_rows for p in change.pairs.values()) > MOST_PAIRS:
        return None
    pairs = {column: _packed(table) for column, table in change.pairs.items()}
    own: dict[str, Any] = {"id": commit_id, "added": change.added, "rows": change.rows, "pairs": pairs}
    assert change.started is not None
    own["started"] = change.started.isoformat()
    return OfferedWrite(folder, json.dumps({"alike": alike, **own}).encode())


def companions(offers: Sequence[str], change: Change, head: Head | None, base: Head | None) -> list[Companion]:
    """Take those of the appends that others offer that can be committed with ``change`` upon ``head``."""
    alike = _alike(change, base)
    if alike is None or head is None or not _is_plain(head):
        return []
    found, labels = [], set(change.added)
    for taken in take(offers, MOST):
        one = None
        with contextlib.suppress(ValueError, KeyError, TypeError, pa.ArrowException):
            one = _companion(change, taken, alike)
        if one is None or not labels.isdisjoint(one.change.added):
            taken.give_back()
            continue
        labels.update(one.change.added)
        found.append(one)
    return found


def together(change: Change, others: Sequence[Companion]) -> Change:
    """Return the change that adds what all of them add."""
    changes = [change, *(o.change for o in others)]
    return replace(
        change,
        added=dict(chain.from_iterable(c.added.items() for c in changes)),
        pairs={column: joined_pairs([c.pairs[column] for c in changes]) for column in change.pairs},
        rows=None if any(c.rows is None for c in changes) else sum(c.rows or 0 for c in changes),
    )


def _alike(change: Change, base: Head | None) -> str | None:
    """Return what has to be the same of changes that are committed together, None for one that is not plain."""
    plain = Change(**{name: getattr(change, name) for name in _OWN})
    if base is None or change.started is None or not change.added or not _is_plain(base) or plain != change:
        return None
    schemas = {table: base64.b64encode(s.serialize()).decode() for table, s in change.schemas.items()}
    columns = {column: str(p.schema.field("value").type) for column, p in change.pairs.items()}
    origin = base.identity.origin if base.identity is not None else None
    alike = [change.uuid, change.operation, change.partition_keys, change.metadata, schemas, columns, origin]
    try:
        return json.dumps(alike, sort_keys=True)
    except (TypeError, ValueError):  # metadata that are refused later
        return None


def _is_plain(head: Head) -> bool:
    """Return whether appends to a dataset need no more than its next document."""
    followed = any(key.startswith(naming.FOLLOWED) for key in head.document.metadata)
    marks = head.intent or head.unfinished or head.pending_schemas or head.is_absent
    return head.is_own and not followed and not marks


def _companion(change: Change, taken: Taken, alike: str) -> Companion | None:
    made: Mapping[str, Any] = json.loads(taken.content)
    started = dt.datetime.fromisoformat(made["started"])
    # What was written long ago is looked after by its own writer, so that no cleanup takes it.
    if made["alike"] != alike or dt.datetime.now(dt.timezone.utc) - started > MIN_GRACE / 2:
        return None
    pairs = {column: _unpacked(text) for column, text in made["pairs"].items()}
    own = replace(change, added=made["added"], pairs=pairs, rows=made["rows"], started=started)
    return Companion(made["id"], own, taken)


def _packed(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    plain = pa.table({"value": table["value"], "label": table["label"].cast(pa.string())})
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_table(plain)
    return base64.b64encode(sink.getvalue()).decode()


def _unpacked(text: str) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(base64.b64decode(text))).read_all()
