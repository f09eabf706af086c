"""A snapshot: the metadata that one statement reads, each document once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError, KartosqlWarning, StoreError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cache import Failure, MetadataCache, Wanted
from kartosql.formats.kartothek.cube import Cube, CubeState, cube_from_documents, cube_state, is_seed
from kartosql.formats.kartothek.dataset import Dataset, Listed, group_listed
from kartosql.formats.kartothek.metadata import DatasetDocument, parse_document
from kartosql.formats.kartothek.schema import read_schema
from kartosql.store import Store


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

    @cached_property
    def keys(self) -> dict[str, list[str]]:
        """Metadata keys by dataset uuid, JSON before msgpack."""
        found: dict[str, list[str]] = {}
        for entry in self.store.list_root():
            uuid = None if entry.is_dir else naming.metadata_uuid(entry.name)
            if uuid is not None and naming.is_dataset_uuid(uuid):
                found.setdefault(uuid, []).append(entry.name)
                self._etags[entry.name] = entry.etag
        return {uuid: sorted(names) for uuid, names in found.items()}

    @cached_property
    def members(self) -> dict[str, list[str]]:
        """Dataset ids by cube prefix, for every uuid of the form ``prefix++dataset``."""
        found: dict[str, list[str]] = {}
        for uuid in self.keys:
            split = naming.split_member(uuid)
            if split:
                found.setdefault(split[0], []).append(split[1])
        return found

    # -- documents and datasets ------------------------------------------------------------

    def documents(self, uuids: Iterable[str]) -> dict[str, DatasetDocument | Failure]:
        """Return the document of each uuid, or the error that reading it gave."""
        uuids = list(uuids)
        wanted = [u for u in uuids if u not in self._documents]
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
                    self._documents[uuid] = found
            wanted = again
        return {u: self._documents[u] for u in uuids}

    def _wanted(self, uuid: str, key: str) -> Wanted:
        return Wanted(uuid, key, lambda data: parse_document(data, key, uuid), self._etags.get(key))

    def datasets(self, uuids: Iterable[str]) -> dict[str, Dataset | Failure]:
        """Return the dataset of each uuid, or the error that reading it gave."""
        uuids = list(uuids)
        wanted = {u: d for u, d in self.documents(uuids).items() if u not in self._datasets}
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
            if not document.tables and isinstance(found.get(naming.DEFAULT_TABLE), KeyError):
                # Emptied, and its table has another name: only a listing can tell which.
                others = _tables_by_schema(list(self.store.list_below(f"{uuid}/")))
                found = self._schemas_of(uuid, others) or found
            self._datasets[uuid] = self._dataset(document, found, listed.get(uuid))
        return {u: self._datasets[u] for u in uuids}

    def _schemas_of(self, uuid: str, tables: Sequence[str]) -> dict[str, pa.Schema | Failure]:
        found = self._schemas({(uuid, t) for t in tables})
        return {t: found[uuid, t] for t in tables}

    def _schemas(self, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], pa.Schema | Failure]:
        order = sorted(wanted)
        found = [self._wanted_schema(uuid, naming.schema_key(uuid, table)) for uuid, table in order]
        return dict(zip(order, self._cache.load(self.store, found), strict=True))

    def _wanted_schema(self, uuid: str, key: str) -> Wanted:
        return Wanted(uuid, key, lambda data: read_schema(data, key))

    def _dataset(
        self, document: DatasetDocument, schemas: Mapping[str, pa.Schema | Failure], listed: Listed | None
    ) -> Dataset | Failure:
        good: dict[str, pa.Schema] = {}
        for table, schema in schemas.items():
            if not isinstance(schema, pa.Schema):
                return schema
            good[table] = schema
        parts = [document, *good.values(), listed]
        return self._cache.dataset(document.uuid, parts, lambda: Dataset(document, good, listed))

    def dataset(self, uuid: str) -> Dataset:
        """Return one dataset; raises ``missing-metadata`` or what is wrong with it."""
        found = self.datasets([uuid])[uuid]
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
            names = self.members.get(prefix, [])
            datasets = self.datasets([f"{prefix}{naming.CUBE_SEPARATOR}{n}" for n in names])
            good: dict[str, Dataset] = {}
            for name in names:
                found = datasets[f"{prefix}{naming.CUBE_SEPARATOR}{name}"]
                if isinstance(found, Dataset):
                    good[name] = found
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
