"""The history of a dataset: what each commit did, and the states that it had.

Each commit leaves a file with an entry below ``.kartosql/history/<uuid>/``, out of reach of the originals' garbage
collection; many of them are packed into one. An entry lists the labels that were added and removed, each
with its place, so a state is found by undoing entries from the present one, or by repeating them from an older one
that is known. A commit of another program has no entry: the next entry holds the state that it found (``base``).
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from kartosql.errors import FormatError, SqlError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import Dataset
from kartosql.formats.kartothek.metadata import (
    ADDED,
    IDENTITY,
    OWN_KEYS,
    DatasetDocument,
    checked_document,
    checked_schema,
)
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.odf import times
from kartosql.store import Store
from kartosql.store.keys import key_problem

FOLDER = ".kartosql/history"
FOREIGN = "foreign"  # the operation of what another program committed
MAX_UNPACKED = 256 << 20  # bytes of one file
MOST_TIMES = 100  # as large as it is stored, for a file of more than:
FREE_BYTES = 1 << 20
NUMBERS = range(1 << 56)  # that versions may have
_NAME = re.compile(r"(\d{12,18})-(\d{12,18})-[0-9a-zA-Z-]{1,64}\.json\.zst")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_RETENTION = "it is older than what is kept, see the settings history_versions and history_days"

Files = Mapping[str, str]  # table -> key
Rows = list[tuple[str, Files]]  # labels with their files, in order
State = tuple[Rows, Mapping[str, Any]]  # and what else a document says, with schemas in base64


class Link(NamedTuple):
    """The commit that another one was made upon."""

    sequence: int
    id: str
    operation: str
    time: str


@dataclass(frozen=True)
class Entry:
    """What one commit did, in a file that is written after it; whatever has one was committed.

    It may be missing where the writer died in between. ``added`` and ``removed`` map labels to their files by table;
    ``places`` are those of added labels among all labels afterwards, none if they are the last ones, ``gaps`` those of
    removed labels before. ``changed`` maps other facts to what they were and became. ``before`` is the commit that it
    was made upon, ``older`` ids of those before, the latest first, and ``base`` the state that it met where that has no
    entry. ``positions`` says of added labels whose place they took, ``origin`` which commit made the dataset or
    replaced all of it, and ``repaired`` which lost commits this one brought back.
    """

    id: str
    parent: str | None
    sequence: int
    operation: str
    time: str
    origin: str | None
    added: Mapping[str, Files]
    removed: Mapping[str, Files]
    rows: int | None = None
    positions: Mapping[str, str] = field(default_factory=dict)
    repaired: Sequence[str] = ()
    places: Sequence[int] = ()
    gaps: Sequence[int] = ()
    changed: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    before: Link | None = None
    older: Sequence[str] = ()
    base: State | None = None

    @property
    def order(self) -> tuple[int, str, str]:
        """What entries are ordered by."""
        return self.sequence, self.time, self.id

    def key(self, uuid: str, last: int | None = None, name: str | None = None) -> str:
        """Return the key of a file with the entry, and with those after it up to the ``last`` sequence."""
        last = self.sequence if last is None else last
        return f"{FOLDER}/{uuid}/{self.sequence:012d}-{last:012d}-{name or self.id}.json.zst"

    def named_keys(self) -> Iterable[str]:
        """Return the keys of all files that it names."""
        rows, facts = self.base if self.base is not None else ((), {})
        for files in (*self.added.values(), *self.removed.values(), *(files for _, files in rows)):
            yield from files.values()
        for side in (facts.get("indices"), *self.changed.get("indices", ())):
            yield from side.values() if side else ()


def listed(store: Store, uuid: str) -> list[tuple[int, int, str]]:
    """Return first and last sequence and the key of each file of a history."""
    names = [(_NAME.fullmatch(key.rpartition("/")[2]), key) for key in store.list_below(f"{FOLDER}/{uuid}/")]
    return sorted((int(match[1]), int(match[2]), key) for match, key in names if match is not None)


def last_listed(store: Store, uuid: str) -> int:
    """Return the last sequence of a history by the names of its files, which leave room for more."""
    return min(max((last for _, last, _ in listed(store, uuid)), default=0), NUMBERS.stop >> 8)


def read_entries(store: Store, uuid: str) -> list[Entry]:
    """Return all entries of a dataset, in the order of their commits; torn ones are left out."""
    return entries_and_torn(store, uuid)[0]


def entries_and_torn(store: Store, uuid: str) -> tuple[list[Entry], list[str]]:
    """Return what ``read_entries`` does, and the keys of files that have no entry which can be read."""
    found: dict[tuple[int, str], Entry] = {}
    torn: list[str] = []
    for _ in range(5):
        keys = [key for *_, key in listed(store, uuid)]
        files = list(store.map(lambda key: _stored(store, key), keys))
        torn.clear()
        for key, data in zip(keys, files, strict=True):  # one after the other, as each may be large once unpacked
            entries = _unpacked(data or b"", uuid)
            found |= {(e.sequence, e.id): e for e in entries}
            torn += [key] if data is not None and not entries else []
        if None not in files:
            break  # else somebody packed them meanwhile
    return sorted(found.values(), key=lambda e: e.order), torn


def read_file(store: Store, uuid: str, key: str) -> list[Entry]:
    """Return the sound entries of a file, if there is one."""
    return _unpacked(_stored(store, key) or b"", uuid)


def _stored(store: Store, key: str) -> bytes | None:
    try:
        return store.read_metadata(key)
    except KeyError:
        return None
    except FormatError:
        return b""


def _unpacked(data: bytes, uuid: str) -> list[Entry]:
    import zstandard

    try:
        size = zstandard.get_frame_parameters(data).content_size
        if not 0 < size <= min(MAX_UNPACKED, FREE_BYTES + MOST_TIMES * len(data)):
            return []
        stored = json.loads(zstandard.ZstdDecompressor().decompress(data, max_output_size=size))
    except (zstandard.ZstdError, ValueError, RecursionError):
        return []
    made = [_entry(one, uuid) for one in stored] if isinstance(stored, list) else []
    return [entry for entry in made if entry is not None]


def pack(entries: Sequence[Entry], level: int = 3) -> bytes:
    """Return entries as the bytes of a file."""
    import zstandard

    made = [{n: v for n, v in vars(e).items() if v or n in ("parent", "origin", "added", "removed")} for e in entries]
    return zstandard.ZstdCompressor(level).compress(json.dumps(made, separators=(",", ":")).encode())


def _entry(made: Any, uuid: str) -> Entry | None:
    try:
        entry = Entry(**{**made, "before": Link(*made["before"]) if "before" in made else None})
        before = entry.before or Link(0, "", "", entry.time)
        rows, _ = entry.base if entry.base is not None else ((), {})
        moment(entry.time), moment(before.time)
        texts = [entry.id, entry.operation, *before[1:], *entry.repaired, *entry.older, *entry.positions.values()]
        texts += [text for text in (entry.parent, entry.origin) if text is not None]
        texts += [label for label, _ in rows]
        "".join(texts).encode()
        numbers = [entry.sequence, before.sequence, *entry.places, *entry.gaps]
        numbers += [entry.rows] if entry.rows is not None else []
        is_sound = (
            all(type(number) is int and number in NUMBERS for number in numbers)
            and all(isinstance(key, str) and key_problem(key, f"{uuid}/") is None for key in entry.named_keys())
            and len(entry.gaps) == len(entry.removed)
            and len(entry.places) in (0, len(entry.added))
            and all(len(sides) == 2 for sides in entry.changed.values())
        )
        return entry if is_sound else None
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def moment(text: str) -> dt.datetime:
    """Return the moment that a commit names as its own; raises ValueError."""
    found = dt.datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.timezone.utc)


# -- states --------------------------------------------------------------------------------------------


def files_of(document: DatasetDocument, only: Set[str] | None = None) -> Rows:
    """Return the labels of a document, or ``only`` some of them, with their files."""
    columns = document.files.items()
    return [
        (label, {table: key for table, keys in columns if (key := keys[at]) is not None})
        for at, label in enumerate(document.labels or ())
        if only is None or label in only
    ]


def facts_of(document: DatasetDocument, schemas: Mapping[str, pa.Schema] | None) -> dict[str, Any]:
    """Return what a state is besides its partitions: schemas in base64, and indices that are files."""
    return {
        "partition_keys": list(document.partition_keys or ()),
        "indices": {column: key for column, key in document.indices.items() if isinstance(key, str)},
        "schemas": {t: base64.b64encode(s.remove_metadata().serialize()).decode() for t, s in (schemas or {}).items()},
        "metadata": {k: v for k, v in document.metadata.items() if k not in OWN_KEYS or k == ADDED},
    }


def _moved(state: State, entry: Entry, *, back: bool) -> State:
    """Return the state after an entry, or ``back`` before it; raises ValueError where the two do not fit."""
    gone, come = (entry.added, entry.removed) if back else (entry.removed, entry.added)
    left, found = (entry.places, entry.gaps) if back else (entry.gaps, entry.places)
    rows, facts = state
    count = len(rows) - len(gone)
    left = left or range(count, len(rows))
    if count < 0 or {rows[at][0] for at in left} != gone.keys():
        raise ValueError("labels")
    for at in sorted(left, reverse=True):
        del rows[at]
    for at, row in sorted(zip(found or range(count, count + len(come)), come.items(), strict=True)):
        rows.insert(at, row)
    return rows, {**facts, **{name: sides[0 if back else 1] for name, sides in entry.changed.items()}}


@dataclass(frozen=True)
class Version:
    """One version of a dataset: the commit that made it, and what that did, None where nobody recorded it.

    ``time`` is when it was there, by clocks that may run backwards: never before the version before it.
    """

    version: int
    time: dt.datetime
    operation: str
    commit: str | None
    entry: Entry | None = None


class History:
    """The versions of a dataset as far as they are known, the oldest first, and its states."""

    def __init__(self, dataset: Dataset, entries: Sequence[Entry], changed: dt.datetime) -> None:
        self.dataset = dataset
        self._numbers = {e.sequence for e in entries}
        self._kept = lru_cache(16)(self._dataset)
        link, older = _identity(dataset.document) or (Link(0, "", FOREIGN, changed.isoformat()), [])
        if link.operation == FOREIGN or not _is_own(dataset):
            number = max([link.sequence, *self._numbers]) + 1
            link, older = Link(number, "", FOREIGN, changed.isoformat()), [link.id, *older]
        self.last = link.sequence  # the number of the present version
        self._ids = [link.id, *older]
        self.entries = _chain({e.id: e for e in entries}, link, older)

    def _place(self, version: int) -> int:
        uuid, entries = self.dataset.uuid, self.entries
        if not 1 <= version <= self.last:
            raise gone(uuid, version, f"the last one is {self.last}", "no-such-version")
        place = sum(v.version <= version for v in entries) - 1
        if place >= 0 and entries[place].version < version < self.last:
            # Marks of changes of several datasets take numbers, too; anything else was a version.
            after = entries[place + 1].entry if place + 1 < len(entries) else None
            if version in self._numbers or (place + 1 < len(entries) and after is None):
                raise gone(uuid, version, "another program dropped it, or its entry is missing")
        return place

    def before_first(self, what: int | str) -> SqlError:
        """Return the error about what was before all versions that are known, if there was anything."""
        first = self.entries[0]
        after = self.entries[1].entry if len(self.entries) > 1 else None
        if (first.entry is not None and first.entry.before is None) or self._began_with(first.commit, after):
            return gone(self.dataset.uuid, what, f"the first is {first.version} of {first.time}", "no-such-version")
        if first.operation == FOREIGN and not (after is not None and after.older):
            return gone(
                self.dataset.uuid, what, "what was before was written by another program, which recorded nothing"
            )
        # A cleanup that drops what is older leaves the state that the first entry met.
        is_lost = after is not None and after.base is None
        return gone(self.dataset.uuid, what, "older entries of its history are lost" if is_lost else _RETENTION)

    def _began_with(self, commit: str | None, after: Entry | None) -> bool:
        """Return whether a commit of which there is no entry is known as the first one by what came ``after`` it.

        Its entry may be on its way, or its writer died. Behind the last commit there is the document.
        """
        if commit is None:
            return False
        if after is not None:
            return commit == after.origin and not after.older
        return self._ids == [commit] and commit == self.dataset.document.metadata[IDENTITY].get("origin")

    def document(self, version: int) -> DatasetDocument:
        """Return the document of a version; raises ``no-such-version`` and ``version-gone``."""
        return self.at(version).document

    def at(self, as_of: int | str) -> Dataset:
        """Return the dataset as a version, or as it was at a time; raises ``no-such-version`` and ``version-gone``."""
        if isinstance(as_of, int):
            place = self._place(as_of)
        else:
            time = _EPOCH + dt.timedelta(microseconds=times.statement_time(as_of) // 1000)
            place = sum(v.time <= time for v in self.entries) - 1
        if place < 0:
            raise self.before_first(as_of)
        return self.at_place(place)

    def at_place(self, place: int) -> Dataset:
        """Return the dataset as one of ``entries`` left it; raises ``version-gone``."""
        return self.dataset if place == len(self.entries) - 1 else self._kept(place)

    def state(self, place: int) -> State:
        """Return the state that one of ``entries`` left; raises ``version-gone``."""
        number, back = self.entries[place].version, True
        base: State | None = None
        way: list[Entry] = []
        for version in self.entries[place + 1 :]:
            if version.entry is None or (base := version.entry.base) is not None:
                break
            way.append(version.entry)
        else:
            base = files_of(self.dataset.document), facts_of(self.dataset.document, self.dataset.schemas)
        if base is None:
            way, back = [], False
            for version in reversed(self.entries[: place + 1]):
                if version.entry is None or base is not None:
                    break
                way.append(version.entry)
                base = version.entry.base or (([], {}) if version.entry.before is None else None)
        if base is None:
            why = "another program changed the dataset after it, or entries of its history are lost"
            raise gone(self.dataset.uuid, number, why)
        state: State = [(label, files) for label, files in base[0]], base[1]
        try:
            for entry in reversed(way):
                state = _moved(state, entry, back=back)
        except (ValueError, IndexError):
            raise gone(self.dataset.uuid, number, "the entries of its history do not fit together") from None
        return state

    def naming(self, keys: Iterable[str]) -> dict[str, list[int]]:
        """Return for each key the known versions that it is a data or index file of."""
        wanted = {*keys}
        states: list[set[str] | None] = [None] * len(self.entries)
        entries = [v.entry for v in self.entries]
        document = self.dataset.document

        def of(rows: Iterable[Files], indices: Any = None) -> set[str]:
            return wanted.intersection(key for files in (*rows, indices or {}) for key in files.values())

        def came(entry: Entry, at: int) -> set[str]:
            return of((entry.removed, entry.added)[at].values(), entry.changed.get("indices", (None, None))[at])

        now = wanted.intersection(key for files in document.files.values() for key in files if key)
        there: set[str] | None = now | of([], {c: key for c, key in document.indices.items() if isinstance(key, str)})
        for place in reversed(range(len(entries))):
            states[place] = there
            if (entry := entries[place]) is not None and entry.base is not None:
                there = of((files for _, files in entry.base[0]), entry.base[1].get("indices"))
            elif entry is None or there is None:
                there = None
            else:
                there = (there - came(entry, 1)) | came(entry, 0)
        there = None
        for place, entry in enumerate(entries):
            if entry is not None and entry.before is None:
                there = set()
            if (known := states[place]) is not None or entry is None or there is None:
                there = known
            else:
                there = states[place] = (there - came(entry, 0)) | came(entry, 1)
        numbered = [(v.version, s or ()) for v, s in zip(self.entries, states, strict=True)]
        return {key: [number for number, state in numbered if key in state] for key in wanted}

    def _dataset(self, place: int) -> Dataset:
        number, (rows, facts) = self.entries[place].version, self.state(place)
        now, store, uuid = self.dataset.document, self.dataset.store, self.dataset.uuid
        made = {name: facts.get(name) for name in ("partition_keys", "indices", "metadata")}
        made |= {"dataset_metadata_version": naming.FORMAT_VERSION, "dataset_uuid": uuid}
        made["partitions"] = {label: {"files": files} for label, files in rows}
        try:
            document = checked_document(made, now.key, uuid)
            stored = {
                t: pa.py_buffer(base64.b64decode(facts["schemas"][t])) for t in document.tables or facts["schemas"]
            }
            schemas = {t: checked_schema(pa.ipc.read_schema(data), FOLDER) for t, data in stored.items()}
        except (KeyError, ValueError, TypeError, AttributeError, OSError, pa.ArrowException, FormatError):
            raise gone(uuid, number, "its schema or its entries are damaged") from None
        files = {key for column in document.files.values() for key in column if key is not None}
        files -= {key for column in now.files.values() for key in column if key is not None}
        lost = {*files, *document.indices.values()}
        lost -= store.list_below(f"{uuid}/").keys() if store is not None and lost else set()
        if not lost.isdisjoint(files):
            # Our cleanups drop the entry of a version with its files.
            raise gone(uuid, number, f"another program removed {min(lost & files)}, which kartosql keeps")
        indices = {column: key for column, key in document.indices.items() if key not in lost}
        return Dataset(replace(document, indices=indices, named=f"{now.version} {number}"), schemas, None, store)


def _chain(by_id: Mapping[str, Entry], link: Link, older: Sequence[str]) -> tuple[Version, ...]:
    """Return the versions that led to a commit, as far as they are known."""
    found: list[Version] = []
    seen: set[str] = set()
    while True:
        entry = by_id.get(link.id)
        number = entry.sequence if entry is not None else link.sequence
        commit = None if link.operation == FOREIGN else link.id
        found.append(Version(number, moment(link.time), link.operation, commit, entry))
        seen.add(link.id)
        if entry is not None:
            if entry.before is None or entry.before.id in seen or entry.before.sequence >= number:
                break
            link, older = entry.before, entry.older
        else:
            entry = next((by_id[i] for i in older if i in by_id and i not in seen), None)
            if entry is None or entry.sequence >= number:
                break
            link, older = Link(entry.sequence, entry.id, entry.operation, entry.time), ()
    found.reverse()
    for at in range(1, len(found)):
        found[at] = replace(found[at], time=max(found[at].time, found[at - 1].time))
    return tuple(found)


def _identity(document: DatasetDocument) -> tuple[Link, list[str]] | None:
    """Return the commit that a document names as its own, and ids of those before, the latest first."""
    found: Any = document.metadata.get(IDENTITY)
    with contextlib.suppress(KeyError, TypeError, ValueError):
        link = Link(*(found[name] for name in Link._fields))
        moment(link.time), "".join(link[1:]).encode()
        if type(link.sequence) is int and link.sequence in NUMBERS:
            return link, [i for i in reversed(found["recent"]) if isinstance(i, str) and i != link.id]
    return None


def _is_own(dataset: Dataset) -> bool:
    """Return whether the last commit of kartosql made the partitions as they are."""
    with contextlib.suppress(FormatError):
        return dataset.document.sealed_schemas is not None
    return False


def read(snapshot: Snapshot, uuid: str) -> History:
    """Return the history of a dataset as a snapshot sees it, the same one as long as the dataset is the same."""
    dataset, store = snapshot.dataset(uuid), snapshot.store

    def make() -> History:
        details = store.details(dataset.document.key).get(dataset.document.key)
        return History(dataset, read_entries(store, uuid), details.modified if details is not None else store.now())

    return snapshot.cached(f"history {uuid}", uuid, (dataset,), make)


def cube_at(snapshot: Snapshot, prefix: str, as_of: str) -> dict[str, Dataset]:
    """Return the datasets of a cube as they were at a time, by name; a change of several is in all or in none."""
    time = _EPOCH + dt.timedelta(microseconds=times.statement_time(as_of) // 1000)
    histories = {n: read(snapshot, f"{prefix}{naming.CUBE_SEPARATOR}{n}") for n in snapshot.names(prefix)}
    again = {name: sum(v.time <= time for v in h.entries) for name, h in histories.items()}
    counts: dict[str, int] = {}
    while again != counts:
        # Clocks differ, so one change may lie before the time here and behind it there.
        counts = again
        late = {v.commit for name, h in histories.items() for v in h.entries[counts[name] :]} - {None}
        again = {
            name: next((at for at, v in enumerate(h.entries[: counts[name]]) if v.commit in late), counts[name])
            for name, h in histories.items()
        }
    for name, h in histories.items():
        # Without one that may have been there the answer would be wrong.
        if not counts[name] and (error := h.before_first(as_of)).code == "version-gone":
            raise error
    return {name: h.at_place(counts[name] - 1) for name, h in histories.items() if counts[name]}


def gone(uuid: str, version: int | str, why: str, code: str = "version-gone") -> SqlError:
    """Return the error about a version that cannot be read, any more or ever."""
    hint = f'SHOW HISTORY FROM "{uuid}" lists the versions that are known.'
    return SqlError(f"Dataset {uuid!r}: there is no version {version}: {why}.", code=code, hint=hint)
