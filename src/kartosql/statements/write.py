"""The statements that write: names and queries to the writes that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from kartosql.errors import SqlError, UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.result import Query
from kartosql.session import Request
from kartosql.sql import write_statements as ws
from kartosql.sql.statements import Select, Write
from kartosql.statements import results
from kartosql.statements.query_rows import QueryRows, target_columns
from kartosql.statements.removal import removal_where
from kartosql.statements.targets import (
    WriteTarget,
    cube_name,
    dataset_target,
    dataset_uuid,
    left_behind,
    need_cube,
    need_uuid,
    resolved,
)
from kartosql.write import cubes, datasets
from kartosql.write.datasets import create_index, drop_index
from kartosql.write.inputs import converted
from kartosql.write.operation import Operation


def constants_of(given: Mapping[str, Any], stored: pa.Schema, name: str) -> dict[str, Any]:
    """Return the constants of PARTITION in the types of their columns; raises ``invalid-data``."""
    found: dict[str, Any] = {}
    for column, value in given.items():
        type_ = stored.field(column).type
        try:
            found[column] = converted(pa.chunked_array([pa.array([value])]), type_)[0].as_py()
        except (OverflowError, ValueError) as e:
            raise UsageError(f"{name}: {value!r} is no {type_}, the type of {column!r}.", code="invalid-data") from e
    return found


Report = Mapping[str, Any]


def write(request: Request, statement: Write) -> Query:
    """Run a statement that writes, and return the table of what it did."""
    if request.session.read_only:
        raise UsageError(
            "The connection is read-only.",
            code="read-only",
            hint="Connect without read_only, on the command line with --write.",
        )
    return _Writing(request).run(statement)


class _Writing:
    """One statement that writes, over what the store holds now."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._session = request.session
        self._tables = request.session.tables()
        self._snapshot = self._tables.snapshot
        self._rows: QueryRows | None = None

    def run(self, statement: Write) -> Query:
        """Run the statement; hints are those of SQL, and places those in its text."""
        if not hasattr(statement, "query"):
            self._request.refuse_parameters(statement.text)
        try:
            done = self._run(statement)
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

    def _run(self, statement: Write) -> pa.Table:
        match statement:
            case ws.CreateCube():
                return self._create_cube(statement)
            case ws.AddDataset():
                return self._add_dataset(statement)
            case ws.CreateDataset():
                return self._create_dataset(statement)
            case ws.Insert():
                return self._insert(statement)
            case ws.Delete():
                return self._delete(statement)
            case ws.DropCube():
                return self._drop_cube(statement)
            case ws.DropDataset():
                return self._drop_dataset(statement)
            case ws.CreateIndex():
                return self._index(statement, create_index)
            case ws.DropIndex():
                return self._index(statement, drop_index)
            case ws.SetMetadata():
                return self._set_metadata(statement)
            case ws.CreateSkipping() | ws.RefreshSkipping() | ws.DropSkipping():
                from kartosql.statements.skipping import run_skipping

                return run_skipping(self._request, statement)
            case ws.RecordSchema() | ws.ExportHistory() | ws.ExportOdf():
                from kartosql.statements.schemas import run_schema

                return run_schema(self._session, statement, self._read)
            case _:
                assert isinstance(statement, ws.CopyCube | ws.CopyDataset | ws.Compact | ws.Cleanup | ws.Check)
                from kartosql.statements.upkeep import run_upkeep

                return run_upkeep(self._session, statement)

    # -- rows from queries -------------------------------------------------------------------

    def _read(self, query: Select, name: str) -> QueryRows:
        self._rows = QueryRows(lambda: self._request.query(query), name)
        return self._rows

    def _create_cube(self, statement: ws.CreateCube) -> pa.Table:
        rows = self._read(statement.query, statement.cube.last)

        def columns(given: ws.Columns) -> list[str]:
            return resolved(given, rows.given.names, "The query", statement.text)

        seed = statement.seed.last if statement.seed else "seed"
        keys, index = columns(statement.partition_by), columns(statement.index)
        cube = Cube(statement.cube.last, columns(statement.dimensions), keys, seed, index)
        return results.changes(
            cubes.build_cube(self._session.operation("build_cube"), cube, {seed: rows}, overwrite=statement.replace)
        )

    def _add_dataset(self, statement: ws.AddDataset) -> pa.Table:
        name, dataset = need_cube(self._snapshot, statement.cube, statement.text), statement.dataset.last
        cube = self._snapshot.cube(name).cube
        rows = self._read(statement.query, f"{name}.{dataset}")

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
        return results.changes(
            cubes.extend_cube(self._session.operation("extend_cube"), wider, {dataset: rows}, partition_on=partition_on)
        )

    def _create_dataset(self, statement: ws.CreateDataset) -> pa.Table:
        uuid = statement.dataset.last
        rows = self._read(statement.query, uuid)

        names = rows.given.names
        found = datasets.create_dataset(
            self._session.operation("create_dataset"),
            uuid,
            rows,
            partition_on=resolved(statement.partition_by, names, "The query", statement.text),
            index_columns=resolved(statement.index, names, "The query", statement.text),
            overwrite=statement.replace,
        )
        return results.changes({uuid: found})

    def _insert(self, statement: ws.Insert) -> pa.Table:
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
        rows = self._read(statement.query, shown)

        try:
            data: Any = rows.become(target_columns(rows.given, stored, positions, constants, shown))
        except SqlError as e:
            e.span, e.sql = statement.target.span, statement.text
            raise
        if target.table.table != "table":
            data = {target.table.table: data}
        operation = self._session.operation("replace_partitions" if statement.overwrite else "append_to_dataset")
        found = datasets.append_to_dataset(operation, target.uuid, data, replace_partitions=statement.overwrite)
        return results.changes({target.dataset: found})

    def _constants(self, statement: ws.Insert, target: WriteTarget) -> dict[str, Any]:
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
        return results.changes(
            {uuid: datasets.set_metadata(self._session.operation("set_metadata"), uuid, dict(statement.metadata))}
        )

    # -- removing ----------------------------------------------------------------------------

    def _delete(self, statement: ws.Delete) -> pa.Table:
        source = self._tables.find(statement.target.parts, statement.target.span, statement.text)
        cube = source.cube
        if cube is None or source.name != cube.uuid_prefix:
            return self._delete_from_dataset(statement)
        keys = [c for c in cube.partition_columns if c in source.columns]
        schema = pa.schema([(c, source.columns[c]) for c in keys])
        removal = removal_where(self._request, statement.query, schema, set(source.columns))
        keys_of = {p.name: p.table.partition_keys for p in source.parts}
        names = None
        if statement.datasets is not None:
            what = f"The cube {source.name!r}"
            names = resolved(statement.datasets, sorted(keys_of), what, statement.text, "dataset")
        for name in names or ():
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
        return results.changes(
            cubes.remove_partitions(self._session.operation("remove_partitions"), source.name, removal, names)
        )

    def _delete_from_dataset(self, statement: ws.Delete) -> pa.Table:
        if statement.datasets is not None:
            raise SqlError(
                "DATASETS is for cubes.", code="syntax-error", span=statement.target.span, sql=statement.text
            )
        target = dataset_target(self._tables, statement.target, statement.text)
        types = target.table.types
        schema = pa.schema([(key, types[key]) for key in target.table.partition_keys])
        removal = removal_where(self._request, statement.query, schema, set(types))
        if removal is None:
            return results.changes({})
        return results.changes(
            {
                target.dataset: datasets.delete_from_dataset(
                    self._session.operation("delete_from_dataset"), target.uuid, removal
                )
            }
        )

    def _drop_cube(self, statement: ws.DropCube) -> pa.Table:
        if statement.if_exists and cube_name(self._snapshot, statement.cube, statement.text) is None:
            self._leave_to_cleanup(statement.cube)
            return results.dropped({})
        cube = need_cube(self._snapshot, statement.cube, statement.text)
        return results.dropped(cubes.delete_cube(self._session.operation("delete_cube"), cube))

    def _drop_dataset(self, statement: ws.DropDataset) -> pa.Table:
        if statement.if_exists and dataset_uuid(self._snapshot, statement.dataset, statement.text) is None:
            self._leave_to_cleanup(statement.dataset)
            return results.dropped({})
        uuid = need_uuid(self._snapshot, statement.dataset, statement.text)
        return results.dropped({uuid: datasets.delete_dataset(self._session.operation("delete_dataset"), uuid)})

    def _leave_to_cleanup(self, named: ws.Named) -> None:
        """Mark what a write left that did not come to its end; it may still be at work, so nothing is deleted now."""
        from kartosql.statements.upkeep import cleanup_cube, garbage_collect

        cube, uuid = left_behind(self._snapshot, named)
        if cube is not None:
            cleanup_cube(self._session, cube)
        elif uuid is not None and uuid not in self._snapshot.keys:
            garbage_collect(self._session, uuid)

    def _index(
        self, statement: ws.CreateIndex | ws.DropIndex, change: Callable[[Operation, str, list[str]], Report]
    ) -> pa.Table:
        target = dataset_target(self._tables, statement.target, statement.text)
        columns = resolved(statement.columns, target.table.schema.names, target.source.name, statement.text)
        return results.indexed(
            {target.dataset: change(self._session.operation(change.__name__), target.uuid, columns)}, columns
        )
