"""Copying cubes and datasets to other stores or other names, file by file."""

from __future__ import annotations

import contextlib
import hashlib
import uuid as uuids
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kartosql.errors import KartosqlError, UsageError, missing_file
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube, CubeState, invalid_cube
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable
from kartosql.formats.kartothek.naming import FOLLOWED, POINTER
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.store.keys import SIDE_FOLDER
from kartosql.write import cubes, files, indexing
from kartosql.write.change import Change, partition_keys_of
from kartosql.write.datasets import cube_of, find_uuid
from kartosql.write.document import is_there
from kartosql.write.files import Written, copy_file, footer
from kartosql.write.indexing import StoredIndex
from kartosql.write.layout import (
    Layout,
    check_folder,
    check_member_name,
    check_name,
    check_together,
    flags,
    wanted_indices,
)
from kartosql.write.operation import Operation, report

if TYPE_CHECKING:
    from kartosql.typing import WriteReport

_STATE = len("-0123456789abcdef.parquet")  # what names of copies end with


def copy_cube(
    source: Snapshot,
    cube: Cube | str,
    target: Operation,
    *,
    name: str | None = None,
    datasets: Iterable[str] | Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> dict[str, WriteReport]:
    """Copy a cube, or datasets of it to where it is already; see Connection.copy_cube."""
    state = cubes.find_cube(source, cube)
    prefix = check_member_name(state.cube.uuid_prefix if name is None else name)
    new_names = _new_names(state, datasets)
    moves = {
        new: _Move(source.dataset(state.members[old].table.uuid), f"{prefix}{naming.CUBE_SEPARATOR}{new}")
        for old, new in new_names.items()
    }
    _check_apart(source.store, target.store, list(moves.values()))
    cubes.begin(target, prefix)
    existing = set(target.snapshot.members.get(prefix, ()))
    is_whole = state.cube.seed_dataset in new_names
    others = sorted(existing - moves.keys()) if is_whole else []
    clash = sorted(existing & moves.keys())
    if (clash and not overwrite) or others:
        what = "already exists" if not others else "would stay beside the new ones"
        raise UsageError(
            f"Cube {prefix!r}: the dataset {(others or clash)[0]!r} {what} in the target.",
            code="dataset-exists",
            hint="Choose another name."
            if others
            else "Replace it with overwrite=True or --overwrite, or rename the copy.",
        )
    if is_whole:
        seed = moves[new_names[state.cube.seed_dataset]].uuid
    else:
        like = Cube(prefix, state.cube.dimension_columns, state.cube.partition_columns)
        there = _joined(target, like, moves)
        seed = there.uuid(there.seed_dataset)
        for new, move in moves.items():
            move.flags = flags(there, new)
    done = _copy(source.store, target, list(moves.values()), {moves[new].uuid for new in clash}, seed)
    return {new: done[move.uuid] for new, move in moves.items()}


def copy_dataset(
    source: Snapshot, dataset: str, target: Operation, *, name: str | None = None, overwrite: bool = False
) -> WriteReport:
    """Copy a dataset to another store or name; see Connection.copy_dataset."""
    found = source.dataset(find_uuid(source, dataset))
    move = _Move(found, check_name(found.uuid if name is None else name))
    _check_apart(source.store, target.store, [move])
    exists = bool(target.existing([move.uuid]))
    if exists and not overwrite:
        raise UsageError(
            f"The dataset {move.uuid!r} already exists in the target.",
            code="dataset-exists",
            hint="Replace it with overwrite=True or --overwrite, or rename the copy.",
        )
    if not exists:
        check_folder(target.store, move.uuid, found.tables)
    there = cube_of(target.snapshot, move.uuid)
    if there is not None:
        prefix, member = there
        # Also of a copy that stands alone in the source.
        dimensions, keys = (
            found.document.metadata.get(f"ktk_cube_{what}_columns") for what in ("dimension", "partition")
        )
        if not dimensions or not keys:
            raise invalid_cube(
                f"{move.uuid!r} would be a dataset of the cube {prefix!r} in the target.", "Choose another name."
            )
        cubes.begin(target, prefix)
        cube = _joined(target, Cube(prefix, dimensions, keys), {member: move})
        move.flags = flags(cube, member)
    return _copy(source.store, target, [move], {move.uuid} if exists else set(), move.uuid)[move.uuid]


def _copy(
    source: Store, target: Operation, moves: Sequence[_Move], replaced: Collection[str], seed: str
) -> dict[str, WriteReport]:
    """Copy files and make the datasets visible at once; ``seed`` is the uuid of the one that commits come by."""
    written: dict[str, list[Written]] = {}
    plans = [move.plan(source, target.spark) for move in moves]
    try:
        for move, plan in zip(moves, plans, strict=True):
            written[move.uuid] = move.write(source, target.store, plan, target.spark)
    except BaseException:
        target.discard(w for some in [*written.values(), *plans] for w in some)
        raise
    changes = [move.change(target, written[move.uuid], replaces=move.uuid in replaced) for move in moves]
    # The seed comes last, as in a build.
    changes.sort(key=lambda change: change.uuid == seed)
    done = target.commit(changes, [w for found in written.values() for w in found], seed)
    return {uuid: report(found, done[uuid]) for uuid, found in written.items()}


def _new_names(state: CubeState, datasets: Iterable[str] | Mapping[str, str] | None) -> dict[str, str]:
    if isinstance(datasets, Mapping):
        names = {old: check_member_name(new) for old, new in datasets.items()}
        cubes.chosen_members(state, names)
    else:
        names = {name: name for name in cubes.chosen_members(state, datasets)}
    if not names:
        raise UsageError("datasets: at least one is needed.")
    if len(set(names.values())) < len(names):
        raise UsageError(f"datasets: two of {', '.join(names)} would get the same name.")
    return names


def _joined(target: Operation, like: Cube, moves: Mapping[str, _Move]) -> Cube:
    """Return the cube of the target that datasets of a cube like it join; raises why they do not go together."""
    prefix = like.uuid_prefix
    if not target.snapshot.is_cube(prefix):
        raise invalid_cube(
            f"Cube {prefix!r}: without its seed a copy is no cube, and the target has none that it could join."
        )
    there = target.snapshot.cube(prefix).cube
    if there.seed_dataset in moves:
        raise invalid_cube(
            f"Cube {prefix!r}: its seed {there.seed_dataset!r} cannot be replaced by another dataset.",
            "Copy the cube as a whole.",
        )
    same = Cube(prefix, like.dimension_columns, like.partition_columns, there.seed_dataset)
    kept = {n: m.table.schema for n, m in cubes.find_cube(target.snapshot, same).members.items() if n not in moves}
    check_together(there, {**kept, **{new: move.tables[0].schema for new, move in moves.items()}})
    for new, move in moves.items():
        table = move.tables[0]
        lost = set(wanted_indices(there, new, table.schema.names, table.partition_keys)) - table.indices.keys()
        if lost:
            raise invalid_cube(
                f"Cube {prefix!r}, dataset {new!r}: {min(lost)!r} has no index, which the cube of the target asks for.",
                "Create it before the copy.",
            )
    return there


def _check_apart(source: Store, target: Store, moves: list[_Move]) -> None:
    """Raise ``invalid-argument`` if a dataset would be copied onto one that is read."""
    if {m.uuid for m in moves}.isdisjoint(m.dataset.uuid for m in moves):
        return
    # Two addresses may lead to the same place; only a look tells.
    probe = f"{moves[0].uuid}/{SIDE_FOLDER}/kartosql-copy-{uuids.uuid4().hex}"
    target.put(probe, b"x")
    try:
        if not is_there(source, probe):
            return
    finally:
        target.delete([probe])
    raise UsageError("The cube would be copied onto itself.", hint="Pass another name, or another target.")


def _state(store: Store, key: str) -> str:
    """Return what ends the name of a copy: a number of the file and of its content at this time."""
    try:
        seen = store.stamp(key) or sorted(store.info(key).items())
    except KeyError:
        raise missing_file(key) from None
    return f"-{hashlib.blake2b(repr((store.path(key), seen)).encode(errors='replace'), digest_size=8).hexdigest()}"


def _take(source: Store, target: Store, there: Mapping[str, str], keys: tuple[str, str]) -> None:
    """Copy the first of two keys to the second, from the target itself where an earlier copy left it there."""
    _, new = keys
    # Under another name, as whoever made it may still be at work, or a cleanup may take it.
    known = there.get(new[-_STATE:])
    if known is not None:
        with contextlib.suppress(KartosqlError, KeyError):
            target.duplicate(known, new)
            footer(target, new)
            return
        target.delete([new])
    copy_file(source, target, keys)


@dataclass
class _Move:
    """One dataset on its way to another place or name; ``flags`` are metadata by which it belongs to a cube there."""

    dataset: Dataset
    uuid: str
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> list[DatasetTable]:
        return list(self.dataset.tables.values())

    def plan(self, source: Store, spark: Any) -> list[Written]:
        """Return the files of each table under their new names, none of which need exist yet."""
        found = []
        for table in self.tables:
            ids: dict[str, str] = {}
            # Names of their own, so that two copies at the same time do not write the same files. Files that
            # shared an id share one again: it tells that they hold different cells.
            names = []
            states = source.map(partial(_state, source), table.files) if spark is None else [""] * len(table.files)
            for key, state in zip(table.files, states, strict=True):
                write = ids.setdefault(naming.write_id(key) or uuids.uuid4().hex, uuids.uuid4().hex)
                names.append("/".join(filter(None, [naming.folder_of(key, table.uuid, table.table), write + state])))
            layout = Layout(self.uuid, self.uuid, table.partition_keys, table=table.table)
            found.append(Written(layout, table.schema, table.labels, tuple(map(layout.file_key, names)), {}, 0, 0))
        return found

    def write(self, source: Store, target: Store, plan: Sequence[Written], spark: Any = None) -> list[Written]:
        """Copy the files, as work for the executors of ``spark`` if given, and return what was written."""
        found = []
        there = {} if spark is not None else {key[-_STATE:]: key for key in target.list_below(f"{self.uuid}/")}
        for table, planned in zip(self.tables, plan, strict=True):
            moves = list(zip(table.files, planned.keys, strict=True))
            if spark is not None:
                from kartosql.write.spark.upkeep import copy_all

                # The name of a file is what its attempt makes of the id of the write.
                ids = [f"{new.rpartition('/')[0]}/{naming.write_id(new)}" for new in planned.keys]
                keys, rows, size = copy_all(spark, source, target, list(zip(table.files, ids, strict=True)), self.uuid)
                found.append(replace(planned, keys=tuple(keys), rows=rows, bytes=size))
                continue
            for at in range(0, len(moves), 1000):
                list(target.map(partial(_take, source, target, there), moves[at : at + 1000]))
            target.sync(planned.keys)
            sizes = list(target.map(partial(footer, target), planned.keys))
            found.append(replace(planned, rows=sum(rows for rows, _ in sizes), bytes=sum(size for _, size in sizes)))
        pairs = {column: self._pairs(source, column) for column in self.dataset.document.indices}
        return [replace(found[0], pairs={c: p for c, p in pairs.items() if p is not None}), *found[1:]]

    def _pairs(self, source: Store, column: str) -> pa.Table | None:
        for table in self.tables:
            index = table.indices.get(column)
            if index is not None and index.key is not None:
                return indexing.flat(StoredIndex(source, index.key, column).read(), column, index.type)
        tables = [t for t in self.tables if column in t.indices and column in t.schema.names]
        pairs = [files.pairs_of_files(source, table, table.labels, column) for table in tables]
        return pa.concat_tables(pairs) if pairs else None

    def change(self, target: Operation, written: Sequence[Written], *, replaces: bool) -> Change:
        """Return the change that makes the new dataset."""
        added: dict[str, dict[str, str]] = {}
        for one in written:
            for label, entry in one.added.items():
                added.setdefault(label, {}).update(entry)
        return Change(
            uuid=self.uuid,
            operation=target.name,
            added=added,
            pairs=written[0].pairs,
            schemas={w.layout.table: w.schema for w in written},
            partition_keys=self.tables[0].partition_keys or partition_keys_of(self.dataset.document),
            metadata={
                k: v
                for k, v in {**self.dataset.document.metadata, **self.flags}.items()
                if k != POINTER and not k.startswith(FOLLOWED)
            },
            create=not replaces,
            replace_all=replaces,
            format="json" if self.dataset.document.key.endswith(naming.METADATA_JSON) else "msgpack",
        )
