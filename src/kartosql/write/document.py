"""Metadata documents as a writer sees them: read with their version, changed, encoded, and who committed them."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from kartosql.errors import FormatError, StoreError
from kartosql.formats.kartothek import naming, resolve
from kartosql.formats.kartothek.metadata import DatasetDocument, many_objects, parse_document
from kartosql.memo import memoized
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed, Version

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
        """Return the entry of the document."""
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


@dataclass(frozen=True, eq=False)
class Head:
    """The document of a dataset as it stands in the store, and the version it had."""

    document: DatasetDocument
    version: Version

    @property
    def uuid(self) -> str:
        """The uuid of the dataset."""
        return self.document.uuid

    @property
    def key(self) -> str:
        """The key that the document stands under."""
        return self.document.key

    @memoized
    def identity(self) -> Identity | None:
        """Who committed it; None if kartosql never did."""
        return read_identity(self.document.metadata)

    @memoized
    def digest(self) -> str:
        """The digest of what it lists."""
        return digest(self.document)

    @property
    def is_foreign(self) -> bool:
        """Whether another program wrote it after the last commit of kartosql."""
        return self.identity is not None and self.identity.digest != self.digest

    @memoized
    def intent(self) -> resolve.Intent | None:
        """The change of several datasets that is under way."""
        return resolve.intent_of(self.document)

    @memoized
    def unfinished(self) -> Mapping[str, list[str]]:
        """Committed changes of several datasets that may not be carried out everywhere: id -> uuids."""
        return resolve.unfinished_of(self.document)

    @property
    def is_absent(self) -> bool:
        """Whether there is no dataset, only the mark that one is coming or going."""
        return resolve.ABSENT in self.document.metadata

    @property
    def pending_schemas(self) -> Mapping[str, bytes]:
        """The schema files by table that count instead of those in the store."""
        return resolve.pending_schemas(self.document)


def read_raw(store: Store, uuid: str) -> Head | None:
    """Return the head of a dataset with all marks in it, None if there is no document.

    Raises what reading and checking the document raises.
    """
    for suffix in (naming.METADATA_JSON, naming.METADATA_MSGPACK):
        key = f"{uuid}{suffix}"
        try:
            data, version = store.read_versioned(key)
        except KeyError:
            continue
        return Head(parse_document(data, key, uuid), version)
    return None


def check_writable(document: DatasetDocument) -> None:
    """Raise ``implicit-partitions`` for a document that leaves its files to be found by listing."""
    if document.labels is None:
        raise FormatError(
            f"{document.key}: it lists no partitions, so whatever file lies in its folder belongs to the dataset",
            code="implicit-partitions",
            hint="Such a dataset cannot be changed in one step. Copy its rows into a new dataset.",
        )


def encode(document: DatasetDocument) -> bytes:
    """Return a document as the bytes that stand under its key: JSON, or msgpack in zstd.

    Keys come in the order in which the originals write them.
    """
    made: dict[str, Any] = {
        "dataset_metadata_version": naming.FORMAT_VERSION,
        "dataset_uuid": document.uuid,
    }
    if document.indices:
        made["indices"] = dict(document.indices)
    made["metadata"] = dict(document.metadata)
    with many_objects():
        if document.labels is not None:
            made["partitions"] = _partitions(document.labels, document.files)
        if document.partition_keys is not None:
            made["partition_keys"] = list(document.partition_keys)
        if document.key.endswith(naming.METADATA_MSGPACK):
            import msgpack
            import zstandard

            packed: bytes = zstandard.ZstdCompressor().compress(msgpack.packb(made))
            return packed
        return json.dumps(made).encode()


def _partitions(labels: tuple[str, ...], files: Mapping[str, tuple[str | None, ...]]) -> dict[str, Any]:
    if len(files) == 1:
        ((table, keys),) = files.items()
        return {
            label: {"files": {table: key} if key is not None else {}} for label, key in zip(labels, keys, strict=True)
        }
    return {
        label: {"files": {table: keys[i] for table, keys in files.items() if keys[i] is not None}}
        for i, label in enumerate(labels)
    }


def with_marks(document: DatasetDocument, **marks: Any) -> DatasetDocument:
    """Return a document with some marks of kartosql set, or taken away where they are None or empty.

    ``marks`` are named ``intent``, ``unfinished``, ``absent``, ``schema``, ``staged``, ``identity`` and
    ``history``.
    """
    names = {
        "intent": resolve.INTENT,
        "unfinished": resolve.UNFINISHED,
        "absent": resolve.ABSENT,
        "schema": resolve.SCHEMA,
        "staged": resolve.STAGED,
        "identity": resolve.IDENTITY,
        "history": resolve.HISTORY,
    }
    metadata = dict(document.metadata)
    for name, value in marks.items():
        metadata.pop(names[name], None)
        if value:
            metadata[names[name]] = value
    return replace(document, metadata=metadata)


def tombstone(document: DatasetDocument) -> DatasetDocument:
    """Return the document that says that there is no dataset, with the marks and the identity of ``document``."""
    kept = resolve.OWN_KEYS - {resolve.HISTORY}
    marks = {k: v for k, v in document.metadata.items() if k in kept} | {resolve.ABSENT: True}
    return replace(document, labels=(), files={}, indices={}, metadata=marks)


def touched(document: DatasetDocument, **marks: Any) -> DatasetDocument:
    """Return a document with other marks and the same content, unlike any document before it."""
    return with_marks(document, **marks, identity=touched_identity(document).to_dict())


def swap(store: Store, document: DatasetDocument, expected: Head | None) -> Head:
    """Put ``document`` in the place of ``expected``, None for no document; return the new head.

    Raises PreconditionFailed and OutcomeUnknown.
    """
    version = store.put_if(document.key, encode(document), expected.version if expected is not None else None)
    if document.key.endswith(naming.METADATA_MSGPACK):
        try:
            is_hidden = has_json(store, document.uuid)
        except StoreError as e:
            raise OutcomeUnknown(document.key) from e
        if is_hidden:
            # The originals change such a dataset by writing a JSON document.
            raise PreconditionFailed(document.key)
    return Head(document, version)


def has_json(store: Store, uuid: str) -> bool:
    """Return whether there is a document in JSON."""
    try:
        store.size(f"{uuid}{naming.METADATA_JSON}")
    except KeyError:
        return False
    return True


def remove(store: Store, head: Head) -> None:
    """Remove the document of a dataset; where the store cannot do that safely, say in it that there is none.

    Raises PreconditionFailed and OutcomeUnknown.
    """
    if head.key.endswith(naming.METADATA_JSON):
        # Hidden by the JSON, it would come to light.
        store.delete([f"{head.uuid}{naming.METADATA_MSGPACK}"])
    try:
        store.delete_if(head.key, head.version)
    except StoreError as e:
        if e.code != "no-conditional-delete":
            raise
        swap(store, touched(tombstone(head.document), intent=None, unfinished=None), head)
