"""The writing half of a connection: cubes, datasets, partitions and indices."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from kartosql.errors import UsageError
from kartosql.failures import tells_failures
from kartosql.formats.kartothek.cache import MetadataCache
from kartosql.formats.kartothek.cube import Cube
from kartosql.settings import Settings
from kartosql.store import Store

if TYPE_CHECKING:
    from kartosql.engines.duckdb import Runtime
    from kartosql.write.operation import Operation
    from kartosql.write.remove import Removal
    from kartosql.write.rows import Progress

Report = dict[str, dict[str, Any]]
Tell = Callable[["Progress"], None]
PartitionOn = Mapping[str, str | Iterable[str]]
Repartition = bool | Literal["range"]


@tells_failures
class Writing:
    """What a connection writes.

    Each call checks everything first, writes files that nobody refers to yet, and makes them
    visible with one commit: readers see all of it or nothing, also of several datasets of a
    cube. Writers may run at the same time. Changes that do not touch each other are joined;
    others raise ``concurrent-commit``. Where the answer of the store got lost and the outcome
    cannot be found out, ``commit-unknown`` is raised and nothing is deleted. All calls raise
    ``read-only`` on a connection that may not write.

    Arrow data is anything with ``__arrow_c_stream__`` (pyarrow, pandas, polars, results), a
    stream of record batches or the path of a Parquet file, or a list of such paths. Streams
    are not read into memory as a whole; see the setting ``write_memory``. ``progress`` is
    called now and then with the dataset, and the rows, files and bytes written of it so far.
    A partition becomes one file, or several with ``rows_per_file``.

    A DataFrame of Spark does as well: its executors write the files, and only the commit is made
    here. ``repartition`` says how its rows get there: True brings those of a partition together,
    ``"range"`` spreads large partitions over several tasks, and with False rows stay where they
    are. Raises ``store-unreachable`` where executors do not reach the store, and ``spark-job-failed``.
    """

    store: Store
    settings: Settings
    read_only: bool
    _runtime: Runtime
    _metadata: MetadataCache

    def _open(self) -> None:
        raise NotImplementedError

    def _operation(
        self,
        name: str,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
        spark: Any = None,
    ) -> Operation:
        """Begin a write, the ``name`` of which other writers will read if they lose against it."""
        from kartosql.write.operation import Operation
        from kartosql.write.spill import SpillingSorter

        self._open()
        if self.read_only:
            raise UsageError("The connection is read-only.", code="read-only")
        return Operation(
            self.store,
            name,
            cache=self._metadata,
            memory=self.settings["write_memory"],
            sorter=SpillingSorter(self.settings["temp_directory"]),
            single_writer=self.settings["single_writer"],
            progress=progress,
            grace=dt.timedelta(seconds=self.settings["grace_period"]),
            rows_per_file=rows_per_file,
            repartition=repartition,
            spark=spark_session(spark),
        )

    # -- cubes -----------------------------------------------------------------------------------

    def build_cube(
        self,
        cube: Cube,
        data: Any,
        *,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        overwrite: bool = False,
        partition_on: PartitionOn | None = None,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> Report:
        """Build a cube from Arrow data by dataset, and return files, rows and bytes per dataset.

        ``data`` maps dataset names to Arrow data; a list of such maps is joined, and Arrow data
        alone are the seed. ``partition_on`` gives datasets other than the seed their own
        partition columns. Raises ``dataset-exists`` without ``overwrite`` and where a dataset of
        the cube would stay beside the new ones, ``invalid-data``, ``duplicate-cells``,
        ``null-in-key`` and ``invalid-cube``.
        """
        from kartosql.write.cubes import build_cube

        operation = self._operation("build_cube", progress, rows_per_file, repartition)
        return build_cube(operation, cube, data, metadata=metadata, overwrite=overwrite, partition_on=partition_on)

    def extend_cube(
        self,
        cube: Cube | str,
        data: Any,
        *,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        overwrite: bool = False,
        partition_on: PartitionOn | None = None,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> Report:
        """Add datasets to a cube, and return files, rows and bytes per dataset.

        Raises what ``build_cube`` raises, ``unknown-table`` where there is no such cube, and
        ``invalid-cube`` for the seed, which only ``build_cube`` replaces.
        """
        from kartosql.write.cubes import extend_cube

        operation = self._operation("extend_cube", progress, rows_per_file, repartition)
        return extend_cube(operation, cube, data, metadata=metadata, overwrite=overwrite, partition_on=partition_on)

    def append_to_cube(
        self,
        cube: Cube | str,
        data: Any,
        *,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> Report:
        """Append rows to datasets of a cube, and return files, rows and bytes per dataset.

        A row takes the place of the row with the same cell, in the same partition. ``metadata``
        replaces single entries of the metadata of its datasets. Raises ``unknown-table``,
        ``unknown-dataset``, ``incompatible-schema``, ``invalid-data``, ``duplicate-cells`` and
        ``null-in-key``.
        """
        from kartosql.write.cubes import update_cube

        operation = self._operation("append_to_cube", progress, rows_per_file, repartition)
        return update_cube(operation, cube, data, metadata=metadata)

    def update_cube(
        self,
        cube: Cube | str,
        data: Any,
        *,
        remove_conditions: Any = None,
        datasets: str | Iterable[str] | None = None,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> Report:
        """Remove partitions from datasets of a cube and append rows to them, in one commit.

        ``datasets`` are those that partitions are removed from, by default those in ``data``;
        ``remove_conditions`` are as for ``remove_partitions``, except that None removes nothing.
        Raises what ``append_to_cube`` and ``remove_partitions`` raise.
        """
        from kartosql.write.cubes import update_cube

        operation = self._operation("update_cube", progress, rows_per_file, repartition)
        removal = None if remove_conditions is None else self._removal(operation, cube, remove_conditions)
        return update_cube(operation, cube, data, removal=removal, datasets=datasets, metadata=metadata)

    def remove_partitions(
        self, cube: Cube | str, conditions: Any, datasets: str | Iterable[str] | None = None
    ) -> Report:
        """Remove the partitions of a cube for whose values all conditions hold, and tell how many per dataset.

        ``conditions`` are as for ``query_cube``, over partition columns of the cube; without any
        everything is removed. From each dataset goes what fits the conditions on the partition
        columns that it has; a dataset that has none of them keeps its rows, unless ``datasets``
        names it. Emptied datasets stay part of the cube. Raises ``unknown-table``,
        ``unknown-dataset``, ``unknown-column`` and ``invalid-condition``.
        """
        from kartosql.write.cubes import remove_partitions

        operation = self._operation("remove_partitions")
        return remove_partitions(operation, cube, self._removal(operation, cube, conditions), datasets)

    def delete_cube(self, cube: Cube | str, datasets: str | Iterable[str] | None = None) -> Report:
        """Delete datasets of a cube, by default all of them, and tell how many files per dataset.

        Raises ``unknown-table`` and ``unknown-dataset``.
        """
        from kartosql.write.cubes import delete_cube

        return delete_cube(self._operation("delete_cube"), cube, datasets)

    def _removal(self, operation: Operation, cube: Cube | str, conditions: Any) -> Removal:
        from kartosql.removals import removal_of
        from kartosql.write.cubes import begin, find_cube

        begin(operation, cube)
        state = find_cube(operation.snapshot, cube)
        return removal_of(self._runtime, self.settings, conditions, state.types, state.cube.partition_columns)

    # -- datasets --------------------------------------------------------------------------------

    def create_dataset(
        self,
        uuid: str,
        data: Any,
        *,
        table: str = "table",
        partition_on: str | Iterable[str] = (),
        index_columns: str | Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        format: str = "json",  # noqa: A002
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> dict[str, Any]:
        """Write a plain dataset and return its files, rows and bytes.

        ``data`` is Arrow data, or maps the names of several tables to them. Rows keep their
        order inside of a partition and may repeat. ``format`` is that of the metadata document of
        a dataset that is new, ``json`` or ``msgpack``. Raises ``dataset-exists`` without ``overwrite``,
        ``invalid-argument``, ``invalid-data`` and ``null-in-key``.
        """
        from kartosql.write.datasets import create_dataset

        return create_dataset(
            self._operation("create_dataset", progress, rows_per_file, repartition),
            uuid,
            data,
            table=table,
            partition_on=partition_on,
            index_columns=index_columns,
            metadata=metadata,
            overwrite=overwrite,
            format=format,
        )

    def append_to_dataset(
        self,
        uuid: str,
        data: Any,
        *,
        metadata: Mapping[str, Any] | None = None,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> dict[str, Any]:
        """Append rows to a dataset and return what was written of it.

        ``uuid`` may be ``cube.dataset`` as well; rows of a cube are checked as such. Raises
        ``unknown-table``, ``incompatible-schema``, ``invalid-data`` and ``null-in-key``.
        """
        from kartosql.write.datasets import append_to_dataset

        operation = self._operation("append_to_dataset", progress, rows_per_file, repartition)
        return append_to_dataset(operation, uuid, data, metadata=metadata)

    def replace_partitions(
        self,
        uuid: str,
        data: Any,
        *,
        metadata: Mapping[str, Any] | None = None,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> dict[str, Any]:
        """Replace exactly those partitions of a dataset that occur in the data.

        A dataset without partition columns is one partition. ``uuid`` may be ``cube.dataset``.
        Raises what ``append_to_dataset`` raises; data without rows are ``invalid-data``.
        """
        from kartosql.write.datasets import append_to_dataset

        operation = self._operation("replace_partitions", progress, rows_per_file, repartition)
        return append_to_dataset(operation, uuid, data, metadata=metadata, replace_partitions=True)

    def delete_from_dataset(self, uuid: str, conditions: Any) -> dict[str, Any]:
        """Remove the partitions of a dataset for whose values all conditions hold.

        ``conditions`` are as for ``query_cube``, over the partition columns of the dataset;
        without any everything is removed. Raises ``unknown-table``, ``unknown-column`` and
        ``invalid-condition``.
        """
        from kartosql.removals import removal_of
        from kartosql.write.datasets import delete_from_dataset, find_dataset

        operation = self._operation("delete_from_dataset")
        table = next(iter(find_dataset(operation, uuid).tables.values()))
        removal = removal_of(self._runtime, self.settings, conditions, table.types, table.partition_keys)
        return delete_from_dataset(operation, uuid, removal)

    def set_metadata(self, uuid: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Set metadata of a dataset, keys to values that JSON can hold; None removes a key, all others stay.

        ``uuid`` is that of a plain dataset or of one of a cube, which is ``cube.dataset`` as well. Raises
        ``unknown-table``, and ``invalid-argument`` for keys by which Kartothek and kartosql know a dataset.
        """
        from kartosql.write.datasets import set_metadata

        return set_metadata(self._operation("set_metadata"), uuid, metadata)

    def delete_dataset(self, uuid: str) -> dict[str, Any]:
        """Delete a dataset; ``uuid`` may be ``cube.dataset``. Raises ``unknown-table``."""
        from kartosql.write.datasets import delete_dataset

        return delete_dataset(self._operation("delete_dataset"), uuid)

    # -- indices ---------------------------------------------------------------------------------

    def create_index(self, table: str, columns: str | Iterable[str], *, spark: Any = None) -> dict[str, Any]:
        """Build inverted indices of columns of a dataset, ``cube.dataset`` or the uuid of one.

        NULLs are in no index; a KartosqlWarning tells where the originals would then refuse to append to a
        cube. With a session of Spark its executors read the files; True takes the
        one that is active, or starts one. Raises ``unknown-table``, ``unknown-column`` and ``invalid-data``
        for columns that cannot be indexed.
        """
        from kartosql.write.indices import create_index

        return create_index(self._operation("create_index", spark=spark), table, columns)

    def drop_index(self, table: str, columns: str | Iterable[str]) -> dict[str, Any]:
        """Drop inverted indices of a dataset; raises ``unknown-table``, ``not-indexed`` and ``invalid-cube``.

        The indices of the seed's dimension columns belong to a cube and stay.
        """
        from kartosql.write.indices import drop_index

        return drop_index(self._operation("drop_index"), table, columns)


def spark_session(spark: Any) -> Any:
    """Return the session that an argument ``spark`` means: itself, for True the active or a new one, else None."""
    if spark is None or spark is False:
        return None
    if spark is True:
        from kartosql.engines.spark.session import session

        return session()
    if not hasattr(spark, "createDataFrame"):
        raise UsageError(f"spark: {type(spark).__name__} is no SparkSession.", hint="Pass a session, or True.")
    return spark
