"""A snapshot: the metadata that one statement reads, each document once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from kartosql.errors import FormatError, KartosqlError, KartosqlWarning, StoreError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube, CubeState, cube_from_documents, cube_state, is_seed
from kartosql.formats.kartothek.dataset import Dataset, group_listed
from kartosql.formats.kartothek.metadata import DatasetDocument, parse_document
from kartosql.formats.kartothek.schema import read_schema
from kartosql.store import Store

_Failure = KartosqlError | KeyError
_T = TypeVar("_T")


class Snapshot:
    """What a store holds at one moment, read lazily and at most once.

    Documents and schemas of several datasets are fetched concurrently.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._keys: dict[str, list[str]] | None = None
        self._documents: dict[str, DatasetDocument | _Failure] = {}
        self._datasets: dict[str, Dataset | _Failure] = {}
        self._cubes: dict[str, CubeState] = {}

    @property
    def keys(self) -> dict[str, list[str]]:
        """Metadata keys by dataset uuid, JSON before msgpack."""
        if self._keys is None:
            found: dict[str, list[str]] = {}
            for entry in self.store.list_root():
                uuid = None if entry.is_dir else naming.metadata_uuid(entry.name)
                if uuid is not None and naming.is_dataset_uuid(uuid):
                    found.setdefault(uuid, []).append(entry.name)
            self._keys = {uuid: sorted(names) for uuid, names in found.items()}
        return self._keys

    @property
    def members(self) -> dict[str, list[str]]:
        """Dataset ids by cube prefix, for every uuid of the form ``prefix++dataset``."""
        found: dict[str, list[str]] = {}
        for uuid in self.keys:
            split = naming.split_member(uuid)
            if split:
                found.setdefault(split[0], []).append(split[1])
        return found

    # -- documents and datasets ------------------------------------------------------------

    def documents(self, uuids: Iterable[str]) -> dict[str, DatasetDocument | _Failure]:
        """Return the document of each uuid, or the error that reading it gave."""
        uuids = list(uuids)
        wanted = [u for u in uuids if u not in self._documents]
        choice = {u: list(self.keys.get(u, ())) for u in wanted}
        while wanted:
            rows = self.store.read_many([choice[u][0] for u in wanted if choice[u]])
            results = dict(zip([u for u in wanted if choice[u]], rows, strict=True))
            again = []
            for uuid in wanted:
                data = results.get(uuid, KeyError(uuid))
                if isinstance(data, KeyError) and len(choice[uuid]) > 1:
                    choice[uuid].pop(0)  # the JSON went away; the original then takes the msgpack
                    again.append(uuid)
                elif isinstance(data, bytes):
                    self._documents[uuid] = _attempt(parse_document, data, choice[uuid][0], uuid)
                else:
                    self._documents[uuid] = data
            wanted = again
        return {u: self._documents[u] for u in uuids}

    def datasets(self, uuids: Iterable[str]) -> dict[str, Dataset | _Failure]:
        """Return the dataset of each uuid, or the error that reading it gave."""
        uuids = list(uuids)
        wanted = {u: d for u, d in self.documents(uuids).items() if u not in self._datasets}
        listed: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {}
        tables: dict[str, Sequence[str]] = {}
        for uuid, document in wanted.items():
            if isinstance(document, DatasetDocument):
                tables[uuid] = document.tables or (naming.DEFAULT_TABLE,)
                if document.labels is None:
                    below = list(self.store.list_below(f"{uuid}/"))
                    listed[uuid] = group_listed(uuid, below)
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

    def _schemas_of(self, uuid: str, tables: Sequence[str]) -> dict[str, pa.Schema | _Failure]:
        found = self._schemas({(uuid, t) for t in tables})
        return {t: found[uuid, t] for t in tables}

    def _schemas(self, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], pa.Schema | _Failure]:
        order = sorted(wanted)
        keys = [naming.schema_key(*pair) for pair in order]
        result: dict[tuple[str, str], pa.Schema | _Failure] = {}
        for pair, key, data in zip(order, keys, self.store.read_many(keys), strict=True):
            result[pair] = _attempt(read_schema, data, key) if isinstance(data, bytes) else data
        return result

    def _dataset(
        self,
        document: DatasetDocument,
        schemas: Mapping[str, pa.Schema | _Failure],
        listed: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] | None,
    ) -> Dataset | _Failure:
        good: dict[str, pa.Schema] = {}
        for schema in schemas.values():
            if not isinstance(schema, pa.Schema):
                return schema
        good = {t: s for t, s in schemas.items() if isinstance(s, pa.Schema)}
        return Dataset(document, good, listed)

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
            cube = cube_from_documents(prefix, {n: d.document for n, d in good.items()})
            if cube is None:
                raise FormatError(
                    f"The datasets {prefix}++* are no cube: none of them is marked as seed",
                    code="invalid-cube",
                    hint=f'Query a dataset by itself, for instance "{prefix}++{names[0]}".' if names else None,
                )
            self._cubes[prefix] = cube_state(cube, good)
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


def _attempt(function: Callable[..., _T], *args: object) -> _T | KartosqlError:
    try:
        return function(*args)
    except KartosqlError as e:
        return e


def _tables_by_schema(keys: Sequence[str]) -> list[str]:
    found = [k.split("/") for k in keys if k.endswith(f"/{naming.COMMON_METADATA}")]
    return sorted(parts[1] for parts in found if len(parts) == 3)


def _warn_left_out(what: str, error: KartosqlError) -> None:
    warnings.warn(f"{what} is left out: {error.message}", KartosqlWarning, stacklevel=4)
