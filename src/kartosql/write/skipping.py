"""Data-skipping metadata of datasets: made, brought up to date, and dropped."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kartosql.errors import KartosqlError, KartosqlWarning, UsageError, text_of
from kartosql.formats.folder import spark_values
from kartosql.formats.kartothek.cube import CubeState
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable
from kartosql.formats.kartothek.naming import BASE, POINTER, Place, place_for, place_in
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.formats.xskipper.kinds import KINDS, MIN_MAX, IndexSpec, RegexValueList
from kartosql.formats.xskipper.layout import IndexLayout, layout_for, resolved
from kartosql.formats.xskipper.naming import parts_of, spelled
from kartosql.formats.xskipper.refreshing import Collecting, Refreshed, Sources, drop, refresh, specs_of
from kartosql.formats.xskipper.scans import DataFile, parquet_scan
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.store import Store
from kartosql.write.change import Change
from kartosql.write.datasets import find_dataset
from kartosql.write.layout import columns_of
from kartosql.write.operation import Operation
from kartosql.write.removal import exists

Columns = str | Iterable[str]


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


def create_skipping(operation: Operation, name: str, specs: Sequence[IndexSpec]) -> dict[str, Any]:
    """Make skipping indexes of a dataset, beside those that it has; see Connection.create_skipping_index."""
    table = _only_table(find_dataset(operation, name))
    known = place_in(table.metadata, table.uuid)
    place = known or place_for(operation.store, table.uuid, table.table)
    existing = MetadataStore.below(operation.store, place.folder)
    found = specs_of(existing.indexes) if known else []  # others are left of a dataset that is gone
    wanted = merged(found, resolved(specs, _columns(table)))
    done = _refresh(operation.store, table, place, existing, wanted, operation.spark)
    if table.metadata.get(POINTER) != place.text():
        operation.commit([Change(table.uuid, operation.name, metadata={POINTER: place.text()})])
    return report(done, len(wanted))


def refresh_skipping(operation: Operation, name: str) -> dict[str, Any]:
    """Bring the skipping indexes of a dataset up to date; see Connection.refresh_skipping_index."""
    table = _only_table(find_dataset(operation, name))
    place = _place(table)
    existing = MetadataStore.below(operation.store, place.folder)
    specs = specs_of(existing.indexes)
    return report(_refresh(operation.store, table, place, existing, specs, operation.spark), len(specs))


def drop_skipping(operation: Operation, name: str) -> dict[str, Any]:
    """Drop all skipping indexes of a dataset; see Connection.drop_skipping_index."""
    table = _only_table(find_dataset(operation, name))
    place = _place(table)
    operation.commit([Change(table.uuid, operation.name, forgotten=frozenset({POINTER}))])
    try:
        return {"files": drop(operation.store, place.folder)}
    except KartosqlError as e:
        message = f"Dataset {table.uuid!r}: files of its skipping indexes stay behind, unused: {e.message}"
        warnings.warn(message, KartosqlWarning, stacklevel=2)
        return {"files": 0}


def of_datasets(snapshot: Snapshot, name: str, specs: Sequence[IndexSpec]) -> dict[str, tuple[str, list[IndexSpec]]]:
    """Return the indexes that each dataset of a cube gets, with its uuid: those over columns that it has.

    Empty unless ``name`` is that of a cube. Raises ``unknown-column`` and ``unsupported-type``.
    """
    cube = _cube(snapshot, name)
    if cube is None:
        return {}
    merged((), specs)
    found: dict[str, tuple[str, list[IndexSpec]]] = {}
    for spec in specs:
        having = [m for m in cube.members.values() if _may_have(m.table, spec)]
        for member in having or [cube.seed]:
            found.setdefault(member.name, (member.table.uuid, []))[1].append(spec)
    for member in cube.members.values():
        if member.name in found:
            _layout(member.table, member.name, found[member.name][1])  # before any of them is made
    return {name: found[name] for name in cube.members if name in found}


def indexed_datasets(snapshot: Snapshot, name: str) -> dict[str, str]:
    """Return the uuids of the datasets of a cube that have skipping indexes; raises ``not-indexed`` without any.

    Empty unless ``name`` is that of a cube.
    """
    cube = _cube(snapshot, name)
    if cube is None:
        return {}
    tables = {member.name: member.table for member in cube.members.values()}
    found = {n: t.uuid for n, t in tables.items() if place_in(t.metadata, t.uuid) is not None}
    if not found:
        raise not_indexed(f"Cube {name!r} has no skipping indexes.")
    return found


def keep_up(store: Store, uuids: Iterable[str], snapshot: Snapshot, spark: Any = None) -> None:
    """Index the files that a commit brought, where datasets have skipping indexes; on executors of ``spark`` if given.

    The commit stands whatever happens here: what is not indexed is read.
    """
    for uuid in uuids:
        try:
            for table in snapshot.dataset(uuid).tables.values():
                place = place_in(table.metadata, uuid)
                if place is not None:
                    existing = MetadataStore.below(store, place.folder)
                    _refresh(store, table, place, existing, specs_of(existing.indexes), spark)
        except KartosqlError as e:
            warnings.warn(
                f"Dataset {uuid!r}: its skipping indexes do not know the new files: {e.message}",
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


def _cube(snapshot: Snapshot, name: str) -> CubeState | None:
    """Return the cube of a name, None if it is that of a dataset or of nothing."""
    is_cube = text_of(name) not in snapshot.keys and name in snapshot.members and snapshot.is_cube(name)
    return snapshot.cube(name) if is_cube else None


def _only_table(dataset: Dataset) -> DatasetTable:
    if len(dataset.tables) != 1:
        raise UsageError(
            f"Dataset {dataset.uuid!r} has several tables: skipping indexes are for datasets of one.",
            code="unsupported-index",
        )
    return next(iter(dataset.tables.values()))


def _place(table: DatasetTable) -> Place:
    place = place_in(table.metadata, table.uuid)
    if place is None:
        raise not_indexed(f"Dataset {table.uuid!r} has no skipping indexes.")
    return place


def not_indexed(message: str) -> UsageError:
    """Return the error about what has no skipping indexes."""
    return UsageError(message, code="not-indexed", hint="CREATE SKIPPING INDEX ON t (MINMAX(column)) makes one.")


def _refresh(
    store: Store,
    table: DatasetTable,
    place: Place,
    existing: MetadataStore,
    specs: Sequence[IndexSpec],
    spark: Any = None,
) -> Refreshed:
    if not all(spec.kind.is_for_executors for spec in specs):
        spark = None
    layout = _layout(table, place.table, specs)
    prefix = f"{table.uuid}/{table.table}/"
    details = store.details(prefix)
    values = table.partitions
    columns = {k: found for k, (_, found) in _partitions(table).items() if k in layout.partitions}
    files = []
    for at, key in enumerate(table.files):
        if key in details:
            modified = details[key].milliseconds
            row = values.part_of_file[at]
            partition = {k: column[row] for k, column in columns.items()}
            files.append(DataFile(f"{place.table}/{key.removeprefix(prefix)}", modified, key, partition))
    return refresh(store, place.folder, files, layout, _sources(store, table.uuid, spark), existing)


def _layout(table: DatasetTable, name: str, specs: Sequence[IndexSpec]) -> IndexLayout:
    return layout_for(name, specs, _columns(table), {k: type_ for k, (type_, _) in _partitions(table).items()})


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


def _sources(store: Store, uuid: str, spark: Any) -> Collecting:
    if spark is None:
        return Sources(parquet_scan(store))
    from kartosql.write.spark.upkeep import SparkSources

    return SparkSources(spark, store, uuid)


def members(types: Mapping[str, pa.DataType]) -> Iterable[tuple[str, pa.DataType]]:
    """Yield columns and members of structs, by names as ``IndexSpec`` has them.

    Names that differ in case alone are left out: metadata cannot tell them apart.
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
    return {
        "indexes": indexes,
        "added": done.added,
        "removed": done.removed,
        "kept": done.kept,
        "unindexed": len(done.unindexed),
    }
