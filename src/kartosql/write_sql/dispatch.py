"""Each statement that writes -> the call that does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

import pyarrow as pa

from kartosql.engines.duckdb import Runtime
from kartosql.errors import SqlError, UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.plan.bind import Parameters
from kartosql.query import SelectQuery
from kartosql.result import Query
from kartosql.settings import Settings
from kartosql.sql import write_statements as ws
from kartosql.sql.statements import Select, Write
from kartosql.tables.names import Tables
from kartosql.write_sql import results, upkeep
from kartosql.write_sql.removal import removal_of
from kartosql.write_sql.rows import Rows, constants_of, target_columns
from kartosql.write_sql.targets import (
    Target,
    cube_name,
    dataset_target,
    dataset_uuid,
    left_behind,
    need_cube,
    need_uuid,
    resolved,
)

Report = Mapping[str, Any]


class _Operations(Protocol):
    """The calls of a connection that statements stand for."""

    def build_cube(self, cube: Cube, data: Any, *, overwrite: bool = False) -> Report: ...
    def extend_cube(
        self, cube: Cube | str, data: Any, *, partition_on: Mapping[str, str | Iterable[str]] | None = None
    ) -> Report: ...
    def remove_partitions(
        self, cube: Cube | str, conditions: Any, datasets: str | Iterable[str] | None = None
    ) -> Report: ...
    def delete_cube(self, cube: Cube | str, datasets: str | Iterable[str] | None = None) -> Report: ...
    def create_dataset(
        self,
        uuid: str,
        data: Any,
        *,
        partition_on: str | Iterable[str] = (),
        index_columns: str | Iterable[str] = (),
        overwrite: bool = False,
    ) -> Report: ...
    def append_to_dataset(self, uuid: str, data: Any) -> Report: ...
    def replace_partitions(self, uuid: str, data: Any) -> Report: ...
    def delete_from_dataset(self, uuid: str, conditions: Any) -> Report: ...
    def delete_dataset(self, uuid: str) -> Report: ...
    def set_metadata(self, uuid: str, metadata: Mapping[str, Any]) -> Report: ...
    def cleanup_cube(self, cube: str) -> Report: ...
    def garbage_collect(self, uuid: str) -> dict[str, Any]: ...
    def create_index(self, table: str, columns: str | Iterable[str]) -> Report: ...
    def drop_index(self, table: str, columns: str | Iterable[str]) -> Report: ...


class WriteStatements:
    """Runs one statement that writes; ``tables`` returns what the store holds now."""

    def __init__(
        self, operations: _Operations, runtime: Runtime, settings: Settings, tables: Callable[[], Tables]
    ) -> None:
        self._operations = operations
        self._runtime = runtime
        self._settings = settings
        self._now = tables
        self._tables = tables()
        self._snapshot = self._tables.snapshot
        self._rows: Rows | None = None

    def run(self, statement: Write, parameters: Parameters = None, *, engine: str | None = None) -> Query:
        """Run a statement and return the table of what it did."""
        if engine is not None:
            self._settings = self._settings.copy()
            self._settings.set("engine", engine)
        if parameters and not hasattr(statement, "query"):
            raise SqlError("This statement takes no parameters.", code="invalid-parameters", sql=statement.text)
        try:
            done = self._run(statement, parameters)
            if isinstance(statement, ws.Check | ws.Cleanup):
                return Query(done)
            return Query(done, written=sum(done["rows"].to_pylist()) if "rows" in done.column_names else 0)
        except SqlError as e:
            query = getattr(statement, "query", None)
            if query is not None and e.sql == query.text:
                e.sql = statement.text  # every character stands at the same place in both
            raise
        except UsageError as e:
            if e.code == "dataset-exists" and isinstance(statement, ws.CopyCube | ws.CopyDataset):
                e.hint = "COPY ... TO 'url' AS name gives the copy another name."
            elif (
                e.code == "dataset-exists"
                and isinstance(statement, ws.CreateCube | ws.CreateDataset)
                and not statement.replace
            ):
                e.hint = "CREATE OR REPLACE replaces it."
            raise
        finally:
            if self._rows is not None:
                self._rows.close()

    def _run(self, statement: Write, parameters: Parameters) -> pa.Table:
        match statement:
            case ws.CreateCube():
                return self._create_cube(statement, parameters)
            case ws.AddDataset():
                return self._add_dataset(statement, parameters)
            case ws.CreateDataset():
                return self._create_dataset(statement, parameters)
            case ws.Insert():
                return self._insert(statement, parameters)
            case ws.Delete():
                return self._delete(statement, parameters)
            case ws.DropCube():
                return self._drop_cube(statement)
            case ws.DropDataset():
                return self._drop_dataset(statement)
            case ws.CreateIndex():
                return self._index(statement, self._operations.create_index)
            case ws.DropIndex():
                return self._index(statement, self._operations.drop_index)
            case ws.SetMetadata():
                return self._set_metadata(statement)
            case ws.CreateSkipping() | ws.RefreshSkipping() | ws.DropSkipping():
                return upkeep.skip(cast(Any, self._operations), self._tables, statement)
            case ws.RecordSchema() | ws.ExportHistory() | ws.ExportOdf():
                return self._schema(statement, parameters)
            case _:
                assert isinstance(statement, ws.CopyCube | ws.CopyDataset | ws.Compact | ws.Cleanup | ws.Check)
                return upkeep.run(cast(Any, self._operations), self._snapshot, statement)

    # -- rows from queries -------------------------------------------------------------------

    def _read(self, query: Select, parameters: Parameters, name: str) -> Rows:
        def make() -> SelectQuery:
            return SelectQuery(query, self._now(), self._runtime, self._settings.copy(), parameters)

        self._rows = Rows(make, name)
        return self._rows

    def _create_cube(self, statement: ws.CreateCube, parameters: Parameters) -> pa.Table:
        rows = self._read(statement.query, parameters, statement.cube.last)

        def columns(given: ws.Columns) -> list[str]:
            return resolved(given, rows.given.names, "The query", statement.text)

        seed = statement.seed.last if statement.seed else "seed"
        keys, index = columns(statement.partition_by), columns(statement.index)
        cube = Cube(statement.cube.last, columns(statement.dimensions), keys, seed, index)
        return results.changes(self._operations.build_cube(cube, {seed: rows}, overwrite=statement.replace))

    def _add_dataset(self, statement: ws.AddDataset, parameters: Parameters) -> pa.Table:
        name, dataset = need_cube(self._snapshot, statement.cube, statement.text), statement.dataset.last
        cube = self._snapshot.cube(name).cube
        rows = self._read(statement.query, parameters, f"{name}.{dataset}")

        def columns(given: ws.Columns) -> list[str]:
            return resolved(given, rows.given.names, "The query", statement.text)

        keys = statement.partition_by
        partition_on = None if keys is None else {dataset: columns(keys)}
        wider = Cube(
            cube.uuid_prefix,
            cube.dimension_columns,
            cube.partition_columns,
            cube.seed_dataset,
            cube.index_columns.union(columns(statement.index)),
            cube.suppress_index_on,
        )
        return results.changes(self._operations.extend_cube(wider, {dataset: rows}, partition_on=partition_on))

    def _create_dataset(self, statement: ws.CreateDataset, parameters: Parameters) -> pa.Table:
        uuid = statement.dataset.last
        rows = self._read(statement.query, parameters, uuid)

        names = rows.given.names
        found = self._operations.create_dataset(
            uuid,
            rows,
            partition_on=resolved(statement.partition_by, names, "The query", statement.text),
            index_columns=resolved(statement.index, names, "The query", statement.text),
            overwrite=statement.replace,
        )
        return results.changes({uuid: found})

    def _insert(self, statement: ws.Insert, parameters: Parameters) -> pa.Table:
        target = dataset_target(self._tables, statement.target, statement.text)
        constants = self._constants(statement, target)
        stored, shown = target.table.schema, target.source.name
        positions = None
        if statement.columns is not None:
            visible = [c for c in target.source.columns if c not in constants]
            positions = resolved(statement.columns, stored.names, shown, statement.text) or visible
        for column in positions or ():
            if column in constants:
                raise SqlError(f"{column!r} is given by PARTITION already.", code="syntax-error", sql=statement.text)
        rows = self._read(statement.query, parameters, shown)

        try:
            data: Any = rows.become(target_columns(rows.given, stored, positions, constants, shown))
        except SqlError as e:
            e.span, e.sql = statement.target.span, statement.text
            raise
        if target.table.table != "table":
            data = {target.table.table: data}
        call = self._operations.replace_partitions if statement.overwrite else self._operations.append_to_dataset
        return results.changes({target.dataset: call(target.uuid, data)})

    def _constants(self, statement: ws.Insert, target: Target) -> dict[str, Any]:
        """Return the constants of PARTITION by column, which has to list the partition columns of the table."""
        if statement.partition is None:
            return {}
        keys = target.table.partition_keys
        names = resolved(tuple(n for n, _ in statement.partition), keys, "PARTITION", statement.text)
        if set(names) != set(keys):
            raise SqlError(
                f"PARTITION names {', '.join(names) or 'nothing'}, but {target.source.name} is partitioned by "
                f"{', '.join(keys) or 'nothing'}.",
                code="invalid-argument",
                hint="Partitions are replaced as a whole, so PARTITION lists all partition columns, or is left out.",
                span=statement.target.span,
                sql=statement.text,
            )
        given = {name: value for name, (_, value) in zip(names, statement.partition, strict=True) if value is not None}
        return constants_of(given, target.table.schema, target.source.name)

    def _set_metadata(self, statement: ws.SetMetadata) -> pa.Table:
        uuid = need_uuid(self._snapshot, statement.target, statement.text)
        return results.changes({uuid: self._operations.set_metadata(uuid, dict(statement.metadata))})

    def _schema(self, statement: ws.RecordSchema | ws.ExportHistory | ws.ExportOdf, parameters: Parameters) -> pa.Table:
        operations = cast(Any, self._operations)
        if isinstance(statement, ws.ExportOdf):
            rows = self._read(statement.query, parameters, statement.url)
            names = rows.given.names
            key = resolved(statement.primary_key, names, "The query", statement.text)
            event = (statement.event_time,) if statement.event_time is not None else ()
            event_time = next(iter(resolved(event, names, "The query", statement.text)), None)
            found = operations.export_odf(rows, statement.url, primary_key=key, event_time=event_time)
            return results.exported(statement.url, found)
        if isinstance(statement, ws.RecordSchema):
            cube = cube_name(self._snapshot, statement.target, statement.text)
            uuid = cube or need_uuid(self._snapshot, statement.target, statement.text)
            return results.recorded(operations.record_schema(uuid))
        self._tables.find(statement.target.parts, statement.target.span, statement.text)
        name = ".".join(statement.target.parts)
        return results.exported(statement.url, operations.export_schema_history(name, statement.url))

    # -- removing ----------------------------------------------------------------------------

    def _delete(self, statement: ws.Delete, parameters: Parameters) -> pa.Table:
        source = self._tables.find(statement.target.parts, statement.target.span, statement.text)
        cube = source.cube
        if cube is None or source.name != cube.uuid_prefix:
            return self._delete_from_dataset(statement, parameters)
        keys = [c for c in cube.partition_columns if c in source.columns]
        schema = pa.schema([(c, source.columns[c]) for c in keys])
        removal = removal_of(
            self._runtime, self._settings.copy(), statement.query, parameters, schema, set(source.columns)
        )
        keys_of = {p.name: p.table.partition_keys for p in source.parts}
        datasets = self._datasets(statement, source.name, sorted(keys_of))
        for name in datasets or ():
            missing = sorted((removal.columns if removal else set()) - set(keys_of[name]))
            if missing:
                raise UsageError(
                    f"The dataset {name!r} is not partitioned by {missing[0]!r}, so nothing of it can be told by that.",
                    code="invalid-condition",
                    hint=f"Leave it out, or say WHERE true to empty it; it is partitioned by "
                    f"{', '.join(keys_of[name]) or 'nothing'}.",
                )
        if removal is None:
            return results.changes({})
        return results.changes(self._operations.remove_partitions(source.name, removal, datasets))

    def _datasets(self, statement: ws.Delete, cube: str, members: list[str]) -> list[str] | None:
        if statement.datasets is None:
            return None
        return resolved(statement.datasets, members, f"The cube {cube!r}", statement.text, "dataset")

    def _delete_from_dataset(self, statement: ws.Delete, parameters: Parameters) -> pa.Table:
        if statement.datasets is not None:
            raise SqlError(
                "DATASETS is for cubes.", code="syntax-error", span=statement.target.span, sql=statement.text
            )
        target = dataset_target(self._tables, statement.target, statement.text)
        types = target.table.types
        schema = pa.schema([(key, types[key]) for key in target.table.partition_keys])
        removal = removal_of(self._runtime, self._settings.copy(), statement.query, parameters, schema, set(types))
        if removal is None:
            return results.changes({})
        return results.changes({target.dataset: self._operations.delete_from_dataset(target.uuid, removal)})

    def _drop_cube(self, statement: ws.DropCube) -> pa.Table:
        if statement.if_exists and cube_name(self._snapshot, statement.cube, statement.text) is None:
            self._leave_to_cleanup(statement.cube)
            return results.dropped({})
        cube = need_cube(self._snapshot, statement.cube, statement.text)
        return results.dropped(self._operations.delete_cube(cube))

    def _drop_dataset(self, statement: ws.DropDataset) -> pa.Table:
        if statement.if_exists and dataset_uuid(self._snapshot, statement.dataset, statement.text) is None:
            self._leave_to_cleanup(statement.dataset)
            return results.dropped({})
        uuid = need_uuid(self._snapshot, statement.dataset, statement.text)
        return results.dropped({uuid: self._operations.delete_dataset(uuid)})

    def _leave_to_cleanup(self, named: ws.Named) -> None:
        """Mark what a write left that did not come to its end; it may still be at work, so nothing is deleted now."""
        cube, uuid = left_behind(self._snapshot, named)
        if cube is not None:
            self._operations.cleanup_cube(cube)
        elif uuid is not None and uuid not in self._snapshot.keys:
            self._operations.garbage_collect(uuid)

    def _index(self, statement: ws.CreateIndex | ws.DropIndex, call: Callable[[str, list[str]], Report]) -> pa.Table:
        target = dataset_target(self._tables, statement.target, statement.text)
        columns = resolved(statement.columns, target.table.schema.names, target.source.name, statement.text)
        return results.indexed({target.dataset: call(target.uuid, columns)}, columns)
