"""The half of a connection that keeps cubes and datasets in order: cleaning up, compacting, checking, copying."""

from __future__ import annotations

import datetime as dt
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kartosql.errors import KartosqlError, KartosqlWarning, UsageError, text_of
from kartosql.failures import tells_failures
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.writing import Report, Tell, Writing, spark_session

if TYPE_CHECKING:
    from kartosql.formats.xskipper import IndexSpec
    from kartosql.sources.indexing import FolderIndexes
    from kartosql.write.check import Finding
    from kartosql.write.operation import Operation


@tells_failures
class Upkeep(Writing):
    """What a connection does for the sake of what stands in the store, not of its rows.

    The calls raise ``read-only`` on a connection that may not write, except for those that only
    look.
    """

    if TYPE_CHECKING:  # another part of a connection

        def _indexes_of_folder(self, name: str, spark: Any = None) -> FolderIndexes | None: ...

    def cleanup_cube(self, cube: Cube | str, *, dry_run: bool = False) -> Report:
        """Remove files below the datasets of a cube that belong to nothing, and tell which per dataset.

        A file is marked when it is seen first, and removed by a run that comes ``grace_period``
        later: ``marked`` files wait, ``removed`` ones are gone, ``files`` lists both, and
        ``bytes`` is the size of all. What crashed changes of several datasets left is carried
        out or taken back. A ``dry_run`` changes nothing. Raises ``unknown-table``, and what is
        wrong with a dataset whose metadata cannot be read, after the other datasets are done.
        """
        from kartosql.write import garbage
        from kartosql.write.skipping import drop_forgotten

        uuids = garbage.members_of(self._store_to_keep(dry_run), _prefix(cube))
        found = garbage.collect(self.store, uuids.values(), self._grace, dry_run=dry_run)
        if not dry_run:
            drop_forgotten(self.store, f"{_prefix(cube)}{naming.CUBE_SEPARATOR}")
        return {name: garbage.summary(g for g in found if g.uuid == uuid) for name, uuid in uuids.items()}

    def garbage_collect(self, uuid: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Remove files below one dataset that belong to nothing, as ``cleanup_cube`` does for a cube."""
        from kartosql.write import garbage

        uuid = garbage.dataset_of(self._store_to_keep(dry_run), uuid)
        return garbage.summary(garbage.collect(self.store, [uuid], self._grace, dry_run=dry_run))

    def compact(
        self,
        cube: Cube | str,
        datasets: str | Iterable[str] | None = None,
        *,
        target_bytes: int = 128_000_000,
        min_files: int = 2,
        progress: Tell | None = None,
        spark: Any = None,
    ) -> dict[str, Any]:
        """Merge small files of each partition into one of up to ``target_bytes``, and tell what came of it.

        Of rows of one cell the last version stays, as queries see it; rows of plain datasets stay
        all. Runs of less than ``min_files`` files are left alone, and so are ``skipped`` files
        that hold a cell twice. ``cube`` is a cube, of which ``datasets`` may name some, or the
        name of a dataset; the answer is by dataset for a cube. Each dataset is one commit. ``spark``
        is a session whose executors do the work, or True, as for ``create_index``. Raises
        ``unknown-table``, ``unknown-dataset``, ``concurrent-commit`` where merged files were
        removed meanwhile, ``missing-file`` and ``corrupt-file``.
        """
        from kartosql.write.compact import compact

        operation = self._operation("compact", progress, spark=spark)
        return compact(operation, cube, datasets, target_bytes=target_bytes, min_files=min_files)

    def copy_cube(
        self,
        cube: Cube | str,
        target: str | os.PathLike[str] | Store | Upkeep,
        *,
        name: str | None = None,
        datasets: Iterable[str] | Mapping[str, str] | None = None,
        overwrite: bool = False,
        spark: Any = None,
    ) -> Report:
        """Copy a cube to another store, or under another name, and tell what was written per new dataset.

        ``target`` is the URL of a store, a connection or a Store; a local folder is made if need
        be. ``name`` is the new prefix, ``datasets`` says which datasets are copied, and maps them
        to their new names if it is a dictionary. Without the seed they join the cube that the target
        has, of the same dimension and partition columns. All datasets become visible at once; metadata
        and indices are copied as well. ``spark`` is as for ``compact``; the executors have to reach
        both stores. Raises ``dataset-exists`` for what stands under the new names without
        ``overwrite``, ``unknown-table``, ``unknown-dataset``, ``invalid-cube`` where there is no seed, or the cubes
        differ, ``invalid-data`` for columns that the cube of the target has, and ``invalid-argument`` for a copy
        onto itself.
        """
        from kartosql.write.copy import copy_cube

        operation = self._operation_at(target, "copy_cube", spark)
        return copy_cube(self._snapshot(), cube, operation, name=name, datasets=datasets, overwrite=overwrite)

    def copy_dataset(
        self,
        dataset: str,
        target: str | os.PathLike[str] | Store | Upkeep,
        *,
        name: str | None = None,
        overwrite: bool = False,
        spark: Any = None,
    ) -> dict[str, Any]:
        """Copy a dataset to another store, or under another name, and tell what was written.

        ``dataset`` is a uuid or ``cube.dataset``, ``name`` the new uuid. A dataset of a cube joins the cube that the
        target has, as by ``copy_cube``; where there is none it stands alone. Raises what ``copy_cube`` raises.
        """
        from kartosql.write.copy import copy_dataset

        operation = self._operation_at(target, "copy_dataset", spark)
        return copy_dataset(self._snapshot(), dataset, operation, name=name, overwrite=overwrite)

    def _operation_at(self, target: Any, name: str, spark: Any) -> Operation:
        """Begin a write to another store, given as a URL, a connection or a Store."""
        from kartosql.write.operation import Operation

        self._open()
        if isinstance(target, Upkeep):
            return target._operation(name, spark=spark)
        store = target if isinstance(target, Store) else Store(target, create=True)
        return Operation(store, name, single_writer=self.settings["single_writer"], spark=spark_session(spark))

    def collect_stats(self, cube: Cube | str, datasets: str | Iterable[str] | None = None) -> dict[str, dict[str, int]]:
        """Return ``blobsize`` in bytes, ``files``, ``partitions`` and physical ``rows`` of a cube's datasets.

        Rows that were overwritten are counted, as they still stand in the files. Raises
        ``unknown-table``, ``unknown-dataset``, ``missing-file`` and ``corrupt-file``.
        """
        from kartosql.write import cubes, layout, stats

        self._open()
        members = cubes.find_cube(self._snapshot(), cube).members
        names = tuple(members) if datasets is None else layout.columns_of(datasets, "datasets")
        for name in names:
            if name not in members:
                raise UsageError(
                    f"The cube has no dataset {name!r}.",
                    code="unknown-dataset",
                    hint=f"Datasets: {', '.join(members)}.",
                )
        return {name: stats.collect_stats(self.store, members[name].table).to_dict() for name in names}

    def metadata(self, table: Cube | str) -> dict[str, Any]:
        """Return the metadata of a dataset, or those of each dataset of a cube; see also ``set_metadata``.

        Raises ``unknown-table``.
        """
        from kartosql.formats.kartothek.resolve import users_metadata
        from kartosql.write import cubes, datasets

        self._open()
        snapshot = self._snapshot()
        if isinstance(table, Cube) or (text_of(table) not in snapshot.keys and table in snapshot.members):
            tables = {name: member.table.uuid for name, member in cubes.find_cube(snapshot, table).members.items()}
            return {name: users_metadata(snapshot.dataset(uuid).document.metadata) for name, uuid in tables.items()}
        return users_metadata(snapshot.dataset(datasets.find_uuid(snapshot, table)).document.metadata)

    def create_skipping_index(
        self,
        table: str,
        *,
        minmax: str | Iterable[str] = (),
        valuelist: str | Iterable[str] = (),
        bloomfilter: str | Iterable[str] | Mapping[str, Mapping[str, Any]] = (),
        regexvaluelist: Mapping[str, str | Iterable[str]] = MappingProxyType({}),
        spark: Any = None,
    ) -> dict[str, Any]:
        """Make skipping indexes of a table: bounds, lists of values, or Bloom filters of columns for each file.

        ``table`` is a uuid, ``cube.dataset``, a cube, or a folder that was attached with METADATA; members of structs
        are named with dots. Of a cube, every dataset that has a column gets the index. Parameters of a filter are
        ``fpp``, the share of false positives, and ``ndv``, the number of distinct values of a file.
        ``regexvaluelist`` maps columns of text to one or several patterns, whose first groups are kept. Indexes
        that the table has stay, commits of kartosql keep those of datasets up to date. Returns how many ``indexes``
        there are, and how many files were ``added``, ``removed``, ``kept`` and ``unindexed``; for a cube that of
        each dataset.
        ``spark`` is a session whose executors read the files of a dataset, or True, as for ``create_index``.
        Raises ``unknown-table``, ``unknown-column``, ``unsupported-type`` and ``unsupported-index``; for folders
        also ``no-metadata-folder``, ``encrypted-metadata``, and what is wrong with the metadata.
        """
        from kartosql.write.skipping import create_skipping, of_datasets, specs

        operation = self._operation("create_skipping_index", spark=spark)
        indexes = specs(minmax, valuelist, bloomfilter, regexvaluelist)
        if (folder := self._indexes_of_folder(table, spark)) is not None:
            return folder.create(indexes)
        if datasets := of_datasets(operation.snapshot, table, indexes):
            return {name: self._index_dataset(uuid, own, spark) for name, (uuid, own) in datasets.items()}
        return create_skipping(operation, table, indexes)

    def _index_dataset(self, uuid: str, indexes: Sequence[IndexSpec], spark: Any) -> dict[str, Any]:
        from kartosql.write.skipping import create_skipping

        return create_skipping(self._operation("create_skipping_index", spark=spark), uuid, indexes)

    def refresh_skipping_index(self, table: str, *, spark: Any = None) -> dict[str, Any]:
        """Bring the skipping indexes of a table up to date, after writes of other programs.

        ``spark`` is a session whose executors read the files, or True, as for ``create_index``.
        Returns what ``create_skipping_index`` does; raises ``unknown-table`` and ``not-indexed``.
        """
        from kartosql.write.skipping import indexed_datasets, refresh_skipping

        operation = self._operation("refresh_skipping_index", spark=spark)
        if (folder := self._indexes_of_folder(table, spark)) is not None:
            return folder.refresh()
        if datasets := indexed_datasets(operation.snapshot, table):
            return {name: self.refresh_skipping_index(uuid, spark=spark) for name, uuid in datasets.items()}
        return refresh_skipping(operation, table)

    def drop_skipping_index(self, table: str) -> dict[str, Any]:
        """Drop all skipping indexes of a table, and return how many ``files`` these were; of a cube by dataset.

        Raises ``unknown-table`` and ``not-indexed``.
        """
        from kartosql.write.skipping import drop_skipping, indexed_datasets

        operation = self._operation("drop_skipping_index")
        if (folder := self._indexes_of_folder(table)) is not None:
            return folder.drop()
        if datasets := indexed_datasets(operation.snapshot, table):
            return {name: self.drop_skipping_index(uuid) for name, uuid in datasets.items()}
        return drop_skipping(operation, table)

    def check(self, table: Cube | str, *, full: bool = False, repair: bool = False) -> list[Finding]:
        """Look for what is wrong with a cube or a dataset, and return what was found.

        Files that are missing or torn, schemas, partition values and indices that do not fit
        the data, cells that a file holds twice, and commits that another program dropped are
        found; how many rows were overwritten and files belong to nothing is told. With ``full``
        every page of every file is read and its checksum verified. With ``repair`` what is
        ``repairable`` is mended, and ``repaired`` then. Raises ``unknown-table``, and what
        commits raise for a repair.
        """
        from kartosql.write import check

        store = self._store_to_keep(not repair)
        cube, uuids = self._to_check(table)
        findings = []
        if cube is not None and isinstance(cube, KartosqlError):
            findings.append(check.Finding(_prefix(table), "cube", "error", None, cube.message))
        for uuid in uuids:
            found = check.check(store, [uuid], cube if isinstance(cube, Cube) else None, self._grace, full=full)
            if repair and any(f.repairable for f in found):
                from kartosql.write.repair import repair as mend

                found = mend(store, uuid, found, self._grace)
            findings += found
        return findings

    def _to_check(self, table: Cube | str) -> tuple[Cube | KartosqlError | None, list[str]]:
        """Return a cube, or why it is none, with the uuids of its datasets; None with that of a dataset."""
        from kartosql.write import garbage

        name, snapshot = _prefix(table), self._snapshot()
        if not isinstance(table, Cube) and (name in snapshot.keys or name not in snapshot.members):
            try:
                uuid = garbage.dataset_of(self.store, name)
            except UsageError:
                # A cube that was deleted may have left files behind.
                return None, list(garbage.members_of(self.store, name).values())
            is_member = naming.split_member(uuid)
            cube = self._cube_of(snapshot, is_member[0]) if is_member and snapshot.is_cube(is_member[0]) else None
            return cube if isinstance(cube, Cube) else None, [uuid]
        return self._cube_of(snapshot, name), list(garbage.members_of(self.store, name).values())

    def _cube_of(self, snapshot: Snapshot, prefix: str) -> Cube | KartosqlError:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KartosqlWarning)  # which are findings of a dataset
            try:
                return snapshot.cube(prefix).cube
            except KartosqlError as e:
                return e

    @property
    def _grace(self) -> dt.timedelta:
        return dt.timedelta(seconds=self.settings["grace_period"])

    def _snapshot(self) -> Snapshot:
        raise NotImplementedError

    def _store_to_keep(self, only_looks: bool) -> Any:
        self._open()
        if self.read_only and not only_looks:
            raise UsageError("The connection is read-only.", code="read-only")
        self.store.single_writer = self.store.single_writer or self.settings["single_writer"]
        return self.store


def _prefix(cube: Any) -> str:
    name = cube.uuid_prefix if isinstance(cube, Cube) else cube
    if not isinstance(name, str):
        raise UsageError(f"{cube!r} is neither a Cube nor the name of one.")
    return name
