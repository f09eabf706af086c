"""Who committed a document: written into its metadata, so that writers know their own work again."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kartosql.formats.kartothek import resolve
from kartosql.formats.kartothek.metadata import DatasetDocument

RECENT = 64


@dataclass(frozen=True)
class Identity:
    """The identity of a commit.

    ``sequence`` grows with every write of the document, also those that change no content;
    ``recent`` holds the ids of the last commits, its own last. ``digest`` is that of the
    document's content: where it does not fit, another program wrote the document since.
    ``origin`` is the commit that made the dataset or replaced all of it, ``removal`` the
    sequence at which partitions were taken away last, ``schemas`` the fingerprint of each
    table's schema, and at a seed ``transaction`` the last change of several datasets and ``created``
    the datasets that the last such changes made.
    """

    sequence: int
    id: str
    parent: str | None
    digest: str
    operation: str
    time: str
    recent: tuple[str, ...]
    origin: str | None = None
    removal: int = 0
    schemas: Mapping[str, str] | None = None
    transaction: str | None = None
    created: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return what stands in the document."""
        found = {**asdict(self), "recent": list(self.recent), "created": list(self.created)}
        return {name: value for name, value in found.items() if value is not None and (value or name != "created")}


def new_id() -> str:
    """Return an id that no other commit has."""
    return uuid.uuid4().hex


def read_identity(metadata: Mapping[str, Any]) -> Identity | None:
    """Return the identity in a document's metadata; None if there is none or it is damaged."""
    found = metadata.get(resolve.IDENTITY)
    if not isinstance(found, dict):
        return None
    texts = [found.get(name) for name in ("id", "digest", "operation", "time")]
    numbers = [found.get("sequence"), found.get("removal", 0)]
    recent = found.get("recent")
    optional = [found.get("parent"), found.get("origin"), found.get("transaction")]
    created = found.get("created", [])
    if (
        not all(isinstance(t, str) for t in texts)
        or not all(type(n) is int for n in numbers)
        or not isinstance(recent, list)
        or not isinstance(created, list)
        or not all(isinstance(r, str) for r in [*recent, *created])
        or not all(o is None or isinstance(o, str) for o in optional)
    ):
        return None
    return Identity(
        sequence=found["sequence"],
        id=found["id"],
        parent=optional[0],
        digest=found["digest"],
        operation=found["operation"],
        time=found["time"],
        recent=tuple(recent),
        origin=optional[1],
        removal=found.get("removal", 0),
        schemas=resolve.fingerprints(metadata),
        transaction=optional[2],
        created=tuple(created),
    )


def succeed(
    before: Identity | None,
    *,
    commit_id: str,
    digest: str,
    operation: str,
    time: dt.datetime,
    schemas: Mapping[str, str],
    anew: bool = False,
    removes: bool = False,
) -> Identity:
    """Return the identity of the commit that follows ``before``.

    ``anew`` says that the dataset starts with it, ``removes`` that partitions go away.
    """
    sequence = (before.sequence if before else 0) + 1
    older = before.recent if before else ()
    return Identity(
        sequence=sequence,
        id=commit_id,
        parent=before.id if before else None,
        digest=digest,
        operation=operation,
        time=time.isoformat(timespec="microseconds"),
        recent=(*older, commit_id)[-RECENT:],
        origin=commit_id if anew else (before.origin if before else None),
        removal=sequence if removes or anew else (before.removal if before else 0),
        schemas=schemas,
        transaction=before.transaction if before else None,
        created=before.created if before else (),
    )


def touched_identity(document: DatasetDocument) -> Identity:
    """Return the identity for a write that changes marks only: the sequence grows, so no content occurs twice."""
    before = read_identity(document.metadata)
    if before is not None:
        return replace(before, sequence=before.sequence + 1)
    time = dt.datetime.now(dt.timezone.utc).isoformat(timespec="microseconds")
    return Identity(1, new_id(), None, digest(document), "mark", time, ())


def digest(document: DatasetDocument) -> str:
    """Return the digest of partitions, indices and partition keys of a document."""
    hashed = hashlib.blake2b(digest_size=16)
    indices = {column: document.indices[column] for column in sorted(document.indices)}
    hashed.update(json.dumps([document.partition_keys, indices], sort_keys=True).encode())
    hashed.update("\0".join(document.labels or ()).encode())
    for table in sorted(document.files):
        hashed.update(f"\0\0{table}\0\0".encode())
        hashed.update("\0".join([key or "" for key in document.files[table]]).encode())
    return hashed.hexdigest()
