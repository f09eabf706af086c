"""Merging small files: each run of files of a partition becomes one, in which every cell is there once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from kartosql.errors import UsageError, missing_file, text_of
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube, CubeMember
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable
from kartosql.write import cubes, datasets
from kartosql.write.change import Change
from kartosql.write.document import check_writable
from kartosql.write.files import Written
from kartosql.write.merge import Merge, Run, write_merged
from kartosql.write.operation import Operation, report

TARGET_BYTES = 128_000_000
SMALL_BYTES = 8_000_000
WORKERS = 4


def compact(
    operation: Operation,
    table: Cube | str,
    names: str | Iterable[str] | None = None,
    *,
    target_bytes: int = TARGET_BYTES,
    min_files: int = 2,
) -> dict[str, Any]:
    """Merge the small files of a cube's datasets, or of one dataset; see Connection.compact."""
    for what, value, least in (("target_bytes", target_bytes, 1), ("min_files", min_files, 2)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{what}: {value!r} is no whole number of {least} or more.")
    if isinstance(table, Cube) or operation.snapshot.is_cube(text_of(table)):
        state = cubes.opened_cube(operation, table)
        members = cubes.chosen_members(state, names)
        return {name: _compact(operation, state.members[name], target_bytes, min_files) for name in members}
    dataset = datasets.find_dataset(operation, table)
    cube = datasets.cube_of(operation.snapshot, dataset.uuid)
    if cube is not None:
        return dict(compact(operation, cube[0], [cube[1]], target_bytes=target_bytes, min_files=min_files)[cube[1]])
    return _compact(operation, dataset, target_bytes, min_files)


def _compact(operation: Operation, what: CubeMember | Dataset, target_bytes: int, min_files: int) -> dict[str, Any]:
    uuid = what.table.uuid if isinstance(what, CubeMember) else what.uuid
    dataset = operation.snapshot.dataset(uuid)
    check_writable(dataset.document)
    member = what if isinstance(what, CubeMember) else None
    runs = [r for r in _runs(operation, dataset, member, target_bytes) if len(r.labels) >= min_files]
    # Made anew: a table with data-skipping metadata holds the store, which does not travel to executors.
    tables = {
        name: DatasetTable(t.uuid, t.table, t.schema, t.partition_keys, (), (), {}, {}, may_lack=t.may_lack)
        for name, t in dataset.tables.items()
    }
    name, join_key = (uuid, None) if member is None else (member.name, member.join_key)
    merger = _Merger(operation, Merge(name, tables, tuple(dataset.document.indices), join_key))
    try:
        merger.merge(runs)
    except BaseException:
        operation.discard(merger.written)
        raise
    if not merger.added:
        return {**report((), None), "skipped": merger.skipped}
    change = Change(
        uuid,
        operation.name,
        added=merger.added,
        removed=frozenset(label for labels in merger.replaced.values() for label in labels),
        pairs={column: pa.concat_tables(found) for column, found in merger.pairs.items()},
        positions={new: labels[-1] for new, labels in merger.replaced.items()},
    )
    done = operation.commit([change], merger.written)[uuid]
    return {**report(merger.written, done), "skipped": merger.skipped}


def _runs(operation: Operation, dataset: Dataset, member: CubeMember | None, target_bytes: int) -> list[Run]:
    """Return the runs of files that can take one place among the files of a dataset.

    Between files of a run is no file with the same values of the partition columns that
    distinguish cells: it could hold a newer version of one row, and an older one of another.
    """
    document = dataset.document
    sizes = operation.store.list_below(f"{dataset.uuid}/")
    groups: dict[str, Any] | None = None
    if member is not None:
        table, keys = member.table, member.table.partition_keys
        places = [i for i, name in enumerate(keys) if name in member.join_key]
        groups = {label: table.partitions.comparable(i, places) for i, label in enumerate(table.labels)}
    found: list[Run] = []
    last: dict[Any, Run] = {}
    for at, label in enumerate(document.labels or ()):
        given = {name: key for name, column in document.files.items() if (key := column[at]) is not None}
        lost = [key for key in given.values() if key not in sizes]
        if lost:
            raise missing_file(lost[0])
        is_plain = all(key.startswith(f"{dataset.uuid}/{name}/") for name, key in given.items())
        folders = {name: naming.folder_of(key, dataset.uuid, name) for name, key in given.items()}
        size = sum(sizes[key] or 0 for key in given.values())
        group = groups[label] if groups is not None else tuple(folders.items())
        run = last.get(group)
        if run is None or not is_plain or run.folders != folders or run.bytes + size > target_bytes:
            run = last[group] = Run(folders)
            found.append(run)
        if not is_plain:
            last.pop(group)
        run.labels.append(label)
        run.bytes += size
        for name, key in given.items():
            run.keys.setdefault(name, []).append(key)
    return found


class _Merger:
    """Writes the new files; what it has done so far can be read at any time."""

    def __init__(self, operation: Operation, how: Merge) -> None:
        self._operation = operation
        self._how = how
        self._lock = threading.Lock()
        self.written: list[Written] = []
        self.added: dict[str, dict[str, str]] = {}
        self.replaced: dict[str, list[str]] = {}
        self.pairs: dict[str, list[pa.Table]] = {}
        self.skipped = 0

    def merge(self, runs: Sequence[Run]) -> None:
        if self._operation.spark is not None and runs:
            from kartosql.write.spark.upkeep import merge_runs

            merged, pairs = merge_runs(self._operation, self._how, runs)
            self.pairs = {column: [found] for column, found in pairs.items()}
            for run, made in zip(runs, merged, strict=True):
                self._note(run, made)
            return
        # Large ones take the memory of the setting each.
        workers = WORKERS if max((r.bytes for r in runs), default=0) <= SMALL_BYTES else 1
        store, ordered, write = self._operation.store, self._operation.ordered, self._operation.write_table
        store.map(lambda run: self._note(run, write_merged(self._how, run, store, ordered, write)), runs, workers)

    def _note(self, run: Run, made: Mapping[str, Written] | None) -> None:
        if made is None:
            with self._lock:
                self.skipped += len(run.labels)
            return
        label = run.label_of(made)
        with self._lock:
            self.written += made.values()
            self.added[label] = {table: written.keys[0] for table, written in made.items()}
            self.replaced[label] = run.labels
            for written in made.values():
                for column, found in written.pairs.items():
                    labels = pa.array([label] * found.num_rows, pa.string())
                    self.pairs.setdefault(column, []).append(pa.table({"value": found["value"], "label": labels}))
