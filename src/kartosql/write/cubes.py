"""Building, extending, changing and deleting cubes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube, CubeState, invalid_cube, is_seed
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.kartothek.snapshot import Absent, Snapshot, unknown_cube
from kartosql.write.change import Change, Select, common_schema, evolved, widen
from kartosql.write.inputs import Rows, open_rows
from kartosql.write.layout import (
    Layout,
    appended_layout,
    check_member_name,
    check_together,
    columns_of,
    flags,
    member_layout,
    options_of,
    wanted_indices,
)
from kartosql.write.operation import Operation, report
from kartosql.write.removal import Removal, delete_datasets, same_partitions

if TYPE_CHECKING:
    from kartosql.typing import WriteReport

PartitionOn = Mapping[str, str | Iterable[str]] | None
Metadata = Mapping[str, Mapping[str, Any]] | None


# -- new datasets ------------------------------------------------------------------------------


def build_cube(
    operation: Operation,
    cube: Cube,
    data: Any,
    *,
    metadata: Metadata = None,
    overwrite: bool = False,
    partition_on: PartitionOn = None,
) -> dict[str, WriteReport]:
    """Write the datasets of a new cube; see Connection.build_cube."""
    if not isinstance(cube, Cube):
        raise UsageError(f"{cube!r} is no Cube; a new cube has to be specified.", hint="kartosql.Cube(name, ...)")
    given = by_dataset(data, cube.seed_dataset)
    if cube.seed_dataset not in given:
        raise invalid_cube(
            f"Cube {cube.uuid_prefix!r}: the data lack the seed dataset {cube.seed_dataset!r}.",
            f"Datasets given: {', '.join(given) or 'none'}.",
        )
    existing = set(begin(operation, cube))
    clash = sorted(existing & set(given))
    if clash and not overwrite:
        raise _exists(cube, clash[0], "Pass overwrite=True to replace the cube, or choose another prefix.")
    others = sorted(existing - set(given))
    if others:
        raise UsageError(
            f"Cube {cube.uuid_prefix!r}: the existing dataset {others[0]!r} would stay beside the new ones.",
            code="dataset-exists",
            hint="A cube is built as a whole: give all of its datasets, or choose another prefix.",
        )
    return _write_new(operation, cube, given, {}, existing, metadata, partition_on)


def extend_cube(
    operation: Operation,
    cube: Cube | str,
    data: Any,
    *,
    metadata: Metadata = None,
    overwrite: bool = False,
    partition_on: PartitionOn = None,
) -> dict[str, WriteReport]:
    """Add datasets to a cube; see Connection.extend_cube."""
    known = begin(operation, cube)
    state = find_cube(operation.snapshot, cube)
    cube = state.cube
    given = by_dataset(data, None)
    if not given:
        raise UsageError(f"Cube {cube.uuid_prefix!r}: there are no data to extend it by.")
    if cube.seed_dataset in given:
        raise invalid_cube(
            f"Cube {cube.uuid_prefix!r}: the seed {cube.seed_dataset!r} cannot be an extension.",
            "Append to it, or build the cube anew with overwrite=True.",
        )
    existing = set(known) & set(given)
    if existing and not overwrite:
        raise _exists(cube, min(existing), "Append to it, or replace it: overwrite=True, in SQL DROP DATASET first.")
    kept = {name: m.table.schema for name, m in state.members.items() if name not in given}
    kept = {name: kept[name] for name in sorted(kept, key=lambda n: n != cube.seed_dataset)}
    return _write_new(operation, cube, given, kept, existing, metadata, partition_on)


def _write_new(
    operation: Operation,
    cube: Cube,
    given: Mapping[str, list[Any]],
    kept: Mapping[str, pa.Schema],
    existing: Collection[str],
    metadata: Metadata,
    partition_on: PartitionOn,
) -> dict[str, WriteReport]:
    """Write whole datasets beside those that are ``kept``, in place of the ``existing`` ones."""
    keys_of = options_of(partition_on, "partition_on", given)
    metadata_of = options_of(metadata, "metadata", given)
    # The seed comes last: it is the largest as a rule, and others fail sooner.
    order = sorted(given, key=lambda name: (name == cube.seed_dataset, name))
    rows = {name: open_rows(given[name], name) for name in order}
    layouts = {}
    for name in order:
        keys = columns_of(keys_of.get(name, cube.partition_columns), f"partition_on of {name!r}")
        layouts[name] = member_layout(cube, name, rows[name].schema, keys, metadata_of.get(name, {}))
    seed_first = sorted(order, key=lambda name: name != cube.seed_dataset)
    check_together(cube, {**kept, **{name: rows[name].schema for name in seed_first}})
    written = operation.write(rows, layouts)
    changes = [
        operation.adding([written[name]], create=name not in existing, replace_all=name in existing) for name in order
    ]
    done = operation.commit(changes, written.values(), cube.uuid(cube.seed_dataset))
    return {name: report([written[name]], done[cube.uuid(name)]) for name in given}


# -- changes -----------------------------------------------------------------------------------


def update_cube(
    operation: Operation,
    cube: Cube | str,
    data: Any,
    *,
    removal: Removal | None = None,
    datasets: str | Iterable[str] | None = None,
    metadata: Metadata = None,
) -> dict[str, WriteReport]:
    """Remove partitions and append rows in one commit; see Connection.update_cube."""
    state = opened_cube(operation, cube)
    given = by_dataset(data, state.cube.seed_dataset)
    named = None if datasets is None else columns_of(datasets, "datasets")
    targets = tuple(dict.fromkeys([*given, *(named or ())]))
    if not targets or (removal is None and not given):
        raise UsageError(f"Cube {state.cube.uuid_prefix!r}: there are no data to append to it.")
    removals = {}
    if removal is not None:
        removals = _selected(state, removal, targets if named is None else named, is_named=named is not None)
    return change_members(operation, state, given, removals, targets, metadata)


def remove_partitions(
    operation: Operation, cube: Cube | str, removal: Removal, datasets: str | Iterable[str] | None = None
) -> dict[str, WriteReport]:
    """Remove partitions from datasets of a cube; see Connection.remove_partitions."""
    state = opened_cube(operation, cube)
    targets = chosen_members(state, datasets)
    removals = _selected(state, removal, targets, is_named=datasets is not None)
    return change_members(operation, state, {}, removals, targets, None)


def _selected(state: CubeState, removal: Removal, names: Iterable[str], *, is_named: bool) -> dict[str, Select]:
    found = {name: removal.of(_member(state, name).partition_keys, named=is_named) for name in names}
    return {name: select for name, select in found.items() if select is not None}


def change_members(
    operation: Operation,
    state: CubeState,
    given: Mapping[str, list[Any]],
    removals: Mapping[str, Select],
    targets: Collection[str],
    metadata: Metadata,
    *,
    replace_partitions: bool = False,
    convert: bool = False,
    evolve: bool = False,
    places: Mapping[str, str] | None = None,
) -> dict[str, WriteReport]:
    """Append the ``given`` rows to datasets of a cube and remove partitions, all in one commit.

    With ``replace_partitions`` those are removed that rows are appended to. Values of other types than the columns
    have are refused, as the original does, unless they are to ``convert``; so are other columns, unless the datasets
    are to ``evolve``. What takes the place of a label, as rows of its file change, may have no rows; ``places`` are
    these labels by dataset.
    """
    cube = state.cube
    tables = {name: _member(state, name) for name in targets}
    metadata_of = options_of(metadata, "metadata", tables)
    rows: dict[str, Rows] = {}
    layouts: dict[str, Layout] = {}
    for name in given:
        schema, keys = tables[name].schema, tables[name].partition_keys
        rows[name] = open_rows(given[name], name)
        if evolve:
            schema = evolved(schema, rows[name].schema, keys)
            check_new_columns(state, name, set(schema.names).difference(tables[name].schema.names))
        rows[name] = rows[name].typed(schema, convert=convert)
        if evolve:
            rows[name] = rows[name].filled(schema)
        columns = rows[name].schema.names
        widen(schema, common_schema(rows[name].schema, keys))
        indexed = operation.snapshot.dataset(tables[name].uuid).document.indices
        for column in wanted_indices(cube, name, schema.names, keys):
            if column not in indexed:
                raise invalid_cube(
                    f"Cube {cube.uuid_prefix!r}, dataset {name!r}: {column!r} has no index, which the cube asks for.",
                    f"con.create_index('{cube.uuid_prefix}.{name}', {column!r})",
                )
        there = [column for column in indexed if column in columns and column not in keys]
        layouts[name] = appended_layout(cube, name, columns, keys, there, metadata_of.get(name, {}))
    written = operation.write(rows, layouts, may_be_empty=bool(places))
    changes = []
    for name in targets:
        if name in written or name in removals:
            removed = removals.get(name)
            if replace_partitions:
                removed = same_partitions(written[name].keys, written[name].layout.table)
            if name in written:
                changes.append(
                    operation.adding([written[name]], (places or {}).get(name), removed=removed, evolve=evolve)
                )
            else:
                changes.append(Change(cube.uuid(name), operation.name, metadata=flags(cube, name), removed=removed))
    done = operation.commit(changes, written.values(), cube.uuid(cube.seed_dataset)) if changes else {}
    return {name: report([written[name]] if name in written else (), done.get(cube.uuid(name))) for name in targets}


def check_new_columns(state: CubeState, name: str, new: Collection[str]) -> None:
    """Raise ``invalid-cube`` for new columns of a dataset that another one has, or that would distinguish its cells."""
    cube = state.cube
    known = dict.fromkeys([*cube.dimension_columns, *cube.partition_columns], cube.seed_dataset)
    known |= {c: other for other, m in state.members.items() if other != name for c in m.table.schema.names}
    for column in sorted(new):
        if column in known:
            raise invalid_cube(
                f"Cube {cube.uuid_prefix!r}, dataset {name!r}: {column!r} cannot be added, as it is a column of "
                f"{known[column]!r}.",
                "A column belongs to one dataset of a cube; rename it.",
            )


# -- deletion ----------------------------------------------------------------------------------


def delete_cube(
    operation: Operation, cube: Cube | str, datasets: str | Iterable[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Delete datasets of a cube; see Connection.delete_cube."""
    prefix = cube.uuid_prefix if isinstance(cube, Cube) else cube
    known = begin(operation, cube)
    if not known:
        raise unknown_cube(prefix)
    names = tuple(known) if datasets is None else columns_of(datasets, "datasets")
    for name in names:
        if name not in known:
            raise _unknown_dataset(prefix, name, known)
    documents = operation.snapshot.documents([_uuid(prefix, n) for n in known])
    seeds = [u for u, d in documents.items() if isinstance(d, DatasetDocument) and is_seed(d.metadata)]
    # By the seed changes of several datasets are committed.
    done = delete_datasets(operation, [_uuid(prefix, n) for n in names], seeds[0] if seeds else min(documents))
    return {name: done[_uuid(prefix, name)] for name in names}


def _uuid(prefix: str, name: str) -> str:
    return f"{prefix}{naming.CUBE_SEPARATOR}{name}"


# -- what there is -------------------------------------------------------------------------------


def begin(operation: Operation, cube: Cube | str) -> list[str]:
    """Note how far the datasets of a cube are, before anything is concluded from them, and return their names."""
    prefix = cube.uuid_prefix if isinstance(cube, Cube) else cube
    names = operation.snapshot.members.get(prefix, ()) if isinstance(prefix, str) else ()
    there = operation.existing([_uuid(prefix, name) for name in names])
    return [name for name in names if _uuid(prefix, name) in there]


def opened_cube(operation: Operation, cube: Cube | str) -> CubeState:
    """Note how far the datasets of a cube are, and return its state; raises as ``find_cube`` does."""
    begin(operation, cube)
    return find_cube(operation.snapshot, cube)


def is_cube_alone(snapshot: Snapshot, name: str) -> bool:
    """Return whether a name is that of a cube, and not of a dataset as well."""
    return name not in snapshot.keys and name in snapshot.members and snapshot.is_cube(name)


def find_cube(snapshot: Snapshot, cube: Cube | str) -> CubeState:
    """Return a cube  in the store; ``cube`` is its name or what it should be.

    Raises ``unknown-table``, ``invalid-argument`` and ``invalid-cube``.
    """
    if not isinstance(cube, Cube):
        return snapshot.find_cube(cube)
    seed = cube.uuid(cube.seed_dataset)
    if seed not in snapshot.keys:
        raise unknown_cube(cube.uuid_prefix, f"There is no seed dataset {seed!r}.")
    if isinstance(snapshot.documents([seed])[seed], Absent):
        raise unknown_cube(cube.uuid_prefix)
    state = snapshot.cube_of_spec(cube)
    metadata = snapshot.dataset(seed).document.metadata
    if metadata.get("ktk_cube_is_seed", True) is not True:
        raise invalid_cube(f"The dataset {cube.seed_dataset!r} of cube {cube.uuid_prefix!r} is not its seed.")
    # A Cube that differs would be written into the metadata, and change what the rows there mean.
    for what, given in (("dimension", cube.dimension_columns), ("partition", cube.partition_columns)):
        stored = metadata.get(f"ktk_cube_{what}_columns")
        if isinstance(stored, list) and set(map(str, stored)) != set(given):
            raise invalid_cube(
                f"Cube {cube.uuid_prefix!r} was built with the {what} columns {', '.join(map(str, stored))}, "
                f"not {', '.join(given)}."
            )
    return state


def chosen_members(state: CubeState, names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return the datasets of a cube that are meant, all of them by None; raises ``unknown-dataset``."""
    found = tuple(state.members) if names is None else columns_of(names, "datasets")
    for name in found:
        _member(state, name)
    return found


def _member(state: CubeState, name: str) -> DatasetTable:
    if name not in state.members:
        raise _unknown_dataset(state.cube.uuid_prefix, name, state.members)
    return state.members[name].table


def _unknown_dataset(prefix: str, name: str, known: Iterable[str]) -> UsageError:
    return UsageError(
        f"Cube {prefix!r} has no dataset {name!r}.", code="unknown-dataset", hint=f"Datasets: {', '.join(known)}."
    )


def _exists(cube: Cube, name: str, hint: str) -> UsageError:
    return UsageError(
        f"Cube {cube.uuid_prefix!r}: the dataset {name!r} already exists.", code="dataset-exists", hint=hint
    )


def by_dataset(data: Any, seed: str | None) -> dict[str, list[Any]]:
    """Return the parts of the data of each dataset.

    ``data`` maps names to Arrow data, or is a list of such maps; anything else are data of the
    ``seed``, where there may be some. Entries that are None are left out.
    """
    found: dict[str, list[Any]] = {}
    several = isinstance(data, (list, tuple)) and any(isinstance(item, Mapping) for item in data)
    for part in data if several else [data]:
        if part is None:
            continue
        if not isinstance(part, Mapping):
            if seed is None:
                raise UsageError("The data have to say which dataset they are.", hint="Pass {name: data}.")
            part = {seed: part}
        for name, frame in part.items():
            check_member_name(name)
            if frame is not None:
                found.setdefault(name, []).append(frame)
    return found
