"""The tables of a metadata block: their fields in the order of slots, with types and what must be there.

One description serves the binary reader, the binary writer and the text forms. Source:
``opendatafabric.fbs`` and the JSON schemas of the specification 0.39.

Types: integers by width, ``bool``, ``string``, ``bytes``, ``hash`` (a multihash), ``did`` (the id of a
dataset), ``time``, ``json`` (an object as text in a table of its own), names of tables, unions
and enums, and ``[item]``. ``?`` marks an optional scalar, which is stored even if it is 0, and
``!`` what must be there.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["scalar", "enum", "string", "bytes", "hash", "did", "time", "json", "table", "union"]
SCALARS = {"bool": 1, "i16": 2, "i32": 4, "u32": 4, "i64": 8, "u64": 8}

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
DataType.Duration: unit TimeUnit?
DataType.List: itemType DataType!, fixedLength u64?
DataType.Map: keyType DataType!, valueType DataType!, keysSorted bool?
DataType.Option: inner DataType!
DataType.Struct: fields [DataField]!
DataType.Time: unit TimeUnit?
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
ReadStep.GeoJson: ddlSchema [string], schema DataSchema
ReadStep.EsriShapefile: ddlSchema [string], subPath string, schema DataSchema
ReadStep.Parquet: ddlSchema [string], schema DataSchema
ReadStep.Json: subPath string, ddlSchema [string], dateFormat string, encoding string, timestampFormat string, \
schema DataSchema
ReadStep.NdJson: ddlSchema [string], dateFormat string, encoding string, timestampFormat string, schema DataSchema
ReadStep.NdGeoJson: ddlSchema [string], schema DataSchema
Transform.Sql: engine string!, version string, query string, queries [SqlQueryStep], temporalTables [TemporalTable]
SqlQueryStep: alias string, query string!
TemporalTable: name string!, primaryKey [string]!
TransformInput: datasetRef string!, alias string
MergeStrategy.Ledger: primaryKey [string]!
MergeStrategy.Snapshot: primaryKey [string]!, compareColumns [string]
MergeStrategy.ChangelogStream: primaryKey [string]!
MergeStrategy.UpsertStream: primaryKey [string]!
Attachments.Embedded: items [AttachmentEmbedded]!
AttachmentEmbedded: path string!, content string!

DatasetSnapshot: name string!, kind DatasetKind, metadata [MetadataEvent]!
"""

# The members of unions, by tag from 1. Those of events are tables of the same name.
UNIONS: dict[str, tuple[str, ...]] = {
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

# Names of values from 0, and their width.
ENUMS: dict[str, tuple[int, tuple[str, ...]]] = {
    "DatasetKind": (4, ("Root", "Derivative")),
    "TimeUnit": (2, ("Second", "Millisecond", "Microsecond", "Nanosecond")),
    "CompressionFormat": (4, ("Gzip", "Zip")),
    "SourceOrdering": (4, ("ByEventTime", "ByName")),
    "MqttQos": (4, ("AtMostOnce", "AtLeastOnce", "ExactlyOnce")),
}


class Field(NamedTuple):
    """A field of a table: where it stands, what it holds, and whether it can be missing."""

    name: str
    slot: int  # of unions that of the table; the tag stands one before
    kind: Kind
    of: str  # the scalar type, or the name of the table, union or enum
    many: bool
    optional: bool  # a scalar that may be absent; else absent means 0
    required: bool


class TableLayout(NamedTuple):
    """A table: its name and its fields in the order of slots."""

    name: str
    fields: tuple[Field, ...]
    slots: int


def _field(text: str, slot: int) -> Field:
    name, type_ = text.split()
    optional, required = type_.endswith("?"), type_.endswith("!")
    of = type_.rstrip("?!")
    many, of = of.startswith("["), of.strip("[]")
    kind: Kind
    if of in SCALARS:
        kind = "scalar"
    elif of in ENUMS:
        kind = "enum"
    elif of in UNIONS:
        kind = "union"
    else:
        kind = of if of in ("string", "bytes", "hash", "did", "time", "json") else "table"  # type: ignore[assignment]
    is_pair = kind == "union" and not many
    return Field(name, slot + is_pair, kind, of, many, optional, required)


def _parse(text: str) -> dict[str, TableLayout]:
    found: dict[str, TableLayout] = {}
    for line in filter(None, text.split("\n")):
        name, _, rest = line.partition(":")
        fields: list[Field] = []
        slot = 0
        for part in filter(None, rest.strip().split(", ")):
            fields.append(_field(part, slot))
            slot = fields[-1].slot + 1
        found[name] = TableLayout(name, tuple(fields), slot)
    for union, members in UNIONS.items():
        if union != "MetadataEvent":
            for member in members:
                found.setdefault(f"{union}.{member}", TableLayout(f"{union}.{member}", (), 0))
    return found


TABLES = _parse(_TABLES)


def member_table(union: str, member: str) -> TableLayout:
    """Return the table of a member of a union."""
    return TABLES[member if union == "MetadataEvent" else f"{union}.{member}"]
