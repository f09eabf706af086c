"""Datasets of Open Data Fabric, written: the chain of a schema history, and rows as a new root dataset."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kartosql.errors import CommitUnknown, KartosqlError, StoreError, UsageError, reraise
from kartosql.formats.odf import hashes
from kartosql.formats.odf.blocks import VERSION, Block, Event, write_block
from kartosql.formats.odf.chain import HEAD, Vocab
from kartosql.formats.odf.data_schema import from_arrow
from kartosql.formats.odf.hashes import new_dataset_id
from kartosql.formats.odf.logical import NotCheckable, RecordDigest, logical_hash_of
from kartosql.formats.odf.manifest import to_yaml
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown, PreconditionFailed
from kartosql.text.types import in_sql_names, type_name
from kartosql.write.change import nanoseconds
from kartosql.write.document import is_there
from kartosql.write.inputs import guarded

_UTC_MS = pa.timestamp("ms", "UTC")
_CHUNK = 4 << 20
_FOLDERS = ("blocks", "data", "refs", "yaml")
# Stands there while an export is at work: without a head, all beside it is what one left that did not come to its end.
_UNFINISHED = ".kartosql/unfinished-export"
_AT_WORK = b"An export is at work here, or did not come to its end; then the next one takes its place.\n"
_ATTEMPTS = 8


def check_empty(store: Store) -> None:
    """Raise ``dataset-exists`` unless there is nothing, or what an export left that did not come to its end."""
    names = {entry.name for entry in store.list_root() if not entry.name.startswith(".")}
    if names and not (names.issubset(_FOLDERS) and is_there(store, _UNFINISHED) and not is_there(store, HEAD)):
        raise _exists(store)


def _exists(store: Store) -> UsageError:
    hint = "Name a folder that does not exist yet, or is empty."
    return UsageError(f"{store.url} is not empty.", code="dataset-exists", hint=hint)


def write_chain(store: Store, blocks: Sequence[bytes], data_keys: Sequence[str] = ()) -> str:
    """Write blocks, also as YAML, then the head, and return its hash.

    Of several exports to one folder one comes to its end, and removes what others left, all but its ``data_keys``.
    Raises ``dataset-exists`` and CommitUnknown.
    """
    from kartosql.formats.odf.blocks import read_block

    if not data_keys:
        store.put(_UNFINISHED, _AT_WORK)
    head, keys = "", {HEAD, *data_keys}
    for data in blocks:
        block = read_block(data)
        head = hashes.to_text(hashes.hash_of(data))
        named = {f"blocks/{head}": data}
        named[f"yaml/{block.sequence_number:06}-{block.kind}.yaml"] = to_yaml(block).encode()
        for key, content in named.items():
            store.put(key, content)
        keys.update(named)
    _put_head(store, head.encode())
    with contextlib.suppress(KartosqlError):
        left = [key for folder in _FOLDERS for key in store.list_below(f"{folder}/") if key not in keys]
        # Deleting, even of nothing, takes the folders with it that are empty now.
        store.delete([*left, *(f"{folder}/.nothing" for folder in _FOLDERS), _UNFINISHED])
    return head


def _put_head(store: Store, head: bytes) -> None:
    """Put what makes a dataset of the rest, once."""
    alone, store.single_writer = store.single_writer, True  # where a store has no conditions, a look has to do
    try:
        for _ in range(_ATTEMPTS):
            try:
                store.put_if(HEAD, head, None)
                return
            except (PreconditionFailed, OutcomeUnknown):
                with contextlib.suppress(KeyError, StoreError):
                    if store.read(HEAD) == head:
                        return
                    raise _exists(store) from None
    finally:
        store.single_writer = alone
    raise CommitUnknown(
        f"{store.url}: the store does not say whether the dataset was written",
        hint="ATTACH it to see. Nothing was deleted; if it is not there, the same statement writes it.",
    )


def write_dataset(
    store: Store,
    rows: pa.RecordBatchReader,
    *,
    primary_key: Sequence[str] = (),
    event_time: str | None = None,
    now: dt.datetime,
) -> dict[str, Any]:
    """Write rows as a new root dataset of one slice, and return its id, head, rows and bytes.

    Without ``event_time`` all rows have the time of writing. Raises ``invalid-argument`` for columns that the format
    has for itself, ``null-in-key`` and ``invalid-data`` for keys that are NULL or occur twice, ``invalid-data`` for
    rows that have no hash, and ``odf-invalid-schema`` for types that it has not.
    """
    moment = nanoseconds(now) // 1_000_000
    layout = _Layout(rows.schema, event_time, moment)
    _check_key_types(rows.schema, primary_key)
    from_arrow(layout.schema)
    try:
        RecordDigest(layout.schema)
    except NotCheckable as e:
        raise UsageError(f"The rows cannot be written: {e}.", code="odf-invalid-schema") from None
    blocks: list[bytes] = []

    def add(event: Event) -> None:
        prev = hashes.hash_of(blocks[-1]) if blocks else None
        blocks.append(write_block(Block(VERSION, moment * 1_000_000, prev, len(blocks), event)))

    did = new_dataset_id()
    add({"kind": "Seed", "datasetId": did, "datasetKind": "Root"})
    if primary_key:
        merge = {"kind": "Ledger", "primaryKey": list(primary_key)}
        add({"kind": "AddPushSource", "sourceName": "default", "read": {"kind": "Parquet"}, "merge": merge})
    if event_time is not None:
        add({"kind": "SetVocab", "eventTimeColumn": event_time})
    with tempfile.TemporaryFile() as file:
        count = _write_rows(file, layout, rows, primary_key)
        # What counts is what readers of the file get: Parquet has not every type of Arrow.
        stored = pq.ParquetFile(file)
        add({"kind": "SetDataSchema", "schema": from_arrow(stored.schema_arrow, encodings=False)})
        size, data_keys = 0, []
        if count:
            logical = _logical_hash(stored)
            slice_ = _put_file(store, file, logical, count)
            size = slice_["size"]
            data_keys.append(_data_key(slice_["physicalHash"]))
            add({"kind": "AddData", "newData": slice_})
    head = write_chain(store, blocks, data_keys)
    return {"id": hashes.did_to_text(did), "head": head, "rows": count, "bytes": size}


def _logical_hash(stored: pq.ParquetFile) -> bytes:
    try:
        return logical_hash_of(stored.schema_arrow, stored.iter_batches())
    except NotCheckable as e:
        raise UsageError(
            f"The rows cannot be written: {e}.",
            code="invalid-data",
            hint="The format has no hash for such rows; make the members columns of their own.",
        ) from None


def _check_key_types(schema: pa.Schema, primary_key: Sequence[str]) -> None:
    for name in primary_key:
        type_ = schema.field(name).type
        if pa.types.is_nested(type_) or primary_key.count(name) > 1:
            problem = f"is {type_name(type_)}" if pa.types.is_nested(type_) else "is there twice"
            raise UsageError(
                f"The column {name!r} of the primary key {problem}.", hint="Name columns of plain values, each once."
            )


class _Layout:
    """The columns of the files: those of the format, then those of the rows."""

    def __init__(self, given: pa.Schema, event_time: str | None, moment: int) -> None:
        vocab = Vocab()
        self.event_time = event_time
        self.moment = moment
        own = [vocab.offset_column, vocab.operation_type_column, vocab.system_time_column]
        if event_time is None:
            own.append(vocab.event_time_column)
        clash = [name for name in given.names if name in own] or [n for n in given.names if given.names.count(n) > 1]
        if clash:
            raise UsageError(
                f"The column {clash[0]!r} is one that the format has for itself, or it is there twice.",
                hint="Give it another name with AS.",
            )
        data = [f for f in given if f.name != event_time]
        fields = [pa.field(own[0], pa.int64(), False), pa.field(own[1], pa.int32(), False)]
        fields.append(pa.field(own[2], _UTC_MS, False))
        fields.append(pa.field(event_time or own[3], self._event_type(given), event_time is not None))
        self.schema = pa.schema([*fields, *(pa.field(f.name, _in_parquet(f.type)) for f in data)])
        self.names = [f.name for f in data]

    def _event_type(self, given: pa.Schema) -> pa.DataType:
        if self.event_time is None:
            return _UTC_MS
        type_ = given.field(self.event_time).type
        if pa.types.is_date(type_):
            return pa.date32()
        if pa.types.is_timestamp(type_):
            return _UTC_MS
        raise UsageError(
            f"The event time {self.event_time!r} is {type_name(type_)}, and has to be a date or timestamp."
        )

    def batch(self, given: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """Return rows with the columns of the format; offsets begin at ``start``."""
        count = given.num_rows
        time = pa.repeat(pa.scalar(self.moment, pa.int64()), count).cast(_UTC_MS)
        event = time
        if self.event_time is not None:
            found = given.column(self.event_time)
            if pa.types.is_timestamp(found.type) and found.type.tz is None:
                found = pc.assume_timezone(found, "UTC")
            # Times may lose digits, but never become others.
            event = found.cast(options=pc.CastOptions(self.schema.field(3).type, allow_time_truncate=True))
        offsets = pa.array(range(start, start + count), pa.int64())
        operations = pa.repeat(pa.scalar(0, pa.int32()), count)
        data = ((given.column(name), self.schema.field(name).type) for name in self.names)
        own = (column if column.type.equals(type_) else column.cast(type_) for column, type_ in data)
        columns = [offsets, operations, time, event, *own]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _in_parquet(type_: pa.DataType) -> pa.DataType:
    """Return the type as which rows are written: Arrow up to version 24 writes seconds beyond all times as others."""
    return pa.timestamp("ms", type_.tz) if pa.types.is_timestamp(type_) and type_.unit == "s" else type_


def _write_rows(file: IO[bytes], layout: _Layout, rows: pa.RecordBatchReader, primary_key: Sequence[str]) -> int:
    count = 0
    keys: list[pa.RecordBatch] = []
    options = {"compression": "snappy", "version": "1.0", "store_schema": False, "data_page_version": "1.0"}
    with pq.ParquetWriter(file, layout.schema, **options) as writer:
        for given in guarded(iter(rows), "the export"):
            try:
                batch = layout.batch(given, count)
                writer.write_batch(batch)
            except pa.ArrowException as e:
                reraise(e)
                raise UsageError(
                    f"The rows cannot be written: {in_sql_names(e).splitlines()[0]}", code="invalid-data"
                ) from None
            count += batch.num_rows
            if primary_key:
                # Of the zeros that floating-point numbers have, one stands for both.
                columns = [given.column(name) for name in primary_key]
                columns = [pc.add(c.cast(pa.float64()), 0.0) if pa.types.is_floating(c.type) else c for c in columns]
                keys.append(pa.RecordBatch.from_arrays(columns, names=list(primary_key)))
    _check_keys(keys, primary_key)
    return count


def _check_keys(keys: Sequence[pa.RecordBatch], primary_key: Sequence[str]) -> None:
    if not keys:
        return
    table = pa.Table.from_batches(keys)
    if any(column.null_count for column in table.columns):
        raise UsageError("A column of the primary key holds NULL.", code="null-in-key")
    if table.group_by(list(primary_key)).aggregate([]).num_rows < table.num_rows:
        raise UsageError(
            f"Two rows have the same primary key ({', '.join(primary_key)}).",
            code="invalid-data",
            hint="Of such rows only the last one would be there.",
        )


def _data_key(physical: bytes) -> str:
    return f"data/{hashes.to_text(physical)}"


def _put_file(store: Store, file: IO[bytes], logical: bytes, count: int) -> Mapping[str, Any]:
    hashed, size = hashlib.sha3_256(), 0
    file.seek(0)
    while chunk := file.read(_CHUNK):
        hashed.update(chunk)
        size += len(chunk)
    physical = bytes((hashes.SHA3_256, 32)) + hashed.digest()
    file.seek(0)
    store.put(_UNFINISHED, _AT_WORK)
    key = _data_key(physical)
    store.delete([key])  # the same bytes, or the beginning of them
    with store.output(key) as target:
        while chunk := file.read(_CHUNK):
            target.write(chunk)
    interval = {"start": 0, "end": count - 1}
    return {"logicalHash": logical, "physicalHash": physical, "offsetInterval": interval, "size": size}
