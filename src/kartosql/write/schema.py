"""`_common_metadata`: the schema of a table, widened before a commit and replaced after one."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kartosql.errors import FormatError, UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.dataset import Dataset, DatasetTable
from kartosql.formats.kartothek.history import recorded
from kartosql.formats.kartothek.metadata import DatasetDocument
from kartosql.formats.kartothek.schema import merge_types, normalise, read_schema
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed, Version
from kartosql.write.change import Change
from kartosql.write.document import Head, new_id, read_raw, with_marks
from kartosql.write.retry import attempts

# The version whose description of columns the pandas block follows.
_PANDAS_VERSION = "1.3.5"


def common_schema(schema: pa.Schema, partition_on: tuple[str, ...]) -> pa.Schema:
    """Return the schema that Kartothek records for a table: partition keys, then by name.

    Types are normalised; a pandas block is attached, without which Kartothek refuses to append.
    """
    names = [*partition_on, *sorted(n for n in schema.names if n not in partition_on)]
    return _with_pandas_block([pa.field(n, normalise(schema.field(n).type)) for n in names], {})


def widen(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema that holds what ``old`` and ``new`` hold, in the order of ``old``.

    Both have the same columns of the same normalised types, except that a column of type null
    takes any; ``old`` itself is returned where nothing is to be widened. Raises
    ``incompatible-schema``, which names the first column that does not fit.
    """
    for name in sorted(set(old.names).symmetric_difference(new.names)):
        known = name in old.names
        raise UsageError(
            f"The column {name!r} is missing in the new data."
            if known
            else f"The new data have a column {name!r} that the table does not have.",
            code="incompatible-schema",
            hint=f"The columns of the table are {', '.join(old.names)}."[:300],
        )
    fields = []
    for field in old:
        left, right = normalise(field.type), normalise(new.field(field.name).type)
        type_ = merge_types(left, right)
        if type_ is None:
            raise UsageError(
                f"The column {field.name!r} is {left} in the table, but {right} in the new data.",
                code="incompatible-schema",
                hint=f"Cast the new column to {left}.",
            )
        fields.append(field if type_.equals(field.type) else pa.field(field.name, type_))
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
    if pa.types.is_timestamp(type_):
        numpy_type = "datetime64[ns]"
        details = {"timezone": type_.tz} if type_.tz else None
    elif pa.types.is_decimal(type_):
        details = {"precision": type_.precision, "scale": type_.scale}
    elif pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_):
        numpy_type = _pandas_type(type_)
    return {
        "name": name,
        "field_name": name,
        "pandas_type": _pandas_type(type_),
        "numpy_type": numpy_type,
        "metadata": details,
    }


def _pandas_type(type_: pa.DataType) -> str:
    t = pa.types
    if t.is_list(type_):
        return f"list[{_pandas_type(type_.value_type)}]"
    if t.is_timestamp(type_):
        return "datetimetz" if type_.tz else "datetime"
    if t.is_decimal(type_):
        return "decimal"
    names = {
        pa.string(): "unicode",
        pa.binary(): "bytes",
        pa.date32(): "date",
        pa.float64(): "float64",
        pa.int64(): "int64",
        pa.uint64(): "uint64",
        pa.bool_(): "bool",
        pa.null(): "empty",
    }
    return names.get(type_, "time" if t.is_time(type_) else "object")


class HeadMoved(Exception):
    """The document was written meanwhile, so the caller reads it again."""


@dataclass(frozen=True)
class Schemas:
    """The schemas of the tables, of which ``pending`` files are to be put once the document says so."""

    known: Mapping[str, pa.Schema]
    pending: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def mark(self) -> dict[str, str]:
        """Return the entry of the document until the pending files are in place."""
        return {table: base64.b64encode(data).decode() for table, data in self.pending.items()}

    def table(self, document: DatasetDocument, name: str | None = None) -> DatasetTable:
        """Return a table of ``document``, the first one unless it is named."""
        tables = Dataset(document, self.known).tables
        return tables[name] if name is not None else next(iter(tables.values()))


def read_known(store: Store, document: DatasetDocument) -> dict[str, pa.Schema]:
    """Return the schema of each table of a dataset; raises ``missing-metadata`` and ``invalid-schema``."""
    tables = list(document.tables) or _listed_tables(store, document.uuid)
    return {table: _stored(store, document.uuid, table)[0] for table in tables}


def _listed_tables(store: Store, uuid: str) -> list[str]:
    """Return the tables of a dataset without partitions, which only its schema files show."""
    try:
        store.read_versioned(naming.schema_key(uuid, naming.DEFAULT_TABLE))
        return [naming.DEFAULT_TABLE]
    except KeyError:
        parts = [k.split("/") for k in store.list_below(f"{uuid}/") if k.endswith(f"/{naming.COMMON_METADATA}")]
        return sorted(p[1] for p in parts if len(p) == 3) or [naming.DEFAULT_TABLE]


def _stored(store: Store, uuid: str, table: str) -> tuple[pa.Schema, Version]:
    key = naming.schema_key(uuid, table)
    try:
        data, version = store.read_versioned(key)
    except KeyError:
        raise FormatError(
            f"Dataset {uuid!r}: {key} is missing",
            code="missing-metadata",
            hint="The dataset is incomplete: it was deleted in part, or its write never finished.",
        ) from None
    return read_schema(data, key), version


def widened(store: Store, head: Head, change: Change, keys: tuple[str, ...]) -> Schemas:
    """Return the schemas of a dataset after a change that keeps its rows; files are widened where needed.

    Raises ``incompatible-schema`` for columns that do not fit and HeadMoved.
    """
    heal(store, head)
    known = read_known(store, head.document)
    strange = [t for t in change.schemas if t not in known]
    if strange or (head.document.tables and change.added and set(change.schemas) != set(known)):
        raise UsageError(
            f"Dataset {change.uuid!r}: it has the tables {', '.join(known)}, the new data have "
            f"{', '.join(change.schemas)}",
            code="incompatible-schema",
            hint="Give all tables of the dataset, and no others.",
        )
    for table, schema in change.schemas.items():
        known[table] = _widen(store, head, table, common_schema(schema, keys), keys)
    return Schemas(known)


def _widen(store: Store, head: Head, table: str, new: pa.Schema, keys: tuple[str, ...]) -> pa.Schema:
    key = naming.schema_key(head.uuid, table)
    for _ in attempts(key):
        stored, version = _stored(store, head.uuid, table)
        try:
            target = widen(stored, new)
        except UsageError:
            _check_unmoved(store, head)
            raise
        if target.equals(stored):
            return stored
        target = common_schema(target, keys)
        # Widening only replaces the type null, so it does no harm where the commit then fails.
        try:
            store.put_if(key, schema_bytes(target), version)
        except (PreconditionFailed, OutcomeUnknown):
            continue
        return target
    raise AssertionError


def replaced(store: Store, uuid: str, change: Change, keys: tuple[str, ...]) -> Schemas:
    """Return the schemas of a dataset that starts anew.

    A file that is not there yet is put, as nobody reads it before the document. One that says
    something else is left to ``heal``: the document of the old rows may still count.
    """
    known: dict[str, pa.Schema] = {}
    pending: dict[str, bytes] = {}
    for table, schema in change.schemas.items():
        target = known[table] = common_schema(schema, keys)
        key = naming.schema_key(uuid, table)
        for _ in attempts(key):
            try:
                data, _version = store.read_versioned(key)
            except KeyError:
                try:
                    store.put_if(key, schema_bytes(target), None)
                except (PreconditionFailed, OutcomeUnknown):
                    continue
                break
            if not _says(data, key, target):
                pending[table] = schema_bytes(_unique(target))
            break
    return Schemas(known, pending)


def _says(data: bytes, key: str, target: pa.Schema) -> bool:
    try:
        stored = read_schema(data, key)
    except FormatError:
        return False
    return bool(stored.equals(target)) and b"pandas" in (stored.metadata or {})


def _unique(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` with a mark that makes its file unlike any other.

    Who is late in replacing a file would else take a later one of the same content for the one
    that he was to replace.
    """
    block = json.loads(schema.metadata[b"pandas"])
    block["creator"]["id"] = new_id()
    return schema.with_metadata({b"pandas": json.dumps(block).encode()})


def with_history(
    document: DatasetDocument, before: object, known: Mapping[str, pa.Schema], now: dt.datetime
) -> DatasetDocument:
    """Return a document with the schemas ``known`` added to the history ``before``, and sealed.

    A history that is broken stays as it is, as there is nothing that could be added to it.
    """
    history = before
    with contextlib.suppress(FormatError):
        history = recorded(before, known, document, nanoseconds(now))
    return with_marks(document, history=history)


def nanoseconds(moment: dt.datetime) -> int:
    """Return a moment in nanoseconds since 1970."""
    past = moment - dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
    return (past.days * 86_400 + past.seconds) * 1_000_000_000 + past.microseconds * 1000


def heal(store: Store, head: Head) -> None:
    """Put the schema files that the document asks for in their place; raises HeadMoved if it does no more."""
    for table, data in head.pending_schemas.items():
        key = naming.schema_key(head.uuid, table)
        for _ in attempts(key):
            version: Version | None = None
            try:
                stored, version = store.read_versioned(key)
                if stored == data:
                    break
            except KeyError:
                pass
            # Only a file that was read while the document asked for the new one may be replaced.
            _check_unmoved(store, head)
            try:
                store.put_if(key, data, version)
                break
            except (PreconditionFailed, OutcomeUnknown):
                continue


def _check_unmoved(store: Store, head: Head) -> None:
    now = read_raw(store, head.uuid)
    if now is None or now.version != head.version:
        raise HeadMoved
