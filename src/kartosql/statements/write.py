"""The statements that write."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from kartosql.conditions import check_types, parse_conditions, to_sql
from kartosql.engines.duckdb.statement import table_names
from kartosql.errors import SqlError, UsageError
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.dataset import DatasetTable
from kartosql.plan.bind import OnlyTable, Parameters, condition_columns
from kartosql.query import SelectQuery
from kartosql.result import Query
from kartosql.session import Request, Session
from kartosql.settings import Settings
from kartosql.sql import parse_select
from kartosql.sql import write_statements as ws
from kartosql.sql.statements import Select, Write
from kartosql.statements import targets, views
from kartosql.statements.query_rows import QueryRows
from kartosql.statements.row_changes import change_rows
from kartosql.statements.targets import COMMIT, COUNT, TEXT, WriteTarget, changes, dropped, refused, table_of
from kartosql.tables.table import by_case
from kartosql.text.constants import quote
from kartosql.text.types import type_name
from kartosql.write import cubes, datasets
from kartosql.write.inputs import converted
from kartosql.write.operation import Operation
from kartosql.write.removal import Removal

_INDEXED = dict.fromkeys(("added", "removed", "kept", "unindexed", "bytes"), COUNT)


def write(request: Request, statement: Write) -> Query:
    """Run a statement that writes, and return the table of what it did."""
    request.session.check_writable()
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
        if not hasattr(statement, "query") and not isinstance(statement, ws.ChangeRows):
            self._request.refuse_parameters(statement.text)
        try:
            done = self._run(statement)
            if isinstance(statement, ws.Check | ws.Cleanup):
                return Query(done)
            counts = ("changed", "inserted") if "changed" in done.column_names else ("rows",)
            return Query(done, written=sum(sum(done[c].to_pylist()) for c in counts if c in done.column_names))
        except SqlError as e:
            query = getattr(statement, "query", None)
            if query is not None and e.sql == query.text:
                e.sql = statement.text  # every character stands at the same place in both
            raise
        except UsageError as e:
            if e.code == "dataset-exists":
                if isinstance(statement, ws.Copy):
                    e.hint = "COPY ... TO 'url' AS name gives the copy another name."
                elif isinstance(statement, ws.CreateCube | ws.CreateDataset) and not statement.replace:
                    e.hint = "CREATE OR REPLACE replaces it."
            raise
        finally:
            if self._rows is not None:
                self._rows.close()

    def _run(self, statement: Write) -> pa.Table:
        own: dict[type[Write], Callable[[Any], pa.Table]] = {
            ws.CreateCube: self._create_cube,
            ws.AddDataset: self._add_dataset,
            ws.CreateDataset: self._create_dataset,
            ws.Insert: self._insert,
            ws.Delete: self._delete,
            ws.ChangeRows: partial(change_rows, self._request),
            ws.Drop: self._drop,
            ws.ChangeIndex: self._change_index,
        }
        if (run := own.get(type(statement))) is not None:
            return run(statement)
        match statement:
            case ws.CreateView():
                return views.create_view(self._request, statement)
            case ws.AddColumn():
                target = targets.dataset_target(self._tables, statement.target, statement.text)
                rows = self._read(statement.query, statement.column.last).reader().read_all()
                operation = self._session.operation("add_column")
                return changes({target.dataset: datasets.add_columns(operation, target.table.uuid, rows)})
            case ws.SetMetadata():
                uuid = targets.need_uuid(self._snapshot, statement.target, statement.text)
                operation = self._session.operation("set_metadata")
                return changes({uuid: datasets.set_metadata(operation, uuid, dict(statement.metadata))})
            case ws.Restore():
                begin = partial(self._session.operation, "restore")
                cube = targets.cube_name(self._snapshot, statement.target)
                if cube is not None and cubes.is_cube_alone(self._snapshot, cube):
                    return changes(datasets.restore_cube(begin, cube, statement.as_of))
                uuid = targets.need_uuid(self._snapshot, statement.target, statement.text)
                return changes({uuid: datasets.restore(begin, uuid, statement.as_of)})
        if isinstance(statement, ws.Publish):
            from kartosql.statements.publish import PUBLISHED, publish

            options = statement.url, statement.type, statement.follow
            done = publish(self._session, statement.target, *options, statement.text)
            return table_of([done], PUBLISHED)
        from kartosql.statements import upkeep

        match statement:
            case ws.CreateSkipping() | ws.RefreshSkipping() | ws.DropSkipping():
                return upkeep.run_skipping(self._request, statement)
            case ws.RecordSchema() | ws.ExportHistory() | ws.ExportOdf():
                return upkeep.run_schema(self._session, statement, self._read)
        assert isinstance(statement, ws.Copy | ws.Compact | ws.Cleanup | ws.Check)
        return upkeep.run_upkeep(self._session, statement)

    # -- rows from queries -------------------------------------------------------------------

    def _read(self, query: Select, name: str) -> QueryRows:
        self._rows = QueryRows(lambda: self._request.query(query), name)
        return self._rows

    def _operation(self, name: str, new: ws.Named, text: str) -> Operation:
        """Begin to write something new; raises ``name-taken`` for the name of a view, which it would hide."""
        if (view := self._tables.view_name(new.last)) is not None:
            raise refused(
                new, text, "name-taken", f"There is a view {view!r} already.", f"DROP VIEW {view} removes it."
            )
        return self._session.operation(name)

    def _create_cube(self, statement: ws.CreateCube) -> pa.Table:
        rows, text = self._read(statement.query, statement.cube.last), statement.text
        seed = statement.seed.last if statement.seed else "seed"
        keys, index = rows.named(statement.partition_by, text), rows.named(statement.index, text)
        suppressed = rows.named(statement.suppress, text)
        cube = Cube(statement.cube.last, rows.named(statement.dimensions, text), keys, seed, index, suppressed)
        metadata = {seed: {key: value for key, value in statement.metadata if value is not None}}
        operation = self._operation("build_cube", statement.cube, text)
        return changes(cubes.build_cube(operation, cube, {seed: rows}, metadata=metadata, overwrite=statement.replace))

    def _add_dataset(self, statement: ws.AddDataset) -> pa.Table:
        name, dataset = targets.need_cube(self._snapshot, statement.cube, statement.text), statement.dataset.last
        cube = self._snapshot.cube(name).cube
        rows = self._read(statement.query, f"{name}.{dataset}")
        keys = statement.partition_by
        partition_on = None if keys is None else {dataset: rows.named(keys, statement.text)}
        wider = Cube(
            cube.uuid_prefix,
            cube.dimension_columns,
            cube.partition_columns,
            cube.seed_dataset,
            cube.index_columns.union(rows.named(statement.index, statement.text)),
            cube.suppress_index_on,
        )
        operation = self._session.operation("extend_cube")
        return changes(cubes.extend_cube(operation, wider, {dataset: rows}, partition_on=partition_on))

    def _create_dataset(self, statement: ws.CreateDataset) -> pa.Table:
        uuid = statement.dataset.last
        rows = self._read(statement.query, uuid)
        found = datasets.create_dataset(
            self._operation("create_dataset", statement.dataset, statement.text),
            uuid,
            rows,
            partition_on=rows.named(statement.partition_by, statement.text),
            index_columns=rows.named(statement.index, statement.text),
            overwrite=statement.replace,
        )
        return changes({uuid: found})

    def _insert(self, statement: ws.Insert) -> pa.Table:
        target = targets.dataset_target(self._tables, statement.target, statement.text)
        constants = self._constants(statement, target)
        stored, shown = target.table.schema, target.source.name
        positions = None
        if statement.columns is not None:
            visible = [c for c in target.source.columns if c not in constants]
            known = stored.names
            if statement.evolve:
                known = [*known, *(c.last for c in statement.columns if by_case(c.last, known) is None)]
            positions = targets.resolved(statement.columns, known, shown, statement.text) or visible
        for column in positions or ():
            if column in constants:
                raise SqlError(f"{column!r} is given by PARTITION already.", code="syntax-error", sql=statement.text)
        rows = self._read(statement.query, shown)
        try:
            rows.become(stored, positions, constants, evolve=statement.evolve)
        except SqlError as e:
            e.span, e.sql = statement.target.span, statement.text
            raise
        data = rows if target.table.table == "table" else {target.table.table: rows}
        operation = self._session.operation("replace_partitions" if statement.overwrite else "append_to_dataset")
        found = datasets.append_to_dataset(
            operation, target.table.uuid, data, replace_partitions=statement.overwrite, evolve=statement.evolve
        )
        return changes({target.dataset: found})

    def _constants(self, statement: ws.Insert, target: WriteTarget) -> dict[str, Any]:
        """Return the constants of PARTITION in the types of their columns; it has to list all partition columns."""
        if statement.partition is None:
            return {}
        keys, shown = target.table.partition_keys, target.source.name
        names = targets.resolved(tuple(n for n, _ in statement.partition), keys, "PARTITION", statement.text)
        if set(names) != set(keys):
            raise refused(
                statement.target,
                statement.text,
                "invalid-argument",
                f"PARTITION names {', '.join(names) or 'nothing'}, but {shown} is partitioned by "
                f"{', '.join(keys) or 'nothing'}.",
                "Partitions are replaced as a whole, so PARTITION lists all partition columns, or is left out.",
            )
        found: dict[str, Any] = {}
        for column, (_, value) in zip(names, statement.partition, strict=True):
            type_ = target.table.schema.field(column).type
            try:
                if value is not None:
                    found[column] = converted(pa.chunked_array([pa.array([value])]), type_)[0].as_py()
            except (OverflowError, ValueError) as e:
                raise UsageError(
                    f"{shown}: {value!r} is no {type_name(type_)}, the type of {column!r}.", code="invalid-data"
                ) from e
        return found

    # -- removing ----------------------------------------------------------------------------

    def _delete(self, statement: ws.Delete) -> pa.Table:
        source = self._tables.find(statement.target.parts, statement.target.span, statement.text)
        cube = source.cube
        if cube is None or source.name != cube.uuid_prefix:
            return self._delete_from_dataset(statement)
        keys = [c for c in cube.partition_columns if c in source.columns]
        columns = _partition_columns(self._request, statement, {c: source.columns[c] for c in keys}, source.columns)
        if columns is None:
            return change_rows(self._request, statement.by_row, statement.datasets)
        removal = _removal_where(self._request, statement, columns)
        keys_of = {p.name: p.table.partition_keys for p in source.parts}
        names = None
        if statement.datasets is not None:
            what = f"The cube {source.name!r}"
            names = targets.resolved(statement.datasets, sorted(keys_of), what, statement.text, "dataset")
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
            return changes({})
        operation = self._session.operation("remove_partitions")
        return changes(cubes.remove_partitions(operation, source.name, removal, names))

    def _delete_from_dataset(self, statement: ws.Delete) -> pa.Table:
        if statement.datasets is not None:
            raise refused(statement.target, statement.text, "syntax-error", "DATASETS is for cubes.")
        target = targets.dataset_target(self._tables, statement.target, statement.text)
        types = target.table.types
        keys = {key: types[key] for key in target.table.partition_keys}
        columns = _partition_columns(self._request, statement, keys, types)
        if columns is None:
            return change_rows(self._request, statement.by_row)
        removal = _removal_where(self._request, statement, columns)
        if removal is None:
            return changes({})
        operation = self._session.operation("delete_from_dataset")
        return changes({target.dataset: datasets.delete_from_dataset(operation, target.table.uuid, removal)})

    def _drop(self, statement: ws.Drop) -> pa.Table:
        snapshot, target, text = self._snapshot, statement.target, statement.text
        if statement.kind == "view":
            return views.drop_view(self._request, statement)
        if statement.kind == "cube":
            if statement.if_exists and targets.cube_name(snapshot, target) is None:
                return self._leave_to_cleanup(target)
            cube = targets.need_cube(snapshot, target, text)
            return dropped(cubes.delete_cube(self._session.operation("delete_cube"), cube))
        if statement.if_exists and targets.dataset_uuid(snapshot, target, text) is None:
            return self._leave_to_cleanup(target)
        uuid = targets.need_uuid(snapshot, target, text)
        return dropped({uuid: datasets.delete_dataset(self._session.operation("delete_dataset"), uuid)})

    def _leave_to_cleanup(self, named: ws.Named) -> pa.Table:
        """Mark what a write left that did not come to its end; it may still be at work, so nothing is deleted now."""
        from kartosql.statements.upkeep import cleanup_cube, garbage_collect

        cube, uuid = targets.left_behind(self._snapshot, named)
        if cube is not None:
            cleanup_cube(self._session, cube)
        elif uuid is not None and uuid not in self._snapshot.keys:
            garbage_collect(self._session, uuid)
        return dropped({})

    def _change_index(self, statement: ws.ChangeIndex) -> pa.Table:
        from kartosql.statements.upkeep import change_index

        source = self._tables.find(statement.target.parts, statement.target.span, statement.text)
        if source.is_attached and len(statement.target.parts) == 1:
            table, known = source.name, dict.fromkeys(source.columns)
        else:
            target = targets.dataset_target(self._tables, statement.target, statement.text)
            table, known = target.table.uuid, dict.fromkeys(target.table.schema.names)
        columns = targets.resolved(statement.columns, known, source.name, statement.text)
        done = change_index(self._session, table, columns, drop=statement.drop)
        if "sequence" not in done:
            rows = done.get("files") or [{"column": c} for c in columns]
            shown = {"dataset": TEXT, "column": TEXT, **({} if statement.drop else _INDEXED)}
            return table_of(({**row, "dataset": table} for row in rows), shown)
        values = done.get("values") or {}
        rows = [{**done, "dataset": target.dataset, "column": c, "values": values.get(c)} for c in columns]
        return table_of(rows, {"dataset": TEXT, "column": TEXT, "values": COUNT, **COMMIT})


# -- partitions that conditions remove -----------------------------------------------------------


def removal_of(
    session: Session, conditions: Any, types: Mapping[str, pa.DataType], partition_columns: Collection[str]
) -> Removal:
    """Return what ``conditions``, in any form that ``query_cube`` takes, remove; no condition removes everything.

    ``types`` are those of all columns that could be meant. Raises ``unknown-column`` and
    ``invalid-condition``, the latter also for columns that are no partition columns.
    """
    parsed = parse_conditions(conditions, types)
    other = sorted({c.column for c in parsed if c.column in types and c.column not in partition_columns})
    if other:
        raise UsageError(
            f"{other[0]!r} is no partition column; only whole partitions can be removed.",
            code="invalid-condition",
            hint=f"Partition columns: {', '.join(partition_columns) or 'none'}.",
        )
    checked = check_types(parsed, types)
    if parsed and not checked:
        raise UsageError(
            "The conditions restrict nothing: an interval needs a bound.",
            code="invalid-condition",
            hint="Without any condition all partitions are removed.",
        )
    # Partition values compare by code point, whatever collation the session has.
    own = session.settings.copy()
    own.set("default_collation", None)
    own.set("engine", "duckdb")

    def select(table: DatasetTable) -> Sequence[str]:
        about = [c for c in checked if c.column in table.partition_keys]
        # Dates may be given as texts, which the engine compares with them one by one only.
        predicate, parameters = to_sql(about, quote, {n for n, t in types.items() if not pa.types.is_date(t)})
        query = parse_select(f"FROM partitions WHERE {predicate}")
        return _labels(table, _matching(session, own, query, parameters, table.partitions.arrow))

    return Removal(frozenset(c.column for c in checked), select)


def _matching(
    session: Session, settings: Settings, query: Select, parameters: Parameters, values: pa.Table
) -> set[int]:
    """Return the rows of partition values that ``FROM t WHERE condition`` has; if it fails for one, that is raised."""
    number = "kartosql_part" + "_" * max(map(len, values.column_names))  # which is the name of none of them
    numbered = values.append_column(number, pa.array(range(values.num_rows), pa.int64()))
    found = SelectQuery(query, OnlyTable(numbered), session.runtime, settings, parameters).arrow()
    return set(found.column(number).to_pylist())


def _labels(table: DatasetTable, partitions: set[int]) -> list[str]:
    return [table.labels[file] for file in sorted(table.partitions.files_of(partitions))]


def _partition_columns(
    request: Request, statement: ws.Delete, keys: Mapping[str, pa.DataType], others: Collection[str]
) -> frozenset[str] | None:
    """Return the partition columns of a condition, None where it is about single rows; raises as condition_columns."""
    if statement.query.tree is None:
        table_names(statement.query.text)  # the engine says what is wrong with the text
    if statement.has_query:
        return None
    return condition_columns(statement.query, pa.schema(list(keys.items())), others, request.parameters)


def _removal_where(request: Request, statement: ws.Delete, columns: frozenset[str]) -> Removal | None:
    """Return what ``FROM t WHERE condition`` over partition ``columns`` removes; None if it holds for no partition.

    The condition is evaluated once per combination of partition values, and NULL keeps rows. A dataset that is not
    partitioned by all of the columns named keeps its rows.
    """
    query = statement.query
    matching = partial(_matching, request.session, request.settings, query, request.parameters)

    def select(table: DatasetTable) -> Sequence[str]:
        if not columns <= set(table.partition_keys) or not table.files:
            return ()
        return _labels(table, matching(table.partitions.arrow))

    if columns:
        return Removal(columns, select, needs_all=True)
    always = matching(pa.table({"": pa.array([None], pa.null())}))
    return Removal() if always else None
