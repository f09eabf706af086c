"""Data-skipping metadata of datasets: made, brought up to date, and dropped."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from kartosql.errors import KartosqlError, KartosqlWarning, UsageError, text_of
from kartosql.formats.folder import spark_values
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.naming import BASE, POINTER, Place, place_for, place_in
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.xskipper.kinds import KINDS, MIN_MAX, IndexSpec, RegexValueList
from kartosql.formats.xskipper.layout import IndexLayout, layout_for, resolved
from kartosql.formats.xskipper.naming import parts_of, path_of, spelled
from kartosql.formats.xskipper.refreshing import Collecting, Refreshed, Sources, drop, refresh, specs_of
from kartosql.formats.xskipper.scans import DataFile, parquet_scan
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.memo import memoized
from kartosql.store import Store
from kartosql.write.change import Change
from kartosql.write.datasets import find_dataset
from kartosql.write.layout import columns_of
from kartosql.write.operation import Operation
from kartosql.write.removal import exists

MOST_ASKED = 32  # files, up to which the time of each is asked for, instead of a listing
Columns = str | Iterable[str]
_Place = TypeVar("_Place")


def specs(given: Mapping[str, Columns | Mapping[str, Any]]) -> list[IndexSpec]:
    """Return the indexes that a call asks for: by kind their columns, which may map to parameters.

    Raises ``invalid-argument``.
    """
    found = []
    for kind, columns in given.items():
        for column in columns_of(list(columns) if isinstance(columns, Mapping) else columns, kind):
            own = columns[column] if isinstance(columns, Mapping) else {}
            if kind == RegexValueList.name:
                own = {"patterns": columns_of(own, kind)}
            elif not isinstance(own, Mapping) or not own.keys() <= KINDS[kind].parameters.keys():
                known = " and ".join(KINDS[kind].parameters) or "none"
                raise UsageError(f"{kind}: {column!r} has the parameters {known}, and no others.")
            found.append(IndexSpec(kind, column, **own))
    return found


def merged(found: Sequence[IndexSpec], wanted: Sequence[IndexSpec]) -> list[IndexSpec]:
    """Return indexes that there are and those that are asked for, which count where only parameters differ.

    Raises ``invalid-argument`` unless any are asked for.
    """
    if not wanted:
        raise UsageError("A skipping index needs at least one column.")
    return list({(s.name, s.column.lower()): s for s in [*found, *wanted]}.values())


class SkippingIndexWriter(ABC, Generic[_Place]):
    """The skipping indexes of one table."""

    name: str

    @property
    @abstractmethod
    def _columns(self) -> Mapping[str, pa.DataType]:
        """What indexes may be over, by names as ``IndexSpec`` has them."""

    @abstractmethod
    def _existing(self) -> tuple[_Place, MetadataStore | None]:
        """Return where the metadata are, or are to be, and what is there."""

    @abstractmethod
    def _make(self, place: _Place, existing: MetadataStore | None, specs: Sequence[IndexSpec]) -> dict[str, Any]:
        """Bring the metadata up to date, with some indexes, and return what was done."""

    def create(self, specs: Sequence[IndexSpec]) -> dict[str, Any]:
        """Make indexes beside those that there are, and return what was done; see Connection.create_skipping_index."""
        place, existing = self._existing()
        found = self._still_valid(existing) if existing is not None else []
        return self._make(place, existing, merged(found, resolved(specs, self._columns)))

    def refresh(self) -> dict[str, Any]:
        """Bring the indexes up to date, and return what was done; see Connection.refresh_skipping_index."""
        place, existing = self._existing()
        if existing is None:
            raise not_indexed(self.name)
        return self._make(place, existing, self._still_valid(existing))

    def _still_valid(self, existing: MetadataStore) -> list[IndexSpec]:
        """Return the indexes that there are, but for those of columns that are gone, or have become another."""
        types = {name.lower(): type_ for name, type_ in self._columns.items()}
        found = [(spec, types.get(spec.column.lower())) for spec in resolved(specs_of(existing.indexes), types)]
        return [s for s, t in found if t is not None and (s.kind.value_type(t) is not None or t == pa.binary())]


@dataclass(frozen=True)
class DatasetIndexes(SkippingIndexWriter[Place]):
    """The skipping indexes of a dataset, which commits keep up to date."""

    operation: Operation
    name: str

    @memoized
    def _table(self) -> DatasetTable:
        dataset = find_dataset(self.operation, self.name)
        if len(dataset.tables) != 1:
            raise UsageError(
                f"Dataset {dataset.uuid!r} has several tables: skipping indexes are for datasets of one.",
                code="unsupported-index",
            )
        return next(iter(dataset.tables.values()))

    @property
    def _columns(self) -> Mapping[str, pa.DataType]:
        return _columns(self._table)

    def _existing(self) -> tuple[Place, MetadataStore | None]:
        table, store = self._table, self.operation.store
        place = place_in(table.metadata, table.uuid)
        if place is None:  # what may lie there is left of a dataset that is gone
            return place_for(store, table.uuid, table.table), None
        return place, MetadataStore.below(store, place.folder)

    def _make(self, place: Place, existing: MetadataStore | None, specs: Sequence[IndexSpec]) -> dict[str, Any]:
        table, operation = self._table, self.operation
        done = _refresh(operation.store, table, place, existing, specs, operation.spark)
        known = {(index.name, index.path) for index in existing.indexes} if existing is not None else set()
        # New part files stand beside others: who knows the table has to look again.
        is_more = any(spec.kind.is_own and (spec.name, spec.path) not in known for spec in specs)
        if is_more or table.metadata.get(POINTER) != place.text():
            operation.commit([Change(table.uuid, operation.name, metadata={POINTER: place.text()})])
        return report(done, len(specs))

    def drop(self) -> dict[str, Any]:
        """Remove the metadata once nothing names them."""
        place, uuid = place_in(self._table.metadata, self._table.uuid), self._table.uuid
        if place is None:
            raise not_indexed(uuid)
        self.operation.commit([Change(uuid, self.operation.name, forgotten=frozenset({POINTER}))])
        try:
            return {"files": drop(self.operation.store, place.folder)}
        except KartosqlError as e:
            message = f"Dataset {uuid!r}: files of its skipping indexes stay behind, unused: {e.message}"
            warnings.warn(message, KartosqlWarning, stacklevel=2)
            return {"files": 0}


def of_datasets(
    snapshot: Snapshot, name: str, specs: Sequence[IndexSpec] | None
) -> dict[str, tuple[str, list[IndexSpec]]]:
    """Return the datasets of a cube that are to get indexes, with uuids: those that have the columns of some ``specs``.

    Without ``specs`` they are those that have indexes already. Empty unless ``name`` is that of a cube. Raises
    ``not-indexed``, ``unknown-column`` and ``unsupported-type``.
    """
    is_cube = text_of(name) not in snapshot.keys and name in snapshot.members and snapshot.is_cube(name)
    if not is_cube:
        return {}
    cube = snapshot.cube(name)
    tables = {member.name: member.table for member in cube.members.values()}
    found: dict[str, list[IndexSpec]] = {}
    if specs is None:
        found = {n: [] for n, t in tables.items() if place_in(t.metadata, t.uuid) is not None}
        if not found:
            raise not_indexed(name)
    else:
        merged((), specs)
        for spec in specs:
            having = [n for n, table in tables.items() if _may_have(table, spec)]
            for member in having or [cube.seed.name]:
                found.setdefault(member, []).append(spec)
        for member, own in found.items():
            _layout(tables[member], member, own, _partitions(tables[member]))  # before any of them is made
    return {n: (table.uuid, found[n]) for n, table in tables.items() if n in found}


def keep_up(store: Store, uuids: Iterable[str], snapshot: Snapshot, spark: Any = None) -> None:
    """Index the files that commits brought, and forget those that they took, where datasets have skipping indexes.

    On executors of ``spark`` if given. The commit stands whatever happens here: what is not indexed is read.
    """
    for uuid in uuids:
        try:
            for table in snapshot.dataset(uuid).tables.values():
                place = place_in(table.metadata, uuid)
                if place is not None:
                    existing = MetadataStore.below(store, place.folder)
                    _refresh(store, table, place, existing, specs_of(existing.indexes), spark, follows=True)
        except KartosqlError as e:
            warnings.warn(
                f"Dataset {uuid!r}: its skipping indexes do not follow the commit: {e.message}",
                KartosqlWarning,
                stacklevel=2,
            )


def drop_forgotten(store: Store, begin: str) -> int:
    """Remove skipping indexes of datasets that another program deleted, and return how many files these were.

    ``begin`` is what the uuids begin with.
    """
    found: dict[str, list[str]] = {}
    for key in store.list_below(BASE):
        found.setdefault(key.split("/")[2], []).append(key)
    gone = [uuid for uuid in found if uuid.startswith(begin) and not exists(store, uuid)]
    keys = [key for u in gone for key in found[u]]
    store.delete(keys)
    return len(keys)


# -- inside --------------------------------------------------------------------------------------


def not_indexed(name: str) -> UsageError:
    """Return the error about what has no skipping indexes."""
    hint = "CREATE SKIPPING INDEX ON t (MINMAX(column)) makes one."
    return UsageError(f"{name!r} has no skipping indexes.", code="not-indexed", hint=hint)


class _CurrentFiles:
    """The files of a table by the names of entries about them, whose times are taken as they are: none changes."""

    def __init__(self, table: DatasetTable, place: Place, specs: Sequence[IndexSpec]) -> None:
        self._table, self._columns = table, _partitions(table)
        self.layout = _layout(table, place.table, specs, self._columns)
        self.prefix = f"{table.uuid}/{table.table}/"
        self.numbers = {f"{place.table}/{key.removeprefix(self.prefix)}": at for at, key in enumerate(table.files)}

    def file(self, path: str, modified: int) -> DataFile:
        at = self.numbers[path]
        row = self._table.partitions.part_of_file[at]
        values = {k: self._columns[k][1][row] for k in self.layout.partitions}
        return DataFile(path, modified, self._table.files[at], values)

    def __contains__(self, name: object) -> bool:
        path, _, time = str(name).rpartition("#")
        return path in self.numbers and time.isdecimal()

    def __getitem__(self, name: str) -> DataFile:
        path, _, time = name.rpartition("#")
        return self.file(path, int(time))

    def unknown(self, existing: MetadataStore) -> set[str]:
        """Return the paths of files that lack an entry."""
        known = [
            {path_of(name) for s in existing.segments if s.is_own == is_own for name in s.ids()}
            for is_own in {spec.kind.is_own for spec, _ in self.layout.indexes}
        ]
        return self.numbers.keys() - set[str].intersection(*known) if known else set(self.numbers)


def _refresh(
    store: Store,
    table: DatasetTable,
    place: Place,
    existing: MetadataStore | None,
    specs: Sequence[IndexSpec],
    spark: Any = None,
    *,
    follows: bool = False,
) -> Refreshed:
    """Bring metadata up to date; if that ``follows`` a commit, entries of files that are listed are taken as true."""
    files = _CurrentFiles(table, place, specs)
    wanted = files.unknown(existing) if follows and existing is not None else files.numbers.keys()
    is_few = follows and len(wanted) <= MOST_ASKED
    folders = [table.files[files.numbers[path]] for path in wanted] if is_few else [files.prefix]
    details = {k: d for found in store.map(store.details, folders) for k, d in found.items()}
    keys = {path: table.files[files.numbers[path]] for path in wanted}
    there = [files.file(path, details[key].milliseconds) for path, key in keys.items() if key in details]
    sources = sources_for(spark, specs, store, table.uuid, Sources(parquet_scan(store)))
    return refresh(store, place.folder, there, files.layout, sources, existing, files if is_few else None)


def _layout(
    table: DatasetTable, name: str, specs: Sequence[IndexSpec], partitions: Mapping[str, tuple[pa.DataType, Any]]
) -> IndexLayout:
    return layout_for(name, specs, _columns(table), {k: type_ for k, (type_, _) in partitions.items()})


def _columns(table: DatasetTable) -> dict[str, pa.DataType]:
    """Return what indexes may be over, by names as ``IndexSpec`` has them."""
    keys = set(table.partition_keys)
    return dict(members({name: type_ for name, type_ in table.types.items() if name not in keys}))


def _may_have(table: DatasetTable, spec: IndexSpec) -> bool:
    """Return whether a table has the column of an index, or the struct that it would be a member of."""
    names = {parts_of(name)[0] for name in map(str.lower, _columns(table))}
    return spec.path[0] in names or spec.column.lower() in names


def _partitions(table: DatasetTable) -> dict[str, tuple[pa.DataType, list[Any]]]:
    """Return partition columns in the types that Spark infers from paths, with the value of each folder.

    When the original refreshes the metadata, its part files and these have to agree.
    """
    found = {}
    for key in table.partition_keys:
        column = table.partitions.arrow[key].combine_chunks()
        kept = MIN_MAX.value_type(column.type)
        exact = kept is not None and pa.types.is_temporal(kept)
        found[key] = (
            (kept, column.cast(kept, safe=False).to_pylist())
            if exact
            else spark_values(column.type, column.to_pylist())
        )
    return found


def sources_for(
    spark: Any, specs: Iterable[IndexSpec], store: Store, folder: str, here: Sources, places: Any = None
) -> Collecting:
    """Return how files are read for indexes: ``here``, or by executors of ``spark``; see ``SparkSources``."""
    if spark is None or not all(spec.kind.is_for_executors for spec in specs):
        return here
    from kartosql.write.spark.upkeep import SparkSources

    return SparkSources(spark, store, folder, here, places)


def members(types: Mapping[str, pa.DataType]) -> Iterable[tuple[str, pa.DataType]]:
    """Yield columns and members of structs, by names as ``IndexSpec`` has them.

    Names that differ in case alone are left out: metadata cannot distinguish them.
    """
    twins = Counter(name.lower() for name in types)
    for name, type_ in types.items():
        if twins[name.lower()] > 1:
            continue
        name = spelled([name])
        yield name, type_
        if pa.types.is_struct(type_):
            fields = {field.name: field.type for field in type_}
            if len(fields) == type_.num_fields:
                yield from ((f"{name}.{below}", found) for below, found in members(fields))


def report(done: Refreshed, indexes: int) -> dict[str, Any]:
    """Return what a refresh did, with how many indexes there are, for the user."""
    return {"indexes": indexes, **asdict(done), "unindexed": len(done.unindexed)}
