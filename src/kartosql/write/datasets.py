"""Plain datasets, of one table or of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from kartosql.errors import UsageError, quoted
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import Dataset
from kartosql.formats.kartothek.schema import merge_types, normalise
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.store.keys import key_problem
from kartosql.write import cubes, files, members
from kartosql.write.change import CODECS, Change
from kartosql.write.deletion import delete_datasets
from kartosql.write.inputs import Rows, invalid_data, open_rows
from kartosql.write.layout import Layout, checked_metadata, columns_of
from kartosql.write.operation import Operation, check_index_keys, no_rows, report_of
from kartosql.write.remove import Removal, same_partitions
from kartosql.write.rows import Written
from kartosql.write.schema import common_schema, widen

Names = str | Iterable[str]
_RESERVED = ("ktk_cube_", "kartosql_")  # beginnings of keys that mean something to readers


def create_dataset(
    operation: Operation,
    uuid: str,
    data: Any,
    *,
    table: str = naming.DEFAULT_TABLE,
    partition_on: Names = (),
    index_columns: Names = (),
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    format: str = "json",  # noqa: A002
) -> dict[str, Any]:
    """Write a new dataset; see Connection.create_dataset."""
    members.check_name(uuid)
    if not isinstance(format, str) or format not in CODECS:
        raise UsageError(f"format: {quoted(format)} is none of {', '.join(CODECS)}.")
    exists = bool(operation.existing([uuid]))
    if exists and not overwrite:
        raise UsageError(
            f"The dataset {uuid!r} already exists.", code="dataset-exists", hint="Pass overwrite=True to replace it."
        )
    cube = cube_of(operation.snapshot, uuid)
    if cube is not None:
        raise UsageError(
            f"{uuid!r} would be a dataset of the cube {cube[0]!r}.",
            code="invalid-cube",
            hint="Use extend_cube, or choose another name.",
        )
    keys = columns_of(partition_on, "partition_on")
    indexed = tuple(c for c in columns_of(index_columns, "index_columns") if c not in keys)
    base = Layout(uuid, uuid, keys, (), indexed, keys, checked_metadata({} if metadata is None else metadata, uuid))
    rows = _open(data, table, base)
    written = _write(operation, base, rows)
    added, pairs = _joined(operation.store, written)
    change = Change(
        uuid,
        operation.name,
        added=added,
        schemas=_schemas(written),
        partition_keys=keys,
        metadata=base.metadata,
        create=not exists,
        replace_all=exists,
        pairs=pairs,
        format=format,
    )
    return _commit(operation, change, written)


def append_to_dataset(
    operation: Operation,
    name: str,
    data: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
    replace_partitions: bool = False,
) -> dict[str, Any]:
    """Append rows to a dataset, or replace the partitions that occur in them; see Connection.append_to_dataset."""
    dataset = find_dataset(operation, name)
    cube = cube_of(operation.snapshot, dataset.uuid)
    if cube is not None:
        prefix, member = cube
        state = operation.snapshot.cube(prefix)
        return cubes.change_members(
            operation,
            state,
            {member: [data]},
            {},
            (member,),
            None if metadata is None else {member: metadata},
            replace_partitions=replace_partitions,
            convert=True,
        )[member]
    keys = next(iter(dataset.tables.values())).partition_keys
    indexed = tuple(c for c in dataset.document.indices if c not in keys)
    base = Layout(
        dataset.uuid,
        dataset.uuid,
        keys,
        (),
        indexed,
        keys,
        checked_metadata({} if metadata is None else metadata, name),
    )
    rows = _fitting(_open(data, next(iter(dataset.tables)), base), dataset)
    if replace_partitions and all(r.num_rows == 0 for r in rows.values()):
        raise no_rows(name)
    written = _write(operation, base, rows)
    if replace_partitions and not any(w.rows for w in written):
        operation.discard(written)
        raise no_rows(name)
    added, pairs = _joined(operation.store, written)
    change = Change(
        dataset.uuid,
        operation.name,
        added=added,
        pairs=pairs,
        schemas=_schemas(written),
        partition_keys=keys,
        metadata=base.metadata,
    )
    if replace_partitions:
        table = written[0].table
        change = replace(change, removed=same_partitions([entry[table] for entry in added.values()], table))
    return _commit(operation, change, written)


def delete_from_dataset(operation: Operation, name: str, removal: Removal) -> dict[str, Any]:
    """Remove partitions from a dataset; see Connection.delete_from_dataset."""
    dataset = find_dataset(operation, name)
    keys = next(iter(dataset.tables.values())).partition_keys
    change = Change(dataset.uuid, operation.name, removed=removal.of(keys, named=True))
    return _commit(operation, change, [])


def delete_dataset(operation: Operation, name: str) -> dict[str, Any]:
    """Delete a dataset with its files; see Connection.delete_dataset."""
    uuid = find_uuid(operation.snapshot, name)
    cube = cube_of(operation.snapshot, uuid)
    if cube is not None:
        return cubes.delete_cube(operation, cube[0], cube[1])[cube[1]]
    return delete_datasets(operation, [uuid])[uuid]


def set_metadata(operation: Operation, name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Set metadata of a dataset, and remove those that are None; see Connection.set_metadata."""
    dataset = find_dataset(operation, name)
    given = checked_metadata(metadata, name)
    if not given:
        raise UsageError("metadata: at least one key is needed.")
    for key in given:
        if key == "creation_time" or key.startswith(_RESERVED):
            raise UsageError(
                f"The metadata {key!r} of {name!r} belong to Kartothek or kartosql.", hint="Use another key."
            )
    values = {key: value for key, value in given.items() if value is not None}
    change = Change(dataset.uuid, operation.name, metadata=values, forgotten=frozenset(given.keys() - values.keys()))
    return _commit(operation, change, [])


# -- what there is -------------------------------------------------------------------------------


def find_uuid(snapshot: Snapshot, name: str) -> str:
    """Return the uuid of the dataset ``name``, or ``cube.dataset``; raises ``unknown-table``."""
    if isinstance(name, str):
        prefix, dot, member = name.partition(".")
        for uuid in (name, f"{prefix}{naming.CUBE_SEPARATOR}{member}" if dot else name):
            if uuid in snapshot.keys:
                return uuid
    raise unknown_dataset(name)


def unknown_dataset(name: Any) -> UsageError:
    """Return the error about a dataset that does not exist."""
    return UsageError(
        f"There is no dataset {name!r}.",
        code="unknown-table",
        hint="con.datasets() lists them; those of a cube are cube.dataset.",
    )


def find_dataset(operation: Operation, name: str) -> Dataset:
    """Return a dataset as it stands; raises ``unknown-table`` and what is wrong with it."""
    uuid = find_uuid(operation.snapshot, name)
    operation.begin_at([uuid])
    if operation.document(uuid) is None:
        raise unknown_dataset(name)
    return operation.snapshot.dataset(uuid)


def cube_of(snapshot: Snapshot, uuid: str) -> tuple[str, str] | None:
    """Return the cube that a dataset belongs to and its name there, None for a plain dataset."""
    split = naming.split_member(uuid)
    return split if split is not None and snapshot.is_cube(split[0]) else None


# -- tables --------------------------------------------------------------------------------------


def _open(data: Any, table: str, base: Layout) -> dict[str, Rows]:
    """Return the rows by table; Arrow data alone are those of ``table``."""
    given = dict(data) if isinstance(data, Mapping) else {table: data}
    if not given:
        raise invalid_data(base.name, "there are no data")
    for name in given:
        problem = key_problem(f"{base.uuid}/{name}/x") if isinstance(name, str) else "it is no text"
        if problem or not name or "/" in name or name.startswith(".") or name == "indices":
            raise UsageError(f"{name!r} is no legal table name: {problem or 'it has another meaning'}.")
    rows = {name: open_rows(frame, base.name) for name, frame in given.items()}
    types: dict[str, tuple[str, pa.DataType]] = {}
    for name, found in rows.items():
        for column in found.schema:
            other, known = types.setdefault(column.name, (name, normalise(column.type)))
            merged = merge_types(known, normalise(column.type))
            if merged is None:
                raise invalid_data(
                    base.name, f"{column.name!r} is {column.type} in {name!r}, but {known} in {other!r}", "Cast one."
                )
            types[column.name] = (other, merged)
    lost = [c for c in base.index_columns if c not in types]
    if lost:
        raise invalid_data(base.name, f"the index column {lost[0]!r} is missing")
    return rows


def _fitting(rows: Mapping[str, Rows], dataset: Dataset) -> dict[str, Rows]:
    """Return rows with the types that the tables of a dataset have; raises ``incompatible-schema``."""
    if set(rows) != set(dataset.tables):
        raise invalid_data(
            dataset.uuid,
            f"the data are of the tables {', '.join(rows)}, but it has {', '.join(dataset.tables)}",
            "Give rows of every table, if need be a table without rows.",
        )
    found = {}
    for name, table in dataset.tables.items():
        found[name] = rows[name].typed(table.schema, convert=True)
        widen(table.schema, common_schema(found[name].schema, table.partition_keys))
    return found


def _write(operation: Operation, base: Layout, rows: Mapping[str, Rows]) -> list[Written]:
    check_index_keys(base)
    written: list[Written] = []
    try:
        for table, found in rows.items():
            indexed = tuple(c for c in base.index_columns if c in found.schema.names)
            written.append(operation.write_table(found, replace(base, index_columns=indexed), table))
    except BaseException:
        operation.discard(written)
        raise
    return written


def _schemas(written: Sequence[Written]) -> dict[str, pa.Schema]:
    return {w.table: common_schema(w.schema, w.layout.partition_on) for w in written}


def _joined(store: Store, written: Sequence[Written]) -> tuple[dict[str, dict[str, str]], dict[str, pa.Table]]:
    """Return the partitions of all tables, and the pairs of their indices.

    Files of the same partition values share a label. Where a table has no rows of a partition,
    a file without rows is written, as the original wants all tables in each partition.
    """
    if len(written) == 1:
        return cubes.added(written[0]), dict(written[0].pairs)
    by_folder: dict[str, list[list[tuple[str, str] | None]]] = {}
    for at, one in enumerate(written):
        for label, key in zip(one.labels, one.keys, strict=True):
            columns = by_folder.setdefault(label.rpartition("/")[0], [[] for _ in written])
            columns[at].append((label, key))
    added: dict[str, dict[str, str]] = {}
    renamed: dict[str, str] = {}
    for columns in by_folder.values():
        for files_ in zip_longest(*columns):
            label = next(f[0] for f in files_ if f is not None)
            added[label] = {}
            for one, file in zip(written, files_, strict=True):
                if file is None:
                    added[label][one.table] = _put_empty(store, one, label)
                else:
                    added[label][one.table] = file[1]
                    renamed[file[0]] = label
    pairs: dict[str, pa.Table] = {}
    for one in written:
        for column, found in one.pairs.items():
            labels = pa.array([renamed[label] for label in found["label"].to_pylist()], pa.string())
            found = pa.table({"value": found["value"], "label": labels})
            pairs[column] = pa.concat_tables([pairs[column], found]) if column in pairs else found
    return added, {c: t.group_by(["value", "label"]).aggregate([]) for c, t in pairs.items()}


def _put_empty(store: Store, written: Written, label: str) -> str:
    layout = written.layout
    key = files.file_key(layout.uuid, label, written.table)
    rows = written.schema.empty_table().select(files.file_columns(written.schema, layout.partition_on))
    store.put(key, files.parquet_bytes(rows, files.ROW_GROUP_ROWS))
    return key


def _commit(operation: Operation, change: Change, written: Sequence[Written]) -> dict[str, Any]:
    return report_of(written, operation.commit([change], written)[change.uuid])
