"""Metadata blocks: the tables that they are made of, flatbuffers to values with every offset checked, and back.

A manifest holds a block, which holds an event; written are the same bytes everywhere. One description of
the tables, their fields in the order of slots, serves reader, writer and the text forms. Source:
``opendatafabric.fbs`` and the JSON schemas of the specification 0.39.

Types: integers by width, ``bool``, ``string``, ``bytes``, ``hash`` (a multihash), ``did`` (the id of a
dataset), ``time``, ``json`` (an object as text in a table of its own), names of tables, unions
and enums, and ``[item]``. ``?`` marks an optional scalar, which is stored even if it is 0, and
``!`` what must be there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from struct import Struct, error
from typing import Any, NamedTuple

from kartosql.errors import FormatError
from kartosql.formats.odf import hashes
from kartosql.formats.odf.times import from_parts, to_parts

MANIFEST_KIND = 0x400000
VERSION = 3  # what is written: times are aligned
OLDEST = 2
MAX_BLOCK = 64 << 20
MAX_DEPTH = 64
DAMAGED = "The file is damaged or was not written by a tool of Open Data Fabric; restore it from another copy."

Event = dict[str, Any]

_FORMATS = {"bool": "<B", "i16": "<h", "i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q"}
_SCALARS = {name: Struct(form) for name, form in _FORMATS.items()}
_TABLES = """
Manifest: kind i64, version i32, content bytes!
MetadataBlock: systemTime time!, prevBlockHash hash, sequenceNumber u64, event MetadataEvent!

Seed: datasetId did!, datasetKind DatasetKind
AddData: prevCheckpoint hash, prevOffset u64?, newData DataSlice, newCheckpoint Checkpoint, newWatermark time, \
newSourceState SourceState, extra json
ExecuteTransform: queryInputs [ExecuteTransformInput]!, prevCheckpoint hash, prevOffset u64?, newData DataSlice, \
newCheckpoint Checkpoint, newWatermark time
ExecuteTransformInput: datasetId did!, prevBlockHash hash, newBlockHash hash, prevOffset u64?, newOffset u64?
DataSlice: logicalHash hash!, physicalHash hash!, offsetInterval OffsetInterval!, size u64
OffsetInterval: start u64, end u64
Checkpoint: physicalHash hash!, size u64
SourceState: sourceName string!, kind string!, value string!

SetPollingSource: fetch FetchStep!, prepare [PrepStep], read ReadStep!, preprocess Transform, merge MergeStrategy!
AddPushSource: sourceName string!, read ReadStep!, preprocess Transform, merge MergeStrategy!
DisablePushSource: sourceName string!
DisablePollingSource:
SetTransform: inputs [TransformInput]!, transform Transform!
SetVocab: offsetColumn string, operationTypeColumn string, systemTimeColumn string, eventTimeColumn string
SetAttachments: attachments Attachments!
SetInfo: description string, keywords [string]
SetLicense: shortName string!, name string!, spdxId string, websiteUrl string!
SetDataSchema: rawArrowSchema bytes, schema DataSchema

DataSchema: fields [DataField]!, extra json
DataField: name string!, type DataType!, extra json
DataType.Binary: fixedLength u64?
DataType.Decimal: precision u32, scale i32
DataType.Duration, DataType.Time: unit TimeUnit?
DataType.List: itemType DataType!, fixedLength u64?
DataType.Map: keyType DataType!, valueType DataType!, keysSorted bool?
DataType.Option: inner DataType!
DataType.Struct: fields [DataField]!
DataType.Timestamp: unit TimeUnit?, timezone string

FetchStep.Url: url string!, eventTime EventTimeSource, cache SourceCaching, headers [RequestHeader]
FetchStep.FilesGlob: path string!, eventTime EventTimeSource, cache SourceCaching, order SourceOrdering?
FetchStep.Container: image string!, command [string], args [string], env [EnvVar]
FetchStep.Mqtt: host string!, port i32, username string, password string, topics [MqttTopicSubscription]!
FetchStep.EthereumLogs: chainId u64?, nodeUrl string, filter string, signature string
RequestHeader: name string!, value string!
EnvVar: name string!, value string
MqttTopicSubscription: path string!, qos MqttQos?
EventTimeSource.FromPath: pattern string!, timestampFormat string
PrepStep.Decompress: format CompressionFormat, subPath string
PrepStep.Pipe: command [string]!
ReadStep.Csv: ddlSchema [string], separator string, encoding string, quote string, escape string, header bool?, \
inferSchema bool?, nullValue string, dateFormat string, timestampFormat string, schema DataSchema
ReadStep.GeoJson, ReadStep.Parquet, ReadStep.NdGeoJson: ddlSchema [string], schema DataSchema
ReadStep.EsriShapefile: ddlSchema [string], subPath string, schema DataSchema
ReadStep.Json: subPath string, ddlSchema [string], dateFormat string, encoding string, timestampFormat string, \
schema DataSchema
ReadStep.NdJson: ddlSchema [string], dateFormat string, encoding string, timestampFormat string, schema DataSchema
Transform.Sql: engine string!, version string, query string, queries [SqlQueryStep], temporalTables [TemporalTable]
SqlQueryStep: alias string, query string!
TemporalTable: name string!, primaryKey [string]!
TransformInput: datasetRef string!, alias string
MergeStrategy.Ledger, MergeStrategy.ChangelogStream, MergeStrategy.UpsertStream: primaryKey [string]!
MergeStrategy.Snapshot: primaryKey [string]!, compareColumns [string]
Attachments.Embedded: items [AttachmentEmbedded]!
AttachmentEmbedded: path string!, content string!

DatasetSnapshot: name string!, kind DatasetKind, metadata [MetadataEvent]!
"""

# The members of unions, by tag from 1. Those of events are tables of the same name.
UNIONS = {
    "MetadataEvent": (
        *("AddData", "ExecuteTransform", "Seed", "SetPollingSource", "SetTransform", "SetVocab", "SetAttachments"),
        *("SetInfo", "SetLicense", "SetDataSchema", "AddPushSource", "DisablePushSource", "DisablePollingSource"),
    ),
    "DataType": (
        *("Binary", "Bool", "Date", "Decimal", "Duration", "Float16", "Float32", "Float64"),
        *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
        *("List", "Map", "Null", "Option", "Struct", "Time", "Timestamp", "String"),
    ),
    "FetchStep": ("Url", "FilesGlob", "Container", "Mqtt", "EthereumLogs"),
    "EventTimeSource": ("FromMetadata", "FromPath", "FromSystemTime"),
    "SourceCaching": ("Forever",),
    "PrepStep": ("Decompress", "Pipe"),
    "ReadStep": ("Csv", "GeoJson", "EsriShapefile", "Parquet", "Json", "NdJson", "NdGeoJson"),
    "Transform": ("Sql",),
    "MergeStrategy": ("Append", "Ledger", "Snapshot", "ChangelogStream", "UpsertStream"),
    "Attachments": ("Embedded",),
}

# How enums are stored, and the names of their values from 0.
ENUMS = {
    "DatasetKind": ("i32", ("Root", "Derivative")),
    "TimeUnit": ("i16", ("Second", "Millisecond", "Microsecond", "Nanosecond")),
    "CompressionFormat": ("i32", ("Gzip", "Zip")),
    "SourceOrdering": ("i32", ("ByEventTime", "ByName")),
    "MqttQos": ("i32", ("AtMostOnce", "AtLeastOnce", "ExactlyOnce")),
}


class Field(NamedTuple):
    """A field of a table: its place, what it holds, and whether it can be missing."""

    name: str
    slot: int  # of unions that of the table; the tag stands one before
    kind: str  # scalar, enum, union, table, or one that is named above
    of: str  # the scalar type, or the name of the table, union or enum
    many: bool
    optional: bool  # a scalar that may be absent; else absent means 0
    required: bool


class TableLayout(NamedTuple):
    """A table: its name and its fields in the order of slots."""

    name: str
    fields: tuple[Field, ...]
    slots: int


def invalid_block(message: str) -> FormatError:
    """Return the error for bytes that are no metadata block."""
    return FormatError(message, code="odf-invalid-block", hint=DAMAGED)


def invalid_schema(message: str, hint: str | None = None) -> FormatError:
    """Return the error for a schema that cannot be read or expressed."""
    return FormatError(message, code="odf-invalid-schema", hint=hint)


class Block(NamedTuple):
    """One entry of a chain: an event, when it was written, and the hash of the block before.

    ``event`` is a dictionary with ``kind`` and the fields of the event in camel case: hashes, ids
    and schemas as bytes, times as nanoseconds since 1970 in UTC, as ``system_time`` is.
    """

    version: int
    system_time: int
    prev_block_hash: bytes | None
    sequence_number: int
    event: Event

    @property
    def kind(self) -> str:
        """The kind of the event, such as ``AddData``."""
        return str(self.event["kind"])

    @property
    def content(self) -> dict[str, Any]:
        """The contents of the table of the block."""
        found = {"systemTime": self.system_time, "prevBlockHash": self.prev_block_hash}
        return {**found, "sequenceNumber": self.sequence_number, "event": self.event}


def read_block(data: bytes, what: str = "the block") -> Block:
    """Return the block that bytes hold.

    ``what`` names it in errors: ``odf-invalid-block``, ``odf-unsupported-version`` and
    ``odf-unknown-event``. Its hash is that of the bytes as they are; writing a block again is no
    way to check it.
    """
    if len(data) > MAX_BLOCK:
        raise invalid_block(f"{what}: it has {len(data)} bytes, and {MAX_BLOCK} are the most that is read")
    manifest = read_root(data, "Manifest", what)
    if manifest["kind"] != MANIFEST_KIND:
        raise invalid_block(f"{what}: it is no metadata block, but of kind {manifest['kind']:#x}")
    version = manifest["version"]
    if not OLDEST <= version <= VERSION:
        age = "was written before 2022" if version == 1 else "may be newer than this kartosql"
        raise FormatError(
            f"{what}: metadata block version {version} is not supported",
            code="odf-unsupported-version",
            hint=f"It {age}; versions {OLDEST} and {VERSION} are read.",
        )
    content = read_root(manifest["content"], "MetadataBlock", what)
    event = check_event(content["event"], what)
    prev = content.get("prevBlockHash")
    if prev is not None:
        try:
            hashes.check(prev, "hash of the block before", code=hashes.SHA3_256)
        except FormatError as e:
            raise invalid_block(f"{what}: {e.message}") from None
    return Block(version, content["systemTime"], prev, content["sequenceNumber"], event)


def write_block(block: Block) -> bytes:
    """Return the bytes of a block, the same wherever it is written."""
    check_event(block.event, "the block")
    inner = write_root("MetadataBlock", block.content, time_alignment=4 if block.version >= 3 else 1)
    return write_root("Manifest", {"kind": MANIFEST_KIND, "version": block.version, "content": inner})


def check_event(event: Event, what: str) -> Event:
    """Return the event; raises ``odf-invalid-block`` for a schema in no form, or in both."""
    if event["kind"] == "SetDataSchema" and (event.get("rawArrowSchema") is None) == (event.get("schema") is None):
        raise invalid_block(
            f"{what}: its SetDataSchema has to hold either a raw Arrow schema or an ODF schema, not both or none"
        )
    return event


# -- reading -----------------------------------------------------------------------------------

_UNPACK = {name: form.unpack_from for name, form in _SCALARS.items()}
_OFFSET, _BACK = _UNPACK["u32"], _UNPACK["i32"]
_SIZES = Struct("<HH").unpack_from
_TIME = Struct("<iH2xII")
_CHECKS: dict[str, Callable[[bytes], bytes]] = {"bytes": bytes, "hash": hashes.check, "did": hashes.check_did}


class _Buffer:
    """Bytes that are read, and how much of them may still be: tables that share parts end somewhere."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = 4 * len(data) + 1024


class _UnknownEvent(Exception):
    pass


def read_root(data: bytes, table: str, what: str) -> dict[str, Any]:
    """Return the table that a buffer begins with.

    Raises ``odf-invalid-block`` if the bytes are truncated, point outside of themselves or hold what
    the table does not know; ``odf-unknown-event`` for an event of an unknown kind. ``what`` names
    the buffer for the message.
    """
    try:
        (root,) = _OFFSET(data, 0)
        return _read_table(_Buffer(data), root, 0, table)
    except error:
        raise invalid_block(f"{what}: it ends too early, or points outside of itself") from None
    except _UnknownEvent as e:
        raise FormatError(
            f"{what}: it holds an event of kind {e}, which is not known here",
            code="odf-unknown-event",
            hint="No event may be left out, as it may change what the others mean; a newer version may know it.",
        ) from None
    except (FormatError, ValueError, RecursionError) as e:
        raise invalid_block(f"{what}: {e.message if isinstance(e, FormatError) else e}") from None


@cache
def _plan(table: str) -> tuple[dict[int, tuple[str, str, Field]], dict[str, Any], list[str], int]:
    """Return names and kinds of fields by their slots, values of absent ones, what must be there, and all slots."""
    layout = TABLES[table]
    absent = [f for f in layout.fields if f.kind in ("scalar", "enum") and not f.optional]
    defaults = {f.name: ENUMS[f.of][1][0] if f.kind == "enum" else False if f.of == "bool" else 0 for f in absent}
    fields = {f.slot: (f.name, "list" if f.many else f.kind, f) for f in layout.fields}
    return fields, defaults, [f.name for f in layout.fields if f.required], layout.slots


def _read_table(buffer: _Buffer, at: int, depth: int, table: str) -> dict[str, Any]:
    data = buffer.data
    fields, defaults, required, known = _plan(table)
    offsets, size = _vtable(buffer, at, depth)
    found = dict(defaults)
    for slot, offset in enumerate(offsets):
        if not offset:
            continue
        if not 4 <= offset < size:
            raise ValueError(f"a field of {table} lies outside of it")
        if slot in fields:
            name, kind, field = fields[slot]
            if kind == "list":
                found[name] = _read_list(buffer, at + offset, depth, field)
                continue
            tag = 0
            if kind == "union":
                buffer.left -= 1
                tag = data[at + offsets[slot - 1]] if offsets[slot - 1] else 0
            found[name] = _read_field(buffer, at + offset, depth, kind, field.of, tag)
        elif slot >= known:
            raise ValueError(f"{table} has a field in slot {slot}, which is not known here")
        elif data[at + offset] and (slot + 1 >= len(offsets) or not offsets[slot + 1]):
            raise ValueError(f"{table} names a kind for slot {slot + 1}, which is absent")
    for name in required:
        if name not in found:
            raise ValueError(f"{table} has no {name}")
    return found


def _vtable(buffer: _Buffer, at: int, depth: int) -> tuple[tuple[int, ...], int]:
    """Return the offsets of the fields of a table, and how many bytes it takes."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    buffer.left -= 8
    if buffer.left < 0:
        raise ValueError("its tables share parts, so that they are larger than the bytes")
    start = at - _BACK(buffer.data, at)[0]
    if start < 0:
        raise ValueError("it points before its begin")
    length, size = _SIZES(buffer.data, start)
    if length < 4 or length % 2 or size < 4 or at + size > len(buffer.data):
        raise ValueError("a table says a size that it cannot have")
    return _slots((length - 4) // 2)(buffer.data, start + 4), size


@cache
def _slots(count: int) -> Callable[[bytes, int], tuple[int, ...]]:
    return Struct(f"<{count}H").unpack_from


def _read_field(buffer: _Buffer, at: int, depth: int, kind: str, of: str, tag: int) -> Any:
    data = buffer.data
    if kind == "scalar":
        value = _UNPACK[of](data, at)[0]
        return value != 0 if of == "bool" else value
    if kind == "time":
        return from_parts(*_TIME.unpack_from(data, at))
    if kind == "enum":
        form, names = ENUMS[of]
        (value,) = _UNPACK[form](data, at)
        if not 0 <= value < len(names):
            raise ValueError(f"{value} is no {of}")
        return names[value]
    if kind == "union":
        if not 1 <= tag <= len(UNIONS[of]):
            if of == "MetadataEvent":
                raise _UnknownEvent(tag)
            raise ValueError(f"{tag} is no known kind of {of}")
        member = UNIONS[of][tag - 1]
        table = member if of == "MetadataEvent" else f"{of}.{member}"
        return {"kind": member, **_read_table(buffer, at + _OFFSET(data, at)[0], depth + 1, table)}
    at += _OFFSET(data, at)[0]
    if kind == "table":
        return _read_table(buffer, at, depth + 1, of)
    if kind == "json":
        return _json(buffer, at, depth)
    content = _bytes(buffer, at)
    return str(content, "utf-8") if kind == "string" else _CHECKS[kind](content)


def _read_list(buffer: _Buffer, at: int, depth: int, field: Field) -> list[Any]:
    data = buffer.data
    at += _OFFSET(data, at)[0]
    (count,) = _OFFSET(data, at)
    if at + 4 + 4 * count > len(data):
        raise ValueError("a list is longer than the bytes")
    places = (place + _OFFSET(data, place)[0] for place in range(at + 4, at + 4 + 4 * count, 4))
    if field.kind == "string":
        return [str(_bytes(buffer, place), "utf-8") for place in places]
    if field.kind == "table":
        return [_read_table(buffer, place, depth + 1, field.of) for place in places]
    wrapper = f"{field.of} in a list"
    return [_read_table(buffer, place, depth + 1, wrapper)["value"] for place in places]


def _bytes(buffer: _Buffer, at: int) -> bytes:
    (length,) = _OFFSET(buffer.data, at)
    at += 4
    buffer.left -= length + 4
    if at + length > len(buffer.data):
        raise ValueError("a value is longer than the bytes")
    if buffer.left < 0:
        raise ValueError("its values share parts, so that they are larger than the bytes")
    return buffer.data[at : at + length]


def _json(buffer: _Buffer, at: int, depth: int) -> dict[str, Any]:
    """Read the table that holds one JSON object as text."""
    offsets, size = _vtable(buffer, at, depth + 1)
    if not offsets or not 4 <= offsets[0] < size or any(offsets[1:]):
        raise ValueError("extra attributes are no text")
    at += offsets[0]
    text = str(_bytes(buffer, at + _OFFSET(buffer.data, at)[0]), "utf-8")

    def refuse(name: str) -> Any:
        raise ValueError(f"extra attributes hold {name}, which is no JSON")

    found = json.loads(text, object_pairs_hook=unique_pairs, parse_constant=refuse)
    if not isinstance(found, dict):
        raise ValueError("extra attributes are no JSON object")
    return found


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of a JSON text; raises ValueError for a key that it holds twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _field(text: str, slot: int) -> Field:
    name, type_ = text.split()
    many, of = type_.startswith("["), type_.strip("[]?!")
    known = (("scalar", _SCALARS), ("enum", ENUMS), ("union", UNIONS), (of, ("string", "time", "json", *_CHECKS)))
    kind = next((kind for kind, names in known if of in names), "table")
    return Field(name, slot + (kind == "union" and not many), kind, of, many, type_.endswith("?"), type_.endswith("!"))


def _parse(text: str) -> dict[str, TableLayout]:
    found: dict[str, TableLayout] = {}
    for line in filter(None, text.split("\n")):
        tables, _, rest = line.partition(":")
        fields: list[Field] = []
        slot = 0
        for part in filter(None, rest.strip().split(", ")):
            fields.append(_field(part, slot))
            slot = fields[-1].slot + 1
        found |= {name: TableLayout(name, tuple(fields), slot) for name in tables.split(", ")}
    names = [f"{union}.{member}" for union, members in UNIONS.items() for member in members if union != "MetadataEvent"]
    for union in UNIONS:
        name = f"{union} in a list"
        found[name] = TableLayout(name, (Field("value", 1, "union", union, False, False, True),), 2)
    return {**{name: TableLayout(name, (), 0) for name in names}, **found}


TABLES = _parse(_TABLES)


def member_table(union: str, member: str) -> TableLayout:
    """Return the table of a member of a union; those of events have the name of the event."""
    return TABLES[member if union == "MetadataEvent" else f"{union}.{member}"]


# -- writing -----------------------------------------------------------------------------------


def write_root(table: str, value: dict[str, Any], *, time_alignment: int = 4) -> bytes:
    """Return the flatbuffer of a table.

    Version 2 of blocks stores times without alignment (1), version 3 with (4). Raises
    ``odf-invalid-schema`` for values that the table cannot hold.
    """
    writer = _Writer(time_alignment)
    try:
        return writer.finish(writer.table(TABLES[table], value))
    except (ValueError, TypeError, AttributeError, OverflowError, RuntimeError, error) as e:
        raise invalid_schema(f"{table} cannot hold what is given: {str(e)[:200]}") from None


class _Writer:
    """A buffer that is written from its end: what a table points to comes before it."""

    def __init__(self, time_alignment: int) -> None:
        if "numpy" in sys.modules and sys.modules["numpy"] is None:
            del sys.modules["numpy"]  # which the command leaves out, and flatbuffers insists on where it is installed
        from flatbuffers import Builder

        self._buffer = Builder()
        self._time_alignment = time_alignment

    def finish(self, root: int) -> bytes:
        self._buffer.Finish(root)
        return bytes(self._buffer.Output())

    def table(self, layout: TableLayout, value: dict[str, Any]) -> int:
        """Write a table with all that it holds, and return where it is."""
        unknown = value.keys() - {f.name for f in layout.fields} - {"kind"}
        if unknown:
            raise invalid_schema(f"{layout.name} has no field {sorted(unknown)[0]!r}")
        targets: dict[str, int] = {}
        for field in layout.fields:
            given: Any = value.get(field.name)
            if given is None:
                if field.required:
                    raise invalid_schema(f"{layout.name} needs {field.name}")
            elif field.many:
                targets[field.name] = self._list([self._item(field, item) for item in given])
            elif field.kind not in ("scalar", "enum", "time"):
                targets[field.name] = self._item(field, given)
        self._buffer.StartObject(layout.slots)
        for field in layout.fields:
            given = value.get(field.name)
            if field.name in targets:
                if field.kind == "union" and not field.many:
                    self._inline(field.slot - 1, _tag(field, given), 1)
                self._offset(field.slot, targets[field.name])
            elif given is not None and field.kind == "time":
                self._inline(field.slot, _TIME.pack(*to_parts(given)), self._time_alignment)
            elif given is not None:
                stored = _packed(field, given)
                if any(stored) or field.optional:
                    self._inline(field.slot, stored, len(stored))
        return int(self._buffer.EndObject())

    def _list(self, items: list[int]) -> int:
        self._buffer.StartVector(4, len(items), 4)
        for item in reversed(items):
            self._buffer.PrependUOffsetTRelative(item)
        return int(self._buffer.EndVector())

    def _item(self, field: Field, value: Any) -> int:
        buffer = self._buffer
        if field.kind == "union":
            kind = value.get("kind")
            if kind not in UNIONS[field.of]:
                raise invalid_schema(f"{kind!r} is no kind of {field.of}")
            target = self.table(member_table(field.of, kind), value)
            if not field.many:
                return target
            buffer.StartObject(2)
            self._inline(0, _tag(field, value), 1)
            self._offset(1, target)
            return int(buffer.EndObject())
        if field.kind == "table":
            return self.table(TABLES[field.of], value)
        if field.kind == "json":
            stored = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
            text = buffer.CreateString(stored)
            buffer.StartObject(1)
            self._offset(0, text)
            return int(buffer.EndObject())
        if field.kind == "string":
            return int(buffer.CreateString(value))
        return int(buffer.CreateByteVector(_CHECKS[field.kind](value)))

    def _inline(self, slot: int, data: bytes, alignment: int) -> None:
        """Write a value inline in its table."""
        buffer = self._buffer
        buffer.Prep(alignment, len(data))
        buffer.head -= len(data)
        buffer.Bytes[buffer.head : buffer.head + len(data)] = data
        buffer.Slot(slot)

    def _offset(self, slot: int, target: int) -> None:
        self._buffer.PrependUOffsetTRelative(target)
        self._buffer.Slot(slot)


def _packed(field: Field, value: Any) -> bytes:
    if field.kind == "enum":
        form, names = ENUMS[field.of]
        if value not in names:
            raise invalid_schema(f"{value!r} is no {field.of}")
        return _SCALARS[form].pack(names.index(value))
    try:
        return _SCALARS[field.of].pack(value)
    except Exception:  # noqa: BLE001 - struct raises its own error, or TypeError
        raise invalid_schema(f"{field.name}: {value!r} does not fit {field.of}") from None


def _tag(field: Field, value: dict[str, Any]) -> bytes:
    return bytes((UNIONS[field.of].index(value["kind"]) + 1,))
