"""What a commit changes in one dataset, and what a document is after it."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import json
import uuid as uuids
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.pandas_compat import get_logical_type

from kartosql.errors import ConcurrentCommit, FormatError, KartosqlError, UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable
from kartosql.formats.kartothek.history import recorded
from kartosql.formats.kartothek.metadata import (
    HISTORY,
    OWN_KEYS,
    DatasetDocument,
    added_columns,
    fingerprint,
    merge_types,
    normalise,
    read_schema,
)
from kartosql.formats.kartothek.snapshot import missing_metadata, tables_by_schema
from kartosql.formats.kartothek.stored_partitions import as_tuple
from kartosql.formats.kartothek.versions import last_listed
from kartosql.formats.type_promotion import widened
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed, Version, check_key
from kartosql.store.streams import CountedOutput
from kartosql.text.types import type_name, type_names
from kartosql.write import files, indexing
from kartosql.write.document import (
    MIN_GRACE,
    Head,
    attempts,
    check_writable,
    digest,
    expired,
    new_id,
    read_raw,
    succeed,
    unmark_garbage,
    with_marks,
)

GRACE = dt.timedelta(days=7)
# When files were written that a commit takes up again, so that it makes sure that no cleanup takes them.
LONG_AGO = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
CODECS = {"json": naming.METADATA_JSON, "msgpack": naming.METADATA_MSGPACK}
# The version whose description of columns the pandas block follows.
_PANDAS_VERSION = "1.3.5"

# Returns the labels to remove from a table as it stands; asked again whenever somebody else was faster.
Select = Callable[[DatasetTable], Sequence[str]]


@dataclass(frozen=True)
class Change:
    """A change of the dataset ``uuid``, put together before it is known what it will meet.

    ``added`` maps the labels of new partitions, in order, to their file per table, ``pairs`` each indexed column to the
    values (column ``value``) and labels (column ``label``) of the new files, and ``schemas`` each table to the schema
    of its columns, partition columns included. ``metadata`` go into the document, ``forgotten`` are the keys of those
    that leave it. ``indices`` creates an index from such pairs over the partitions with the labels ``indexed``, or
    drops it (None). With ``create`` the dataset must not exist; with ``replace_all`` whatever it holds goes away, and
    so does it with ``drop``. ``positions`` says of added labels whose place among the partitions they take, or before
    which they come if that one stays; all others come last. ``repaired`` are the ids of lost commits that this one
    brings back. With ``restart_history`` the schema history begins anew. With ``evolve`` the schemas may add to those
    that are there. ``rows`` is how many rows the new files hold, if that is known. What is ``exact`` is for the state
    that it was made for, and no other one.
    """

    uuid: str
    operation: str
    added: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    removed: Select | frozenset[str] | None = None
    pairs: Mapping[str, pa.Table] = field(default_factory=dict)
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    partition_keys: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    forgotten: frozenset[str] = frozenset()
    create: bool = False
    replace_all: bool = False
    indices: Mapping[str, pa.Table | None] = field(default_factory=dict)
    indexed: frozenset[str] = frozenset()
    started: dt.datetime | None = None
    positions: Mapping[str, str] = field(default_factory=dict)
    drop: bool = False
    repaired: tuple[str, ...] = ()
    format: str = "json"
    restart_history: bool = False
    evolve: bool = False
    rows: int | None = None
    exact: bool = False

    @property
    def starts_anew(self) -> bool:
        """Whether nothing of the present dataset is kept."""
        return self.create or self.replace_all


def apply(document: DatasetDocument | None, change: Change, removed: frozenset[str], created: str) -> DatasetDocument:
    """Return the document after ``change``, which takes the labels ``removed`` away, without its indices.

    The keys of kartosql itself are not carried over; ``created`` is the time to record where the metadata have none.
    """
    if document is None or change.starts_anew:
        known = {} if document is None else document.metadata
        followed = {k: v for k, v in known.items() if k.startswith(naming.FOLLOWED)}
        key = document.key if document is not None else change.uuid + CODECS[change.format]
        document = DatasetDocument(change.uuid, key, (), {}, change.partition_keys or (), {}, followed)
    labels, files_ = _partitions(document, change, removed)
    metadata = {k: v for k, v in document.metadata.items() if k not in OWN_KEYS and k not in change.forgotten}
    metadata.update({k: v for k, v in change.metadata.items() if k not in OWN_KEYS})
    metadata.setdefault("creation_time", created)
    keys = partition_keys_of(document)
    return replace(document, labels=labels, files=files_, partition_keys=keys, indices={}, metadata=metadata)


def partition_keys_of(document: DatasetDocument) -> tuple[str, ...]:
    """Return the partition keys of a dataset, from a file's path where the document does not name them."""
    if document.partition_keys is not None:
        return document.partition_keys
    for table, keys in document.files.items():
        for key in keys:
            if key is not None:
                return naming.derive_partition_keys(naming.folder_of(key, document.uuid, table))
    return ()


def _partitions(
    document: DatasetDocument, change: Change, removed: frozenset[str]
) -> tuple[Sequence[str], Mapping[str, Sequence[str | None]]]:
    stored = document.stored if not removed and not change.positions else None
    if stored is not None and (more := stored.with_more(change.added)) is not None:
        return more.texts[0], {more.table: more.texts[1]}
    old, added = document.labels or (), list(change.added)
    labels = (*old, *added)
    columns = {}
    for table in dict.fromkeys([*document.files, *chain.from_iterable(change.added.values())]):
        before = as_tuple(document.files.get(table, (None,) * len(old)))
        columns[table] = before + tuple([change.added[label].get(table) for label in added])
    if removed or change.positions:
        order = _order(labels, len(old), removed, change.positions)
        labels = tuple([labels[at] for at in order])
        columns = {table: tuple([column[at] for at in order]) for table, column in columns.items()}
        if document.stored is not None and columns.keys() == {table := document.stored.table}:
            spliced = document.stored.changed(removed, change.added, change.positions, (labels, columns[table]))
            if spliced is not None:
                return spliced.texts[0], {table: spliced.texts[1]}
    return labels, {table: column for table, column in columns.items() if any(key is not None for key in column)}


def _order(labels: Sequence[str], old: int, removed: frozenset[str], positions: Mapping[str, str]) -> list[int]:
    """Return which labels stay, of which the first ones are ``old``, each behind those that come in front of it."""
    places = set(positions.values())
    found = {label: at for at, label in enumerate(labels[:old]) if label in places or label in removed}
    before: dict[int, list[int]] = {}
    late: list[int] = []
    for at, label in enumerate(labels[old:], old):
        place = found.get(positions.get(label, ""))
        (late if place is None else before.setdefault(place, [])).append(at)
    order, start = list[int](), 0
    for at in sorted(found.values()):
        order += [*range(start, at), *before.get(at, ()), *([] if labels[at] in removed else [at])]
        start = at + 1
    return [*order, *range(start, old), *late]


def common_schema(schema: pa.Schema, partition_on: tuple[str, ...]) -> pa.Schema:
    """Return the schema that Kartothek records for a table: partition keys, then by name.

    Types are normalised; a pandas block is attached, without which Kartothek refuses to append.
    """
    names = [*partition_on, *sorted(n for n in schema.names if n not in partition_on)]
    return _with_pandas_block([pa.field(n, normalise(schema.field(n).type)) for n in names], {})


def _incompatible(problem: str, hint: str | None = None) -> UsageError:
    return UsageError(problem, code="incompatible-schema", hint=hint)


def evolved(old: pa.Schema, new: pa.Schema, partition_on: tuple[str, ...]) -> pa.Schema:
    """Return ``old`` with the columns that only ``new`` has, and with decimals of as many digits as both need.

    ``old`` itself is returned where nothing is to be added. Raises ``incompatible-schema`` for a new column without
    a type, and for one that differs from another in case alone.
    """
    types = {f.name: f.type for f in old}
    spelled = {name.lower(): name for name in types}
    for column in new:
        name, type_ = column.name, normalise(column.type)
        known = types.get(name)
        if known is None:
            other = spelled.setdefault(name.lower(), name)
            if pa.types.is_null(type_):
                raise _incompatible(f"The new column {name!r} has no values, so it has no type.", "Cast it to one.")
            if other != name:
                raise _incompatible(f"The new column {name!r} differs from {other!r} in case alone.", "Rename it.")
            types[name] = type_
        elif pa.types.is_decimal(known) and pa.types.is_decimal(type_):
            types[name] = widened(known, type_) or known
    if types == {f.name: f.type for f in old}:
        return old
    return common_schema(pa.schema(list(types.items())), partition_on)


def widen(old: pa.Schema, new: pa.Schema, may_lack: Set[str] = frozenset()) -> pa.Schema:
    """Return the schema that holds what ``old`` and ``new`` hold, in the order of ``old``.

    Both have the same columns of the same normalised types, except that a column of type null takes any, and
    that ``new`` may lack some; ``old`` itself is returned where nothing is to be widened.
    Raises ``incompatible-schema``, which names the first column that does not fit.
    """
    for name in sorted(set(old.names).symmetric_difference(new.names) - may_lack):
        known = name in old.names
        raise _incompatible(
            f"The column {name!r} is missing in the new data."
            if known
            else f"The new data have a column {name!r} that the table does not have.",
            f"The columns of the table are {', '.join(old.names)}."[:300],
        )
    fields = []
    for column in old:
        if column.name not in new.names:
            fields.append(column)
            continue
        left, right = normalise(column.type), normalise(new.field(column.name).type)
        type_ = merge_types(left, right)
        if type_ is None:
            names = type_names(left, right)
            raise _incompatible(
                f"The column {column.name!r} is {names[0]} in the table, but {names[1]} in the new data.",
                f"Cast the new column to {type_name(left)}.",
            )
        fields.append(column if type_.equals(column.type) else pa.field(column.name, type_))
    if all(f.type.equals(o.type) for f, o in zip(fields, old, strict=True)):
        return old
    return _with_pandas_block(fields, old.metadata or {})


def _with_pandas_block(fields: list[pa.Field], metadata: Mapping[bytes, bytes]) -> pa.Schema:
    block = {
        "index_columns": [],
        "column_indexes": [],
        "columns": [_pandas_column(f.name, f.type) for f in fields],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": _PANDAS_VERSION,
    }
    return pa.schema(fields, metadata={**metadata, b"pandas": json.dumps(block).encode()})


def schema_bytes(schema: pa.Schema) -> bytes:
    """Return ``schema`` as a Parquet file without rows."""
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema, sink, version="2.6", coerce_timestamps="us", use_compliant_nested_type=False)
    return bytes(sink.getvalue().to_pybytes())


def _pandas_column(name: str, type_: pa.DataType) -> dict[str, Any]:
    numpy_type, details = "object", None
    pandas_type = get_logical_type(type_)
    if pa.types.is_timestamp(type_):
        numpy_type = "datetime64[ns]"
        details = {"timezone": type_.tz} if type_.tz else None
    elif pa.types.is_decimal(type_):
        details = {"precision": type_.precision, "scale": type_.scale}
    elif pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_):
        numpy_type = pandas_type
    return {"name": name, "field_name": name, "pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": details}


class HeadMoved(Exception):
    """The document was written meanwhile, so the caller reads it again."""


@dataclass(frozen=True)
class Schemas:
    """The schemas of the tables, of which ``pending`` files are to be put once the document says so."""

    known: Mapping[str, pa.Schema]
    pending: Mapping[str, bytes] = field(default_factory=dict)
    added: Mapping[str, frozenset[str]] = field(default_factory=dict)  # columns that files may lack

    def mark(self) -> dict[str, str]:
        """Return the entry of the document until the pending files are in place."""
        return {table: base64.b64encode(data).decode() for table, data in self.pending.items()}

    def table(self, document: DatasetDocument, name: str | None = None) -> DatasetTable:
        """Return a table of ``document``, the first one unless it is named."""
        tables = Dataset(document, self.known).tables
        return tables[name] if name is not None else next(iter(tables.values()))


def read_schemas(store: Store, document: DatasetDocument) -> dict[str, pa.Schema]:
    """Return the schema of each table of a dataset; raises ``missing-metadata`` and ``invalid-schema``."""
    tables = list(document.tables) or _listed_tables(store, document.uuid)
    return {table: _stored(store, document.uuid, table)[0] for table in tables}


def _listed_tables(store: Store, uuid: str) -> list[str]:
    """Return the tables of a dataset without partitions, which only its schema files show."""
    try:
        store.read_versioned(naming.schema_key(uuid, naming.DEFAULT_TABLE))
        return [naming.DEFAULT_TABLE]
    except KeyError:
        return tables_by_schema(store.list_below(f"{uuid}/")) or [naming.DEFAULT_TABLE]


def _stored(store: Store, uuid: str, table: str) -> tuple[pa.Schema, Version]:
    key = naming.schema_key(uuid, table)
    try:
        data, version = store.read_versioned(key)
    except KeyError:
        raise missing_metadata(uuid, key) from None
    return read_schema(data, key), version


def _widened(store: Store, head: Head, change: Change, keys: tuple[str, ...]) -> Schemas:
    """Return the schemas of a dataset after a change that keeps its rows; files are widened where needed.

    Raises ``incompatible-schema`` for columns that do not fit and HeadMoved.
    """
    heal(store, head)
    known, pending = read_schemas(store, head.document), dict[str, bytes]()
    added = added_columns(head.document.metadata)
    strange = [t for t in change.schemas if t not in known]
    if strange or (head.document.tables and change.added and change.schemas and set(change.schemas) != set(known)):
        raise _incompatible(
            f"Dataset {change.uuid!r}: it has the tables {', '.join(known)}, the new data have "
            f"{', '.join(change.schemas)}",
            "Give all tables of the dataset, and no others.",
        )
    for table, schema in change.schemas.items():
        key = naming.schema_key(head.uuid, table)
        for _ in attempts(key):
            known[table], version = _stored(store, head.uuid, table)
            before = known[table]
            try:
                wider = evolved(before, schema, keys) if change.evolve else before
                # Who wrote files before a column was added did not know of it.
                target = widen(wider, common_schema(schema, keys), added.get(table, frozenset()))
            except UsageError:
                _check_unmoved(store, head)
                raise
            if target.equals(before):
                break
            if wider is not before:
                # Readers of the document as it stands expect no more than their files have.
                known[table] = target
                pending[table] = schema_bytes(_unique(common_schema(target, keys)))
                added[table] = added.get(table, frozenset()) | {*wider.names}.difference(before.names)
                break
            target = common_schema(target, keys)
            # Widening only replaces the type null, so it does no harm where the commit then fails.
            with contextlib.suppress(PreconditionFailed, OutcomeUnknown):
                store.put_if(key, schema_bytes(target), version)
                known[table] = target
                break
    return Schemas(known, pending, added)


def _replaced(store: Store, change: Change, keys: tuple[str, ...]) -> Schemas:
    """Return the schemas of a dataset that starts anew.

    A file that is not there yet is put, as nobody reads it before the document. One that says
    something else is left to ``heal``: the document of the old rows may still count.
    """
    known: dict[str, pa.Schema] = {}
    pending: dict[str, bytes] = {}
    for table, schema in change.schemas.items():
        target = known[table] = common_schema(schema, keys)
        key = naming.schema_key(change.uuid, table)
        for _ in attempts(key):
            with contextlib.suppress(PreconditionFailed, OutcomeUnknown):
                try:
                    data = store.read_versioned(key)[0]
                except KeyError:
                    store.put_if(key, schema_bytes(target), None)
                else:
                    if not _says(data, key, target):
                        pending[table] = schema_bytes(_unique(target))
                break
    return Schemas(known, pending, added_columns(change.metadata))


def _says(data: bytes, key: str, target: pa.Schema) -> bool:
    try:
        stored = read_schema(data, key)
    except FormatError:
        return False
    return bool(stored.equals(target)) and b"pandas" in (stored.metadata or {})


def _unique(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` with a mark that makes its file unlike any other.

    Who is late in replacing a file would else take a later one of the same content for the one that he was to replace.
    """
    block = json.loads(schema.metadata[b"pandas"])
    block["creator"]["id"] = new_id()
    return schema.with_metadata({b"pandas": json.dumps(block).encode()})


def nanoseconds(moment: dt.datetime) -> int:
    """Return a moment in nanoseconds since 1970."""
    past = moment - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return past // dt.timedelta(microseconds=1) * 1000


def heal(store: Store, head: Head) -> None:
    """Put the schema files that the document asks for in their place; raises HeadMoved if it does no more."""
    for table, data in head.pending_schemas.items():
        key = naming.schema_key(head.uuid, table)
        for _ in attempts(key):
            version: Version | None = None
            with contextlib.suppress(KeyError):
                stored, version = store.read_versioned(key)
                if stored == data:
                    break
            # Only a file that was read while the document asked for the new one may be replaced.
            _check_unmoved(store, head)
            with contextlib.suppress(PreconditionFailed, OutcomeUnknown):
                store.put_if(key, data, version)
                break


def _check_unmoved(store: Store, head: Head) -> None:
    now = read_raw(store, head.uuid)
    if now is None or now.version != head.version:
        raise HeadMoved


@dataclass(frozen=True)
class Prepared:
    """The document that a change leads to; ``index_keys`` are the files that were written for it alone."""

    document: DatasetDocument
    index_keys: tuple[str, ...]
    removed: frozenset[str]
    has_pending: bool


def rebase(
    store: Store,
    change: Change,
    head: Head | None,
    base: Head | None,
    *,
    commit_id: str,
    now: dt.datetime,
    grace: dt.timedelta = GRACE,
    along: Sequence[str] = (),
) -> Prepared:
    """Return what ``change``, planned on ``base``, makes of ``head``; marks of changes under way are kept.

    ``along`` are the ids of further commits that it consists of, for each of which there is a version.
    Raises ConcurrentCommit where the two do not go together, ``incompatible-schema``,
    ``implicit-partitions`` and ``commit-expired``; HeadMoved where the head is out of date.
    """
    check_conflicts(change, head, base)
    live = None if head is None or head.is_absent else head
    kept = None if change.starts_anew else live
    if kept is not None:
        check_writable(kept.document)
    _check_files(store, change, now, grace)
    keys = _partition_keys(change, kept)
    schemas = _replaced(store, change, keys) if kept is None else _widened(store, kept, change, keys)
    removed = _removed_labels(change, live, base, schemas)
    created = now.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds")
    document = apply(live.document if live is not None else None, change, removed, created)
    if head is not None:
        document = replace(document, key=head.key)
    before = kept.document if kept is not None else None
    indices, index_keys = _IndexWork(store, change, before, schemas, removed, document).write(created)
    source = change.metadata if live is None or change.create else live.document.metadata
    history = None if change.restart_history else source.get(HISTORY)
    document = with_marks(
        replace(document, indices=indices),
        intent=head.intent._asdict() if head is not None and head.intent is not None else None,
        unfinished=head.unfinished if head is not None else None,
        schema=schemas.mark(),
        added_columns={table: sorted(names) for table, names in schemas.added.items() if names},
    )
    with contextlib.suppress(FormatError):  # one that is broken stays as it is
        history = recorded(history, schemas.known, document, nanoseconds(now))
    document = with_marks(document, schema_history=history)
    identity = succeed(
        head.identity if head is not None else None,
        commit_id=commit_id,
        digest=digest(document),
        operation=change.operation,
        time=now,
        schemas={table: fingerprint(schema) for table, schema in schemas.known.items()},
        anew=kept is None,
        removes=bool(removed),
        foreign=None if live is None or live.is_own else last_listed(store, live.uuid),
        along=along,
    )
    return Prepared(with_marks(document, commit=identity.to_dict()), index_keys, removed, bool(schemas.pending))


def _partition_keys(change: Change, head: Head | None) -> tuple[str, ...]:
    if head is None:
        return change.partition_keys or ()
    keys = partition_keys_of(head.document)
    if change.partition_keys is not None and change.added and change.partition_keys != keys:
        raise _incompatible(
            f"Dataset {change.uuid!r}: it is partitioned by {', '.join(keys) or 'nothing'}, the new files "
            f"by {', '.join(change.partition_keys) or 'nothing'}"
        )
    return keys


def _check_files(store: Store, change: Change, now: dt.datetime, grace: dt.timedelta) -> None:
    """Make sure of files that were written long ago: what nothing refers to is removed some day."""
    # A cleanup elsewhere may have a shorter grace period than this one.
    if change.started is None or now - change.started <= min(grace, MIN_GRACE) / 2:
        return
    keys = {key for entry in change.added.values() for key in entry.values()}
    unmark_garbage(store, change.uuid, keys)
    try:
        store.sizes(sorted(keys))
    except KeyError as e:
        raise expired(change.uuid, e.args[0]) from None


# -- conflicts ---------------------------------------------------------------------------------------


def check_conflicts(change: Change, head: Head | None, base: Head | None) -> None:
    """Raise ConcurrentCommit if the dataset is not, or no more, what ``change`` needs to find."""
    exists = head is not None and not head.is_absent
    if base is None:
        if change.create and exists:
            raise conflict(change, head, "the dataset exists by now")
        if not change.create and not exists:
            raise conflict(change, None, "there is no such dataset")
        return
    if head is None or not exists:
        raise conflict(change, None, "the dataset was dropped")
    if head.version == base.version:
        return
    if _is_another(head, base):
        raise conflict(change, head, "the dataset was replaced")
    if (change.replace_all or change.drop or change.exact) and _content(head) != _content(base):
        raise conflict(change, head, "the dataset was changed")


def _is_another(head: Head, base: Head) -> bool:
    """Return whether the dataset was made anew, or all of it replaced."""
    if head.identity is None and base.identity is not None:
        # Another program wiped the metadata; if it kept files, it did no more.
        labels = base.document.labels or ()
        return bool(labels) and set(labels).isdisjoint(head.document.labels or ())
    origins = [h.identity.origin if h.identity is not None else None for h in (head, base)]
    return origins[0] != origins[1]


def _content(head: Head) -> tuple[str, dict[str, Any]]:
    return head.digest, {k: v for k, v in head.document.metadata.items() if k not in OWN_KEYS}


def _removed_labels(change: Change, head: Head | None, base: Head | None, schemas: Schemas) -> frozenset[str]:
    """Return the labels that ``change`` takes away from ``head``; raises ConcurrentCommit."""
    if head is None:
        return frozenset()
    labels = head.document.labels or ()
    if change.starts_anew:
        return frozenset(labels)
    if change.removed is None:
        return frozenset()
    if not callable(change.removed):
        gone = change.removed.difference(labels)
        if gone:
            raise conflict(change, head, f"the partition {min(gone)!r} is gone")
        return change.removed
    found = frozenset(change.removed(schemas.table(head.document)))
    if base is not None and base.version != head.version:
        # Whoever wrote these did not see the removal, and the removal did not see them.
        late = found.difference(base.document.labels or ())
        if late:
            raise conflict(change, head, f"the partition {min(late)!r}, which it would remove, was added")
    return found


def conflict(change: Change, head: Head | None, what: str) -> ConcurrentCommit:
    """Return the error for a change that somebody else was faster than."""
    winner: dict[str, Any] = {}
    by = ""
    identity = head.identity if head is not None and not head.is_foreign else None
    if identity is not None:
        winner = {"operation": identity.operation, "id": identity.id, "time": identity.time}
        by = f", last by {identity.operation} {identity.id} at {identity.time}"
    elif head is not None:
        winner = {"operation": "unknown", "id": None, "time": None}
        by = ", last by another program"
    return ConcurrentCommit(
        f"Dataset {change.uuid!r}: {change.operation} cannot be committed, as {what}{by}",
        winner=winner,
        hint="Nothing was changed. Look at the dataset as it stands now and try again.",
    )


# -- indices -----------------------------------------------------------------------------------------

MOST_REMOVED, MOST_ROWS = 16, 100_000  # files that go, and their rows, up to which they are read for an index
# An index as it stands in its file, the labels that go and their pairs, if these are known, and the pairs that are new.
_Parts = tuple[indexing.StoredIndex | None, frozenset[str], pa.Table | None, pa.Table]


@dataclass(frozen=True)
class _IndexWork:
    """What there is to do for the inverted indices of a document.

    ``before`` is the document with the indices as they are, None of a dataset that starts anew; ``document`` is the
    next one, but for its indices.
    """

    store: Store
    change: Change
    before: DatasetDocument | None
    schemas: Schemas
    removed: frozenset[str]
    document: DatasetDocument

    def write(self, created: str) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the indices by column and the keys of those files that are new."""
        old = self.before.indices if self.before is not None else {}
        wanted = {c: w for c, w in old.items() if self.change.indices.get(c, ...) is not None}
        new = [*(self.change.pairs.items() if self.before is None else ()), *self.change.indices.items()]
        # The originals cannot read an index without a type.
        wanted |= {c: None for c, p in new if p is not None and not _is_untyped(p)}
        parts = self.store.map(lambda column: self._parts(column, wanted[column]), list(wanted))
        made = {column: found for column, found in zip(wanted, parts, strict=True) if found is not None}
        keys = {}
        for column in made:
            # Two commits in one microsecond must not meet.
            key = indexing.index_key(self.document.uuid, column, f"{created}-{uuids.uuid4().hex}")
            keys[column] = check_key(key, f"{self.document.uuid}/", source=self.document.key)
        self.store.map(lambda column: self._put(keys[column], column, made[column]), list(made))
        return {column: keys.get(column, old.get(column)) for column in wanted}, tuple(keys.values())

    def _put(self, key: str, column: str, parts: _Parts) -> None:
        # Row group by row group, so that an index may be larger than memory.
        with self.store.output(key) as out:
            files.write_index(CountedOutput(out), *parts, column)

    def _parts(self, column: str, where: Any) -> _Parts | None:
        """Return what the index of a column is made of; None if the old file stays."""
        given = self.change.indices.get(column)
        if given is not None:
            labels = self.document.labels or ()
            # Not of the head that the change was planned on, which may be older than what was read: a RESTORE may have
            # brought its files back since.
            gone = self.change.indexed.difference(labels)
            if gone:
                is_gone = pc.is_in(given["label"].cast(pa.string()), value_set=pa.array(sorted(gone), pa.string()))
                given = given.filter(pc.invert(is_gone))
            later = [label for label in labels if label not in self.change.indexed]
            return None, frozenset(), None, joined_pairs([given, *self._pairs(column, later)])
        if where is None:
            return None, frozenset(), None, self.change.pairs[column]
        if not self.removed and not self.change.added:
            return None
        if not isinstance(where, str):
            everything = self._pairs(column, self.document.labels or ())
            return (None, frozenset(), None, joined_pairs(everything)) if everything else None
        added = self.change.pairs.get(column)
        new = [added] if added is not None else self._pairs(column, list(self.change.added))
        new = [pairs for pairs in new if not _is_untyped(pairs)]
        if not self.removed and not any(pairs.num_rows for pairs in new):
            return None
        old = indexing.StoredIndex(self.store, where, column)
        nothing = indexing.pairs_of(old.schema.field(0).type, (), ())
        return old, self.removed, self._gone(column), joined_pairs(new or [nothing])

    def _gone(self, column: str) -> pa.Table | None:
        """Return the pairs of the files that go, None if they are many or cannot be read."""
        if self.before is None or not 0 < len(self.removed) <= MOST_REMOVED:
            return None
        places = [at for at, label in enumerate(self.before.labels or ()) if label in self.removed]
        found = []
        with contextlib.suppress(KartosqlError):
            for name, schema in self.schemas.known.items():
                stored = self.before.files.get(name)
                if stored and column in schema.names and not pa.types.is_null(schema.field(column).type):
                    keys = [key for at in places if (key := stored[at]) is not None]
                    if sum(files.footer(self.store, key)[0] for key in keys) > MOST_ROWS:
                        return None
                    type_ = normalise(schema.field(column).type)
                    values = [files.values_of_file(self.store, key, column, type_) for key in keys]
                    found.append(indexing.pairs_of(type_, keys, values))
            return joined_pairs(found) if found else None
        return None

    def _pairs(self, column: str, labels: Sequence[str]) -> list[pa.Table]:
        """Return the values of a column in the files of some labels, from each table that has it."""
        found = []
        wanted = set(labels)
        for name, schema in self.schemas.known.items():
            if column in schema.names and not pa.types.is_null(schema.field(column).type):
                table = self.schemas.table(self.document, name)
                here = [label for label in table.labels if label in wanted]
                found.append(files.pairs_of_files(self.store, table, here, column))
        return found


def _is_untyped(pairs: pa.Table) -> bool:
    """Return whether a column has no value at all, and so no type of its own."""
    return bool(pa.types.is_null(pairs.schema.field("value").type))


def joined_pairs(pairs: Sequence[pa.Table]) -> pa.Table:
    """Return the pairs of some tables in one."""
    if len(pairs) == 1:
        return pairs[0]
    # Labels may be encoded as a dictionary here and as text there.
    plain = [pa.table({"value": p["value"], "label": p["label"].cast(pa.string())}) for p in pairs if p.num_rows]
    return pa.concat_tables(plain) if plain else pairs[0]
