"""A snapshot: the metadata that one statement reads, each document once."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError, KartosqlWarning, StoreError, UsageError
from kartosql.formats.kartothek import naming, resolve
from kartosql.formats.kartothek.cache import Failure, MetadataCache, Wanted
from kartosql.formats.kartothek.cube import Cube, CubeState, cube_from_documents, cube_state, is_seed
from kartosql.formats.kartothek.dataset import Dataset, Listed, group_listed
from kartosql.formats.kartothek.metadata import DatasetDocument, parse_document
from kartosql.formats.kartothek.schema import read_schema
from kartosql.memo import memoized
from kartosql.store import Stamp, Store

PATIENT_ROUNDS = 10


class Snapshot:
    """What a store holds at one moment, read lazily and at most once.

    Documents and schemas of several datasets are fetched concurrently; of ``cache`` those are
    taken that are certainly the same.
    """

    def __init__(self, store: Store, cache: MetadataCache | None = None) -> None:
        self.store = store
        self._cache = MetadataCache() if cache is None else cache
        self._etags: dict[str, str | None] = {}
        self._documents: dict[str, DatasetDocument | Failure] = {}
        self._datasets: dict[str, Dataset | Failure] = {}
        self._cubes: dict[str, CubeState] = {}
        self._raw: resolve.Found = {}  # documents as they stand in the store
        self._states: dict[str, object] = {}  # and what tells whether they still do
        self._settled: set[str] = set()
        self._warned: set[str] = set()

    @memoized
    def keys(self) -> dict[str, list[str]]:
        """Metadata keys by dataset uuid, JSON before msgpack."""
        found: dict[str, list[str]] = {}
        for entry in self.store.list_root():
            uuid = None if entry.is_dir else naming.metadata_uuid(entry.name)
            if uuid is not None and naming.is_dataset_uuid(uuid):
                found.setdefault(uuid, []).append(entry.name)
                self._etags[entry.name] = entry.etag
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

    def uuids(self) -> list[str]:
        """Return the uuids of all datasets, broken ones too; a document may say that there is none."""
        return sorted(u for u, d in self.documents(self.keys).items() if not isinstance(d, KeyError))

    def names(self, prefix: str) -> list[str]:
        """Return the names of the datasets of a cube, broken ones too."""
        uuids = {f"{prefix}{naming.CUBE_SEPARATOR}{n}": n for n in self.members.get(prefix, [])}
        return sorted(uuids[u] for u, d in self.documents(uuids).items() if not isinstance(d, KeyError))

    # -- documents and datasets ------------------------------------------------------------

    def documents(self, uuids: Iterable[str]) -> dict[str, DatasetDocument | Failure]:
        """Return the document of each uuid, or the error that reading it gave."""
        uuids = list(uuids)
        wanted = [u for u in uuids if u not in self._documents]
        found = self._read(wanted)
        if any(map(resolve.is_marked, found.values())):
            found = resolve.resolved(self.store, found, self._read_again)
        self._documents.update(found)
        return {u: self._documents[u] for u in uuids}

    def _read(self, wanted: Sequence[str]) -> resolve.Found:
        """Read documents as they stand in the store."""
        # What was used before is compared with what it was made of.
        self._states.update({u: self._state(u) for u in wanted if u not in self._documents})
        read: resolve.Found = {}
        choice = {u: list(self.keys.get(u, ())) for u in wanted}
        while wanted:
            given = [u for u in wanted if choice[u]]
            results = dict(
                zip(given, self._cache.load(self.store, [self._wanted(u, choice[u][0]) for u in given]), strict=True)
            )
            again = []
            for uuid in wanted:
                found = results.get(uuid, KeyError(uuid))
                if isinstance(found, KeyError) and len(choice[uuid]) > 1:
                    choice[uuid].pop(0)  # the JSON went away; the original then takes the msgpack
                    again.append(uuid)
                else:
                    read[uuid] = found
            wanted = again
        self._raw.update({u: d for u, d in read.items() if u not in self._documents})
        return read

    def _read_again(self, uuids: Sequence[str]) -> resolve.Found:
        self._list_again(uuids)
        return self._read(uuids)

    def _list_again(self, uuids: Sequence[str]) -> None:
        """List the store anew where only that shows what changed: ETags, and documents not known yet."""
        if any(self._etags.values()) or any(u not in self.keys for u in uuids):
            self._etags = {}
            for name in ("keys", "members"):
                self.__dict__.pop(name, None)

    def _state(self, uuid: str) -> object:
        """Return what tells without reading whether a document was written since, None if nothing does."""
        keys = self.keys.get(uuid, [])
        if self.store.is_local:
            return [_stamp(self.store, key) for key in keys]
        etags = [self._etags.get(key) for key in keys]
        return etags if etags and all(etags) else None

    def _wanted(self, uuid: str, key: str) -> Wanted:
        return Wanted(uuid, key, lambda data: parse_document(data, key, uuid), self._etags.get(key))

    def datasets(self, uuids: Iterable[str]) -> dict[str, Dataset | Failure]:
        """Return the dataset of each uuid, or the error that reading it gave.

        Datasets of one cube are as they were at one moment.
        """
        uuids = list(uuids)
        rounds: list[tuple[dict[str, Dataset | Failure], object]] = []
        for number in resolve.rounds(uuids):
            found = self._read_datasets(uuids)
            moved = self._moved(uuids)
            if not moved:
                break
            rounds = [*rounds[-2:], (found, [resolve.transaction_of(self._raw.get(u))[0] for u in uuids])]
            if number > PATIENT_ROUNDS and resolve.is_between_transactions(rounds):
                # Single datasets are written all the time, but no change of several of them came in between.
                found = rounds[1][0]
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
            if (split and sizes[split[0]] > 1) or not resolve.is_proven(self._datasets[uuid]):
                watched.append(uuid)
        if not watched:
            return ()
        self._list_again(watched)
        states = {u: self._state(u) for u in watched}
        again = self._read([u for u in watched if states[u] is None or self._states[u] is None])
        same = all(again[u] is self._raw[u] if u in again else states[u] == self._states[u] for u in watched)
        if same:
            resolve.prove(self._datasets[u] for u in watched)
        return () if same else watched

    def _read_datasets(self, uuids: Sequence[str]) -> dict[str, Dataset | Failure]:
        wanted = {u: d for u, d in self.documents(uuids).items() if u not in self._datasets}
        wanted = {u: d for u, d in wanted.items() if not self._is_sealed(u, d)}
        listed: dict[str, Listed] = {}
        tables: dict[str, Sequence[str]] = {}
        for uuid, document in wanted.items():
            if isinstance(document, DatasetDocument):
                tables[uuid] = document.tables or (naming.DEFAULT_TABLE,)
                if document.labels is None:
                    below = list(self.store.list_below(f"{uuid}/"))
                    listed[uuid] = self._cache.listing(uuid, group_listed(uuid, below))
                    tables[uuid] = _tables_by_schema(below) or tables[uuid]
            else:
                self._datasets[uuid] = document
        schemas = self._schemas({(u, t) for u, names in tables.items() for t in names})
        for uuid, names in tables.items():
            document = wanted[uuid]
            assert isinstance(document, DatasetDocument)
            found = {t: schemas[uuid, t] for t in names}
            if resolve.SCHEMA in document.metadata:
                found |= resolve.schemas_of(document)
            if not document.tables and isinstance(found.get(naming.DEFAULT_TABLE), KeyError):
                # Emptied, and its table has another name: only a listing can tell which.
                others = _tables_by_schema(list(self.store.list_below(f"{uuid}/")))
                found = self._schemas_of(uuid, others) or found
            self._datasets[uuid] = self._dataset(document, found, listed.get(uuid))
        return {u: self._datasets[u] for u in uuids}

    def _is_sealed(self, uuid: str, document: DatasetDocument | Failure) -> bool:
        """Make a dataset from its document alone, if that tells the schemas; return whether it did."""
        if not isinstance(document, DatasetDocument):
            return False
        try:
            schemas = document.sealed_schemas
        except FormatError as e:
            if uuid not in self._warned:
                self._warned.add(uuid)
                warnings.warn(f"{e.message}. The schema is read from its file.", KartosqlWarning, stacklevel=6)
            return False
        if schemas is None:
            return False
        found = self._datasets[uuid] = self._dataset(document, schemas, None)
        resolve.prove([found])  # both come from one document
        return True

    def _schemas_of(self, uuid: str, tables: Sequence[str]) -> dict[str, pa.Schema | Failure]:
        found = self._schemas({(uuid, t) for t in tables})
        return {t: found[uuid, t] for t in tables}

    def _schemas(self, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], pa.Schema | Failure]:
        order = sorted(wanted)
        keys = [naming.schema_key(uuid, table) for uuid, table in order]
        found = [Wanted(u, key, partial(read_schema, key=key)) for (u, _), key in zip(order, keys, strict=True)]
        return dict(zip(order, self._cache.load(self.store, found), strict=True))

    def _dataset(
        self, document: DatasetDocument, schemas: Mapping[str, pa.Schema | Failure], listed: Listed | None
    ) -> Dataset | Failure:
        good: dict[str, pa.Schema] = {}
        for table, schema in schemas.items():
            if not isinstance(schema, pa.Schema):
                return schema
            good[table] = schema
        parts = [document, *good.values(), listed]
        return self._cache.dataset(document.uuid, parts, lambda: Dataset(document, good, listed, self.store))

    def dataset(self, uuid: str) -> Dataset:
        """Return one dataset; raises ``unknown-table``, ``missing-metadata`` or what is wrong with it."""
        found = self.datasets([uuid])[uuid]
        if isinstance(found, resolve.Absent):
            raise UsageError(f"There is no dataset {uuid!r}.", code="unknown-table")
        if isinstance(found, KeyError):
            raise missing_metadata(uuid, found)
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
            names, datasets = self._members(prefix)
            good: dict[str, Dataset] = {}
            for name in names:
                found = datasets[f"{prefix}{naming.CUBE_SEPARATOR}{name}"]
                if isinstance(found, Dataset):
                    good[name] = found
                elif isinstance(found, resolve.Absent):
                    continue
                elif isinstance(found, KeyError):
                    warnings.warn(
                        f"Dataset {name!r} of cube {prefix!r} is left out: {found.args[0]} is missing.",
                        KartosqlWarning,
                        stacklevel=2,
                    )
                else:
                    raise found
            uuid = next(iter(good.values())).uuid if good else ""
            self._cubes[prefix] = self._cache.cube(prefix, uuid, list(good.values()), lambda: _state(prefix, good))
        return self._cubes[prefix]

    def _members(self, prefix: str) -> tuple[list[str], dict[str, Dataset | Failure]]:
        """Return the names of a cube's datasets, and the datasets by uuid."""
        names = self.members.get(prefix, [])
        datasets = self.datasets([f"{prefix}{naming.CUBE_SEPARATOR}{n}" for n in names])
        made = {u for uuid in datasets for u in resolve.transaction_of(self._raw.get(uuid))[1]}
        if not made.issubset(self.keys):
            # The seed knows of datasets that were made after the listing, or have gone since.
            self._list_again(list(made))
            if self.members.get(prefix, []) != names:
                self._settled.clear()
                return self._members(prefix)
        return names, datasets

    def cubes(self) -> dict[str, Cube]:
        """Return every cube of the store by prefix; broken ones are left out with a warning."""
        members = self.members
        documents = self.documents([f"{p}++{n}" for p, names in members.items() for n in names])
        cubes: dict[str, Cube] = {}
        for prefix, names in sorted(members.items()):
            found = {n: documents[f"{prefix}++{n}"] for n in names}
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
        """Return whether one of the datasets ``prefix++*`` is marked as seed."""
        names = self.members.get(prefix, [])
        found = self.documents([f"{prefix}++{n}" for n in names]).values()
        return any(isinstance(d, DatasetDocument) and is_seed(d.metadata) for d in found) or any(
            isinstance(d, (FormatError, StoreError)) for d in found
        )


def _stamp(store: Store, key: str) -> Stamp | None:
    try:
        return store.stamp(key)
    except (KeyError, KartosqlError):
        return None  # which reading it will say


def missing_metadata(uuid: str, error: KeyError) -> FormatError:
    """Return the error for a dataset whose metadata or schema file does not exist."""
    return FormatError(
        f"Dataset {uuid!r}: {error.args[0]} is missing",
        code="missing-metadata",
        hint="The dataset is incomplete: it was deleted in part, or its write never finished.",
    )


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


def _tables_by_schema(keys: Sequence[str]) -> list[str]:
    found = [k.split("/") for k in keys if k.endswith(f"/{naming.COMMON_METADATA}")]
    return sorted(parts[1] for parts in found if len(parts) == 3)


def _warn_left_out(what: str, error: KartosqlError) -> None:
    warnings.warn(f"{what} is left out: {error.message}", KartosqlWarning, stacklevel=4)
