"""The connection: one store, its settings, and the statements that run over it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, Union

from kartosql.errors import UsageError, text_of, without
from kartosql.formats.kartothek.cube import Cube
from kartosql.memo import Late
from kartosql.plan.bind import Parameters
from kartosql.plan.scan import ScanReport
from kartosql.result import Query
from kartosql.session import Repartition, Request, Session
from kartosql.settings import Settings
from kartosql.sql import Inspect, Select, Statement
from kartosql.sql.parse import check_size
from kartosql.stopping import translates_errors
from kartosql.store import Store
from kartosql.tables.names import Tables

if TYPE_CHECKING:
    from kartosql import query_cube, schema_log, statements
    from kartosql.conditions import Conjunction
    from kartosql.formats.kartothek.snapshot import Snapshot
    from kartosql.insight import coverage
    from kartosql.session import Tell
    from kartosql.statements import publish as publishing
    from kartosql.statements import upkeep
    from kartosql.statements import write as write_statements
    from kartosql.tables.table import Table
    from kartosql.typing import DocumentFormat, Engine, PublishedType, SourceType, WriteReport
    from kartosql.write import compact, copy, cubes, datasets, skipping
    from kartosql.write.check import Finding
    from kartosql.write.operation import Operation
    from kartosql.write.removal import Removal
else:
    # A SELECT is answered sooner without them.
    query_cube, schema_log, coverage = map(Late, ("query_cube", "schema_log", "insight.coverage"))
    statements, upkeep, write_statements = map(Late, ("statements", "statements.upkeep", "statements.write"))
    compact, copy, cubes = map(Late, ("write.compact", "write.copy", "write.cubes"))
    datasets, skipping, publishing = map(Late, ("write.datasets", "write.skipping", "statements.publish"))

_HABITS = {
    **dict.fromkeys(("execute", "query", "run", "read_sql"), "con.sql(text, parameters)"),
    **dict.fromkeys(("fetchall", "fetchone", "fetchdf", "df"), "con.sql(text), whose result has rows() and df()"),
    **dict.fromkeys(
        ("cursor", "commit", "rollback", "executemany"), "kartosql.dbapi.connect(url), a connection of DB-API"
    ),
    **dict.fromkeys(("table", "view", "read_table"), 'con.sql("SELECT * FROM name")'),
    **dict.fromkeys(("read_parquet", "read_csv", "scan_parquet"), "con.attach(url, name) or con.register(name, path)"),
    **dict.fromkeys(("list_tables", "show_tables"), 'con.sql("SHOW TABLES")'),
}
_INTERNAL = ("expect_one_statement", "tables", "watch_progress")  # for other rooms, and so not on Tab
Names = str | Iterable[str]  # one or several
PartitionOn = Mapping[str, Names]
Target = str | os.PathLike[str] | Store
CopyTarget = Union[Target, "Connection"]


@translates_errors
class Connection:
    """A store, the session's settings and the data registered by the user.

    Each statement lists the store and reads a snapshot of its own, so it sees all that was committed before. What did
    not change since an earlier statement is kept: metadata, index lookups, footers of data files, and engines that are
    locked up for the tables they read.

    Each call that writes checks everything first, writes files that nobody refers to yet, and makes them visible with
    one commit: readers see all of it or nothing, also of several datasets of a cube. Writers may run at the same time.
    Changes that do not touch each other are joined; others raise ``concurrent-commit``. Where the answer of the store
    got lost and the outcome cannot be found out, ``commit-unknown`` is raised and nothing is deleted. All calls raise
    ``read-only`` on a connection that may not write.

    Arrow data is anything with ``__arrow_c_stream__`` (pyarrow, pandas, polars, results), a stream of record batches or
    the path of a Parquet file, or a list of such paths. Streams are not read into memory as a whole; see the setting
    ``write_memory``. ``progress`` is called now and then with the dataset, and the rows, files and bytes written of it
    so far. A partition becomes one file, or several with ``rows_per_file``.

    A DataFrame of Spark does as well: its executors write the files, and only the commit is made here. ``repartition``
    says how its rows get there: True brings those of a partition together, ``"range"`` spreads large partitions over
    several tasks, and with False rows stay where they are. Raises ``store-unreachable`` where executors do not reach
    the store, and ``spark-job-failed``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        session.publish = lambda *given: publishing.publish_again(*given)
        self.store = session.store

    @property
    def read_only(self) -> bool:
        """Whether statements and calls that write are refused."""
        return self._session.read_only

    @property
    def settings(self) -> Settings:
        """The settings of all statements that follow."""
        return self._session.settings

    @settings.setter
    def settings(self, values: Settings) -> None:
        self._session.settings = values

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kartosql connection to {self.store.url}>"

    def __dir__(self) -> list[str]:
        return [name for name in dir(type(self)) if not name.startswith("_") and name not in _INTERNAL]

    def close(self) -> None:
        """Close the connection; what other threads are doing is stopped, results that were made stay usable."""
        self._session.close()

    def expect_one_statement(self) -> None:
        """Prepare for one statement and no more, which takes less time then; others still work."""
        self._session.runtime.one_more = True

    # -- statements ----------------------------------------------------------------------------

    def sql(self, text: str, parameters: Parameters = None, *, engine: Engine | None = None) -> Query:
        """Run a statement; a SELECT only when its rows are asked for.

        ``parameters`` is a list for ``?`` and ``$1``, a dictionary for ``$name`` and ``:name``.
        Raises SqlError for statements that are not understood (names are resolved at once),
        FormatError and StoreError for what is wrong with the data.

        >>> con.sql("SELECT city, km FROM trips WHERE km > ? ORDER BY km", [4]).rows()
        [('Bonn', 5.0), ('Rom', 7.5)]
        """
        request, statement = self._request(text, parameters, engine)
        if isinstance(statement, Select):
            return request.query(statement)
        return statements.run(request, statement)

    async def sql_async(self, text: str, parameters: Parameters = None, *, engine: Engine | None = None) -> Query:
        """Run a statement in a thread, and return its result with all rows; a task that is cancelled stops it."""
        import asyncio  # not at the top: it takes as long as a SELECT

        made: list[Query] = []
        is_wanted = True

        def run() -> Query:
            made.append(self.sql(text, parameters, engine=engine))
            if is_wanted:
                made[0].arrow()
            return made[0]

        try:
            return await asyncio.to_thread(run)
        except asyncio.CancelledError:
            is_wanted = False
            for query in made:
                query.interrupt()
            raise

    def _request(self, text: str, parameters: Parameters, engine: Engine | None) -> tuple[Request, Statement]:
        self._session.check_open()
        started = time.perf_counter()
        if caps := self._session.settings.caps():
            check_size(text, caps)
        statement = self._session.parse(text)
        if isinstance(parameters, list | tuple | Mapping):
            from kartosql.conditions import plain

            parameters = plain(parameters)
        return Request(self._session, parameters, engine, time.perf_counter() - started), statement

    if not TYPE_CHECKING:  # or every name would be an attribute

        def __getattr__(self, name: str) -> Any:
            raise without(self, name, _HABITS)

    def tables(self) -> Tables:
        """Resolve names as of now: over the store, and registered data."""
        return self._session.tables()

    def watch_progress(self) -> None:
        """Let the engine keep account of how far statements are, for ``Query.progress``."""
        self._session.runtime.watched = True

    def interrupt(self) -> None:
        """Stop all statements, calls and streams of the connection, from any thread; they raise ``interrupted``.

        A commit is not stopped. What a statement has written before is deleted, and nothing of it
        becomes visible. The connection works on.
        """
        self._session.runtime.works.stop()

    def _working(self) -> contextlib.AbstractContextManager[None]:
        """Be at work, which other threads can stop; raises ``other-process`` in a fork."""
        return self._session.runtime.works.one()

    def explain(self, sql: str, parameters: Parameters = None, *, engine: Engine | None = None) -> ScanReport:
        """Return what a SELECT would read and why, without running it.

        >>> report = con.explain("SELECT * FROM trips WHERE city = 'Rom'")
        >>> report.files_selected, report.files_total
        (1, 2)
        """
        request, statement = self._request(sql, parameters, engine)
        if isinstance(statement, Inspect) and statement.query is not None:
            statement = statement.query
        if not isinstance(statement, Select):
            raise UsageError("Only a SELECT can be explained.", code="not-explainable")
        return request.query(statement).report

    def query_cube(
        self,
        cube: Cube | str,
        dimension_columns: Names | None = None,
        partition_by: Names | None = None,
        payload_columns: Names | None = None,
        conditions: Any = None,
        datasets: Names | None = None,
    ) -> Query | list[Query]:
        """Query a cube as kartothek's ``query_cube`` does, with the same arguments.

        ``cube`` is a Cube, its name, or that of what is attached, of which dimensions have to be named. ``conditions``
        are Condition objects, ``(column, op, value)`` tuples or the original's text form; all must hold. Columns come
        sorted by name, rows by the dimension columns as given and then by the partition columns. ``partition_by`` gives
        a list of results, for each combination of values, ascending. Raises UsageError for what the original refuses.

        >>> con.query_cube("sales", conditions="shop == 1", payload_columns=["amount"]).rows()
        [(10.0, 'DE', 1)]
        """
        columns = (dimension_columns, partition_by, payload_columns)
        return query_cube.query_cube(self._session, cube, *columns, conditions=conditions, datasets=datasets)

    def conditions(self, sql: str, parameters: Parameters = None) -> Conjunction:
        """Return what the WHERE of a SELECT over one cube says as conditions of ``query_cube``.

        Its ``predicate`` are the tuples that kartothek takes. Functions of the clock have their
        value of now. Raises ``invalid-condition`` for what such conditions cannot say.
        """
        return query_cube.conditions_of(self._session, sql, parameters)

    def coverage(self, table: Cube | str, by: Names = ()) -> coverage.Coverage:
        """Return which cells of a cube its datasets hold, by one or two columns of the seed.

        Without ``by`` the first two partition columns are taken. The key columns of all files
        are read. Raises ``unknown-table``, ``unknown-column`` and ``invalid-argument``.

        >>> print(con.coverage("sales", "country").to_dict()["table"])
        sales
        """
        self._session.check_open()
        name = table.uuid_prefix if isinstance(table, Cube) else table
        columns = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, Iterable) else (by,)
        if not isinstance(name, str) or len(columns) > 2 or not all(isinstance(c, str) for c in columns):
            raise UsageError("coverage() takes the name of a table, and one or two names of columns.")
        return coverage.coverage(Request(self._session), (name,), [(c, None) for c in columns])

    # -- catalog -------------------------------------------------------------------------------

    def cubes(self) -> dict[str, Cube]:
        """Return the cubes of the store by name."""
        return self._session.snapshot().cubes()

    def datasets(self) -> list[str]:
        """Return the uuids of all datasets of the store, members of cubes included."""
        return self._session.snapshot().uuids()

    def register(self, name: str, data: Any) -> None:
        """Make Arrow data (anything with ``__arrow_c_stream__``) a table of this connection.

        A stream that can be read only once is read into memory. Raises ``invalid-argument``.

        >>> con.register("rates", pa.table({"city": ["Rom"], "rate": [2]}))
        >>> con.sql("SELECT km * rate FROM trips JOIN rates USING (city)").rows()
        [(15.0,)]
        """
        self._session.register(name, data)

    def attach(
        self,
        url: str | os.PathLike[str],
        name: str,
        *,
        type: SourceType | None = None,  # noqa: A002
        storage_options: Mapping[str, Any] | None = None,
        replace: bool = False,
        **options: Any,
    ) -> None:
        """Make a folder of files, an ODF dataset or another store known as ``name``, to be read.

        ``type`` (else by the suffix, or Parquet) and ``options`` are those of ATTACH (docs/attach.md). Raises
        ``not-allowed``, ``name-taken``, ``unknown-type``, ``invalid-option``, ``no-files``, and what is wrong.

        >>> con.attach("files", "found")
        >>> con.sql("SELECT * FROM found").rows()
        [(1,)]
        """
        is_taken = self._session.tables().is_taken
        self._session.attachments.attach(
            url, name, type, options, is_taken=is_taken, storage_options=storage_options, replace=replace
        )

    def detach(self, name: str, *, if_exists: bool = False) -> None:
        """Forget what was attached as ``name``; raises ``not-attached``. Nothing is deleted."""
        self._session.attachments.detach(name, if_exists=if_exists)

    # -- writing -------------------------------------------------------------------------------

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
    ) -> dict[str, WriteReport]:
        """Build a cube from Arrow data by dataset, and return files, rows and bytes per dataset.

        ``data`` maps dataset names to Arrow data; a list of such maps is joined, and Arrow data alone are the seed.
        ``partition_on`` gives datasets other than the seed their own partition columns. Raises ``dataset-exists``
        without ``overwrite`` and where a dataset of the cube would stay beside the new ones, ``invalid-data``,
        ``duplicate-cells``, ``null-in-key`` and ``invalid-cube``.

        >>> cube = kartosql.Cube("stock", ["item"], ["country"])
        >>> con.build_cube(cube, {"seed": pa.table({"item": [1, 2], "country": ["DE", "FR"]})})["seed"]["files"]
        2
        """
        operation = self._session.operation("build_cube", progress, rows_per_file, repartition)
        return cubes.build_cube(
            operation, cube, data, metadata=metadata, overwrite=overwrite, partition_on=partition_on
        )

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
    ) -> dict[str, WriteReport]:
        """Add datasets to a cube, and return files, rows and bytes per dataset.

        Raises what ``build_cube`` raises, ``unknown-table`` where there is no such cube, and
        ``invalid-cube`` for the seed, which only ``build_cube`` replaces.

        >>> weather = pa.table({"shop": [1], "country": ["DE"], "rain": [3]})
        >>> con.extend_cube("sales", {"weather": weather})["weather"]["rows"]
        1
        """
        operation = self._session.operation("extend_cube", progress, rows_per_file, repartition)
        return cubes.extend_cube(
            operation, cube, data, metadata=metadata, overwrite=overwrite, partition_on=partition_on
        )

    def append_to_cube(
        self,
        cube: Cube | str,
        data: Any,
        *,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> dict[str, WriteReport]:
        """Append rows to datasets of a cube, and return files, rows and bytes per dataset.

        A row takes the place of the row with the same cell, in the same partition. ``metadata`` replaces single entries
        of the metadata of its datasets. Raises ``unknown-table``, ``unknown-dataset``, ``incompatible-schema``,
        ``invalid-data``, ``duplicate-cells`` and ``null-in-key``.

        >>> rows = pa.table({"shop": [3], "country": ["DE"], "amount": [1.5]})
        >>> con.append_to_cube("sales", {"seed": rows})["seed"]["rows"]
        1
        """
        operation = self._session.operation("append_to_cube", progress, rows_per_file, repartition)
        return cubes.update_cube(operation, cube, data, metadata=metadata)

    def update_cube(
        self,
        cube: Cube | str,
        data: Any,
        *,
        remove_conditions: Any = None,
        datasets: Names | None = None,
        metadata: Mapping[str, Mapping[str, Any]] | None = None,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> dict[str, WriteReport]:
        """Remove partitions from datasets of a cube and append rows to them, in one commit.

        ``datasets`` are those that partitions are removed from, by default those in ``data``;
        ``remove_conditions`` are as for ``remove_partitions``, except that None removes nothing.
        Raises what ``append_to_cube`` and ``remove_partitions`` raise.
        """
        operation = self._session.operation("update_cube", progress, rows_per_file, repartition)
        removal = None if remove_conditions is None else self._removal(operation, cube, remove_conditions)
        return cubes.update_cube(operation, cube, data, removal=removal, datasets=datasets, metadata=metadata)

    def remove_partitions(
        self, cube: Cube | str, conditions: Any, datasets: Names | None = None
    ) -> dict[str, WriteReport]:
        """Remove the partitions of a cube for whose values all conditions hold, and return how many per dataset.

        ``conditions`` are as for ``query_cube``, over partition columns of the cube; without any everything is removed.
        From each dataset goes what fits the conditions on the partition columns that it has; a dataset that has none of
        them keeps its rows, unless ``datasets`` names it. Emptied datasets stay part of the cube. Raises
        ``unknown-table``, ``unknown-dataset``, ``unknown-column`` and ``invalid-condition``.
        """
        operation = self._session.operation("remove_partitions")
        return cubes.remove_partitions(operation, cube, self._removal(operation, cube, conditions), datasets)

    def delete_cube(self, cube: Cube | str, datasets: Names | None = None) -> dict[str, Any]:
        """Delete datasets of a cube, by default all of them, and return how many files per dataset.

        Raises ``unknown-table`` and ``unknown-dataset``.
        """
        return cubes.delete_cube(self._session.operation("delete_cube"), cube, datasets)

    def _removal(self, operation: Operation, cube: Cube | str, conditions: Any) -> Removal:
        state = cubes.opened_cube(operation, cube)
        return write_statements.removal_of(self._session, conditions, state.types, state.cube.partition_columns)

    def create_dataset(
        self,
        uuid: str,
        data: Any,
        *,
        table: str = "table",
        partition_on: Names = (),
        index_columns: Names = (),
        metadata: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        format: DocumentFormat = "json",  # noqa: A002
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> WriteReport:
        """Write a plain dataset and return its files, rows and bytes.

        ``data`` is Arrow data, or maps the names of several tables to them. Rows keep their order inside of a partition
        and may repeat. ``format`` is that of the metadata document of a dataset that is new, ``json`` or ``msgpack``.
        Raises ``dataset-exists`` without ``overwrite``, ``invalid-argument``, ``invalid-data`` and ``null-in-key``.

        >>> con.create_dataset("towns", pa.table({"city": ["Bonn", "Rom"]}), index_columns=["city"])["rows"]
        2
        """
        return datasets.create_dataset(
            self._session.operation("create_dataset", progress, rows_per_file, repartition),
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
        evolve: bool = False,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> WriteReport:
        """Append rows to a dataset and return what was written of it.

        ``uuid`` may be ``cube.dataset`` as well; rows of a cube are checked as such. With ``evolve`` columns that the
        dataset lacks are added to it, and those that the data lack are NULL. Raises
        ``unknown-table``, ``incompatible-schema``, ``invalid-data`` and ``null-in-key``.

        >>> con.append_to_dataset("trips", pa.table({"city": ["Rom"], "km": [1.0]}))["rows"]
        1
        """
        operation = self._session.operation("append_to_dataset", progress, rows_per_file, repartition)
        return datasets.append_to_dataset(operation, uuid, data, metadata=metadata, evolve=evolve)

    def replace_partitions(
        self,
        uuid: str,
        data: Any,
        *,
        metadata: Mapping[str, Any] | None = None,
        progress: Tell | None = None,
        rows_per_file: int | None = None,
        repartition: Repartition = True,
    ) -> WriteReport:
        """Replace exactly those partitions of a dataset that occur in the data.

        A dataset without partition columns is one partition. ``uuid`` may be ``cube.dataset``.
        Raises what ``append_to_dataset`` raises; data without rows are ``invalid-data``.
        """
        operation = self._session.operation("replace_partitions", progress, rows_per_file, repartition)
        return datasets.append_to_dataset(operation, uuid, data, metadata=metadata, replace_partitions=True)

    def delete_from_dataset(self, uuid: str, conditions: Any) -> WriteReport:
        """Remove the partitions of a dataset for whose values all conditions hold.

        ``conditions`` are as for ``query_cube``, over the partition columns of the dataset; without any everything is
        removed. Raises ``unknown-table``, ``unknown-column`` and ``invalid-condition``.
        """
        operation = self._session.operation("delete_from_dataset")
        table = next(iter(datasets.find_dataset(operation, uuid).tables.values()))
        removal = write_statements.removal_of(self._session, conditions, table.types, table.partition_keys)
        return datasets.delete_from_dataset(operation, uuid, removal)

    def set_metadata(self, uuid: str, metadata: Mapping[str, Any]) -> WriteReport:
        """Set metadata of a dataset, keys to values that JSON can hold; None removes a key, all others stay.

        ``uuid`` is that of a plain dataset or of one of a cube, which is ``cube.dataset`` as well. Raises
        ``unknown-table``, and ``invalid-argument`` for keys by which Kartothek and kartosql know a dataset.
        """
        return datasets.set_metadata(self._session.operation("set_metadata"), uuid, metadata)

    def delete_dataset(self, uuid: str) -> dict[str, Any]:
        """Delete a dataset; ``uuid`` may be ``cube.dataset``. Raises ``unknown-table``."""
        return datasets.delete_dataset(self._session.operation("delete_dataset"), uuid)

    def create_index(self, table: str, columns: Names, *, spark: Any = None) -> dict[str, Any]:
        """Build inverted indices of columns of a dataset, ``cube.dataset`` or the uuid of one.

        NULLs are in no index; a KartosqlWarning says where the originals would then refuse to append to a cube. With a
        session of Spark its executors read the files; True takes the one that is active, or starts one. Raises
        ``unknown-table``, ``unknown-column`` and ``invalid-data`` for columns that cannot be indexed.

        >>> con.create_index("trips", "km")["values"]
        {'km': 3}
        """
        return upkeep.change_index(self._session, table, columns, spark)

    def drop_index(self, table: str, columns: Names) -> dict[str, Any]:
        """Drop inverted indices of a dataset; raises ``unknown-table``, ``not-indexed`` and ``invalid-cube``.

        The indices of the seed's dimension columns belong to a cube and stay.
        """
        return upkeep.change_index(self._session, table, columns, drop=True)

    def cleanup_cube(self, cube: Cube | str, *, dry_run: bool = False) -> dict[str, dict[str, Any]]:
        """Remove files below the datasets of a cube that belong to nothing, and return which per dataset.

        A file is marked when it is seen first, and removed by a run that comes ``grace_period`` later: ``marked`` files
        wait, ``removed`` ones are gone, ``files`` lists both, and ``bytes`` is the size of all. What crashed changes of
        several datasets left is carried out or taken back. A ``dry_run`` changes nothing. Raises ``unknown-table``, and
        what is wrong with a dataset whose metadata cannot be read, after the other datasets are done.
        """
        return upkeep.cleanup_cube(self._session, cube, dry_run=dry_run)

    def garbage_collect(self, uuid: str, *, dry_run: bool = False) -> dict[str, Any]:
        """Remove files below one dataset that belong to nothing, as ``cleanup_cube`` does for a cube."""
        return upkeep.garbage_collect(self._session, uuid, dry_run=dry_run)

    def compact(
        self,
        cube: Cube | str,
        datasets: Names | None = None,
        *,
        target_bytes: int = 128_000_000,
        min_files: int = 2,
        progress: Tell | None = None,
        spark: Any = None,
    ) -> dict[str, Any]:
        """Merge small files of each partition into one of up to ``target_bytes`` and return what came of it.

        Of rows of one cell the last version stays, as queries see it; rows of plain datasets stay all. Runs of less
        than ``min_files`` files are left alone, and so are ``skipped`` files that hold a cell twice. ``cube`` is a
        cube, of which ``datasets`` may name some, or the name of a dataset; the answer is by dataset for a cube. Each
        dataset is one commit. ``spark`` is a session whose executors do the work, or True, as for ``create_index``.
        Raises ``unknown-table``, ``unknown-dataset``, ``concurrent-commit`` where merged files were removed meanwhile,
        ``missing-file`` and ``corrupt-file``.
        """
        operation = self._session.operation("compact", progress, spark=spark)
        return compact.compact(operation, cube, datasets, target_bytes=target_bytes, min_files=min_files)

    def copy_cube(
        self,
        cube: Cube | str,
        target: CopyTarget,
        *,
        name: str | None = None,
        datasets: Iterable[str] | Mapping[str, str] | None = None,
        overwrite: bool = False,
        spark: Any = None,
    ) -> dict[str, WriteReport]:
        """Copy a cube to another store, or under another name, and return what was written per new dataset.

        ``target`` is the URL of a store, a connection or a Store; a local folder is made if need be. ``name`` is the
        new prefix, ``datasets`` says which datasets are copied, and maps them to their new names if it is a dictionary.
        Without the seed they join the cube that the target has, of the same dimension and partition columns. All
        datasets become visible at once; metadata and indices are copied as well. ``spark`` is as for ``compact``; the
        executors have to reach both stores. Raises ``dataset-exists`` for datasets that have the new names without
        ``overwrite``, ``unknown-table``, ``unknown-dataset``, ``invalid-cube`` where there is no seed, or the cubes
        differ, ``invalid-data`` for columns that the cube of the target has, and ``invalid-argument`` for a copy onto
        itself.
        """
        operation = self._session.operation("copy_cube", target=_where(target), spark=spark)
        return copy.copy_cube(
            self._session.snapshot(), cube, operation, name=name, datasets=datasets, overwrite=overwrite
        )

    def copy_dataset(
        self, dataset: str, target: CopyTarget, *, name: str | None = None, overwrite: bool = False, spark: Any = None
    ) -> WriteReport:
        """Copy a dataset to another store, or under another name, and return what was written.

        ``dataset`` is a uuid or ``cube.dataset``, ``name`` the new uuid. A dataset of a cube joins the cube that the
        target has, as by ``copy_cube``; without one it is a plain dataset. Raises what ``copy_cube`` raises.
        """
        operation = self._session.operation("copy_dataset", target=_where(target), spark=spark)
        return copy.copy_dataset(self._session.snapshot(), dataset, operation, name=name, overwrite=overwrite)

    def collect_stats(self, cube: Cube | str, datasets: Names | None = None) -> dict[str, dict[str, int]]:
        """Return ``blobsize`` in bytes, ``files``, ``partitions`` and physical ``rows`` of a cube's datasets.

        Rows that were overwritten are counted, as they are still in the files. Raises
        ``unknown-table``, ``unknown-dataset``, ``missing-file`` and ``corrupt-file``.
        """
        return upkeep.stats(self._session, cube, datasets)

    def metadata(self, table: Cube | str) -> dict[str, Any]:
        """Return the metadata of a dataset, or those of each dataset of a cube; see also ``set_metadata``.

        Raises ``unknown-table``.
        """
        return upkeep.metadata(self._session, table)

    def create_skipping_index(
        self,
        table: str,
        *,
        minmax: Names = (),
        valuelist: Names = (),
        bloomfilter: Names | Mapping[str, Mapping[str, Any]] = (),
        regexvaluelist: Mapping[str, Names] = MappingProxyType({}),
        ngram: Names = (),
        prefix: Names | Mapping[str, Mapping[str, Any]] = (),
        spark: Any = None,
    ) -> dict[str, Any]:
        """Make skipping indexes of a table: bounds, values, filters, pieces or beginnings of columns for each file.

        ``table`` is a uuid, ``cube.dataset``, a cube, or what is attached: a folder, a Delta or an Iceberg table.
        Members of structs are named with dots; in lake tables they have no indexes. Of a cube, every dataset that has a
        column gets the index. Parameters of a filter are ``fpp``, the share of false positives, and ``ndv``, the number
        of distinct values of a file. ``regexvaluelist`` maps columns of text to one or several patterns, whose first
        groups are kept. ``ngram`` are columns of text whose pieces of three bytes are kept, ``prefix`` those of which
        the first 8 characters are, or as many as the parameter ``length`` tells. Indexes that the table has stay,
        commits of kartosql keep those of datasets up to date. Returns how many ``indexes`` there are, and how many
        files were ``added``, ``removed``, ``kept`` and ``unindexed``; for a cube that of each dataset. ``spark`` is a
        session whose executors read the files of a dataset, or True, as for ``create_index``. Raises ``unknown-table``,
        ``unknown-column``, ``unsupported-type`` and ``unsupported-index``; for folders also ``encrypted-metadata``,
        and what is wrong with the metadata.
        """
        self._session.check_writable()
        given = {"minmax": minmax, "valuelist": valuelist, "bloomfilter": bloomfilter, "regexvaluelist": regexvaluelist}
        given |= {"ngram": ngram, "prefix": prefix}
        return upkeep.change_skipping_index(self._session, "create", table, skipping.specs(given), spark)

    def refresh_skipping_index(self, table: str, *, spark: Any = None) -> dict[str, Any]:
        """Bring the skipping indexes of a table up to date, after writes of other programs.

        ``spark`` is a session whose executors read the files, or True, as for ``create_index``.
        Returns what ``create_skipping_index`` does; raises ``unknown-table`` and ``not-indexed``.
        """
        return upkeep.change_skipping_index(self._session, "refresh", table, spark=spark)

    def drop_skipping_index(self, table: str) -> dict[str, Any]:
        """Drop all skipping indexes of a table, and return how many ``files`` these were; of a cube by dataset.

        Raises ``unknown-table`` and ``not-indexed``.
        """
        return upkeep.change_skipping_index(self._session, "drop", table)

    def check(self, table: Cube | str, *, full: bool = False, repair: bool = False) -> list[Finding]:
        """Look for what is wrong with a cube or a dataset, and return what was found.

        Files that are missing or torn, schemas, partition values and indices that do not fit the data, cells that a
        file holds twice, and commits that another program dropped are found; how many rows were overwritten and files
        belong to nothing is reported. With ``full`` every page of every file is read and its checksum verified. With
        ``repair`` what is ``repairable`` is mended, and ``repaired`` then. Raises ``unknown-table``, and what commits
        raise for a repair.
        """
        return upkeep.check(self._session, table, full=full, repair=repair)

    def history(self, table: str) -> Query:
        """Return the versions of a dataset, or of those of a cube, as SHOW HISTORY does; raises ``no-versions``.

        >>> con.history("trips").rows()[0][0]
        1
        """
        return Query(schema_log.versions_table(*self._find(table)))

    def restore(self, table: str, version: int | str) -> WriteReport | dict[str, WriteReport]:
        """Make a dataset what it was, as a version or at a time given as text, by a commit that writes no data file.

        A cube, of which all datasets go back, takes a time, and what is returned is by dataset. Raises
        ``unknown-table``, ``no-such-version``, ``no-versions``, ``version-gone`` and ``incompatible-schema``.
        """
        is_cube = isinstance(table, str) and cubes.is_cube_alone(self._session.snapshot(), table)
        if is_cube:
            return datasets.restore_cube(lambda: self._session.operation("restore"), table, version)
        return datasets.restore(lambda: self._session.operation("restore"), table, version)

    def publish(
        self,
        table: str,
        url: str | os.PathLike[str],
        type: PublishedType = "delta",  # noqa: A002
        *,
        follow: bool | None = None,
    ) -> dict[str, Any]:
        """Make a folder a table that other engines read, over the data files of a dataset as of now.

        ``type`` is ``"delta"`` or ``"iceberg"``. No data file is written or moved: the next version of the table
        names the files that are there and what is known of them. Of a dataset of a cube, rows that later ones hide
        are marked as deleted. The folder lies above the data files or beside the dataset; that of the dataset itself
        may be it. With ``follow``, each commit of kartosql makes the next version in a folder of the store, and a
        KartosqlWarning says where that fails; with False no longer. Raises ``unknown-table``, ``unsupported-type``,
        ``target-taken``, ``invalid-argument`` and ``missing-extra``.
        """
        from kartosql.sql.write_statements import Named  # not at the top: most connections read

        named = Named(tuple(text_of(table).split(".")), (0, 0))
        return publishing.publish(self._session, named, url, type, follow, table)

    def _find(self, table: str) -> tuple[Table, Snapshot]:
        tables = self._session.tables()
        return tables.find(tuple(text_of(table).split(".")), (0, 0), table), tables.snapshot

    def schema_history(self, table: str) -> Query:
        """Return the schemas that a dataset, a cube or an attached ODF dataset had, as SHOW SCHEMA HISTORY does.

        Raises ``unknown-table`` and ``broken-schema-history``.
        """
        return Query(schema_log.history_table(*self._find(table)))

    def record_schema(self, table: str) -> list[dict[str, Any]]:
        """Add the schemas of a dataset, or of all of a cube, to their histories where they are not there yet.

        Returns for each table its ``dataset``, ``table``, ``version``, ``block``, and whether it was ``recorded``. A
        broken history is put aside and a new one begun. Raises ``unknown-table``, and what commits raise.
        """
        return upkeep.record_schema(self._session, table)

    def export_schema_history(self, table: str, target: Target) -> dict[str, Any]:
        """Write the schema history of a dataset as a chain that other tools of Open Data Fabric read.

        ``target`` is a folder or the URL of one, which is made if need be and has to be empty. Returns
        ``head``, the hash of the last block, and the number of ``blocks``. Raises ``unknown-table``,
        ``no-schema-history``, ``broken-schema-history`` and ``dataset-exists``.
        """
        return upkeep.export_history(self._session, table, target)

    def export_odf(
        self, data: Any, target: Target, *, primary_key: Names = (), event_time: str | None = None
    ) -> dict[str, Any]:
        """Write rows as a new root dataset of Open Data Fabric, and return its ``id``, ``head``, ``rows``, ``bytes``.

        ``data`` is anything with ``__arrow_c_stream__``, results too. ``primary_key`` names columns
        that identify a row, ``event_time`` the column that says when it happened; without it, that
        is the time of writing. Raises ``dataset-exists``, ``unknown-column``, ``invalid-argument``,
        ``invalid-data``, ``null-in-key`` and ``odf-invalid-schema``.
        """
        return upkeep.export_odf(self._session, data, target, primary_key, event_time)


def _where(target: Any) -> Any:
    return target._session if isinstance(target, Connection) else target
