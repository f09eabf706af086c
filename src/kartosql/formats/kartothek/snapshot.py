"""A snapshot: the metadata that one statement reads, each document once, and a cache of them for other statements."""

from __future__ import annotations

import hashlib
import operator
import random
import threading
import time
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard, TypeVar

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError, KartosqlWarning, StoreError, UsageError
from kartosql.formats.kartothek import metadata, naming
from kartosql.formats.kartothek.cube import Cube, CubeState, cube_from_documents, cube_state, is_seed
from kartosql.formats.kartothek.dataset import Dataset, Listed, group_listed
from kartosql.formats.kartothek.metadata import DatasetDocument, parse_document, read_schema
from kartosql.formats.views import View, read_view
from kartosql.memo import memoized
from kartosql.store import Fetched, ObjectStamp, Store
from kartosql.store.keys import Stamp

ATTEMPTS = 100
PATIENT_ROUNDS = 10
MAX_DATASETS = 64  # of which a cache keeps the metadata
MAX_PARTITIONS = 2_000_000  # in all datasets together; one partition takes 400 to 550 bytes
# A write within the resolution of a filesystem's clock, 2 s at worst, leaves the time of a file as it is.
SETTLED_NS = 3_000_000_000

_T = TypeVar("_T")
Failure = KartosqlError | KeyError


@dataclass(frozen=True)
class Wanted:
    """A metadata file and how to read it; ``stamp`` is what a listing says about its content."""

    uuid: str
    key: str
    parse: Callable[[bytes], Any]
    stamp: ObjectStamp | None = None


@dataclass(frozen=True)
class _Kept:
    """What was read, and the evidence that it did not change: one of stamp and digest."""

    value: Any
    stamp: Stamp | ObjectStamp | None
    digest: bytes | None

    def content_digest(self) -> bytes | None:
        """Return the digest of what was read, which documents know themselves."""
        content = self.value.content if self.digest is None and isinstance(self.value, DatasetDocument) else None
        return bytes.fromhex(content.token) if content is not None else self.digest

    def is_same(self, stamp: Stamp | ObjectStamp | None) -> bool:
        """Return whether a stamp proves that the content is the same."""
        if isinstance(self.stamp, ObjectStamp):
            return isinstance(stamp, ObjectStamp) and self.stamp.is_same(stamp)
        return stamp is not None and self.stamp == stamp


class MetadataCache:
    """Holds documents and schemas by key, and what was made of them, for the datasets used last.

    A local file is the same if its inode, size and times are, and the times lie so far back
    that no later write can have left them; an object of a store if its ETag is, and is the MD5 of
    what was read, or its time is as well, and as far back. All others are read again, and only
    not parsed again if their bytes are the same. May be used by several threads.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[str, dict[str, _Kept]] = OrderedDict()  # by uuid and key
        self._made: dict[str, tuple[tuple[object, ...], Any]] = {}
        self.listed: Sequence[str] | None = None  # names of all metadata files, none if they changed from once to once
        self._lock = threading.RLock()
        self._parsing = threading.Lock()

    def load(self, store: Store, wanted: Sequence[Wanted]) -> list[Any | Failure]:
        """Return the parsed content of files, the same objects as before if nothing changed.

        Files that are read are read concurrently. Errors are returned in place of values, and not kept.
        """
        results: list[Any | Failure] = [None] * len(wanted)
        held: dict[int, Any] = {}
        missing: list[tuple[int, Stamp | None, ObjectStamp | None]] = []
        for at, one in enumerate(wanted):
            try:
                stamp = store.stamp(one.key)
            except (KeyError, KartosqlError) as e:
                results[at] = e
                continue
            with self._lock:
                file = self._files.get(one.uuid, {}).get(one.key)
                if file is not None and file.is_same(one.stamp if stamp is None else stamp):
                    self._files.move_to_end(one.uuid)
                    results[at] = file.value
                else:
                    known = file.stamp if file is not None and isinstance(file.stamp, ObjectStamp) else None
                    missing.append((at, stamp, known))
                    newest = metadata.newest_document(store.address[0], one.key) if file is None else None
                    held[at] = _Kept(newest, None, None) if newest is not None and newest.uuid == one.uuid else file
        rows = store.map(lambda item: _read(store, wanted[item[0]], held[item[0]], *item[1:]), missing)
        for (at, *_), row in zip(missing, rows, strict=True):
            if not isinstance(row, tuple):
                results[at] = row
            elif row[0] is None:
                results[at] = held[at].value
                if not isinstance(row[1], ObjectStamp):
                    self.keep(wanted[at], held[at].value, row[1])
            else:
                results[at] = self._settle(wanted[at], *row)
        return results

    def holds(self, one: Wanted, value: object) -> bool:
        """Return whether a listing shows that the object of a store still has the content that gave a value."""
        with self._lock:
            file = self._files.get(one.uuid, {}).get(one.key)
            return file is not None and file.value is value and file.is_same(one.stamp)

    def _settle(self, one: Wanted, data: bytes, stamp: Stamp | ObjectStamp | None) -> Any | Failure:
        """Parse what was read unless it is what was there before."""
        with self._parsing:
            with self._lock:
                before = self._files.get(one.uuid, {}).get(one.key)
            known = before.content_digest() if before is not None else None
            digest = hashlib.blake2b(data, digest_size=20).digest() if stamp is None or known is not None else None
            with self._lock:
                if before is not None and (before.is_same(stamp) or (digest is not None and digest == known)):
                    self._files.setdefault(one.uuid, {})[one.key] = _Kept(before.value, stamp, digest)
                    return before.value
                # The old content goes before the new one comes, as both may be large.
                del before
                self._drop(one)
            try:
                value = one.parse(data)
            except KartosqlError as e:
                return e
            with self._lock:
                self._files.setdefault(one.uuid, {})[one.key] = _Kept(value, stamp, digest)
                self._files.move_to_end(one.uuid)
                self._evict()
            return value

    def keep(self, one: Wanted, value: object, stamp: Stamp | None = None) -> None:
        """Note what a file holds, and the stamp that proves it, in the place of what was known of it."""
        with self._lock:
            before = self._files.get(one.uuid, {}).get(one.key)
            if before is not None and before.value is not value:
                self._drop(one)
            self._files.setdefault(one.uuid, {})[one.key] = _Kept(value, stamp, None)
            self._files.move_to_end(one.uuid)
            self._evict()

    def note_listed(self, names: Sequence[str]) -> None:
        """Note the metadata files that a listing found."""
        names = sorted(names)
        self.listed = names if self.listed in (None, names) else []

    def stamps(self) -> dict[str, Stamp] | None:
        """Return the stamps of all files that are held, by key; None unless they prove what the datasets are."""
        with self._lock:
            held = {key: kept for files in self._files.values() for key, kept in files.items()}
        documents = [kept.value for kept in held.values() if isinstance(kept.value, DatasetDocument)]
        found = {key: kept.stamp for key, kept in held.items() if isinstance(kept.stamp, Stamp)}
        # What is being changed, and what a listing tells, is not only in these files.
        is_whole = len(found) == len(held) and len(self._files) < MAX_DATASETS
        return found if is_whole and not any(d.labels is None or _is_marked(d) for d in documents) else None

    # -- what is made of files -------------------------------------------------------------------

    def listing(self, uuid: str, value: _T) -> _T:
        """Return the listing given before if it is equal, else ``value``."""
        with self._lock:
            found: _T = self.cached(f"listing {uuid}", uuid, (), lambda: value)
            if found == value:
                return found
            self._made.pop(f"listing {uuid}", None)
            return self.cached(f"listing {uuid}", uuid, (), lambda: value)

    def cached(self, name: str, uuid: str, parts: Sequence[object], make: Callable[[], _T]) -> _T:
        """Return what ``make`` made of the same objects before, else call it; it is kept as long as the dataset is."""
        with self._lock:
            found = self._made.pop(name, None)
            if found is None or len(found[0]) != len(parts) or not all(map(operator.is_, found[0], parts)):
                found = (tuple(parts), make())
            if uuid in self._files:
                self._made[name] = found
            return found[1]

    # -- bounds ----------------------------------------------------------------------------------

    def _drop(self, one: Wanted) -> None:
        """Forget a file that changed, and what was made of it; of documents only one is held."""
        files = self._files.get(one.uuid, {})
        is_document = naming.metadata_uuid(one.key) is not None
        for key in list(files):
            if key == one.key or (is_document and naming.metadata_uuid(key) is not None):
                del files[key]
                self._forget_cached(one.uuid)

    def _forget_cached(self, uuid: str) -> None:
        split = naming.split_member(uuid)
        for name in (
            f"dataset {uuid}",
            f"listing {uuid}",
            f"history {uuid}",
            *((f"cube {split[0]}", f"moment {split[0]}") if split else ()),
        ):
            self._made.pop(name, None)

    def _evict(self) -> None:
        while len(self._files) > MAX_DATASETS or (len(self._files) > 1 and self.partitions > MAX_PARTITIONS):
            uuid, _ = self._files.popitem(last=False)
            self._forget_cached(uuid)

    @property
    def partitions(self) -> int:
        """How many partitions all documents list that are held."""
        with self._lock:
            kept = [file.value for files in self._files.values() for file in files.values()]
        return sum(len(getattr(value, "labels", None) or ()) for value in kept)


def _read(
    store: Store, one: Wanted, held: _Kept | None, stamp: Stamp | None, known: ObjectStamp | None
) -> tuple[bytes | None, Stamp | ObjectStamp | None] | Failure:
    """Return the bytes of a file, and its stamp if that will prove that it is the same; none if it is what is known."""
    settled = stamp is not None and max(stamp.mtime_ns, stamp.ctime_ns) + SETTLED_NS < time.time_ns()
    try:
        if not store.is_local:
            kept = store.kept if known is None else None
            if kept is not None and one.stamp is not None and (data := kept.document(one.key, one.stamp)) is not None:
                return data, one.stamp._replace(modified=None)
            found, proof = store.read_unless(one.key, known)
            if kept is not None and one.stamp is not None and found is not None:
                kept.keep_document(one.key, found, proof)
            if found is not None and proof is None and one.stamp is not None:
                proof = Fetched(found, 0, len(found), one.stamp.etag).proof
            return found, proof
        key = one.key
        content = held.value.content if held is not None and isinstance(held.value, DatasetDocument) else None
        data, version = store.read_versioned(key, content)
        # A file that was replaced meanwhile may come back as it was.
        is_held = content is not None and version.content is content
        return None if is_held else data, stamp if settled and store.stamp(key) == stamp else None
    except (KeyError, FormatError, StoreError) as e:
        return e


# -- documents while they are changed ------------------------------------------------------------------


class Absent(KeyError):
    """There is no such dataset, although there is a document: one is coming, or going."""


_Found = dict[str, DatasetDocument | Failure]


def _is_marked(found: object) -> TypeGuard[DatasetDocument]:
    """Return whether a document has to be looked at more closely before it is used."""
    return isinstance(found, DatasetDocument) and not found.metadata.keys().isdisjoint(
        (metadata.INTENT, metadata.ABSENT)
    )


def _resolved(store: Store, found: _Found, load: Callable[[Sequence[str]], _Found]) -> _Found:
    """Return documents as readers see them: where a committed change waits, the document after it, or what is wrong."""
    current = dict(found)
    for _ in rounds(found):
        marked = {u: d for u, d in current.items() if _is_marked(d)}
        intents = {u: _intent(d) for u, d in marked.items()}
        asked = {i.seed for i in intents.values() if isinstance(i, metadata.Intent) and i.kind != "primary"}
        seeds = load(sorted(asked))
        newer = {u: s for u, s in seeds.items() if u in current and s is not current[u]}
        if newer:
            current |= newer
        else:
            views = {u: _view(store, d, intents[u], seeds) for u, d in marked.items()}
            # A mark and the seed's word on it go together only if the mark still stood there afterwards.
            again = load(list(marked))
            if all(again[u] is d for u, d in marked.items()):
                return current | views
            current |= again
    return current


def _intent(document: DatasetDocument) -> metadata.Intent | KartosqlError | None:
    try:
        return metadata.intent_of(document)
    except KartosqlError as e:
        return e


def _view(
    store: Store, document: DatasetDocument, intent: metadata.Intent | KartosqlError | None, seeds: _Found
) -> DatasetDocument | Failure:
    if isinstance(intent, KartosqlError):
        return intent
    seed = seeds[intent.seed] if intent is not None and intent.kind != "primary" else None
    if isinstance(seed, KartosqlError):
        return seed
    if intent is None or not isinstance(seed, DatasetDocument) or intent.tx not in metadata.unfinished_of(seed):
        return Absent(document.key) if metadata.ABSENT in document.metadata else document
    if intent.kind == "delete":
        return Absent(document.key)
    try:
        data = store.read_metadata(str(intent.staged))
        return _carried_out(document, parse_document(data, f"{document.uuid}{naming.METADATA_JSON}", document.uuid))
    except KeyError:
        return FormatError(
            f"Dataset {document.uuid!r}: {intent.staged} is missing, in which a committed change waits",
            code="missing-metadata",
            hint="Another program may have cleaned up. Restore the file.",
        )
    except KartosqlError as e:
        return e


def _carried_out(document: DatasetDocument, staged: DatasetDocument) -> DatasetDocument:
    """Return what a committed change makes of a document: the one that waits, and what was written in between.

    Another program may have written to the document although the mark stood there, and that stays. Its files are in no
    index of the change, and those of the change in none of its own.
    """
    old, new = document.labels, staged.labels
    try:
        added, removed = ({*staged.metadata[metadata.STAGED][name]} for name in ("added", "removed"))
    except (KeyError, TypeError):
        return staged
    if old is None or new is None or {*old} == ({*new} - added) | removed:
        return staged
    stay = [at for at, label in enumerate(old) if label not in removed]
    come = [at for at, label in enumerate(new) if label in added]
    places = [*((document, at) for at in stay), *((staged, at) for at in come)]
    files = {
        table: tuple([d.files[table][at] if table in d.files else None for d, at in places])
        for table in {**document.files, **staged.files}
    }
    labels = (*map(old.__getitem__, stay), *map(new.__getitem__, come))
    named = f"{document.version}+{staged.version}"
    return replace(staged, labels=labels, files=files, indices={}, named=named)


def rounds(what: Iterable[str]) -> Iterator[int]:
    """Yield the numbers of attempts to read documents while nobody writes them; raises ``store-busy`` at last."""
    for number in range(ATTEMPTS):
        yield number
        if number > 2:
            time.sleep(random.uniform(0, min(0.001 * number, 0.05)))
    hint = "Try again; if that does not help, one of their documents is damaged."
    raise StoreError(f"The datasets {', '.join(sorted(what))} are written all the time", code="store-busy", hint=hint)


def _pending_schemas(document: DatasetDocument) -> dict[str, pa.Schema | Failure]:
    """Return by table the schemas that count instead of those in the store, or what is wrong with them."""
    found: dict[str, pa.Schema | Failure] = {}
    for table, data in metadata.pending_schemas(document).items():
        try:
            found[table] = read_schema(data, f"{document.key}: {metadata.SCHEMA} of {table}")
        except KartosqlError as e:
            found[table] = e
    return found


def is_between_transactions(rounds: Sequence[tuple[Mapping[str, object], object]]) -> bool:
    """Return whether in three rounds no change of several datasets was seen, so the middle one is without a break."""
    if len(rounds) < 3 or not rounds[0][1] == rounds[1][1] == rounds[2][1]:
        return False
    return all(d.is_proven for d in rounds[1][0].values() if isinstance(d, Dataset))


def _transaction_of(found: object) -> tuple[str | None, tuple[str, ...]]:
    """Return the last change of several datasets that a seed recorded, and datasets made by such changes."""
    identity = found.metadata.get(metadata.IDENTITY) if isinstance(found, DatasetDocument) else None
    if not isinstance(identity, dict):
        return None, ()
    created = identity.get("created")
    return identity.get("transaction"), tuple(str(u) for u in created) if isinstance(created, list) else ()


# -- the snapshot ------------------------------------------------------------------------------------


class Snapshot:
    """What a store holds at one moment, read lazily and at most once.

    Documents and schemas of several datasets are fetched concurrently; of ``cache`` those are
    taken that are certainly the same.
    """

    def __init__(self, store: Store, cache: MetadataCache | None = None) -> None:
        self.store = store
        self._cache = MetadataCache() if cache is None else cache
        self.cached = self._cache.cached  # what is kept as long as the parts that it is made of are the same
        self._stamps: dict[str, ObjectStamp | None] = {}
        self._documents: dict[str, DatasetDocument | Failure] = {}
        self._datasets: dict[str, Dataset | Failure] = {}
        self._cubes: dict[str, CubeState] = {}
        self._views: dict[str, str] = {}  # keys of the documents of views
        self._raw: _Found = {}  # documents as they stand in the store
        self._states: dict[str, object] = {}  # and what tells whether they still do
        self._settled: set[str] = set()
        self._warned: set[str] = set()

    @memoized
    def keys(self) -> dict[str, list[str]]:
        """Metadata keys by dataset uuid, JSON before msgpack."""
        found: dict[str, list[str]] = {}
        self._views = {}
        for entry in self.store.list_root():
            uuid = None if entry.is_dir else naming.metadata_uuid(entry.name)
            if entry.name.endswith(naming.VIEW_SUFFIX) and not entry.is_dir:
                name = entry.name.removesuffix(naming.VIEW_SUFFIX)
                if naming.is_dataset_uuid(name):
                    self._views[name] = entry.name
                    self._stamps[entry.name] = entry.stamp
            if uuid is not None and naming.is_dataset_uuid(uuid):
                found.setdefault(uuid, []).append(entry.name)
                self._stamps[entry.name] = entry.stamp
        self._cache.note_listed([name for names in found.values() for name in names])
        return {uuid: sorted(names) for uuid, names in found.items()}

    @memoized
    def members(self) -> dict[str, list[str]]:
        """Dataset ids by cube prefix, for every uuid of the form ``prefix++dataset``."""
        found: dict[str, list[str]] = {}
        for uuid in self.keys:
            split = naming.split_member(uuid)
            if split:
                found.setdefault(split[0], []).append(split[1])
        return found

    @memoized
    def views(self) -> Mapping[str, str]:
        """Keys of the documents of views by name, but for names that are those of datasets or cubes."""
        keys, members = self.keys, self.members
        return {name: key for name, key in self._views.items() if name not in keys and name not in members}

    def view(self, name: str) -> View:
        """Return the view of a name; raises KeyError, and what is wrong with its document."""
        key = self.views[name]
        found = self._cache.load(self.store, [Wanted(f"view {name}", key, partial(read_view, name), self._stamps[key])])
        if isinstance(found[0], Exception):
            raise found[0]
        view: View = found[0]
        return view

    def uuids(self) -> list[str]:
        """Return the uuids of all datasets, broken ones too; a document may say that there is none."""
        return sorted(u for u, d in self.documents(self.keys).items() if not isinstance(d, KeyError))

    def names(self, prefix: str) -> list[str]:
        """Return the names of the datasets of a cube, broken ones too."""
        return sorted(n for n, d in self._documents_of(prefix).items() if not isinstance(d, KeyError))

    def _uuids_of(self, prefix: str) -> dict[str, str]:
        return {f"{prefix}{naming.CUBE_SEPARATOR}{n}": n for n in self.members.get(prefix, [])}

    def _documents_of(self, prefix: str) -> dict[str, DatasetDocument | Failure]:
        """Return the documents of a cube by the names of its datasets."""
        names = self._uuids_of(prefix)
        return {names[u]: d for u, d in self.documents(names).items()}

    # -- documents and datasets ------------------------------------------------------------

    def documents(self, uuids: Iterable[str]) -> dict[str, DatasetDocument | Failure]:
        """Return the document of each uuid, or the error that reading it gave."""
        uuids = list(uuids)
        wanted = [u for u in uuids if u not in self._documents]
        found = self._read(wanted)
        if any(map(_is_marked, found.values())):
            found = _resolved(self.store, found, self._read_again)
        self._documents.update(found)
        return {u: self._documents[u] for u in uuids}

    def _read(self, wanted: Sequence[str]) -> _Found:
        """Read documents  in the store."""
        # What was used before is compared with what it was made of.
        self._states.update({u: self._state(u) for u in wanted if u not in self._documents})
        read: _Found = {}
        choice = {u: list(self.keys.get(u, ())) for u in wanted}
        while choice:
            given = [self._wanted(u, keys.pop(0)) for u, keys in choice.items() if keys]
            read |= {u: KeyError(u) for u in choice if u not in read}
            read |= zip([w.uuid for w in given], self._cache.load(self.store, given), strict=True)
            # Where the JSON went away, the original takes the msgpack.
            choice = {u: keys for u, keys in choice.items() if keys and isinstance(read[u], KeyError)}
        self._raw.update({u: d for u, d in read.items() if u not in self._documents})
        return read

    def _read_again(self, uuids: Sequence[str]) -> _Found:
        self._list_again(uuids)
        return self._read(uuids)

    def _list_again(self, uuids: Sequence[str]) -> None:
        """List the store anew where only that shows what changed: ETags, and documents not known yet."""
        if any(self._stamps.values()) or any(u not in self.keys for u in uuids):
            self._stamps = {}
            for name in ("keys", "members", "views"):
                self.__dict__.pop(name, None)

    def _state(self, uuid: str) -> object:
        """Return what shows without reading whether a document was written since, or None."""
        keys = self.keys.get(uuid, [])
        if self.store.is_local:
            return [_stamp(self.store, key) for key in keys]
        stamps = [self._stamps.get(key) for key in keys]
        return stamps if stamps and all(stamps) else None

    def _wanted(self, uuid: str, key: str) -> Wanted:
        return Wanted(
            uuid, key, lambda data: parse_document(data, key, uuid, self.store.address[0]), self._stamps.get(key)
        )

    def datasets(self, uuids: Iterable[str]) -> dict[str, Dataset | Failure]:
        """Return the dataset of each uuid, or the error that reading it gave.

        Datasets of one cube are as they were at one moment.
        """
        uuids = list(uuids)
        seen: list[tuple[dict[str, Dataset | Failure], object]] = []
        for number in rounds(uuids):
            found = self._read_datasets(uuids)
            moved = self._moved(uuids)
            if not moved:
                break
            seen = [*seen[-2:], (found, [_transaction_of(self._raw.get(u))[0] for u in uuids])]
            if number > PATIENT_ROUNDS and is_between_transactions(seen):
                # Single datasets are written all the time, but no change of several of them came in between.
                found = seen[1][0]
                self._documents.update({u: d.document for u, d in found.items() if isinstance(d, Dataset)})
                self._datasets.update(found)
                break
            for uuid in moved:
                self._documents.pop(uuid, None)
                self._datasets.pop(uuid, None)
        self._settled.update(uuids)
        return found

    def _moved(self, uuids: Sequence[str]) -> Sequence[str]:
        """Return the datasets to read again, as they may not go together with each other or with their schema."""
        new = [u for u in uuids if u not in self._settled]
        sizes = Counter(split[0] for split in map(naming.split_member, new) if split)
        watched = []
        for uuid in new:
            split = naming.split_member(uuid)
            dataset = self._datasets[uuid]
            if (split and sizes[split[0]] > 1) or (isinstance(dataset, Dataset) and not dataset.is_proven):
                watched.append(uuid)
        if not watched:
            return ()
        raw = [self._raw.get(u) for u in watched]
        prefix = (naming.split_member(watched[0]) or ("",))[0]
        together: list[bool] = self._cache.cached(f"moment {prefix}", watched[0], raw, lambda: [False])
        if together[0] and all(map(self._is_as_listed, watched)):
            return ()  # at one moment before the listing, and each one since: so they stood when the listing began
        self._list_again(watched)
        states = {u: self._state(u) for u in watched}
        again = self._read([u for u in watched if states[u] is None or self._states[u] is None])
        same = all(again[u] is self._raw[u] if u in again else states[u] == self._states[u] for u in watched)
        for uuid in watched if same else ():
            _prove(self._datasets[uuid])
        together[0] = same and not any(map(_is_marked, raw))
        return () if same else watched

    def _is_as_listed(self, uuid: str) -> bool:
        """Return whether a dataset of a remote store is whole, and its document the one in the listing."""
        document, dataset = self._raw.get(uuid), self._datasets[uuid]
        if not isinstance(document, DatasetDocument) or not isinstance(dataset, Dataset) or not dataset.is_proven:
            return False
        return self._cache.holds(self._wanted(uuid, document.key), document)

    def _read_datasets(self, uuids: Sequence[str]) -> dict[str, Dataset | Failure]:
        unsealed: list[tuple[DatasetDocument, Sequence[str]]] = []  # with their tables
        listed: dict[str, Listed] = {}
        for uuid, document in self.documents([u for u in uuids if u not in self._datasets]).items():
            if not isinstance(document, DatasetDocument):
                self._datasets[uuid] = document
            elif (sealed := self._sealed_schemas(document)) is not None:
                found = self._datasets[uuid] = self._dataset(document, sealed, None)
                _prove(found)  # both come from one document
            else:
                tables: Sequence[str] = document.tables or (naming.DEFAULT_TABLE,)
                if document.labels is None:
                    below = list(self.store.list_below(f"{uuid}/"))
                    listed[uuid] = self._cache.listing(uuid, group_listed(uuid, below))
                    tables = tables_by_schema(below) or tables
                unsealed.append((document, tables))
        schemas = self._schemas([(d.uuid, t) for d, tables in unsealed for t in tables])
        for document, tables in unsealed:
            known = {t: schemas[document.uuid, t] for t in tables}
            if metadata.SCHEMA in document.metadata:
                known |= _pending_schemas(document)
            if not document.tables and isinstance(known.get(naming.DEFAULT_TABLE), KeyError):
                # Emptied, and its table has another name: only a listing can tell which.
                others = tables_by_schema(self.store.list_below(f"{document.uuid}/"))
                known = {t: s for (_, t), s in self._schemas([(document.uuid, t) for t in others]).items()} or known
            self._datasets[document.uuid] = self._dataset(document, known, listed.get(document.uuid))
        return {u: self._datasets[u] for u in uuids}

    def _sealed_schemas(self, document: DatasetDocument) -> Mapping[str, pa.Schema] | None:
        """Return the schemas in a document itself, or None."""
        try:
            return document.sealed_schemas
        except FormatError as e:
            if document.uuid not in self._warned:
                self._warned.add(document.uuid)
                warnings.warn(f"{e.message}. The schema is read from its file.", KartosqlWarning, stacklevel=6)
            return None

    def _schemas(self, tables: Sequence[tuple[str, str]]) -> dict[tuple[str, str], pa.Schema | Failure]:
        keys = [naming.schema_key(uuid, table) for uuid, table in tables]
        wanted = [Wanted(u, key, partial(read_schema, key=key)) for (u, _), key in zip(tables, keys, strict=True)]
        return dict(zip(tables, self._cache.load(self.store, wanted), strict=True))

    def _dataset(
        self, document: DatasetDocument, schemas: Mapping[str, pa.Schema | Failure], listed: Listed | None
    ) -> Dataset | Failure:
        good: dict[str, pa.Schema] = {}
        for table, schema in schemas.items():
            if not isinstance(schema, pa.Schema):
                return schema
            good[table] = schema
        parts = [document, *good.values(), listed]
        name = f"dataset {document.uuid}"
        return self._cache.cached(name, document.uuid, parts, lambda: Dataset(document, good, listed, self.store))

    def dataset(self, uuid: str) -> Dataset:
        """Return one dataset; raises ``unknown-table``, ``missing-metadata`` or what is wrong with it."""
        found = self.datasets([uuid])[uuid]
        if isinstance(found, Absent):
            raise unknown_dataset(uuid)
        if isinstance(found, KeyError):
            raise missing_metadata(uuid, found.args[0])
        if isinstance(found, KartosqlError):
            raise found
        return found

    # -- cubes -----------------------------------------------------------------------------

    def cube(self, prefix: str) -> CubeState:
        """Return the cube ``prefix`` with its members.

        Members whose metadata or schema file is missing are left out with a warning, as the
        original does; invalid ones are errors. Raises ``invalid-cube`` and ``missing-metadata``.
        """
        if prefix not in self._cubes:
            good, missing = self._members(prefix)
            for name, error in missing.items():
                if not isinstance(error, Absent):
                    text = f"Dataset {name!r} of cube {prefix!r} is left out: {error.args[0]} is missing."
                    warnings.warn(text, KartosqlWarning, stacklevel=2)
            uuid = next(iter(good.values())).uuid if good else ""
            parts = list(good.values())
            self._cubes[prefix] = self._cache.cached(f"cube {prefix}", uuid, parts, lambda: _state(prefix, good))
        return self._cubes[prefix]

    def find_cube(self, cube: Cube | str) -> CubeState:
        """Return the cube of a name, or ``cube_of_spec`` of a specification; raises ``unknown-table``."""
        if isinstance(cube, Cube):
            return self.cube_of_spec(cube)
        if prefix_of(cube) not in self.members:
            raise unknown_cube(cube)
        return self.cube(cube)

    def cube_of_spec(self, cube: Cube) -> CubeState:
        """Return a cube of which the specification is given; members whose files are missing are left out.

        Raises ``missing-metadata`` for the seed, ``invalid-cube``, and what is wrong with the other members.
        """
        good, missing = self._members(cube.uuid_prefix)
        if cube.seed_dataset in missing:
            raise missing_metadata(cube.uuid(cube.seed_dataset), missing[cube.seed_dataset].args[0])
        return cube_state(cube, good)

    def _members(self, prefix: str) -> tuple[dict[str, Dataset], dict[str, KeyError]]:
        """Return the datasets of a cube by name, and what those lack that are not whole; raises all else."""
        names = self._uuids_of(prefix)
        datasets = self.datasets(names)
        made = {u for uuid in datasets for u in _transaction_of(self._raw.get(uuid))[1]}
        if not made.issubset(self.keys):
            # The seed knows of datasets that were made after the listing, or have gone since.
            self._list_again(list(made))
            if self._uuids_of(prefix) != names:
                self._settled.clear()
                return self._members(prefix)
        for problem in datasets.values():
            if isinstance(problem, KartosqlError):
                raise problem
        good = {names[u]: d for u, d in datasets.items() if isinstance(d, Dataset)}
        return good, {names[u]: d for u, d in datasets.items() if isinstance(d, KeyError)}

    def cubes(self) -> dict[str, Cube]:
        """Return every cube of the store by prefix; broken ones are left out with a warning."""
        self.documents(u for prefix in self.members for u in self._uuids_of(prefix))  # all of them at once
        cubes: dict[str, Cube] = {}
        for prefix in sorted(self.members):
            found = self._documents_of(prefix)
            good = {n: d for n, d in found.items() if isinstance(d, DatasetDocument)}
            for name, problem in found.items():
                if not isinstance(problem, (DatasetDocument, KeyError)):
                    _warn_left_out(f"Dataset {name!r} of cube {prefix!r}", problem)
            try:
                cube = cube_from_documents(prefix, good)
            except KartosqlError as e:
                _warn_left_out(f"Cube {prefix!r}", e)
                continue
            if cube is not None:
                cubes[prefix] = cube
        return cubes

    def is_cube(self, prefix: str) -> bool:
        """Return whether one of the datasets ``prefix++*`` is marked as seed; one that cannot be read may be."""
        found = self._documents_of(prefix).values()
        return any(
            is_seed(d.metadata) if isinstance(d, DatasetDocument) else not isinstance(d, KeyError) for d in found
        )


def _prove(dataset: Dataset | Failure) -> None:
    """Note that nobody wrote the document of a dataset while its schemas were read."""
    if isinstance(dataset, Dataset):
        vars(dataset)["is_proven"] = True


def _stamp(store: Store, key: str) -> Stamp | None:
    try:
        return store.stamp(key)
    except (KeyError, KartosqlError):
        return None  # which reading it will say


def missing_metadata(uuid: str, key: str) -> FormatError:
    """Return the error about a dataset of which a file of its metadata is missing."""
    hint = "The dataset is incomplete: it was deleted in part, or its write never finished."
    return FormatError(f"Dataset {uuid!r}: {key} is missing", code="missing-metadata", hint=hint)


def _state(prefix: str, datasets: Mapping[str, Dataset]) -> CubeState:
    cube = cube_from_documents(prefix, {n: d.document for n, d in datasets.items()})
    if cube is None:
        example = next(iter(datasets), None)
        raise FormatError(
            f"The datasets {prefix}++* are no cube: none of them is marked as seed",
            code="invalid-cube",
            hint=f'Query a dataset by itself, for instance "{prefix}++{example}".' if example else None,
        )
    return cube_state(cube, datasets)


def tables_by_schema(keys: Iterable[str]) -> list[str]:
    """Return the tables of a dataset that have a schema file among the ``keys`` below it."""
    found = [k.split("/") for k in keys if k.endswith(f"/{naming.COMMON_METADATA}")]
    return sorted(parts[1] for parts in found if len(parts) == 3)


def _warn_left_out(what: str, error: KartosqlError) -> None:
    warnings.warn(f"{what} is left out: {error.message}", KartosqlWarning, stacklevel=4)


def unknown_cube(name: object, hint: str = "con.cubes() lists the cubes.") -> UsageError:
    """Return the error about a cube that does not exist."""
    return UsageError(f"There is no cube {name!r}.", code="unknown-table", hint=hint)


def unknown_dataset(name: object) -> UsageError:
    """Return the error about a dataset that does not exist."""
    hint = "con.datasets() lists them; those of a cube are cube.dataset."
    return UsageError(f"There is no dataset {name!r}.", code="unknown-table", hint=hint)


def prefix_of(cube: object) -> str:
    """Return the name of a cube, which calls take as well as the cube itself; raises ``invalid-argument``."""
    name = cube.uuid_prefix if isinstance(cube, Cube) else cube
    if not isinstance(name, str):
        raise UsageError(f"{cube!r} is neither a Cube nor the name of one.")
    return name
