"""Delta tables over the files of a dataset: the next entry of a log that only kartosql writes."""

from __future__ import annotations

import base64
import datetime as dt
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import repeat
from json.encoder import encode_basestring_ascii as json_text
from typing import Any

import pyarrow as pa

from kartosql.errors import UsageError
from kartosql.formats import roaring
from kartosql.formats.delta.log import LOG, Log, Snapshot
from kartosql.formats.delta.vectors import Z85
from kartosql.store import Store
from kartosql.text.version import VERSION
from kartosql.write.publish.live import MAX_BOUND, MAX_TOLD, PER_SECOND, LiveFiles, encoded, locations, refused

# Whoever does not know a feature that writers need leaves the table alone; VACUUM would remove files of the store.
OWN_FEATURE = "kartosqlPublished"
_DATASET = "kartosql.dataset"
_NAMES = {
    **{pa.bool_(): "boolean", pa.int8(): "byte", pa.int16(): "short", pa.int32(): "integer", pa.int64(): "long"},
    **{pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.large_string(): "string"},
    **{pa.binary(): "binary", pa.large_binary(): "binary", pa.date32(): "date"},
}
_ODD = frozenset(" ,;{}()\n\t=")  # characters that names of columns may not hold unless they are mapped
_EXACT_DIGITS = 15  # of a number that readers may take for a DOUBLE
_DAYS = dt.date(1970, 1, 1).toordinal()
_EPOCH = dt.datetime(1970, 1, 1)


class DeltaTarget:
    """A folder that is, or becomes, a published Delta table."""

    type = "delta"
    folder = LOG

    def __init__(self, store: Store) -> None:
        self.store = store
        self._before: Snapshot | None = None

    def read(self, name: str) -> None:
        """Read what stands there; raises ``target-taken`` and what is wrong with it."""
        self._before = Log(self.store, paths_only=True).at(None) if self.store.list_below(f"{LOG}/") else None
        if self._before is not None and OWN_FEATURE not in (self._before.protocol.get("writerFeatures") or ()):
            raise UsageError(
                f"{self.store.url} is a Delta table that something else writes.",
                code="target-taken",
                hint=f"Choose another folder for {name!r}.",
            )

    def paths(self, source: Store, keys: Sequence[str]) -> Sequence[str]:
        """Return how the log names files: relative to a folder above them, else by their URLs."""
        return encoded(locations(source, keys, self.store))

    def kept(self, paths: Sequence[str]) -> Collection[str]:
        """Return those of some files of which nothing has to be known, at least: those that stand there as a whole."""
        stood = {} if self._before is None else _vectors_by_path(self._before)
        return frozenset(path for path, vector in stood.items() if vector is None)

    def write(self, live: LiveFiles, paths: Sequence[str], known: Collection[str]) -> dict[str, Any]:
        """Write the next version unless nothing changed; raises what ``Store.put_if`` raises."""
        before = self._before
        schema = _DeltaSchema(live)
        stood = {} if before is None else _vectors_by_path(before)
        places = {path: at for at, path in enumerate(stood)}  # of files in the version before
        vectors = {paths[file]: _vector(rows) for file, rows in live.deleted.items()}
        new = [f for f, path in enumerate(paths) if path not in stood or stood[path] != _place(vectors.get(path))]
        gone = set(stood).difference(paths) | {paths[f] for f in new if paths[f] in stood}
        version = 0 if before is None else before.version + 1
        lines = [] if before is None else [_remove(path, before, places[path]) for path in sorted(gone)]
        lines += _adds(live.only(new), paths, vectors)
        if before is None or not schema.is_same(before):
            lines = [*schema.actions(before, has_vectors=bool(vectors)), *lines]
        elif vectors and "deletionVectors" not in (before.protocol.get("readerFeatures") or ()):
            lines = [schema.protocol(has_vectors=True), *lines]
        if lines:
            told = {"timestamp": _now(), "operation": "PUBLISH", "engineInfo": f"kartosql/{VERSION}"}
            told |= {"operationParameters": {"dataset": json.dumps(live.name)}, "txnId": uuid.uuid4().hex}
            text = "\n".join([_json({"commitInfo": told}), *lines, ""])
            self.store.put_if(f"{LOG}/{version:020}.json", text.encode(), None)
        removed = len(set(stood).difference(paths))
        return {"version": version if lines else version - 1, "added": len(set(paths) - set(stood)), "removed": removed}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _now() -> int:
    return int(dt.datetime.now(dt.timezone.utc).timestamp() * 1000)


class _DeltaSchema:
    """The columns of a table as Delta has them; raises ``unsupported-type``."""

    def __init__(self, live: LiveFiles) -> None:
        self._live = live
        self._ids = 0
        self._features: set[str] = set()
        self._is_mapped = any(not _ODD.isdisjoint(name) for name in _names(live.schema))
        self._fields = [self._field(f, f.name) for f in live.schema]
        for key, type_ in zip(live.partitions.keys, live.partitions.types, strict=True):
            if pa.types.is_nested(type_) or pa.types.is_binary(type_):
                raise refused(live.name, key, type_, "As a partition column Delta")

    def _field(self, field: pa.Field, column: str) -> dict[str, Any]:
        self._ids += 1
        mapped = {"delta.columnMapping.id": self._ids, "delta.columnMapping.physicalName": field.name}
        type_ = self._type(field.type, column)
        return {"name": field.name, "type": type_, "nullable": True, "metadata": mapped if self._is_mapped else {}}

    def _type(self, type_: pa.DataType, column: str) -> Any:
        t = pa.types
        if t.is_dictionary(type_):
            return self._type(type_.value_type, column)
        if type_ in _NAMES:
            return _NAMES[type_]
        if t.is_timestamp(type_):
            if type_.tz is None:
                self._features.add("timestampNtz")
            return "timestamp_ntz" if type_.tz is None else "timestamp"
        if t.is_decimal128(type_):
            return f"decimal({type_.precision},{type_.scale})"
        if t.is_struct(type_):
            return {"type": "struct", "fields": [self._field(f, column) for f in type_]}
        if t.is_list(type_) or t.is_large_list(type_):
            inner = self._type(type_.value_type, column)
            return {"type": "array", "elementType": inner, "containsNull": True}
        if t.is_map(type_):
            key, value = self._type(type_.key_type, column), self._type(type_.item_type, column)
            return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        raise refused(self._live.name, column, type_, "Delta")

    def _metadata(self) -> dict[str, Any]:
        told = {_DATASET: self._live.name}
        if self._is_mapped:
            told |= {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(self._ids)}
        schema = _json({"type": "struct", "fields": self._fields})
        keys = list(self._live.partitions.keys)
        return {"name": self._live.name, "schemaString": schema, "partitionColumns": keys, "configuration": told}

    def is_same(self, before: Snapshot) -> bool:
        """Return whether a version has these columns."""
        return all(before.metadata.get(key) == value for key, value in self._metadata().items())

    def protocol(self, *, has_vectors: bool) -> str:
        """Return the action that says what readers and writers have to know."""
        found = sorted(self._features | ({"columnMapping"} if self._is_mapped else set()))
        found += ["deletionVectors"] if has_vectors else []
        readers = {"minReaderVersion": 3, "readerFeatures": found} if found else {"minReaderVersion": 1}
        return _json({"protocol": {**readers, "minWriterVersion": 7, "writerFeatures": [*found, OWN_FEATURE]}})

    def actions(self, before: Snapshot | None, *, has_vectors: bool) -> list[str]:
        """Return protocol and metadata as actions."""
        had = before is not None and "deletionVectors" in (before.protocol.get("readerFeatures") or ())
        told: Mapping[str, Any] = {} if before is None else before.metadata
        same = {"id": told.get("id") or str(uuid.uuid4()), "createdTime": told.get("createdTime") or _now()}
        whole = {**same, **self._metadata(), "format": {"provider": "parquet", "options": {}}}
        return [self.protocol(has_vectors=has_vectors or had), _json({"metaData": whole})]


def _names(fields: Any) -> Iterator[str]:
    for field in fields:
        yield field.name
        if pa.types.is_struct(field.type):
            yield from _names(field.type)


# -- files ---------------------------------------------------------------------------------------


def _vector(rows: Sequence[int]) -> dict[str, Any]:
    """Return the deletion vector of rows, which stands in the log itself."""
    data = roaring.MAGIC + roaring.encoded(rows)
    text = base64.b85encode(data + bytes(-len(data) % 4)).decode().translate({v: k for k, v in Z85.items()})
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}


def _place(vector: Mapping[str, Any] | None) -> str | None:
    return None if vector is None else vector["pathOrInlineDv"]


def _vectors_by_path(before: Snapshot) -> dict[str, str | None]:
    return dict(zip(before.files["path"].to_pylist(), before.files["dv.pathOrInlineDv"].to_pylist(), strict=True))


def _remove(path: str, before: Snapshot, at: int) -> str:
    """Return the action that removes the file at a place of the version before."""
    action: dict[str, Any] = {"path": path, "deletionTimestamp": _now(), "dataChange": True}
    names = ("storageType", "pathOrInlineDv", "sizeInBytes", "cardinality")
    if before.files["dv.pathOrInlineDv"][at].is_valid:
        action["deletionVector"] = {n: before.files[f"dv.{n}"][at].as_py() for n in names}
    return _json({"remove": action})


def _adds(live: LiveFiles, paths: Sequence[str], vectors: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the actions that add files; put together from pieces, column by column, as there may be many."""
    told = [(c, text) for c in live.bounds if (text := _stat_texts(live.schema.field(c).type)) is not None]
    lows, highs = list[Sequence[str | None]](), list[Sequence[str | None]]()
    for column, text in told[:MAX_TOLD]:
        for ends, found in zip((lows, highs), live.bounds[column].bounds(*text), strict=True):
            ends.append(_members(column, found))
    nulls = [_members(c, b.nulls) for c, b in [*live.bounds.items()][:MAX_TOLD]]
    columns = (_joined(c, len(live.files)) for c in (lows, highs, nulls))
    every = zip(live.files, live.sizes, live.rows, _partition_values(live), *columns, strict=True)
    for file, (size, time), rows, values, low, high, none in every:
        vector = vectors.get(paths[file])
        tight, deleted = (',"tightBounds":false', f',"deletionVector":{_json(vector)}') if vector else ("", "")
        stats = f'{{"numRecords":{rows},"minValues":{{{low}}},"maxValues":{{{high}}},"nullCount":{{{none}}}{tight}}}'
        yield (
            f'{{"add":{{"path":{json_text(paths[file])},"partitionValues":{{{values}}},"size":{size},'
            f'"modificationTime":{time},"dataChange":true,"stats":{json_text(stats)}{deleted}}}}}'
        )


def _members(column: str, values: Sequence[Any]) -> Sequence[str | None]:
    """Return the members of objects that tell something of a column in files, None where it is not known."""
    name = json_text(column)
    return [None if value is None else f"{name}:{value}" for value in values]


def _joined(columns: Sequence[Sequence[str | None]], files: int) -> Iterable[str]:
    """Return the members of objects, one for each file."""
    return (",".join(filter(None, row)) for row in zip(*columns, strict=True)) if columns else repeat("", files)


def _partition_values(live: LiveFiles) -> list[str]:
    """Return the members of an object with the partition values of each file."""
    partitions, columns = live.partitions, list[Sequence[str | None]]()
    numbers = [partitions.part_of_file[file] for file in live.files]
    used = list(dict.fromkeys(numbers))
    for key, type_, column in zip(partitions.keys, partitions.types, partitions.columns, strict=True):
        text = _partition_text(type_)
        values = [None if (value := column[part]) is None else text(value) for part in used]
        if "" in values:
            raise refused(live.name, key, "an empty text there", "Delta")
        columns.append(_members(key, ["null" if value is None else json_text(value) for value in values]))
    by_part = dict(zip(used, _joined(columns, len(used)), strict=True))
    return [by_part[number] for number in numbers]


def _partition_text(type_: pa.DataType) -> Callable[[Any], str]:
    """Return what writes values of a partition column."""
    t = pa.types
    if t.is_timestamp(type_):
        per, zone = PER_SECOND[type_.unit], "" if type_.tz is None else "Z"
        return lambda v: f"{_EPOCH + dt.timedelta(microseconds=v * 10**6 // per)}{zone}"
    return (lambda v: str(v).lower()) if t.is_boolean(type_) else str


def _stat_texts(type_: pa.DataType) -> tuple[Callable[[Any], str | None], Callable[[Any], str | None]] | None:
    """Return what writes lower and upper bounds, moved and cut; None for types of which none is told.

    Of FLOAT and DOUBLE engines take NaN for the largest value, of which bounds of footers tell nothing.
    """
    t = pa.types
    if t.is_integer(type_):
        return str, str
    found: Callable[[Any], str | None]
    if t.is_string(type_) or t.is_large_string(type_):
        found = lambda v: json_text(v) if len(v) <= MAX_BOUND else None  # noqa: E731
    elif t.is_date32(type_):
        found = lambda v: f'"{dt.date.fromordinal(v + _DAYS)}"' if -719162 <= v <= 2932896 else None  # noqa: E731
    elif t.is_decimal128(type_) and type_.precision <= _EXACT_DIGITS:
        found = lambda v: format(Decimal(v).scaleb(-type_.scale), "f")  # noqa: E731
    elif t.is_timestamp(type_):
        per, zone = PER_SECOND[type_.unit], "" if type_.tz is None else "Z"

        def moment(milliseconds: int) -> str | None:
            if not -62135596800000 <= milliseconds < 253402300800000:
                return None
            text = (_EPOCH + dt.timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
            return f'"{text}{zone}"'

        return lambda v: moment(v * 1000 // per), lambda v: moment(-(-v * 1000 // per))
    else:
        return None
    return found, found
