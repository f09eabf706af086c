"""Documents of a dataset as a writer sees them: the one of its metadata, and beside it garbage marks and the log.

They are read with their version and swapped for the next one; who loses a race waits, and tries again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import random
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kartosql.errors import CommitError, FormatError, StoreError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.metadata import (
    ABSENT,
    HISTORY,
    IDENTITY,
    OWN_KEYS,
    DatasetDocument,
    Intent,
    fingerprints,
    intent_of,
    newest_document,
    parse_document,
    partitions_digest,
    partitions_of,
    pause_garbage_collection,
    pending_schemas,
    unfinished_of,
    written_document,
)
from kartosql.formats.kartothek.stored_partitions import digest_of, prove
from kartosql.formats.kartothek.versions import NUMBERS
from kartosql.memo import memoized
from kartosql.store import Store
from kartosql.store.keys import Content, OutcomeUnknown, PreconditionFailed, Version, side_folder

RECENT = 64
_OF_TEXT, _OF_COLUMNS = "3:", "2:"  # what digests begin with


@dataclass(frozen=True)
class Identity:
    """The identity of a commit.

    ``sequence`` grows with every write of the document, also those that change no content; ``recent`` holds the ids of
    the last commits, its own last. ``digest`` is that of the document's content: where it does not fit, another program
    wrote the document since. ``origin`` is the commit that made the dataset or replaced all of it, ``removal`` the
    sequence at which partitions were taken away last, ``schemas`` the fingerprint of each table's schema, and at a seed
    ``transaction`` the last change of several datasets and ``created`` the datasets that the last such changes made.
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
        found = {**vars(self), "recent": list(self.recent), "created": list(self.created)}
        return {name: value for name, value in found.items() if value is not None and (value or name != "created")}


def new_id() -> str:
    """Return an id that no other commit has."""
    return uuid.uuid4().hex


def read_identity(metadata: Mapping[str, Any]) -> Identity | None:
    """Return the identity in a document's metadata, or None if it is lacking or damaged."""
    found = metadata.get(IDENTITY)
    if not isinstance(found, dict):
        return None
    texts, optional = ("id", "digest", "operation", "time"), ("parent", "origin", "transaction")
    made: dict[str, Any] = {name: found.get(name) for name in (*texts, *optional, "sequence", "recent")}
    made |= {"removal": found.get("removal", 0), "created": found.get("created", [])}
    numbers, lists = (made["sequence"], made["removal"]), (made["recent"], made["created"])
    if (
        not all(isinstance(made[name], str) for name in texts)
        or not all(made[name] is None or isinstance(made[name], str) for name in optional)
        or not all(type(number) is int and number in NUMBERS for number in numbers)
        or not all(isinstance(ids, list) and all(isinstance(i, str) for i in ids) for ids in lists)
    ):
        return None
    made |= {"recent": tuple(made["recent"]), "created": tuple(made["created"])}
    return Identity(**made, schemas=fingerprints(metadata))


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
    foreign: int | None = None,
    along: Sequence[str] = (),
) -> Identity:
    """Return the identity of the commit that follows ``before``, or of the last of those that come ``along`` with it.

    ``anew`` says that the dataset starts with it, ``removes`` that partitions go away, ``foreign`` that another program
    wrote last, and the last sequence known besides: what it wrote takes one, too.
    """
    sequence = max(before.sequence if before else 0, foreign or 0) + (1 if foreign is None else 2) + len(along)
    ids = (*(before.recent if before else ()), commit_id, *along)
    return Identity(
        sequence=sequence,
        id=ids[-1],
        parent=ids[-2] if along else before.id if before else None,
        digest=digest,
        operation=operation,
        time=time.isoformat(timespec="microseconds"),
        recent=ids[-RECENT:],
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
    """Return the digest of partitions, indices and partition keys of a document.

    Where partitions are bytes that are copied it is made of these, else of all texts, which takes less than encoding.
    """
    return _digest_of_text(document) if document.stored is not None else _digest_of_columns(document)


def _digest_of_text(document: DatasetDocument) -> str:
    return _OF_TEXT + _digest_with(document, partitions_digest(document))


def _digest_of_columns(document: DatasetDocument) -> str:
    parts = {table: digest_of(files) for table, files in document.files.items()}
    return _OF_COLUMNS + _digest_with(document, parts | {"": digest_of(document.labels or ())})


def _digest_with(document: DatasetDocument, parts: Any) -> str:
    made = json.dumps([document.partition_keys, dict(document.indices), parts], sort_keys=True)
    return hashlib.blake2b(made.encode(), digest_size=16).hexdigest()


def _older_digest(document: DatasetDocument) -> str:
    """Return the digest as it was made before: all texts one after the other."""
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
    """The document of a dataset  in the store, and the version it had."""

    document: DatasetDocument
    version: Version

    @property
    def uuid(self) -> str:
        """The uuid of the dataset."""
        return self.document.uuid

    @property
    def key(self) -> str:
        """The key of the document."""
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
        return self.identity is not None and not self.has_digest(self.identity.digest)

    def has_digest(self, expected: str) -> bool:
        """Return whether a digest, which may be an older one, is that of what it lists."""
        if expected[:2] == self.digest[:2]:
            return expected == self.digest
        forms = {_OF_TEXT: _digest_of_text, _OF_COLUMNS: _digest_of_columns}
        return expected == forms.get(expected[:2], _older_digest)(self.document)

    @property
    def is_own(self) -> bool:
        """Whether the last commit of kartosql made the present dataset."""
        return self.identity is not None and not self.is_foreign and self.identity.operation != "mark"

    @memoized
    def intent(self) -> Intent | None:
        """The change of several datasets that is under way."""
        return intent_of(self.document)

    @memoized
    def unfinished(self) -> Mapping[str, list[str]]:
        """Committed changes of several datasets that may not be carried out everywhere: id -> uuids."""
        return unfinished_of(self.document)

    @property
    def is_absent(self) -> bool:
        """Whether there is no dataset, only the mark that one is coming or going."""
        return ABSENT in self.document.metadata

    @property
    def pending_schemas(self) -> Mapping[str, bytes]:
        """The schema files by table that count instead of those in the store."""
        return pending_schemas(self.document)


def read_raw(store: Store, uuid: str) -> Head | None:
    """Return the head of a dataset with all marks in it, None if there is no document.

    Raises what reading and checking the document raises.
    """
    for suffix in (naming.METADATA_JSON, naming.METADATA_MSGPACK):
        key = f"{uuid}{suffix}"
        known = newest_document(store.address[0], key)
        content = known.content if known is not None and known.uuid == uuid else None
        try:
            data, version = store.read_versioned(key, content)
        except KeyError:
            continue
        if known is not None and content is not None and version.content is content:
            return Head(known, version)
        _take_proof(store, key, len(data))
        document = parse_document(data, key, uuid, store.address[0])
        if version.content is not None and document.content is not None and document.content.pieces is not None:
            version = Version(content=document.content)  # which the next look at it finds again, without a digest
        return Head(document, version)
    return None


_PROOF, _PROVEN_BYTES = "partitions", 1 << 20  # of a document whose partitions take longer to look at than a file


def _take_proof(store: Store, key: str, size: int) -> None:
    """Learn what the last writer of this user knew of a large document, which may be another one by now."""
    if store.proofs is not None and size >= _PROVEN_BYTES:
        with contextlib.suppress(ValueError, TypeError):
            for found in store.proofs.get(_PROOF, [store.address[0], key]) or ():
                *about, count, safe_below = json.loads(bytes(found))
                prove(tuple(about), (count, safe_below))


def _keep_proof(store: Store, document: DatasetDocument) -> None:
    stored, content = document.stored, document.content
    if store.proofs is not None and stored is not None and content is not None and content.size >= _PROVEN_BYTES:
        made = json.dumps([part for parts in stored.proof for part in parts])
        store.proofs.put(_PROOF, [store.address[0], document.key], [made.encode()])


def check_writable(document: DatasetDocument) -> None:
    """Raise ``implicit-partitions`` for a document that leaves its files to be found by listing."""
    if document.labels is None:
        raise FormatError(
            f"{document.key}: it lists no partitions, so whatever file lies in its folder belongs to the dataset",
            code="implicit-partitions",
            hint="Such a dataset cannot be changed in one step. Copy its rows into a new dataset.",
        )


def encode(document: DatasetDocument) -> bytes:
    """Return the bytes of a document: JSON, or msgpack in zstd.

    Keys come in the order in which the originals write them.
    """
    made = _outer(document)
    with pause_garbage_collection():
        if document.labels is not None:
            made["partitions"] = partitions_of(document.labels, document.files)
        if document.partition_keys is not None:
            made["partition_keys"] = list(document.partition_keys)
        if document.key.endswith(naming.METADATA_MSGPACK):
            import msgpack
            import zstandard

            packed: bytes = zstandard.ZstdCompressor().compress(msgpack.packb(made))
            return packed
        return json.dumps(made).encode()


def _outer(document: DatasetDocument) -> dict[str, Any]:
    """Return the text before the partitions."""
    made: dict[str, Any] = {"dataset_metadata_version": naming.FORMAT_VERSION, "dataset_uuid": document.uuid}
    if document.indices:
        made["indices"] = dict(document.indices)
    return made | {"metadata": dict(document.metadata)}


def with_marks(document: DatasetDocument, **marks: Any) -> DatasetDocument:
    """Return a document with some marks of kartosql set, or taken away where they are None or empty.

    ``marks`` have the names of ``OWN_KEYS``, without what these begin with.
    """
    metadata = dict(document.metadata)
    for key, value in ((f"kartosql_{name}", value) for name, value in marks.items()):
        assert key in OWN_KEYS, key
        metadata.pop(key, None)
        if value:
            metadata[key] = value
    return replace(document, metadata=metadata)


def tombstone(document: DatasetDocument) -> DatasetDocument:
    """Return the document that says that there is no dataset, with the marks and the identity of ``document``."""
    kept = OWN_KEYS - {HISTORY}
    marks = {k: v for k, v in document.metadata.items() if k in kept} | {ABSENT: True}
    return replace(document, labels=(), files={}, indices={}, metadata=marks)


def touched(document: DatasetDocument, **marks: Any) -> DatasetDocument:
    """Return a document with other marks and the same content, unlike any document before it."""
    return with_marks(document, **marks, commit=touched_identity(document).to_dict())


def swap(store: Store, document: DatasetDocument, expected: Head | None) -> Head:
    """Put ``document`` in the place of ``expected``, None for no document; return the new head.

    Raises PreconditionFailed and OutcomeUnknown.
    """
    stored, before = document.stored, expected.version if expected is not None else None
    if stored is None:
        version = store.put_if(document.key, encode(document), before)
    else:
        # The partitions stay as they stand; only what is around them is encoded.
        front = f'{json.dumps(_outer(document))[:-1]}, "partitions": {{'
        keys = document.partition_keys
        tail = f'}}, "partition_keys": {json.dumps(keys)}}}' if keys is not None else "}}"
        content = Content(front.encode(), *stored.pieces, tail.encode())
        version = store.put_if(document.key, content, before)
        document = written_document(document, content, front + tail, store.address[0])
        _keep_proof(store, document)
    if document.key.endswith(naming.METADATA_MSGPACK):
        try:
            is_hidden = is_there(store, f"{document.uuid}{naming.METADATA_JSON}")
        except StoreError as e:
            raise OutcomeUnknown(document.key) from e
        if is_hidden:
            # The originals change such a dataset by writing a JSON document.
            raise PreconditionFailed(document.key)
    return Head(document, version)


def is_there(store: Store, key: str) -> bool:
    """Return whether there is a file."""
    try:
        store.size(key)
    except KeyError:
        return False
    return True


def discard(store: Store, keys: Sequence[str]) -> None:
    """Delete files that nothing refers to, or that nobody waits for any more, as far as the store lets us."""
    # The error that led here is what the caller needs to hear of; what stays behind is found by a cleanup.
    with contextlib.suppress(Exception):
        store.delete(keys)


def remove(store: Store, head: Head) -> None:
    """Remove the document of a dataset; where the store cannot do that safely, mark it as absent.

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


# -- waiting for others who write the same document ----------------------------------------------------

BACKOFF_SECONDS = 300.0  # for which a commit goes on after lost races
FIRST_WAIT, LONGEST_WAIT = 0.002, 1.0
LONGEST_WAIT_OF_COMMIT = 10.0
ATTEMPTS = 100


class Backoff:
    """Counts the rounds of a commit and waits between them, by chance.

    A wait is about as long as the round before it took, from ``began`` on, up to ``longest`` seconds; longer and longer
    where the store gives no answer. ``lost`` is what lost races took, four of them at most.
    """

    def __init__(self, longest: float = LONGEST_WAIT) -> None:
        self.began = time.monotonic()
        self._until = self.began + BACKOFF_SECONDS
        self._wait = FIRST_WAIT
        self._longest = longest
        self.rounds = 0
        self.lost = 0.0

    def is_over(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() > self._until

    def wait(self, *, is_race: bool = False) -> None:
        """Let others finish; at random, so that those who met do not meet again."""
        self.rounds += 1
        seconds = min(time.monotonic() - self.began, self._longest)
        # In a fraction of a round nobody could have finished. After races, more is for those who come new to overtake.
        wait = 2 * seconds if is_race else min(max(self._wait, seconds), self._longest)
        time.sleep(random.uniform(0, wait))
        if is_race:
            self.lost = min(self.lost + seconds, 4 * seconds)
        else:
            self._wait = 2 * wait
        self.began = time.monotonic()


def attempts(key: str) -> Iterator[int]:
    """Yield the numbers of attempts to write ``key``, with waits between them; raises ``store-failed`` at last."""
    backoff = Backoff()
    for number in range(ATTEMPTS):
        yield number
        backoff.wait()
    raise StoreError(f"{key} cannot be written: the store gives no answer, or others write it all the time.")


# -- files that belong to nothing ----------------------------------------------------------------------

# No file is removed sooner after it was marked, whatever the settings say.
MIN_GRACE = dt.timedelta(hours=1)


@dataclass(frozen=True)
class GarbageMarks:
    """Files of a dataset that were seen to belong to nothing: ``since`` when, and which are about to be removed.

    A cleanup removes only what was marked long before. Whoever is about to commit files that he wrote long ago
    takes them off the list first; both do it by compare-and-swap, so that a file is either committed or removed.
    """

    since: Mapping[str, dt.datetime] = field(default_factory=dict)
    removing: frozenset[str] = frozenset()
    version: Version | None = None


def garbage_key(uuid: str) -> str:
    """Return the key of the list of a dataset."""
    return f"{side_folder(f'{uuid}/')}/garbage.json"


def read_garbage(store: Store, uuid: str) -> GarbageMarks:
    """Return the list of a dataset, empty if it is missing; raises ``invalid-metadata`` for a damaged one."""
    key = garbage_key(uuid)
    try:
        data, version = store.read_versioned(key)
    except KeyError:
        return GarbageMarks()
    try:
        found = json.loads(data)
        since = {str(k): dt.datetime.fromisoformat(v) for k, v in found["marked"].items()}
        if any(time.tzinfo is None for time in since.values()):
            raise ValueError("a time has no zone")
        return GarbageMarks(since, frozenset(map(str, found["removing"])), version)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise FormatError(
            f"{key}: the list of files to be removed is damaged: {e}",
            code="invalid-metadata",
            hint="Delete it; a cleanup then begins anew.",
        ) from None


def put_garbage(store: Store, uuid: str, marks: GarbageMarks) -> GarbageMarks:
    """Put a list in the place of the one that it was made of; raises PreconditionFailed and OutcomeUnknown."""
    marked = {key: time.isoformat() for key, time in sorted(marks.since.items())}
    data = json.dumps({"marked": marked, "removing": sorted(marks.removing)}).encode()
    return replace(marks, version=store.put_if(garbage_key(uuid), data, marks.version))


def unmark_garbage(store: Store, uuid: str, keys: Collection[str]) -> None:
    """Take files that are about to be committed off the list; raises ``commit-expired`` if it is too late."""
    for _ in attempts(garbage_key(uuid)):
        marks = read_garbage(store, uuid)
        lost = marks.removing.intersection(keys)
        if lost:
            raise expired(uuid, min(lost))
        if marks.since.keys().isdisjoint(keys):
            return
        since = {key: time for key, time in marks.since.items() if key not in keys}
        with contextlib.suppress(PreconditionFailed, OutcomeUnknown):
            put_garbage(store, uuid, replace(marks, since=since))
            return


def expired(uuid: str, key: str) -> CommitError:
    """Return the error for a commit whose files were written so long ago that a cleanup removed them."""
    return CommitError(
        f"Dataset {uuid!r}: {key} is gone; it was written long before the commit",
        code="commit-expired",
        hint="Files that belong to no dataset are removed after the grace period. Write the data again.",
    )
