"""Plain datasets, of one table or of several; metadata, inverted indices and recorded schemas of any dataset."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kartosql.errors import FormatError, KartosqlWarning, SqlError, UsageError, quoted, text_of
from kartosql.formats.kartothek import naming, versions
from kartosql.formats.kartothek.cube import invalid_cube, is_seed
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable
from kartosql.formats.kartothek.history import DAMAGED, SchemaHistory, history_of, is_sealed, plain
from kartosql.formats.kartothek.metadata import HISTORY, DatasetDocument, merge_types, normalise
from kartosql.formats.kartothek.snapshot import Snapshot, unknown_cube, unknown_dataset
from kartosql.formats.type_promotion import widened
from kartosql.parquet import file_metadata, may_hold_null
from kartosql.store import Store
from kartosql.store.keys import key_problem
from kartosql.text.types import type_name, type_names
from kartosql.write import cubes
from kartosql.write.change import CODECS, LONG_AGO, Change, Select, common_schema, evolved, read_schemas, widen
from kartosql.write.commit import Committed
from kartosql.write.files import Written, pairs_of_files
from kartosql.write.inputs import Rows, invalid_data, is_columns, open_rows
from kartosql.write.layout import Layout, check_folder, check_name, checked_metadata, columns_of, is_index_type
from kartosql.write.operation import Operation, check_index_keys, no_rows, repeated, report
from kartosql.write.removal import Removal, delete_datasets, same_partitions

if TYPE_CHECKING:
    from kartosql.typing import WriteReport

Names = str | Iterable[str]
_RESERVED = ("ktk_cube_", "kartosql_")  # beginnings of keys that mean something to readers
ORIGINALS_REFUSE = "kartothek and plateau refuse to add rows with NULL in an indexed column to a cube."
_FOOTERS = 64


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
) -> WriteReport:
    """Write a new dataset; see Connection.create_dataset."""
    check_name(uuid)
    if not isinstance(format, str) or format not in CODECS:
        raise UsageError(f"format: {quoted(format)} is none of {', '.join(CODECS)}.")
    exists = bool(operation.existing([uuid]))
    if exists and not overwrite:
        raise UsageError(
            f"The dataset {uuid!r} already exists.", code="dataset-exists", hint="Pass overwrite=True to replace it."
        )
    cube = cube_of(operation.snapshot, uuid)
    if cube is not None:
        raise invalid_cube(
            f"{uuid!r} would be a dataset of the cube {cube[0]!r}.", "Use extend_cube, or choose another name."
        )
    keys = columns_of(partition_on, "partition_on")
    base = _layout(uuid, keys, columns_of(index_columns, "index_columns"), metadata)
    rows = _open(data, table, base)
    if not exists:
        check_folder(operation.store, uuid, rows)
    written = list(operation.write(rows, _layouts(base, rows), may_be_empty=True).values())
    change = operation.adding(written, create=not exists, replace_all=exists, format=format)
    return _commit(operation, change, written)


def append_to_dataset(
    operation: Operation,
    name: str,
    data: Any,
    *,
    metadata: Mapping[str, Any] | None = None,
    replace_partitions: bool = False,
    evolve: bool = False,
    removed: Select | None = None,
    place: str | None = None,
) -> WriteReport:
    """Append rows to a dataset, or replace the partitions that occur in them; see Connection.append_to_dataset.

    With ``removed`` they take the ``place`` of other files.
    """
    if not isinstance(evolve, bool):
        raise UsageError(f"evolve: {quoted(evolve)} is neither True nor False.")
    dataset = find_dataset(operation, name)
    cube = cube_of(operation.snapshot, dataset.uuid)
    if cube is not None:
        prefix, member = cube
        state, data_of = operation.snapshot.cube(prefix), {member: [data]}
        metadata_of = None if metadata is None else {member: metadata}
        gone = {} if removed is None else {member: removed}
        places = {} if place is None else {member: place}
        more: Any = {"replace_partitions": replace_partitions, "convert": True, "evolve": evolve, "places": places}
        return cubes.change_members(operation, state, data_of, gone, (member,), metadata_of, **more)[member]
    first = next(iter(dataset.schemas))
    base = _layout(dataset.uuid, dataset.partition_keys(first), dataset.document.indices, metadata)
    rows = _fitting(_open(data, first, base if not evolve else replace(base, index_columns=())), dataset, evolve)
    if replace_partitions and all(r.num_rows == 0 for r in rows.values()):
        raise no_rows(name)
    written = list(operation.write(rows, _layouts(base, rows), may_be_empty=True).values())
    if replace_partitions and not any(w.rows for w in written):
        operation.discard(written)
        raise no_rows(name)
    change = operation.adding(written, place, removed=removed, evolve=evolve)
    if replace_partitions:
        table = written[0].layout.table
        change = replace(change, removed=same_partitions([e[table] for e in change.added.values()], table))
    return _commit(operation, change, written)


def delete_from_dataset(operation: Operation, name: str, removal: Removal) -> WriteReport:
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


def set_metadata(operation: Operation, name: str, metadata: Mapping[str, Any]) -> WriteReport:
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


def add_columns(operation: Operation, name: str, data: Any) -> WriteReport:
    """Add columns to a dataset, in which all of its rows are NULL; those of ``data`` are their names and types."""
    dataset = find_dataset(operation, name)
    table, rows = _one_table(dataset), open_rows(data, dataset.uuid)
    for column in rows.schema.names:
        if column in table.schema.names:
            raise UsageError(
                f"Dataset {dataset.uuid!r} has a column {column!r} already.",
                code="incompatible-schema",
                hint=f"Its columns are {', '.join(table.schema.names)}."[:300],
            )
    whole = evolved(table.schema, rows.schema, table.partition_keys)
    cube = cube_of(operation.snapshot, dataset.uuid)
    if cube is not None:
        cubes.check_new_columns(operation.snapshot.cube(cube[0]), cube[1], rows.schema.names)
    return _commit(operation, Change(dataset.uuid, operation.name, schemas={table.table: whole}, evolve=True), [])


def _one_table(dataset: Dataset) -> DatasetTable:
    if len(dataset.tables) > 1:
        raise UsageError(
            f"Dataset {dataset.uuid!r} has several tables, to which no columns are added.", code="incompatible-schema"
        )
    return next(iter(dataset.tables.values()))


def restore(begin: Callable[[], Operation], name: str, as_of: int | str) -> WriteReport:
    """Make a dataset what it was, as a version or at a time; see Connection.restore."""

    def attempt() -> WriteReport:
        operation = begin()
        now = find_dataset(operation, text_of(name))
        moment = as_of if type(as_of) is int else text_of(as_of, "A version is a whole number, or a time that")
        change = _back_to(operation, now, versions.read(operation.snapshot, now.uuid).at(moment))
        is_other = change.added or change.removed
        return _report(change, operation.commit([change])[now.uuid] if is_other else None)

    def turn() -> AbstractContextManager[object]:
        operation = begin()
        return operation.store.turn(find_uuid(operation.snapshot, name))

    return repeated(attempt, turn)


def restore_cube(begin: Callable[[], Operation], prefix: str, as_of: int | str) -> dict[str, WriteReport]:
    """Make all datasets of a cube what they were at a time, in one commit; see Connection.restore.

    Those that were not there then have no rows.
    """

    def attempt() -> dict[str, WriteReport]:
        operation = begin()
        state = cubes.opened_cube(operation, prefix)
        if type(as_of) is int:
            hint = "A cube goes back to a time: its datasets have versions, each its own."
            raise SqlError(f"{prefix!r} has no versions.", code="no-versions", hint=hint)
        then = versions.cube_at(operation.snapshot, prefix, text_of(as_of, "A time"))
        seed = state.cube.seed_dataset
        if seed not in then:
            hint = f"SHOW HISTORY FROM {prefix} lists when its datasets were written."
            raise SqlError(f"{prefix!r} was no cube at that time.", code="no-such-version", hint=hint)
        found = {name: operation.snapshot.dataset(state.cube.uuid(name)) for name in state.members}
        changes = {name: _back_to(operation, now, then.get(name)) for name, now in found.items()}
        done: dict[str, Committed] = {}
        if any(c.added or c.removed for c in changes.values()):
            # Also datasets that are as they were then: what others commit to them meanwhile would be of another state.
            done = operation.commit(list(changes.values()), primary=state.cube.uuid(seed))
        return {name: _report(change, done.get(change.uuid)) for name, change in changes.items()}

    return repeated(attempt, nullcontext)


def _report(change: Change, committed: Committed | None) -> WriteReport:
    """Return what was done to a dataset that went back; its files were there before."""
    return {**report((), committed), "files": sum(map(len, change.added.values()))}


def _back_to(operation: Operation, now: Dataset, then: Dataset | None) -> Change:
    """Return the change that makes a dataset what it was, without rows if it was not there."""
    if then is not None and any(not _takes(table, then.tables.get(name)) for name, table in now.tables.items()):
        raise UsageError(
            f"Dataset {now.uuid!r} had other columns or partition columns then, so its files do not fit any more.",
            code="incompatible-schema",
            hint="CREATE OR REPLACE DATASET ... AS SELECT * FROM t AT (...) writes its rows anew.",
        )
    old = dict(versions.files_of(now.document))
    new = dict(versions.files_of(then.document)) if then is not None else {}
    kept = [label for label, files in old.items() if new.get(label) == files]
    if kept != [label for label in new if label in set(kept)]:
        kept = []
    positions: dict[str, str] = {}
    stay, behind = set(kept), None
    for label in reversed(new):
        behind = label if label in stay else behind
        if behind is not None and label not in stay:
            positions[label] = behind
    added = {label: files for label, files in new.items() if label not in stay}
    gone = frozenset(old.keys() - stay)
    return Change(now.uuid, operation.name, added, gone, positions=positions, started=LONG_AGO, exact=True)


def _takes(table: DatasetTable, old: DatasetTable | None) -> bool:
    """Return whether files that an older state of a table had can be read as files of the table."""
    if old is None or old.partition_keys != table.partition_keys:
        return False
    types = {f.name: f.type for f in table.schema}
    pairs = [(types.get(f.name), f.type) for f in old.schema]
    fitting = all(
        known is not None
        and known in (merge_types(known, type_), *([widened(known, type_)] if pa.types.is_decimal(type_) else ()))
        for known, type_ in pairs
    )
    return fitting and table.may_lack.issuperset(types.keys() - set(old.schema.names))


# -- what there is -------------------------------------------------------------------------------


def find_uuid(snapshot: Snapshot, name: str) -> str:
    """Return the uuid of the dataset ``name``, or ``cube.dataset``; raises ``unknown-table``."""
    return _uuid_among(snapshot.keys, name)


def _uuid_among(known: Collection[str], name: str) -> str:
    if isinstance(name, str):
        prefix, dot, member = name.partition(".")
        for uuid in (name, f"{prefix}{naming.CUBE_SEPARATOR}{member}" if dot else name):
            if uuid in known:
                return uuid
    raise unknown_dataset(name)


def dataset_of(store: Store, name: str) -> str:
    """Return the uuid of the dataset ``name`` or ``cube.dataset``, or of what a crash left of it.

    Raises ``unknown-table``.
    """
    return _uuid_among(_uuids_in(store), text_of(name))


def members_of(store: Store, cube: str) -> dict[str, str]:
    """Return the uuids of the datasets below a cube's name, also of what a crash left of one.

    Raises ``unknown-table``.
    """
    found = {}
    for uuid in _uuids_in(store):
        split = naming.split_member(uuid)
        if split is not None and split[0] == cube:
            found[split[1]] = uuid
    if not found:
        raise unknown_cube(cube)
    return found


def _uuids_in(store: Store) -> list[str]:
    found = (entry.name if entry.is_dir else naming.metadata_uuid(entry.name) for entry in store.list_root())
    return [uuid for uuid in found if uuid is not None and naming.is_dataset_uuid(uuid)]


def find_dataset(operation: Operation, name: str) -> Dataset:
    """Return a dataset as of now; raises ``unknown-table`` and what is wrong with it."""
    uuid = find_uuid(operation.snapshot, name)
    operation.begin_at([uuid])
    if operation.document(uuid) is None:
        raise unknown_dataset(name)
    return operation.snapshot.dataset(uuid)


def cube_of(snapshot: Snapshot, uuid: str) -> tuple[str, str] | None:
    """Return the cube that a dataset belongs to and its name there, None for a plain dataset."""
    split = naming.split_member(uuid)
    return split if split is not None and snapshot.is_cube(split[0]) else None


def _layout(uuid: str, keys: tuple[str, ...], indexed: Iterable[str], metadata: Mapping[str, Any] | None) -> Layout:
    indexed = tuple(c for c in indexed if c not in keys)
    return Layout(uuid, uuid, keys, (), indexed, keys, checked_metadata({} if metadata is None else metadata, uuid))


# -- tables --------------------------------------------------------------------------------------


def _open(data: Any, table: str, base: Layout) -> dict[str, Rows]:
    """Return the rows by table; Arrow data and columns alone are those of ``table``."""
    given = dict(data) if isinstance(data, Mapping) and not is_columns(data) else {table: data}
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
                mine, theirs = type_names(column.type, known)
                message = f"{column.name!r} is {mine} in {name!r}, but {theirs} in {other!r}"
                raise invalid_data(base.name, message, "Cast one.")
            types[column.name] = (other, merged)
    lost = [c for c in base.index_columns if c not in types]
    if lost:
        raise invalid_data(base.name, f"the index column {lost[0]!r} is missing")
    return rows


def _fitting(rows: Mapping[str, Rows], dataset: Dataset, evolve: bool) -> dict[str, Rows]:
    """Return rows with the types that the tables of a dataset have; raises ``incompatible-schema``.

    With ``evolve`` they may have other columns, too, and are filled with NULL where they lack some.
    """
    if evolve:
        _one_table(dataset)
    if set(rows) != set(dataset.schemas):
        raise invalid_data(
            dataset.uuid,
            f"the data are of the tables {', '.join(rows)}, but it has {', '.join(dataset.schemas)}",
            "Give rows of every table, if need be a table without rows.",
        )
    found = {}
    for name, schema in dataset.schemas.items():
        keys = dataset.partition_keys(name)
        if evolve:
            schema = evolved(schema, rows[name].schema, keys)
        found[name] = rows[name].typed(schema, convert=True)
        if evolve:
            found[name] = found[name].filled(schema)
        here = found[name].schema
        widen(schema, common_schema(here, tuple(key for key in keys if key in here.names)))
    return found


def _layouts(base: Layout, rows: Mapping[str, Rows]) -> dict[str, Layout]:
    """Return the layout of each table, of which only some have the columns of indices."""
    return {
        table: replace(base, table=table, index_columns=tuple(c for c in base.index_columns if c in found.schema.names))
        for table, found in rows.items()
    }


def _commit(operation: Operation, change: Change, written: Sequence[Written]) -> WriteReport:
    return report(written, operation.commit([change], written)[change.uuid])


# -- indices and schemas of any dataset ------------------------------------------------------------


def create_index(operation: Operation, name: str, columns: str | Iterable[str]) -> dict[str, Any]:
    """Build indices of a dataset; see Connection.create_index."""
    dataset = find_dataset(operation, name)
    names = _some(columns)
    for column in names:
        _check_column(dataset, column)
    check_index_keys(Layout(dataset.uuid, dataset.uuid, index_columns=names))
    _warn_of_nulls(operation, dataset, names)
    pairs = _pairs(operation, dataset, names)
    labels = frozenset(dataset.document.labels or ())
    change = Change(dataset.uuid, operation.name, indices=pairs, indexed=labels)
    done = operation.commit([change])[dataset.uuid]
    values = {column: pc.count_distinct(found["value"]).as_py() for column, found in pairs.items()}
    return {"columns": list(names), "values": values, "sequence": done.sequence, "id": done.id}


def drop_index(operation: Operation, name: str, columns: str | Iterable[str]) -> dict[str, Any]:
    """Drop indices of a dataset; see Connection.drop_index."""
    dataset = find_dataset(operation, name)
    names = _some(columns)
    metadata = dataset.document.metadata
    for column in names:
        if column not in dataset.document.indices:
            raise UsageError(
                f"Dataset {dataset.uuid!r}: {column!r} has no index.",
                code="not-indexed",
                hint=f"Indices: {', '.join(dataset.document.indices) or 'none'}.",
            )
        needed = set(metadata.get("ktk_cube_dimension_columns", ())) - set(
            metadata.get("ktk_cube_suppress_index_on", ())
        )
        if is_seed(metadata) and column in needed and cube_of(operation.snapshot, dataset.uuid):
            raise invalid_cube(
                f"Dataset {dataset.uuid!r}: {column!r} is a dimension column, whose index a seed needs.",
                "Build the cube with suppress_index_on to do without.",
            )
    done = operation.commit([Change(dataset.uuid, operation.name, indices=dict.fromkeys(names))])[dataset.uuid]
    return {"columns": list(names), "sequence": done.sequence, "id": done.id}


def _some(columns: str | Iterable[str]) -> tuple[str, ...]:
    names = columns_of(columns, "columns")
    if not names:
        raise UsageError("columns: at least one name is needed.")
    return names


def _check_column(dataset: Dataset, column: str) -> None:
    found = [t for t in dataset.tables.values() if column in t.schema.names]
    if not found:
        known = dict.fromkeys(name for t in dataset.tables.values() for name in t.schema.names)
        raise SqlError(
            f"Dataset {dataset.uuid!r} has no column {column!r}.",
            code="unknown-column",
            hint=f"Columns: {', '.join(known)}.",
        )
    if column in found[0].partition_keys:
        raise invalid_data(dataset.uuid, f"{column!r} is a partition column, which needs no index")
    if column == "partition":
        raise invalid_data(dataset.uuid, "a column named 'partition' cannot be indexed", "Rename it.")
    for table in found:
        type_ = table.schema.field(column).type
        if not is_index_type(type_):
            raise invalid_data(dataset.uuid, f"{column!r} is {type_name(type_)}, which cannot be indexed")


def _warn_of_nulls(operation: Operation, dataset: Dataset, columns: Sequence[str]) -> None:
    """Warn of NULLs in columns of a cube's dataset, which the originals refuse once the columns are indexed."""
    if cube_of(operation.snapshot, dataset.uuid) is None:
        return
    (table,) = dataset.tables.values()
    read = partial(file_metadata, operation.store, with_columns=True)
    left = list(columns)
    for at in range(0, len(table.files), _FOOTERS):
        footers = [found for found, _ in operation.store.map(read, table.files[at : at + _FOOTERS])]
        for column in [c for c in left if any(may_hold_null(found, c) for found in footers)]:
            left.remove(column)
            warnings.warn(
                f"Dataset {dataset.uuid!r}: {column!r} holds NULL, which its index leaves out. {ORIGINALS_REFUSE}",
                KartosqlWarning,
                stacklevel=4,
            )
        if not left:
            return


def _pairs(operation: Operation, dataset: Dataset, columns: Sequence[str]) -> dict[str, pa.Table]:
    """Return the values of columns with the labels of the partitions that hold them."""
    found: dict[str, list[pa.Table]] = {column: [] for column in columns}
    for table in dataset.tables.values():
        here = [column for column in columns if column in table.schema.names]
        if operation.spark is None:
            pairs = {column: pairs_of_files(operation.store, table, table.labels, column) for column in here}
        else:
            from kartosql.write.spark.upkeep import pairs_of_columns

            pairs = pairs_of_columns(operation, table, here)
        for column in here:
            found[column].append(pairs[column])
    return {column: pa.concat_tables(tables) for column, tables in found.items()}


def record_schema(operation: Operation, uuid: str) -> list[dict[str, Any]]:
    """Add the schema of each table to the history, where it is not there yet, and seal it.

    A history that is broken is put aside, and a new one begun. Returns for each table its name,
    version and block, and whether something was recorded. Raises ``unknown-table``.
    """
    operation.begin_at([uuid])
    document = operation.document(uuid)
    if document is None:
        raise unknown_dataset(uuid)
    before, is_broken = None, False
    try:
        before = checked_history(document)
    except FormatError:
        is_broken = True
    history = before
    if before is None or not _is_up_to_date(operation, document, before):
        metadata = {DAMAGED: document.metadata[HISTORY]} if is_broken else {}
        done = operation.commit([Change(uuid, operation.name, metadata=metadata, restart_history=is_broken)])
        after = done[uuid].document
        history = history_of(after) if after is not None else None
    old = {name: table.head for name, table in before.tables.items()} if before is not None else {}
    return [
        {
            "dataset": uuid,
            "table": name,
            "version": table.chain.schemas[-1].number,
            "block": table.head,
            "recorded": old.get(name) != table.head,
        }
        for name, table in (history.tables.items() if history is not None else ())
    ]


def checked_history(document: DatasetDocument) -> SchemaHistory | None:
    """Return the schema history of a document, None if it has none; raises FormatError for one that is broken."""
    history = history_of(document)
    for table in history.tables.values() if history is not None else ():
        _ = table.chain
    return history


def _is_up_to_date(operation: Operation, document: DatasetDocument, history: SchemaHistory) -> bool:
    if not is_sealed(history, document):
        return False
    known = read_schemas(operation.store, document)
    return all(name in history.tables and history.tables[name].newest.equals(plain(s)) for name, s in known.items())
