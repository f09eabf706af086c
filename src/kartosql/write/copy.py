"""Copying cubes to other stores or other names, file by file."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from kartosql.errors import UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube, CubeState
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable
from kartosql.formats.kartothek.places import POINTER
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER
from kartosql.write import cubes, indexing
from kartosql.write.change import Change, partition_keys_of
from kartosql.write.copy_files import copy_file
from kartosql.write.deltas import read_index
from kartosql.write.files import file_key
from kartosql.write.layout import Layout, columns_of
from kartosql.write.members import check_member_name
from kartosql.write.operation import Operation, report
from kartosql.write.rows import Written
from kartosql.write.stats import footer


def copy_cube(
    source: Snapshot,
    cube: Cube | str,
    target: Operation,
    *,
    name: str | None = None,
    datasets: Iterable[str] | Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> dict[str, dict[str, Any]]:
    """Copy a cube to another store or name; see Connection.copy_cube."""
    state = cubes.find_cube(source, cube)
    prefix = check_member_name(state.cube.uuid_prefix if name is None else name)
    new_names = _new_names(state, datasets)
    moves = [_Move(source.dataset(state.members[old].table.uuid), new, prefix) for old, new in new_names.items()]
    _check_apart(source.store, target.store, moves)
    target.begin_at([m.uuid for m in moves])
    existing = target.snapshot.members.get(prefix, [])
    clash = sorted(set(existing) & set(new_names.values()))
    others = sorted(set(existing) - set(new_names.values()))
    if (clash and not overwrite) or others:
        what = "already exists" if not others else "would stay beside the new ones"
        raise UsageError(
            f"Cube {prefix!r}: the dataset {(others or clash)[0]!r} {what} in the target.",
            code="dataset-exists",
            hint="Choose another name." if others else "Pass overwrite=True to replace it, or choose another name.",
        )
    written: list[Written] = []
    try:
        for move in moves:
            written.append(move.write(source.store, target.store, target.spark))
    except BaseException:
        target.discard([*written, *(m.begun for m in moves)])
        raise
    changes = [m.change(target, w, replaces=m.name in clash) for m, w in zip(moves, written, strict=True)]
    seed = f"{prefix}{naming.CUBE_SEPARATOR}{new_names[state.cube.seed_dataset]}"
    # The seed comes last, as in a build.
    changes.sort(key=lambda change: change.uuid == seed)
    done = target.commit(changes, written, seed)
    return {m.name: report(w, done[m.uuid]) for m, w in zip(moves, written, strict=True)}


def _new_names(state: CubeState, datasets: Iterable[str] | Mapping[str, str] | None) -> dict[str, str]:
    """Return the new name of each dataset to be copied."""
    if isinstance(datasets, Mapping):
        names = {old: check_member_name(new) for old, new in datasets.items()}
    else:
        names = {n: n for n in (state.members if datasets is None else columns_of(datasets, "datasets"))}
    for old in names:
        if old not in state.members:
            raise UsageError(
                f"Cube {state.cube.uuid_prefix!r} has no dataset {old!r}.",
                code="unknown-dataset",
                hint=f"Datasets: {', '.join(state.members)}.",
            )
    if len(set(names.values())) < len(names):
        raise UsageError(f"datasets: two of {', '.join(names)} would get the same name.")
    if state.cube.seed_dataset not in names:
        raise UsageError(
            f"Cube {state.cube.uuid_prefix!r}: without its seed {state.cube.seed_dataset!r} a copy is no cube.",
            code="invalid-cube",
        )
    return names


def _check_apart(source: Store, target: Store, moves: list[_Move]) -> None:
    """Raise ``invalid-argument`` if a dataset would be copied onto one that is read."""
    if {m.uuid for m in moves}.isdisjoint(m.dataset.uuid for m in moves):
        return
    # Two addresses may lead to the same place; only a look tells.
    probe = f"{moves[0].uuid}/{SIDE_FOLDER}/kartosql-copy-{uuids.uuid4().hex}"
    target.put(probe, b"x")
    try:
        source.size(probe)
    except KeyError:
        return
    finally:
        target.delete([probe])
    raise UsageError("The cube would be copied onto itself.", hint="Pass another name, or another target.")


@dataclass
class _Move:
    """One dataset on its way to another name."""

    dataset: Dataset
    name: str
    prefix: str

    def __post_init__(self) -> None:
        ids: dict[str, str] = {}
        # Names of their own, so that two copies at the same time do not write the same files. Files that
        # shared an id share one again: it tells that they hold different cells.
        keys = [file_key(self.uuid, "/".join(filter(None, self._name_of(key, ids)))) for key in self.table.files]
        layout = Layout(self.uuid, self.name, self.table.partition_keys)
        self.begun = Written(layout, self.table.table, self.table.schema, self.table.labels, tuple(keys), {}, 0, 0)

    @property
    def uuid(self) -> str:
        """The new uuid."""
        return f"{self.prefix}{naming.CUBE_SEPARATOR}{self.name}"

    @property
    def table(self) -> DatasetTable:
        """The only table of the dataset, as it is part of a cube."""
        return self.dataset.tables[naming.DEFAULT_TABLE]

    def _name_of(self, key: str, ids: dict[str, str]) -> tuple[str, str]:
        write = naming.write_id(key)
        folder = naming.folder_of(key, self.table.uuid, self.table.table)
        if write is None:
            return folder, uuids.uuid4().hex
        new = ids.setdefault(write, uuids.uuid4().hex)
        return folder, new if key.endswith(f"/{write}.parquet") else naming.file_id(new)

    def write(self, source: Store, target: Store, spark: Any = None) -> Written:
        """Copy the files, as work for the executors of ``spark`` if given, and return what was written."""
        pairs = {column: self._pairs(source, column) for column in self.dataset.document.indices}
        pairs = {column: found for column, found in pairs.items() if found is not None}
        moves = list(zip(self.table.files, self.begun.keys, strict=True))
        if spark is not None:
            from kartosql.write.spark.upkeep import copy_all

            # The name of a file is what its attempt makes of the id of the write.
            ids = [f"{new.rpartition('/')[0]}/{naming.write_id(new)}" for new in self.begun.keys]
            keys, rows, size = copy_all(spark, source, target, list(zip(self.table.files, ids, strict=True)), self.uuid)
            return replace(self.begun, keys=tuple(keys), pairs=pairs, rows=rows, bytes=size)
        for at in range(0, len(moves), 1000):
            list(target.map(partial(copy_file, source, target), moves[at : at + 1000]))
        target.sync(self.begun.keys)
        found = list(target.map(partial(footer, target), self.begun.keys))
        return replace(
            self.begun, pairs=pairs, rows=sum(rows for rows, _ in found), bytes=sum(size for _, size in found)
        )

    def _pairs(self, source: Store, column: str) -> pa.Table | None:
        index = self.table.indices.get(column)
        if index is None:
            return None
        if index.key is None:
            return indexing.pairs_of_files(source, self.table, self.table.labels, column)
        return indexing.flat(read_index(source, index.key, column), column, index.type)

    def change(self, target: Operation, written: Written, *, replaces: bool) -> Change:
        """Return the change that makes the new dataset."""
        return Change(
            uuid=self.uuid,
            operation=target.name,
            added=cubes.added(written),
            pairs=written.pairs,
            schemas={written.table: self.table.schema},
            partition_keys=self.table.partition_keys or partition_keys_of(self.dataset.document),
            metadata={k: v for k, v in self.dataset.document.metadata.items() if k != POINTER},
            create=not replaces,
            replace_all=replaces,
            format="json" if self.dataset.document.key.endswith(naming.METADATA_JSON) else "msgpack",
        )
